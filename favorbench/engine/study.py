"""A scenario with its members built, and what is measured together: made once for a sweep and handed on."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from favorbench.baselines import Baseline
from favorbench.engine.scenario import MEMBERS, Names, Scenario, override, shipped_title
from favorbench.inputs import SHIPPED, File, InputLaw
from favorbench.maps import FeatureMap
from favorbench.numerics.backend import Backend
from favorbench.registry import label, source_digest
from favorbench.samplers import Sampler


class Group(NamedTuple):
    """Maps that are measured on one sample, each at its R (increasing). Without a sampler no omega is drawn."""

    sampler: Sampler | None
    maps: tuple[tuple[FeatureMap, tuple[int, ...]], ...]

    @property
    def name(self) -> str:
        """The sampler's label; elsewhere where the randomness of the maps comes from, as their streams are named."""
        return label(self.sampler) if self.sampler else self.maps[0][0].randomness

    @property
    def width(self) -> int:
        """The largest R."""
        return max(sizes[-1] for _, sizes in self.maps)


class Source(NamedTuple):
    """An input law, and the name of its random streams."""

    key: str
    law: InputLaw


@dataclass(frozen=True)
class Study:
    """A scenario's members. inputs: by the names that rows have. digest: of all that is measured, one for each run."""

    scenario: Scenario
    maps: tuple[FeatureMap, ...]
    samplers: tuple[Sampler, ...]
    baselines: tuple[Baseline, ...]
    inputs: Mapping[str, Source]
    digest: str

    @staticmethod
    def of(scenario: Scenario) -> "Study":
        """With the members that validation has built, or builds for a scenario that was read back from a run.

        Raises ScenarioError where the backend is not to be had.
        """
        if not all(isinstance(getattr(scenario, kind), Names) for kind in MEMBERS):
            scenario = override(scenario)
        Backend(scenario.backend, scenario.device).check(scenario.dtype)
        built = {kind: getattr(scenario, kind).members for kind in MEMBERS}
        keys = _keys(scenario.inputs, built["inputs"])
        inputs = {
            name: Source(key, law)
            for name, key, law in zip(_labels(scenario.inputs, built["inputs"]), keys, built["inputs"], strict=True)
        }
        identity = _digest(scenario, keys, built)
        return Study(scenario, built["maps"], built["samplers"], built["baselines"], inputs, identity)

    @property
    def backend(self) -> Backend:
        """Where estimators compute."""
        return Backend(self.scenario.backend, self.scenario.device)

    def sizes_of(self, feature_map: FeatureMap, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The R at which a map is measured, for R, or numbers of features where these are the budget."""
        if feature_map.randomness == "none":
            return (1,)
        per = feature_map.features_per_projection if self.scenario.budget == "features" else 1
        return tuple(size // per for size in sizes)

    def groups(self, sizes: tuple[int, ...]) -> Iterator[Group]:
        """What is measured together: nested maps at all R on one sample of a nested sampler, others one R at a time."""
        of_omega = [m for m in self.maps if m.randomness == "omega"]
        alone = [(m, None) for m in self.maps if m.randomness != "omega"]
        for sampler in self.samplers:
            together = [m for m in of_omega if m.nested and sampler.nested]
            if together:
                yield Group(sampler, tuple((m, self.sizes_of(m, sizes)) for m in together))
            alone += [(m, sampler) for m in of_omega if m not in together]
        for feature_map, sampler in alone:
            every = self.sizes_of(feature_map, sizes)
            at_once = sampler is None and feature_map.nested
            for part in [every] if at_once else [(size,) for size in every]:
                yield Group(sampler, ((feature_map, part),))


def default_directory(study: Study) -> Path:
    """results/<name>, and a piece of the digest where this is another study than the shipped one of that name."""
    name = study.scenario.name
    shipped = shipped_title(name) == study.scenario.title  # flags that change anything change the title
    return Path("results") / (name if shipped else f"{name}-{study.digest[:6]}")


def _keys(specs: Sequence[str], laws: Sequence[InputLaw]) -> list[str]:
    """What names an input in streams and digest: a file's contents, however its path is spelled."""
    return [
        str(law.digest()) if isinstance(law, File) and spec not in SHIPPED else spec
        for spec, law in zip(specs, laws, strict=True)
    ]


def _labels(specs: Sequence[str], laws: Sequence[InputLaw]) -> list[str]:
    """What the rows of each input say: a file by its name without folders, unless two share it."""
    short = [Path(spec).name if isinstance(law, File) else spec for spec, law in zip(specs, laws, strict=True)]
    return [name if short.count(name) == 1 else spec for name, spec in zip(short, specs, strict=True)]


def _digest(scenario: Scenario, keys: Sequence[str], members: Mapping[str, Sequence[Any]]) -> str:
    """SHA-256 of what is measured: everything but name and title, and the sources of a user's modules."""
    content = scenario.model_dump(mode="json", exclude={"name", "title"}) | {"inputs": list(keys)}
    content["input_digests"] = [law.digest() for law in members["inputs"]]
    content["source_digests"] = [
        source_digest(spec, member)
        for kind in ("maps", "samplers", "baselines")
        for spec, member in zip(getattr(scenario, kind), members[kind], strict=True)
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
