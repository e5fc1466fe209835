"""Error curves against size, length, head dimension or scale: medians with their 10 % to 90 % band, in panels."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.metrics import METRICS
from favorbench.results.figures.blocks import (
    LEAST,
    MOST,
    baseline_look,
    caption,
    cells,
    choose,
    draws_of,
    error_cap,
    estimator_look,
    max_curves,
    measured_on,
    metric_label,
    others_in_words,
)
from favorbench.results.heads import population_of
from favorbench.results.run import RunData
from favorbench.results.summary import compared, estimator_name, is_own
from favorbench.results.tables import SIZES, at_size, size_axis, size_label, what_r_means

#: Figures by the axis that varies: name, label, and axes that move together with it.
AXES = {
    "seq_len": ("error-vs-L", "sequence length L", ("seq_len", "query_len", "query_rows")),
    "head_dim": ("error-vs-d", "head dimension d", ("head_dim",)),
    "scale": ("error-vs-scale", "scale of queries and keys", ("scale",)),
}

#: The two values that give a comparison its name.
USUAL = {"sampler": ("iid", "orthogonal"), "map": ("trig", "positive")}


@dataclass(frozen=True)
class Curves:
    """Rows of the summary for one panel: estimators with their series, and baselines. cap: the largest value shown."""

    title: str
    group: Hashable
    estimators: pd.DataFrame
    baselines: pd.DataFrame
    cap: float = math.inf


def maps(results: RunData, metric: str) -> list[style.Chart]:
    """Error against R: a curve for each map, a panel for each cell and sampler."""
    return _comparison(results, metric, "map", "sampler")


def samplers(results: RunData, metric: str) -> list[style.Chart]:
    """Error against R: a curve for each sampler, a panel for each cell and map."""
    return _comparison(results, metric, "sampler", "map")


def _comparison(results: RunData, metric: str, series: str, panel: str) -> list[style.Chart]:
    x, estimators = size_axis(results), compared(results.summary)
    rows = estimators[estimators[series].notna() & estimators[x].notna() & estimators["num_projections"].notna()]
    names = list(dict.fromkeys(rows[series]))
    only_maps = series == "map" and rows["sampler"].nunique() < 2  # then no other figure has them
    if len(names) < (1 if only_maps else 2) or rows.groupby(["map", "sampler"], dropna=False)[x].nunique().max() < 2:
        return []
    kept = (results.summary["kind"] == "baseline") | (series == "map") | results.summary.index.isin(rows.index)
    found = []
    for title, cell in cells(results):
        found += _panels(title, cell[cell.index.isin(results.summary.index[kept])], rows, panel)
    count = rows[panel].nunique() + len(_without_panel(rows, panel)["kind"].unique())
    columns = count if count in (2, 3) else min(2, len(found))
    other = rows[panel].dropna().unique()
    same = ""
    if rows["map"].nunique() > 1 and rows["sampler"].nunique() > 1:
        same = f" {file_name(list(other), panel)} shows the same errors with one curve per {panel}."
    return [_chart(
        results, metric, file_name(names, series), f"Error against size, one curve per {series}", x, found,
        lambda row: str(row[series]), columns, same,
    )]  # fmt: skip


def file_name(names: Sequence[str], axis: str) -> str:
    """The name of a comparison: "iid-vs-ortho" for these two, "a-vs-b" for two others, "samplers" for more."""
    if len(names) > 2:
        return f"{axis}s"
    usual = set(names) == set(USUAL[axis])
    ordered = [{"orthogonal": "ortho"}.get(name, name) for name in USUAL[axis]] if usual else names
    return "-vs-".join(map(style.slug, ordered))


def _panels(title: str, cell: pd.DataFrame, curves: pd.DataFrame, panel: str) -> Iterator[Curves]:
    """A panel for each value of an axis, and one for methods, which have none, where there are two values or more.

    Maps without such a value (without a sampler) stand in all panels.
    """
    here, others = cell[cell.index.isin(curves.index)], cell[~cell.index.isin(curves.index)]
    apart = _without_panel(here, panel)
    everywhere = here[here[panel].isna() & ~here.index.isin(apart.index)]
    groups = [
        (str(value), pd.concat([rows, everywhere]))
        for value, rows in here.dropna(subset=[panel]).groupby(panel, sort=False)
    ]
    groups += [("methods", apart)] if len(apart) else []
    groups += [("", everywhere)] if len(everywhere) == len(here) > 0 else []
    for name, rows in groups:
        yield Curves(", ".join(filter(None, (title, name))), population_of(cell), rows, others)


def _without_panel(curves: pd.DataFrame, panel: str) -> pd.DataFrame:
    """The methods, where there is more than one panel for maps."""
    return curves[(curves["kind"] == "method") & curves[panel].isna() & (curves[panel].nunique() > 1)]


def against_axes(results: RunData, metric: str) -> list[style.Chart]:
    """Error against L, d and scale, where they vary, at a small, a middle and a large size."""
    return [_against(results, metric, axis) for axis in AXES if results.summary[axis].nunique() > 1]


def _against(results: RunData, metric: str, axis: str) -> style.Chart:
    name, label, together = AXES[axis]
    estimators, size = compared(results.summary), size_axis(results)
    common = sorted(set.intersection(*(set(rows[size].dropna()) for _, rows in estimators.groupby(axis))))
    sizes = [common[i] for i in sorted({0, (len(common) - 1) // 2, len(common) - 1})] if common else [None]
    panels = []
    for title, cell in cells(results, drop=together):
        for one in sizes:  # None: R follows d (dlogd), all in one panel
            rows = cell if one is None else cell[cell["num_projections"].isna() | (cell[size] == one)]
            words = "R = int(d ln d)" if one is None else at_size(results.scenario.budget, one)
            panels.append(Curves(
                ", ".join(filter(None, (title, words))), population_of(cell, together), compared(rows),
                rows[rows["kind"] == "baseline"],
            ))  # fmt: skip
    several = estimators["sampler"].nunique() > 1
    return _chart(
        results, metric, name, f"Error against {label}", axis, panels,
        lambda row: estimator_name(row) if several else str(row["map"]), len(sizes),
    )  # fmt: skip


def _chart(
    results: RunData,
    metric: str,
    name: str,
    title: str,
    x: str,
    panels: Sequence[Curves],
    series: Callable[[pd.Series], str],
    columns: int,
    note: str = "",
) -> style.Chart:
    panels = [
        replace(
            panel, estimators=panel.estimators.assign(series=[series(row) for _, row in panel.estimators.iterrows()])
        )
        for panel in panels
    ]
    caps: dict[Hashable, float] = {}
    for panel in panels:
        uniform = panel.baselines[panel.baselines["map"] == "uniform"][f"{metric}_median"]
        cap = error_cap(metric, float(uniform.max()) if len(uniform) else 0.0)
        caps[panel.group] = max(cap, caps.get(panel.group, 0.0))
    coloured = _coloured(panels, x, metric)
    rest = list(dict.fromkeys(name for panel in panels for name in panel.estimators["series"] if name not in coloured))
    best = " best-rank may leave the axis below." if (results.summary["map"] == "best-rank").any() else ""
    text = (
        f"Median of {draws_of(results)}, band from 10 % to 90 %.{measured_on(results)} {what_r_means(results)} "
        f"{metric}: {METRICS[metric].formula}. Off scale: more than {MOST:g} times the error of uniform attention."
        f"{best}{others_in_words(rest)}{note}"
    )
    label = _size_label(results) if x in SIZES else AXES[x][1]
    drawn = [
        style.Panel(
            panel.title,
            partial(_draw, replace(panel, cap=caps[panel.group]), x=x, label=label, coloured=coloured, metric=metric),
            panel.group,
        )
        for panel in panels
    ]
    return style.Chart(name, title, caption(results, text), drawn, columns)


def _size_label(results: RunData) -> str:
    methods = (results.summary["kind"] == "method").any()
    words = "size R (projections, centroids or keys)" if methods else "number of projections R"
    return words if results.scenario.budget == "projections" else size_label(results)


def _coloured(panels: Sequence[Curves], x: str, metric: str) -> list[str]:
    """The series with a colour: those that are best at the last x, and a user's."""
    rows = pd.concat([panel.estimators for panel in panels])
    own = {row["series"] for _, row in rows.drop_duplicates(["series", "map", "sampler"]).iterrows() if is_own(row)}
    last = rows[rows[x] == rows.groupby("series")[x].transform("max")]
    sign = 1.0 if METRICS[metric].better == "lower" else -1.0
    errors = (sign * last[f"{metric}_median"]).groupby(last["series"]).median()
    return choose({str(name): float(errors[name]) for name in rows["series"].unique()}, max_curves(), own)


def _draw(panel: Curves, ax: Axes, x: str, label: str, coloured: Sequence[str], metric: str) -> pd.DataFrame:
    names = dict.fromkeys([*coloured, *panel.estimators["series"]])
    columns = [f"{metric}_{stat}" for stat in ("median", "q10", "q90")]
    for name in names:
        curve = panel.estimators[panel.estimators["series"] == name].sort_values(x)
        if len(curve):
            middle, low, high = (curve[column] for column in columns)
            band = (low, high) if name in coloured else None
            style.line_with_band(ax, curve[x], middle, band, **estimator_look(str(name), coloured))
    drawn, stated = panel.estimators, []
    for number, (name, points) in enumerate(panel.baselines.groupby("map", sort=False)):
        points = points.sort_values(x)
        if x in SIZES and points["num_projections"].isna().all():  # flat: it has no size
            places = sorted(set(drawn[x]))
            points = pd.concat([points.iloc[[0]]] * len(places)).assign(**{x: places})
        ax.plot(points[x].astype(float), points[columns[0]], **baseline_look(str(name), number))
        stated.append(points.assign(series=name))
    if METRICS[metric].log:
        best = panel.baselines["num_projections"].notna()  # nothing at R = L
        firm = [*drawn[drawn["series"].isin(coloured)][columns].to_numpy().flat, *panel.baselines[~best][columns[0]]]
        least = LEAST * panel.cap / MOST if math.isfinite(panel.cap) else 0.0
        style.log_limits(ax, [max(v, least) for v in firm], [*panel.baselines[best][columns[0]]], panel.cap)
    style.number_axis(ax, [*drawn[x]])
    ax.set(xlabel=label, ylabel=metric_label(metric))
    beyond = drawn[~(drawn[columns[0]] <= ax.get_ylim()[1])]["series"]
    style.off_scale_note(ax, [str(name) for name in names if name in set(beyond)] if METRICS[metric].log else [])
    order = pd.CategoricalIndex(drawn["series"], categories=list(names)).argsort(kind="stable")
    kept = pd.concat([drawn.iloc[order], *stated])
    return kept[list(dict.fromkeys(["series", x, "n", *columns]))]
