"""Prefixes: some keys exactly, and another method or a map for the rest, with one normaliser."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import chunk_multiplications, rows_between
from favorbench.errors import InputError, ScenarioError
from favorbench.maps import FeatureMap
from favorbench.maps.base import claim
from favorbench.methods.base import Method, Shape, Sizes
from favorbench.methods.features import FromMap
from favorbench.methods.landmarks import GuardedSummary
from favorbench.methods.summaries import (
    GrowingSummary,
    KeySummary,
    KeySummaryMethod,
    Queries,
    Tokens,
    logits_of,
)
from favorbench.numerics.arrays import Array, Features, array_namespace, largest, masked, scattered
from favorbench.numerics.logsum import Accumulator, Sums, accumulate, attention_sums, joined, merge, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import whole
from favorbench.registry import label
from favorbench.samplers import Sampler, get_sampler

BLOCK = 64  # queries whose windows are taken together: their keys are adjacent


@dataclass(frozen=True)
class ExactKeys(KeySummaryMethod):
    """A method or a map with some keys exact; it behaves like the other, except where a subclass overrides it.

    sampler: of the projections, around a map. Raises ScenarioError around a method that has no sums over keys.
    """

    wrapped: Method | FeatureMap
    sampler: str = field(default="orthogonal", kw_only=True)
    _law: Sampler = field(init=False, repr=False, compare=False)  # the one that it names, to be sent to workers
    prefix: ClassVar[str]
    permutation_invariant = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_law", get_sampler(self.sampler))
        super().__post_init__()
        if not isinstance(self.wrapped, FeatureMap | KeySummaryMethod):
            raise ScenarioError(
                f"{label(self.wrapped)} has no sums over keys that exact ones could be added to; allowed inside "
                f"{self.prefix}: maps, {', '.join(_with_sums(KeySummaryMethod))}"
            )

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return label(self)

    @property
    def inner(self) -> KeySummaryMethod:
        """The method for the rest of the keys."""
        if isinstance(self.wrapped, FeatureMap):
            return FromMap(self.wrapped, self._law)
        assert isinstance(self.wrapped, KeySummaryMethod)
        return self.wrapped

    @abstractmethod
    def exact(self, tokens: Tokens, inner: KeySummary) -> KeySummary:
        """Put the exact keys into a summary."""

    def rest(self, tokens: Tokens, queries: Queries) -> tuple[Tokens, Queries]:
        """Tokens and queries for the method inside."""
        return tokens, queries

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        for inner in self.inner.summaries(*self.rest(tokens, queries), sizes, streams):
            yield self.with_exact(tokens, inner)

    def with_exact(self, tokens: Tokens, inner: KeySummary) -> KeySummary:
        """Put the exact keys into a summary: inside a guard, which then judges the whole answer.

        Outside of the guard, the exact keys would replace estimates in an answer that was chosen because of them: what
        is left of a normaliser without them may have any sign.
        """
        if isinstance(inner, GuardedSummary):
            return GuardedSummary.of(self.exact(tokens, inner.free), self.exact(tokens, inner.bound), tokens.value)
        return self.exact(tokens, inner)

    def recent(self, size: int) -> int:
        return max(self.last, self.inner.recent(size))

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        return self.inner.streaming(tokens, size, streams)


for _claim in (
    "convex", "unbiased", "causal_safe", "random", "oracle", "every_size", "exact_at_full_size", "arrays",
    "needs_positions", "needs_all_rows", "fits_queries", "alternatives", "group", "first", "last", "features_per_size",
    "largest_size", "check", "choice_multiplications", "matrix_entries", "num_features", "width", "chunk",
    "shared_block", "summarised", "causal_block",
):  # fmt: skip
    setattr(ExactKeys, _claim, claim(attrgetter(f"inner.{_claim}")))


def _with_sums(base: type) -> list[str]:
    """The names of all methods that keep sums over keys."""
    names = [name] if isinstance(name := vars(base).get("name"), str) else []
    return names + [name for derived in base.__subclasses__() for name in _with_sums(derived)]


@dataclass(frozen=True)
class Sinks(ExactKeys):
    """The first n keys exactly, the method on those after them: language models attend to these tokens from afar.

    Xiao et al. 2023 ("attention sinks"), arXiv 2309.17453.
    """

    n: int = whole(1, 1 << 20)
    prefix = "sinks"
    reference = "Xiao et al. 2023, arXiv 2309.17453"
    description = "the first n keys exactly, METHOD on the rest"
    first = claim(lambda self: self.n + self.inner.first)

    def inside(self, shape: Shape) -> Shape:
        """The sizes of the problem for the method inside."""
        return shape._replace(l=shape.l - self.n)

    def largest_size(self, shape: Shape) -> int:
        return self.inner.largest_size(self.inside(shape))

    def check(self, sizes: Sizes, shape: Shape) -> None:
        if self.first >= shape.l:
            raise ScenarioError(f"{self.name}: n must be below {shape.l}, the number of keys, got {self.first}")
        if self.inner.every_size and sizes[-1] > self.largest_size(shape):
            raise ScenarioError(
                f"{self.name}: size {sizes[-1]} given, allowed: at most the {self.largest_size(shape)} keys after the "
                f"first {self.first}"
            )
        self.inner.check(sizes, self.inside(shape))

    def exact(self, tokens: Tokens, inner: KeySummary) -> KeySummary:
        return SinksSummary(tokens, self.n, inner)

    def rest(self, tokens: Tokens, queries: Queries) -> tuple[Tokens, Queries]:
        return tokens.part(slice(self.n, None)), queries.moved(self.n)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        inner = self.inner.multiplications(self.inside(shape), size)
        return None if inner is None else inner + self.alternatives * float(shape.n * self.n * shape.per_pair)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.inner.pair_multiplications(shape, size) + float(shape.n * min(self.n, shape.l) * shape.d)


@dataclass(frozen=True)
class SinksSummary:
    """K(x, y_j) = exp(x.y_j) for the first keys, as inside for the rest."""

    tokens: Tokens
    n: int
    inner: KeySummary

    def sums(self, queries: Queries) -> Sums:
        first = attention_sums(queries.query, *self.tokens.part(slice(0, self.n)))
        return merge(self.inner.sums(queries.moved(self.n)), first)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        first = logits_of(queries, self.tokens, slice(keys.start, min(keys.stop, self.n)))
        if keys.stop <= self.n:
            return Features(None, first)
        rest = slice(max(keys.start, self.n) - self.n, keys.stop - self.n)
        values, logs, _ = self.inner.kernel(queries.moved(self.n), rest)
        values = None if values is None else xp.concat([xp.ones_like(first), values], axis=-1)
        return Features(values, xp.concat([first, logs], axis=-1))


@dataclass(frozen=True)
class Window(ExactKeys):
    """The w keys nearest to each query exactly, half of them before and half after it, the method on the rest.

    In causal attention, the w keys of the first query of its chunk of 128 positions, and the chunk up to its own key:
    w to w + 127 keys, or more if the method keeps more. The estimate of the kernel on these keys is subtracted from
    the sums again, and the exact one added: Chen et al. 2021 ("Scatterbrain"), arXiv 2110.15343.
    """

    w: int = whole(1, 1 << 20)
    prefix = "window"
    reference = "Chen et al. 2021, arXiv 2110.15343"
    description = "the w keys nearest to each query exactly (causal: and its chunk of 128), METHOD on the rest"
    last = claim(lambda self: max(self.w, self.inner.last))
    needs_positions = True

    def exact(self, tokens: Tokens, inner: KeySummary) -> KeySummary:
        return WindowSummary(tokens, self.w, inner)

    def rest(self, tokens: Tokens, queries: Queries) -> tuple[Tokens, Queries]:
        if queries.positions is None:
            raise InputError(f"{self.name}: there is no window where queries and keys are not the same tokens")
        return tokens, queries

    def multiplications(self, shape: Shape, size: int) -> float | None:
        """Exact and estimated, for the keys of a block of queries: its windows, and the block itself."""
        inner = self.inner.multiplications(shape, size)
        if inner is None or shape.causal:
            return None if inner is None else inner + float(shape.n * min(self.w, shape.l) * shape.per_pair)
        keys, blocks = min(self.w + BLOCK, shape.l), max(1, -(-shape.n // BLOCK))
        block = shape._replace(n=min(shape.n, BLOCK), l=keys)
        pairs = self.alternatives * float(shape.n * keys * (shape.d + 2 * shape.d_v))
        again = blocks * self.inner.pair_multiplications(block, size) + self.inner.choice_multiplications(shape, size)
        return inner + pairs + again

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.inner.pair_multiplications(shape, size) + float(shape.n * shape.l * shape.d)


@dataclass(frozen=True)
class ExactInstead:
    """K(x, y_j) = exp(x.y_j) for ``count`` keys of each query, as inside for the rest."""

    tokens: Tokens
    count: int
    inner: KeySummary

    @abstractmethod
    def chosen(self, queries: Queries, keys: slice) -> Array:
        """Which of these keys are exact for each query: (..., n, k)."""

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, exact = array_namespace(queries.query), logits_of(queries, self.tokens, keys)
        where, (values, logs, _) = self.chosen(queries, keys), self.inner.kernel(queries, keys)
        return Features(None if values is None else xp.where(where, 1.0, values), xp.where(where, exact, logs))


class WindowSummary(ExactInstead):
    """The exact keys are those within ``count`` keys around a query."""

    def sums(self, queries: Queries) -> Sums:
        parts = []
        block_of = (queries.positions - queries.positions[:1]) // BLOCK  # whole groups of queries that choose together
        for block in np.unique(block_of):
            some = queries.part(rows_between(block_of, block, block + 1))
            first = min(max(0, int(some.positions[0]) - self.count // 2), self.tokens.length - 1)
            last = int(some.positions[-1]) + (self.count + 1) // 2
            keys = slice(first, max(first + 1, min(self.tokens.length, last)))
            parts.append(exact_instead(self.inner, some, self.tokens, keys, self.chosen(some, keys)))
        return merge(self.inner.sums(queries), joined(parts))

    def chosen(self, queries: Queries, keys: slice) -> Array:
        distance = np.arange(keys.start, keys.stop) - queries.positions[:, None]
        near = (distance >= -(self.count // 2)) & (distance < (self.count + 1) // 2)
        return array_namespace(queries.query).asarray(near, device=device(queries.query))


@dataclass(frozen=True)
class Top(ExactKeys):
    """The k keys with the largest logits exactly, the method on the rest: an oracle, which evaluates every pair.

    The best case of any approximate search for the nearest keys; k may not be above the size of the method.
    """

    k: int = whole(1, 1 << 20)
    prefix = "top"
    reference = "Chen et al. 2021, arXiv 2110.15343 (its best case)"
    description = "oracle: the k keys with the largest logits exactly, METHOD on the rest"
    oracle = True
    causal_safe = False
    permutation_invariant = claim(lambda self: self.inner.permutation_invariant)

    def check(self, sizes: Sizes, shape: Shape) -> None:
        if self.k > sizes[0]:
            raise ScenarioError(f"{self.name}: k must be at most the size, {sizes[0]}, got {self.k}")
        self.inner.check(sizes, shape)

    def width(self, size: int, length: int) -> int:
        return max(length, self.inner.width(size, length))

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Beside a map, the features of all keys are held at once."""
        features = self.inner.num_features(size, shape.d) if isinstance(self.inner, FromMap) else 0
        return self.inner.matrix_entries(shape, size) + shape.l * features

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """Logits of every pair."""
        return self.inner.choice_multiplications(shape, size) + float(shape.n * shape.l * shape.d)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.inner.pair_multiplications(shape, size) + float(shape.n * shape.l * shape.d)

    def exact(self, tokens: Tokens, inner: KeySummary) -> KeySummary:
        return TopSummary(tokens, min(self.k, tokens.length), inner)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        inner = self.inner.multiplications(shape, size)
        pairs = self.alternatives * float(shape.n * shape.l * 2 * shape.per_pair)
        again = self.inner.pair_multiplications(shape, size) + self.inner.choice_multiplications(shape, size)
        return None if inner is None else inner + pairs + again


class TopSummary(ExactInstead):
    """The exact keys are those with the largest logits."""

    def sums(self, queries: Queries) -> Sums:
        keys = slice(0, self.tokens.length)
        correction = exact_instead(self.inner, queries, self.tokens, keys, self.chosen(queries, keys))
        return merge(self.inner.sums(queries), correction)

    def chosen(self, queries: Queries, keys: slice) -> Array:
        logits = logits_of(queries, self.tokens, slice(None))
        index, xp = largest(logits, self.count), array_namespace(logits)
        flags = scattered(xp.ones(index.shape, dtype=xp.bool, device=device(index)), index, logits.shape[-1])
        return flags[..., keys]


def exact_instead(inner: KeySummary, queries: Queries, tokens: Tokens, keys: slice, where: Array) -> Accumulator:
    """Sum of (exp(x.y_j) - K(x, y_j)) [v_j, 1] over the adjacent keys for which a flag (..., n, k) is set."""
    xp, right = array_namespace(queries.query), with_ones(tokens.value[..., keys, :])
    exact, estimate = logits_of(queries, tokens, keys), inner.kernel(queries, keys)
    less = -xp.ones_like(exact) if estimate.values is None else -estimate.values
    values = xp.concat([less, xp.ones_like(exact)], axis=-1)
    logs = [masked(log, where) for log in (estimate.log_scale, exact)]
    return accumulate(None, Features(values, xp.concat(logs, axis=-1)), xp.concat([right, right], axis=-2))


@dataclass(frozen=True)
class Nothing(KeySummaryMethod):
    """No keys at all: ``sinks(4):window(256):nothing`` is attention to the first and the nearest keys only.

    Xiao et al. 2023 ("StreamingLLM"), arXiv 2309.17453, whose windows are without a chunk; a window alone,
    ``window(256):nothing``, is a baseline for every method that chooses keys.
    """

    name = "nothing"
    reference = "Xiao et al. 2023, arXiv 2309.17453"
    description = "no keys: behind sinks and windows, attention to these alone"
    random = False
    every_size = False
    causal_safe = True
    convex = True
    permutation_invariant = False

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        for _ in sizes:
            yield NoKeys(tokens)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        return lambda stop: NoKeys(tokens)

    def num_features(self, size: int, head_dim: int) -> int:
        return 0

    def multiplications(self, shape: Shape, size: int) -> float:
        """Those of the chunk where attention is causal."""
        return chunk_multiplications(shape, shape.d)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return 0.0


class NoKeys(NamedTuple):
    """K = 0 for all keys."""

    tokens: Tokens

    def sums(self, queries: Queries) -> Sums:
        xp, like = array_namespace(queries.query), 0.0 * queries.query[..., :1]
        return Accumulator(
            like + xp.finfo(like.dtype).min, xp.zeros_like(with_ones(like * self.tokens.value[..., :1, :]))
        )

    def kernel(self, queries: Queries, keys: slice) -> Features:
        pairs = queries.query[..., :1] + self.tokens.key[..., keys, :1].mT
        xp = array_namespace(pairs)
        return Features(None, xp.full_like(pairs, -xp.inf))
