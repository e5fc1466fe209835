"""A scenario with its members built, and the groups that are measured together: made once for a sweep."""

import functools
import hashlib
import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from favorbench.attention.causal import chunk_multiplications
from favorbench.engine.scenario import ESTIMATORS, Names, Scenario, is_built, override, shipped_title
from favorbench.errors import ScenarioError
from favorbench.inputs import SHIPPED, Fixed, Head, InputSource, get_input
from favorbench.maps import FeatureMap
from favorbench.methods import Method, Shape
from favorbench.methods.base import cost_of
from favorbench.methods.features import LinearAttention, name_of, sampler_of
from favorbench.methods.function import user_sources
from favorbench.numerics.backend import Backend
from favorbench.registry import is_ours, source_digest
from favorbench.samplers import Sampler

if TYPE_CHECKING:
    from favorbench.engine.plan import Draw, DrawShape

Value = TypeVar("Value")


class Size(NamedTuple):
    """requested: the R, number of features or cost of the scenario; None if the estimator ignores it.

    size: the projections of a map, or the size of a method, that follow from it.
    """

    requested: int | None
    size: int


class Estimator(NamedTuple):
    """A member of a study, with its labels in rows. kind: baseline, method or map, whose method is LinearAttention.

    sampler: that draws for a map; None where no sampler can be chosen.
    """

    kind: str
    method: Method
    name: str
    sampler: str | None

    @property
    def labels(self) -> tuple[str, str, str | None]:
        """All of them, which tell the estimators of a study apart."""
        return self.kind, self.name, self.sampler


class EstimatorBatch(NamedTuple):
    """Estimators that are measured together, each at its sizes (increasing): maps that share a sample, or one alone."""

    members: tuple[tuple[Estimator, tuple[Size, ...]], ...]

    @property
    def kind(self) -> str:
        """The kind, which all members share."""
        return self.members[0][0].kind

    @property
    def width(self) -> int:
        """The largest size."""
        return max(size.size for _, sizes in self.members for size in sizes)


class NamedInput(NamedTuple):
    """An input, and the name of its random streams."""

    key: str
    law: InputSource


CACHE_BYTES = 256 << 20  # of arrays: exact answers of 1000 heads at L = 512, d = 64, or of 100 at L = 4096


class Cache:
    """Values by key. The least recently used go first when their arrays exceed CACHE_BYTES."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type["Cache"], tuple[()]]:
        return Cache, ()  # another process begins with an empty cache

    def get_or_compute(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """The value of ``key``, computed if it is missing. It must not be changed."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = compute()
        self._bytes += getattr(value, "nbytes", 0)
        while self._bytes > CACHE_BYTES and len(self._values) > 1:
            self._bytes -= getattr(self._values.popitem(last=False)[1], "nbytes", 0)
        return value


@dataclass(frozen=True)
class Study:
    """A scenario and its members. inputs: by their names in rows. digest: identifies all that is measured.

    calibration: the text that calibrated maps are fitted to. sources: by spec, the SHA-256 of the user's module.
    kept: results, also of studies of some of its estimators. own: its plan and its batches.
    """

    scenario: Scenario
    maps: tuple[FeatureMap, ...]
    samplers: tuple[Sampler, ...]
    methods: tuple[Method, ...]
    baselines: tuple[Method, ...]
    inputs: Mapping[str, NamedInput]
    calibration: NamedInput | None
    digest: str
    sources: Mapping[str, str | None]
    kept: Cache = field(default_factory=Cache, compare=False, repr=False)
    own: Cache = field(default_factory=Cache, init=False, compare=False, repr=False)

    @staticmethod
    def of(scenario: Scenario) -> "Study":
        """Make the study of a scenario; the members of one read back from a run are built now.

        Raises ScenarioError if the backend is not available.
        """
        if not is_built(scenario):
            scenario = override(scenario)
        Backend(scenario.backend, scenario.device).check(scenario.dtype)
        laws = cast(Names, scenario.inputs).members
        inputs = {
            name: _named_input(spec, law)
            for name, spec, law in zip(labels_of(scenario.inputs, laws), scenario.inputs, laws, strict=True)
        }
        calibration = None
        if (spec := scenario.calibrate) is not None:
            calibration = _named_input(spec, scenario.held.get(spec) or get_input(spec, scenario.layout))
        sources = _source_digests(scenario)
        digest = _digest(scenario, list(inputs.values()), calibration, sources)
        members = {kind: getattr(scenario, kind).members for kind in ESTIMATORS}
        return Study(scenario, **members, inputs=inputs, calibration=calibration, digest=digest, sources=sources)

    def check_sources(self) -> None:
        """Raise ScenarioError where a user's module is not the one that the study was made with."""
        for spec, now in _source_digests(self.scenario).items():
            if now != self.sources[spec]:
                raise ScenarioError(f"the module of {spec} has changed since the run began: run the same command again")

    @property
    def backend(self) -> Backend:
        """The array library and device."""
        return Backend(self.scenario.backend, self.scenario.device)

    def keeps(self, draw: "Draw | DrawShape") -> bool:
        """Whether all draws of a head share what is not random, so that the cache has it."""
        whole = self.scenario.rows(draw.head.query_len) == draw.head.query_len
        return self.inputs[draw.input].law.fixed and whole and not self.backend.batched

    def once(self, draw: "Draw", what: tuple[Hashable, ...], compute: Callable[[], Value]) -> Value:
        """Compute something that is not random, or take it from the cache if all draws of the head share it."""
        if not self.keeps(draw):
            return compute()
        return self.kept.get_or_compute((draw.input, draw.head, draw.scale, *what), compute)

    @property
    def specs(self) -> tuple[str, ...]:
        """The names of all members but inputs; they name the user's modules."""
        return tuple(spec for kind in ESTIMATORS for spec in getattr(self.scenario, kind))

    def shape(self, head: Head) -> Shape:
        """The sizes of a head, from which costs follow."""
        return Shape(head.query_len, head.seq_len, head.head_dim, head.d_v, self.scenario.causal)

    @functools.cached_property
    def estimators(self) -> list[Estimator]:
        """Baselines, methods, maps without a sampler, and maps under each sampler."""
        methods = [("baseline", member) for member in self.baselines] + [("method", member) for member in self.methods]
        methods += [("map", LinearAttention(member)) for member in self.maps if member.randomness != "omega"]
        omega = [member for member in self.maps if member.randomness == "omega"]
        methods += [("map", LinearAttention(member, law)) for law, member in itertools.product(self.samplers, omega)]
        return [Estimator(kind, method, name_of(method), sampler_of(method)) for kind, method in methods]

    def sizes_of(self, estimator: Estimator, sizes: tuple[int, ...], head: Head) -> tuple[Size, ...]:
        """The sizes at which an estimator is measured."""
        shape = self.shape(head)
        return self.kept.get_or_compute(
            ("sizes", *estimator.labels, sizes, shape),
            lambda: sizes_of(estimator.method, estimator.name, self.scenario.budget, sizes, shape),
        )

    def batches(self, sizes: tuple[int, ...], head: Head) -> tuple[EstimatorBatch, ...]:
        """The estimators in groups that are measured together, each with its sizes; the same for heads of one shape."""
        return self.own.get_or_compute((sizes, self.shape(head)), lambda: tuple(self._batches(sizes, head)))

    def _batches(self, sizes: tuple[int, ...], head: Head) -> Iterator[EstimatorBatch]:
        """Nested maps share one sample of a nested sampler at all R, others draw each R anew.

        A user's map is measured alone, on the same sample: it may change its arguments in place. Baselines that need
        all queries are left out where the error is measured on some of them.
        """
        whole = self.scenario.rows(head.query_len) == head.query_len
        shared: dict[str, list[tuple[Estimator, tuple[Size, ...]]]] = {}
        alone: list[EstimatorBatch] = []
        for estimator in self.estimators:
            method = estimator.method
            if method.needs_all_rows and not whole:
                continue
            every = self.sizes_of(estimator, sizes, head)
            if not isinstance(method, LinearAttention):
                yield EstimatorBatch(((estimator, every),))
            elif not (method.wrapped.nested and method.law.nested):
                alone += [EstimatorBatch(((estimator, (size,)),)) for size in every]
            elif estimator.sampler is None or not is_ours(method):
                alone.append(EstimatorBatch(((estimator, every),)))
            else:
                shared.setdefault(estimator.sampler, []).append((estimator, every))
        yield from (EstimatorBatch(tuple(members)) for members in shared.values())
        yield from alone


def sizes_of(method: Method, name: str, budget: str, requested: tuple[int, ...], shape: Shape) -> tuple[Size, ...]:
    """The sizes of an estimator; a cost does not limit oracles. Raises ScenarioError for a budget it cannot meet."""
    if not method.every_size:
        return (Size(None, 1 if isinstance(method, LinearAttention) else requested[-1]),)
    if budget == "cost" and not method.oracle:
        sizes = _affordable(method, name, requested, shape)
        return tuple(Size(number, method.drawable(size, shape)) for number, size in zip(requested, sizes, strict=True))
    per = method.features_per_size if budget == "features" else 1
    return tuple(Size(number, number // per) for number in requested)


def distinct_sizes(sizes: Iterable[Size]) -> tuple[int, ...]:
    """The different sizes in increasing order."""
    return tuple(sorted({size.size for size in sizes}))


def budget_of(num_features: int, shape: Shape) -> float:
    """Multiplications of a map with one feature for each projection: (n + l) R (d + d_v), and of chunks."""
    return float((shape.n + shape.l) * num_features * shape.per_pair) + chunk_multiplications(shape, num_features)


def _affordable(method: Method, name: str, requested: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """For each number of features, the largest size that costs no more than a map with these features.

    All sizes up to l are tried from above: costs in whole blocks, or of halving, are not monotone. An odd size may cost
    five times as much as the next even one, and one above l / 2, which halves nothing, less than either. Above l there
    are only maps, whose costs are monotone.
    """

    def work(size: int) -> float:
        multiplications = cost_of(method, shape, size)
        if multiplications is None:
            raise ScenarioError(f"`budget` cost: {name} does not declare its cost; use `budget` projections")
        return multiplications

    most = max(1, method.largest_size(shape))  # if there is none, the check of sizes refuses it
    size, sizes = shape.l, {}
    while size < most and work(size) <= budget_of(max(requested), shape):
        size *= 2
    size = min(size, most)
    for number in sorted(set(requested), reverse=True):
        while size and work(size) > budget_of(number, shape):
            size -= 1
        if not size:
            least = min(map(work, range(1, min(shape.l, most) + 1)))
            without, per_feature = budget_of(0, shape), budget_of(1, shape) - budget_of(0, shape)
            raise ScenarioError(
                f"`budget` cost: {name} costs more than a map of {number} features here; "
                f"use `num_projections` {max(1, math.ceil((least - without) / per_feature))} or more"
            )
        sizes[number] = size
    return tuple(sizes[number] for number in requested)


def default_directory(study: Study) -> Path:
    """results/<name>, and a piece of the digest where this is another study than the shipped one of that name."""
    name = study.scenario.name
    shipped = shipped_title(name) == study.scenario.title  # flags that change anything change the title
    return Path("results") / (name if shipped else f"{name}-{study.digest[:6]}")


def _named_input(spec: str, law: InputSource) -> NamedInput:
    """An input; its streams are named by the contents of a file, however its path is spelled."""
    return NamedInput(str(law.digest()) if isinstance(law, Fixed) and spec not in SHIPPED else spec, law)


def labels_of(specs: Sequence[str], laws: Sequence[InputSource]) -> list[str]:
    """The name of each input in rows: a file with no more folders than tell it from others of its name."""
    paths = [Path(spec).parts if isinstance(law, Fixed) else (spec,) for spec, law in zip(specs, laws, strict=True)]

    def label(path: tuple[str, ...]) -> str:
        ends = (path[-count:] for count in range(1, len(path)))
        own = next((end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1), path)
        return str(Path(*own))

    return [label(path) for path in paths]


def _source_digests(scenario: Scenario) -> dict[str, str | None]:
    """By spec, the SHA-256 of the user's module that holds the member; None for our own members.

    And by name those that hold only the samplers of prefixes, as in sinks(4, sampler='mine:Sampler'):positive.
    """
    specs = {kind: getattr(scenario, kind) for kind in ESTIMATORS}
    digests = {
        f"{kind[:-1]} {spec}": source_digest(spec, member)
        for kind, names in specs.items()
        for spec, member in zip(names, names.members, strict=True)
    }
    modules = user_sources(specs["methods"].members)
    return digests | {name: digest for name, digest in modules.items() if digest not in digests.values()}


def _digest(
    scenario: Scenario,
    inputs: Sequence[NamedInput],
    calibration: NamedInput | None,
    sources: Mapping[str, str | None],
) -> str:
    """SHA-256 of all that is measured: everything but name and title, and the sources of a user's modules."""
    content = scenario.model_dump(mode="json", exclude={"name", "title", "calibrate"})
    if calibration is not None:
        content["calibrate"] = [calibration.key, calibration.law.digest()]
    content["inputs"] = [source.key for source in inputs]
    content["input_digests"] = [source.law.digest() for source in inputs]
    content["source_digests"] = list(sources.values())
    return digest_of(content)


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
