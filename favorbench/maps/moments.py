"""Moments of queries and keys, and the parameters of dense-exponential features that follow from them."""

from typing import NamedTuple

from array_api_compat import device

from favorbench.errors import InputError
from favorbench.maps.base import FeatureMap
from favorbench.numerics.arrays import Array, array_namespace

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
