"""Softmax attention over keys that are thinned by kernel halving."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.methods.base import Shape
from favorbench.methods.sampled import SampleSummary
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.arrays import Array, array_namespace, half_squared_norm
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_positive


class Round(NamedTuple):
    """One halving: of so many buckets, each of so many keys in a row."""

    buckets: int
    width: int


def rounds_of(length: int, size: int) -> list[Round]:
    """The halvings that leave ``size`` of size 2^t <= length keys: the last of one bucket, those before of four times
    as many each, which halves the width, as long as it stays whole and even."""
    found = []
    for i in range((length // size).bit_length() - 1):
        total, buckets = size << (i + 1), 4**i
        while total % (2 * buckets):
            buckets //= 2
        found.append(Round(buckets, total // buckets))
    return found[::-1]


@dataclass(frozen=True)
class Thinformer(KeySummaryMethod):
    """K(x, y_j) = (l / m) exp(x.y_j) on m keys that are left of all by halving, else 0.

    Of l keys the m 2^t <= l that are evenly spaced are halved t times, in buckets of keys in a row. Of each pair in a
    row one is kept: with f = k(y, .) - k(y', .), k(y, y') = exp(y.y') (v.v' + b^2), b the largest entry of v, and S
    the sum of what was kept less what was not, y is kept with probability 1/2 - <S, f> / (2 a) and y' else, where
    a = |f| (the largest |f| up to here) (1/2 + log(2 w / delta')), of w keys and with the bucket's share of ``delta``;
    and with probability 1/2 all choices of a bucket are reversed.
    Carrell et al. 2025 ("Thinformer", KH-Compress), arXiv 2502.12063. At m = 2^g sqrt(l), l a power of 4, as released.
    """

    name: ClassVar[str] = "thinformer"
    reference: ClassVar[str] = "Carrell et al. 2025, arXiv 2502.12063"
    description: ClassVar[str] = "softmax over m keys that kernel halving leaves"
    convex: ClassVar[bool] = True
    exact_at_full_size: ClassVar[bool] = True
    permutation_invariant: ClassVar[bool] = False
    look: ClassVar[Mapping[str, object]] = {"color": "C7", "linestyle": "-.", "marker": "<", "markersize": 4}
    delta: float = 0.5

    def __post_init__(self) -> None:
        check_positive("delta", self.delta, 1)

    def multiplications(self, shape: Shape, size: int) -> float:
        """d + d_v for each pair of keys in a bucket, and for each query and key that is left."""
        pairs = sum(buckets * width * width for buckets, width in rounds_of(shape.l, size))
        return float((pairs + shape.n * size) * (shape.d + shape.d_v))

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of every pair."""
        return float(shape.n * shape.l * shape.d)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The kernel of the largest round, three times."""
        return 3 * max((buckets * width**2 for buckets, width in rounds_of(shape.l, size)), default=0)

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        xp, uniforms = array_namespace(tokens.key), streams.draw(lambda rng: rng.random((2, tokens.length)))
        exact = Tokens(*(xp.astype(a, xp.float64, copy=False) for a in tokens))  # a choice is not a little off
        for size in sizes:
            yield SampleSummary.uniform(tokens, self.kept(exact, size, uniforms[..., 0, :], uniforms[..., 1, :]))

    def kept(self, tokens: Tokens, size: int, choices: Array, flips: Array) -> Array:
        """Indices (..., m) of the keys that are left. choices, flips: uniform numbers, (..., l) or more, of which each
        pair and each bucket take one in turn."""
        xp, rounds, length = array_namespace(tokens.key), rounds_of(tokens.length, size), tokens.length
        spaced = np.arange(size << len(rounds)) * length // (size << len(rounds))
        index = xp.zeros(tokens.key.shape[:-1], dtype=xp.int64, device=device(tokens.key))[..., : len(spaced)]
        index = index + xp.asarray(spaced, device=device(tokens.key))
        bound = xp.max(xp.abs(tokens.value), axis=(-2, -1), keepdims=True)[..., None, :, :] ** 2
        pairs = iter_slices(buckets * width // 2 for buckets, width in rounds)
        whole = iter_slices(buckets for buckets, _ in rounds)
        for (buckets, width), of_pairs, of_buckets in zip(rounds, pairs, whole, strict=True):
            index = xp.reshape(index, (*index.shape[:-1], buckets, width))
            kernel = _kernel(_taken(tokens.key, index), _taken(tokens.value, index), bound)
            uniform = xp.reshape(choices[..., of_pairs], (*index.shape[:-1], width // 2))
            first = halved(kernel, uniform, 0.5 + math.log(2 * width * len(rounds) * buckets / self.delta))
            first = first != (flips[..., of_buckets, None] < 0.5)
            index = xp.where(first, index[..., ::2], index[..., 1::2])
            index = xp.reshape(index, (*index.shape[:-2], buckets * width // 2))
        return index


def iter_slices(lengths: Iterator[int]) -> Iterator[slice]:
    """Slices of these lengths in a row."""
    start = 0
    for length in lengths:
        yield slice(start, start := start + length)


def _taken(rows: Array, index: Array) -> Array:
    """The rows (..., l, d) at (..., buckets, width): (..., buckets, width, d)."""
    xp = array_namespace(rows)
    flat = xp.reshape(index, (*index.shape[:-2], index.shape[-2] * index.shape[-1]))
    return xp.reshape(xp.take_along_axis(rows, flat[..., None], axis=-2), (*index.shape, rows.shape[-1]))


def _kernel(key: Array, value: Array, bound: Array) -> Array:
    """exp(y.y') (v.v' + b^2) times a factor of each bucket, which plays no part: (..., w, w)."""
    xp = array_namespace(key)
    shift = 2 * xp.max(half_squared_norm(key), axis=-2, keepdims=True)
    return xp.exp(key @ xp.matrix_transpose(key) - shift) * (value @ xp.matrix_transpose(value) + bound)


def halved(kernel: Array, uniform: Array, log_factor: float) -> Array:
    """Whether the first of each pair in a row is kept, (..., w / 2), from the kernel (..., w, w) of a bucket."""
    xp = array_namespace(kernel)
    inner = kernel[..., ::2] - kernel[..., 1::2]
    inner = inner[..., ::2, :] - inner[..., 1::2, :]
    norms = xp.sqrt(xp.clip(xp.linalg.diagonal(inner), 0.0, None))
    largest, products, kept = norms[..., 0], xp.zeros_like(inner[..., 0]), []
    for i in range(norms.shape[-1]):
        largest = xp.maximum(largest, norms[..., i])
        limit = norms[..., i] * largest * log_factor
        lean = xp.where(limit > 0, products[..., i] / xp.where(limit > 0, limit, xp.ones_like(limit)), 0 * limit)
        first = uniform[..., i] > 0.5 + 0.5 * lean
        products = products + (2 * xp.astype(first, inner.dtype) - 1)[..., None] * inner[..., i, :]
        kept.append(first)
    return xp.stack(kept, axis=-1)
