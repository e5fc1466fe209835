"""Claims to verdicts: every map, sampler and method is held to what it declares, and known mistakes are caught."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from favorbench.baselines import BASELINES, get_baseline
from favorbench.engine.cluster import Cluster
from favorbench.errors import ScenarioError
from favorbench.maps import MAPS, FeatureMap
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.methods import METHODS, PREFIXES, Method, get_method
from favorbench.numerics.machine import one_core
from favorbench.registry import nearest
from favorbench.samplers import SAMPLERS, Sampler, get_sampler
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS
from favorbench.studies.verify import attention, cost, kernel, laws, methods
from favorbench.studies.verify.calibrated import calibrated_elsewhere, get_map
from favorbench.studies.verify.checks import FALSE_ALARM, HOLDS, REFUTED, Check, Measurement, judged
from favorbench.users import failures_named

DRAWS, THOROUGH_DRAWS = 8000, 100_000
LAW_DRAWS = 12_000

#: Without subjects all maps are tested under these samplers, and the other samplers with these maps; all but iid with
#: half the draws. A full grid would take many times as long.
REFERENCE_SAMPLERS = ("iid", "orthogonal")
REFERENCE_MAPS = ("trig", "phase", "positive", "hyperbolic")

#: What a transform of maps is tested around: "positive", but for these.
INSIDE = {"calibrated": "centre:aderf-sderf"}

#: Called with how many steps are done, how many there are, and what is measured now.
Progress = Callable[[int, int, str], None]


class Verification(NamedTuple):
    """All checks of a run, and how much they could have seen."""

    checks: tuple[Check, ...]
    draws: int
    #: Of the samplers beside iid.
    other_draws: int
    tests: int
    false_alarm: float

    @property
    def refuted(self) -> tuple[Check, ...]:
        """The claims that do not hold."""
        return tuple(check for check in self.checks if check.verdict == REFUTED)

    def power(self) -> str:
        """Draws, tests, false-alarm rate, and the smallest bias that would have been detected."""
        known = [(check.claim, check.detectable) for check in self.checks if check.detectable is not None]
        claims = [bias for claim, bias in known if claim == "unbiased"]
        claims = claims or [bias for claim, bias in known if claim == "target"]
        others = f"iid, {self.other_draws} of each other sampler"
        samplers = "each sampler" if self.other_draws == self.draws else others
        text = f"{self.draws} draws of {samplers}, {self.tests} tests, false-alarm rate {self.false_alarm:g} in all"
        if claims and max(claims) > 1:
            return f"{text}; a bias cannot be given in percent of a kernel that is about 0 at some pair"
        return f"{text}; every map would see a bias of {max(claims):.2%} of its kernel" if claims else text

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "holds": not self.refuted, "draws": self.draws, "other_draws": self.other_draws, "tests": self.tests,
            "false_alarm": self.false_alarm, "power": self.power(),
            "checks": [check.as_dict() for check in self.checks],
        }  # fmt: skip


def verify(
    subjects: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
) -> Verification:
    """Test what the subjects claim, on one BLAS thread, so that sums have one order.

    Parameters
    ----------
    subjects
        "MAP" (under every sampler), "SAMPLER" (with every map), "MAP/SAMPLER" or "METHOD", each also as module:object.
        Without any: all maps under iid and orthogonal; the other samplers with trig, phase, positive and hyperbolic;
        all methods and baselines. Samplers other than iid then take half the draws.
    draws
        Draws of omega.
    seed
        Seed of all draws.
    progress
        Called with how many steps are done, how many there are, and the name of the step.
    cluster
        Where the steps are measured, if not here.

    Raises
    ------
    ScenarioError
        For a subject that is not registered and not importable.
    """
    asked = _Asked(tuple(subjects), draws, draws if subjects else draws // 2, seed)
    found = _here(asked, progress) if cluster is None else _on_cluster(asked, progress, cluster)
    measured = [measurement for step in found for measurement in step]
    other_draws = asked.other_draws
    tests = sum(m.tests for m in measured)
    return Verification(tuple(judged(measured)), draws, other_draws, tests, FALSE_ALARM)


class _Asked(NamedTuple):
    """What the steps follow from."""

    subjects: tuple[str, ...]
    draws: int
    other_draws: int
    seed: int


def _here(asked: _Asked, progress: Progress | None) -> list[list[Measurement]]:
    steps, found = list(_steps(*asked)), []
    with one_core():
        for done, (name, step) in enumerate(steps):
            if progress:
                progress(done, len(steps), name)
            found.append(_measured(step))
    return found


def _on_cluster(asked: _Asked, progress: Progress | None, cluster: Cluster) -> list[list[Measurement]]:
    steps, found = list(_steps(*asked)), {}

    def missing(why: str, number: int) -> str:
        left = len(steps) - len(found)
        return f"{left} of {len(steps)} steps are missing, {why}; one is {steps[number][0]}; nothing is saved"

    numbers = iter(range(len(steps)))
    for number, measured in cluster.results(_measured_step, steps, numbers, len(steps), missing, asked.subjects):
        found[number] = measured
        if progress:
            progress(len(found), len(steps), steps[number][0])
    return [found[number] for number in range(len(steps))]


def _measured_step(steps: list[tuple[str, Callable[[], list[Measurement]]]], number: int) -> list[Measurement]:
    return _measured(steps[number][1])


def _measured(step: Callable[[], list[Measurement]]) -> list[Measurement]:
    with one_core(), np.errstate(all="ignore"):  # what fails to be a number is a measurement, and refutes
        return step()


def _steps(
    subjects: Sequence[str], draws: int, other_draws: int, seed: int
) -> Iterator[tuple[str, Callable[[], list[Measurement]]]]:
    """The name of each step, and what measures it."""
    pairs, samplers, chosen = _resolved(subjects) if subjects else _everything()
    share = {s: draws if s.name == "iid" else other_draws for s in (*samplers, *(s for _, s in pairs))}
    for sampler in samplers:
        n = min(LAW_DRAWS * share[sampler] // draws, 5 * share[sampler])
        yield f"law of {sampler.name}", partial(laws.measure, sampler, n, seed)
    by_sampler: dict[Sampler, list[FeatureMap]] = {}
    for feature_map, sampler in pairs:
        by_sampler.setdefault(sampler, []).append(feature_map)
    for sampler, maps in by_sampler.items():
        yield f"kernels under {sampler.name}", partial(kernel.measure, sampler, maps, share[sampler], seed)
    maps = list(dict.fromkeys(feature_map for feature_map, _ in pairs))
    if maps:
        yield "attention", partial(attention.measure, maps, get_sampler("orthogonal"), seed)
        yield "multiplications", partial(cost.of_maps, maps, seed)
    iid, point = get_sampler("iid"), np.ones((1, kernel.HEAD_DIM))
    for feature_map in maps:
        if feature_map.covariance(point, point) is not None:
            name = f"delta method of {feature_map.name}"
            yield name, partial(kernel.delta_method, feature_map, iid, draws // 4, seed)
    for method in chosen:
        yield method.name, partial(_claims_of, method, seed)
    if not subjects:
        yield "methods", partial(methods.measure, seed)


def _claims_of(method: Method, seed: int) -> list[Measurement]:
    """Measure the claims of a method, which may be the user's and fail."""
    with failures_named(method.name):
        return list(methods.of_method(method, seed))


def _names(members: Sequence[Any], transforms: Sequence[Any] = ()) -> list[str]:
    return [*(member.name for member in members), *(transform.prefix for transform in transforms)]


#: The first name of a subject says what it is.
NAMES = {
    "map": _names(MAPS, MAP_TRANSFORMS), "sampler": _names(SAMPLERS, SAMPLER_TRANSFORMS),
    "method": _names(METHODS, PREFIXES), "baseline": _names(BASELINES),
}  # fmt: skip


def _kind(spec: str) -> str:
    """What a subject without "/" names: a key of NAMES. Raises ScenarioError, with all names, for none of these."""
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


Subjects = tuple[list[tuple[FeatureMap, Sampler]], list[Sampler], list[Method]]


def _resolved(subjects: Sequence[str]) -> Subjects:
    """The pairs of map and sampler, the samplers and the methods that the subjects name."""
    pairs: list[tuple[FeatureMap, Sampler]] = []
    samplers: list[Sampler] = []
    chosen: list[Method] = []
    for subject in subjects:
        left, slash, right = subject.partition("/")
        kind = "pair" if slash else _kind(subject)
        if kind == "pair":
            pairs.append((get_map(left), get_sampler(right)))
            samplers.append(pairs[-1][1])
        elif kind == "sampler":
            samplers.append(get_sampler(subject))
            pairs += [(m, samplers[-1]) for m in _maps_for(samplers[-1])]
        elif kind == "map":
            feature_map = get_map(subject)
            pairs += [(feature_map, s) for s in _all_samplers() if s.name == "iid" or feature_map.randomness == "omega"]
        else:
            chosen.append(get_baseline(subject) if kind == "baseline" else calibrated_elsewhere(get_method(subject)))
    return list(dict.fromkeys(pairs)), list(dict.fromkeys(samplers)), chosen


def _everything() -> Subjects:
    """All maps under some samplers, all samplers with some maps."""
    few, samplers = [get_map(name) for name in REFERENCE_MAPS], _all_samplers()
    pairs = [(m, s) for s in samplers for m in (_maps_for(s) if s.name in REFERENCE_SAMPLERS else few)]
    return pairs, samplers, []


def _all_samplers() -> list[Sampler]:
    return [m() for m in SAMPLERS] + [transform(get_sampler("orthogonal")) for transform in SAMPLER_TRANSFORMS]


def _maps_for(sampler: Sampler) -> list[FeatureMap]:
    """All maps. Those that do not use omega are measured under iid only."""
    around = [get_map(f"{t.prefix}:{INSIDE.get(t.prefix, 'positive')}") for t in MAP_TRANSFORMS]
    maps = [*(member() for member in MAPS), *around]
    return [feature_map for feature_map in maps if sampler.name == "iid" or feature_map.randomness == "omega"]


__all__ = ["DRAWS", "HOLDS", "REFUTED", "THOROUGH_DRAWS", "Check", "Measurement", "Verification", "verify"]
