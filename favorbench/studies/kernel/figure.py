"""Error of Gram matrices against features: closed forms as lines, measured points on top; and phase less trig."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.formats import counted
from favorbench.results.summary import ROUNDING
from favorbench.studies.kernel import GramStudy

COLUMNS = ["series", "num_features", "shown", "measured", "low", "high", "closed_form"]


def chart(study: GramStudy, name: str) -> style.Chart:
    """The errors, and next to them the difference between phase and trig where both were measured."""
    gaps = pd.DataFrame(study.gaps())
    intervals = " with 95 % intervals, which cover less where errors are skewed" if study.draws > 1 else ""
    text = (
        f"{study.title}. {'Left: error' if len(gaps) else 'Error'} |estimate - K| / |K| (Frobenius), root mean square "
        f"of {counted(study.draws, 'draw')}{intervals}; lines: closed form."
    )
    panels = [style.Panel("", partial(_errors, study))]
    if len(gaps):
        panels.append(style.Panel("", partial(_gaps, gaps, study.draws)))
        text += " Right: squared error of phase minus that of trig with as many features, times features, likewise."
        if study.kernel == "gaussian":
            text += (
                " Under iid it is the mean over pairs, with weights K^2, of 1 - exp(-|x - y|^2 / sigma^2) / 2, which "
                "is positive: trig is better, whatever the points."
            )
    if not all(cell.measurable for cell in study.cells):
        text += " Faint: so few draws cannot measure it, and show too little."
    width = 4.6 if len(gaps) else 6.8
    return style.Chart(name, "Error of the Gram matrix", text, panels, len(panels), (width, 4.2))


def _errors(study: GramStudy, ax: Axes) -> pd.DataFrame:
    rows = []
    for cell in study.cells:
        label = cell.map if cell.sampler in ("own", "none") else f"{cell.map}, {cell.sampler}"
        points = (max(square, 0.0) ** 0.5 for square in cell.squared)
        rows.append((label, cell.num_features, "error", *points, cell.expected, not cell.measurable))
    data = pd.DataFrame(rows, columns=[*COLUMNS, "faint"])
    for i, (label, cells) in enumerate(data.groupby("series", sort=False)):
        _measured(ax, cells, i, str(label), study.draws > 1)
    ax.axhline(study.mean_error, color="black", linestyle="--", label="mean of K", zorder=1.5)
    best = pd.Series({cell.num_features: cell.best for cell in study.cells if cell.best > 0}, dtype=float).sort_index()
    style.line_with_band(ax, best.index, best, color="0.45", label="best of that rank", zorder=1.5)
    firm = [value for name in ("measured", "closed_form") for value in data[name] if value > ROUNDING]
    style.log_limits(ax, [study.mean_error, *firm], [*best])
    values = {str(label): cells["measured"].tolist() for label, cells in data.groupby("series", sort=False)}
    style.off_scale_note(ax, values, values)
    style.number_axis(ax, [*data["num_features"]])
    ax.set(xlabel="number of features", ylabel="relative error of the Gram matrix")
    bounds = [("best of that rank", features, "error", *[value] * 4) for features, value in best.items()]
    return pd.DataFrame([*(row[:-1] for row in rows), *bounds], columns=COLUMNS)


def _gaps(data: pd.DataFrame, draws: int, ax: Axes) -> pd.DataFrame:
    """Differences times features: constant under iid, for any number of features."""
    data = data.rename(columns={"sampler": "series", "expected": "closed_form"})
    data = data.assign(**{name: data[name] * data["num_features"] for name in COLUMNS[3:]}, faint=False)
    for i, (sampler, rows) in enumerate(data.groupby("series", sort=False), start=4):
        _measured(ax, rows, i, f"phase less trig, {sampler}", draws > 1)
    ax.axhline(0.0, color="black", linewidth=0.8, zorder=1.5)
    style.number_axis(ax, [*data["num_features"]])
    ax.set(xlabel="number of features", ylabel="difference of squares × features")
    return data.assign(shown="phase less trig, times features")[COLUMNS]


def _measured(ax: Axes, points: pd.DataFrame, i: int, label: str, bars: bool) -> None:
    """The closed form as a line, and the measured points with their intervals."""
    look = style.series_look(i, markersize=style.scaled(6))
    known, line = points.dropna(subset="closed_form"), {"color": look["color"], "linestyle": look["linestyle"]}
    style.line_with_band(ax, known["num_features"], known["closed_form"], **line, zorder=1.8)
    dots = style.series_look(i, markersize=style.scaled(6), linestyle="none", capsize=2)
    for faint, some in points.groupby("faint"):
        dots |= {"alpha": 0.35} if faint else {}
        bounds = np.stack([some["measured"] - some["low"], some["high"] - some["measured"]])
        ax.errorbar(some["num_features"], some["measured"], yerr=bounds if bars else None, **dots)
    ax.plot([], [], label=style.plain(label), **look)
