"""What a figure shows of many estimators: as many as can be told apart, and a user's own always; it names the rest."""

import math
from collections.abc import Collection, Mapping, Sequence

from favorbench import style
from favorbench.metrics import METRICS

MOST = 100.0  # times the error of uniform attention: what is worse stands at the edge, an arrow, not in the scale

LEAST = 1e-6  # times it: what is less leaves the axis below, as what is exact up to rounding does

CURVES = 8  # that have a colour of their own, at most: as many as there are colours
NARROW, FEWER = 5.0, 5  # inches: in a narrower figure not so many

USUAL = "positive"  # the map that readers know, FAVOR+: with its best sampler it is always shown

SPOKEN = 16  # names in a caption, at most: the others are in the CSV beside it


def most_curves() -> int:
    """How many curves can be told apart in a figure of the size that is asked for."""
    size = style.wanted().size
    return CURVES if size is None or size[0] >= NARROW else FEWER


def is_usual(estimator: str) -> bool:
    """Whether an estimator is USUAL with some sampler."""
    return estimator == USUAL or estimator.startswith(f"{USUAL} / ")


def chosen(errors: Mapping[str, float], most: int, always: Collection[str] = ()) -> list[str]:
    """Of estimators with their errors (the less, the better) those to show, in their own order.

    All of ``always``, and the best of the others up to ``most`` in all.
    """
    order = sorted(errors, key=lambda name: (name not in always, _as_bad_as_can_be(errors[name])))
    kept = set(order[: max(most, sum(name in always for name in errors))])
    return [name for name in errors if name in kept]


def _as_bad_as_can_be(error: float) -> float:
    return math.inf if math.isnan(error) else error


def in_words(names: Sequence[str]) -> str:
    """A list of names for a caption."""
    if len(names) <= SPOKEN:
        return ", ".join(names)
    return f"{', '.join(names[:SPOKEN])} and {len(names) - SPOKEN} more (all in the CSV)"


def capped(metric: str, uniform: float) -> float:
    """The largest value that an axis shows: MOST times uniform attention's, of an error on a log axis."""
    one = METRICS[metric]
    return MOST * uniform if one.error and one.log and one.better == "lower" and uniform > 0 else math.inf
