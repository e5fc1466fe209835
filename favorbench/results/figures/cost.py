"""Error against cost, in multiplications or measured seconds, with the Pareto front of accuracy and cost."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import describe_cell
from favorbench.results.figures.blocks import (
    LEAST,
    MOST,
    baseline_look,
    caption,
    choose,
    draws_of,
    estimator_look,
    favor_of,
    max_curves,
    others_in_words,
    relative_label,
)
from favorbench.results.heads import FEW, can_be_compared, on_each_head, populations, quartiles
from favorbench.results.seconds import MEASURED, read_seconds
from favorbench.results.summary import (
    POPULATION,
    RunData,
    by_population,
    compared,
    exact_cost,
    is_oracle,
    labelled,
    population_title,
    usable,
    value_dims,
)
from favorbench.statistics import interval_name

#: The cost of a row with its interval, and the cost of exact attention: NaN where it is unknown.
COSTS = ["cost", "cost_low", "cost_high", "exact"]

_ON_FRONT = 1e200  # subtracted from the error of an estimator on the front: it is chosen before the others

Panels = Sequence[tuple[str, pd.DataFrame]]  # titles, and a row for each estimator and size


class CostAxis(NamedTuple):
    """A horizontal axis. column: its name in the CSV. unknown: why some estimators have no cost."""

    figure: str
    title: str
    column: str
    words: str
    unknown: str


def against_multiplications(results: RunData, metric: str) -> list[style.Chart]:
    """Error against multiplications: with methods, at equal cost, or of many heads."""
    methods = results.scenario.budget == "cost" or (results.summary["kind"] == "method").any()
    if not can_be_compared(metric) or not (methods or any(group.heads > FEW for group in populations(results))):
        return []
    rows = on_each_head(results, metric)
    exact = pd.Series([exact_cost(results, row) for row in rows.to_dict("records")], rows.index)
    dims = value_dims(results)
    by_input = dict(zip(rows["input"], rows["head_dim"].tolist(), strict=True)) | dims if dims else {}
    d_v = ", ".join(map(str, sorted({*by_input.values()}))) or "d"
    rows = rows.assign(**dict.fromkeys(COSTS, rows["multiplications"]))
    axis = CostAxis(
        "error-vs-cost", "Error against cost: lower left is better", "multiplications",
        f"the multiplications of all matrix products of one head, exact attention with d_v = {d_v}",
        "they declare no cost",
    )  # fmt: skip
    return _charts(axis, results, metric, rows.assign(exact=exact))


def against_seconds(results: RunData, metric: str) -> list[style.Chart]:
    """Error against seconds, where the run was timed. Raises StoreError for damaged times."""
    seconds = read_seconds(results.path)
    if seconds is None or not can_be_compared(metric):
        return []
    rows, keys = on_each_head(results, metric), [*POPULATION, "kind", "estimator", "sampler", "num_projections"]
    timed = seconds.rows.astype({name: rows[name].dtype for name in keys})
    timed = timed.rename(columns=dict(zip(MEASURED, COSTS, strict=False)))
    exact = timed[timed["kind"] == "exact"].groupby(POPULATION, dropna=False)["cost"].min().rename("exact")
    timed = timed.drop(columns="head")  # one head was timed for its whole population
    rows = rows.merge(timed, how="left", on=keys).merge(exact.reset_index(), how="left", on=POPULATION)
    heads = ", ".join(head for head in seconds.rows["head"].unique() if head != "-")
    bars = "; ".join(filter(None, [f"bars: {interval_name(seconds.repeats)}", seconds.doubts()]))
    axis = CostAxis(
        "error-vs-seconds", "Error against time: lower left is better", "seconds",
        f"the seconds of one head{f' ({heads})' if heads else ''}: {seconds.on()}, median of {seconds.repeats} "
        f"interleaved runs ({bars})",
        "they were not timed",
    )  # fmt: skip
    return _charts(axis, results, metric, rows)


def _charts(axis: CostAxis, results: RunData, metric: str, rows: pd.DataFrame) -> list[style.Chart]:
    """The chart, where two estimators have two costs."""
    rows = labelled(rows)
    rows = rows[~((rows["kind"] == "baseline") & rows["bound"])]  # the cost of a bound means nothing
    panels = [
        (title, points)
        for title, points in _panels(rows[rows["cost"] > 0], metric)
        if min(compared(points)[["label", "cost"]].nunique()) > 1
    ]
    if not panels:
        return []
    coloured = coloured_of(panels)
    text = _caption(axis, results, rows, panels, coloured, metric)
    drawn = [
        style.Panel(title, partial(_draw, points, axis=axis, coloured=coloured, metric=metric), "ratio")
        for title, points in panels
    ]
    return [style.Chart(axis.figure, axis.title, caption(results, text), drawn, 2, alone=(8.4, 4.6))]


def _panels(rows: pd.DataFrame, metric: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """A panel for each population of heads, and for each head where there are at most FEW."""
    kept = ["kind", "num_projections", "num_features", "budget", *COSTS, "ratio", "low", "high"]
    kept += ["label", "bound", "own", "estimator", "heads"]
    for cell in by_population(rows):
        heads = cell["head"].nunique()
        if heads > 1:
            groups = cell.groupby(["label", "num_projections", "budget"], sort=False, dropna=False)
            points = groups[["kind", "num_features", *COSTS, "bound", "own", "estimator"]].first().assign(heads=heads)
            points[["low", "ratio", "high"]] = [quartiles(ratio.to_numpy()) for _, ratio in groups["ratio"]]
            yield population_title(cell.iloc[0], cell["head"].unique()), points.reset_index()[kept]
        for _, head in cell.groupby("head", sort=False) if heads <= FEW else ():
            with np.errstate(all="ignore"):
                low, high = (head[f"{metric}_{stat}"] / head["trivial"] for stat in ("q10", "q90"))
            points = head.assign(low=low, high=high, heads=1)
            yield describe_cell(head.iloc[0]), points.reset_index(drop=True)[kept]


def front(points: pd.DataFrame, exact: float) -> pd.DataFrame:
    """The points for which no other is both cheaper and better, in order of increasing cost; bounds aside.

    Uniform attention, to whose error the ratios are, costs nothing. exact: the cost of exact attention, which has no
    error; may be NaN. NaN is on no front.
    """
    usual = points[~points["bound"]].dropna(subset=["cost", "ratio"]).sort_values(["cost", "ratio"])
    below = usual[~(usual["cost"] >= exact)]
    return below[below["ratio"] < below["ratio"].cummin().shift(fill_value=1.0).clip(upper=1.0)]


def coloured_of(panels: Panels) -> list[str]:
    """The estimators with a colour: a user's, the best one, the best map, FAVOR+, then those on the front."""
    rows = compared(pd.concat([points for _, points in panels]))
    best: Any = rows.groupby("label", sort=False)["ratio"].min().to_dict()
    always = {*rows[rows["own"]]["label"]} | favor_of(best)
    for some in (usable(rows), rows[rows["kind"] == "map"]):
        always |= {*sorted({*some["label"]}, key=lambda name: (best[name], name))[:1]}
    on_front = {name for _, points in panels for name in front(points, points["exact"].iloc[0])["label"]}
    errors = {name: error - (_ON_FRONT if name in on_front else 0.0) for name, error in best.items()}
    return choose(errors, max_curves(), always)


def _draw(rows: pd.DataFrame, ax: Axes, axis: CostAxis, coloured: Sequence[str], metric: str) -> pd.DataFrame:
    exact, width = float(rows["exact"].iloc[0]), style.scaled(1.4)
    if len(best := front(rows, exact)):
        end = (rows["cost"].max(), best["ratio"].min()) if np.isnan(exact) else (exact, 0.0)
        ax.step(
            [*best["cost"], end[0]], [*best["ratio"], end[1]], where="post", color="0.85", linewidth=style.scaled(6),
            zorder=0.5, label="Pareto front",
        )  # fmt: skip
    ax.axhline(1.0, color="black", linestyle="--", linewidth=width, label="uniform (mean of V)")
    if not np.isnan(exact):
        ax.axvline(exact, color="0.4", linestyle=":", linewidth=width, label="exact attention")
    for number, (name, points) in enumerate(rows.groupby("label", sort=False)):
        points = points.sort_values(["num_projections", "cost"])
        band, look = None, estimator_look(str(name), coloured)
        if points["kind"].iloc[0] == "baseline":
            look = {"marker": "x+"[number % 2], "markersize": style.scaled(5)} | baseline_look(str(name), number)
        elif name in coloured:
            band = points["low"], points["high"]
            ratio = points["ratio"].clip(upper=style.PLOT_INFINITY)
            ax.hlines(ratio, points["cost_low"], points["cost_high"], color=look["color"], alpha=0.5, linewidth=1)
        else:
            look["linestyle"] = "none"
        style.line_with_band(ax, points["cost"], points["ratio"], band, 0.1, **look)
    ax.set_xscale("log")
    style.log_ticks(ax.xaxis)
    style.log_limits(ax, [*rows["ratio"].clip(lower=LEAST), 1.0], most=MOST)
    ax.set(xlabel=f"{axis.column} per head", ylabel=relative_label(metric))
    names = dict.fromkeys([*coloured, *rows["label"]])
    values = {name: rows[rows["label"] == name]["ratio"].tolist() for name in names}
    style.off_scale_note(ax, values, values)
    return rows.drop(columns=["exact", "estimator"]).rename(columns={"cost": axis.column})


def _caption(
    axis: CostAxis, results: RunData, rows: pd.DataFrame, panels: Panels, coloured: Sequence[str], metric: str
) -> str:
    points = pd.concat([points for _, points in panels])
    over = "Median of draws, band from 10 % to 90 %"
    if (points["heads"] > 1).all():
        over = "Median over heads, band: quartiles over heads"
    elif (points["heads"] > 1).any():
        over += "; of several heads over heads, band: quartiles"
    bounds = sorted(filter(is_oracle, set(results.summary[results.summary["kind"] == "baseline"]["estimator"])))
    unknown = sorted(set(rows[rows["cost"].isna()]["estimator"]))
    missing = [f"as {axis.unknown}: {', '.join(unknown)}"] if unknown else []
    missing += [f"as a bound at any cost: {', '.join(bounds)}"] if bounds else []
    left_out = f" Not shown, {'; nor, '.join(missing)}." if missing else ""
    others = [name for name in dict.fromkeys(compared(points)["label"]) if name not in coloured]
    beyond = f" Off scale: more than {MOST:g} times the error of uniform attention."
    return (
        f"{over}; {draws_of(results)}. The error is {metric} over that of uniform attention; the cost is {axis.words}. "
        "Grey steps: the Pareto front; nothing is both cheaper and more accurate."
        f"{left_out}{others_in_words(others)}{beyond * bool((points['ratio'] > MOST).any())}"
    )
