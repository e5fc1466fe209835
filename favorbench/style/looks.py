"""How figures look: colours, markers, matplotlib's settings, the options of a user, dark ground, and parts of axes."""

import contextlib
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from favorbench.errors import ScenarioError
from favorbench.formats import printable, shown

FORMATS = ("png", "svg", "pdf")

OFF_SCALE = "off scale"  # the id of a note about series beyond the axis

#: Inches: smaller figures have no room for a panel, larger ones fit on no page.
MIN_WIDTH, MIN_HEIGHT, MAX_SIDE = 2.0, 1.5, 20.0

#: Okabe and Ito's colours, distinct for any colour vision; each series also has its own marker and dash.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

#: Series that are not singled out.
OTHERS: dict[str, Any] = {
    "color": "0.75", "linewidth": 0.7, "marker": ".", "markersize": 3, "zorder": 1, "label": "others",
}  # fmt: skip

_ON_DARK = dict(zip(
    COLOURS,
    ("#4A9FF5", "#FF7F3A", "#2BC79A", "#E6A3CB", "#F5C04D", "#A5DBFF", "#DB5F96", "#CFCF62"),
    strict=True,
))  # fmt: skip
_GROUND, _FRONT = "#14161d", "#e6e8f0"

#: Black and white that ``on_dark`` keeps, as it changes pure greys only: for text on a coloured field.
INK, PAPER = "#00000f", "#fffff0"

RC = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "legend.fontsize": 11,
    "figure.titlesize": 13,
    "figure.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "svg.hashsalt": "favorbench",  # the same figure gives the same file
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and edited
    "pdf.fonttype": 42,  # TrueType; publishers refuse the default, Type 3
}

_MIN_FONT, _FONT = 6.5, 12.0  # points


@dataclass(frozen=True)
class FigureOptions:
    """Options of figures. size: exact width and height in inches; None: as large as the panels need.

    caption: written below a figure without a given size.
    """

    formats: tuple[str, ...] = ("png", "svg")
    size: tuple[float, float] | None = None
    title: str = ""
    dark: bool = False
    caption: bool = True


_OPTIONS = ContextVar("figure options", default=FigureOptions())  # noqa: B039 (frozen)


def options() -> FigureOptions:
    """The options in force."""
    return _OPTIONS.get()


@contextlib.contextmanager
def figure_options(chosen: FigureOptions) -> Iterator[None]:
    """Draw figures with these options inside the block."""
    token = _OPTIONS.set(chosen)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse "png,pdf". Raises ScenarioError."""
    formats = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in formats:
        if name not in FORMATS:
            raise ScenarioError(f"--format: {shown(name)} given; allowed: {', '.join(FORMATS)}, with commas")
    return formats


def parse_size(text: str) -> tuple[float, float]:
    """Parse "3.3x2.5". Raises ScenarioError."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*[xX×]\s*(\d{1,9}(?:\.\d{1,9})?)\s*(?:in)?\s*", text)
    if match:
        width, height = float(match[1]), float(match[2])
        if MIN_WIDTH <= width <= MAX_SIDE and MIN_HEIGHT <= height <= MAX_SIDE:
            return width, height
    raise ScenarioError(
        f"--size: {shown(text)} given; allowed: width x height in inches, {MIN_WIDTH:g}x{MIN_HEIGHT:g} to "
        f"{MAX_SIDE:g}x{MAX_SIDE:g}, e.g. 3.3x2.5 for one column"
    )


def font_size() -> float:
    """Points of the text: in a figure of a given width, those of a printed page of that width."""
    size = options().size
    return _FONT if size is None else min(max(_MIN_FONT, 7.0 + 0.9 * (size[0] - 3.3)), _FONT)


def scaled(points: float) -> float:
    """Points of a marker or line, in proportion to the text."""
    return points * max(0.6, font_size() / _FONT)


def context() -> contextlib.AbstractContextManager[None]:
    """Matplotlib's defaults with our settings on top, whatever a matplotlibrc says."""
    settings: dict[str, Any] = dict(RC)
    if options().size is not None:
        points = font_size()
        text = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")
        settings |= dict.fromkeys((*text, "legend.fontsize", "figure.titlesize"), points)
        settings |= dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.6)
        settings |= {"axes.titlepad": 3.0, "axes.labelpad": 2.0, "lines.linewidth": max(1.0, scaled(1.5))}
        settings |= dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5)
        settings |= {"legend.columnspacing": 1.2, "legend.labelspacing": 0.25, "legend.handletextpad": 0.5}
    return matplotlib.style.context(["default", settings])  # pyright: ignore[reportArgumentType]


def plain(text: object) -> str:
    """Text as it is: a dollar sign starts no formula, and control characters are shown.

    A space stands before an underscore at the start, as a legend leaves out such a label.
    """
    return re.sub("^_", " _", printable(str(text), but="\n").replace("$", "\\$"))


def series_look(i: int, **changes: Any) -> dict[str, Any]:
    """Colour, marker and dash of the i-th series; the second eight have hollow markers."""
    look: dict[str, Any] = {
        "color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i % len(DASHES)],
        "markersize": scaled(5), "zorder": 3,
    }  # fmt: skip
    return look | ({"markerfacecolor": "white"} if i // len(COLOURS) % 2 else {}) | changes


#: The colours of artists; "color" comes last, as the others may follow it ("auto").
_PARTS = {
    Line2D: ("markerfacecolor", "markeredgecolor", "color"),
    Text: ("color",),
    Patch: ("facecolor", "edgecolor"),
    Collection: ("facecolor", "edgecolor"),
}


def darken(figure: Figure) -> None:
    """Change a finished figure to a dark ground: greys become their opposites, colours lighter."""
    for artist in figure.findobj():
        for part in (part for kind, parts in _PARTS.items() if isinstance(artist, kind) for part in parts):
            colour = getattr(artist, f"get_{part}")()
            several = isinstance(artist, Collection)
            getattr(artist, f"set_{part}")([on_dark(c) for c in colour] if several else on_dark(colour))


def on_dark(colour: Any) -> Any:
    """The colour that stands out from a dark ground as this one does from white."""
    if isinstance(colour, str) and colour in ("none", "auto"):
        return colour
    *rgb, alpha = to_rgba(colour)
    lighter = [light for usual, light in _ON_DARK.items() if usual == to_hex(colour).upper()]
    if lighter:
        return to_rgba(lighter[0], alpha)
    if max(rgb) - min(rgb) > 0.01:
        return colour
    ground, front = (np.array(to_rgba(end)[:3]) for end in (_GROUND, _FRONT))
    return (*(front + rgb[0] * (ground - front)), alpha)


PLOT_INFINITY = 1e100  # drawn in place of infinity and NaN, which matplotlib leaves out: the line leaves the axis


def line_with_band(
    ax: Axes, x: Any, middle: Any, band: tuple[Any, Any] | None = None, alpha: float = 0.13, **look: Any
) -> None:
    """Draw a line and, where there is one, the band around it; a single point without a marker is a dash."""
    if band:
        low, high = (np.minimum(np.asarray(end, dtype=float), PLOT_INFINITY) for end in band)
        if len(low) == 1:  # its band has no width
            ax.vlines(np.asarray(x, dtype=float), low, high, color=look["color"], alpha=0.3, linewidth=3)
        ax.fill_between(np.asarray(x, dtype=float), low, high, color=look["color"], alpha=alpha, linewidth=0)
    middle = np.asarray(middle, dtype=float)  # a skill of minus infinity is left out: its axis is not cut
    middle = np.nan_to_num(middle, nan=PLOT_INFINITY, posinf=PLOT_INFINITY, neginf=math.nan)
    dash = {"marker": "_", "markersize": scaled(14)} if len(middle) == 1 else {}
    ax.plot(np.asarray(x, dtype=float), middle, **dash | look)


def log_limits(ax: Axes, values: Sequence[float], fill: Sequence[float] = (), most: float = math.inf) -> None:
    """Make y a log axis that shows ``values`` and ``fill`` up to ``most``, and ``fill`` at most two decades below.

    Without a positive value the axis stays linear.
    """
    least, greatest = 1e-150, 1e150  # matplotlib overflows on axes of 600 decades
    positive = [min(v, most) for v in values if least < min(v, most) < greatest]
    if not positive:
        return
    ax.set_yscale("log")
    low, high = min(positive), max(positive)
    near = [min(v, most) for v in fill if low / 100 < v < greatest]
    low, high = min([low, *near]), max([high, *near])
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
        axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=None if len(subs) == 1 else 9))  # in a low panel
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


def off_scale_note(
    ax: Axes, above: Mapping[str, Sequence[float]], below: Mapping[str, Sequence[float]] | None = None
) -> None:
    """Name at the upper edge the series above it or NaN, and at the lower edge those below, such as errors of 0.

    Names follow the limits of the axis: panels of a group come to share theirs after they are drawn.
    """
    points = 0.75 * font_size()
    inches = ax.get_position().width * ax.figure.bbox.width / ax.figure.dpi

    def update(ax: Axes) -> None:
        for note in [text for text in ax.texts if text.get_gid() == OFF_SCALE]:
            note.remove()
        low, high = ax.get_ylim()
        over = [name for name, values in above.items() if not all(value <= high for value in values)]
        under = [name for name, values in (below or {}).items() if any(value < low for value in values)]
        for names, words, va, place in (
            (over, "↑ off scale", "top", 0.99),
            (under, "↓ below the axis", "bottom", 0.01),
        ):
            if names:
                text = f"{words}: {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                lines = textwrap.fill(text, width=max(16, int(inches * 72 / (0.6 * points))))
                note = ax.text(
                    0.99, place, plain(lines), transform=ax.transAxes, ha="right", va=va, fontsize=points,
                    color="0.35", gid=OFF_SCALE,
                )  # fmt: skip
                note.set_in_layout(False)

    update(ax)
    ax.callbacks.connect("ylim_changed", update)
