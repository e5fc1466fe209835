"""Centring, a transform of any map."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from favorbench.errors import InputError
from favorbench.maps.base import (
    FeatureMap,
    KeyPairs,
    Keys,
    Omega,
    OneToken,
    Pairs,
    Projection,
    Sample,
    Tokens,
    WrappedMap,
    with_values,
)
from favorbench.numerics.arrays import Array, Features, array_namespace
from favorbench.samplers.laws import PairLaw, RowLaw


@dataclass(frozen=True, eq=False)  # holds arrays: equal only to itself
class Means:
    """The means of queries and of keys, (..., 1, d)."""

    query: Array
    key: Array


@dataclass(frozen=True)
class Centre(WrappedMap):
    """``centre:map``: the features of x - a and y - b, with a and b the means of queries and keys, exactly compensated:

        exp(x.y) = exp((x - a).(y - b)) exp(b.x - a.b) exp(a.y).

    The factor of a query cancels in attention; that of a key is added to the logs of its features. Good where queries
    and keys have means as large as their spread, as those of trained heads often have. For keys alone, where the factor
    cancels too, this is the "smooth K" of SageAttention, Zhang et al. 2024, arXiv 2410.02367.
    Means are of the whole sequence, so nothing causal; one query and one key are their own means.
    """

    means: Means | None = field(default=None, init=False, repr=False)
    prefix: ClassVar[str] = "centre"
    reference: ClassVar[str] = "an identity; for keys alone Zhang et al. 2024 (SageAttention), arXiv 2410.02367"
    causal_safe: ClassVar[bool] = False
    asymmetric: ClassVar[bool] = True

    @property
    def data_dependent(self) -> bool:
        return True

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "Centre":
        means = _means(x, y)
        return with_values(self, means=means, wrapped=self.wrapped.fit(x - means.query, y - means.key, omega))

    def with_parameters(self, x: Tokens, y: Keys) -> "Centre":
        means = _means(x, y) if self.means is None else self.means
        return with_values(self, means=means, wrapped=self.wrapped.with_parameters(x - means.query, y - means.key))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """The product of each token with the mean of the others."""
        return self.wrapped.map_multiplications(n, l, d, num_projections) + float((n + l) * d)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return self.query_features(x, projection, sample)

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        means = self._fitted()
        moved = x - means.query
        blocks = self.wrapped.query_features(moved, _less(projection, means.query, sample), sample)
        factor = _dot(moved, means.key)
        return tuple(block.times(factor) for block in blocks)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        means = self._fitted()
        blocks = self.wrapped.key_features(x - means.key, _less(projection, means.key, sample), sample)
        factor = _dot(x, means.query)
        return tuple(block.times(factor) for block in blocks)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        wrapped, left, right, means = self._centred(x, y)
        return wrapped.target_kernel(left, right, rows) * np.exp(_dot(left, means.key) + _dot(y, means.query).T)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs | None:
        wrapped, left, right, _ = self._centred(x, y)
        return wrapped.relative_variance(left, right, num_projections)

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs | None:
        wrapped, left, right, _ = self._centred(x, y)
        return wrapped.pair_argument(left, right)

    def pair_moment(self, x: Tokens, y: Keys, pair: PairLaw) -> Pairs | None:
        wrapped, left, right, _ = self._centred(x, y)
        return wrapped.pair_moment(left, right, pair)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs | None:
        wrapped, left, right, _ = self._centred(x, y)
        return wrapped.covariance(left, right)

    def _centred(self, x: Array, y: Array) -> tuple[FeatureMap, Array, Array, Means]:
        """The map inside, and what it is given for these points. The compensation is no part of a relative variance."""
        ready = self.with_parameters(x, y)
        means = ready._fitted()
        return ready.wrapped, x - means.query, y - means.key, means

    def _fitted(self) -> Means:
        if self.means is None:
            raise InputError(f"map {self.name!r} takes means of queries and keys: call fit(x, y, omega) first")
        return self.means


def _means(x: Array, y: Array) -> Means:
    xp = array_namespace(x, y)
    return Means(xp.mean(x, axis=-2, keepdims=True), xp.mean(y, axis=-2, keepdims=True))


def _less(projection: Array, mean: Array, sample: Sample) -> Array:
    """The projection of x less its mean: omega meets the mean, not all of x a second time."""
    return projection - mean @ array_namespace(projection).matrix_transpose(sample.omega)


def _dot(x: Array, vector: Array) -> Array:
    """x.vector of each row, (..., n, 1), for a vector (..., 1, d)."""
    return x @ array_namespace(x).matrix_transpose(vector)
