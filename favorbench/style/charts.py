"""Charts: described by their panels, drawn once, then saved, shown in a notebook or put on a page."""

import html
import io
import re
import textwrap
import warnings
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from PIL import Image, PngImagePlugin
from scipy.spatial import KDTree

from favorbench.errors import ScenarioError
from favorbench.files import write_whole
from favorbench.formats import printable, shown
from favorbench.style.looks import column_width, context, darken, font_size, on_dark, options, plain, same_range

MAX_PANELS = 12  # in one file
NARROW_PANEL = 3.0  # inches: titles stand on several lines
MIN_PANEL = (2.3, 1.7)  # inches, where the size of the figure is given
LEGEND = 0.6  # inches reserved for the legend there
MAX_NAME = 60  # characters of a file name that say what a page shows
CAPTION_LINE = 0.165  # inches
TITLE_LETTERS = 11  # per inch


@dataclass(frozen=True)
class Panel:
    """One pair of axes. draw: puts the data on it and returns the numbers shown. group: panels with one y range."""

    title: str
    draw: Callable[[Axes], pd.DataFrame | None]
    group: Hashable = None


@dataclass(frozen=True)
class Chart:
    """A figure before it is drawn. panel_size: width and height in inches; alone: those of the only panel.

    data: the numbers shown, where the panels do not return them. least_height: inches of a panel, where the size of
    the figure is given.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 1
    panel_size: tuple[float, float] = (4.2, 3.3)
    alone: tuple[float, float] | None = None
    data: pd.DataFrame | None = None
    projection: str | None = None
    least_height: float = 0.0


@dataclass(frozen=True)
class Drawing:
    """A chart that is drawn."""

    chart: Chart
    figure: Figure
    axes: list[Axes]
    data: pd.DataFrame


def columns_that_fit(columns: int) -> int:
    """The number of panels that fit side by side, at most ``columns``."""
    size = options().size
    return columns if size is None else max(1, min(columns, int(size[0] / MIN_PANEL[0])))


def pages(chart: Chart) -> list[Chart]:
    """Split a chart into files of as many panels as there is room for, each named for what it shows."""
    size, most = options().size, MAX_PANELS
    if size is not None:
        rows = int((size[1] - LEGEND) / max(MIN_PANEL[1], chart.least_height))
        most = min(most, columns_that_fit(chart.columns) * max(1, rows))
    most -= most % chart.columns if chart.columns <= most else 0
    parts = [chart.panels[start : start + most] for start in range(0, len(chart.panels), most)]
    endings = page_names([[panel.title for panel in part] for part in parts])
    return [
        replace(chart, name=f"{chart.name}{ending}", panels=part) for ending, part in zip(endings, parts, strict=True)
    ]


def page_names(titles: Sequence[Sequence[str]]) -> list[str]:
    """The endings of file names: what tells the panels of these titles apart, or else a number.

    >>> page_names([["a, L = 8"], ["a, L = 16"]]), page_names([["h0, p", "h0, t"], ["h1, p", "h1, t"]])
    (['-L=8', '-L=16'], ['-h0', '-h1'])
    """
    if len(titles) == 1:
        return [""]
    distinct = _distinct_parts(titles)
    shared = [filter(set.intersection(*map(set, page)).__contains__, page[0]) for page in distinct]
    ends = [list(dict.fromkeys([*page[0][:1], *page[-1][:1]])) for page in distinct]
    for words, between in ((shared, "-"), (ends, "-to-")):
        names = [between.join(map(slug, parts))[:MAX_NAME] for parts in words]
        if all(names) and len(set(map(str.casefold, names))) == len(names):
            return [f"-{name}" for name in names]
    return [f"-{number}" for number in range(1, len(titles) + 1)]


def _distinct_parts(titles: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """The parts of the titles of each page that not all titles have."""
    split = [[re.split(r",? *\n|, ", title) for title in page] for page in titles]
    common = set.intersection(*(set(parts) for page in split for parts in page))
    return [[[part for part in parts if part not in common] for parts in page] for page in split]


def slug(text: str) -> str:
    """Text as a part of a file name."""
    return re.sub(r"[^\w.@=-]+", "-", re.sub(r" *= *", "=", text)).strip("-")


def draw(chart: Chart, new_figure: Callable[..., Figure] = Figure) -> list[Drawing]:
    """Draw every page of a chart, with one y range for the panels of a group on all of them."""
    with context():
        drawings = [_draw_page(page, new_figure) for page in pages(chart)]
        groups = [panel.group or panel for drawing in drawings for panel in drawing.chart.panels]
        same_range([ax for drawing in drawings for ax in drawing.axes], groups)
        for drawing in drawings:
            _finish(drawing)
    return drawings


def _draw_page(chart: Chart, new_figure: Callable[..., Figure]) -> Drawing:
    count = len(chart.panels)
    columns = columns_that_fit(min(chart.columns, count))
    rows = -(-count // columns)
    width, height = chart.alone if chart.alone and count == 1 else chart.panel_size
    figure = new_figure(layout="constrained")
    figure.set_size_inches(options().size or (max(width * columns, 6.4), height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": chart.projection})
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return Drawing(chart, figure, axes[:count], _fill(chart, axes[:count]))


def _fill(chart: Chart, axes: Sequence[Axes]) -> pd.DataFrame:
    """Draw the panels on axes; returns the numbers shown."""
    frames = []
    for ax, panel in zip(axes, chart.panels, strict=True):
        shown_rows = panel.draw(ax)
        if panel.title:
            narrow = chart.panel_size[0] < NARROW_PANEL and len(panel.title) > 14
            title = panel.title.replace(", ", ",\n").replace("(", "\n(", 1) if narrow else panel.title
            room = max(TITLE_LETTERS, int(TITLE_LETTERS * column_width(ax)))
            ax.set_title(plain("\n".join(textwrap.fill(line, room) for line in title.splitlines())))
        if shown_rows is not None:
            frames.append(shown_rows.assign(panel=panel.title))
    return pd.concat(frames, ignore_index=True) if chart.data is None else chart.data


def _finish(drawing: Drawing) -> None:
    """Add title, legend and, unless the size is given, the caption below, which makes the figure higher."""
    figure, wanted, chart = drawing.figure, options(), drawing.chart
    title = wanted.title or (chart.title if wanted.size is None else "")
    if title:
        figure.suptitle(plain(title))
    figure.set_label(printable(chart.caption))
    width, height = figure.get_size_inches()
    captioned = wanted.caption and wanted.size is None
    lines = textwrap.wrap(printable(chart.caption), width=int(width * 14)) if captioned else []
    caption = CAPTION_LINE * len(lines) + 0.1 * bool(lines)
    legend, legend_height = _legend(figure, drawing.axes)
    total = height + (caption + legend_height + 0.3 * bool(title) if wanted.size is None else 0.0)
    figure.set_size_inches(width, total)
    if legend:
        legend.set_bbox_to_anchor((0.5, caption / total))
    below = (caption + legend_height) / total
    figure.get_layout_engine().set(rect=(0, below, 1, 1 - below))  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    for ax in drawing.axes if wanted.size else ():  # a label longer than its panel is high stands on several lines
        rows = ax.get_gridspec().nrows  # pyright: ignore[reportOptionalMemberAccess]
        room = 72 * total * (1 - below) / rows / (0.6 * font_size())
        ax.set_ylabel(textwrap.fill(ax.get_ylabel(), max(10, int(room))))
    text = {"va": "bottom", "fontsize": 9, "color": "0.25", "linespacing": 1.25}
    if lines:
        figure.text(0.08 / width, 0.05 / total, plain("\n".join(lines)), **text)


def _entries(axes: Sequence[Axes]) -> dict[str, Artist]:
    entries: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(printable(label), handle)
    return entries


#: Shorter words for a figure that is too narrow for the usual ones.
SHORTER = {"antithetic": "anti", "orthogonal": "orth", " / ": "/", "uniform (mean of V)": "uniform", "Pareto ": ""}


def shorter(name: str, room: float = 16) -> str:
    """A name of more than ``room`` letters in fewer."""
    for word, short in SHORTER.items() if len(name) > room else ():
        name = name.replace(word, short)
    return name


def _legend(figure: Figure, axes: Sequence[Axes]) -> tuple[Legend | None, float]:
    """One legend for all panels, in as many columns as fit; its height in inches."""
    entries, width = _entries(axes), figure.bbox.width
    if options().size is not None:
        entries = dict(sorted(((shorter(name), entries[name]) for name in entries), key=lambda entry: len(entry[0])))
    for rows in range(max(1, -(-len(entries) // 6)), len(entries) + 1):
        legend = figure.legend(
            list(entries.values()), list(entries), ncols=-(-len(entries) // rows), loc="lower center",
            bbox_to_anchor=(0.5, 0.0), borderaxespad=0.0, borderpad=0.1, frameon=False,
        )  # fmt: skip
        box = legend.get_window_extent()
        if box.width <= width or rows == len(entries):
            legend.set_in_layout(False)
            return legend, box.height / figure.dpi + (0.08 if options().size is None else 0.02)
        legend.remove()
    return None, 0.0


def write(charts: Iterable[Chart], directory: Path) -> list[Path]:
    """Draw charts and save them; returns the files. Raises StoreError."""
    return [file for chart in charts for drawing in draw(chart) for file in save(drawing, directory)]


def save(drawing: Drawing, directory: Path) -> list[Path]:
    """Write a drawing as the options say, and its numbers as CSV; with a given size its caption as text, too."""
    wanted, name, caption = options(), drawing.chart.name, str(drawing.figure.get_label())
    if wanted.dark:
        darken(drawing.figure)
        name = f"{name}-dark"
    files = {f"{name}.{kind}": _image(drawing, kind, name) for kind in wanted.formats}
    files[f"{name}.csv"] = drawing.data.to_csv(index=False).encode()
    if wanted.size is not None:
        files[f"{name}.txt"] = f"{caption}\n".encode()
    for file, content in files.items():
        write_whole(directory / file, content)
    return [directory / file for file in files]


def _image(drawing: Drawing, kind: str, name: str, **more: Any) -> bytes:
    """The figure in a format, with title and caption in its metadata and no date: the same figure, the same bytes."""
    title, caption = options().title or name, str(drawing.figure.get_label())
    metadata = {
        "png": {"Title": title, "Description": caption, "Software": "favorbench"},
        "svg": {"Title": title, "Description": caption, "Date": None, "Creator": "favorbench"},
        "pdf": {"Title": title, "Subject": caption, "CreationDate": None, "Creator": "favorbench"},
    }[kind]
    image, dpi = io.BytesIO(), 150 if options().size is None else 300
    with context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is a box
        drawing.figure.savefig(image, format=kind, metadata=metadata, dpi=dpi, **more)
    if kind == "png":
        return _small_png(image, metadata, dpi)
    return _numbered_clips(image.getvalue(), name) if kind == "svg" else image.getvalue()


def _numbered_clips(svg: bytes, name: str) -> bytes:
    """Name clip paths in order: matplotlib's names depend on the last digits of a layout, which differ between runs."""
    names: dict[bytes, bytes] = {}
    form = "clip-" + re.sub(r"[^A-Za-z0-9]+", "-", name) + "-{}"  # figures share a page
    return re.sub(
        rb"\bp[0-9a-f]{10}\b", lambda match: names.setdefault(match[0], form.format(len(names)).encode()), svg
    )


def _small_png(image: io.BytesIO, metadata: dict[str, Any], dpi: int) -> bytes:
    """A PNG of 256 colours, a third of the size: half are the most frequent, the others those farthest from them."""
    about, small = PngImagePlugin.PngInfo(), io.BytesIO()
    for key, text in metadata.items():
        about.add_itxt(key, text)
    pixels = np.asarray(Image.open(image).convert("RGB"))
    codes = pixels.astype(np.int64) @ [1 << 16, 1 << 8, 1]
    colours, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    parts = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1)
    kept = np.argsort(-counts, kind="stable")[:128].tolist()
    away = np.asarray(KDTree(parts[kept]).query(parts)[0])
    while away.any() and len(kept) < 256:  # rare colours, as of a marker in a legend, would look like another's
        kept.append(int(away.argmax()))
        away = np.minimum(away, np.linalg.norm(parts - parts[kept[-1]], axis=-1))
    nearest = np.asarray(KDTree(parts[kept]).query(parts)[1])
    indexed = Image.fromarray(nearest[places.reshape(codes.shape)].astype(np.uint8)).convert("P")
    indexed.putpalette(parts[kept].astype(np.uint8).tobytes())
    indexed.save(small, format="png", optimize=True, pnginfo=about, dpi=(dpi, dpi))
    return small.getvalue()


def page_svg(drawing: Drawing) -> str:
    """A drawing as inline SVG: without fonts, files or style sheets; its colours are CSS variables (``page_css``)."""
    name = f"{drawing.chart.name}-{zlib.crc32(drawing.chart.title.encode()):x}"  # the name alone may be on a page twice
    text = _image(drawing, "svg", name, transparent=True).decode()
    described = f'role="img" aria-label="{html.escape(drawing.chart.title)}" fill="{_variable("#000000")}"'
    text = text[text.index("<svg ") :]
    text = re.sub(r"(?s)<title>.*?</title>|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text)
    text = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", text)  # HTML does not need them
    text = re.sub(r' id="(?:[a-z][a-z0-9]*_\d+|matplotlib[^"]*)"| (?:width|height)="[\d.]+pt"', "", text)
    text = re.sub(r' style="([^"]*)"', _attributes, text)
    # One decimal place is enough for coordinates; text keeps its numbers.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=\d\.\d)\d+", "", tag[0]), text)
    text = text.replace("<svg ", f"<svg {described} ", 1)
    return re.sub(r"\s+(?=[<\"])|\s*\n\s*", " ", text).replace("> <", "><")


def _attributes(match: re.Match[str]) -> str:
    """Presentation attributes in the place of a style, which a page's content security policy may refuse."""
    attributes = ""
    for name, value in re.findall(r"([\w-]+): *([^;]+)", html.unescape(match[1])):
        if name == "font":
            name, value = "font-size", value.split("px")[0].split()[-1]
        if name not in ("font-family", "stroke-linejoin"):
            attributes += f' {name}="{_variable(value) if value.startswith("#") else html.escape(value)}"'
    return attributes


def _on_dark(colour: str) -> str:
    return to_hex(on_dark(colour))


def _variable(colour: str) -> str:
    """A colour, as a variable if a dark ground changes it."""
    return colour if _on_dark(colour) == colour else f"var(--f{colour[1:]},{colour})"


def page_css(svgs: Iterable[str]) -> str:
    """A style sheet with the colours of these figures on a dark ground."""
    colours = sorted({colour for text in svgs for colour in re.findall(r"var\(--f(\w{6}),", text)})
    values = ";".join(f"--f{colour}:{_on_dark(f'#{colour}')}" for colour in colours)
    return f"@media screen and (prefers-color-scheme:dark){{:root{{{values}}}}}"


def plot(name: str, charts: Sequence[Chart], ax: "Axes | Sequence[Axes] | None") -> list[Axes]:
    """Draw charts on a user's own axes, one for each panel, or else in figures of pyplot.

    Raises ScenarioError for nothing to draw, and for another number of axes.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        plt.draw_if_interactive()  # loads the backend, which in a notebook changes settings that a style would reset
        return [ax for chart in charts for drawing in draw(chart, plt.figure) for ax in drawing.axes]
    panels = [panel for chart in charts for panel in chart.panels]
    axes = list(getattr(ax, "flat", ax if isinstance(ax, Iterable) else [ax]))
    for given in axes:
        if not isinstance(given, Axes):
            raise ScenarioError(f"`ax`: {shown(given)} given, allowed: Axes of matplotlib, one or a list of them")
    if len(axes) != len(panels):
        raise ScenarioError(
            f"`ax`: {len(axes)} axes were given, and {name!r} has {len(panels)} panels here: give a list of as many, "
            "or leave `ax` out; `heads` draws single heads"
        )
    _fill(replace(charts[0], panels=panels), axes)
    entries = _entries(axes)
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
    axes[0].legend(
        list(entries.values()), list(entries), fontsize="small", frameon=False, **(below if len(entries) > 6 else {})
    )
    return axes
