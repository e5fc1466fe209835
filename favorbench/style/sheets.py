"""A figure from its panels to its files: as large as they need, or of the size that is asked for."""

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from favorbench.canvas import canvas
from favorbench.files import write_text, write_whole
from favorbench.formats import printable
from favorbench.style.looks import darken, font_size, plain
from favorbench.style.wanted import wanted

PANEL = (2.3, 1.7)  # inches that a panel needs, where the size of the figure is given
BELOW = 0.6  # inches for the legend there

_METADATA = {
    "png": {"Title": "Title", "Description": "Description", "Software": "Software"},
    "svg": {"Title": "Title", "Description": "Description", "Date": None, "Creator": "Creator"},
    "pdf": {"Title": "Title", "Description": "Subject", "CreationDate": None, "Creator": "Creator"},
}


def across(columns: int) -> int:
    """How many panels stand side by side, of ``columns`` where there is room."""
    size = wanted().size
    return columns if size is None else max(1, min(columns, int(size[0] / PANEL[0])))


def room(usual: int, columns: int) -> int:
    """How many panels a figure holds: ``usual``, or as many as a figure of the size asked for has room for."""
    size = wanted().size
    return usual if size is None else min(usual, across(columns) * max(1, int((size[1] - BELOW) / PANEL[1])))


def panels(count: int, columns: int, height: float = 3.3, width: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in rows of ``columns``; height and width of each, in inches."""
    if on := canvas():
        return on.panels(count, columns, height, width)
    columns = min(count, across(columns)) if wanted().size else columns
    rows = -(-count // columns)
    size = wanted().size or (max(width * columns, 6.4), height * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def finish(figure: Figure, axes: Sequence[Axes], caption: str) -> None:
    """One legend for all panels below them, and the caption below that.

    A figure of a given size has no room for a caption: it is kept in the file, and beside it (see ``save``).
    """
    if on := canvas():
        on.finish(figure, axes, caption)
        return
    entries: dict[str, Artist] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            entries.setdefault(label, handle)
    size = wanted().size
    if wanted().title:
        figure.suptitle(plain(printable(wanted().title)))
    width, height = figure.get_size_inches()
    rows = _legend(figure, entries, width) if entries else 0
    figure.set_label(caption.replace("\\$", "$"))  # where ``save`` finds it
    if size is None:
        lines = textwrap.fill(caption, width=int(width * 13))
        figure.text(0.01, -(0.2 + 0.235 * rows) / height, lines, ha="left", va="top", fontsize=10, color="0.25")


def _legend(figure: Figure, entries: dict[str, Artist], width: float) -> int:
    """The legend below the panels, in as many columns as fit; returns its rows.

    Where the size is given room is scarce: names are shorter where they are long, and stand in order of length.
    """
    points, given = min(font_size(), 11.0), wanted().size is not None
    if given:
        entries = {shorter(label): handle for label, handle in entries.items()}
        entries = dict(sorted(entries.items(), key=lambda entry: len(entry[0])))
    across = next(n for n in range(min(len(entries), 6), 0, -1) if n == 1 or _needed([*entries], n, points) <= width)
    rows = -(-len(entries) // across)
    look: dict[str, Any] = {"ncols": -(-len(entries) // rows), "frameon": False}
    if given:
        look |= {"loc": "outside lower center", "borderpad": 0.1, "handlelength": 2.2, "handletextpad": 0.5}
    else:
        look |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
    figure.legend(list(entries.values()), list(entries), **look)
    return rows


def _needed(labels: Sequence[str], across: int, points: float) -> float:
    """The width of a legend in so many columns, in inches; a letter of the font is 0.6 of its size on average."""
    rows = -(-len(labels) // across)
    longest = [max(map(len, labels[start : start + rows])) for start in range(0, len(labels), rows)]
    return (
        points / 72 * (0.6 * sum(longest) + (3.0 if wanted().size else 3.6) * len(longest) + 1.5 * (len(longest) - 1))
    )


#: What is shorter in a figure too narrow for names as they are.
SHORTER = {"antithetic": "anti", "orthogonal": "orth", " / ": "/", "uniform (mean of V)": "uniform", "Pareto ": ""}


def shorter(name: str, room: float = 16) -> str:
    """A name of more than ``room`` letters in fewer."""
    for word, short in SHORTER.items() if len(name) > room else ():
        name = name.replace(word, short)
    return name


def save(figure: Figure, directory: Path, name: str, data: pd.DataFrame) -> list[Path]:
    """Write name.png and so on as asked for, and name.csv with the plotted numbers, each whole or not at all.

    A figure of a given size has its caption in name.txt. Raises StoreError.
    """
    if on := canvas():
        return on.keep(name, data)
    for text in figure.findobj(Text):
        if text.get_text() != (shown := printable(text.get_text(), but="\n")):
            text.set_text(shown)  # a name with control characters in it
    want, caption = wanted(), printable(str(figure.get_label()))
    if want.dark:
        darken(figure)
        name = f"{name}-dark"
    files = []
    for kind in want.formats:
        image = io.BytesIO()
        whole: dict[str, Any] = (
            {"bbox_inches": "tight", "pad_inches": 0.12, "dpi": 150} if want.size is None else {"dpi": 300}
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # a letter of a name that the font lacks is a box
            figure.savefig(image, format=kind, metadata=_about(kind, name, caption), **whole)
        files.append(directory / f"{name}.{kind}")
        write_whole(files[-1], image.getvalue())
    write_text(directory / f"{name}.csv", data.to_csv(index=False))
    files.append(directory / f"{name}.csv")
    if want.size is not None:
        write_text(directory / f"{name}.txt", f"{caption}\n")
        files.append(directory / f"{name}.txt")
    return files


def _about(kind: str, name: str, caption: str) -> dict[str, Any]:
    """What a file says of itself, in the words of its format; no date, so that the same figure is the same file."""
    said = {"Title": wanted().title or name, "Description": caption, "Software": "favorbench", "Creator": "favorbench"}
    words = _METADATA[kind]
    return {word: said[key] for key, word in words.items() if word} | dict.fromkeys(
        k for k, word in words.items() if not word
    )
