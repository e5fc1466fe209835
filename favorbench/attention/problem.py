"""The attention problem, its shape, and an estimate of its solution."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.errors import InputError
from favorbench.maps import FeatureMap, Sample
from favorbench.maps.base import FeatureBlocks, checked_blocks
from favorbench.numerics.arrays import Array, Float, array_namespace, kind_of, projected


class Shape(NamedTuple):
    """The sizes that the cost of an estimator depends on: n queries, l keys, d, d_v."""

    n: int
    l: int  # noqa: E741  (its name in every formula)
    d: int
    d_v: int
    causal: bool = False

    @property
    def per_pair(self) -> int:
        """Multiplications for a query and a key: d for their logit, d_v for the value."""
        return self.d + self.d_v


def exact_multiplications(shape: Shape) -> float:
    """Multiplications of exact attention in one head: d + d_v for each visible pair of a query and a key."""
    pairs = shape.n * (shape.n + 1) / 2 if shape.causal else shape.n * shape.l
    return float(pairs * shape.per_pair)


class AttentionProblem(NamedTuple):
    """Queries (..., n, d) and keys (..., l, d), both scaled by d^-1/4, and values (..., l, d_v).

    positions: of the queries among the keys, (n,), increasing, on the host; None where they are not the same tokens.
    causal: a query sees only the keys up to its own position. fit_query: all queries, where ``query`` is a sample of
    them, for maps that take parameters from the queries. gradients: (..., draws, n, d_v), of the model's output with
    respect to this one, for the metric ``effect``; estimators never see them.
    """

    query: Float[Array, "*batch n d"]
    key: Float[Array, "*batch l d"]
    value: Float[Array, "*batch l d_v"]
    positions: np.ndarray | None = None
    causal: bool = False
    fit_query: Array | None = None
    gradients: Array | None = None

    @staticmethod
    def of(query: Array, key: Array, value: Array, causal: bool = False) -> "AttentionProblem":
        """Make the problem of queries and keys that are not scaled yet, of copies; integers become floats."""
        factor, (n, l) = query.shape[-1] ** -0.25, (query.shape[-2], key.shape[-2])  # noqa: E741
        query, key, xp = query * factor, key * factor, array_namespace(value)
        if not xp.isdtype(value.dtype, "real floating"):
            value = xp.astype(value, query.dtype)
        return AttentionProblem(query, key, 1 * value, np.arange(n) if n == l or causal else None, causal)

    def unscaled(self) -> tuple[Array, Array]:
        """Return copies of queries and keys as attention takes them, not scaled."""
        factor = self.query.shape[-1] ** 0.25
        return self.query * factor, self.key * factor

    @property
    def shape(self) -> Shape:
        """The sizes of one head."""
        (n, d), (l, d_v) = self.query.shape[-2:], self.value.shape[-2:]  # noqa: E741
        return Shape(n, l, d, d_v, self.causal)


class Estimate(NamedTuple):
    """The output of an estimator at one size. size is None for an estimator without sizes.

    num_features: columns of the feature matrix; of methods the size. normaliser: the divisor of the output; None
    without one. row_sums: of the weights of each query, where a division does not make them 1.
    """

    size: int | None
    num_features: int
    output: Float[Array, "*batch n d_v"]
    normaliser: Float[Array, "*batch n 1"] | None
    row_sums: Float[Array, "*batch n 1"] | None = None


class SampledMap(NamedTuple):
    """A map to be evaluated for every R in sizes (increasing) on the same sample."""

    map: FeatureMap
    extra: Array | None
    sizes: tuple[int, ...]

    def sample(self, omega: Array) -> Sample:
        """Its share of projections (..., R, d) that several estimators use, and its extra sample."""
        return Sample(omega[..., : self.sizes[-1], :], self.extra)

    def query_blocks(self, x: Array, projection: Array, omega: Array) -> FeatureBlocks:
        """The features of queries on its share of projections."""
        sample = self.sample(omega)
        return checked_blocks(self.map, self.map.query_features(x, projection[..., : self.sizes[-1]], sample), sample)

    def key_blocks(self, y: Array, projection: Array, omega: Array) -> FeatureBlocks:
        """The features of keys on its share of projections."""
        sample = self.sample(omega)
        return checked_blocks(self.map, self.map.key_features(y, projection[..., : self.sizes[-1]], sample), sample)


def projection_of(x: Array, omega: Array, maps: Iterable[FeatureMap]) -> Array:
    """The projections x omega^T that maps are given: zeros if none of them uses these."""
    if all(feature_map.randomness != "omega" for feature_map in maps):
        return array_namespace(x).zeros((*x.shape[:-1], omega.shape[-2]), dtype=x.dtype, device=device(x))
    return projected(x, omega)


class Tile(NamedTuple):
    """A tile of the attention estimates of one estimator for every R in its sizes: which rows of the queries."""

    estimator: int
    rows: slice
    output: Float[Array, "sizes *batch n d_v"]
    normaliser: Float[Array, "sizes *batch n 1"]


def check_shapes(query: Array, key: Array, value: Array, causal: bool = False) -> None:
    """Raise InputError unless query (..., n, d), key (..., l, d) and value (..., l, d_v) fit; causal: n = l.

    They must be arrays of one library on one device, of real numbers.
    """
    if not isinstance(causal, bool | np.bool_):
        raise InputError(f"causal is {causal!r}; allowed: True or False")
    kinds = [kind_of(array) for array in (query, key, value)]
    if len(set(kinds)) > 1 or kinds[0].startswith("a "):
        raise InputError(
            f"query is {kinds[0]}, key {kinds[1]}, value {kinds[2]}: they must be arrays of one library on one device"
        )
    for name, array in (("query", query), ("key", key), ("value", value)):
        kinds = ("bool", "integral", "real floating")
        given = array.dtype
        unknown = getattr(given, "kind", "") == "V"  # such as bfloat16 of ml_dtypes, at which NumPy's isdtype raises
        if unknown or getattr(given, "itemsize", 8) > 8 or not array_namespace(array).isdtype(given, kinds):
            raise InputError(f"{name} has dtype {given}: give real numbers of at most 64 bits, such as float64")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise InputError(f"{shapes}: each needs at least 2 axes, (..., length, head_dim)")
    (*queries, n, d), (*keys, length, key_d), (*values, value_length, _) = query.shape, key.shape, value.shape
    failures = {
        "an axis is empty": 0 in (*query.shape, *key.shape, *value.shape),
        "query and key must have the same head_dim (last axis)": d != key_d,
        "key and value must have the same length (axis -2)": length != value_length,
        "causal attention needs as many queries as keys": causal and n != length,
        "the leading axes must be equal": not queries == keys == values,
    }
    for failure, is_so in failures.items():
        if is_so:
            raise InputError(f"{shapes}: {failure}")
