"""Softmax attention over a sample of the keys."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import device

from favorbench.errors import ScenarioError
from favorbench.maps.base import claim
from favorbench.methods.base import Shape
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens, causal_multiplications
from favorbench.numerics.arrays import Array, Features, array_namespace
from favorbench.numerics.logsum import Accumulator, accumulate, with_ones
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class SampledKeys(KeySummaryMethod):
    """Softmax over m keys, a uniform sample without replacement: K(x, y_j) = (l / m) exp(x.y_j) on these, else 0.

    weights="values": m draws with replacement, in proportion to |v_j|, each weighted by 1 / (m p_j). Causal: of the
    keys before, a uniform sample. The fair trivial answer: what an estimator of size m should beat.
    """

    name: ClassVar[str] = "sampled-keys"
    reference: ClassVar[str] = "-"
    description: ClassVar[str] = "softmax over m keys sampled uniformly, or in proportion to |v|"
    causal_safe = claim(lambda self: self.weights == "uniform")
    exact_at_full_size = claim(lambda self: self.weights == "uniform")
    convex: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.3", "linestyle": (0, (1, 1)), "label": "sampled-keys (m keys)", "marker": ".", "markersize": 6,
    }  # fmt: skip
    weights: Literal["uniform", "values"] = "uniform"

    def __post_init__(self) -> None:
        if self.weights not in ("uniform", "values"):
            raise ScenarioError(f"weights must be 'uniform' or 'values', got {self.weights!r}")

    def multiplications(self, shape: Shape, size: int) -> float:
        """d + d_v for each query and sampled key."""
        return float(shape.n * size * (shape.d + shape.d_v)) + (causal_multiplications(shape) if shape.causal else 0.0)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of every pair."""
        return float(shape.n * shape.l * shape.d)

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        if self.weights == "uniform":
            order = streams.draw(lambda rng: rng.permutation(tokens.length))
            for size in sizes:
                yield SampleSummary.uniform(tokens, order[..., :size])
            return
        xp = array_namespace(tokens.value)
        uniforms = xp.astype(streams.draw(lambda rng: rng.random(sizes[-1])), tokens.value.dtype, copy=False)
        norms = xp.sqrt(xp.vecdot(tokens.value, tokens.value))
        norms = xp.where(xp.any(norms > 0, axis=-1, keepdims=True), norms, xp.ones_like(norms))
        shares = norms / xp.sum(norms, axis=-1, keepdims=True)
        below = xp.cumulative_sum(shares, axis=-1)[..., None, :] < uniforms[..., :, None]
        index = xp.clip(xp.sum(xp.astype(below, xp.int64), axis=-1), 0, tokens.length - 1)
        for size in sizes:
            drawn = index[..., :size]
            yield SampleSummary.of(tokens, drawn, -xp.log(size * xp.take_along_axis(shares, drawn, axis=-1)))

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> "StreamingSample":
        return StreamingSample(tokens, size, streams.draw(lambda rng: rng.permutation(tokens.length)))


class StreamingSample:
    """A uniform sample of the first keys: those among them that come first in one random order of all."""

    def __init__(self, tokens: Tokens, size: int, order: Array) -> None:
        self.tokens, self.size, self.order = tokens, size, order

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        xp = array_namespace(self.order)
        among = xp.reshape(self.order[self.order < stop], (*self.order.shape[:-1], stop))
        return SampleSummary.uniform(self.tokens.part(slice(0, stop)), among[..., : self.size])


@dataclass(frozen=True)
class SampleSummary:
    """K(x, y_j) = sum over the draws s of key j of exp(x.y_j + log_weight_s)."""

    tokens: Tokens
    sample: Tokens
    log_weight: Array
    index: Array

    @staticmethod
    def of(tokens: Tokens, index: Array, log_weight: Array) -> "SampleSummary":
        """From the indices (..., m) of the sampled keys and their weights (..., m)."""
        xp = array_namespace(tokens.key)
        sample = Tokens(*(xp.take_along_axis(a, index[..., None], axis=-2) for a in tokens))
        return SampleSummary(tokens, sample, log_weight, index)

    @staticmethod
    def uniform(tokens: Tokens, index: Array) -> "SampleSummary":
        """Of a uniform sample without replacement."""
        some = tokens.key[..., : index.shape[-1], 0]
        return SampleSummary.of(tokens, index, some * 0.0 + math.log(tokens.length / index.shape[-1]))

    def sums(self, queries: Queries) -> Accumulator:
        xp = array_namespace(queries.query)
        logits = queries.query @ xp.matrix_transpose(self.sample.key) + self.log_weight[..., None, :]
        return accumulate(None, Features(None, logits), with_ones(self.sample.value))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        logits = queries.query @ xp.matrix_transpose(self.tokens.key[..., keys, :])
        places = xp.arange(keys.start, keys.stop, device=device(logits))
        drawn = xp.astype(self.index[..., :, None] == places, logits.dtype)
        weight = xp.sum(drawn * xp.exp(self.log_weight)[..., None], axis=-2)[..., None, :]
        return Features(None, logits + xp.where(weight > 0, xp.log(xp.where(weight > 0, weight, 1.0)), -xp.inf))
