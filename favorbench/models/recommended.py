"""The choices of ``recommend`` for the heads of a model, as a replacement of its attention."""

import functools
import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from favorbench.engine.rows import read_parts
from favorbench.engine.scenario import TRANSFORM_NAMES
from favorbench.engine.store import read_scenario
from favorbench.errors import InputError, ScenarioError
from favorbench.files import read_json
from favorbench.formats import counted, shown
from favorbench.maps import get_map
from favorbench.maps.transforms import calibrations
from favorbench.methods import Shape
from favorbench.methods.features import LinearAttention
from favorbench.models.replacements import (
    EstimatedAttention,
    Exact,
    LayerHeads,
    Replacement,
    StreamNames,
    Tensor,
    replacement,
    total,
)
from favorbench.models.store import MANIFEST, read_manifest
from favorbench.parameters import whole_numbers
from favorbench.users import check_trusted

FILE = "recommendation.json"
OLDER = "if version 0.2.0 wrote it, run the same `favorbench recommend` command with another --out"

_HEAD = re.compile(r"L(\d+)H(\d+)(@.*)?")
_KEPT = re.compile(r"L(\d{1,6})H(\d{1,6})(?:-(\d{1,6}))?")


class ByHead(Replacement):
    """A separate replacement for each head. Heads without one get ``others``: exact attention and its cost, or another.

    choices: by layer and head. Heads of a layer that share a map at one size share omega.
    """

    def __init__(
        self, name: str, choices: Mapping[int, Mapping[int, Replacement]], sha256: str = "",
        others: Replacement | None = None,
    ) -> None:  # fmt: skip
        self.name, self.choices, self.sha256, self.others = name, choices, sha256, others or Exact()
        count = sum(map(len, choices.values()))
        heads = counted(count, "head")
        self.label = f"{others.label}, {heads} {name}" if others else f"recommended({name}, {heads})"
        self.random = any(member.random for member in self.members())
        self.causal_safe = all(member.causal_safe for member in self.members())
        self.needed_layers = tuple(sorted(choices))
        self.layers = () if others else self.needed_layers
        self.kind = others.kind if others and others.kind != "trivial" else "method"  # beside exact heads it competes
        self.sampler, self.size = (others.sampler, others.size) if others else (None, None)

    @staticmethod
    def but_exact(
        others: Replacement, heads: Mapping[int, Collection[int]], name: str = "exact", sha256: str = ""
    ) -> Replacement:
        """One replacement for all heads but some, by layer, which keep exact attention."""
        if not heads:
            return others
        choices = {layer: dict.fromkeys(numbers, Exact()) for layer, numbers in heads.items()}
        return ByHead(name, choices, sha256, others)

    def members(self) -> tuple[Replacement, ...]:
        chosen = (member for heads in self.choices.values() for member in heads.values())
        return tuple(dict.fromkeys((*chosen, *(() if self.layers else (self.others,)))))

    def check(self, shape: Shape, heads: int, layer: int) -> None:
        chosen = self.choices.get(layer, {})
        if missing := [head for head in sorted(chosen) if head >= heads]:
            raise InputError(f"{self.label} has a choice for L{layer}H{missing[0]}: this model has {heads} heads there")
        for member in self._groups(layer, heads):
            member.check(shape, heads, layer)

    def outputs(self, heads: LayerHeads, seed: int, names: StreamNames) -> Tensor:
        count = heads.query.shape[1]
        self.check(heads.shape, count, heads.layer)
        output = heads.query.new_empty(heads.output_shape)
        for member, chosen in self._groups(heads.layer, count).items():
            output[:, chosen] = member.outputs(heads.select_heads(chosen), seed, names)
        return output

    def work(self, shape: Shape, heads: int, layer: int) -> float | None:
        return total(member.work(shape, len(chosen), layer) for member, chosen in self._groups(layer, heads).items())

    def _groups(self, layer: int, count: int) -> dict[Replacement, list[int]]:
        """The heads of a layer that share a replacement."""
        chosen, groups = self.choices.get(layer, {}), dict[Replacement, list[int]]()
        for head in range(count):
            groups.setdefault(chosen.get(head, self.others), []).append(head)
        return groups


def heads_by_layer(given: Any) -> dict[int, tuple[int, ...]]:
    """Heads by layer, from {7: [6, 7, 8]} or "L7H6-8,L18H0". Raises ScenarioError."""
    if isinstance(given, Mapping):
        whole_numbers("layers of `exact_heads`", given)
        return {layer: whole_numbers("heads of `exact_heads`", one) or () for layer, one in given.items()}
    heads = defaultdict[int, tuple[int, ...]](tuple)
    names = given.split(",") if isinstance(given, str) else [given]
    for name in names if given else ():
        numbers = isinstance(name, str) and _KEPT.fullmatch(name.strip())
        if not numbers or int(numbers[3] or numbers[2]) < int(numbers[2]):
            raise ScenarioError(
                f"`exact_heads` {shown(name)} given, allowed: heads such as L7H6 or L7H6-8, with commas"
            )
        heads[int(numbers[1])] += tuple(range(int(numbers[2]), int(numbers[3] or numbers[2]) + 1))
    return dict(heads)


def head_names(heads: Mapping[int, Collection[int]]) -> tuple[str, ...]:
    """The names of heads, such as "L7H6": ``heads_by_layer`` takes them with commas."""
    return tuple(f"L{layer}H{head}" for layer, numbers in sorted(heads.items()) for head in sorted({*numbers}))


class ChosenSetting(TypedDict):
    """An estimator in the file."""

    kind: str
    name: str
    sampler: str | None
    size: int | None
    spec: str


class HeadChoice(TypedDict):
    """The fields of the decision on one head that are read; multiplications: None if nothing was measured."""

    head: str
    multiplications: float | None
    certified: bool
    estimator: ChosenSetting | None
    per_head: NotRequired[dict[str, ChosenSetting] | None]
    python: NotRequired[str]


class ModelFacts(TypedDict):
    """The fields of a recommendation for a model that are read. length: of the texts, in tokens."""

    exact_heads: NotRequired[list[str]]
    length: NotRequired[int]


class RecommendationFile(TypedDict):
    """The fields of the file that are read."""

    heads: list[HeadChoice]
    model: NotRequired[ModelFacts | None]
    complete: NotRequired[bool]
    notes: NotRequired[list[str]]


def by_head(path: str | Path) -> Replacement:
    """The certified choices in a directory of ``recommend``. Raises InputError, StoreError and ScenarioError.

    A head with several texts gets the most expensive of its choices, provided that every text has one.
    """
    path, content = _read(path)
    complete = content.get("complete", True)
    advice = "recommend with a weaker `target`" if complete else "its search is not finished: rerun it"
    if model := content.get("model"):
        names = ",".join(model.get("exact_heads", ()))
        digest = sha256(names.encode()).hexdigest()
        if not (chosen := _for_model(content["heads"][0], path)):
            raise InputError(f"{path}: nothing is certified there for the model; {advice}")
        kept = heads_by_layer(names)
        return ByHead.but_exact(chosen, kept, f"exact in {path.resolve().name}", digest)
    if (scale := read_scenario(path).scale) != (1.0,):
        raise InputError(f"{path} is for queries and keys multiplied by {scale[0]:g}: recommend with `scale` 1")
    certified = _certified(content["heads"], path)
    if not certified:
        raise InputError(f"{path}: nothing is certified there for any head; {advice}")
    return _of_choices(certified, path)


def certified_on(path: str | Path) -> tuple[int | None, str | None]:
    """The tokens of texts, and the digest of weights, that settings are certified on, where known. Heads have none."""
    path, content = _read(path)
    if not (model := content.get("model")):
        parts, _ = read_parts(path / "trials", columns=["seq_len"])
        return next((int(length) for part in parts for length in part.table["seq_len"].to_pylist()), None), None
    weights = read_manifest(path)["asked"].get("weights") if (path / MANIFEST).exists() else None
    return model.get("length") or None, weights


def _read(path: str | Path) -> tuple[Path, RecommendationFile]:
    """The directory of ``recommend`` and its file."""
    path = Path(path)
    path = path.parent if path.name == FILE else path
    if not (path / FILE).exists():
        raise InputError(f"{str(path)!r} has no {FILE}: give a directory that `favorbench recommend` has written")
    return path, read_json(path / FILE, RecommendationFile, "recommendation", hint=OLDER)


def _of_choices(certified: Mapping[tuple[int, int], ChosenSetting], path: Path) -> ByHead:
    """Build the replacement from the settings of heads, by layer and number."""
    choices = defaultdict[int, dict[int, Replacement]](dict)
    for (layer, head), chosen in zip(certified, _replacements(certified.values(), path), strict=True):
        choices[layer][head] = chosen
    fields = [(head, [setting[name] for name in ChosenSetting.__annotations__]) for head, setting in certified.items()]
    return ByHead(path.resolve().name, dict(choices), sha256(json.dumps(fields).encode()).hexdigest())


def _for_model(decision: HeadChoice, path: Path) -> Replacement | None:
    """The certified setting for all attention of a model, or None."""
    setting = decision["estimator"]
    if not decision["certified"] or setting is None:
        return None
    if choices := decision.get("per_head"):
        return _of_choices({_numbers(head, path): chosen for head, chosen in choices.items()}, path)
    return _replacements([setting], path)[0]


def _certified(decisions: Sequence[HeadChoice], path: Path) -> dict[tuple[int, int], ChosenSetting]:
    """The most expensive choice of each layer and head; none if any of its decisions has none."""
    settings = {
        _numbers(decision["head"], path): decision["estimator"] if decision["certified"] else None
        for decision in sorted(decisions, key=lambda item: (not item["certified"], item["multiplications"] or 0.0))
    }
    return {head: setting for head, setting in settings.items() if setting is not None}


def _numbers(head: str, path: Path) -> tuple[int, int]:
    """The layer and the number of a head such as "L0H1"."""
    if not (numbers := _HEAD.fullmatch(head)):
        raise InputError(
            f"{path} recommends for {head!r}, which is not a head of a model such as L0H1; recommend "
            "for a file that `favorbench capture` has written"
        )
    return int(numbers[1]), int(numbers[2])


def _replacements(settings: Collection[ChosenSetting], path: Path) -> list[Replacement]:
    """The replacement of each setting; equal settings share one. Raises ScenarioError for modules of others."""
    named = [name for setting in settings for name in (setting["spec"], setting["sampler"]) if name]
    check_trusted(named, path / FILE, TRANSFORM_NAMES)
    make = functools.cache(_replacement)
    return [make(setting["kind"], setting["sampler"], setting["size"], setting["spec"]) for setting in settings]


def _replacement(kind: str, sampler: str | None, size: int | None, spec: str) -> Replacement:
    size = size or 1  # estimators without sizes ignore it
    if kind != "map":
        chosen = replacement(spec, size)
        if isinstance(chosen, EstimatedAttention):
            chosen.or_exact = True
        return chosen
    if calibrations(feature_map := get_map(spec)):
        raise InputError(f"{spec} is fitted to another text: recommend without `calibrated:` maps")
    return EstimatedAttention(LinearAttention(feature_map, sampler or "orthogonal"), size)
