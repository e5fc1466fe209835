"""Figures that become no files: drawn on a user's own axes, or on a page of pyplot's, by the functions that write them.

``style.panels``, ``style.finish`` and ``style.save`` ask ``canvas()`` first: where there is one, it gives the axes and
keeps what is drawn.
"""

import contextlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from favorbench.errors import ScenarioError
from favorbench.formats import printable, shown

LINE = 0.165  # inches, of a caption


@dataclass
class Sheet:
    """A page of a figure: what its file would be called, its axes, and the numbers that are drawn on them."""

    axes: Sequence[Axes]
    name: str = ""
    data: pd.DataFrame | None = None


@dataclass
class Canvas:
    """The sheets of a figure in their order. wanted: which of them a user sees; the others are thrown away.

    given: the user's own axes, in place of a page of pyplot's.
    """

    wanted: Sequence[int] = ()
    given: Sequence[Axes] | None = None
    sheets: list[Sheet] = field(default_factory=list)
    finished: Sheet | None = None

    def panels(self, count: int, columns: int, height: float, width: float) -> tuple[Figure, list[Axes]]:
        """The axes of the next sheet, as ``style.panels`` gives them."""
        used = sum(len(self.sheets[i].axes) for i in self.wanted if i < len(self.sheets))
        figure, axes = None, list(self.given or ())[used : used + count]
        if len(self.sheets) not in self.wanted or not axes:
            figure = self._page(len(self.sheets) in self.wanted)
            rows = -(-count // columns)
            figure.set_size_inches(max(width * columns, 6.4), height * rows)
            grid = figure.subplots(rows, columns, squeeze=False)
            axes = list(grid.flat)[:count]
            for unused in list(grid.flat)[count:]:
                unused.set_axis_off()
        self.sheets.append(Sheet(axes))
        return figure or _figure_of(axes[0]), axes

    def _page(self, seen: bool) -> Figure:
        if not seen:
            return Figure(layout="constrained")
        import matplotlib.pyplot as plt

        return plt.figure(layout="constrained")

    def finish(self, figure: Figure, axes: Sequence[Axes], caption: str) -> None:
        """A legend, and on a page of pyplot's the caption; on a user's own axes a legend in the first of them alone."""
        self.finished = next(sheet for sheet in self.sheets if sheet.axes[0] is axes[0])
        entries: dict[str, Artist] = {}
        for ax in axes:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                entries.setdefault(printable(label), handle)
        if self.given is not None:
            axes[0].legend(list(entries.values()), list(entries), fontsize="small", frameon=False)
            return
        width, height = figure.get_size_inches()
        lines = textwrap.wrap(printable(caption), width=int(width * 14))
        across = max(1, min(len(entries), int(width / (0.75 + 0.09 * max(map(len, entries), default=0)))))
        caption_height, legend_height = 0.05 + LINE * len(lines), 0.24 * -(-len(entries) // across)
        total = height + caption_height + legend_height
        figure.set_size_inches(width, total)
        figure.get_layout_engine().set(rect=(0, 1 - height / total, 1, height / total))  # pyright: ignore
        below = {"loc": "lower center", "bbox_to_anchor": (0.5, caption_height / total), "borderaxespad": 0.0}
        if entries:
            figure.legend(list(entries.values()), list(entries), ncols=across, frameon=False, **below)
        figure.text(0.01, 0.0, "\n".join(lines), va="bottom", fontsize=9, color="0.25", linespacing=1.25)

    def keep(self, name: str, data: pd.DataFrame) -> list:
        """What would be written of the sheet that was finished last; no files."""
        assert self.finished
        self.finished.name, self.finished.data = name, data
        return []


_CANVAS: ContextVar[Canvas | None] = ContextVar("canvas", default=None)


def canvas() -> Canvas | None:
    """What is drawn on instead of files, if anything is."""
    return _CANVAS.get()


@contextlib.contextmanager
def drawn_on(one: Canvas) -> Iterator[Canvas]:
    """What is drawn meanwhile is drawn on this."""
    token = _CANVAS.set(one)
    try:
        yield one
    finally:
        _CANVAS.reset(token)


def sheets_of(draw: Callable[[], object]) -> list[Sheet]:
    """What is drawn, on pages that nobody sees."""
    with drawn_on(Canvas()) as one:
        draw()
    return one.sheets


def plotted(
    name: str,
    draw: Callable[[], object],
    ax: "Axes | Sequence[Axes] | None",
    wanted: Callable[[Sheet], bool] = lambda sheet: True,
) -> "Axes | list[Axes]":
    """The sheets of a figure that are wanted, on a user's own axes, or on pages of pyplot's; one Axes, or a list.

    Drawn twice, first unseen: so it is known how many panels there are, and no page of pyplot's is left over. Raises
    ScenarioError for nothing to draw, and for another number of axes than of panels.
    """
    sheets = sheets_of(draw)
    numbers = [number for number, sheet in enumerate(sheets) if wanted(sheet)]
    panels = sum(len(sheets[number].axes) for number in numbers)
    if not panels:
        raise ScenarioError(f"figure {name!r}: there is nothing to show in it")
    given = None if ax is None else _listed(ax)
    if given is not None and len(given) != panels:
        raise ScenarioError(
            f"`ax`: {len(given)} axes were given, and {name!r} has {panels} panels here: give a list of as many, or "
            "leave `ax` out; of a single head: `heads`"
        )
    if given is None:
        import matplotlib.pyplot as plt

        plt.draw_if_interactive()  # loads the backend: a notebook's sets what a style that is left would take back
    with drawn_on(Canvas(numbers, given)) as one:
        draw()
    axes = [each for number in numbers for each in one.sheets[number].axes]
    return axes[0] if len(axes) == 1 else axes


def _listed(ax: object) -> list[Axes]:
    """One, a list of them, or an array as ``pyplot.subplots`` gives it. Raises ScenarioError for what is no Axes."""
    flat: Any = getattr(ax, "flat", ax)
    found = list(flat) if isinstance(flat, Iterable) else [flat]
    if wrong := next((one for one in found if not isinstance(one, Axes)), None):
        raise ScenarioError(f"`ax`: {shown(wrong)} given, allowed: Axes of matplotlib, one or a list of them")
    return found


def _figure_of(ax: Axes) -> Figure:
    """The whole figure that axes stand in, though in a part of it."""
    found = ax.get_figure()
    return found if isinstance(found, Figure) else ax.figure.figure  # pyright: ignore[reportReturnType]
