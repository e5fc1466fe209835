"""Multipole attention: near keys exactly, far keys as centroids."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import CHUNK
from favorbench.errors import ScenarioError
from favorbench.maps.base import claim
from favorbench.methods.base import Shape, Sizes
from favorbench.methods.clusters import (
    Cells,
    CellSummary,
    Centred,
    Points,
    StreamingCells,
    cells_of,
    segment_sums,
)
from favorbench.methods.shared_cells import STEPS, VOTERS, SegmentCells, SharedCells, near_cells, spread_of, tree_cells
from favorbench.methods.summaries import GrowingSummary, KeySummary, Queries, Tokens
from favorbench.numerics.arrays import (
    TILE_ELEMENTS,
    Array,
    Features,
    array_namespace,
    masked,
    on_host,
    to_backend_of,
)
from favorbench.numerics.logsum import Accumulator, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import between, whole

Block = tuple[slice, slice]  # the queries that a cell is near to, and the keys of the cell

SEGMENT = 512  # keys of a causal segment


@dataclass(frozen=True)
class Multipole(Centred):
    """A share ``exact`` of m are keys attended exactly, in the cells nearest to the query; the rest are centroids.

    The near cells of a query have the least accurate centroids: the largest exp(x.c) |y - c|^2 (mean over the cell).
    Cells are taken until they hold about exact * m keys, and at most twice as many as hold that many on average. One
    softmax is over their keys and the centroids of all other cells. Hooper et al. 2025 ("Multipole Attention"),
    arXiv 2506.13059, take the cells with the largest x.c instead: these may hold a single key, which its centroid
    represents exactly.

    block: this many adjacent queries share their near cells, chosen by the sum of exp(x.c) |y - c|^2 over every fourth
    query of the block, each term divided by the normaliser sum_c n_c exp(x.c) of its query. In causal attention the
    normaliser includes exp(x.y) of all exact keys that its query sees: the choice depends on keys up to the end of the
    block. All products are then dense.
    cells: "random", keys join the nearest of random keys; "tree", cells of equal size: keys are split at the median
    along their first principal direction, repeatedly.
    segment: in causal attention with shared or tree cells, every complete segment of this many keys has separate
    cells; all later keys are exact.
    """

    name = "multipole"
    reference = "Hooper et al. 2025, arXiv 2506.13059"
    description = "the nearest clusters' keys exactly, the centroids of all others"
    exact_at_full_size = False
    with_variance = True
    exact: float = between(0, 1, default=0.5)
    points: Points = "random"
    lloyd: int = whole(0, 100, default=0)
    block: int = whole(1, 1 << 20, default=1)
    cells: Literal["random", "tree"] = "random"
    segment: int = whole(1, 1 << 20, default=SEGMENT)

    #: Each query has separate near cells, and causal cells are recomputed when the sequence doubles.
    single = claim(lambda self: self.block == 1 and self.cells == "random")
    random = claim(lambda self: self.cells == "random")
    arrays = claim(lambda self: "single" if self.single else "batched")
    needs_all_rows = claim(lambda self: self.block > 1)
    group = claim(lambda self: self.block)
    chunk = claim(lambda self: self.block * -(-CHUNK // self.block))
    causal_block = claim(lambda self: self.block)
    shared_block = claim(lambda self: self.block if self.block == self.chunk else 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells == "tree" and (self.points != "random" or self.lloyd):
            raise ScenarioError("points and lloyd are ignored with cells='tree'; leave them out")
        if self.single and self.segment != SEGMENT:
            raise ScenarioError(f"segment is ignored without block or cells='tree'; leave out segment={self.segment}")

    def exact_keys(self, size: int) -> int:
        """Keys attended exactly, about (cells are whole); the rest of the size are centroids, at least one."""
        return min(round(self.exact * size), size - 1)

    def centres(self, size: int) -> int:
        return size - self.exact_keys(size)

    def summarised(self, past: int) -> int:
        return past if self.single else past // self.segment * self.segment

    def clustered(
        self, tokens: Tokens, counts: Sizes, streams: Streams, order: Array = None
    ) -> Iterator[tuple[Cells, Array]]:
        if self.cells == "random":
            yield from super().clustered(tokens, counts, streams, order)
            return
        for count in counts:
            labels = tree_cells(tokens.key, count)
            yield cells_of(*tokens, labels, count, with_variance=True), labels

    def summary(
        self, tokens: Tokens, cells: Cells, labels: Array, size: int, queries: Queries | None = None
    ) -> KeySummary:
        if self.single:
            return MultipoleSummary.of(tokens, cells, labels, self.exact_keys(size))
        return SharedCells.of(tokens, cells, labels, self.exact_keys(size), self.block, queries)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        kind = StreamingCells if self.single else SegmentCells
        return kind(self, tokens, size, streams).extend

    def multiplications(self, shape: Shape, size: int) -> float:
        """Add d + d_v for each exact key. A level of a tree is 2 STEPS products of its keys with a vector.

        In blocks every VOTERS-th query takes part in the choice, and the centroids of near cells are left out. Blocks
        are padded to the one with most exact keys, which adds half a cell where cells differ in size. Without a mask
        the last block is padded to the length of the others.
        """
        if self.single:
            return super().multiplications(shape, size) + float(shape.n * self.exact_keys(size) * shape.per_pair)
        count, exact, pair = self.centres(size), float(self.exact_keys(size)), shape.d + shape.d_v
        made = max(1, round(count * self.segment / shape.l)) if shape.causal else count
        if self.cells == "random":
            exact += min(exact, shape.l / (2 * count))
        else:  # whole cells, one more where half of it is below the number of exact keys
            cell = (self.segment if shape.causal else shape.l) / made
            exact = cell * math.ceil(max(exact / cell - 0.5, 0))
        clustered, rows = shape.l, min(self.block, shape.n)
        queries = shape.n if shape.causal else -(-shape.n // rows) * rows
        if not shape.causal:
            far, keys = count, count + exact * (1 - count / shape.l)
            pairs = queries * keys * pair
        else:
            starts = np.arange(0, shape.l, self.chunk)
            past = starts // self.segment * self.segment
            far = past * count / shape.l
            clustered = shape.l if past[-1] else 0  # without a complete segment before a chunk there are no cells
            keys = (
                far + np.minimum(past, exact) * (1 - count / shape.l) + np.minimum(starts + self.chunk, shape.l) - past
            )
            pairs = float(np.sum(keys * np.minimum(self.chunk, shape.l - starts))) * pair * shape.n / shape.l
        voters = queries * -(-rows // VOTERS) / rows
        passes = (1 + self.lloyd) * made if self.cells == "random" else 2 * STEPS * math.ceil(math.log2(made))
        return clustered * shape.d * passes + pairs + float(np.mean(far)) * voters * shape.d

    def width(self, size: int, length: int) -> int:
        """Large tiles: the overhead of a cell, or of a block, is paid once for each tile. A block copies its keys."""
        return max(1, size // 8, 0 if self.single else 16 * size // self.block)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """In blocks, add the logits and the keys of a tile; causal, those of a segment, and its exact part.

        Where each query has separate near cells: a copy of it and two sums for each of these. A cell has l / centres
        keys, in causal attention as few as one.
        """
        if self.single:
            near, rows = self.exact_keys(size), min(CHUNK, shape.n)
            if not shape.causal:
                near = -(-near * self.centres(size) // shape.l)
                rows = min(shape.n, TILE_ELEMENTS // self.width(size, shape.l))
            return super().matrix_entries(shape, size) + rows * near * (shape.per_pair + shape.d_v)
        rows, exact = max(self.block, TILE_ELEMENTS // self.width(size, shape.l)), 0
        if shape.causal:
            rows, exact = max(self.chunk, self.segment), 3 * self.chunk * min(self.chunk + self.segment, shape.l)
        entries = min(rows, shape.n) * size * (3 + 2 * shape.per_pair // self.block) + exact
        return super().matrix_entries(shape, size) + entries

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Block by block, the logits of a block's centroids are computed a second time for the queries that vote."""
        voters = 0 if self.single else -(-shape.n // self.block) * -(-self.block // VOTERS)
        centroids = super().pair_multiplications(shape._replace(n=shape.n + voters), self.centres(size))
        return centroids + float(shape.n * shape.l * shape.d)


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
        """Build the summary from the cells and the cell of each key."""
        member_of = on_host(labels)
        order = np.argsort(member_of, kind="stable")
        starts = np.searchsorted(member_of[order], np.arange(cells.key.shape[-2] + 1))
        xp = array_namespace(tokens.key)
        index = xp.asarray(order, device=device(tokens.key))
        sorted_tokens = Tokens(xp.take(tokens.key, index, axis=-2), with_ones(xp.take(tokens.value, index, axis=-2)))
        return MultipoleSummary(tokens, sorted_tokens, CellSummary(cells, labels), exact, starts)

    def sums(self, queries: Queries) -> Accumulator:
        xp = array_namespace(queries.query)
        logits = self._logits(queries.query)
        near = self._near(logits)
        weights = masked(logits + self.far.cells.log_count, ~near)
        peak = xp.max(xp.where(near, logits, weights), axis=-1, keepdims=True)
        total = xp.exp(weights - peak) @ with_ones(self.far.cells.value)
        return self._with_near(queries.query, near, peak, total)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        logits, labels = self._logits(queries.query), self.far.labels[keys]
        exact = queries.query @ self.tokens.key[keys, :].mT
        near = xp.take(self._near(logits), labels, axis=-1)
        return Features(None, xp.where(near, exact, xp.take(logits, labels, axis=-1)))

    def _logits(self, query: Array) -> Array:
        """x.c for each query and cell, (n, m); -inf for cells without keys, which have no mean."""
        return masked(self.far.log_kernel(query), to_backend_of(np.diff(self.starts) > 0, query))

    def _near(self, logits: Array) -> Array:
        """Flags of the cells that are near to each query, (n, m), from x.c."""
        xp = array_namespace(logits)
        scores = logits + xp.log(spread_of(self.far.cells))
        return near_cells(scores, to_backend_of(np.diff(self.starts), logits), int(self.starts[-1]), self.exact)

    def _with_near(self, query: Array, near: Array, peak: Array, total: Array) -> Accumulator:
        """Add the keys of near cells to the sums: for each cell, a product of its queries with its keys."""
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
        """The peak of each query, raised to the largest logit of its near keys."""
        xp, raised = array_namespace(pair_queries), peak + 0.0
        for part, keys in blocks:
            where, logits = rows[part], pair_queries[part, :] @ self.sorted.key[keys, :].mT
            raised[where, :] = xp.maximum(raised[where, :], xp.max(logits, axis=-1, keepdims=True))
        return raised
