"""The verb: inputs and a target to the cheapest certified setting of each head; saved and resumed like a sweep."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from favorbench.engine.cluster import Cluster, choose_cluster
from favorbench.engine.columns import Row, describe_cell, of_draw
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import Plan, plan
from favorbench.engine.store import Store, read_trials
from favorbench.engine.study import Study, default_directory
from favorbench.errors import ScenarioError
from favorbench.files import write_text
from favorbench.formats import json_text, shown
from favorbench.metrics import METRICS
from favorbench.numerics.arrays import Array
from favorbench.numerics.machine import one_core
from favorbench.parameters import is_number
from favorbench.progress import Progress, progress_callback
from favorbench.registry import nearest
from favorbench.studies.recommend.answer import Recommendation
from favorbench.studies.recommend.candidates import (
    exact_cost,
    families,
    study_of,
)
from favorbench.studies.recommend.evidence import MOST_DRAWS, Rule
from favorbench.studies.recommend.head import CandidateEvaluator, Head, not_begun, signed
from favorbench.studies.recommend.units import Unit, units_of

if TYPE_CHECKING:
    from favorbench.models.recorder import Captured


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: all draws are saved, and ``found`` is the best answer so far, nothing of it certified."""

    def __init__(self, found: Recommendation) -> None:
        super().__init__()
        self.found = found


class Search(NamedTuple):
    """What the search of every head follows from; known: rows that are there."""

    draws: Plan
    over: str
    rule: Rule
    said: Recommendation
    max_cost: float
    known: Sequence[Any]


def rows_of_head(search: Search, number: int) -> list[Row]:
    """In a worker: the rows that the search of one head measures."""
    rows: list[Row] = []
    bench = CandidateEvaluator(search.said.metric, search.known, rows.extend)
    unit, of = units_of(search.draws, search.over)[number], families(search.draws.study)
    with one_core():
        Head(unit, of, search.rule, search.said, search.max_cost, bench).search()
    return rows


def recommend(
    inputs: "str | Sequence[Array] | Mapping[str, Any] | Captured",
    target: float = 0.1,
    metric: str = "relative_error",
    probability: float = 0.9,
    confidence: float = 0.95,
    max_size: int = 1024,
    max_cost: float = 1.0,
    maps: str | None = None,
    methods: str | None = None,
    samplers: str | None = None,
    causal: bool | None = None,
    heads: str | None = None,
    over: Literal["heads", "texts"] = "heads",
    out: str | Path | None = None,
    progress: Progress | None = None,
    cluster: str | Cluster | Any = None,
    **keys: Any,
) -> Recommendation:
    """For every head the cheapest setting with P(error <= target) >= probability, certified, or that there is none.

    inputs: what a sweep takes: a path, "minilm", "gaussian", or in memory arrays (q, k, v), {"mine": (q, k, v)} or
    what ``fb.capture`` gives, of NumPy or torch, (L, d), (heads, L, d) or (batch, heads, L, d), as attention takes
    them. metric: of `favorbench list metrics`, an error; where larger is better, the target is to be reached from
    above. confidence: that every verdict on every head is right. max_size: of projections, centroids, landmarks or
    keys. max_cost: what candidates cost less than, in multiplications of exact attention. maps, methods, samplers:
    names with commas, in place of the default candidates, or "none" of maps or of methods; trivial answers are always
    among them. causal: None is what a file of heads says of itself. over: "texts" where the file holds several texts,
    which are then the draws. keys: seq_len, head_dim, scale, query_rows, dtype and seed of a scenario. out: the run
    directory, by default one below results, or none for arrays.
    cluster: as of a sweep; every head is then searched by a worker.

    Raises ScenarioError and InputError; Interrupted, with the answer so far, when Ctrl-C comes. All draws are saved.

    >>> import favorbench as fb, numpy as np
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 64, 4))
    >>> found = fb.recommend((0.3 * q, 0.3 * k, v), target=0.2, methods="clusters")
    >>> found.decisions[0].outcome
    'certified'
    >>> print(found.decisions[0].python.splitlines()[-1].strip())
    return fb...
    """
    _check(target, metric, probability, confidence, max_size, max_cost)
    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(inputs, str):
            inputs = _named(inputs)
            out = Path(folder) / "run" if out is None else out
        given = keys | {"inputs": inputs, "heads": heads} | ({} if causal is None else {"causal": causal})
        study = study_of(given, maps, methods, samplers, max_size)
        draws = plan(study)
        check_fits(draws)
        units = units_of(draws, over)
        rule = Rule(signed(target, metric), probability, (1 - confidence) / len(units))
        _check_draws(rule, units, over)
        path = Path(out) if out is not None else default_directory(study)
        said = Recommendation(
            None if Path(folder) in path.parents else path, _title(draws), metric, target, probability, confidence,
            _over(study, draws, over), max(draws.shapes[0].sizes), exact_cost(study.shape(draws.shapes[0].head)), (),
            True,
        )  # fmt: skip
        search = Search(draws, over, rule, said, max_cost, ())
        return _searched(search, units, path, progress, choose_cluster(cluster, 1, None))


def _searched(
    search: Search, units: Sequence[Unit], path: Path, progress: Progress | None, cluster: Cluster | None
) -> Recommendation:
    found, of, said = [], families(search.draws.study), search.said
    with Store(path, search.draws) as store, one_core(), progress_callback(progress, "recommend", "heads") as report:
        known = read_trials(store.path).to_dict("records") if store.done().any() else []
        bench = CandidateEvaluator(said.metric, known, store.append)
        try:
            if cluster is not None:
                _measure_on(cluster, search._replace(known=known), store, bench, report)
            for done, unit in enumerate(units):
                report(done, len(units), step=unit.label)
                head = Head(unit, of, search.rule, said, search.max_cost, bench)
                found.append(head)
                head.search()
                if progress is None:
                    report(done + 1, len(units))
        except KeyboardInterrupt as interruption:
            _keep(said := _answer(said, found, units), store)
            raise Interrupted(said) from interruption
        finally:
            store.record_workers(cluster.take_machines() if cluster else [])
        _keep(said := _answer(said, found, units), store)
    return said


def _measure_on(cluster: Cluster, search: Search, store: Store, bench: CandidateEvaluator, report: Progress) -> None:
    """Let workers search every head, and save all rows that they needed: the search then finds them."""
    units, study, done = units_of(search.draws, search.over), search.draws.study, 0

    def missing(why: str, number: int) -> str:
        return f"heads missing: {len(units) - done}, {why}; one is {units[number].label}; others are saved: run again"

    numbers = iter(range(len(units)))
    for number, rows in cluster.results(rows_of_head, search, numbers, len(units), missing, study.specs, study.backend):
        store.append(rows)
        bench.remember(rows)
        done += 1
        report(done, len(units), step=units[number].label)


def _answer(said: Recommendation, found: "Sequence[Head]", units: Sequence[Unit]) -> Recommendation:
    decisions = [head.decision() for head in found]
    complete = len(found) == len(units) and all(head.finished for head in found)
    decisions += [not_begun(unit.label) for unit in units[len(found) :]]
    return said._replace(decisions=tuple(decisions), complete=complete)


def _keep(found: Recommendation, store: Store) -> None:
    """The draws, and the answer beside them."""
    store.flush()
    if store.finish():
        write_text(store.path / "recommendation.json", json_text(found.as_dict()) + "\n")


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


def _named(arrays: Any) -> Mapping[str, Any]:
    """Arrays in memory by their name: that which they have, or "arrays". Raises ScenarioError for more than one."""
    if not isinstance(arrays, Mapping) or {"q", "query"} & set(arrays):
        return {"arrays": arrays}
    if len(arrays) != 1:
        raise ScenarioError(f"`inputs`: {len(arrays)} inputs were given, allowed: one; ask for each by itself")
    return arrays


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
