"""A run as data: rows, their statistics for each cell and estimator, and the groups that are shown together."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.attention.problem import Shape, exact_multiplications
from favorbench.baselines import BASELINES
from favorbench.engine.columns import CELL, ESTIMATOR, Failed, Labels, describe_cell
from favorbench.engine.scenario import Scenario
from favorbench.engine.study import budget_of
from favorbench.formats import counted
from favorbench.inputs.heads import head_and_text
from favorbench.maps import MAPS
from favorbench.methods import METHODS, PREFIXES
from favorbench.methods.prefixes import Nothing
from favorbench.metrics import METRICS
from favorbench.registry import split_list
from favorbench.samplers import SAMPLERS
from favorbench.statistics import bounded, holm, median_interval, sign_test, unbounded, verdict

#: Kinds of rows that are compared with one another; baselines are what they are compared with.
COMPARED = ("map", "method")

#: The columns that the heads of one population share.
POPULATION = [axis for axis in CELL if axis != "head"]

#: Names of baselines and prefixes that look at every pair of a query and a key: bounds, not usable estimators.
_ORACLE_BASELINES = {b.name for b in BASELINES if b.oracle is True}
_ORACLE_PREFIXES = {p.prefix for p in PREFIXES if vars(p).get("oracle")}

#: Names of methods and baselines that draw nothing, and of prefixes, which add no randomness.
_NOT_RANDOM = {member.name for member in (*METHODS, Nothing, *BASELINES) if member.random is False}
_PREFIXES = {p.prefix for p in PREFIXES}

#: Names of registered members; other members are a user's.
REGISTERED = {member.name for family in (MAPS, (*METHODS, Nothing), BASELINES, SAMPLERS) for member in family}

#: Relative to |exact|: errors below it are rounding, and differ from one machine to the next.
ROUNDING = 1e-13

BOUND = " (bound)"  # follows the name of an oracle

#: Statistics over draws, of a Series or of its groups.
STATS = {
    "median": methodcaller("median"),
    "mean": methodcaller("mean"),
    "std": methodcaller("std", ddof=0),
    "q10": methodcaller("quantile", 0.1),
    "q90": methodcaller("quantile", 0.9),
    "min": methodcaller("min"),
    "max": methodcaller("max"),
    "n": methodcaller("count"),
}


class RunData(NamedTuple):
    """The content of a run directory: the manifest and scenario, all measurements, and their summary."""

    path: Path
    manifest: Mapping[str, object]
    scenario: Scenario
    trials: pd.DataFrame
    summary: pd.DataFrame
    set_aside: tuple[str, ...] = ()
    failed: Failed = {}  # noqa: RUF012

    @property
    def is_partial(self) -> bool:
        """Whether draws are missing. A finished search of ``recommend`` needs not all that it planned."""
        return not self.manifest["complete"] and not (self.path / "recommendation.json").exists()


def summarise(trials: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and estimator: n, and for every metric the median, the 10 % and 90 % quantiles, the mean.

    ``mse_low`` and ``mse_high`` bound the median of the mse; ``versus_uniform`` is the verdict of the paired comparison
    with uniform attention (sign test on the skill, Holm over all estimators of the cell; two errors below rounding are
    a tie).
    """
    groups = trials.groupby([*CELL, *ESTIMATOR], sort=False, dropna=False)
    columns, of_group = {"n": groups.size()}, groups.ngroup().to_numpy()
    metrics = [name for name in METRICS if name in trials]
    values = groups[metrics]  # all metrics at once: a function for each group would take longer than the sweep
    finite = bounded(trials[metrics]).groupby(of_group)
    with np.errstate(all="ignore"):
        low, high = (unbounded(finite.quantile(p)).set_axis(columns["n"].index) for p in (0.1, 0.9))
        stats = {"median": values.median(), "q10": low, "q90": high, "mean": values.mean()}
    for metric, (stat, frame) in itertools.product(metrics, stats.items()):
        columns[f"{metric}_{stat}"] = frame[metric]
    summary = pd.DataFrame(columns).reset_index()
    summary["sampler"] = summary["sampler"].astype(trials["sampler"].dtype)  # a column of None would be one of floats
    intervals = [median_interval(values) for values in split_groups(trials["mse"], of_group)]
    summary[["mse_low", "mse_high"]] = [interval[:2] for interval in intervals]
    skills = trials["skill"].mask(_as_exact_as_uniform(trials), 0.0)
    tests = pd.Series([sign_test(values) for values in split_groups(skills, of_group)], summary.index)
    summary["versus_uniform"] = "-"
    for cell in by_cell(summary[summary["estimator"] != "uniform"]).values():
        adjusted = holm(tests[cell.index].tolist())
        verdicts = [verdict(p, -skill) for p, skill in zip(adjusted, cell["skill_median"], strict=True)]
        summary.loc[cell.index, "versus_uniform"] = verdicts
    return summary


def _as_exact_as_uniform(trials: pd.DataFrame) -> pd.Series:
    """Whether the errors of a row and of uniform attention on the same draw are both rounding."""
    exact = trials["relative_error"] <= ROUNDING
    rows, uniform = (
        pd.MultiIndex.from_frame(trials.loc[chosen, [*CELL, "draw"]])
        for chosen in (exact, exact & (trials["estimator"] == "uniform"))
    )
    exact[exact] = rows.isin(uniform)
    return exact


def split_groups(values: pd.Series, of_group: np.ndarray) -> list[np.ndarray]:
    """The values of each group: as arrays, for a Series of each would take longer than the sweep."""
    order = np.argsort(of_group, kind="stable")
    return np.split(values.to_numpy()[order], np.cumsum(np.bincount(of_group))[:-1])


def by_cell(frame: pd.DataFrame) -> dict[tuple[object, ...], pd.DataFrame]:
    """The rows of each cell."""
    return dict(iter(frame.groupby(list(CELL), sort=False)))


def cells_of(results: RunData) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """The trials and the summary of each cell."""
    trials = by_cell(results.trials)
    return [(trials[key], cell) for key, cell in by_cell(results.summary).items()]


def own_draws(results: RunData, trials: pd.DataFrame) -> pd.Series:
    """Which of its trial's draws each row is from: that of a size, where each size has a draw of its own; else 0.

    Estimators without a size are on all of these draws; draws without any other are counted down from -1.
    """
    if results.scenario.redraw != "R":
        return pd.Series(0, trials.index)
    size = trials.groupby("draw")["budget"].transform("max")
    count = trials["draw"] - trials.groupby([*CELL, "trial"], dropna=False)["draw"].transform("min")
    return size.fillna(-1 - count).astype(int)


def by_population(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of each population of heads."""
    return (rows for _, rows in frame.groupby(POPULATION, sort=False, dropna=False))


def population_title(row: Any, labels: Iterable[str]) -> str:
    """ "72 heads of minilm, scale 1, L = 512, d = 32", "72 heads on 2 texts of ..."."""
    heads, texts = map(set, zip(*map(head_and_text, labels), strict=True))
    on = f" on {len(texts)} texts" if len(texts) > 1 else ""
    return f"{counted(len(heads), 'head')}{on} of {describe_cell({**row, 'head': '-'})}"


def rows_of(frame: pd.DataFrame, name: str, sampler: Any, num_projections: Any = ...) -> pd.DataFrame:
    """The rows of one map or baseline under one sampler, at one R (all unless given); missing values are equal."""
    for column, value in (("estimator", name), ("sampler", sampler), ("num_projections", num_projections)):
        if value is not ...:
            same = frame[column].isna() if pd.isna(value) else (frame[column] == value).fillna(False)
            frame = frame[same.astype(bool)]
    return frame


def at_largest(summary: pd.DataFrame) -> pd.DataFrame:
    """Each estimator under each sampler at its largest size, once in each cell; those without sizes as they are.

    Two budgets may come to one size, which is measured once and stands in two rows.
    """
    sizes = summary["num_projections"].fillna(0)
    largest = sizes.groupby([summary["estimator"], summary["sampler"]], dropna=False).transform("max")
    return summary[sizes == largest].drop_duplicates([*CELL, "estimator", "sampler"], keep="last")


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of maps and methods."""
    return frame[frame["kind"].isin(COMPARED)]


def usable(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of estimators that are not bounds."""
    return frame[~frame["estimator"].map(is_oracle).astype(bool)]


def is_oracle(name: object) -> bool:
    """Whether the estimator of this name looks at every pair of a query and a key; a user's ``mine:top`` may not."""
    parts = _parts(name)
    return parts[-1] in _ORACLE_BASELINES or not _ORACLE_PREFIXES.isdisjoint(parts[:-1])


def is_random(name: str) -> bool:
    """Whether a registered method or baseline draws random numbers; any other estimator may."""
    *prefixes, inside = _parts(name)
    return inside not in _NOT_RANDOM or not _PREFIXES.issuperset(prefixes)


def _parts(name: object) -> list[str]:
    """The prefixes of a member and its own name, without parameters."""
    return [part.partition("(")[0].strip() for part in split_list(str(name), ":")]


def value_dims(results: RunData) -> dict[str, int]:
    """By input, its d_v where that is not d."""
    files: Any = results.manifest.get("input_files", [])
    return {file["input"]: file["value_dim"] for file in files if "value_dim" in file}


def exact_cost(results: RunData, row: Any) -> float:
    """The multiplications of exact attention on the head of a row."""
    return exact_multiplications(_shape_of(results, row))


def _shape_of(results: RunData, row: Any) -> Shape:
    d_v: int = value_dims(results).get(row["input"]) or row["head_dim"]
    return Shape(row["query_len"], row["seq_len"], row["head_dim"], d_v, row["causal"] == "yes")


def keeps_to(results: RunData, row: Any, size: int) -> bool:
    """Whether an estimator without a size has no more features, or multiplications, than the budget of a size."""
    kind = results.scenario.budget
    if kind == "features":
        return bool(row["num_features"] <= size)
    return kind != "cost" or bool(row["multiplications"] <= budget_of(size, _shape_of(results, row)))


def cost_share(results: RunData, row: Any) -> float:
    """The multiplications of a row over those of exact attention; NaN for a bound, or if unknown."""
    return math.nan if is_oracle(row["estimator"]) else float(row["multiplications"]) / exact_cost(results, row)


def is_own(row: Labels) -> bool:
    """Whether the estimator, or its sampler, is a user's."""
    names = [row["estimator"]] if pd.isna(row["sampler"]) else [row["estimator"], row["sampler"]]
    return any(_parts(name)[-1] not in REGISTERED for name in names)


def estimator_name(row: Labels) -> str:
    """ "positive / orthogonal"; the map or method alone where there is no sampler."""
    return str(row["estimator"]) if pd.isna(row["sampler"]) else f"{row['estimator']} / {row['sampler']}"


def estimator_names(frame: pd.DataFrame) -> list[str]:
    """The name of the estimator of each row."""
    sampler = frame["sampler"].astype(object)
    return list(frame["estimator"].astype(str) + (" / " + sampler.fillna("").astype(str)).where(sampler.notna(), ""))


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    """Add columns: the label of the estimator, whether it is a bound, and whether it is a user's."""
    users = [
        row["kind"] in COMPARED and is_own(row) for row in frame[["kind", "estimator", "sampler"]].to_dict("records")
    ]
    frame = frame.assign(label=estimator_names(frame), bound=list(map(is_oracle, frame["estimator"])), own=users)
    return frame.astype({"bound": bool, "own": bool})


def marked_name(row: Labels) -> str:
    """The name in tables that show bounds among usable estimators."""
    return estimator_name(row) + (BOUND if is_oracle(row["estimator"]) else "")
