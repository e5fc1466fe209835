"""Two runs, or two estimators of one run, row by row: which rows are comparable, and what has changed in them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.metrics import METRICS
from favorbench.parameters import check_between, is_number
from favorbench.registry import nearest, split_list
from favorbench.results.changes import MARKS, NOT_COMPARABLE, Change, Errors, judged
from favorbench.results.matching import Key, at_all_sizes, measured, on_other_problems, same_draws
from favorbench.results.results import Results, load
from favorbench.results.summary import estimator_name
from favorbench.results.tables import ROUNDING, rounding_level, size_axis
from favorbench.statistics import median_interval

#: What can be compared: errors on a ratio scale.
COMPARABLE = tuple(name for name, metric in METRICS.items() if metric.error and metric.log)

#: Unit roundoff of what sums over keys are taken in, where they still say something: 450 times it is ``ROUNDING``.
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23}


class Row(NamedTuple):
    """One row of a comparison: what was measured, and the change; of what is not comparable the reason."""

    key: Key
    old_estimator: str
    new_estimator: str
    change: Change | None
    reason: str = ""

    @property
    def mark(self) -> str:
        """+ worse, - better, ~ no detectable difference, = the same, x not comparable."""
        return self.change.mark if self.change else MARKS[NOT_COMPARABLE]

    @property
    def cell(self) -> str:
        """The cell in words."""
        return describe_cell(dict(zip(CELL, self.key.cell, strict=True)))


class Mean(NamedTuple):
    """The geometric mean of new / old over rows, of each draw; its median over draws and that one's interval.

    Without pairs there are no draws to take it over, and no interval. rows: those with finite ratios, which it is of.
    """

    ratio: float
    low: float
    high: float
    rows: int


class RunComparison(NamedTuple):
    """Two runs compared. only_old, only_new: rows that the other run does not have. tested: rows with chance in them.

    estimators: where two of them are compared, which.
    """

    old: Results
    new: Results
    estimators: tuple[str, str] | None
    axis: str
    metric: str
    factor: float
    alpha: float
    paired: bool
    rows: tuple[Row, ...]
    mean: Mean
    only_old: int
    only_new: int
    tested: int

    def count(self, mark: str) -> int:
        """How many rows have this mark."""
        return sum(row.mark == mark for row in self.rows)

    @property
    def changed(self) -> "tuple[Row, ...]":
        """The rows that are worse, better, or not comparable."""
        return tuple(row for row in self.rows if row.mark in "+-x")

    def _repr_html_(self) -> str:
        from favorbench.results.comparison_text import as_html

        return as_html(self)

    def __repr__(self) -> str:
        from favorbench.results.comparison_text import sentences

        return f"<Comparison of {self.metric}: {' '.join(sentences(self)[:2])}>"

    def frame(self) -> pd.DataFrame:
        """A row for each row of the comparison, with all that is known of it."""
        return pd.DataFrame([_record(row, self.axis) for row in self.rows])


def compare(
    old: str | Path | Results,
    new: str | Path | Results | None = None,
    estimators: str | None = None,
    metric: str = "mse",
    factor: float = 1.05,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """What has changed from one run to another, or differs between two estimators of a run: ``comparison`` as a frame.

    Columns: mark (+ worse, - better, ~ no detectable difference, = the same, x not comparable), verdict, reason, the
    cell, both estimators, the size, the medians old and new, ratio with low, high and coverage of its interval, n_old,
    n_new, pairs, p_value. Raises StoreError and ScenarioError as ``comparison`` does.

    >>> import favorbench as fb
    >>> asked = {"maps": "positive", "num_projections": 8, "seq_len": 32, "head_dim": 4, "baselines": "uniform"}
    >>> one = fb.sweep(asked, "one", trials=3)
    >>> two = fb.sweep(asked, "two", trials=3)
    >>> fb.compare(one, two)["mark"].unique().tolist()
    ['=']
    """
    return comparison(old, new, estimators, metric, factor, alpha).frame()


def comparison(
    old: str | Path | Results,
    new: str | Path | Results | None = None,
    estimators: str | None = None,
    metric: str = "mse",
    factor: float = 1.05,
    alpha: float = 0.05,
) -> RunComparison:
    """Two runs, row by row: the same cell, estimator and size. ``results.changes`` has the rule of the verdicts.

    Draws are paired where seed and plan make draw i the same in both. Rows are not comparable where q, k, v are others
    (SHA-256), where a cell has another L, d, number of query rows or dtype, and where an estimator declares another
    ``version``. estimators: "positive orthogonal,clusters": the first of ``old`` against the second of ``new``, at
    equal sizes; of one run, where ``new`` is left out.

    Raises StoreError for what is no run, or is of another format; ScenarioError for a metric that is no error, numbers
    out of range, an estimator that is not there, and where nothing can be compared.
    """
    if metric not in COMPARABLE:
        raise ScenarioError(
            f"`metric`: {metric!r} given{nearest(metric, COMPARABLE)}, allowed: {', '.join(COMPARABLE)}"
        )
    if not (is_number(factor) and 1 <= factor <= 1e6):
        raise ScenarioError(f"`factor` must be a number from 1 to 1e6, got {shown(factor)}")
    check_between("`alpha`", alpha, 1e-12, 1.0)
    if new is None and estimators is None:
        raise ScenarioError('compare: give two runs, or one run and `estimators` "positive orthogonal,clusters"')
    first = old if isinstance(old, Results) else load(old)
    second = first if new is None else new if isinstance(new, Results) else load(new)
    axis, names = "num_projections", None
    if estimators is not None:
        names = _two_estimators(estimators, first, second)
        axis = size_axis(first)
        if size_axis(second) != axis:
            raise ScenarioError("`estimators`: the runs have sizes of another kind (`budget`), so none are equal")
    return _Comparing(first, second, axis, metric, names).result(factor, alpha)


class _Comparing:
    """The rows of two runs by their keys, and what is made of them."""

    def __init__(self, old: Results, new: Results, axis: str, metric: str, names: tuple[str, str] | None):
        self.runs, self.axis, self.metric, self.names = (old, new), axis, metric, names
        ours, theirs = (
            measured(run, axis, metric, name) for run, name in zip(self.runs, names or (None, None), strict=True)
        )
        self.old, self.new = at_all_sizes(ours, theirs), at_all_sizes(theirs, ours)
        self.paired = same_draws(old, new)
        self.levels = [rounding_level(run.trials, metric) for run in self.runs]

    def result(self, factor: float, alpha: float) -> RunComparison:
        """Raises ScenarioError where no row can be compared."""
        shared = [key for key in self.old if key in self.new]
        reasons = {key: self._not_comparable(key) for key in shared}
        errors = {key: self._errors(key) for key in shared if not reasons[key]}
        judgements = judged(list(errors.values()), factor, alpha)
        changes = dict(zip(errors, judgements, strict=True))
        lost, added = [k for k in self.old if k not in self.new], [k for k in self.new if k not in self.old]
        elsewhere = on_other_problems(lost, added)
        if not changes:
            why = next((r for r in [*reasons.values(), *elsewhere.values()] if r), "no cell and estimator is in both")
            raise ScenarioError(f"compare: {self._name(0)} and {self._name(1)} have no row in common: {why}")
        reasons |= elsewhere
        rows = [
            Row(key, *self._names(key), changes.get(key), reasons.get(key, "")) for key in self.old if key in reasons
        ]
        return RunComparison(
            *self.runs, self.names, self.axis, self.metric, factor, alpha, self.paired, tuple(rows),
            _geometric_mean(list(errors.values())),
            len(lost) - len(elsewhere), len(added) - len({key.loosely for key in elsewhere}),
            sum(not one.fixed and change.mark != "=" for one, change in zip(errors.values(), judgements, strict=True)),
        )  # fmt: skip

    def _name(self, side: int) -> str:
        return self.names[side] if self.names else str(self.runs[side].path)

    def _names(self, key: Key) -> tuple[str, str]:
        return self.names or (key.estimator, key.estimator)

    def _errors(self, key: Key) -> Errors:
        ours, theirs = self.old[key], self.new[key]
        if self.paired:
            shared = [draw for draw in ours if draw in theirs]
            ours, theirs = ({draw: each[draw] for draw in shared} for each in (ours, theirs))
        dtype = str(dict(zip(CELL, key.cell, strict=True))["dtype"])
        level = max(self.levels)

        def close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return close_errors(a, b, self.metric, level, dtype)

        return Errors(np.array([*ours.values()]), np.array([*theirs.values()]), self.paired, close)

    def _not_comparable(self, key: Key) -> str:
        """Why two rows of one name do not measure the same; nothing where they do."""
        name = str(dict(zip(CELL, key.cell, strict=True))["input"])
        old, new = (_digests(run).get(name, "") for run in self.runs)
        if old != new:
            return f"other q, k, v in {name} (SHA-256 {old[:8] or 'none'} / {new[:8] or 'none'})"
        if self.paired and self.old[key].keys().isdisjoint(self.new[key]):
            return "no draw is in both"
        if self.names is None:
            versions = [_versions(run, key.estimator) for run in self.runs]
            if versions[0] != versions[1]:
                return f"another version of {key.estimator} is declared ({versions[0]} / {versions[1]})"
        return ""


def close_errors(old: np.ndarray, new: np.ndarray, metric: str, level: float, dtype: str) -> np.ndarray:
    """Whether errors differ by no more than rounding can make of them.

    An output changes by a small multiple of eps sqrt(L) of its own size, at most |exact| + |error|, and its distance
    from the exact one by no more than that; where a normaliser cancels it changes by more, and is not called equal.
    None is in half precision, where rounding is an error like any other. level: ``rounding_level`` in float64.
    """
    if dtype not in _EPS:
        return old == new
    root = 1.0 / max(METRICS[metric].power, 1)
    relative = ROUNDING * _EPS[dtype] / _EPS["float64"]
    exact = level**root / ROUNDING
    a, b = old**root, new**root
    with np.errstate(invalid="ignore"):
        return np.abs(a - b) <= relative * (exact + a + b)


def _geometric_mean(rows: Sequence[Errors]) -> Mean:
    """Over the rows whose errors are all finite and above 0."""
    usable = [row for row in rows if all(bool(np.all((x > 0) & np.isfinite(x))) for x in (row.old, row.new))]
    if not usable:
        return Mean(np.nan, np.nan, np.nan, 0)
    if not all(row.paired for row in usable) or len({len(row.old) for row in usable}) > 1:
        ratio = np.exp(np.mean([np.log(row.ratios().median) for row in usable]))
        return Mean(float(ratio), np.nan, np.nan, len(usable))
    by_draw = np.mean([np.log(row.new) - np.log(row.old) for row in usable], axis=0)
    low, high, _ = median_interval(by_draw)
    return Mean(float(np.exp(np.median(by_draw))), float(np.exp(low)), float(np.exp(high)), len(usable))


def _digests(run: Results) -> Mapping[str, str]:
    files: Any = run.manifest.get("input_files", [])
    return {str(file["input"]): str(file.get("sha256", "")) for file in files}


def _versions(run: Results, estimator: str) -> str:
    """What the parts of an estimator declare as their version; 1 where they declare none."""
    declared: Any = run.manifest.get("declared_versions", {})
    return ", ".join(str(declared.get(part, 1)) for part in estimator.split(" / "))


def _two_estimators(text: str, old: Results, new: Results) -> tuple[str, str]:
    """The two estimators that a user names. Raises ScenarioError."""
    parts = split_list(text)
    if len(parts) != 2 or not all(parts):
        raise ScenarioError(
            f"`estimators`: {shown(text)} given, allowed: two with a comma between, e.g. 'positive orthogonal,clusters'"
        )
    return _estimator(parts[0], old), _estimator(parts[1], new)


def _estimator(text: str, run: Results) -> str:
    """ "positive orthogonal", "positive/orthogonal" or, where it has one sampler only, "positive"."""
    there = run.trials[["map", "sampler"]].drop_duplicates()
    names = [estimator_name(row) for _, row in there.iterrows()]
    wanted = _spelled(text)
    if same := [name for name in names if _spelled(name) == wanted]:
        return same[0]
    of_map = [name for name in names if _spelled(name.partition(" / ")[0]) == wanted]
    if len(of_map) == 1:
        return of_map[0]
    if of_map:
        raise ScenarioError(f"`estimators`: {text!r} has several samplers; write one of {', '.join(of_map)}")
    raise ScenarioError(f"`estimators`: {run.path} has no {text!r}{nearest(text, names)}; it has {', '.join(names)}")


def _spelled(name: str) -> str:
    """An estimator's name however its parts are set apart."""
    return "".join(name.replace("/", " ").split())


def _record(row: Row, axis: str) -> dict[str, object]:
    change = row.change
    empty = dict.fromkeys(Change._fields) | {"verdict": NOT_COMPARABLE}
    values = change._asdict() if change else empty
    return {
        "mark": row.mark, "verdict": values.pop("verdict"), "reason": row.reason,
        **dict(zip(CELL, row.key.cell, strict=True)),
        "old_estimator": row.old_estimator, "new_estimator": row.new_estimator, axis: row.key.size, **values,
    }  # fmt: skip


def counted(found: RunComparison) -> dict[str, int]:
    """How many rows have each verdict, in the order of the marks."""
    counts = Counter(row.change.verdict if row.change else NOT_COMPARABLE for row in found.rows)
    return {verdict: counts[verdict] for verdict in MARKS if counts[verdict]}
