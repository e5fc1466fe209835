"""Tables of a run: any statistic of any metric over any axes, and what sizes and marks in them mean."""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR, LABELS, RENAMED, Labels, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import ALIASES, counted, format_value, heading, percent
from favorbench.metrics import METRICS
from favorbench.registry import nearest
from favorbench.results.summary import (
    ROUNDING,
    STATS,
    RunData,
    at_largest,
    by_cell,
    cells_of,
    cost_share,
    is_oracle,
    keeps_to,
    marked_name,
)
from favorbench.sections import Section
from favorbench.statistics import LARGE, bounded, unbounded

SIZES = ("num_projections", "num_features", "budget")

COST = "Cost: multiplications, as a share of those of exact attention."


def parse_by(text: str) -> list[str]:
    """Axes from "estimator,sampler,R". Raises ScenarioError for an unknown one."""
    axes = [ALIASES.get(part.strip(), part.strip()) for part in text.split(",")]
    for old in RENAMED.keys() & set(axes):
        warnings.warn(
            f"the axis {old} is now {RENAMED[old]}; the old name goes in version 0.4", FutureWarning, stacklevel=3
        )
    axes = [RENAMED.get(axis, axis) for axis in axes]
    for axis in axes:
        if axis not in LABELS:
            allowed = [heading(name) for name in LABELS]
            raise ScenarioError(f"`by`: unknown axis {axis!r}{nearest(axis, allowed)}; allowed: {', '.join(allowed)}")
    return list(dict.fromkeys(axes))


def every_axis(results: RunData) -> list[str]:
    """The axes that distinguish all rows of the summary, in the order of a table."""
    return [*varying(results.trials), "estimator", "sampler", "num_projections"]


def long_table(results: RunData, by: Sequence[str], metric: str, stat: str) -> pd.DataFrame:
    """One row for each combination of ``by``: the statistic of the metric, n, and whether it is worse than uniform.

    Worse: than the same statistic of uniform attention over the same draws; False where these are not compared.
    """
    trials, column = results.trials, f"{metric}_{stat}"
    if "budget" not in by:  # two budgets may come to one size, which is measured once and stands in two rows
        trials = trials.drop_duplicates(["draw", *CELL, "estimator", "sampler", "num_projections"])
    table = _statistic(trials, by, metric, stat).rename(column).to_frame()
    table = table.assign(n=_grouped(trials, by)["draw"].nunique()).reset_index()
    if not _compared(metric, stat):
        return table.assign(worse=False)
    shared = list(dict.fromkeys(["draw", *CELL, *(axis for axis in by if axis not in ESTIMATOR)]))
    uniform = trials.loc[trials["estimator"] == "uniform", [*shared, metric]]
    draws = trials[list(dict.fromkeys([*by, *shared]))].drop_duplicates()  # of each row of the table
    theirs = _statistic(draws.merge(uniform, on=shared), by, metric, stat).to_numpy()
    ours, floor = table[column].to_numpy(), rounding_level(trials, metric)
    higher = METRICS[metric].better == "higher"
    worse = ours < theirs if higher else np.maximum(ours, floor) > np.maximum(theirs, floor)
    return table.assign(worse=worse & (table.get("estimator") != "uniform"))  # the order of a sum may differ


def _compared(metric: str, stat: str) -> bool:
    """Whether values are compared with those of uniform attention: spreads and counts are not."""
    return stat not in ("std", "n") and METRICS[metric].error


def _grouped(trials: pd.DataFrame, by: Sequence[str]) -> Any:
    return trials.groupby(list(by), sort=False, dropna=False)


def _statistic(trials: pd.DataFrame, by: Sequence[str], metric: str, stat: str) -> pd.Series:
    values = trials.assign(**{metric: bounded(trials[metric])})
    with np.errstate(all="ignore"):  # of infinite errors
        groups = _grouped(values, by)[metric]
        found = STATS[stat](groups)
        if stat == "std":  # 0 of infinite errors alone
            return found.mask(np.maximum(groups.max(), -groups.min()) == LARGE, np.inf)
        return found if stat == "n" else unbounded(found)


def varying(trials: pd.DataFrame, axes: Sequence[str] = CELL) -> list[str]:
    """Those of the axes that have more than one value."""
    return [axis for axis in axes if trials[axis].nunique(dropna=False) > 1]


def pivoted(results: RunData, by: Sequence[str], metric: str = "mse", stat: str = "median") -> Section:
    """The last axis of ``by`` as columns. Estimators without a size repeat their value in every column of sizes."""
    long = long_table(sized(results, by[-1]), by, metric, stat)
    pooled = _pooled(results.trials, by)
    caption = f"{stat} {metric} of {draws_in_words(long['n'])}" + (f", pooled over {pooled}" if pooled else "")
    return _pivot(results, long, by, metric, stat, caption, legend(results, _compared(metric, stat)))


def sized(results: RunData, axis: str) -> RunData:
    """The run with a missing size in rows without a size, where the axis is one of sizes."""
    if axis not in SIZES:
        return results
    trials = results.trials
    sizes = trials[axis].astype("Int64").where(trials["num_projections"].notna())
    return results._replace(trials=trials.assign(**{axis: sizes}))


def _pivot(
    results: RunData, long: pd.DataFrame, by: Sequence[str], metric: str, stat: str, title: str, note: str
) -> Section:
    *labels, axis = by
    floor = rounding_level(results.trials, metric)
    write = partial(format_value, metric="n" if stat == "n" else metric, floor=floor)
    texts = _texts(long, labels, axis, f"{metric}_{stat}", write)
    columns: dict[Any, str] = {value: str(value) for value in sorted(long[axis].dropna().unique())}
    if not columns or any(None in row and len(row) > 1 for row in texts.values()):  # else it stands in all columns
        columns[None] = "-"
    rows = [
        dict(zip((heading(label) for label in labels), key, strict=True))
        | {f"{heading(axis)} = {name}": row.get(value, row.get(None, "-")) for value, name in columns.items()}
        for key, row in texts.items()
    ]
    style = _value_style if _compared(metric, stat) else None
    return Section(title, rows, note, data=long, labels=len(labels), style=style)


def _pooled(trials: pd.DataFrame, by: Sequence[str]) -> str:
    """The axes that vary and that ``by`` leaves out: the statistic mixes their values."""
    sizes = () if set(SIZES) & set(by) else ("num_projections",)
    axes = [*varying(trials), *(axis for axis in ("estimator", "sampler", *sizes) if trials[axis].nunique() > 1)]
    of_length = [axis for axis in ("query_len", "query_rows") if trials.groupby("seq_len")[axis].nunique().max() == 1]
    return ", ".join(heading(axis) for axis in axes if axis not in (*by, *of_length))


def _texts(
    long: pd.DataFrame, labels: Sequence[str], axis: str, column: str, write: Callable[[float], str]
) -> dict[tuple[str, ...], dict[Any, str]]:
    """For each combination of labels, as texts and in the order of the first label first, the text at each value."""
    names = [["-" if pd.isna(value) else str(value) for value in long[label]] for label in labels]
    texts: dict[tuple[str, ...], dict[Any, str]] = {}
    for *key, value, number, worse in zip(*names, long[axis], long[column], long["worse"], strict=True):
        texts.setdefault(tuple(key), {})[None if pd.isna(value) else value] = write(number) + "*" * worse
    order = [list(dict.fromkeys(column)) for column in names]
    keys = sorted(texts, key=lambda key: [known.index(label) for known, label in zip(order, key, strict=True)])
    return {key: texts[key] for key in keys}


def _value_style(column: str, text: str) -> str:
    """Red where worse than uniform attention, else green."""
    return "" if " = " not in column else "dim" if text == "-" else "red" if text.endswith("*") else "green"


def cell_tables(results: RunData, metric: str = "mse", stat: str = "median") -> list[Section]:
    """One table for each cell: map x sampler in rows, R in columns, and the cost at the largest size."""
    by = ["estimator", "sampler", size_axis(results)]
    tables = by_cell(long_table(sized(results, by[-1]), [*CELL, *by], metric, stat)).values()
    shown = []
    for table, (trials, cell) in zip(tables, cells_of(results), strict=True):
        part, long = results._replace(trials=trials), table.drop(columns=[*CELL])
        meaning = f"{legend(part, _compared(metric, stat))} {COST[:-1]}, at the largest size."
        note = f"{stat} {metric} of {draws_in_words(long['n'])}. {meaning}"
        table = _pivot(part, long, by, metric, stat, f"{metric}, {describe_cell(trials.iloc[0])}", note)
        rows = at_largest(cell).to_dict("records")
        costs = {(row["estimator"], "-" if pd.isna(row["sampler"]) else row["sampler"]): row for row in rows}
        texts = [
            {**row, "cost": percent(cost_share(part, costs[row["estimator"], row["sampler"]]))} for row in table.rows
        ]
        shown.append(replace(table, rows=texts))
    return shown


def named_row(results: RunData, row: Labels) -> dict[str, str]:
    """The first columns of a table with a row for each estimator and size."""
    axis = size_axis(results)
    return {"estimator": marked_name(row), heading(axis): "-" if pd.isna(row["num_projections"]) else str(row[axis])}


def by_size(results: RunData, rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Rows sorted by size, those without one first, and by a value from the least to the largest."""
    rows = rows.assign(size=rows[size_axis(results)].fillna(0))
    return ascending(rows, value).sort_values("size", kind="stable")


def ascending(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Rows sorted by a value; those that are equal but for rounding stay in their order."""
    return rows.iloc[np.argsort(without_rounding(rows[value].to_numpy()), kind="stable")]


def without_rounding(values: Any) -> Any:
    """The first seven digits: estimators that compute the same in another order are tied, on every machine."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa, 7), exponent)


def rounding_level(trials: pd.DataFrame, metric: str) -> float:
    """The largest value of a metric that float64 arithmetic cannot tell from 0; 0 where the metric has none.

    Sums over L keys are off by a small multiple of eps sqrt(L) of |exact|: ROUNDING allows for the longest.
    """
    measured = trials[trials["relative_error"] > 0]
    squares = (measured["mse"] / measured["relative_error"] ** 2).dropna()  # an infinite error says nothing
    return rounding_of(metric, np.sqrt(squares.max()) if len(squares) else 1)


def rounding_of(metric: str, exact: float) -> float:
    """``rounding_level`` where the root mean square of exact attention is known."""
    power = METRICS[metric].power
    if not METRICS[metric].error or not METRICS[metric].log:
        return 0.0
    return float(ROUNDING * (exact if power else 1.0)) ** max(power, 1)


def rounded(frame: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """A summary with 0 in place of rounding errors, for files that are compared between machines."""
    floors = {metric: rounding_level(trials, metric) for metric in METRICS}
    columns = [(str(name), metric) for metric in METRICS for name in frame if str(name).startswith(f"{metric}_")]
    result, values = frame.copy(), frame[[name for name, _ in columns]]
    result[values.columns] = values.mask(values.abs() < [floors[metric] for _, metric in columns], 0.0)
    return result


def size_axis(results: RunData) -> str:
    """The axis of sizes in tables and figures: R, or the budget where that is features or cost."""
    return "num_projections" if results.scenario.budget == "projections" else "budget"


def at_size(results: RunData, size: object) -> str:
    """ "R = 64", "64 features" or "the cost of 64 features"."""
    words = {"projections": "R = {}", "features": "{} features", "cost": "the cost of {} features"}
    return words[results.scenario.budget].format(size)


def largest_size(results: RunData, rows: pd.DataFrame) -> str:
    """The largest size of these rows in words; empty where none has a size."""
    largest = rows[size_axis(results)].max()
    return "" if pd.isna(largest) else at_size(results, largest)


def with_size(results: RunData, row: Labels) -> str:
    """ "positive / iid at R = 64"; the label alone where the estimator has no size."""
    size = row[size_axis(results)]
    return row["label"] if pd.isna(size) else f"{row['label']} at {at_size(results, size)}"


def at_largest_size(results: RunData, rows: pd.DataFrame, of: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows with the largest size of these, or of others, and those without a size: baselines, and what keeps to it.

    A map such as ``taylor`` has its own number of features, which may be far beyond a budget.
    """
    sizes = rows[size_axis(results)]
    largest = (rows if of is None else of)[sizes.name].max()
    free = sizes.isna() & (rows["kind"] != "baseline")
    if pd.notna(largest) and free.any():
        beyond = [not keeps_to(results, row, int(largest)) for _, row in rows[free].iterrows()]
        rows = rows.drop(index=rows.index[free][beyond])
    return rows[(rows[sizes.name] == largest) | rows[sizes.name].isna()]


def draws_in_words(n: pd.Series) -> str:
    """ "15 draws", "1 draw" or "14 to 15 draws"."""
    low, high = int(n.min()), int(n.max())
    return counted(high, "draw") if low == high else f"{low} to {high} draws"


def legend(results: RunData, marked: bool = True) -> str:
    """The meaning of R and of the mark, a baseline that is missing, and the parts of inputs that were left out."""
    scenario, trials = results.scenario, results.trials
    text = what_r_means(results) + f" * worse than {uniform_in_words(results)}." * marked
    if "best-rank" in scenario.baselines and not (trials["estimator"] == "best-rank").any():
        text += " best-rank: not computed, it needs every query row and an attention matrix of at most 2048 x 2048."
    bounds = bounds_in_words(results) if scenario.budget == "cost" else ""
    return " ".join(filter(None, [text, bounds, *input_sentences(results)]))


def uniform_in_words(results: RunData) -> str:
    """Uniform attention, and what it answers."""
    return f"uniform attention (the mean of V{' up to the query' * results.scenario.causal})"


def bounds_in_words(results: RunData) -> str:
    """A sentence about the estimators that are bounds."""
    names = [name for name in results.trials["estimator"].unique() if is_oracle(name)]
    if not names:
        return ""
    look = "looks" if len(names) == 1 else "look"
    return f"{', '.join(names)} {look} at every pair of a query and a key: a bound, at any cost."


def unlike_sentences(name: str, notes: Iterable[str]) -> list[str]:
    """A sentence for each note of an input that says why it may be another problem than that of its arrays."""
    unlike = re.compile("^the first|not used|with(out)? the mask|other way round")
    return [f"{name}: {note}." for note in notes if unlike.search(note)]


def input_sentences(results: RunData) -> list[str]:
    """A sentence for each reason why a measured input may be another problem than the one that its arrays are about."""
    files: Any = results.manifest.get("input_files", [])
    return [text for file in files for text in unlike_sentences(file["input"], file["notes"])]


def what_r_means(results: RunData) -> str:
    """A sentence about sizes: how they are counted, and the number of features of each map, where that is not R."""
    scenario, trials = results.scenario, results.trials
    if scenario.budget == "features":
        return "All use as many features as the budget says, except those whose number is fixed."
    if scenario.budget == "cost":
        largest, exact = trials["budget"].max(), ""
        shapes = trials[["query_len", "seq_len"]].drop_duplicates()
        if len(shapes) == 1 and not scenario.causal:  # causal, the cost of exact attention depends on the program
            n, length = shapes.iloc[0]  # exact: n l (d + d_v) multiplications, a map of R features: (n + l) R (d + d_v)
            exact = f"; exact attention would need a budget of {n * length / (n + length):.0f}"
        return (
            f"Compared at equal cost: a budget of {largest} is the multiplications of linear attention with {largest} "
            f"features, and each estimator is as large as they allow{exact}."
        )
    maps = trials.loc[trials["kind"] == "map", "estimator"].unique()
    if not len(maps):
        return "R counts the centroids, keys or landmarks of methods."
    counts: Any = results.manifest["num_features"]
    by_count: dict[str, list[str]] = {}
    for name in maps:
        by_count.setdefault(counts[name], []).append(str(name))
    others = [f"{', '.join(names)}: {count}" for count, names in by_count.items() if count != "R"]
    features = f"; num_features of {'; '.join(others)}" if others else " and features"
    methods = "; of methods it counts centroids, keys or landmarks" if (trials["kind"] == "method").any() else ""
    return f"R counts projections{features}{methods}."
