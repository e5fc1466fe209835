"""Summaries of which a part is exact: what prefixes make of the summary of the method or map inside."""

from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from favorbench.methods.summaries import KeySummary, Queries, Tokens, exact_sums
from favorbench.numerics.arrays import Array, Features, array_namespace, largest, scattered
from favorbench.numerics.logsum import Accumulator, accumulate, merge, with_ones

BLOCK = 64  # queries whose windows are taken together: their keys lie in one row


def moved(queries: Queries, by: int) -> Queries:
    return queries if queries.positions is None else queries._replace(positions=queries.positions - by)


@dataclass(frozen=True)
class SinksSummary:
    """K(x, y_j) = exp(x.y_j) for the first keys, as inside for the rest."""

    tokens: Tokens
    n: int
    inner: KeySummary

    def sums(self, queries: Queries) -> Accumulator:
        return merge(self.inner.sums(moved(queries, self.n)), exact_sums(queries, self.tokens, slice(0, self.n)))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp, asked = array_namespace(queries.query), moved(queries, self.n)
        start, stop = keys.start, keys.stop
        parts = []
        if start < self.n:
            first = self.tokens.key[..., start : min(stop, self.n), :]
            parts.append(Features(None, queries.query @ xp.matrix_transpose(first)))
        if stop > self.n:
            parts.append(self.inner.kernel(asked, slice(max(start, self.n) - self.n, stop - self.n)))
        logs = [part.log_scale + xp.zeros_like(part.log_scale) for part in parts]
        signed = any(part.values is not None for part in parts)
        values = [xp.ones_like(log) if p.values is None else p.values for p, log in zip(parts, logs, strict=True)]
        return Features(xp.concat(values, axis=-1) if signed else None, xp.concat(logs, axis=-1))


@dataclass(frozen=True)
class WindowSummary:
    """K(x_i, y_j) = exp(x_i.y_j) where j is within w keys around i, as inside for the rest."""

    tokens: Tokens
    w: int
    inner: KeySummary

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
class TopSummary:
    """K(x, y_j) = exp(x.y_j) for the k largest of them, as inside for the rest."""

    tokens: Tokens
    k: int
    inner: KeySummary

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


def exact_instead(inner: KeySummary, queries: Queries, tokens: Tokens, keys: slice, where: Array) -> Accumulator:
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
