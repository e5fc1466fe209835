"""What speed found, for a terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable

from favorbench.console.terminal import print_line
from favorbench.formats import format_value

if TYPE_CHECKING:
    from favorbench.studies.speed.study import SpeedStudy


def show_speed(console: Console, study: "SpeedStudy") -> None:
    """Milliseconds for each method and L, the fitted slope, and the crossover; then peak memory at the largest L."""
    print_line(console, f"seconds of one head, {study.where}, {study.dtype}, d = {study.head_dim}", "bold")
    rich_table = RichTable(box=None, pad_edge=False)
    shown = study.lengths if console.width >= 100 else study.lengths[-4:]
    for name in ("method", *(f"L={length}" for length in shown), "slope", "faster from L", "MiB"):
        rich_table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for crossover in study.crossovers:
        timings = study.of(crossover.method)
        times = [format_value(t.seconds, "seconds") for t in timings if t.seq_len in shown]
        memory = timings[-1].memory_bytes
        mark = "?" if crossover.uncertain else ""
        slope = "-" if math.isnan(crossover.slope) else f"{crossover.slope:.2f}{mark}"
        rich_table.add_row(
            crossover.method, *times, slope, _crossing(crossover.seq_len, study.lengths),
            "-" if memory is None else f"{memory / 2**20:.3g}",
        )  # fmt: skip
    console.print(rich_table)
    text = (
        f"Medians of {study.repeats} runs taken in turns. Slope: of log time on log L, upper half of the lengths. "
        f"MiB: allocated at the peak for L = {study.lengths[-1]}, beside the inputs. Faster: than the faster exact one."
    )
    for crossover in study.crossovers:
        if crossover.uncertain:
            within = f"{crossover.low:.1f} to {crossover.high:.1f}"
            text += (
                f" ? {crossover.method}: its times differ so much that the slope may be {within}; was the machine busy?"
            )
    print_line(console, text, "dim")


def _crossing(seq_len: float, lengths: Sequence[int]) -> str:
    """Where linear attention overtakes; "-" for exact attention itself."""
    if math.isnan(seq_len):
        return "-"
    if math.isinf(seq_len):
        return f"> {lengths[-1]}"
    return f"{seq_len:.0f}" if seq_len > 0 else f"<= {lengths[0]}"
