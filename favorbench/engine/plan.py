"""The plan: a pure function from a study to its draws."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

from favorbench.engine.calibration import check_calibration
from favorbench.engine.sizes import features_for_each, own_sizes
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError
from favorbench.inputs import Head
from favorbench.maps import FeatureMap
from favorbench.registry import label, nearest

MAX_DRAWS = 1_000_000


@dataclass(frozen=True)
class Draw:
    """The unit of work, of resuming and of pairing: one realisation of the inputs, and all that is measured on it."""

    index: int
    input: str
    head: Head
    scale: float
    dtype: str
    trial: int
    sizes: tuple[int, ...]
    #: The draw's part in the names of its random streams. Scale and dtype are not in it: draws that differ in these
    #: alone share their random numbers, so that they are paired.
    stream_names: tuple[str | int, ...]


class Shape(NamedTuple):
    """What the draws of one trial differ in."""

    input: str
    head: Head
    scale: float
    dtype: str
    sizes: tuple[int, ...]


class Plan(Sequence[Draw]):
    """All draws of a study, trial by trial, so that a run cut short has covered every cell evenly.

    Each is made when it is asked for: a plan of a million draws is as small as one of ten.
    """

    def __init__(self, study: Study, shapes: Sequence[Shape]) -> None:
        self.study, self.shapes = study, tuple(shapes)

    def __len__(self) -> int:
        return len(self.shapes) * self.study.scenario.trials

    @overload
    def __getitem__(self, index: int) -> Draw: ...
    @overload
    def __getitem__(self, index: slice) -> list[Draw]: ...
    def __getitem__(self, index: int | slice) -> Draw | list[Draw]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        place = range(len(self))[index]
        trial, number = divmod(place, len(self.shapes))
        shape = self.shapes[number]
        head = shape.head
        key = self.study.inputs[shape.input].key
        names = (key, head.label, head.query_len, head.seq_len, head.head_dim, trial)
        names += shape.sizes if self.study.scenario.redraw == "R" else ()
        return Draw(place, shape.input, head, shape.scale, shape.dtype, trial, shape.sizes, names)

    def __iter__(self) -> Iterator[Draw]:
        return (self[i] for i in range(len(self)))


def plan(study: Study) -> Plan:
    """The draws of a study.

    Raises ScenarioError where an input does not have the length, the head_dim or the heads asked for, a sampler cannot
    draw so many projections, something cannot be causal, maps cannot be calibrated, or there are too many draws for one
    run.
    """
    scenario, shapes = study.scenario, []
    if scenario.causal:
        _check_causal(study)
    for name, source in study.inputs.items():
        heads = _chosen(scenario.heads, name, source.law.heads(scenario.seq_len, scenario.head_dim))
        if scenario.causal and (head := next((h for h in heads if h.query_len != h.seq_len), None)):
            raise ScenarioError(
                f"`causal`: {name} has {head.query_len} queries and {head.seq_len} keys; causal attention needs as many"
            )
        for head, scale, dtype in itertools.product(heads, scenario.scale, scenario.dtype):
            sizes = scenario.sizes(head.head_dim)
            _check_sizes(study, head, sizes)
            for group in [(size,) for size in sizes] if scenario.redraw == "R" else [sizes]:
                shapes.append(Shape(name, head, scale, dtype, group))
    check_calibration(study, shapes)
    found = Plan(study, shapes)
    if len(found) > MAX_DRAWS:
        raise ScenarioError(
            f"{len(shapes)} cells x {scenario.trials} trials are {len(found)} draws; at most {MAX_DRAWS} fit in one "
            "run: use fewer `trials`, or several runs with different `seed`"
        )
    return found


def _check_sizes(study: Study, head: Head, sizes: tuple[int, ...]) -> None:
    """Raise ScenarioError if a map does not divide the budget, a sampler cannot draw what a map will ask of it, or a
    method has no answer of this size."""
    if study.scenario.budget == "features":
        for member, size in itertools.product([*study.maps, *study.methods], sizes):
            per = features_for_each(member)
            if size % per:
                kind = "map" if isinstance(member, FeatureMap) else "method"
                raise ScenarioError(
                    f"`num_projections` {size} with `budget` features: {kind} {label(member)!r} has {per} features "
                    f"for each projection; use a multiple of {per}, e.g. {size + per - size % per}"
                )
    for group in study.groups(sizes, head):
        for size in {one.size for _, of_map in group.maps for one in of_map}:
            if group.sampler:
                group.sampler.check(size, head.head_dim)
    for method in study.methods:
        if method.needs_positions and head.query_len != head.seq_len:
            raise ScenarioError(
                f"`methods` {label(method)}: there is no window where {head.query_len} queries look at "
                f"{head.seq_len} keys; it needs as many"
            )
        rows = study.scenario.rows(head.query_len)
        if method.needs_all_rows and rows < head.query_len:
            raise ScenarioError(
                f"`methods` {label(method)}: it answers from all queries together, and the error is measured on {rows} "
                f"of {head.query_len}: use `query_rows` {head.query_len}"
            )
        method.check(own_sizes(study.sized(method, sizes, head)), study.shape(head))


def _check_causal(study: Study) -> None:
    """What takes its parameters from the whole sequence would see the future."""
    for key, members in (("maps", study.maps), ("methods", study.methods), ("baselines", study.baselines)):
        for member in members:
            if not member.causal_safe:
                frozen = (
                    f", or calibrate it: calibrated:{label(member)}" if getattr(member, "data_dependent", False) else ""
                )
                raise ScenarioError(
                    f"`{key}` {label(member)}: it uses the whole sequence and cannot be causal; leave out one or the "
                    f"other{frozen}"
                )


def _chosen(wanted: tuple[str, ...] | None, name: str, heads: tuple[Head, ...]) -> tuple[Head, ...]:
    if wanted is None:
        return heads
    labels = list(dict.fromkeys(head.label for head in heads))
    if labels == ["-"]:
        raise ScenarioError(f"`heads`: {name} is drawn at random and has no heads; leave `heads` out")
    for one in wanted:
        if one not in labels:
            raise ScenarioError(
                f"`heads`: {name} has no head {one!r}{nearest(one, labels)}; it has {', '.join(labels)}"
            )
    return tuple(head for head in heads if head.label in wanted)
