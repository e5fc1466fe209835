"""The base classes of methods: estimators of attention that are not feature maps."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from favorbench.attention.problem import AttentionProblem, Estimate, Shape
from favorbench.errors import ScenarioError
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_parameters
from favorbench.users import stated_cost


def line_style(
    color: str, linestyle: object, marker: str = "", markersize: int = 0, label: str = ""
) -> dict[str, object]:
    """How the line of a baseline looks in figures, as matplotlib names it."""
    chosen = {"color": color, "linestyle": linestyle, "marker": marker, "markersize": markersize, "label": label}
    return {name: value for name, value in chosen.items() if value}


#: The sizes m of a method, increasing.
Sizes = tuple[int, ...]


class Method(ABC):
    """An estimator of attention from queries, keys and values: clusters, landmarks, sampled keys, windows.

    A member is a frozen dataclass with two methods, ``estimates`` and ``multiplications``, and states its claims, which
    ``verify`` tests.
    """

    name: ClassVar[str]
    reference: ClassVar[str]
    description: ClassVar[str]
    #: It draws random numbers. If not, one draw of fixed inputs suffices.
    random: ClassVar[bool] = True
    #: There is an estimate for every size m, not a single one.
    every_size: ClassVar[bool] = True
    #: No estimate depends on keys after the query where attention is causal, or after its ``causal_block``.
    causal_safe: ClassVar[bool] = False
    #: In causal attention so many adjacent queries choose keys together, by weights that all keys they see enter.
    causal_block: ClassVar[int] = 1
    #: It evaluates every pair of a query and a key: a bound or a reference, not a practical estimator.
    oracle: ClassVar[bool] = False
    #: Every output is a weighted mean of values with weights >= 0.
    convex: ClassVar[bool] = False
    #: The estimate at size m = l is exact attention.
    exact_at_full_size: ClassVar[bool] = False
    #: The order of the keys does not matter (in law, where it draws).
    permutation_invariant: ClassVar[bool] = True
    #: The mean of its normaliser, and of output times normaliser, is that of exact attention.
    unbiased: ClassVar[bool] = False
    #: It uses the position of each query in the sequence, so queries and keys must be the same tokens.
    needs_positions: ClassVar[bool] = False
    #: It needs all queries, so a sample of query rows is not enough.
    needs_all_rows: ClassVar[bool] = False
    #: It takes parameters from all queries, ``fit_query`` where ``query`` is a sample of them.
    fits_queries: ClassVar[bool] = False
    #: The arrays it takes: "batched" of any library with leading axes, "single" without, "host" of NumPy without.
    arrays: ClassVar[Literal["batched", "single", "host"]] = "batched"
    #: Query heads with the same keys share its causal choices, in blocks of so many positions; 0: they do not.
    shared_block: ClassVar[int] = 0
    #: Features for each unit of the size, where the size counts projections.
    features_per_size: ClassVar[int] = 1
    #: The look of a baseline's line in figures: see ``line_style``. Others have the next of the usual ones.
    look: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "answers" in vars(cls):  # the name of ``estimates`` up to version 0.2
            warnings.warn(f"{cls.__name__}.answers is now called estimates", FutureWarning, stacklevel=2)
            cls.estimates = vars(cls)["answers"]

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        """Yield one estimate for each size (increasing), or a single one; none where there is no estimate."""

    def multiplications(self, shape: Shape, size: int) -> float | None:
        """Multiplications of its matrix products at this size; None where they are not known."""
        return None

    def largest_size(self, shape: Shape) -> int:
        """The largest size with an estimate."""
        return shape.l

    def drawable(self, size: int, shape: Shape) -> int:
        """The largest size up to this one that a sampler can draw; this one where there is no sampler."""
        return size

    def check(self, sizes: Sizes, shape: Shape) -> None:
        """Raise ScenarioError for a size without an estimate."""
        most = self.largest_size(shape)
        if self.every_size and sizes[-1] > most:
            raise ScenarioError(
                f"method {self.name!r}: size {sizes[-1]} given, allowed: at most {most}, the number of keys"
            )

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """Numbers in memory at a time beyond inputs, outputs and tiles."""
        return 0


def cost_of(method: Method, shape: Shape, size: int) -> float | None:
    """Its multiplications, which a user's class states. Raises EstimatorError for anything but a number, or None."""
    return stated_cost(method.name, lambda: method.multiplications(shape, size))


class Baseline(Method):
    """An estimator to compare with: trivial, or a bound."""
