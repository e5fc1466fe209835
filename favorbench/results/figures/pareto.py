"""The error of estimators against what they cost, beside uniform attention and exact attention, with the front.

What error-vs-cost and error-vs-seconds share.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import Labels, describe_cell
from favorbench.metrics import METRICS
from favorbench.results.figures.choice import LEAST, MOST, chosen, in_words, is_usual, most_curves
from favorbench.results.figures.curves import HUGE, baseline_look
from favorbench.results.figures.paging import draw_in_files
from favorbench.results.front import front
from favorbench.results.heads import FEW, POPULATION, on_each_head, quartiles
from favorbench.results.results import Results
from favorbench.results.summary import COMPARED, ORACLES, estimator_name, is_oracle, is_own
from favorbench.results.tables import draws_in_words

#: The cost of a row, and its bounds.
COSTS = ("cost", "cost_low", "cost_high")


class Cost(NamedTuple):
    """What errors are drawn against.

    of: for the rows of ``on_each_head`` what each costs, and between which bounds (COSTS), nan where that is not known.
    exact: the cost of exact attention in the cell of a row, None where it is not known. what: the cost in the caption,
    unknown: why some are not shown.
    """

    name: str
    axis: str
    of: Callable[[pd.DataFrame], pd.DataFrame]
    exact: Callable[[Labels], float | None]
    exact_name: str
    what: str
    unknown: str


class Panel(NamedTuple):
    """Points: estimator, cost, ratio with low and high, kind, whether it is a bound. exact: what exact attention costs.

    Baselines that are bounds are left out: their cost is beside the point.
    """

    title: str
    points: pd.DataFrame
    heads: int
    exact: float | None
    beside: str = ""  # ratios to uniform attention can all be compared


def draw_against(cost: Cost, results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure where two estimators have two costs; nothing for a metric that is no error."""
    if not METRICS[metric].error or METRICS[metric].better != "lower":
        return []
    rows = _rows(cost, results, metric)
    panels = [panel for panel in panels_of(cost, rows, metric) if _worth_drawing(panel.points)]
    if not panels:
        return []
    names = named(panels)

    def draw(ax: Axes, panel: Panel) -> pd.DataFrame:
        _draw(ax, panel, names, metric, cost)
        return panel.points.assign(heads=panel.heads).rename(columns={"cost": cost.axis})

    def caption(page: Sequence[Panel], axes: Sequence[Axes]) -> str:
        return _caption(cost, results, rows, page, names, metric)

    return draw_in_files(panels, 2, directory, cost.name, draw, caption, alone=(4.6, 8.4))


def _rows(cost: Cost, results: Results, metric: str) -> pd.DataFrame:
    """What is drawn, with its cost: all but uniform attention and the bounds among baselines."""
    rows = on_each_head(results, metric)
    bound = (rows["kind"] == "baseline") & rows["map"].map(is_oracle).astype(bool)
    return rows[~bound].join(cost.of(rows[~bound]))


def panels_of(cost: Cost, rows: pd.DataFrame, metric: str) -> list[Panel]:
    """A panel for each population of heads, and for each head where they are no more than FEW."""
    found = []
    for _, cell in rows[rows["cost"] > 0].groupby(list(POPULATION), sort=False, dropna=False):
        heads, first = cell["head"].nunique(), {**cell.iloc[0]}
        exact = cost.exact(first)
        if heads > 1:
            title = f"{heads} heads of {describe_cell(first | {'head': '-'})}"
            found.append(Panel(title, _over_heads(cell), heads, exact))
        for _, head in cell.groupby("head", sort=False) if heads <= FEW else ():
            found.append(Panel(describe_cell(head.iloc[0]), _of_draws(head, metric), 1, exact))
    return found


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    names = [estimator_name(row) for _, row in rows.iterrows()]
    bound = [is_oracle(str(name)) for name in rows["map"]]
    kept = ["kind", "num_projections", "num_features", "budget", *COSTS, "ratio", "low", "high"]
    own = [bool(is_own(row)) and row["kind"] in COMPARED for _, row in rows.iterrows()]
    return rows[kept].assign(estimator=names, bound=bound, own=own).reset_index(drop=True)


def _over_heads(cell: pd.DataFrame) -> pd.DataFrame:
    """Median over heads, and quartiles."""
    keys = ["kind", "map", "sampler", "num_projections", "budget"]
    groups = cell.groupby(keys, sort=False, dropna=False)
    found = groups[["num_features", *COSTS]].first()
    shares = [quartiles(ratio.to_numpy()) for _, ratio in groups["ratio"]]
    found[["low", "ratio", "high"]] = shares
    return _labelled(found.reset_index())


def _of_draws(cell: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Median over draws, with the band from 10 % to 90 %."""
    trivial = cell["trivial"]
    with np.errstate(all="ignore"):
        return _labelled(cell.assign(low=cell[f"{metric}_q10"] / trivial, high=cell[f"{metric}_q90"] / trivial))


def _worth_drawing(points: pd.DataFrame) -> bool:
    shown = points[points["kind"].isin(COMPARED)]
    return shown["estimator"].nunique() > 1 and shown["cost"].nunique() > 1


def front_of(points: pd.DataFrame, exact: float | None) -> pd.DataFrame:
    """The points on the front, where bounds are not. exact: the cost of exact attention, where it is known."""
    usable = points[~points["bound"].astype(bool)]
    return usable.iloc[front(usable["cost"], usable["ratio"], exact or np.inf)]


def named(panels: Sequence[Panel]) -> list[str]:
    """The estimators with a look of their own: all, or a user's, the best, the best map, the usual one, and those
    nearest to the front."""
    names = list(dict.fromkeys(name for panel in panels for name in _lines(panel.points)))
    points = pd.concat([panel.points for panel in panels])
    best = points.groupby("estimator")["ratio"].min()
    maps = best[best.index.isin(points[points["kind"] == "map"]["estimator"])]
    usual = best[[is_usual(str(name)) for name in best.index]]
    usable = best[best.index.isin(points[~points["bound"].astype(bool)]["estimator"]) & best.index.isin(names)]
    always = {str(some.idxmin()) for some in (usable, maps, usual) if len(some)}
    always |= {*points[points["own"].astype(bool)]["estimator"]}
    on_front = {name for panel in panels for name in front_of(panel.points, panel.exact)["estimator"]}
    errors = {name: float(best[name]) - (HUGE if name in on_front else 0.0) for name in names}
    return chosen(errors, most_curves(), always)


def _lines(points: pd.DataFrame) -> list[str]:
    """Maps and methods; baselines are grey."""
    return list(dict.fromkeys(points[points["kind"].isin(COMPARED)]["estimator"]))


def _draw(ax: Axes, panel: Panel, names: Sequence[str], metric: str, cost: Cost) -> None:
    points = panel.points
    best = front_of(points, panel.exact)
    if len(best):
        end = (panel.exact, 0.0) if panel.exact else (points["cost"].max(), best["ratio"].min())
        costs, ratios = [*best["cost"], end[0]], [*best["ratio"], end[1]]
        ax.step(costs, ratios, where="post", color="0.85", linewidth=style.scaled(6), zorder=0.5, label="Pareto front")
    ax.axhline(1.0, color="black", linestyle="--", linewidth=style.scaled(1.4), label="uniform (mean of V)")
    if panel.exact:
        ax.axvline(panel.exact, color="0.4", linestyle=":", linewidth=style.scaled(1.4), label=cost.exact_name)
    groups = sorted(points.groupby("estimator", sort=False), key=lambda group: _is_thin(group[1], names))
    arrows = 0
    for number, (name, rows) in enumerate(groups):
        rows = rows.sort_values(["num_projections", "cost"])
        look, ratio = _look(str(name), str(rows["kind"].iloc[0]), number, names), rows["ratio"].clip(upper=HUGE)
        if name in names:
            low, high = (rows[one].clip(upper=HUGE) for one in ("low", "high"))
            ax.fill_between(rows["cost"], low, high, color=look["color"], alpha=0.1, linewidth=0)
            if len(rows) == 1:  # a band of no width
                ax.vlines(rows["cost"], low, high, color=look["color"], alpha=0.3, linewidth=3)
            ax.hlines(ratio, rows["cost_low"], rows["cost_high"], color=look["color"], alpha=0.5, linewidth=1)
        ax.plot(rows["cost"], ratio, **look)
        beyond = rows[ratio > MOST]["cost"].tolist()
        if beyond and name in names:
            style.above(ax, beyond, arrows, look)
            arrows += 1
    ax.set_xscale("log")
    style.few_ticks(ax)
    shown = points[points["estimator"].isin(names) | ~points["kind"].isin(COMPARED)]
    style.log_limits(ax, [*shown["ratio"].clip(lower=LEAST), 1.0], most=MOST)
    ax.set_title(style.plain(panel.title))
    ax.set_xlabel(cost.axis)
    ax.set_ylabel(f"{metric} / that of uniform")


def _is_thin(rows: pd.DataFrame, names: Sequence[str]) -> bool:
    """Whether an estimator is one of the others, which come last in the legend."""
    return rows["kind"].iloc[0] in COMPARED and rows["estimator"].iloc[0] not in names


def _look(name: str, kind: str, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Of a named estimator as in other figures, of a baseline its own; the rest is thin and grey."""
    if name in names:
        return style.look(names.index(name)) | {
            "markersize": style.scaled(5), "zorder": 3, "label": style.plain(name),
        }  # fmt: skip
    if kind in COMPARED:
        return {
            "color": "0.72",
            "linewidth": style.scaled(0.8),
            "zorder": 1,
            "label": "others",
            "marker": ".",
            "markersize": style.scaled(3),
        }
    return (
        {"marker": "x+"[number % 2], "markersize": 5}
        | baseline_look(name, number)
        | {"linewidth": style.scaled(1.2), "zorder": 2}
    )


def _caption(
    cost: Cost, results: Results, rows: pd.DataFrame, panels: Sequence[Panel], names: Sequence[str], metric: str
) -> str:
    draws = draws_in_words(results.summary["n"])
    several = [panel.heads > 1 for panel in panels]
    over = (
        "median over heads, band: quartiles over heads" if all(several) else "median of draws, band from 10 % to 90 %"
    )
    if any(several) and not all(several):
        over += " (of several heads over heads, band: quartiles)"
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    bounds = sorted(set(results.summary[results.summary["kind"] == "baseline"]["map"]) & ORACLES)
    unknown = sorted(set(rows[rows["cost"].isna()]["map"]))
    missing = [f"as {cost.unknown}: {', '.join(unknown)}"] if unknown else []
    missing += [f"as a bound at any cost: {', '.join(bounds)}"] if bounds else []
    left_out = f" Not shown, {'; nor, '.join(missing)}." if missing else ""
    rest = list(dict.fromkeys(name for p in panels for name in _lines(p.points) if name not in names))
    left_out += f" Thin grey: {in_words(rest)}." if rest else ""
    beyond = (
        f" Arrows: more than {MOST:g} times the error of uniform attention."
        if any((p.points["ratio"] > MOST).any() for p in panels)
        else ""
    )
    return (
        f"{partial}{results.scenario.name}: {metric} over that of uniform attention, against {cost.what}; {over}; "
        f"{draws}. Grey steps: the Pareto front, what neither another nor exact attention is both cheaper and better "
        f"than.{left_out}{beyond}"
    )
