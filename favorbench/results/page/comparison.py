"""Two runs as one page: what has changed, row by row, cell by cell."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pandas as pd

from favorbench.engine.columns import CELL
from favorbench.formats import HEADINGS
from favorbench.results import comparison_text as text
from favorbench.results.compare import Row, RunComparison
from favorbench.results.page import parts, svg, tables
from favorbench.results.page.document import Page, fitted, packed, write
from favorbench.results.page.parts import Section
from favorbench.results.page.text import embedded, escaped

MOST = 2000  # rows, above which only those that have changed are shown
DRAWN = 60  # rows in a figure, at most
NAMES, ROW = 300, 17
SHAPES = {"+": ("s1", "up"), "-": ("s0", "down")}


def comparison_page(found: RunComparison, name: str = "report") -> Page:
    """Two runs compared, as HTML; name: of the CSV, without its ending."""
    only_changed = len(found.rows) > MOST
    rows = text.chosen(found, only_changed)
    estimators = list(dict.fromkeys(row.new_estimator for row in rows))
    labels = [(one, sampler or "-") for one, _, sampler in (name.partition(" / ") for name in estimators)]
    groups = [(title, list(group)) for title, group in groupby(rows, key=lambda row: row.cell)]
    keys = pd.DataFrame([group[0].key.cell for _, group in groups], columns=list(CELL))
    axes = [axis for axis in CELL if axis not in ("query_len", "query_rows") and keys[axis].nunique() > 1]
    cells = [parts.names_of(row, axes) for _, row in keys.iterrows()]
    numbers = {name: i for i, name in enumerate(estimators)}
    sections = [_section(found, title, group, numbers, i) for i, (title, group) in enumerate(groups)]
    less = [f"Only the rows that have changed are shown, of {len(found.rows)}."] if only_changed else []
    reasons = [f"x {reason}" for reason in text.reasons(found)]
    data, beside = packed(_csv(found), f"{name}.csv", f"{len(found.rows)} rows, with six digits")
    values = {
        "title": escaped(f"{found.old.path} against {found.new.path}"),
        "lead": "".join(f"<p class=note>{escaped(side)}</p>" for side in text.sides(found)),
        "filters": parts.filters(labels, {axis: dict.fromkeys(cell[axis] for cell in cells) for axis in axes}),
        "legends": f"<p>{escaped(_HOW)}</p>\n",
        "data": data,
        "manifest": "".join(
            f"<h3>{side}</h3>{parts.manifest(run)}" for side, run in (("old", found.old), ("new", found.new))
        ),
        "names": embedded(parts.names_for_script(labels, cells)),
    }
    return Page(fitted(values, parts.listed([*text.sentences(found), *less, *reasons]), sections), beside)


_HOW = (
    "Each row is one estimator at one size in one cell: the median error in the old and in the new run, and the median "
    "of new / old over the draws with its interval. + worse, - better, ~ neither is detectable, = the same."
)


def write_comparison(found: RunComparison, path: Path) -> list[Path]:
    """Write the page, and where they are too large to be in it the data beside it; as ``write_page`` does."""
    return write(lambda: comparison_page(found, path.stem), path, _csv(found).partition("\n")[0])


def _csv(found: RunComparison) -> str:
    return found.frame().to_csv(index=False, float_format="%.6g")


def _section(found: RunComparison, title: str, rows: Sequence[Row], numbers: dict[str, int], number: int) -> Section:
    """One cell: its rows, and their ratios drawn."""
    head = ["change", "estimator", HEADINGS.get(found.axis, found.axis), "old", "new", "new / old"]
    head.append(text.interval_name(found))
    compared = [row for row in rows if row.change]
    lines = []
    for row in compared:
        name, *values = text.texts(row, found.metric)
        cells = "".join(f"<td>{escaped(value or '-')}" for value in values)
        worse = " class=w" if row.mark == "+" else ""
        mark = f"<td class=t>{row.mark} {escaped(row.change.verdict if row.change else '')}"
        lines.append(f"<tr data-e={numbers[name]}{worse}>{mark}<th scope=row>{escaped(name)}{cells}")
    start = f"<section data-c={number}><h2>{escaped(title)}</h2>\n"
    body = tables.table(f"{found.metric}, {title}: new / old", head, lines, 2) if lines else ""
    return Section(start, body, _ratios(found, title, compared, numbers), "</section>\n")


def _ratios(found: RunComparison, title: str, rows: Sequence[Row], numbers: dict[str, int]) -> str:
    """A row for each ratio with its interval; the line is no change."""
    changes = [(row, row.change) for row in rows[:DRAWN] if row.change and row.change.ratio > 0]
    ends = [value for _, change in changes for value in (change.low, change.ratio, change.high)]
    axis = svg.log_axis("new / old", [*ends, 1 / found.factor, found.factor], 1e-6, 1e6)
    if not changes or axis is None:
        return ""
    plot = svg.Plot(axis, None, (760, ROW * len(changes) + 66), NAMES)
    one = plot.across(1.0)
    plot.add(plot.line(one, plot.top, one, plot.bottom, "one"))
    for place, (row, change) in enumerate(changes):
        y, (look, shape) = plot.top + ROW * (place + 0.75), SHAPES.get(row.mark, ("o", "m0"))
        name, *values = text.texts(row, found.metric)
        said = f"{name}, {values[0]}: {values[3]} ({values[4]}), {change.verdict}"
        plot.add(f'<g class="{look}" data-e="{numbers[name]}">')
        plot.add(plot.text(NAMES - 8, y + 4, f"{name} {values[0]}", "end"))
        plot.add(plot.line(plot.across(change.low), y, plot.across(change.high), y, "q"))
        plot.add(svg.mark(shape, plot.across(change.ratio), y, said), "</g>")
    left = f" The first {DRAWN} of {len(rows)} rows." if len(rows) > DRAWN else ""
    note = f"new / old with its interval; triangle up: worse, down: better.{left}"
    label = f"new / old of {len(changes)} rows of {title}; the values are in the table"
    return (
        f'<figure class=wide><div class=scroll tabindex=0 role=region aria-label="figure">{plot.svg(label)}</div>'
        f"<figcaption>{escaped(note)}</figcaption></figure>\n"
    )
