"""What a check is, and how measurements become verdicts at a stated false-alarm rate for the whole run."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri_exp

#: Probability that a run in which every claim is true refutes any of them.
FALSE_ALARM = 1e-6

HOLDS, REFUTED, NO_CLAIM, NOT_MEASURABLE = "holds", "REFUTED", "no claim", "not measurable by sampling"


class Measurement(NamedTuple):
    """One claim, measured. ``statistic`` is the largest |z| of ``tests`` standard normal ones, or, with tests = 0,
    an error over its bound (1 is the bound)."""

    subject: str
    claim: str
    statistic: float
    tests: int
    detail: str = ""
    #: The smallest relative bias that this would have detected is detectable * threshold; nan where it has no meaning.
    detectable: float = math.nan
    #: The verdict where there is no statistic (nan).
    otherwise: str = NO_CLAIM


class Check(NamedTuple):
    """A measurement with its threshold and verdict."""

    subject: str
    claim: str
    statistic: float
    threshold: float
    verdict: str
    detail: str
    detectable: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; nan becomes None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in self._asdict().items()}


def judged(measurements: Sequence[Measurement], false_alarm: float = FALSE_ALARM) -> list[Check]:
    """Verdicts: every one of the N tests of the run has the level false_alarm / N (Bonferroni)."""
    threshold = z_threshold(false_alarm, sum(m.tests for m in measurements))
    checks = []
    for m in measurements:
        limit = threshold if m.tests else 1.0
        if math.isnan(m.statistic):
            verdict, limit = m.otherwise, math.nan
        else:
            verdict = HOLDS if m.statistic <= limit else REFUTED
        checks.append(Check(m.subject, m.claim, m.statistic, limit, verdict, m.detail, m.detectable * threshold))
    return checks


def z_threshold(false_alarm: float, tests: int) -> float:
    """The bound that |z| of any of ``tests`` standard normals exceeds with probability false_alarm at most."""
    return float(-ndtri_exp(math.log(false_alarm / 2 / max(tests, 1))))


def z_of_p(p_value: float) -> float:
    """The |z| that has this two-sided p-value: so that every test speaks one language."""
    return math.inf if p_value <= 0 else float(-ndtri_exp(math.log(min(p_value, 1.0) / 2)))


def largest(z: np.ndarray) -> float:
    """The largest |z|; nan (no claim) only where all are; a z that failed to be a number counts as infinite."""
    return float(np.max(np.abs(z)))
