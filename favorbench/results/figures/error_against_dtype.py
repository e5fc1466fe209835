"""Error against dtype: rounding beside the Monte Carlo error, for each map, at the largest R."""

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.numerics.backend import DTYPES
from favorbench.results.figures.curves import baseline_look, cells
from favorbench.results.figures.paging import draw_in_files
from favorbench.results.results import Results
from favorbench.results.summary import at_largest, compared

COLUMNS = ["map", "sampler", "num_projections", "dtype", "n", "relative_error_median", "rounding_median"]


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure if the run has several precisions; it shows relative errors, whatever the metric is."""
    if results.summary["dtype"].nunique() < 2:
        return []
    panels = [Panel(title, cell) for title, cell in cells(results, drop=("dtype",))]
    shown = pd.concat([panel.largest for panel in panels])
    text = (
        f"{'' if results.manifest['complete'] else 'PARTIAL RUN. '}{results.scenario.name}: median of "
        f"{shown['n'].min()} draws at the largest size ({shown['num_projections'].max()}), worst sampler of each. "
        "Full: distance to exact attention. Hollow: rounding, the distance to the same estimate in float64. "
        "Both relative to |exact|. Arrows: infinite, or not a number."
    )

    def one(ax: Axes, panel: Panel) -> pd.DataFrame:
        _panel(ax, panel.largest, panel.cell[panel.cell["map"] == "uniform"])
        ax.set_title(style.plain(panel.title))
        return panel.largest[COLUMNS]

    columns = min(2, len(panels))
    return draw_in_files(panels, columns, directory, "error-vs-dtype", one, lambda page, axes: text)


class Panel(NamedTuple):
    """What differs in its precision only."""

    title: str
    cell: pd.DataFrame
    beside: str = ""  # relative errors can all be compared

    @property
    def largest(self) -> pd.DataFrame:
        return at_largest(compared(self.cell))


def _panel(ax: Axes, rows: pd.DataFrame, uniform: pd.DataFrame) -> None:
    dtypes = [dtype for dtype in DTYPES["torch"] if dtype in set(rows["dtype"])]
    names, shown = list(dict.fromkeys(rows["map"])), []
    for i, name in enumerate(names):
        look = style.look(i) | {"linestyle": "none", "markersize": 7}
        worst = rows[rows["map"] == name].groupby("dtype")[["relative_error_median", "rounding_median"]].agg(_worst)
        offset = 0.7 * ((i + 0.5) / len(names) - 0.5)
        for column, face, label in (
            ("relative_error_median", look["color"], name),
            ("rounding_median", "none", f"{name}, rounding"),
        ):
            values = worst[column][worst[column] > 0]
            places = [dtypes.index(str(dtype)) + offset for dtype in values.index]
            ax.plot(places, values, label=style.plain(label), markerfacecolor=face, **look)
            shown += [*values]
            for place, value in zip(places, values, strict=True):
                if math.isinf(value):
                    ax.annotate(
                        "↑",
                        (place, 0.97),
                        xycoords=("data", "axes fraction"),
                        color=look["color"],
                        ha="center",
                        va="top",
                    )
    error = float(uniform["relative_error_median"].iloc[0])
    ax.axhline(error, **baseline_look("uniform", 0))
    style.log_limits(ax, [*shown, error])
    ax.set_xticks(range(len(dtypes)), dtypes)
    ax.set_xlim(-0.5, len(dtypes) - 0.5)
    ax.set_ylabel("relative error")


def _worst(values: pd.Series) -> float:
    """The largest; what is not a number is the worst of all."""
    return math.inf if values.isna().any() else float(values.max())
