"""Rows to statistics: one row for each cell and estimator, with intervals and the verdict against uniform attention."""

import itertools
from typing import Any

import numpy as np
import pandas as pd

from favorbench.baselines import BASELINES
from favorbench.engine.columns import CELL, ESTIMATOR, Labels
from favorbench.maps import MAPS
from favorbench.methods import METHODS, PREFIXES
from favorbench.metrics import METRICS
from favorbench.registry import split_list
from favorbench.samplers import SAMPLERS
from favorbench.statistics import holm, median_interval, sign_test, verdict

#: Kinds of rows that are compared with one another: baselines are what they are compared with.
COMPARED = ("map", "method")

#: Names of baselines and prefixes that look at every pair of a query and a key: bounds, not what one could use.
ORACLES = {b.name for b in BASELINES if b.oracle is True} | {p.prefix for p in PREFIXES if p.oracle is True}

#: Names of members that are not a user's.
OURS = {member.name for family in (MAPS, METHODS, BASELINES, SAMPLERS) for member in family}

#: What stands behind the names of these.
BOUND = " (bound)"

STATS = {
    "median": lambda x: x.median(),
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(ddof=0),
    "q10": lambda x: x.quantile(0.1),
    "q90": lambda x: x.quantile(0.9),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "n": lambda x: x.count(),
}


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and estimator: n, and for every metric median, 10 % and 90 % quantile and mean.

    ``mse_low``, ``mse_high`` bound the median of the mse; ``versus_uniform`` is the verdict of the paired comparison
    with uniform attention (sign test on the skill, Holm over all estimators of the cell).
    """
    with np.errstate(all="ignore"):  # errors of estimators that failed are infinite: inf - inf in a quantile is nan
        return _summarise(trials)


def _summarise(trials: pd.DataFrame) -> pd.DataFrame:
    groups = trials.groupby([*CELL, *ESTIMATOR], sort=False, dropna=False)
    columns: dict[str, pd.Series] = {"n": groups.size()}
    values = groups[list(METRICS)]  # all metrics at once: a function for each group would take longer than the sweep
    found = {"median": values.median(), "q10": values.quantile(0.1), "q90": values.quantile(0.9), "mean": values.mean()}
    for metric, (stat, frame) in itertools.product(METRICS, found.items()):
        columns[f"{metric}_{stat}"] = frame[metric]
    summary = pd.DataFrame(columns).reset_index()
    summary["sampler"] = summary["sampler"].astype(trials["sampler"].dtype)  # a column of None would be one of floats
    of_group = groups.ngroup().to_numpy()
    intervals = [median_interval(values) for values in _split(trials["mse"], of_group)]
    summary["mse_low"], summary["mse_high"] = ([one[i] for one in intervals] for i in (0, 1))
    summary["sign_test"] = [sign_test(values) for values in _split(trials["skill"], of_group)]
    summary["versus_uniform"] = _versus_uniform(summary)
    return summary.drop(columns="sign_test")


def _split(values: pd.Series, of_group: np.ndarray) -> list[np.ndarray]:
    """The values of each group: as arrays, for a Series of each would take longer than the sweep."""
    order = np.argsort(of_group, kind="stable")
    return np.split(values.to_numpy()[order], np.cumsum(np.bincount(of_group))[:-1])


def by_cell(frame: pd.DataFrame) -> dict[tuple[object, ...], pd.DataFrame]:
    """The rows of each cell, in one pass over all: a search for each takes cells times rows."""
    return dict(iter(frame.groupby(list(CELL), sort=False)))


def _versus_uniform(summary: pd.DataFrame) -> pd.Series:
    verdicts = pd.Series("-", index=summary.index)
    judged = summary["map"] != "uniform"
    for cell in by_cell(summary[judged]).values():
        for index, p in zip(cell.index, holm(cell["sign_test"].tolist()), strict=True):
            verdicts[index] = verdict(p, -float(cell["skill_median"][index]))
    return verdicts


def rows_of(frame: pd.DataFrame, name: str, sampler: object, num_projections: object = ...) -> pd.DataFrame:
    """The rows of one map or baseline under one sampler, at one R (all unless given); what is missing is equal."""
    chosen = (frame["map"] == name) & _equal(frame["sampler"], sampler)
    return frame[chosen if num_projections is ... else chosen & _equal(frame["num_projections"], num_projections)]


def _equal(column: pd.Series, value: Any) -> pd.Series:
    return column.isna() if pd.isna(value) else (column == value).fillna(False).astype(bool)


def at_largest(summary: pd.DataFrame) -> pd.DataFrame:
    """Each estimator under each sampler at its largest size, once in each cell; what has none as it is.

    Two budgets may come to one size, which is measured once and stands in two rows.
    """
    sizes = summary["num_projections"].fillna(0)
    largest = sizes.groupby([summary["map"], summary["sampler"]], dropna=False).transform("max")
    return summary[sizes == largest].drop_duplicates([*CELL, "map", "sampler"], keep="last")


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of maps and methods."""
    return frame[frame["kind"].isin(COMPARED)]


def is_oracle(name: str) -> bool:
    """Whether what has this name looks at every pair of a query and a key."""
    return any(part.partition("(")[0].strip() in ORACLES for part in split_list(name, ":"))


def is_own(row: Labels) -> bool:
    """Whether a user has brought what is measured here: the estimator, or its sampler."""
    names = [row["map"]] if pd.isna(row["sampler"]) else [row["map"], row["sampler"]]
    return any(split_list(str(name), ":")[-1].partition("(")[0].strip() not in OURS for name in names)


def estimator_name(row: Labels) -> str:
    """Map and sampler, where there is one to choose."""
    return str(row["map"]) if pd.isna(row["sampler"]) else f"{row['map']} / {row['sampler']}"


def marked_name(row: Labels) -> str:
    """The same in tables of everything that was measured, where a bound stands among what one could use."""
    return estimator_name(row) + (BOUND if is_oracle(str(row["map"])) else "")
