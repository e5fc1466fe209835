"""Prefixes: exact on a few keys, another method or a map on the rest, with one normaliser."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import device

from favorbench.errors import InputError, ScenarioError
from favorbench.maps import FeatureMap
from favorbench.maps.base import claim
from favorbench.methods.base import Method, Shape
from favorbench.methods.features import FromMap
from favorbench.methods.summaries import Growing, Queries, Summarising, Summary, Tokens, exact_sums
from favorbench.numerics.arrays import Array, Features, array_namespace, largest, scattered
from favorbench.numerics.logsum import Accumulator, accumulate, merge, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole
from favorbench.registry import label
from favorbench.samplers import get_sampler

BLOCK = 64  # queries whose windows are taken together: their keys lie in one row


@dataclass(frozen=True)
class Prefix(Summarising):
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
    first = claim(lambda self: self.inner.first)
    last = claim(lambda self: self.inner.last)
    permutation_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.wrapped, FeatureMap | Summarising):
            raise ScenarioError(
                f"{label(self.wrapped)} has no sums over keys that exact ones could be added to; allowed inside "
                f"{self.prefix}: maps, {', '.join(_with_sums(Summarising))}"
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
    def inner(self) -> Summarising:
        """What answers for the rest."""
        if isinstance(self.wrapped, FeatureMap):
            return FromMap(self.wrapped, self.law)
        assert isinstance(self.wrapped, Summarising)
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

    def growing(self, tokens: Tokens, size: int, streams: Streams) -> Growing:
        return self.inner.growing(tokens, size, streams)


def _with_sums(base: type) -> list[str]:
    """The names of all methods that keep sums over keys."""
    own = [name] if isinstance(name := vars(base).get("name"), str) else []
    return own + [name for derived in base.__subclasses__() for name in _with_sums(derived)]


@dataclass(frozen=True)
class Sinks(Prefix):
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
    ) -> Iterator[Summary]:
        rest = tokens.part(slice(self.n, None))
        for inner in self.inner.summaries(rest, _moved(queries, self.n), sizes, streams):
            yield SinksSummary(tokens, self.n, inner)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        inner = self.inner.multiplications(shape._replace(l=shape.l - self.n), size)
        return None if inner is None else inner + float(shape.n * self.n * (shape.d + shape.d_v))

    def pair_work(self, shape: Shape, size: int) -> float:
        return self.inner.pair_work(shape, size) + float(shape.n * min(self.n, shape.l) * shape.d)


def _moved(queries: Queries, by: int) -> Queries:
    return queries if queries.positions is None else queries._replace(positions=queries.positions - by)


@dataclass(frozen=True)
class SinksSummary:
    """K(x, y_j) = exp(x.y_j) for the first keys, as inside for the rest."""

    tokens: Tokens
    n: int
    inner: Summary

    def sums(self, queries: Queries) -> Accumulator:
        return merge(self.inner.sums(_moved(queries, self.n)), exact_sums(queries, self.tokens, slice(0, self.n)))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, moved = array_namespace(queries.query), _moved(queries, self.n)
        start, stop = keys.start, keys.stop
        parts = []
        if start < self.n:
            first = self.tokens.key[..., start : min(stop, self.n), :]
            parts.append(Features(None, queries.query @ xp.matrix_transpose(first)))
        if stop > self.n:
            parts.append(self.inner.kernel(moved, slice(max(start, self.n) - self.n, stop - self.n)))
        logs = [part.log_scale + xp.zeros_like(part.log_scale) for part in parts]
        signed = any(part.values is not None for part in parts)
        values = [xp.ones_like(log) if p.values is None else p.values for p, log in zip(parts, logs, strict=True)]
        return Features(xp.concat(values, axis=-1) if signed else None, xp.concat(logs, axis=-1))


@dataclass(frozen=True)
class Window(Prefix):
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
    ) -> Iterator[Summary]:
        if queries.positions is None:
            raise InputError(f"{self.name}: there is no window where queries and keys are not the same tokens")
        for inner in self.inner.summaries(tokens, queries, sizes, streams):
            yield WindowSummary(tokens, self.w, inner)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        """Exact and estimated, for the keys of a block of queries: its windows, and the block itself."""
        inner = self.inner.multiplications(shape, size)
        if inner is None or shape.causal:
            return None if inner is None else inner + float(shape.n * min(self.w, shape.l) * (shape.d + shape.d_v))
        keys, blocks = min(self.w + BLOCK, shape.l), max(1, -(-shape.n // BLOCK))
        block = shape._replace(n=min(shape.n, BLOCK), l=keys)
        pairs = float(shape.n * keys * (shape.d + 2 * shape.d_v))
        return inner + pairs + blocks * self.inner.pair_work(block, size)

    def pair_work(self, shape: Shape, size: int) -> float:
        return self.inner.pair_work(shape, size) + float(shape.n * shape.l * shape.d)


@dataclass(frozen=True)
class WindowSummary:
    """K(x_i, y_j) = exp(x_i.y_j) where j is within w keys around i, as inside for the rest."""

    tokens: Tokens
    w: int
    inner: Summary

    def sums(self, queries: Queries) -> Accumulator:
        positions, xp, found = self._positions(queries), array_namespace(queries.query), []
        block_of = positions // BLOCK
        for block in np.unique(block_of):
            rows = slice(*(int(i) for i in np.searchsorted(block_of, (block, block + 1))))
            asked, at = queries.part(rows), positions[rows]
            first = min(max(0, int(at[0]) - self.w // 2), self.tokens.length - 1)
            keys = slice(first, max(first + 1, min(self.tokens.length, int(at[-1]) + (self.w + 1) // 2)))
            near = xp.asarray(self._near(at, keys), device=device(queries.query))
            found.append(exact_instead(self.inner, asked, self.tokens, keys, near))
        correction = Accumulator(*(xp.concat(parts, axis=-2) for parts in zip(*found, strict=True)))
        return merge(self.inner.sums(queries), correction)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        near = xp.asarray(self._near(self._positions(queries), keys), device=device(queries.query))
        return chosen(near, _logits(queries, self.tokens, keys), self.inner.kernel(queries, keys))

    def _positions(self, queries: Queries) -> np.ndarray:
        assert queries.positions is not None
        return queries.positions

    def _near(self, positions: np.ndarray, keys: slice) -> np.ndarray:
        """Which of the keys are in the window of each query."""
        distance = np.arange(keys.start, keys.stop) - positions[:, None]
        return (distance >= -(self.w // 2)) & (distance < (self.w + 1) // 2)


@dataclass(frozen=True)
class Top(Prefix):
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
    ) -> Iterator[Summary]:
        for inner in self.inner.summaries(tokens, queries, sizes, streams):
            yield TopSummary(tokens, min(self.k, tokens.length), inner)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        inner = self.inner.multiplications(shape, size)
        pairs = float(shape.n * shape.l * (2 * shape.d + 2 * shape.d_v))
        return None if inner is None else inner + pairs + self.inner.pair_work(shape, size)


@dataclass(frozen=True)
class TopSummary:
    """K(x, y_j) = exp(x.y_j) for the k largest of them, as inside for the rest."""

    tokens: Tokens
    k: int
    inner: Summary

    def sums(self, queries: Queries) -> Accumulator:
        keys = slice(0, self.tokens.length)
        return merge(
            self.inner.sums(queries), exact_instead(self.inner, queries, self.tokens, keys, self._top(queries))
        )

    def kernel(self, queries: Queries, keys: slice) -> Features:
        near = self._top(queries)[..., keys]
        return chosen(near, _logits(queries, self.tokens, keys), self.inner.kernel(queries, keys))

    def _top(self, queries: Queries) -> Array:
        logits = _logits(queries, self.tokens, slice(0, self.tokens.length))
        index = largest(logits, self.k)
        xp = array_namespace(logits)
        return scattered(xp.ones(index.shape, dtype=xp.bool, device=device(index)), index, logits.shape[-1])


def _logits(queries: Queries, tokens: Tokens, keys: slice) -> Array:
    return queries.query @ array_namespace(queries.query).matrix_transpose(tokens.key[..., keys, :])


def exact_instead(inner: Summary, queries: Queries, tokens: Tokens, keys: slice, where: Array) -> Accumulator:
    """Sum over some keys of (exp(x.y_j) - K(x, y_j)) [v_j, 1], where a flag (..., n, k) says so."""
    xp, right = array_namespace(queries.query), with_ones(tokens.value[..., keys, :])
    exact, estimate = _logits(queries, tokens, keys), inner.kernel(queries, keys)
    nothing = xp.full_like(exact, -xp.inf)
    less = -xp.ones_like(exact) if estimate.values is None else -estimate.values
    values = xp.concat([less, xp.ones_like(exact)], axis=-1)
    logs = [xp.where(where, log + xp.zeros_like(exact), nothing) for log in (estimate.log_scale, exact)]
    both = accumulate(None, Features(values, xp.concat(logs, axis=-1)), xp.concat([right, right], axis=-2))
    # nothing for a query: no peak either, or all else would be lost beside a peak of 0 where logits are far below
    some = xp.any(where, axis=-1, keepdims=True)
    return both._replace(log_peak=xp.where(some, both.log_peak, xp.full_like(both.log_peak, xp.finfo(exact.dtype).min)))


def chosen(where: Array, exact: Array, estimate: Features) -> Features:
    """exp(x.y) where a flag says so, the estimate of the kernel elsewhere."""
    xp = array_namespace(exact)
    log_scale = xp.where(where, exact, estimate.log_scale + xp.zeros_like(exact))
    if estimate.values is None:
        return Features(None, log_scale)
    return Features(xp.where(where, xp.ones_like(exact), estimate.values), log_scale)
