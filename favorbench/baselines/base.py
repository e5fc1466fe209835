"""What a baseline is."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from favorbench.numerics.shapes import Float


class Answer(NamedTuple):
    """A baseline's output. num_projections is 0 where R plays no part."""

    num_projections: int
    num_features: int
    output: Float[np.ndarray, "n d_v"]
    normaliser: Float[np.ndarray, "n 1"] | None


class Inputs(NamedTuple):
    """Queries (n, d), keys (l, d) and values (l, d_v) as attention takes them.

    positions: of the queries among the keys, where attention is causal.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
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

    @abstractmethod
    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        """One answer for every R in sizes (increasing), or a single one; none where it cannot be had."""
