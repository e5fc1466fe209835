"""Exact or approximate: the keys that block-sparse attention leaves out, by a Taylor expansion."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from favorbench.maps.base import claim
from favorbench.methods.base import Shape
from favorbench.methods.block_sparse import BlockSparse, SharedKeys
from favorbench.methods.segments import Groups
from favorbench.methods.summaries import Queries, logits_of
from favorbench.numerics.arrays import Array, Features, array_namespace, masked, scattered, to_backend_of
from favorbench.numerics.logsum import Accumulator, Sums, attention_sums, with_ones
from favorbench.parameters import whole


class PisaSummary(SharedKeys):
    """K(x, y_j) = exp(x.y_j) for chosen keys, exp(x.c) for others; order 1 adds s x.(y_j - c) for all keys.

    s: the sum of exp(x.c) over all keys that are not chosen, divided by the number of all keys.
    """

    @cached_property
    def block_of(self) -> np.ndarray:
        """The block of each key."""
        return np.arange(self.tokens.length) // self.keys.block

    @cached_property
    def log_counts(self) -> Array:
        """The log of the number of keys of each block."""
        mean = self.keys.mean_key
        return array_namespace(mean).astype(to_backend_of(np.log(np.bincount(self.block_of)), mean), mean.dtype)

    def deviations(self, keys: slice) -> Array:
        """y_j - c of adjacent keys."""
        mean = self.keys.mean_key
        centres = array_namespace(mean).take(mean, to_backend_of(self.block_of[keys], mean), axis=-2)
        return self.tokens.key[..., keys, :] - centres

    @cached_property
    def slopes(self) -> Array:
        """The sum over all keys of (y_j - c) [v_j, 1]: (..., 1, d, d_v + 1)."""
        return (self.deviations(slice(None)).mT @ with_ones(self.tokens.value))[..., None, :, :]

    def parts(self, queries: Queries) -> tuple[Groups, Array, Array]:
        """The groups, the keys they have chosen, and the log of the keys of each block (..., groups, blocks).

        It is -inf for chosen blocks.
        """
        groups, block = self.groups(queries), self.keys.block
        index = self.method.chosen(groups, self.keys, self.size)
        log_counts = array_namespace(index).broadcast_to(self.log_counts, (*index.shape[:-1], len(self.log_counts)))
        chosen = scattered(index[..., ::block] >= 0, index[..., ::block] // block, len(self.log_counts))
        return groups, index, masked(log_counts, ~chosen)

    def sums(self, queries: Queries) -> Sums:
        xp, (groups, index, log_counts) = array_namespace(queries.query), self.parts(queries)
        pairs = [
            (near, xp.broadcast_to(mean[..., None, :, :], (*near.shape[:-2], *mean.shape[-2:])))
            for near, mean in zip(self.tokens_at(index), (self.keys.mean_key, self.keys.mean_value), strict=True)
        ]
        key, value = (xp.concat(list(pair), axis=-2) for pair in pairs)
        bias = xp.concat([self.padding(index), log_counts], axis=-1)[..., None, :]
        sums = attention_sums(groups.query, key, value, bias)
        if self.method.order:
            share = xp.sum(xp.exp(self.far(groups, log_counts) - sums.log_peak), axis=-1, keepdims=True)
            sums = Accumulator(sums.log_peak, sums.total + share / self.tokens.length * (groups.query @ self.slopes))
        return groups.in_sequence(sums)

    def far(self, groups: Groups, log_counts: Array) -> Array:
        """The log weight of each block, (..., groups, longest, blocks)."""
        return groups.query @ self.keys.mean_key.mT[..., None, :, :] + log_counts[..., None, :]

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, (groups, index, log_counts) = array_namespace(queries.query), self.parts(queries)
        far = groups.segments.in_sequence(self.far(groups, log_counts))
        logs = xp.take(far - self.log_counts, to_backend_of(self.block_of[keys], far), axis=-1)
        logs = xp.where(self.flags_of(index, queries)[..., keys], logits_of(queries, self.tokens, keys), logs)
        if self.method.order == 0:
            return Features(None, logs)
        peak = xp.max(xp.concat([logs, far], axis=-1), axis=-1, keepdims=True)
        share = xp.sum(xp.exp(far - peak), axis=-1, keepdims=True) / self.tokens.length
        values = xp.exp(logs - peak) + share * (queries.query @ self.deviations(keys).mT)
        return Features(values, xp.broadcast_to(peak, values.shape))


@dataclass(frozen=True)
class Pisa(BlockSparse):
    """Chosen blocks exactly, all others by a Taylor expansion around their mean key.

    Blocks are chosen as in block-sparse. The others enter with exp(x.c) and their mean value: order=0. order=1 adds the
    first order of the values, sum_j x.(y_j - c) v_j over the keys of a block, which sums to 0 in the normaliser; as
    released, its sum over all blocks is taken once, times the mean weight exp(x.c) of the blocks that are not chosen.
    The released pipeline for images adds log |sum_j (y_j - c) v_j^T| to the score of a block, which is left out here.
    Li et al. 2026 ("PISA"), arXiv 2602.01077.
    """

    name = "pisa"
    reference = "Li et al. 2026, arXiv 2602.01077"
    description = "the blocks of keys with the best mean exactly, a Taylor expansion of all others"
    order: int = whole(0, 1, default=0)
    summary = PisaSummary
    convex = claim(lambda self: self.order == 0)
    causal_safe = claim(lambda self: self.order == 0)

    def _work(self, shape: Shape, size: int) -> float:
        """Add the mean values of all blocks, and the slopes."""
        groups, rows = self.groups_of(shape.n)
        far = groups * rows * -(-shape.l // self.block_of(size)) * shape.d_v
        slopes = self.order * (shape.l + groups * rows) * shape.d * shape.d_v
        return super()._work(shape, size) + float(far + slopes)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """Add the logits of all means; order 1 computes them twice."""
        return super().choice_multiplications(shape, size) * (1 + (1 + self.order) * self.groups_of(shape.n)[1])

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Twice, as the copies are put next to the means of all blocks."""
        return 2 * super().matrix_entries(shape, size)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return (1 + self.order) * super().pair_multiplications(shape, size)
