"""Claims to verdicts: every map and sampler held to what it declares, what they are compared with held to a second
route, and known mistakes that must be caught."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.baselines import BASELINES, get_baseline
from favorbench.engine.cluster.connection import Cluster
from favorbench.engine.cluster.luggage import packed
from favorbench.engine.cluster.work import Work
from favorbench.errors import ScenarioError
from favorbench.maps import MAPS, FeatureMap
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.methods import METHODS, PREFIXES, Method, get_method
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import one_core
from favorbench.registry import nearest
from favorbench.samplers import SAMPLERS, Sampler, get_sampler
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS
from favorbench.studies.verify import attention, cost, delta, kernel, laws, methods, metrics, references, theorems
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
    """Test what the subjects claim.

    subjects: "MAP" (under every sampler), "SAMPLER" (with every map), "MAP/SAMPLER" or "METHOD", each also as
    module:object.
    Without any: all maps under iid and orthogonal, and the other samplers with trig, phase, positive and hyperbolic,
    all but iid with half the draws; and exact attention, methods, baselines and metrics. On one BLAS thread, so that
    sums have one order. cluster: where the steps are measured, if not here. Raises ScenarioError for anything else.
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
    names, found = [name for name, _ in _steps(*asked)], {}

    def missing(number: int) -> str:
        left = len(names) - len(found)
        return f"{left} of {len(names)} steps are missing, one is {names[number]}; nothing is kept: run it again"

    work = Work(cluster, packed(asked, asked.subjects, Backend()), measured_step, lambda number: number, missing)
    for number, measured in work.results(iter(range(len(names))), len(names)):
        found[number] = measured
        if progress:
            progress(len(found), len(names), names[number])
    return [found[number] for number in range(len(names))]


def measured_step(asked: _Asked, number: int) -> list[Measurement]:
    """One of the steps, for a worker that has nothing but what they follow from."""
    _, step = list(_steps(*asked))[number]
    return _measured(step)


def _measured(step: Callable[[], list[Measurement]]) -> list[Measurement]:
    with one_core(), np.errstate(all="ignore"):  # what fails to be a number is a measurement, and refutes
        return step()


def _steps(
    subjects: Sequence[str], draws: int, other_draws: int, seed: int
) -> Iterator[tuple[str, Callable[[], list[Measurement]]]]:
    asked = [_method(subject) for subject in subjects if _is_method(subject)]
    pairs, samplers = _resolved([subject for subject in subjects if not _is_method(subject)], bool(asked))
    share = {s: draws if s.name == "iid" else other_draws for s in (*samplers, *(s for _, s in pairs))}
    for sampler in samplers:
        n = min(LAW_DRAWS * share[sampler] // draws, 5 * share[sampler])
        yield f"law of {sampler.name}", lambda s=sampler, n=n: laws.measure(s, n, seed)
    by_sampler: dict[Sampler, list[FeatureMap]] = {}
    for feature_map, sampler in pairs:
        by_sampler.setdefault(sampler, []).append(feature_map)
    for sampler, maps in by_sampler.items():
        n = share[sampler]
        yield f"kernels under {sampler.name}", lambda s=sampler, m=maps, n=n: kernel.measure(s, m, n, seed)
    maps = list(dict.fromkeys(feature_map for feature_map, _ in pairs))
    if maps:
        yield "attention", lambda: attention.measure(maps, get_sampler("orthogonal"), seed)
        yield "multiplications", lambda: cost.of_maps(maps, seed)
    iid, point = get_sampler("iid"), np.ones((1, kernel.HEAD_DIM))
    for feature_map in maps:
        if feature_map.covariance(point, point) is not None:
            yield (
                f"delta method of {feature_map.name}",
                lambda m=feature_map: [delta.measure(m, iid, draws // 4, seed)],
            )
    for method in asked:
        yield method.name, lambda m=method: _claims_of(m, seed)
    if not subjects:
        yield "theorems", lambda: theorems.measure(seed)
        yield "methods", lambda: methods.measure(seed)
        yield "exact attention", lambda: references.measure(seed)
        yield "metrics", lambda: list(metrics.measure(seed))


def _claims_of(method: Method, seed: int) -> list[Measurement]:
    """What a method claims, measured; it may be the user's, and fail."""
    with failures_named(method.name):
        return list(methods.of_method(method, seed))


def _method(spec: str) -> Method:
    """A method, or a baseline."""
    if _first_name(spec) in {member.name for member in BASELINES}:
        return get_baseline(spec)
    return calibrated_elsewhere(get_method(spec))


def _first_name(spec: str) -> str:
    return spec.split(":")[0].partition("(")[0].strip()


def _is_method(spec: str) -> bool:
    """Whether a spec names a method or a baseline, or something with a prefix of methods."""
    name = _first_name(spec)
    if name in {member.name for member in (*METHODS, *BASELINES)} | {prefix.prefix for prefix in PREFIXES}:
        return True
    if ":" not in spec or name in {transform.prefix for transform in (*MAP_TRANSFORMS, *SAMPLER_TRANSFORMS)}:
        return False
    try:
        return not isinstance(get_method(spec), FeatureMap)
    except ScenarioError:
        return False


def _resolved(subjects: Sequence[str], others: bool = False) -> tuple[list[tuple[FeatureMap, Sampler]], list[Sampler]]:
    """The map x sampler pairs and the samplers that the subjects name; others: something else is asked for."""
    all_samplers = [m() for m in SAMPLERS] + [transform(get_sampler("orthogonal")) for transform in SAMPLER_TRANSFORMS]
    if not subjects and others:
        return [], []
    if not subjects:
        few = [get_map(name) for name in REFERENCE_MAPS]
        chosen = [(s, _maps_for(s) if s.name in REFERENCE_SAMPLERS else few) for s in all_samplers]
        return [(m, s) for s, maps in chosen for m in maps], all_samplers
    pairs: list[tuple[FeatureMap, Sampler]] = []
    samplers: list[Sampler] = []
    for subject in subjects:
        left, slash, right = subject.partition("/")
        if slash:
            pairs.append((get_map(left), get_sampler(right)))
            samplers.append(pairs[-1][1])
        elif _is_sampler(left):
            samplers.append(get_sampler(left))
            pairs += [(m, samplers[-1]) for m in _maps_for(samplers[-1])]
        else:
            pairs += [(get_map(left), s) for s in all_samplers if s.name == "iid" or _uses_omega(get_map(left))]
    return list(dict.fromkeys(pairs)), list(dict.fromkeys(samplers))


def _maps_for(sampler: Sampler) -> list[FeatureMap]:
    """All maps, but those that make no use of omega only beside iid, once."""
    around = [get_map(f"{one.prefix}:{INSIDE.get(one.prefix, 'positive')}") for one in MAP_TRANSFORMS]
    every = [*(member() for member in MAPS), *around]
    return [feature_map for feature_map in every if sampler.name == "iid" or _uses_omega(feature_map)]


def _uses_omega(feature_map: FeatureMap) -> bool:
    return feature_map.randomness == "omega"


def _is_sampler(spec: str) -> bool:
    """Whether a spec without "/" names a sampler; neither map nor sampler is an error that names both lists."""
    maps, samplers = {m.name for m in MAPS}, {s.name for s in SAMPLERS}
    first, colon, _ = spec.partition(":")
    name = first.partition("(")[0].strip()
    if colon and any(name == transform.prefix for transform in (*MAP_TRANSFORMS, *SAMPLER_TRANSFORMS)):
        return any(name == transform.prefix for transform in SAMPLER_TRANSFORMS)
    if colon:
        try:
            get_sampler(spec)
        except ScenarioError:
            return False
        return True
    if name in maps | samplers:
        return name in samplers
    allowed = [*sorted(maps), *sorted(samplers)]
    raise ScenarioError(
        f"unknown map or sampler {spec!r}{nearest(name, allowed)}; allowed: {', '.join(allowed)}, or module:object"
    )


__all__ = ["DRAWS", "HOLDS", "REFUTED", "THOROUGH_DRAWS", "Check", "Measurement", "Verification", "verify"]
