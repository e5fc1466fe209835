"""Sums of exp(log) * value that keep their own maximum, so that nothing overflows and no eps is needed.

One operation carries all of attention: ``accumulate`` sums over keys (exact attention), over keys for each feature, and
over features for each query.
"""

from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float

from favorbench.arrays import Array, Features

TILE_ELEMENTS = 1 << 16  # half a MiB of float64: a tile and its temporaries stay in a core's second-level cache


class Accumulator(NamedTuple):
    """A sum of exp(log) * value, kept as exp(log_peak) * total with log_peak the largest log so far."""

    log_peak: Float[Array, "*batch n 1"]
    total: Float[Array, "*batch n columns"]


def accumulate(state: Accumulator | None, features: Features, right: Array) -> Accumulator:
    """Add features @ right, (..., n, m) @ (..., m, columns), to the running sum."""
    xp = array_namespace(right)
    peak = xp.max(features.log_scale, axis=-1, keepdims=True)
    if state is not None:
        peak = xp.maximum(peak, state.log_peak)
    peak = xp.where(xp.isfinite(peak), peak, xp.zeros_like(peak))  # a row of zero features has log -inf
    total = features.relative_to(peak) @ right
    if state is not None:
        total = total + state.total * xp.exp(state.log_peak - peak)
    return Accumulator(peak, total)


def tiles(length: int, width: int) -> list[slice]:
    """Equal slices that cover range(length), each of about TILE_ELEMENTS / width rows."""
    count = max(1, -(-length * width // TILE_ELEMENTS))
    step = -(-length // count)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def with_ones(value: Array) -> Array:
    """[value, 1]: so that one product gives numerator and normaliser."""
    xp = array_namespace(value)
    return xp.concat([value, xp.ones((*value.shape[:-1], 1), dtype=value.dtype)], axis=-1)


def quotient(state: Accumulator | None) -> tuple[Array, Array]:
    """Numerator over normaliser, and the normaliser. A normaliser of 0 gives inf or nan: a measurement, no error."""
    assert state is not None
    normaliser = state.total[..., -1:]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return state.total[..., :-1] / normaliser, normaliser
