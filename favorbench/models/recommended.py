"""What ``recommend`` chose for each head of a model, in the place of its attention."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, NamedTuple

from typing_extensions import TypedDict

from favorbench.engine.scenario import TRANSFORM_NAMES
from favorbench.engine.store import read_scenario
from favorbench.errors import InputError
from favorbench.files import read_json
from favorbench.maps import get_map
from favorbench.maps.calibrated import calibrations
from favorbench.methods import Shape
from favorbench.methods.features import LinearAttention
from favorbench.models.replacements import EstimatedAttention, Exact, LayerHeads, Replacement, Tensor, replacement
from favorbench.users import check_trusted

FILE = "recommendation.json"

_HEAD = re.compile(r"L(\d+)H(\d+)(@.*)?")


@dataclass(frozen=True)
class ByHead(Replacement):
    """Each head by a replacement of its own; those without one keep exact attention, and its cost.

    choices: of layers and, in them, of heads. Heads of a layer that share a map at one size share omega.
    """

    name: str
    choices: Mapping[int, Mapping[int, Replacement]]
    sha256: str = ""
    kind: ClassVar[str] = "method"  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        count = sum(len(heads) for heads in self.choices.values())
        return f"recommended({self.name}, {count} head{'' if count == 1 else 's'})"

    @property
    def every(self) -> tuple[Replacement, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The choices, each once."""
        return tuple({id(one): one for heads in self.choices.values() for one in heads.values()}.values())

    @property
    def random(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(one.random for one in self.every)

    @property
    def causal_safe(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(one.causal_safe for one in self.every)

    @property
    def layers(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(sorted(self.choices))

    def check(self, shape: Shape, heads: int, layer: int) -> None:
        chosen = self.choices.get(layer, {})
        if missing := [head for head in sorted(chosen) if head >= heads]:
            raise InputError(f"{self.label} has a choice for L{layer}H{missing[0]}: this model has {heads} heads there")
        for one in chosen.values():
            one.check(shape, heads, layer)

    def outputs(self, heads: LayerHeads, seed: int, names: Sequence[str | int], layer: int) -> Tensor:
        count = heads.query.shape[1]
        self.check(heads.shape, count, layer)
        found = heads.query.new_empty((*heads.query.shape[:-1], heads.value.shape[-1]))
        for one, chosen in self._groups(layer, count):
            found[:, chosen] = one.outputs(heads.select_heads(chosen), seed, names, layer)
        return found

    def work(self, shape: Shape, heads: int, layer: int) -> float | None:
        each = [one.work(shape, len(chosen), layer) for one, chosen in self._groups(layer, heads)]
        known = [one for one in each if one is not None]
        return sum(known) if len(known) == len(each) else None

    def _groups(self, layer: int, count: int) -> list[tuple[Replacement, list[int]]]:
        """Heads of a layer that are answered together."""
        exact, chosen = Exact(), self.choices.get(layer, {})
        members: dict[int, tuple[Replacement, list[int]]] = {}
        for head in range(count):
            one = chosen.get(head, exact)
            members.setdefault(id(one), (one, []))[1].append(head)
        return list(members.values())


def by_head(path: str | Path) -> ByHead:
    """The certified choices in a directory of ``recommend``. Raises InputError, StoreError and ScenarioError.

    A head of several texts gets the dearest of its choices, if it has one on every text.
    """
    path = Path(path)
    path = path.parent if path.name == FILE else path
    if not (path / FILE).exists():
        raise InputError(f"{str(path)!r} has no {FILE}: give a directory that `favorbench recommend` has written")
    if (scale := read_scenario(path).scale) != (1.0,):
        raise InputError(f"{path} recommends for queries and keys times {scale[0]:g}: recommend with `scale` 1")
    decisions = read_json(path / FILE, RecommendationFile, "recommendation")["heads"]
    sure = _of_every_text(decisions, path)
    if not sure:
        raise InputError(f"{path}: nothing is certified there for any head; recommend with a larger `target`")
    named = [name for one in sure.values() for name in (one.spec, one.sampler) if name]
    check_trusted(named, path / FILE, TRANSFORM_NAMES)
    made = {estimator: _made(estimator) for estimator in sure.values()}
    choices: defaultdict[int, dict[int, Replacement]] = defaultdict(dict)
    for (layer, head), estimator in sure.items():
        choices[layer][head] = made[estimator]
    digest = sha256(json.dumps([*sure.items()]).encode()).hexdigest()
    return ByHead(path.resolve().name, dict(choices), digest)


class _Estimator(NamedTuple):
    """As the file has it."""

    kind: str
    name: str
    sampler: str | None
    size: int | None
    spec: str


class ChosenSetting(TypedDict):
    """An estimator as the file has it."""

    kind: str
    name: str
    sampler: str | None
    size: int | None
    spec: str


class HeadChoice(TypedDict):
    """What is read of the decision on one head; multiplications: None where nothing was measured."""

    head: str
    multiplications: float | None
    certified: bool
    estimator: ChosenSetting | None


class RecommendationFile(TypedDict):
    """What is read of the file; there is more in it."""

    heads: list[HeadChoice]


def _of_every_text(decisions: Sequence[HeadChoice], path: Path) -> dict[tuple[int, int], _Estimator]:
    """By layer and head, cheap ones first."""
    found: dict[tuple[int, int], _Estimator] = {}
    for decision in sorted(decisions, key=lambda one: (not one["certified"], one["multiplications"] or 0.0)):
        if not (numbers := _HEAD.fullmatch(decision["head"])):
            raise InputError(
                f"{path} recommends for {decision['head']!r}, which is no head of a model such as L0H1; recommend "
                "for a file that `favorbench capture` has written"
            )
        where = int(numbers[1]), int(numbers[2])
        if decision["certified"] and decision["estimator"] is not None:
            found[where] = _Estimator(**decision["estimator"])
        else:
            found.pop(where, None)
    return found


def _made(given: _Estimator) -> Replacement:
    size = given.size or 1  # of what has none it plays no part
    if given.kind != "map":
        return replacement(given.spec, size)
    if calibrations(found := get_map(given.spec)):
        raise InputError(f"{given.spec} is fitted to a text of its own: recommend without `calibrated:` maps")
    return EstimatedAttention(LinearAttention(found, given.sampler or "orthogonal"), size)
