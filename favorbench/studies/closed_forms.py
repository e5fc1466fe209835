"""Closed forms: the relative variance of a map under a sampler, the R it needs, and whether sampling can measure it."""

import bisect
import math

import numpy as np

from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap
from favorbench.samplers import Sampler
from favorbench.samplers.laws import GaussianRows, IsotropicRows, PairLaw, RowLaw, SameRow

#: An empirical second moment of exp(w.z) needs about this many draws in the region that dominates it.
DRAWS_IN_THE_TAIL = 30.0
GAUSSIAN = GaussianRows()


@np.errstate(all="ignore")  # far out second moments overflow: they are infinite
def relative_variance(
    feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, num_projections: int,
    moments: dict[PairLaw, np.ndarray | None] | None = None,
) -> np.ndarray | None:  # fmt: skip
    """Var(kernel estimate) / exp(x.y)^2 for every pair of rows of x (n, d) and y (l, d), scaled; None if not known.

    The value for independent rows plus one term for each kind of dependent pairs: pairs / R^2 times their relative
    covariance. For rows that are not Gaussian it is the variance about the mean of the estimate. moments: those of
    dependent pairs, kept between calls for the same x and y.
    """
    moments = {} if moments is None else moments
    independent = _own_variance(feature_map, sampler, x, y, num_projections)
    pairs = sampler.pair_laws(num_projections, x.shape[-1])
    if independent is None or pairs is None:
        return None
    total, squared_mean = independent
    for count, law in pairs:
        if count and law not in moments:
            moments[law] = feature_map.pair_moment(x, y, law)
        moment = moments[law] if count else squared_mean
        if moment is None:
            return None
        total = total + count / num_projections**2 * (moment - squared_mean)
    return total


@np.errstate(all="ignore")
def declared_variance(
    feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, num_projections: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The relative variance that a map declares, biased or not, and the kernel it is relative to; None if not known.

    exp(x.y) for an unbiased map. For another one the kernel that it really estimates, and only for independent N(0, I)
    rows (or none): how dependence changes its variance is not known.
    """
    if feature_map.unbiased:
        variance = relative_variance(feature_map, sampler, x, y, num_projections)
        return None if variance is None else (variance, softmax_kernel(x, y))
    if not (sampler.gaussian_rows and sampler.pair_laws(num_projections, x.shape[-1]) == ()):
        return None
    variance = feature_map.relative_variance(x, y, num_projections)
    target = feature_map.target_kernel(x, y, sampler.row_law(num_projections, x.shape[-1]))
    return None if variance is None else (variance, target)


def _own_variance(
    feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, num_projections: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The relative variance that independent rows of the sampler's law would have, and (mean / exp(x.y))^2."""
    if not feature_map.unbiased:
        return None
    if sampler.gaussian_rows:
        variance = feature_map.relative_variance(x, y, num_projections)
        return None if variance is None else (variance, np.ones_like(variance))
    rows = sampler.row_law(num_projections, x.shape[-1])
    if not isinstance(rows, IsotropicRows):
        return None
    squared_mean = (feature_map.target_kernel(x, y, rows) / softmax_kernel(x, y)) ** 2
    moment = feature_map.pair_moment(x, y, SameRow(rows, x.shape[-1]))
    return None if moment is None else ((moment - squared_mean) / num_projections, squared_mean)


def projections_for(
    feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, relative_error: float, limit: int = 1 << 40
) -> int | None:
    """The smallest R whose relative standard deviation is at most relative_error for one pair x (1, d), y (1, d).

    Among those that the sampler can draw. None if no closed form is known, or if ``limit`` projections do not suffice.
    Rows that depend on one another form blocks. A block that is not full can increase the variance, so R is first
    searched for among full blocks (of d rows, 2 d with antithetic ones), then inside the last of them.
    """
    head_dim, moments = x.shape[-1], {}
    block = 2 * head_dim if sampler.pair_laws(1, head_dim) else 1

    def enough(num_projections: int) -> bool:
        size = sampler.round_up(num_projections, head_dim)
        variance = relative_variance(feature_map, sampler, x, y, size, moments)
        return variance is not None and float(variance[0, 0]) <= relative_error * relative_error

    high = 1
    while not enough(high * block):
        if high * block > limit:
            return None
        high *= 2
    low = high // 2 + 1
    blocks = low + bisect.bisect_left(range(low, high), True, key=lambda count: enough(count * block))
    last = range((blocks - 1) * block + 1, blocks * block)
    least = sampler.round_up(next(filter(enough, last), blocks * block), head_dim)
    return least if least <= limit else None


@np.errstate(all="ignore")
def draws_needed(feature_map: FeatureMap, x: np.ndarray, y: np.ndarray, rows: RowLaw = GAUSSIAN) -> np.ndarray:
    """Projections needed before an empirical variance of the kernel estimate means anything, for every pair.

    The second moment of exp(w.z) comes from draws with w.z near 2 |z|^2, if w is Gaussian (rows): 30 / Phi(-2 |z|) of
    them; fewer for rows of fixed norm. Maps of cos(w.z) are bounded and need 30. For other maps only the second moment
    is known, and exp(w.z) with the same one, exp(|z|^2) relative to the squared mean, stands for them. NaN where
    nothing is known.
    """
    argument, variance = feature_map.pair_argument(x, y), feature_map.relative_variance(x, y, 1)
    if argument is None:
        if variance is None:
            return np.full((len(x), len(y)), math.nan)
        argument = np.log1p(variance)
    elif variance is not None:  # it is above that of exp(w.z) where rows also have weights
        heavier = ~np.signbit(argument) & np.isfinite(variance)  # cos(w.z) has -0.0 where x = y
        argument = np.where(heavier, np.maximum(argument, np.log1p(variance)), argument)
    return DRAWS_IN_THE_TAIL / np.where(argument > 0, rows.tail(np.maximum(argument, 0.0), x.shape[-1]), 1.0)
