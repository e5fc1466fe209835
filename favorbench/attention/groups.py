"""Many heads, a few at a time: a thin tile of all of them costs more than a square one of each."""

import math
from collections.abc import Callable

from favorbench.attention.problem import SampledMap
from favorbench.maps import Calibrated
from favorbench.maps.transforms import with_arrays
from favorbench.numerics.arrays import Array, array_namespace, device_elements

LEAST_ROWS = 128  # of a tile: below it matrix products wait for memory


def over_groups(
    attend: Callable[[Array, Array, Array, Array, SampledMap], Array],
    query: Array,
    key: Array,
    value: Array,
    omega: Array,
    estimator: SampledMap,
    width: int,
) -> Array:
    """``attend`` for so many heads at a time as make good tiles of ``width`` features, all in one result.

    omega, what the map draws beside it, and the parameters of a calibrated map may have the heads' axes too.
    """
    batch, xp = tuple(query.shape[:-2]), array_namespace(query)
    together = heads_at_once(query, width)
    if math.prod(batch) <= together:
        return attend(query, key, value, omega, estimator)
    parts = []
    for start in range(0, math.prod(batch), together):
        heads = slice(start, start + together)
        q, k, v, rows = (_of_heads(array, batch, heads) for array in (query, key, value, omega))
        parts.append(attend(q, k, v, rows, _estimator_of(estimator, omega, batch, heads)))
    output = xp.concat(parts, axis=0)
    return xp.reshape(output, (*batch, *output.shape[1:]))


def heads_at_once(like: Array, width: int) -> int:
    """So many that a tile of the device has LEAST_ROWS rows of so many features of each."""
    return max(1, device_elements(like) // (width * LEAST_ROWS))


def _of_heads(array: Array, batch: tuple[int, ...], heads: slice, own: int = 2) -> Array:
    """Some heads of an array with the heads' axes before its own; an array without any serves all of them."""
    if array.ndim <= own:
        return array
    xp, rest = array_namespace(array), tuple(array.shape[array.ndim - own :])
    return xp.reshape(xp.broadcast_to(array, (*batch, *rest)), (-1, *rest))[heads, ...]


def _estimator_of(estimator: SampledMap, omega: Array, batch: tuple[int, ...], heads: slice) -> SampledMap:
    extra, found = estimator.extra, estimator.map
    if extra is not None and omega.ndim > 2:  # what a map draws has the axes that its omega has
        extra = _of_heads(extra, batch, heads, extra.ndim - omega.ndim + 2)
    if isinstance(found, Calibrated):
        found = with_arrays([found], lambda arrays: _of_heads(arrays[0], batch, heads))
    return estimator._replace(map=found, extra=extra)
