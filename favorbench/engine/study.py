"""A scenario with its members built, and what is measured together: made once for a sweep and handed on."""

import hashlib
import itertools
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from favorbench.engine.fixed import Cache
from favorbench.engine.scenario import MEMBERS, Scenario, is_built, override, shipped_title
from favorbench.engine.sizes import Size, shape_of, sizes_of
from favorbench.errors import ScenarioError
from favorbench.inputs import SHIPPED, Fixed, Head, InputLaw, get_input
from favorbench.maps import FeatureMap
from favorbench.methods import Method, Shape
from favorbench.methods.features import LinearAttention, name_of, sampler_of
from favorbench.numerics.backend import Backend
from favorbench.registry import source_digest
from favorbench.samplers import Sampler

if TYPE_CHECKING:
    from favorbench.engine.plan import Draw

Value = TypeVar("Value")


class Estimator(NamedTuple):
    """A member of a study. kind: baseline, method or map, whose method is LinearAttention."""

    kind: str
    method: Method

    @property
    def name(self) -> str:
        """The label in rows."""
        return name_of(self.method)

    @property
    def sampler(self) -> str | None:
        """The label of the sampler that draws for a map; None where no sampler can be chosen."""
        return sampler_of(self.method)


class EstimatorBatch(NamedTuple):
    """Estimators that are measured together, each at its sizes (increasing): maps that share a sample, or one alone."""

    members: tuple[tuple[Estimator, tuple[Size, ...]], ...]

    @property
    def kind(self) -> str:
        """Of all members."""
        return self.members[0][0].kind

    @property
    def width(self) -> int:
        """The largest size."""
        return max(one.size for _, sizes in self.members for one in sizes)


class Source(NamedTuple):
    """An input law, and the name of its random streams."""

    key: str
    law: InputLaw


@dataclass(frozen=True)
class Study:
    """A scenario's members. inputs: by the names that rows have. digest: of all that is measured, one for each run.

    calibration: what calibrated maps are fitted to. sources: by spec, the SHA-256 of the user's module it is from.
    """

    scenario: Scenario
    maps: tuple[FeatureMap, ...]
    samplers: tuple[Sampler, ...]
    methods: tuple[Method, ...]
    baselines: tuple[Method, ...]
    inputs: Mapping[str, Source]
    calibration: Source | None
    digest: str
    sources: Mapping[str, str | None]
    kept: Cache = field(default_factory=Cache, compare=False, repr=False)

    @staticmethod
    def of(scenario: Scenario) -> "Study":
        """With the members that validation has built, or builds for a scenario that was read back from a run.

        Raises ScenarioError where the backend is not to be had.
        """
        if not is_built(scenario):
            scenario = override(scenario)
        Backend(scenario.backend, scenario.device).check(scenario.dtype)
        built = {kind: getattr(scenario, kind).members for kind in MEMBERS}
        keys = _keys(scenario.inputs, built["inputs"])
        inputs = {
            name: Source(key, law)
            for name, key, law in zip(_labels(scenario.inputs, built["inputs"]), keys, built["inputs"], strict=True)
        }
        calibration = None
        if scenario.calibrate is not None:
            law = scenario.held.get(scenario.calibrate) or get_input(scenario.calibrate, scenario.layout)
            calibration = Source(_keys([scenario.calibrate], [law])[0], law)
        sources = _source_digests(scenario, built)
        identity = _digest(scenario, keys, built, calibration, sources)
        estimators = {kind: members for kind, members in built.items() if kind != "inputs"}
        return Study(scenario, **estimators, inputs=inputs, calibration=calibration, digest=identity, sources=sources)

    def check_sources(self) -> None:
        """Raise ScenarioError where a user's module is not the one that the study was made with."""
        members = {kind: getattr(self, kind) for kind in _ESTIMATORS}
        for spec, now in _source_digests(self.scenario, members).items():
            if now != self.sources[spec]:
                raise ScenarioError(f"the module of {spec} has changed since the run began: run the same command again")

    @property
    def backend(self) -> Backend:
        """Where estimators compute."""
        return Backend(self.scenario.backend, self.scenario.device)

    def once(self, draw: "Draw", what: tuple[Hashable, ...], compute: Callable[[], Value]) -> Value:
        """What is not random, kept where the inputs of all draws of a head are the same; else computed."""
        fixed = self.inputs[draw.input].law.fixed and self.scenario.rows(draw.head.query_len) == draw.head.query_len
        if not fixed or self.backend.batched:
            return compute()
        return self.kept.get_or_compute((draw.input, draw.head, draw.scale, *what), compute)

    @property
    def specs(self) -> tuple[str, ...]:
        """The names of all members but inputs: what modules of the user's are named in."""
        return tuple(spec for kind in MEMBERS if kind != "inputs" for spec in getattr(self.scenario, kind))

    def shape(self, head: Head) -> Shape:
        """What costs on a head follow from."""
        return shape_of(head, self.scenario.causal)

    @property
    def estimators(self) -> list[Estimator]:
        """Baselines, methods, maps without a sampler, and maps under each sampler."""
        found = [Estimator("baseline", one) for one in self.baselines] + [
            Estimator("method", one) for one in self.methods
        ]
        found += [Estimator("map", LinearAttention(one)) for one in self.maps if one.randomness != "omega"]
        omega = [one for one in self.maps if one.randomness == "omega"]
        found += [Estimator("map", LinearAttention(one, law)) for law, one in itertools.product(self.samplers, omega)]
        return found

    def sizes_of(self, estimator: Estimator, sizes: tuple[int, ...], head: Head) -> tuple[Size, ...]:
        """The sizes at which an estimator is measured."""
        shape, names = self.shape(head), (estimator.kind, estimator.name, estimator.sampler)
        return self.kept.get_or_compute(
            ("sizes", *names, sizes, shape),
            lambda: sizes_of(estimator.method, estimator.name, self.scenario.budget, sizes, shape),
        )

    def batches(self, sizes: tuple[int, ...], head: Head) -> Iterator[EstimatorBatch]:
        """What is measured together: nested maps at all R on one sample of a nested sampler, others one R at a time."""
        shared: dict[str, list[tuple[Estimator, tuple[Size, ...]]]] = {}
        alone: list[EstimatorBatch] = []
        for estimator in self.estimators:
            method, every = estimator.method, self.sizes_of(estimator, sizes, head)
            if not isinstance(method, LinearAttention):
                yield EstimatorBatch(((estimator, every),))
            elif not (method.wrapped.nested and method.law.nested):
                alone += [EstimatorBatch(((estimator, (one,)),)) for one in every]
            elif estimator.sampler is None:
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


def _keys(specs: Sequence[str], laws: Sequence[InputLaw]) -> list[str]:
    """What names an input in streams and digest: a file's contents, however its path is spelled."""
    return [
        str(law.digest()) if isinstance(law, Fixed) and spec not in SHIPPED else spec
        for spec, law in zip(specs, laws, strict=True)
    ]


def _labels(specs: Sequence[str], laws: Sequence[InputLaw]) -> list[str]:
    """What the rows of each input say: a file by its name without folders, unless two share it."""
    short = [Path(spec).name if isinstance(law, Fixed) else spec for spec, law in zip(specs, laws, strict=True)]
    return [name if short.count(name) == 1 else spec for name, spec in zip(short, specs, strict=True)]


_ESTIMATORS = ("maps", "samplers", "methods", "baselines")


def _source_digests(scenario: Scenario, members: Mapping[str, Sequence[Any]]) -> dict[str, str | None]:
    """By spec, the SHA-256 of the user's module that a member comes from; None for our own members."""
    return {
        f"{kind[:-1]} {spec}": source_digest(spec, member)
        for kind in _ESTIMATORS
        for spec, member in zip(getattr(scenario, kind), members[kind], strict=True)
    }


def _digest(
    scenario: Scenario,
    keys: Sequence[str],
    members: Mapping[str, Sequence[Any]],
    calibration: Source | None,
    sources: Mapping[str, str | None],
) -> str:
    """SHA-256 of what is measured: everything but name and title, and the sources of a user's modules."""
    content = scenario.model_dump(mode="json", exclude={"name", "title", "calibrate"}) | {"inputs": list(keys)}
    if calibration is not None:
        content["calibrate"] = [calibration.key, calibration.law.digest()]
    content["input_digests"] = [law.digest() for law in members["inputs"]]
    content["source_digests"] = list(sources.values())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
