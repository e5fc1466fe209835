"""The best that any map of R features can do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.baselines.base import Answer, Baseline, Question
from favorbench.numerics.shapes import Float

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
    every_size: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.45",
        "linestyle": "-",
        "label": "best-rank (rank R)",
        "marker": "x",
        "markersize": 5,
    }

    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        query, key = question.query, question.key
        if len(query) * len(key) > MATRIX_LIMIT:
            return
        logits = (query * query.shape[-1] ** -0.5) @ key.T
        matrix = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
        matrix /= np.sum(matrix, axis=-1, keepdims=True)
        left = np.linalg.eigh(matrix @ matrix.T)[1][:, ::-1]  # columns by falling singular value
        coefficients = left.T @ exact
        output, start = np.zeros_like(exact), 0
        for size in sizes:
            output = output + left[:, start:size] @ coefficients[start:size]
            start = size
            yield Answer(size, size, output, None)

    def flops(self, query_len: int, seq_len: int, head_dim: int, width: int) -> float:
        """About 9 n^3 for an eigendecomposition with its vectors, and 2 n^2 l, here l = n or so, for A A^T."""
        return 12.0 * query_len**3

    def matrix_entries(self, query_len: int, seq_len: int, width: int) -> int:
        """The logits, their exponentials, and A A^T with its eigenvectors, which are no larger where n <= l."""
        return 4 * query_len * seq_len
