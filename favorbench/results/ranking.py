"""Which estimators are better than which: an order with groups of no detectable difference, not a false total order."""

import itertools
import string
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import format_value
from favorbench.metrics import METRICS
from favorbench.results.results import Results
from favorbench.results.summary import at_largest, by_cell, estimator_name, marked_name
from favorbench.results.tables import rounding_level
from favorbench.statistics import LEVEL, fewest_draws, holm, interval_name, median_interval, sign_test


class Ranked(NamedTuple):
    """One estimator of a ranking: the median of the metric with its interval, and its groups.

    Two estimators without a letter in common differ detectably.
    """

    kind: str
    map: str
    sampler: str | None
    num_features: int
    median: float
    low: float
    high: float
    groups: str
    versus_uniform: str

    @property
    def name(self) -> str:
        """Map and sampler, where there is one to choose."""
        return estimator_name(self._asdict())


class Ranking(NamedTuple):
    """The estimators of one cell from best to worst, each at its largest size."""

    title: str
    cell: pd.Series
    draws: int
    rows: tuple[Ranked, ...]
    floor: float  # below it values are rounding

    @property
    def draws_needed(self) -> int:
        """With fewer draws no two of so many estimators can be told apart."""
        pairs = len(self.rows) * (len(self.rows) - 1) // 2
        return fewest_draws(pairs)


def rankings(results: Results, metric: str = "mse") -> list[Ranking]:
    """A ranking for every cell: medians, and sign tests of all pairs on the same draws, Holm over the cell."""
    trials = by_cell(results.trials)
    return [_ranking(trials[key], at_largest(cell), metric) for key, cell in by_cell(results.summary).items()]


def _ranking(trials: pd.DataFrame, chosen: pd.DataFrame, metric: str) -> Ranking:
    sign = 1.0 if METRICS[metric].better == "lower" else -1.0
    order = chosen.assign(value=sign * chosen[f"{metric}_median"]).sort_values("value", na_position="last")
    columns = _by_draw(trials, order, metric)
    groups = letters(len(columns), different(columns))
    rows = []
    for (_, row), values, letter in zip(order.iterrows(), columns, groups, strict=True):
        low, high, _ = median_interval(values[~np.isnan(values)])  # without draws on which it failed
        sampler = None if pd.isna(row["sampler"]) else str(row["sampler"])
        rows.append(
            Ranked(
                str(row["kind"]), str(row["map"]), sampler, int(row["num_features"]), float(row[f"{metric}_median"]),
                low, high, letter, str(row["versus_uniform"]),
            )
        )  # fmt: skip
    first = chosen.iloc[0]
    floor = rounding_level(trials, metric)
    return Ranking(describe_cell(first), first[list(CELL)], trials["draw"].nunique(), tuple(rows), floor)


def _by_draw(trials: pd.DataFrame, estimators: pd.DataFrame, metric: str) -> list[np.ndarray]:
    """The metric of each estimator, draw by draw."""
    keys = ["map", "sampler", "num_projections"]
    numbered = estimators[keys].reset_index(drop=True).reset_index(names="estimator")
    once = trials.drop_duplicates(["draw", *keys])  # two budgets that come to one size
    errors = once.merge(numbered, on=keys).pivot(index="draw", columns="estimator", values=metric)
    return [errors[i].to_numpy() for i in range(len(estimators))]


def different(columns: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """The pairs that differ detectably: sign tests of their paired values, Holm over all pairs."""
    pairs = list(itertools.combinations(range(len(columns)), 2))
    with np.errstate(invalid="ignore"):  # infinite errors of both: no difference
        p_values = [sign_test(columns[i] - columns[j]) for i, j in pairs]
    return [pair for pair, p in zip(pairs, holm(p_values), strict=True) if p <= 1.0 - LEVEL]


def letters(count: int, different: Iterable[tuple[int, int]]) -> list[str]:
    """A compact letter display: for each of ``count`` members the letters of the largest groups without a difference.

    Every pair in ``different`` shares no letter, every other pair at least one. Piepho 2004, "An algorithm for a
    letter-based representation of all-pairwise comparisons", J. Comput. Graph. Stat. 13.
    """
    groups = [frozenset(range(count))]
    for pair in different:
        for group in [g for g in groups if g.issuperset(pair)]:
            groups.remove(group)
            for member in pair:
                part = group - {member}
                if not any(part <= other for other in groups):
                    groups = [other for other in groups if not other < part] + [part]
    groups.sort(key=sorted)
    names = [*string.ascii_lowercase, *string.ascii_uppercase]
    names += [f"({i})" for i in range(len(groups))]
    return ["".join(name for name, group in zip(names, groups, strict=False) if i in group) for i in range(count)]


def shown(ranking: Ranking, metric: str) -> list[dict[str, str]]:
    """The ranking as texts, for a terminal or a document."""
    return [
        {
            "estimator": marked_name(row._asdict()),
            metric: format_value(row.median, metric, ranking.floor),
            interval_name(ranking.draws): " to ".join(
                format_value(value, metric, ranking.floor) for value in (row.low, row.high)
            ),
            "groups": row.groups,
            "against uniform": row.versus_uniform,
            "features": str(row.num_features),
        }
        for row in ranking.rows
    ]


def legend(ranking: Ranking) -> str:
    """What the letters mean, and whether so few draws can tell anything apart."""
    text = f"{ranking.draws} draws, each estimator at its largest size. "
    if ranking.draws < ranking.draws_needed:
        return text + f"So few can tell no two estimators apart: use {ranking.draws_needed} trials or more."
    return text + (
        "Estimators without a letter in common differ detectably (sign tests of all pairs on the same draws, Holm, "
        "5 %); those with one do not."
    )


def combined(found: Sequence[Ranking]) -> pd.DataFrame:
    """Rankings as one frame, a row for each cell and estimator."""
    frames = [
        pd.DataFrame(one.rows, columns=list(Ranked._fields)).assign(
            **{str(k): v for k, v in one.cell.items()}, draws=one.draws
        )
        for one in found
    ]
    return pd.concat(frames, ignore_index=True)[[*CELL, *Ranked._fields, "draws"]]
