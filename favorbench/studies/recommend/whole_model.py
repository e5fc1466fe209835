"""The cheapest setting for all attention of a model, certified over texts: each text is a draw."""

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, nullcontext
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.rows import part_paths
from favorbench.engine.scenario import load_scenario
from favorbench.engine.tasks import KeptPool, Pool, TaskBundle, TaskRun
from favorbench.errors import InputError, ScenarioError
from favorbench.files import write_text
from favorbench.formats import counted, json_text, shown
from favorbench.methods import Method
from favorbench.models import torch
from favorbench.models.load import split_texts
from favorbench.models.plan import ALL, ModelScenario, PlannedRow
from favorbench.models.recommended import ByHead, head_names, heads_by_layer
from favorbench.models.replacements import Bfloat16Model, EstimatedAttention, Replacement, total
from favorbench.models.seconds import TimedEstimator, conditions, stored_seconds
from favorbench.models.store import (
    CHOSEN_ON,
    KEY,
    ORDER,
    SEARCH,
    merged_request,
    open_rows,
    read_manifest,
    write_manifest,
)
from favorbench.models.study import MeasuredModel, NotInBfloat16, computed_by
from favorbench.numerics.streams import stream
from favorbench.parameters import is_number
from favorbench.progress import Progress
from favorbench.registry import nearest
from favorbench.studies.recommend.answer import Recommendation
from favorbench.studies.recommend.candidates import EstimatorSetting, model_settings
from favorbench.studies.recommend.decision import EFFECTS, CostUnit, WholeModel, better_of, signed
from favorbench.studies.recommend.evidence import Rule, quantile
from favorbench.studies.recommend.per_head import MOST_TEXTS, PerHead, settings_per_head
from favorbench.studies.recommend.search import Candidate, CandidateSearch, Interrupted
from favorbench.users import module_digest

REFERENCE_TEXTS = 10  # on which the model in bfloat16 is measured
REFERENCE_BYTES = 1 << 30  # of outputs of the unchanged model that are kept
EXECUTOR_WORKERS = 8  # assumed for an executor that does not state its number
TIMINGS = 3  # interleaved runs of each estimator


class ModelTask(NamedTuple):
    """The arguments of a worker that measures rows. files: the digests of the model and of its texts.

    modules: the names of the user's modules, and their digests.
    """

    scenario: ModelScenario
    trust_remote_code: bool
    threads: int
    files: tuple[str, ...]
    modules: tuple[tuple[str, str], ...]

    def check_sources(self) -> None:
        """Raise ScenarioError where a user's module is not the one that the command began with."""
        if changed := next((name for name, digest in self.modules if module_digest(name) != digest), None):
            raise ScenarioError(f"the module {changed} has changed since the run began: run the same command again")


@functools.lru_cache(maxsize=1)
def _model_of(task: ModelTask) -> MeasuredModel:
    """In a worker: the model, loaded once. Raises InputError where its files are not those of the command."""
    torch.set_num_threads(task.threads)
    with warnings.catch_warnings(action="ignore"):  # the command has shown them
        model = _load(task.scenario, task.trust_remote_code)
    if _files(model) != task.files:
        raise InputError(
            f"{task.scenario.model} or a text has changed since the command began: run it again; a function has to "
            "return the same in every process: set its seed"
        )
    return model


def _files(model: MeasuredModel) -> tuple[str, ...]:
    return model.loaded.weights, *model.loaded.sources.values(), *(text.sha256 for text in model.texts.values())


def _load(scenario: ModelScenario, trust_remote_code: bool) -> MeasuredModel:
    model = MeasuredModel(scenario, trust_remote_code, split_texts)
    size = model.bytes_of(model.length) or 4.0 * model.reference(next(iter(model.texts))).hidden[-1].numel()
    model.kept = int(REFERENCE_BYTES / size)
    return model


def row_of(task: ModelTask, planned: PlannedRow) -> dict[str, Any]:
    """In a worker: the row of a text and its draw."""
    return _model_of(task).row(planned)


class TextEvaluator:
    """Measure the effect of replacements on texts, each once, and pass every new row to ``keep``.

    metric: the effect, signed so that smaller is better. pool: measures the next texts of a replacement, ``ahead`` of
    them at a time. known: all rows, by their keys. measured: the number of new rows.
    """

    def __init__(
        self, model: MeasuredModel, texts: Sequence[str], metric: str, known: Sequence[Mapping[str, Any]],
        keep: Callable[[Any], None], report: Progress, pool: Pool | None, ahead: int,
    ) -> None:  # fmt: skip
        self.model, self.texts, self.metric, self.measured, self._report = model, texts, metric, 0, report
        self._keep, self._pool, self._ahead = keep, pool, ahead
        self.known = {tuple(row[name] for name in KEY): row for row in known}

    def effect(self, replacement: Replacement, number: int, last: int, step: str) -> float:
        """The effect on the text of this number. last: of the texts that this step needs, for its progress."""
        texts = self.texts[number : max(last, number + self._ahead)]
        planned = [PlannedRow(text, ALL, replacement, _draw_of(self.model, text)) for text in texts]
        left = [row.key not in self.known for row in planned[: last - number]]
        self._report(self.measured, self.measured + sum(left), step=step)
        if left[0]:
            self._measure([row for row in planned[: self._ahead] if row.key not in self.known])
        row = self.known[planned[0].key]
        finite = all(math.isfinite(row[name]) for name in EFFECTS if row[name] is not None)  # top1 is, of NaN outputs
        return signed(float(row[self.metric]), self.metric) if finite else math.inf

    def _measure(self, rows: Sequence[PlannedRow]) -> None:
        if self._pool is None:
            measured = ((planned, self.model.row(planned)) for planned in rows)
        else:
            measured = TaskRun(self._pool, iter(rows), len(rows), _missing).results()
        with closing(measured):
            for planned, row in measured:
                self.known[planned.key] = row
                self._keep([row])
                self.measured += 1


def _missing(why: str, row: PlannedRow) -> str:
    return f"the effect on {row.text} is missing, {why}; others are saved: rerun the command with fewer `workers`"


def _draw_of(model: MeasuredModel, text: str) -> int:
    """The draw of a text. It depends on this text alone, so that adding a text changes no other draw."""
    return int(sha256(f"{text} {model.texts[text].sha256}".encode()).hexdigest()[:12], 16)


def _file_of(text: str) -> str:
    """The file of a text such as "notes#3"."""
    return text.rpartition("#")[0]


def _order(model: MeasuredModel, earlier: Sequence[str]) -> list[str]:
    """The texts in random order: first one of each file, then a second one of each, and so on.

    earlier: those of the answers before, which stay first and in their order. If more texts were mixed among them, each
    answer would be another sequential test, and adding texts until one certifies would be wrong more often than stated.
    """
    known = dict.fromkeys(name for name in earlier if name in model.texts)
    rng = stream(model.scenario.seed, "texts", *([len(known)] if known else []))
    by_file: dict[str, list[str]] = {}
    for name in model.texts:
        if name not in known:
            by_file.setdefault(_file_of(name), []).append(name)
    shuffled = [[texts[i] for i in rng.permutation(len(texts))] for texts in by_file.values()]
    rounds = zip_longest(*(shuffled[i] for i in rng.permutation(len(shuffled))))
    return [*known, *(text for texts in rounds for text in texts if text is not None)]


def _earlier(path: Path) -> tuple[list[str], int]:
    """The order of the texts of an earlier answer in this directory, and how many of them settings were chosen on."""
    asked = read_manifest(path)["asked"] if part_paths(path / "trials") else {}
    order, chosen_on = asked.get(ORDER), asked.get(CHOSEN_ON)
    names = [name for name in order if isinstance(name, str)] if isinstance(order, list) else []
    return names, chosen_on if isinstance(chosen_on, int) else 0


class ModelSearch(CandidateSearch):
    """The candidates for all attention of a model."""

    def __init__(
        self, evaluator: TextEvaluator, settings: Sequence[tuple[EstimatorSetting, Method]], rule: Rule, path: Path,
        by: CostUnit, exact_heads: Mapping[int, Collection[int]],
    ) -> None:  # fmt: skip
        model = evaluator.model
        exact = fmean(sum(layer.multiplications for layer in layers) for layers in model.costed)
        super().__init__("all layers", rule, exact, evaluator.metric)
        self.evaluator, self._path, self._by = evaluator, path, by
        self.exact_heads = head_names(exact_heads)
        or_exact = not model.length  # inputs may have padding, and then fewer keys than a size
        self.replacements: dict[EstimatorSetting, Replacement] = {
            setting: ByHead.but_exact(EstimatedAttention(method, setting.size or 1, or_exact=or_exact), exact_heads)
            for setting, method in settings
        }
        self.per_head: dict[EstimatorSetting, PerHead] = {}

    def work(self, setting: EstimatorSetting) -> float:
        """Multiplications of a setting in all layers, the mean over inputs."""
        replacement = self.replacements[setting]
        works = [total(layer.work(replacement) for layer in layers) for layers in self.evaluator.model.costed]
        return fmean(math.inf if work is None else work for work in works)

    def add_per_head(self, choices: Sequence[PerHead]) -> None:
        """Add settings per head to those that may become candidates."""
        self.per_head = {choice.setting: choice for choice in choices}
        self.replacements |= {choice.setting: choice.replacement for choice in choices}

    def set_candidates(self, shares: Mapping[EstimatorSetting, float], max_cost: float) -> None:
        """Take the settings that cost less than ``max_cost`` times exact attention. shares: costs relative to it.

        Settings per head count as at least as costly as the setting for all heads that they are compared with, so that
        it is tried first.
        """
        self.candidates, self.too_costly = [], 0
        if not any(share < max_cost for share in shares.values()):
            least, nearest_setting = min((share, setting.text) for setting, share in shares.items())
            raise ScenarioError(
                f"no candidate costs less than `max_cost` {max_cost:g} times exact attention; the cheapest, "
                f"{nearest_setting}, costs {least:.3g} times as much: use other `methods`, longer texts or a larger "
                "`max_cost`"
            )
        for setting, part in shares.items():
            share = max(part, shares[self.per_head[setting].single]) if setting in self.per_head else part
            if share < max_cost:
                self.candidates.append(Candidate(setting, share * self.exact, True))
            else:
                self.too_costly += 1

    def shares(self) -> dict[EstimatorSetting, float]:
        """The cost of each setting relative to exact attention."""
        if self._by == "multiplications":
            return {setting: self.work(setting) / self.exact for setting in self.replacements}
        timed = self.seconds(self.replacements.values())
        return {setting: row["ratio"] for setting, row in zip(self.replacements, timed, strict=True)}

    def seconds(self, replacements: Collection[Replacement]) -> list[TimedEstimator]:
        """CPU seconds relative to those of exact attention; those that were stored are not measured again."""
        stored = stored_seconds(self._path)
        if missing := [replacement for replacement in replacements if replacement.key not in stored]:
            self.evaluator.model.time(self._path, TIMINGS, missing)
            stored = stored_seconds(self._path)
        return [stored[replacement.key] for replacement in replacements]

    @property
    def candidate_rule(self) -> Rule:
        """The rule for one candidate."""
        return self.rule._replace(alpha=self.rule.alpha / max(1, len(self.candidates)))

    def multiplications(self, candidate: Candidate) -> float:
        return self.work(candidate.setting)

    def measure(self, candidate: Candidate) -> bool:
        """Add the effect on one more text."""
        count = len(candidate.values)
        if count >= len(self.evaluator.texts):
            return False
        rule, text, replacement = self.candidate_rule, candidate.setting.text, self.replacements[candidate.setting]
        if candidate.verdict == "open":
            hits = sum(value <= self.rule.target for value in candidate.values)
            last, step = count + rule.fewest_draws(hits, count), f"until {text} can be certified"
        else:  # nothing is certified, and the best candidate gets as many texts as its bound takes
            last, step = rule.fewest_draws(), f"for a bound of {text}"
        candidate.values.append(self.evaluator.effect(replacement, count, last, step))
        return True

    def describe(self, candidate: Candidate) -> dict[str, Any]:
        setting, length = candidate.setting, self.evaluator.model.length
        per_head = self.per_head.get(setting)
        kind, size = ("map", "num_projections") if setting.kind == "map" else ("method", "size")
        given = {kind: setting.spec, "sampler": setting.sampler, size: setting.size}
        given |= {"exact_heads": ",".join(self.exact_heads) or None}
        if per_head or not length:
            path = self._path  # pages may be shared, and show no directories
            given = {"recommended": path.name if path.is_absolute() else path.as_posix()}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        certified = f"; certified for texts of {length} tokens" if length else ""
        certified += ", each with a draw of its own (draw=0, 1, ...)" * self.replacements[setting].random
        python = (
            f"import torch\nimport favorbench as fb\n\n# model: a torch module, tokens: its input{certified}\n"
            f"with torch.no_grad(), fb.replace_attention(model, {arguments}):\n    output = model(tokens)\n"
        )
        return {"cheaper_from": None, "python": python, "per_head": per_head and per_head.choices}


def recommend_model(
    name: str, texts: Sequence[str | Path], metric: str | None, target: float | None, probability: float,
    confidence: float, max_size: int, max_cost: float, maps: str | None, methods: str | None, samplers: str | None,
    keys: Mapping[str, Any], by: CostUnit, out: str | Path | None, report: Progress, trust_remote_code: bool,
    per_head: bool, workers: int | Executor, device: str, exact_heads: Any,
) -> Recommendation:  # fmt: skip
    """Find the cheapest certified setting for all attention of a model.

    keys: seq_len, seed and num_projections of a scenario, where they are given.
    """
    if metric is not None and metric not in EFFECTS:
        raise ScenarioError(
            f"`metric` {shown(metric)}{nearest(metric, EFFECTS)}; allowed for a model: {', '.join(EFFECTS)}"
        )
    target = target_of(target, metric)
    kept = heads_by_layer(exact_heads)
    if kept and per_head:
        raise ScenarioError("`per_head` chooses the heads that stay exact: leave out `exact_heads`, or `per_head`")
    scenario = ModelScenario(
        name, tuple(map(str, texts)), keys.get("seq_len"), (), (), (), (1,), 1, seed=keys.get("seed", 0), heads=False,
        device=device,
    )  # fmt: skip
    model = _load(scenario, trust_remote_code)
    metric = _metric(model, metric)
    model.loaded.warn_of_output(metric)
    shapes, sizes = list({layer.shape for layer in model.replaceable}), keys.get("num_projections")
    requested = load_scenario(None, {"num_projections": sizes}).sizes(shapes[0].d) if sizes is not None else ()
    settings = model_settings(shapes, maps, methods, samplers, max_size, requested)
    path = Path(out) if out is not None else Path("results") / f"recommend-{Path(name).name.removesuffix('.gguf')}"
    rule = Rule(signed(target, metric), probability, 1 - confidence)
    files = {*map(_file_of, model.texts)}
    if model.length and (empty := len(scenario.texts) - len(files)):
        model.loaded.warn(
            f"{counted(empty, 'file')} of {len(scenario.texts)} left out: too short for a text of {model.length} "
            "tokens, or with texts of other files only",
            stacklevel=2,
        )
    earlier, before = _earlier(path)  # texts that have tested candidates must not choose, nor the other way round
    kept_texts = sum(text in model.texts for text in earlier[:before])
    chosen_on = (kept_texts or min(MOST_TEXTS, len(model.texts) // 3)) if per_head else 0
    about = WholeModel(
        name, len(files), len(model.texts), model.length, by,
        {layer.name: layer.left for layer in model.first if layer.left is not None}, chosen_on=chosen_on,
        exact_heads=head_names(kept),
    )  # fmt: skip
    size = f" of {model.length} tokens" if model.length else ""
    title = f"{Path(name).name}, {about.texts} {about.draws}{size}"
    ahead = workers if isinstance(workers, int) else getattr(workers, "_max_workers", EXECUTOR_WORKERS)
    computed, threads = computed_by(method for _, method in settings), max(1, torch.get_num_threads() // ahead)
    task = ModelTask(scenario, trust_remote_code, threads, _files(model), tuple(computed["modules"].items()))
    bundle = TaskBundle.of(row_of, task)
    processes = KeptPool(bundle, workers) if isinstance(workers, int) and workers > 1 else None
    pool = Pool(bundle, workers) if isinstance(workers, Executor) else processes
    warned = model.loaded.notes
    with open_rows(path) as store, processes or nullcontext():
        order = _order(model, earlier)
        asked = {SEARCH: True, "exact_heads": list(about.exact_heads) or None, ORDER: order}
        asked |= {CHOSEN_ON: chosen_on or None, **computed}
        request, facts = merged_request(path, model.request() | asked), model.facts()
        known = [row for part in store.parts([*KEY, *EFFECTS]) for row in part.table.to_pylist()]
        write_manifest(path, request, facts, len(known) + 1, len(known))
        texts = order[chosen_on:]
        evaluator = TextEvaluator(model, texts, metric, known, store.append, report, pool, ahead)
        search = ModelSearch(evaluator, settings, rule, path, by, kept)
        for replacement in search.replacements.values():
            model.check_replacement(replacement)

        def answer(model: WholeModel) -> Recommendation:
            decision = search.decision()
            tested = texts[: max((len(candidate.values) for candidate in search.candidates), default=0)]
            most = max(Counter(map(_file_of, tested)).values(), default=0)
            counts = Counter(map(_file_of, tested[: decision.draws]))
            each = [counts[name] for name in files]
            result = Recommendation(
                path, title, metric, target, rule.probability, 1 - rule.alpha, "texts", max_size, search.exact,
                (decision,), search.finished, model._replace(of_one_file=most, of_each=(min(each), max(each))),
                [f"{text}." for text in warned],
            )  # fmt: skip
            store.flush()
            store.join_if_small()
            done = len(evaluator.known)
            write_manifest(path, request, facts, done + (not search.finished), done)
            if done:  # else it says nothing, and would keep the directory from another search
                write_text(path / "recommendation.json", json_text(result.as_dict()) + "\n")
            return result

        try:
            search.set_candidates(search.shares(), max_cost)
            _check_texts(search, about)
            if chosen_on:
                draws = {text: _draw_of(model, text) for text in order[:chosen_on]}
                search.add_per_head(settings_per_head(model, draws, search.replacements, path, report))
                search.set_candidates(search.shares(), max_cost)
                _check_texts(search, about)
            search.search()
            about = _with_references(about, search, path)
        except KeyboardInterrupt as interruption:
            search.finished = False
            raise Interrupted(answer(about)) from interruption
        return answer(about)


def target_of(target: float | None, metric: str | None) -> float:
    """Return the target, by default 0.1. Raises ScenarioError for one that cannot be certified, or has no default."""
    higher = metric is not None and better_of(metric) == "higher"
    if target is None and (higher or metric in ("mse", "max_abs_error")):
        scale = "is 1 where the estimate is exact" if higher else "has the scale of v"
        raise ScenarioError(f"`target` has no default for {metric}, which {scale}: give one")
    target = 0.1 if target is None else target
    if not (is_number(target) and target > 0):
        raise ScenarioError(f"`target` {shown(target)} given, allowed: a number above 0")
    if higher and target >= 1:
        raise ScenarioError(f"`target` {target:g} given, allowed for {metric}: a number above 0 and below 1")
    return target


def _metric(model: MeasuredModel, metric: str | None) -> str:
    """The effect that is certified. Raises ScenarioError for one that this model does not have."""
    if model.loaded.causal:
        return metric or "delta_nll"
    classes = model.reference(next(iter(model.texts))).logits is not None
    allowed = ["kl", "top1", "embedding_loss"] if classes else ["embedding_loss"]
    if metric not in (None, *allowed):
        raise ScenarioError(
            f"`metric` {metric}: {model.loaded.name} predicts no next token; allowed: {', '.join(allowed)}"
        )
    return metric or allowed[0]


def _check_texts(search: ModelSearch, about: WholeModel) -> None:
    """Raise ScenarioError if there are too few texts to certify any candidate."""
    if (needed := search.candidate_rule.fewest_draws()) > (count := len(search.evaluator.texts)):
        chosen = f"; {about.chosen_on} more are for the settings per head" * bool(about.chosen_on)
        size = f"of {about.length} tokens " if about.length else ""
        once, length = (words * bool(about.length) for words in (", where equal ones count once", "`length`, "))
        raise ScenarioError(
            f"`probability` {search.rule.probability:g} at this `confidence` takes {needed} {about.draws} that "
            f"all hit, for {counted(len(search.candidates), 'candidate')}; {size}there are {count}{once}{chosen}: give "
            f"more {about.draws}, fewer `methods` and `maps`, or a smaller {length}`probability` or `confidence`"
        )


def _with_references(about: WholeModel, search: ModelSearch, path: Path) -> WholeModel:
    """Add the effect of bfloat16 and the CPU seconds of the recommended setting to the facts."""
    evaluator, reference = search.evaluator, Bfloat16Model()
    count = min(REFERENCE_TEXTS, len(evaluator.texts))
    try:
        effects = np.array([evaluator.effect(reference, i, count, "the model in bfloat16") for i in range(count)])
        errors = tuple(signed(quantile(effects, p), search.metric) for p in (0.5, search.rule.probability, 1.0))
        about = about._replace(bfloat16=errors, bfloat16_texts=count)
    except NotInBfloat16 as error:
        warnings.warn(str(error), stacklevel=2)
    if math.isnan(search.decision().uniform):  # other settings take fewer seconds
        uniform = next(iter(search.replacements.values()))
        values = np.array([evaluator.effect(uniform, i, count, "uniform attention") for i in range(count)])
        search.uniform = signed(quantile(values, search.rule.probability), search.metric)
    result = search.decision()
    if result.outcome == "certified" and result.setting is not None:
        replacement = search.replacements[result.setting]
        (timed,) = search.seconds([replacement])
        where = conditions(path, replacement.key)
        runs = f"{timed['low']:.2g} to {timed['high']:.2g} in {timed['repeats']} runs, {where}"
        about = about._replace(seconds=timed["ratio"], timed=runs)
    return about
