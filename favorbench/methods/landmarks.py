"""Attention through a few landmarks among the keys: Nystrom approximations of the softmax kernel."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from favorbench.kernels import gaussian_kernel
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.arrays import Features, Float, half_squared_norm
from favorbench.numerics.logsum import Accumulator, accumulate, tiles, with_ones

#: Which point comes next, for the residual of each point (0 where nothing is left) and the step.
Choice = Callable[[np.ndarray, int], int]


class Landmarks(NamedTuple):
    """Which keys they are, in order, the lower triangular Cholesky factor of their Gaussian kernel matrix, and the
    steps at which they were chosen."""

    chosen: np.ndarray
    factor: Float[np.ndarray, "r r"]
    steps: np.ndarray

    def count(self, size: int) -> int:
        """Landmarks among the first ``size`` choices: those that depended on earlier ones were left out."""
        return int(np.searchsorted(self.steps, size))


def pivoted_cholesky(points: Float[np.ndarray, "n d"], steps: int, choose: Choice) -> Landmarks:
    """Partial Cholesky factorisation of the Gaussian kernel matrix of the points, in the order of ``choose``.

    O(n steps (d + steps)) time, O(n steps) memory. What is chosen first does not depend on ``steps``. A point whose
    residual is rounding only, that of n terms of at most 1 and of |y|^2 in g, adds nothing and is left out.
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
        columns = scipy.linalg.solve_triangular(self.factor, gaussian_kernel(points, key), lower=True)
        columns = scipy.linalg.solve_triangular(self.factor.T, columns)
        logits = queries.query @ points.T - half_squared_norm(points)[:, 0]
        peak = np.max(logits, axis=-1, keepdims=True)
        values = np.exp(logits - peak) @ columns
        log_scale = peak + half_squared_norm(key)[:, 0]
        own = np.isin(np.arange(self.tokens.length)[keys], self.chosen)
        exact = queries.query @ key.T
        return Features(np.where(own, 1.0, values), np.where(own, exact, log_scale))


def landmark_summaries(tokens: Tokens, landmarks: Landmarks, sizes: tuple[int, ...]) -> Iterator[LandmarkSummary]:
    """One summary of keys (l, d) and values (l, d_v) for each R.

    F^-1 g(S, Y) of every smaller R is in its first rows. The columns of W of landmarks are known: left out of the
    products they lose no digits, so with all keys as landmarks the attention is exact.
    """
    (key, value), (chosen, factor, _) = tokens, landmarks
    points, right, half_norms = key[chosen], with_ones(value), half_squared_norm(key)
    weighted = np.exp(half_norms - np.max(half_norms)) * right
    own, weighted[chosen] = weighted[chosen], 0.0
    summary = np.zeros((len(points), right.shape[-1]))
    for rows in tiles(len(key), len(points), key):
        summary += gaussian_kernel(points, key[rows]) @ weighted[rows]
    summary = scipy.linalg.solve_triangular(factor, summary, lower=True)
    for size in sizes:
        r = landmarks.count(size)
        others = summary[:r] + factor[r:, :r].T @ own[r:]
        coefficients = scipy.linalg.solve_triangular(factor[:r, :r].T, others)
        with np.errstate(over="ignore", invalid="ignore"):
            # where the |y|^2/2 of keys differ by more than 700, the smallest have been lost in the products above
            coefficients *= np.exp(np.minimum(np.max(half_norms) - half_norms[chosen[:r]], 700.0))
            coefficients += right[chosen[:r]]
        yield LandmarkSummary(tokens, chosen[:r], factor[:r, :r], coefficients)
