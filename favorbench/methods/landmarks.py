"""Attention through a few keys as landmarks: Nystrom approximations of the softmax kernel, with and without a guard."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from favorbench.kernels import gaussian_kernel
from favorbench.maps.base import claim
from favorbench.methods.base import Shape, Sizes
from favorbench.methods.clusters import CellSummary, Landmarks, cells_of, nearest_centres, pivoted_cholesky
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.arrays import Features, Float, half_squared_norm
from favorbench.numerics.logsum import Accumulator, Sums, accumulate, quotient, tiles, with_ones
from favorbench.numerics.machine import scipy_linalg
from favorbench.numerics.streams import Streams

#: A normaliser is trusted up to this multiple of its lower bound: above it, on heads of MiniLM, it is wrong more often
#: than the bound is. At 4/3 no head is 1.1 times worse than the mean of V; with no limit some are twice as bad.
ABOVE_BOUND = 4.0 / 3.0


@dataclass(frozen=True)
class LandmarkSummary:
    """K(x, y_j) = h(x, S) h(S, S)^-1 h(S, y_j), h = exp(x.y) for scaled x and y, through the landmarks S (r, d).

    With g(y, y') = exp(-|y - y'|^2/2) = F F^T on the landmarks, the row of weights of y_j is W_j = exp(-|S|^2/2) F^-T
    F^-1 g(S, y_j) exp(|y_j|^2/2); for y_j in S it is a unit vector. coefficients: sum_j W_j [v_j, 1], (r, d_v + 1).
    """

    tokens: Tokens
    chosen: np.ndarray
    factor: Float[np.ndarray, "r r"]
    coefficients: Float[np.ndarray, "r columns"]

    @property
    def points(self) -> Float[np.ndarray, "r d"]:
        """The landmarks."""
        return self.tokens.key[self.chosen]

    def sums(self, queries: Queries) -> Accumulator:
        with np.errstate(over="ignore", invalid="ignore"):
            return accumulate(None, Features(None, queries.query @ self.points.T), self.coefficients)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        key, points = self.tokens.key[keys], self.points
        columns = scipy_linalg().solve_triangular(self.factor, gaussian_kernel(points, key), lower=True)
        columns = scipy_linalg().solve_triangular(self.factor.T, columns)
        logits = queries.query @ points.T - half_squared_norm(points)[:, 0]
        peak = np.max(logits, axis=-1, keepdims=True)
        values = np.exp(logits - peak) @ columns
        log_scale = peak + half_squared_norm(key)[:, 0]
        is_landmark = np.isin(np.arange(self.tokens.length)[keys], self.chosen)
        exact = queries.query @ key.T
        return Features(np.where(is_landmark, 1.0, values), np.where(is_landmark, exact, log_scale))


def landmark_summaries(tokens: Tokens, landmarks: Landmarks, sizes: Sizes) -> Iterator[LandmarkSummary]:
    """Yield a summary of keys (l, d) and values (l, d_v) for each R.

    The first rows of F^-1 g(S, Y) are those of every smaller R. The columns of W that belong to landmarks are known:
    without them in the products no digits are lost, so with all keys as landmarks the attention is exact.
    """
    (key, value), (chosen, factor, _) = tokens, landmarks
    points, right, half_norms = key[chosen], with_ones(value), half_squared_norm(key)
    weighted = np.exp(half_norms - np.max(half_norms)) * right
    landmark_rows, weighted[chosen] = weighted[chosen], 0.0
    summary = np.zeros((len(points), right.shape[-1]))
    for rows in tiles(len(key), len(points), key):
        summary += gaussian_kernel(points, key[rows]) @ weighted[rows]
    summary = scipy_linalg().solve_triangular(factor, summary, lower=True)
    for size in sizes:
        r = landmarks.count(size)
        others = summary[:r] + factor[r:, :r].T @ landmark_rows[r:]
        coefficients = scipy_linalg().solve_triangular(factor[:r, :r].T, others)
        with np.errstate(over="ignore", invalid="ignore"):
            # where the |y|^2/2 of keys differ by more than 700, the smallest underflow in the products above
            coefficients *= np.exp(np.minimum(np.max(half_norms) - half_norms[chosen[:r]], 700.0))
            coefficients += right[chosen[:r]]
        yield LandmarkSummary(tokens, chosen[:r], factor[:r, :r], coefficients)


@dataclass(frozen=True)
class GuardedSummary:
    """K(x, y_j) of ``free`` where it can be trusted, of ``bound`` elsewhere. NumPy only.

    It is trusted for a query whose normaliser is near that of ``bound``, its lower bound, and whose output is between
    the smallest and the largest values.
    """

    free: KeySummary
    bound: KeySummary
    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(free: KeySummary, bound: KeySummary, value: np.ndarray) -> "GuardedSummary":
        """With the range of the values (l, d_v) that these are means of."""
        low, high = np.min(value, axis=0), np.max(value, axis=0)
        slack = 1e-6 * (high - low)
        return GuardedSummary(free, bound, low - slack, high + slack)

    def sums(self, queries: Queries) -> Accumulator:
        free, bound = self.free.sums(queries), self.bound.sums(queries)
        trusted = self._trusted(free, bound)
        return Accumulator(*(np.where(trusted, a, b) for a, b in zip(free, bound, strict=True)))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        trusted = self._trusted(self.free.sums(queries), self.bound.sums(queries))
        free, bound = (part.kernel(queries, keys) for part in (self.free, self.bound))
        assert free.values is not None and bound.values is None
        return Features(np.where(trusted, free.values, 1.0), np.where(trusted, free.log_scale, bound.log_scale))

    def _trusted(self, free: Sums, bound: Sums) -> np.ndarray:
        """The queries to trust, (n, 1). Rounding may put an exact normaliser below its bound."""
        output, normaliser = quotient(free)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.log(normaliser) + free.log_peak - np.log(bound.total[:, -1:]) - bound.log_peak
        inside = np.all((output >= self.low) & (output <= self.high), axis=-1, keepdims=True)
        return inside & (above >= -1e-6) & (above <= np.log(ABOVE_BOUND))


@dataclass(frozen=True)
class ThroughLandmarks(KeySummaryMethod):
    """A method with R keys as landmarks: h(x, S) h(S, S)^-1 h(S, y), h = exp(x.y) for scaled x and y.

    guard: "none" or "cells". With cells, the keys nearest to each landmark are a cell. A query is answered by the cells
    (``clusters``) where its normaliser is below sum_c n_c exp(x.c), a lower bound of the exact one (Jensen), or above
    4/3 of it, or where its output is outside the range of the values. The guard costs m d for each key and m (d + d_v)
    for each query. Over 72 heads of MiniLM the largest error falls from 20,000 times that of the mean of V to once, and
    the median by a third to a half; clusters themselves have less. On Gaussian inputs nystrom keeps its accuracy.
    With a prefix the guard judges the answer with the exact keys in it.
    """

    arrays = "host"
    exact_at_full_size = True
    alternatives = claim(lambda self: 2 if self.guard == "cells" else 1)
    guard: Literal["none", "cells"] = "none"

    @abstractmethod
    def landmarks(self, key: np.ndarray, size: int, streams: Streams) -> Landmarks:
        """Choose among the keys (l, d), those for a smaller size first."""

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        for summary in landmark_summaries(tokens, self.landmarks(tokens.key, sizes[-1], streams), sizes):
            yield summary if self.guard == "none" else _guarded(summary)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Count m landmarks with all tokens and their values, m^2 (d_v + 1) for the solution, and the guard."""
        products = float((shape.n + shape.l) * size * shape.per_pair + size * size * (shape.d_v + 1))
        guard = float(shape.l * size * shape.d + shape.n * size * shape.per_pair)
        return products + (guard if self.guard == "cells" else 0.0)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Queries and keys with landmarks, the solution for each key, both with each other; queries with cells."""
        work = float((shape.n + shape.l) * size * shape.d + shape.l * size * size)
        work += float(shape.n * shape.l * (size + shape.d))
        return work + (float(shape.n * size * shape.d) if self.guard == "cells" else 0.0)


def _guarded(summary: LandmarkSummary) -> GuardedSummary:
    """With the cells of the keys nearest to each landmark."""
    (key, value), count = summary.tokens, len(summary.chosen)
    (labels,) = nearest_centres(key, summary.points, (count,))
    return GuardedSummary.of(summary, CellSummary(cells_of(key, value, labels, count), labels), value)


@dataclass(frozen=True)
class Nystrom(ThroughLandmarks):
    """Nystrom approximation of exp(x.y) through R keys S, sampled uniformly: h(x, S) h(S, S)^-1 h(S, y).

    That is phi(x).phi(y) with phi(x) = exp(x S^T) exp(S S^T)^-1/2, R features; normalisers may be negative.
    Williams & Seeger 2001, "Using the Nystrom method to speed up kernel machines", NIPS.
    """

    name = "nystrom"
    reference = "Williams & Seeger 2001, NIPS"
    description = "the softmax kernel through R keys, sampled uniformly, as landmarks"

    def landmarks(self, key: np.ndarray, size: int, streams: Streams) -> Landmarks:
        (rng,) = streams.generators
        order = rng.permutation(len(key))[:size]
        landmarks = pivoted_cholesky(key[order], len(order), lambda residual, step: step)
        return landmarks._replace(chosen=order[landmarks.chosen])

    def multiplications(self, shape: Shape, size: int) -> float:
        """Add the kernel and the factorisation of the landmarks, m^2 d and m^3 / 2."""
        return super().multiplications(shape, size) + float(size * size * (shape.d + size / 2))


@dataclass(frozen=True)
class WildCat(ThroughLandmarks):
    """``nystrom`` through the R keys of a randomly pivoted Cholesky factorisation of exp(y.y').

    The next landmark is a key with probability in proportion to what the earlier ones leave of exp(|y|^2). Takes
    O(L R) memory.
    Schroeder & Mackey 2026 ("WildCat"), arXiv 2602.10056 (at temperature 1, without its bins).
    """

    name = "wildcat"
    reference = "Schroeder & Mackey 2026, arXiv 2602.10056"
    description = "the softmax kernel through R keys as landmarks, by randomly pivoted Cholesky"

    def landmarks(self, key: np.ndarray, size: int, streams: Streams) -> Landmarks:
        (rng,) = streams.generators
        norms = np.sum(key * key, axis=-1)

        def choose(residual: np.ndarray, step: int) -> int:
            """Maximise log weights plus Gumbel noise: a draw in proportion to the weights, which may be huge."""
            return int(np.argmax(norms + np.log(residual) + rng.gumbel(size=len(residual))))

        return pivoted_cholesky(key, size, choose)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Add the kernel of the landmarks with all keys, l m d, and the factorisation, l m^2 / 2."""
        return super().multiplications(shape, size) + float(shape.l * size * (shape.d + size / 2))

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The rows of the Cholesky factor, over all keys; nystrom has rows over its landmarks only."""
        return shape.l * size
