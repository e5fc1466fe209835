"""Keys around each query exactly, all others as one pseudo-key for each chunk."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.errors import InputError, ScenarioError
from favorbench.maps.base import claim
from favorbench.methods.base import Shape
from favorbench.methods.cells import segment_sums
from favorbench.methods.segments import Segments
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens, causal_multiplications
from favorbench.numerics.arrays import Array, Features, array_namespace, beside, half_squared_norm
from favorbench.numerics.logsum import Accumulator, accumulate, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_between
from favorbench.registry import nearest

Form = Literal["drawn", "mean", "released"]


class Chunks(NamedTuple):
    """A pseudo-key for each chunk: mean key (..., c, d), value (..., c, d_v), log weight (..., c); and the log share of
    each key in the value of its chunk, (..., l), where it is asked for."""

    key: Array
    value: Array
    log_weight: Array
    log_share: Array = None

    @staticmethod
    def of(tokens: Tokens, edges: np.ndarray, w: Array, counted: bool) -> "Chunks":
        """Of the chunks between the edges, from w_c, (..., c, d).

        value_c = sum_j softmax_j(w_c.y_j - |y_j|^2 / 2) v_j over its keys. counted: their number is the weight, else 1.
        """
        xp, parts = array_namespace(tokens.key), Segments.between(edges)
        lengths = beside(np.diff(edges).astype(np.float64), tokens.key)
        lengths = xp.astype(lengths, tokens.key.dtype, copy=False)
        logits = (parts.rows(tokens.key) @ w[..., None])[..., 0]
        logits = parts.without_padding(logits - parts.rows(half_squared_norm(tokens.key))[..., 0], -xp.inf)
        peak = xp.max(logits, axis=-1, keepdims=True)
        weights = xp.exp(logits - peak)
        total = xp.sum(weights, axis=-1, keepdims=True)
        value = (xp.matrix_transpose((weights / total)[..., None]) @ parts.rows(tokens.value))[..., 0, :]
        log_share = xp.reshape(logits - peak - xp.log(total), (*logits.shape[:-2], -1))
        inside = beside(np.flatnonzero(~parts.padding), tokens.key)
        log_weight = xp.log(lengths) if counted else 0.0 * lengths
        log_weight = log_weight + 0.0 * total[..., 0]
        key = chunk_means(tokens.key, edges)
        return Chunks(key, value, log_weight, xp.take(log_share, inside, axis=-1))

    def part(self, chunks: slice) -> "Chunks":
        """Some of them, in a row, without the shares."""
        return Chunks(self.key[..., chunks, :], self.value[..., chunks, :], self.log_weight[..., chunks])


def chunk_means(rows: Array, edges: np.ndarray) -> Array:
    """The mean of the rows (..., l, c) between the edges: (..., chunks, c)."""
    xp, parts = array_namespace(rows), Segments.between(edges)
    weights = beside(np.where(parts.padding, 0.0, 1.0 / np.diff(edges)[:, None]), rows)
    return xp.sum(parts.rows(rows) * xp.astype(weights, rows.dtype, copy=False)[..., None], axis=-2)


@dataclass(frozen=True)
class Eva(KeySummaryMethod):
    """Of m, a share ``window`` are keys attended exactly, those of the query's block; the rest are chunks of keys.

    out(x) = softmax over the keys j of the block, logits x.y_j, and the chunks c, logits x.c + log n_c and values
    sum_j softmax_j(log xi(y_j, w_c)) v_j, with c the mean of the n_c keys and log xi(y, w) = w.y - |y|^2 / 2. What of a
    chunk lies in the block is left out of its value and weight.
    w_c ~ N(x_c + c, I), x_c the mean of the chunk's queries (of all, where it has none). form: "drawn"; "mean",
    w_c = x_c + c, which on heads of MiniLM has a fifth less error in the median and more on the worst; "released", as
    the authors' code computes it untrained: w_c = (x_c + c) / 2, no log n_c, and keys of the block counted twice.

    Causal: the past in chunks, of which the proposal knows the keys only, and at least the last ``window`` keys.
    Zheng et al. 2023 ("EVA"), arXiv 2302.04542; the code is HKUNLP/efficient-attention.
    """

    name: ClassVar[str] = "eva"
    reference: ClassVar[str] = "Zheng et al. 2023, arXiv 2302.04542"
    description: ClassVar[str] = "the keys of the query's block exactly, all others as one pseudo-key for each chunk"
    random = claim(lambda self: self.form == "drawn")
    causal_safe = claim(lambda self: self.form != "released")
    convex: ClassVar[bool] = True
    permutation_invariant: ClassVar[bool] = False
    needs_positions: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {"color": "C1", "linestyle": "--", "marker": "X", "markersize": 5}
    window: float = 0.5
    form: Form = "drawn"

    def __post_init__(self) -> None:
        check_between("window", self.window, 0, 1)
        if self.form not in ("drawn", "mean", "released"):
            near = nearest(str(self.form), ("drawn", "mean", "released"))
            raise ScenarioError(f"form must be 'drawn', 'mean' or 'released', got {self.form!r}{near}")

    def block(self, size: int) -> int:
        """Keys in a block; the rest of the size are chunks, at least one."""
        return min(round(self.window * size), size - 1)

    def recent(self, size: int) -> int:
        return self.block(size)

    def width(self, size: int, length: int) -> int:
        return size

    def multiplications(self, shape: Shape, size: int) -> float:
        """d + d_v for each query with each chunk, and with the keys of its block, which is done block by block.

        Causal: chunks of the past only, half of them on average, beside the exact part.
        """
        chunks, far = size - self.block(size), float(shape.l * (shape.d + shape.d_v))
        if shape.causal:
            pairs = shape.n * chunks / 2
            return far + pairs * (shape.d + shape.d_v) + causal_multiplications(shape, self.block(size))
        return far + float(shape.n * size * (shape.d + shape.d_v))

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return float(shape.n * (size - self.block(size) + shape.l) * shape.d)

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        if queries.positions is None:
            raise InputError(f"{self.name}: there is no block where queries and keys are not the same tokens")
        for size, own in zip(sizes, streams.for_sizes(len(sizes)), strict=True):
            edges = self._edges(tokens, size)
            proposal = self._noise(tokens, size, own) + chunk_means(tokens.key, edges)
            proposal = proposal + self._query_means(queries, edges)
            half = 0.5 if self.form == "released" else 1.0
            chunks = Chunks.of(tokens, edges, half * proposal, self.form != "released")
            yield EvaSummary(tokens, chunks, edges, self.block(size), self.form == "released")

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> "StreamingChunks":
        if self.form == "released":
            raise InputError(f"method {self.name!r} as released uses the whole sequence and cannot be causal")
        return StreamingChunks(tokens, self._edges(tokens, size), self._noise(tokens, size, streams))

    def _edges(self, tokens: Tokens, size: int) -> np.ndarray:
        count = min(size - self.block(size), tokens.length)
        return np.arange(count + 1) * tokens.length // count

    def _noise(self, tokens: Tokens, size: int, streams: Streams) -> Array:
        """What is random of w_c: (..., chunks, d)."""
        xp, shape = array_namespace(tokens.key), (len(self._edges(tokens, size)) - 1, tokens.key.shape[-1])
        if self.form != "drawn":
            return xp.zeros(shape, dtype=tokens.key.dtype, device=device(tokens.key))
        return xp.astype(streams.draw(lambda rng: rng.standard_normal(shape)), tokens.key.dtype, copy=False)

    def _query_means(self, queries: Queries, edges: np.ndarray) -> Array:
        """The mean of the queries of each chunk, of all where it has none: (..., chunks, d)."""
        assert queries.positions is not None
        xp, count = array_namespace(queries.query), len(edges) - 1
        rows = slice(*(int(i) for i in np.searchsorted(queries.positions, edges[[0, -1]])))
        place = np.searchsorted(edges, queries.positions[rows], side="right") - 1
        asked, number = queries.query[..., rows, :], np.bincount(place, minlength=count)[:, None]
        labels = beside(np.tile(place, (*asked.shape[:-2], 1)), asked)
        sums = segment_sums(asked, labels, count)
        means = sums / xp.astype(beside(np.maximum(number, 1), asked), asked.dtype, copy=False)
        every = xp.mean(queries.query, axis=-2, keepdims=True)
        return xp.where(beside(number > 0, asked), means, every)


class StreamingChunks:
    """The chunks of the first keys: those that are complete as they are, and what there is of the last."""

    def __init__(self, tokens: Tokens, edges: np.ndarray, noise: Array) -> None:
        self.tokens, self.edges, self.noise, self.complete = tokens, edges, noise, 0
        self.chunks: Chunks | None = None

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        done = int(np.searchsorted(self.edges, stop, side="right")) - 1
        if done > self.complete:
            self.chunks = _joined(self.chunks, self._between(self.complete, self.edges[self.complete : done + 1]))
            self.complete = done
        chunks, edges = self.chunks, self.edges[: done + 1]
        if stop > self.edges[done]:
            edges = np.append(edges, stop)
            chunks = _joined(chunks, self._between(done, edges[-2:]))
        assert chunks is not None
        return EvaSummary(self.tokens.part(slice(0, stop)), chunks, edges, 0, False)

    def _between(self, first: int, edges: np.ndarray) -> Chunks:
        """The chunks between these edges, of which the first is number ``first``."""
        part, own = self.tokens.part(slice(int(edges[0]), int(edges[-1]))), edges - edges[0]
        proposal = chunk_means(part.key, own) + self.noise[..., first : first + len(own) - 1, :]
        return Chunks.of(part, own, proposal, True)


def _joined(old: Chunks | None, new: Chunks) -> Chunks:
    if old is None:
        return new
    xp = array_namespace(new.key)
    axes = Chunks(-2, -2, -1, -1)
    return Chunks(*(xp.concat([a, b], axis=axis) for a, b, axis in zip(old, new, axes, strict=True)))


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

    def sums(self, queries: Queries) -> Accumulator:
        if self.w == 0:
            return self._sums(queries.query, self.chunks, slice(0, 0))
        assert queries.positions is not None
        xp, found = array_namespace(queries.query), []
        block_of = queries.positions // self.w
        for block in np.unique(block_of):
            rows = slice(*(int(i) for i in np.searchsorted(block_of, (block, block + 1))))
            first = max(0, int(block) * self.w)
            keys = slice(first, max(first, min(int(block + 1) * self.w, self.tokens.length)))
            chunks = self.chunks if self.twice or keys.start == keys.stop else self._outside(keys)
            found.append(self._sums(queries.query[..., rows, :], chunks, keys))
        return Accumulator(*(xp.concat(parts, axis=-2) for parts in zip(*found, strict=True)))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        chunk_of = np.searchsorted(self.edges, np.arange(keys.start, keys.stop), side="right") - 1
        far = queries.query @ xp.matrix_transpose(self.chunks.key) + self.chunks.log_weight[..., None, :]
        far = xp.take(far, beside(chunk_of, queries.query), axis=-1) + self.chunks.log_share[..., None, keys]
        if self.w == 0:
            return Features(None, far)
        assert queries.positions is not None
        exact = queries.query @ xp.matrix_transpose(self.tokens.key[..., keys, :])
        same = np.arange(keys.start, keys.stop) // self.w == queries.positions[:, None] // self.w
        near = xp.logaddexp(exact, far) if self.twice else exact
        return Features(None, xp.where(beside(same, far), near, far))

    def _sums(self, query: Array, chunks: Chunks, keys: slice) -> Accumulator:
        """Of the chunks and of some keys exactly: one softmax, so that neither is lost beside the other."""
        xp, near = array_namespace(query), self.tokens.part(keys)
        logits = query @ xp.matrix_transpose(chunks.key) + chunks.log_weight[..., None, :]
        right = with_ones(chunks.value)
        if near.length:
            logits = xp.concat([logits, query @ xp.matrix_transpose(near.key)], axis=-1)
            right = xp.concat([right, with_ones(near.value)], axis=-2)
        return accumulate(None, Features(None, logits), right)

    def _outside(self, keys: slice) -> Chunks:
        """The chunks without these keys: those that lie among them are gone, of those at the ends the rest is left."""
        xp, edges = array_namespace(self.tokens.key), self.edges
        first = int(np.searchsorted(edges, keys.start, side="right")) - 1
        last = int(np.searchsorted(edges, keys.stop, side="left"))  # the first chunk that begins after them
        ends = ((first, slice(int(edges[first]), keys.start)), (last - 1, slice(keys.stop, int(edges[last]))))
        rests = [self._rest(chunk, rest) for chunk, rest in ends if rest.start < rest.stop]
        found = [self.chunks.part(slice(0, first)), *rests, self.chunks.part(slice(last, None))]
        return Chunks(
            xp.concat([part.key for part in found], axis=-2),
            xp.concat([part.value for part in found], axis=-2),
            xp.concat([part.log_weight for part in found], axis=-1),
        )

    def _rest(self, chunk: int, keys: slice) -> Chunks:
        """A chunk as if it had these of its keys only, with the shares they have."""
        xp, log_share = array_namespace(self.tokens.key), self.chunks.log_share[..., keys]
        peak = xp.max(log_share, axis=-1, keepdims=True)
        shares = xp.exp(log_share - peak)
        total = xp.sum(shares, axis=-1, keepdims=True)
        value = (shares / total)[..., None, :] @ self.tokens.value[..., keys, :]
        log_weight = self.chunks.log_weight[..., chunk : chunk + 1] + peak + xp.log(total)
        return Chunks(self.chunks.key[..., chunk : chunk + 1, :], value, log_weight)
