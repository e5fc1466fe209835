"""Feature maps as methods that keep a summary of the keys: linear attention, also inside prefixes."""

from collections.abc import Iterator
from dataclasses import dataclass

from favorbench.attention.causal import CHUNK, chunk_multiplications
from favorbench.attention.linear import linear_multiplications
from favorbench.attention.problem import projection_of
from favorbench.maps import FeatureMap, Sample
from favorbench.maps.base import checked_blocks, claim
from favorbench.methods.base import Method, Shape, Sizes
from favorbench.methods.summaries import GrowingSummary, KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.arrays import Array, Features
from favorbench.numerics.logsum import Accumulator, accumulate_blocks, query_sums, summed_products, tiles, with_ones
from favorbench.numerics.streams import Streams
from favorbench.registry import label
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.base import draw_omega

MAX_PROJECTIONS = 1 << 20  # as a scenario has it


@dataclass(frozen=True)
class FromMap(KeySummaryMethod):
    """Linear attention with a feature map of m projections from a sampler, fitted to the queries where it takes any."""

    wrapped: FeatureMap
    sampler: str | Sampler = "orthogonal"
    reference = "Katharopoulos et al. 2020, arXiv 2006.16236"
    description = "linear attention with a feature map"
    convex = claim(lambda self: self.wrapped.nonnegative)
    unbiased = claim(lambda self: self.wrapped.unbiased)
    causal_safe = claim(lambda self: self.wrapped.causal_safe)
    fits_queries = claim(lambda self: self.wrapped.data_dependent)
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

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """All it draws, three summaries of [v, 1] for each feature, features: of one token, causal twice of a chunk."""
        rows = 2 * min(CHUNK, shape.n) if shape.causal else 1
        drawn = size * shape.d + self.wrapped.extra_entries(size, shape.d)
        return drawn + self.num_features(size, shape.d) * (3 * (shape.d_v + 1) + rows)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        work = self.wrapped.multiplications(shape.n, shape.l, shape.d, shape.d_v, size)
        return None if work is None else work + chunk_multiplications(shape, shape.d)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        tokens = shape.n, shape.l, shape.d
        features = (self.wrapped.multiplications(*tokens, 0, size) or 0.0) - self.wrapped.fit_multiplications(*tokens)
        return features + float(shape.n * shape.l * self.wrapped.num_features(size, shape.d))

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        for size, generators in zip(sizes, streams.for_sizes(len(sizes)), strict=True):
            state = self._state(tokens, size, generators)
            fit_query = queries.query if queries.fit_query is None else queries.fit_query
            state.map = self.wrapped.fit(fit_query, tokens.key, state.sample.omega)
            yield state.extend(tokens.length)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        return self._state(tokens, size, streams).extend

    @property
    def law(self) -> Sampler:
        """The sampler of the projections, any for a map that uses none."""
        return get_sampler(self.sampler if self.wrapped.randomness == "omega" else "iid")

    def _state(self, tokens: Tokens, size: int, streams: Streams) -> "FeatureSummary":
        d = tokens.key.shape[-1]
        omega = streams.draw(lambda rng: draw_omega(self.law, rng, size, d), tokens.key)
        extra = streams.draw(lambda rng: self.wrapped.draw_extra(rng, size, d))  # uniforms must not round to 1
        return FeatureSummary(self.wrapped, tokens, Sample(omega, extra))


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
    """A map as an estimator: a sweep measures all maps of a sampler, at all sizes, from one projection."""

    @property
    def source(self) -> str:
        """The source of its randomness, in the names of its streams."""
        return label(self.law) if self.wrapped.randomness == "omega" else self.wrapped.randomness

    def multiplications(self, shape: Shape, size: int) -> float | None:
        return linear_multiplications(self.wrapped, shape, size)

    def drawable(self, size: int, shape: Shape) -> int:
        fitting = (count for count in range(size, 0, -1) if self.law.round_up(count, shape.d) == count)
        return next(fitting, size)


class FeatureSummary:
    """K(x, y) = phi(x).phi(y) / R, from sums over the first keys of feature times [value, 1], for each block."""

    def __init__(self, feature_map: FeatureMap, tokens: Tokens, sample: Sample) -> None:
        self.map, self.tokens, self.sample, self.known = feature_map, tokens, sample, 0
        self.blocks: list[Accumulator] = []

    def extend(self, stop: int) -> KeySummary:
        """Add keys up to the first ``stop`` ones."""
        new = self.tokens.part(slice(self.known, stop))
        width = self.map.num_features(self.sample.omega.shape[-2], new.key.shape[-1])
        for rows in tiles(new.length, width, new.key):
            part = new.part(rows)
            self.blocks = accumulate_blocks(self.blocks, self._of_keys(part.key), with_ones(part.value))
        self.known = stop
        return self

    def sums(self, queries: Queries) -> Accumulator:
        size = self.sample.omega.shape[-2]
        peak, total = query_sums(self._features(queries), self.blocks, [size])
        return Accumulator(peak[0, ...], total[0, ...]).times(1 / size)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        of_key = self._of_keys(self.tokens.key[..., keys, :])
        return summed_products(self._features(queries), of_key, self.sample.omega.shape[-2])

    def _of_keys(self, key: Array) -> tuple[Features, ...]:
        return checked_blocks(self.map, self.map.key_features(key, self._projection(key), self.sample), self.sample)

    def _features(self, queries: Queries) -> tuple[Features, ...]:
        features = self.map.query_features(queries.query, self._projection(queries.query), self.sample)
        return checked_blocks(self.map, features, self.sample)

    def _projection(self, x: Array) -> Array:
        return projection_of(x, self.sample.omega, [self.map])
