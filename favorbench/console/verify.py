"""What verify found, for a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:
    from favorbench.studies.verify import Verification
    from favorbench.studies.verify.controls import Caught


def show_verification(console: Console, result: "Verification", controls: "Sequence[Caught]") -> None:
    """Claims with statistic, threshold and verdict; then controls; then a line that says what it all amounts to."""
    rich_table = RichTable(box=None, pad_edge=False)
    for name in ("subject", "claim", "statistic", "limit", "verdict"):
        rich_table.add_column(name, justify="right" if name in ("statistic", "limit") else "left", no_wrap=True)
    wide = console.width >= 130
    if wide:
        rich_table.add_column("measured", no_wrap=True)
    for check in result.checks:
        cells = [Text(check.subject), Text(check.claim), Text(_statistic(check.statistic))]
        cells += [Text("" if check.threshold is None else f"{check.threshold:.2f}"), _verdict(check.verdict)]
        rich_table.add_row(*cells, *([Text(check.detail, style="dim")] if wide else []))
    console.print(rich_table)
    if controls:
        console.print(Text("\nKnown mistakes, claimed to be right", style="bold"))
        for control in controls:
            by = control.caught_by
            mark = Text("MISSED ", style="bold red") if by is None else Text("caught ", style="green")
            how = "" if by is None else f": {by.claim}, {_statistic(by.statistic)} over {by.threshold or 0.0:.2f}"
            console.print(mark + Text(f"{control.control} ({control.mistake}){how}"), soft_wrap=not console.is_terminal)
    claimed = sum(check.threshold is not None for check in result.checks)
    missed = sum(control.caught_by is None for control in controls)
    text = f"\n{claimed - len(result.refuted)} of {claimed} claims hold"
    text += f", {len(controls) - missed} of {len(controls)} known mistakes are caught" if controls else ""
    console.print(Text("Statistic: the largest |z| of the tests, or an error over its bound (limit 1).", style="dim"))
    console.print(Text(f"{text}. {result.power()}."), soft_wrap=not console.is_terminal)


def _statistic(value: float | None) -> str:
    """Nothing where there is no statistic; nan where it is not a number."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 1e4 else f"{value:.0e}"


def _verdict(verdict: str) -> Text:
    from favorbench.studies.verify.checks import HOLDS, REFUTED

    return Text(verdict, style={HOLDS: "green", REFUTED: "bold red"}.get(verdict, "dim"))
