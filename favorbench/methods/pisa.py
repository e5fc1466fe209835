"""Exact or approximate: the keys that block-sparse attention leaves out, by a Taylor expansion."""

from dataclasses import dataclass

import numpy as np

from favorbench.maps.base import claim
from favorbench.methods.base import Shape, line_style
from favorbench.methods.block_sparse import BlockSparse, Groups, SharedKeys, means, pieces
from favorbench.methods.summaries import KeySummary, Queries, Tokens, logits_of
from favorbench.numerics.arrays import Array, Features, array_namespace, masked, scattered, to_backend_of
from favorbench.numerics.logsum import Accumulator, with_ones
from favorbench.parameters import whole


@dataclass(frozen=True)
class Pisa(BlockSparse):
    """Chosen blocks exactly, all others by a Taylor expansion around their mean key.

    Blocks are chosen as in block-sparse. The others enter with exp(x.c) and their mean value: order=0. order=1 adds the
    first order of the values, sum_j x.(y_j - c) v_j over the keys of a block, which sums to 0 in the normaliser; as
    released, its sum over all blocks is taken once, times the mean weight exp(x.c) of the blocks that are not chosen.
    Li et al. 2026 ("PISA"), arXiv 2602.01077.
    """

    name = "pisa"
    reference = "Li et al. 2026, arXiv 2602.01077"
    description = "the blocks of keys with the best mean exactly, a Taylor expansion of all others"
    look = line_style("C3", "--", "P", 5)
    order: int = whole(0, 1, default=0)
    convex = claim(lambda self: self.order == 0)
    causal_safe = claim(lambda self: self.order == 0)

    def summary(self, tokens: Tokens, size: int) -> KeySummary:
        return PisaSummary(self, tokens, size)

    def _work(self, shape: Shape, size: int) -> float:
        """Add the mean values of all blocks, and the slopes."""
        groups, rows = self.groups_of(shape.n)
        far = groups * rows * -(-shape.l // self.block_of(size)) * shape.d_v
        slopes = self.order * (shape.l + groups * rows) * shape.d * shape.d_v
        return super()._work(shape, size) + float(far + slopes)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """Add the logits of all means."""
        return super().choice_multiplications(shape, size) * (1 + self.groups_of(shape.n)[1])

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return (1 + self.order) * super().pair_multiplications(shape, size)


class PisaSummary(SharedKeys):
    """K(x, y_j) = exp(x.y_j) for chosen keys, exp(x.c) for others; order 1 adds s x.(y_j - c) for all keys.

    s: the sum of exp(x.c) over all keys that are not chosen, divided by the number of all keys.
    """

    def parts(self, queries: Queries) -> tuple[Groups, Array, Array, Array]:
        """The groups, the keys that they have chosen, and the logit of each block, -inf for chosen ones; mean keys."""
        xp, block, groups = array_namespace(queries.query), self.method.block_of(self.size), self.groups(queries)
        index, segments = self.method.chosen(groups, self.tokens, self.size), pieces(self.tokens.length, block)
        mean = means(segments.rows(self.tokens.key), segments)
        counts = to_backend_of(np.log(np.sum(~segments.padding, axis=1)), mean)
        far = groups.query @ mean.mT[..., None, :, :] + xp.astype(counts, mean.dtype)
        chosen = scattered(index[..., ::block] >= 0, index[..., ::block] // block, far.shape[-1])
        return groups, index, masked(far, ~chosen[..., None, :]), mean

    def deviations(self, mean: Array, keys: slice) -> Array:
        """y_j - c of adjacent keys."""
        xp, block = array_namespace(mean), self.method.block_of(self.size)
        return self.tokens.key[..., keys, :] - xp.take(
            mean, to_backend_of(np.arange(self.tokens.length)[keys] // block, mean), axis=-2
        )

    def sums(self, queries: Queries) -> Accumulator:
        xp, (groups, index, far, mean) = array_namespace(queries.query), self.parts(queries)
        near, value = self.near(groups, index)
        segments = pieces(self.tokens.length, self.method.block_of(self.size))
        values = means(segments.rows(self.tokens.value), segments)[..., None, :, :]
        values = xp.broadcast_to(values, (*value.shape[:-2], *values.shape[-2:]))
        logits = xp.concat([near, far], axis=-1)
        peak = xp.max(logits, axis=-1, keepdims=True)
        weights = xp.exp(logits - peak)
        total = weights @ with_ones(xp.concat([value, values], axis=-2))
        if self.method.order:
            share = xp.sum(weights[..., near.shape[-1] :], axis=-1, keepdims=True) / self.tokens.length
            slopes = self.deviations(mean, slice(None)).mT @ with_ones(self.tokens.value)
            total = total + share * (groups.query @ slopes[..., None, :, :])
        return groups.in_sequence(Accumulator(peak, total))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, (groups, index, far, mean) = array_namespace(queries.query), self.parts(queries)
        far, block = groups.segments.in_sequence(far), self.method.block_of(self.size)
        block_of = np.arange(self.tokens.length) // block
        counts = to_backend_of(np.log(np.bincount(block_of)), mean)
        logs = xp.take(far - xp.astype(counts, far.dtype), to_backend_of(block_of[keys], far), axis=-1)
        logs = xp.where(self.flags_of(index, queries)[..., keys], logits_of(queries, self.tokens, keys), logs)
        if self.method.order == 0:
            return Features(None, logs)
        peak = xp.max(xp.concat([logs, far], axis=-1), axis=-1, keepdims=True)
        share = xp.sum(xp.exp(far - peak), axis=-1, keepdims=True) / self.tokens.length
        values = xp.exp(logs - peak) + share * (queries.query @ self.deviations(mean, keys).mT)
        return Features(values, xp.broadcast_to(peak, values.shape))
