"""What compare found, for a terminal."""

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from favorbench.console.terminal import print_line
from favorbench.formats import HEADINGS, printable

if TYPE_CHECKING:
    from favorbench.results.compare import Row, RunComparison

_STYLES = {"+": "bold red", "-": "green", "x": "yellow"}


def show_comparison(console: Console, found: "RunComparison", only_changed: bool) -> None:
    """A table for each cell, then why rows are not comparable, then what it all amounts to."""
    from favorbench.results import comparison_text as text

    for line in text.sides(found):
        print_line(console, printable(line), "dim")
    for cell, rows in groupby(text.chosen(found, only_changed), key=lambda row: row.cell):
        listed = [row for row in rows if row.change]
        if listed:
            print_line(console, printable(f"{found.metric}, {cell}"), "bold")
            console.print(_table(found, listed))
    for reason in text.reasons(found):
        print_line(console, Text("x ", style=_STYLES["x"]) + Text(printable(reason)))
    for sentence in text.sentences(found):
        print_line(console, printable(sentence))


def _table(found: "RunComparison", rows: "Iterable[Row]") -> RichTable:
    from favorbench.results import comparison_text as text

    table = RichTable(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("estimator", overflow="fold")
    for name in (HEADINGS.get(found.axis, found.axis), "old", "new", "new/old", text.interval_name(found)):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = (Text(printable(cell)) for cell in text.texts(row, found.metric))
        table.add_row(Text(row.mark, style=_STYLES.get(row.mark, "dim")), *cells)
    return table
