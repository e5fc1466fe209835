"""Exact softmax attention, the reference for all errors: in float64, in log space and in tiles."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from favorbench.attention.causal import causal_softmax
from favorbench.attention.problem import AttentionProblem, check_shapes
from favorbench.errors import InputError
from favorbench.formats import shown
from favorbench.numerics.arrays import Array, Features, Float, array_namespace, half_squared_norm, tile_elements
from favorbench.numerics.logsum import Accumulator, accumulate, near_zero, quotient, tiles, with_ones


def exact_attention(
    query: Float[Array, "*batch n d"],
    key: Float[Array, "*batch l d"],
    value: Float[Array, "*batch l d_v"],
    causal: bool = False,
    positions: ArrayLike | None = None,
) -> Float[Array, "*batch n d_v"]:
    """Return softmax(query key^T / sqrt(d)) value, in float64 and in tiles, without an n x l array.

    Parameters
    ----------
    query : array (..., n, d)
        Queries, of NumPy or torch.
    key : array (..., l, d)
        Keys.
    value : array (..., l, d_v)
        Values.
    causal : bool
        A query sees only the keys up to its own position.
    positions : array (n,), optional
        The positions of the queries among the keys, from 0, increasing, where they are a sample of all queries.

    Returns
    -------
    array (..., n, d_v)

    Raises
    ------
    InputError
        If the shapes or the positions do not fit.

    References
    ----------
    Vaswani et al. 2017, eq. (1).

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 2, 64, 8))  # two heads
    >>> fb.exact_attention(query, key, value).shape
    (2, 64, 8)
    """
    check_shapes(query, key, value, causal if positions is None else False)
    xp = array_namespace(query, key, value)
    query, key, value = (xp.astype(a, xp.float64, copy=False) for a in (query, key, value))
    n = query.shape[-2]
    positions = np.arange(n) if positions is None else _checked_positions(positions, n, key.shape[-2])
    return softmax_attention(AttentionProblem(query * query.shape[-1] ** -0.5, key, value, positions, causal))


def _checked_positions(given: ArrayLike, n: int, length: int) -> np.ndarray:
    """Raise InputError unless they are n increasing positions among the keys."""
    positions = np.asarray(given)
    fits = positions.shape == (n,) and positions.dtype.kind in "iu" and positions[0] >= 0 and positions[-1] < length
    if not (fits and bool(np.all(positions[:-1] < positions[1:]))):
        raise InputError(
            f"positions {shown(given)} given; allowed: {n} increasing whole numbers from 0 to {length - 1}"
        )
    return positions


def softmax_attention(problem: AttentionProblem) -> Array:
    """Softmax attention in the precision of its arguments, in tiles with a running maximum: no n x l array.

    No maximum is taken where the norms bound all logits (Cauchy-Schwarz) within the range of exp.
    """
    if problem.causal:
        return causal_softmax(problem)
    query, key, value = problem[:3]
    xp, (n, length) = array_namespace(query), (query.shape[-2], key.shape[-2])
    columns = key.mT
    with np.errstate(over="ignore", invalid="ignore"):  # where the squares overflow there is no bound
        squares = [xp.max(half_squared_norm(array)) for array in (query, key)]
        bounded = near_zero(2.0 * xp.sqrt(squares[0]) * xp.sqrt(squares[1]))
    # Square tiles, as far as the queries go: products of narrow ones spend their time on rearranging the other factor.
    most = tile_elements(query) // max(1, min(n, math.isqrt(tile_elements(query))))
    width = -(-length // -(-length // most))
    keys = [slice(start, min(start + width, length)) for start in range(0, length, width)]
    attend = _no_maximum if bounded else _running_maximum
    states = (attend(query[..., rows, :], columns, value, keys) for rows in tiles(n, width, query))
    return xp.concat([quotient(state)[0] for state in states], axis=-2)


def _running_maximum(query: Array, columns: Array, value: Array, tiles_of_keys: Sequence[slice]) -> Accumulator:
    """exp(query columns) [value, 1] for a tile of queries, whatever the logits."""
    state = None
    for keys in tiles_of_keys:
        state = accumulate(state, Features(None, query @ columns[..., keys]), with_ones(value[..., keys, :]))
    assert state is not None
    return state


def _no_maximum(query: Array, columns: Array, value: Array, tiles_of_keys: Sequence[slice]) -> Accumulator:
    """The same for logits in the range of exp; 1 apart from value, as 65 columns cost more than 64 and 1."""
    xp, total, normaliser = array_namespace(query), 0.0, 0.0
    for keys in tiles_of_keys:
        weights, values = xp.exp(query @ columns[..., keys]), value[..., keys, :]
        total = total + weights @ values
        normaliser = normaliser + weights @ xp.ones_like(values[..., :1])
    return Accumulator(xp.zeros_like(normaliser), xp.concat([total, normaliser], axis=-1))
