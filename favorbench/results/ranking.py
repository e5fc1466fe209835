"""Rankings of estimators: an order with groups of no detectable difference, not a false total order."""

import itertools
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import counted, format_value, percent
from favorbench.inputs.heads import head_and_text
from favorbench.metrics import METRICS
from favorbench.results.heads import EACH_TEXT, quartiles
from favorbench.results.summary import (
    POPULATION,
    RunData,
    at_largest,
    by_population,
    cells_of,
    cost_share,
    is_oracle,
    marked_name,
    own_draws,
    population_title,
    summarise,
)
from favorbench.results.tables import rounding_level, without_rounding
from favorbench.sections import Section
from favorbench.statistics import LEVEL, fewest_draws, holm, interval_name, median_interval, sign_test, verdict

_ESTIMATOR = ["kind", "estimator", "sampler", "num_features", "multiplications"]


class Ranking(NamedTuple):
    """The estimators of one cell, or of one population of heads, from best to worst, each at its largest size.

    cell: what it was measured on. frame: a row for each estimator. In one cell: the median of the metric with its
    interval, its groups and the verdict against uniform attention. Over heads: the median and the quartiles of its rank
    on each head; first: on how many heads its median is the best, bounds aside; best_group: on how many it shares a
    group with the least; worse: on how many uniform attention is better. Two estimators without a group in common
    differ detectably. floor: below it values are rounding.
    """

    title: str
    cell: pd.Series
    frame: pd.DataFrame
    draws: int
    heads: int | None = None
    floor: float = 0.0
    enough_draws: bool = True  # over heads: to tell estimators of one head apart
    distinct_heads: int = 0  # of ``heads``, which counts a head once for each text

    @property
    def rows(self) -> list[Any]:
        """The estimators as named tuples."""
        return list(self.frame.itertuples(index=False, name="Ranked"))

    @property
    def data(self) -> pd.DataFrame:
        """The frame with what it was measured on, and groups as they are shown."""
        counts = {} if self.heads is None else {"heads": self.heads}
        named = self.frame.assign(groups=self.group_names, **counts, draws=self.draws)
        return pd.DataFrame([self.cell] * len(named), index=named.index).join(named)

    @property
    def group_names(self) -> list[str]:
        """The groups of each row, as they are shown."""
        return group_names(list(self.frame["groups"]))

    def shares_best(self, groups: Sequence[int]) -> bool:
        """Whether one of these groups is one of the best estimator that is not a bound."""
        best = next(row.groups for row in self.rows if not is_oracle(row.estimator))
        return not set(best).isdisjoint(groups)

    @property
    def draws_needed(self) -> int:
        """With fewer draws, or heads, no two of these estimators can differ detectably."""
        return fewest_draws(len(self.frame) * (len(self.frame) - 1) // 2)


def rankings(results: RunData, metric: str = "mse") -> list[Ranking]:
    """A ranking for every cell: medians, and sign tests of all pairs on the same draws, Holm over the cell."""
    return [_of_cell(trials, cell, metric) for trials, cell in cells_of(_on_same_draws(results))]


def _on_same_draws(results: RunData, of: Sequence[str] = CELL) -> RunData:
    """The run; where each size has draws of its own, those of the largest one, which no other estimator shares.

    of: the columns that rows of one largest size share.
    """
    if results.scenario.redraw != "R":
        return results
    trials = results.trials.assign(nth=own_draws(results, results.trials))
    largest = trials.groupby(list(of), sort=False, dropna=False)["nth"].transform("max")
    cells = trials.groupby(list(CELL), sort=False, dropna=False).ngroup()  # in their order, whatever draws are there
    kept = results.trials.loc[cells[trials["nth"] == largest].sort_values(kind="stable").index]
    return results._replace(trials=kept, summary=summarise(kept))


def _of_cell(trials: pd.DataFrame, cell: pd.DataFrame, metric: str) -> Ranking:
    """The estimators of a cell at their largest size. Two values below rounding are a tie."""
    column, floor, chosen = f"{metric}_median", rounding_level(trials, metric), at_largest(cell)

    def floored(values: Any) -> Any:
        return without_rounding(np.maximum(values, floor or -np.inf))

    better_first = METRICS[metric].better == "lower"
    order = chosen.sort_values(column, ascending=better_first, kind="stable", key=floored)
    errors = _by_draw(trials, order, metric)
    verdicts = cell["versus_uniform"] if metric == "mse" else _versus_uniform(trials, cell, metric)
    columns = [without_rounding(errors[i].to_numpy()) for i in order.index]
    intervals = [median_interval(values[~np.isnan(values)]) for values in columns]  # without draws on which it failed
    frame = order[_ESTIMATOR].assign(
        sampler=_or_none(order["sampler"]), median=order[column], low=[interval.low for interval in intervals],
        high=[interval.high for interval in intervals], groups=_groups([floored(values) for values in columns]),
        versus_uniform=verdicts[order.index],
    ).reset_index(drop=True)  # fmt: skip
    first = chosen.iloc[0]
    return Ranking(describe_cell(first), first[list(CELL)], frame, trials["draw"].nunique(), floor=floor)


def _by_draw(trials: pd.DataFrame, rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A metric of the estimators of some rows, by draw; the columns are the index of the rows."""
    keys = ["estimator", "sampler", "num_projections"]
    once = trials.drop_duplicates(["draw", *keys])  # two budgets that come to one size
    return once.merge(rows[keys].reset_index(names="row"), on=keys).pivot(index="draw", columns="row", values=metric)


def _versus_uniform(trials: pd.DataFrame, cell: pd.DataFrame, metric: str) -> pd.Series:
    """Verdicts like those of ``summarise``, which are of the mse, for another metric."""
    sign = 1.0 if METRICS[metric].better == "lower" else -1.0
    values = sign * without_rounding(_by_draw(trials, cell, metric).clip(lower=rounding_level(trials, metric) or None))
    others = cell[cell["estimator"] != "uniform"].index
    uniform = values[cell.index[cell["estimator"] == "uniform"][0]]
    with np.errstate(invalid="ignore"):  # infinite errors of both: no difference
        signs = [np.sign((values[i] - uniform).to_numpy()) for i in others]
    adjusted = holm([sign_test(sign) for sign in signs])
    verdicts = [verdict(p, float(np.nansum(sign))) for p, sign in zip(adjusted, signs, strict=True)]
    return pd.Series(verdicts, others).reindex(cell.index, fill_value="-")


def _or_none(values: pd.Series) -> pd.Series:
    return values.astype(object).where(values.notna(), None)


def rankings_over_heads(results: RunData, metric: str = "mse") -> list[Ranking]:
    """A ranking for every population of two heads or more; each head is one measurement.

    Medians over the draws of each head; sign tests of all pairs over heads, Holm over the pairs. Two values below
    rounding are a tie. Heads whose largest size a partial run has not measured yet are left out.
    """
    results = _on_same_draws(results, CELL if results.manifest["complete"] else POPULATION)
    populations = by_population(results.summary)
    return [_over_heads(results, rows, metric) for rows in populations if rows["head"].nunique() > 1]


def _over_heads(results: RunData, rows: pd.DataFrame, metric: str) -> Ranking:
    values, chosen = _by_head(results, rows, metric)
    ranks = values.rank(axis="columns")
    order = sorted(chosen.index, key=lambda i: (ranks[i].median(), ranks[i].mean()))
    chosen, values, ranks = chosen.loc[order], values[order], ranks[order]
    of_head = pd.factorize(values.index.map(lambda label: head_and_text(label)[0]))[0]
    bound, sampler = chosen["estimator"].map(is_oracle).astype(bool), _or_none(chosen["sampler"])
    here = results.trials.merge(rows[list(CELL)].drop_duplicates(), on=list(CELL))
    alone = rankings(results._replace(trials=here, summary=rows), metric)
    draws, enough = min(head.draws for head in alone), all(head.draws >= head.draws_needed for head in alone)
    best = Counter((row.estimator, row.sampler) for head in alone for row in head.rows if head.shares_best(row.groups))
    low, middle, high = zip(*(quartiles(ranks[i].to_numpy()) for i in order), strict=True)
    shares = pd.Series([best[pair] for pair in zip(chosen["estimator"], sampler, strict=True)], order, dtype="Int64")
    least, uniform = values.loc[:, ~bound].T.min(), values.loc[:, chosen["estimator"] == "uniform"].iloc[:, 0]
    first = values.eq(least, axis=0).sum().astype("Int64")
    frame = chosen[_ESTIMATOR].assign(
        sampler=sampler, rank=middle, rank_q25=low, rank_q75=high,
        first=_or_none(first.mask(bound)), best_group=_or_none(shares.mask(bound | (not enough))),
        worse=values.gt(uniform, axis=0).sum(), groups=_groups([values[i].to_numpy() for i in order], of_head),
    ).reset_index(drop=True)  # fmt: skip
    title, cell = population_title(rows.iloc[0], values.index), rows.iloc[0][POPULATION]
    return Ranking(title, cell, frame, draws, len(values), 0.0, enough, int(of_head.max()) + 1)


def _by_head(results: RunData, rows: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The median of each estimator at its largest size, a row for each head, the less the better; and the estimators.

    The columns are the index of the estimators. NaN counts as infinite.
    """
    largest, keys = at_largest(rows), ["estimator", "sampler"]
    chosen = largest.drop_duplicates(keys)[_ESTIMATOR].reset_index(drop=True)
    placed = largest.merge(chosen[keys].reset_index(names="place"), on=keys)
    medians = placed.pivot(index="head", columns="place", values=f"{metric}_median")
    signed = medians if METRICS[metric].better == "lower" else -medians
    floored = signed.fillna(np.inf).clip(lower=rounding_level(results.trials, metric) or None)
    return without_rounding(floored), chosen


def _groups(columns: Sequence[np.ndarray], of_head: np.ndarray | None = None) -> Any:
    """Groups without a detectable difference: sign tests of paired values, Holm over all pairs.

    of_head: the head of each value; the texts of a head are one measurement, whose sign is that of most of them.
    """
    pairs = list(itertools.combinations(range(len(columns)), 2))
    with np.errstate(invalid="ignore"):  # infinite errors of both: no difference
        signs = [np.nan_to_num(np.sign(columns[i] - columns[j])) for i, j in pairs]
    p_values = [sign_test(sign if of_head is None else np.bincount(of_head, sign)) for sign in signs]
    differing = [pair for pair, p in zip(pairs, holm(p_values), strict=True) if p <= 1.0 - LEVEL]
    return groups_of(len(columns), differing)


def groups_of(count: int, different: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """For each of ``count`` members the numbers of the largest groups without a difference that it is in.

    Every pair in ``different`` shares no group, every other pair at least one. Piepho 2004, "An algorithm for a
    letter-based representation of all-pairwise comparisons", J. Comput. Graph. Stat. 13.
    """
    groups = {frozenset(range(count))}
    for pair in different:
        split = set(filter(frozenset(pair).issubset, groups))
        groups = groups - split | {group - {member} for group in split for member in pair}
        groups = {group for group in groups if not split or not any(group < other for other in groups)}
    ordered = sorted(map(sorted, groups))
    return [tuple(number for number, group in enumerate(ordered) if i in group) for i in range(count)]


def group_names(groups: Sequence[Sequence[int]]) -> list[str]:
    """Groups as letters, "ab" and, for four or more in a row, "a-d"; as numbers, "1 3-7", where letters are too few."""
    most = 1 + max((number for numbers in groups for number in numbers), default=0)
    lettered = most <= len(string.ascii_lowercase)
    names = string.ascii_lowercase if lettered else [str(number) for number in range(1, most + 1)]

    def name(numbers: Sequence[int]) -> str:
        parts = []
        for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
            row = [names[number] for _, number in run]
            parts += [f"{row[0]}-{row[-1]}"] if len(row) > 3 else row
        return ("" if lettered and all(len(part) == 1 for part in parts) else " ").join(parts)

    return [name(numbers) for numbers in groups]


def ranking_section(results: RunData, ranking: Ranking, metric: str) -> Section:
    """The ranking as texts."""
    texts = _cell_texts if ranking.heads is None else _head_texts
    rows = [
        {
            "estimator": marked_name(row._asdict()),
            "cost": percent(cost_share(results, row._asdict() | dict(ranking.cell))),
            **texts(ranking, metric, row, groups),
        }
        for row, groups in zip(ranking.rows, ranking.group_names, strict=True)
    ]
    title = f"Ranking: {ranking.title}" if ranking.heads is None else f"Ranking over {ranking.title}"
    return Section(title, rows, _legend(ranking, metric), data=ranking.data)


def _cell_texts(ranking: Ranking, metric: str, row: Any, groups: str) -> dict[str, str]:
    median, low, high = (format_value(value, metric, ranking.floor) for value in (row.median, row.low, row.high))
    return {
        metric: median, interval_name(ranking.draws): f"{low} to {high}", "groups": groups,
        "against uniform": row.versus_uniform, "features": str(row.num_features),
    }  # fmt: skip


def _head_texts(ranking: Ranking, metric: str, row: Any, groups: str) -> dict[str, str]:
    first, best = ("-" if count is None else f"{count}/{ranking.heads}" for count in (row.first, row.best_group))
    return {
        "rank": f"{row.rank:g}", "quartiles": f"{row.rank_q25:g} to {row.rank_q75:g}", "first": first,
        **({"best": best} if ranking.enough_draws else {}), "worse": f"{row.worse}/{ranking.heads}", "groups": groups,
    }  # fmt: skip


def _legend(ranking: Ranking, metric: str) -> str:
    """The meaning of the columns, and whether there are enough draws or heads to tell anything apart."""
    numbered = any(name[:1].isdigit() for name in ranking.group_names)
    ranges = "" if numbered or not any("-" in name for name in ranking.group_names) else " (a-d: a to d)"
    differ = f"Estimators without a {'number' if numbered else 'letter'} in common{ranges} differ detectably"
    if ranking.heads is None:
        text = f"{counted(ranking.draws, 'draw')}, each estimator at its largest size. "
        if ranking.draws < ranking.draws_needed:
            return text + f"So few can tell no two estimators apart: use {ranking.draws_needed} trials or more."
        return text + (f"{differ} (sign tests of all pairs on the same draws, Holm, 5 %); those with one do not.")
    text = (
        f"For each head the medians of {counted(ranking.draws, 'draw')}, each estimator at its largest size. Rank: "
        f"among the {len(ranking.frame)} on one head, median and quartiles over heads. First: on how many heads its "
        f"median is the {'least' if METRICS[metric].better == 'lower' else 'greatest'}, bounds aside. "
    )
    if ranking.enough_draws:
        text += "Best: on how many it shares a group with the first one, as draws do not tell them apart. "
    else:
        text += f"On one head so few draws tell no two apart: `trials` {ranking.draws_needed} or more would. "
    text += "Worse: on how many uniform attention is better. "
    if ranking.heads > ranking.distinct_heads:
        text += f"{EACH_TEXT}; for groups once, by the sign on most of its texts. "
    if ranking.distinct_heads < ranking.draws_needed:
        return text + f"Groups: so few heads tell no two apart, {ranking.draws_needed} or more would."
    return text + (
        f"{differ} over heads (sign tests of all pairs, one difference for each head, Holm, 5 %, as if heads were "
        "drawn independently); those with one do not."
    )
