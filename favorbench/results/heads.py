"""The heads of an input as a population: how errors spread over heads, and how often uniform attention wins."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR
from favorbench.errors import ScenarioError
from favorbench.formats import format_value, percent
from favorbench.metrics import METRICS
from favorbench.parameters import check_name
from favorbench.registry import nearest, split_list
from favorbench.results.summary import (
    POPULATION,
    RunData,
    by_population,
    cost_share,
    population_title,
    split_groups,
)
from favorbench.results.tables import (
    COST,
    bounds_in_words,
    by_size,
    named_row,
    rounding_level,
    shortened_inputs,
    what_r_means,
)
from favorbench.sections import Section
from favorbench.statistics import bounded, unbounded

FEW = 6  # heads of one input, up to which a figure has a panel for each; tables and sentences are over two or more

STATISTICS = ("heads", "ratio_median", "ratio_q25", "ratio_q75", "worse", "worst_head", "worst_ratio")

_Run = TypeVar("_Run", bound=RunData)


class Population(NamedTuple):
    """Heads of one input under the same conditions. rows: of ``over_heads``, one for each estimator and size."""

    title: str
    heads: int
    rows: pd.DataFrame


def population_of(row: pd.Series, but: Sequence[str] = ()) -> Hashable:
    """The values that the heads of one population share; ``but``: axes to ignore."""
    return tuple(row[[axis for axis in POPULATION if axis not in but]])


def can_be_compared(metric: str) -> bool:
    """Whether a metric is an error, which has a ratio to that of uniform attention."""
    return METRICS[metric].error and METRICS[metric].better == "lower"


def over_heads(results: RunData, metric: str = "mse") -> pd.DataFrame:
    """One row for each population of heads, estimator and size; empty where no input has two heads or more.

    ratio: on each head the median of the metric over draws, over that of uniform attention; its median, quartiles and
    largest value over heads, on which head, and on how many heads uniform attention is better. The ratio is infinite on
    a head where an estimator failed in all draws. Raises ScenarioError for a metric that is not an error.
    """
    if not can_be_compared(metric):
        allowed = ", ".join(filter(can_be_compared, METRICS))
        raise ScenarioError(
            f"over heads errors are compared with uniform attention's: {metric} given, allowed: {allowed}"
        )
    labels, summary = [*POPULATION, *ESTIMATOR], results.summary
    several = _in_larger(summary, 1)
    if not several.any():
        return summary.loc[several, labels].assign(**dict.fromkeys(STATISTICS, ()))
    sized = [*POPULATION, "kind", "estimator", "sampler", "num_projections", "budget"]
    rows = on_each_head(results._replace(summary=summary[several]), metric)
    if failed := {name.partition(" under ")[0] for name in results.failed}:
        rows = _with_failed_heads(rows, sized, failed)
    groups = rows.groupby(sized, sort=False, dropna=False)
    worst = rows.loc[groups["ratio"].idxmax()].reset_index(drop=True)
    spreads = [quartiles(ratio) for ratio in split_groups(rows["ratio"], groups.ngroup().to_numpy())]
    return worst[labels].assign(
        heads=groups.size().to_numpy(),
        **{f"ratio_{name}": [spread[i] for spread in spreads] for i, name in enumerate(("q25", "median", "q75"))},
        worse=groups["worse"].sum().to_numpy(), worst_head=worst["head"], worst_ratio=worst["ratio"],
    )[[*labels, *STATISTICS]]  # fmt: skip


def _with_failed_heads(rows: pd.DataFrame, sized: list[str], failed: set[str]) -> pd.DataFrame:
    """Add rows of infinite errors for the heads on which one of these estimators failed in all draws."""
    heads = rows[[*POPULATION, "head"]].drop_duplicates()
    estimators = rows[rows["estimator"].isin(failed)].drop(columns="head").drop_duplicates(sized)
    every = estimators.merge(heads, on=POPULATION).assign(ratio=math.inf, worse=True)
    return pd.concat([rows, every], ignore_index=True).drop_duplicates([*sized, "head"])


def _in_larger(frame: pd.DataFrame, most: int) -> pd.Series:
    """Whether each row belongs to a population of more than ``most`` heads."""
    if frame["head"].nunique() <= most:
        return pd.Series(False, frame.index)
    return frame.groupby(POPULATION, dropna=False)["head"].transform("nunique") > most


def on_each_head(results: RunData, metric: str = "mse") -> pd.DataFrame:
    """The summary of all but uniform attention, with the ratio to it, and whether it is worse.

    The ratio of two errors below rounding is unknown: it counts as 1.
    """
    summary, column = results.summary, f"{metric}_median"
    trivial = summary[summary["estimator"] == "uniform"][[*CELL, column]].rename(columns={column: "trivial"})
    rows = summary[summary["estimator"] != "uniform"].merge(trivial, how="left", on=list(CELL))
    ours, theirs = (rows[name].to_numpy(dtype=float) for name in (column, "trivial"))
    floor = rounding_level(results.trials, metric)
    with np.errstate(all="ignore"):
        both = (ours <= floor) & (theirs <= floor)
        ratio = np.where(both, 1.0, ours / theirs)
    return rows.assign(ratio=np.where(np.isnan(ratio), np.inf, ratio), worse=~both & ~(ours <= theirs))


def quartiles(ratio: np.ndarray) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile; infinite where an infinite ratio has a share in it."""
    low, middle, high = unbounded(np.quantile(bounded(ratio), (0.25, 0.5, 0.75))).tolist()
    return low, middle, high


def populations(results: RunData, metric: str = "mse") -> list[Population]:
    """The populations of heads of a run: those with the same input, scale, lengths and so on."""
    return [
        Population(population_title(rows.iloc[0], count := int(rows["heads"].max())), count, rows)
        for rows in by_population(over_heads(results, metric))
    ]


def head_tables(results: RunData, metric: str = "mse") -> list[Section]:
    """A table for each population, by size and from the best estimator to the worst."""
    tables = []
    for population in populations(results, metric):
        texts = rows_of(results, by_size(results, population.rows, "ratio_median"))
        tables.append(Section(title(population, metric), texts, legend(results), data=population.rows))
    return tables


def title(population: Population, metric: str = "mse") -> str:
    """The title of a table over heads."""
    return f"{metric} / {metric} of uniform attention, over {population.title}"


def rows_of(results: RunData, rows: pd.DataFrame) -> list[dict[str, str]]:
    """Rows of ``over_heads`` as texts."""
    return [
        {
            **named_row(results, row),
            "cost": percent(cost_share(results, row)),
            "median": number(row["ratio_median"]),
            "quartiles": f"{number(row['ratio_q25'])} to {number(row['ratio_q75'])}",
            "worse": f"{row['worse']}/{row['heads']}",
            "worst head": f"{number(row['worst_ratio'])} {row['worst_head']}",
        }
        for _, row in rows.iterrows()
    ]


def legend(results: RunData) -> str:
    """The meaning of the columns of a table over heads."""
    text = (
        "For each head the median over draws, divided by that of uniform attention (the mean of V); then the median "
        f"and the quartiles over heads. Worse: on how many heads uniform attention is better. {COST}"
    )
    return " ".join(filter(None, [text, what_r_means(results), bounds_in_words(results), *shortened_inputs(results)]))


def number(ratio: float) -> str:
    """A ratio in a sentence: two digits."""
    if not np.isfinite(ratio):
        return "inf"
    if ratio and not 1e-3 <= ratio < 99.5:
        return format_value(ratio, "mse")
    return f"{ratio:#.2g}" if ratio < 9.95 else f"{ratio:.0f}"


def filtered(results: _Run, keep: Callable[[pd.DataFrame], Any]) -> _Run:
    """The rows of a run that ``keep`` selects in a frame."""
    return results._replace(trials=results.trials[keep(results.trials)], summary=results.summary[keep(results.summary)])


def without_many(results: _Run, most: int = 1) -> _Run:
    """The run without inputs of more than ``most`` heads."""
    return filtered(results, lambda frame: ~_in_larger(frame, most).to_numpy())


def first_head(results: RunData) -> str:
    """The label of some head, for an example."""
    return next(str(name) for name in results.summary["head"] if name != "-")


def check_metric(results: RunData, metric: str) -> None:
    """Raise ScenarioError for an unknown metric, and for the effect where no input has gradients."""
    check_name("metric", metric, METRICS)
    if metric not in results.trials:
        raise ScenarioError(
            f"`metric` {metric}: the inputs of {results.path} have no gradients: `favorbench capture --gradients 16` "
            "writes them, and a sweep over that file has this metric"
        )


def check_known(results: RunData, key: str, names: Sequence[str], known: Sequence[str], what: str = "") -> None:
    """Raise ScenarioError for a name that is not among those of the run."""
    for name in names:
        if name not in known:
            some = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
            has = f"it has {some}" if known else f"its inputs have no {key}: leave `{key}` out"
            raise ScenarioError(f"`{key}`: {results.path} has no {what}{name!r}{nearest(name, known)}; {has}")


def select_heads(results: _Run, names: str | None) -> _Run:
    """The part of a run with these heads, a list with commas; None: all. Raises ScenarioError for an unknown one."""
    if names is None:
        return results
    known, chosen = [str(name) for name in results.summary["head"].unique() if name != "-"], split_list(names)
    check_known(results, "heads", chosen, known, "head ")
    return filtered(results, lambda frame: frame["head"].isin(chosen))
