"""The trivial answers: the mean of V, and Taylor polynomials. And bounds: the best map of R features, the best keys."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.attention.causal import visible
from favorbench.attention.linear import attention_estimates, linear_multiplications
from favorbench.attention.problem import SampledMap
from favorbench.maps import Taylor
from favorbench.methods import AttentionProblem, Estimate, Shape
from favorbench.methods.base import Baseline, Sizes, line_style
from favorbench.numerics.arrays import array_namespace, largest, masked, rows_at
from favorbench.numerics.logsum import tiles, with_ones
from favorbench.numerics.machine import scipy_linalg
from favorbench.numerics.streams import Streams

MATRIX_LIMIT = 1 << 22  # entries of the largest attention matrix that best-rank decomposes: 2048 x 2048


class Unsized(Baseline):
    """One answer, whatever the size, and nothing random about it."""

    random = False
    every_size = False
    causal_safe = True
    arrays = "host"


@dataclass(frozen=True)
class Uniform(Unsized):
    """Uniform attention: the mean of V for every query; where attention is causal, of V up to the query."""

    name = "uniform"
    convex = True
    reference = "-"
    description = "uniform attention: the mean of V for every query"
    look = line_style("black", "--", label="uniform (mean of V)")

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        value = problem.value
        if not problem.causal:
            mean = np.mean(value, axis=0)
            yield Estimate(None, 1, np.broadcast_to(mean, (len(problem.query), value.shape[-1])), None)
            return
        means = np.cumsum(value, axis=0) / np.arange(1, len(value) + 1)[:, None]
        yield Estimate(None, 1, means[problem.positions], None)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Zero: there are only sums."""
        return 0.0


class Polynomial(Unsized):
    """Linear attention with the Taylor polynomial of exp(x.y) up to some order."""

    order: ClassVar[int]

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        polynomial, unread = Taylor(self.order), problem.query[:1]  # in the place of omega
        tiles = list(attention_estimates(problem, unread, [SampledMap(polynomial, None, (1,))]))
        output, normaliser = (np.concatenate([getattr(e, part)[0] for e in tiles]) for part in ("output", "normaliser"))
        yield Estimate(None, polynomial.num_features(0, problem.query.shape[-1]), output, normaliser)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        return linear_multiplications(Taylor(self.order), shape, 0)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """A summary of [v, 1] for each feature, and two more while it grows."""
        return 3 * Taylor(self.order).num_features(0, shape.d) * (shape.d_v + 1)


@dataclass(frozen=True)
class Taylor1(Polynomial):
    """Attention with the kernel 1 + x.y, d + 1 features; the normaliser may be negative."""

    name = "taylor-1"
    order = 1
    reference = "first order of exp(x.y)"
    description = "linear attention with the kernel 1 + x.y: d + 1 features, no randomness"
    look = line_style("0.45", "-.", label="taylor-1")


@dataclass(frozen=True)
class Taylor2(Polynomial):
    """Attention with the kernel 1 + x.y + (x.y)^2/2 >= 1/2, (d + 1)(d + 2)/2 features."""

    name = "taylor-2"
    order = 2
    reference = "Arora et al. 2024 (Based), arXiv 2402.18668"
    description = "linear attention with the kernel 1 + x.y + (x.y)^2/2: (d + 1)(d + 2)/2 features"
    look = line_style("0.45", ":", label="taylor-2")


@dataclass(frozen=True)
class BestRank(Baseline):
    """The best matrix of rank R: the truncated SVD of the row-normalised attention matrix.

    No map of R features comes closer to the attention *matrix* (Eckart & Young 1936). With U_R the first R left
    singular vectors its output is U_R U_R^T (A V), so the eigenvectors of A A^T suffice; they are good to about 1e-8
    of the largest singular value. Only while the matrix has at most MATRIX_LIMIT entries; no answer otherwise.
    """

    name = "best-rank"
    reference = "Eckart & Young 1936"
    description = "truncated SVD of the attention matrix at rank R; up to 2048 x 2048"
    needs_all_rows = True
    causal_safe = False  # a mask takes linear attention out of the matrices of rank R
    random = False
    oracle = True
    exact_at_full_size = True
    arrays = "host"
    look = line_style("0.45", "-", "x", 5, label="best-rank (rank R)")

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        query, key = problem.query, problem.key
        if len(query) * len(key) > MATRIX_LIMIT:
            return
        matrix = query @ key.T
        matrix -= np.max(matrix, axis=-1, keepdims=True)
        np.exp(matrix, out=matrix)
        matrix /= np.sum(matrix, axis=-1, keepdims=True)
        exact = matrix @ with_ones(problem.value)
        below = tuple(size for size in sizes if size < min(matrix.shape))  # from there on nothing is cut off
        outputs = leading_projections(matrix, exact, below) if below else []
        for size, output in itertools.zip_longest(sizes, outputs, fillvalue=exact):
            # rows of A add up to 1, those of U_R U_R^T A no longer
            yield Estimate(size, size, output[:, :-1], None, output[:, -1:])

    def check(self, sizes: Sizes, shape: Shape) -> None:
        """Every size: above the rank of the matrix it is the matrix."""

    def multiplications(self, shape: Shape, size: int) -> float:
        """About 2 n^3 for the tridiagonal form with its eigenvectors, n^2 l for A A^T, the matrix and its output."""
        n, length, d, d_v, _ = shape
        return float(2 * n**3 + n * n * (length + d_v) + n * length * (d + d_v))

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The matrix, A A^T and its copy, and the eigenvectors, which are no larger where n <= l."""
        return 4 * shape.n * shape.l


def leading_projections(matrix: np.ndarray, right: np.ndarray, sizes: Sizes) -> list[np.ndarray]:
    """U_R U_R^T right for each size R (increasing, below the number of rows): U_R the first R left singular vectors.

    A A^T = Q T Q^T with T tridiagonal and U = Q W. Only W_R W_R^T Q^T right is needed: so Q, n - 1 reflections, is
    applied to a few columns for each size and never to W, which saves half of a decomposition with U.
    """
    linalg, count = scipy_linalg(), len(matrix)
    symmetric = (matrix @ matrix.T).T  # its columns side by side, as LAPACK has them
    packed, diagonal, above, factors, _ = linalg.lapack.dsytrd(symmetric, lower=1, lwork=64 * count, overwrite_a=1)

    def reflected(columns: np.ndarray, order: str) -> np.ndarray:
        """Q columns, or Q^T columns for the order "T"; the reflections leave the first row as it is."""
        work = 64 * (columns.shape[-1] + 65)  # in blocks of 64, and one block with its triangle
        rest = linalg.lapack.dormqr("L", order, packed[1:, :-1], factors, columns[1:], work)[0]
        return np.concatenate([columns[:1], rest])

    vectors = linalg.eigh_tridiagonal(diagonal, above)[1][:, ::-1]  # columns by falling singular value
    turned = reflected(right, "T")
    coefficients = vectors.T @ turned
    steps = [vectors[:, a:b] @ coefficients[a:b] for a, b in itertools.pairwise((0, *sizes))]
    return np.split(reflected(np.concatenate(list(itertools.accumulate(steps)), axis=-1), "N"), len(sizes), axis=-1)


@dataclass(frozen=True)
class TopKeys(Baseline):
    """Softmax over the m keys with the largest logits of each query: the bound of all choices of m keys by logits.

    It evaluates every pair of a query and a key.
    """

    name = "top-keys"
    reference = "-"
    description = "oracle: softmax over the m keys with the largest logits of each query"
    random = False
    causal_safe = True
    oracle = True
    convex = True
    exact_at_full_size = True
    arrays = "single"
    look = line_style("0.45", (0, (3, 1, 1, 1)), "^", 4, label="top-keys (oracle)")

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        xp = array_namespace(problem.query)
        parts = [[] for _ in sizes]
        for rows in tiles(problem.query.shape[-2], problem.key.shape[-2], problem.query):
            logits = problem.query[rows, :] @ problem.key.mT
            if problem.causal:
                assert problem.positions is not None
                logits = masked(logits, visible(problem.positions[rows], slice(0, len(problem.key)), logits))
            index = largest(logits, min(sizes[-1], logits.shape[-1]))
            weights = xp.take_along_axis(logits, index, axis=-1)
            weights = xp.exp(weights - weights[..., :1])
            for part, size in zip(parts, sizes, strict=True):
                chosen = rows_at(problem.value, index[:, :size])
                normaliser = xp.sum(weights[:, :size], axis=-1, keepdims=True)
                part.append((xp.sum(weights[:, :size, None] * chosen, axis=-2) / normaliser, normaliser))
        for size, part in zip(sizes, parts, strict=True):
            yield Estimate(size, size, *(xp.concat(arrays, axis=0) for arrays in zip(*part, strict=True)))

    def multiplications(self, shape: Shape, size: int) -> float:
        """Every pair of a query and a key, and m d_v for each query."""
        return float(shape.n * (shape.l * shape.d + size * shape.d_v))
