"""Near keys exactly, far keys as centroids."""

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
from favorbench.methods.base import Shape, Sizes, line_style
from favorbench.methods.clusters import (
    Cells,
    CellSummary,
    Centred,
    Points,
    StreamingCells,
    cells_of,
    segment_sums,
)
from favorbench.methods.segments import Segments
from favorbench.methods.summaries import KeySummary, Queries, StreamingSummary, Tokens
from favorbench.numerics.arrays import (
    Array,
    Features,
    array_namespace,
    largest,
    masked,
    on_host,
    rows_at,
    scattered,
    to_backend_of,
)
from favorbench.numerics.logsum import Accumulator, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import between, whole

Block = tuple[slice, slice]  # the queries to which one cell is near, and the keys in it

SEGMENT = 512  # keys of a causal segment
STEPS = 3  # power iterations for a principal direction, from the coordinate that varies most


@dataclass(frozen=True)
class Multipole(Centred):
    """A share ``exact`` of m are keys attended exactly, in the cells nearest to the query; the rest are centroids.

    The near cells of a query are those whose centroid is the least accurate, with the largest exp(x.c) |y - c|^2 (mean
    over the cell), until they hold about exact m keys, and at most twice as many cells as hold that many on average.
    One softmax is over their keys and the centroids of all other cells. Hooper et al. 2025 ("Multipole Attention"),
    arXiv 2506.13059, take the cells with the largest x.c instead: these may hold a single key, which its centroid
    represents exactly.

    block: this many adjacent queries share their near cells, chosen by the sum of exp(x.c) |y - c|^2 over the block,
    each term divided by the normaliser sum_c n_c exp(x.c) of its query. All products are then dense.
    cells: "random", keys join the nearest of random keys; "tree", cells of equal size: keys are split at the median
    along their first principal direction, again and again.
    segment: in causal attention with shared or tree cells, every segment of this many keys has its own cells once it is
    complete; all later keys are exact.
    """

    name = "multipole"
    reference = "Hooper et al. 2025, arXiv 2506.13059"
    description = "the nearest clusters' keys exactly, the centroids of all others"
    exact_at_full_size = False
    with_variance = True
    look = line_style("C3", "-", "o", 4)
    exact: float = between(0, 1, default=0.5)
    points: Points = "random"
    lloyd: int = whole(0, 100, default=0)
    block: int = whole(1, 1 << 20, default=1)
    cells: Literal["random", "tree"] = "random"
    segment: int = whole(1, 1 << 20, default=SEGMENT)

    #: Each query has its own near cells, and causal cells are made anew as the sequence doubles.
    single = claim(lambda self: self.block == 1 and self.cells == "random")
    random = claim(lambda self: self.cells == "random")
    arrays = claim(lambda self: "single" if self.single else "batched")
    needs_all_rows = claim(lambda self: self.block > 1)
    chunk = claim(lambda self: self.block * -(-CHUNK // self.block))
    shared_block = claim(lambda self: self.block if self.block == self.chunk else 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells == "tree" and (self.points != "random" or self.lloyd):
            raise ScenarioError("points and lloyd are ignored with cells='tree'; leave them out")
        if self.single and self.segment != SEGMENT:
            raise ScenarioError(f"segment is ignored without block or cells='tree'; leave out segment={self.segment}")

    def exact_keys(self, size: int) -> int:
        """Keys attended exactly, at most; the rest of the size are centroids, at least one."""
        return min(round(self.exact * size), size - 1)

    def centres(self, size: int) -> int:
        return size - self.exact_keys(size)

    def summarised(self, past: int) -> int:
        return past if self.single else past // self.segment * self.segment

    def clustered(self, tokens: Tokens, counts: Sizes, streams: Streams) -> Iterator[tuple[Cells, Array]]:
        if self.cells == "random":
            yield from super().clustered(tokens, counts, streams)
            return
        for count in counts:
            labels = tree_cells(tokens.key, count)
            yield cells_of(*tokens, labels, count, with_variance=True), labels

    def summary(
        self, tokens: Tokens, cells: Cells, labels: Array, size: int, queries: Queries | None = None
    ) -> KeySummary:
        if self.single:
            return MultipoleSummary.of(tokens, cells, labels, self.exact_keys(size))
        return BlockSummary(tokens, cells, labels, counts_of(labels, cells), self.exact_keys(size), self.block, queries)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> StreamingSummary:
        kind = StreamingCells if self.single else SegmentCells
        return kind(self, tokens, size, streams)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Add d + d_v for each exact key. A level of a tree is 2 STEPS products of its keys with a vector."""
        if self.single:
            return super().multiplications(shape, size) + float(shape.n * self.exact_keys(size) * (shape.d + shape.d_v))
        count, pair = self.centres(size), shape.d + shape.d_v
        if not shape.causal:
            made, pairs = count, float(shape.n * size * pair)
        else:
            starts = np.arange(0, shape.l, self.chunk)
            past = starts // self.segment * self.segment
            made, far = max(1.0, count * self.segment / shape.l), past * count / shape.l
            keys = far + np.minimum(past, self.exact_keys(size)) + np.minimum(starts + self.chunk, shape.l) - past
            pairs = float(np.sum(keys * np.minimum(self.chunk, shape.l - starts))) * pair * shape.n / shape.l
        passes = (1 + self.lloyd) * made if self.cells == "random" else 2 * STEPS * math.ceil(math.log2(made))
        return shape.l * shape.d * passes + pairs

    def width(self, size: int, length: int) -> int:
        """Large tiles: the overhead of a cell is paid once for each tile. Blocks are tiles themselves."""
        return max(1, size // 8) if self.single else 0

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Block by block, the logits of a block's centroids are computed twice."""
        whole_blocks = 0 if self.single else -(-shape.n // self.block) * self.block
        centroids = super().pair_multiplications(shape._replace(n=shape.n + whole_blocks), self.centres(size))
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
        scores = logits + xp.log(spread_of(self.far.cells))
        return near_cells(scores, to_backend_of(np.diff(self.starts), logits), int(self.starts[-1]), self.exact)

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


def spread_of(cells: Cells) -> Array:
    """The mean squared distance of the keys of each cell to their mean, (..., m), above 0."""
    xp, spread = array_namespace(cells.key), array_namespace(cells.key).sum(cells.variance, axis=-1)
    return xp.where(spread > 0, spread, xp.full_like(spread, xp.finfo(spread.dtype).smallest_normal))


def near_cells(scores: Array, counts: Array, keys: int, exact: int) -> Array:
    """Flags of the cells with the largest scores (..., m), until they hold about ``exact`` of all keys.

    counts: of the keys in each cell, (..., m).
    """
    xp, count = array_namespace(scores), scores.shape[-1]
    cells = largest(scores, min(count, 2 * -(-exact * count // keys) + 1))
    sizes = xp.take_along_axis(xp.broadcast_to(counts, scores.shape), cells, axis=-1)
    keys_up_to = xp.cumulative_sum(sizes, axis=-1)
    return scattered(2 * keys_up_to - sizes < 2 * exact, cells, count)


def tree_cells(key: Array, count: int) -> Array:
    """The cell of each key (..., l): ``count`` cells of l / count keys, or one more.

    All keys are one node at first. A node of several cells is split where half of its cells end, along the first
    principal direction of its keys, until each has one cell. All nodes of a level are split together.
    """
    xp, (*leading, length, _) = array_namespace(key), key.shape
    order = xp.broadcast_to(xp.arange(length, device=device(key)), (*leading, length))
    cuts = np.array([0, count])  # of the nodes, in cells
    while np.max(np.diff(cuts)) > 1:
        nodes = Segments.between(cuts * length // count)
        padding = to_backend_of(nodes.padding, key)
        along = _along_principal_direction(nodes.rows(rows_at(key, order)), nodes.padding)
        rank = xp.argsort(xp.where(padding, xp.full_like(along, xp.inf), along), axis=-1)
        places = nodes.in_sequence((rank + to_backend_of(nodes.places[:, :1], key))[..., None])[..., 0]
        order = xp.take_along_axis(order, places, axis=-1)
        cuts = np.union1d(cuts, (cuts[1:] + cuts[:-1]) // 2)
    cells = to_backend_of(np.repeat(np.arange(count), np.diff(np.arange(count + 1) * length // count)), key)
    return xp.take_along_axis(xp.broadcast_to(cells, order.shape), xp.argsort(order, axis=-1), axis=-1)


def _along_principal_direction(keys: Array, padding: Array) -> Array:
    """Where the keys of each node (..., s, d) lie along their first principal direction: (..., s).

    Products with a vector are made entry by entry: a matrix product with thousands of small nodes is four times slower.
    """
    xp, counts = array_namespace(keys), to_backend_of(np.sum(~padding, axis=-1)[:, None, None], keys)
    if np.any(padding):
        keys = xp.where(to_backend_of(padding[..., None], keys), 0.0, keys)
    keys = keys - xp.sum(keys, axis=-2, keepdims=True) / xp.astype(counts, keys.dtype)
    if np.any(padding):
        keys = xp.where(to_backend_of(padding[..., None], keys), 0.0, keys)
    widest = xp.argmax(xp.sum(keys * keys, axis=-2, keepdims=True), axis=-1, keepdims=True)
    along = xp.take_along_axis(keys, xp.broadcast_to(widest, (*keys.shape[:-1], 1)), axis=-1)
    for _ in range(STEPS):
        direction = xp.sum(keys * along, axis=-2, keepdims=True)
        longest = xp.max(xp.abs(direction), axis=-1, keepdims=True)
        direction = direction / xp.where(longest > 0, longest, xp.ones_like(longest))
        along = xp.sum(keys * direction, axis=-1, keepdims=True)
    return along[..., 0]


@dataclass(frozen=True)
class BlockSummary:
    """As ``MultipoleSummary``, where all queries of a block have the same near cells.

    counts: of the keys in each cell. queries: all of them; None where the sums are only of whole blocks.
    """

    tokens: Tokens
    cells: Cells
    labels: Array
    counts: Array
    exact: int
    block: int
    queries: Queries | None

    def sums(self, queries: Queries) -> Accumulator:
        parts = [self._sums(part) for part in queries.blocks(self.block)]
        xp = array_namespace(queries.query)
        return Accumulator(*(xp.concat(arrays, axis=-2) for arrays in zip(*parts, strict=True)))

    def _sums(self, part: Queries) -> Accumulator:
        """The sums of queries of one block."""
        xp = array_namespace(part.query)
        weights, peak = self._weights(part)
        near = self._near(part, weights)
        far = xp.where(near[..., None], 0.0, with_ones(self.cells.value))
        index, seen = self._near_keys(near)
        if not index.shape[-1]:
            return Accumulator(peak, weights @ far)
        logits = part.query @ rows_at(self.tokens.key, index).mT
        if seen is not None:
            logits += xp.where(seen, 0.0, -xp.inf)[..., None, :]
        top = xp.maximum(peak, xp.max(logits, axis=-1, keepdims=True))
        logits -= top
        exact = xp.exp(logits)
        exact = xp.concat([exact @ rows_at(self.tokens.value, index), xp.sum(exact, axis=-1, keepdims=True)], axis=-1)
        return Accumulator(top, exact + (weights @ far) * xp.exp(peak - top))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, parts, labels = array_namespace(queries.query), [], self.labels[..., None, keys]
        for part in queries.blocks(self.block):
            every = xp.broadcast_to(labels, (*part.query.shape[:-1], labels.shape[-1]))
            estimate = xp.take_along_axis(part.query @ self.cells.key.mT, every, axis=-1)
            exact = part.query @ self.tokens.key[..., keys, :].mT
            near = xp.take_along_axis(self._near(part)[..., None, :], labels, axis=-1)
            parts.append(xp.where(near, exact, estimate))
        return Features(None, xp.concat(parts, axis=-2))

    def _weights(self, part: Queries) -> tuple[Array, Array]:
        """exp(x.c - peak) times the number of keys, for each query and cell, and the peak of each query."""
        xp = array_namespace(part.query)
        logits = part.query @ self.cells.key.mT + self.cells.log_count[..., None, :]
        peak = xp.max(logits, axis=-1, keepdims=True)
        return xp.exp(logits - peak), peak

    def _near(self, part: Queries, weights: Array = None) -> Array:
        """Flags of the cells (..., m) that are near to the block of these queries. weights: theirs, if known."""
        if self.queries is not None:
            start = part.first // self.block * self.block
            whole = self.queries.part(slice(start, start + self.block))
            if weights is None or whole.length > part.length:
                weights, _ = self._weights(whole)
        xp = array_namespace(weights)
        shares = (1.0 / xp.sum(weights, axis=-1, keepdims=True)).mT @ weights
        scores = shares[..., 0, :] * spread_of(self.cells) / xp.where(self.counts > 0, self.counts, 1)
        return near_cells(xp.astype(scores, weights.dtype, copy=False), self.counts, self.labels.shape[-1], self.exact)

    def _near_keys(self, near: Array) -> tuple[Array, Array]:
        """The keys of near cells, (..., k), and where these are keys: not where others have more. None: everywhere."""
        xp = array_namespace(near)
        flags = xp.take_along_axis(near, self.labels, axis=-1)
        counts = xp.sum(xp.astype(flags, xp.int64), axis=-1, keepdims=True)
        most, keys = int(xp.max(counts)), xp.nonzero(flags)[-1]
        if int(xp.min(counts)) == most:
            return xp.reshape(keys, (*flags.shape[:-1], most)), None
        slots = xp.arange(most, device=device(keys))
        before = xp.reshape(xp.cumulative_sum(xp.reshape(counts, (-1,))), counts.shape) - counts
        places = xp.clip(before + slots, max=keys.shape[0] - 1)
        return xp.reshape(xp.take(keys, xp.reshape(places, (-1,))), places.shape), slots < counts


class SegmentCells:
    """Cells of the complete segments of the first keys, for each segment its own."""

    def __init__(self, method: Multipole, tokens: Tokens, size: int, streams: Streams) -> None:
        xp = array_namespace(tokens.key)
        self.tokens = Tokens(*(xp.concat([part], axis=-2) for part in tokens))  # adjacent in memory: rows are taken
        self.method, self.size, self.streams, self.known = method, size, streams, 0
        self.parts: list[tuple[Array, ...]] = []

    def extend(self, stop: int) -> BlockSummary:
        """The summary of the first ``stop`` keys."""
        method, length = self.method, self.tokens.length
        edges = [self.known, *range(stop, self.known, -method.segment)[::-1]]
        for start, end in itertools.pairwise(edges):
            part = self.tokens.part(slice(start, end))
            count = max(1, round(method.centres(self.size) * (end - start) / length))
            ((cells, labels),) = method.clustered(part, (count,), self.streams)
            before = sum(known.shape[-1] for *_, known in self.parts)
            self.parts.append((*cells, labels + before, counts_of(labels, cells)))
        self.known = stop
        xp = array_namespace(self.tokens.key)
        joined = zip(*self.parts, strict=True)
        key, value, variance = (xp.concat(next(joined), axis=-2) for _ in range(3))
        log_count, labels, counts = (xp.concat(arrays, axis=-1) for arrays in joined)
        exact = method.exact_keys(self.size)
        cells = Cells(key, value, variance, log_count)
        block = 1 << 62 if method.shared_block else method.block  # a chunk is a block, whatever rows it has
        return BlockSummary(self.tokens, cells, labels, counts, exact, block, None)


def counts_of(labels: Array, cells: Cells) -> Array:
    """The number of keys in each cell: (..., m)."""
    xp = array_namespace(labels)
    ones = xp.ones((*labels.shape, 1), dtype=xp.float64, device=device(labels))
    return xp.astype(segment_sums(ones, labels, cells.key.shape[-2])[..., 0], xp.int64)
