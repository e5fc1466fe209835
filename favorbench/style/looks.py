"""Colours, markers and dashes; the settings of matplotlib; and the same on a dark ground."""

import contextlib
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.collections import Collection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from favorbench.style.wanted import wanted

#: Okabe & Ito's colours, told apart with any colour vision; each also has its own marker and dash.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

#: The same, light enough to be seen on a dark ground.
_ON_DARK = dict(zip(
    COLOURS,
    ("#4A9FF5", "#FF7F3A", "#2BC79A", "#E6A3CB", "#F5C04D", "#A5DBFF", "#DB5F96", "#CFCF62"),
    strict=True,
))  # fmt: skip

#: Black and white that stay what they are on any ground, as on a coloured field: not quite grey, see ``on_dark``.
INK, PAPER = "#00000f", "#fffff0"

_GROUND, _FRONT, _LINE = "#14161d", "#e6e8f0", "#3a3d47"

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
    "svg.fonttype": "none",  # text is text: it can be searched, read aloud and edited
    "pdf.fonttype": 42,  # TrueType, whole letters; Type 3, the default, is refused by publishers
}

_DARK = {
    "figure.facecolor": _GROUND,
    "axes.facecolor": _GROUND,
    "grid.color": _LINE,
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"], _FRONT),
}

SMALLEST, USUAL = 6.5, 12.0  # points


def font_size() -> float:
    """Points of the text: in a figure of a given width what a page of that width has beside it."""
    size = wanted().size
    return USUAL if size is None else min(max(SMALLEST, 7.0 + 0.9 * (size[0] - 3.3)), USUAL)


def _sized() -> dict[str, Any]:
    """Text, lines and markers of a figure of a given size."""
    if wanted().size is None:
        return {}
    points = font_size()
    text = ("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
    share = points / USUAL
    return dict.fromkeys(text, points) | {
        "figure.titlesize": points + 0.5,
        "axes.linewidth": 0.6,
        "grid.linewidth": 0.5,
        "axes.titlepad": 3.0,
        "axes.labelpad": 2.0,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "xtick.minor.size": 1.5,
        "ytick.minor.size": 1.5,
        "legend.columnspacing": 1.2,
        "legend.labelspacing": 0.25,
        "lines.linewidth": max(1.0, 1.5 * share),
    }


def context() -> contextlib.AbstractContextManager[None]:
    """The settings every figure is drawn with, as a context manager: matplotlib's own defaults, and RC on top.

    Not on top of what a matplotlibrc says: figures are the same in every directory, and need no LaTeX.
    """
    settings = RC | _sized() | (_DARK if wanted().dark else {})
    return matplotlib.style.context(["default", settings])  # pyright: ignore[reportArgumentType]


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


def scaled(usual: float) -> float:
    """Points of a marker or a line that has ``usual``, in proportion where a figure has a size of its own."""
    return usual * max(0.6, font_size() / USUAL)


def darken(figure: Figure) -> None:
    """Turn a finished figure over for a dark ground: greys into their opposites, colours into lighter ones."""
    for artist in figure.findobj():
        if isinstance(artist, Collection):
            for part in ("facecolor", "edgecolor"):
                colours = getattr(artist, f"get_{part}")()
                if artist.get_array() is None and len(colours):
                    getattr(artist, f"set_{part}")([on_dark(one) for one in colours])
            continue
        for part in _coloured(artist):
            getattr(artist, f"set_{part}")(on_dark(getattr(artist, f"get_{part}")()))


def _coloured(artist: Artist) -> tuple[str, ...]:
    """Which colours an artist has."""
    if isinstance(artist, Line2D):
        return "markerfacecolor", "markeredgecolor", "color"  # color last: "auto" of the others follows it
    if isinstance(artist, Text):
        return ("color",)
    return ("facecolor", "edgecolor") if isinstance(artist, Patch) and not isinstance(artist, AxesImage) else ()


def on_dark(colour: Any) -> Any:
    """The colour that says on a dark ground what this one says on a white one: of greys the opposite grey."""
    if isinstance(colour, str) and colour in ("none", "auto"):
        return colour
    rgba = to_rgba(colour)
    rgb, alpha, known = rgba[:3], rgba[3], to_hex(rgba).upper()
    if known in _ON_DARK:
        return (*to_rgba(_ON_DARK[known])[:3], alpha)
    if max(rgb) - min(rgb) > 0.01:
        return colour
    ground, front = (np.array(to_rgba(one)[:3]) for one in (_GROUND, _FRONT))
    return (*(front + rgb[0] * (ground - front)), alpha)
