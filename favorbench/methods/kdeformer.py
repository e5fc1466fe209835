"""Sorted blocks and a sample in proportion to the norms of values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from favorbench.methods.base import Shape
from favorbench.methods.hashed import Hashed, Sampled
from favorbench.methods.summaries import Tokens
from favorbench.numerics.arrays import Array, array_namespace
from favorbench.numerics.streams import Streams


def sampling_shares(value: Array) -> Array:
    """p_j in proportion to |v_j| / ||V||_2 + 1 / l, with the largest singular value of V: (..., l)."""
    xp = array_namespace(value)
    norms = xp.sqrt(xp.vecdot(value, value))
    largest = xp.sqrt(xp.max(xp.linalg.eigvalsh(xp.matrix_transpose(value) @ value), axis=-1))[..., None]
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    shares = norms / largest + 1.0 / value.shape[-2]
    return shares / xp.sum(shares, axis=-1, keepdims=True)


@dataclass(frozen=True)
class KDEformer(Hashed):
    """Exact attention in blocks of a sorted angular hash, beside s draws of keys, each of weight 1 / (s p_j).

    p_j is in proportion to |v_j| / ||V||_2 + 1 / l, with replacement; draws in the query's block are left out. The
    released code (majid-daliri/kdeformer) has a column of ones in V and the square of its norm, and its order of
    buckets, the Gray code of their bits and not the rank of these in it, has neighbours that differ in several signs.
    Zandieh et al. 2023 ("KDEformer"), arXiv 2302.02451, its practical form (algorithm 3).
    """

    name: ClassVar[str] = "kdeformer"
    reference: ClassVar[str] = "Zandieh et al. 2023, arXiv 2302.02451"
    description: ClassVar[str] = "the keys of the query's hash block exactly, others sampled by the norms of values"
    look: ClassVar[Mapping[str, object]] = {"color": "C6", "linestyle": ":", "marker": "^", "markersize": 4}

    def sampled(self, tokens: Tokens, counts: tuple[int, ...], streams: Streams) -> Iterator[Sampled]:
        xp, shares = array_namespace(tokens.value), sampling_shares(tokens.value)
        uniforms = xp.astype(streams.draw(lambda rng: rng.random(counts[-1])), shares.dtype, copy=False)
        below = xp.cumulative_sum(shares, axis=-1)[..., None, :] < uniforms[..., :, None]
        index = xp.clip(xp.sum(xp.astype(below, xp.int64), axis=-1), 0, tokens.length - 1)
        for count in counts:
            drawn = index[..., :count]
            yield Sampled(drawn, -xp.log(max(count, 1) * xp.take_along_axis(shares, drawn, axis=-1)))

    def multiplications(self, shape: Shape, size: int) -> float:
        """Beside the blocks and samples V^T V, for its norm."""
        return super().multiplications(shape, size) + float(shape.l * shape.d_v * shape.d_v)
