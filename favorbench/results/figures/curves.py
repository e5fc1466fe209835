"""Error curves against size, length, head dimension, scale and precision, in panels."""

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.metrics import METRICS
from favorbench.numerics.backend import DTYPES
from favorbench.results.figures.blocks import (
    LEAST,
    MOST,
    baseline_look,
    caption,
    cells,
    choose,
    draws_of,
    estimator_look,
    max_curves,
    measured_on,
    metric_label,
    others_in_words,
)
from favorbench.results.heads import can_be_compared, population_of
from favorbench.results.summary import RunData, at_largest, by_cell, compared, labelled
from favorbench.results.tables import at_size, draws_in_words, size_axis, what_r_means

#: Figures by the axis that varies: name, label, and axes that move together with it.
AXES = {
    "seq_len": ("error-vs-L", "sequence length L", ("seq_len", "query_len", "query_rows")),
    "head_dim": ("error-vs-d", "head dimension d", ("head_dim",)),
    "scale": ("error-vs-scale", "scale of queries and keys", ("scale",)),
}

#: The name of a comparison, and the two values that give it another one.
USUAL = {"sampler": ("samplers", "iid", "orthogonal"), "estimator": ("maps", "trig", "positive")}


class CurvePanel(NamedTuple):
    """Rows of the summary for one panel, those of estimators with their series. group: panels with one y range."""

    title: str
    group: Hashable
    estimators: pd.DataFrame
    baselines: pd.DataFrame


def maps(results: RunData, metric: str) -> list[style.Chart]:
    """Error against R: a curve for each map, a panel for each cell and sampler."""
    return _comparison(results, metric, "estimator", "sampler")


def samplers(results: RunData, metric: str) -> list[style.Chart]:
    """Error against R: a curve for each sampler, a panel for each cell and map."""
    return _comparison(results, metric, "sampler", "estimator")


def _comparison(results: RunData, metric: str, series: str, panel: str) -> list[style.Chart]:
    x, sized = size_axis(results), compared(results.summary)
    sized = sized[sized[x].notna() & sized["num_projections"].notna()]
    rows = sized[sized[series].notna()]
    names, others = (list(rows[axis].dropna().unique()) for axis in (series, panel))
    only_maps = series == "estimator" and len(others) < 2  # then no other figure has them
    if (
        len(names) < (1 if only_maps else 2)
        or rows.groupby(["estimator", "sampler"], dropna=False)[x].nunique().max() < 2
    ):
        return []
    apart = (rows["kind"] == "method") & rows[panel].isna() & (len(others) > 1)
    rows = rows.assign(series=rows[series].astype(str), apart=apart)
    panels = []
    for title, cell in cells(results):
        curves = rows[rows.index.isin(cell.index)]
        baselines = cell[(cell["kind"] == "baseline") | ((series == "estimator") & ~cell.index.isin(rows.index))]
        for name, part in _panels(curves, panel):
            joined = ", ".join(filter(None, (title, name)))
            panels.append(CurvePanel(joined, population_of(cell.iloc[0]), part, baselines))
    count = len(others) + int(apart.any())
    several = len(rows["estimator"].unique()) > 1 < len(rows["sampler"].dropna().unique())
    other = file_name(list(sized[panel].dropna().unique()), panel)  # among the estimators are methods
    same = f" {other} shows the same errors with one curve per {panel}." if several else ""
    sizes = {"projections": "number of projections R", "features": "budget: number of features",
             "cost": "budget: cost of this number of features"}  # fmt: skip
    if (results.summary["kind"] == "method").any():
        sizes["projections"] = "size R (projections, centroids or keys)"
    return [_chart(
        results, metric, file_name(names, series), f"Error against size, one curve per {series}", x,
        sizes[results.scenario.budget], panels, count if count in (2, 3) else min(2, len(panels)), same,
    )]  # fmt: skip


def file_name(names: Sequence[str], axis: str) -> str:
    """The name of a comparison: "iid-vs-ortho" for these two, "a-vs-b" for two others, "samplers" for more."""
    several, *usual = USUAL[axis]
    if len(names) > 2:
        return several
    ordered = [{"orthogonal": "ortho"}.get(name, name) for name in usual] if set(names) == set(usual) else names
    return "-vs-".join(map(style.slug, ordered))


def _panels(curves: pd.DataFrame, panel: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """A panel for each value of an axis, and one for what stands apart; rows without a value stand in all panels."""
    everywhere = curves[curves[panel].isna() & ~curves["apart"]]
    for value, rows in curves.dropna(subset=[panel]).groupby(panel, sort=False):
        yield str(value), pd.concat([rows, everywhere])
    if curves["apart"].any():
        yield "methods", curves[curves["apart"]]
    if len(everywhere) == len(curves) > 0:
        yield "", everywhere


def against_axes(results: RunData, metric: str) -> list[style.Chart]:
    """Error against L, d and scale, where they vary, at a small, a middle and a large size."""
    if compared(results.summary).empty:  # all failed on the heads that were asked for
        return []
    varying = (axis for axis in AXES if results.summary[axis].nunique() > 1)
    return [chart for axis in varying for chart in _against(results, metric, axis)]


def _against(results: RunData, metric: str, axis: str) -> list[style.Chart]:
    name, label, together = AXES[axis]
    size, panels, columns = size_axis(results), [], 1
    series = "label" if compared(results.summary)["sampler"].nunique() > 1 else "estimator"
    for title, cell in cells(results, drop=together):
        estimators = compared(cell)
        if estimators[axis].nunique() < 2:  # L and d that differ between inputs make no curve
            continue
        common = sorted(set.intersection(*(set(rows[size].dropna()) for _, rows in estimators.groupby(axis))))
        sizes = [common[i] for i in sorted({0, (len(common) - 1) // 2, len(common) - 1})] if common else [None]
        columns = max(columns, len(sizes))
        rule = "R = int(d ln d)" if estimators["num_projections"].notna().any() else ""
        for chosen in sizes:  # None: R follows d (dlogd), or there are no sizes; all in one panel
            rows = cell if chosen is None else cell[cell["num_projections"].isna() | (cell[size] == chosen)]
            words = rule if chosen is None else at_size(results, chosen)
            curves = labelled(compared(rows))
            joined, group = ", ".join(filter(None, (title, words))), population_of(cell.iloc[0], together)
            panels.append(CurvePanel(
                joined, group, curves.assign(series=curves[series].astype(str)), rows[rows["kind"] == "baseline"]
            ))  # fmt: skip
    title = f"Error against {label}"
    return [_chart(results, metric, name, title, axis, label, panels, columns)] if panels else []


def _chart(
    results: RunData, metric: str, name: str, title: str, x: str, label: str, panels: Sequence[CurvePanel],
    columns: int, note: str = "",
) -> style.Chart:  # fmt: skip
    caps: dict[Hashable, float] = {}  # the largest value that an axis shows
    for panel in panels:
        uniform = panel.baselines[panel.baselines["estimator"] == "uniform"][f"{metric}_median"].max()
        relative = can_be_compared(metric) and METRICS[metric].log and uniform > 0
        caps[panel.group] = max(MOST * uniform if relative else math.inf, caps.get(panel.group, 0.0))
    rows = pd.concat([panel.estimators for panel in panels])
    last = rows[rows[x] == rows.groupby("series")[x].transform("max")]
    sign = 1.0 if METRICS[metric].better == "lower" else -1.0
    errors = (sign * last[f"{metric}_median"]).groupby(last["series"]).median()
    users = labelled(rows.drop_duplicates(["series", "estimator", "sampler"])).query("own")["series"]
    coloured = choose(errors[rows["series"].unique()].to_dict(), max_curves(), {*users})
    beyond = f" Off scale: more than {MOST:g} times the error of uniform attention." * any(
        map(math.isfinite, caps.values())
    )
    bound = METRICS[metric].log and (results.summary["estimator"] == "best-rank").any()
    best = " best-rank may leave the axis below." if bound else ""
    text = (
        f"Median of {draws_of(results)}, band from 10 % to 90 %.{measured_on(results)} {what_r_means(results)} "
        f"{metric}: {METRICS[metric].formula}.{beyond}{best}"
        f"{others_in_words([name for name in rows['series'].unique() if name not in coloured])}{note}"
    )
    drawn = [
        style.Panel(
            panel.title,
            partial(_draw, panel, cap=caps[panel.group], x=x, label=label, coloured=coloured, metric=metric),
            panel.group,
        )
        for panel in panels
    ]
    return style.Chart(name, title, caption(results, text), drawn, columns)


def _draw(
    panel: CurvePanel, ax: Axes, cap: float, x: str, label: str, coloured: Sequence[str], metric: str
) -> pd.DataFrame:
    drawn, columns = panel.estimators, [f"{metric}_{stat}" for stat in ("median", "q10", "q90")]
    names = [str(name) for name in dict.fromkeys([*coloured, *drawn["series"]])]
    kept = []
    for name in names:
        curve = drawn[drawn["series"] == name]
        kept.append(curve)
        if len(curve):
            curve = curve.sort_values(x)
            middle, low, high = (curve[column] for column in columns)
            band = (low, high) if name in coloured else None
            style.line_with_band(ax, curve[x], middle, band, **estimator_look(name, coloured))
    kept += _draw_baselines(panel, ax, x, columns[0])
    every = pd.concat([drawn, panel.baselines.assign(series=panel.baselines["estimator"])])
    if METRICS[metric].log:
        sized = panel.baselines["num_projections"].notna()  # best-rank is 0 at R = L
        bands = drawn[drawn["series"].isin(coloured)][columns[1:]].to_numpy().flat
        firm = [*drawn[columns[0]], *bands, *panel.baselines[~sized][columns[0]]]
        least = LEAST * cap / MOST if math.isfinite(cap) else 0.0
        style.log_limits(ax, [max(v, least) for v in firm], [*panel.baselines[sized][columns[0]]], cap)
    style.number_axis(ax, [*drawn[x]])
    ax.set(xlabel=label, ylabel=metric_label(metric))
    names = list(dict.fromkeys([*names, *every["series"]]))
    off = ({name: some[some["series"] == name][columns[0]].tolist() for name in names} for some in (every, drawn))
    style.off_scale_note(ax, *off)
    return pd.concat(kept)[["series", x, "n", *columns]]


def _draw_baselines(panel: CurvePanel, ax: Axes, x: str, column: str) -> list[pd.DataFrame]:
    """Draw the baselines and return their rows."""
    kept = []
    for number, (name, points) in enumerate(panel.baselines.groupby("estimator", sort=False)):
        points = points.sort_values(x)
        places, look = sorted(set(panel.estimators[x])), baseline_look(str(name), number)
        flat = x not in AXES and points["num_projections"].isna().all()  # it has no size
        points = pd.concat([points.iloc[[0]]] * len(places)).assign(**{x: places}) if flat else points
        if flat and len(places) == 1:  # a line of one point has no length
            ax.axhline(points[column].iloc[0], **look)
        else:
            ax.plot(points[x].astype(float), points[column], **look)
        kept.append(points.assign(series=name))
    return kept


def against_dtype(results: RunData, metric: str) -> list[style.Chart]:
    """Error and rounding of each map at the largest size, where there are two precisions; always relative errors."""
    measured = compared(results.summary)
    if results.summary["dtype"].nunique() < 2 or measured.empty:
        return []
    rows = pd.concat([at_largest(cell) for cell in by_cell(measured).values()])
    sizes = sorted(set(rows[size_axis(results)][rows["num_projections"].notna()]))
    largest = f" at the largest size ({', '.join(map(str, sizes))})" if sizes else ""
    text = (
        f"Median of {draws_in_words(rows['n'])}{largest}, worst sampler of each map.{measured_on(results)} "
        "Full: distance to exact attention. Hollow: rounding, the distance to the same estimate in float64. Both "
        "relative to |exact|. Infinite and NaN errors are off scale."
    )
    panels = []
    for title, cell in cells(results, drop=("dtype",)):
        uniform = float(cell[cell["estimator"] == "uniform"]["relative_error_median"].iloc[0])
        panels.append(style.Panel(title, partial(_draw_dtypes, at_largest(compared(cell)), uniform), "relative"))
    title = "Error and rounding in each precision"
    return [style.Chart("error-vs-dtype", title, caption(results, text), panels, min(2, len(panels)))]


def _draw_dtypes(rows: pd.DataFrame, uniform: float, ax: Axes) -> pd.DataFrame:
    dtypes = [dtype for dtype in DTYPES["torch"] if dtype in set(rows["dtype"])]
    columns = {"relative_error_median": "", "rounding_median": ", rounding"}
    names, values, beyond = list(dict.fromkeys(rows["estimator"])), [uniform], {}
    worst = rows.fillna(dict.fromkeys(columns, math.inf)).groupby(["estimator", "dtype"])[[*columns]].max()
    for i, name in enumerate(names):
        offset = 0.7 * ((i + 0.5) / len(names) - 0.5)
        for column, words in columns.items():
            shown = worst.loc[name][column]
            shown = shown[shown > 0]
            look = style.series_look(i, linestyle="none", markersize=style.scaled(7), label=style.plain(name + words))
            look |= {"markerfacecolor": "none"} if words else {}
            ax.plot([dtypes.index(str(dtype)) + offset for dtype in shown.index], shown, **look)
            values += [*shown]
            beyond |= {f"{name}{words} in {dtype}": [value] for dtype, value in shown.items()}
    ax.axhline(uniform, **baseline_look("uniform", 0))
    style.log_limits(ax, values)
    ax.set_xticks(range(len(dtypes)), dtypes)
    ax.set_xlim(-0.5, len(dtypes) - 0.5)
    ax.set(xlabel="precision of the estimator", ylabel="relative error")
    style.off_scale_note(ax, beyond)
    return rows[["estimator", "sampler", "num_projections", "dtype", "n", *columns]]
