"""Many heads of one input are a population: how large errors are over heads, and on how many uniform attention wins."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import HEADINGS, format_value
from favorbench.metrics import METRICS
from favorbench.results.results import Results
from favorbench.results.summary import compared, estimator_name, is_oracle, marked_name
from favorbench.results.tables import (
    at_size,
    bounds_in_words,
    rounding_level,
    shortened_inputs,
    size_axis,
    what_r_means,
)

FEW = 6  # heads of one input, up to which a figure has a panel for each; tables and words are over two or more

#: What heads of one population share.
POPULATION = tuple(axis for axis in CELL if axis != "head")

_SIZED = ["kind", "map", "sampler", "num_projections", "budget"]  # the rest of an estimator's columns follows

STATISTICS = ("heads", "ratio_median", "ratio_q25", "ratio_q75", "worse", "worst_head", "worst_ratio")


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


def over_heads(results: Results, metric: str = "mse") -> pd.DataFrame:
    """One row for each population of heads, estimator and size; empty where no input has two heads or more.

    ratio: on each head the median of the metric over draws, over that of uniform attention; its median, its quartiles
    and its largest value over heads, on which head, and on how many uniform attention is better. Raises ScenarioError
    for a metric that is no error.
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
            found += [_row(estimator) for _, estimator in rows.groupby(_SIZED, sort=False, dropna=False)]
    return pd.DataFrame(found, columns=[*POPULATION, *ESTIMATOR, *STATISTICS]).astype(
        {name: ratios[name].dtype for name in (*POPULATION, *ESTIMATOR)}
    )


def on_each_head(results: Results, metric: str = "mse") -> pd.DataFrame:
    """The summary of all but uniform attention, with the ratio to it, and whether it is worse.

    What two errors below rounding are to each other is not known: such a ratio is 1.
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


def _row(estimator: pd.DataFrame) -> dict[str, Any]:
    """One estimator at one size, over heads."""
    ratio = estimator["ratio"].to_numpy()
    worst = estimator.iloc[int(np.argmax(ratio))]
    low, middle, high = quartiles(ratio)
    values = (len(estimator), middle, low, high, int(estimator["worse"].sum()), worst["head"], float(worst["ratio"]))
    labels = {name: worst[name] for name in (*POPULATION, *ESTIMATOR)}
    return labels | dict(zip(STATISTICS, values, strict=True))


def quartiles(ratio: np.ndarray) -> tuple[float, float, float]:
    """The quartiles and the median between them, interpolated; infinite from the first share of infinite ratios on.

    NumPy's own are not a number there: 0 times infinity.
    """
    ordered, found = np.sort(ratio), []
    for share in (0.25, 0.5, 0.75):
        place = share * (len(ordered) - 1)
        below, above = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
        found.append(float(below if below == above or place == int(place) else below + (place % 1) * (above - below)))
    return found[0], found[1], found[2]


def populations(results: Results, metric: str = "mse") -> list[Population]:
    """The populations of heads of a run: those with the same input, scale, lengths and so on."""
    found = []
    if results.summary["head"].nunique() < 2:
        return found
    for _, rows in over_heads(results, metric).groupby(list(POPULATION), sort=False, dropna=False):
        count = int(rows["heads"].max())
        title = describe_cell({**rows.iloc[0], "head": "-"})
        found.append(Population(f"{count} heads of {title}", count, rows))
    return found


def shown(population: Population, axis: str) -> list[dict[str, str]]:
    """The table over heads as texts: by size, and from the best to the worst."""
    order = population.rows.assign(size=population.rows[axis].fillna(0)).sort_values(["size", "ratio_median"])
    return [
        {
            "estimator": marked_name(row),
            HEADINGS.get(axis, axis): "-" if pd.isna(row["num_projections"]) else str(row[axis]),
            "median": number(row["ratio_median"]),
            "quartiles": f"{number(row['ratio_q25'])} to {number(row['ratio_q75'])}",
            "worse": f"{row['worse']}/{row['heads']}",
            "worst head": f"{number(row['worst_ratio'])} {row['worst_head']}",
        }
        for _, row in order.iterrows()
    ]


def title(population: Population, metric: str = "mse") -> str:
    """What a table over heads shows."""
    return f"{metric} / {metric} of uniform attention, over {population.title}"


def legend(results: Results) -> str:
    """What the numbers of a table over heads are."""
    said = (
        "Of each head the median over draws, divided by that of uniform attention (the mean of V); then the median and "
        "the quartiles over heads. Worse: on how many heads uniform attention is better."
    )
    return " ".join(filter(None, [said, what_r_means(results), bounds_in_words(results), *shortened_inputs(results)]))


def sentences(results: Results) -> list[str]:
    """For each population: the best estimator and the best map at the largest size, and what is worse than uniform."""
    return [_sentence(one, results.scenario.budget, size_axis(results)) for one in populations(results)]


def _sentence(population: Population, budget: str, axis: str) -> str:
    every = population.rows[~population.rows["map"].map(is_oracle).astype(bool)]
    usable = compared(every)
    largest = usable[axis].max()
    last = usable[(usable[axis] == largest) | usable[axis].isna()].sort_values("ratio_median")
    if last.empty:
        return f"{population.title}: nothing is compared but bounds."
    best, maps = last.iloc[0], last[last["kind"] == "map"]
    where = "" if pd.isna(largest) else f"at {at_size(budget, largest)} "
    said = "of uniform attention's in the median "
    least = "has the least error of maps and methods"
    text = f"{population.title}: {where}{estimator_name(best)} {least}, {_in_words(best, said)}"
    if best["kind"] != "map" and len(maps):
        text += f"; the best map, {estimator_name(maps.iloc[0])}, {_in_words(maps.iloc[0])}"
    baselines = every[(every["kind"] == "baseline") & ((every[axis] == largest) | every[axis].isna())]
    better = baselines[baselines["ratio_median"] < best["ratio_median"]].sort_values("ratio_median")
    if len(better):
        text += f"; the baseline {better.iloc[0]['map']} has less, {_in_words(better.iloc[0])}"
    return text + "."


def _in_words(row: pd.Series, of_uniform: str = "") -> str:
    """ "0.02 of uniform attention's in the median (quartiles 0.01 to 0.05), worse on 0 of 72, 0.4 at worst (L3H4)"."""
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


def each_by_itself(results: Results) -> str:
    """How to see one of many heads."""
    return f"Each head by itself: favorbench table {results.path} --heads {first_head(results)}"


def without_many(results: Results, most: int = 1) -> Results:
    """The run without heads that are among more than ``most`` of one input: what is shown cell by cell."""
    many = {one.cell for one in populations(results) if one.heads > most}
    if not many:
        return results
    trials, summary = (
        frame[[row not in many for row in frame[list(POPULATION)].itertuples(index=False, name=None)]]
        for frame in (results.trials, results.summary)
    )
    return results._replace(trials=trials, summary=summary)


def first_head(results: Results) -> str:
    """The label of some head, for an example; there is one."""
    return next(str(name) for name in results.summary["head"] if name != "-")
