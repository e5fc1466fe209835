"""The variance of a kernel estimate against R: closed form as lines, measured points with intervals on top."""

import math
from pathlib import Path

import pandas as pd

from favorbench import style
from favorbench.studies.theory.study import TheoryStudy


def draw(study: TheoryStudy, name: str, directory: Path) -> list[Path]:
    """Write the figure; returns the files."""
    with style.context():
        figure, (ax,) = style.panels(1, 1, height=4.4, width=6.8)
        for i, norm in enumerate(study.needed):
            points = [point for point in study.points if point.norm == norm]
            colour = style.COLOURS[i % len(style.COLOURS)]
            dash = style.DASHES[i % len(style.DASHES)]
            sizes = [p.num_projections for p in points]
            ax.plot(sizes, [p.closed_form for p in points], color=colour, linestyle=dash, label=f"|x| = |y| = {norm:g}")
            seen = [p for p in points if math.isfinite(p.measured)]
            ax.errorbar(
                [p.num_projections for p in seen],
                [p.measured for p in seen],
                yerr=[[p.measured - p.low for p in seen], [p.high - p.measured for p in seen]],
                color=colour, marker=style.MARKERS[i % len(style.MARKERS)], linestyle="none", capsize=3,
            )  # fmt: skip
            gated = [p for p in points if study.draws and not math.isfinite(p.measured)]
            ax.plot(
                [p.num_projections for p in gated], [p.closed_form for p in gated], color=colour, linestyle="none",
                marker="o", markerfacecolor="white", markersize=8,
            )  # fmt: skip
        ax.plot(
            [],
            [],
            color="0.4",
            linestyle="none",
            marker="o",
            markerfacecolor="white",
            label="not measurable by sampling",
        )
        ax.axhline(study.target, color="black", linestyle=":", label=f"target {study.target:g}")
        style.log_limits(ax, [p.closed_form for p in study.points] + [study.target])
        style.number_axis(ax, [p.num_projections for p in study.points])
        ax.set_xlabel("R")
        ax.set_ylabel("relative standard deviation")
        ax.set_title(study.title)
        style.finish(
            figure,
            [ax],
            f"Lines: closed form. Points: {study.draws} draws, 95 % intervals. Hollow: so few draws would "
            "give a number that is silently too small. R counts projections; x and y are scaled by d^-1/4.",
        )
        return style.save(figure, directory, name, pd.DataFrame(study.points))
