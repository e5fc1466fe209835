"""A feature map as a method that keeps a summary of the keys: what prefixes are exact beside."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from favorbench.attention.linear import linear_multiplications
from favorbench.maps import FeatureMap, Sample
from favorbench.maps.base import claim
from favorbench.methods.base import Method, Shape
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens, causal_multiplications
from favorbench.numerics.arrays import Features, array_namespace, projected
from favorbench.numerics.logsum import Accumulator, accumulate, joined, prefix_sums, tiles, with_ones
from favorbench.numerics.streams import Streams
from favorbench.registry import label
from favorbench.samplers import Sampler, get_sampler

MAX_PROJECTIONS = 1 << 20  # as a scenario has it


@dataclass(frozen=True)
class FromMap(KeySummaryMethod):
    """Linear attention with a feature map of m projections from a sampler, fitted to the queries where it takes any."""

    wrapped: FeatureMap
    sampler: str | Sampler = "orthogonal"
    reference: ClassVar[str] = "Katharopoulos et al. 2020, arXiv 2006.16236"
    description: ClassVar[str] = "linear attention with a feature map"
    convex = claim(lambda self: self.wrapped.nonnegative)
    unbiased = claim(lambda self: self.wrapped.unbiased)
    causal_safe = claim(lambda self: self.wrapped.causal_safe)
    random = claim(lambda self: self.wrapped.randomness != "none")
    every_size = claim(lambda self: self.wrapped.randomness != "none")
    features_per_size = claim(lambda self: self.wrapped.features_per_projection or 1)
    name = claim(lambda self: self.wrapped.name)

    def largest_size(self, shape: Shape) -> int:
        return MAX_PROJECTIONS

    def check(self, sizes: tuple[int, ...], shape: Shape) -> None:
        if self.wrapped.randomness == "omega":
            for size in sizes:
                get_sampler(self.sampler).check(size, shape.d)

    def num_features(self, size: int, head_dim: int) -> int:
        return self.wrapped.num_features(size, head_dim)

    def width(self, size: int, length: int) -> int:
        return max(size, self.wrapped.features_per_projection * size)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        work = self.wrapped.multiplications(shape.n, shape.l, shape.d, shape.d_v, size)
        return work if work is None or not shape.causal else work + causal_multiplications(shape)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        features = self.wrapped.num_features(size, shape.d)
        return float((shape.n + shape.l) * size * shape.d + shape.n * shape.l * features)

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        for size, own in zip(sizes, streams.for_sizes(len(sizes)), strict=True):
            state = self._state(tokens, size, own)
            state.map = self.wrapped.fit(queries.query, tokens.key, state.sample.omega)
            yield state.extend(tokens.length)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> "StreamingFeatures":
        return self._state(tokens, size, streams)

    def _state(self, tokens: Tokens, size: int, streams: Streams) -> "StreamingFeatures":
        d = tokens.key.shape[-1]
        law = get_sampler(self.sampler if self.wrapped.randomness == "omega" else "iid")
        omega = streams.draw(lambda rng: law.sample(rng, size, d))
        extra = streams.draw(lambda rng: self.wrapped.draw_extra(rng, size, d)) if self.wrapped.draws_extra else None  # pyright: ignore[reportArgumentType]
        xp = array_namespace(tokens.key)
        omega, extra = (a if a is None else xp.astype(a, tokens.key.dtype, copy=False) for a in (omega, extra))
        return StreamingFeatures(self.wrapped, tokens, Sample(omega, extra))


def name_of(method: Method) -> str:
    """The label of an estimator: of the map in linear attention."""
    return label(method.wrapped if isinstance(method, LinearAttention) else method)


def sampler_of(method: Method) -> str | None:
    """The label of the sampler that draws for a map; None where no sampler can be chosen."""
    if isinstance(method, LinearAttention) and method.wrapped.randomness == "omega":
        return label(method.law)
    return None


@dataclass(frozen=True)
class LinearAttention(FromMap):
    """A map as an estimator of its own: a sweep measures all maps of a sampler, and all sizes, from one projection."""

    @property
    def law(self) -> Sampler:
        """Of its projections; of no account where a map looks at none."""
        return get_sampler(self.sampler if self.wrapped.randomness == "omega" else "iid")

    @property
    def source(self) -> str:
        """Where its randomness comes from, in the names of its streams."""
        return label(self.law) if self.wrapped.randomness == "omega" else self.wrapped.randomness

    def multiplications(self, shape: Shape, size: int) -> float | None:
        return linear_multiplications(self.wrapped, shape, size)

    def drawable(self, size: int, shape: Shape) -> int:
        fitting = (one for one in range(size, 0, -1) if self.law.round_up(one, shape.d) == one)
        return next(fitting, size)


class StreamingFeatures:
    """Sums over the first keys of feature times [value, 1], for each block of features."""

    def __init__(self, feature_map: FeatureMap, tokens: Tokens, sample: Sample) -> None:
        self.map, self.tokens, self.sample, self.known = feature_map, tokens, sample, 0
        self.blocks: list[Accumulator | None] = []

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        new = self.tokens.part(slice(self.known, stop))
        width = self.map.num_features(self.sample.omega.shape[-2], new.key.shape[-1])
        for rows in tiles(new.length, width, new.key):
            part = new.part(rows)
            found = self.map.key_features(part.key, projected(part.key, self.sample.omega), self.sample)
            self.blocks = self.blocks or [None] * len(found)
            values = with_ones(part.value)
            self.blocks = [
                accumulate(state, block.transposed(), values) for state, block in zip(self.blocks, found, strict=True)
            ]
        self.known = stop
        return FeatureSummary(self.map, self.tokens, self.sample, [state for state in self.blocks if state])


@dataclass(frozen=True)
class FeatureSummary:
    """K(x, y) = phi(x).phi(y) / R."""

    map: FeatureMap
    tokens: Tokens
    sample: Sample
    blocks: Sequence[Accumulator]

    def sums(self, queries: Queries) -> Accumulator:
        size = self.sample.omega.shape[-2]
        blocks, rights = joined(
            self._features(queries), [state.log_peak for state in self.blocks], [state.total for state in self.blocks]
        )
        peak, total = prefix_sums(blocks, rights, [size])
        return Accumulator(peak[0, ...], total[0, ...]).times(1 / size)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, size = array_namespace(queries.query), self.sample.omega.shape[-2]
        key = self.tokens.key[..., keys, :]
        of_key = self.map.key_features(key, projected(key, self.sample.omega), self.sample)
        found = []
        for a, b in zip(self._features(queries), of_key, strict=True):
            peak_a, peak_b = (xp.max(block.log_scale, axis=-1, keepdims=True) for block in (a, b))
            product = a.relative_to(peak_a) @ xp.matrix_transpose(b.relative_to(peak_b))
            weight = 0.0 if a.fixed else math.log(size)
            found.append((product, peak_a + xp.matrix_transpose(peak_b) - weight))
        peak = functools.reduce(xp.maximum, [log for _, log in found])
        return Features(sum(product * xp.exp(log - peak) for product, log in found), peak)

    def _features(self, queries: Queries) -> tuple[Features, ...]:
        return self.map.query_features(queries.query, projected(queries.query, self.sample.omega), self.sample)
