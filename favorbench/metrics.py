"""What is measured of an attention estimate, each metric with its formula, unit and direction."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

from favorbench.arrays import Array


class ErrorSums(NamedTuple):
    """Sums over query rows from which every metric follows; they add up over tiles."""

    entries: int
    squared_error: float
    squared_exact: float
    max_abs_error: float
    rows: int
    bad_rows: int


class Metric(NamedTuple):
    """A metric: formula in words, unit, which way is good, and the function of the sums of estimate and uniform."""

    formula: str
    unit: str
    better: str
    compute: Callable[[ErrorSums, ErrorSums], float]


def error_sums(output: Array, exact: Array, normaliser: Array | None = None) -> ErrorSums:
    """Sums of the error of ``output`` (n, d_v) against ``exact`` (n, d_v).

    An entry that is not a number (0/0) counts as an infinite error: a failure must never look small.
    normaliser: (n, 1), None for an answer that has none.
    """
    xp = array_namespace(exact)
    with np.errstate(over="ignore", invalid="ignore"):
        error = xp.abs(xp.astype(output, exact.dtype) - exact)
        error = xp.where(xp.isnan(error), xp.full_like(error, xp.inf), error)
        squared = float(xp.sum(error * error))
    bad = 0 if normaliser is None else int(xp.sum(xp.astype(~(xp.isfinite(normaliser) & (normaliser > 0)), xp.int64)))
    return ErrorSums(
        entries=error.size,
        squared_error=squared,
        squared_exact=float(xp.sum(exact * exact)),
        max_abs_error=float(xp.max(error)),
        rows=error.shape[0],
        bad_rows=bad,
    )


def add(a: ErrorSums, b: ErrorSums) -> ErrorSums:
    """The sums over both sets of rows."""
    return ErrorSums(
        entries=a.entries + b.entries,
        squared_error=a.squared_error + b.squared_error,
        squared_exact=a.squared_exact + b.squared_exact,
        max_abs_error=max(a.max_abs_error, b.max_abs_error),
        rows=a.rows + b.rows,
        bad_rows=a.bad_rows + b.bad_rows,
    )


def _ratio(numerator: float, denominator: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.divide(numerator, denominator))


#: Mean over trials, quantiles and comparisons are taken later, over draws.
METRICS: dict[str, Metric] = {
    "mse": Metric(
        "mean over entries of (estimate - exact)^2",
        "value^2",
        "lower",
        lambda sums, uniform: sums.squared_error / sums.entries,
    ),
    "relative_error": Metric(
        "|estimate - exact|_F / |exact|_F",
        "none",
        "lower",
        lambda sums, uniform: _ratio(sums.squared_error, sums.squared_exact) ** 0.5,
    ),
    "skill": Metric(
        "1 - mse / mse of uniform attention (the mean of V); below 0 is worse than uniform",
        "none",
        "higher",
        lambda sums, uniform: 1.0 - _ratio(sums.squared_error, uniform.squared_error),
    ),
    "max_abs_error": Metric(
        "max over entries of |estimate - exact|", "value", "lower", lambda sums, uniform: sums.max_abs_error
    ),
    "bad_normalisers": Metric(
        "share of query rows whose normaliser is <= 0 or not finite",
        "none",
        "lower",
        lambda sums, uniform: sums.bad_rows / sums.rows,
    ),
}
