"""Closed forms: the relative variance of a map under a sampler, the R it asks for, and what sampling can measure."""

import math

import numpy as np
from scipy.special import log_ndtr

from favorbench.maps import FeatureMap
from favorbench.samplers import Sampler

#: An empirical second moment of exp(w.z) needs about this many draws in the region that makes it.
DRAWS_IN_THE_TAIL = 30.0


def same_block_pairs(sampler: Sampler, num_projections: int, head_dim: int) -> int:
    """Ordered pairs of different rows in one block: 0 for independent rows."""
    if sampler.coupling == "independent":
        return 0
    blocks, rest = divmod(num_projections, head_dim)
    return blocks * head_dim * (head_dim - 1) + rest * (rest - 1)


def relative_variance(
    feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, num_projections: int
) -> np.ndarray | None:
    """Var(kernel estimate) / exp(x.y)^2 for every pair of rows of x (n, d) and y (l, d), scaled; None if not known.

    The iid value plus the pair terms: relvar_1 / R + (pairs / R^2) (pair_laplace(s) / exp(s) - 1), where for
    orthogonal rows pair_laplace(s) = 1F1(d; d/2; s/2). Holds for maps and samplers that claim to be right.
    """
    iid = feature_map.relative_variance(x, y, num_projections)
    pairs = same_block_pairs(sampler, num_projections, x.shape[-1])
    if iid is None or not (feature_map.unbiased and sampler.gaussian_rows):
        return None
    if pairs == 0:
        return iid
    argument = feature_map.pair_argument(x, y)
    if argument is None:
        return None
    return iid + pairs / num_projections**2 * (sampler.pair_laplace(argument, x.shape[-1]) * np.exp(-argument) - 1.0)


def projections_for(
    feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, relative_error: float, limit: int = 1 << 40
) -> int | None:
    """The smallest R whose relative standard deviation is at most relative_error for one pair x (1, d), y (1, d).

    None if no closed form is known, or if ``limit`` projections do not suffice.
    """

    def enough(num_projections: int) -> bool | None:
        variance = relative_variance(feature_map, sampler, x, y, num_projections)
        return None if variance is None else float(variance[0, 0]) <= relative_error**2

    if enough(1) is None:
        return None
    high = 1
    while not enough(high):
        high *= 2
        if high > limit:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def draws_needed(feature_map: FeatureMap, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Projections needed before an empirical variance of the kernel estimate means anything, for every pair.

    The second moment of exp(w.z) comes from draws with w.z near 2 |z|^2: 30 / Phi(-2 |z|) of them. Maps of cos(w.z)
    are bounded and need 30.
    """
    argument = feature_map.pair_argument(x, y)
    if argument is None:
        return np.full((len(x), len(y)), math.inf)
    with np.errstate(over="ignore"):
        return DRAWS_IN_THE_TAIL * np.exp(-log_ndtr(-2.0 * np.sqrt(np.maximum(argument, 0.0))) * (argument > 0))
