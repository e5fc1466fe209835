"""Dense-exponential features: positive, unbiased, and with a law of the projections that follows the data.

FAVOR++ (``oprf``) and FAVOR# (``saderf``, ``sderf``, ``aderf``), and the best of both, ``aderf-sderf``. All are one
family with different parameters, ``Dense``; each minimises, over its part of the family, the mean over all pairs of a
query and a key of log(E (f(x) g(y))^2 / exp(2 x.y)), in closed form.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.arrays import Array, Features, array_namespace, half_squared_norm, projected
from favorbench.errors import InputError
from favorbench.kernels import softmax_kernel, squared_sum
from favorbench.maps.base import FeatureMap, Sample, with_values
from favorbench.maps.positive import norm_factors
from favorbench.samplers.laws import FixedNormRows, GaussianRows, OppositeRow, PairLaw, RowLaw

#: Added to the second moments of queries and of keys, times their mean eigenvalue: so that fewer tokens than
#: coordinates, or a coordinate that is always 0, do not make them singular. Any positive value leaves the estimate
#: unbiased, and this one moves the optimum by less than the moments of a million tokens are off.
RIDGE = 1e-6


@dataclass(frozen=True, eq=False)  # holds arrays: equal only to itself
class Dense:
    """The parameters of one member: x' = query x, y' = key y with x'.y' = x.y (None: x and y themselves), and rho_l > 0
    along the orthonormal columns v_l of ``axes`` (None: all rho_l are equal, and any axes serve). The feature of x is

        log f(x) = sum_l [log(1 - 4 a_l)/4 + a_l (v_l.w)^2 + sqrt(1 - 4 a_l) (v_l.w)(v_l.x')] - |x'|^2 / 2,

    with a_l = (1 - 1/rho_l) / 8; that of y the same in y'. Every choice is unbiased with finite variance; rho = 1 and
    x' = x is the positive map. With A = V diag(a) V^T it has the general form of Likhosherstov et al. 2023, arXiv
    2302.00787, section 4: exp(w^T A w + w^T B x + x^T C x) det(I - 4A)^(1/4), B = (I - 4A)^(1/2) P, C = -P^T P / 2.
    """

    rho: Array  # (..., 1, d)
    query: Array | None = None  # (..., d, d)
    key: Array | None = None
    axes: Array | None = None

    def log_features(self, x: Array, basis: Array | None, projection: Array, omega: Array) -> Array:
        """log f of the rows of x, (..., n, R). The axes turn omega, not x: R rows, where x may have a million."""
        xp = array_namespace(x)
        a, slope = self._exponents(x)
        turned = omega if self.axes is None else omega @ self.axes
        of_row = xp.sum(a * turned * turned + 0.5 * xp.log(slope), axis=-1)[..., None, :]
        image = x if basis is None else x @ xp.matrix_transpose(basis)
        if basis is None and self.axes is None:
            result = slope[..., :1] * projection
        else:
            weights = turned * slope
            weights = weights if self.axes is None else weights @ xp.matrix_transpose(self.axes)
            result = projected(image, weights)
        result += of_row
        result -= half_squared_norm(image)
        return result

    def log_second_moment(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log(E (f(x) g(y))^2 / exp(2 x.y)) for w ~ N(0, I), all pairs: sum_l log((rho_l + 1)^2 / (4 rho_l)) / 2
        + sum_l rho_l (v_l.(x' + y'))^2."""
        root = np.sqrt(self.rho)
        return self._log_constant() + squared_sum(root * self._query(x), root * self._key(y))

    def log_covariance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log(E f(x)^2 g(y_j) g(y_l) / (exp(x.y_j) exp(x.y_l))) for one query x (1, d) and keys y (l, d): (l, l)."""
        z = self._query(x) + self._key(y)
        root = np.sqrt((self.rho + 1.0) / 4.0)
        norms = half_squared_norm(z)
        return self._log_constant() + squared_sum(root * z, root * z) - norms - np.matrix_transpose(norms)

    def image_sum(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """|x' + y'|^2 of every pair."""
        return squared_sum(self._query(x), self._key(y))

    def opposite(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """E of the product of the estimates from w and from -w, over exp(2 x.y): c exp(-|x' + y'|^2)."""
        return np.exp(self._log_constant() - self.image_sum(x, y))

    def fixed_norm_target(self, x: np.ndarray, y: np.ndarray, rows: FixedNormRows) -> np.ndarray:
        """The mean of the estimate for rows of one norm, where all rho are equal."""
        a, slope = self._exponents(x)
        x, y = self._query(x), self._key(y)
        factor = np.exp(np.sum(np.log(slope)) + 2.0 * np.mean(a) * rows.norm**2)
        return factor * norm_factors(x, y) * rows.laplace(np.mean(slope) * (x[:, None, :] + y[None, :, :]))

    def _exponents(self, like: Array) -> tuple[Array, Array]:
        """a and sqrt(1 - 4a)."""
        return (1.0 - 1.0 / self.rho) / 8.0, array_namespace(like).sqrt(0.5 + 0.5 / self.rho)

    def _log_constant(self) -> float:
        return float(np.sum(np.log(0.5 * (self.rho + 1.0)) - 0.5 * np.log(self.rho)))

    def _query(self, x: np.ndarray) -> np.ndarray:
        return self._along_axes(x if self.query is None else x @ self.query.T)

    def _key(self, y: np.ndarray) -> np.ndarray:
        return self._along_axes(y if self.key is None else y @ self.key.T)

    def _along_axes(self, image: np.ndarray) -> np.ndarray:
        return image if self.axes is None else image @ self.axes


@dataclass(frozen=True)
class DenseExponential(FeatureMap):
    """What the members share: everything but the choice of the parameters.

    Linear attention fits them to its queries and keys, all of them: so nothing causal. ``kernel_estimate`` and the
    closed forms fit them to the x and y they are given, unless ``fit`` was called before.
    """

    parameters: Dense | None = field(default=None, init=False, repr=False)
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    causal_safe: ClassVar[bool] = False
    asymmetric: ClassVar[bool] = True

    @abstractmethod
    def choice(self, x: Array, y: Array | None) -> Dense:
        """The best parameters for queries x and keys y; without y, those that need no data."""

    def fit(self, x: Array, y: Array, omega: Array) -> "DenseExponential":
        return with_values(self, parameters=self.choice(x, y))

    def ready(self, x: Array, y: Array) -> "DenseExponential":
        return with_values(self, parameters=self._parameters(x, y))

    def features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        return self.query_features(x, projection, sample)

    def query_features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        dense = self._parameters(x)
        return (Features(None, dense.log_features(x, dense.query, projection, sample.omega)),)

    def key_features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        dense = self._parameters(x)
        return (Features(None, dense.log_features(x, dense.key, projection, sample.omega)),)

    def target_kernel(self, x: Array, y: Array, rows: RowLaw) -> Array:
        dense = self._parameters(x, y)
        if isinstance(rows, GaussianRows):
            return softmax_kernel(x, y)
        if isinstance(rows, FixedNormRows) and rows.dimension is None and dense.axes is None:
            return dense.fixed_norm_target(x, y, rows)
        return np.full((len(x), len(y)), np.nan)

    def relative_variance(self, x: Array, y: Array, num_projections: int) -> Array:
        return np.expm1(self._parameters(x, y).log_second_moment(x, y)) / num_projections

    def pair_argument(self, x: Array, y: Array) -> Array | None:
        """|x' + y'|^2 if all rho are equal: the feature is then a ratio of densities that depends on |w| alone, which
        turns independent norms into independent norms. Else the coupling is not isotropic in the tilted law."""
        dense = self._parameters(x, y)
        return dense.image_sum(x, y) if dense.axes is None else None

    def pair_moment(self, x: Array, y: Array, pair: PairLaw) -> Array | None:
        """As ``pair_argument`` has it, where norms are independent; w and -w have a closed form for any axes."""
        dense = self._parameters(x, y)
        if isinstance(pair, OppositeRow) and isinstance(pair.rows, GaussianRows):
            return dense.opposite(x, y)
        return super().pair_moment(x, y, pair) if pair.free_norms else None

    def covariance(self, x: Array, y: Array) -> Array:
        return np.expm1(self._parameters(x, y).log_covariance(x, y))

    def _parameters(self, x: Array, y: Array | None = None) -> Dense:
        return self.choice(x, y) if self.parameters is None else self.parameters


@dataclass(frozen=True)
class OPRF(DenseExponential):
    """f(x) = (1 - 4A)^(d/4) exp(A |w|^2 + sqrt(1 - 4A) w.x - |x|^2/2), A = (1 - 1/rho)/8: FAVOR++.

    The second moment is ((rho + 1)^2 / (4 rho))^(d/2) exp(rho |x + y|^2) times exp(2 x.y): a price that does not depend
    on the data for an exponent that is rho times smaller than that of ``positive``. By default rho is the minimum of
    its mean logarithm over all pairs, which depends on the mean of |x + y|^2 alone. A given rho takes nothing from the
    data, so the map is then causal-safe. Good for long queries and keys, where rho is far below 1.
    Likhosherstov et al. 2022, "Chefs' Random Tables", arXiv 2205.15317, Theorems 3.1 to 3.3.
    """

    rho: float | None = None
    name: ClassVar[str] = "oprf"
    reference: ClassVar[str] = "Likhosherstov et al. 2022, arXiv 2205.15317"
    asymmetric: ClassVar[bool] = False

    @property
    def takes_data(self) -> bool:
        return self.rho is None

    def __post_init__(self) -> None:
        if self.rho is not None and not (isinstance(self.rho, int | float) and 0 < self.rho < math.inf):
            raise ValueError(f"rho must be a positive number, or left out to be fitted, got {self.rho!r}")
        object.__setattr__(self, "causal_safe", self.rho is not None)

    def choice(self, x: Array, y: Array | None) -> Dense:
        xp = array_namespace(x)
        if self.rho is not None:
            return Dense(xp.full_like(x[..., :1, :], float(self.rho)))
        x64, y64 = _both(self, x, y)
        phi = _mean(x64 * x64) + _mean(y64 * y64) + 2.0 * _mean(x64) * _mean(y64)
        return Dense(_shared_rho(xp.sum(phi, axis=-1, keepdims=True), x))


@dataclass(frozen=True)
class SADERF(DenseExponential):
    """``oprf`` after a rescaling of each coordinate, x' = psi x, y' = y / psi, psi_l = (E y_l^2 / E x_l^2)^(1/4).

    Makes queries and keys equally long in every coordinate. Good where coordinates differ in scale; costs O(d L).
    Likhosherstov et al. 2023, arXiv 2302.00787, "SADERF".
    """

    name: ClassVar[str] = "saderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> Dense:
        xp = array_namespace(x)
        x64, y64 = _both(self, x, y)
        of_query, of_key = _mean(x64 * x64), _mean(y64 * y64)
        square = xp.sqrt(_lifted(of_key) / _lifted(of_query))  # psi^2
        phi = of_query * square + of_key / square + 2.0 * _mean(x64) * _mean(y64)
        psi, one = xp.sqrt(square), xp.eye(x.shape[-1], dtype=xp.float64, device=device(x))
        return Dense(_shared_rho(xp.sum(phi, axis=-1, keepdims=True), x), _as(one * psi, x), _as(one / psi, x))


@dataclass(frozen=True)
class SDERF(DenseExponential):
    """A rho for every eigenvector of the mean of (x + y)(x + y)^T, by its eigenvalue.

    Good where queries and keys lie near a subspace. Likhosherstov et al. 2023, arXiv 2302.00787, "SDERF".
    """

    name: ClassVar[str] = "sderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"
    asymmetric: ClassVar[bool] = False

    def choice(self, x: Array, y: Array | None) -> Dense:
        moments = _moments(*_both(self, x, y))
        rho, axes = _rho_along_axes(moments.of_sum())
        return Dense(_as(rho, x), axes=_as(axes, x))


@dataclass(frozen=True)
class ADERF(DenseExponential):
    """``oprf`` after the linear maps x' = P x, y' = P^-T y that give queries and keys equal second moments.

    Good where queries and keys have different shapes. Likhosherstov et al. 2023, arXiv 2302.00787, "ADERF".
    """

    name: ClassVar[str] = "aderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> Dense:
        xp = array_namespace(x)
        moments = _moments(*_both(self, x, y))
        query, key = _balance(moments)
        phi = xp.linalg.trace(moments.images(query, key).of_sum())[..., None, None]
        return Dense(_shared_rho(phi, x), _as(query, x), _as(key, x))


@dataclass(frozen=True)
class ADERFSDERF(DenseExponential):
    """The linear maps of ``aderf``, then the axes and rho of ``sderf`` for x' and y'.

    Its mean log second moment is never above that of ``aderf``, whose single rho is one choice of these.
    Both parts: Likhosherstov et al. 2023, arXiv 2302.00787; one after the other: here.
    """

    name: ClassVar[str] = "aderf-sderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787 (ADERF, then SDERF)"

    def choice(self, x: Array, y: Array | None) -> Dense:
        moments = _moments(*_both(self, x, y))
        query, key = _balance(moments)
        rho, axes = _rho_along_axes(moments.images(query, key).of_sum())
        return Dense(_as(rho, x), _as(query, x), _as(key, x), _as(axes, x))


class _Moments(NamedTuple):
    """Means (..., 1, d) and second moments (..., d, d) of queries and keys, each over its own length."""

    query: Array
    key: Array
    query_mean: Array
    key_mean: Array

    def of_sum(self) -> Array:
        """The mean of (x + y)(x + y)^T over all pairs of a query and a key."""
        xp = array_namespace(self.query)
        mixed = xp.matrix_transpose(self.query_mean) @ self.key_mean
        return self.query + self.key + mixed + xp.matrix_transpose(mixed)

    def images(self, query: Array, key: Array) -> "_Moments":
        """The moments of query x and key y."""
        of_query, of_key = array_namespace(query).matrix_transpose(query), array_namespace(key).matrix_transpose(key)
        second = query @ self.query @ of_query, key @ self.key @ of_key
        return _Moments(*second, self.query_mean @ of_query, self.key_mean @ of_key)


def _both(feature_map: DenseExponential, x: Array, y: Array | None) -> tuple[Array, Array]:
    """Queries and keys in float64, in which all parameters are computed."""
    if y is None:
        raise InputError(
            f"map {feature_map.name!r} takes its parameters from queries and keys: call fit(x, y, omega) first"
        )
    xp = array_namespace(x, y)
    return xp.astype(x, xp.float64, copy=False), xp.astype(y, xp.float64, copy=False)


def _mean(x: Array) -> Array:
    """The mean over tokens, (..., 1, d)."""
    return array_namespace(x).mean(x, axis=-2, keepdims=True)


def _as(parameter: Array, x: Array) -> Array:
    return array_namespace(x).astype(parameter, x.dtype)


def _moments(x: Array, y: Array) -> _Moments:
    xp = array_namespace(x)
    of_query, of_key = (xp.matrix_transpose(a) @ a / a.shape[-2] for a in (x, y))
    return _Moments(of_query, of_key, _mean(x), _mean(y))


def _lifted(diagonal: Array) -> Array:
    """Nonnegative numbers (..., 1, d) away from 0 by RIDGE of their mean; ones where all are 0."""
    xp = array_namespace(diagonal)
    mean = xp.mean(diagonal, axis=-1, keepdims=True)
    return diagonal + RIDGE * xp.where(mean > 0, mean, xp.ones_like(mean))


def _best_rho(phi: Array, dim: int) -> Array:
    """The rho that minimises dim log((rho + 1)^2 / (4 rho)) / 2 + rho phi, free of cancellation; 1 at phi = 0."""
    total = 2.0 * phi + dim
    return 2.0 * dim / (total + array_namespace(phi).sqrt(total * total + 8.0 * dim * phi))


def _shared_rho(phi: Array, x: Array) -> Array:
    """One rho for all coordinates, (..., 1, d), from the mean of |x' + y'|^2, (..., 1, 1)."""
    xp = array_namespace(x)
    rho = _best_rho(xp.where(phi > 0, phi, xp.zeros_like(phi)), x.shape[-1])
    return _as(xp.broadcast_to(rho, (*rho.shape[:-1], x.shape[-1])), x)


def _rho_along_axes(of_sum: Array) -> tuple[Array, Array]:
    """For the mean of (x + y)(x + y)^T: rho along each of its eigenvectors, and these as columns."""
    xp = array_namespace(of_sum)
    values, vectors = xp.linalg.eigh(of_sum)
    return _best_rho(xp.where(values > 0, values, xp.zeros_like(values)), 1)[..., None, :], vectors


def _balance(moments: _Moments) -> tuple[Array, Array]:
    """P and P^-T with P M1 P^T = P^-T M2 P^-1 for the second moments M1 of queries and M2 of keys.

    With M1 = L L^T and C = L^T M2 L: P = C^(1/4) L^-1 and P^-T = C^(-1/4) L^T, and both sides are C^(1/2). This is the
    geometric mean of M1^-1 and M2 up to a rotation, which changes no variance, for a single eigendecomposition; and a
    symmetric C^(1/4) does not depend on the signs that a library gives to eigenvectors.
    """
    xp = array_namespace(moments.query)
    of_query, of_key = (_with_ridge(m) for m in (moments.query, moments.key))
    lower = xp.linalg.cholesky(of_query)
    values, vectors = xp.linalg.eigh(xp.matrix_transpose(lower) @ of_key @ lower)
    floor = RIDGE**2 * values[..., -1:]  # rounding may leave an eigenvalue below 0
    root = xp.where(values > floor, values, floor)[..., None, :] ** 0.25
    transposed = xp.matrix_transpose(vectors)
    query = (vectors * root) @ transposed @ xp.linalg.inv(lower)
    return query, (vectors / root) @ transposed @ xp.matrix_transpose(lower)


def _with_ridge(moment: Array) -> Array:
    """A second moment that is not singular."""
    xp = array_namespace(moment)
    mean = xp.linalg.trace(moment)[..., None, None] / moment.shape[-1]
    one = xp.eye(moment.shape[-1], dtype=moment.dtype, device=device(moment))
    return moment + RIDGE * xp.where(mean > 0, mean, xp.ones_like(mean)) * one
