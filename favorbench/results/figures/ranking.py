"""All estimators side by side, a panel for each cell: medians with their intervals, in one order."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import CELL
from favorbench.metrics import METRICS
from favorbench.results.figures.choice import MOST, chosen, in_words, is_usual
from favorbench.results.figures.curves import cells
from favorbench.results.figures.paging import pages
from favorbench.results.ranking import Ranking, combined, rankings
from favorbench.results.results import Results
from favorbench.results.summary import compared, is_own
from favorbench.results.tables import what_r_means
from favorbench.statistics import fewest_draws, interval_name

FEWEST = 8  # estimators (pairs of map and sampler, methods), below which curves say more
LEAST = 1e-3  # of the error over that of uniform attention; what lies beyond stands at the edge, an arrow

ROWS = 18  # at most, and no more than fit into a figure of a given size
ACROSS = 3  # panels: with the names beside them twice the width of a column, so that half of it can be read
_ROW, _PANEL, _NAMES = 0.245, 1.3, 2.8  # inches: a row, a panel, and the names beside them


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure if the run compares FEWEST estimators or more at equal features or cost."""
    estimators = compared(results.summary)
    lower = METRICS[metric].better == "lower"
    few = len(estimators[["map", "sampler"]].drop_duplicates()) < FEWEST
    if results.scenario.budget == "projections" or few or not lower:
        return []
    found = rankings(results, metric)
    short = [title for title, _ in cells(results)]  # empty where there is one cell only
    frames = [_relative(one).assign(panel=title or one.title) for one, title in zip(found, short, strict=True)]
    order, rest = _order(pd.concat(frames, ignore_index=True))
    columns, written = style.across(ACROSS), []
    most = None if style.wanted().size is None else columns  # a row of them: names need all the height
    for ending, page in pages([Panel(str(frame["panel"].iloc[0]), frame) for frame in frames], columns, most):
        with style.context():
            across = min(len(page), columns)
            height, width = 0.75 + _ROW * len(order), _PANEL + _NAMES / across
            figure, axes = style.panels(len(page), across, height=height, width=width)
            names = _shown_names(order)
            for i, (ax, panel) in enumerate(zip(axes, page, strict=True)):
                _panel(ax, panel.rows.set_index("estimator").reindex(order), names if i % across == 0 else {})
                ax.set_title(style.plain(_wrapped(panel.title)), fontsize=style.font_size() - 1)
                ax.set_xlabel(f"{metric} / that of uniform" if across == 1 else "")
            if across > 1:
                figure.supxlabel(f"{metric} / that of uniform attention", fontsize=style.font_size())
            style.finish(figure, axes, style.plain(_caption(results, found, metric, order, rest)))
            data = pd.concat([panel.rows for panel in page], ignore_index=True)
            written += style.save(figure, directory, f"ranking{ending}", data)
    return written


class Panel(NamedTuple):
    """The estimators of one cell."""

    title: str
    rows: pd.DataFrame


def _order(data: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The estimators that are shown, from the bottom to the top, and the others from the best on.

    Uniform attention is a line, and no row.
    """
    data = data[data["estimator"] != "uniform"]
    medians = data.assign(ratio=data["ratio"].fillna(math.inf)).groupby("estimator")["ratio"].median()
    always = {*data[(data["kind"] == "baseline") | data["own"].astype(bool)]["estimator"]}
    best_first = medians.sort_values(kind="stable").index.tolist()
    always |= {*[str(name) for name in best_first if is_usual(str(name))][:1]}
    kept = chosen({name: float(medians[name]) for name in best_first}, _most_rows(), always)
    return kept[::-1], [name for name in best_first if name not in kept]


def _most_rows() -> int:
    """How many names stand below one another and can be read."""
    size = style.wanted().size
    return ROWS if size is None else max(4, min(ROWS, int((size[1] - 0.75) / (1.25 * style.font_size() / 72))))


def _shown_names(order: Sequence[str]) -> dict[str, str]:
    """The names of rows, shorter ones where they would take more than their place."""
    size = style.wanted().size
    room = int((_NAMES if size is None else size[0] * 0.55) / (0.0082 * style.font_size()))
    if max(map(len, order)) <= room:
        return {name: name for name in order}
    found = {name: style.shorter(name, 0) for name in order}
    return {name: short if len(short) <= room else f"{short[: room - 1]}…" for name, short in found.items()}


def _wrapped(title: str) -> str:
    """A title over a narrow panel: a line for each part, or one where it is short."""
    return title if len(title) <= 14 else title.replace(", ", ",\n").replace("(", "\n(", 1)


def _caption(results: Results, found: Sequence[Ranking], metric: str, order: Sequence[str], rest: Sequence[str]) -> str:
    """What is shown, and what fill and colour can mean with so many draws."""
    draws = min(ranking.draws for ranking in found)
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    text = (
        f"{partial}{results.scenario.name}: median {metric} over that of uniform attention (dashed), bar: "
        f"{interval_name(draws)}, {draws} draws; each at its largest size. {what_r_means(results)} "
    )
    if draws >= fewest_draws(max(len(ranking.rows) for ranking in found) - 1):
        text += (
            "Blue: detectably better than uniform attention; red: worse; grey and hollow: no detectable difference. "
        )
    else:
        text += "All grey and hollow: so few draws can tell nothing from uniform attention. "
    if all(draws >= ranking.draws_needed for ranking in found):
        text += "Grey band: not detectably different from the best of its panel, bounds aside. "
    text += "Squares: baselines. Arrows: beyond the axis. In the order of the median over the panels."
    if any(name != shown for name, shown in _shown_names(order).items()):
        text += " Short: anti for antithetic, orth for orthogonal."
    return text + (f" Not shown, as they come after these: {in_words(rest)}." if rest else "")


def _relative(ranking: Ranking) -> pd.DataFrame:
    """The ranking with values over the median of uniform attention, and one name for each estimator."""
    frame = combined([ranking])
    uniform = float(frame.loc[frame["map"] == "uniform", "median"].iloc[0])
    ratios = {to: frame[of] / uniform for to, of in (("ratio", "median"), ("ratio_low", "low"), ("ratio_high", "high"))}
    told = ranking.draws >= ranking.draws_needed
    best = [told and one for one in ranking.with_best]
    names = [row.name for row in ranking.rows]
    own = [row.kind != "baseline" and is_own(row._asdict()) for row in ranking.rows]
    return frame.assign(estimator=names, with_best=best, own=own, **ratios)[
        [*CELL, "estimator", "num_features", "median", "low", "high", *ratios, "groups", "with_best", "versus_uniform",
         "kind", "own"]
    ]  # fmt: skip


def _panel(ax: Axes, frame: pd.DataFrame, names: Mapping[str, str]) -> None:
    colours = {"better": style.COLOURS[0], "worse": style.COLOURS[1]}
    ax.axvline(1.0, color="black", linestyle="--", linewidth=1)
    size = style.scaled(6)
    for place, (_, row) in enumerate(frame.iterrows()):
        if math.isnan(row["num_features"]):
            continue  # not measured in this cell
        if row["with_best"]:
            ax.axhspan(place - 0.5, place + 0.5, color="0.87", linewidth=0, zorder=0)
        colour = colours.get(str(row["versus_uniform"]), "0.4")
        low, middle, high = (_inside(row[name]) for name in ("ratio_low", "ratio", "ratio_high"))
        ax.plot([low, high], [place, place], color=colour, linewidth=0.25 * size)
        marker = {LEAST: "<", MOST: ">"}.get(middle, "s" if row["kind"] == "baseline" else "o")
        face = colour if str(row["versus_uniform"]) in colours else "white"
        ax.plot(middle, place, marker=marker, color=colour, markerfacecolor=face, markersize=size)
    ax.set_xscale("log")
    ax.set_xlim(0.6 * LEAST, MOST / 0.6)
    ax.set_xticks([1e-2, 1.0, 1e2], ["0.01", "1", "100"])
    ax.set_xticks([], minor=True)
    ax.set_ylim(-0.7, len(frame) - 0.3)
    ax.set_yticks(range(len(frame)), [style.plain(names.get(str(name), "")) for name in frame.index])
    ax.tick_params(axis="y", labelsize=style.font_size(), length=0)


def _inside(ratio: float) -> float:
    """The ratio, or the edge of the axis; what is not a number is as bad as can be."""
    return MOST if math.isnan(ratio) else min(max(ratio, LEAST), MOST)
