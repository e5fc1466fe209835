"""Dense-exponential features: positive, unbiased, and with a law of the projections that follows the data.

FAVOR++ (``oprf``) and FAVOR# (``saderf``, ``sderf``, ``aderf``), and the best of both, ``aderf-sderf``. All are one
family with different parameters. Each minimises, over its part of the family, the mean over all pairs of a query and
a key of log(E (f(x) g(y))^2 / exp(2 x.y)), in closed form.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.errors import InputError
from favorbench.kernels import softmax_kernel, squared_sum
from favorbench.maps.base import (
    FeatureBlocks,
    FeatureMap,
    KeyPairs,
    Keys,
    Omega,
    OneToken,
    Pairs,
    Projection,
    Sample,
    Tokens,
    claim,
    with_values,
)
from favorbench.maps.random_features import norm_factors
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm, projected
from favorbench.parameters import positive
from favorbench.samplers.laws import FixedNormRows, GaussianRows, OppositeRow, PairLaw, RowLaw

#: Added to the second moments of queries and of keys, times their mean eigenvalue. It keeps them regular where there
#: are fewer tokens than coordinates, or where a coordinate is always 0. Any positive value leaves the estimate
#: unbiased, and this one moves the optimum by less than the sampling error of the moments of a million tokens.
RIDGE = 1e-6


@dataclass(frozen=True, eq=False)  # holds arrays: equal only to itself
class DenseParameters:
    """The parameters of one member.

    x' = P x, y' = Q y with x'.y' = x.y (None: x and y themselves), and rho_l > 0 along the orthonormal columns v_l of
    ``axes`` (None: all rho_l are equal, and any axes serve). The feature of x is

        log f(x) = sum_l [log(1 - 4 a_l)/4 + a_l (v_l.w)^2 + sqrt(1 - 4 a_l) (v_l.w)(v_l.x')] - |x'|^2 / 2,

    with a_l = (1 - 1/rho_l) / 8; that of y the same in y'. Every choice is unbiased with finite variance; rho = 1 and
    x' = x is the positive map. With A = V diag(a) V^T it has the general form of Likhosherstov et al. 2023, arXiv
    2302.00787, section 4: exp(w^T A w + w^T B x + x^T C x) det(I - 4A)^(1/4), B = (I - 4A)^(1/2) P, C = -P^T P / 2.
    """

    rho: Array  # (..., 1, d)
    query_matrix: Array | None = None  # P, (..., d, d)
    key_matrix: Array | None = None  # Q
    axes: Array | None = None

    def as_dtype_of(self, x: Array) -> "DenseParameters":
        """The same, in the precision in which features are computed."""
        parts, astype = (self.rho, self.query_matrix, self.key_matrix, self.axes), array_namespace(x).astype
        return DenseParameters(*(None if part is None else astype(part, x.dtype) for part in parts))

    def log_features(self, x: Array, matrix: Array | None, projection: Array, omega: Array) -> Array:
        """log f of the rows of x, (..., n, R). The axes turn omega, not x: R rows, where x may have a million."""
        xp = array_namespace(x)
        a, slope = self._exponents(x)
        turned = omega if self.axes is None else omega @ self.axes
        of_row = xp.sum(a * turned * turned + 0.5 * xp.log(slope), axis=-1)[..., None, :]
        image = x if matrix is None else x @ matrix.mT
        if matrix is None and self.axes is None:
            result = slope[..., :1] * projection
        else:
            weights = turned * slope
            weights = weights if self.axes is None else weights @ self.axes.mT
            result = projected(image, weights)
        result += of_row
        result -= half_squared_norm(image)
        return result

    def log_second_moment(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log(E (f(x) g(y))^2 / exp(2 x.y)) for w ~ N(0, I), all pairs.

        It is sum_l log((rho_l + 1)^2 / (4 rho_l)) / 2 + sum_l rho_l (v_l.(x' + y'))^2.
        """
        root = np.sqrt(self.rho)
        return self._log_constant() + squared_sum(*(root * image for image in self._images(x, y)))

    def log_covariance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log(E f(x)^2 g(y_j) g(y_l) / (exp(x.y_j) exp(x.y_l))) for one query x (1, d) and keys y (l, d): (l, l)."""
        z, root = sum(self._images(x, y)), np.sqrt((self.rho + 1.0) / 4.0)
        norms = half_squared_norm(z)
        return self._log_constant() + squared_sum(root * z, root * z) - norms - norms.mT

    def image_sum(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """|x' + y'|^2 of every pair."""
        return squared_sum(*self._images(x, y))

    def opposite(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """E of the product of the estimates from w and from -w, over exp(2 x.y): c exp(-|x' + y'|^2)."""
        return np.exp(self._log_constant() - self.image_sum(x, y))

    def fixed_norm_target(self, x: np.ndarray, y: np.ndarray, rows: FixedNormRows) -> np.ndarray:
        """The mean of the estimate for rows of one norm, where all rho are equal."""
        a, slope = self._exponents(x)
        x, y = self._images(x, y)
        factor = np.exp(np.sum(np.log(slope)) + 2.0 * np.mean(a) * rows.norm**2)
        return factor * norm_factors(x, y) * rows.laplace(np.mean(slope) * (x[:, None, :] + y[None, :, :]))

    def _exponents(self, like: Array) -> tuple[Array, Array]:
        """a and sqrt(1 - 4a)."""
        return (1.0 - 1.0 / self.rho) / 8.0, array_namespace(like).sqrt(0.5 + 0.5 / self.rho)

    def _log_constant(self) -> float:
        return float(np.sum(np.log(0.5 * (self.rho + 1.0)) - 0.5 * np.log(self.rho)))

    def _images(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        """x' and y' along the axes."""
        pairs = ((x, self.query_matrix), (y, self.key_matrix))
        images = [tokens if matrix is None else tokens @ matrix.T for tokens, matrix in pairs]
        return images if self.axes is None else [image @ self.axes for image in images]


@dataclass(frozen=True)
class DenseExponential(FeatureMap):
    """The family of dense-exponential maps: a member chooses the parameters.

    Linear attention fits them to all of its queries and keys, so members are not causal-safe. ``kernel_estimate`` and
    the closed forms fit them to the given x and y, unless ``fit`` was called before.
    """

    parameters: DenseParameters | None = field(default=None, init=False, repr=False)
    features_per_projection = 1
    nonnegative = True
    unbiased = True
    causal_safe = False
    asymmetric = True

    #: How many d x d products each token takes part in: for the second moments, and with a fitted matrix.
    squares = 0
    #: How many of them are for the moments.
    moment_squares = 0

    @abstractmethod
    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        """The best parameters for queries x and keys y, in float64; without y, those that need no data."""

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Count the second projection of the tokens, on fitted rows, where there are any."""
        return float((n + l) * (num_projections * d + self.squares * d * d)) if self.squares else 0.0

    def fit_multiplications(self, n: int, l: int, d: int) -> float:  # noqa: E741
        return float((n + l) * self.moment_squares * d * d)

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "DenseExponential":
        return with_values(self, parameters=self.choice(x, y).as_dtype_of(x))

    def with_parameters(self, x: Tokens, y: Keys) -> "DenseExponential":
        return with_values(self, parameters=self._parameters(x, y))

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        dense = self._parameters(x)
        return (Features(None, dense.log_features(x, dense.query_matrix, projection, sample.omega)),)

    features = query_features

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        dense = self._parameters(x)
        return (Features(None, dense.log_features(x, dense.key_matrix, projection, sample.omega)),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        dense = self._parameters(x, y)
        if isinstance(rows, GaussianRows):
            return softmax_kernel(x, y)
        if isinstance(rows, FixedNormRows) and rows.dimension is None and dense.axes is None:
            return dense.fixed_norm_target(x, y, rows)
        return np.full((len(x), len(y)), np.nan)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return np.expm1(self._parameters(x, y).log_second_moment(x, y)) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs | None:
        """|x' + y'|^2 if all rho are equal, None otherwise.

        With equal rho the feature is a ratio of densities that depends on |w| alone, which turns independent norms into
        independent norms. Otherwise the coupling is not isotropic in the tilted law.
        """
        dense = self._parameters(x, y)
        return dense.image_sum(x, y) if dense.axes is None else None

    def pair_moment(self, x: Tokens, y: Keys, pair: PairLaw) -> Pairs | None:
        """As ``pair_argument`` has it, where norms are independent; w and -w have a closed form for any axes."""
        dense = self._parameters(x, y)
        if isinstance(pair, OppositeRow) and isinstance(pair.rows, GaussianRows):
            return dense.opposite(x, y)
        return super().pair_moment(x, y, pair) if pair.free_norms else None

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.expm1(self._parameters(x, y).log_covariance(x, y))

    def _parameters(self, x: Array, y: Array | None = None) -> DenseParameters:
        return self.choice(x, y).as_dtype_of(x) if self.parameters is None else self.parameters


class Moments(NamedTuple):
    """Means (..., 1, d) and second moments (..., d, d) of queries and keys, each over its own length."""

    query: Array
    key: Array
    query_mean: Array
    key_mean: Array

    def of_sum(self) -> Array:
        """The mean of (x + y)(x + y)^T over all pairs of a query and a key."""
        mixed = self.query_mean.mT @ self.key_mean
        return self.query + self.key + mixed + mixed.mT

    def images(self, query: Array, key: Array) -> "Moments":
        """The moments of query x and key y."""
        second = query @ self.query @ query.mT, key @ self.key @ key.mT
        return Moments(*second, self.query_mean @ query.mT, self.key_mean @ key.mT)


def in_float64(feature_map: FeatureMap, x: Array, y: Array | None) -> tuple[Array, Array]:
    """Queries and keys in float64, in which all parameters are computed."""
    if y is None:
        raise InputError(
            f"map {feature_map.name!r} takes its parameters from queries and keys: call fit(x, y, omega) first"
        )
    xp = array_namespace(x, y)
    return xp.astype(x, xp.float64, copy=False), xp.astype(y, xp.float64, copy=False)


def mean(x: Array) -> Array:
    """The mean over tokens, (..., 1, d)."""
    return array_namespace(x).mean(x, axis=-2, keepdims=True)


def moments_of(x: Array, y: Array) -> Moments:
    """The moments of queries x and keys y."""
    of_query, of_key = (a.mT @ a / a.shape[-2] for a in (x, y))
    return Moments(of_query, of_key, mean(x), mean(y))


def lifted(diagonal: Array) -> Array:
    """Nonnegative numbers (..., 1, d) away from 0 by RIDGE of their mean; ones where all are 0."""
    xp = array_namespace(diagonal)
    middle = xp.mean(diagonal, axis=-1, keepdims=True)
    return diagonal + RIDGE * xp.where(middle > 0, middle, 1.0)


def best_rho(phi: Array, dim: int) -> Array:
    """The rho that minimises dim log((rho + 1)^2 / (4 rho)) / 2 + rho phi, free of cancellation; 1 at phi = 0."""
    total = 2.0 * phi + dim
    return 2.0 * dim / (total + array_namespace(phi).sqrt(total * total + 8.0 * dim * phi))


def shared_rho(phi: Array, x: Array) -> Array:
    """One rho for all coordinates, (..., 1, d), from the mean of |x' + y'|^2, (..., 1, 1)."""
    xp = array_namespace(x)
    rho = best_rho(xp.where(phi > 0, phi, 0.0), x.shape[-1])
    return xp.broadcast_to(rho, (*rho.shape[:-1], x.shape[-1]))


def rho_along_axes(of_sum: Array) -> tuple[Array, Array]:
    """For the mean of (x + y)(x + y)^T: rho along each of its eigenvectors, and these as columns."""
    xp = array_namespace(of_sum)
    values, vectors = xp.linalg.eigh(of_sum)
    return best_rho(xp.where(values > 0, values, 0.0), 1)[..., None, :], vectors


def balance(moments: Moments) -> tuple[Array, Array]:
    """P and P^-T with P M1 P^T = P^-T M2 P^-1 for the second moments M1 of queries and M2 of keys.

    With M1 = L L^T and C = L^T M2 L: P = C^(1/4) L^-1 and P^-T = C^(-1/4) L^T, and both sides are C^(1/2). This is the
    geometric mean of M1^-1 and M2 up to a rotation, which changes no variance, for a single eigendecomposition; and a
    symmetric C^(1/4) does not depend on the signs that a library gives to eigenvectors.
    """
    xp = array_namespace(moments.query)
    of_query, of_key = (_with_ridge(m) for m in (moments.query, moments.key))
    lower = xp.linalg.cholesky(of_query)
    values, vectors = xp.linalg.eigh(lower.mT @ of_key @ lower)
    floor = RIDGE**2 * values[..., -1:]  # rounding may leave an eigenvalue below 0
    root = xp.where(values > floor, values, floor)[..., None, :] ** 0.25
    transposed = vectors.mT
    query = (vectors * root) @ transposed @ xp.linalg.inv(lower)
    return query, (vectors / root) @ transposed @ lower.mT


def _with_ridge(moment: Array) -> Array:
    """A second moment that is not singular."""
    xp = array_namespace(moment)
    mean = xp.linalg.trace(moment)[..., None, None] / moment.shape[-1]
    identity = xp.eye(moment.shape[-1], dtype=moment.dtype, device=device(moment))
    return moment + RIDGE * xp.where(mean > 0, mean, 1.0) * identity


@dataclass(frozen=True)
class OPRF(DenseExponential):
    """f(x) = (1 - 4A)^(d/4) exp(A |w|^2 + sqrt(1 - 4A) w.x - |x|^2/2), A = (1 - 1/rho)/8: FAVOR++.

    The second moment is ((rho + 1)^2 / (4 rho))^(d/2) exp(rho |x + y|^2) times exp(2 x.y): a price that does not depend
    on the data for an exponent that is rho times smaller than that of ``positive``. By default rho is the minimum of
    its mean logarithm over all pairs, which depends on the mean of |x + y|^2 alone. A given rho takes nothing from the
    data, so the map is then causal-safe. Good for long queries and keys, where rho is far below 1.
    Likhosherstov et al. 2022, "Chefs' Random Tables", arXiv 2205.15317, Theorems 3.1 to 3.3.
    """

    rho: float | None = positive(None, otherwise="left out to be fitted")
    name = "oprf"
    reference = "Likhosherstov et al. 2022, arXiv 2205.15317"
    causal_safe = claim(lambda self: self.rho is not None)
    data_dependent = claim(lambda self: self.rho is None)
    asymmetric = False

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        xp = array_namespace(x)
        if self.rho is not None:
            return DenseParameters(xp.full_like(x[..., :1, :], float(self.rho)))
        x64, y64 = in_float64(self, x, y)
        phi = mean(x64 * x64) + mean(y64 * y64) + 2.0 * mean(x64) * mean(y64)
        return DenseParameters(shared_rho(xp.sum(phi, axis=-1, keepdims=True), x))


@dataclass(frozen=True)
class SADERF(DenseExponential):
    """``oprf`` after a rescaling of each coordinate, x' = psi x, y' = y / psi, psi_l = (E y_l^2 / E x_l^2)^(1/4).

    Makes queries and keys equally long in every coordinate. Good where coordinates differ in scale; costs O(d L).
    Likhosherstov et al. 2023, arXiv 2302.00787, "SADERF".
    """

    squares = 1
    name = "saderf"
    reference = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        xp = array_namespace(x)
        x64, y64 = in_float64(self, x, y)
        of_query, of_key = mean(x64 * x64), mean(y64 * y64)
        square = xp.sqrt(lifted(of_key) / lifted(of_query))  # psi^2
        phi = of_query * square + of_key / square + 2.0 * mean(x64) * mean(y64)
        psi, identity = xp.sqrt(square), xp.eye(x.shape[-1], dtype=xp.float64, device=device(x))
        return DenseParameters(shared_rho(xp.sum(phi, axis=-1, keepdims=True), x), identity * psi, identity / psi)


@dataclass(frozen=True)
class SDERF(DenseExponential):
    """A rho for every eigenvector of the mean of (x + y)(x + y)^T, by its eigenvalue.

    Good where queries and keys lie near a subspace. Likhosherstov et al. 2023, arXiv 2302.00787, "SDERF".
    """

    squares = 1
    moment_squares = 1
    name = "sderf"
    reference = "Likhosherstov et al. 2023, arXiv 2302.00787"
    asymmetric = False

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        moments = moments_of(*in_float64(self, x, y))
        rho, axes = rho_along_axes(moments.of_sum())
        return DenseParameters(rho, axes=axes)


@dataclass(frozen=True)
class ADERF(DenseExponential):
    """``oprf`` after the linear maps x' = P x, y' = P^-T y that give queries and keys equal second moments.

    Good where queries and keys have different shapes. Likhosherstov et al. 2023, arXiv 2302.00787, "ADERF".
    """

    squares = 2
    moment_squares = 1
    name = "aderf"
    reference = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        xp = array_namespace(x)
        moments = moments_of(*in_float64(self, x, y))
        query, key = balance(moments)
        phi = xp.linalg.trace(moments.images(query, key).of_sum())[..., None, None]
        return DenseParameters(shared_rho(phi, x), query, key)


@dataclass(frozen=True)
class ADERFThenSDERF(DenseExponential):
    """The linear maps of ``aderf``, then the axes and rho of ``sderf`` for x' and y'.

    Its mean log second moment is never above that of ``aderf``, whose single rho is one choice of these.
    Both parts: Likhosherstov et al. 2023, arXiv 2302.00787; one after the other: here.
    """

    squares = 2
    moment_squares = 1
    name = "aderf-sderf"
    reference = "Likhosherstov et al. 2023, arXiv 2302.00787 (ADERF, then SDERF)"

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        moments = moments_of(*in_float64(self, x, y))
        query, key = balance(moments)
        rho, axes = rho_along_axes(moments.images(query, key).of_sum())
        return DenseParameters(rho, query, key, axes)
