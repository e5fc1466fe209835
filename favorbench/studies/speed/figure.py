"""Time against L, log-log: exact attention, each map and method at each R, and where they cross."""

from pathlib import Path
from typing import Any

import pandas as pd

from favorbench import style
from favorbench.statistics import interval_name
from favorbench.studies.speed.calls import EXACT, FUSED
from favorbench.studies.speed.study import SpeedStudy


def draw(study: SpeedStudy, name: str, directory: Path) -> list[Path]:
    """Write the figure; returns the files. Raises StoreError."""
    data = pd.DataFrame([timing._asdict() for timing in study.timings])
    crossings = {c.method: c.seq_len for c in study.crossovers if 0 < c.seq_len < float("inf")}
    with style.context():
        figure, (ax,) = style.panels(1, 1, height=4.6, width=7.0)
        names = list(dict.fromkeys(data["method"]))
        estimators = [n for n in names if n not in (EXACT, FUSED)]
        for method in names:
            timings = study.of(method)
            lengths, seconds = [t.seq_len for t in timings], [t.seconds for t in timings]
            look = _look(method, estimators)
            ax.fill_between(
                lengths, [t.low for t in timings], [t.high for t in timings], alpha=0.15, color=look["color"]
            )
            ax.plot(lengths, seconds, label=method, markersize=5, **look)
            if method in crossings:
                ax.axvline(crossings[method], color=look["color"], linewidth=0.8, linestyle=":", zorder=0.5)
                height = 0.98 - 0.09 * (estimators.index(method) % 4)  # the upper left, where no curve is
                ax.annotate(
                    f"{crossings[method]:.0f}", (crossings[method], height), xycoords=("data", "axes fraction"),
                    xytext=(2, 0), textcoords="offset points", va="top", fontsize=9, color=look["color"],
                )  # fmt: skip
        style.log_limits(ax, [*data["seconds"]])
        style.number_axis(ax, study.lengths, log=True)
        ax.set_xlabel("L")
        ax.set_ylabel("seconds")
        caption = (
            f"{study.where}, {study.dtype}, d = {study.head_dim}, one head: median of {study.repeats} runs taken in "
            f"turns, band: {interval_name(study.repeats)}. Dotted: the length from which what is not exact is "
            "faster than the faster exact one."
        )
        style.finish(figure, [ax], caption)
        return style.save(figure, directory, name, data)


def _look(method: str, estimators: list[str]) -> dict[str, Any]:
    if method not in estimators:
        return {"color": "black", "linestyle": "-" if method == EXACT else "--", "marker": "x"}
    i = estimators.index(method)
    return style.look(i)
