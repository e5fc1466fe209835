"""A scenario with its members built, and the groups that are measured together: made once for a sweep."""

import functools
import hashlib
import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from favorbench.engine.scenario import ESTIMATORS, Names, Scenario, is_built, override, shipped_title
from favorbench.engine.sizes import Size, shape_of, sizes_of
from favorbench.errors import ScenarioError
from favorbench.inputs import SHIPPED, Fixed, Head, InputSource, get_input
from favorbench.maps import FeatureMap
from favorbench.methods import Method, Shape
from favorbench.methods.features import LinearAttention, name_of, sampler_of
from favorbench.numerics.backend import Backend
from favorbench.registry import is_ours, source_digest
from favorbench.samplers import Sampler

if TYPE_CHECKING:
    from favorbench.engine.plan import Draw

Value = TypeVar("Value")


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
    _grouped: dict[Hashable, tuple[EstimatorBatch, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @staticmethod
    def of(scenario: Scenario) -> "Study":
        """Make the study of a scenario; the members of one read back from a run are built now.

        Raises ScenarioError if the backend is not available.
        """
        if not is_built(scenario):
            scenario = override(scenario)
        Backend(scenario.backend, scenario.device).check(scenario.dtype)
        members = {kind: getattr(scenario, kind).members for kind in ESTIMATORS}
        laws = cast(Names, scenario.inputs).members
        inputs = {
            name: _named_input(spec, law)
            for name, spec, law in zip(_labels(scenario.inputs, laws), scenario.inputs, laws, strict=True)
        }
        calibration = None
        if (spec := scenario.calibrate) is not None:
            calibration = _named_input(spec, scenario.held.get(spec) or get_input(spec, scenario.layout))
        sources = _source_digests(scenario, members)
        digest = _digest(scenario, list(inputs.values()), calibration, sources)
        return Study(scenario, **members, inputs=inputs, calibration=calibration, digest=digest, sources=sources)

    def check_sources(self) -> None:
        """Raise ScenarioError where a user's module is not the one that the study was made with."""
        members = {kind: getattr(self, kind) for kind in ESTIMATORS}
        for spec, now in _source_digests(self.scenario, members).items():
            if now != self.sources[spec]:
                raise ScenarioError(f"the module of {spec} has changed since the run began: run the same command again")

    @property
    def backend(self) -> Backend:
        """The array library and device."""
        return Backend(self.scenario.backend, self.scenario.device)

    def once(self, draw: "Draw", what: tuple[Hashable, ...], compute: Callable[[], Value]) -> Value:
        """Compute something that is not random, or take it from the cache if all draws of the head share it."""
        fixed = self.inputs[draw.input].law.fixed and self.scenario.rows(draw.head.query_len) == draw.head.query_len
        if not fixed or self.backend.batched:
            return compute()
        return self.kept.get_or_compute((draw.input, draw.head, draw.scale, *what), compute)

    @property
    def specs(self) -> tuple[str, ...]:
        """The names of all members but inputs; they name the user's modules."""
        return tuple(spec for kind in ESTIMATORS for spec in getattr(self.scenario, kind))

    def shape(self, head: Head) -> Shape:
        """The sizes of a head, from which costs follow."""
        return shape_of(head, self.scenario.causal)

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
        key = sizes, self.shape(head)
        if key not in self._grouped:  # not in ``kept``, which studies of other estimators may share
            self._grouped[key] = tuple(self._batches(sizes, head))
        return self._grouped[key]

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


def default_directory(study: Study) -> Path:
    """results/<name>, and a piece of the digest where this is another study than the shipped one of that name."""
    name = study.scenario.name
    shipped = shipped_title(name) == study.scenario.title  # flags that change anything change the title
    return Path("results") / (name if shipped else f"{name}-{study.digest[:6]}")


def _named_input(spec: str, law: InputSource) -> NamedInput:
    """An input; its streams are named by the contents of a file, however its path is spelled."""
    return NamedInput(str(law.digest()) if isinstance(law, Fixed) and spec not in SHIPPED else spec, law)


def _labels(specs: Sequence[str], laws: Sequence[InputSource]) -> list[str]:
    """The name of each input in rows: a file without folders, unless two share that name."""
    short = [Path(spec).name if isinstance(law, Fixed) else spec for spec, law in zip(specs, laws, strict=True)]
    return [name if short.count(name) == 1 else spec for name, spec in zip(short, specs, strict=True)]


def _source_digests(scenario: Scenario, members: Mapping[str, Sequence[Any]]) -> dict[str, str | None]:
    """By spec, the SHA-256 of the user's module that holds the member; None for our own members."""
    return {
        f"{kind[:-1]} {spec}": source_digest(spec, member)
        for kind in ESTIMATORS
        for spec, member in zip(getattr(scenario, kind), members[kind], strict=True)
    }


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
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
