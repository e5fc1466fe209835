"""Tables for a terminal: of values, coloured by what they are worth, and of records."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from favorbench.console.terminal import print_line
from favorbench.formats import HEADINGS, format_value, printable

if TYPE_CHECKING:
    from favorbench.results.tables import Table

NARROWEST = 20  # characters to which a column of names may shrink


def show_table(console: Console, table: "Table", metric: str, note: str = "") -> None:
    """A table of values: green where better than uniform attention, red and * where worse; and a note below it."""
    shown = _columns_that_fit(console.width, table, metric)
    rich_table = RichTable(box=None, pad_edge=False)
    for name in table.labels:
        rich_table.add_column(HEADINGS.get(name, name), no_wrap=True)
    heading = HEADINGS.get(table.axis, table.axis)
    for i in shown:
        rich_table.add_column(Text(printable(f"{heading}={table.columns[i]}")), justify="right", no_wrap=True)
    for labels, values, worse in table.rows:
        cells = [Text(printable(str(label))) for label in labels]
        cells += [_value(values[i], worse[i], metric, table.floor, is_uniform="uniform" in labels) for i in shown]
        rich_table.add_row(*cells)
    if table.title:
        print_line(console, printable(table.title), "bold")
    console.print(rich_table)
    hidden = len(table.columns) - len(shown)
    if hidden:
        note += f" {hidden} of {len(table.columns)} columns do not fit: widen the terminal, or ask for --format md."
    if note:
        print_line(console, note.strip(), "dim")
    console.print()


def show_records(console: Console, records: Sequence[Mapping[str, object]], title: str = "", note: str = "") -> None:
    """A plain list: one row for each record. Long names are broken where the other columns then fit.

    Columns that do not fit follow below, beside the first one again.
    """
    if title:
        print_line(console, printable(title), "bold")
    records = [{name: printable(str(value)) for name, value in record.items()} for record in records]
    first, *rest = records[0]
    widths = {name: max(len(value) for value in [name, *(r[name] for r in records)]) for name in records[0]}
    left = console.width - sum(2 + widths[name] for name in rest)
    if NARROWEST <= left < widths[first]:
        records = [record | {first: _broken(record[first], left)} for record in records]
        widths[first] = left
    groups: list[list[str]] = []
    for name in rest:
        if not groups or widths[first] + sum(2 + widths[one] for one in [*groups[-1], name]) > console.width:
            groups.append([])
        groups[-1].append(name)
    for i, group in enumerate(groups):
        rich_table = RichTable(box=None, pad_edge=False)
        for name in (first, *group):
            rich_table.add_column(name, no_wrap=name == first or len(group) > 1, overflow="fold")
        for record in records:
            rich_table.add_row(*(Text(record[name]) for name in (first, *group)))
        if i:
            console.print()
        console.print(rich_table)
    if note:
        print_line(console, note, "dim")
    if title or note:
        console.print()


def _broken(name: str, width: int) -> str:
    """A name over several lines, broken after its colons, commas and parentheses, the later lines indented."""
    lines = [""]
    for part in re.findall(r"[^ :,(]*[ :,(]?", name):
        if lines[-1].strip() and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _value(value: float, worse: bool, metric: str, floor: float, is_uniform: bool) -> Text:
    text = format_value(value, metric, floor)
    if text == "-" or is_uniform:
        return Text(text + " ", style="dim" if text == "-" else "")
    return Text(text + "*", style="red") if worse else Text(text + " ", style="green")


def _columns_that_fit(width: int, table: "Table", metric: str) -> list[int]:
    """All columns, or as many as fit, spread evenly from the first to the last."""
    label_width = sum(
        max([len(HEADINGS.get(name, name)), *(len(printable(str(labels[i]))) for labels, _, _ in table.rows)]) + 2
        for i, name in enumerate(table.labels)
    )
    heading = HEADINGS.get(table.axis, table.axis)
    column_width = 2 + max(
        [len(f"{heading}={value}") for value in table.columns]
        + [len(format_value(value, metric, table.floor)) + 1 for _, values, _ in table.rows for value in values],
        default=1,
    )
    count, fit = len(table.columns), max(1, (width - label_width + 2) // column_width)
    if fit >= count:
        return list(range(count))
    if fit == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (fit - 1)) for i in range(fit)})
