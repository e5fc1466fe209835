"""What the figures of a run share: which estimators stand out, how they look, and words for axes and captions."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from favorbench import style
from favorbench.baselines import BASELINES
from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import HEADINGS
from favorbench.metrics import METRICS
from favorbench.results.run import RunData
from favorbench.results.tables import draws_in_words

#: Times the error of uniform attention: what is worse is named at the edge, what is better leaves the axis below.
MOST, LEAST = 100.0, 1e-6

MAX_CURVES = 8  # with a colour of their own: as many as there are colours
NARROW, MAX_NARROW_CURVES = 5.0, 5  # in figures narrower than so many inches

FAVOR_PLUS = "positive / orthogonal"
MAX_CAPTION_NAMES = 16

METRIC_LABELS = {
    "mse": "mean squared error",
    "relative_error": "relative error",
    "relative_l1": "relative L1 error",
    "max_abs_error": "largest error",
    "cosine": "cosine similarity",
    "skill": "skill (1: exact, 0: uniform)",
    "bad_normalisers": "share of bad normalisers",
    "unnormalised_rows": "share of rows not adding up to 1",
}
_SHORT = {"mse": "MSE"}


def metric_label(metric: str) -> str:
    """A metric on an axis."""
    return METRIC_LABELS.get(metric, metric)


def relative_label(metric: str) -> str:
    """A metric divided by that of uniform attention, on an axis."""
    return f"{_SHORT.get(metric, metric_label(metric))} relative to uniform"


def can_be_relative(metric: str) -> bool:
    """Whether a metric is an error, which is compared with that of uniform attention."""
    return METRICS[metric].error and METRICS[metric].better == "lower"


def max_curves() -> int:
    """How many curves can be told apart in a figure of the requested size."""
    size = style.options().size
    return MAX_CURVES if size is None or size[0] >= NARROW else MAX_NARROW_CURVES


def is_favor(estimator: str) -> bool:
    """Whether an estimator is FAVOR+'s map, with whatever sampler."""
    return estimator.partition(" / ")[0] == "positive"


def favor_of(errors: Mapping[str, float]) -> set[str]:
    """FAVOR+ as published among estimators, or else its map with the best sampler."""
    ours = {name: error for name, error in errors.items() if is_favor(name)}
    return {FAVOR_PLUS} & {*ours} or {*sorted(ours, key=lambda name: ours[name])[:1]}


def displayed(estimator: str) -> str:
    """The name of an estimator in a legend."""
    return style.plain(f"{estimator} (FAVOR+)" if estimator == FAVOR_PLUS else estimator)


def choose(errors: Mapping[str, float], most: int, always: Collection[str] = ()) -> list[str]:
    """The estimators that stand out, in their own order: all of ``always`` and the best others, ``most`` in all."""
    order = sorted(errors, key=lambda name: (name not in always, math.isnan(errors[name]), errors[name]))
    kept = set(order[: max(most, sum(name in always for name in errors))])
    return [name for name in errors if name in kept]


def in_words(names: Sequence[str]) -> str:
    """A list of names for a caption."""
    if len(names) <= MAX_CAPTION_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_CAPTION_NAMES])} and {len(names) - MAX_CAPTION_NAMES} more (all in the CSV)"


def others_in_words(names: Sequence[str]) -> str:
    """A sentence about the series without a colour."""
    return f" Grey: {in_words(names)}." if names else ""


def error_cap(metric: str, uniform: float) -> float:
    """The largest value that an axis shows."""
    return MOST * uniform if can_be_relative(metric) and METRICS[metric].log and uniform > 0 else math.inf


def estimator_look(name: str, coloured: Sequence[str]) -> dict[str, Any]:
    """How an estimator looks: its own colour, or thin and grey."""
    if name not in coloured:
        return dict(style.OTHERS)
    return style.series_look(coloured.index(name), label=displayed(name))


def baseline_look(name: str, number: int) -> dict[str, Any]:
    """How a baseline looks in every figure; a user's own, which declares no look, gets a dash and a marker."""
    looks = {member.name: member.look for member in BASELINES if member.look}
    plain = {"color": "0.3", "linestyle": style.DASHES[number % len(style.DASHES)], "label": style.plain(name)}
    look = looks.get(name, plain | {"marker": style.MARKERS[number % len(style.MARKERS)], "markersize": 4})
    return {"linewidth": style.scaled(1.5), "zorder": 1.5} | dict(look)


def cells(results: RunData, drop: Sequence[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells of the summary, each with a short title of the axes that vary; ``drop``: axes left together."""
    axes = [axis for axis in CELL if axis not in drop]
    varying = [axis for axis in axes if results.summary[axis].nunique() > 1]
    follow = ("query_len", "query_rows") if "seq_len" in varying else ()
    for _, cell in results.summary.groupby(axes, sort=False, dropna=False):
        parts = (_short_axis(axis, cell.iloc[0][axis]) for axis in varying if axis not in follow)
        yield ", ".join(filter(None, parts)), cell


def _short_axis(axis: str, value: object) -> str:
    if isinstance(value, str):
        return "" if value == "-" else value
    return f"{HEADINGS.get(axis, axis)} = {value:g}"


def measured_on(results: RunData) -> str:
    """A sentence about the inputs, where all of a run are alike, and about what part of them was measured."""
    summary = results.summary
    if not any(summary[axis].nunique() > 1 for axis in CELL):
        return f" Measured on {describe_cell(summary.iloc[0])}."
    sampled = summary[summary["query_rows"] < summary["query_len"]]
    return "".join(
        f" L = {', '.join(map(str, sorted(set(rows['seq_len']))))}: error on {count} random query rows."
        for count, rows in sampled.groupby("query_rows")
    )


def caption(results: RunData, text: str) -> str:
    """A caption, which says first whether the run is partial."""
    return f"{'' if results.manifest['complete'] else 'PARTIAL RUN. '}{text}"


def draws_of(results: RunData) -> str:
    """ "15 draws"."""
    return draws_in_words(results.summary["n"])
