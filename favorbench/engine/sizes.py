"""The size at which each estimator is measured, for the budget of a scenario."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from favorbench.attention.causal import chunk_multiplications
from favorbench.attention.problem import Shape
from favorbench.errors import ScenarioError
from favorbench.inputs import Head
from favorbench.methods import Method
from favorbench.methods.features import LinearAttention
from favorbench.users import stated_cost


class Size(NamedTuple):
    """requested: the R, number of features or cost of the scenario; None if the estimator ignores it.

    size: the projections of a map, or the size of a method, that follow from it.
    """

    requested: int | None
    size: int


def shape_of(head: Head, causal: bool) -> Shape:
    """The sizes from which costs follow."""
    return Shape(head.query_len, head.seq_len, head.head_dim, head.d_v, causal)


def sizes_of(method: Method, name: str, budget: str, requested: tuple[int, ...], shape: Shape) -> tuple[Size, ...]:
    """The sizes of an estimator; a cost does not limit oracles. Raises ScenarioError for a budget it cannot meet."""
    if not method.every_size:
        return (Size(None, 1 if isinstance(method, LinearAttention) else requested[-1]),)
    if budget == "cost" and not method.oracle:
        sizes = _affordable(method, name, requested, shape)
        return tuple(Size(number, method.drawable(size, shape)) for number, size in zip(requested, sizes, strict=True))
    per = method.features_per_size if budget == "features" else 1
    return tuple(Size(number, number // per) for number in requested)


def distinct_sizes(sizes: Iterable[Size]) -> tuple[int, ...]:
    """The different sizes in increasing order."""
    return tuple(sorted({size.size for size in sizes}))


def budget_of(num_features: int, shape: Shape) -> float:
    """Multiplications of a map with one feature for each projection: (n + l) R (d + d_v), and of chunks."""
    return float((shape.n + shape.l) * num_features * shape.per_pair) + chunk_multiplications(shape, num_features)


def _affordable(method: Method, name: str, requested: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """For each number of features, the largest size that costs no more than a map with these features.

    All sizes up to l are tried from above: costs in whole blocks, or of halving, are not monotone. An odd size may cost
    five times as much as the next even one, and one above l / 2, which halves nothing, less than either. Above l there
    are only maps, whose costs are monotone.
    """

    def work(size: int) -> float:
        multiplications = stated_cost(name, lambda: method.multiplications(shape, size))
        if multiplications is None:
            raise ScenarioError(f"`budget` cost: {name} does not declare its cost; use `budget` projections")
        return multiplications

    most = max(1, method.largest_size(shape))  # if there is none, the check of sizes refuses it
    size, sizes = shape.l, {}
    while size < most and work(size) <= budget_of(max(requested), shape):
        size *= 2
    size = min(size, most)
    for number in sorted(set(requested), reverse=True):
        while size and work(size) > budget_of(number, shape):
            size -= 1
        if not size:
            least = min(map(work, range(1, min(shape.l, most) + 1)))
            without, per_feature = budget_of(0, shape), budget_of(1, shape) - budget_of(0, shape)
            raise ScenarioError(
                f"`budget` cost: {name} costs more than a map of {number} features here; "
                f"use `num_projections` {max(1, math.ceil((least - without) / per_feature))} or more"
            )
        sizes[number] = size
    return tuple(sizes[number] for number in requested)
