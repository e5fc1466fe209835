"""Positive random features."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.kernels import squared_sum
from favorbench.maps.base import FeatureMap, KeyPairs, Keys, OneToken, Pairs, Projection, Sample, Tokens
from favorbench.numerics.arrays import Array, Features, half_squared_norm
from favorbench.samplers.laws import RowLaw


def exponential_target(x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
    """exp(-|x|^2/2) E exp(w.(x + y)) exp(-|y|^2/2).

    What a map exp(w.x - |x|^2/2) estimates with rows w of this law: exp(x.y) where they are Gaussian. For a user's own
    map: x (n, d) and y (l, d), already scaled by d^-1/4, to (n, l).

    >>> import favorbench as fb, numpy as np
    >>> from favorbench.samplers import GaussianRows
    >>> x, y = np.array([[0.3, 0.1]]), np.array([[0.2, -0.5]])
    >>> bool(np.isclose(fb.exponential_target(x, y, GaussianRows()), np.exp(x @ y.T)).all())
    True
    """
    return norm_factors(x, y) * rows.laplace(x[..., :, None, :] + y[..., None, :, :])


def norm_factors(x: Array, y: Array) -> Array:
    """exp(-(|x|^2 + |y|^2)/2) of every pair."""
    return np.exp(-half_squared_norm(x) - np.matrix_transpose(half_squared_norm(y)))


@dataclass(frozen=True)
class Positive(FeatureMap):
    """phi(x) = exp(w.x - |x|^2/2) / sqrt(R): FAVOR+.

    Positive, so every normaliser is; the variance grows like exp(|x + y|^2).
    Choromanski et al. 2021, "Rethinking Attention with Performers", arXiv 2009.14794, Lemma 1 eq. (7), Lemma 2 eq. (8).
    """

    name: ClassVar[str] = "positive"
    reference: ClassVar[str] = "Choromanski et al. 2021, arXiv 2009.14794, eq. (7)"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return (Features(None, projection - half_squared_norm(x)),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_target(x, y, rows)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return np.expm1(squared_sum(x, y)) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return squared_sum(x, y)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.expm1((x + y) @ (x + y).T)


@dataclass(frozen=True)
class Hyperbolic(FeatureMap):
    """phi(x) = exp(-|x|^2/2) [exp(w.x), exp(-w.x)] / sqrt(2 R).

    The same as ``positive`` on the 2R projections [W; -W], exactly.
    Choromanski et al. 2021, arXiv 2009.14794, Lemma 1 eq. (7) and Lemma 2 eq. (8).
    """

    name: ClassVar[str] = "hyperbolic"
    reference: ClassVar[str] = "Choromanski et al. 2021, arXiv 2009.14794, eq. (7)"
    features_per_projection: ClassVar[int] = 2
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    even: ClassVar[bool] = True

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        scale = half_squared_norm(x) + 0.5 * math.log(2.0)
        return Features(None, projection - scale), Features(None, -projection - scale)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return norm_factors(x, y) * rows.cosh(x[..., :, None, :] + y[..., None, :, :])

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return (np.cosh(squared_sum(x, y)) - 1.0) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return squared_sum(x, y)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.cosh((x + y) @ (x + y).T) - 1.0
