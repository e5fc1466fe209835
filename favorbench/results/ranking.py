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
from favorbench.results.summary import at_largest, by_cell, estimator_name, is_oracle, marked_name
from favorbench.results.tables import rounding_level
from favorbench.statistics import LEVEL, fewest_draws, holm, interval_name, median_interval, sign_test


class Ranked(NamedTuple):
    """One estimator of a ranking: the median of the metric with its interval, and its groups.

    Two estimators without a group in common differ detectably.
    """

    kind: str
    map: str
    sampler: str | None
    num_features: int
    median: float
    low: float
    high: float
    groups: tuple[int, ...]
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
    def group_names(self) -> list[str]:
        """The groups of each row, as they are shown."""
        return group_names([row.groups for row in self.rows])

    @property
    def with_best(self) -> list[bool]:
        """Which rows share a group with the best one that is no bound: draws do not tell them from it."""
        best = next(set(row.groups) for row in self.rows if not is_oracle(row.map))
        return [bool(best & set(row.groups)) for row in self.rows]

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
    groups = groups_of(len(columns), different(columns))
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


def groups_of(count: int, different: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """For each of ``count`` members the numbers of the largest groups without a difference that it is in.

    Every pair in ``different`` shares no group, every other pair at least one. Piepho 2004, "An algorithm for a
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
    return [tuple(number for number, group in enumerate(groups) if i in group) for i in range(count)]


def group_names(groups: Sequence[Sequence[int]]) -> list[str]:
    """Groups as letters, "ab" and, for four or more in a row, "a-d"; as numbers, "1 3-7", where letters are too few."""
    lettered = max((number for one in groups for number in one), default=0) < len(string.ascii_lowercase)
    most = 1 + max((number for one in groups for number in one), default=0)
    names = string.ascii_lowercase if lettered else [str(number) for number in range(1, most + 1)]
    found = []
    for one in groups:
        parts = []
        for run in _runs(one):
            parts += [f"{names[run[0]]}-{names[run[-1]]}"] if len(run) > 3 else [names[number] for number in run]
        found.append(("" if lettered and all(len(part) == 1 for part in parts) else " ").join(parts))
    return found


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers in order, split where one is left out."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def how_groups_are_read(names: Sequence[str]) -> str:
    """What letters, numbers and ranges of them mean."""
    sign = "number" if any(name[:1].isdigit() for name in names) else "letter"
    ranges = " (a-d: a to d)" if sign == "letter" and any("-" in name for name in names) else ""
    return f"Estimators without a {sign} in common{ranges} differ detectably"


def shown(ranking: Ranking, metric: str) -> list[dict[str, str]]:
    """The ranking as texts, for a terminal or a document."""
    return [
        {
            "estimator": marked_name(row._asdict()),
            metric: format_value(row.median, metric, ranking.floor),
            interval_name(ranking.draws): " to ".join(
                format_value(value, metric, ranking.floor) for value in (row.low, row.high)
            ),
            "groups": groups,
            "against uniform": row.versus_uniform,
            "features": str(row.num_features),
        }
        for row, groups in zip(ranking.rows, ranking.group_names, strict=True)
    ]


def legend(ranking: Ranking) -> str:
    """What the letters mean, and whether so few draws can tell anything apart."""
    text = f"{ranking.draws} draws, each estimator at its largest size. "
    if ranking.draws < ranking.draws_needed:
        return text + f"So few can tell no two estimators apart: use {ranking.draws_needed} trials or more."
    return text + (
        f"{how_groups_are_read(ranking.group_names)} (sign tests of all pairs on the same draws, Holm, "
        "5 %); those with one do not."
    )


def combined(found: Sequence[Ranking]) -> pd.DataFrame:
    """Rankings as one frame, a row for each cell and estimator."""
    frames = [
        pd.DataFrame(one.rows, columns=list(Ranked._fields)).assign(
            **{str(k): v for k, v in one.cell.items()}, draws=one.draws, groups=one.group_names
        )
        for one in found
    ]
    return pd.concat(frames, ignore_index=True)[[*CELL, *Ranked._fields, "draws"]]
