"""Metrics of an attention estimate, each with its formula, unit and direction."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.numerics.arrays import Array, array_namespace


class ErrorSums(NamedTuple):
    """Sums over query rows from which every metric follows; they add up over tiles.

    Each is a number, or an array with the leading axes of the estimates.
    """

    entries: int
    squared_error: Array
    squared_exact: Array
    squared_rounding: Array
    abs_error: Array
    abs_exact: Array
    max_abs_error: Array
    rows: int
    cosines: Array
    bad_rows: Array
    unnormalised_rows: Array
    gradient_products: Array | None = None  # has a last axis more: of the gradients

    def map_arrays(self, function: Callable[[Array], Array]) -> "ErrorSums":
        """Apply a function to each array; the counts stay."""
        return self._make(
            a if name in _COUNTS or a is None else function(a) for name, a in zip(self._fields, self, strict=True)
        )


_COUNTS = ("entries", "rows")

#: The metric that only inputs with gradients have.
EFFECT = "effect"

#: How far from 1 the weights of a row may add up.
UNNORMALISED = 0.01


class Metric(NamedTuple):
    """A metric: formula in words, unit, which way is good, and the function of the sums of estimate and uniform.

    log: it spans decades and is drawn on a log axis; others are near 1 and read best as plain decimals. error: whether
    it is an error of the output, which is compared with that of uniform attention. power: the power of |exact| that it
    grows with, as rounding does.
    """

    formula: str
    unit: str
    better: str
    compute: Callable[[ErrorSums, ErrorSums], np.ndarray]
    log: bool = False
    error: bool = False
    power: int = 0


def error_sums(
    output: Array,
    exact: Array,
    normaliser: Array | None = None,
    double: Array | None = None,
    row_sums: Array | None = None,
    gradients: Array | None = None,
) -> ErrorSums:
    """Sums of the error of ``output`` (..., n, d_v) against ``exact`` (n, d_v), or with some of the leading axes.

    An entry that is not a number (0/0) counts as an infinite error: a failure must never look small.
    normaliser: (..., n, 1), None for an answer that has none. double: the output in float64, None if it is that.
    row_sums: (..., n, 1), what the weights of each row add up to; None where they add up to 1 by construction, as those
    of a quotient do unless its normaliser is 0 or not finite: then the output is not a mean of values.
    gradients: (..., draws, n, d_v), of a model's output with respect to this one; None where there are none.
    """
    xp = array_namespace(exact)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        estimate = xp.astype(output, exact.dtype, copy=False)
        error = estimate - exact
        rounding = None if double is None else estimate - double
        exact_squared = _dot(exact, exact)
        distance = xp.abs(error)
        divisor: Array = xp.ones_like(error[..., :1]) if normaliser is None else normaliser
        finite = xp.isfinite(divisor)
        sums_to_one = finite & (divisor != 0) if row_sums is None else xp.abs(row_sums - 1.0) <= UNNORMALISED
        return ErrorSums(
            entries=error.shape[-2] * error.shape[-1],
            squared_error=_nan_is_infinite(_dot(error, error)),
            squared_exact=exact_squared,
            squared_rounding=exact_squared * 0.0 if rounding is None else _nan_is_infinite(_dot(rounding, rounding)),
            abs_error=_nan_is_infinite(xp.sum(distance, axis=(-2, -1))),
            abs_exact=xp.sum(xp.abs(exact), axis=(-2, -1)),
            max_abs_error=_nan_is_infinite(xp.max(distance, axis=(-2, -1))),
            rows=error.shape[-2],
            cosines=xp.sum(_cosines(estimate, exact), axis=-1),
            bad_rows=_count(~(finite & (divisor > 0))),
            unnormalised_rows=_count(~sums_to_one),
            gradient_products=None if gradients is None else _gradient_products(error, gradients),
        )


def _gradient_products(error: Array, gradients: Array) -> Array:
    """Sums over rows of each gradient times the error: (..., draws)."""
    xp = array_namespace(error)
    columns = xp.reshape(error, (*error.shape[:-2], -1, 1))
    return (xp.reshape(gradients, (*gradients.shape[:-2], -1)) @ columns)[..., 0]


def _dot(a: Array, b: Array) -> Array:
    """Sums of a * b over the last two axes, down the columns first: they lie side by side (``to_column_major``)."""
    xp = array_namespace(a)
    return xp.sum(xp.vecdot(a, b, axis=-2), axis=-1)


def _cosines(a: Array, b: Array) -> Array:
    """The cosine of each row of a with that of b; 0, that of unrelated rows, where either has no direction.

    That is a row of zeros, and one with an entry, or a squared length, that is not finite.
    """
    xp = array_namespace(a)
    ones = xp.ones(b.shape[-1:], dtype=b.dtype, device=device(b))  # a product with them is a sum along rows, and faster
    cosines = ((a * b) @ ones) / (xp.sqrt((a * a) @ ones) * xp.sqrt((b * b) @ ones))
    return xp.where(xp.isfinite(cosines), cosines, 0.0)


def _count(flags: Array) -> Array:
    xp = array_namespace(flags)
    return xp.sum(xp.astype(flags, xp.int64), axis=(-2, -1))


def _nan_is_infinite(a: Array) -> Array:
    xp = array_namespace(a)
    return xp.where(xp.isnan(a), xp.inf, a)


def add(a: ErrorSums, b: ErrorSums) -> ErrorSums:
    """The sums over both sets of rows."""
    pairs = zip(a, b, strict=True)
    sums = ErrorSums._make(None if mine is None or others is None else mine + others for mine, others in pairs)
    most = array_namespace(a.max_abs_error).maximum(a.max_abs_error, b.max_abs_error)
    return sums._replace(max_abs_error=most)


def _ratio(a: Any, b: Any, of_zeros: float = 0.0) -> Any:
    """a / b, and ``of_zeros`` for 0 / 0: the output of a pruned head is 0, and an estimate of 0 is exact."""
    return np.where((np.asarray(a) == 0) & (np.asarray(b) == 0), of_zeros, np.divide(a, b))


#: Mean over trials, quantiles and comparisons are taken later, over draws.
METRICS: dict[str, Metric] = {
    "mse": Metric(
        "mean over entries of (estimate - exact)^2",
        "value^2",
        "lower",
        lambda sums, uniform: sums.squared_error / sums.entries,
        log=True,
        error=True,
        power=2,
    ),
    "relative_error": Metric(
        "|estimate - exact|_F / |exact|_F",
        "none",
        "lower",
        lambda sums, uniform: np.sqrt(_ratio(sums.squared_error, sums.squared_exact)),
        log=True,
        error=True,
    ),
    "relative_l1": Metric(
        "sum over entries of |estimate - exact| / sum of |exact|",
        "none",
        "lower",
        lambda sums, uniform: _ratio(sums.abs_error, sums.abs_exact),
        log=True,
        error=True,
    ),
    "cosine": Metric(
        "mean over query rows of the cosine of estimate and exact row; a row that is 0 or not finite counts as 0",
        "none",
        "higher",
        lambda sums, uniform: np.clip(sums.cosines / sums.rows, -1.0, 1.0),
        error=True,
    ),
    "skill": Metric(
        "1 - mse / mse of uniform attention (the mean of V); below 0 is worse than uniform",
        "none",
        "higher",
        lambda sums, uniform: 1.0 - _ratio(sums.squared_error, uniform.squared_error, 1.0),
        error=True,
    ),
    "rounding": Metric(
        "|estimate - the same in float64|_F / |exact|_F",
        "none",
        "lower",
        lambda sums, uniform: np.sqrt(_ratio(sums.squared_rounding, sums.squared_exact)),
    ),
    "max_abs_error": Metric(
        "max over entries of |estimate - exact|",
        "value",
        "lower",
        lambda sums, uniform: sums.max_abs_error,
        log=True,
        error=True,
        power=1,
    ),
    "bad_normalisers": Metric(
        "share of query rows whose normaliser is <= 0 or not finite",
        "none",
        "lower",
        lambda sums, uniform: sums.bad_rows / sums.rows,
    ),
    "unnormalised_rows": Metric(
        "share of query rows whose weights do not add up to 1 within 1 %; of a quotient, whose normaliser is 0 or not "
        "finite",
        "none",
        "lower",
        lambda sums, uniform: sums.unnormalised_rows / sums.rows,
    ),
    EFFECT: Metric(
        "mean over gradients of (sum over rows of gradient . (estimate - exact))^2 / 2, which adds up over heads; for "
        "files of `capture --gradients`",
        "nats per token, or 1 - cosine",
        "lower",
        lambda sums, uniform: _nan_is_infinite(np.mean(np.square(sums.gradient_products), axis=-1) / 2),
        log=True,
        error=True,
    ),
}


def metrics_of(sums: ErrorSums, uniform: ErrorSums) -> dict[str, np.ndarray]:
    """Every metric, for all entries of the sums' leading axes. Sums are NumPy arrays; so is each metric.

    Without gradients there is no effect.
    """
    shape = np.shape(sums.squared_error)
    names = [name for name in METRICS if name != EFFECT or np.ndim(np.asarray(sums.gradient_products)) > len(shape)]
    with np.errstate(all="ignore"):
        return {name: np.zeros(shape) + METRICS[name].compute(sums, uniform) for name in names}
