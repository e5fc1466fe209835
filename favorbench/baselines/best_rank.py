"""The best that any map of R features can do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.baselines.base import Baseline
from favorbench.methods import Answer, Question, Shape
from favorbench.numerics.logsum import with_ones
from favorbench.numerics.streams import Streams

MATRIX_LIMIT = 1 << 22  # entries of the largest attention matrix that best-rank decomposes: 2048 x 2048


@dataclass(frozen=True)
class BestRank(Baseline):
    """The best matrix of rank R: the truncated SVD of the row-normalised attention matrix.

    No map of R features comes closer to the attention *matrix* (Eckart & Young 1936). With U_R the first R left
    singular vectors its output is U_R U_R^T (A V), so the eigenvectors of A A^T suffice; they are good to about 1e-8
    of the largest singular value. Only while the matrix has at most MATRIX_LIMIT entries; no answer otherwise.
    """

    name: ClassVar[str] = "best-rank"
    reference: ClassVar[str] = "Eckart & Young 1936"
    description: ClassVar[str] = "truncated SVD of the attention matrix at rank R; up to 2048 x 2048"
    needs_all_rows: ClassVar[bool] = True
    causal_safe: ClassVar[bool] = False  # a mask takes linear attention out of the matrices of rank R
    random: ClassVar[bool] = False
    oracle: ClassVar[bool] = True
    exact_at_full_size: ClassVar[bool] = True
    arrays: ClassVar = "host"
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.45",
        "linestyle": "-",
        "label": "best-rank (rank R)",
        "marker": "x",
        "markersize": 5,
    }

    def answers(self, question: Question, sizes: tuple[int, ...], streams: Streams) -> Iterator[Answer]:
        query, key = question.query, question.key
        if len(query) * len(key) > MATRIX_LIMIT:
            return
        logits = query @ key.T
        matrix = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
        matrix /= np.sum(matrix, axis=-1, keepdims=True)
        left = np.linalg.eigh(matrix @ matrix.T)[1][:, ::-1]  # columns by falling singular value
        exact = matrix @ with_ones(question.value)
        coefficients = left.T @ exact  # rows of A add up to 1, those of U_R U_R^T A no longer
        output, start = np.zeros_like(exact), 0
        for size in sizes:
            output = output + left[:, start:size] @ coefficients[start:size]
            start = size
            yield Answer(size, size, output[:, :-1], None, output[:, -1:])

    def check(self, sizes: tuple[int, ...], shape: Shape) -> None:
        """Every size: above the rank of the matrix it is the matrix."""

    def multiplications(self, shape: Shape, size: int) -> float:
        """About 4.5 n^3 for an eigendecomposition with its vectors, n^2 l for A A^T, and the matrix with its output."""
        n, length, d, d_v, _ = shape
        return float(4.5 * n**3 + n * n * (length + d_v) + n * length * (d + d_v))

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The logits, their exponentials, and A A^T with its eigenvectors, which are no larger where n <= l."""
        return 4 * shape.n * shape.l
