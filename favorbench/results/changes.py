"""Changes of errors: which rows of two runs are the same, a ratio with its interval for each, and its verdict."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL
from favorbench.formats import decimals, format_value
from favorbench.metrics import EFFECT
from favorbench.results.summary import RunData, estimator_names, own_draws
from favorbench.results.tables import sized
from favorbench.statistics import Interval, LogRatios, holm, log_ratios

WORSE, BETTER, NO_CHANGE, UNDECIDED = "worse", "better", "no change", "no detectable difference"
SAME_BITS, SAME, NOT_COMPARABLE = "same bits", "equal up to rounding", "not comparable"

MARKS = {WORSE: "+", BETTER: "-", NO_CHANGE: "~", UNDECIDED: "~", SAME_BITS: "=", SAME: "=", NOT_COMPARABLE: "x"}


class Errors(NamedTuple):
    """The errors of one row, each of shape (draws,), the i-th of one beside the i-th of the other.

    close: which of them differ by no more than rounding. declared: nothing is said to be random, so that one draw
    suffices.
    """

    old: np.ndarray
    new: np.ndarray
    close: Callable[[np.ndarray, np.ndarray], np.ndarray]
    declared: bool = False

    @property
    def fixed(self) -> bool:
        """Whether nothing is random: every draw gave the same error."""
        return all((self.declared or len(x) > 1) and bool(np.all(x == x[0])) for x in (self.old, self.new))

    def ratios(self) -> LogRatios:
        """new / old."""
        return log_ratios(self.old, self.new)


class Change(NamedTuple):
    """One row: medians, the median of new / old with its interval, and the verdict.

    pairs: of an old and a new draw. p_value: Holm's over all rows of the family, two-sided, 1 where nothing is random.
    coverage: of the interval.
    """

    verdict: str
    old: float
    new: float
    ratio: float
    low: float
    high: float
    coverage: float
    pairs: int
    p_value: float

    @property
    def mark(self) -> str:
        """+ worse, - better, ~ no detectable difference, = the same."""
        return MARKS[self.verdict]

    @property
    def interval(self) -> str:
        """The interval of new / old as a text."""
        same = self.mark == "=" and self.ratio == 1
        return "-" if same else f"{format_ratio(self.low)} to {format_ratio(self.high)}"

    def in_words(self, metric: str) -> str:
        """ "relative_error 0.31 -> 0.42, new / old 1.36 (1.21 to 1.52), worse"."""
        old, new = (format_value(value, metric) for value in (self.old, self.new))
        return f"{metric} {old} -> {new}, new / old {format_ratio(self.ratio)} ({self.interval}), {self.verdict}"


def format_ratio(value: float) -> str:
    """Three digits, more next to 1; a power of ten where the ratio is too large or too small for them."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf"
    if 0.01 <= value < 10:
        return f"{value:.{decimals(value)}f}"
    return f"{value:.3g}" if 10 <= value < 1e4 else format_value(value, "mse")


def judged(rows: Sequence[Errors], factor: float, alpha: float) -> list[Change]:
    """The changes of a family of rows. With probability 1 - alpha no verdict worse or better is false.

    Worse: the errors differ by more than rounding, and the sign test rejects that the median of new / old is at most
    ``factor``. Better likewise, of 1 / ``factor``. Two-sided, Holm over all rows in which something is random;
    elsewhere one measurement decides. No change: the interval lies inside (1 / ``factor``, ``factor``). NaN counts as
    an infinite error.
    """
    infinite = partial(np.nan_to_num, nan=np.inf, posinf=np.inf)
    rows = [row._replace(old=infinite(row.old), new=infinite(row.new)) for row in rows]
    ratios, same = list(map(Errors.ratios, rows)), list(map(_same, rows))
    p_values = [ratio.p_values(factor) for ratio in ratios]
    tested = [i for i, row in enumerate(rows) if not same[i] and not row.fixed]
    adjusted = np.ones(len(rows))
    adjusted[tested] = holm([min(1.0, 2.0 * min(p_values[i])) for i in tested])
    changes = []
    for i, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        interval, rejected = ratio.interval(1.0 - alpha), adjusted[i] <= alpha
        verdict = _tested(p_values[i] if rejected else None, interval, factor, alpha)
        if row.fixed:  # one measurement decides
            interval = interval._replace(coverage=1.0)
            verdict = WORSE if ratio.median > factor else BETTER if ratio.median < 1.0 / factor else NO_CHANGE
        medians = float(np.median(row.old)), float(np.median(row.new)), ratio.median
        changes.append(Change(same[i] or verdict, *medians, *interval, len(row.old), float(adjusted[i])))
    return changes


def _tested(p_values: tuple[float, float] | None, interval: Interval, factor: float, alpha: float) -> str:
    """The verdict of a test; p_values: of both sides, where it rejects."""
    if p_values:
        return WORSE if p_values[0] < p_values[1] else BETTER
    inside = 1.0 / factor <= interval.low and interval.high <= factor
    return NO_CHANGE if inside and interval.coverage >= 1.0 - alpha else UNDECIDED


def _same(row: Errors) -> str:
    """The verdict of errors that do not differ by more than rounding; empty for others."""
    old, new = row.old, row.new
    if np.array_equal(old, new):
        return SAME_BITS
    finite = np.isfinite(old) & np.isfinite(new)  # an infinite error is close to infinite ones only
    with np.errstate(invalid="ignore"):
        return SAME if np.all((old == new) | finite & row.close(old, new)) else ""


#: Where rows differ in these alone they are the same row on another problem, and not comparable.
_PROBLEM = {"query_len": "query rows", "query_rows": "measured rows", "seq_len": "L", "head_dim": "d", "dtype": "dtype"}

#: An error for each draw: its trial, and which of that trial's draws it is.
Draws = dict[tuple[int, int], float]


class Key(NamedTuple):
    """The identity of a row: the cell, the estimator ("" where two of them are compared), its size."""

    cell: tuple[Any, ...]
    estimator: str
    size: int | None

    @property
    def loosely(self) -> tuple[Any, ...]:
        """The key without the problem's shape and precision."""
        names = (value for name, value in zip(CELL, self.cell, strict=True) if name not in _PROBLEM)
        return (*names, self.estimator, self.size)


def measured(run: RunData, axis: str, metric: str, name: str | None) -> dict[Key, Draws]:
    """The errors of each row, by draw: all rows of a run, or those of one estimator without its name.

    A row without the metric has none: where it was measured, an effect is not NaN.
    """
    trials = sized(run, axis).trials.assign(estimator=estimator_names(run.trials), nth=own_draws(run, run.trials))
    if name is not None:
        trials = trials[trials["estimator"] == name].assign(estimator="")
    by = [*CELL, "estimator", axis]
    trials = trials.drop_duplicates(["draw", *by])  # two budgets may come to one size
    errors = {}
    groups: Any = trials.set_index(["trial", "nth"]).groupby(by, sort=False, dropna=False)[metric]
    for (*cell, estimator, size), values in groups:
        key = Key(tuple(cell), str(estimator), None if pd.isna(size) else int(size))
        errors[key] = (values.dropna() if metric == EFFECT else values).to_dict()
    return errors


def at_all_sizes(ours: dict[Key, Draws], theirs: dict[Key, Draws]) -> dict[Key, Draws]:
    """Repeat an estimator without a size at every size of the other."""
    sizes: dict[tuple[Any, ...], list[int | None]] = {}
    for key in theirs:
        sizes.setdefault(key.cell, []).append(key.size)
    return {
        key._replace(size=size): draws
        for key, draws in ours.items()
        for size in (sizes.get(key.cell, [None]) if key.size is None else [key.size])
    }


def on_other_problems(before: dict[Key, Draws], after: dict[Key, Draws]) -> tuple[dict[Key, str], int, int]:
    """Explain which rows of the old run are not comparable with rows of the new one on another problem.

    Also how many rows the old run and the new run have that the other one has on no problem.
    """
    lost, added = [key for key in before if key not in after], [key for key in after if key not in before]
    others = {key.loosely: key for key in reversed(added)}
    reasons = {}
    for key in lost:
        if other := others.get(key.loosely):
            pairs = zip(CELL, key.cell, other.cell, strict=True)
            reasons[key] = f"other {', '.join(f'{_PROBLEM[name]} {a} / {b}' for name, a, b in pairs if a != b)}"
    return reasons, len(lost) - len(reasons), len(added) - len({key.loosely for key in reasons})
