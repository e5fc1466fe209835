"""From claims to verdicts: members are tested against their declarations, and known mistakes must be caught."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.cluster import Cluster
from favorbench.numerics.machine import one_core
from favorbench.samplers import Sampler, get_sampler
from favorbench.studies.verify import attention, cost, kernel, laws, methods
from favorbench.studies.verify.checks import FALSE_ALARM, HOLDS, REFUTED, Check, MeasuredClaim, judged
from favorbench.studies.verify.subjects import REFERENCE_MAPS, subjects_of
from favorbench.users import failures_named

DRAWS, THOROUGH_DRAWS = 8000, 100_000
LAW_DRAWS = 12_000

#: Called with the number of steps done, the number of steps, and the name of the current one.
Progress = Callable[[int, int, str], None]

Step = tuple[str, Callable[[], Iterable[MeasuredClaim]]]  # its name, and the function that measures it


class Verification(NamedTuple):
    """All checks of a run, and the biases that they could have detected."""

    checks: tuple[Check, ...]
    draws: int
    #: Of the samplers other than iid.
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
        unbiased = [bias for claim, bias in known if claim == "unbiased"]
        claims = unbiased or [bias for claim, bias in known if claim == "target"]
        which = "every unbiased map" if unbiased else "every map"
        others = f"iid, {self.other_draws} of each other sampler"
        samplers = "each sampler" if self.other_draws == self.draws else others
        text = f"{self.draws} draws of {samplers}, {self.tests} tests, false-alarm rate {self.false_alarm:g} in all"
        if claims and max(claims) > 1:
            return f"{text}; a bias cannot be given in percent of a kernel that is about 0 at some pair"
        return f"{text}; {which} would see a bias of {max(claims):.2%} of its kernel" if claims else text

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "holds": not self.refuted, "draws": self.draws, "other_draws": self.other_draws, "tests": self.tests,
            "false_alarm": self.false_alarm, "power": self.power(),
            "checks": self.checks,
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
    other_draws = draws if subjects else draws // 2
    steps: list[Step] = list(_steps(subjects, draws, other_draws, seed))
    if subjects:  # which may be the user's, and fail
        steps = [(name, partial(_named, f"{', '.join(subjects)}: {name}", measure)) for name, measure in steps]
    claims: dict[int, list[MeasuredClaim]] = {}

    def report(number: int) -> None:
        if progress:
            progress(len(claims), len(steps), steps[number][0])

    def missing(why: str, number: int) -> str:
        left = len(steps) - len(claims)
        return f"{left} of {len(steps)} steps are missing, {why}; one is {steps[number][0]}; nothing is saved"

    numbers = iter(range(len(steps)))
    if cluster is None:
        with one_core():
            for number in numbers:
                report(number)
                claims[number] = _measured(steps, number)
    else:
        results = cluster.results(_measured, steps, numbers, len(steps), missing, tuple(subjects))
        for number, result in results:
            claims[number] = result
            report(number)
    measured = [measurement for number in sorted(claims) for measurement in claims[number]]
    return Verification(tuple(judged(measured)), draws, other_draws, sum(m.tests for m in measured), FALSE_ALARM)


def _measured(steps: list[Step], number: int) -> list[MeasuredClaim]:
    with one_core(), np.errstate(all="ignore"):  # NaN is a measurement, and refutes
        return list(steps[number][1]())


def _steps(names: Sequence[str], draws: int, other_draws: int, seed: int) -> Iterator[Step]:
    subjects = subjects_of(names)
    by_sampler = {sampler: [m for m, s in subjects.pairs if s == sampler] for _, sampler in subjects.pairs}

    def share(sampler: Sampler) -> int:
        return draws if sampler.name == "iid" else other_draws

    for sampler in subjects.samplers:
        count = min(LAW_DRAWS * share(sampler) // draws, 5 * share(sampler))
        yield f"law of {sampler.name}", partial(laws.measure, sampler, count, seed)
    for sampler, maps in by_sampler.items():
        yield f"kernels under {sampler.name}", partial(kernel.measure, sampler, maps, share(sampler), seed)
    if subjects.maps:
        yield "attention", partial(attention.measure, subjects.maps, get_sampler("orthogonal"), seed)
        yield "multiplications", partial(cost.of_maps, subjects.maps, seed)
    iid, point = get_sampler("iid"), np.ones((1, kernel.HEAD_DIM))
    for feature_map in subjects.maps:
        if feature_map.covariance(point, point) is not None:
            name = f"delta method of {feature_map.name}"
            yield name, partial(kernel.delta_method, feature_map, iid, draws // 4, seed)
    for method in subjects.methods:
        yield f"claims of {method.name}", partial(methods.of_method, method, seed)
    if not names:
        yield "methods", partial(methods.measure, seed)


def _named(who: str, measure: Callable[[], Iterable[MeasuredClaim]]) -> list[MeasuredClaim]:
    """Measure the claims of a step. An error names ``who`` as what failed."""
    with failures_named(who):
        return list(measure())


__all__ = [
    "DRAWS",
    "HOLDS",
    "REFERENCE_MAPS",
    "REFUTED",
    "THOROUGH_DRAWS",
    "Check",
    "MeasuredClaim",
    "Verification",
    "verify",
]
