"""Error of Gram matrices against features: closed forms as lines, measured points on top; and phase less trig."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.studies.kernel.study import Cell, GramStudy

COLUMNS = ["series", "num_features", "shown", "measured", "low", "high", "closed_form"]


def draw(study: GramStudy, name: str, directory: Path) -> list[Path]:
    """Write the figure; returns the files. Raises StoreError."""
    count = 2 if study.gaps() else 1
    with style.context():
        figure, axes = style.panels(count, count, height=4.2, width=4.6 if count == 2 else 6.8)
        data = [_errors(axes[0], study)]
        if count == 2:
            data.append(_gaps(axes[1], study))
        style.finish(figure, axes, style.plain(_caption(study, count == 2)))
        return style.save(figure, directory, name, pd.concat(data, ignore_index=True))


def _caption(study: GramStudy, with_gaps: bool) -> str:
    text = (
        f"{study.title}. {'Left: error' if with_gaps else 'Error'} |estimate - K| / |K| (Frobenius), root mean square "
        f"of {study.draws} draws with 95 % intervals; lines: closed form."
    )
    if with_gaps:
        text += " Right: squared error of phase less that of trig with as many features, times features, likewise."
        if study.kernel == "gaussian":
            text += (
                " Under iid it is the mean over pairs, with weights K^2, of 1 - exp(-|x - y|^2 / sigma^2) / 2, which "
                "is positive: trig is better, whatever the points."
            )
    if not all(cell.measurable for cell in study.cells):
        text += " Hollow: so few draws cannot measure it, and show too little."
    return text


def _errors(ax: Axes, study: GramStudy) -> pd.DataFrame:
    series: dict[str, list[Cell]] = {}
    for cell in study.cells:
        label = cell.map if cell.sampler in ("own", "none") else f"{cell.map}, {cell.sampler}"
        series.setdefault(label, []).append(cell)
    shown, rows = [study.mean_error], []
    for i, (label, cells) in enumerate(series.items()):
        look = style.look(i)
        features, expected = [cell.num_features for cell in cells], [cell.expected for cell in cells]
        ax.plot(features, expected, color=look["color"], linestyle=look["linestyle"], zorder=1.8)
        for cell in cells:
            value, low, high = (max(square, 0.0) ** 0.5 for square in cell.squared)
            rows.append((label, cell.num_features, "error", value, low, high, cell.expected))
            ax.errorbar(
                [cell.num_features], [value], yerr=[[value - low], [high - value]] if len(cell.errors) > 1 else None,
                color=look["color"], marker=look["marker"], linestyle="none", capsize=2, markersize=6,
                markerfacecolor=None if cell.measurable else "white",
            )  # fmt: skip
            shown += [value, cell.expected]
        ax.plot([], [], label=style.plain(label), markersize=6, **look)
    ax.axhline(study.mean_error, color="black", linestyle="--", label="mean of K", zorder=1.5)
    best = sorted({(cell.num_features, cell.best) for cell in study.cells if cell.best > 0})
    ax.plot([f for f, _ in best], [b for _, b in best], color="0.45", label="best of that rank", zorder=1.5)
    rows += [("best of that rank", features, "error", value, value, value, value) for features, value in best]
    style.log_limits(ax, shown, [value for _, value in best])
    style.number_axis(ax, [cell.num_features for cell in study.cells])
    ax.set_xlabel("features")
    ax.set_ylabel("relative error of the Gram matrix")
    return pd.DataFrame(rows, columns=COLUMNS)


def _gaps(ax: Axes, study: GramStudy) -> pd.DataFrame:
    """Differences times features: constant under iid, whatever the features."""
    data = pd.DataFrame(study.gaps())
    for column in ("expected", "measured", "low", "high"):
        data[column] *= data["num_features"]
    for i, (sampler, found) in enumerate(data.groupby("sampler", sort=False)):
        look, features, measured = style.look(i + 4), found["num_features"].to_numpy(), found["measured"].to_numpy()
        ax.plot(features, found["expected"], color=look["color"], linestyle=look["linestyle"])
        reach = [(measured - found["low"]).tolist(), (found["high"] - measured).tolist()]
        ax.errorbar(
            features, measured, yerr=reach if study.draws > 1 else None, color=look["color"],
            marker=look["marker"], linestyle="none", capsize=2, markersize=6,
        )  # fmt: skip
        ax.plot([], [], label=f"phase less trig, {sampler}", markersize=6, **look)
    ax.axhline(0.0, color="black", linewidth=0.8, zorder=1.5)
    style.number_axis(ax, [*data["num_features"]])
    ax.set_xlabel("features")
    ax.set_ylabel("difference of squares × features")
    data = data.rename(columns={"sampler": "series", "expected": "closed_form"})
    return data.assign(shown="phase less trig, times features")[COLUMNS]
