"""Features of the polynomial kernel (x.y + constant)^degree: all of them, or a sketch.

Not in MAPS, whose members estimate exp(x.y): here the claims are about the polynomial kernel, and ``favorbench kernel``
measures them. NumPy only.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.kernels import polynomial_features, polynomial_kernel
from favorbench.maps.base import FeatureMap, Keys, Pairs, Projection, Sample, Tokens
from favorbench.maps.tensorsketch import sketch_variance, sketched_power
from favorbench.numerics.arrays import Array, Features
from favorbench.samplers.base import RowLaw


@dataclass(frozen=True)
class Explicit(FeatureMap):
    """Every monomial with its coefficient: phi(x).phi(y) = (x.y + constant)^degree exactly.

    C(d + degree, degree) features, or C(d + degree - 1, degree) without a constant; degree 1 without one is x itself.
    """

    degree: int = 2
    constant: float = 0.0
    name: ClassVar[str] = "explicit"
    reference: ClassVar[str] = "the binomial theorem"
    features_per_projection: ClassVar[int] = 0
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return (Features(polynomial_features(x, self.degree, self.constant), np.zeros_like(x[..., :1]), fixed=True),)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return math.comb(head_dim + self.degree - (0 if self.constant else 1), self.degree)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return polynomial_kernel(x, y, self.degree, self.constant)


@dataclass(frozen=True)
class PolynomialSketch(FeatureMap):
    """R features: the sketch of one tensor power of [x, sqrt(constant)], as the map ``tensorsketch`` has of several.

    Each R needs hashes of its own.
    Pham & Pagh 2013, "Fast and scalable polynomial kernels via explicit feature maps", KDD.
    """

    degree: int = 2
    constant: float = 0.0
    name: ClassVar[str] = "tensorsketch"
    reference: ClassVar[str] = "Pham & Pagh 2013, KDD, doi 10.1145/2487575.2487591"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    nested: ClassVar[bool] = False
    own_sample: ClassVar[bool] = True

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """Buckets and signs, (2, degree, d), with one coordinate more for the constant."""
        shape = (self.degree, head_dim + (self.constant > 0))
        return np.stack([rng.integers(0, num_projections, shape), rng.choice((-1, 1), shape)])

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        buckets, signs = np.moveaxis(sample.extra, -3, 0)
        block = sketched_power(self._extended(x), (signs * (buckets + 1)).astype(x.dtype), sample.omega.shape[-2])
        return (block.times(np.zeros_like(x[..., :1])),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return polynomial_kernel(x, y, self.degree, self.constant)

    def variance(self, x: np.ndarray, y: np.ndarray, num_projections: int) -> np.ndarray:
        """Variance of the estimate of every pair, for fully random hashes."""
        return sketch_variance(self._extended(x), self._extended(y), self.degree, num_projections)

    def _extended(self, x: Array) -> Array:
        if not self.constant:
            return x
        return np.concatenate([x, np.full_like(x[..., :1], math.sqrt(self.constant))], axis=-1)
