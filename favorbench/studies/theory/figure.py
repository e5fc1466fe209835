"""The variance of a kernel estimate against R: closed form as lines, measured points with intervals on top."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.studies.theory.study import TheoryStudy


def chart(study: TheoryStudy, name: str) -> style.Chart:
    """Relative standard deviation against R, a series for each norm."""
    caption = (
        f"Lines: closed form. Points: {study.draws} draws, 95 % intervals. Hollow: so few draws would "
        "give a number that is silently too small. R counts projections; x and y are scaled by d^-1/4."
    )
    data = pd.DataFrame(study.points)
    panel = style.Panel(study.title, partial(_draw, study, data))
    return style.Chart(name, "Spread of a kernel estimate", caption, [panel], panel_size=(6.8, 4.4), data=data)


def _draw(study: TheoryStudy, data: pd.DataFrame, ax: Axes) -> None:
    finite = data[np.isfinite(data["closed_form"])]  # float64 cannot hold the others
    hollow = {"linestyle": "none", "marker": "o", "markerfacecolor": "white", "markersize": style.scaled(8)}
    for i, norm in enumerate(study.needed):
        rows, look = finite[finite["norm"] == norm], style.series_look(i)
        ax.plot(
            rows["num_projections"], rows["closed_form"], color=look["color"], linestyle=look["linestyle"],
            label=f"|x| = |y| = {norm:g}",
        )  # fmt: skip
        sampled = data[(data["norm"] == norm) & np.isfinite(data["measured"])]
        below, above = sampled["measured"] - sampled["low"], sampled["high"] - sampled["measured"]
        ax.errorbar(
            sampled["num_projections"], sampled["measured"], yerr=np.stack([below, above]), linestyle="none", capsize=3,
            color=look["color"], marker=look["marker"],
        )  # fmt: skip
        if study.draws:
            gated = rows[~np.isfinite(rows["measured"])]
            ax.plot(gated["num_projections"], gated["closed_form"], color=look["color"], **hollow)
    ax.plot([], [], color="0.4", label="not measurable by sampling", **hollow)
    ax.axhline(study.target, color="black", linestyle=":", label=f"target {study.target:g}")
    style.log_limits(ax, [*data["closed_form"], study.target])
    style.number_axis(ax, [*data["num_projections"]])
    ax.set(xlabel="number of projections R", ylabel="relative standard deviation")
