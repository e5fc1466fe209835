"""A ranking over many heads: each head is one measurement, and the groups are those that heads tell apart."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.errors import ScenarioError
from favorbench.metrics import METRICS
from favorbench.registry import nearest
from favorbench.results.heads import POPULATION, quartiles
from favorbench.results.ranking import (
    Ranking,
    different,
    group_names,
    groups_of,
    how_groups_are_read,
    rankings,
)
from favorbench.results.results import Results
from favorbench.results.summary import at_largest, is_oracle, marked_name
from favorbench.results.tables import rounding_level
from favorbench.statistics import fewest_draws

_ESTIMATOR = ["kind", "map", "sampler", "num_features"]


class HeadRanked(NamedTuple):
    """One estimator over heads: quartiles of its rank among all on one head, and its groups.

    first: on how many heads its median is the least of all but bounds; best_group: on how many it is in a group with
    that which has the least, None where there are too few draws to tell; both None of a bound. worse: on how many
    uniform attention is better.
    """

    kind: str
    map: str
    sampler: str | None
    num_features: int
    rank: float
    rank_q25: float
    rank_q75: float
    first: int | None
    best_group: int | None
    worse: int
    groups: tuple[int, ...]


class HeadRanking(NamedTuple):
    """The estimators of one population of heads, by their median rank, each at its largest size."""

    title: str
    cell: pd.Series
    heads: int
    draws: int
    draws_needed: int
    rows: tuple[HeadRanked, ...]

    @property
    def group_names(self) -> list[str]:
        """The groups of each row, as they are shown."""
        return group_names([row.groups for row in self.rows])

    @property
    def heads_needed(self) -> int:
        """With fewer heads no two of so many estimators can be told apart."""
        return fewest_draws(len(self.rows) * (len(self.rows) - 1) // 2)


def rankings_over_heads(results: Results, metric: str = "mse") -> list[HeadRanking]:
    """A ranking for every population of two heads or more.

    Of each head the medians over draws; sign tests of all pairs over heads, Holm over the pairs. What two values below
    rounding are to each other is not known: a tie.
    """
    found = []
    for _, rows in results.summary.groupby(list(POPULATION), sort=False, dropna=False):
        if rows["head"].nunique() > 1:
            found.append(_over_heads(results, rows, metric))
    return found


def _over_heads(results: Results, rows: pd.DataFrame, metric: str) -> HeadRanking:
    values, chosen = _by_head(results, rows, metric)
    ranks = values.rank(axis="columns")
    order = sorted(chosen.index, key=lambda i: (ranks[i].median(), ranks[i].mean()))
    groups = groups_of(len(order), different([values[i].to_numpy() for i in order]))
    uniform = values[chosen.index[chosen["map"] == "uniform"][0]]
    least = values[[i for i in order if not is_oracle(chosen["map"][i])]].min(axis="columns")
    here = results.trials.merge(rows[list(CELL)].drop_duplicates(), on=list(CELL))
    alone = rankings(results._replace(trials=here, summary=rows), metric)
    draws, needed = min(one.draws for one in alone), max(one.draws_needed for one in alone)
    best = [_best_group(one) for one in alone] if draws >= needed else None
    found = []
    for i, group in zip(order, groups, strict=True):
        row, (low, middle, high) = chosen.loc[i], quartiles(ranks[i].to_numpy())
        name, sampler = str(row["map"]), None if pd.isna(row["sampler"]) else str(row["sampler"])
        first = None if is_oracle(name) else int((values[i] == least).sum())
        shares = None if best is None or first is None else sum((name, sampler) in group for group in best)
        worse = int((values[i] > uniform).sum())
        of_it = (str(row["kind"]), name, sampler, int(row["num_features"]))
        found.append(HeadRanked(*of_it, middle, low, high, first, shares, worse, group))
    title = f"{len(values)} heads of {describe_cell({**rows.iloc[0], 'head': '-'})}"
    return HeadRanking(title, rows.iloc[0][list(POPULATION)], len(values), draws, needed, tuple(found))


def _by_head(results: Results, rows: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The median of each estimator at its largest size, a row for each head, the less the better; and the estimators.

    The columns are the index of the estimators. What is not a number is as bad as can be.
    """
    largest = at_largest(rows)
    chosen = largest.drop_duplicates(["map", "sampler"])[_ESTIMATOR].reset_index(drop=True)
    numbered = largest.merge(chosen[["map", "sampler"]].reset_index(names="estimator"), on=["map", "sampler"])
    found = numbered.pivot(index="head", columns="estimator", values=f"{metric}_median")
    signed = found if METRICS[metric].better == "lower" else -found
    floor = rounding_level(results.trials, metric)
    return signed.fillna(np.inf).clip(lower=floor or None), chosen


def _best_group(ranking: Ranking) -> set[tuple[str, str | None]]:
    """What is in a group with the best one of a head that is no bound."""
    return {(row.map, row.sampler) for row, best in zip(ranking.rows, ranking.with_best, strict=True) if best}


def shown(ranking: HeadRanking) -> list[dict[str, str]]:
    """The ranking as texts, for a terminal or a document."""
    return [
        {
            "estimator": marked_name(row._asdict()),
            "rank": f"{row.rank:g}",
            "quartiles": f"{row.rank_q25:g} to {row.rank_q75:g}",
            "first": _of(row.first, ranking.heads),
            **({"best": _of(row.best_group, ranking.heads)} if ranking.draws >= ranking.draws_needed else {}),
            "worse": f"{row.worse}/{ranking.heads}",
            "groups": groups,
        }
        for row, groups in zip(ranking.rows, ranking.group_names, strict=True)
    ]


def _of(count: int | None, heads: int) -> str:
    return "-" if count is None else f"{count}/{heads}"


def legend(ranking: HeadRanking) -> str:
    """What the columns mean, and whether so few heads or draws can tell anything apart."""
    text = (
        f"Of each head the medians of {ranking.draws} draws, each estimator at its largest size. Rank: among the "
        f"{len(ranking.rows)} on one head, median and quartiles over heads. First: on how many heads its median is the "
        "least of all but bounds. "
    )
    if ranking.draws >= ranking.draws_needed:
        text += "Best: on how many it shares a group with the first one, as draws do not tell them apart. "
    else:
        text += f"On one head so few draws tell no two apart: `trials` {ranking.draws_needed} or more would. "
    text += "Worse: on how many uniform attention is better. "
    if ranking.heads < ranking.heads_needed:
        return text + f"Groups: so few heads tell no two apart, {ranking.heads_needed} or more would."
    return text + (
        f"{how_groups_are_read(ranking.group_names)} over heads (sign tests of all pairs, one difference "
        "for each head, Holm, 5 %, as if heads were drawn independently); those with one do not."
    )


def combined(found: Sequence[HeadRanking]) -> pd.DataFrame:
    """Rankings over heads as one frame, a row for each population and estimator."""
    frames = [
        pd.DataFrame(one.rows, columns=list(HeadRanked._fields)).assign(
            **{str(k): v for k, v in one.cell.items()}, heads=one.heads, draws=one.draws, groups=one.group_names
        )
        for one in found
    ]
    return pd.concat(frames, ignore_index=True)[[*POPULATION, *HeadRanked._fields, "heads", "draws"]]


def of_heads(results: Results, asked: Sequence[str]) -> Results:
    """The part of a run that is of these heads. Raises ScenarioError for one that it does not have."""
    there = [str(name) for name in dict.fromkeys(results.summary["head"]) if name != "-"]
    for name in asked:
        if name not in there:
            some = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
            has = f"it has {some}" if there else "its inputs have no heads: leave `heads` out"
            raise ScenarioError(f"`heads`: {results.path} has no head {name!r}{nearest(name, there)}; {has}")
    trials, summary = (frame[frame["head"].isin(asked)] for frame in (results.trials, results.summary))
    return results._replace(trials=trials, summary=summary)
