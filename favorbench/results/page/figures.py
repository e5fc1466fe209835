"""The curves of a page: error against size, and against multiplications."""

import math
from collections.abc import Callable

import pandas as pd

from favorbench.engine.columns import Labels
from favorbench.formats import format_value
from favorbench.results.front import front
from favorbench.results.heads import number
from favorbench.results.page import svg
from favorbench.results.page.looks import Looks, names
from favorbench.results.page.svg import Point
from favorbench.results.results import Results
from favorbench.results.summary import COMPARED, is_oracle
from favorbench.results.tables import size_axis, size_label

#: Of the error of uniform attention: what is worse, or better, stands at the edge of a figure, an arrow.
MOST, LEAST = 30.0, 1e-6
SIZE, LEFT = (560, 350), 64


def of_cell(results: Results, cell: pd.DataFrame, looks: Looks, title: str, floor: float) -> list[str]:
    """The figures of one cell: rows of ``on_each_head``, with the median over draws and the 10 % to 90 % band."""
    trivial = float(cell["trivial"].iloc[0])
    if not trivial > 0:
        return []
    shown = [format_value(value, "mse", floor) for value in cell["mse_median"]]
    bands = [
        f"{format_value(low, 'mse', floor)} to {format_value(high, 'mse', floor)}"
        for low, high in zip(cell["mse_q10"], cell["mse_q90"], strict=True)
    ]
    said = [
        f"{middle} (10 % to 90 %: {band}), {number(ratio)} of uniform's"
        for middle, band, ratio in zip(shown, bands, cell["ratio"], strict=True)
    ]
    named = cell.assign(
        name=names(cell),
        said=said,
        low=cell["mse_q10"] / trivial,
        high=cell["mse_q90"] / trivial,
    )
    uniform = Point(0, trivial, trivial, trivial, f"uniform: {format_value(trivial, 'mse', floor)}")
    absolute = named.assign(y=named["mse_median"], low=named["mse_q10"], high=named["mse_q90"])
    sizes = _against_size(results, absolute, looks, uniform, f"mse against size: {title}", "mse")
    return list(filter(None, [sizes, _against_cost(named.assign(y=named["ratio"]), looks, title)]))


def of_heads(results: Results, rows: pd.DataFrame, looks: Looks, title: str) -> list[str]:
    """The figures of a population: rows of ``over_heads``, with the median over heads and the quartiles."""
    said = [
        f"{number(row['ratio_median'])} of uniform's (quartiles {number(row['ratio_q25'])} to "
        f"{number(row['ratio_q75'])}), worse on {row['worse']}/{row['heads']}"
        for _, row in rows.iterrows()
    ]
    named = rows.assign(name=names(rows), said=said, y=rows["ratio_median"])
    named = named.assign(low=rows["ratio_q25"], high=rows["ratio_q75"])
    uniform = Point(0, 1.0, 1.0, 1.0, "uniform: 1")
    label = "mse / that of uniform"
    sizes = _against_size(results, named, looks, uniform, f"{label} against size: {title}", label)
    return list(filter(None, [sizes, _against_cost(named, looks, title)]))


def _against_size(
    results: Results, named: pd.DataFrame, looks: Looks, uniform: Point, title: str, label: str
) -> str | None:
    """A line for each estimator, a flat one for what has no size."""
    axis = size_axis(results)
    sized = named[named[axis].notna() & named["num_projections"].notna()]
    compared = sized[sized["kind"].isin(COMPARED)]
    if compared[axis].nunique() < 2:
        return None
    fixed = named[~named.index.isin(sized.index)].drop_duplicates("name")
    series = [
        looks.series(str(name), _points(rows.sort_values(axis), axis, lambda row: f", {_sized(results, row, axis)}"))
        for name, rows in sized.groupby("name", sort=False)
    ]
    series += [
        looks.series(str(name), _points(rows, "y", lambda row: ""), flat=True)
        for name, rows in fixed.groupby("name", sort=False)
    ]
    series.append(looks.series("uniform", [uniform], flat=True))
    values = [*compared["y"], *fixed["y"], uniform.y]
    values += [y for y in sized["y"] if y > min(values) / 100]  # a bound may be far below
    y = svg.log_axis(label, values, LEAST * uniform.y, MOST * uniform.y)
    if y is None:
        return None
    plot = svg.Plot(svg.size_axis(size_label(results), [float(x) for x in sized[axis]]), y, SIZE, LEFT)
    svg.curves(plot, series)
    return plot.svg(f"{title}; {len(series)} estimators, their values are in the table")


def _sized(results: Results, row: Labels, axis: str) -> str:
    return f"R = {row[axis]}" if axis == "num_projections" else f"budget {row[axis]}, {row['num_features']} features"


def _against_cost(named: pd.DataFrame, looks: Looks, title: str) -> str | None:
    """Error over uniform's against multiplications; steps: the front. Bounds are left out: they cost what they cost."""
    bound = named["map"].map(is_oracle).astype(bool)
    priced = named[(named["multiplications"] > 0) & ~bound]
    lines = priced[priced["kind"].isin(COMPARED)]
    if lines["multiplications"].nunique() < 2:
        return None
    first = priced.iloc[0]
    exact = None if first["causal"] == "yes" else 2.0 * first["query_len"] * first["seq_len"] * first["head_dim"]
    label = "mse / that of uniform"
    y = svg.log_axis(label, [*priced["y"], 1.0], LEAST, MOST)
    x = svg.log_axis("multiplications", [*priced["multiplications"], *([exact] if exact else [])], 1.0, math.inf)
    if x is None or y is None:
        return None
    plot = svg.Plot(x, y, SIZE, LEFT)
    best = priced.iloc[front(priced["multiplications"], priced["y"], exact or math.inf)]
    if len(best):
        plot.add(_steps(plot, best, exact))
    if exact:
        plot.add(plot.line(plot.across(exact), plot.top, plot.across(exact), plot.bottom, "exact"))
        plot.add(plot.text(plot.across(exact), plot.top - 6, "exact (d_v = d)", "mid"))
    series = [
        looks.series(
            str(name),
            _points(
                rows.sort_values("multiplications"),
                "multiplications",
                lambda row: f", {row['multiplications']:.2g} multiplications, {row['num_features']} features",
            ),
        )
        for name, rows in priced.groupby("name", sort=False)
    ]
    series.append(looks.series("uniform", [Point(0, 1.0, 1.0, 1.0, "uniform: 1, no multiplications")], flat=True))
    svg.curves(plot, series)
    return plot.svg(f"{label} against multiplications: {title}; {len(series)} estimators, and the Pareto front")


def _steps(plot: svg.Plot, best: pd.DataFrame, exact: float | None) -> str:
    """The front: at each cost the least error that is to be had for it. It ends where exact attention costs as much."""
    parts = []
    for cost, ratio in zip(best["multiplications"], best["y"], strict=True):
        x, y = svg.number(plot.across(cost)), svg.number(plot.up(ratio))
        parts.append(f"H{x}V{y}" if parts else f"M{x} {y}")
    end = f"H{svg.number(plot.across(exact))}V{svg.number(plot.bottom)}" if exact else f"H{svg.number(plot.right)}"
    return f'<path class="front" d="{"".join(parts)}{end}"/>'


def _points(rows: pd.DataFrame, axis: str, where: Callable[[Labels], str]) -> list[Point]:
    """The points of one curve, each with what it says."""
    return [
        Point(float(row[axis]), float(row["y"]), float(row["low"]), float(row["high"]),
              f"{row['name']}{where(row)}: {row['said']}")
        for _, row in rows.iterrows()
    ]  # fmt: skip
