"""Whether errors have changed: of each row a ratio with its interval, and one verdict for the whole family of rows."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from favorbench.formats import format_value
from favorbench.statistics import Interval, LogRatios, holm, paired_ratios, unpaired_ratios

WORSE, BETTER, NO_CHANGE, UNDECIDED = "worse", "better", "no change", "no detectable difference"
SAME_BITS, SAME, NOT_COMPARABLE = "same bits", "equal up to rounding", "not comparable"

MARKS = {WORSE: "+", BETTER: "-", NO_CHANGE: "~", UNDECIDED: "~", SAME_BITS: "=", SAME: "=", NOT_COMPARABLE: "x"}

MOST_UNPAIRED = 100  # draws of each side that are compared without pairs: their law takes n m numbers for each n and m


class Errors(NamedTuple):
    """What is to be compared in one row: errors (draws,), or those of ever the same draw where nothing is random.

    paired: both on the same draws, in the same order. close: which of them differ by no more than rounding.
    """

    old: np.ndarray
    new: np.ndarray
    paired: bool
    close: Callable[[np.ndarray, np.ndarray], np.ndarray]

    @property
    def fixed(self) -> bool:
        """Nothing in it is random: it is one measurement, however often it was taken."""
        return all(len(x) > 1 and bool(np.all(x == x[0])) for x in (self.old, self.new))

    def ratios(self) -> LogRatios:
        """new / old."""
        if self.paired:
            return paired_ratios(self.old, self.new)
        return unpaired_ratios(self.old[:MOST_UNPAIRED], self.new[:MOST_UNPAIRED])


class Change(NamedTuple):
    """One row: medians, the median of new / old with its interval, and the verdict.

    pairs: 0 where the draws are not the same ones. p_value: Holm's over all rows of the family, two-sided, 1 where
    nothing is random. coverage: of the interval.
    """

    verdict: str
    old: float
    new: float
    ratio: float
    low: float
    high: float
    coverage: float
    n_old: int
    n_new: int
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
    """Three digits; a power of ten where the ratio is too large or too small for them."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf"
    return f"{value:.3f}" if 0.01 <= value < 10 else f"{value:.3g}" if 10 <= value < 1e4 else f"{value:.1e}"


def judged(rows: Sequence[Errors], factor: float, alpha: float) -> list[Change]:
    """The changes of a family of rows. With probability 1 - alpha none is called worse or better that is not.

    Worse: the errors differ by more than rounding, and the sign test rejects that the median of new / old is at most
    ``factor``; Mann and Whitney's test where the draws differ. Better likewise, of 1 / ``factor``. Two-sided, Holm over
    all rows in which something is random; elsewhere one measurement decides. No change: the interval lies inside
    (1 / ``factor``, ``factor``). NaN counts as an infinite error.
    """
    rows = [
        one._replace(old=np.where(np.isnan(one.old), np.inf, one.old), new=np.where(np.isnan(one.new), np.inf, one.new))
        for one in rows
    ]
    ratios, same = [one.ratios() for one in rows], [_same(one) for one in rows]
    p_values = [one.p_values(factor) for one in ratios]
    open_ones = [i for i, one in enumerate(rows) if not same[i] and not one.fixed]
    adjusted = np.ones(len(rows))
    adjusted[open_ones] = holm([min(1.0, 2.0 * min(p_values[i])) for i in open_ones])
    found = []
    for i, (one, ratio) in enumerate(zip(rows, ratios, strict=True)):
        interval = ratio.interval(1.0 - alpha)
        interval = interval._replace(coverage=1.0) if one.fixed else interval
        if same[i] or one.fixed:
            verdict = same[i] or _by_size(ratio.median, factor)
        elif adjusted[i] <= alpha:
            verdict = WORSE if p_values[i][0] < p_values[i][1] else BETTER
        else:
            verdict = _without_proof(interval, factor, alpha)
        found.append(
            Change(
                verdict, float(np.median(one.old)), float(np.median(one.new)), ratio.median, *interval,
                len(one.old), len(one.new), len(one.old) if one.paired else 0, float(adjusted[i]),
            )
        )  # fmt: skip
    return found


def _same(row: Errors) -> str:
    """The verdict of errors that do not differ by more than rounding; nothing for others."""
    old, new = row.old, row.new
    if not row.paired:
        if not row.fixed:
            return ""
        old, new = old[:1], new[:1]
    if np.array_equal(old, new):
        return SAME_BITS
    with np.errstate(invalid="ignore"):
        return SAME if np.all((old == new) | row.close(old, new)) else ""


def _by_size(ratio: float, factor: float) -> str:
    if ratio > factor:
        return WORSE
    return BETTER if ratio < 1.0 / factor else NO_CHANGE


def _without_proof(interval: Interval, factor: float, alpha: float) -> str:
    inside = 1.0 / factor <= interval.low and interval.high <= factor
    return NO_CHANGE if inside and interval.coverage >= 1.0 - alpha - 1e-12 else UNDECIDED
