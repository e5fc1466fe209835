"""Checks: measured claims become verdicts at a stated false-alarm rate for the whole run."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri_exp

EPS = float(np.finfo(float).eps)

#: Probability that a run in which every claim is true refutes any of them.
FALSE_ALARM = 1e-6

HOLDS, REFUTED = "holds", "REFUTED"
#: The verdicts without a statistic: nothing is declared, the draws are too few for the declaration, or nothing could be
#: counted.
NO_CLAIM, NOT_MEASURABLE, NOT_COUNTED = "no claim", "not measurable by sampling", "nothing to count"


class MeasuredClaim(NamedTuple):
    """One claim, measured.

    ``statistic`` is the largest |z| of ``tests`` standard normal ones, or, with tests = 0, an error over its bound (1
    is the bound). None: there is none, and ``otherwise`` and ``detail`` say why.
    A NaN statistic is a failed measurement, which no true claim gives; it is not a missing one.
    """

    subject: str
    claim: str
    statistic: float | None
    tests: int
    detail: str = ""
    #: The smallest relative bias that this would have detected is detectable * threshold; None where it has no meaning.
    detectable: float | None = None
    #: The verdict where there is no statistic.
    otherwise: str = NO_CLAIM


class Check(NamedTuple):
    """A measurement with its threshold and verdict; statistic and threshold are both there or both None."""

    subject: str
    claim: str
    statistic: float | None
    threshold: float | None
    verdict: str
    detail: str
    detectable: float | None

    def excess(self) -> float:
        """The statistic over its threshold; infinite where it is not a number."""
        return largest((self.statistic or 0.0) / (self.threshold or 1.0))


def over_rounding(subject: str, claim: str, ratios: Sequence[float]) -> MeasuredClaim:
    """The worst of some errors over their bounds."""
    return MeasuredClaim(subject, claim, largest(ratios), 0, f"error over rounding {largest(ratios):.1e}")


def judged(measurements: Sequence[MeasuredClaim]) -> list[Check]:
    """Verdicts: every one of the N tests of the run has the level FALSE_ALARM / N (Bonferroni)."""
    threshold = z_threshold(FALSE_ALARM, sum(m.tests for m in measurements))
    checks = []
    for m in measurements:
        limit, verdict = None, m.otherwise
        if m.statistic is not None:
            limit = threshold if m.tests else 1.0
            verdict = HOLDS if m.statistic <= limit else REFUTED  # not the other way round: nan is below nothing
        detectable = None if m.detectable is None else m.detectable * threshold
        checks.append(Check(m.subject, m.claim, m.statistic, limit, verdict, m.detail, detectable))
    return checks


def merged(parts: Sequence[tuple[str, MeasuredClaim]]) -> list[MeasuredClaim]:
    """One measurement for each claim that was measured in several places, with the detail of the worst of them.

    parts: where, and what was measured there. A claim is judged by z scores or by bounds, in all places alike.
    """
    by_claim: dict[tuple[str, str], list[tuple[str, MeasuredClaim]]] = {}
    for where, m in parts:
        by_claim.setdefault((m.subject, m.claim), []).append((where, m))
    result = []
    for same in by_claim.values():
        where, worst = max(same, key=lambda part: largest(part[1].statistic or 0.0))
        detail = f"{where}: {worst.detail}" if len(same) > 1 else worst.detail
        result.append(worst._replace(tests=sum(m.tests for _, m in same), detail=detail))
    return result


def z_threshold(false_alarm: float, tests: int) -> float:
    """The bound that |z| of any of ``tests`` standard normals exceeds with probability false_alarm at most."""
    return float(-ndtri_exp(math.log(false_alarm / 2 / max(tests, 1))))


def z_of_p(p_value: float) -> float:
    """The |z| that has this two-sided p-value, so that all tests share one scale."""
    return math.inf if p_value <= 0 else float(-ndtri_exp(math.log(min(p_value, 1.0) / 2)))


def largest(z: ArrayLike) -> float:
    """The largest |z|, 0 of none; one that failed to be a number counts as infinite (Python's max may lose it)."""
    z = np.abs(np.asarray(z, dtype=float))
    return float(np.max(np.where(np.isnan(z), np.inf, z), initial=0.0))
