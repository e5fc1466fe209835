"""Near cells that the queries of a block share, so that all products are dense; cells of equal size and of segments."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import device

from favorbench.methods.clusters import Cells, segment_sums
from favorbench.methods.segments import Groups, Segments, zeroed
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.arrays import (
    Array,
    Features,
    array_namespace,
    largest,
    masked,
    rows_at,
    scattered,
    to_backend_of,
)
from favorbench.numerics.logsum import Sums, attention_sums
from favorbench.numerics.streams import Streams

VOTERS = 4  # every fourth query of a block votes for near cells
STEPS = 3  # power iterations for a principal direction, from the coordinate that varies most


def spread_of(cells: Cells) -> Array:
    """The mean squared distance of the keys of each cell to their mean, (..., m), above 0."""
    xp, spread = array_namespace(cells.key), array_namespace(cells.key).sum(cells.variance, axis=-1)
    return xp.where(spread > 0, spread, xp.finfo(spread.dtype).smallest_normal)


def _log(a: Array) -> Array:
    """The logarithm; that of the smallest number for 0."""
    xp = array_namespace(a)
    return xp.log(xp.where(a > 0, a, xp.finfo(a.dtype).smallest_normal))


def near_cells(scores: Array, counts: Array, keys: int, exact: int) -> Array:
    """Flags of the cells with the largest scores (..., m), until they hold about ``exact`` keys.

    counts: the number of keys in each cell, (..., m).
    """
    xp, count = array_namespace(scores), scores.shape[-1]
    cells = largest(scores, min(count, 2 * -(-exact * count // keys) + 1))
    sizes = xp.take_along_axis(xp.broadcast_to(counts, scores.shape), cells, axis=-1)
    keys_up_to = xp.cumulative_sum(sizes, axis=-1)
    return scattered(2 * keys_up_to - sizes < 2 * exact, cells, count)


def tree_cells(key: Array, count: int) -> Array:
    """The cell of each key (..., l), for ``count`` cells of nearly equal size.

    The first node has all keys. A node is split into halves, in cells, along the first principal direction of its keys,
    until each node is one cell. All nodes of a level are split together.
    """
    xp, (*leading, length, _) = array_namespace(key), key.shape
    order = xp.broadcast_to(xp.arange(length, device=device(key)), (*leading, length))
    cuts = np.array([0, count])  # the bounds of the nodes, in cells
    while np.max(np.diff(cuts)) > 1:
        nodes = Segments.between(cuts * length // count)
        padding = to_backend_of(nodes.padding, key)
        along = _along_principal_direction(nodes.rows(rows_at(key, order)), nodes.padding)
        rank = xp.argsort(xp.where(padding, xp.inf, along), axis=-1)
        places = nodes.in_sequence((rank + to_backend_of(nodes.places[:, :1], key))[..., None])[..., 0]
        order = xp.take_along_axis(order, places, axis=-1)
        cuts = np.union1d(cuts, (cuts[1:] + cuts[:-1]) // 2)
    cells = to_backend_of(np.repeat(np.arange(count), np.diff(np.arange(count + 1) * length // count)), key)
    return xp.take_along_axis(xp.broadcast_to(cells, order.shape), xp.argsort(order, axis=-1), axis=-1)


def _along_principal_direction(keys: Array, padding: np.ndarray) -> Array:
    """Coordinates (..., s) of the keys of each node (..., s, d) along their first principal direction."""
    xp, counts = array_namespace(keys), to_backend_of(np.sum(~padding, axis=-1)[:, None, None], keys)
    keep = ~padding[..., None]
    keys = zeroed(keys, keep)
    keys = zeroed(keys - xp.sum(keys, axis=-2, keepdims=True) / xp.astype(counts, keys.dtype), keep)
    widest = xp.argmax(xp.sum(keys * keys, axis=-2, keepdims=True), axis=-1, keepdims=True)
    along = xp.take_along_axis(keys, xp.broadcast_to(widest, (*keys.shape[:-1], 1)), axis=-1)
    for _ in range(STEPS):
        direction = along.mT @ keys
        longest = xp.max(xp.abs(direction), axis=-1, keepdims=True)
        along = keys @ (direction / xp.where(longest > 0, longest, 1.0)).mT
    return along[..., 0]


@dataclass(frozen=True)
class SharedCells:
    """K(x, y_j) = exp(x.y_j) for the keys of cells that are near to the block of x, exp(x.c) for others, c their mean.

    table: keys and values side by side, sorted by cell, and from row ``first_centroid`` on the means of the cells.
    counts: the number of keys in each cell, (..., m). queries: all queries of the problem; None if sums are for whole
    blocks only. by_position: a block is all queries at ``block`` positions.
    """

    tokens: Tokens
    cells: Cells
    labels: Array
    table: Array
    first_centroid: int
    counts: Array
    exact: int
    block: int
    queries: Queries | None = None
    by_position: bool = False

    @staticmethod
    def of(
        tokens: Tokens, cells: Cells, labels: Array, exact: int, block: int, queries: Queries | None = None
    ) -> "SharedCells":
        """Build the summary from the cells and the cell of each key."""
        xp = array_namespace(labels)
        order = xp.argsort(labels, axis=-1, stable=True)
        ones = xp.ones((*labels.shape, 1), dtype=xp.float64, device=device(labels))
        counts = xp.astype(segment_sums(ones, labels, cells.key.shape[-2])[..., 0], xp.int64)
        members = rows_at(xp.concat(list(tokens), axis=-1), order)
        table = xp.concat([members, xp.concat(list(cells[:2]), axis=-1)], axis=-2)
        return SharedCells(tokens, cells, labels, table, tokens.length, counts, exact, block, queries)

    def sums(self, queries: Queries) -> Sums:
        """One attention over the keys of near cells and the centroids of all others."""
        groups, rows = self._groups(queries)
        index, bias = self._entries(self._near(groups))
        both = rows_at(self.table, index)
        key, value = both[..., : queries.query.shape[-1]], both[..., queries.query.shape[-1] :]
        sums = groups.in_sequence(attention_sums(groups.query, key, value, bias[..., None, :]))
        return type(sums)(*(part[..., rows, :] for part in sums))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, (groups, rows) = array_namespace(queries.query), self._groups(queries)
        labels = xp.broadcast_to(self.labels[..., None, keys], (*queries.query.shape[:-1], keys.stop - keys.start))
        estimate = xp.take_along_axis(queries.query @ self.cells.key.mT, labels, axis=-1)
        near = self._near(groups)[..., None, :]
        near = xp.broadcast_to(near, (*groups.query.shape[:-1], self.counts.shape[-1]))
        near = xp.take_along_axis(groups.segments.in_sequence(near)[..., rows, :], labels, axis=-1)
        return Features(None, xp.where(near, queries.query @ self.tokens.key[..., keys, :].mT, estimate))

    def _groups(self, queries: Queries) -> tuple[Groups, slice]:
        """The blocks of these queries (whole blocks if all queries are known), and the rows of the queries in them."""
        first, last = queries.first, queries.first + queries.length
        edges = np.arange(first // self.block * self.block, last + self.block, self.block)
        if self.by_position:
            edges = first + np.append(np.unique(queries.positions // self.block, return_index=True)[1], queries.length)
        elif self.queries is None:
            edges = np.unique(np.clip(edges, first, last))
        else:
            edges[-1] = min(edges[-1], self.queries.length)
            queries = self.queries.part(slice(edges[0], edges[-1]))
        segments = Segments.between(edges - edges[0])
        rows = slice(first - int(edges[0]), last - int(edges[0]))
        return Groups(segments.rows(queries.query), segments, queries), rows

    def _near(self, groups: Groups) -> Array:
        """Flags of the cells that are near to each block, (..., blocks, m)."""
        xp, counts, voters = array_namespace(groups.query), self.counts[..., None, :], slice(None, None, VOTERS)
        query = groups.query[..., voters, :]
        logits = xp.reshape(query, (*query.shape[:-3], -1, query.shape[-1])) @ self.cells.key.mT
        logits += self.cells.log_count[..., None, :]
        logits = xp.reshape(logits, (*query.shape[:-1], -1))
        peak, log_seen = xp.max(logits, axis=-1, keepdims=True), groups.queries.log_seen
        if log_seen is not None:
            log_seen = groups.segments.rows(log_seen)[..., voters, :]
            peak = xp.maximum(peak, log_seen)
        logits -= peak
        weights = xp.exp(logits)
        normaliser = xp.sum(weights, axis=-1, keepdims=True)
        if log_seen is not None:
            normaliser += xp.exp(log_seen - peak)
        present = ~groups.segments.padding[:, voters, None]
        shares = (zeroed(1.0 / normaliser, present).mT @ weights)[..., 0, :]
        scores = _log(shares)
        if xp.any((shares == 0) & (counts > 0)):  # underflow: sums relative to their largest term
            logits = masked(logits - xp.log(normaliser), to_backend_of(present, logits))
            most = xp.max(logits, axis=-2, keepdims=True)
            most = xp.where(xp.isinf(most), 0.0, most)
            scores = (_log(xp.sum(xp.exp(logits - most), axis=-2, keepdims=True)) + most)[..., 0, :]
        keys = xp.astype(xp.where(counts > 0, counts, 1), weights.dtype)
        scores = scores + xp.log(spread_of(self.cells)[..., None, :] / keys)
        return near_cells(scores, counts, self.labels.shape[-1], self.exact)

    def _entries(self, near: Array) -> tuple[Array, Array]:
        """Rows of ``table`` that each block attends to, (..., blocks, k), and their log weights, -inf for padding."""
        xp, counts = array_namespace(near), self.counts[..., None, :]
        starts = xp.cumulative_sum(counts, axis=-1) - counts
        centroids = self.first_centroid + xp.arange(counts.shape[-1], device=device(near))
        logs = self.cells.log_count[..., None, :]
        logs = xp.where(near, 0.0, logs)
        starts, counts = xp.where(near, starts, centroids), xp.where(near, counts, 1)
        per_block = xp.sum(counts, axis=-1, keepdims=True)
        filled = xp.arange(int(xp.max(per_block)), device=device(near)) < per_block
        starts, counts, logs = (xp.reshape(part, (-1,)) for part in (starts, counts, logs))
        before = xp.cumulative_sum(counts, axis=-1) - counts
        index = xp.zeros(filled.shape, dtype=starts.dtype, device=device(near))
        index[filled] = xp.repeat(starts - before, counts) + xp.arange(int(xp.sum(counts)), device=device(near))
        bias = xp.full(filled.shape, -xp.inf, dtype=logs.dtype, device=device(near))
        bias[filled] = xp.repeat(logs, counts)
        return index, bias


class SegmentCells:
    """Cells of the complete segments of the first keys. Each segment is clustered separately."""

    def __init__(self, method: Any, tokens: Tokens, size: int, streams: Streams) -> None:
        self.method, self.tokens, self.size, self.streams = method, tokens, size, streams
        self.whole: SharedCells | None = None  # of all complete segments
        self.count: dict[int, int] = {}  # the number of cells up to the end of each segment

    def extend(self, stop: int) -> SharedCells:
        """The summary of the first ``stop`` keys."""
        whole = self.whole = self.whole or self._of_segments(stop % self.method.segment)
        key, value, variance, log_count = whole.cells
        cut = slice(0, self.count[stop])
        cells = Cells(key[..., cut, :], value[..., cut, :], variance[..., cut, :], log_count[..., cut])
        return replace(whole, cells=cells, labels=whole.labels[..., :stop], counts=whole.counts[..., cut])

    def _of_segments(self, first: int) -> SharedCells:
        """The cells of all complete segments. The first segment has ``first`` keys, or is as long as the others."""
        method, (*leading, length, _) = self.method, self.tokens.key.shape
        xp, before, parts = array_namespace(self.tokens.key), 0, []
        for start, keys, segments in ((0, first, 1), (first, method.segment, (length - first) // method.segment)):
            if keys * segments == 0:
                continue
            part = (
                xp.reshape(a[..., start : start + keys * segments, :], (-1, keys, a.shape[-1])) for a in self.tokens
            )
            generators = [generator for generator in self.streams.generators for _ in range(segments)]
            streams = Streams(generators, lambda hosts: to_backend_of(np.stack(hosts), self.tokens.key))
            count = max(1, round(method.centres(self.size) * keys / length))
            ((cells, labels),) = method.clustered(Tokens(*part), (count,), streams)
            labels = xp.reshape(labels, (*leading, segments, keys))
            labels = labels + to_backend_of(before + count * np.arange(segments)[:, None], labels)
            joined = [xp.reshape(a, (*leading, segments * count, -1)) for a in cells]
            parts.append((*joined, xp.reshape(labels, (*leading, -1, 1))))
            self.count |= {start + keys * (i + 1): before + count * (i + 1) for i in range(segments)}
            before += segments * count
        key, value, variance, log_count, labels = (xp.concat(arrays, axis=-2) for arrays in zip(*parts, strict=True))
        cells, labels = Cells(key, value, variance, log_count[..., 0]), labels[..., 0]
        tokens = self.tokens.part(slice(0, labels.shape[-1]))
        summary = SharedCells.of(tokens, cells, labels, method.exact_keys(self.size), method.block)
        return replace(summary, by_position=bool(method.shared_block))
