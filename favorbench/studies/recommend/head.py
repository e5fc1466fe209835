"""One head: its candidates, measured with the engine's own draws, and what there is to say about it."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.engine.columns import Row, failed_of
from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.engine.trial import problem_of, run_draws
from favorbench.errors import EstimatorError
from favorbench.metrics import METRICS
from favorbench.studies.recommend.answer import Decision, Outcome, Point, Recommendation, python_lines
from favorbench.studies.recommend.candidates import Family, cheaper_from, exact_cost, least_errors, pool
from favorbench.studies.recommend.evidence import Rule, quantile
from favorbench.studies.recommend.search import Candidate, best, chosen, search
from favorbench.studies.recommend.units import Unit

Key = tuple[str, str, str | None, int | None]


class CandidateEvaluator:
    """Measures candidates with the engine's own draws, each once, and hands every new row to ``keep``.

    known: rows that are there.
    """

    def __init__(self, metric: str, known: Iterable[Any], keep: Callable[[list[Row]], None]) -> None:
        self.metric, self._keep = metric, keep
        self._known: dict[int, dict[Key, float]] = {}
        self.remember(known)

    def remember(self, rows: Iterable[Any]) -> None:
        """Rows that were measured elsewhere."""
        for row in rows:
            self._known.setdefault(int(row["draw"]), {})[_key(row)] = signed(float(row[self.metric]), self.metric)

    def values(self, family: Family, setting_key: Key, draw: Draw) -> dict[Key, float]:
        """What is known of a draw, after an estimator was measured on it."""
        known = self._known.setdefault(draw.index, {})
        if setting_key not in known:
            size = setting_key[3]
            asked = draw if family.together or size is None else dataclasses.replace(draw, sizes=(size,))
            (rows,) = run_draws(family.study, [asked])
            for name, how in failed_of(rows).items():
                raise EstimatorError(f"{name} failed: {next(iter(how))}")
            new = [row for row in rows if _key(row) not in known]
            self._keep(new)
            self.remember(new)
        return known


class Head:
    """One head: its candidates, and what is known of them."""

    def __init__(
        self,
        unit: Unit,
        of: Sequence[Family],
        rule: Rule,
        said: Recommendation,
        max_cost: float,
        bench: CandidateEvaluator,
    ) -> None:
        self.unit, self.rule, self.bench, self.finished = unit, rule, bench, False
        self.said, self.study = said, of[0].study
        first = unit.draws(0)
        self.shape, self.scale = self.study.shape(first.head), first.scale
        least = _rank_errors(self.study, first, said.metric) if unit.fixed else {}
        self.pool = pool(of, first, unit.fixed, max_cost * exact_cost(self.shape), least, rule.target)
        self.family = {candidate.setting.key: family for candidate, family in self.pool.candidates}
        self.candidates = [candidate for candidate, _ in self.pool.candidates]

    def search(self) -> None:
        """Until the cheapest candidate that is certified is found, or none is left."""
        self.rule = search(self.candidates, self.rule, self.measure)
        self.finished = True

    def measure(self, candidate: Candidate) -> bool:
        """One more draw of a candidate, and of those that are measured with it."""
        count = len(candidate.values)
        if count >= self.unit.most:
            return False
        family = self.family[candidate.setting.key]
        values = self.bench.values(family, candidate.setting.key, self.unit.draws(count))
        for other in self.candidates:
            together = family.together and self.family[other.setting.key] is family and len(other.values) == count
            if (other is candidate or together) and other.setting.key in values:
                other.values.append(values[other.setting.key])
        return True

    def decision(self) -> Decision:
        """What there is to say now."""
        certified = chosen(self.candidates) if self.finished else None
        candidate = certified or self._so_far()
        outcome: Outcome = "certified" if certified else "nothing" if self.finished else "not finished"
        if candidate is None:
            return not_begun(self.unit.label)
        family, size, sign = self.family[candidate.setting.key], candidate.setting.size, self._sign
        p, errors = self.rule.probability, candidate.errors
        limit = candidate.cost if certified else math.inf
        undecided = [c for c in self.candidates if c.values and c.verdict == "open" and c.cost < limit]
        cost = candidate.cost
        return Decision(
            self.unit.label, outcome, candidate.setting, len(errors), int(np.sum(errors <= self.rule.target)),
            sign * quantile(errors, 0.5), sign * quantile(errors, p),
            sign * candidate.bound(self.rule) if self.finished else math.inf, cost,
            cost / exact_cost(self.shape), cheaper_from(family.estimator.method, size or 1, self.shape),
            sign * self._uniform(), tuple(c.setting.text for c in undecided) if self.finished else (),
            len(self.candidates), self.pool.dearer, self.pool.rank, sum(len(c.values) for c in self.candidates),
            sum(self.rule.fewest_draws if c.random else 1 for c in self.candidates),
            python_lines(family, size, self.scale), self._points(),
        )  # fmt: skip

    def _so_far(self) -> Candidate | None:
        """The best; of an interrupted search the cheapest whose draws hit often enough, if there is one."""
        hitting = [
            c for c in self.candidates if c.values and quantile(c.errors, self.rule.probability) <= self.rule.target
        ]
        if not self.finished and hitting:
            return min(hitting, key=lambda c: c.cost)
        return best(self.candidates, self.rule)

    @property
    def _sign(self) -> float:
        return signed(1.0, self.bench.metric)

    def _uniform(self) -> float:
        """Of uniform attention, which is the first of all candidates."""
        return quantile(self.candidates[0].errors, self.rule.probability) if self.candidates[0].values else math.nan

    def _points(self) -> tuple[Point, ...]:
        p, sign = self.rule.probability, self._sign
        return tuple(
            Point(
                c.setting,
                c.cost,
                len(c.values),
                sign * quantile(c.errors, 0.5),
                sign * quantile(c.errors, p),
                c.verdict,
            )
            for c in self.candidates
            if c.values
        )


def not_begun(label: str) -> Decision:
    return Decision(
        label, "not finished", None, 0, 0, math.nan, math.nan, math.inf, math.nan, math.nan, None, math.nan, (), 0, 0,
        0, 0, 0, "", (),
    )  # fmt: skip


def _rank_errors(study: Study, draw: Draw, metric: str) -> dict[int, float]:
    """What outputs of low rank have at least; nothing is known where a mask takes them out of these matrices."""
    if study.scenario.causal:
        return {}
    exact = study.once(draw, ("exact",), lambda: softmax_attention(problem_of(study, draw)))
    return least_errors(exact, metric)


def _key(row: Row) -> Key:
    """What tells an estimator's row from others of the draw; pandas has its own missing values."""
    sampler, size = row["sampler"], row["num_projections"]
    return row["kind"], row["map"], sampler if isinstance(sampler, str) else None, _whole(size)


def _whole(size: Any) -> int | None:
    return None if size is None or type(size).__name__ == "NAType" else int(size)


def signed(value: float, metric: str) -> float:
    """Such that smaller is better."""
    return value if METRICS[metric].better == "lower" else -value
