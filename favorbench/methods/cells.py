"""Voronoi cells of the keys: which key is in which cell, and what is kept of each cell."""

from typing import NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.numerics.arrays import Array, array_namespace, half_squared_norm
from favorbench.numerics.logsum import tiles


class Cells(NamedTuple):
    """Means over the members of each cell: of keys (..., m, d), of values (..., m, d_v), and of the squared deviations
    of keys (..., m, d) where they are asked for; log of the number of members (..., m), -inf for none. All means of a
    cell without members are 0: a key joins it where the origin is nearer than all other cells."""

    key: Array
    value: Array
    variance: Array | None
    log_count: Array


def nearest_centres(key: Array, centres: Array, sizes: tuple[int, ...]) -> list[Array]:
    """For each size, the index of the nearest among the first so many centres: (..., l), for keys (..., l, d)."""
    xp = array_namespace(key)
    columns, offsets = xp.matrix_transpose(centres), xp.matrix_transpose(half_squared_norm(centres))
    found: list[list[Array]] = [[] for _ in sizes]
    for rows in tiles(key.shape[-2], centres.shape[-2], key):
        scores = key[..., rows, :] @ columns - offsets
        for labels, size in zip(found, sizes, strict=True):
            labels.append(xp.argmax(scores[..., :size], axis=-1))
    return [xp.concat(labels, axis=-1) for labels in found]


def segment_sums(values: Array, labels: Array, count: int) -> Array:
    """Sums of the rows (..., l, c) with the same label (..., l): (..., count, c)."""
    if isinstance(values, np.ndarray):
        from scipy.sparse import csc_matrix  # 0.1 s at start-up

        flat, every = values.reshape(-1, *values.shape[-2:]), labels.reshape(-1, labels.shape[-1])
        ones = np.ones(values.shape[-2], dtype=values.dtype)
        starts = np.arange(len(ones) + 1)
        sums = [
            csc_matrix((ones, one, starts), shape=(count, len(ones))) @ rows
            for rows, one in zip(flat, every, strict=True)
        ]
        return np.stack(sums).reshape(*values.shape[:-2], count, values.shape[-1])
    xp = array_namespace(values)
    zeros = xp.zeros((*values.shape[:-2], count, values.shape[-1]), dtype=values.dtype, device=device(values))
    return zeros.scatter_add(-2, labels[..., None].expand(values.shape), values)


def cells_of(key: Array, value: Array, labels: Array, count: int, with_variance: bool = False) -> Cells:
    """What is kept of ``count`` cells with these members."""
    sums = segment_sums(columns_of(key, value, with_variance), labels, count)
    return means_of(sums, key.shape[-1], value.shape[-1])


def columns_of(key: Array, value: Array, with_variance: bool) -> Array:
    """[key, value, 1] of each token, and the squares of the key for a variance: what sums of cells are made of."""
    xp = array_namespace(key)
    return xp.concat([key, value, xp.ones_like(key[..., :1])] + ([key * key] if with_variance else []), axis=-1)


def means_of(sums: Array, d: int, d_v: int) -> Cells:
    """Cells from the sums of ``columns_of`` over their members."""
    xp = array_namespace(sums)
    counts = sums[..., d + d_v : d + d_v + 1]
    some = xp.where(counts > 0, counts, xp.ones_like(counts))
    key, value, squares = sums[..., :d] / some, sums[..., d : d + d_v] / some, sums[..., d + d_v + 1 :]
    log_count = xp.where(counts > 0, xp.log(some), xp.full_like(some, -xp.inf))[..., 0]
    variance = squares / some - key * key if squares.shape[-1] else None
    return Cells(key, value, variance, log_count)
