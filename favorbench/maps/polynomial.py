"""Polynomial features: the Taylor polynomial, random Maclaurin features, and tensor sketches."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from favorbench.kernels import monomial_features
from favorbench.maps.base import FeatureBlocks, FeatureMap, Keys, Pairs, Projection, Sample, Tokens, claim
from favorbench.numerics.arrays import Array, Features, array_namespace, as_like, cos_sin, half_squared_norm, take_from
from favorbench.parameters import check_whole, positive, whole
from favorbench.samplers.laws import RowLaw


def direction(x: Array) -> tuple[Array, Array]:
    """x / |x| and log |x| of each row, for features of degree n that are |x|^n times those of the direction.

    A zero row keeps direction 0 and gets log 0: its features of degree n > 0 are 0 and that of degree 0 is 1.
    """
    xp = array_namespace(x)
    norm = xp.sqrt(2.0 * half_squared_norm(x))
    norm = xp.where(norm > 0, norm, 1.0)
    return x / norm, xp.log(norm)


def exact_degrees(x: Array, count: int) -> FeatureBlocks:
    """Explicit features of (x.y)^n / n!, one block for each degree n below ``count``."""
    unit, log_norm = direction(x)
    return tuple(
        Features(values, n * log_norm - 0.5 * math.lgamma(n + 1), fixed=True)
        for n, values in enumerate(monomial_features(unit, count))
    )


def num_monomials(head_dim: int, count: int) -> int:
    """How many monomials of the degrees below ``count`` there are."""
    return math.comb(head_dim + count - 1, head_dim)


def exponential_series(product: Array, degrees: range) -> Array:
    """Sum of product^n / n! over a range of degrees."""
    total = 0.0 * product
    for n in degrees:
        total = total + product**n / math.factorial(n)
    return total


@dataclass(frozen=True)
class Taylor(FeatureMap):
    """All monomials x^a / sqrt(a!), |a| <= order, so that phi(x).phi(y) = sum_{n <= order} (x.y)^n / n!.

    C(d + order, order) features, whatever R is, and no randomness: the best there is for small x.y, where the first
    term that is left out is small. The estimate is positive for even orders only.
    Order 2: Arora et al. 2024 ("Based"), arXiv 2402.18668; the packed symmetric basis: Heinsen & Kozachkov 2026,
    arXiv 2602.00294.
    """

    order: int = whole(0, 30, default=2)
    name = "taylor"
    reference = "Arora et al. 2024, arXiv 2402.18668; Heinsen & Kozachkov 2026, arXiv 2602.00294"
    features_per_projection = 0
    nonnegative = False
    unbiased = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return exact_degrees(x, self.order + 1)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return num_monomials(head_dim, self.order + 1)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_series(x @ y.mT, range(self.order + 1))


DegreeLaw = Literal["geometric", "poisson"]
VectorLaw = Literal["rademacher", "gaussian"]


@dataclass(frozen=True)
class Maclaurin(FeatureMap):
    """phi(x) = prod_{j <= N} w_j.x / sqrt(N! P(N)) / sqrt(R): for each feature a random degree N and N random vectors.

    law: of N, "geometric" or "poisson" of the given mean, cut at ``degree`` and renormalised, so what is estimated is
    the sum of (x.y)^n / n! for n <= degree. vectors: of signs ("rademacher") or N(0, I) ("gaussian", more variance).
    exact: the degrees below it are taken as explicit features, and N is at least that (2 is the "H0/1 heuristic").
    For small x.y; the variance grows like exp(2 |x||y|) at best, and the normalisers may be negative.
    Kar & Karnick 2012, arXiv 1201.6530.
    """

    law: DegreeLaw = "geometric"
    mean: float = positive(1.0)
    vectors: VectorLaw = "rademacher"
    exact: int = whole(0, 6, default=0)
    degree: int = 20
    name = "maclaurin"
    reference = "Kar & Karnick 2012, arXiv 1201.6530"
    features_per_projection = 1
    nonnegative = False
    unbiased = False  # but for degrees above ``degree``
    own_sample = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("degree", self.degree, max(self.exact, 1), 60)

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """(R, degree, d + 1): the rows [w_j, 0] for j <= N and [0, 1] after it, to be multiplied by [x, 1]."""
        of_degrees, of_vectors = rng.spawn(2)  # two streams: so neither shifts the other when more features follow
        cumulative = np.cumsum(self._probabilities())
        drawn = self.exact + np.searchsorted(cumulative[:-1], of_degrees.random(num_projections), side="right")
        shape = (num_projections, self.degree, head_dim)
        extra = np.empty((*shape[:2], head_dim + 1))  # filled in place: at R = 2^13 and d = 64 it has 85 MB
        if self.vectors == "gaussian":
            extra[..., :-1] = of_vectors.standard_normal(shape)
        else:
            extra[..., :-1] = 2 * of_vectors.integers(2, size=shape, dtype=np.int8) - 1
        unused = np.arange(self.degree) >= drawn[:, None]
        extra[unused], extra[..., -1] = 0.0, unused
        return extra

    def extra_entries(self, num_projections: int, head_dim: int) -> int:
        return num_projections * self.degree * (head_dim + 1)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        xp = array_namespace(x)
        extra = xp.asarray(sample.extra, dtype=x.dtype)
        unit, log_norm = direction(x)
        left, values = xp.concat([unit, xp.ones_like(log_norm)], axis=-1), xp.ones_like(projection)
        drawn = self.degree - xp.sum(extra[..., -1], axis=-1)  # (..., R)
        for j in range(int(xp.max(drawn))):
            values = values * (left @ extra[..., j, :].mT)
        log_scale = drawn[..., None, :] * log_norm + take_from(-0.5 * self._log_weights(), drawn)[..., None, :]
        return (*exact_degrees(x, self.exact), Features(values, log_scale))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """d + 1 for each feature and factor; the largest degree drawn, in the mean, is how many factors there are."""
        below = np.minimum(np.cumsum(self._probabilities()), 1.0) ** num_projections
        return float((n + l) * num_projections * (d + 1) * (self.exact + np.sum(1.0 - below)))

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return num_projections + num_monomials(head_dim, self.exact)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_series(x @ y.T, range(self.degree + 1))

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """From E (w.x)^2 (w.y)^2 = |x|^2 |y|^2 + 2 (x.y)^2, less 2 sum_l (x_l y_l)^2 for signs."""
        fourth = np.sum(x * x, axis=-1)[:, None] * np.sum(y * y, axis=-1) + 2.0 * (x @ y.T) ** 2
        if self.vectors == "rademacher":
            fourth = np.maximum(fourth - 2.0 * (x * x) @ (y * y).T, 0.0)
        degrees, log_weights = np.arange(self.exact, self.degree + 1), self._log_weights()[self.exact :]
        scales = -scipy.special.gammaln(degrees + 1) - log_weights
        moment = sum(np.exp(scipy.special.xlogy(n, fourth) + log) for n, log in zip(degrees, scales, strict=True))
        random, target = (exponential_series(x @ y.T, range(low, self.degree + 1)) for low in (self.exact, 0))
        return (moment - random**2) / target**2 / num_projections

    def _probabilities(self) -> np.ndarray:
        """P(N = n) for n from ``exact`` to ``degree``."""
        n = np.arange(self.exact, self.degree + 1)
        log = -n * math.log1p(1.0 / self.mean)
        if self.law == "poisson":
            log = scipy.special.xlogy(n, self.mean) - scipy.special.gammaln(n + 1)
        weights = np.exp(log - np.max(log))
        return weights / np.sum(weights)

    def _log_weights(self) -> np.ndarray:
        """log(n! P(n)) for every n up to ``degree``; 0 for those that are not drawn."""
        n = np.arange(self.exact, self.degree + 1)
        return np.concatenate([np.zeros(self.exact), scipy.special.gammaln(n + 1) + np.log(self._probabilities())])


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
    exact: int = whole(1, 6, default=1)
    name = "tensorsketch"
    reference = "Pham & Pagh 2013, KDD, doi 10.1145/2487575.2487591"
    features_per_projection = claim(lambda self: len(self._sketched()))
    nonnegative = False
    unbiased = False
    nested = False
    own_sample = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("degree", self.degree, self.exact, 12)

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """(sketches, d): s (h + 1) for each of the n sketches of each degree n; buckets h count from 0."""
        shape = (sum(self._sketched()), head_dim)
        return rng.integers(1, num_projections + 1, shape) * rng.choice((-1.0, 1.0), shape)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        xp = array_namespace(x)
        extra, size = xp.asarray(sample.extra, dtype=xp.float64), sample.omega.shape[-2]
        unit, log_norm = direction(x)
        blocks, first = list(exact_degrees(x, self.exact)), 0
        for n in self._sketched():
            block = sketched_power(unit, extra[..., first : first + n, :], size)
            blocks.append(block.times(n * log_norm - 0.5 * math.lgamma(n + 1)))
            first += n
        return tuple(blocks)

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """The transforms of n count sketches for each degree n, real and imaginary parts of R / 2 + 1 frequencies."""
        return float((n + l) * sum(self._sketched()) * 2 * (num_projections // 2 + 1) * d)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return num_monomials(head_dim, self.exact) + len(self._sketched()) * num_projections

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
    unpaired = (size - real) * ((square + p) ** degree + (square + q) ** degree - 2.0 * square**degree)
    return (both + unpaired) / size**2


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
