"""Anytime-valid tests that an error is below a target with a given probability.

Each draw is a hit (error <= target) or a miss. Infinite and NaN errors count as misses, so heavy tails do no harm.
The evidence against H: P(hit) <= p is E = the mean of (t / p)^S ((1 - t) / (1 - p))^(n - S) over t uniform on (p, 1),
with S hits in n draws. Under H, E is a nonnegative supermartingale that starts at 1, so P(E >= 1 / alpha at any n) <=
alpha (Ville 1939). The evidence against P(hit) >= p is the same with t uniform on (0, p).
Howard, Ramdas, McAuliffe & Sekhon 2021, arXiv 1810.08240 (mixtures); Zecchin, Park & Simeone 2025, arXiv 2409.15844
(for the choice of settings); Howard & Ramdas 2022, arXiv 1906.09712 (quantiles).
"""

import bisect
import functools
import math
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import betaincc, betaln

Verdict = Literal["open", "certified", "dropped"]

Counts = np.ndarray | int

MOST_DRAWS = 1 << 24


def log_evidence_often(hits: Counts, draws: Counts, p: float) -> np.ndarray:
    """log E against P(hit) <= p: B(S + 1, n - S + 1) I / ((1 - p) p^S (1 - p)^(n - S)), I the beta law above p."""
    a, b = np.asarray(hits) + 1.0, np.asarray(draws) - np.asarray(hits) + 1.0
    with np.errstate(divide="ignore"):
        return betaln(a, b) + np.log(betaincc(a, b, p)) - (a - 1.0) * math.log(p) - b * math.log1p(-p)


def log_evidence_rarely(hits: Counts, draws: Counts, p: float) -> np.ndarray:
    """log E against P(hit) >= p, that is against P(miss) <= 1 - p."""
    return log_evidence_often(np.asarray(draws) - hits, draws, 1.0 - p)


class Rule(NamedTuple):
    """The claim P(error <= target) >= probability. alpha: the probability of a wrong verdict about one candidate.

    Only one verdict about a candidate can be wrong: "certified" if P < probability, else "dropped". So the probability
    of any wrong verdict is at most the sum of the alphas.
    """

    target: float
    probability: float
    alpha: float

    def verdict(self, hits: int, draws: int) -> Verdict:
        """Judge one candidate after a draw. The first verdict that is not "open" stands."""
        often, rarely = _log_evidence(hits, draws, self.probability)
        if often >= -math.log(self.alpha):
            return "certified"
        return "dropped" if rarely >= -math.log(self.alpha) else "open"

    def fewest_draws(self, hits: int = 0, draws: int = 0) -> int:
        """The number of further draws that certify if all of them hit, at most MOST_DRAWS."""
        return fewest_draws(self.probability, self.alpha, hits, draws)


@functools.lru_cache(maxsize=1 << 16)
def _log_evidence(hits: int, draws: int, p: float) -> tuple[float, float]:
    """Both logs of evidence, cached because many candidates have the same counts."""
    return float(log_evidence_often(hits, draws, p)), float(log_evidence_rarely(hits, draws, p))


@functools.lru_cache(maxsize=1 << 10)
def fewest_draws(p: float, alpha: float, hits: int = 0, draws: int = 0) -> int:
    """The number of draws after ``draws`` with ``hits`` that certify P(hit) >= p if all hit.

    Without earlier draws the condition is (1 - p^(n+1)) / ((n+1) (1-p) p^n) >= 1 / alpha.
    """

    def enough(more: int) -> bool:
        return bool(log_evidence_often(hits + more, draws + more, p) >= -math.log(alpha))

    high = 1
    while not enough(high):
        high *= 2
        if high >= MOST_DRAWS:
            return MOST_DRAWS
    low = high // 2 + 1
    return low + bisect.bisect_left(range(low, high), True, key=enough)


def certified_bound(errors: np.ndarray, p: float, alpha: float) -> float:
    """The smallest b for which "P(error <= b) >= p" is certified at alpha, for all targets at once; inf if none is.

    b is an order statistic. For a target below the true quantile, the evidence reaches 1 / alpha at any number of draws
    with probability at most alpha. The evidence grows with the target, so b is below the true quantile with at most the
    same probability (Howard & Ramdas 2022, sec. 3).
    """
    ordered = _sorted(errors)
    counts = np.arange(1, len(ordered) + 1)
    enough = np.flatnonzero(log_evidence_often(counts, len(ordered), p) >= -math.log(alpha))
    return float(ordered[enough[0]]) if len(enough) else math.inf


def quantile(errors: np.ndarray, p: float) -> float:
    """The smallest error with a share p of all at or below it. NaN counts as infinite."""
    return float(_sorted(errors)[max(0, math.ceil(p * len(errors) - 1e-9) - 1)])


def _sorted(errors: np.ndarray) -> np.ndarray:
    return np.sort(np.where(np.isnan(errors), np.inf, errors))
