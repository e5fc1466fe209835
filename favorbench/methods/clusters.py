"""Clustered keys: attention to the centroids of cells of keys, each counted as often as the cell has keys."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import CHUNK, chunk_multiplications
from favorbench.kernels import gaussian_kernel
from favorbench.maps.base import claim
from favorbench.methods.base import Shape, Sizes
from favorbench.methods.summaries import (
    GrowingSummary,
    KeySummary,
    KeySummaryMethod,
    Queries,
    Tokens,
    first_in_order,
)
from favorbench.numerics.arrays import (
    Array,
    Features,
    Float,
    array_namespace,
    as_like,
    half_squared_norm,
    masked,
    on_host,
    rows_at,
)
from favorbench.numerics.logsum import Accumulator, tiles, weighted_sums
from favorbench.numerics.streams import Streams
from favorbench.parameters import whole

Points = Literal["random", "pivots"]

#: Picks the next point from the residuals of all points (0 where nothing is left) and the step.
Choice = Callable[[np.ndarray, int], int]


class Cells(NamedTuple):
    """Means over the members of each cell.

    key (..., m, d) and value (..., m, d_v); variance (..., m, d): the mean squared deviation of keys, if requested;
    log_count (..., m): the log of the number of members, -inf for none. All means of a cell without members are 0: a
    key joins it where the origin is nearer than all other cells.
    """

    key: Array
    value: Array
    variance: Array
    log_count: Array


def nearest_centres(key: Array, centres: Array, sizes: Sizes) -> list[Array]:
    """For each size, the index of the nearest among the first ``size`` centres: (..., l), for keys (..., l, d)."""
    xp = array_namespace(key)
    columns, offsets = centres.mT, half_squared_norm(centres).mT
    labels = []
    for rows in tiles(key.shape[-2], centres.shape[-2], key):
        scores = key[..., rows, :] @ columns - offsets
        labels.append([xp.argmax(scores[..., :size], axis=-1) for size in sizes])
    return [xp.concat(parts, axis=-1) for parts in zip(*labels, strict=True)]


def segment_sums(values: Array, labels: Array, count: int) -> Array:
    """Sums of the rows (..., l, c) with the same label (..., l): (..., count, c).

    Half precision is added in float32, as torch does on a CPU; on a GPU it rounds every sum, and 256 + 1 is 256.
    """
    if isinstance(values, np.ndarray):
        from scipy.sparse import csc_matrix  # 0.1 s at start-up

        flat, ones = values.reshape(-1, *values.shape[-2:]), np.ones(values.shape[-2], dtype=values.dtype)
        starts = np.arange(len(ones) + 1)
        sums = [
            csc_matrix((ones, row_labels, starts), shape=(count, len(ones))) @ rows
            for rows, row_labels in zip(flat, labels.reshape(-1, labels.shape[-1]), strict=True)
        ]
        return np.stack(sums).reshape(*values.shape[:-2], count, values.shape[-1])
    xp = array_namespace(values)
    *leading, _, columns = values.shape
    rows = xp.reshape(xp.astype(values, xp.result_type(values.dtype, xp.float32), copy=False), (-1, columns))
    zeros = xp.zeros((math.prod(leading) * count, columns), dtype=rows.dtype, device=device(values))
    first = xp.reshape(count * xp.arange(math.prod(leading), device=device(labels)), (*leading, 1))
    sums = xp.astype(zeros.index_add_(0, xp.reshape(labels + first, (-1,)), rows), values.dtype, copy=False)
    return xp.reshape(sums, (*leading, count, columns))


def cells_of(key: Array, value: Array, labels: Array, count: int, with_variance: bool = False) -> Cells:
    """The means over the members of ``count`` cells."""
    return means_of(segment_sums(columns_of(key, value, with_variance), labels, count), key, value)


def columns_of(key: Array, value: Array, with_variance: bool) -> Array:
    """[key, value, 1] of each token, and the squares of the key for a variance: the columns that cells sum.

    In float32 for half precision, in which means lose digits, and variances, differences of large numbers, all of them.
    """
    xp = array_namespace(key)
    key, value = (xp.astype(a, xp.result_type(a.dtype, xp.float32), copy=False) for a in (key, value))
    return xp.concat([key, value, xp.ones_like(key[..., :1])] + ([key * key] if with_variance else []), axis=-1)


def means_of(sums: Array, key: Array, value: Array) -> Cells:
    """Cells from the sums of ``columns_of`` over their members, in the precision of the keys."""
    xp, d, d_v = array_namespace(sums), key.shape[-1], value.shape[-1]
    counts = sums[..., d + d_v : d + d_v + 1]
    some = xp.where(counts > 0, counts, 1.0)
    mean, mean_value, squares = sums[..., :d] / some, sums[..., d : d + d_v] / some, sums[..., d + d_v + 1 :]
    log_count = masked(xp.log(some), counts > 0)[..., 0]
    variance = squares / some - mean * mean if squares.shape[-1] else None
    parts = (mean, mean_value, variance, log_count)
    return Cells(*(None if part is None else xp.astype(part, key.dtype, copy=False) for part in parts))


class Landmarks(NamedTuple):
    """Landmarks in the order of their choice.

    Their indices, the lower triangular Cholesky factor of their Gaussian kernel matrix, and the steps at which they
    were chosen.
    """

    chosen: np.ndarray
    factor: Float[np.ndarray, "r r"]
    steps: np.ndarray

    def count(self, size: int) -> int:
        """The landmarks among the first ``size`` choices: those that depended on earlier ones were left out."""
        return int(np.searchsorted(self.steps, size))


def pivoted_cholesky(points: Float[np.ndarray, "n d"], steps: int, choose: Choice) -> Landmarks:
    """Partial Cholesky factorisation of the Gaussian kernel matrix of the points, in the order of ``choose``.

    O(n steps (d + steps)) time, O(n steps) memory. The first choices do not depend on ``steps``. A point whose
    residual is only rounding (of n terms of at most 1, and of |y|^2 in the kernel) adds nothing and is left out.
    """
    rows, residual = np.zeros((min(steps, len(points)), len(points))), np.ones(len(points))
    rounding = 4.0 * (len(points) + float(np.max(np.sum(points * points, axis=-1)))) * np.finfo(float).eps
    chosen: list[int] = []
    at: list[int] = []
    for step in range(len(rows)):
        with np.errstate(divide="ignore"):  # the log of a residual of 0
            pivot = choose(residual, step)
        if residual[pivot] == 0:
            continue
        done = len(chosen)
        column = gaussian_kernel(points[pivot : pivot + 1], points)[0] - rows[:done, pivot] @ rows[:done]
        column[pivot] = residual[pivot]
        rows[done] = column / np.sqrt(residual[pivot])
        residual = residual - rows[done] ** 2
        residual[pivot] = 0.0
        residual[residual <= rounding] = 0.0
        chosen.append(pivot)
        at.append(step)
    return Landmarks(np.array(chosen), rows[: len(chosen), chosen].T, np.array(at))


@dataclass(frozen=True)
class CellSummary:
    """K(x, y_j) = exp(x.c), with c the mean key of the cell that y_j is in.

    The second order multiplies this by exp(sum_i x_i^2 var_i / 2), with var_i the variance of its keys along axis i.
    """

    cells: Cells
    labels: Array
    second_order: bool = False

    def log_kernel(self, query: Array) -> Array:
        """log K for each query and cell: (..., n, m)."""
        logits = query @ self.cells.key.mT
        if self.second_order:
            logits = logits + (0.5 * query * query) @ self.cells.variance.mT
        return logits

    def sums(self, queries: Queries) -> Accumulator:
        return weighted_sums(self.log_kernel(queries.query) + self.cells.log_count[..., None, :], self.cells.value)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        cell = self.labels[..., None, keys]
        return Features(None, xp.take_along_axis(self.log_kernel(queries.query), cell, axis=-1))


class Centred(KeySummaryMethod):
    """A method that assigns every key to the nearest of m centres.

    points: "random", keys drawn uniformly, or "pivots", keys drawn in proportion to what the earlier ones leave of the
    Gaussian kernel (randomly pivoted Cholesky: Chen et al. 2023, arXiv 2207.06503), which are far apart. lloyd: how
    often centres move to the mean of their cell before the cells are final.
    """

    points: Points
    lloyd: int
    causal_safe = True
    exact_at_full_size = True
    convex = True

    #: Whether the variance of each cell is computed, and whether it enters the estimate of the kernel.
    with_variance = False
    second_order = False

    def centres(self, size: int) -> int:
        """The share of the size that are centres."""
        return size

    def summary(
        self, tokens: Tokens, cells: Cells, labels: Array, size: int, queries: Queries | None = None
    ) -> KeySummary:
        """The summary from the cells, and the cell of each key (..., l); queries: all, where they are known."""
        return CellSummary(cells, labels, self.second_order)

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        counts = tuple(self.centres(size) for size in sizes)
        for size, (cells, labels) in zip(sizes, self.clustered(tokens, counts, streams), strict=True):
            yield self.summary(tokens, cells, labels, size, queries)

    def clustered(
        self, tokens: Tokens, counts: Sizes, streams: Streams, order: Array = None
    ) -> Iterator[tuple[Cells, Array]]:
        """The cells, and the cell of each key (..., l), for each number of cells.

        order: a random one, (..., l) or of a longer sequence, in which keys become centres; by default a new one.
        """
        start = self.starts(tokens, counts[-1], streams, order)
        for count, labels in zip(counts, nearest_centres(tokens.key, start, counts), strict=True):
            yield self.settled(tokens, labels, count)

    def settled(self, tokens: Tokens, labels: Array, size: int) -> tuple[Cells, Array]:
        """The cells and the cell of each key after the steps of Lloyd's algorithm."""
        for _ in range(self.lloyd):
            labels = nearest_centres(tokens.key, cells_of(*tokens, labels, size).key, (size,))[0]
        return cells_of(*tokens, labels, size, self.with_variance), labels

    def starts(self, tokens: Tokens, size: int, streams: Streams, order: Array) -> Array:
        """The first centres, (..., size, d): keys, those for a smaller size first."""
        if self.points == "pivots":
            return _pivots(tokens.key, size, streams)
        if order is None:
            order = streams.draw(lambda rng: rng.permutation(tokens.length))
        return rows_at(tokens.key, first_in_order(order, tokens.length)[..., :size])

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        return StreamingCells(self, tokens, size, streams).extend

    def multiplications(self, shape: Shape, size: int) -> float:
        """l m d for each pass over the keys, and m (d + d_v) for each query; causal cells are made more than once."""
        passes, size = 1 + self.lloyd, self.centres(size)
        made, joined = growth(shape.l, size) if shape.causal else (shape.l, 0)
        assign = float((made * passes + joined) * size * shape.d)
        if self.points == "pivots":
            assign += made * size * (shape.d + size / 2)
        far = float(shape.n * size * (shape.d + shape.d_v + (shape.d if self.second_order else 0)))
        return assign + far + chunk_multiplications(shape, shape.d)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The rows of the Cholesky factor, over all keys."""
        return shape.l * self.centres(size) if self.points == "pivots" else 0


def growth(length: int, size: int) -> tuple[int, int]:
    """Keys clustered anew, over all times, while a sequence grows to this length, and keys that join existing cells."""
    made, joined, last = 0, 0, 0
    for stop in range(CHUNK, length, CHUNK):
        if stop > size and stop >= 2 * last:
            made, last = made + stop, stop
        elif stop > size:
            joined += CHUNK
    return made, joined


def _pivots(key: Array, size: int, streams: Streams) -> Array:
    """Keys by randomly pivoted Cholesky of exp(-|y - y'|^2 / 2), chosen on the host."""
    flat = on_host(key).astype(np.float64).reshape(-1, *key.shape[-2:])
    chosen = []
    for generator, points in zip(streams.generators, flat, strict=True):

        def choose(residual: np.ndarray, step: int, rng: np.random.Generator = generator) -> int:
            return int(np.argmax(np.log(residual) + rng.gumbel(size=len(residual))))

        pivots = pivoted_cholesky(points, size, choose).chosen
        rest = np.setdiff1d(np.arange(len(points)), pivots)[: size - len(pivots)]  # any of these: their residual is 0
        chosen.append(points[np.concatenate([pivots, rest])])
    return as_like(np.stack(chosen).reshape(*key.shape[:-2], size, -1), key)


class StreamingCells:
    """Cells of the first keys.

    They are made anew, from keys among them, whenever the number of keys has doubled; in between, a new key joins the
    cell whose mean is nearest. With no more keys than cells each key has its own.
    """

    def __init__(self, method: Centred, tokens: Tokens, size: int, streams: Streams) -> None:
        self.method, self.tokens, self.requested, self.streams = method, tokens, size, streams
        self.size = method.centres(size)
        self.order = streams.draw(lambda rng: rng.permutation(tokens.length))
        self.known, self.made_at = 0, 0
        self.sums: Array = None
        self.labels: Array = None

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        seen, new = self.tokens.part(slice(0, stop)), self.tokens.part(slice(self.known, stop))
        if stop >= 2 * self.made_at:
            self.labels = self._labels(seen)
            self.sums = segment_sums(self._columns(seen), self.labels, self.size)
            self.made_at = stop if stop > self.size else 0
        else:
            labels = nearest_centres(new.key, self._cells().key, (self.size,))[0]
            self.labels = array_namespace(labels).concat([self.labels, labels], axis=-1)
            self.sums = self.sums + segment_sums(self._columns(new), labels, self.size)
        self.known = stop
        return self.method.summary(seen, self._cells(), self.labels, self.requested)

    def _labels(self, seen: Tokens) -> Array:
        """The cells of the first keys, made anew."""
        xp, count = array_namespace(seen.key), seen.length
        if count <= self.size:
            order = self.order[..., :1] * 0  # of the right shape, on the right device
            return order + xp.arange(count, device=device(order))
        ((_, labels),) = self.method.clustered(seen, (self.size,), self.streams, self.order)
        return labels

    def _columns(self, tokens: Tokens) -> Array:
        return columns_of(*tokens, self.method.with_variance)

    def _cells(self) -> Cells:
        return means_of(self.sums, *self.tokens)


@dataclass(frozen=True)
class Clusters(Centred):
    """Softmax attention to m centroids: out(x) = sum_c n_c exp(x.c) v_c / sum_c n_c exp(x.c).

    n_c, c and v_c are the number of keys, the mean key and the mean value of each cell. By Jensen's inequality the
    normaliser is a lower bound of the exact one; order=2 adds half the variance of x.y inside each cell, along the
    axes. Exact at m = l. Causal: centres come from the keys before, in linear time.
    Hooper et al. 2025 (the far field of "Multipole Attention"), arXiv 2506.13059.
    """

    name = "clusters"
    reference = "Hooper et al. 2025, arXiv 2506.13059 (its far field)"
    description = "attention to the m centroids of clustered keys, weighted by their number"
    points: Points = "random"
    lloyd: int = whole(0, 100, default=0)
    order: int = whole(1, 2, default=1)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.order * super().pair_multiplications(shape, size)

    with_variance = claim(lambda self: self.order == 2)
    second_order = claim(lambda self: self.order == 2)
