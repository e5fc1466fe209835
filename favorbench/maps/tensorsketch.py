"""Sketches of the tensor powers x, x (x) x, ... in the Maclaurin series of the exponential."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.maps.base import FeatureMap, Keys, Pairs, Projection, Sample, Tokens, claim
from favorbench.maps.taylor import direction, exact_degrees, exponential_series
from favorbench.numerics.arrays import Array, Features, array_namespace, as_like, cos_sin
from favorbench.parameters import check_whole
from favorbench.samplers.laws import RowLaw


@dataclass(frozen=True)
class TensorSketch(FeatureMap):
    """For each degree n <= degree a sketch of R numbers of x^(n) / sqrt(n!): n count sketches, convolved.

    A count sketch adds every s_l x_l into bucket h_l of R, with random signs s and buckets h. The convolution is a
    product after a Fourier transform, and the transform of a count sketch is x @ [s_l exp(-2 pi i k h_l / R)]; the
    inner product is kept by the transform (Parseval), so none is ever inverted: the features are its real and
    imaginary parts. exact: the degrees below it are explicit features (1 by default: degree 0 is a constant).
    Estimates sum_{n <= degree} (x.y)^n / n!, for small x.y, and its normalisers may be negative. Each R needs hashes of
    its own. Pham & Pagh 2013, "Fast and scalable polynomial kernels via explicit feature maps", KDD.
    """

    degree: int = 3
    exact: int = 1
    name: ClassVar[str] = "tensorsketch"
    reference: ClassVar[str] = "Pham & Pagh 2013, KDD, doi 10.1145/2487575.2487591"
    features_per_projection: ClassVar[int] = claim(lambda self: len(self._sketched()))
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    nested: ClassVar[bool] = False
    own_sample: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("exact", self.exact, 1, 6)
        check_whole("degree", self.degree, self.exact, 12)

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """(sketches, d): s (h + 1) for each of the n sketches of each degree n; buckets h count from 0."""
        shape = (sum(self._sketched()), head_dim)
        return rng.integers(1, num_projections + 1, shape) * rng.choice((-1.0, 1.0), shape)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        xp = array_namespace(x)
        extra, size = xp.asarray(sample.extra, dtype=xp.float64), sample.omega.shape[-2]
        unit, log_norm = direction(x)
        blocks, first = list(exact_degrees(x, self.exact)), 0
        for n in self._sketched():
            block = sketched_power(unit, extra[..., first : first + n, :], size)
            blocks.append(block.times(n * log_norm - 0.5 * math.lgamma(n + 1)))
            first += n
        return tuple(blocks)

    def own_products(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """The transforms of n count sketches for each degree n, real and imaginary parts of R / 2 + 1 frequencies."""
        return float((n + l) * sum(self._sketched()) * 2 * (num_projections // 2 + 1) * d)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        exact = sum(math.comb(head_dim + n - 1, n) for n in range(self.exact))
        return exact + len(self._sketched()) * num_projections

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_series(x @ y.T, range(self.degree + 1))

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """The sketches of different degrees are independent: their variances add."""
        variance = sum(sketch_variance(x, y, n, num_projections) / math.factorial(n) ** 2 for n in self._sketched())
        return variance / exponential_series(x @ y.T, range(self.degree + 1)) ** 2

    def _sketched(self) -> range:
        """The degrees that are sketched."""
        return range(self.exact, self.degree + 1)


def sketched_power(x: Array, hashes: Array, size: int) -> Features:
    """The sketch of the tensor power x (x) ... (x) x, one factor for each of the ``hashes`` (..., factors, d).

    As frequencies, not buckets; real and imaginary parts are features. The engine divides by R = size, and the sum over
    all R frequencies is R times that over buckets.
    """
    xp = array_namespace(x)
    real, imaginary = _transformed(x, hashes[..., 0, :], size)
    for j in range(1, hashes.shape[-2]):
        a, b = _transformed(x, hashes[..., j, :], size)
        real, imaginary = real * a - imaginary * b, real * b + imaginary * a
    values = xp.concat([real, imaginary[..., 1 : (size + 1) // 2]], axis=-1)
    return Features(values, as_like(0.5 * math.log(2.0) * _paired(size), x)[None, :])


def sketch_variance(x: np.ndarray, y: np.ndarray, degree: int, size: int) -> np.ndarray:
    """Variance of the sketched (x.y)^degree with ``size`` buckets and fully random hashes, for every pair.

    By Parseval the estimate is the mean over frequencies k of a product of independent T_j(k), and
    E T(k) T(k') = (x.y)^2 + P [k + k' = 0] + Q [k = k'] (mod size): its power ``degree``, averaged over all k and k'.
    """
    diagonal, square = (x * x) @ (y * y).T, (x @ y.T) ** 2
    p, q = np.sum(x * x, axis=-1)[:, None] * np.sum(y * y, axis=-1) - diagonal, square - diagonal
    real = 2 - size % 2  # frequencies with k = -k
    both = real * ((square + p + q) ** degree - square**degree)
    one = (size - real) * ((square + p) ** degree + (square + q) ** degree - 2.0 * square**degree)
    return (both + one) / size**2


def _transformed(x: Array, signed: Array, size: int) -> tuple[Array, Array]:
    """Real and imaginary part of the Fourier transform of the count sketch of each row of x, frequencies 0..size/2."""
    xp = array_namespace(x)
    buckets, signs = xp.abs(signed) - 1.0, xp.sign(signed)
    frequencies = as_like(np.arange(size // 2 + 1), buckets)
    turns = xp.remainder(buckets[..., :, None] * frequencies, float(size)) / size  # exact products of whole numbers
    cos, sin = cos_sin((2.0 * math.pi) * turns)
    cos, sin = (xp.astype(signs[..., :, None] * part, x.dtype) for part in (cos, -sin))
    return x @ cos, x @ sin


def _paired(size: int) -> np.ndarray:
    """1 for each feature whose frequency k stands for -k too, 0 for those with k = -k."""
    k = np.concatenate([np.arange(size // 2 + 1), np.arange(1, (size + 1) // 2)])
    return np.where((k == 0) | (2 * k == size), 0.0, 1.0)
