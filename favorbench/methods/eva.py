"""The keys around each query exactly, all others as one pseudo-key for each chunk."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import chunk_multiplications, rows_between
from favorbench.errors import InputError
from favorbench.maps.base import claim
from favorbench.methods.base import Shape, Sizes
from favorbench.methods.clusters import segment_sums
from favorbench.methods.segments import Segments
from favorbench.methods.summaries import (
    GrowingSummary,
    KeySummary,
    KeySummaryMethod,
    Queries,
    Tokens,
    logits_of,
)
from favorbench.numerics.arrays import (
    Array,
    Features,
    array_namespace,
    half_squared_norm,
    log_softmax,
    masked,
    softmax,
    to_backend_of,
)
from favorbench.numerics.logsum import Accumulator, Sums, joined, weighted_sums
from favorbench.numerics.streams import Streams
from favorbench.parameters import between


class Chunks(NamedTuple):
    """A pseudo-key for each chunk.

    Mean key (..., c, d), value (..., c, d_v), log weight (..., c); and the log share of each key in the value of its
    chunk, (..., l), if requested.
    """

    key: Array
    value: Array
    log_weight: Array
    log_share: Array = None

    @staticmethod
    def of(tokens: Tokens, edges: np.ndarray, w: Array, counted: bool) -> "Chunks":
        """Make the pseudo-keys of the chunks between the edges; w_c: (..., c, d).

        value_c = sum_j softmax_j(w_c.y_j - |y_j|^2 / 2) v_j over its keys. counted: their number is the weight, else 1.
        """
        xp, parts = array_namespace(tokens.key), Segments.between(edges)
        logits = (parts.rows(tokens.key) @ w[..., None])[..., 0] - parts.rows(half_squared_norm(tokens.key))[..., 0]
        logits = masked(logits, to_backend_of(~parts.padding, logits))
        log_shares = log_softmax(logits)
        value = (softmax(logits)[..., None].mT @ parts.rows(tokens.value))[..., 0, :]
        lengths = np.diff(edges).astype(np.float64) if counted else np.ones(len(edges) - 1)
        log_weight = xp.log(xp.astype(to_backend_of(lengths, logits), logits.dtype, copy=False)) + 0.0 * value[..., 0]
        return Chunks(
            chunk_means(tokens.key, edges), value, log_weight, parts.in_sequence(log_shares[..., None])[..., 0]
        )

    def part(self, chunks: slice) -> "Chunks":
        """Adjacent chunks, without the shares."""
        return Chunks(self.key[..., chunks, :], self.value[..., chunks, :], self.log_weight[..., chunks])

    @staticmethod
    def concatenated(parts: "list[Chunks]") -> "Chunks":
        """Chunks one after the other, with the shares if all have them."""
        xp = array_namespace(parts[0].key)
        arrays = zip(zip(*parts, strict=True), (-2, -2, -1, -1), strict=True)
        return Chunks(*(None if any(a is None for a in some) else xp.concat(some, axis=axis) for some, axis in arrays))


def chunk_edges(length: int, count: int) -> np.ndarray:
    """The edges of ``count`` chunks, of at least one key each."""
    count = min(count, length)
    return np.arange(count + 1) * length // count


def chunk_means(rows: Array, edges: np.ndarray) -> Array:
    """The mean of the rows (..., l, c) between the edges: (..., chunks, c)."""
    xp, parts = array_namespace(rows), Segments.between(edges)
    weights = to_backend_of(np.where(parts.padding, 0.0, 1.0 / np.diff(edges)[:, None]), rows)
    return xp.sum(parts.rows(rows) * xp.astype(weights, rows.dtype, copy=False)[..., None], axis=-2)


@dataclass(frozen=True)
class Eva(KeySummaryMethod):
    """A share ``window`` of m are keys attended exactly, those of the query's block; the rest are chunks of keys.

    out(x) = softmax over the keys j of the block, logits x.y_j, and the chunks c, logits x.c + log n_c and values
    sum_j softmax_j(log xi(y_j, w_c)) v_j, with c the mean of the n_c keys and log xi(y, w) = w.y - |y|^2 / 2. Keys in
    the block do not count in the value and weight of their chunk.
    w_c ~ N(x_c + c, I), x_c the mean of the chunk's queries (of all, where it has none). form: "drawn"; "mean",
    w_c = x_c + c, which on heads of MiniLM has a fifth less error in the median and more on the worst; "released", as
    the authors' code computes it untrained: w_c = (x_c + c) / 2, no log n_c, and keys of the block counted twice.

    Causal: the past in chunks, whose proposals depend on keys only, and at least the last ``window`` keys.
    Zheng et al. 2023 ("EVA"), arXiv 2302.04542; the code is HKUNLP/efficient-attention.
    """

    name = "eva"
    reference = "Zheng et al. 2023, arXiv 2302.04542"
    description = "the keys of the query's block exactly, all others as one pseudo-key for each chunk"
    random = claim(lambda self: self.form == "drawn")
    causal_safe = claim(lambda self: self.form != "released")
    convex = True
    permutation_invariant = False
    needs_positions = True
    needs_all_rows = True
    window: float = between(0, 1, default=0.5)
    form: Literal["drawn", "mean", "released"] = "drawn"

    def block(self, size: int) -> int:
        """Keys in a block; the rest of the size are chunks, at least one."""
        return min(round(self.window * size), size - 1)

    def recent(self, size: int) -> int:
        return self.block(size)

    def multiplications(self, shape: Shape, size: int) -> float:
        """d + d_v for each query with each chunk, and with the keys of its block.

        Each block leaves out the chunks in it, and takes the values of those that it cuts anew: d_v for each key that
        is left. Causal: chunks of the past only, half of them on average, and the exact part.
        """
        block, made = self.block(size), float(shape.l * shape.per_pair)
        chunks = size - block
        if shape.causal:
            pairs = shape.n * chunks / 2
            return made + pairs * shape.per_pair + chunk_multiplications(shape, shape.d, block)
        if block == 0 or self.form == "released":
            return made + float(shape.n * size * shape.per_pair)
        edges, starts = chunk_edges(shape.l, chunks), np.arange(0, shape.l, block)
        stops = np.minimum(starts + block, shape.l)
        first, last = np.searchsorted(edges, starts, side="right") - 1, np.searchsorted(edges, stops, side="left")
        before, after = starts - edges[first], edges[last] - stops
        seen = len(edges) - 1 - (last - first) + (before > 0) + (after > 0) + stops - starts
        work = np.sum((stops - starts) * seen) * shape.per_pair + np.sum(before + after) * shape.d_v
        return made + float(work) * shape.n / shape.l

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return float(shape.n * (size - self.block(size) + shape.l) * shape.d)

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        if queries.positions is None:
            raise InputError(f"{self.name}: there is no block where queries and keys are not the same tokens")
        for size, generators in zip(sizes, streams.for_sizes(len(sizes)), strict=True):
            edges = self._edges(tokens, size)
            proposal = self._noise(tokens, edges, generators) + chunk_means(tokens.key, edges)
            proposal = proposal + self._query_means(queries, edges)
            half = 0.5 if self.form == "released" else 1.0
            chunks = Chunks.of(tokens, edges, half * proposal, self.form != "released")
            yield EvaSummary(tokens, chunks, edges, self.block(size), self.form == "released")

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        if self.form == "released":
            raise InputError(f"method {self.name!r} as released uses the whole sequence and cannot be causal")
        edges = self._edges(tokens, size)
        return StreamingChunks(tokens, edges, self._noise(tokens, edges, streams)).extend

    def _edges(self, tokens: Tokens, size: int) -> np.ndarray:
        return chunk_edges(tokens.length, size - self.block(size))

    def _noise(self, tokens: Tokens, edges: np.ndarray, streams: Streams) -> Array:
        """The random part of w_c: (..., chunks, d)."""
        xp, shape = array_namespace(tokens.key), (len(edges) - 1, tokens.key.shape[-1])
        if self.form != "drawn":
            return xp.zeros(shape, dtype=tokens.key.dtype, device=device(tokens.key))
        return streams.draw(lambda rng: rng.standard_normal(shape), tokens.key)

    def _query_means(self, queries: Queries, edges: np.ndarray) -> Array:
        """The mean of the queries of each chunk, of all where it has none: (..., chunks, d)."""
        xp, count = array_namespace(queries.query), len(edges) - 1
        inside, places = queries.part(rows_between(queries.positions, edges[0], edges[-1]))[:2]
        place = np.searchsorted(edges, places, side="right") - 1
        number = np.bincount(place, minlength=count)[:, None]
        labels = to_backend_of(np.tile(place, (*inside.shape[:-2], 1)), inside)
        sums = segment_sums(inside, labels, count)
        means = sums / xp.astype(to_backend_of(np.maximum(number, 1), inside), inside.dtype, copy=False)
        every = xp.mean(queries.query, axis=-2, keepdims=True)
        return xp.where(to_backend_of(number > 0, inside), means, every)


class StreamingChunks:
    """The chunks of the first keys: the complete ones, and the first part of the last one."""

    def __init__(self, tokens: Tokens, edges: np.ndarray, noise: Array) -> None:
        self.tokens, self.edges, self.noise, self.complete = tokens, edges, noise, 0
        self.chunks: list[Chunks] = []

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        done = int(np.searchsorted(self.edges, stop, side="right")) - 1
        if done > self.complete:
            self.chunks.append(self._between(self.complete, self.edges[self.complete : done + 1]))
            self.complete = done
        edges, last = self.edges[: done + 1], []
        if stop > self.edges[done]:
            edges = np.append(edges, stop)
            last = [self._between(done, edges[-2:])]
        self.chunks = [Chunks.concatenated(self.chunks)] if self.chunks else []
        chunks = Chunks.concatenated([*self.chunks, *last])
        return EvaSummary(self.tokens.part(slice(0, stop)), chunks, edges, 0, False)

    def _between(self, first: int, edges: np.ndarray) -> Chunks:
        """The chunks between these edges, from number ``first`` on."""
        part, inner_edges = self.tokens.part(slice(int(edges[0]), int(edges[-1]))), edges - edges[0]
        proposal = chunk_means(part.key, inner_edges) + self.noise[..., first : first + len(inner_edges) - 1, :]
        return Chunks.of(part, inner_edges, proposal, True)


@dataclass(frozen=True)
class EvaSummary:
    """K(x, y_j) = exp(x.y_j) in the query's block of w keys, elsewhere the share of y_j in n_c exp(x.c).

    twice: the latter in the block too. w is 0 where there are no blocks.
    """

    tokens: Tokens
    chunks: Chunks
    edges: np.ndarray
    w: int
    twice: bool

    def sums(self, queries: Queries) -> Sums:
        if self.w == 0:
            return self._sums(queries.query, self.chunks, slice(0, 0))
        parts, block_of = [], queries.positions // self.w
        for block in np.unique(block_of):
            first = max(0, int(block) * self.w)
            keys = slice(first, max(first, min(int(block + 1) * self.w, self.tokens.length)))
            chunks = self.chunks if self.twice or keys.start == keys.stop else self._outside(keys)
            parts.append(self._sums(queries.query[..., rows_between(block_of, block, block + 1), :], chunks, keys))
        return joined(parts)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, places = array_namespace(queries.query), np.arange(keys.start, keys.stop)
        chunk_of = np.searchsorted(self.edges, places, side="right") - 1
        far = queries.query @ self.chunks.key.mT + self.chunks.log_weight[..., None, :]
        far = xp.take(far, to_backend_of(chunk_of, queries.query), axis=-1) + self.chunks.log_share[..., None, keys]
        if self.w == 0:
            return Features(None, far)
        exact = logits_of(queries, self.tokens, keys)
        same = places // self.w == queries.positions[:, None] // self.w
        near = xp.logaddexp(exact, far) if self.twice else exact
        return Features(None, xp.where(to_backend_of(same, far), near, far))

    def _sums(self, query: Array, chunks: Chunks, keys: slice) -> Accumulator:
        """Sums over the chunks and some exact keys: one softmax, so that neither underflows next to the other."""
        xp, near = array_namespace(query), self.tokens.part(keys)
        logits, value = query @ chunks.key.mT + chunks.log_weight[..., None, :], chunks.value
        if near.length:
            logits = xp.concat([logits, query @ near.key.mT], axis=-1)
            value = xp.concat([value, near.value], axis=-2)
        return weighted_sums(logits, value)

    def _outside(self, keys: slice) -> Chunks:
        """The chunks without these keys: chunks among them are dropped, and those at the ends are cut."""
        edges = self.edges
        first = int(np.searchsorted(edges, keys.start, side="right")) - 1
        last = int(np.searchsorted(edges, keys.stop, side="left"))  # the first chunk that begins after them
        ends = ((first, slice(int(edges[first]), keys.start)), (last - 1, slice(keys.stop, int(edges[last]))))
        rests = [self._rest(chunk, rest) for chunk, rest in ends if rest.start < rest.stop]
        return Chunks.concatenated([self.chunks.part(slice(0, first)), *rests, self.chunks.part(slice(last, None))])

    def _rest(self, chunk: int, keys: slice) -> Chunks:
        """A chunk as if it had only these of its keys, with the shares they have."""
        xp, log_share = array_namespace(self.tokens.key), self.chunks.log_share[..., keys]
        whole, peak = self.chunks.part(slice(chunk, chunk + 1)), xp.max(log_share, axis=-1, keepdims=True)
        value = softmax(log_share)[..., None, :] @ self.tokens.value[..., keys, :]
        total = xp.sum(xp.exp(log_share - peak), axis=-1, keepdims=True)
        return Chunks(whole.key, value, whole.log_weight + peak + xp.log(total))
