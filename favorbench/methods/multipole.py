"""Near keys exactly, far keys as centroids."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from favorbench.methods.base import Shape, line_style
from favorbench.methods.clusters import Cells, CellSummary, Centred, Points, segment_sums
from favorbench.methods.summaries import KeySummary, Queries, Tokens
from favorbench.numerics.arrays import Array, Features, array_namespace, largest, masked, on_host, scattered
from favorbench.numerics.logsum import Accumulator, with_ones
from favorbench.parameters import between, whole

Block = tuple[slice, slice]  # the queries to which one cell is near, and the keys in it


@dataclass(frozen=True)
class Multipole(Centred):
    """A share ``exact`` of m are keys attended exactly, in the cells nearest to the query; the rest are centroids.

    The near cells of a query are those whose centroid is the least accurate, with the largest exp(x.c) |y - c|^2 (mean
    over the cell), until they hold about exact m keys, and at most twice as many cells as hold that many on average.
    One softmax is over their keys and the centroids of all other cells. Hooper et al. 2025 ("Multipole Attention"),
    arXiv 2506.13059, take the cells with the largest x.c instead: these may hold a single key, which its centroid
    represents exactly.
    """

    name = "multipole"
    reference = "Hooper et al. 2025, arXiv 2506.13059"
    description = "the nearest clusters' keys exactly, the centroids of all others"
    arrays = "single"
    exact_at_full_size = False
    with_variance = True
    look = line_style("C3", "-", "o", 4)
    exact: float = between(0, 1, default=0.5)
    points: Points = "random"
    lloyd: int = whole(0, 100, default=0)

    def exact_keys(self, size: int) -> int:
        """Keys attended exactly, at most; the rest of the size are centroids, at least one."""
        return min(round(self.exact * size), size - 1)

    def centres(self, size: int) -> int:
        return size - self.exact_keys(size)

    def summary(self, tokens: Tokens, cells: Cells, labels: Array, size: int) -> KeySummary:
        return MultipoleSummary.of(tokens, cells, labels, self.exact_keys(size))

    def multiplications(self, shape: Shape, size: int) -> float:
        """Add d + d_v for each exact key."""
        return super().multiplications(shape, size) + float(shape.n * self.exact_keys(size) * (shape.d + shape.d_v))

    def width(self, size: int, length: int) -> int:
        """Large tiles: the overhead of a cell is paid once for each tile."""
        return max(1, size // 8)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return super().pair_multiplications(shape, self.centres(size)) + float(shape.n * shape.l * shape.d)


@dataclass(frozen=True)
class MultipoleSummary:
    """K(x, y_j) = exp(x.y_j) for the keys of the cells that are near to x, exp(x.c) for others, with c their mean.

    sorted: the keys cell by cell, with [value, 1] of each; starts: the index of the first key of each cell among them,
    and the number of keys at the end.
    """

    tokens: Tokens
    sorted: Tokens
    far: CellSummary
    exact: int
    starts: np.ndarray

    @staticmethod
    def of(tokens: Tokens, cells: Cells, labels: Array, exact: int) -> "MultipoleSummary":
        """From the cells and the cell of each key."""
        member_of = on_host(labels)
        order = np.argsort(member_of, kind="stable")
        starts = np.searchsorted(member_of[order], np.arange(cells.key.shape[-2] + 1))
        xp = array_namespace(tokens.key)
        index = xp.asarray(order, device=device(tokens.key))
        sorted_tokens = Tokens(xp.take(tokens.key, index, axis=-2), with_ones(xp.take(tokens.value, index, axis=-2)))
        return MultipoleSummary(tokens, sorted_tokens, CellSummary(cells, labels), exact, starts)

    def sums(self, queries: Queries) -> Accumulator:
        xp = array_namespace(queries.query)
        logits = self.far.log_kernel(queries.query)
        near = self._near(logits)
        weights = masked(logits + self.far.cells.log_count, ~near)
        peak = xp.max(xp.where(near, logits, weights), axis=-1, keepdims=True)
        total = xp.exp(weights - peak) @ with_ones(self.far.cells.value)
        return self._with_near(queries.query, near, peak, total)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        logits, labels = self.far.log_kernel(queries.query), self.far.labels[keys]
        exact = queries.query @ self.tokens.key[keys, :].mT
        near = xp.take(self._near(logits), labels, axis=-1)
        return Features(None, xp.where(near, exact, xp.take(logits, labels, axis=-1)))

    def _near(self, logits: Array) -> Array:
        """Flags of the cells that are near to each query, (n, m), from x.c."""
        xp = array_namespace(logits)
        counts, keys = np.diff(self.starts), int(self.starts[-1])
        most = min(len(counts), 2 * -(-self.exact * len(counts) // keys) + 1)
        spread = xp.sum(self.far.cells.variance, axis=-1)
        spread = xp.where(spread > 0, spread, xp.full_like(spread, xp.finfo(spread.dtype).smallest_normal))
        cells = largest(logits + xp.log(spread), most)
        sizes = xp.asarray(counts, device=device(logits))
        sizes = xp.reshape(xp.take(sizes, xp.reshape(cells, (-1,))), cells.shape)
        keys_up_to = xp.cumulative_sum(sizes, axis=-1)
        return scattered(2 * keys_up_to - sizes < 2 * self.exact, cells, len(counts))

    def _with_near(self, query: Array, near: Array, peak: Array, total: Array) -> Accumulator:
        """The sums with the keys of the near cells: for each cell a product of its queries with its keys."""
        xp = array_namespace(query)
        cells, rows = xp.nonzero(near.mT)
        ends = np.searchsorted(on_host(cells), np.arange(near.shape[-1] + 1)).tolist()
        pair_queries, starts = xp.take(query, rows, axis=0), self.starts.tolist()
        blocks = [
            (slice(*of_query), slice(*of_key))
            for of_query, of_key in zip(itertools.pairwise(ends), itertools.pairwise(starts), strict=True)
            if of_query[0] < of_query[1] and of_key[0] < of_key[1]
        ]
        if not blocks:
            return Accumulator(peak, total)
        sums_of_pairs = self._products(pair_queries, xp.take(peak, rows, axis=0), blocks)
        if not bool(xp.all(sums_of_pairs[:, -1] < math.sqrt(xp.finfo(sums_of_pairs.dtype).max))):
            higher = self._raised(pair_queries, rows, peak, blocks)
            peak, total = higher, total * xp.exp(peak - higher)
            sums_of_pairs = self._products(pair_queries, xp.take(peak, rows, axis=0), blocks)
        return Accumulator(peak, total + segment_sums(sums_of_pairs, rows, near.shape[0]))

    def _products(self, pair_queries: Array, peak: Array, blocks: Sequence[Block]) -> Array:
        """Sum of exp(x.y - peak) [value, 1] for each query with the keys of its cell; infinite beyond the range of exp.

        There are thousands of blocks of a few queries each, so the body of this loop takes most of the time.
        """
        xp, values = array_namespace(pair_queries), self.sorted.value
        sums_of_pairs, columns = xp.zeros_like(pair_queries[:, :1] * values[:1, :]), self.sorted.key.mT
        with np.errstate(over="ignore", invalid="ignore"):
            for rows, keys in blocks:
                sums_of_pairs[rows, :] = (
                    xp.exp(pair_queries[rows, :] @ columns[:, keys] - peak[rows, :]) @ values[keys, :]
                )
        return sums_of_pairs

    def _raised(self, pair_queries: Array, rows: Array, peak: Array, blocks: Sequence[Block]) -> Array:
        """The peak of each query, or the largest logit of the keys near to it where that is above."""
        xp, raised = array_namespace(pair_queries), peak + 0.0
        for part, keys in blocks:
            where, logits = rows[part], pair_queries[part, :] @ self.sorted.key[keys, :].mT
            raised[where, :] = xp.maximum(raised[where, :], xp.max(logits, axis=-1, keepdims=True))
        return raised
