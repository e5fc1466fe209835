"""Medians with exact intervals, paired comparisons, verdicts.

Intervals of a median and the sign test follow from one binomial distribution, without assumptions on the tails: the
errors of random features are heavy-tailed, and a mean of 15 of them is unreliable.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

LEVEL = 0.95


class Interval(NamedTuple):
    """Bounds of a median, and the probability that they cover it."""

    low: float
    high: float
    coverage: float


class MeanInterval(NamedTuple):
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """Two paired samples of errors: the median of a / b, its interval, the sign test of log(a / b), and the verdict."""

    ratio: float
    low: float
    high: float
    n: int
    p_value: float
    verdict: str


def median_interval(x: np.ndarray, level: float = LEVEL) -> Interval:
    """The narrowest pair of order statistics, equally far from both ends, that covers the median with ``level``.

    Exact for any continuous law: P(x_(j+1) <= median <= x_(n-j)) = 1 - 2 B(j; n, 1/2), B the binomial distribution
    function. With too few values for the level (n < 6 at 95 %) the whole range, with the coverage it has.
    David & Nagaraja 2003, Order Statistics, sec. 7.1.
    """
    ordered, n, below = np.sort(np.asarray(x, dtype=float)), len(x), _fair_coin(len(x))
    j = max(int(np.sum(2.0 * below[: n // 2] <= 1.0 - level)) - 1, 0)
    return Interval(float(ordered[j]), float(ordered[n - 1 - j]), float(max(0.0, 1.0 - 2.0 * below[j])))


def interval_name(n: int) -> str:
    """The name of ``median_interval`` of n values: with fewer than 6 no interval covers 95 %."""
    return f"{LEVEL:.0%} interval".replace("%", " %") if n >= fewest_draws(1) else "smallest to largest"


def fewest_draws(tests: int, level: float = LEVEL) -> int:
    """The fewest draws with which a sign test can reject, with Holm's correction for this number of tests."""
    return next(n for n in itertools.count(1) if least_p_value(n) * max(tests, 1) <= 1.0 - level)


def least_p_value(n: int) -> float:
    """The smallest two-sided p-value of a sign test: all n differences of one sign."""
    return 2.0 ** (1 - n)


#: Stands for infinity in a quantile, which interpolates: infinity minus infinity is NaN.
LARGE = 1e300


def bounded(values: Any) -> Any:
    """An array or a DataFrame with LARGE in the place of infinity; ``unbounded`` of a quantile of it is the reverse."""
    return values.clip(-LARGE, LARGE)


def unbounded(quantiles: Any) -> Any:
    """Quantiles of ``bounded`` values, infinite where an infinite value has a share in them."""
    return quantiles * np.where(np.abs(quantiles) > 1e-9 * LARGE, np.inf, 1.0)


def mean_interval(x: np.ndarray) -> MeanInterval:
    """The mean with its 95 % t-interval; without one where there is a single value."""
    mean, count = float(np.mean(x)), len(x)
    if count < 2:
        return MeanInterval(mean, math.nan, math.nan)
    half = float(scipy.special.stdtrit(count - 1, 0.975) * np.std(x, ddof=1)) / math.sqrt(count)
    return MeanInterval(mean, mean - half, mean + half)


def sign_test(differences: np.ndarray) -> float:
    """Two-sided p-value that positive and negative differences are equally likely; zeros and nan are left out."""
    positive, negative = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    n = positive + negative
    return min(1.0, 2.0 * float(_fair_coin(n)[min(positive, negative)]))


@functools.cache
def _fair_coin(n: int) -> np.ndarray:
    """P(X <= j) for j = 0..n/2, X binomial(n, 1/2). scipy.special has it, and takes longer to import than a sweep."""
    heads = np.arange(n // 2)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - heads) / (heads + 1.0)))]) - n * math.log(2.0)
    return np.cumsum(np.exp(logs))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's adjusted p-values: each may be compared with the level of the whole family."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))))
    return adjusted


def compare(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> Comparison:
    """Is error ``a`` smaller than error ``b``, measured on the same draws? The ratio is the median of a / b.

    Verdict "better" or "worse" (of a) when the sign test rejects at ``level``, which is when the interval of the median
    ratio leaves 1 out; otherwise "no detectable difference".
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_a, log_b = (np.log(np.asarray(errors, dtype=float)) for errors in (a, b))
        log_ratio = log_a - log_b
    log_ratio = log_ratio[~np.isnan(log_ratio)]
    if len(log_ratio) == 0:
        return Comparison(math.nan, math.nan, math.nan, 0, 1.0, "no detectable difference")
    low, high, _ = median_interval(log_ratio, level)
    p_value, centre = sign_test(log_ratio), float(np.median(log_ratio))
    ratio, low, high = (math.exp(min(log, 700.0)) for log in (centre, low, high))
    return Comparison(ratio, low, high, len(log_ratio), p_value, verdict(p_value, centre, level))


def verdict(p_value: float, log_ratio: float, level: float = LEVEL) -> str:
    """better, worse or no detectable difference, of a p-value and the sign of the log error ratio."""
    if p_value > 1.0 - level or log_ratio == 0:
        return "no detectable difference"
    return "better" if log_ratio < 0 else "worse"


class LogRatios(NamedTuple):
    """log(new / old) of errors, sorted. Where nothing has changed, each is above 0 as often as below (the sign test).

    The test and the interval of the median both follow from this distribution.
    """

    values: np.ndarray

    @property
    def median(self) -> float:
        """The median ratio."""
        with np.errstate(invalid="ignore", over="ignore"):  # between an infinite loss and an infinite gain
            return float(np.exp(np.median(self.values)))

    def interval(self, level: float = LEVEL) -> Interval:
        """The interval of the median ratio, by ``median_interval``."""
        low, high, coverage = median_interval(self.values, level)
        with np.errstate(over="ignore"):
            return Interval(float(np.exp(low)), float(np.exp(high)), coverage)

    def p_values(self, factor: float = 1.0) -> tuple[float, float]:
        """One-sided: that the median ratio is at most ``factor``, and that it is at least 1 / ``factor``."""
        bound = math.log(factor)
        return _p_above(self.values - bound), _p_above(-self.values - bound)


def _p_above(values: np.ndarray) -> float:
    """P(at least as many are positive as of these), which is P(as few are negative); zeros are left out."""
    negative = int(np.sum(values < 0))
    below = _fair_coin(len(values) - int(np.sum(values == 0)))
    return float(below[negative]) if negative < len(below) else 1.0


def log_ratios(old: np.ndarray, new: np.ndarray) -> LogRatios:
    """Ratios of errors, the i-th of one to the i-th of the other."""
    return LogRatios(np.sort(_log_ratio(new, old)))


def _log_ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(a / b) of errors; NaN is an infinite error, and two that are both infinite, or both 0, are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_a, log_b = (np.log(np.where(np.isnan(x), np.inf, x)) for x in (a, b))
        return np.where(log_a == log_b, 0.0, log_a - log_b)
