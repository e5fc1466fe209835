"""Subjects of verify: the maps, samplers and methods that names stand for; calibrated maps get tokens of their own."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from favorbench import maps
from favorbench.baselines import BASELINES, get_baseline
from favorbench.errors import ScenarioError
from favorbench.maps import MAPS, FeatureMap
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.maps.base import Keys, Omega, Tokens
from favorbench.maps.transforms import Calibrated, of_frozen, with_calibrated
from favorbench.methods import METHODS, PREFIXES, Method, get_method
from favorbench.numerics.arrays import as_like
from favorbench.numerics.streams import stream
from favorbench.registry import nearest
from favorbench.samplers import SAMPLERS, Sampler, get_sampler
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS

#: Without subjects all maps are tested under these samplers, and the other samplers with these maps; all but iid with
#: half the draws. A full grid would take many times as long.
REFERENCE_SAMPLERS = ("iid", "orthogonal")
REFERENCE_MAPS = ("trig", "phase", "positive", "hyperbolic")

#: Transforms of maps are tested around "positive", but for these.
INSIDE = {"calibrated": "centre:aderf-sderf"}

TOKENS = 50  # that a map is calibrated on


#: The names of each kind of subject.
NAMES = {
    kind: [*(member.name for member in members), *(transform.prefix for transform in transforms)]
    for kind, members, transforms in (
        ("map", MAPS, MAP_TRANSFORMS), ("sampler", SAMPLERS, SAMPLER_TRANSFORMS), ("method", METHODS, PREFIXES),
        ("baseline", BASELINES, ()),
    )
}  # fmt: skip


class Subjects(NamedTuple):
    """The pairs of map and sampler, the samplers and the methods to verify."""

    pairs: list[tuple[FeatureMap, Sampler]]
    samplers: list[Sampler]
    methods: list[Method]

    @property
    def maps(self) -> list[FeatureMap]:
        """The maps of all pairs."""
        return list(dict.fromkeys(feature_map for feature_map, _ in self.pairs))


def subjects_of(names: Sequence[str]) -> Subjects:
    """Resolve names; without any: all maps under some samplers, all samplers with some maps. Raises ScenarioError."""
    pairs, samplers, methods = [], [], []
    for name in names:
        left, slash, right = name.partition("/")
        kind = "pair" if slash else _kind(name)
        if kind in ("pair", "sampler"):
            sampler = get_sampler(right if slash else name)
            samplers.append(sampler)
            pairs += [(feature_map, sampler) for feature_map in ([get_map(left)] if slash else _maps_for(sampler))]
        elif kind == "map":
            feature_map = get_map(name)
            pairs += [(feature_map, s) for s in _all_samplers() if _measured_under(feature_map, s)]
        else:
            methods.append(get_baseline(name) if kind == "baseline" else calibrated_elsewhere(get_method(name)))
    return Subjects(list(dict.fromkeys(pairs)), list(dict.fromkeys(samplers)), methods) if names else _everything()


def _everything() -> Subjects:
    """All maps under some samplers, all samplers with some maps."""
    few, samplers = [get_map(name) for name in REFERENCE_MAPS], _all_samplers()
    pairs = [(m, s) for s in samplers for m in (_maps_for(s) if s.name in REFERENCE_SAMPLERS else few)]
    return Subjects(pairs, samplers, [])


def _kind(spec: str) -> str:
    """The kind of a subject without "/": a key of NAMES. Raises ScenarioError, with all names, for an unknown one."""
    name, colon, _ = spec.partition(":")
    name = name.partition("(")[0].strip()
    for kind, names in NAMES.items():
        if name in names:
            return kind
    if not colon:
        allowed = "; ".join(f"{kind}s {', '.join(sorted(names))}" for kind, names in NAMES.items())
        closest = nearest(name, [name for names in NAMES.values() for name in names])
        raise ScenarioError(f"unknown subject {spec!r}{closest}; allowed: {allowed}; or module:object")
    for kind, build in (("method", get_method), ("sampler", get_sampler)):
        with suppress(ScenarioError):
            build(spec)
            return kind
    return "map"


def _all_samplers() -> list[Sampler]:
    return [m() for m in SAMPLERS] + [transform(get_sampler("orthogonal")) for transform in SAMPLER_TRANSFORMS]


def _maps_for(sampler: Sampler) -> list[FeatureMap]:
    """All maps. Those that do not use omega are measured under iid only."""
    around = [get_map(f"{t.prefix}:{INSIDE.get(t.prefix, 'positive')}") for t in MAP_TRANSFORMS]
    maps = [*(member() for member in MAPS), *around]
    return [feature_map for feature_map in maps if _measured_under(feature_map, sampler)]


def _measured_under(feature_map: FeatureMap, sampler: Sampler) -> bool:
    """Maps that do not use omega are measured under iid only."""
    return sampler.name == "iid" or feature_map.randomness == "omega"


@dataclass(frozen=True)
class CalibratedElsewhere(Calibrated):
    """A map calibrated on other tokens, in every dimension."""

    data_dependent = True

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> Calibrated:
        return self.with_parameters(x, y)

    def with_parameters(self, x: Tokens, y: Keys) -> Calibrated:
        """The map frozen at tokens of this dimension: with a mean, unequal axes, and queries unlike keys."""
        dim = x.shape[-1]
        rng = stream(0, "verify", "calibration", dim)
        widths, shifts = 0.2 + 0.4 * rng.random((2, dim)), 0.2 * rng.standard_normal((2, dim))
        query, key = (
            as_like(shift + width * rng.standard_normal((TOKENS, dim)), x)
            for shift, width in zip(shifts, widths, strict=True)
        )
        return Calibrated(self.wrapped).calibrate(query, key)

    def frozen(self, x: Tokens) -> FeatureMap:
        return self.with_parameters(x, x).wrapped

    pair_argument = of_frozen("pair_argument")
    pair_moment = of_frozen("pair_moment")
    covariance = of_frozen("covariance")


def get_map(spec: str) -> FeatureMap:
    """The feature map that ``spec`` names; one that is to be calibrated, calibrated on tokens of verify's own."""
    return calibrated_elsewhere(maps.get_map(spec))


def calibrated_elsewhere(member: Any) -> Any:
    """A map or method; its calibrated map, if it has one, calibrated on tokens of verify's own."""
    return with_calibrated(member, _elsewhere)


def _elsewhere(calibrated: Calibrated) -> FeatureMap:
    return CalibratedElsewhere(calibrated.wrapped) if calibrated.needs_calibration else calibrated
