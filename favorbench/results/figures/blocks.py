"""Shared parts of the figures of a run: which estimators stand out, how they look, words for axes and captions."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from favorbench import style
from favorbench.baselines import BASELINES
from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import heading
from favorbench.results.summary import RunData
from favorbench.results.tables import draws_in_words, varying

#: Times the error of uniform attention: larger errors are named at the edge, smaller ones leave the axis below.
MOST, LEAST = 100.0, 1e-6

MAX_CURVES = 8  # with their own colour: the number of colours
NARROW, MAX_NARROW_CURVES = 5.0, 5  # in figures narrower than NARROW inches

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


def metric_label(metric: str) -> str:
    """A metric on an axis."""
    return METRIC_LABELS.get(metric, metric)


def relative_label(metric: str) -> str:
    """A metric divided by that of uniform attention, on an axis."""
    return f"{'MSE' if metric == 'mse' else metric_label(metric)} relative to uniform"


def max_curves() -> int:
    """The number of curves that a reader can distinguish in a figure of the requested size."""
    size = style.options().size
    return MAX_CURVES if size is None or size[0] >= NARROW else MAX_NARROW_CURVES


def favor_of(errors: Mapping[str, float]) -> set[str]:
    """FAVOR+ as published among estimators, or else its map with the best sampler."""
    ours = [name for name in errors if name.partition(" / ")[0] == "positive"]
    return {FAVOR_PLUS} & {*ours} or {*sorted(ours, key=lambda name: errors[name])[:1]}


def displayed(estimator: str) -> str:
    """The name of an estimator in a legend."""
    return f"{estimator} (FAVOR+)" if estimator == FAVOR_PLUS else estimator


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


def estimator_look(name: str, coloured: Sequence[str]) -> dict[str, Any]:
    """The look of an estimator: its own colour, or thin and grey."""
    if name not in coloured:
        return dict(style.OTHERS)
    return style.series_look(coloured.index(name), label=style.plain(displayed(name)))


def baseline_look(name: str, number: int) -> dict[str, Any]:
    """The look of a baseline in every figure; a user's own, which declares none, gets a dash and a marker."""
    declared = next((member.look for member in BASELINES if member.name == name and member.look), None)
    usual = {"color": "0.3", "linestyle": style.DASHES[number % len(style.DASHES)], "label": style.plain(name),
             "marker": style.MARKERS[number % len(style.MARKERS)], "markersize": 4}  # fmt: skip
    return {"linewidth": style.scaled(1.5), "zorder": 1.5} | dict(declared or usual)


def cells(results: RunData, drop: Sequence[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells of the summary, each with a short title of the axes that vary; ``drop``: axes left together."""
    axes = [axis for axis in CELL if axis not in drop]
    named = varying(results.summary, axes)
    if "seq_len" in named:
        named = [axis for axis in named if axis not in ("query_len", "query_rows")]
    for _, cell in results.summary.groupby(axes, sort=False, dropna=False):
        values = {axis: cell[axis].iloc[0] for axis in named}
        parts = [v if isinstance(v, str) else f"{heading(axis)} = {v:g}" for axis, v in values.items()]
        yield ", ".join(part for part in parts if part != "-"), cell


def measured_on(results: RunData) -> str:
    """A sentence about what all inputs of a run share, and about what part of them was measured."""
    summary = results.summary
    axes = varying(summary)
    named = axes if {"query_len", "query_rows"}.isdisjoint(axes) else [*axes, "seq_len"]
    row = summary.iloc[0].to_dict() | ({"head": "-"} if "head" in axes else {})
    shared = describe_cell(row, but=named)
    sampled = summary[(summary["query_rows"] < summary["query_len"]) & ("seq_len" in named)]
    return f" Measured {'at' if 'input' in axes else 'on'} {shared}." * bool(shared) + "".join(
        f" L = {', '.join(map(str, sorted(set(rows['seq_len']))))}: error on {count} random query rows."
        for count, rows in sampled.groupby("query_rows")
    )


def caption(results: RunData, text: str) -> str:
    """A caption, which says first whether the run is partial."""
    return f"PARTIAL RUN. {text}" if results.is_partial else text


def draws_of(results: RunData) -> str:
    """ "15 draws"."""
    return draws_in_words(results.summary["n"])
