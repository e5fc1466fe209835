"""What a method is: an estimator of attention that is no feature map."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.numerics.arrays import Array, Float
from favorbench.numerics.streams import Streams


class Question(NamedTuple):
    """Queries (..., n, d) and keys (..., l, d), both scaled by d^-1/4, values (..., l, d_v).

    positions: of the queries among the keys, (n,), on the host; None where they are not the same tokens. causal: a
    query sees the keys up to its own position only.
    """

    query: Float[Array, "*batch n d"]
    key: Float[Array, "*batch l d"]
    value: Float[Array, "*batch l d_v"]
    positions: np.ndarray | None = None
    causal: bool = False


class Answer(NamedTuple):
    """The output for one size. num_projections is None where the size plays no part.

    normaliser: what the output was divided by, None where it was not. row_sums: of the weights of each query, where
    they are not 1 by a division.
    """

    num_projections: int | None
    num_features: int
    output: Float[Array, "*batch n d_v"]
    normaliser: Float[Array, "*batch n 1"] | None
    row_sums: Float[Array, "*batch n 1"] | None = None


class Shape(NamedTuple):
    """What the cost of an estimator follows from: n queries, l keys, d, d_v."""

    n: int
    l: int  # noqa: E741  (its name in every formula)
    d: int
    d_v: int
    causal: bool = False


class Method(ABC):
    """An estimator of attention from queries, keys and values: clusters, landmarks, sampled keys, windows.

    A member is a frozen dataclass with two methods, ``answers`` and ``multiplications``, and states its claims, which
    ``verify`` holds it to.
    """

    name: ClassVar[str]
    reference: ClassVar[str]
    description: ClassVar[str]
    #: It draws from its stream. If not, one draw of fixed inputs says all.
    random: ClassVar[bool] = True
    #: There is an answer for every size m, not a single one.
    every_size: ClassVar[bool] = True
    #: No answer depends on keys after the query where attention is causal.
    causal_safe: ClassVar[bool] = False
    #: It looks at every pair of a query and a key: a bound or a reference, not what one could use.
    oracle: ClassVar[bool] = False
    #: Every output is a weighted mean of values with weights >= 0.
    convex: ClassVar[bool] = False
    #: The answer at size m = l is exact attention.
    exact_at_full_size: ClassVar[bool] = False
    #: The order of the keys plays no part (in law, where it draws).
    permutation_invariant: ClassVar[bool] = True
    #: The mean of its normaliser, and of output times normaliser, is that of exact attention.
    unbiased: ClassVar[bool] = False
    #: It asks where in the sequence each query is, so queries and keys must be the same tokens.
    needs_positions: ClassVar[bool] = False
    #: It answers from the whole attention matrix, so a sample of query rows will not do.
    needs_all_rows: ClassVar[bool] = False
    #: Arrays it is given: "batched" of any library with leading axes, "single" without, "host" NumPy's without.
    arrays: ClassVar[Literal["batched", "single", "host"]] = "batched"
    #: How its line looks in figures: matplotlib's color, linestyle, marker and markersize, and a label.
    look: ClassVar[Mapping[str, object]] = {}

    @abstractmethod
    def answers(self, question: Question, sizes: tuple[int, ...], streams: Streams) -> Iterator[Answer]:
        """One answer for each size (increasing), or a single one; none where it cannot be had."""

    def multiplications(self, shape: Shape, size: int) -> float | None:
        """Multiplications of its matrix products at this size; None where they are not known."""
        return None

    def largest_size(self, shape: Shape) -> int:
        """The largest size that there is an answer for."""
        return shape.l

    def check(self, sizes: tuple[int, ...], shape: Shape) -> None:
        """Raise ScenarioError for a size that there is no answer for."""
        most = self.largest_size(shape)
        if self.every_size and sizes[-1] > most:
            raise ScenarioError(
                f"method {self.name!r}: size {sizes[-1]} given, allowed: at most the {most} keys there are"
            )

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Numbers that are kept at a time beside inputs and outputs, where that is more than tiles."""
        return 0
