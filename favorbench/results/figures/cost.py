"""Error against cost, in multiplications or measured seconds, with the Pareto front of accuracy and cost."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import Labels, describe_cell
from favorbench.results.figures.blocks import (
    LEAST,
    MOST,
    baseline_look,
    can_be_relative,
    caption,
    choose,
    draws_of,
    estimator_look,
    favor_of,
    max_curves,
    others_in_words,
    relative_label,
)
from favorbench.results.front import front
from favorbench.results.heads import FEW, POPULATION, on_each_head, populations, quartiles
from favorbench.results.run import RunData
from favorbench.results.seconds import MEASURED, exact_seconds, read_seconds
from favorbench.results.summary import COMPARED, ORACLES, estimator_name, is_oracle, is_own
from favorbench.statistics import interval_name

#: The cost of a row, and its interval.
COSTS = ["cost", "cost_low", "cost_high"]

_ON_FRONT = 1e200  # subtracted from the error of an estimator on the front: it is chosen before the others


class Cost(NamedTuple):
    """What errors are drawn against. exact: the cost of exact attention in the cell of a row, None if unknown.

    unknown: why some estimators have none.
    """

    name: str
    title: str
    axis: str
    label: str
    exact: Callable[[Labels], float | None]
    exact_name: str
    words: str
    unknown: str


class Points(NamedTuple):
    """What one panel shows, a row for each estimator and size. exact: the cost of exact attention."""

    title: str
    rows: pd.DataFrame
    exact: float | None


def against_multiplications(results: RunData, metric: str) -> list[style.Chart]:
    """Error against multiplications: with methods, at equal cost, or of many heads."""
    methods = results.scenario.budget == "cost" or (results.summary["kind"] == "method").any()
    if not methods and not any(one.heads > FEW for one in populations(results)):
        return []

    def exact(row: Labels) -> float | None:
        """n L (d + d_v) with d_v = d; causal, it depends on the program."""
        n, length, d = (float(str(row[name])) for name in ("query_len", "seq_len", "head_dim"))
        return None if row["causal"] == "yes" else 2.0 * n * length * d

    cost = Cost(
        "error-vs-cost", "Error against cost: lower left is better", "multiplications", "multiplications per head",
        exact, "exact attention",
        "the multiplications of all matrix products of one head, exact attention with d_v = d",
        "they declare no cost",
    )  # fmt: skip
    return _charts(cost, results, metric, lambda rows: pd.DataFrame(dict.fromkeys(COSTS, rows["multiplications"])))


def against_seconds(results: RunData, metric: str) -> list[style.Chart]:
    """Error against seconds, where the run was timed. Raises StoreError for damaged times."""
    found = read_seconds(results.path)
    if found is None:
        return []
    keys = [*POPULATION, "kind", "map", "sampler", "num_projections"]

    def costs(rows: pd.DataFrame) -> pd.DataFrame:
        """One head was timed for all heads of its population."""
        timed = found.rows.astype({name: rows[name].dtype for name in keys})
        joined = rows[keys].merge(timed, how="left", on=keys).set_axis(rows.index)
        return joined[list(MEASURED)].set_axis(COSTS, axis="columns")

    def exact(row: Labels) -> float | None:
        same = found.rows[(found.rows[list(POPULATION)] == [row[name] for name in POPULATION]).all(axis=1)]
        return exact_seconds(same) if len(same) else None

    heads = [head for head in found.rows["head"].unique() if head != "-"]
    measured = f"one head ({', '.join(heads)})" if heads else "one head"
    bars = "; ".join(filter(None, [f"bars: {interval_name(found.repeats)}", found.doubts()]))
    cost = Cost(
        "error-vs-seconds", "Error against time: lower left is better", "seconds", "seconds per head",
        exact, "exact attention",
        f"the seconds of {measured}: {found.on()}, median of {found.repeats} interleaved runs ({bars})",
        "they were not timed",
    )  # fmt: skip
    return _charts(cost, results, metric, costs)


def _charts(
    cost: Cost, results: RunData, metric: str, costs: Callable[[pd.DataFrame], pd.DataFrame]
) -> list[style.Chart]:
    """The chart, where two estimators have two costs; none for a metric that is not an error."""
    if not can_be_relative(metric):
        return []
    rows = on_each_head(results, metric)
    rows = rows[~((rows["kind"] == "baseline") & rows["map"].map(is_oracle).astype(bool))]  # bounds cost what they cost
    rows = rows.join(costs(rows))
    panels = [panel for panel in _panels(cost, rows, metric) if _worth_drawing(panel.rows)]
    if not panels:
        return []
    coloured = coloured_of(panels)
    text = _caption(cost, results, rows, panels, coloured, metric)
    drawn = [
        style.Panel(panel.title, partial(_draw, panel, cost=cost, coloured=coloured, metric=metric), "ratio")
        for panel in panels
    ]
    return [style.Chart(cost.name, cost.title, caption(results, text), drawn, 2, alone=(8.4, 4.6))]


def _panels(cost: Cost, rows: pd.DataFrame, metric: str) -> list[Points]:
    """A panel for each population of heads, and for each head where there are at most FEW."""
    panels = []
    for _, cell in rows[rows["cost"] > 0].groupby(list(POPULATION), sort=False, dropna=False):
        heads, first = cell["head"].nunique(), {**cell.iloc[0]}
        exact = cost.exact(first)
        if heads > 1:
            title = f"{heads} heads of {describe_cell(first | {'head': '-'})}"
            panels.append(Points(title, _over_heads(cell).assign(heads=heads), exact))
        for _, head in cell.groupby("head", sort=False) if heads <= FEW else ():
            with np.errstate(all="ignore"):
                band = {to: head[f"{metric}_{of}"] / head["trivial"] for to, of in (("low", "q10"), ("high", "q90"))}
            panels.append(Points(describe_cell(head.iloc[0]), _labelled(head.assign(**band)).assign(heads=1), exact))
    return panels


def _over_heads(cell: pd.DataFrame) -> pd.DataFrame:
    """Median and quartiles over heads."""
    groups = cell.groupby(["kind", "map", "sampler", "num_projections", "budget"], sort=False, dropna=False)
    found = groups[["num_features", *COSTS]].first()
    found[["low", "ratio", "high"]] = [quartiles(ratio.to_numpy()) for _, ratio in groups["ratio"]]
    return _labelled(found.reset_index())


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    kept = ["kind", "num_projections", "num_features", "budget", *COSTS, "ratio", "low", "high"]
    return rows[kept].assign(
        estimator=[estimator_name(row) for _, row in rows.iterrows()],
        bound=[is_oracle(str(name)) for name in rows["map"]],
        own=[bool(is_own(row)) and row["kind"] in COMPARED for _, row in rows.iterrows()],
    ).reset_index(drop=True)  # fmt: skip


def _worth_drawing(rows: pd.DataFrame) -> bool:
    shown = rows[rows["kind"].isin(COMPARED)]
    return shown["estimator"].nunique() > 1 and shown["cost"].nunique() > 1


def front_of(rows: pd.DataFrame, exact: float | None) -> pd.DataFrame:
    """The points on the Pareto front, bounds aside."""
    usable = rows[~rows["bound"].astype(bool)]
    return usable.iloc[front(usable["cost"], usable["ratio"], exact or np.inf)]


def coloured_of(panels: Sequence[Points]) -> list[str]:
    """The estimators with a colour: a user's, the best one, the best map, FAVOR+, then those on the front."""
    rows = pd.concat([panel.rows for panel in panels])
    rows = rows[rows["kind"].isin(COMPARED)]
    best = {str(name): float(error) for name, error in rows.groupby("estimator", sort=False)["ratio"].min().items()}
    always = {*rows[rows["own"].astype(bool)]["estimator"]} | favor_of(best)
    for some in (rows[~rows["bound"].astype(bool)], rows[rows["kind"] == "map"]):
        always |= {min({*some["estimator"]}, key=lambda name: (best[name], name))} if len(some) else set()
    on_front = {name for panel in panels for name in front_of(panel.rows, panel.exact)["estimator"]}
    errors = {name: error - (_ON_FRONT if name in on_front else 0.0) for name, error in best.items()}
    return choose(errors, max_curves(), always)


def _draw(panel: Points, ax: Axes, cost: Cost, coloured: Sequence[str], metric: str) -> pd.DataFrame:
    rows, best, line = panel.rows, front_of(panel.rows, panel.exact), style.scaled(1.4)
    if len(best):
        end = (panel.exact, 0.0) if panel.exact else (rows["cost"].max(), best["ratio"].min())
        ax.step(
            [*best["cost"], end[0]], [*best["ratio"], end[1]], where="post", color="0.85", linewidth=style.scaled(6),
            zorder=0.5, label="Pareto front",
        )  # fmt: skip
    ax.axhline(1.0, color="black", linestyle="--", linewidth=line, label="uniform (mean of V)")
    if panel.exact:
        ax.axvline(panel.exact, color="0.4", linestyle=":", linewidth=line, label=cost.exact_name)
    for number, (name, points) in enumerate(rows.groupby("estimator", sort=False)):
        points = points.sort_values(["num_projections", "cost"])
        if points["kind"].iloc[0] not in COMPARED:
            look = {"marker": "x+"[number % 2], "markersize": style.scaled(5)} | baseline_look(str(name), number)
            ax.plot(points["cost"], points["ratio"], **look)
            continue
        look = estimator_look(str(name), coloured)
        look |= {} if name in coloured else {"linestyle": "none"}
        if name in coloured:
            style.line_with_band(ax, points["cost"], points["ratio"], (points["low"], points["high"]), 0.1, **look)
            if len(points) == 1:  # its band has no width
                ax.vlines(points["cost"], points["low"], points["high"], color=look["color"], alpha=0.3, linewidth=3)
            ratio = points["ratio"].clip(upper=style.PLOT_INFINITY)
            ax.hlines(ratio, points["cost_low"], points["cost_high"], color=look["color"], alpha=0.5, linewidth=1)
        else:
            style.line_with_band(ax, points["cost"], points["ratio"], **look)
    ax.set_xscale("log")
    style.log_ticks(ax.xaxis)
    shown = rows[rows["estimator"].isin(coloured) | ~rows["kind"].isin(COMPARED)]
    style.log_limits(ax, [*shown["ratio"].clip(lower=LEAST), 1.0], most=MOST)
    ax.set(xlabel=cost.label, ylabel=relative_label(metric))
    beyond = set(rows[rows["ratio"] > ax.get_ylim()[1]]["estimator"])
    style.off_scale_note(ax, [name for name in coloured if name in beyond])
    return rows.rename(columns={"cost": cost.axis})


def _caption(
    cost: Cost, results: RunData, rows: pd.DataFrame, panels: Sequence[Points], coloured: Sequence[str], metric: str
) -> str:
    several = {bool((panel.rows["heads"] > 1).any()) for panel in panels}
    over = {
        (True,): "Median over heads, band: quartiles over heads",
        (False,): "Median of draws, band from 10 % to 90 %",
        (False, True): "Median of draws, band from 10 % to 90 %; of several heads over heads, band: quartiles",
    }[tuple(sorted(several))]
    bounds = sorted(set(results.summary[results.summary["kind"] == "baseline"]["map"]) & ORACLES)
    unknown = sorted(set(rows[rows["cost"].isna()]["map"]))
    missing = [f"as {cost.unknown}: {', '.join(unknown)}"] if unknown else []
    missing += [f"as a bound at any cost: {', '.join(bounds)}"] if bounds else []
    left_out = f" Not shown, {'; nor, '.join(missing)}." if missing else ""
    names = dict.fromkeys(name for panel in panels for name in _compared_names(panel.rows))
    beyond = any((panel.rows["ratio"] > MOST).any() for panel in panels)
    return (
        f"{over}; {draws_of(results)}. The error is {metric} over that of uniform attention; the cost is {cost.words}. "
        "Grey steps: the Pareto front; nothing is both cheaper and more accurate."
        f"{left_out}{others_in_words([name for name in names if name not in coloured])}"
        + (f" Off scale: more than {MOST:g} times the error of uniform attention." if beyond else "")
    )


def _compared_names(rows: pd.DataFrame) -> list[str]:
    return list(rows[rows["kind"].isin(COMPARED)]["estimator"])
