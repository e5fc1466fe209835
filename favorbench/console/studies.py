"""What verify, theory, kernel, speed, audit and reproduce found, for a terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from favorbench.formats import format_value

if TYPE_CHECKING:
    from favorbench.studies.audit import Finding
    from favorbench.studies.blog.reproduce import Report
    from favorbench.studies.kernel.study import Cell, GramStudy
    from favorbench.studies.speed.study import SpeedStudy
    from favorbench.studies.theory.study import TheoryStudy
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


def show_theory(console: Console, study: "TheoryStudy") -> None:
    """Relative standard deviation of the kernel estimate for each norm and R: closed form, and measured beneath it."""
    sizes = sorted({point.num_projections for point in study.points})
    console.print(Text(study.title, style="bold"), soft_wrap=not console.is_terminal)
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


def show_gram(console: Console, study: "GramStudy") -> None:
    """Error of the approximated Gram matrix for each map, sampler and R, under the answer that the mean of K is."""
    console.print(Text(study.title, style="bold"), soft_wrap=not console.is_terminal)
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
    console.print(Text(text, style="dim"), soft_wrap=not console.is_terminal)
    for gap in study.gaps()[-1:]:
        console.print(
            Text(
                f"phase less trig, both {gap.num_features} features, {gap.sampler}: squared error {gap.expected:.2e} "
                f"in closed form, {gap.measured:.2e} [{gap.low:.2e}, {gap.high:.2e}] measured."
            ),
            soft_wrap=not console.is_terminal,
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


def show_speed(console: Console, study: "SpeedStudy") -> None:
    """Milliseconds for each method and L, the fitted slope, and the crossover; then peak memory at the largest L."""
    title = f"seconds of one head, {study.where}, {study.dtype}, d = {study.head_dim}"
    console.print(Text(title, style="bold"), soft_wrap=not console.is_terminal)
    rich_table = RichTable(box=None, pad_edge=False)
    shown = study.lengths if console.width >= 100 else study.lengths[-4:]
    for name in ("method", *(f"L={length}" for length in shown), "slope", "faster from L", "MiB"):
        rich_table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for crossover in study.crossovers:
        timings = study.of(crossover.method)
        times = [format_value(t.seconds, "seconds") for t in timings if t.seq_len in shown]
        memory = timings[-1].memory_bytes
        slope = "-" if math.isnan(crossover.slope) else f"{crossover.slope:.2f}"
        rich_table.add_row(
            crossover.method, *times, slope, _crossing(crossover.seq_len, study.lengths),
            "-" if memory is None else f"{memory / 2**20:.3g}",
        )  # fmt: skip
    console.print(rich_table)
    text = (
        f"Medians of {study.repeats} runs taken in turns. Slope: of log time on log L, upper half of the lengths. "
        f"MiB: allocated at the peak for L = {study.lengths[-1]}, beside the inputs. Faster: than the faster exact one."
    )
    console.print(Text(text, style="dim"), soft_wrap=not console.is_terminal)


def _crossing(seq_len: float, lengths: Sequence[int]) -> str:
    """Where linear attention overtakes; "-" for exact attention itself."""
    if math.isnan(seq_len):
        return "-"
    if math.isinf(seq_len):
        return f"> {lengths[-1]}"
    return f"{seq_len:.0f}" if seq_len > 0 else f"<= {lengths[0]}"


def show_audit(console: Console, findings: "Sequence[Finding]", runs: int) -> None:
    """Findings, one input after another, each with its interval and a remark where there is something to say."""
    previous = None
    for finding in findings:
        if (finding.subject, finding.input) != previous:
            console.print(Text(f"{finding.subject}: {finding.input}", style="bold"))
            previous = finding.subject, finding.input
        interval = f" [{finding.low:.3g}, {finding.high:.3g}]" if finding.low == finding.low else ""
        line = f"  {finding.measure:38} {finding.median:8.3g}{interval}"
        style = "bold red" if finding.remark.startswith(("REFUTED", "its output", "it fails")) else "dim"
        console.print(Text(line) + Text(f"  {finding.remark}", style=style), soft_wrap=not console.is_terminal)
    console.print(
        Text(
            f"Medians of {runs} runs, 95 % intervals, R = 256. Errors are relative (Frobenius). Distance to uniform: "
            "as a share of exact attention's own distance from the mean of V. Samplers: the statistic of each test.",
            style="dim",
        )
    )


def _statistic(value: float | None) -> str:
    """Nothing where there is no statistic; nan where it is not a number."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 1e4 else f"{value:.0e}"


def _verdict(verdict: str) -> Text:
    return Text(verdict, style={"holds": "green", "REFUTED": "bold red"}.get(verdict, "dim"))


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
    console.print(Text(report.changed), soft_wrap=not console.is_terminal)
    for claim in report.claims:
        mark = Text("ok   ", style="green") if claim.holds else Text("FAIL ", style="bold red")
        version = "" if claim.version == "both" else f"{claim.version}: "
        console.print(mark + Text(f"{version}{claim.text}: {claim.measured}"), soft_wrap=not console.is_terminal)
    console.print(
        Text(f"Files: {', '.join(str(file) for file in report.files if file.suffix == '.png')} (and .svg, .csv)"),
        soft_wrap=not console.is_terminal,
    )
    console.print()
