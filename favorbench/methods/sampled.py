"""Softmax attention over a part of the keys: a random sample, or those that kernel halving leaves."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import chunk_multiplications
from favorbench.maps.base import claim
from favorbench.methods.base import Shape, Sizes, line_style
from favorbench.methods.summaries import (
    GrowingSummary,
    KeySummary,
    KeySummaryMethod,
    Queries,
    Tokens,
    first_in_order,
    logits_of,
)
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm, indices_by_share, rows_at
from favorbench.numerics.logsum import Accumulator, weighted_sums
from favorbench.numerics.streams import Streams
from favorbench.parameters import positive


class Sampled(NamedTuple):
    """Indices of keys, (..., m), and the logs of their weights, (..., m)."""

    index: Array
    log_weight: Array


def uniform_sample(tokens: Tokens, index: Array) -> Sampled:
    """Keys that were drawn uniformly without replacement, each of weight l / m."""
    count = index.shape[-1]
    return Sampled(index, tokens.key[..., :count, 0] * 0.0 + math.log(tokens.length / max(count, 1)))


def samples_by_share(shares: Array, uniforms: Array, counts: Sizes, dtype: Any) -> Iterator[Sampled]:
    """Yield the first draws for each count (increasing): keys by their shares p (..., l), of weight 1 / (count p_j).

    shares: in float64, as in float16 sums over many keys are infinite. dtype: of the logs of the weights.
    """
    xp, index = array_namespace(shares), indices_by_share(shares, uniforms)
    for count in counts:
        drawn = index[..., :count]
        log_weight = -xp.log(max(count, 1) * xp.take_along_axis(shares, drawn, axis=-1))
        yield Sampled(drawn, xp.astype(log_weight, dtype, copy=False))


@dataclass(frozen=True)
class SampledKeys(KeySummaryMethod):
    """Softmax over m keys, a uniform sample without replacement: K(x, y_j) = (l / m) exp(x.y_j) on these, else 0.

    weights="values": m draws with replacement, in proportion to |v_j|, each weighted by 1 / (m p_j): unbiased where no
    v_j is 0, for such a key is never drawn. Causal: a uniform sample of the keys before. This is the fair trivial
    answer, which an estimator of size m should beat.
    """

    name = "sampled-keys"
    reference = "-"
    description = "softmax over m keys sampled uniformly, or in proportion to |v|"
    causal_safe = claim(lambda self: self.weights == "uniform")
    exact_at_full_size = claim(lambda self: self.weights == "uniform")
    convex = True
    unbiased = True
    look = line_style("0.3", (0, (1, 1)), ".", 6, label="sampled-keys (m keys)")
    weights: Literal["uniform", "values"] = "uniform"

    def multiplications(self, shape: Shape, size: int) -> float:
        """d + d_v for each query and sampled key."""
        return float(shape.n * size * shape.per_pair) + chunk_multiplications(shape, shape.d)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of every pair."""
        return float(shape.n * shape.l * shape.d)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Two flags for each draw by values and key."""
        return size * shape.l // 4 if self.weights == "values" else 0

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        if self.weights == "uniform":
            order = streams.draw(lambda rng: rng.permutation(tokens.length))
            for size in sizes:
                yield SampleSummary(tokens, *uniform_sample(tokens, order[..., :size]))
            return
        xp = array_namespace(tokens.value)
        uniforms = streams.draw(lambda rng: rng.random(sizes[-1]))
        value = xp.astype(tokens.value, xp.float64, copy=False)
        norms = xp.sqrt(xp.vecdot(value, value))
        norms = xp.where(xp.any(norms > 0, axis=-1, keepdims=True), norms, 1.0)
        shares = norms / xp.sum(norms, axis=-1, keepdims=True)
        for sample in samples_by_share(shares, uniforms, sizes, tokens.value.dtype):
            yield SampleSummary(tokens, *sample)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        """Return samples of the first keys: those that come first in one random order of all keys."""
        order = streams.draw(lambda rng: rng.permutation(tokens.length))

        def summary_of(stop: int) -> KeySummary:
            seen = tokens.part(slice(0, stop))
            return SampleSummary(seen, *uniform_sample(seen, first_in_order(order, stop)[..., :size]))

        return summary_of


@dataclass(frozen=True)
class SampleSummary:
    """K(x, y_j) = sum over the draws s of key j of exp(x.y_j + log_weight_s).

    index, log_weight: of the sampled keys, (..., m).
    """

    tokens: Tokens
    index: Array
    log_weight: Array

    @cached_property
    def sample(self) -> Tokens:
        """The sampled keys and their values."""
        return self.tokens.at(self.index)

    def sums(self, queries: Queries) -> Accumulator:
        return weighted_sums(queries.query @ self.sample.key.mT + self.log_weight[..., None, :], self.sample.value)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, logits = array_namespace(queries.query), logits_of(queries, self.tokens, keys)
        places = xp.arange(keys.start, keys.stop, device=device(logits))
        drawn = xp.astype(self.index[..., :, None] == places, logits.dtype)
        weight = xp.sum(drawn * xp.exp(self.log_weight)[..., None], axis=-2)[..., None, :]
        return Features(None, logits + xp.where(weight > 0, xp.log(xp.where(weight > 0, weight, 1.0)), -xp.inf))


def rounds_of(length: int, size: int) -> list[tuple[int, int]]:
    """The halvings that leave ``size`` of size 2^t <= length keys: numbers of buckets, and of adjacent keys in each.

    The last has one bucket, each one before it four times as many, which halves the width, as long as it stays whole
    and even.
    """
    rounds = []
    for i in range((length // size).bit_length() - 1):
        total, buckets = size << (i + 1), 4**i
        while total % (2 * buckets):
            buckets //= 2
        rounds.append((buckets, total // buckets))
    return rounds[::-1]


@dataclass(frozen=True)
class Thinformer(KeySummaryMethod):
    """K(x, y_j) = (l / m) exp(x.y_j) on the m keys that repeated halving leaves, else 0.

    The m 2^t <= l keys that are evenly spaced among l are halved t times, in buckets of adjacent keys. One key of each
    adjacent pair is kept: with f = k(y, .) - k(y', .), k(y, y') = exp(y.y') (v.v' + b^2), b the largest entry of v, and
    S the sum of the kept keys less the others, y is kept with probability 1/2 - <S, f> / (2 a) and y' else. Here
    a = |f| (the largest |f| so far) (1/2 + log(2 w / delta')), for w keys and the bucket's share delta' of ``delta``.
    With probability 1/2 all choices of a bucket are reversed.
    Carrell et al. 2025 ("Thinformer", KH-Compress), arXiv 2502.12063. At m = 2^g sqrt(l), l a power of 4, as released.
    """

    name = "thinformer"
    reference = "Carrell et al. 2025, arXiv 2502.12063"
    description = "softmax over m keys that kernel halving leaves"
    convex = True
    exact_at_full_size = True
    permutation_invariant = False
    delta: float = positive(0.5, most=1)

    def multiplications(self, shape: Shape, size: int) -> float:
        """d + d_v for each pair of keys in a bucket, and for each query and remaining key."""
        pairs = sum(buckets * width * width for buckets, width in rounds_of(shape.l, size))
        return float((pairs + shape.n * size) * shape.per_pair)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of every pair."""
        return float(shape.n * shape.l * shape.d)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The kernel of the largest round, three times."""
        return 3 * max((buckets * width**2 for buckets, width in rounds_of(shape.l, size)), default=0)

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        xp, uniforms = array_namespace(tokens.key), streams.draw(lambda rng: rng.random((2, tokens.length)))
        exact = Tokens(*(xp.astype(a, xp.float64, copy=False) for a in tokens))  # rounding would change choices
        for size in sizes:
            index = self.kept(exact, size, uniforms[..., 0, :], uniforms[..., 1, :])
            yield SampleSummary(tokens, *uniform_sample(tokens, index))

    def kept(self, tokens: Tokens, size: int, choices: Array, flips: Array) -> Array:
        """Indices (..., m) of the remaining keys.

        choices, flips: uniform numbers, (..., l) or more, one for each pair and one for each bucket, in turn.
        """
        xp, rounds, length = array_namespace(tokens.key), rounds_of(tokens.length, size), tokens.length
        spaced = np.arange(size << len(rounds)) * length // (size << len(rounds))
        index = xp.zeros(tokens.key.shape[:-1], dtype=xp.int64, device=device(tokens.key))[..., : len(spaced)]
        index = index + xp.asarray(spaced, device=device(tokens.key))
        bound = xp.max(xp.abs(tokens.value), axis=(-2, -1), keepdims=True)[..., None, :, :] ** 2
        pairs = slices_of(buckets * width // 2 for buckets, width in rounds)
        whole = slices_of(buckets for buckets, _ in rounds)
        for (buckets, width), of_pairs, of_buckets in zip(rounds, pairs, whole, strict=True):
            shape = (*index.shape[:-1], buckets, width)
            key, value = (xp.reshape(rows_at(a, index), (*shape, a.shape[-1])) for a in tokens)
            index, uniform = xp.reshape(index, shape), xp.reshape(choices[..., of_pairs], (*shape[:-1], width // 2))
            log_factor = 0.5 + math.log(2 * width * len(rounds) * buckets / self.delta)
            first = halved(_kernel(key, value, bound), uniform, log_factor) != (flips[..., of_buckets, None] < 0.5)
            index = xp.where(first, index[..., ::2], index[..., 1::2])
            index = xp.reshape(index, (*index.shape[:-2], buckets * width // 2))
        return index


def slices_of(lengths: Iterator[int]) -> list[slice]:
    """Adjacent slices of these lengths."""
    return [slice(*edges) for edges in itertools.pairwise(itertools.accumulate(lengths, initial=0))]


def _kernel(key: Array, value: Array, bound: Array) -> Array:
    """exp(y.y') (v.v' + b^2) times a factor of each bucket, which cancels: (..., w, w)."""
    xp = array_namespace(key)
    shift = 2 * xp.max(half_squared_norm(key), axis=-2, keepdims=True)
    return xp.exp(key @ key.mT - shift) * (value @ value.mT + bound)


def halved(kernel: Array, uniform: Array, log_factor: float) -> Array:
    """Whether the first of each adjacent pair is kept, (..., w / 2), from the kernel (..., w, w) of a bucket."""
    xp = array_namespace(kernel)
    inner = kernel[..., ::2] - kernel[..., 1::2]
    inner = inner[..., ::2, :] - inner[..., 1::2, :]
    norms = xp.sqrt(xp.clip(xp.linalg.diagonal(inner), 0.0, None))
    largest, products, kept = norms[..., 0], xp.zeros_like(inner[..., 0]), []
    for i in range(norms.shape[-1]):
        largest = xp.maximum(largest, norms[..., i])
        limit = norms[..., i] * largest * log_factor
        lean = xp.where(limit > 0, products[..., i] / xp.where(limit > 0, limit, 1.0), 0.0)
        first = uniform[..., i] > 0.5 + 0.5 * lean
        products = products + (2 * xp.astype(first, inner.dtype) - 1)[..., None] * inner[..., i, :]
        kept.append(first)
    return xp.stack(kept, axis=-1)
