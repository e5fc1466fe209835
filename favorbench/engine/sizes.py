"""At which size each estimator is measured, for what the budget of a scenario asks."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from favorbench.attention.causal import chunk_multiplications
from favorbench.errors import ScenarioError
from favorbench.inputs import Head
from favorbench.maps import FeatureMap
from favorbench.methods import Method, Shape
from favorbench.methods.features import MAX_PROJECTIONS
from favorbench.methods.prefixes import ExactKeys
from favorbench.registry import label
from favorbench.samplers import Sampler


class Size(NamedTuple):
    """asked: the R, the number of features or the cost that was asked for, None where the size plays no part.

    size: projections of a map, or the size of a method, that it comes to.
    """

    asked: int | None
    size: int


def shape_of(head: Head, causal: bool) -> Shape:
    """What costs follow from."""
    return Shape(head.query_len, head.seq_len, head.head_dim, head.d_v, causal)


def sizes_of_map(
    feature_map: FeatureMap, sampler: Sampler | None, budget: str, asked: tuple[int, ...], shape: Shape
) -> tuple[Size, ...]:
    """Of a map under a sampler. Raises ScenarioError for a budget that it cannot meet."""
    if feature_map.randomness == "none":
        return (Size(None, 1),)
    if budget == "cost":
        most = _affordable(feature_map, asked, shape, MAX_PROJECTIONS)
        return tuple(Size(one, _drawable(sampler, size, shape)) for one, size in zip(asked, most, strict=True))
    per = features_for_each(feature_map) if budget == "features" else 1
    return tuple(Size(one, one // per) for one in asked)


def sizes_of_method(method: Method, budget: str, asked: tuple[int, ...], shape: Shape) -> tuple[Size, ...]:
    """Of a method or baseline. What is an oracle is not made to pay. Raises ScenarioError as for a map."""
    if not method.every_size:
        return (Size(None, asked[-1]),)
    if budget != "cost" or method.oracle:
        per = features_for_each(method) if budget == "features" else 1
        return tuple(Size(one, one // per) for one in asked)
    most = max(1, method.largest_size(shape))  # where there is none, the check of sizes says so
    sizes = _affordable(method, asked, shape, most)
    return tuple(Size(one, size) for one, size in zip(asked, sizes, strict=True))


def features_for_each(member: FeatureMap | Method) -> int:
    """Features for each projection of a map, of one inside prefixes too; 1 for what counts something else."""
    while isinstance(member, ExactKeys):
        member = member.wrapped
    return member.features_per_projection or 1 if isinstance(member, FeatureMap) else 1


def own_sizes(sized: Iterable[Size]) -> tuple[int, ...]:
    """The sizes, each once, increasing."""
    return tuple(sorted({one.size for one in sized}))


def budget_of(asked: int, shape: Shape) -> float:
    """Multiplications of a map of so many features, one for each projection: (n + l) R (d + d_v), and of the chunks."""
    own = chunk_multiplications(shape.n, shape.l, asked, shape.d_v) if shape.causal else 0.0
    return float((shape.n + shape.l) * asked * (shape.d + shape.d_v)) + own


def work_of_map(feature_map: FeatureMap, shape: Shape, size: int) -> float | None:
    """Multiplications of linear attention with so many projections; None where they are not known."""
    work = feature_map.multiplications(shape.n, shape.l, shape.d, shape.d_v, size)
    if work is None or not shape.causal:
        return work
    return work + chunk_multiplications(shape.n, shape.l, feature_map.num_features(size, shape.d), shape.d_v)


def _affordable(member: FeatureMap | Method, asked: tuple[int, ...], shape: Shape, most: int) -> tuple[int, ...]:
    """For each number of features that is asked for, the largest size up to ``most`` that costs no more than a map of
    so many.

    All sizes up to l are looked at, from above: costs in whole blocks, or of halving, are not monotone. A size that is
    no multiple of 2 may cost five times as much as the next one that is, and one above l / 2, which halves nothing,
    less than either. Above l there are maps only, whose costs are.
    """

    def work(size: int) -> float:
        found = (
            work_of_map(member, shape, size) if isinstance(member, FeatureMap) else member.multiplications(shape, size)
        )
        if found is None:
            raise ScenarioError(f"`budget` cost: {label(member)} does not say what it costs; use `budget` projections")
        return found

    size, sizes = shape.l, {}
    while size < most and work(size) <= budget_of(max(asked), shape):
        size *= 2
    size = min(size, most)
    for one in sorted(set(asked), reverse=True):
        while size and work(size) > budget_of(one, shape):
            size -= 1
        if not size:
            least = min(map(work, range(1, min(shape.l, most) + 1)))
            raise ScenarioError(
                f"`budget` cost: {label(member)} costs more than a map of {one} features here; "
                f"use `num_projections` {_features_of(least, shape)} or more"
            )
        sizes[one] = size
    return tuple(sizes[one] for one in asked)


def _features_of(work: float, shape: Shape) -> int:
    """The least number of features of a map that costs as much."""
    without, one = budget_of(0, shape), budget_of(1, shape)
    return max(1, math.ceil((work - without) / (one - without)))


def _drawable(sampler: Sampler | None, size: int, shape: Shape) -> int:
    """The largest number of projections, up to size, that the sampler can draw; size where there is none."""
    fitting = (one for one in range(size, 0, -1) if sampler is None or sampler.round_up(one, shape.d) == one)
    return next(fitting, size)
