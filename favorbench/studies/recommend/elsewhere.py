"""Heads measured on a cluster: each is one item, searched by a worker, of which the rows come back."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from favorbench.engine.cluster.connection import Cluster
from favorbench.engine.cluster.luggage import packed
from favorbench.engine.cluster.work import Work
from favorbench.engine.columns import Row
from favorbench.engine.plan import Plan
from favorbench.numerics.machine import one_core
from favorbench.studies.recommend.answer import Recommendation
from favorbench.studies.recommend.candidates import families
from favorbench.studies.recommend.evidence import Rule
from favorbench.studies.recommend.head import CandidateEvaluator, Head
from favorbench.studies.recommend.units import units_of


class Search(NamedTuple):
    """What the search of every head follows from; known: rows that are there."""

    draws: Plan
    over: str
    rule: Rule
    said: Recommendation
    max_cost: float
    known: Sequence[Any]


def rows_of_head(search: Search, number: int) -> list[Row]:
    """The rows that the search of one head measures."""
    rows: list[Row] = []
    bench = CandidateEvaluator(search.said.metric, search.known, rows.extend)
    unit, of = units_of(search.draws, search.over)[number], families(search.draws.study)
    with one_core():
        Head(unit, of, search.rule, search.said, search.max_cost, bench).search()
    return rows


def measured(search: Search, cluster: Cluster, keep: Callable[[str, list[Row]], None]) -> None:
    """All rows that the searches need; keep: is given the label of each head, and its rows. Raises WorkerError."""
    units, study = units_of(search.draws, search.over), search.draws.study
    left = len(units)

    def missing(number: int) -> str:
        where = f"one is {units[number].label}" if len(units) > 1 else "it is the only one"
        return f"heads missing: {left}, {where}; all others are saved: run the same command again"

    luggage = packed(search, study.specs, study.backend)
    work = Work(cluster, luggage, rows_of_head, lambda number: number, missing)
    for number, rows in work.results(iter(range(len(units))), len(units)):
        left -= 1
        keep(units[number].label, rows)
