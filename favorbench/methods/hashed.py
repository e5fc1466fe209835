"""Methods that sort queries and keys by a hash: a block of like keys exactly, and a sample of all others."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape, Sizes
from favorbench.methods.sampled import Sampled, samples_by_share, uniform_sample
from favorbench.methods.segments import Segments
from favorbench.methods.summaries import Tokens
from favorbench.numerics.arrays import Array, array_namespace, masked, rows_at, to_backend_of
from favorbench.numerics.logsum import Accumulator, quotient, tiles, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import between, whole


def angular_hash(x: Array, directions: Array) -> Array:
    """The bucket (..., n) of each row (..., n, d), from the signs of its products with directions (..., d, p).

    The signs are the bits of a Gray code, and the bucket is its rank: neighbouring buckets differ in one sign.
    """
    xp = array_namespace(x)
    bits = xp.astype(x @ directions > 0, xp.int64)
    from_gray = xp.cumulative_sum(bits, axis=-1) % 2
    places = to_backend_of(2 ** np.arange(bits.shape[-1] - 1, -1, -1), bits)
    return xp.sum(from_gray * places, axis=-1)


@dataclass(frozen=True)
class Hashed(Method):
    """A share ``block`` of m are the keys of the query's block, attended exactly; the rest are sampled among all keys.

    Queries and keys are sorted by their buckets under one angular hash of ``projections`` signs, and cut into equally
    many blocks. One softmax over x.y_j for the block, and x.y_s + log(weight_s) for samples s outside of it.
    """

    block: float = between(0, 1, default=0.25)
    projections: int = whole(1, 30, default=7)
    convex = True
    unbiased = True
    permutation_invariant = False
    needs_all_rows = True

    @abstractmethod
    def sampled(self, tokens: Tokens, counts: Sizes, streams: Streams) -> Iterator[Sampled]:
        """Yield samples of ``count`` keys, for each count (increasing)."""

    def exact_keys(self, size: int) -> int:
        """Keys in a block, at most; the rest of the size are samples."""
        return max(1, min(round(self.block * size), size - 1))

    def multiplications(self, shape: Shape, size: int) -> float:
        """The hash of all tokens, blocks of nearly equal length, and the samples."""
        exact = self.exact_keys(size)
        blocks = min(-(-shape.l // exact), shape.n)
        queries = blocks * -(-shape.n // blocks)
        pairs = float(queries * (-(-shape.l // blocks) + size - exact))
        return float((shape.n + shape.l) * shape.d * self.projections) + pairs * shape.per_pair

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The logits of a block, three times: no tile is smaller."""
        blocks = min(-(-shape.l // self.exact_keys(size)), shape.n)
        return 3 * -(-shape.n // blocks) * size

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        query, tokens = problem.query, Tokens(problem.key, problem.value)
        xp, d = array_namespace(query), query.shape[-1]
        directions = streams.draw(lambda rng: rng.standard_normal((d, self.projections)), query)
        orders = [xp.argsort(angular_hash(x, directions), axis=-1, stable=True) for x in (query, tokens.key)]
        counts = tuple(size - self.exact_keys(size) for size in sizes)
        for size, sample in zip(sizes, self.sampled(tokens, counts, streams), strict=True):
            blocks = min(-(-tokens.length // self.exact_keys(size)), query.shape[-2])
            yield Estimate(size, size, *_answered(query, tokens, orders, blocks, sample))


def _answered(query: Array, tokens: Tokens, orders: list[Array], blocks: int, sample: Sampled) -> list[Array]:
    """Output and normaliser, block by block in the order of the hash and back in the order of the queries."""
    xp, (of_query, of_key) = array_namespace(query), orders
    rows, columns = Segments.of(query.shape[-2], blocks), Segments.of(tokens.length, blocks)
    sorted_query = rows.rows(rows_at(query, of_query))
    key, value = (columns.rows(rows_at(a, of_key)) for a in tokens)
    drawn = tokens.at(sample.index)
    block_at = to_backend_of(np.repeat(np.arange(blocks), np.sum(~columns.padding, axis=-1)), of_key)
    block_of = xp.take(block_at, xp.reshape(xp.argsort(of_key, axis=-1), (-1,)))
    block_of = xp.take_along_axis(xp.reshape(block_of, of_key.shape), sample.index, axis=-1)
    parts = []
    for some in tiles(blocks, rows.places.shape[-1] * (columns.places.shape[-1] + drawn.length), query):
        block_queries = sorted_query[..., some, :, :]
        near = block_queries @ key[..., some, :, :].mT
        near = masked(near, to_backend_of(~columns.padding[some, None, :], near))
        far = block_queries @ drawn.key.mT[..., None, :, :] + sample.log_weight[..., None, None, :]
        inside = block_of[..., None, None, :] == to_backend_of(np.arange(blocks)[some, None, None], block_of)
        far = masked(far, ~inside)
        peak = xp.max(near, axis=-1, keepdims=True)
        if drawn.length:
            peak = xp.maximum(peak, xp.max(far, axis=-1, keepdims=True))
        total = xp.exp(near - peak) @ with_ones(value[..., some, :, :])
        total = total + xp.exp(far - peak) @ with_ones(drawn.value)[..., None, :, :]
        parts.append(quotient(Accumulator(peak, total)))
    back = xp.argsort(of_query, axis=-1)
    return [rows_at(rows.in_sequence(xp.concat(arrays, axis=-3)), back) for arrays in zip(*parts, strict=True)]


@dataclass(frozen=True)
class HyperAttention(Hashed):
    """Exact attention in blocks of a sorted angular hash, plus s keys sampled uniformly, each of weight l / s.

    The sample is without replacement, which has less variance than the paper's, and leaves out keys of the query's
    block. The released kernel (amirzandieh/HyperAttention) takes the first s keys for a sample, with weight 1, and
    counts those of the block twice.
    Han et al. 2024 ("HyperAttention"), arXiv 2310.05869, algorithms 1 to 3.
    """

    name = "hyperattention"
    reference = "Han et al. 2024, arXiv 2310.05869"
    description = "the keys of the query's hash block exactly, a uniform sample of all others"

    def sampled(self, tokens: Tokens, counts: Sizes, streams: Streams) -> Iterator[Sampled]:
        order = streams.draw(lambda rng: rng.permutation(tokens.length))
        for count in counts:
            yield uniform_sample(tokens, order[..., :count])


def sampling_shares(value: Array) -> Array:
    """p_j in proportion to |v_j| / ||V||_2 + 1 / l, with the largest singular value of V: (..., l), in float64."""
    xp = array_namespace(value)
    value = xp.astype(value, xp.float64, copy=False)
    norms = xp.sqrt(xp.vecdot(value, value))
    largest = xp.sqrt(xp.max(xp.linalg.eigvalsh(value.mT @ value), axis=-1))[..., None]
    largest = xp.where(largest > 0, largest, 1.0)
    shares = norms / largest + 1.0 / value.shape[-2]
    return shares / xp.sum(shares, axis=-1, keepdims=True)


@dataclass(frozen=True)
class KDEformer(Hashed):
    """Exact attention in blocks of a sorted angular hash, plus s draws of keys, each of weight 1 / (s p_j).

    p_j is in proportion to |v_j| / ||V||_2 + 1 / l, with replacement; draws in the query's block are left out. The
    released code (majid-daliri/kdeformer) has a column of ones in V and the square of its norm, and its order of
    buckets, the Gray code of their bits and not the rank of these in it, has neighbours that differ in several signs.
    Zandieh et al. 2023 ("KDEformer"), arXiv 2302.02451, its practical form (algorithm 3).
    """

    name = "kdeformer"
    reference = "Zandieh et al. 2023, arXiv 2302.02451"
    description = "the keys of the query's hash block exactly, others sampled by the norms of values"

    def sampled(self, tokens: Tokens, counts: Sizes, streams: Streams) -> Iterator[Sampled]:
        uniforms = streams.draw(lambda rng: rng.random(counts[-1]))
        yield from samples_by_share(sampling_shares(tokens.value), uniforms, counts, tokens.value.dtype)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Add V^T V, for its norm."""
        return super().multiplications(shape, size) + float(shape.l * shape.d_v * shape.d_v)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Or two flags for each draw and key."""
        return max(super().matrix_entries(shape, size), size * shape.l // 4)
