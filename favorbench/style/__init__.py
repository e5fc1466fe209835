"""One look for every figure: colours, panels, axes, captions, files."""

from matplotlib.figure import Figure

from favorbench.style.axes import above, few_ticks, log_limits, number_axis, same_range
from favorbench.style.looks import (
    COLOURS,
    DASHES,
    INK,
    MARKERS,
    PAPER,
    RC,
    context,
    darken,
    font_size,
    look,
    plain,
    scaled,
)
from favorbench.style.sheets import SHORTER, across, finish, panels, room, save, shorter
from favorbench.style.wanted import FORMATS, Wanted, asked, formats_of, size_of, wanted

__all__ = [
    "COLOURS",
    "DASHES",
    "FORMATS",
    "INK",
    "MARKERS",
    "PAPER",
    "RC",
    "SHORTER",
    "Figure",
    "Wanted",
    "above",
    "across",
    "asked",
    "context",
    "darken",
    "few_ticks",
    "finish",
    "font_size",
    "formats_of",
    "log_limits",
    "look",
    "number_axis",
    "panels",
    "plain",
    "room",
    "same_range",
    "save",
    "scaled",
    "shorter",
    "size_of",
    "wanted",
]  # fmt: skip
