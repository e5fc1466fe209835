"""What kernel found, for a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from favorbench.console.terminal import print_line
from favorbench.formats import format_value

if TYPE_CHECKING:
    from favorbench.studies.kernel.study import Cell, GramStudy


def show_gram(console: Console, study: "GramStudy") -> None:
    """Error of the approximated Gram matrix for each map, sampler and R, under the answer that the mean of K is."""
    print_line(console, study.title, "bold")
    rich_table = RichTable(box=None, pad_edge=False)
    wide = console.width >= 90
    for name in ("map", "sampler", "R", "features", "error", "expected", "max", "bias", "spread"):
        rich_table.add_column(name, justify="left" if name in ("map", "sampler") else "right", no_wrap=True)
    if wide:
        rich_table.add_column("best", justify="right", no_wrap=True)
    rich_table.add_row("mean of K", "none", "-", "1", f"{format_value(study.mean_error, 'relative_error')} ")
    for cell in study.cells:
        rich_table.add_row(*_gram_row(cell, study.mean_error, wide))
    console.print(rich_table)
    text = (
        f"error: |estimate - K| / |K| (Frobenius), median of {study.draws} draws; * worse than the mean of K. "
        "expected: root mean square in closed form. max: largest |estimate - K|. bias, spread: mean and standard "
        "deviation over draws, all pairs together; ! more bias than chance explains."
    )
    text += " best: of any matrix of as many features." if wide else ""
    if not all(cell.measurable for cell in study.cells):
        text += " ~ too small: so few draws cannot measure it, the closed form stands."
    print_line(console, text, "dim")
    for gap in study.gaps()[-1:]:
        print_line(
            console,
            f"phase less trig, both {gap.num_features} features, {gap.sampler}: squared error {gap.expected:.2e} "
            f"in closed form, {gap.measured:.2e} [{gap.low:.2e}, {gap.high:.2e}] measured.",
        )


def _gram_row(cell: "Cell", mean_error: float, wide: bool) -> list[Text]:
    worse = cell.median > mean_error
    error = Text(
        f"{format_value(cell.median, 'relative_error')}{'' if cell.measurable else '~'}{'*' if worse else ' '}",
        style="red" if worse else "green",
    )
    shown = [Text(text) for text in (cell.map, cell.sampler, str(cell.num_projections or "-"), str(cell.num_features))]
    shown += [error, Text(format_value(cell.expected, "relative_error"))]
    shown += [Text(format_value(cell.max_abs_error, "max_abs_error"))]
    shown += [Text(format_value(cell.bias, "relative_error") + ("!" if cell.biased else " "))]
    shown += [Text(format_value(cell.spread, "relative_error"))]
    return shown + ([Text(format_value(cell.best, "relative_error"))] if wide else [])
