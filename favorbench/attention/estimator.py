"""What an estimator of attention is asked, and what it answers."""

from typing import NamedTuple

from favorbench.errors import InputError
from favorbench.maps import FeatureMap, Sample
from favorbench.numerics.arrays import Array, Float, kind_of


class Estimator(NamedTuple):
    """A map to be evaluated for every R in sizes (increasing) on the same sample."""

    map: FeatureMap
    extra: Array | None
    sizes: tuple[int, ...]

    def sample(self, omega: Array) -> Sample:
        """Its share of projections (..., R, d) that several estimators look at, and what it draws beside them."""
        return Sample(omega[..., : self.sizes[-1], :], self.extra)


class Estimate(NamedTuple):
    """A tile of the attention estimates of one estimator for every R in its sizes: which rows of the queries."""

    estimator: int
    rows: slice
    output: Float[Array, "sizes *batch n d_v"]
    normaliser: Float[Array, "sizes *batch n 1"]


def check_shapes(query: Array, key: Array, value: Array, causal: bool = False) -> None:
    """Raise InputError unless query (..., n, d), key (..., l, d) and value (..., l, d_v) fit; causal: n = l.

    They must be arrays of one library on one device.
    """
    kinds = [kind_of(array) for array in (query, key, value)]
    if len(set(kinds)) > 1 or kinds[0].startswith("a "):
        raise InputError(
            f"query is {kinds[0]}, key {kinds[1]}, value {kinds[2]}: they must be arrays of one library on one device"
        )
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise InputError(f"{shapes}: each needs at least 2 axes, (..., length, head_dim)")
    if 0 in (*query.shape, *key.shape, *value.shape):
        raise InputError(f"{shapes}: an axis is empty")
    if query.shape[-1] != key.shape[-1]:
        raise InputError(f"{shapes}: query and key must have the same head_dim (last axis)")
    if key.shape[-2] != value.shape[-2]:
        raise InputError(f"{shapes}: key and value must have the same length (axis -2)")
    if causal and query.shape[-2] != key.shape[-2]:
        raise InputError(f"{shapes}: causal attention needs as many queries as keys")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise InputError(f"{shapes}: the leading axes must be equal")
