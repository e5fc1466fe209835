"""Time against L, log-log: exact attention, each map and method at each R, and where they cross."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.statistics import interval_name
from favorbench.studies.speed.calls import EXACT, FUSED
from favorbench.studies.speed.study import SpeedStudy


def chart(study: SpeedStudy, name: str) -> style.Chart:
    """Seconds against length, with the break-even lengths."""
    caption = (
        f"{study.where}, {study.dtype}, d = {study.head_dim}, one head: median of {study.repeats} interleaved runs, "
        f"band: {interval_name(study.repeats)}. Dotted: the break-even length, from which an estimator is faster than "
        "the faster exact attention."
    )
    data = pd.DataFrame([timing._asdict() for timing in study.timings])
    crossings = {c.method: c.seq_len for c in study.crossovers if 0 < c.seq_len < float("inf")}
    panel = style.Panel("", partial(_draw, data, crossings))
    title = "Time against sequence length: lower is better"
    return style.Chart(name, title, caption, [panel], panel_size=(7.0, 4.6), data=data)


def _draw(data: pd.DataFrame, crossings: dict[str, float], ax: Axes) -> None:
    estimators = [name for name in dict.fromkeys(data["method"]) if name not in (EXACT, FUSED)]
    for name in dict.fromkeys(data["method"]):
        rows = data[data["method"] == name].sort_values("seq_len")
        if name in estimators:
            look = style.series_look(estimators.index(name), label=style.plain(name))
        else:
            look = {"color": "black", "linestyle": "-" if name == EXACT else "--", "marker": "x", "label": name}
        style.line_with_band(ax, rows["seq_len"], rows["seconds"], (rows["low"], rows["high"]), 0.15, **look)
        if name in crossings:
            ax.axvline(crossings[name], color=look["color"], linewidth=0.8, linestyle=":", zorder=0.5)
            height = 0.98 - 0.09 * (estimators.index(name) % 4)  # the upper left, where no curve is
            ax.annotate(
                f"{crossings[name]:.0f}", (crossings[name], height), xycoords=("data", "axes fraction"),
                xytext=(2, 0), textcoords="offset points", va="top", fontsize=9, color=look["color"],
            )  # fmt: skip
    style.log_limits(ax, [*data["seconds"]])
    style.number_axis(ax, [*data["seq_len"]], log=True)
    ax.set(xlabel="sequence length L", ylabel="seconds")
