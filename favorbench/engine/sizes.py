"""At which size each estimator is measured, for what the budget of a scenario asks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from favorbench.errors import ScenarioError
from favorbench.inputs import Head
from favorbench.maps import FeatureMap
from favorbench.methods import Method, Shape
from favorbench.registry import label
from favorbench.samplers import Sampler


class Sized(NamedTuple):
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
) -> tuple[Sized, ...]:
    """Of a map under a sampler. Raises ScenarioError for a budget that it cannot meet."""
    if feature_map.randomness == "none":
        return (Sized(None, 1),)
    if budget == "cost":
        work = _map_work(feature_map, shape)
        return tuple(Sized(one, _drawable(sampler, _affordable(feature_map, work, one, shape), shape)) for one in asked)
    per = feature_map.features_per_projection if budget == "features" else 1
    return tuple(Sized(one, one // per) for one in asked)


def sizes_of_method(method: Method, budget: str, asked: tuple[int, ...], shape: Shape) -> tuple[Sized, ...]:
    """Of a method or baseline. What is an oracle is not made to pay. Raises ScenarioError as for a map."""
    if not method.every_size:
        return (Sized(None, asked[-1]),)
    if budget != "cost" or method.oracle:
        return tuple(Sized(one, one) for one in asked)

    def work(size: int) -> float | None:
        return method.multiplications(shape, size)

    most = max(1, method.largest_size(shape))  # where there is none, the check of sizes says so
    return tuple(Sized(one, min(_affordable(method, work, one, shape), most)) for one in asked)


def own_sizes(sized: Iterable[Sized]) -> tuple[int, ...]:
    """The sizes, each once, increasing."""
    return tuple(sorted({one.size for one in sized}))


def budget_of(asked: int, shape: Shape) -> float:
    """Multiplications of a map of so many features, one for each projection: (n + l) R (d + d_v)."""
    return float((shape.n + shape.l) * asked * (shape.d + shape.d_v))


def _map_work(feature_map: FeatureMap, shape: Shape) -> Callable[[int], float | None]:
    return lambda size: feature_map.multiplications(shape.n, shape.l, shape.d, shape.d_v, size)


def _affordable(member: FeatureMap | Method, work: Callable[[int], float | None], asked: int, shape: Shape) -> int:
    """The largest size that costs no more than a map of so many features."""
    budget, least = budget_of(asked, shape), work(1)
    if least is None:
        raise ScenarioError(f"`budget` cost: {label(member)} does not say what it costs; use `budget` projections")
    if least > budget:
        needed = -(-least // budget_of(1, shape))
        raise ScenarioError(
            f"`budget` cost: {label(member)} costs more than a map of {asked} features here; "
            f"use `num_projections` {needed:.0f} or more"
        )
    low, high = 1, 2
    while (work(high) or 0.0) <= budget and high <= 1 << 24:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (work(middle) or 0.0) <= budget else (low, middle)
    return low


def _drawable(sampler: Sampler | None, size: int, shape: Shape) -> int:
    """The largest number of projections, up to size, that the sampler can draw; size where there is none."""
    fitting = (one for one in range(size, 0, -1) if sampler is None or sampler.round_up(one, shape.d) == one)
    return next(fitting, size)
