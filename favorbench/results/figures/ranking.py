"""All estimators side by side, a panel for each cell: medians with their intervals, in one order."""

import math
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import CELL
from favorbench.metrics import METRICS
from favorbench.results.figures.curves import cells
from favorbench.results.ranking import Ranking, combined, rankings
from favorbench.results.results import Results
from favorbench.results.tables import what_r_means
from favorbench.statistics import interval_name

FEWEST = 8  # pairs of map and sampler, below which curves say more
LEAST, MOST = 1e-3, 1e2  # of the error over that of uniform attention; what lies beyond stands at the edge, an arrow


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure if the run compares FEWEST estimators or more at equal features."""
    maps = results.summary[results.summary["kind"] == "map"]
    lower = METRICS[metric].better == "lower"
    if results.scenario.budget != "features" or len(maps[["map", "sampler"]].drop_duplicates()) < FEWEST or not lower:
        return []
    found = rankings(results, metric)
    titles = dict(zip((tuple(r.cell) for r in found), (title for title, _ in cells(results)), strict=True))
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
        partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
        n = [ranking.draws for ranking in found]
        text = (
            f"{partial}{results.scenario.name}: median {metric} over that of uniform attention (dashed), bar: "
            f"{interval_name(min(n))}, {min(n)} draws; each at its largest R. {what_r_means(results)} Blue: detectably "
            "better than uniform attention; red: worse; grey: no detectable difference. Hollow: baselines. Arrows: "
            "beyond the axis. In the order of the median over the panels."
        )
        style.finish(figure, axes, style.plain(text))
        return style.save(figure, directory, "ranking", data)


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
