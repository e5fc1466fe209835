"""The heads of an input as a population: how errors spread over heads, and the sum of their effects on the model."""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, ESTIMATOR, describe_cell
from favorbench.errors import ScenarioError
from favorbench.formats import counted, format_value, percent
from favorbench.inputs.heads import head_and_text
from favorbench.metrics import EFFECT, METRICS
from favorbench.parameters import check_name
from favorbench.registry import nearest, split_list
from favorbench.results.summary import (
    POPULATION,
    RunData,
    by_population,
    compared,
    cost_share,
    labelled,
    own_draws,
    population_title,
    split_groups,
    usable,
)
from favorbench.results.tables import (
    COST,
    at_largest_size,
    bounds_in_words,
    by_size,
    draws_in_words,
    input_sentences,
    named_row,
    rounding_level,
    size_axis,
    uniform_in_words,
    what_r_means,
    with_size,
)
from favorbench.sections import Section
from favorbench.statistics import bounded, unbounded

FEW = 6  # heads of one input, up to which a figure has a panel for each; tables and sentences are over two or more

STATISTICS = ("heads", "ratio_median", "ratio_q25", "ratio_q75", "worse", "worst_head", "worst_ratio")

#: A label of a head: its layer and its number.
_LABEL = r"L(?P<layer>\d+)H(?P<number>\d+)"

#: Why an effect, which is of the attention that the model computes itself, may be missing (NaN).
EFFECT_NEEDS = "it needs gradients, all tokens and query rows, scales of 1 and the mask of the model"

EACH_TEXT = "A head counts once for each text"

LARGE = 0.1  # of nats or 1 - cosine: a second-order prediction of more is rough

_SIZED = [*POPULATION, "kind", "estimator", "sampler", "num_projections", "budget"]

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
    rows = on_each_head(results._replace(summary=summary[several]), metric)
    groups = rows.groupby(_SIZED, sort=False, dropna=False)
    worst = rows.loc[groups["ratio"].idxmax()].reset_index(drop=True)
    spreads = [quartiles(ratio) for ratio in split_groups(rows["ratio"], groups.ngroup().to_numpy())]
    return worst[labels].assign(
        heads=groups.size().to_numpy(),
        **{f"ratio_{name}": [spread[i] for spread in spreads] for i, name in enumerate(("q25", "median", "q75"))},
        worse=groups["worse"].sum().to_numpy(), worst_head=worst["head"], worst_ratio=worst["ratio"],
    )[[*labels, *STATISTICS]]  # fmt: skip


def _with_failed_heads(results: RunData, rows: pd.DataFrame) -> pd.DataFrame:
    """Add rows of infinite errors for the heads on which an estimator failed in all draws.

    A head of a partial run that has no draw of a size yet did not fail there.
    """
    draws = {
        (name.partition(" under ")[0], i)
        for name, how in results.failed.items()
        for i in itertools.chain(*how.values())
    }
    failed = pd.DataFrame(sorted(draws), columns=["estimator", "draw"])
    trials = results.trials.assign(nth=own_draws(results, results.trials))
    heads = trials[[*POPULATION, "head", "draw", "nth"]].drop_duplicates().merge(failed, on="draw")
    every = rows[[*POPULATION, *ESTIMATOR]].drop_duplicates(_SIZED).merge(heads, on=[*POPULATION, "estimator"])
    every = every[(every["nth"] <= 0) | every["budget"].isna() | (every["budget"] == every["nth"]).fillna(False)]
    every = every.drop(columns=["draw", "nth"]).assign(ratio=math.inf, worse=True)
    return pd.concat([rows, every], ignore_index=True).drop_duplicates([*_SIZED, "head"])


def _in_larger(frame: pd.DataFrame, most: int) -> pd.Series:
    """Whether each row belongs to a population of more than ``most`` heads."""
    if frame["head"].nunique() <= most:
        return pd.Series(False, frame.index)
    return frame.groupby(POPULATION, dropna=False)["head"].transform("nunique") > most


def on_each_head(results: RunData, metric: str = "mse") -> pd.DataFrame:
    """The summary of all but uniform attention, with the ratio to it, and whether it is worse.

    The ratio of two errors below rounding is unknown: it counts as 1. It is infinite where that of uniform attention
    alone is below rounding, and on a head where an estimator failed in all draws, while it did not on others of the
    population.
    """
    summary, column = results.summary, f"{metric}_median"
    trivial = summary[summary["estimator"] == "uniform"][[*CELL, column]].rename(columns={column: "trivial"})
    rows = summary[summary["estimator"] != "uniform"].merge(trivial, how="left", on=list(CELL))
    ours, theirs = (rows[name].to_numpy(dtype=float) for name in (column, "trivial"))
    floor = rounding_level(results.trials, metric)
    with np.errstate(all="ignore"):
        both = (ours <= floor) & (theirs <= floor)
        ratio = np.where(both, 1.0, ours / np.where(theirs <= floor, 0.0, theirs))
    rows = rows.assign(ratio=np.where(np.isnan(ratio), np.inf, ratio), worse=~both & ~(ours <= theirs))
    return _with_failed_heads(results, rows) if results.failed else rows


def quartiles(ratio: np.ndarray) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile; infinite where an infinite ratio has a share in it."""
    low, middle, high = unbounded(np.quantile(bounded(ratio), (0.25, 0.5, 0.75))).tolist()
    return low, middle, high


def populations(results: RunData, metric: str = "mse") -> list[Population]:
    """The populations of heads of a run: those with the same input, scale, lengths and so on."""
    labels = {population_of(rows.iloc[0]): rows["head"].unique() for rows in by_population(results.summary)}
    return [
        Population(population_title(rows.iloc[0], labels[population_of(rows.iloc[0])]), int(rows["heads"].max()), rows)
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
    several = len({head_and_text(label)[1] for label in results.summary["head"]}) > 1
    text = (
        f"For each head the median over draws, divided by that of {uniform_in_words(results)}; then the median "
        "and the quartiles over heads. Worse: on how many heads uniform attention is better. "
    )
    text += f"{EACH_TEXT}. " * several + COST
    return " ".join(filter(None, [text, what_r_means(results), bounds_in_words(results), *input_sentences(results)]))


def number(ratio: float) -> str:
    """A ratio in a sentence: two digits."""
    if not np.isfinite(ratio):
        return "inf"
    if ratio and not 1e-3 <= ratio < 99.5:
        return format_value(ratio, "mse")
    return f"{ratio:#.2g}" if ratio < 9.95 else f"{ratio:.0f}"


class SummedEffects(NamedTuple):
    """Effects summed over the heads of one population. rows: for each estimator and size a row, the least first.

    sum_median, sum_low, sum_high: of the sums over all heads, one for each of ``texts`` and of ``draws``; layer, share:
    the layer with most, and its share. unit: nats per token, or 1 - cosine.
    """

    title: str
    heads: int
    unit: str
    rows: pd.DataFrame


def summed_effects(results: RunData) -> list[SummedEffects]:
    """The sums of each population whose heads have gradients."""
    if EFFECT not in results.trials:
        return []
    trials = results.trials.assign(nth=own_draws(results, results.trials)).dropna(subset=[EFFECT])
    sums = (_summed(rows, unit_of(results, rows)) for rows in by_population(place_heads(trials)))
    return [effects for effects in sums if effects is not None]


def unit_of(results: RunData, rows: pd.DataFrame) -> str:
    """The unit of the effect on the input of these rows."""
    files: Any = results.manifest["input_files"]
    return next((file.get("effect", "") for file in files if file["input"] == rows["input"].iloc[0]), "")


def amount(effect: float, unit: str) -> str:
    """ "0.012 nats per token" or "0.0050 in 1 - cosine"."""
    return f"{number(effect)} {'' if unit.startswith('nats') else 'in '}{unit}"


def place_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the layer, the number and the text of each head from its label; empty where it has none."""
    texts = [head_and_text(label)[1] for label in rows["head"].astype(str)]
    return rows.join(rows["head"].str.extract(_LABEL).fillna("")).assign(text=texts)


def _summed(rows: pd.DataFrame, unit: str) -> SummedEffects | None:
    """The sums of a population; None in a partial run without a draw of all heads."""
    labels = max((part["head"].unique() for _, part in rows.groupby("text")), key=len)
    heads, summed = len(labels), []
    draw = ["text", "trial", "nth"]
    for _, group in rows.groupby(_SIZED, sort=False, dropna=False):
        whole = group[group.groupby(draw)["head"].transform("size") == heads]  # a head on which it failed is missing
        if whole.empty:
            continue
        sums, layers = (whole.groupby(axes)[EFFECT].sum() for axes in (draw, "layer"))
        with np.errstate(invalid="ignore"):
            share = layers.max() / layers.sum()
        summed.append({
            **whole.iloc[0][[*POPULATION, *ESTIMATOR]], "heads": heads, "sum_median": sums.median(),
            "sum_low": sums.min(), "sum_high": sums.max(), "texts": whole["text"].nunique(),
            "draws": len(whole[["trial", "nth"]].drop_duplicates()), "layer": layers.idxmax(), "share": share,
        })  # fmt: skip
    if not summed:
        return None
    frame = pd.DataFrame(summed).astype({"num_projections": "Int64", "budget": "Int64"})
    return SummedEffects(population_title(rows.iloc[0], labels), heads, unit, frame.sort_values("sum_median"))


def effect_tables(results: RunData) -> list[Section]:
    """A table for each population, by size and from the least effect to the largest."""
    return [
        Section(
            f"Predicted effect on the model ({total.unit}), sum over {total.title}",
            [_effect_texts(results, row) for _, row in by_size(results, total.rows, "sum_median").iterrows()],
            f"The effect of the errors of all {total.heads} heads on one text, to second order, as if errors of "
            f"different heads were uncorrelated: median and range of {_counts(total.rows)}. Above about "
            f"{LARGE:g} it is rough. Largest layer: its share of the sum.",
            data=total.rows,
        )
        for total in summed_effects(results)
    ]


def _effect_texts(results: RunData, row: pd.Series) -> dict[str, str]:
    layer = f"{row['share']:.0%} L{row['layer']}" if row["layer"] and np.isfinite(row["share"]) else "-"
    return {
        **named_row(results, row), "sum": number(row["sum_median"]),
        "lowest to highest": f"{number(row['sum_low'])} to {number(row['sum_high'])}", "largest layer": layer,
    }  # fmt: skip


def _counts(rows: pd.DataFrame) -> str:
    return f"{counted(rows['texts'].max(), 'text')}, {draws_in_words(rows['draws'])} of each estimator"


def effect_sentences(results: RunData) -> list[str]:
    """For each population the estimator with the least predicted effect at the largest size, and its other sizes."""
    axis, said = size_axis(results), []
    for effects in summed_effects(results):
        rows = labelled(usable(compared(effects.rows)))
        if rows.empty:
            continue
        best = at_largest_size(results, rows).iloc[0]
        others = rows[(rows["label"] == best["label"]) & (rows[axis] != best[axis])].sort_values(axis)
        ladder = ", ".join(f"{number(row['sum_median'])} at {row[axis]}" for _, row in others.iterrows())
        said.append(
            f"{effects.title}: {with_size(results, best)} will cost the model about "
            f"{amount(best['sum_median'], effects.unit)} ({number(best['sum_low'])} to {number(best['sum_high'])} on "
            f"{_counts(best.to_frame().T)}; sum over {effects.heads} heads, whose errors are taken as uncorrelated)"
            f"{ladder and f'; {ladder}'}."
        )
    return said


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
    """Raise ScenarioError for an unknown metric, and for one that was not measured."""
    check_name("metric", metric, METRICS)
    if metric in results.trials and len(where_measured(results, metric).trials):
        return
    why = f"{results.path} was measured before there was this metric: sweep again, into another `out`"
    if metric in results.trials:
        why = f"it was not measured in {results.path}: {EFFECT_NEEDS}"
    elif metric == EFFECT:
        why = (
            f"the inputs of {results.path} have no gradients: `favorbench capture --gradients 16` writes them, and a "
            "sweep over that file has this metric"
        )
    raise ScenarioError(f"`metric` {metric}: {why}")


def where_measured(results: _Run, metric: str) -> _Run:
    """The part of a run in which a metric was measured; all of it, unless that is ``effect``."""
    if metric != EFFECT:
        return results
    trials, summary = results.trials.dropna(subset=[metric]), results.summary.dropna(subset=[f"{metric}_median"])
    return results._replace(trials=trials, summary=summary)


def not_measured(results: RunData, metric: str) -> list[Section]:
    """A note that names the cells in which a metric was not measured, if there are any."""
    left_out = results.summary.index.difference(where_measured(results, metric).summary.index)
    cells = results.summary.loc[left_out].assign(head="-").drop_duplicates(POPULATION)
    names = "; ".join(describe_cell(row) for _, row in cells.iterrows())
    return [Section(note=f"{metric} was not measured on {names}: {EFFECT_NEEDS}.")] if names else []


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
