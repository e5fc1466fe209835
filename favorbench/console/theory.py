"""What theory found, for a terminal."""

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from favorbench.console.terminal import print_line
from favorbench.formats import format_value

if TYPE_CHECKING:
    from favorbench.studies.theory.study import TheoryStudy


def show_theory(console: Console, study: "TheoryStudy") -> None:
    """Relative standard deviation of the kernel estimate for each norm and R: closed form, and measured beneath it."""
    sizes = sorted({point.num_projections for point in study.points})
    print_line(console, study.title, "bold")
    rich_table = RichTable(box=None, pad_edge=False)
    for name in ("|x| = |y|", "", *(f"R={size}" for size in sizes), f"R for {study.target:g}"):
        rich_table.add_column(name, justify="right", no_wrap=True)
    for norm, needed in study.needed.items():
        points = [point for point in study.points if point.norm == norm]
        rich_table.add_row(
            f"{norm:g}", "theory", *(format_value(p.closed_form, "relative_error") for p in points),
            "-" if needed is None else str(needed),
        )  # fmt: skip
        if study.draws:
            measured = [
                format_value(p.measured, "relative_error") if math.isfinite(p.measured) else "gate" for p in points
            ]
            rich_table.add_row("", "measured", *measured, "", style="dim")
    console.print(rich_table)
    text = "Relative standard deviation of phi(x).phi(y) against exp(x.y), x and y scaled by d^-1/4."
    if study.draws:
        text += f" Measured: {study.draws} draws; gate: not measurable by sampling with so few, the closed form stands."
    console.print(Text(text, style="dim"))
