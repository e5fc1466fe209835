"""What audit found, for a terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from favorbench.console.terminal import print_line

if TYPE_CHECKING:
    from favorbench.studies.audit import Finding


def show_audit(console: Console, findings: "Sequence[Finding]", runs: int, size: int | None = None) -> None:
    """Findings, one input after another, each with its interval and a remark where there is something to say."""
    previous = None
    for finding in findings:
        if (finding.subject, finding.input) != previous:
            console.print(Text(f"{finding.subject}: {finding.input}", style="bold"))
            previous = finding.subject, finding.input
        interval = "" if math.isnan(finding.low) else f" [{finding.low:.3g}, {finding.high:.3g}]"
        line = Text(f"  {finding.measure:38} {finding.median:8.3g}{interval}")
        print_line(console, line + Text(f"  {finding.remark}", style="bold red" if finding.fault else "dim"))
    text = (
        f"Medians of {runs} runs, 95 % intervals, R = {size or 256}. Errors are relative (Frobenius). "
        "Distance to uniform: as a share of exact attention's own distance from the mean of V. "
        "Samplers: the statistic of each test."
    )
    console.print(Text(text, style="dim"))
