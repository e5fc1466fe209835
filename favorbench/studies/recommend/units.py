"""What gets an answer: a head, or a head in many texts; and which draws are its own."""

import re
from collections.abc import Callable
from typing import NamedTuple

from favorbench.engine.plan import Draw, Plan
from favorbench.errors import ScenarioError
from favorbench.numerics.streams import stream


class Unit(NamedTuple):
    """What gets one answer: a head, or a head in many texts.

    draws: the i-th, of at most so many. fixed: nothing but the estimator differs between them.
    """

    label: str
    draws: Callable[[int], Draw]
    most: int
    fixed: bool


def units_of(draws: Plan, over: str) -> list[Unit]:
    """The heads of a plan; or, over texts, the heads that differ in their text only, together."""
    shapes, study = draws.shapes, draws.study
    names = [shape.head.label for shape in shapes]
    if over == "heads":
        fixed = [
            study.inputs[s.input].law.fixed and study.scenario.rows(s.head.query_len) == s.head.query_len
            for s in shapes
        ]
        each = (lambda trial, number=number: draws[trial * len(shapes) + number] for number in range(len(shapes)))
        count = study.scenario.trials
        return [Unit(name, draw, count, is_fixed) for name, draw, is_fixed in zip(names, each, fixed, strict=True)]
    heads: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        heads.setdefault(_without_text(name), []).append(number)
    if max(map(len, heads.values())) == 1:
        raise ScenarioError(
            "`over` texts: there is one text only; capture several into one file, or give arrays of shape "
            "(texts, heads, L, d)"
        )
    order = stream(study.scenario.seed, "texts").permutation(len(shapes))
    rank = {int(number): place for place, number in enumerate(order)}
    units = []
    for name, numbers in heads.items():
        shuffled = sorted(numbers, key=rank.__getitem__)
        units.append(Unit(name, lambda i, numbers=shuffled: draws[numbers[i]], len(shuffled), False))
    return units


def _without_text(label: str) -> str:
    """The head of "L0H5@text", or of "b3h5": one of a batch is a text."""
    batch = re.fullmatch(r"b\d+(h\d+)", label)
    return batch[1] if batch else label.partition("@")[0]
