"""The heads of an input as a population: how errors spread over heads, and how often uniform attention wins."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import HEADINGS, format_value
from favorbench.metrics import METRICS
from favorbench.registry import nearest, split_list
from favorbench.results.run import RunData
from favorbench.results.summary import compared, estimator_name, is_oracle, marked_name
from favorbench.results.tables import (
    at_size,
    bounds_in_words,
    rounding_level,
    shortened_inputs,
    size_axis,
    what_r_means,
)
from favorbench.sections import Section

FEW = 6  # heads of one input, up to which a figure has a panel for each; tables and words are over two or more

#: What heads of one population share.
POPULATION = tuple(axis for axis in CELL if axis != "head")

_SIZED = ["kind", "map", "sampler", "num_projections", "budget"]  # the rest of an estimator's columns follows

STATISTICS = ("heads", "ratio_median", "ratio_q25", "ratio_q75", "worse", "worst_head", "worst_ratio")

_Run = TypeVar("_Run", bound=RunData)


class Population(NamedTuple):
    """Heads of one input, measured alike. rows: of ``over_heads``, one for each estimator and size."""

    title: str
    heads: int
    rows: pd.DataFrame

    @property
    def cell(self) -> tuple[object, ...]:
        """What its heads share."""
        return tuple(self.rows.iloc[0][list(POPULATION)])


def population_of(rows: pd.DataFrame, but: Sequence[str] = ()) -> Hashable:
    """What tells the population of these rows, of one head each time, from others, but for some axes."""
    return tuple((axis, rows[axis].iloc[0]) for axis in POPULATION if axis not in but)


def can_be_compared(metric: str) -> bool:
    """Whether a metric is an error, which has a ratio to that of uniform attention."""
    return METRICS[metric].error and METRICS[metric].better == "lower"


def over_heads(results: RunData, metric: str = "mse") -> pd.DataFrame:
    """One row for each population of heads, estimator and size; empty where no input has two heads or more.

    ratio: on each head the median of the metric over draws, over that of uniform attention; its median, quartiles and
    largest value over heads, on which head, and on how many heads uniform attention is better. Raises ScenarioError
    for a metric that is not an error.
    """
    if not can_be_compared(metric):
        allowed = ", ".join(filter(can_be_compared, METRICS))
        raise ScenarioError(
            f"over heads errors are compared with uniform attention's: {metric} given, allowed: {allowed}"
        )
    found, heads = [], results.summary.groupby(list(POPULATION), sort=False, dropna=False)["head"]
    ratios = on_each_head(results, metric) if heads.nunique().max() > 1 else results.summary[:0]
    for _, rows in ratios.groupby(list(POPULATION), sort=False, dropna=False):
        if rows["head"].nunique() > 1:
            found += [_over_heads(estimator) for _, estimator in rows.groupby(_SIZED, sort=False, dropna=False)]
    labels = [*POPULATION, *ESTIMATOR]
    return pd.DataFrame(found, columns=[*labels, *STATISTICS]).astype({name: ratios[name].dtype for name in labels})


def on_each_head(results: RunData, metric: str = "mse") -> pd.DataFrame:
    """The summary of all but uniform attention, with the ratio to it, and whether it is worse.

    The ratio of two errors below rounding is unknown: it counts as 1.
    """
    summary, column = results.summary, f"{metric}_median"
    trivial = summary[summary["map"] == "uniform"][[*CELL, column]].rename(columns={column: "trivial"})
    found = summary[summary["map"] != "uniform"].merge(trivial, how="left", on=list(CELL))
    ours, theirs = found[column].to_numpy(dtype=float), found["trivial"].to_numpy(dtype=float)
    floor = rounding_level(results.trials, metric)
    with np.errstate(all="ignore"):
        both = (ours <= floor) & (theirs <= floor)
        ratio = np.where(both, 1.0, ours / theirs)
    return found.assign(ratio=np.where(np.isnan(ratio), np.inf, ratio), worse=~both & ~(ours <= theirs))


def _over_heads(estimator: pd.DataFrame) -> list[object]:
    """One estimator at one size, over heads."""
    ratio = estimator["ratio"].to_numpy()
    worst = estimator.iloc[int(np.argmax(ratio))]
    low, middle, high = quartiles(ratio)
    statistics = (
        len(estimator),
        middle,
        low,
        high,
        int(estimator["worse"].sum()),
        worst["head"],
        float(worst["ratio"]),
    )
    return [*worst[[*POPULATION, *ESTIMATOR]], *statistics]


def quartiles(ratio: np.ndarray) -> tuple[float, float, float]:
    """The quartiles and the median between them, interpolated; infinite from the first share of infinite ratios on.

    NumPy's own are NaN there: 0 times infinity.
    """
    ordered, found = np.sort(ratio), []
    for share in (0.25, 0.5, 0.75):
        place = share * (len(ordered) - 1)
        below, above = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
        found.append(float(below if below == above or place == int(place) else below + (place % 1) * (above - below)))
    return found[0], found[1], found[2]


def populations(results: RunData, metric: str = "mse") -> list[Population]:
    """The populations of heads of a run: those with the same input, scale, lengths and so on."""
    found = []
    if results.summary["head"].nunique() < 2:
        return found
    for _, rows in over_heads(results, metric).groupby(list(POPULATION), sort=False, dropna=False):
        count = int(rows["heads"].max())
        found.append(Population(f"{count} heads of {describe_cell({**rows.iloc[0], 'head': '-'})}", count, rows))
    return found


def head_tables(results: RunData, metric: str = "mse") -> list[Section]:
    """A table for each population, by size and from the best estimator to the worst."""
    axis, note = size_axis(results), legend(results)
    found = []
    for one in populations(results, metric):
        order = one.rows.assign(size=one.rows[axis].fillna(0)).sort_values(["size", "ratio_median"])
        found.append(Section(title(one, metric), rows_of(order, axis), note, data=one.rows))
    return found


def title(population: Population, metric: str = "mse") -> str:
    """What a table over heads shows."""
    return f"{metric} / {metric} of uniform attention, over {population.title}"


def rows_of(rows: pd.DataFrame, axis: str) -> list[dict[str, str]]:
    """Rows of ``over_heads`` as texts."""
    return [
        {
            "estimator": marked_name(row),
            HEADINGS.get(axis, axis): "-" if pd.isna(row["num_projections"]) else str(row[axis]),
            "median": number(row["ratio_median"]),
            "quartiles": f"{number(row['ratio_q25'])} to {number(row['ratio_q75'])}",
            "worse": f"{row['worse']}/{row['heads']}",
            "worst head": f"{number(row['worst_ratio'])} {row['worst_head']}",
        }
        for _, row in rows.iterrows()
    ]


def legend(results: RunData) -> str:
    """What the numbers of a table over heads are."""
    text = (
        "For each head the median over draws, divided by that of uniform attention (the mean of V); then the median "
        "and the quartiles over heads. Worse: on how many heads uniform attention is better."
    )
    return " ".join(filter(None, [text, what_r_means(results), bounds_in_words(results), *shortened_inputs(results)]))


def sentences(results: RunData) -> list[str]:
    """For each population: the best estimator and the best map at the largest size, and what is worse than uniform."""
    return [_sentence(one, results.scenario.budget, size_axis(results)) for one in populations(results)]


def _sentence(population: Population, budget: str, axis: str) -> str:
    every = population.rows[~population.rows["map"].map(is_oracle).astype(bool)].sort_values("ratio_median")
    largest = compared(every)[axis].max()
    every = every[(every[axis] == largest) | every[axis].isna()]
    last = compared(every)
    if last.empty:
        return f"{population.title}: nothing is compared but bounds."
    best, maps, baselines = last.iloc[0], last[last["kind"] == "map"], every[every["kind"] == "baseline"]
    where = "" if pd.isna(largest) else f"at {at_size(budget, largest)} "
    text = f"{population.title}: {where}{estimator_name(best)} has the least error of maps and methods, "
    text += _in_words(best, "of uniform attention's in the median ")
    if best["kind"] != "map" and len(maps):
        text += f"; the best map, {estimator_name(maps.iloc[0])}, {_in_words(maps.iloc[0])}"
    better = baselines[baselines["ratio_median"] < best["ratio_median"]]
    if len(better):
        text += f"; the baseline {better.iloc[0]['map']} has less, {_in_words(better.iloc[0])}"
    return text + "."


def _in_words(row: pd.Series, of_uniform: str = "") -> str:
    """ "0.02 (quartiles 0.01 to 0.05), up to 0.4 (L3H4); worse than uniform on 0 of 72 heads"."""
    low, middle, high, worst = (
        number(float(row[name])) for name in ("ratio_q25", "ratio_median", "ratio_q75", "worst_ratio")
    )
    return (
        f"{middle} {of_uniform}(quartiles {low} to {high}), worse on {row['worse']} of {row['heads']}, "
        f"at worst {worst} ({row['worst_head']})"
    )


def number(ratio: float) -> str:
    """A ratio in a sentence: two digits."""
    if not np.isfinite(ratio):
        return "inf"
    if ratio and not 1e-3 <= ratio < 99.5:
        return format_value(ratio, "mse")
    return f"{ratio:#.2g}" if ratio < 9.95 else f"{ratio:.0f}"


def without_many(results: _Run, most: int = 1) -> _Run:
    """The run without inputs of more than ``most`` heads: what is shown cell by cell."""
    many = {one.cell for one in populations(results) if one.heads > most}
    if not many:
        return results
    trials, summary = (
        frame[[row not in many for row in frame[list(POPULATION)].itertuples(index=False, name=None)]]
        for frame in (results.trials, results.summary)
    )
    return results._replace(trials=trials, summary=summary)


def first_head(results: RunData) -> str:
    """The label of some head, for an example."""
    return next(str(name) for name in results.summary["head"] if name != "-")


def select_heads(results: _Run, names: str) -> _Run:
    """The part of a run with these heads, a list with commas. Raises ScenarioError for one that it does not have."""
    there, chosen = [str(name) for name in dict.fromkeys(results.summary["head"]) if name != "-"], split_list(names)
    for name in chosen:
        if name not in there:
            some = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
            has = f"it has {some}" if there else "its inputs have no heads: leave `heads` out"
            raise ScenarioError(f"`heads`: {results.path} has no head {name!r}{nearest(name, there)}; {has}")
    trials, summary = (frame[frame["head"].isin(chosen)] for frame in (results.trials, results.summary))
    return results._replace(trials=trials, summary=summary)
