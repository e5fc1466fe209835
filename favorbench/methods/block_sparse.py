"""Block-sparse attention without training: adjacent queries choose keys together, and attend these exactly.

These methods read long prompts. In the papers a threshold sets the number of keys; here it is the size m, so that
methods can be compared at equal cost. Causal: a group chooses among the keys before its chunk of 128 positions, and the
chunk itself is exact. So no output depends on later keys, but it depends on later queries of its group, as in the
released code: these methods suit reading a prompt, not generation.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import chunk_multiplications, chunks
from favorbench.errors import ScenarioError
from favorbench.methods.base import Shape, Sizes
from favorbench.methods.segments import Groups, Segments, means, pieces, zeroed
from favorbench.methods.summaries import (
    GrowingSummary,
    KeySummary,
    KeySummaryMethod,
    Queries,
    Tokens,
    logits_of,
)
from favorbench.numerics.arrays import (
    TILE_ELEMENTS,
    Array,
    Features,
    array_namespace,
    largest,
    masked,
    scattered,
    softmax,
    to_backend_of,
)
from favorbench.numerics.logsum import Sums, attention_sums
from favorbench.numerics.streams import Streams
from favorbench.parameters import between, whole


def _by_block(compute: Callable[[Any], Array]) -> Any:
    """A property of blocks, (..., blocks, c). That of complete blocks of the whole sequence is not computed again."""

    def rows(keys: "Keys") -> Array:
        if keys.whole is None:
            return compute(keys)
        known, rest = (getattr(part, compute.__name__) for part in (keys.whole, keys.rest))
        complete = known[..., : keys.tokens.length // keys.block, :]
        return array_namespace(complete).concat([complete, rest], axis=-2)

    return cached_property(rows)


@dataclass(frozen=True)
class Keys:
    """Keys and values in blocks of ``block`` keys, and their means, each computed once.

    whole: of a sequence that begins with these.
    """

    tokens: Tokens
    block: int
    whole: "Keys | None" = None

    @property
    def segments(self) -> Segments:
        """The keys of each block."""
        return pieces(self.tokens.length, self.block)

    @_by_block
    def rows(self) -> Array:
        """The keys of each block side by side, with zeros for padding: (..., blocks, block * d)."""
        rows = zeroed(self.segments.rows(self.tokens.key), ~self.segments.padding[..., None])
        return array_namespace(rows).reshape(rows, (*rows.shape[:-2], self.block * rows.shape[-1]))

    @_by_block
    def mean_key(self) -> Array:
        """The mean key of each block: (..., blocks, d)."""
        return means(self.segments.rows(self.tokens.key), self.segments)

    @_by_block
    def mean_value(self) -> Array:
        """The mean value of each block: (..., blocks, d_v)."""
        return means(self.segments.rows(self.tokens.value), self.segments)

    @property
    def rest(self) -> "Keys":
        """The keys after the last complete block."""
        return Keys(self.tokens.part(slice(self.tokens.length // self.block * self.block, None)), self.block)

    @_by_block
    def likeness(self) -> Array:
        """The mean cosine of all pairs of keys of a block, (..., blocks, 1): the square of their mean direction."""
        xp, key = array_namespace(self.tokens.key), self.tokens.key
        norms = xp.sqrt(xp.vecdot(key, key))[..., None]
        mean = means(self.segments.rows(key / xp.where(norms > 0, norms, 1.0)), self.segments)
        return xp.vecdot(mean, mean)[..., None]


@dataclass(frozen=True)
class Sparse(KeySummaryMethod):
    """Exact attention to the keys that each ``group`` of adjacent queries chooses."""

    group: int = whole(1, 64, default=64)
    #: The class of its summaries: of this method, some keys, and a size.
    summary: ClassVar[type["SparseSummary"]]
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

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        for size in sizes:
            yield self.summary(self, tokens, size)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        return lambda stop: self.summary(self, tokens.part(slice(0, stop)), size)

    def multiplications(self, shape: Shape, size: int) -> float:
        """The choice, plus d + d_v for each query and key of its group; causal: by chunks, on the keys before."""
        if not shape.causal:
            return self._work(shape, size)
        past = (self._work(shape._replace(n=c.stop - c.start, l=c.start), size) for c in chunks(shape.l)[1:])
        return sum(past) * shape.n / shape.l + chunk_multiplications(shape, shape.d)

    def _work(self, shape: Shape, size: int) -> float:
        """The multiplications without a mask."""
        groups, rows = self.groups_of(shape.n)
        pairs = groups * rows * self.attended(size, shape.l)
        return self.choice_multiplications(shape, size) + float(pairs * shape.per_pair)

    def groups_of(self, n: int) -> tuple[int, int]:
        """The number of groups, and their rows with padding."""
        rows = min(self.group, n)
        return -(-n // rows), rows

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return float(shape.n * shape.l * shape.d)

    def width(self, size: int, length: int) -> int:
        """The keys and values of a group are copied next to one another, and it chooses by logits."""
        return max(4 * size, self.choice_width(size, length))

    def choice_width(self, size: int, length: int) -> int:
        """The logits by which a group chooses, for each of its queries."""
        return int(self.choice_multiplications(Shape(self.group, length, 1, 1), size)) // self.group

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The logits of a group, or of a causal chunk, three times: no tile is smaller. Add the copies of a tile."""
        rows = min(self.chunk if shape.causal else self.group, shape.n)
        tile = rows if shape.causal else max(rows, min(shape.n, TILE_ELEMENTS // self.width(size, shape.l)))
        copies = -(-tile // self.group) * self.attended(size, shape.l) * shape.per_pair
        return 3 * rows * self.choice_width(size, shape.l) + copies


@dataclass(frozen=True)
class SparseSummary:
    """K(x, y_j) = exp(x.y_j) for the keys that x has chosen, 0 for all others."""

    method: Any
    tokens: Tokens
    size: int
    whole: Keys | None = None

    def groups(self, queries: Queries) -> Groups:
        """The queries that choose together."""
        return Groups.of(queries, self.method.group)

    def tokens_at(self, index: Array) -> Tokens:
        """Keys and values at indices (..., a), or (..., a, b), and so on: (..., a, c)."""
        return self.tokens.at(array_namespace(index).clip(index, 0, self.tokens.length - 1))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        exact = logits_of(queries, self.tokens, keys)
        return Features(None, masked(exact, self.flags(queries)[..., keys]))

    def sums(self, queries: Queries) -> Sums:
        """Sum over the chosen keys of exp(x.y_j) [v_j, 1]."""
        raise NotImplementedError

    def flags(self, queries: Queries) -> Array:
        """Flags of the keys that each query has chosen: (..., n, l)."""
        raise NotImplementedError


class SharedKeys(SparseSummary):
    """Every query of a group has chosen the same keys."""

    @cached_property
    def keys(self) -> Keys:
        """The keys in blocks."""
        return Keys(self.tokens, self.method.block_of(self.size), self.whole)

    def sums(self, queries: Queries) -> Sums:
        groups = self.groups(queries)
        index = self.method.chosen(groups, self.keys, self.size)
        sums = attention_sums(groups.query, *self.tokens_at(index), self.padding(index)[..., None, :])
        return groups.in_sequence(sums)

    def padding(self, index: Array) -> Array:
        """0 at the index of a key, -inf at others, (..., k)."""
        zeros = array_namespace(index).zeros(index.shape, dtype=self.tokens.key.dtype, device=device(index))
        return masked(zeros, index < self.tokens.length)

    def flags(self, queries: Queries) -> Array:
        return self.flags_of(self.method.chosen(self.groups(queries), self.keys, self.size), queries)

    def flags_of(self, index: Array, queries: Queries) -> Array:
        """Flags (..., n, l) of the keys at the indices of each query's group."""
        length = self.tokens.length
        chosen = scattered(index >= 0, index, length + index.shape[-1])[..., :length]
        group_of = to_backend_of(np.arange(queries.query.shape[-2]) // self.method.group, chosen)
        return array_namespace(chosen).take(chosen, group_of, axis=-2)


@dataclass(frozen=True)
class InBlocks(Sparse):
    """A group chooses blocks of keys.

    Blocks have ``block`` keys. They are halved until a size has at least four blocks. The number of keys is rounded up
    to whole blocks.
    """

    block: int = whole(1, 1 << 16, default=64)
    summary: ClassVar[type[SparseSummary]] = SharedKeys

    @abstractmethod
    def chosen(self, groups: Groups, keys: Keys, size: int) -> Array:
        """The indices of the keys of each group, (..., groups, k), all different; those from l on are padding."""

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        whole = Keys(tokens, self.block_of(size))
        return lambda stop: self.summary(self, tokens.part(slice(0, stop)), size, whole)

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
    def scores(self, groups: Groups, keys: Keys) -> Array:
        """The score of each block for each group: (..., groups, blocks)."""

    def chosen(self, groups: Groups, keys: Keys, size: int) -> Array:
        best = largest(self.scores(groups, keys), self.attended(size, keys.tokens.length) // keys.block)
        index = best[..., None] * keys.block + to_backend_of(np.arange(keys.block), best)
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

    def scores(self, groups: Groups, keys: Keys) -> Array:
        return groups.mean @ keys.mean_key.mT


@dataclass(frozen=True)
class XAttention(Scored):
    """The score of a block is its attention weight, estimated from sums along antidiagonals.

    Logits of a tile of ``stride`` queries and as many keys are replaced by the mean of those on its antidiagonal; the
    score is the sum over the tiles of a block of their softmax along the keys. Smaller blocks have a smaller stride,
    and the last tile of a group may have fewer queries.
    Xu et al. 2025 ("XAttention"), arXiv 2503.16428, with a given number of blocks in place of its threshold.
    """

    name = "xattention"
    reference = "Xu et al. 2025, arXiv 2503.16428"
    description = "exact attention to the blocks of keys with the largest sums along antidiagonals"
    stride: int = whole(1, 64, default=8)

    def scores(self, groups: Groups, keys: Keys) -> Array:
        xp, (longest, d) = array_namespace(groups.query), groups.query.shape[-2:]
        stride = math.gcd(self.stride, keys.block)
        rows, columns = (~segments.padding[:, ::stride] for segments in (groups.segments, keys.segments))
        query = zeroed(groups.query, ~groups.segments.padding[..., None])
        if missing := -longest % stride:
            query = xp.concat([query, *[xp.zeros_like(query[..., :1, :])] * missing], axis=-2)
        query = xp.flip(xp.reshape(query, (*query.shape[:-2], -1, stride, d)), axis=-2)
        query = xp.reshape(query, (*query.shape[:-2], stride * d))
        key = xp.reshape(keys.rows, (*keys.rows.shape[:-2], 1, -1, stride * d))
        weights = softmax(masked(query @ key.mT / stride, to_backend_of(columns.ravel(), key)))
        weights = xp.sum(zeroed(weights, rows[..., None]), axis=-2)
        return xp.sum(xp.reshape(weights, (*weights.shape[:-1], -1, keys.block // stride)), axis=-1)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """A stride-th of the logits."""
        (groups, rows), block = self.groups_of(shape.n), self.block_of(size)
        stride = math.gcd(self.stride, block)
        pairs = groups * -(-rows // stride) * -(-shape.l // block) * block
        return float(pairs * shape.d)


@dataclass(frozen=True)
class SpargeAttn(BlockSparse):
    """Blocks of dissimilar keys first, then those with the largest product of mean query and mean key.

    The mean of a block represents its keys only if their mean cosine similarity to one another is at least
    ``similarity``. Other blocks are always attended, as far as the size allows. In the paper, dissimilar queries attend
    every key; here they choose like all others, because the size is given.
    Zhang et al. 2025 ("SpargeAttn"), arXiv 2502.18137, its choice of blocks, without quantisation.
    """

    name = "spargeattn"
    reference = "Zhang et al. 2025, arXiv 2502.18137"
    description = "blocks of keys unlike one another, then those whose mean is nearest to the mean query, exactly"
    similarity: float = between(-1, 1, default=0.6)

    def scores(self, groups: Groups, keys: Keys) -> Array:
        xp, scores = array_namespace(groups.query), super().scores(groups, keys)
        spread = xp.max(scores, axis=-1, keepdims=True) - xp.min(scores, axis=-1, keepdims=True)
        return xp.where((keys.likeness < self.similarity).mT, scores + (spread + 1.0), scores)
