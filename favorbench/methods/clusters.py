"""Clustered keys: attention to the centroids of cells of keys, each as often as the cell has keys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import device

from favorbench.attention.causal import CHUNK
from favorbench.errors import ScenarioError
from favorbench.maps.base import claim
from favorbench.methods.base import Shape
from favorbench.methods.cells import Cells, cells_of, columns_of, means_of, nearest_centres, segment_sums
from favorbench.methods.landmarks import pivoted_cholesky
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens, causal_multiplications
from favorbench.numerics.arrays import Array, Features, array_namespace, as_like, on_host
from favorbench.numerics.logsum import Accumulator, accumulate, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole
from favorbench.registry import nearest

Points = Literal["random", "pivots"]


@dataclass(frozen=True)
class CellSummary:
    """K(x, y_j) = exp(x.c), with c the mean key of the cell that y_j is in; of second order times
    exp(sum_i x_i^2 var_i / 2), with the variance of its keys along each axis."""

    cells: Cells
    labels: Array
    second_order: bool = False

    def log_kernel(self, query: Array) -> Array:
        """log K for each query and cell: (..., n, m)."""
        xp = array_namespace(query)
        logits = query @ xp.matrix_transpose(self.cells.key)
        if self.second_order:
            logits = logits + (0.5 * query * query) @ xp.matrix_transpose(self.cells.variance)
        return logits

    def sums(self, queries: Queries) -> Accumulator:
        logits = self.log_kernel(queries.query) + self.cells.log_count[..., None, :]
        return accumulate(None, Features(None, logits), with_ones(self.cells.value))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(queries.query)
        cell = self.labels[..., None, keys]
        return Features(None, xp.take_along_axis(self.log_kernel(queries.query), cell, axis=-1))


class Centred(KeySummaryMethod):
    """A method that assigns every key to the nearest of m centres.

    points: "random", keys drawn uniformly, or "pivots", keys drawn in proportion to what those before leave of the
    Gaussian kernel (randomly pivoted Cholesky: Chen et al. 2023, arXiv 2207.06503), which are far apart. lloyd: how
    often centres move to the mean of their cell before the cells are final.
    """

    points: Points
    lloyd: int
    causal_safe: ClassVar[bool] = True
    exact_at_full_size: ClassVar[bool] = True
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.points not in ("random", "pivots"):
            near = nearest(str(self.points), ("random", "pivots"))
            raise ScenarioError(f"points must be 'random' or 'pivots', got {self.points!r}{near}")
        check_whole("lloyd", self.lloyd, 0, 100)

    #: The variance of each cell is kept; and it enters the estimate of the kernel.
    with_variance: ClassVar[bool] = False
    second_order: ClassVar[bool] = False

    def centres(self, size: int) -> int:
        """How many of the size are centres."""
        return size

    def summary(self, tokens: Tokens, cells: Cells, labels: Array, size: int) -> KeySummary:
        """The summary from the cells, and the cell of each key (..., l)."""
        return CellSummary(cells, labels, self.second_order)

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        counts = tuple(self.centres(size) for size in sizes)
        start = self.starts(tokens, counts[-1], streams)
        for size, count, labels in zip(sizes, counts, nearest_centres(tokens.key, start, counts), strict=True):
            cells, labels = self.settled(tokens, labels, count)
            yield self.summary(tokens, cells, labels, size)

    def settled(self, tokens: Tokens, labels: Array, size: int) -> tuple[Cells, Array]:
        """The cells and the cell of each key after the steps of Lloyd's algorithm."""
        for _ in range(self.lloyd):
            labels = nearest_centres(tokens.key, cells_of(*tokens, labels, size).key, (size,))[0]
        return cells_of(*tokens, labels, size, self.with_variance), labels

    def starts(self, tokens: Tokens, size: int, streams: Streams) -> Array:
        """The first centres, (..., size, d): keys, those for a smaller size first."""
        if self.points == "pivots":
            return _pivots(tokens.key, size, streams)
        order = streams.draw(lambda rng: rng.permutation(tokens.length)[:size])
        return array_namespace(tokens.key).take_along_axis(tokens.key, order[..., None], axis=-2)

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> "StreamingCells":
        return StreamingCells(self, tokens, size, streams)

    def multiplications(self, shape: Shape, size: int) -> float:
        """l m d for each pass over the keys, and m (d + d_v) for each query; causal cells are made more than once."""
        passes, size = 1 + self.lloyd, self.centres(size)
        made, joined = growth(shape.l, size) if shape.causal else (shape.l, 0)
        assign = float((made * passes + joined) * size * shape.d)
        if self.points == "pivots":
            assign += made * size * (shape.d + size / 2)
        far = float(shape.n * size * (shape.d + shape.d_v + (shape.d if self.second_order else 0)))
        return assign + far + (causal_multiplications(shape) if shape.causal else 0.0)


def growth(length: int, size: int) -> tuple[int, int]:
    """Keys of all cells that are made while a sequence grows to this length, and keys that join those there are."""
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

        found = pivoted_cholesky(points, size, choose).chosen
        rest = np.setdiff1d(np.arange(len(points)), found)[: size - len(found)]  # nothing is left of these: any do
        chosen.append(points[np.concatenate([found, rest])])
    return as_like(np.stack(chosen).reshape(*key.shape[:-2], size, -1), key)


class StreamingCells:
    """Cells of the first keys. Made anew whenever these have doubled, from keys among them; meanwhile every new key
    joins the cell whose mean is nearest. While there are no more keys than cells each key is its own."""

    def __init__(self, method: Centred, tokens: Tokens, size: int, streams: Streams) -> None:
        self.method, self.tokens, self.asked, self.streams = method, tokens, size, streams
        self.size = method.centres(size)
        self.order = streams.draw(lambda rng: rng.permutation(tokens.length))
        self.known, self.made_at = 0, 0
        self.sums: Array = None
        self.labels: Array = None

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys."""
        seen, new = self.tokens.part(slice(0, stop)), self.tokens.part(slice(self.known, stop))
        if stop <= self.size or stop >= 2 * self.made_at:
            self.labels = self._labels(seen)
            self.sums = segment_sums(self._columns(seen), self.labels, self.size)
            self.made_at = stop if stop > self.size else 0
        else:
            labels = nearest_centres(new.key, self._cells().key, (self.size,))[0]
            self.labels = array_namespace(labels).concat([self.labels, labels], axis=-1)
            self.sums = self.sums + segment_sums(self._columns(new), labels, self.size)
        self.known = stop
        return self.method.summary(seen, self._cells(), self.labels, self.asked)

    def _labels(self, seen: Tokens) -> Array:
        """The cells of the first keys, made anew."""
        xp, count = array_namespace(seen.key), seen.length
        if count <= self.size:
            order = self.order[..., :1] * 0  # of the right shape, on the right device
            return order + xp.arange(count, device=device(order))
        if self.method.points == "pivots":
            start = _pivots(seen.key, self.size, self.streams)
        else:
            among = xp.reshape(self.order[self.order < count], (*self.order.shape[:-1], count))[..., : self.size]
            start = xp.take_along_axis(seen.key, among[..., None], axis=-2)
        return self.method.settled(seen, nearest_centres(seen.key, start, (self.size,))[0], self.size)[1]

    def _columns(self, tokens: Tokens) -> Array:
        return columns_of(*tokens, self.method.with_variance)

    def _cells(self) -> Cells:
        return means_of(self.sums, self.tokens.key.shape[-1], self.tokens.value.shape[-1])


@dataclass(frozen=True)
class Clusters(Centred):
    """Softmax attention to m centroids: out(x) = sum_c n_c exp(x.c) v_c / sum_c n_c exp(x.c).

    n_c, c and v_c are the number of keys, the mean key and the mean value of each cell. By Jensen's inequality the
    normaliser is a lower bound of the exact one; order=2 adds half the variance of x.y inside each cell, along the
    axes. Exact at m = l. Causal: centres come from the keys before, in linear time.
    Hooper et al. 2025 (the far field of "Multipole Attention"), arXiv 2506.13059.
    """

    name: ClassVar[str] = "clusters"
    reference: ClassVar[str] = "Hooper et al. 2025, arXiv 2506.13059 (its far field)"
    description: ClassVar[str] = "attention to the m centroids of clustered keys, weighted by their number"
    look: ClassVar[Mapping[str, object]] = {"color": "C5", "linestyle": "-", "marker": "D", "markersize": 4}
    points: Points = "random"
    lloyd: int = 0
    order: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("order", self.order, 1, 2)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return self.order * super().pair_multiplications(shape, size)

    with_variance = claim(lambda self: self.order == 2)
    second_order = claim(lambda self: self.order == 2)
