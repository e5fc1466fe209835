"""Error against dtype: rounding beside the Monte Carlo error, for each map at the largest size."""

import math
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.numerics.backend import DTYPES
from favorbench.results.figures.blocks import baseline_look, caption, cells
from favorbench.results.run import RunData
from favorbench.results.summary import at_largest, compared

COLUMNS = ["map", "sampler", "num_projections", "dtype", "n", "relative_error_median", "rounding_median"]


def against_dtype(results: RunData, metric: str) -> list[style.Chart]:
    """A panel for what differs only in its precision; it shows relative errors, whatever the metric is."""
    if results.summary["dtype"].nunique() < 2:
        return []
    panels = [(title, at_largest(compared(cell)), cell) for title, cell in cells(results, drop=("dtype",))]
    shown = pd.concat([rows for _, rows, _ in panels])
    text = (
        f"Median of {shown['n'].min()} draws at the largest size ({shown['num_projections'].max()}), worst sampler of "
        "each map. Full: distance to exact attention. Hollow: rounding, the distance to the same estimate in float64. "
        "Both relative to |exact|. Infinite and NaN errors are off scale."
    )
    drawn = []
    for title, rows, cell in panels:
        uniform = float(cell[cell["map"] == "uniform"]["relative_error_median"].iloc[0])
        drawn.append(style.Panel(title, partial(_draw, rows, uniform), "relative"))
    title = "Error and rounding in each precision"
    return [style.Chart("error-vs-dtype", title, caption(results, text), drawn, min(2, len(drawn)))]


def _draw(rows: pd.DataFrame, uniform: float, ax: Axes) -> pd.DataFrame:
    dtypes = [dtype for dtype in DTYPES["torch"] if dtype in set(rows["dtype"])]
    names, values, beyond = list(dict.fromkeys(rows["map"])), [uniform], []
    for i, name in enumerate(names):
        look = style.series_look(i, linestyle="none", markersize=style.scaled(7))
        worst = rows[rows["map"] == name].groupby("dtype")[["relative_error_median", "rounding_median"]].agg(_worst)
        offset = 0.7 * ((i + 0.5) / len(names) - 0.5)
        for column, words in (("relative_error_median", ""), ("rounding_median", ", rounding")):
            shown = worst[column][worst[column] > 0]
            places = [dtypes.index(str(dtype)) + offset for dtype in shown.index]
            look |= {"label": style.plain(f"{name}{words}")} | ({"markerfacecolor": "none"} if words else {})
            ax.plot(places, shown, **look)
            values += [*shown]
            beyond += [f"{name}{words} in {dtype}" for dtype, value in shown.items() if math.isinf(value)]
    ax.axhline(uniform, **baseline_look("uniform", 0))
    style.log_limits(ax, values)
    ax.set_xticks(range(len(dtypes)), dtypes)
    ax.set_xlim(-0.5, len(dtypes) - 0.5)
    ax.set(xlabel="precision of the estimator", ylabel="relative error")
    style.off_scale_note(ax, beyond)
    return rows[COLUMNS]


def _worst(values: pd.Series) -> float:
    """The largest value; NaN counts as infinite."""
    return math.inf if values.isna().any() else float(values.max())
