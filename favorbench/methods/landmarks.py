"""Attention through a few landmarks among the keys: Nystrom approximations of the softmax kernel."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy

from favorbench.kernels import gaussian_kernel
from favorbench.numerics.arrays import Features, half_squared_norm
from favorbench.numerics.logsum import accumulate, quotient, tiles, with_ones
from favorbench.numerics.shapes import Float

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


def landmark_attention(
    query: Float[np.ndarray, "n d"],
    key: Float[np.ndarray, "l d"],
    value: Float[np.ndarray, "l d_v"],
    landmarks: Landmarks,
    sizes: tuple[int, ...],
) -> Iterator[tuple[Float[np.ndarray, "n d_v"], Float[np.ndarray, "n 1"]]]:
    """Output and normaliser for each R: h(x, S) W [V, 1], W = h(S, S)^-1 h(S, Y), h = exp(x.y) for scaled x and y.

    With g(y, y') = exp(-|y - y'|^2/2) = F F^T on the landmarks, W = exp(-|S|^2/2) F^-T F^-1 g(S, Y) exp(|Y|^2/2), and
    F^-1 g(S, Y) of every smaller R is in its first rows. For y in S the column of W is known, a unit vector: left out
    of the products it loses no digits, so with all keys as landmarks the attention is exact.
    """
    chosen, factor, _ = landmarks
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
            found = [
                quotient(accumulate(None, Features(None, query[rows] @ points[:r].T), coefficients))
                for rows in tiles(len(query), r, query)
            ]
        yield np.concatenate([output for output, _ in found]), np.concatenate([normaliser for _, normaliser in found])
