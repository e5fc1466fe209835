"""error-vs-cost: the error of each estimator against its multiplications, beside uniform attention, and the front."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.columns import describe_cell
from favorbench.metrics import METRICS
from favorbench.results.figures.curves import CURVES, PANELS, baseline_look
from favorbench.results.heads import MANY, POPULATION, on_each_head, populations, quartiles
from favorbench.results.results import Results
from favorbench.results.summary import COMPARED, ORACLES, estimator_name, is_oracle
from favorbench.results.tables import draws_in_words

MOST = 30.0  # times the error of uniform attention: what is worse stands at the edge, an arrow


class Panel(NamedTuple):
    """Points: estimator, multiplications, ratio with low and high, kind, whether it is a bound. exact: its cost.

    Baselines that are bounds are left out: their cost is beside the point.
    """

    title: str
    points: pd.DataFrame
    heads: int
    exact: float | None


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure where there is a method, equal cost or many heads, and two estimators have two costs."""
    usual = results.scenario.budget == "cost" or (results.summary["kind"] == "method").any()
    many = any(one.heads > MANY for one in populations(results))
    if not (usual or many) or not METRICS[metric].error or METRICS[metric].better != "lower":
        return []
    panels = [panel for panel in _panels(results, metric) if _worth_drawing(panel.points)]
    if not panels:
        return []
    written, names = [], _named(panels)
    pages = [panels[i : i + PANELS] for i in range(0, len(panels), PANELS)]
    for number, page in enumerate(pages, start=1):
        columns = min(len(page), 2)
        with style.context():
            figure, axes = style.panels(len(page), columns, *((4.6, 8.4) if len(page) == 1 else ()))
            for ax, panel in zip(axes, page, strict=True):
                _draw(ax, panel, names, metric)
            style.finish(figure, axes, style.plain(_caption(results, page, metric)))
            suffix = f"-{number}" if len(pages) > 1 else ""
            data = pd.concat([panel.points.assign(panel=panel.title, heads=panel.heads) for panel in page])
            written += style.save(figure, directory, f"error-vs-cost{suffix}", data)
    return written


def _panels(results: Results, metric: str) -> list[Panel]:
    """A panel for each population of heads, and for each cell without others like it."""
    rows, found = on_each_head(results, metric), []
    bound = (rows["kind"] == "baseline") & rows["map"].map(is_oracle).astype(bool)
    rows = rows[(rows["multiplications"] > 0) & ~bound]
    for _, cell in rows.groupby(list(POPULATION), sort=False, dropna=False):
        heads, first = cell["head"].nunique(), {**cell.iloc[0]}
        title = describe_cell(first | {"head": "-"} if heads > 1 else first)
        points = _over_heads(cell) if heads > 1 else _of_draws(cell, metric)
        found.append(Panel(f"{heads} heads of {title}" if heads > 1 else title, points, heads, _exact_cost(first)))
    return found


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    names = [estimator_name(row) for _, row in rows.iterrows()]
    bound = [is_oracle(str(name)) for name in rows["map"]]
    kept = ["kind", "num_projections", "num_features", "budget", "multiplications", "ratio", "low", "high"]
    return rows[kept].assign(estimator=names, bound=bound).reset_index(drop=True)


def _over_heads(cell: pd.DataFrame) -> pd.DataFrame:
    """Median over heads, and quartiles."""
    keys = ["kind", "map", "sampler", "num_projections", "budget"]
    groups = cell.groupby(keys, sort=False, dropna=False)
    found = groups[["num_features", "multiplications"]].first()
    shares = [quartiles(ratio.to_numpy()) for _, ratio in groups["ratio"]]
    found[["low", "ratio", "high"]] = shares
    return _labelled(found.reset_index())


def _of_draws(cell: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Median over draws, with the band from 10 % to 90 %."""
    trivial = cell["trivial"]
    with np.errstate(all="ignore"):
        return _labelled(cell.assign(low=cell[f"{metric}_q10"] / trivial, high=cell[f"{metric}_q90"] / trivial))


def _exact_cost(row: dict[str, object]) -> float | None:
    """n l (d + d_v) multiplications where d_v = d; causal, it depends on the program."""
    n, length, d = (float(str(row[name])) for name in ("query_len", "seq_len", "head_dim"))
    return None if row["causal"] == "yes" else 2.0 * n * length * d


def _worth_drawing(points: pd.DataFrame) -> bool:
    lines = points[points["kind"].isin(COMPARED)].groupby("estimator")["multiplications"].nunique()
    return len(lines) > 1 and lines.max() > 1


def front(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other is cheaper and better than; better than uniform attention, which costs nothing.

    Bounds are not among them.
    """
    usable = points[~points["bound"].astype(bool)].sort_values(["multiplications", "ratio"])
    before = usable["ratio"].cummin().shift(fill_value=1.0)
    return usable[usable["ratio"] < before]


def _named(panels: Sequence[Panel]) -> list[str]:
    """The estimators that have a look of their own: all, or the best map and those that come nearest to the front."""
    names = list(dict.fromkeys(name for panel in panels for name in _lines(panel.points)))
    if len(names) <= CURVES:
        return names
    points = pd.concat([panel.points for panel in panels])
    best = points.groupby("estimator")["ratio"].min().sort_values()
    on_front = {name for panel in panels for name in front(panel.points)["estimator"]}
    maps = set(points[points["kind"] == "map"]["estimator"])
    on_front |= {next(name for name in best.index if name in maps)} if maps else set()
    chosen = sorted(names, key=lambda name: (name not in on_front, best[name]))[:CURVES]
    return [name for name in names if name in chosen]


def _lines(points: pd.DataFrame) -> list[str]:
    """Maps and methods; baselines are grey."""
    return list(dict.fromkeys(points[points["kind"].isin(COMPARED)]["estimator"]))


def _draw(ax: Axes, panel: Panel, names: Sequence[str], metric: str) -> None:
    points = panel.points
    best = front(points)
    if len(best):
        last = min(points["multiplications"].max(), panel.exact or np.inf)  # from there on exact attention is cheaper
        costs = [*best["multiplications"], max(last, best["multiplications"].max())]
        ratios = [*best["ratio"], best["ratio"].min()]
        ax.step(costs, ratios, where="post", color="0.85", linewidth=6, zorder=0.5, label="Pareto front")
    ax.axhline(1.0, color="black", linestyle="--", linewidth=1.4, label="uniform (mean of V)")
    if panel.exact:
        ax.axvline(panel.exact, color="0.4", linestyle=":", linewidth=1.4, label="exact (d_v = d)")
    groups = sorted(points.groupby("estimator", sort=False), key=lambda group: _is_thin(group[1], names))
    for number, (name, rows) in enumerate(groups):
        rows, look = rows.sort_values("multiplications"), _look(str(name), str(rows["kind"].iloc[0]), number, names)
        if name in names:
            low, high = np.minimum(rows["low"], MOST), np.minimum(rows["high"], MOST)
            ax.fill_between(rows["multiplications"], low, high, color=look["color"], alpha=0.12, linewidth=0)
        ax.plot(rows["multiplications"], np.minimum(rows["ratio"], MOST), **look)
        beyond = rows[rows["ratio"] >= MOST]["multiplications"]
        ax.plot(beyond, [MOST] * len(beyond), "^", color=look["color"], markersize=7, clip_on=False, zorder=3)
    ax.set_xscale("log")
    style.log_limits(ax, [*np.minimum(points["ratio"], MOST), 1.0])
    ax.set_title(style.plain(panel.title))
    ax.set_xlabel("multiplications")
    ax.set_ylabel(f"{metric} / that of uniform")


def _is_thin(rows: pd.DataFrame, names: Sequence[str]) -> bool:
    """Whether an estimator is one of the others, which come last in the legend."""
    return rows["kind"].iloc[0] in COMPARED and rows["estimator"].iloc[0] not in names


def _look(name: str, kind: str, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Of a named estimator as in other figures, of a baseline its own; the rest is thin and grey."""
    if name in names:
        return style.look(names.index(name)) | {"markersize": 5, "zorder": 3, "label": style.plain(name)}
    if kind in COMPARED:
        return {"color": "0.75", "linewidth": 0.8, "zorder": 1, "label": "others"}
    return {"marker": "x+"[number % 2], "markersize": 5} | baseline_look(name, number) | {"linewidth": 1.2, "zorder": 2}


def _caption(results: Results, panels: Sequence[Panel], metric: str) -> str:
    draws = draws_in_words(results.summary["n"])
    several = [panel.heads > 1 for panel in panels]
    over = (
        "median over heads, band: quartiles over heads" if all(several) else "median of draws, band from 10 % to 90 %"
    )
    if any(several) and not all(several):
        over += "; of several heads over heads, with quartiles"
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    unknown = sorted(set(results.summary[results.summary["multiplications"].isna()]["map"]))
    missing = f" Not shown, as they do not say what they cost: {', '.join(unknown)}." if unknown else ""
    bounds = sorted(set(results.summary[results.summary["kind"] == "baseline"]["map"]) & ORACLES)
    missing += f" Nor, as a bound at any cost: {', '.join(bounds)}." if bounds else ""
    missing = missing if unknown else missing.replace("Nor, as", "Not shown, as")
    beyond = " Arrows: above the axis." if any((p.points["ratio"] >= MOST).any() for p in panels) else ""
    return (
        f"{partial}{results.scenario.name}: {metric} over that of uniform attention, which multiplies nothing, against "
        f"the multiplications of matrix products for one head; {over}; {draws}. Grey steps: the Pareto front, what no "
        f"other is both cheaper and better than.{missing}{beyond}"
    )
