"""Block-sparse attention without training: adjacent queries choose keys together, and attend these exactly.

These methods read long prompts. The papers choose as many keys as a threshold asks for; here the size m says
how many, so that methods can be compared at equal cost. Causal: a group chooses among the keys before its chunk of 128
positions, and the chunk itself is exact. So no output depends on later keys, but it depends on later queries of its
group, as in the released code: these are methods for reading a text, not for writing one.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.causal import chunks
from favorbench.errors import ScenarioError
from favorbench.methods.base import Shape, Sizes, line_style
from favorbench.methods.segments import Segments
from favorbench.methods.summaries import (
    KeySummary,
    KeySummaryMethod,
    Queries,
    StreamingSummary,
    Tokens,
    causal_multiplications,
    logits_of,
)
from favorbench.numerics.arrays import (
    Array,
    Features,
    array_namespace,
    largest,
    masked,
    rows_at,
    scattered,
    softmax,
    to_backend_of,
)
from favorbench.numerics.logsum import Accumulator, weighted_sums
from favorbench.numerics.streams import Streams
from favorbench.parameters import between, whole


def pieces(length: int, size: int) -> Segments:
    """Adjacent pieces of ``size`` tokens; the last one may be shorter, and is padded."""
    index = np.arange(-(-length // size) * size).reshape(-1, size)
    return Segments(np.minimum(index, length - 1), index >= length)


def zeroed(a: Array, keep: np.ndarray) -> Array:
    """The numbers where a flag is set, and 0 elsewhere."""
    xp = array_namespace(a)
    return xp.where(to_backend_of(keep, a), a, xp.zeros_like(a))


def means(rows: Array, segments: Segments) -> Array:
    """The mean over each piece, (..., pieces, c), of its rows with padding, (..., pieces, longest, c)."""
    xp, present = array_namespace(rows), ~segments.padding[..., None]
    counts = to_backend_of(np.sum(present, axis=1), rows)
    return xp.sum(zeroed(rows, present), axis=-2) / xp.astype(counts, rows.dtype)


class Groups(NamedTuple):
    """Queries in groups that choose together: (..., groups, longest, d), and the places of these in ``queries``."""

    query: Array
    segments: Segments
    queries: Queries

    @staticmethod
    def of(queries: Queries, size: int) -> "Groups":
        """Groups of adjacent queries."""
        segments = pieces(queries.query.shape[-2], min(size, queries.query.shape[-2]))
        return Groups(segments.rows(queries.query), segments, queries)

    @property
    def mean(self) -> Array:
        """The mean query of each group: (..., groups, d)."""
        return means(self.query, self.segments)

    def last(self, count: int) -> Segments:
        """The last ``count`` queries of each group; padding before these where a group has fewer."""
        starts, ends = self.segments.places[:, :1], self.segments.places[:, -1:]
        index = ends + 1 - count + np.arange(count)
        return Segments(np.maximum(index, starts), index < starts)

    def in_sequence(self, sums: Accumulator) -> Accumulator:
        """Sums of each query, without padding."""
        return Accumulator(*map(self.segments.in_sequence, sums))


@dataclass(frozen=True)
class Sparse(KeySummaryMethod):
    """Exact attention to the keys that each ``group`` of adjacent queries chooses."""

    group: int = whole(1, 64, default=64)
    random = False
    causal_safe = True
    convex = True
    exact_at_full_size = True
    permutation_invariant = False
    needs_all_rows = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if 64 % self.group:  # chunks and windows are in blocks of 64 or 128 queries
            raise ScenarioError(f"group must divide 64, got {self.group}")

    @abstractmethod
    def attended(self, size: int, length: int) -> int:
        """The number of keys for each query, with padding."""

    @abstractmethod
    def summary(self, tokens: Tokens, size: int) -> KeySummary:
        """The summary of some keys."""

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        for size in sizes:
            yield self.summary(tokens, size)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> StreamingSummary:
        return FirstKeys(self, tokens, size)

    def multiplications(self, shape: Shape, size: int) -> float:
        """The choice, and d + d_v for each query and key of its group; causal: for each chunk on the keys before."""
        if not shape.causal:
            return self._work(shape, size)
        past = (self._work(shape._replace(n=c.stop - c.start, l=c.start), size) for c in chunks(shape.l)[1:])
        return sum(past) * shape.n / shape.l + causal_multiplications(shape)

    def _work(self, shape: Shape, size: int) -> float:
        """The multiplications where every query sees every key."""
        groups, rows = self.groups_of(shape.n)
        pairs = groups * rows * self.attended(size, shape.l)
        return self.choice_multiplications(shape, size) + float(pairs * (shape.d + shape.d_v))

    def groups_of(self, n: int) -> tuple[int, int]:
        """The number of groups, and their rows with padding."""
        rows = min(self.group, n)
        return -(-n // rows), rows

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return float(shape.n * shape.l * shape.d)

    def width(self, size: int, length: int) -> int:
        """The keys and values of a group are copied next to one another."""
        return 4 * size


@dataclass(frozen=True)
class SparseSummary:
    """K(x, y_j) = exp(x.y_j) for the keys that x has chosen, 0 for all others."""

    method: Any
    tokens: Tokens
    size: int

    def groups(self, queries: Queries) -> Groups:
        """The queries that choose together."""
        return Groups.of(queries, self.method.group)

    def tokens_at(self, index: Array) -> Tokens:
        """Keys and values at indices (..., a), or (..., a, b), and so on: (..., a, c)."""
        xp, leading = array_namespace(index), self.tokens.key.ndim - 2
        flat = xp.reshape(xp.clip(index, 0, self.tokens.length - 1), (*index.shape[:leading], -1))
        return Tokens(*(xp.reshape(rows_at(a, flat), (*index.shape, a.shape[-1])) for a in self.tokens))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        exact = logits_of(queries, self.tokens, keys)
        return Features(None, masked(exact, self.flags(queries)[..., keys]))

    def flags(self, queries: Queries) -> Array:
        """Which keys each query has chosen: (..., n, l)."""
        raise NotImplementedError


class SharedKeys(SparseSummary):
    """Every query of a group has chosen the same keys."""

    def sums(self, queries: Queries) -> Accumulator:
        groups = self.groups(queries)
        logits, value = self.near(groups, self.method.chosen(groups, self.tokens, self.size))
        return groups.in_sequence(weighted_sums(logits, value))

    def near(self, groups: Groups, index: Array) -> tuple[Array, Array]:
        """Logits (..., groups, longest, k) and values of the keys at indices (..., groups, k)."""
        key, value = self.tokens_at(index)
        return masked(groups.query @ key.mT, (index < self.tokens.length)[..., None, :]), value

    def flags(self, queries: Queries) -> Array:
        return self.flags_of(self.method.chosen(self.groups(queries), self.tokens, self.size), queries)

    def flags_of(self, index: Array, queries: Queries) -> Array:
        """Which keys of each query are at the indices of its group."""
        length = self.tokens.length
        chosen = scattered(index >= 0, index, length + index.shape[-1])[..., :length]
        group_of = to_backend_of(np.arange(queries.query.shape[-2]) // self.method.group, chosen)
        return array_namespace(chosen).take(chosen, group_of, axis=-2)


class FirstKeys(NamedTuple):
    """The summaries of the first keys of a sequence."""

    method: Sparse
    tokens: Tokens
    size: int

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        return self.method.summary(self.tokens.part(slice(0, stop)), self.size)


@dataclass(frozen=True)
class InBlocks(Sparse):
    """A group chooses blocks of keys.

    Blocks have ``block`` keys, or half, a quarter, ... of that, so that a size has at least four of them; the number of
    keys is rounded up to blocks.
    """

    block: int = whole(1, 1 << 16, default=64)

    @abstractmethod
    def chosen(self, groups: Groups, tokens: Tokens, size: int) -> Array:
        """The indices of the keys of each group, (..., groups, k), all different; those from l on are padding."""

    def summary(self, tokens: Tokens, size: int) -> KeySummary:
        return SharedKeys(self, tokens, size)

    def block_of(self, size: int) -> int:
        """Keys in a block."""
        block = self.block
        while block > 1 and 4 * block > size:
            block //= 2
        return block

    def attended(self, size: int, length: int) -> int:
        block = self.block_of(size)
        return block * min(-(-size // block), -(-length // block))


class Scored(InBlocks):
    """A group chooses the blocks of adjacent keys with the largest scores."""

    @abstractmethod
    def scores(self, groups: Groups, tokens: Tokens, block: int) -> Array:
        """The score of each block for each group: (..., groups, blocks)."""

    def chosen(self, groups: Groups, tokens: Tokens, size: int) -> Array:
        block = self.block_of(size)
        best = largest(self.scores(groups, tokens, block), self.attended(size, tokens.length) // block)
        index = best[..., None] * block + to_backend_of(np.arange(block), best)
        return array_namespace(best).reshape(index, (*best.shape[:-1], -1))

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """One product for each group and block."""
        return float(self.groups_of(shape.n)[0] * -(-shape.l // self.block_of(size)) * shape.d)


@dataclass(frozen=True)
class BlockSparse(Scored):
    """The score of a block is the product of the mean query of the group and the mean key of the block.

    Jiang et al. 2024 ("MInference"), arXiv 2407.02490, the block-sparse pattern (algorithm 3), with groups and blocks
    of 64; FlexPrefill's query-aware pattern and the mean pooling that others compare with are the same at equal size.
    """

    name = "block-sparse"
    reference = "Jiang et al. 2024, arXiv 2407.02490"
    description = "exact attention to the blocks of keys whose mean is nearest to the mean query of a group"
    look = line_style("C0", "--", "s", 4)

    def scores(self, groups: Groups, tokens: Tokens, block: int) -> Array:
        segments = pieces(tokens.length, block)
        return groups.mean @ means(segments.rows(tokens.key), segments).mT


@dataclass(frozen=True)
class XAttention(Scored):
    """The score of a block is its attention weight, estimated from sums along antidiagonals.

    Logits of a tile of ``stride`` queries and as many keys are replaced by the mean of those on its antidiagonal; the
    score is the sum over the tiles of a block of their softmax along the keys. Where blocks are smaller, so is stride.
    Xu et al. 2025 ("XAttention"), arXiv 2503.16428, with as many blocks as the size has in place of its threshold.
    """

    name = "xattention"
    reference = "Xu et al. 2025, arXiv 2503.16428"
    description = "exact attention to the blocks of keys with the largest sums along antidiagonals"
    look = line_style("C1", "--", "^", 4)
    stride: int = whole(1, 64, default=8)

    def scores(self, groups: Groups, tokens: Tokens, block: int) -> Array:
        xp, (longest, d) = array_namespace(tokens.key), groups.query.shape[-2:]
        segments, stride = pieces(tokens.length, block), math.gcd(self.stride, block, longest)
        given = ((groups.query, groups.segments), (segments.rows(tokens.key), segments))
        (query, rows), (key, keys) = ((zeroed(a, ~s.padding[..., None]), ~s.padding[:, ::stride]) for a, s in given)
        query = xp.flip(xp.reshape(query, (*query.shape[:-2], -1, stride, d)), axis=-2)
        query = xp.reshape(query, (*query.shape[:-2], stride * d))
        key = xp.reshape(key, (*key.shape[:-3], 1, -1, stride * d))
        weights = softmax(masked(query @ key.mT / stride, to_backend_of(keys.ravel(), key)))
        weights = xp.sum(zeroed(weights, rows[..., None]), axis=-2)
        return xp.sum(xp.reshape(weights, (*weights.shape[:-1], -1, block // stride)), axis=-1)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """A stride-th of the logits."""
        (groups, rows), block = self.groups_of(shape.n), self.block_of(size)
        pairs = groups * rows * -(-shape.l // block) * block
        return float(pairs * shape.d) / math.gcd(self.stride, block, rows)


@dataclass(frozen=True)
class SpargeAttn(BlockSparse):
    """Blocks whose keys are not alike first, then those with the largest product of mean query and mean key.

    The mean of a block speaks for its keys only where their mean cosine similarity to one another is at least
    ``similarity``; other blocks are always attended, as far as the size allows. Queries that are not alike would attend
    every key in the paper; here they choose as all others do, since the size is given.
    Zhang et al. 2025 ("SpargeAttn"), arXiv 2502.18137, its choice of blocks, without quantisation.
    """

    name = "spargeattn"
    reference = "Zhang et al. 2025, arXiv 2502.18137"
    description = "blocks of keys unlike one another, then those whose mean is nearest to the mean query, exactly"
    look = line_style("C2", "--", "v", 4)
    similarity: float = between(-1, 1, default=0.6)

    def scores(self, groups: Groups, tokens: Tokens, block: int) -> Array:
        xp, scores = array_namespace(tokens.key), super().scores(groups, tokens, block)
        segments = pieces(tokens.length, block)
        norms = xp.sqrt(xp.vecdot(tokens.key, tokens.key))[..., None]
        directions = tokens.key / xp.where(norms > 0, norms, xp.ones_like(norms))
        mean = means(segments.rows(directions), segments)
        unlike = (xp.vecdot(mean, mean) < self.similarity)[..., None, :]
        spread = xp.max(scores, axis=-1, keepdims=True) - xp.min(scores, axis=-1, keepdims=True)
        return xp.where(unlike, scores + (spread + 1.0), scores)


def weights_of_last(groups: Groups, tokens: Tokens, count: int) -> Array:
    """Attention weights of the last ``count`` queries of each group, (..., groups, count, l); 0 where it has fewer."""
    last = groups.last(count)
    weights = softmax(last.rows(groups.queries.query) @ tokens.key.mT[..., None, :, :])
    return zeroed(weights, ~last.padding[..., None])


@dataclass(frozen=True)
class PbsAttn(InBlocks):
    """Keys sorted by their attention weight inside segments, then blocks of them by mean query and mean key.

    The weights are the means over the last ``rows`` queries of a group, which sort the keys of each complete segment of
    ``segment`` keys. In the paper the last queries of the text sort for all, so that the order of earlier keys depends
    on later ones; here each group sorts for itself.
    Wang et al. 2025 ("PBS-Attn"), arXiv 2510.21270.
    """

    name = "pbs-attn"
    reference = "Wang et al. 2025, arXiv 2510.21270"
    description = "keys sorted by weight inside segments, then the blocks with the best mean exactly"
    look = line_style("C7", "--", "D", 4)
    segment: int = whole(1, 1 << 20, default=256)
    rows: int = whole(1, 64, default=16)

    def chosen(self, groups: Groups, tokens: Tokens, size: int) -> Array:
        xp, block = array_namespace(tokens.key), self.block_of(size)
        order = self._order(groups, tokens, block)
        logits = groups.mean @ tokens.key.mT  # the product with a mean is the mean of products
        present = order < tokens.length
        ordered = xp.take_along_axis(logits, xp.clip(order, 0, tokens.length - 1), axis=-1)
        blocks = (*order.shape[:-1], -1, block)
        ordered = xp.reshape(xp.where(present, ordered, xp.zeros_like(ordered)), blocks)
        count = xp.sum(xp.reshape(xp.astype(present, logits.dtype), blocks), axis=-1)
        best = largest(xp.sum(ordered, axis=-1) / count, self.attended(size, tokens.length) // block)
        index = xp.take_along_axis(xp.reshape(order, blocks), best[..., None], axis=-2)
        return xp.reshape(index, (*best.shape[:-1], -1))

    def _order(self, groups: Groups, tokens: Tokens, block: int) -> Array:
        """The keys of each group in order, in whole blocks: (..., groups, padded length)."""
        segment = max(self.segment // block, 1) * block
        xp, complete = array_namespace(tokens.key), tokens.length // segment * segment
        weights = weights_of_last(groups, tokens, self.rows)
        importance = xp.sum(weights, axis=-2)[..., :complete]
        places = xp.argsort(xp.reshape(-importance, (*importance.shape[:-1], -1, segment)), axis=-1, stable=True)
        starts = to_backend_of(np.arange(0, complete, segment), places)
        rest = to_backend_of(np.arange(complete, -(-tokens.length // block) * block), places)
        rest = xp.broadcast_to(rest, (*importance.shape[:-1], rest.shape[-1]))
        return xp.concat([xp.reshape(places + starts[:, None], importance.shape), rest], axis=-1)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of the last rows and of the mean."""
        return float(self.groups_of(shape.n)[0] * (self.rows + 1) * shape.l * shape.d)
