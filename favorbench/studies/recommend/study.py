"""The verb: inputs and a target to the cheapest certified setting of each head; saved and resumed like a sweep."""

import dataclasses
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.engine.columns import Row, describe_cell, of_draw
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import Draw, Plan, plan
from favorbench.engine.store import Store, read_trials
from favorbench.engine.study import Study, default_directory
from favorbench.engine.trial import run_draws
from favorbench.errors import InputError, ScenarioError
from favorbench.files import write_text
from favorbench.formats import json_text, shown
from favorbench.metrics import METRICS
from favorbench.numerics.arrays import Array, on_host
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.parameters import is_number
from favorbench.progress import Progress
from favorbench.registry import nearest
from favorbench.studies.recommend.answer import Decision, Outcome, Point, Recommendation, python_lines
from favorbench.studies.recommend.candidates import (
    Family,
    cheaper_from,
    exact_cost,
    families,
    least_errors,
    pool,
    study_of,
)
from favorbench.studies.recommend.evidence import MOST_DRAWS, Rule, quantile
from favorbench.studies.recommend.search import Candidate, best, chosen, search

Key = tuple[str, str, str | None, int | None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: all draws are saved, and ``found`` is the best answer so far, nothing of it certified."""

    def __init__(self, found: Recommendation) -> None:
        super().__init__()
        self.found = found


class Unit(NamedTuple):
    """What gets one answer: a head, or a head in many texts.

    draws: the i-th, of at most so many. fixed: nothing but the estimator differs between them.
    """

    label: str
    draws: Callable[[int], Draw]
    most: int
    fixed: bool


def recommend(
    inputs: str | Sequence[Array],
    target: float = 0.1,
    metric: str = "relative_error",
    probability: float = 0.9,
    confidence: float = 0.95,
    max_size: int = 1024,
    max_cost: float = 1.0,
    maps: str | None = None,
    methods: str | None = None,
    samplers: str | None = None,
    causal: bool = False,
    heads: str | None = None,
    over: Literal["heads", "texts"] = "heads",
    out: str | Path | None = None,
    progress: Progress | None = None,
    **keys: Any,
) -> Recommendation:
    """For every head the cheapest setting with P(error <= target) >= probability, certified, or that there is none.

    inputs: what a sweep takes (a path, "minilm", "gaussian"), or arrays query, key and value of shape (L, d) or
    (heads, L, d), of NumPy or torch, as attention takes them. metric: of `favorbench list metrics`, an error; where
    larger is better, the target is to be reached from above. confidence: that every verdict on every head is right.
    max_size: of projections, centroids, landmarks or keys. max_cost: of a candidate, in multiplications of exact
    attention. maps, methods, samplers: names with commas, in place of the default candidates; trivial answers are
    always among them. over: "texts" where the file holds several texts, which are then the draws. keys: seq_len,
    head_dim, scale, query_rows, dtype and seed of a scenario. out: the run directory, by default one below results, or
    none for arrays.

    Raises ScenarioError and InputError; Interrupted, with the answer so far, when Ctrl-C comes. All draws are saved.
    """
    _check(target, metric, probability, confidence, max_size, max_cost)
    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(inputs, str):
            keep = Path(folder) if out is None else Path(out).parent
            inputs = _written(inputs, keep / f"{Path(out or 'arrays').name}-inputs.npz")
            out = Path(folder) / "run" if out is None else out
        given = keys | {"inputs": inputs, "causal": causal, "heads": heads}
        study = study_of(given, maps, methods, samplers, max_size)
        draws = plan(study)
        check_fits(draws)
        units = _units(draws, over)
        rule = Rule(_signed(target, metric), probability, (1 - confidence) / len(units))
        _check_draws(rule, units, over)
        path = Path(out) if out is not None else default_directory(study)
        said = Recommendation(
            None if Path(folder) in path.parents else path, _title(draws), metric, target, probability, confidence,
            _over(study, draws, over), max(draws.shapes[0].sizes), exact_cost(study.shape(draws.shapes[0].head)), (),
            True,
        )  # fmt: skip
        return _searched(draws, units, rule, said, max_cost, path, progress)


def _searched(
    draws: Plan, units: Sequence[Unit], rule: Rule, said: Recommendation, max_cost: float, path: Path,
    progress: Progress | None,
) -> Recommendation:  # fmt: skip
    found, of = [], families(draws.study)
    with Store(path, draws) as store, one_core():
        bench = Bench(said.metric, store)
        try:
            for done, unit in enumerate(units):
                if progress:
                    progress(done, len(units), step=unit.label)
                head = _Head(unit, of, rule, said, max_cost, bench)
                found.append(head)
                head.search()
        except KeyboardInterrupt as interruption:
            _keep(said := _answer(said, found, units), store)
            raise Interrupted(said) from interruption
        _keep(said := _answer(said, found, units), store)
    return said


def _answer(said: Recommendation, found: "Sequence[_Head]", units: Sequence[Unit]) -> Recommendation:
    decisions = [head.decision() for head in found]
    complete = len(found) == len(units) and all(head.finished for head in found)
    decisions += [_not_begun(unit.label) for unit in units[len(found) :]]
    return said._replace(decisions=tuple(decisions), complete=complete)


def _keep(found: Recommendation, store: Store) -> None:
    """The draws, and the answer beside them."""
    store.flush()
    if store.finish():
        write_text(store.path / "recommendation.json", json_text(found.as_dict()) + "\n")


class Bench:
    """Measures candidates with the engine's own draws, each once, and keeps every row. Rows that are there are read."""

    def __init__(self, metric: str, store: Store) -> None:
        self.metric, self._store = metric, store
        self._known: dict[int, dict[Key, float]] = {}
        if store.done():
            self._remember(read_trials(store.path).to_dict("records"))

    def _remember(self, rows: Iterable[Any]) -> None:
        for row in rows:
            self._known.setdefault(int(row["draw"]), {})[_key(row)] = _signed(float(row[self.metric]), self.metric)

    def values(self, family: Family, setting_key: Key, draw: Draw) -> dict[Key, float]:
        """What is known of a draw, after an estimator was measured on it."""
        known = self._known.setdefault(draw.index, {})
        if setting_key not in known:
            size = setting_key[3]
            asked = draw if family.together or size is None else dataclasses.replace(draw, sizes=(size,))
            (rows,) = run_draws(family.study, [asked])
            new = [row for row in rows if _key(row) not in known]
            self._store.append(new)
            self._remember(new)
        return known


class _Head:
    """One head: its candidates, and what is known of them."""

    def __init__(
        self, unit: Unit, of: Sequence[Family], rule: Rule, said: Recommendation, max_cost: float, bench: Bench
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
            return _not_begun(self.unit.label)
        family, size, sign = self.family[candidate.setting.key], candidate.setting.size, self._sign
        p, errors = self.rule.probability, candidate.errors
        limit = candidate.cost if certified else math.inf
        undecided = [c for c in self.candidates if c.values and c.verdict == "open" and c.cost < limit]
        cost = candidate.cost
        return Decision(
            self.unit.label, outcome, candidate.setting, len(errors), int(np.sum(errors <= self.rule.target)),
            sign * quantile(errors, 0.5), sign * quantile(errors, p),
            sign * candidate.bound(self.rule) if self.finished else math.inf, cost,
            cost / exact_cost(self.shape), cheaper_from(family.member, size or 1, self.shape),
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
        return _signed(1.0, self.bench.metric)

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


def _not_begun(label: str) -> Decision:
    return Decision(
        label, "not finished", None, 0, 0, math.nan, math.nan, math.inf, math.nan, math.nan, None, math.nan, (), 0, 0,
        0, 0, 0, "", (),
    )  # fmt: skip


def _rank_errors(study: Study, draw: Draw, metric: str) -> dict[int, float]:
    """What outputs of low rank have at least; nothing is known where a mask takes them out of these matrices."""
    if study.scenario.causal:
        return {}
    law = study.inputs[draw.input].law
    query, key, value = law.draw(np.random.default_rng(0), draw.head)  # fixed: the generator plays no part
    query, key = draw.scale * query, draw.scale * key
    value = study.scenario.value_scale * value
    exact = study.once(draw, ("exact",), lambda: exact_attention(query, key, value))
    return least_errors(exact, metric)


def _units(draws: Plan, over: str) -> list[Unit]:
    """The heads of a plan; or, over texts, the heads that differ in their text only, together."""
    shapes, study = draws.shapes, draws.study
    names = [shape.head.label for shape in shapes]
    if over == "heads":
        fixed = [
            study.inputs[s.input].law.fixed and study.scenario.rows(s.head.query_len) == s.head.query_len
            for s in shapes
        ]
        each = (lambda trial, number=number: draws[trial * len(shapes) + number] for number in range(len(shapes)))
        count = study.scenario.trials
        return [Unit(name, draw, count, is_fixed) for name, draw, is_fixed in zip(names, each, fixed, strict=True)]
    heads: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        heads.setdefault(_without_text(name), []).append(number)
    if max(map(len, heads.values())) == 1:
        raise ScenarioError(
            "`over` texts: there is one text only; capture several into one file, or give arrays of shape "
            "(texts, heads, L, d)"
        )
    order = stream(study.scenario.seed, "texts").permutation(len(shapes))
    rank = {int(number): place for place, number in enumerate(order)}
    units = []
    for name, numbers in heads.items():
        shuffled = sorted(numbers, key=rank.__getitem__)
        units.append(Unit(name, lambda i, numbers=shuffled: draws[numbers[i]], len(shuffled), False))
    return units


def _without_text(label: str) -> str:
    """The head of "L0H5@text", or of "b3h5": one of a batch is a text."""
    batch = re.fullmatch(r"b\d+(h\d+)", label)
    return batch[1] if batch else label.partition("@")[0]


def _over(study: Study, draws: Plan, over: str) -> str:
    """What differs between draws, as ``certified_in_words`` has it."""
    if over == "texts":
        return "texts"
    shape = draws.shapes[0]
    if not study.inputs[shape.input].law.fixed:
        return "inputs"
    return "projections" if study.scenario.rows(shape.head.query_len) == shape.head.query_len else "rows"


def _title(draws: Plan) -> str:
    return describe_cell(of_draw(draws.study.scenario, draws[0]) | {"head": "-"})


def _key(row: Row) -> Key:
    """What tells an estimator's row from others of the draw; pandas has its own missing values."""
    sampler, size = row["sampler"], row["num_projections"]
    return row["kind"], row["map"], sampler if isinstance(sampler, str) else None, _whole(size)


def _whole(size: Any) -> int | None:
    return None if size is None or type(size).__name__ == "NAType" else int(size)


def _signed(value: float, metric: str) -> float:
    """Such that smaller is better."""
    return value if METRICS[metric].better == "lower" else -value


def _written(arrays: Sequence[Array], path: Path) -> str:
    """A file of arrays that are in memory: a run knows its inputs by their contents."""
    if len(arrays) != 3:
        raise InputError(f"{len(arrays)} arrays were given; allowed: query, key and value")
    query, key, value = (on_host(array.double() if hasattr(array, "detach") else array) for array in arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, q=query, k=key, v=value)
    return str(path)


def _check(target: float, metric: str, probability: float, confidence: float, max_size: int, max_cost: float) -> None:
    """Raise ScenarioError for what asks for nothing that can be certified."""
    errors = [name for name, one in METRICS.items() if one.error]
    if metric not in errors:
        raise ScenarioError(f"`metric` {shown(metric)}{nearest(str(metric), errors)}; allowed: {', '.join(errors)}")
    if not (is_number(target) and target > 0):
        raise ScenarioError(f"`target` {shown(target)} given, allowed: a number above 0")
    if METRICS[metric].better == "higher" and target >= 1:
        raise ScenarioError(f"`target` {target:g} given, allowed for {metric}: a number above 0 and below 1")
    for name, value in (("probability", probability), ("confidence", confidence)):
        if not (is_number(value) and 0 < value < 1):
            raise ScenarioError(f"`{name}` {shown(value)} given, allowed: a number between 0 and 1")
    if not (type(max_size) is int and 1 <= max_size <= 1 << 20):
        raise ScenarioError(f"`max_size` {shown(max_size)} given, allowed: a whole number from 1 to {1 << 20}")
    if not (is_number(max_cost) and max_cost > 0):
        raise ScenarioError(f"`max_cost` {shown(max_cost)} given, allowed: a number above 0")


def _check_draws(rule: Rule, units: Sequence[Unit], over: str) -> None:
    """Raise ScenarioError where not even draws that all hit would be enough."""
    needed, count = rule.fewest_draws, min(unit.most for unit in units)
    if needed > count:
        many = f"at most {MOST_DRAWS}" if needed >= MOST_DRAWS else f"{needed}"
        what = f"{over} there are {count}" if over == "texts" else f"draws: at most {count}"
        raise ScenarioError(
            f"`probability` {rule.probability:g} at this `confidence` takes {many} draws that all hit; {what}: use a "
            "smaller `probability` or `confidence`, or fewer `heads`"
        )
