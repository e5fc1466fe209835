"""What reproduce found, for a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from favorbench.console.terminal import print_line

if TYPE_CHECKING:
    from favorbench.studies.blog.reproduce import Report


def show_report(console: Console, report: "Report") -> None:
    """A reproduced figure: table, what changed, claims, files."""
    from favorbench.studies.blog.reproduce import side_by_side

    console.print(Text(report.figure, style="bold"))
    wide = side_by_side(report)
    if len(wide):
        rich_table = RichTable(box=None, pad_edge=False)
        for name in wide.columns:
            rich_table.add_column(name, justify="right")
        for row in wide.itertuples(index=False):
            rich_table.add_row(*(Text(str(value)) for value in row))
        console.print(rich_table)
        console.print(
            Text("Mean ± population standard deviation of the output MSE, as the post shows them.", style="dim")
        )
    print_line(console, report.changed)
    for claim in report.claims:
        mark = Text("ok   ", style="green") if claim.holds else Text("FAIL ", style="bold red")
        version = "" if claim.version == "both" else f"{claim.version}: "
        print_line(console, mark + Text(f"{version}{claim.text}: {claim.measured}"))
    images = [str(file) for file in report.files if file.suffix == ".png"]
    print_line(console, f"Files: {', '.join(images)} (and .svg, .csv)")
    console.print()
