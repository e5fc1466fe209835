"""Error curves: a median line with its 10 to 90 % band for each series, beside the baselines, in panels."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.baselines import BASELINES
from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import HEADINGS
from favorbench.metrics import METRICS
from favorbench.results.figures.choice import LEAST, MOST, capped, chosen, in_words, most_curves
from favorbench.results.figures.paging import draw_in_files, slug, together
from favorbench.results.heads import population_of
from favorbench.results.results import Results
from favorbench.results.summary import compared as compared_rows
from favorbench.results.summary import is_own
from favorbench.results.tables import SIZES, draws_in_words, size_axis, size_label, what_r_means

HUGE = 1e100  # what stands for infinity, which matplotlib would leave out: a line that leaves the axis


@dataclass(frozen=True)
class Panel:
    """What one panel shows: rows of the summary. others: baselines, and what has no size. most: above it are arrows."""

    title: str
    beside: Hashable
    maps: pd.DataFrame
    others: pd.DataFrame
    most: float = math.inf


def draw_comparison(
    results: Results, usual: tuple[str, str], metric: str, directory: Path, compared: str, panel_for_each: str
) -> list[Path]:
    """Error against R, a curve for each value of ``compared``; nothing where there is nothing to compare.

    usual: the two values that give the figure its name; others give it theirs, and more than two that of the axis.
    """
    x, maps = size_axis(results), compared_rows(results.summary)
    curves = maps[maps[compared].notna() & maps[x].notna() & maps["num_projections"].notna()]
    names = list(dict.fromkeys(curves[compared]))
    alone = compared == "map" and curves["sampler"].nunique() < 2  # then no other figure has it
    if len(names) < (1 if alone else 2) or curves.groupby(["map", "sampler"], dropna=False)[x].nunique().max() < 2:
        return []
    shown = results.summary.index[(results.summary["kind"] == "baseline") | (compared == "map")]
    panels = []
    for title, cell in cells(results):
        panels += _panels(title, cell[cell.index.isin(shown) | cell.index.isin(curves.index)], curves, panel_for_each)
    count = curves[panel_for_each].nunique() + len(_apart(curves, panel_for_each)["kind"].unique())
    columns = count if count in (2, 3) else min(2, len(panels))
    name = file_name(usual, names, compared)
    return draw_panels(results, name, panels, x, lambda row: str(row[compared]), columns, metric, directory)


def _panels(title: str, cell: pd.DataFrame, curves: pd.DataFrame, panel_for_each: str) -> Iterator[Panel]:
    """A panel for each value of an axis, and one for methods, which have none, where there are two values or more.

    Maps that have no such value (without a sampler) stand in all of them.
    """
    here, others = cell[cell.index.isin(curves.index)], cell[~cell.index.isin(curves.index)]
    apart = _apart(here, panel_for_each)
    everywhere = here[here[panel_for_each].isna() & ~here.index.isin(apart.index)]
    beside = population_of(cell)
    for value, rows in here.dropna(subset=[panel_for_each]).groupby(panel_for_each, sort=False):
        yield Panel(", ".join(filter(None, (title, str(value)))), beside, pd.concat([rows, everywhere]), others)
    if len(apart):
        yield Panel(", ".join(filter(None, (title, "methods"))), beside, apart, others)
    if len(everywhere) == len(here) > 0:
        yield Panel(title, beside, everywhere, others)


def _apart(curves: pd.DataFrame, panel_for_each: str) -> pd.DataFrame:
    """The methods that would stand in more than one panel: they have a sampler no more than a map."""
    several = curves[panel_for_each].nunique() > 1
    return curves[(curves["kind"] == "method") & curves[panel_for_each].isna() & several]


def file_name(usual: tuple[str, str], names: Sequence[str], axis: str) -> str:
    """What is in a figure: "iid-vs-ortho" for these two, "a-vs-b" for two others, "samplers" for more."""
    known = {"orthogonal": "ortho"} if set(names) == set(usual) else {}
    if len(names) > 2:
        return f"{axis}s"
    ordered = usual if known or set(names) == set(usual) else names
    return "-vs-".join(slug(known.get(name, name)) for name in ordered)


def draw_panels(
    results: Results,
    name: str,
    panels: Sequence[Panel],
    x: str,
    series: Callable[[pd.Series], str],
    columns: int,
    metric: str,
    directory: Path,
) -> list[Path]:
    """Draw the panels, as many to a figure as it has room for, and save each figure with its numbers."""
    panels = [replace(panel, maps=panel.maps.assign(series=_names(panel.maps, series))) for panel in panels]
    named, caps = _named(panels, x, metric), [_cap(panel, metric) for panel in panels]
    sets = together(panels, columns)
    most = {one: max(cap for cap, its in zip(caps, sets, strict=True) if its == one) for one in sets}
    panels = [replace(panel, most=most[one]) for panel, one in zip(panels, sets, strict=True)]

    def draw(ax: Axes, panel: Panel) -> pd.DataFrame:
        ax.set_xlabel(size_label(results) if x in SIZES else HEADINGS.get(x, x))
        return _draw(ax, panel, x, named, metric)

    def below(page: Sequence[Panel], axes: Sequence[Axes]) -> str:
        return caption(results, metric, x) + _rest(page, named) + _beyond(axes)

    return draw_in_files(panels, columns, directory, name, draw, below)


def _cap(panel: Panel, metric: str) -> float:
    """The largest value that a panel by itself would show."""
    uniform = panel.others[panel.others["map"] == "uniform"][f"{metric}_median"]
    return capped(metric, float(uniform.max()) if len(uniform) else 0.0)


def _names(rows: pd.DataFrame, series: Callable[[pd.Series], str]) -> list[str]:
    return [series(row) for _, row in rows.iterrows()]


def _named(panels: Sequence[Panel], x: str, metric: str) -> list[str]:
    """The series with a look of their own: those that are best at the last x, and a user's."""
    rows = pd.concat([panel.maps for panel in panels])
    own = {row["series"] for _, row in rows.drop_duplicates(["series", "map", "sampler"]).iterrows() if is_own(row)}
    last = rows[rows[x] == rows.groupby("series")[x].transform("max")]
    sign = 1.0 if METRICS[metric].better == "lower" else -1.0
    errors = (sign * last[f"{metric}_median"]).groupby(last["series"]).median()
    return chosen({str(name): float(errors[name]) for name in rows["series"].unique()}, most_curves(), own)


def _rest(page: Sequence[Panel], named: Sequence[str]) -> str:
    """The series without a look of their own, in words."""
    rest = list(dict.fromkeys(name for panel in page for name in panel.maps["series"] if name not in named))
    return f" Thin grey: {in_words(rest)}." if rest else ""


def _beyond(axes: Sequence[Axes]) -> str:
    """What arrows mean, where there are any."""
    arrows = any(line.get_marker() == "^" and not line.get_clip_on() for ax in axes for line in ax.lines)
    return f" Arrows: more than {MOST:g} times the error of uniform attention." if arrows else ""


def cells(results: Results, drop: Sequence[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """The summary's cells, each with a short title of the axes that vary; ``drop`` are axes left together."""
    axes = [axis for axis in CELL if axis not in drop]
    varying = [a for a in axes if results.summary[a].nunique() > 1]
    follow = ("query_len", "query_rows") if "seq_len" in varying else ()
    for _, cell in results.summary.groupby(axes, sort=False, dropna=False):
        first = cell.iloc[0]
        yield (
            ", ".join(filter(None, (_short(axis, first[axis]) for axis in varying if axis not in follow))),
            cell,
        )


def caption(results: Results, metric: str, x: str) -> str:
    """What is shown, of how many draws, on what, and what R means."""
    draws = draws_in_words(results.summary["n"])
    first = results.summary.iloc[0]
    fixed = "" if any(results.summary[a].nunique() > 1 for a in CELL) else f" {describe_cell(first)}."
    rows = "" if fixed else _sampled_rows(results.summary)
    below = " best-rank may leave the axis below." if (results.summary["map"] == "best-rank").any() else ""
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    return (
        f"{partial}{results.scenario.name}: median of {draws}, band from 10 % to 90 %.{fixed}{rows} "
        f"{what_r_means(results)} {metric}: {METRICS[metric].formula}.{below}"
    )


def _sampled_rows(summary: pd.DataFrame) -> str:
    """Where the error is that of a random sample of query rows, and of how many."""
    sampled = summary[summary["query_rows"] < summary["query_len"]]
    return "".join(
        f" L = {', '.join(str(length) for length in sorted(set(cells['seq_len'])))}: error on {rows} random query rows."
        for rows, cells in sampled.groupby("query_rows")
    )


def _draw(ax: Axes, panel: Panel, x: str, named: Sequence[str], metric: str) -> pd.DataFrame:
    most = panel.most
    kept, arrows = [], 0
    for name in dict.fromkeys([*named, *panel.maps["series"]]):
        curve = panel.maps[panel.maps["series"] == name].sort_values(x)
        if curve.empty:
            continue
        look = _of_series(name, named)
        places, median = curve[x].astype(float), curve[f"{metric}_median"].fillna(np.inf).clip(upper=HUGE)
        if name in named:
            low, high = (curve[f"{metric}_{one}"].clip(upper=HUGE) for one in ("q10", "q90"))
            ax.fill_between(places, low, high, color=look["color"], alpha=0.13, linewidth=0)
        ax.plot(places, median, **look)
        if name in named and (median > most).any():
            style.above(ax, places[median > most].tolist(), arrows, look)
            arrows += 1
        kept.append(curve)
    drawn = pd.concat(kept)
    kept.append(_others(ax, panel.others, x, sorted(set(drawn[x])), metric))
    _axes(ax, panel, drawn[drawn["series"].isin(named)], x, metric, most)
    columns = ["series", x, "n", f"{metric}_median", f"{metric}_q10", f"{metric}_q90"]
    return pd.concat(kept)[list(dict.fromkeys(columns))]


def _of_series(name: str, named: Sequence[str]) -> dict[str, Any]:
    """How a series looks: one that is not named is thin and grey."""
    if name not in named:
        return {"color": "0.72", "linewidth": 0.8, "zorder": 1, "label": "others", "marker": ".", "markersize": 3}
    return style.look(named.index(name)) | {"markersize": style.scaled(5), "label": style.plain(name)}


def _axes(ax: Axes, panel: Panel, drawn: pd.DataFrame, x: str, metric: str, most: float) -> None:
    for_every_r = panel.others["num_projections"].notna()
    firm = panel.others[~for_every_r][f"{metric}_median"]
    best = panel.others[for_every_r][f"{metric}_median"]  # nothing at R = L
    if METRICS[metric].log:
        quantiles = [*drawn[f"{metric}_median"], *drawn[f"{metric}_q10"], *drawn[f"{metric}_q90"]]
        least = LEAST * most / MOST if math.isfinite(most) else 0.0
        style.log_limits(ax, [max(v, least) for v in (*quantiles, *firm)], [*best], most)
    style.number_axis(ax, list(drawn[x]))
    ax.set_title(style.plain(panel.title))
    ax.set_ylabel(metric)


def _others(ax: Axes, others: pd.DataFrame, x: str, positions: Sequence[float], metric: str) -> pd.DataFrame:
    """Baselines, and maps without an R, as lines: flat where they do not depend on x, else through their own points."""
    drawn = [others.iloc[:0].assign(series="")]
    for number, (name, points) in enumerate(others.groupby("map", sort=False)):
        points = points.sort_values(x)
        if x in SIZES and points["num_projections"].isna().all():
            points = pd.concat([points.iloc[[0]]] * len(positions)).assign(**{x: list(positions)})
        look = baseline_look(str(name), number)
        ax.plot(points[x].astype(float), points[f"{metric}_median"], zorder=1.5, linewidth=style.scaled(1.6), **look)
        drawn.append(points.assign(series=name))
    return pd.concat(drawn)


def baseline_look(name: str, number: int) -> dict[str, Any]:
    """A baseline's own look, the same in every figure; a line of its own for what states none, as a user's may."""
    looks = {member.name: member.look for member in BASELINES if member.look}
    plain = {"color": "0.3", "linestyle": style.DASHES[number % len(style.DASHES)], "label": style.plain(name)}
    return dict(looks.get(name, plain | {"marker": style.MARKERS[number % len(style.MARKERS)], "markersize": 4}))


def _short(axis: str, value: object) -> str:
    if isinstance(value, str):
        return "" if value == "-" else str(value)
    return f"{HEADINGS.get(axis, axis)} = {value:g}"
