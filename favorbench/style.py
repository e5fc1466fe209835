"""One look for every figure: colours, panels, captions, files."""

import contextlib
import io
import itertools
import math
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import pandas as pd
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from favorbench.canvas import canvas
from favorbench.files import write_text, write_whole
from favorbench.formats import printable

#: Okabe & Ito's colours, told apart with any colour vision; each also has its own marker and dash.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

RC = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "legend.fontsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "svg.hashsalt": "favorbench",  # the same figure is the same file
}


def plain(text: str) -> str:
    """Text in which a dollar sign is a dollar sign, not the start of a formula."""
    return text.replace("$", "\\$")


def look(i: int) -> dict[str, Any]:
    """Colour, marker and dash of the i-th series; the markers of a second round are hollow."""
    found = {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i % len(DASHES)],
    }
    return found | {"markerfacecolor": "white"} if i // len(COLOURS) % 2 else found


def panels(count: int, columns: int, height: float = 3.3, width: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in rows of ``columns``."""
    if on := canvas():
        return on.panels(count, columns, height, width)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(width * columns, 6.4), height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def finish(figure: Figure, axes: Sequence[Axes], caption: str) -> None:
    """One legend for all panels below them, and the caption below that."""
    if on := canvas():
        on.finish(figure, axes, caption)
        return
    entries: dict[str, Artist] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            entries.setdefault(label, handle)
    width, height = figure.get_size_inches()
    rows = 0
    if entries:
        fit = max(1, int(width / (0.75 + 0.09 * max(len(label) for label in entries))))
        across = min(len(entries), fit)
        rows = -(-len(entries) // across)
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncols=across,
            frameon=False,
        )
    lines = textwrap.fill(caption, width=int(width * 13))
    figure.text(0.01, -(0.15 + 0.27 * rows) / height, lines, ha="left", va="top", fontsize=10, color="0.25")


def save(figure: Figure, directory: Path, name: str, data: pd.DataFrame) -> list[Path]:
    """Write name.png, name.svg, and name.csv with the plotted numbers, each whole or not at all. Raises StoreError."""
    if on := canvas():
        return on.keep(name, data)
    for text in figure.findobj(Text):
        if text.get_text() != (shown := printable(text.get_text(), but="\n")):
            text.set_text(shown)  # a name with control characters in it
    files = []
    for kind, metadata in (("png", {"Software": "favorbench"}), ("svg", {"Date": None, "Creator": "favorbench"})):
        image = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # a letter of a name that the font lacks is a box
            figure.savefig(
                image, format=kind, dpi=150, bbox_inches="tight", pad_inches=0.12, facecolor="white", metadata=metadata
            )
        files.append(directory / f"{name}.{kind}")
        write_whole(files[-1], image.getvalue())
    write_text(directory / f"{name}.csv", data.to_csv(index=False))
    return [*files, directory / f"{name}.csv"]


def few_ticks(ax: Axes) -> None:
    """Labels on a log x axis that have room: powers of ten, or 1, 2 and 5 of each where there is one power or none."""
    low, high = ax.get_xlim()
    if high < 50 * low:
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


def log_limits(ax: Axes, values: Sequence[float], fill: Sequence[float] = ()) -> None:
    """A log axis that shows all ``values``; of ``fill`` only what lies within two decades below them.

    Where nothing is above 0 there is no log to show: the axis stays linear.
    """
    positive = [v for v in values if v > 0 and math.isfinite(v)]
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
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)


def _evenly_spaced(ordered: Sequence[float]) -> bool:
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ordered)}
    return len(steps) == 1 and len(ordered) > 2


def context() -> contextlib.AbstractContextManager[None]:
    """The settings every figure is drawn with, as a context manager: matplotlib's own defaults, and RC on top.

    Not on top of what a matplotlibrc says: figures are the same in every directory, and need no LaTeX.
    """
    return matplotlib.style.context(["default", RC])  # pyright: ignore[reportArgumentType]
