"""What a method is: an estimator of attention that is no feature map."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from favorbench.attention.problem import AttentionProblem, Estimate, Shape
from favorbench.errors import ScenarioError
from favorbench.numerics.streams import Streams


class Method(ABC):
    """An estimator of attention from queries, keys and values: clusters, landmarks, sampled keys, windows.

    A member is a frozen dataclass with two methods, ``estimates`` and ``multiplications``, and states its claims, which
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
    #: Features for each unit of the size, where the size counts projections.
    features_per_size: ClassVar[int] = 1
    #: How its line looks in figures: matplotlib's color, linestyle, marker and markersize, and a label.
    look: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "answers" in vars(cls):  # the name of ``estimates`` up to version 0.2
            cls.estimates = vars(cls)["answers"]

    @abstractmethod
    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        """One estimate for each size (increasing), or a single one; none where there is no estimate."""

    def multiplications(self, shape: Shape, size: int) -> float | None:
        """Multiplications of its matrix products at this size; None where they are not known."""
        return None

    def largest_size(self, shape: Shape) -> int:
        """The largest size that there is an answer for."""
        return shape.l

    def drawable(self, size: int, shape: Shape) -> int:
        """The largest size up to this one that a sampler can draw; this one where there is no sampler."""
        return size

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


class Baseline(Method):
    """An answer to compare with: trivial, or a bound. A method in all but its purpose."""
