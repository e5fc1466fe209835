"""The kernels that feature maps aim at, exactly, and the explicit features of the polynomial one."""

import functools
import itertools
import math
from collections import Counter

import numpy as np

from favorbench.numerics.arrays import Array, Float, array_namespace, as_like, half_squared_norm, to_column_major


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
    orders = range(degree + 1) if constant else (degree,)
    products = _monomials(x, degree)
    coefficients = np.concatenate(
        [_inverse_factorials(x.shape[-1], order) / math.factorial(degree - order) * constant ** (degree - order)
         for order in orders]
    )  # fmt: skip
    roots = as_like(np.sqrt(math.factorial(degree) * coefficients), x)
    return xp.concat([products[order] for order in orders], axis=-1) * roots


def monomial_features(x: Float[Array, "*batch n d"], degrees: int) -> list[Float[Array, "*batch n _"]]:
    """``polynomial_features(x, n)`` for each n below ``degrees``: every monomial is computed once, from a lower one."""
    products = _monomials(x, degrees - 1)[:degrees]
    counts = (_inverse_factorials(x.shape[-1], n) * math.factorial(n) for n in range(degrees))
    return [product * as_like(np.sqrt(count), x) for product, count in zip(products, counts, strict=True)]


def _monomials(x: Array, degree: int) -> list[Array]:
    """For each order up to degree all products of that many coordinates, in the order of their sorted indices.

    x_i times the products of one order less whose indices are all at least i: a suffix of them.
    """
    xp = array_namespace(x)
    rows = xp.matrix_transpose(to_column_major(x))  # every product runs along the tokens, which are many
    monomials, suffixes = [xp.ones_like(rows[..., :1, :])], [0] * x.shape[-1]
    for _ in range(degree):
        blocks = [rows[..., i : i + 1, :] * monomials[-1][..., start:, :] for i, start in enumerate(suffixes)]
        suffixes = list(itertools.accumulate((block.shape[-2] for block in blocks[:-1]), initial=0))
        monomials.append(xp.concat(blocks, axis=-2))
    return [xp.matrix_transpose(products) for products in monomials]


@functools.lru_cache(maxsize=64)
def _inverse_factorials(dim: int, order: int) -> np.ndarray:
    """1 / a! of the monomials x^a of one order, in the order of ``_monomials``."""
    chosen = itertools.combinations_with_replacement(range(dim), order)
    repeats = (math.prod(math.factorial(count) for count in Counter(indices).values()) for indices in chosen)
    return 1.0 / np.fromiter(repeats, dtype=np.float64)


def squared_distance(x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"]) -> Float[Array, "*batch n l"]:
    """|x - y|^2 of every pair."""
    return squared_sum(x, -y)


def squared_sum(x: Float[Array, "*batch n d"], y: Float[Array, "*batch l d"]) -> Float[Array, "*batch n l"]:
    """|x + y|^2 of every pair: what the variance of positive features depends on."""
    xp = array_namespace(x, y)
    total = 2.0 * (half_squared_norm(x) + xp.matrix_transpose(half_squared_norm(y)) + x @ xp.matrix_transpose(y))
    return xp.maximum(total, xp.zeros_like(total))  # rounding may leave -1e-17 where x = -y
