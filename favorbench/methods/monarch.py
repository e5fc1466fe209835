"""Attention matrices as products of two block-diagonal ones: MonarchAttention."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape, Sizes
from favorbench.methods.segments import Segments, segment_bounds
from favorbench.numerics.arrays import Array, array_namespace, log_softmax, masked, to_backend_of
from favorbench.numerics.streams import Streams
from favorbench.parameters import whole


@dataclass(frozen=True)
class Monarch(Method):
    """Weights L[j, r, c] R[c, j, i] of query j of block r on key i of block c: a Monarch matrix near the softmax.

    Softmax weights A maximise sum A (logits - log A) over matrices with rows that sum to 1. Among Monarch matrices,
    R[c, j] (over the keys of a block) and L[j, r] (over blocks) sum to 1. ``steps`` times the method takes the best R
    and then the best L, so that the objective never decreases, from L = I, each block of queries at its own block of
    keys: R[c, j] = softmax_i(a.y_ci) with a the mean of the queries x_rj, weighted by L[j, r, c] over r; and
    L[j, r] = softmax_c(x_rj.z_cj + H_cj), with z the mean of y_ci under R[c, j] and H its entropy. Exact where blocks
    have one key each, so at m = l. m: the number of blocks, at least sqrt(l), as fewer would cost more. More blocks
    help more than more steps at the same cost.
    Yaras et al. 2025 ("MonarchAttention"), arXiv 2505.18698; steps derived from its objective, not from its code.
    """

    name = "monarch"
    reference = "Yaras et al. 2025, arXiv 2505.18698"
    description = "a Monarch matrix of m blocks, fitted to the softmax by its variational form"
    random = False
    convex = True
    exact_at_full_size = True
    permutation_invariant = False
    needs_all_rows = True
    steps: int = whole(1, 100, default=1)

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        xp, (query, key, value) = array_namespace(problem.query), problem[:3]
        for size in sizes:
            count = blocks_of(size, key.shape[-2])
            queries, keys = (Segments.between(segment_bounds(a.shape[-2], count)) for a in (query, key))
            log_left, log_right = monarch_factors(query, key, queries, keys, self.steps)
            means = xp.exp(log_right) @ keys.rows(value)  # (..., c, j, d_v)
            output = queries.in_sequence(_swapped(xp.exp(log_left) @ _swapped(means)))
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
    """The number of blocks for a size."""
    return max(size, math.isqrt(length - 1) + 1)


def monarch_factors(
    query: Array, key: Array, query_blocks: Segments, key_blocks: Segments, steps: int
) -> tuple[Array, Array]:
    """log L (..., j, r, c) and log R (..., c, j, i): see Monarch. r and c: blocks; j and i: places in them."""
    xp, queries, keys = array_namespace(query), query_blocks.rows(query), key_blocks.rows(key)
    by_place = _swapped(queries)  # (..., j, r, d)
    has_query, has_key = (to_backend_of(~blocks.padding, query) for blocks in (query_blocks, key_blocks))
    has_key = has_key[:, None, :]
    mean_query = queries  # of L = I; the padding of a block is its last query
    log_left = log_right = None
    for _ in range(steps):
        if log_left is not None:
            weights = xp.exp(log_softmax(masked(log_left, has_query.mT[..., None]), -2))
            mean_query = _swapped(weights.mT @ by_place)
        log_right = log_softmax(masked(mean_query @ keys.mT, has_key), -1)
        right = xp.exp(log_right)
        entropy = -xp.sum(right * xp.where(has_key, log_right, 0.0), axis=-1)
        mean_key = _swapped(right @ keys)  # (..., j, c, d)
        log_left = log_softmax(by_place @ mean_key.mT + entropy.mT[..., None, :], -1)
    assert log_left is not None and log_right is not None
    return log_left, log_right


def _swapped(a: Array) -> Array:
    """(..., a, b, d) as (..., b, a, d)."""
    return array_namespace(a).moveaxis(a, -3, -2)
