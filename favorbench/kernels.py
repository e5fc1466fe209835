"""The kernels that feature maps aim at, exactly, and the explicit features of the polynomial one."""

import functools
import itertools
import math

import numpy as np
from array_api_compat import array_namespace, device
from jaxtyping import Float

from favorbench.arrays import Array, half_squared_norm


def softmax_kernel(x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"]) -> Float[Array, "*batch n l"]:
    """exp(x.y), the kernel inside softmax attention, for x and y already scaled by d^-1/4."""
    xp = array_namespace(x, y)
    return xp.exp(x @ xp.matrix_transpose(y))


def gaussian_kernel(
    x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"], sigma: float = 1.0
) -> Float[Array, "*batch n l"]:
    """exp(-|x - y|^2 / (2 sigma^2)). With sigma = 1 it is exp(-|x|^2/2) exp(x.y) exp(-|y|^2/2)."""
    xp = array_namespace(x, y)
    return xp.exp(-0.5 * squared_distance(x, y) / sigma**2)


def polynomial_kernel(
    x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"], degree: int = 2, constant: float = 0.0
) -> Float[Array, "*batch n l"]:
    """(x.y + constant)^degree."""
    xp = array_namespace(x, y)
    return (x @ xp.matrix_transpose(y) + constant) ** degree


def polynomial_features(
    x: Float[Array, "*batch n d"], degree: int = 2, constant: float = 0.0
) -> Float[Array, "*batch n features"]:
    """The explicit features of ``polynomial_kernel``: phi(x).phi(y) = (x.y + constant)^degree exactly.

    One feature per monomial x^a, |a| <= degree, with coefficient sqrt(degree! / (a! (degree - |a|)!) c^(degree - |a|)):
    for degree 2 in the plane, [x1^2, sqrt2 x1 x2, x2^2]. Constant 0 keeps the monomials of full degree only.
    """
    xp = array_namespace(x)
    parts = []
    for order in range(degree + 1) if constant else (degree,):
        indices, squares = _monomials(x.shape[-1], order)
        factor = math.comb(degree, order) * constant ** (degree - order)
        column = xp.ones_like(x[..., :1]) * xp.asarray(np.sqrt(factor * squares), dtype=x.dtype, device=device(x))
        for i in range(order):
            column = column * xp.take(x, xp.asarray(indices[:, i], device=device(x)), axis=-1)
        parts.append(column)
    return xp.concat(parts, axis=-1)


@functools.cache
def _monomials(dim: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The monomials of degree ``order``: for each its coordinates, repeated ones repeated, and order! / a!."""
    indices = list(itertools.combinations_with_replacement(range(dim), order))
    counts = [math.prod(math.factorial(index.count(i)) for i in set(index)) for index in indices]
    shaped = np.array(indices, dtype=np.int64).reshape(len(indices), order)
    return shaped, math.factorial(order) / np.array(counts, dtype=float)


def squared_distance(x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"]) -> Float[Array, "*batch n l"]:
    """|x - y|^2 of every pair."""
    return _squared_norm_of_sum(x, -y)


def squared_sum(x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"]) -> Float[Array, "*batch n l"]:
    """|x + y|^2 of every pair: what the variance of positive features depends on."""
    return _squared_norm_of_sum(x, y)


def _squared_norm_of_sum(x: Array, y: Array) -> Array:
    xp = array_namespace(x, y)
    total = 2.0 * (half_squared_norm(x) + xp.matrix_transpose(half_squared_norm(y)) + x @ xp.matrix_transpose(y))
    return xp.maximum(total, xp.zeros_like(total))  # rounding may leave -1e-17 where x = -y
