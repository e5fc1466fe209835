"""Dense-exponential features: positive, unbiased, and with a law of the projections that follows the data.

FAVOR++ (``oprf``) and FAVOR# (``saderf``, ``sderf``, ``aderf``), and the best of both, ``aderf-sderf``. All are one
family with different parameters; each minimises, over its part of the family, the mean over all pairs of a
query and a key of log(E (f(x) g(y))^2 / exp(2 x.y)), in closed form.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from array_api_compat import device

from favorbench.errors import InputError
from favorbench.maps.base import FeatureMap, claim
from favorbench.maps.dense import DenseExponential, DenseParameters
from favorbench.numerics.arrays import Array, array_namespace
from favorbench.parameters import check_positive

#: Added to the second moments of queries and of keys, times their mean eigenvalue: so that fewer tokens than
#: coordinates, or a coordinate that is always 0, do not make them singular. Any positive value leaves the estimate
#: unbiased, and this one moves the optimum by less than the moments of a million tokens are off.
RIDGE = 1e-6


class Moments(NamedTuple):
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

    def images(self, query: Array, key: Array) -> "Moments":
        """The moments of query x and key y."""
        of_query, of_key = array_namespace(query).matrix_transpose(query), array_namespace(key).matrix_transpose(key)
        second = query @ self.query @ of_query, key @ self.key @ of_key
        return Moments(*second, self.query_mean @ of_query, self.key_mean @ of_key)


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
    xp = array_namespace(x)
    of_query, of_key = (xp.matrix_transpose(a) @ a / a.shape[-2] for a in (x, y))
    return Moments(of_query, of_key, mean(x), mean(y))


def lifted(diagonal: Array) -> Array:
    """Nonnegative numbers (..., 1, d) away from 0 by RIDGE of their mean; ones where all are 0."""
    xp = array_namespace(diagonal)
    middle = xp.mean(diagonal, axis=-1, keepdims=True)
    return diagonal + RIDGE * xp.where(middle > 0, middle, xp.ones_like(middle))


def best_rho(phi: Array, dim: int) -> Array:
    """The rho that minimises dim log((rho + 1)^2 / (4 rho)) / 2 + rho phi, free of cancellation; 1 at phi = 0."""
    total = 2.0 * phi + dim
    return 2.0 * dim / (total + array_namespace(phi).sqrt(total * total + 8.0 * dim * phi))


def shared_rho(phi: Array, x: Array) -> Array:
    """One rho for all coordinates, (..., 1, d), from the mean of |x' + y'|^2, (..., 1, 1)."""
    xp = array_namespace(x)
    rho = best_rho(xp.where(phi > 0, phi, xp.zeros_like(phi)), x.shape[-1])
    return xp.broadcast_to(rho, (*rho.shape[:-1], x.shape[-1]))


def rho_along_axes(of_sum: Array) -> tuple[Array, Array]:
    """For the mean of (x + y)(x + y)^T: rho along each of its eigenvectors, and these as columns."""
    xp = array_namespace(of_sum)
    values, vectors = xp.linalg.eigh(of_sum)
    return best_rho(xp.where(values > 0, values, xp.zeros_like(values)), 1)[..., None, :], vectors


def balance(moments: Moments) -> tuple[Array, Array]:
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
    causal_safe: ClassVar[bool] = claim(lambda self: self.rho is not None)
    asymmetric: ClassVar[bool] = False

    @property
    def data_dependent(self) -> bool:
        return self.rho is None

    def __post_init__(self) -> None:
        if self.rho is not None:
            check_positive("rho", self.rho, otherwise="left out to be fitted")

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

    squares: ClassVar[int] = 1
    name: ClassVar[str] = "saderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        xp = array_namespace(x)
        x64, y64 = in_float64(self, x, y)
        of_query, of_key = mean(x64 * x64), mean(y64 * y64)
        square = xp.sqrt(lifted(of_key) / lifted(of_query))  # psi^2
        phi = of_query * square + of_key / square + 2.0 * mean(x64) * mean(y64)
        psi, one = xp.sqrt(square), xp.eye(x.shape[-1], dtype=xp.float64, device=device(x))
        return DenseParameters(shared_rho(xp.sum(phi, axis=-1, keepdims=True), x), one * psi, one / psi)


@dataclass(frozen=True)
class SDERF(DenseExponential):
    """A rho for every eigenvector of the mean of (x + y)(x + y)^T, by its eigenvalue.

    Good where queries and keys lie near a subspace. Likhosherstov et al. 2023, arXiv 2302.00787, "SDERF".
    """

    squares: ClassVar[int] = 1
    moment_squares: ClassVar[int] = 1
    name: ClassVar[str] = "sderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"
    asymmetric: ClassVar[bool] = False

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        moments = moments_of(*in_float64(self, x, y))
        rho, axes = rho_along_axes(moments.of_sum())
        return DenseParameters(rho, axes=axes)


@dataclass(frozen=True)
class ADERF(DenseExponential):
    """``oprf`` after the linear maps x' = P x, y' = P^-T y that give queries and keys equal second moments.

    Good where queries and keys have different shapes. Likhosherstov et al. 2023, arXiv 2302.00787, "ADERF".
    """

    squares: ClassVar[int] = 2
    moment_squares: ClassVar[int] = 1
    name: ClassVar[str] = "aderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"

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

    squares: ClassVar[int] = 2
    moment_squares: ClassVar[int] = 1
    name: ClassVar[str] = "aderf-sderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787 (ADERF, then SDERF)"

    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        moments = moments_of(*in_float64(self, x, y))
        query, key = balance(moments)
        rho, axes = rho_along_axes(moments.images(query, key).of_sum())
        return DenseParameters(rho, query, key, axes)
