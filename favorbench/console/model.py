"""What ``favorbench model`` prints."""

from rich.console import Console

from favorbench.console.tables import show_records
from favorbench.console.terminal import print_line
from favorbench.formats import printable
from favorbench.models.report import note, sentences, tables
from favorbench.models.summary import Study


def show_model(console: Console, study: Study) -> None:
    """The tables, what their columns are, and the sentences."""
    for title, records in tables(study):
        show_records(console, records, title)
        console.print()
    console.print(note(study), style="dim")
    for one in sentences(study):
        print_line(console, printable(one))
