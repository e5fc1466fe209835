"""The plan: a pure function from a study to its draws."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

from favorbench.engine.calibration import check_calibration
from favorbench.engine.scenario import Scenario
from favorbench.engine.study import Study, distinct_sizes
from favorbench.errors import ScenarioError
from favorbench.inputs import Head, InputSource
from favorbench.registry import label, nearest

MAX_DRAWS = 1_000_000


@dataclass(frozen=True)
class Draw:
    """The unit of work, of resuming and of pairing: one realisation of the inputs and all estimators measured on it."""

    index: int
    input: str
    head: Head
    scale: float
    dtype: str
    trial: int
    sizes: tuple[int, ...]
    #: Part of the names of its random streams, without scale and dtype: draws that differ only in these share their
    #: random numbers, so that they are paired.
    stream_names: tuple[str | int, ...]


class DrawShape(NamedTuple):
    """The values in which the draws of one trial differ."""

    input: str
    head: Head
    scale: float
    dtype: str
    sizes: tuple[int, ...]


class Plan(Sequence[Draw]):
    """All draws of a study, trial by trial, so that a run cut short has covered every cell evenly.

    Each draw is made on request: a plan of a million draws is as small as one of ten.
    """

    def __init__(self, study: Study, shapes: Sequence[DrawShape]) -> None:
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
        number = range(len(self))[index]
        trial, place = divmod(number, len(self.shapes))
        name, head, scale, dtype, sizes = self.shapes[place]
        names = (self.study.inputs[name].key, head.label, head.query_len, head.seq_len, head.head_dim, trial)
        names += sizes if self.study.scenario.redraw == "R" else ()
        return Draw(number, name, head, scale, dtype, trial, sizes, names)


def plan(study: Study) -> Plan:
    """The draws of a study.

    Raises ScenarioError if an input lacks the requested length, head_dim or heads, a sampler cannot draw this many
    projections, a member cannot be causal, a map cannot be calibrated, or there are too many draws for one run.
    """
    return study.own.get_or_compute("plan", lambda: _planned(study))


def _planned(study: Study) -> Plan:
    scenario, shapes = study.scenario, []
    _check_count(scenario, math.prod(len(getattr(scenario, axis) or "-") for axis in _AXES))  # before they are made
    if scenario.causal:
        _check_causal(study)
    heads_of = {name: _heads(study, law) for name, (_, law) in study.inputs.items()}
    for name, heads in heads_of.items():
        heads = _chosen(scenario.heads, name, heads)
        if scenario.causal and (head := next((h for h in heads if h.query_len != h.seq_len), None)):
            raise ScenarioError(
                f"`causal`: {name} has {head.query_len} queries and {head.seq_len} keys; causal attention needs as many"
            )
        for head, scale, dtype in itertools.product(heads, scenario.scale, scenario.dtype):
            sizes = scenario.sizes(head.head_dim)
            _check_sizes(study, head, sizes)
            for group in [(size,) for size in sizes] if scenario.redraw == "R" else [sizes]:
                shapes.append(DrawShape(name, head, scale, dtype, group))
    check_calibration(study, shapes)
    _check_count(scenario, len(shapes))
    return Plan(study, shapes)


#: Keys whose values multiply the cells of every input.
_AXES = ("seq_len", "head_dim", "scale", "dtype")


def _check_count(scenario: Scenario, cells: int) -> None:
    """Raise ScenarioError for more draws than one run holds."""
    if (draws := cells * scenario.trials) > MAX_DRAWS:
        raise ScenarioError(
            f"{cells} cells x {scenario.trials} trials are {draws} draws; at most {MAX_DRAWS} fit in one "
            "run: use fewer `trials`, or several runs with different `seed`"
        )


def _heads(study: Study, law: InputSource) -> tuple[Head, ...]:
    """The heads of an input; next to files, random inputs have their L and d, where none is requested."""
    requested = study.scenario.seq_len, study.scenario.head_dim
    files = [other for _, other in study.inputs.values() if other.fixed]
    if law.fixed or not files or None not in requested:
        return law.heads(*requested)
    shapes = dict.fromkeys((head.seq_len, head.head_dim) for file in files for head in file.heads(*requested))
    return tuple(head for length, dim in shapes for head in law.heads((length,), (dim,)))


def _check_sizes(study: Study, head: Head, sizes: tuple[int, ...]) -> None:
    """Raise ScenarioError for sizes that an estimator cannot have."""
    scenario, rows = study.scenario, study.scenario.rows(head.query_len)
    estimators = [item for item in study.estimators if item.kind != "baseline"]
    if scenario.budget == "features":
        for item, size in itertools.product(sorted(estimators, key=lambda item: item.kind), sizes):
            if size % (per := item.method.features_per_size):
                raise ScenarioError(
                    f"`num_projections` {size} with `budget` features: {item.kind} {item.name!r} has {per} features "
                    f"for each projection; use a multiple of {per}, e.g. {size + per - size % per}"
                )
    for item in estimators:
        if item.method.needs_positions and head.query_len != head.seq_len:
            raise ScenarioError(
                f"`methods` {item.name}: there is no window where {head.query_len} queries look at "
                f"{head.seq_len} keys; it needs as many"
            )
        if item.method.needs_all_rows and rows < head.query_len:
            raise ScenarioError(
                f"`methods` {item.name}: it answers from all queries together, and the error is measured on {rows} "
                f"of {head.query_len}: use `query_rows` {head.query_len}"
            )
        try:
            item.method.check(distinct_sizes(study.sizes_of(item, sizes, head)), study.shape(head))
        except ScenarioError as error:
            raise ScenarioError(f"{error} (sizes: `num_projections`)") from None


def _check_causal(study: Study) -> None:
    """Raise ScenarioError for a member that uses the whole sequence, and so the future."""
    for key, members in (("maps", study.maps), ("methods", study.methods), ("baselines", study.baselines)):
        for member in members:
            if not member.causal_safe:
                fitted = getattr(member, "data_dependent", False)
                frozen = f", or calibrate it: calibrated:{label(member)}" if fitted else ""
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
    for text in wanted:
        if text not in labels:
            raise ScenarioError(
                f"`heads`: {name} has no head {text!r}{nearest(text, labels)}; it has {', '.join(labels)}"
            )
    return tuple(head for head in heads if head.label in wanted)
