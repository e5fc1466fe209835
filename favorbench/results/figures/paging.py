"""The panels of a figure in files: as many to each as it has room for, each called as what it shows."""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style

PANELS = 12  # in one file
LONGEST = 60  # letters of what a file shows, in its name


class Titled(Protocol):
    """A panel."""

    @property
    def title(self) -> str: ...


class Compared(Titled, Protocol):
    """A panel. beside: what is the same for panels that are compared, which have one range in all files."""

    @property
    def beside(self) -> Hashable: ...


AnyPanel = TypeVar("AnyPanel", bound=Compared)
AnyTitled = TypeVar("AnyTitled", bound=Titled)


def draw_in_files(
    panels: Sequence[AnyPanel],
    columns: int,
    directory: Path,
    name: str,
    draw: Callable[[Axes, AnyPanel], pd.DataFrame],
    caption: Callable[[Sequence[AnyPanel], Sequence[Axes]], str],
    alone: tuple[float, float] | None = None,
) -> list[Path]:
    """Draw the panels and save each file with its numbers, which ``draw`` returns; panels that are compared share y.

    alone: height and width of a panel that is the only one of its file.
    """
    sheets = []
    with style.context():
        for ending, page in pages(panels, columns):
            inches = alone if alone and len(page) == 1 else ()
            figure, axes = style.panels(len(page), min(columns, len(page)), *inches)
            data = [draw(ax, panel).assign(panel=panel.title) for ax, panel in zip(axes, page, strict=True)]
            sheets.append((f"{name}{ending}", page, figure, axes, data))
        style.same_range([ax for *_, axes, _ in sheets for ax in axes], together(panels, columns))
        written: list[Path] = []
        for called, page, figure, axes, data in sheets:
            style.finish(figure, axes, style.plain(caption(page, axes)))
            written += style.save(figure, directory, called, pd.concat(data, ignore_index=True))
    return written


def pages(
    panels: Sequence[AnyTitled], columns: int, most: int | None = None
) -> Iterator[tuple[str, Sequence[AnyTitled]]]:
    """The panels of each file, and what its name ends in, "" of the only one.

    columns: how many panels belong beside one another; they are not parted where they fit into one file.
    most: panels of a file, where that is not what there is room for.
    """
    most = most or style.room(PANELS, columns)
    most -= most % columns if columns <= most else 0
    found = [panels[start : start + most] for start in range(0, len(panels), most)]
    yield from zip(endings([[panel.title for panel in page] for page in found]), found, strict=True)


def endings(pages: Sequence[Sequence[str]]) -> list[str]:
    """What the names of files end in that have panels of these titles: what tells them apart, a number if nothing does.

    >>> endings([["a, L = 8"], ["a, L = 16"]]), endings([["h0, p", "h0, t"], ["h1, p", "h1, t"]])
    (['-L=8', '-L=16'], ['-h0', '-h1'])
    """
    if len(pages) == 1:
        return [""]
    parts = [[re.split(r",? *\n|, ", title) for title in page] for page in pages]
    common = set.intersection(*(set(title) for page in parts for title in page))
    told = [[[part for part in title if part not in common] for title in page] for page in parts]
    shared = [[part for part in page[0] if all(part in title for title in page)] for page in told]
    ends = [[*page[0][:1], *(["to", *page[-1][:1]] if page[0][:1] != page[-1][:1] else [])] for page in told]
    for words in (shared, ends):
        found = ["-".join(map(slug, one))[:LONGEST] for one in words]
        if all(found) and len({one.casefold() for one in found}) == len(found):
            return [f"-{one}" for one in found]
    return [f"-{number}" for number, _ in enumerate(pages, start=1)]


def slug(text: str) -> str:
    """Text as a part of the name of a file."""
    return re.sub(r"[^\w.@=-]+", "-", re.sub(r" *= *", "=", text)).strip("-")


def together(panels: Sequence[AnyPanel], columns: int) -> list[int]:
    """Of each panel a number, the same for panels that share a range: those beside one another, and those compared."""
    found, place = list(range(len(panels))), 0
    last: dict[Hashable, int] = {}
    for number, (_, page) in enumerate(pages(panels, columns)):
        across = style.across(min(columns, len(page)))
        for i, panel in enumerate(page):
            for key in (("row", number, i // across), ("beside", panel.beside)):
                if (other := last.setdefault(key, place)) != place:
                    found = [found[other] if one == found[place] else one for one in found]
            place += 1
    return found
