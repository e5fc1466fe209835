"""From the cheapest candidate to the dearest: draws until it is certified or dropped, and no draw more."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from favorbench.studies.recommend.evidence import Rule, Verdict, certified_bound, quantile

#: A candidate whose hit rate is near the probability asked for would take draws without end: after so many times those
#: that certify if all hit it is left undecided, and the next one is tried.
PATIENCE = 4


class Setting(NamedTuple):
    """An estimator at a size, as the rows of a run name it, and as it is written in a scenario.

    sampler: None where there is none to choose. size: None where it plays no part.
    """

    kind: str
    name: str
    sampler: str | None
    size: int | None
    spec: str

    @property
    def key(self) -> tuple[str, str, str | None, int | None]:
        """What tells its row from others of the draw."""
        return self[:4]

    @property
    def estimator(self) -> str:
        """Name and sampler."""
        return self.name if self.sampler is None else f"{self.name} / {self.sampler}"

    @property
    def text(self) -> str:
        """With its size."""
        return self.estimator if self.size is None else f"{self.estimator}, size {self.size}"


@dataclass
class Candidate:
    """A setting, what it costs, and what was measured: an error of each draw, made so that smaller is better.

    random: its error differs between draws. Of others one draw says all.
    """

    setting: Setting
    cost: float
    random: bool
    values: list[float] = field(default_factory=list)
    verdict: Verdict = "open"
    _judged: int = 0
    _hits: int = 0

    def judge(self, rule: Rule) -> None:
        """Take the draws into account that came since, one by one: the first verdict stands."""
        for value in self.values[self._judged :]:
            self._hits += value <= rule.target
            self._judged += 1
            if self.verdict != "open":
                continue
            if self.random:
                self.verdict = rule.verdict(self._hits, self._judged)
            else:
                self.verdict = "certified" if self._hits else "dropped"

    @property
    def errors(self) -> np.ndarray:
        """What was measured."""
        return np.array(self.values)

    def bound(self, rule: Rule) -> float:
        """The smallest error that is certified not to be exceeded with the rule's probability; inf where none is."""
        if self.random:
            return certified_bound(self.errors, rule.probability, rule.alpha)
        return quantile(self.errors, 1.0) if self.values else math.inf


Measure = Callable[[Candidate], bool]  # adds a draw to a candidate, and maybe to others; False where there is none left


def search(candidates: Sequence[Candidate], rule: Rule, measure: Measure) -> Rule:
    """Judge candidates until the cheapest is found that is certified; returns the rule with the alpha of one.

    rule.alpha: of all of them. What is not random is decided first, by one evaluation; then the random ones that are
    cheaper share alpha equally, which depends on no draw. Where nothing is certified the best one gets as many draws as
    a certificate takes, so that its error has a bound.
    """
    for candidate in candidates:
        if not candidate.random:
            measure(candidate)
            candidate.judge(rule)
    limit = min((c.cost for c in candidates if c.verdict == "certified"), default=math.inf)
    tried = sorted((c for c in candidates if c.random and c.cost < limit), key=lambda c: c.cost)
    rule = rule._replace(alpha=rule.alpha / max(1, len(tried)))
    for candidate in tried:
        if _decided(candidate, rule, measure):
            return rule
    if math.isinf(limit):
        _bounded(best(candidates, rule), rule, measure)
    return rule


def _decided(candidate: Candidate, rule: Rule, measure: Measure) -> bool:
    """Draw until there is a verdict, or patience is over; whether it is certified."""
    candidate.judge(rule)
    while candidate.verdict == "open" and len(candidate.values) < PATIENCE * rule.fewest_draws:
        if not measure(candidate):
            break
        candidate.judge(rule)
    return candidate.verdict == "certified"


def _bounded(candidate: Candidate | None, rule: Rule, measure: Measure) -> None:
    """As many draws as bound the quantile by the largest error."""
    while candidate is not None and candidate.random and len(candidate.values) < rule.fewest_draws:
        if not measure(candidate):
            break
        candidate.judge(rule)


def best(candidates: Sequence[Candidate], rule: Rule) -> Candidate | None:
    """The candidate with the smallest error at the rule's probability, of those measured; the cheapest of equals.

    One that was drawn a few times only stands with its largest error.
    """
    measured = [c for c in candidates if c.values]
    return min(measured, key=lambda c: (quantile(c.errors, rule.probability), c.cost), default=None)


def chosen(candidates: Sequence[Candidate]) -> Candidate | None:
    """The cheapest candidate that is certified."""
    return min((c for c in candidates if c.verdict == "certified"), key=lambda c: c.cost, default=None)
