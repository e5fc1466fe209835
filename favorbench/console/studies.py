"""Sections of the studies: tables, the meaning of their columns, and conclusions."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorbench.formats import counted, format_bytes, format_value
from favorbench.sections import Section

if TYPE_CHECKING:
    from favorbench.models.captured import Captured
    from favorbench.results.seconds import Seconds
    from favorbench.studies.audit import Finding
    from favorbench.studies.blog import Report
    from favorbench.studies.kernel import GramStudy
    from favorbench.studies.speed.study import SpeedStudy
    from favorbench.studies.theory import TheoryStudy
    from favorbench.studies.verify import Verification
    from favorbench.studies.verify.controls import Caught


def _style(column: str, styles: dict[str, str]) -> Callable[[str, str], str]:
    """The style of the cells of one column, by their text."""
    return lambda name, text: styles.get(text, "") if name == column else ""


def _relative(value: float) -> str:
    return format_value(value, "relative_error")


def seconds_sections(timed: "Seconds") -> list[Section]:
    """For each population of heads: seconds with their interval, and the share of exact attention's."""
    from favorbench.results.seconds import by_cell, exact_seconds
    from favorbench.results.summary import estimator_name
    from favorbench.sections import dedupe_notes
    from favorbench.statistics import interval_name

    note = f"{timed.on()}: median of {timed.repeats} interleaved runs. {timed.doubts()}".strip()
    sections = []
    for title, rows in by_cell(timed):
        exact, texts = exact_seconds(rows), []
        for row in rows.astype(object).to_dict(orient="records"):
            seconds, low, high = (format_value(row[name], "seconds") for name in ("seconds", "low", "high"))
            texts.append({
                "estimator": estimator_name(row),
                "R": str(row["num_projections"] or "-"),
                "seconds": seconds, interval_name(timed.repeats): f"{low} to {high}",
                "/ exact": f"{row['seconds'] / exact:.2g}",
            })  # fmt: skip
        sections.append(Section(f"seconds of {title}", texts, note))
    return list(dedupe_notes(sections))


def audit_sections(findings: "Sequence[Finding]", runs: int, size: int | None = None) -> list[Section]:
    """Findings of each input, with an interval, and a remark where there is something to say."""
    from favorbench.studies.audit import METHOD_SIZE, NUM_PROJECTIONS

    sections, faults = [], {finding.remark: "bold red" for finding in findings if finding.fault}
    for (subject, name), group in groupby(findings, key=lambda finding: (finding.subject, finding.input)):
        rows = [
            {
                "measure": measure.measure, "median": f"{measure.median:.3g}",
                "interval": "" if math.isnan(measure.low) else f"[{measure.low:.3g}, {measure.high:.3g}]",
                "remark": measure.remark,
            }
            for measure in group
        ]  # fmt: skip
        sections.append(Section(f"{subject}: {name}", rows, style=_style("remark", faults)))
    sizes = f"R = {size or NUM_PROJECTIONS}, methods: m = {size or METHOD_SIZE}"
    note = (
        f"Medians of {runs} runs, 95 % intervals; {sizes}. Errors are relative (Frobenius). "
        "Distance to uniform: as a share of exact attention's own distance from the mean of V. "
        "Samplers: the statistic of each test."
    )
    return [*sections, Section(note=note)]


def speed_section(study: "SpeedStudy") -> Section:
    """Seconds of each estimator and L, the fitted slope, and the break-even length; peak memory at the largest L."""
    rows, lengths = [], study.lengths
    text = (
        f"Medians of {study.repeats} interleaved runs. Slope: of log time on log L, upper half of the lengths. MiB: "
        f"allocated at the peak for L = {lengths[-1]}, in addition to the inputs. Faster: than the faster exact curve."
    )
    for curve in study.crossovers:
        timings = study.of(curve.estimator)
        times = {timing.seq_len: format_value(timing.seconds, "seconds") for timing in timings}
        memory, crossing = timings[-1].memory_bytes, f"{curve.seq_len:.0f}"
        if not 0 < curve.seq_len < math.inf:  # always, never, or exact attention itself
            crossing = {0.0: f"<= {lengths[0]}", math.inf: f"> {lengths[-1]}"}.get(curve.seq_len, "-")
        rows.append({
            "estimator": curve.estimator, **{f"L = {length}": times.get(length, "-") for length in lengths},
            "slope": "-" if math.isnan(curve.slope) else f"{curve.slope:.2f}{'?' if curve.uncertain else ''}",
            "faster from L": crossing, "MiB": "-" if memory is None else f"{memory / 2**20:.3g}",
        })  # fmt: skip
        if curve.uncertain:
            within = f"{curve.low:.1f} to {curve.high:.1f}"
            text += (
                f" ? {curve.estimator}: its times differ so much that the slope may be {within}; was the machine busy?"
            )
    return Section(f"seconds of one head, {study.where}, {study.dtype}, d = {study.head_dim}", rows, text)


def gram_section(study: "GramStudy") -> Section:
    """Error of the approximated Gram matrix for each map, sampler and R, and that of the mean of K."""
    names = ("map", "sampler", "R", "features", "error", "expected", "max", "bias", "spread", "best")
    rows = [("mean of K", "none", "-", "1", _relative(study.mean_error), *["-"] * 5)]
    for cell in study.cells:
        marks = ("" if cell.measurable else "~") + "*" * (cell.median > study.mean_error)
        rows.append((
            cell.map, cell.sampler, str(cell.num_projections or "-"), str(cell.num_features),
            _relative(cell.median) + marks, _relative(cell.expected), format_value(cell.max_abs_error, "max_abs_error"),
            _relative(cell.bias) + "!" * cell.biased, _relative(cell.spread), _relative(cell.best),
        ))  # fmt: skip
    draws = counted(study.draws, "draw")
    text = (
        f"error: |estimate - K| / |K| (Frobenius), median of {draws}; * worse than the mean of K. "
        "expected: root mean square in closed form. max: largest |estimate - K|. bias, spread: mean and standard "
        "deviation over draws, all pairs together; ! more bias than chance explains. best: of any matrix of as many "
        "features."
    )
    if not all(cell.measurable for cell in study.cells):
        text += " ~ too small: so few draws cannot measure it; the closed form, where there is one, stands."
    gaps = [
        f"phase less trig, both {gap.num_features} features, {gap.sampler}: squared error "
        + (f"{gap.expected:.2e} in closed form, " if math.isfinite(gap.expected) else "")
        + f"{gap.measured:.2e} {f'[{gap.low:.2e}, {gap.high:.2e}] ' if study.draws > 1 else ''}measured."
        for gap in study.gaps()[-1:]
    ]
    texts: list[dict[str, str]] = [dict(zip(names, row, strict=True)) for row in rows]
    return Section(study.title, texts, text, gaps, labels=2, style=_value_style)


def _value_style(column: str, text: str) -> str:
    return "" if column != "error" else "red" if text.endswith("*") else "green"


def theory_section(study: "TheoryStudy") -> Section:
    """Relative standard deviation of the kernel estimate for each norm and R: in closed form, and as measured."""
    needed_name, rows = f"R for {study.target:g}", []
    for norm, needed in study.needed.items():
        points = [point for point in study.points if point.norm == norm]
        theory = {f"R = {p.num_projections}": _relative(p.closed_form) for p in points}
        rows.append({"|x| = |y|": f"{norm:g}", "": "theory", **theory, needed_name: str(needed or "-")})
        if study.draws:
            measured = {
                f"R = {p.num_projections}": _relative(p.measured) if math.isfinite(p.measured) else "gate"
                for p in points
            }
            rows.append({"|x| = |y|": "", "": "measured", **measured, needed_name: ""})
    text = "Relative standard deviation of phi(x).phi(y) against exp(x.y), x and y scaled by d^-1/4."
    if study.draws:
        draws = counted(study.draws, "draw")
        text += f" Measured: {draws}; gate: not measurable by sampling with so few, the closed form stands."
    return Section(study.title, rows, text, labels=2)


def verification_sections(result: "Verification", controls: "Sequence[Caught]", detail: bool) -> list[Section]:
    """Claims with statistic, threshold and verdict; then controls; then how many claims hold."""
    from favorbench.studies.verify.checks import HOLDS, REFUTED

    checks = [
        {
            "subject": check.subject, "claim": check.claim, "statistic": _statistic(check.statistic),
            "limit": "" if check.threshold is None else f"{check.threshold:.2f}", "verdict": check.verdict,
            **({"measured": check.detail} if detail else {}),
        }
        for check in result.checks
    ]  # fmt: skip
    caught = [
        {
            "": "caught" if by else "MISSED",
            "control": f"{control} ({mistake})",
            "by": f"{by.claim}, {_statistic(by.statistic)} over {by.threshold or 0.0:.2f}" if by else "",
        }
        for control, mistake, by in controls
    ]
    claimed = sum(check.threshold is not None for check in result.checks)
    text = f"{claimed - len(result.refuted)} of {claimed} claims hold"
    if controls:
        text += f", {sum(bool(control.caught_by) for control in controls)} of {len(controls)} known mistakes are caught"
    note = "Statistic: the largest |z| of the tests, or an error over its bound (limit 1)."
    return [
        Section(rows=checks, note=note, labels=2, style=_style("verdict", {HOLDS: "green", REFUTED: "bold red"})),
        *([Section("Known mistakes, claimed to be right", caught, labels=2,
                   style=_style("", {"MISSED": "bold red", "caught": "green"}))] if controls else []),
        Section(sentences=[f"{text}. {result.power()}."]),
    ]  # fmt: skip


def _statistic(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 1e4 else f"{value:.0e}"


def capture_section(captured: "Captured", path: Path, command: str) -> Section:
    """A row for each layer, refused layers and the reasons, the content of the file, and the command that reads it."""
    meta = captured.meta
    rows = [
        {
            "layer": str(layer.layer), "name": layer.name, "heads": str(layer.heads or "-"), "mask": layer.mask,
            "scaling": f"{layer.scaling:.4g}",
            "check": "-" if math.isnan(layer.difference) else f"{layer.difference:.1e} (< {layer.limit:.0e})",
        }
        for layer in captured.layers
    ]  # fmt: skip
    sentences = [layer.refusal for layer in captured.layers if layer.refusal]
    if meta["dtype"] != "float32":
        sentences.append(f"{meta['dtype']} changes the output of a head by up to {meta['rounding']:.1e} of its norm.")
    q, k, v = captured.query.shape, captured.key.shape, captured.value.shape
    mask, arrays = "causal" if captured.causal else "full", f"q {q[1:]}, k {k[1:]}, v {v[1:]}, {meta['dtype']}"
    size = captured.query.nbytes + captured.key.nbytes + captured.value.nbytes
    if captured.gradients is not None:
        size += captured.gradients.nbytes
        arrays += f", {captured.gradients.shape[1]} gradients of each ({meta['effect']})"
    sentences.append(f"{path}: {q[0]} heads, {mask}, {arrays}, {format_bytes(size)}")
    note = (
        "check: the model's own output minus softmax(q k^T / sqrt(d)) v of the captured rows in float64, as a share of "
        "a head's largest entry, and what rounding can explain; of the head that comes closest to it."
    )
    if meta["last"]:
        note += f" It is of all keys that a query sees; the file is without the {meta['last']} newest."
    texts = ", ".join(text["name"] for text in meta["texts"])
    return Section(f"{meta['model']} on {texts}", rows, note, [*sentences, f"next: {command}"], labels=2)


def report_section(report: "Report") -> Section:
    """A reproduced figure: table, what changed, claims, files."""
    from favorbench.studies.blog import side_by_side

    rows: list[Any] = side_by_side(report).to_dict(orient="records")
    note = "Mean ± population standard deviation of the output MSE, as the post shows them." if rows else ""
    claims = [
        f"{'ok  ' if claim.holds else 'FAIL'} {'' if claim.version == 'both' else f'{claim.version}: '}{claim.text}: "
        f"{claim.measured}"
        for claim in report.claims
    ]
    images = [str(file) for file in report.files if file.suffix == ".png"]
    said = [report.changed, *claims, f"Files: {', '.join(images)} (and .svg, .csv)"]
    return Section(report.figure, rows, note, said)
