"""What a comparison says: sentences, rows as texts, Markdown, and JUnit for a CI server."""

import math
from collections import Counter
from xml.etree import ElementTree

from favorbench.formats import HEADINGS, format_value, printable
from favorbench.results.changes import UNDECIDED, Change
from favorbench.results.compare import Row, RunComparison, counted
from favorbench.results.results import Results
from favorbench.results.tables import rows_as_markdown
from favorbench.statistics import fewest_draws


def markdown(found: RunComparison, only_changed: bool) -> str:
    """For a comment on a pull request."""
    names = (HEADINGS.get(found.axis, found.axis), "old", "new", "new / old", interval_name(found))
    rows = [
        {"": f"`{row.mark}`", "cell": row.cell}
        | dict(zip(("estimator", *names), texts(row, found.metric), strict=True))
        for row in chosen(found, only_changed)
        if row.change
    ]
    lines = [f"**{found.metric}, new / old**", "", *(f"{line}  " for line in sides(found)), ""]
    lines += [rows_as_markdown(rows)] if rows else []
    lines += [f"* `x` {reason}" for reason in reasons(found)]
    return "\n".join([*lines, *(f"* {sentence}" for sentence in sentences(found)), ""])


def as_html(found: RunComparison) -> str:
    """For a notebook: a table of all rows, why some are not comparable, and what it all amounts to."""
    from favorbench.results.notebook import html_list, html_table

    names = ("estimator", HEADINGS.get(found.axis, found.axis), "old", "new", "new / old", interval_name(found))
    rows = [
        {"cell": row.cell, "": row.mark} | dict(zip(names, texts(row, found.metric), strict=True))
        for row in found.rows
        if row.change
    ]
    said = [f"x {reason}" for reason in reasons(found)] + sentences(found)
    return html_table(f"{found.metric}, new / old; {'; '.join(sides(found))}", rows) + html_list(said)


def junit(found: RunComparison) -> str:
    """A test for each row: worse is a failure, not comparable is skipped."""
    suite = ElementTree.Element(
        "testsuite", name="favorbench compare", tests=str(len(found.rows)), failures=str(found.count("+")),
        errors="0", skipped=str(found.count("x")),
    )  # fmt: skip
    for row in found.rows:
        name = " ".join(filter(None, (row.new_estimator, _size(row, found.axis))))
        case = ElementTree.SubElement(suite, "testcase", classname=printable(row.cell), name=printable(name))
        if row.change is None:
            ElementTree.SubElement(case, "skipped", message=printable(row.reason))
            continue
        line = in_one_line(row.change, found.metric)
        if row.mark == "+":
            ElementTree.SubElement(case, "failure", message=printable(line)).text = printable(sentences(found)[-1])
        else:
            ElementTree.SubElement(case, "system-out").text = printable(line)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def in_one_line(change: Change, metric: str) -> str:
    """ "relative_error 0.31 -> 0.42, new / old 1.36 (1.21 to 1.52), worse"."""
    old, new = (format_value(value, metric) for value in (change.old, change.new))
    return f"{metric} {old} -> {new}, new / old {_ratio(change.ratio)} ({_interval(change)}), {change.verdict}"


def sentences(found: RunComparison) -> list[str]:
    """How many of which verdict, the geometric mean, what was left out, and by which rule."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in counted(found).items())
    said = [f"{'WORSE. ' if found.count('+') else ''}Of {len(found.rows)} rows: {counts}."]
    if found.only_old or found.only_new:
        said.append(f"Rows of one run alone: {found.only_old} of the old one, {found.only_new} of the new one.")
    mean = found.mean
    if mean.rows:
        interval = "" if math.isnan(mean.low) else f" ({_ratio(mean.low)} to {_ratio(mean.high)})"
        said.append(f"Geometric mean of new / old over {mean.rows} rows: {_ratio(mean.ratio)}{interval}.")
    return [*said, *_too_few(found), _rule(found)]


def _too_few(found: RunComparison) -> list[str]:
    """Whether there are too few draws for any verdict."""
    undecided = [row.change for row in found.rows if row.change and row.change.verdict == UNDECIDED]
    needed = fewest_draws(found.tested, 1.0 - found.alpha)
    if not found.paired or not undecided or max(change.pairs for change in undecided) >= needed:
        return []
    return [f"So few draws cannot tell {found.tested} rows apart: use {needed} trials or more."]


def _rule(found: RunComparison) -> str:
    changes = [row.change for row in found.rows if row.change]
    if found.paired:
        numbers = [change.pairs for change in changes]
        how = f"{_range(numbers)} pairs of the same draws; sign test"
    else:
        how = (
            f"Other draws in each (seed or redraw differ), so nothing is paired: {_range([c.n_old for c in changes])} "
            f"against {_range([c.n_new for c in changes])}; Mann-Whitney test"
        )
    return (
        f"{how} that new / old is beyond {found.factor:g}, Holm over all rows, {found.alpha:g}. Intervals are of each "
        f"row by itself. + worse, - better, ~ neither is detectable (no change: the interval is inside "
        f"{1 / found.factor:.3g} to {found.factor:g}), = the same, x not comparable."
    )


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def sides(found: RunComparison) -> list[str]:
    runs = [f"{side}: {_side(run)}" for side, run in (("old", found.old), ("new", found.new))]
    if found.estimators is None:
        return runs
    return [f"{run}: {name}" for run, name in zip(runs, found.estimators, strict=True)]


def _side(run: Results) -> str:
    git = run.manifest.get("git")
    commit = f" at {str(git['commit'])[:9]}" if isinstance(git, dict) and git.get("commit") else ""
    partial = "" if run.manifest["complete"] else " (PARTIAL)"
    return f"{run.path}{partial}, favorbench {run.manifest['favorbench']}{commit}, seed {run.scenario.seed}"


def reasons(found: RunComparison) -> list[str]:
    """Why rows are not comparable, each reason once."""
    counts = Counter((row.key.cell[0], row.reason) for row in found.rows if row.change is None)
    return [f"{count} row{'s' * (count > 1)} of {name}: {reason}" for (name, reason), count in counts.items()]


def chosen(found: RunComparison, only_changed: bool) -> tuple[Row, ...]:
    return found.changed if only_changed else found.rows


def texts(row: Row, metric: str) -> tuple[str, ...]:
    change = row.change
    assert change is not None
    size = "" if row.key.size is None else str(row.key.size)
    values = (format_value(value, metric) for value in (change.old, change.new))
    return row.new_estimator, size, *values, _ratio(change.ratio), _interval(change)


def _size(row: Row, axis: str) -> str:
    return "" if row.key.size is None else f"{HEADINGS.get(axis, axis)}={row.key.size}"


def interval_name(found: RunComparison) -> str:
    covered = min((row.change.coverage for row in found.rows if row.change), default=0.0)
    return f"{100 * (1 - found.alpha):.4g} % interval" if covered >= 1 - found.alpha - 1e-12 else "smallest .. largest"


def _interval(change: Change) -> str:
    if change.mark == "=" and change.ratio == 1:
        return "-"
    return f"{_ratio(change.low)} .. {_ratio(change.high)}"


def _ratio(value: float) -> str:
    """Three digits; what is too large or too small for them as a power of ten."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf"
    return f"{value:.3f}" if 0.01 <= value < 10 else f"{value:.3g}" if 10 <= value < 1e4 else f"{value:.1e}"
