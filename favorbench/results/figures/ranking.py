"""Rows with their intervals: all estimators of a run in one order, and the rows of two runs compared."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import CELL
from favorbench.results.changes import Change
from favorbench.results.compare import RunComparison
from favorbench.results.figures.blocks import (
    MOST,
    caption,
    cells,
    choose,
    displayed,
    favor_of,
    in_words,
    measured_on,
    relative_label,
)
from favorbench.results.heads import can_be_compared
from favorbench.results.ranking import Ranking, rankings
from favorbench.results.summary import RunData, compared, labelled
from favorbench.results.tables import what_r_means
from favorbench.statistics import fewest_draws, interval_name
from favorbench.style.charts import shorter

MIN_ESTIMATORS = 8  # below, curves say more
MIN_RATIO = 1e-3  # smaller ratios are an arrow at the edge

MAX_ROWS = 18
MAX_RATIOS = 60  # of one panel of a comparison
COLUMNS = 3
_ROW, _PANEL, _NAMES = 0.245, 1.5, 3.1  # inches: height of a row, widths of a panel and of the names
_AROUND = 0.75  # inches of title and axis, where the size of the figure is given


def ranking(results: RunData, metric: str) -> list[style.Chart]:
    """The ranking of MIN_ESTIMATORS or more at equal features or cost, if there are enough draws for a verdict."""
    few = len(compared(results.summary)[["estimator", "sampler"]].drop_duplicates()) < MIN_ESTIMATORS
    if results.scenario.budget == "projections" or few or not can_be_compared(metric):
        return []
    ranked = rankings(results, metric)
    if min(item.draws for item in ranked) < fewest_draws(max(len(item.rows) for item in ranked) - 1):
        return []
    frames = [_relative(item, title) for item, (title, _) in zip(ranked, cells(results), strict=True)]
    order, rest = _order(pd.concat(frames, ignore_index=True))
    names = _row_names(order)
    drawn = [
        style.Panel(str(frame["panel"].iloc[0]), partial(_draw, frame, names=names, metric=metric), "ranking")
        for frame in frames
    ]
    columns = style.columns_that_fit(min(COLUMNS, len(frames)))
    size = (_PANEL + _NAMES / columns, 1.0 + _ROW * len(order))
    text = caption(results, _caption(results, ranked, metric, names, rest))
    least = _AROUND + _row_height() * len(order)
    title = "Error at the largest size: left is better"
    return [style.Chart("ranking", title, text, drawn, columns, size, least_height=least)]


def _row_height() -> float:
    """Inches of a row, where the size of the figure is given."""
    return 1.25 * style.font_size() / 72


def _relative(ranking: Ranking, title: str) -> pd.DataFrame:
    """A ranking with values over the median of uniform attention."""
    frame = labelled(ranking.data)
    uniform = float(frame.loc[frame["estimator"] == "uniform", "median"].iloc[0])
    ratios = {to: frame[of] / uniform for to, of in (("ratio", "median"), ("ratio_low", "low"), ("ratio_high", "high"))}
    with_best = [ranking.draws >= ranking.draws_needed and ranking.shares_best(row.groups) for row in ranking.rows]
    kept = [*CELL, "label", "num_features", "median", "low", "high", *ratios, "groups", "with_best"]
    kept += ["versus_uniform", "kind", "own", "panel"]
    return frame.assign(with_best=with_best, panel=title or ranking.title, **ratios)[kept]


def _order(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The estimators shown, from bottom to top, and the others, best first; uniform attention is a line."""
    rows = rows[rows["label"] != "uniform"]
    medians = rows.fillna({"ratio": math.inf}).groupby("label")["ratio"].median()
    best_first: Any = medians.sort_values(kind="stable").to_dict()
    always = {*rows[(rows["kind"] == "baseline") | rows["own"]]["label"]} | favor_of(best_first)
    size = style.options().size
    room = MAX_ROWS if size is None else max(4, min(MAX_ROWS, int((size[1] - _AROUND) / _row_height())))
    kept = choose(best_first, room, always)
    return kept[::-1], [name for name in best_first if name not in kept]


def _row_names(order: Sequence[str]) -> dict[str, str]:
    """The label of each row, shortened where it would take more than its place."""
    size = style.options().size
    room = int((_NAMES if size is None else size[0] * 0.55) / (0.0082 * style.font_size()))
    names = {name: displayed(name) for name in order}
    if max(map(len, names.values())) <= room:
        return names
    short = {name: shorter(words, 0) for name, words in names.items()}
    return {name: words if len(words) <= room else f"{words[: room - 1]}…" for name, words in short.items()}


def _caption(
    results: RunData, ranked: Sequence[Ranking], metric: str, names: Mapping[str, str], rest: Sequence[str]
) -> str:
    """The meaning of the marks, and whether there are enough draws for verdicts."""
    draws = min(item.draws for item in ranked)
    text = (
        f"Median {metric} over that of uniform attention (dashed, taken as known), bar: {interval_name(draws)}, "
        f"{draws} draws.{measured_on(results) * (len(ranked) > 1)} {what_r_means(results)} "
    )
    text += "Blue: detectably better than uniform attention; red: worse; grey and hollow: no detectable difference. "
    if all(draws >= item.draws_needed for item in ranked):
        text += "Grey band: not detectably different from the best of its panel, bounds aside. "
    text += "Squares: baselines. Triangles at an edge point to a value beyond it. Sorted by the median over panels."
    if any(name not in words for name, words in names.items()):
        text += " Short: anti for antithetic, orth for orthogonal."
    return text + (f" Not shown, as they are worse: {in_words(rest)}." if rest else "")


def _draw(frame: pd.DataFrame, ax: Axes, names: Mapping[str, str], metric: str) -> pd.DataFrame:
    colours = {"better": style.COLOURS[0], "worse": style.COLOURS[1]}
    ax.axvline(1.0, color="black", linestyle="--", linewidth=1)
    size, places = style.scaled(6), {name: place for place, name in enumerate(names)}
    shown = frame[frame["label"].isin(places)]
    inside = shown[["ratio_low", "ratio", "ratio_high"]].fillna(MOST).clip(MIN_RATIO, MOST).to_numpy()
    for (_, row), (low, middle, high) in zip(shown.iterrows(), inside, strict=True):
        place, verdict = places[row["label"]], str(row["versus_uniform"])
        if row["with_best"]:
            ax.axhspan(place - 0.5, place + 0.5, color="0.87", linewidth=0, zorder=0)
        colour = colours.get(verdict, "0.4")
        ax.plot([low, high], [place, place], color=colour, linewidth=0.25 * size)
        marker = {MIN_RATIO: "<", MOST: ">"}.get(middle, "s" if row["kind"] == "baseline" else "o")
        face = colour if verdict in colours else "white"
        ax.plot(middle, place, marker=marker, color=colour, markerfacecolor=face, markersize=size)
    ax.set_xscale("log")
    ax.set_xlim(0.6 * MIN_RATIO, MOST / 0.6)
    ax.set_xticks([1e-2, 1.0, 1e2], ["0.01", "1", "100"])
    ax.set_xticks([], minor=True)
    ax.set_ylim(-0.7, len(names) - 0.3)
    ax.set_yticks(range(len(names)), [style.plain(words) for words in names.values()])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(relative_label(metric).replace(" relative", "\nrelative"), fontsize=style.font_size() - 2)
    return frame.drop(columns="panel")


def ratios(comparison: RunComparison) -> list[style.Chart]:
    """A chart of new / old with its intervals for each cell of a comparison."""
    charts = []
    for cell, group in groupby(comparison.rows, key=lambda row: row.cell):
        compared = [
            (f"{row.new_estimator} {'' if row.key.size is None else row.key.size}".strip(), row.change)
            for row in group if row.change
        ]  # fmt: skip
        rows = [(name, change) for name, change in compared if change.low > 0 and change.high < math.inf]
        if rows:
            shown = rows[:MAX_RATIOS]
            left = f" The first {MAX_RATIOS} of {len(rows)} rows." if len(rows) > MAX_RATIOS else ""
            for mark, verdict in (("+", "worse"), ("-", "better"), ("~=", "neither")):
                others = [name for name, change in compared if change.mark in mark and (name, change) not in rows]
                left += f" Not drawn, {verdict}, as an end is 0 or infinite: {', '.join(others)}." * bool(others)
            text = f"new / old with its interval; red triangle: worse, blue triangle: better.{left}"
            panel = style.Panel("", partial(_draw_ratios, rows=shown[::-1]))
            size = (6.5, 0.9 + 0.2 * len(shown))
            charts.append(style.Chart("new-over-old", f"new / old, {cell}", text, [panel], alone=size))
    return charts


def _draw_ratios(ax: Axes, rows: Sequence[tuple[str, Change]]) -> pd.DataFrame:
    ax.axvline(1.0, color="black", linestyle="--", linewidth=1)
    for place, (_, change) in enumerate(rows):
        marker, colour = {"+": ("^", style.COLOURS[1]), "-": ("v", style.COLOURS[0])}.get(change.mark, ("o", "0.4"))
        ax.plot([change.low, change.high], [place, place], color=colour)
        ax.plot(change.ratio, place, marker=marker, color=colour, markersize=5)
    ax.set_xscale("log")
    ax.set_xlabel("new / old")
    names = [name for name, _ in rows]
    ax.set_yticks(range(len(rows)), map(style.plain, names))
    return pd.DataFrame([change for _, change in rows]).assign(label=names)
