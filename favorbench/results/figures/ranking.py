"""All estimators side by side, a panel for each cell: medians with their intervals, in one order."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import CELL
from favorbench.metrics import METRICS
from favorbench.results.figures.curves import cells
from favorbench.results.ranking import Ranking, combined, rankings
from favorbench.results.results import Results
from favorbench.results.summary import compared
from favorbench.results.tables import what_r_means
from favorbench.statistics import fewest_draws, interval_name

FEWEST = 8  # estimators (pairs of map and sampler, methods), below which curves say more
LEAST, MOST = 1e-3, 1e2  # of the error over that of uniform attention; what lies beyond stands at the edge, an arrow


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure if the run compares FEWEST estimators or more at equal features or cost."""
    estimators = compared(results.summary)
    lower = METRICS[metric].better == "lower"
    few = len(estimators[["map", "sampler"]].drop_duplicates()) < FEWEST
    if results.scenario.budget == "projections" or few or not lower:
        return []
    found = rankings(results, metric)
    short = [title for title, _ in cells(results)]  # empty where there is one cell only
    titles = {tuple(one.cell): title or one.title for one, title in zip(found, short, strict=True)}
    frames = [_relative(ranking).assign(panel=titles[tuple(ranking.cell)]) for ranking in found]
    data = pd.concat(frames, ignore_index=True)
    order = data.groupby("estimator")["ratio"].median().sort_values(ascending=False, na_position="first").index
    columns = len(frames) if len(frames) <= 5 else min(5, -(-len(frames) // 2))
    with style.context():
        height = 0.9 + 0.24 * len(order)
        figure, axes = style.panels(len(frames), columns, height=height, width=3.0)
        for i, (ax, frame) in enumerate(zip(axes, frames, strict=True)):
            _panel(ax, frame.set_index("estimator").reindex(order), labelled=i % columns == 0)
            ax.set_title(style.plain(str(frame["panel"].iloc[0])))
            ax.set_xlabel(f"{metric} / that of uniform", fontsize=10)
        style.finish(figure, axes, style.plain(_caption(results, found, metric)))
        return style.save(figure, directory, "ranking", data)


def _caption(results: Results, found: Sequence[Ranking], metric: str) -> str:
    """What is shown, and what the colours can mean with so many draws."""
    draws = min(ranking.draws for ranking in found)
    enough = draws >= fewest_draws(max(len(ranking.rows) for ranking in found) - 1)
    colours = (
        "Blue: detectably better than uniform attention; red: worse; grey: no detectable difference."
        if enough
        else "All grey: so few draws can tell nothing from uniform attention."
    )
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    return (
        f"{partial}{results.scenario.name}: median {metric} over that of uniform attention (dashed), bar: "
        f"{interval_name(draws)}, {draws} draws; each at its largest size. {what_r_means(results)} {colours} "
        "Hollow: baselines. Arrows: beyond the axis. In the order of the median over the panels."
    )


def _relative(ranking: Ranking) -> pd.DataFrame:
    """The ranking with values over the median of uniform attention, and one name for each estimator."""
    frame = combined([ranking])
    uniform = float(frame.loc[frame["map"] == "uniform", "median"].iloc[0])
    ratios = {to: frame[of] / uniform for to, of in (("ratio", "median"), ("ratio_low", "low"), ("ratio_high", "high"))}
    return frame.assign(estimator=[row.name for row in ranking.rows], **ratios)[
        [*CELL, "estimator", "num_features", "median", "low", "high", *ratios, "groups", "versus_uniform", "kind"]
    ]


def _panel(ax: Axes, frame: pd.DataFrame, labelled: bool) -> None:
    colours = {"better": "#0072B2", "worse": "#D55E00"}
    ax.axvline(1.0, color="black", linestyle="--", linewidth=1)
    for place, (_, row) in enumerate(frame.iterrows()):
        if math.isnan(row["num_features"]):
            continue  # not measured in this cell
        colour = colours.get(str(row["versus_uniform"]), "0.45")
        low, middle, high = (_inside(row[name]) for name in ("ratio_low", "ratio", "ratio_high"))
        ax.plot([low, high], [place, place], color=colour, linewidth=1.5)
        marker = {LEAST: "<", MOST: ">"}.get(middle, "o")
        face = "white" if row["kind"] == "baseline" else colour
        ax.plot(middle, place, marker=marker, color=colour, markerfacecolor=face, markersize=5)
    ax.set_xscale("log")
    ax.set_xlim(0.7 * LEAST, MOST / 0.7)
    ax.set_ylim(-0.7, len(frame) - 0.3)
    ax.set_yticks(range(len(frame)), [style.plain(str(name)) for name in frame.index] if labelled else [])
    ax.tick_params(axis="y", labelsize=9, length=0)


def _inside(ratio: float) -> float:
    """The ratio, or the edge of the axis; what is not a number is as bad as can be."""
    return MOST if math.isnan(ratio) else min(max(ratio, LEAST), MOST)
