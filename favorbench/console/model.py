"""What ``favorbench model`` prints."""

from rich.console import Console

from favorbench.console.tables import show_records
from favorbench.console.terminal import print_line
from favorbench.formats import printable
from favorbench.models.report import note, tables
from favorbench.models.summary import Study, sentence


def show_model(console: Console, study: Study) -> None:
    """The tables, what their columns are, and the sentence."""
    for title, records in tables(study):
        show_records(console, records, title)
        console.print()
    console.print(note(study), style="dim")
    print_line(console, printable(sentence(study.rows)))
