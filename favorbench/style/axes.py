"""Ranges and ticks: what an axis shows."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation


def few_ticks(ax: Axes) -> None:
    """Labels on a log x axis that have room: powers of ten, or 1, 2 and 5 of each where there is one power or none."""
    low, high = ax.get_xlim()
    if high < 50 * low:
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _short(value)))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


def _short(value: float) -> str:
    """A number as it is, or as a formula with a power of ten."""
    if value < 1e5:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"${float(mantissa):g}\\cdot 10^{{{int(exponent)}}}$"


def log_limits(ax: Axes, values: Sequence[float], fill: Sequence[float] = (), most: float = math.inf) -> None:
    """A log axis that shows all ``values`` up to ``most``; of ``fill`` only what lies within two decades below them.

    Where nothing is above 0 there is no log to show: the axis stays linear.
    """
    positive = [min(v, most) for v in values if v > 0 and math.isfinite(min(v, most))]
    if not positive:
        return
    ax.set_yscale("log")
    low, high = min(positive), max(positive)
    low = min([low, *(v for v in fill if v > low / 100)])
    span = max(math.log10(high / low), 0.5)
    ax.set_ylim(10 ** (math.log10(low) - 0.08 * span), 10 ** (math.log10(high) + 0.08 * span))


def number_axis(ax: Axes, values: Sequence[float], log: bool = False) -> None:
    """Ticks at the measured values; a log axis where they span a factor of 8 or more, or where it is asked for."""
    ordered = sorted(set(values))
    spread = len(ordered) > 1 and ordered[0] > 0 and ordered[-1] / ordered[0] >= 8 and not _evenly_spaced(ordered)
    if log or spread:
        ax.set_xscale("log")
    ticks = ordered if len(ordered) <= 7 else ordered[:: -(-len(ordered) // 7)]
    ticks = _apart(ticks, math.log if log or spread else float)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def _apart(ordered: Sequence[float], scale: Callable[[float], float]) -> list[float]:
    """The largest, and of the others those whose numbers do not touch the next; four digits take a tenth of an axis."""
    kept, span = [*ordered[-1:]], scale(ordered[-1]) - scale(ordered[0]) if len(ordered) > 1 else 0.0
    for tick in reversed(ordered[:-1]):
        if scale(kept[0]) - scale(tick) >= 0.09 * span:
            kept.insert(0, tick)
    return kept


def _evenly_spaced(ordered: Sequence[float]) -> bool:
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ordered)}
    return len(steps) == 1 and len(ordered) > 2


def same_range(axes: Sequence[Axes], sets: Sequence[int]) -> None:
    """One range of y for the panels of each set, its numbers and label at the first of those beside one another."""
    for one in set(sets):
        members = [ax for ax, of in zip(axes, sets, strict=True) if of == one]
        if len({ax.get_yscale() for ax in members}) > 1:
            continue  # nothing above 0 in one of them: there is no common axis
        low, high = zip(*(ax.get_ylim() for ax in members), strict=True)
        first: dict[object, Axes] = {}
        for ax in members:
            ax.set_ylim(min(low), max(high))
            spec = ax.get_subplotspec()
            if first.setdefault((ax.figure, spec.rowspan.start if spec else 0), ax) is not ax:
                ax.tick_params(axis="y", which="both", labelleft=False)
                ax.set_ylabel("")


def above(ax: Axes, places: Sequence[float], number: int, look: Mapping[str, Any]) -> None:
    """Arrows at the upper edge for what lies above it: below each the marker of its series.

    number: of the series among those that have any; each stands a little beside the last, so that none is hidden.
    """
    shift, size = (-1) ** number * -(-number // 2) * 6.0, look.get("markersize", 5)
    kept = {key: look[key] for key in ("color", "marker", "markerfacecolor") if key in look}
    for down, what in ((-7.0, kept), (-1.0, kept | {"marker": "^", "markerfacecolor": kept["color"]})):
        beside = ScaledTranslation(shift / 72, down / 72, ax.figure.dpi_scale_trans)  # pyright: ignore[reportArgumentType]
        (drawn,) = ax.plot(
            places, [1.0] * len(places), transform=ax.get_xaxis_transform() + beside, linestyle="none",
            clip_on=False, zorder=4, **(what | {"markersize": size}),
        )  # fmt: skip
        drawn.set_in_layout(False)
