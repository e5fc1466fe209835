"""The search: test candidates in order of increasing cost, stopping each as soon as it has a verdict."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.attention.problem import exact_multiplications
from favorbench.engine.columns import Row, failed_of
from favorbench.engine.plan import Draw, Plan
from favorbench.engine.trial import problem_of, run_draws
from favorbench.errors import EstimatorError
from favorbench.studies.recommend.answer import Recommendation, python_lines
from favorbench.studies.recommend.candidates import (
    EstimatorSetting,
    Family,
    Key,
    cheaper_from,
    least_errors,
    settings_of,
)
from favorbench.studies.recommend.decision import Decision, MeasuredCandidate, Outcome, signed
from favorbench.studies.recommend.evidence import Rule, Verdict, certified_bound, quantile

#: A candidate whose hit rate is near the requested probability might never get a verdict. It is left undecided after
#: this multiple of ``fewest_draws``, and the next candidate is tried.
MAX_EFFORT = 4


UNIFORM = ("baseline", "uniform")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: draws are saved, and ``found`` is the best answer so far, without a certificate."""

    def __init__(self, result: Recommendation) -> None:
        super().__init__()
        self.found = result


@dataclass
class Candidate:
    """A setting, its cost, and its error in each draw, signed so that smaller is better.

    random: whether the error differs between draws. If not, one draw decides. judged: how many draws were tested; some
    are measured only because another size of the estimator was.
    """

    setting: EstimatorSetting
    cost: float
    random: bool
    values: list[float] = field(default_factory=list)
    verdict: Verdict = "open"
    judged: int = 0
    _hits: int = 0

    def judge(self, rule: Rule) -> None:
        """Judge the new draws one by one. The first verdict stands."""
        for value in self.values[self.judged :]:
            self._hits += value <= rule.target
            self.judged += 1
            if self.verdict == "open" and self.random:
                self.verdict = rule.verdict(self._hits, self.judged)
            elif self.verdict == "open":
                self.verdict = "certified" if self._hits else "dropped"

    @property
    def errors(self) -> np.ndarray:
        """The errors as an array."""
        return np.array(self.values)

    def bound(self, rule: Rule) -> float:
        """The smallest error that is certified not to be exceeded with the rule's probability; inf if none is.

        A certified target stays a bound, whatever the draws after the verdict, which other sizes needed.
        """
        if self.random:
            bound = certified_bound(self.errors, rule.probability, rule.alpha)
            return min(bound, rule.target) if self.verdict == "certified" else bound
        return quantile(self.errors, 1.0) if self.values else math.inf


Measure = Callable[[Candidate], bool]  # adds a draw to a candidate, and maybe to others; False if none is left


def search(candidates: Sequence[Candidate], rule: Rule, measure: Measure) -> Rule:
    """Judge candidates until the cheapest certified one is found; return the rule with the alpha of one candidate.

    rule.alpha: of all candidates together. Deterministic ones are decided first, by one draw. Random ones that are
    cheaper share alpha equally; their number does not depend on random draws. If nothing is certified, the best
    candidate of each moment gets a draw, until it has as many as a certificate takes, so that its error has a bound.
    """
    for candidate in candidates:
        if not candidate.random:
            measure(candidate)
            candidate.judge(rule)
    certified = chosen(candidates)
    limit = certified.cost if certified else math.inf
    tried = sorted((c for c in candidates if c.random and c.cost < limit), key=lambda c: c.cost)
    rule = rule._replace(alpha=rule.alpha / max(1, len(tried)))
    for candidate in tried:
        candidate.judge(rule)
        while candidate.verdict == "open" and len(candidate.values) < MAX_EFFORT * rule.fewest_draws():
            if not measure(candidate):
                break
            candidate.judge(rule)
        if candidate.verdict == "certified":
            return rule
    while not certified and (nearest := best(candidates, rule)) and nearest.random:
        if len(nearest.values) >= rule.fewest_draws() or not measure(nearest):
            break
        nearest.judge(rule)
    return rule


def best(candidates: Sequence[Candidate], rule: Rule) -> Candidate | None:
    """The measured candidate with the smallest error at the rule's probability; the cheapest of equals.

    A candidate of few draws counts with its largest error.
    """
    measured = [c for c in candidates if c.values]
    return min(measured, key=lambda c: (quantile(c.errors, rule.probability), c.cost), default=None)


def chosen(candidates: Sequence[Candidate]) -> Candidate | None:
    """The cheapest candidate that is certified."""
    return min((c for c in candidates if c.verdict == "certified"), key=lambda c: c.cost, default=None)


class CandidateEvaluator:
    """Measure candidates with the draws of the engine, each once, and pass every new row to ``keep``.

    known: rows that were measured before.
    """

    def __init__(self, metric: str, known: Iterable[Any], keep: Callable[[list[Row]], None]) -> None:
        self.metric, self._keep = metric, keep
        self._known: dict[int, dict[Key, float]] = {}
        self.remember(known)

    def remember(self, rows: Iterable[Any]) -> None:
        """Add rows that workers measured."""
        for row in rows:
            finite = math.isfinite(row["mse"])  # a cosine is finite where some rows of the output are not
            value = signed(float(row[self.metric]), self.metric) if finite else math.inf
            self._known.setdefault(int(row["draw"]), {})[_key(row)] = value

    def values(self, family: Family, key: Key, draw: Draw) -> dict[Key, float]:
        """All known errors of a draw, after measuring the setting of this key if its error is missing."""
        known = self._known.setdefault(draw.index, {})
        if key not in known:
            size = key[3]
            requested = draw if family.shares_work or size is None else dataclasses.replace(draw, sizes=(size,))
            (rows,) = run_draws(family.study, [requested])
            for name, messages in failed_of(rows).items():
                raise EstimatorError(f"{name} failed: {next(iter(messages))}")
            new = [row for row in rows if _key(row) not in known]
            self._keep(new)
            self.remember(new)
        return known


class HeadDraws(NamedTuple):
    """A head, or a head over many texts, and its draws. fixed: only the estimator differs between them."""

    label: str
    plan: Plan
    indices: Sequence[int]
    fixed: bool


class CandidateSearch(ABC):
    """Candidates with their measurements, and the decision that follows from them.

    exact: the cost of exact attention. uniform: the quantile of uniform attention, where it is measured apart from
    candidates.
    """

    def __init__(self, label: str, rule: Rule, exact: float, metric: str) -> None:
        self.label, self.rule, self.exact, self.metric = label, rule, exact, metric
        self.candidates: list[Candidate] = []
        self.too_costly = self.low_rank = 0
        self.uniform = math.nan
        self.finished = False

    def search(self) -> None:
        """Search until the cheapest certified candidate is found, or none is left."""
        self.rule = search(self.candidates, self.rule, self.measure)
        self.finished = True

    @abstractmethod
    def measure(self, candidate: Candidate) -> bool:
        """Add one draw to a candidate, and maybe to others; False if there is none left."""

    @abstractmethod
    def describe(self, candidate: Candidate) -> dict[str, Any]:
        """The fields cheaper_from and python of a decision for a candidate."""

    def multiplications(self, candidate: Candidate) -> float:
        """Multiplications. They are the cost, unless a search orders candidates by another cost."""
        return candidate.cost

    def decision(self) -> Decision:
        """The decision so far."""
        certified = chosen(self.candidates) if self.finished else None
        candidate = certified or (self._nearest() if self.finished else self._best_so_far())
        if candidate is None:
            return Decision(self.label)
        outcome: Outcome = "certified" if certified else "nothing" if self.finished else "not finished"
        points = {c.setting: self._point(c) for c in self._measured}
        point = points[candidate.setting]
        uniform = next((p.quantile for setting, p in points.items() if setting.key[:2] == UNIFORM), self.uniform)
        certain = sum(not c.random for c in self.candidates)
        random = len(self.candidates) - certain
        rule = self.rule if self.finished else self.rule._replace(alpha=self.rule.alpha / max(1, random))
        result = Decision(
            self.label, outcome, candidate.setting, point.draws,
            int(np.sum(candidate.errors <= self.rule.target)), point.median, point.quantile,
            multiplications=self.multiplications(candidate), share=candidate.cost / self.exact,
            uniform=uniform,
            candidates=len(self.candidates), dearer=self.too_costly, rank=self.low_rank,
            spent=sum(len(c.values) for c in self.candidates),
            full=certain + random * rule.fewest_draws(),
            points=tuple(points.values()), **self.describe(candidate),
        )  # fmt: skip
        if not self.finished:
            return result
        undecided = tuple(c.setting.text for c in self.candidates if c.verdict == "open" and c.judged)
        return result._replace(bound=signed(candidate.bound(self.rule), self.metric), undecided=undecided)

    @property
    def _measured(self) -> list[Candidate]:
        return [c for c in self.candidates if c.values]

    def _best_so_far(self) -> Candidate | None:
        """The cheapest candidate that hits often enough, if there is one, else the best."""
        hitting = [c for c in self._measured if quantile(c.errors, self.rule.probability) <= self.rule.target]
        return min(hitting, key=lambda c: c.cost) if hitting else best(self.candidates, self.rule)

    def _nearest(self) -> Candidate | None:
        """The candidate with the smallest certified bound. One of few draws may have smaller errors, but no bound."""

        def order(c: Candidate) -> tuple[float, float, float]:
            return c.bound(self.rule), quantile(c.errors, self.rule.probability), c.cost

        return min(self._measured, key=order, default=None)

    def _point(self, c: Candidate) -> MeasuredCandidate:
        levels = (0.5, self.rule.probability, 1.0)
        median, high, worst = (signed(quantile(c.errors, p), self.metric) for p in levels)
        work, share = self.multiplications(c), c.cost / self.exact
        return MeasuredCandidate(c.setting, work, share, len(c.values), median, high, worst, c.verdict)


class HeadSearch(CandidateSearch):
    """The candidates of one head and their measurements.

    Settings are left out if they cost max_cost times exact attention or more, or if the rank of their output keeps the
    error above the target. Closed forms of the variance exclude nothing, as rare draws dominate the second moment:
    ``positive`` with 256 projections has a relative standard deviation of 31 on the pairs of minilm L0H1, and yet an
    output error of 0.58.
    """

    def __init__(
        self, draws: HeadDraws, families: Sequence[Family], rule: Rule, max_cost: float, evaluator: CandidateEvaluator
    ) -> None:
        first, study = draws.plan[draws.indices[0]], draws.plan.study
        self.draws, self.evaluator, self.shape, self.scale = draws, evaluator, study.shape(first.head), first.scale
        super().__init__(draws.label, rule, exact_multiplications(self.shape), evaluator.metric)
        self.family: dict[Key, Family] = {}
        least: dict[int, float] = {}
        if draws.fixed and not study.scenario.causal:  # a mask raises the rank
            exact = study.once(first, ("exact",), lambda: softmax_attention(problem_of(study, first)))
            least = least_errors(exact, evaluator.metric)
        for family in families:
            estimator = family.estimator
            for setting in settings_of(estimator.kind, estimator.method, family.spec, first.sizes, family.law):
                cost = family.cost(setting, self.shape)
                if cost >= max_cost * self.exact:
                    self.too_costly += 1
                elif least.get(family.rank(setting, self.shape), -math.inf) > rule.target:
                    self.low_rank += 1
                else:
                    self.candidates.append(Candidate(setting, cost, estimator.method.random or not draws.fixed))
                    self.family[setting.key] = family

    def measure(self, candidate: Candidate) -> bool:
        """Add one draw to a candidate, and to those that are measured together with it; none has no estimate."""
        count = len(candidate.values)
        if count >= len(self.draws.indices):
            return False
        family = self.family[candidate.setting.key]
        values = self.evaluator.values(family, candidate.setting.key, self.draws.plan[self.draws.indices[count]])
        for other in self.candidates:
            shared = family.shares_work and self.family[other.setting.key] is family and len(other.values) == count
            if (other is candidate or shared) and other.setting.key in values:
                other.values.append(values[other.setting.key])
        return candidate.setting.key in values

    def describe(self, candidate: Candidate) -> dict[str, Any]:
        family, size = self.family[candidate.setting.key], candidate.setting.size
        return {
            "cheaper_from": cheaper_from(family.estimator.method, size or 1, self.shape),
            "python": python_lines(family, size, self.scale),
        }


def _key(row: Any) -> Key:
    """The key of a row, whose missing values may be those of pandas."""
    sampler, size = row["sampler"], row["num_projections"]
    size = None if size is None or type(size).__name__ == "NAType" else int(size)
    return row["kind"], row["estimator"], sampler if isinstance(sampler, str) else None, size
