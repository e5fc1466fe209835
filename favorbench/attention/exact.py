"""Softmax attention itself, the reference of everything: in float64, in log space and in tiles."""

import numpy as np

from favorbench.attention.causal import causal_exact_attention
from favorbench.attention.estimator import check_shapes
from favorbench.numerics.arrays import Array, Features, array_namespace
from favorbench.numerics.logsum import Accumulator, accumulate, quotient, tiles, with_ones
from favorbench.numerics.shapes import Float

KEY_TILE = 2048  # keys in one tile of exact attention


def exact_attention(
    query: Float[Array, "*batch n d"],
    key: Float[Array, "*batch l d"],
    value: Float[Array, "*batch l d_v"],
    causal: bool = False,
    positions: np.ndarray | None = None,
) -> Float[Array, "*batch n d_v"]:
    """Softmax attention, softmax(query key^T / sqrt(d)) value, in float64 and in tiles: never an n x l array.

    causal: a query sees the keys up to its own position only; positions: which these are, increasing, where the queries
    are some of them. Raises InputError if the shapes do not fit. Vaswani et al. 2017, eq. (1).
    """
    check_shapes(query, key, value, causal and positions is None)
    xp = array_namespace(query, key, value)
    query, key, value = (xp.astype(a, xp.float64, copy=False) for a in (query, key, value))
    return causal_exact_attention(query, key, value, positions) if causal else tiled_attention(query, key, value)


def tiled_attention(query: Array, key: Array, value: Array) -> Array:
    """Softmax attention in the precision of its arguments, keys in tiles with a running maximum: no n x l array."""
    xp = array_namespace(query)
    scaled, length = query * query.shape[-1] ** -0.5, key.shape[-2]
    states: dict[int, Accumulator] = {}
    for start in range(0, length, KEY_TILE):
        keys = slice(start, min(start + KEY_TILE, length))
        columns, right = xp.matrix_transpose(key[..., keys, :]), with_ones(value[..., keys, :])
        for i, rows in enumerate(tiles(query.shape[-2], min(length, KEY_TILE), query)):
            states[i] = accumulate(states.get(i), Features(None, scaled[..., rows, :] @ columns), right)
    return xp.concat([quotient(state)[0] for state in states.values()], axis=-2)
