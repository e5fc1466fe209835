"""The variance of a kernel estimate against R: closed form as lines, measured points with intervals on top."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.studies.theory.study import Point, TheoryStudy

#: A point that so few draws cannot measure.
HOLLOW = {"linestyle": "none", "marker": "o", "markerfacecolor": "white"}


def draw(study: TheoryStudy, name: str, directory: Path) -> list[Path]:
    """Write the figure; returns the files."""
    with style.context():
        figure, (ax,) = style.panels(1, 1, height=4.4, width=6.8)
        for i, norm in enumerate(study.needed):
            points = [point for point in study.points if point.norm == norm]
            _line(ax, points, label=f"|x| = |y| = {norm:g}", **_look(i, "dash"))
            _measured(ax, [point for point in points if math.isfinite(point.measured)], **_look(i, "marker"))
            if study.draws:
                gated = [point for point in points if not math.isfinite(point.measured)]
                _line(ax, gated, color=_look(i)["color"], markersize=8, **HOLLOW)
        _line(ax, [], color="0.4", label="not measurable by sampling", **HOLLOW)
        ax.axhline(study.target, color="black", linestyle=":", label=f"target {study.target:g}")
        style.log_limits(ax, [point.closed_form for point in study.points] + [study.target])
        style.number_axis(ax, [point.num_projections for point in study.points])
        ax.set(xlabel="R", ylabel="relative standard deviation", title=style.plain(study.title))
        caption = (
            f"Lines: closed form. Points: {study.draws} draws, 95 % intervals. Hollow: so few draws would "
            "give a number that is silently too small. R counts projections; x and y are scaled by d^-1/4."
        )
        style.finish(figure, [ax], caption)
        return style.save(figure, directory, name, pd.DataFrame(study.points))


def _look(i: int, *parts: str) -> dict[str, Any]:
    """The colour of the norm of this index; its dash or marker if asked for."""
    look = {"color": style.COLOURS[i % len(style.COLOURS)]}
    look |= {"linestyle": style.DASHES[i % len(style.DASHES)]} if "dash" in parts else {}
    return look | ({"marker": style.MARKERS[i % len(style.MARKERS)]} if "marker" in parts else {})


def _line(ax: Axes, points: Sequence[Point], **look: Any) -> None:
    """Closed forms against R; those that float64 cannot hold are not drawn."""
    finite = [point for point in points if math.isfinite(point.closed_form)]
    ax.plot([point.num_projections for point in finite], [point.closed_form for point in finite], **look)


def _measured(ax: Axes, points: Sequence[Point], **look: Any) -> None:
    """Measured deviations against R, with their intervals."""
    sizes, centres = [point.num_projections for point in points], [point.measured for point in points]
    below, above = [p.measured - p.low for p in points], [p.high - p.measured for p in points]
    ax.errorbar(sizes, centres, yerr=[below, above], linestyle="none", capsize=3, **look)
