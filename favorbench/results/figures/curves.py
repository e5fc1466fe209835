"""Error curves: a median line with its 10 to 90 % band for each series, beside the baselines, in panels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.formats import HEADINGS
from favorbench.metrics import METRICS
from favorbench.results.results import Results
from favorbench.results.summary import CELL, ESTIMATOR
from favorbench.results.tables import describe_cell, size_axis, what_r_means

PANELS = 12  # in one figure; more go to name-2, name-3, ...
CURVES = 12  # in one panel, at most: more cannot be told apart


@dataclass(frozen=True)
class Panel:
    """What one panel shows: rows of the summary, and a title."""

    title: str
    maps: pd.DataFrame
    baselines: pd.DataFrame


def draw_comparison(
    results: Results, name: str, metric: str, directory: Path, compared: str, panel_for_each: str
) -> list[Path]:
    """Error against R, a curve for each value of ``compared``; nothing where there is nothing to compare."""
    maps = results.summary[results.summary["kind"] == "map"]
    x = size_axis(results)
    if maps[compared].nunique() < 2 or maps.groupby([*CELL, *ESTIMATOR[1:3]], dropna=False)[x].nunique().max() < 2:
        return []
    panels = []
    for title, cell in cells(results):
        estimators, baselines = cell[cell["kind"] == "map"], cell[cell["kind"] == "baseline"]
        for value, rows in estimators.groupby(panel_for_each, sort=False):
            panels.append(Panel(", ".join(filter(None, (title, str(value)))), rows, baselines))
    count = maps[panel_for_each].nunique()
    columns = count if count in (2, 3) else min(2, len(panels))
    return draw_panels(results, name, panels, x, lambda row: row[compared], columns, metric, directory)


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
    """Draw the panels, PANELS to a figure, and save each figure with its numbers; nothing with too many curves."""
    written: list[Path] = []
    if any(len({series(row) for _, row in panel.maps.iterrows()}) > CURVES for panel in panels):
        return []
    pages = [panels[i : i + PANELS] for i in range(0, len(panels), PANELS)]
    for number, page in enumerate(pages, start=1):
        with style.context():
            figure, axes = style.panels(len(page), min(columns, len(page)))
            names = list(dict.fromkeys(series(row) for panel in panels for _, row in panel.maps.iterrows()))
            data = []
            for ax, panel in zip(axes, page, strict=True):
                data.append(_draw(ax, panel, x, series, names, metric).assign(panel=panel.title))
            suffix = f"-{number}" if len(pages) > 1 else ""
            style.finish(figure, axes, style.plain(caption(results, metric, x)))
            written += style.save(figure, directory, f"{name}{suffix}", pd.concat(data, ignore_index=True))
    return written


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
    n = results.summary["n"]
    draws = f"{n.min()}" if n.min() == n.max() else f"{n.min()} to {n.max()}"
    first = results.summary.iloc[0]
    fixed = "" if any(results.summary[a].nunique() > 1 for a in CELL) else f" {describe_cell(first)}."
    rows = "" if fixed else _sampled_rows(results.summary)
    below = " best-rank may leave the axis below." if (results.summary["map"] == "best-rank").any() else ""
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    return (
        f"{partial}{results.scenario.name}: median of {draws} draws, band from 10 % to 90 %.{fixed}{rows} "
        f"{what_r_means(results)} {metric}: {METRICS[metric].formula}.{below}"
    )


def _sampled_rows(summary: pd.DataFrame) -> str:
    """Where the error is that of a random sample of query rows, and of how many."""
    sampled = summary[summary["query_rows"] < summary["query_len"]]
    return "".join(
        f" L = {', '.join(str(length) for length in sorted(set(cells['seq_len'])))}: error on {rows} random query rows."
        for rows, cells in sampled.groupby("query_rows")
    )


def _draw(
    ax: Axes, panel: Panel, x: str, series: Callable[[pd.Series], str], names: Sequence[str], metric: str
) -> pd.DataFrame:
    maps = panel.maps.assign(series=[series(row) for _, row in panel.maps.iterrows()])
    kept = []
    for name in names:
        curve = maps[maps["series"] == name].sort_values(x)
        if curve.empty:
            continue
        i = names.index(name)
        colour = style.COLOURS[i % len(style.COLOURS)]
        ax.fill_between(curve[x], curve[f"{metric}_q10"], curve[f"{metric}_q90"], color=colour, alpha=0.15, linewidth=0)
        ax.plot(
            curve[x],
            curve[f"{metric}_median"],
            color=colour,
            marker=style.MARKERS[i % len(style.MARKERS)],
            markersize=5,
            linestyle=style.DASHES[i % len(style.DASHES)],
            label=style.plain(name),
        )
        kept.append(curve)
    drawn = pd.concat(kept)
    kept.append(_baselines(ax, panel.baselines, x, sorted(set(drawn[x])), metric))
    _axes(ax, panel, drawn, x, metric)
    columns = ["series", x, "n", f"{metric}_median", f"{metric}_q10", f"{metric}_q90"]
    return pd.concat(kept)[list(dict.fromkeys(columns))]


def _axes(ax: Axes, panel: Panel, drawn: pd.DataFrame, x: str, metric: str) -> None:
    for_every_r = panel.baselines["num_projections"] > 0
    firm = panel.baselines[~for_every_r][f"{metric}_median"]
    best = panel.baselines[for_every_r][f"{metric}_median"]  # nothing at R = L
    if metric in ("mse", "relative_error", "max_abs_error"):
        quantiles = [*drawn[f"{metric}_median"], *drawn[f"{metric}_q10"], *drawn[f"{metric}_q90"]]
        style.log_limits(ax, [*quantiles, *firm], [*best])
    style.number_axis(ax, list(drawn[x]))
    ax.set_title(style.plain(panel.title))
    ax.set_xlabel(HEADINGS.get(x, x))
    ax.set_ylabel(metric)


def _baselines(ax: Axes, baselines: pd.DataFrame, x: str, positions: Sequence[float], metric: str) -> pd.DataFrame:
    """Baselines as lines: flat where they do not depend on x, otherwise through their own points."""
    drawn = []
    for name, look in style.BASELINES.items():
        points = baselines[baselines["map"] == name].sort_values(x)
        if points.empty:
            continue
        if x in ("num_projections", "num_features") and set(points["num_projections"]) == {0}:
            points = pd.concat([points.iloc[[0]]] * len(positions)).assign(**{x: list(positions)})
        ax.plot(points[x], points[f"{metric}_median"], zorder=1.5, linewidth=1.6, **look)
        drawn.append(points.assign(series=name))
    return pd.concat(drawn) if drawn else baselines.iloc[:0].assign(series="")


def _short(axis: str, value: object) -> str:
    if isinstance(value, str):
        return "" if value == "-" else str(value)
    return f"{HEADINGS.get(axis, axis)} = {value:g}"
