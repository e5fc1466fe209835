"""Patterns that the last queries of a group choose: lines of the attention matrix, or keys sorted by their weight."""

from dataclasses import dataclass

import numpy as np

from favorbench.errors import InputError
from favorbench.methods.base import Shape
from favorbench.methods.block_sparse import InBlocks, Keys, Sparse, SparseSummary
from favorbench.methods.segments import Groups, zeroed
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.arrays import Array, array_namespace, largest, masked, scattered, softmax, to_backend_of
from favorbench.numerics.logsum import Accumulator, with_ones
from favorbench.parameters import between, whole


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
    segment: int = whole(1, 1 << 20, default=256)
    rows: int = whole(1, 64, default=16)

    def chosen(self, groups: Groups, keys: Keys, size: int) -> Array:
        tokens, block = keys.tokens, keys.block
        xp = array_namespace(tokens.key)
        order = self._order(groups, tokens, block)
        logits = groups.mean @ tokens.key.mT  # the product with a mean is the mean of products
        present = order < tokens.length
        ordered = xp.take_along_axis(logits, xp.clip(order, 0, tokens.length - 1), axis=-1)
        blocks = (*order.shape[:-1], -1, block)
        ordered = xp.reshape(xp.where(present, ordered, 0.0), blocks)
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


class VerticalSlashKeys(SparseSummary):
    """Every query has chosen the keys of its group, and those on its diagonals."""

    def pattern(self, groups: Groups) -> tuple[Array, Array, Array]:
        """The keys of each group, (..., groups, k), and those on the diagonals of each query, (..., groups, n, s).

        And flags of the latter: whether there is such a key, and it is not a key of the group.
        """
        if groups.queries.positions is None:
            raise InputError(f"{self.method.name}: there are no diagonals where queries and keys are different tokens")
        xp, length = array_namespace(groups.query), self.tokens.length
        weights = weights_of_last(groups, self.tokens, self.method.rows)
        count = self.method.columns_of(self.size, length)
        columns = largest(xp.sum(weights, axis=-2), count)
        # a diagonal is named by its key for the last query of the group
        places, positions = groups.segments.places, groups.queries.positions
        before, before_last = (
            positions[places[:, -1:]] - positions[at] for at in (places, groups.last(self.method.rows).places)
        )
        index = np.arange(length) - before_last[..., None]
        there = xp.broadcast_to(to_backend_of(np.clip(index, 0, None), weights), weights.shape)
        along = zeroed(xp.take_along_axis(weights, there, axis=-1), index >= 0)
        best = largest(xp.sum(along, axis=-2), self.method.attended(self.size, length) - count)
        on_diagonals = best[..., None, :] - to_backend_of(before[..., None], best)
        chosen = scattered(columns >= 0, columns, length)
        wide = xp.broadcast_to(chosen[..., None, :], (*on_diagonals.shape[:-1], length))
        twice = xp.take_along_axis(wide, xp.clip(on_diagonals, 0, length - 1), axis=-1)
        return columns, on_diagonals, (on_diagonals >= 0) & ~twice

    def sums(self, queries: Queries) -> Accumulator:
        xp, groups = array_namespace(queries.query), self.groups(queries)
        columns, diagonals, seen = self.pattern(groups)
        shared, single = self.tokens_at(columns), self.tokens_at(diagonals)
        diagonal = masked((single.key @ groups.query[..., None])[..., 0], seen)
        logits = xp.concat([groups.query @ shared.key.mT, diagonal], axis=-1)
        peak = xp.max(logits, axis=-1, keepdims=True)
        weights, count = xp.exp(logits - peak), columns.shape[-1]
        total = weights[..., :count] @ with_ones(shared.value)
        total = total + (weights[..., None, count:] @ with_ones(single.value))[..., 0, :]
        return groups.in_sequence(Accumulator(peak, total))

    def flags(self, queries: Queries) -> Array:
        groups = self.groups(queries)
        (columns, diagonals, seen), length = self.pattern(groups), self.tokens.length
        xp = array_namespace(diagonals)
        padded = xp.where(seen, diagonals, length + to_backend_of(np.arange(diagonals.shape[-1]), diagonals))
        diagonal = scattered(seen, padded, length + diagonals.shape[-1])[..., :length]
        return groups.segments.in_sequence(scattered(columns >= 0, columns, length)[..., None, :] | diagonal)


@dataclass(frozen=True)
class VerticalSlash(Sparse):
    """A share ``columns`` of m are keys that the whole group attends; the rest are diagonals, a key for each query.

    The last ``rows`` queries of a group choose both: the keys with the largest sums of their attention weights, and the
    diagonals with the largest sums, among those that pass through the last query of the group. In the paper the last 64
    queries of the text choose for all, so that the choice of earlier keys depends on later ones; here each group
    chooses for itself. The released kernel attends whole blocks around the diagonals.
    Jiang et al. 2024 ("MInference"), arXiv 2407.02490, the vertical-slash pattern (algorithm 2).
    """

    name = "vertical-slash"
    reference = "Jiang et al. 2024, arXiv 2407.02490"
    description = "exact attention to the keys and the diagonals with most weight for the last queries of a group"
    exact_at_full_size = False
    needs_positions = True
    summary = VerticalSlashKeys
    columns: float = between(0, 1, default=0.5)
    rows: int = whole(1, 64, default=16)

    def columns_of(self, size: int, length: int) -> int:
        """The number of keys for the whole group."""
        return min(max(1, round(self.columns * size)), length)

    def attended(self, size: int, length: int) -> int:
        return self.columns_of(size, length) + min(size - max(1, round(self.columns * size)), length)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of the last rows."""
        return float(self.groups_of(shape.n)[0] * self.rows * shape.l * shape.d)

    def width(self, size: int, length: int) -> int:
        """Each query has copies of the keys on its diagonals."""
        return max(128 * size, self.choice_width(size, length))

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Add the keys on the diagonals of each query of a group, not of the group only, and their values twice."""
        rows = min(self.chunk if shape.causal else self.group, shape.n)
        single = self.attended(size, shape.l) - self.columns_of(size, shape.l)
        own = shape.per_pair * (self.group - 1) // self.group + shape.d_v
        return super().matrix_entries(shape, size) + rows * single * own
