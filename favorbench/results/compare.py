"""Two runs, or two estimators of one run, row by row: which rows are comparable, and what has changed in them."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import counted, format_value, heading, in_full, printable, shown
from favorbench.metrics import METRICS
from favorbench.parameters import check_between, check_factor
from favorbench.registry import nearest, split_list
from favorbench.results.changes import (
    MARKS,
    NOT_COMPARABLE,
    UNDECIDED,
    Change,
    Draws,
    Errors,
    Key,
    at_all_sizes,
    format_ratio,
    judged,
    measured,
    on_other_problems,
)
from favorbench.results.heads import EFFECT_NEEDS, check_metric
from favorbench.results.summary import ROUNDING, RunData, estimator_names, is_random
from favorbench.results.tables import rounding_level, size_axis
from favorbench.sections import Section, Sections, to_html
from favorbench.statistics import fewest_draws, least_p_value, median_interval

#: Metrics that can be compared: errors on a ratio scale.
COMPARABLE = tuple(name for name, metric in METRICS.items() if metric.error and metric.log)

_NEWLY_FAILED = "Failed on some draws of the new run, and on none of the old"

_CHANGED = ("+", "-", "x")  # marks of rows that are worse, better, or not comparable

#: Unit roundoff of the precisions whose rounding is not an error, in units of float64's, which ROUNDING is for.
_COARSER = {"float64": 1.0, "float32": 2.0**29}


class ComparedRow(NamedTuple):
    """One row of a comparison: its key, and the change; or the reason why it is not comparable."""

    key: Key
    old_estimator: str
    new_estimator: str
    change: Change | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return self.change.verdict if self.change else NOT_COMPARABLE

    @property
    def mark(self) -> str:
        """+ worse, - better, ~ no detectable difference, = the same, x not comparable."""
        return MARKS[self.verdict]

    @property
    def cell(self) -> str:
        """The cell in words."""
        return describe_cell(dict(zip(CELL, self.key.cell, strict=True)))


class MeanChange(NamedTuple):
    """The geometric mean of new / old over rows, for each draw; its median over draws and the interval of that.

    Where rows have different numbers of draws, or too few for its level, there is no interval. rows: those with finite
    ratios.
    """

    ratio: float
    low: float
    high: float
    rows: int


class RunComparison(NamedTuple):
    """Two runs compared. only_old, only_new: rows that the other run does not have. tested: rows with randomness.

    estimators: the two that are compared, where two estimators are.
    """

    old: RunData
    new: RunData
    estimators: tuple[str, str] | None
    axis: str
    metric: str
    factor: float
    alpha: float
    paired: bool
    rows: tuple[ComparedRow, ...]
    mean: MeanChange
    only_old: int
    only_new: int
    tested: int

    def count(self, mark: str) -> int:
        """Count the rows with this mark."""
        return sum(row.mark == mark for row in self.rows)

    @property
    def newly_failed(self) -> list[str]:
        """The estimators of the old run that failed on none of its draws, and on some of the new run.

        With ``estimators``: the second of the two, if it failed on a draw and the first on none.
        """
        before, after = ([name.replace(" under ", " / ") for name in run.failed] for run in (self.old, self.new))
        if self.estimators:
            first, second = self.estimators
            return [second] if second in after and first not in before else []
        known = estimator_names(self.old.trials[["estimator", "sampler"]].drop_duplicates())
        return [name for name in after if name in known and name not in before]

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of rows with each verdict, in the order of the marks."""
        counts = Counter(row.verdict for row in self.rows)
        return {verdict: counts[verdict] for verdict in MARKS if counts[verdict]}

    @property
    def changed(self) -> tuple[ComparedRow, ...]:
        """The rows that are worse, better, or not comparable."""
        return tuple(row for row in self.rows if row.mark in _CHANGED)

    def _repr_html_(self) -> str:
        return to_html(comparison_sections(self))

    def __repr__(self) -> str:
        return f"<Comparison of {self.metric}: {' '.join(comparison_sentences(self)[:2])}>"

    def frame(self, only_changed: bool = False) -> pd.DataFrame:
        """A DataFrame with the numbers of each row."""
        records = []
        for row in self.rows:
            change = row.change._asdict() if row.change else dict.fromkeys(Change._fields)
            names = {"old_estimator": row.old_estimator, "new_estimator": row.new_estimator, self.axis: row.key.size}
            head = {"mark": row.mark, "verdict": row.verdict, "reason": row.reason}
            records.append(head | dict(zip(CELL, row.key.cell, strict=True)) | names | (change | head))
        kept = [row.mark in _CHANGED or not only_changed for row in self.rows]
        return pd.DataFrame(records)[kept].reset_index(drop=True)


def comparison(
    old: RunData,
    new: RunData | None = None,
    estimators: str | None = None,
    metric: str = "mse",
    factor: float = 1.05,
    alpha: float = 0.05,
) -> RunComparison:
    """Compare two runs row by row: the same cell, estimator and size. ``results.changes`` has the rule of the verdicts.

    Draws are paired by number: seed and plan make draw i the same in both, or another one. Rows are not comparable
    where the contents of an input differ (SHA-256), where a cell has another L, d, number of query rows or dtype, where
    an estimator declares another ``version``, and where an effect was not measured. estimators: "positive
    orthogonal,clusters": the first of ``old`` against the second of ``new``, at equal sizes; of one run, where ``new``
    is left out. Raises ScenarioError for a metric that is not an error, numbers out of range, an unknown estimator, and
    where nothing can be compared.
    """
    if metric not in COMPARABLE:
        raise ScenarioError(
            f"`metric`: {metric!r} given{nearest(metric, COMPARABLE)}, allowed: {', '.join(COMPARABLE)}"
        )
    for run in filter(None, (old, new)):
        check_metric(run, metric)
    check_factor("`factor`", factor)
    check_between("`alpha`", alpha, 1e-12, 1.0)
    if new is None and estimators is None:
        raise ScenarioError('compare: give two runs, or one run and `estimators` "positive orthogonal,clusters"')
    new = old if new is None else new
    axis, names = "num_projections", None
    if estimators is not None:
        names, axis = _two_estimators(estimators, old, new), size_axis(old)
        if new.scenario.budget != old.scenario.budget:
            raise ScenarioError("`estimators`: the runs count sizes differently (`budget`), so none are equal")
    return _compared((old, new), names, axis, metric, factor, alpha)


def _compared(
    runs: tuple[RunData, RunData], names: tuple[str, str] | None, axis: str, metric: str, factor: float, alpha: float
) -> RunComparison:
    """Raises ScenarioError where no row can be compared."""
    before, after = (measured(run, axis, metric, name) for run, name in zip(runs, names or (None, None), strict=True))
    if names:
        before, after = at_all_sizes(before, after), at_all_sizes(after, before)
    elsewhere, only_old, only_new = on_other_problems(before, after)
    paired = _same_draws(*runs)
    reasons, errors = _comparable(runs, before, after, metric, paired, names)
    reasons |= elsewhere
    if not errors:
        sides = names or tuple(str(run.path) for run in runs)
        inputs = [
            ", ".join(dict.fromkeys(str(key.cell[CELL.index("input")]) for key in rows)) for rows in (before, after)
        ]
        other = f"; inputs go by name: {inputs[0]} / {inputs[1]}" if inputs[0] != inputs[1] else ""
        why = next(iter(reasons.values()), f"no cell and estimator is in both{other}")
        raise ScenarioError(f"compare: {sides[0]} and {sides[1]} have no row in common: {why}")
    family = list(errors.values())
    changes = dict(zip(errors, judged(family, factor, alpha), strict=True))
    known = changes | reasons
    rows = tuple(
        ComparedRow(key, *(names or (key.estimator, key.estimator)), changes.get(key), reasons.get(key, ""))
        for key in before
        if key in known
    )
    tested = sum(not errors[key].fixed and change.mark != "=" for key, change in changes.items())
    mean = _geometric_mean([
        row._replace(new=row.old) if changes[key].mark == "=" else row for key, row in errors.items()
    ], 1.0 - alpha)  # fmt: skip
    return RunComparison(*runs, names, axis, metric, factor, alpha, paired, rows, mean, only_old, only_new, tested)


def _same_draws(old: RunData, new: RunData) -> bool:
    """Whether draw i of a cell is the same realisation in both."""
    a, b = old.scenario, new.scenario
    return a.seed == b.seed and a.redraw == b.redraw and (a.redraw != "R" or a.num_projections == b.num_projections)


def _comparable(
    runs: tuple[RunData, RunData], before: dict[Key, Draws], after: dict[Key, Draws], metric: str, paired: bool,
    names: tuple[str, str] | None,
) -> tuple[dict[Key, str], dict[Key, Errors]]:  # fmt: skip
    """For the rows that both runs have: why some are not comparable, and the errors of the others."""
    reasons, errors = {}, {}
    level = max(rounding_level(runs[0].trials, metric), rounding_level(runs[1].trials, metric))
    for key in filter(after.__contains__, before):
        old, new = before[key], after[key]
        by_number = zip(sorted(old), sorted(new), strict=False)
        pairs = [(draw, draw) for draw in old if draw in new] if paired else list(by_number)
        version = "" if names else _other_version(runs, key)
        missing = "" if old and new else f"{metric} was not measured, {EFFECT_NEEDS}"
        if reason := _other_inputs(runs, key) or missing or "no draw is in both" * (not pairs) or version:
            reasons[key] = reason
        else:
            ours, theirs = np.array([(old[mine], new[other]) for mine, other in pairs]).T
            dtype = str(key.cell[CELL.index("dtype")])
            close = partial(close_errors, metric=metric, level=level, dtype=dtype)
            both = zip(runs, names or (key.estimator, key.estimator), strict=True)
            fixed = not any(_may_be_random(run, name, key) for run, name in both)
            errors[key] = Errors(ours, theirs, close, declared=fixed)
    return reasons, errors


def _other_inputs(runs: Sequence[RunData], key: Key) -> str:
    """Why the inputs of two rows differ; nothing where they are the same."""
    name = key.cell[CELL.index("input")]
    files: list[Any] = [run.manifest.get("input_files", []) for run in runs]
    old, new = (next((str(file.get("sha256", "")) for file in of if file["input"] == name), "") for of in files)
    return "" if old == new else f"other contents of {name} (SHA-256 {old[:8] or 'none'} / {new[:8] or 'none'})"


def _may_be_random(run: RunData, name: str, key: Key) -> bool:
    """Whether the draws of a row may differ, for all that the run says: not of some of our estimators on a file."""
    files: Any = run.manifest.get("input_files", [])
    cell = dict(zip(CELL, key.cell, strict=True))
    fixed = cell["query_rows"] == cell["query_len"] and cell["input"] in {file["input"] for file in files}
    ours = name in (*run.scenario.methods, *run.scenario.baselines)  # a user's is module:name there
    return is_random(name) or not (fixed and ours)


def _other_version(runs: Sequence[RunData], key: Key) -> str:
    """Whether the parts of an estimator declare other versions; 1 where they declare none."""
    declared: list[Any] = [run.manifest.get("declared_versions", {}) for run in runs]
    old, new = (", ".join(str(of.get(part, 1)) for part in key.estimator.split(" / ")) for of in declared)
    return "" if old == new else f"another version of {key.estimator} is declared ({old} / {new})"


def close_errors(old: np.ndarray, new: np.ndarray, metric: str, level: float, dtype: str) -> np.ndarray:
    """Whether errors differ by no more than rounding can make of them.

    An output changes by a small multiple of eps sqrt(L) of its own size, at most |exact| + |error|, and its distance
    from the exact one by no more than that; where a normaliser cancels it changes by more, and is not called equal.
    In half precision rounding is an error like any other: nothing is close. level: ``rounding_level`` in float64.
    """
    if dtype not in _COARSER:
        return old == new
    a, b, limit = (x ** (1.0 / max(METRICS[metric].power, 1)) for x in (old, new, level))
    with np.errstate(invalid="ignore"):
        return np.abs(a - b) <= _COARSER[dtype] * (limit + ROUNDING * (a + b))


def _geometric_mean(rows: Sequence[Errors], level: float) -> MeanChange:
    """Over the rows whose errors are all finite and above 0. level: of the interval."""
    usable = [row for row in rows if all(bool(np.all((x > 0) & np.isfinite(x))) for x in (row.old, row.new))]
    mean = low = high = np.nan
    if usable and len({len(row.old) for row in usable}) == 1:
        by_draw = np.mean([np.log(row.new) - np.log(row.old) for row in usable], axis=0)
        mean, interval = np.median(by_draw), median_interval(by_draw, level)
        low, high = interval[:2] if interval.coverage >= level else (np.nan, np.nan)
    elif usable:
        mean = np.mean([np.log(row.ratios().median) for row in usable])
    ratio, low, high = np.exp(np.array([mean, low, high])).tolist()
    return MeanChange(ratio, low, high, len(usable))


def _two_estimators(text: str, old: RunData, new: RunData) -> tuple[str, str]:
    """The two estimators that a user names. Raises ScenarioError."""
    parts = split_list(text)
    if len(parts) != 2 or not all(parts):
        raise ScenarioError(
            f"`estimators`: {shown(text)} given, allowed: two with a comma between, e.g. 'positive orthogonal,clusters'"
        )
    return _estimator(parts[0], old), _estimator(parts[1], new)


def _estimator(text: str, run: RunData) -> str:
    """ "positive orthogonal", "positive/orthogonal" or, where it has one sampler only, "positive"."""

    def spelled(name: str) -> str:
        return "".join(name.replace("/", " ").split())

    names = estimator_names(run.trials[["estimator", "sampler"]].drop_duplicates())
    same = [name for name in names if spelled(name) == spelled(text)]
    of_map = same or [name for name in names if spelled(name.partition(" / ")[0]) == spelled(text)]
    if len(of_map) == 1:
        return of_map[0]
    if of_map:
        raise ScenarioError(f"`estimators`: {text!r} has several samplers; write one of {', '.join(of_map)}")
    raise ScenarioError(f"`estimators`: {run.path} has no {text!r}{nearest(text, names)}; it has {', '.join(names)}")


def comparison_sections(comparison: RunComparison, only_changed: bool = False, in_words: bool = False) -> Sections:
    """The two sides, a table for each cell, the rows that are not comparable, and the findings.

    in_words: the verdict after its mark.
    """
    covered = min((row.change.coverage for row in comparison.rows if row.change), default=0.0)
    level = 1.0 - comparison.alpha
    interval = f"{in_full(level)} interval" if covered >= level else "smallest to largest"
    tables = []
    shown = [row for row in (comparison.changed if only_changed else comparison.rows) if row.change]
    for cell, rows in groupby(shown, key=lambda row: row.cell):
        texts = [_texts(comparison, row, row.change, interval, in_words) for row in rows if row.change]
        tables.append(Section(f"{comparison.metric}, {cell}", texts, labels=3, style=_style))
    findings = [*(f"x {reason}" for reason in reasons(comparison)), *comparison_sentences(comparison)]
    return Sections([*(Section(note=side) for side in sides(comparison)), *tables, Section(sentences=findings)])


def _texts(runs: RunComparison, row: ComparedRow, change: Change, interval: str, in_words: bool) -> dict[str, str]:
    return {
        "change": f"{row.mark} {row.verdict}" if in_words else row.mark, "estimator": row.new_estimator,
        heading(runs.axis): "-" if row.key.size is None else str(row.key.size),
        "old": format_value(change.old, runs.metric), "new": format_value(change.new, runs.metric),
        "new / old": format_ratio(change.ratio), interval: change.interval,
    }  # fmt: skip


def _style(column: str, text: str) -> str:
    styles = {"+": "bold red", "-": "green", "x": "yellow"}
    return styles.get(text, "dim") if column == "change" else ""


def comparison_sentences(runs: RunComparison) -> list[str]:
    """The number of rows with each verdict, the geometric mean, the rows of one run alone, and the rule."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in runs.verdicts.items())
    worse = "WORSE. " if runs.count("+") or runs.newly_failed else ""
    said = [f"{worse}Of {counted(len(runs.rows), 'row')}: {counts}."]
    if runs.newly_failed:
        said.append(f"{_NEWLY_FAILED}: {', '.join(runs.newly_failed)}.")
    if runs.only_old or runs.only_new:
        said.append(f"Rows of one run alone: {runs.only_old} of the old one, {runs.only_new} of the new one.")
    mean = runs.mean
    if mean.rows:
        interval = "" if np.isnan(mean.low) else f" ({format_ratio(mean.low)} to {format_ratio(mean.high)})"
        comparable = sum(row.change is not None for row in runs.rows)
        over = f"{mean.rows} of {counted(comparable, 'row')}, those with finite errors above 0"
        over = over if mean.rows < comparable else counted(comparable, "row")
        said.append(f"Geometric mean of new / old over {over}: {format_ratio(mean.ratio)}{interval}.")
    frame = runs.frame()
    most = max(frame.loc[frame["verdict"] == UNDECIDED, "pairs"], default=0)
    if most and least_p_value(most) * runs.tested > runs.alpha:
        needed = fewest_draws(runs.tested, 1.0 - runs.alpha)
        trials = f"{needed} trials or more{', 2 where nothing is random' if most == 1 else ''}"
        said.append(f"So few draws cannot tell {counted(runs.tested, 'row')} apart: use {trials}.")
    pairs = " to ".join(dict.fromkeys(f"{count:g}" for count in (frame["pairs"].min(), frame["pairs"].max())))
    how = f"{counted(pairs, 'pair')} of the same draws"
    if not runs.paired:
        how = f"The draws differ (another seed or redraw), and are paired by number: {counted(pairs, 'pair')}"
    return [*said, (
        f"{how}; new / old is the median over pairs; sign test that it is beyond {runs.factor:g}, Holm over all rows, "
        f"{runs.alpha:g}. Intervals are of each row by itself. + worse, - better, ~ neither is detectable (no change: "
        f"the interval is inside {1 / runs.factor:.3g} to {runs.factor:g}), = the same, x not comparable."
    )]  # fmt: skip


def sides(runs: RunComparison) -> list[str]:
    """The two runs, and the versions of favorbench that made them."""
    lines = []
    for side, run, name in zip(("old", "new"), (runs.old, runs.new), runs.estimators or ("", ""), strict=True):
        git = run.manifest.get("git")
        commit = f" at {str(git['commit'])[:9]}" if isinstance(git, dict) and git.get("commit") else ""
        partial = " (PARTIAL)" if run.is_partial else ""
        version = f"favorbench {run.manifest['favorbench']}{commit}, seed {run.scenario.seed}"
        lines.append(f"{side}: {run.path}{partial}, {version}{f': {name}' if name else ''}")
    return lines


def reasons(comparison: RunComparison) -> list[str]:
    """Why rows are not comparable, each reason once."""
    counts = Counter((row.key.cell[0], row.reason) for row in comparison.rows if row.change is None)
    return [f"{counted(count, 'row')} of {name}: {reason}" for (name, reason), count in counts.items()]


def junit(comparison: RunComparison) -> str:
    """A test for each row: worse is a failure, not comparable is skipped. Estimators that newly failed are errors."""
    failed = comparison.newly_failed
    suite = ElementTree.Element(
        "testsuite", name="favorbench compare", tests=str(len(comparison.rows) + len(failed)),
        failures=str(comparison.count("+")), errors=str(len(failed)), skipped=str(comparison.count("x")),
    )  # fmt: skip
    for row in comparison.rows:
        size = "" if row.key.size is None else f" {heading(comparison.axis)}={row.key.size}"
        names = {"classname": printable(row.cell), "name": printable(row.new_estimator + size)}
        case = ElementTree.SubElement(suite, "testcase", names)
        line = printable(row.change.in_words(comparison.metric) if row.change else row.reason)
        if row.mark == "x":
            ElementTree.SubElement(case, "skipped", message=line)
        elif row.mark == "+":
            ElementTree.SubElement(case, "failure", message=line).text = printable(comparison_sentences(comparison)[-1])
        else:
            ElementTree.SubElement(case, "system-out").text = line
    for name in map(printable, failed):
        case = ElementTree.SubElement(suite, "testcase", classname="failed draws", name=name)
        ElementTree.SubElement(case, "error", message=_NEWLY_FAILED)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
