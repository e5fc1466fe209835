"""What a baseline is."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from favorbench.numerics.shapes import Float


class Answer(NamedTuple):
    """A baseline's output. num_projections is None where R plays no part."""

    num_projections: int | None
    num_features: int
    output: Float[np.ndarray, "n d_v"]
    normaliser: Float[np.ndarray, "n 1"] | None


class Question(NamedTuple):
    """Queries (n, d), keys (l, d) and values (l, d_v) as attention takes them.

    positions: of the queries among the keys, where attention is causal.
    """

    query: Float[np.ndarray, "n d"]
    key: Float[np.ndarray, "l d"]
    value: Float[np.ndarray, "l d_v"]
    positions: np.ndarray | None = None


class Baseline(ABC):
    """An answer without random features; it may draw from ``rng``."""

    name: ClassVar[str]
    reference: ClassVar[str]
    description: ClassVar[str]
    #: It answers from the whole attention matrix, so a sample of query rows will not do.
    needs_all_rows: ClassVar[bool] = False
    #: No answer depends on keys after the query where attention is causal.
    causal_safe: ClassVar[bool] = True
    #: There is an answer for every R, not a single one.
    every_size: ClassVar[bool] = False
    #: How its line looks in figures: matplotlib's color, linestyle, marker and markersize, and a label.
    look: ClassVar[Mapping[str, object]] = {}

    @abstractmethod
    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        """One answer for every R in sizes (increasing), or a single one; none where it cannot be had."""

    def flops(self, query_len: int, seq_len: int, head_dim: int, width: int) -> float:
        """Floating-point operations of all answers up to R = width; 0: no more than the exact answer is worth."""
        return 0.0

    def matrix_entries(self, query_len: int, seq_len: int, width: int) -> int:
        """Numbers that are kept at a time beside inputs and outputs, where that is more than tiles."""
        return 0
