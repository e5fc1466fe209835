"""Attention matrices as products of two block-diagonal ones: MonarchAttention."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape
from favorbench.methods.segments import segment_bounds
from favorbench.numerics.arrays import Array, array_namespace, beside
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole


@dataclass(frozen=True)
class Monarch(Method):
    """Weights L[j, r, c] R[c, j, i] of query j of block r on key i of block c: a Monarch matrix near the softmax.

    Softmax weights A maximise sum A (logits - log A) over matrices with rows that sum to 1. Among Monarch matrices,
    where R[c, j] (over the keys of a block) and L[j, r] (over blocks) sum to 1, ``steps`` times in turn the best R and
    then the best L, so that the objective never falls, from L = I, each block of queries at its own block of keys:
    R[c, j] = softmax_i(a.y_ci) with a the mean of the queries x_rj, weighted by L[j, r, c] over r; and
    L[j, r] = softmax_c(x_rj.z_cj + H_cj), with z the mean of y_ci under R[c, j] and H its entropy. Exact where blocks
    have one key each, so at m = l. m: the number of blocks, at least sqrt(l), as fewer would cost more. More blocks do
    more than more steps at the same cost.
    Yaras et al. 2025 ("MonarchAttention"), arXiv 2505.18698; steps derived from its objective, not from its code.
    """

    name: ClassVar[str] = "monarch"
    reference: ClassVar[str] = "Yaras et al. 2025, arXiv 2505.18698"
    description: ClassVar[str] = "a Monarch matrix of m blocks, fitted to the softmax by its variational form"
    random: ClassVar[bool] = False
    convex: ClassVar[bool] = True
    exact_at_full_size: ClassVar[bool] = True
    permutation_invariant: ClassVar[bool] = False
    needs_all_rows: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {"color": "C4", "linestyle": "-", "marker": "P", "markersize": 5}
    steps: int = 1

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 1, 100)

    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        xp, (query, key, value) = array_namespace(problem.query), problem[:3]
        for size in sizes:
            count = blocks_of(size, key.shape[-2])
            log_left, log_right = monarch_factors(query, key, count, self.steps)
            means = xp.exp(log_right) @ Blocks.of(value, count).rows  # (..., c, j, d_v)
            found = _swapped(xp.exp(log_left) @ _swapped(means))  # (..., r, j, d_v)
            output = Blocks.of(query, count).unfolded(found)
            yield Estimate(size, count + log_right.shape[-1], output, None)

    def multiplications(self, shape: Shape, size: int) -> float:
        """For each query a logit and a sum for each block, and for each key for each place in a block, every step."""
        count = blocks_of(size, shape.l)
        queries, keys = -(-shape.n // count), -(-shape.l // count)
        left, right = count * count * queries, count * queries * keys
        return float(self.steps * 2 * (left + right) * shape.d - left * shape.d + (left + right) * shape.d_v)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Both factors, and their logarithms."""
        count = blocks_of(size, shape.l)
        return 2 * count * -(-shape.n // count) * (count + -(-shape.l // count))


def blocks_of(size: int, length: int) -> int:
    """How many blocks a size comes to."""
    return max(size, math.isqrt(length - 1) + 1)


class Blocks(NamedTuple):
    """Rows in blocks, (..., count, width, d), those of the segments as equal as can be; absent: (count, width), where a
    block is shorter, and has its last row again."""

    rows: Array
    absent: Array
    places: np.ndarray

    @staticmethod
    def of(rows: Array, count: int) -> "Blocks":
        """The rows (..., l, d) in so many blocks."""
        xp, bounds = array_namespace(rows), segment_bounds(rows.shape[-2], count)
        width = int(np.max(np.diff(bounds)))
        index = bounds[:-1, None] + np.arange(width)
        absent = index >= bounds[1:, None]
        index = np.clip(np.minimum(index, bounds[1:, None] - 1), 0, None)
        taken = xp.take(rows, beside(index.reshape(-1), rows), axis=-2)
        shape = (*rows.shape[:-2], count, width, rows.shape[-1])
        return Blocks(xp.reshape(taken, shape), beside(absent, rows), np.flatnonzero(~absent))

    def unfolded(self, blocked: Array) -> Array:
        """What belongs to the rows, (..., count, width, columns), in their order: (..., l, columns)."""
        xp, (*leading, count, width, columns) = array_namespace(blocked), blocked.shape
        flat = xp.reshape(blocked, (*leading, count * width, columns))
        return xp.take(flat, beside(self.places, flat), axis=-2)


def monarch_factors(query: Array, key: Array, count: int, steps: int) -> tuple[Array, Array]:
    """log L (..., j, r, c) and log R (..., c, j, i): see Monarch. r and c: of ``count`` blocks; j and i: places."""
    xp = array_namespace(query)
    (queries, no_query, _), (keys, no_key, _) = Blocks.of(query, count), Blocks.of(key, count)
    by_place = _swapped(queries)  # (..., j, r, d)
    minus = xp.asarray(-xp.inf, dtype=query.dtype, device=device(query))
    log_left, log_right = None, None
    for _ in range(steps):
        if log_left is None:
            mean_query = queries  # of L = I; a place that a block lacks has the last query of the block
        else:
            weights = xp.exp(_log_softmax(xp.where(xp.matrix_transpose(no_query)[..., None], minus, log_left), -2))
            mean_query = _swapped(xp.matrix_transpose(weights) @ by_place)
        logits = mean_query @ xp.matrix_transpose(keys)
        log_right = _log_softmax(xp.where(no_key[:, None, :], minus, logits), -1)
        right = xp.exp(log_right)
        entropy = -xp.sum(right * xp.where(no_key[:, None, :], xp.zeros_like(logits), log_right), axis=-1)
        mean_key = _swapped(right @ keys)  # (..., j, c, d)
        logits = by_place @ xp.matrix_transpose(mean_key) + xp.matrix_transpose(entropy)[..., None, :]
        log_left = _log_softmax(logits, -1)
    assert log_left is not None and log_right is not None
    return log_left, log_right


def _swapped(a: Array) -> Array:
    """(..., a, b, d) as (..., b, a, d)."""
    return array_namespace(a).moveaxis(a, -3, -2)


def _log_softmax(logits: Array, axis: int) -> Array:
    xp = array_namespace(logits)
    shifted = logits - xp.max(logits, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))
