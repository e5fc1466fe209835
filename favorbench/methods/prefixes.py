"""Prefixes: exact on a few keys, another method or a map on the rest, with one normaliser."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from favorbench.errors import InputError, ScenarioError
from favorbench.maps import FeatureMap
from favorbench.maps.base import claim
from favorbench.methods.base import Method, Shape
from favorbench.methods.features import FromMap
from favorbench.methods.guarded import with_exact
from favorbench.methods.partly_exact import BLOCK, SinksSummary, TopSummary, WindowSummary, moved
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, StreamingSummary, Tokens
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole
from favorbench.registry import label
from favorbench.samplers import get_sampler


@dataclass(frozen=True)
class ExactKeys(KeySummaryMethod):
    """A method or a map with some keys exact; it does and claims what the other does, but for what a subclass says.

    sampler: of the projections, where it is around a map. Raises ScenarioError around a method that has no sums to add
    to.
    """

    wrapped: Method | FeatureMap
    prefix: ClassVar[str]
    convex = claim(lambda self: self.inner.convex)
    unbiased = claim(lambda self: self.inner.unbiased)
    causal_safe = claim(lambda self: self.inner.causal_safe)
    random = claim(lambda self: self.inner.random)
    every_size = claim(lambda self: self.inner.every_size)
    exact_at_full_size = claim(lambda self: self.inner.exact_at_full_size)
    arrays = claim(lambda self: self.inner.arrays)
    needs_positions = claim(lambda self: self.inner.needs_positions)
    alternatives = claim(lambda self: self.inner.alternatives)
    first = claim(lambda self: self.inner.first)
    last = claim(lambda self: self.inner.last)
    features_per_size = claim(lambda self: self.inner.features_per_size)
    permutation_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.wrapped, FeatureMap | KeySummaryMethod):
            raise ScenarioError(
                f"{label(self.wrapped)} has no sums over keys that exact ones could be added to; allowed inside "
                f"{self.prefix}: maps, {', '.join(_with_sums(KeySummaryMethod))}"
            )
        get_sampler(self.law)

    @property
    def law(self) -> str:
        """The sampler for a map inside."""
        return "orthogonal"

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return label(self)

    @property
    def inner(self) -> KeySummaryMethod:
        """What answers for the rest."""
        if isinstance(self.wrapped, FeatureMap):
            return FromMap(self.wrapped, self.law)
        assert isinstance(self.wrapped, KeySummaryMethod)
        return self.wrapped

    def largest_size(self, shape: Shape) -> int:
        return self.inner.largest_size(shape)

    def check(self, sizes: tuple[int, ...], shape: Shape) -> None:
        self.inner.check(sizes, shape)

    def num_features(self, size: int, head_dim: int) -> int:
        return self.inner.num_features(size, head_dim)

    def recent(self, size: int) -> int:
        return max(self.last, self.inner.recent(size))

    def width(self, size: int, length: int) -> int:
        return self.inner.width(size, length)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> StreamingSummary:
        return self.inner.streaming(tokens, size, streams)


def _with_sums(base: type) -> list[str]:
    """The names of all methods that keep sums over keys."""
    own = [name] if isinstance(name := vars(base).get("name"), str) else []
    return own + [name for derived in base.__subclasses__() for name in _with_sums(derived)]


@dataclass(frozen=True)
class Sinks(ExactKeys):
    """The first n keys exactly, the method on those after them: the tokens that language models attend to from afar.

    Xiao et al. 2023 ("attention sinks"), arXiv 2309.17453.
    """

    n: int
    sampler: str = "orthogonal"
    prefix: ClassVar[str] = "sinks"
    reference: ClassVar[str] = "Xiao et al. 2023, arXiv 2309.17453"
    description: ClassVar[str] = "the first n keys exactly, METHOD on the rest"
    first = claim(lambda self: self.n + self.inner.first)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("n", self.n, 1, 1 << 20)

    @property
    def law(self) -> str:
        return self.sampler

    def largest_size(self, shape: Shape) -> int:
        return self.inner.largest_size(shape._replace(l=shape.l - self.n))

    def check(self, sizes: tuple[int, ...], shape: Shape) -> None:
        if self.first >= shape.l:
            raise ScenarioError(f"{self.name}: n must be below the {shape.l} keys there are, got {self.first}")
        if self.inner.every_size and sizes[-1] > self.largest_size(shape):
            raise ScenarioError(
                f"{self.name}: size {sizes[-1]} given, allowed: at most the {self.largest_size(shape)} keys after the "
                f"first {self.first}"
            )
        self.inner.check(sizes, shape._replace(l=shape.l - self.n))

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        rest = tokens.part(slice(self.n, None))
        for inner in self.inner.summaries(rest, moved(queries, self.n), sizes, streams):
            yield with_exact(inner, lambda part: SinksSummary(tokens, self.n, part), tokens.value)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        inner = self.inner.multiplications(shape._replace(l=shape.l - self.n), size)
        pairs = self.alternatives * float(shape.n * self.n * (shape.d + shape.d_v))
        return None if inner is None else inner + pairs

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.inner.pair_multiplications(shape, size) + float(shape.n * min(self.n, shape.l) * shape.d)


@dataclass(frozen=True)
class Window(ExactKeys):
    """The w keys nearest to each query exactly, half of them before and half after it, the method on the rest.

    Where attention is causal at least the last w keys up to the query's own. The estimate of the kernel on these keys
    is taken out of the sums again, and the exact one put in: Chen et al. 2021 ("Scatterbrain"), arXiv 2110.15343.
    """

    w: int
    sampler: str = "orthogonal"
    prefix: ClassVar[str] = "window"
    reference: ClassVar[str] = "Chen et al. 2021, arXiv 2110.15343"
    description: ClassVar[str] = "the w keys nearest to each query exactly, METHOD on the rest"
    last = claim(lambda self: max(self.w, self.inner.last))
    needs_positions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("w", self.w, 1, 1 << 20)

    @property
    def law(self) -> str:
        return self.sampler

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        if queries.positions is None:
            raise InputError(f"{self.name}: there is no window where queries and keys are not the same tokens")
        for inner in self.inner.summaries(tokens, queries, sizes, streams):
            yield with_exact(inner, lambda part: WindowSummary(tokens, self.w, part), tokens.value)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        """Exact and estimated, for the keys of a block of queries: its windows, and the block itself."""
        inner = self.inner.multiplications(shape, size)
        if inner is None or shape.causal:
            return None if inner is None else inner + float(shape.n * min(self.w, shape.l) * (shape.d + shape.d_v))
        keys, blocks = min(self.w + BLOCK, shape.l), max(1, -(-shape.n // BLOCK))
        block = shape._replace(n=min(shape.n, BLOCK), l=keys)
        pairs = self.alternatives * float(shape.n * keys * (shape.d + 2 * shape.d_v))
        return inner + pairs + blocks * self.inner.pair_multiplications(block, size)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.inner.pair_multiplications(shape, size) + float(shape.n * shape.l * shape.d)


@dataclass(frozen=True)
class Top(ExactKeys):
    """The k keys with the largest logits exactly, the method on the rest: an oracle, which looks at every pair.

    What any approximate search for the nearest keys is measured against; k may not be above the size of the method.
    """

    k: int
    sampler: str = "orthogonal"
    prefix: ClassVar[str] = "top"
    reference: ClassVar[str] = "Chen et al. 2021, arXiv 2110.15343 (its best case)"
    description: ClassVar[str] = "oracle: the k keys with the largest logits exactly, METHOD on the rest"
    oracle: ClassVar[bool] = True
    causal_safe: ClassVar[bool] = False
    permutation_invariant = claim(lambda self: self.inner.permutation_invariant)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("k", self.k, 1, 1 << 20)

    @property
    def law(self) -> str:
        return self.sampler

    def check(self, sizes: tuple[int, ...], shape: Shape) -> None:
        if self.k > sizes[0]:
            raise ScenarioError(f"{self.name}: k must be at most the size, {sizes[0]}, got {self.k}")
        self.inner.check(sizes, shape)

    def width(self, size: int, length: int) -> int:
        return max(length, self.inner.width(size, length))

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        for inner in self.inner.summaries(tokens, queries, sizes, streams):
            yield with_exact(inner, lambda part: TopSummary(tokens, min(self.k, tokens.length), part), tokens.value)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        inner = self.inner.multiplications(shape, size)
        pairs = self.alternatives * float(shape.n * shape.l * (2 * shape.d + 2 * shape.d_v))
        return None if inner is None else inner + pairs + self.inner.pair_multiplications(shape, size)
