"""Parts of axes: lines with bands, ranges, ticks, and a note about values beyond the axis."""

import itertools
import math
import textwrap
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis

from favorbench.style.palette import font_size, plain

PLOT_INFINITY = 1e100  # drawn in place of infinity and NaN, which matplotlib leaves out: the line leaves the axis


def line_with_band(
    ax: Axes, x: Any, middle: Any, band: tuple[Any, Any] | None = None, alpha: float = 0.13, **look: Any
) -> None:
    """Draw a line and, where there is one, the band around it."""
    if band:
        low, high = (np.minimum(np.asarray(end, dtype=float), PLOT_INFINITY) for end in band)
        ax.fill_between(np.asarray(x, dtype=float), low, high, color=look["color"], alpha=alpha, linewidth=0)
    middle = np.asarray(middle, dtype=float)  # a skill of minus infinity is left out: its axis is not cut
    middle = np.nan_to_num(middle, nan=PLOT_INFINITY, posinf=PLOT_INFINITY, neginf=math.nan)
    ax.plot(np.asarray(x, dtype=float), middle, **look)


def log_limits(ax: Axes, values: Sequence[float], fill: Sequence[float] = (), most: float = math.inf) -> None:
    """Make y a log axis that shows ``values`` up to ``most``, and those of ``fill`` within two decades below.

    Without a positive value the axis stays linear.
    """
    least, greatest = 1e-150, 1e150  # matplotlib overflows on axes of 600 decades
    positive = [min(v, most) for v in values if least < min(v, most) < greatest]
    if not positive:
        return
    ax.set_yscale("log")
    low, high = min(positive), max(positive)
    low = min([low, *(v for v in fill if v > low / 100)])
    margin = high**0.08 / low**0.08 if high / 3 > low else 3**0.5
    ax.set_ylim(max(low / margin, least), min(high * margin, greatest))
    log_ticks(ax.yaxis)


def log_ticks(axis: Axis) -> None:
    """Label a log axis so that at least two ticks show: powers of ten, 1 and 3, 1, 2 and 5 of each, or even steps."""
    low, high = axis.get_view_interval()
    if high < 2.5 * low:
        axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        subs = (1.0, 2.0, 5.0) if high < 30 * low else (1.0, 3.0) if high < 1000 * low else (1.0,)
        axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.FuncFormatter(_short) if high < 1000 * low else ticker.LogFormatterMathtext())
    axis.set_minor_formatter(ticker.NullFormatter())


def _short(value: float, _: int | None = None) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    factor = "" if float(mantissa) == 1 else f"{float(mantissa):g}\\cdot "
    return f"${factor}10^{{{int(exponent)}}}$"


def number_axis(ax: Axes, values: Sequence[float], log: bool = False) -> None:
    """Put ticks at the measured values; a log axis where they span a factor of 8 or more, or on request."""
    ordered = sorted(set(values))
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ordered)}
    evenly = len(steps) == 1 and len(ordered) > 2
    if log or (len(ordered) > 1 and ordered[0] > 0 and ordered[-1] / ordered[0] >= 8 and not evenly):
        ax.set_xscale("log")
    place: Callable[[float], float] = math.log if ax.get_xscale() == "log" else float
    letters = max(len(f"{tick:g}") for tick in ordered) + 1
    label = 0.6 * letters * font_size() / (0.85 * 72 * column_width(ax))
    span, ticks = place(ordered[-1]) - place(ordered[0]), ordered[-1:]
    for tick in reversed(ordered[:-1]):
        if place(ticks[0]) - place(tick) >= label * span:
            ticks.insert(0, tick)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def column_width(ax: Axes) -> float:
    """The width of a column of the figure's grid, in inches."""
    spec = ax.get_subplotspec()
    return ax.figure.bbox.width / ax.figure.dpi / (spec.get_gridspec().ncols if spec else 1)


def same_range(axes: Sequence[Axes], groups: Sequence[Hashable]) -> None:
    """Give the axes of each group one y range, and tick labels only at the first of each row."""
    for group in dict.fromkeys(groups):
        members = [ax for ax, group_of_axes in zip(axes, groups, strict=True) if group_of_axes == group]
        if len({ax.get_yscale() for ax in members}) > 1:
            continue  # one has no positive value: there is no common axis
        low, high = zip(*(ax.get_ylim() for ax in members), strict=True)
        rows = set()
        for ax in members:
            ax.set_ylim(min(low), max(high))
            if ax.get_yscale() == "log":
                log_ticks(ax.yaxis)
            spec = ax.get_subplotspec()
            row = ax.figure, spec and spec.rowspan.start
            if row in rows:
                ax.tick_params(axis="y", which="both", labelleft=False)
                ax.set_ylabel("")
            rows.add(row)


def off_scale_note(ax: Axes, names: Sequence[str]) -> None:
    """Name at the upper edge the series that lie above it."""
    if names:
        text = f"↑ off scale: {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        points = 0.75 * font_size()
        inches = ax.get_position().width * ax.figure.bbox.width / ax.figure.dpi
        lines = textwrap.fill(text, width=max(16, int(inches * 72 / (0.6 * points))))
        note = ax.text(
            0.99, 0.99, plain(lines), transform=ax.transAxes, ha="right", va="top", fontsize=points, color="0.35",
            gid="off scale",
        )  # fmt: skip
        note.set_in_layout(False)
