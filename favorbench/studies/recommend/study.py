"""Find the cheapest certified setting of each head; saved and resumed like a sweep."""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from concurrent.futures import Executor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from favorbench.attention.problem import exact_multiplications
from favorbench.engine.cluster import Cluster, check_workers, choose_cluster
from favorbench.engine.columns import Row, describe_cell, of_draw
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import Plan, plan
from favorbench.engine.provenance import input_notes
from favorbench.engine.store import Store, read_trials
from favorbench.engine.study import default_directory
from favorbench.engine.tasks import Unfinished, results_of_processes
from favorbench.errors import InputError, ScenarioError
from favorbench.files import write_text
from favorbench.formats import counted, json_text, shown
from favorbench.inputs.heads import head_and_text
from favorbench.metrics import EFFECT, METRICS
from favorbench.models.load import is_function
from favorbench.numerics.arrays import Array, of_python
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.parameters import check_name, is_number
from favorbench.progress import Progress, progress_callback
from favorbench.results.tables import unlike_sentences
from favorbench.studies.recommend.answer import Recommendation
from favorbench.studies.recommend.candidates import families, study_of
from favorbench.studies.recommend.decision import CostUnit, Decision, signed
from favorbench.studies.recommend.evidence import MOST_DRAWS, Rule
from favorbench.studies.recommend.search import CandidateEvaluator, HeadDraws, HeadSearch, Interrupted
from favorbench.studies.recommend.whole_model import recommend_model, target_of

if TYPE_CHECKING:
    from favorbench.models.captured import Captured


STEP_SECONDS = 10.0  # that a worker searches a head until it sends its rows, which are saved then


class SearchTask(NamedTuple):
    """The arguments of the searches of all heads. known: rows that were measured before."""

    plan: Plan
    over: str
    metric: str
    rule: Rule
    max_cost: float
    known: Sequence[Any] = ()

    def check_sources(self) -> None:
        """Raise ScenarioError where a user's module is not the one that the study was made with."""
        self.plan.study.check_sources()


class HeadPart(NamedTuple):
    """A head to be searched, and the rows that workers have measured on it."""

    number: int
    rows: tuple[Row, ...] = ()


class _StepOver(Exception):
    """The seconds of a step are over."""


def rows_of_head(task: SearchTask, part: HeadPart) -> list[Row] | Unfinished:
    """In a worker: the rows that the search of one head measures, in a step of it."""
    rows: list[Row] = []
    end = time.monotonic() + STEP_SECONDS

    def keep(new: list[Row]) -> None:
        rows.extend(new)
        if new and time.monotonic() >= end:  # a step without rows would be repeated for ever
            raise _StepOver

    evaluator = CandidateEvaluator(task.metric, (*task.known, *part.rows), keep)
    head = heads_of(task.plan, task.over)[part.number]
    try:
        with one_core():
            HeadSearch(head, families(task.plan.study), task.rule, task.max_cost, evaluator).search()
    except _StepOver:
        return Unfinished(rows, part._replace(rows=(*part.rows, *rows)))
    return rows


def recommend(
    inputs: "str | Path | Sequence[Array] | Mapping[str, Any] | Captured | None" = None,
    target: float | None = None,
    metric: str | None = None,
    probability: float = 0.9,
    confidence: float = 0.95,
    max_size: int = 1024,
    max_cost: float = 1.0,
    maps: str | Sequence[str] | None = None,
    methods: str | Sequence[str] | None = None,
    samplers: str | Sequence[str] | None = None,
    causal: bool | None = None,
    heads: str | None = None,
    over: Literal["heads", "texts"] = "heads",
    out: str | Path | None = None,
    progress: Progress | None = None,
    workers: int | Executor = 1,
    cluster: str | Cluster | Any = None,
    model: str | None = None,
    texts: str | Path | Sequence[str | Path] = (),
    by: CostUnit = "multiplications",
    trust_remote_code: bool = False,
    per_head: bool = False,
    device: str = "cpu",
    exact_heads: "str | Mapping[int, Sequence[int]] | None" = None,
    notice: Callable[[str], None] | None = None,
    **keys: Any,
) -> Recommendation:
    """Find for every head the cheapest setting with P(error <= target) >= probability, certified.

    With ``model`` and ``texts``: the cheapest setting for all attention of the model, where the error is its effect on
    the model, on a further text.

    Draws already stored in ``out`` are reused, also for another target.

    Parameters
    ----------
    inputs
        As for a sweep: a path, "minilm", "gaussian", or in memory arrays (q, k, v), {"mine": (q, k, v)} or the
        result of ``fb.capture``; of NumPy or torch, (L, d), (heads, L, d) or (batch, heads, L, d), not scaled.
    target
        The error to stay below, by default 0.1. For cosine, skill and top1 the value to reach; these, mse and
        max_abs_error have no default.
    metric
        An error among those of `favorbench list metrics`, by default relative_error. For a model embedding_loss (1 -
        cosine of the embedding, the default of encoders), delta_nll (nats per token, the default of language models),
        kl or top1.
    probability
        Share of the draws that must meet the target.
    confidence
        Probability that every verdict on every head is right.
    max_size
        Largest number of projections, centroids, landmarks or keys.
    max_cost
        Candidates cost less than this times exact attention, in the cost of ``by``.
    maps, methods, samplers
        Names, in a list or with commas, in place of the default candidates, or "none" for maps or methods. Trivial
        answers are always among the candidates.
    causal
        Whether a query sees only the keys up to its own position; None takes it from the file of heads.
    heads
        Only these heads of a file, with commas.
    over
        "texts" if the file holds several texts, which are then the draws.
    out
        The run directory, by default one below results, or none for arrays.
    progress
        Called with (heads done, heads in all), or measurements of a model; also with the name of the step if it takes
        ``step``.
    workers
        Processes that search the heads, or measure the texts of a model, which each of them loads; or an Executor. The
        answer is the same for any number.
    cluster
        A Dask cluster, as for ``sweep``, in place of ``workers``.
    model
        "minilm", "smollm2", a model's folder, a .gguf file or an id of the hub, in place of ``inputs``; or
        ``module:function``, which returns (model, list of inputs) and takes no texts.
    texts
        Files, or one, split into texts of ``seq_len`` tokens (512) that do not overlap. Each text has its own draw.
    by
        The cost that orders the settings for a model: "multiplications", or measured CPU "seconds" of attention.
    trust_remote_code
        Run Python code that comes with the model.
    per_head
        For a model: also try settings per head, chosen on a third of the texts (at most 16) by their predicted effect
        and tested on the others.
    device
        For a model: "cpu", "cuda" or "cuda:N".
    exact_heads
        For a model: heads that stay exact in every candidate, "L7H6-8,L18H0" or {7: [6, 7, 8], 18: [0]}.
    notice
        Receives what is to be known of a file of heads before the search, such as an array that is not used.
    **keys
        seq_len, head_dim, scale, query_rows, dtype, layout and seed of a scenario; num_projections, the sizes to try in
        place of powers of two up to ``max_size`` (for a model also 1.5 times these). For a model seq_len, seed and
        num_projections.

    Returns
    -------
    Recommendation
        A decision for each head, or the one for the model.

    Raises
    ------
    ScenarioError
        An argument is wrong.
    InputError
        The inputs cannot be measured.
    ModelError
        The model cannot be loaded, or its attention cannot be replaced.
    Interrupted
        After Ctrl-C, with the answer so far. All draws are saved, by workers but for the last seconds.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 64, 4))
    >>> result = fb.recommend((0.3 * q, 0.3 * k, v), target=0.2, methods="clusters")
    >>> result.decisions[0].outcome
    'certified'
    >>> print(result.decisions[0].python.splitlines()[-1].strip())
    return fb...
    """
    max_size = of_python(max_size)
    _check_limits(probability, confidence, max_size, max_cost)
    check_name("over", over, ("heads", "texts"))
    maps, methods, samplers = _names("maps", maps), _names("methods", methods), _names("samplers", samplers)
    texts = [texts] if isinstance(texts, str | Path) else texts
    if model is not None or texts:
        of_heads = {"heads": heads, "causal": causal is not None, "cluster": cluster, "over": over != "heads"}
        _check_model(model, inputs, texts, by, keys, **of_heads)
        check_workers(workers)
        with progress_callback(progress, "recommend", "measurements") as report:
            return recommend_model(
                str(model), texts, metric, target, probability, confidence, max_size, max_cost, maps, methods, samplers,
                keys, by, out, report, trust_remote_code, per_head, workers, device, exact_heads,
            )  # fmt: skip
    for_models = {
        "per_head": per_head,
        "exact_heads": exact_heads,
        "device": device != "cpu",
        "by": by != "multiplications",
        "trust_remote_code": trust_remote_code,
    }
    if wrong := next((name for name, given in for_models.items() if given), ""):
        raise ScenarioError(f"`{wrong}` is for a model, and this is about heads: leave it out, or give `model`")
    if wrong := next((name for name in ("budget", "redraw", "trials", "baselines") if keys.get(name) is not None), ""):
        raise ScenarioError(f"`{wrong}` is of a sweep, and recommend plans its own sizes and draws: leave it out")
    metric = "relative_error" if metric is None else metric
    check_name("metric", metric, [name for name, member in METRICS.items() if member.error and name != EFFECT])
    target = target_of(target, metric)
    searchers = choose_cluster(cluster, workers, None) or workers
    processes = check_workers(searchers)
    with tempfile.TemporaryDirectory() as folder:
        inputs = str(inputs) if isinstance(inputs, Path) else inputs
        if not isinstance(inputs, str):
            inputs = _named(inputs)
            out = Path(folder) / "run" if out is None else out
        given = keys | {"inputs": inputs, "heads": heads} | ({} if causal is None else {"causal": causal})
        study = study_of(given, maps, methods, samplers, max_size)
        draws = plan(study)
        shape, path = draws.shapes[0], Path(out) if out is not None else default_directory(study)
        units = heads_of(draws, over)
        check_fits(draws, processes if len(units) > 1 else 1)  # a single head is searched here
        rule = Rule(signed(target, metric), probability, (1 - confidence) / len(units))
        task = SearchTask(draws, over, metric, rule, max_cost)
        _check_draws(rule, units, over, _most_candidates(task, units) if over == "texts" else 1)
        if over == "texts":
            _check_distinct(units)
        for name, (_, law) in study.inputs.items():
            if notice and (notes := law.notes()):
                notice(f"{name}: {'; '.join(notes)}")
        noted = [
            text
            for name, (_, law) in study.inputs.items()
            if law.fixed
            for text in unlike_sentences(name, input_notes(draws, name, law))
        ]
        varying = "texts" if over == "texts" else _varying(draws)
        blank = Recommendation(
            None if Path(folder) in path.parents else path,
            describe_cell(of_draw(study.scenario, draws[0]) | {"head": "-"}), metric, target, probability, confidence,
            varying, max(shape.sizes), exact_multiplications(study.shape(shape.head)), (), True,
            notes=noted,
        )  # fmt: skip
        return _search_heads(task, blank, path, progress, searchers)


def _search_heads(
    task: SearchTask, blank: Recommendation, path: Path, progress: Progress | None, workers: int | Executor | Cluster
) -> Recommendation:
    """Search head after head, save the draws and the recommendation."""
    units, candidates = heads_of(task.plan, task.over), families(task.plan.study)
    searches: dict[int, HeadSearch] = {}
    with Store(path, task.plan) as store, one_core(), progress_callback(progress, "recommend", "heads") as report:

        def answer() -> Recommendation:
            decisions = [
                searches[number].decision() if number in searches else Decision(unit.label)
                for number, unit in enumerate(units)
            ]
            complete = len(searches) == len(units) and all(search.finished for search in searches.values())
            answer = blank._replace(decisions=tuple(decisions), complete=complete)
            store.flush()
            if store.finish():
                write_text(store.path / "recommendation.json", json_text(answer.as_dict()) + "\n")
            return answer

        known = read_trials(store.path).to_dict("records") if store.done().any() else []
        evaluator = CandidateEvaluator(task.metric, known, store.append)

        def search(number: int) -> None:
            searches[number] = HeadSearch(units[number], candidates, task.rule, task.max_cost, evaluator)
            searches[number].search()

        try:
            if workers != 1 and len(units) > 1:
                found = _rows_of_heads(workers, task._replace(known=known), units, store, searches)
                with contextlib.closing(found):
                    for number, rows, finished in found:
                        store.append(rows)
                        evaluator.remember(rows)
                        if not finished:
                            continue
                        search(number)  # among these rows
                        report(len(searches), len(units), step=units[number].label)
                return answer()
            for number, unit in enumerate(units):
                report(number, len(units), step=unit.label)
                search(number)
                if progress is None:
                    report(number + 1, len(units))
        except KeyboardInterrupt as interruption:
            raise Interrupted(answer()) from interruption
        return answer()


def _rows_of_heads(
    workers: int | Executor | Cluster, task: SearchTask, units: Sequence[HeadDraws], store: Store, done: Sized
) -> Generator[tuple[int, list[Row], bool], None, None]:
    """Let workers search every head; yield its number, new rows, and whether it is finished.

    done: the heads of before.
    """
    study = task.plan.study

    def missing(why: str, part: HeadPart) -> str:
        left = len(units) - len(done)
        return f"heads missing: {left}, {why}; one is {units[part.number].label}; others are saved: run again"

    work = rows_of_head, task, map(HeadPart, range(len(units))), len(units), missing
    if isinstance(workers, Cluster):
        workers.machines = store.machines
        results = workers.results(*work, study.specs, study.backend)
    else:
        results = results_of_processes(*work, workers)
    with contextlib.closing(results):
        for part, found in results:
            finished = not isinstance(found, Unfinished)
            yield part.number, found if finished else found.result, finished


def heads_of(draws: Plan, over: str) -> list[HeadDraws]:
    """The heads of a plan. Over texts, heads that differ only in their text are joined; texts are in random order."""
    shapes, study = draws.shapes, draws.study
    if over == "heads":
        rows = range(len(draws))
        return [
            HeadDraws(shape.head.label, draws, rows[number :: len(shapes)], _varying(draws, number) == "projections")
            for number, shape in enumerate(shapes)
        ]
    names = [head_and_text(shape.head.label)[0] for shape in shapes]
    heads: dict[str, list[int]] = {name: [] for name in names}
    for number in stream(study.scenario.seed, "texts").permutation(len(shapes)).tolist():
        heads[names[number]].append(number)
    if max(map(len, heads.values())) == 1:
        raise ScenarioError(
            "`over` texts: there is one text only; capture several into one file, or give arrays of shape "
            "(texts, heads, L, d)"
        )
    return [HeadDraws(label, draws, numbers, False) for label, numbers in heads.items()]


def _check_distinct(units: Sequence[HeadDraws]) -> None:
    """Raise InputError for two texts with the same q, k and v in all heads, which would count as independent."""
    known = dict[str, str]()  # digests of texts
    for unit in units:
        counts = Counter(known.values())
        for draw in (unit.plan[index] for index in unit.indices):
            _, text = head_and_text(draw.head.label)
            if counts[before := known.get(text, "")] != 1:  # no head has told it apart so far
                arrays = unit.plan.study.inputs[draw.input].law.draw(stream(0), draw.head)
                known[text] = sha256(b"".join([before.encode(), *(array.tobytes() for array in arrays)])).hexdigest()
    first = dict[str, str]()
    for text, digest in sorted(known.items()):
        if (twin := first.setdefault(digest, text)) != text:
            raise InputError(f"`over` texts: {text} is the same text as {twin}, and would count twice: give it once")


def _varying(draws: Plan, number: int = 0) -> str:
    """Name the difference between the draws of a head, a key in ``certified_in_words``."""
    shape, study = draws.shapes[number], draws.study
    if not study.inputs[shape.input].law.fixed:
        return "inputs"
    return "projections" if study.scenario.rows(shape.head.query_len) == shape.head.query_len else "rows"


def _names(key: str, given: Any) -> str | None:
    """Names with commas. Raises ScenarioError for anything but names."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        return ",".join(given)
    raise ScenarioError(
        f"`{key}` {shown(given)} given, allowed: names, in a list or with commas, such as 'module:object'"
    )


def _named(arrays: Any) -> Mapping[str, Any]:
    """Arrays in memory with their names, by default "arrays"."""
    if not isinstance(arrays, Mapping) or {"q", "query"} & set(arrays):
        return {"arrays": arrays}
    return arrays


def _check_limits(probability: float, confidence: float, max_size: int, max_cost: float) -> None:
    for name, value in (("probability", probability), ("confidence", confidence)):
        if not (is_number(value) and 0 < value < 1):
            raise ScenarioError(f"`{name}` {shown(value)} given, allowed: a number between 0 and 1")
    if not (type(max_size) is int and 1 <= max_size <= 1 << 20):
        raise ScenarioError(f"`max_size` {shown(max_size)} given, allowed: a whole number from 1 to {1 << 20}")
    if not (is_number(max_cost) and max_cost > 0):
        raise ScenarioError(f"`max_cost` {shown(max_cost)} given, allowed: a number above 0")


def _check_model(
    model: str | None, inputs: Any, texts: Sequence[str | Path], by: str, keys: Mapping[str, Any], **others: Any
) -> None:
    """Raise ScenarioError or InputError where a model comes without texts, or with arguments of heads."""
    if model is None:
        raise ScenarioError("`text`: texts are for a model; give `model`, or leave them out")
    if not texts and not is_function(model):
        raise InputError("`text`: a model is measured on text: give one file or more")
    others |= {"inputs": inputs, **{name: keys[name] for name in keys.keys() - {"seq_len", "seed", "num_projections"}}}
    if wrong := [name for name, value in others.items() if value not in (None, False, "none")]:
        raise ScenarioError(f"`{wrong[0]}` is about heads, and `model` about a whole model; leave one of them out")
    check_name("by", by, get_args(CostUnit))


def _most_candidates(task: SearchTask, units: Sequence[HeadDraws]) -> int:
    """The largest number of candidates of a head."""
    members, unused = families(task.plan.study), CandidateEvaluator(task.metric, (), lambda rows: None)
    return max(len(HeadSearch(unit, members, task.rule, task.max_cost, unused).candidates) for unit in units)


def _check_draws(rule: Rule, units: Sequence[HeadDraws], over: str, candidates: int = 1) -> None:
    """Raise ScenarioError if there are too few draws to certify any of so many random candidates, even if all hit."""
    count = min(len(unit.indices) for unit in units)
    if (needed := rule._replace(alpha=rule.alpha / candidates).fewest_draws()) > count:
        many = f"more than {MOST_DRAWS // 2}" if needed >= MOST_DRAWS else f"{needed}"
        limit = f"over texts there are {count}" if over == "texts" else f"draws: at most {count}"
        share = f", for {counted(candidates, 'candidate')}" * (over == "texts")
        fewer = ", `methods` or `maps`" * (over == "texts")
        raise ScenarioError(
            f"`probability` {rule.probability:g} at this `confidence` takes {many} draws that all hit{share}; {limit}: "
            f"use a smaller `probability` or `confidence`, or fewer `heads`{fewer}"
        )
