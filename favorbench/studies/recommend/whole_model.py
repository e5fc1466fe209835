"""The cheapest setting for all attention of a model, certified over texts: each text is a draw."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.rows import part_paths
from favorbench.engine.scenario import load_scenario
from favorbench.engine.tasks import local_processes, results_of_processes
from favorbench.errors import ScenarioError
from favorbench.files import write_text
from favorbench.formats import counted, json_text, shown
from favorbench.methods import Method
from favorbench.models import torch
from favorbench.models.load import split_texts
from favorbench.models.plan import ALL, ModelScenario, PlannedRow
from favorbench.models.recommended import ByHead, head_names, heads_by_layer
from favorbench.models.replacements import Bfloat16Model, EstimatedAttention, Replacement
from favorbench.models.seconds import TimedEstimator, conditions, stored_seconds
from favorbench.models.store import KEY, ORDER, SEARCH, merged_request, open_rows, read_manifest, write_manifest
from favorbench.models.study import MeasuredModel
from favorbench.numerics.streams import stream
from favorbench.parameters import is_number
from favorbench.progress import Progress
from favorbench.registry import nearest
from favorbench.studies.recommend.answer import EFFECTS, CostUnit, Recommendation, WholeModel
from favorbench.studies.recommend.candidates import EstimatorSetting, model_settings
from favorbench.studies.recommend.evidence import Rule, quantile
from favorbench.studies.recommend.per_head import MOST_TEXTS, PerHead, settings_per_head
from favorbench.studies.recommend.search import Candidate, CandidateSearch, Interrupted

REFERENCE_TEXTS = 10  # on which the model in bfloat16 is measured
REFERENCE_BYTES = 1 << 30  # of outputs of the unchanged model that are kept
EXECUTOR_WORKERS = 8  # assumed for an executor that does not state its number
TIMINGS = 3  # interleaved runs of each estimator


class ModelTask(NamedTuple):
    """The arguments of a worker that measures rows."""

    scenario: ModelScenario
    trust_remote_code: bool
    threads: int
    replacement: Replacement | None = None


@functools.lru_cache(maxsize=1)
def _model_of(task: ModelTask) -> MeasuredModel:
    """In a worker: the model, loaded once."""
    torch.set_num_threads(task.threads)
    return _load(task.scenario, task.trust_remote_code)


def _load(scenario: ModelScenario, trust_remote_code: bool) -> MeasuredModel:
    model = MeasuredModel(scenario, trust_remote_code, split_texts)
    size = model.bytes_of(model.length) or 4.0 * model.reference(next(iter(model.texts))).hidden[-1].numel()
    model.kept = int(REFERENCE_BYTES / size)
    return model


def row_of(task: ModelTask, item: tuple[str, int]) -> dict[str, Any]:
    """In a worker: the row of a text and its draw."""
    assert task.replacement is not None
    model, (text, draw) = _model_of(task._replace(replacement=None)), item
    return model.row(PlannedRow(text, ALL, task.replacement, draw))


class TextEvaluator:
    """Measure the effect of replacements on texts, each once, and pass every new row to ``keep``.

    workers: measure the next texts of a replacement, ``ahead`` of them at a time. measured: the number of new rows.
    """

    def __init__(
        self, model: MeasuredModel, texts: Sequence[str], known: Sequence[Mapping[str, Any]],
        keep: Callable[[Any], None], task: ModelTask, workers: Executor | None, ahead: int,
    ) -> None:  # fmt: skip
        self.model, self.texts, self.measured = model, texts, 0
        self._keep, self._task, self._workers, self._ahead = keep, task, workers, ahead
        self._known = {tuple(row[name] for name in KEY): row for row in known}

    def effect(self, replacement: Replacement, number: int, metric: str) -> float:
        """The effect on the text of this number."""
        if self._planned(replacement, number).key not in self._known:
            texts = range(number, min(number + self._ahead, len(self.texts)))
            self._measure([self._planned(replacement, text) for text in texts])
        return float(self._known[self._planned(replacement, number).key][metric])

    def missing(self, replacement: Replacement, numbers: range) -> int:
        """The number of texts among these that are not measured."""
        return sum(self._planned(replacement, number).key not in self._known for number in numbers)

    def _planned(self, replacement: Replacement, number: int) -> PlannedRow:
        text = self.texts[number]
        return PlannedRow(text, ALL, replacement, _draw_of(self.model, text))

    def _measure(self, planned: Sequence[PlannedRow]) -> None:
        rows = {(row.text, row.draw): row for row in planned if row.key not in self._known}
        if self._workers is None:
            results = (self.model.row(row) for row in rows.values())
        else:
            task = self._task._replace(replacement=planned[0].replacement)
            measured = results_of_processes(row_of, task, iter(rows), len(rows), _missing, self._workers)
            results = (row for _, row in measured)
        for row in results:
            self._known[tuple(row[name] for name in KEY)] = row
            self._keep([row])
            self.measured += 1

    @property
    def count(self) -> int:
        """The number of measurements."""
        return len(self._known)


def _missing(why: str, item: tuple[str, int]) -> str:
    return f"the effect on {item[0]} is missing, {why}; others are saved: rerun the command with fewer `workers`"


def _draw_of(model: MeasuredModel, text: str) -> int:
    """The draw of a text. It depends on this text alone, so that adding a text changes no other draw."""
    return int(sha256(f"{text} {model.texts[text].sha256}".encode()).hexdigest()[:12], 16)


def _order(model: MeasuredModel, earlier: Sequence[str]) -> list[str]:
    """The texts in random order: first one of each file, then a second one of each, and so on.

    earlier: those of the answers before, which stay first and in their order. If more texts were mixed among them, each
    answer would be another sequential test, and adding texts until one certifies would be wrong more often than stated.
    """
    known = [name for name in dict.fromkeys(earlier) if name in model.texts]
    rng = stream(model.scenario.seed, "texts", *([len(known)] if known else []))
    by_file: dict[str, list[str]] = {}
    for name in model.texts:
        if name not in known:
            by_file.setdefault(name.rpartition("#")[0], []).append(name)
    shuffled = [[texts[i] for i in rng.permutation(len(texts))] for texts in by_file.values()]
    rounds = zip_longest(*(shuffled[i] for i in rng.permutation(len(shuffled))))
    return known + [text for texts in rounds for text in texts if text is not None]


def _earlier_order(path: Path) -> list[str]:
    """The order of the texts of an earlier answer in this directory; empty where there is none."""
    if not part_paths(path / "trials"):
        return []
    order = read_manifest(path)["asked"].get(ORDER, [])
    return [name for name in order if isinstance(name, str)] if isinstance(order, list) else []


class ModelSearch(CandidateSearch):
    """The candidates for all attention of a model."""

    def __init__(
        self, evaluator: TextEvaluator, settings: Sequence[tuple[EstimatorSetting, Method]], rule: Rule, metric: str,
        report: Progress, directory: str, exact_heads: Mapping[int, Collection[int]],
    ) -> None:  # fmt: skip
        model = evaluator.model
        self._layers = [layer for layer in model.first if layer.left is None]
        exact = sum(layer.multiplications for layer in self._layers)
        super().__init__("all layers", rule, exact, sign_of(metric))
        self.evaluator, self.metric, self._report, self.directory = evaluator, metric, report, directory
        self.exact_heads = head_names(exact_heads)
        or_exact = not model.length  # inputs may have padding, and then fewer keys than a size
        self.replacements: dict[EstimatorSetting, Replacement] = {
            setting: EstimatedAttention(method, setting.size or 1, or_exact=or_exact) for setting, method in settings
        }
        if exact_heads:
            kept = self.replacements.items()
            self.replacements = {setting: ByHead.but_exact(chosen, exact_heads) for setting, chosen in kept}
        self.per_head: dict[EstimatorSetting, PerHead] = {}
        self.work = {setting: self._work(replacement) for setting, replacement in self.replacements.items()}

    def _work(self, replacement: Replacement) -> float:
        works = (replacement.work(layer.shape, layer.heads, layer.index) for layer in self._layers)
        return sum(math.inf if work is None else work for work in works)

    def add_per_head(self, choices: Sequence[PerHead]) -> None:
        """Add settings per head to those that may become candidates."""
        self.per_head = {choice.setting: choice for choice in choices}
        self.replacements |= {choice.setting: choice.replacement for choice in choices}
        self.work |= {choice.setting: self._work(choice.replacement) for choice in choices}

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

    @property
    def _candidate_rule(self) -> Rule:
        return self.rule._replace(alpha=self.rule.alpha / max(1, len(self.candidates)))

    @property
    def needed(self) -> int:
        """The number of texts that certify a candidate if all hit."""
        return self._candidate_rule.fewest_draws

    def multiplications(self, candidate: Candidate) -> float:
        return self.work[candidate.setting]

    def measure(self, candidate: Candidate) -> bool:
        """Add the effect on one more text."""
        count, texts = len(candidate.values), len(self.evaluator.texts)
        if count >= texts:
            return False
        replacement, done = self.replacements[candidate.setting], self.evaluator.measured
        hits = sum(value <= self.rule.target for value in candidate.values)
        further = self._candidate_rule.draws_left(hits, count)
        left = self.evaluator.missing(replacement, range(count, min(count + further, texts)))
        self._report(done, done + left, step=f"until {candidate.setting.text} can be certified")
        effect = self.evaluator.effect(replacement, count, self.metric)
        candidate.values.append(self._sign * effect)
        return True

    def describe(self, candidate: Candidate) -> dict[str, Any]:
        setting, kind = candidate.setting, "map" if candidate.setting.kind == "map" else "method"
        if setting in self.per_head or not self.evaluator.model.length:
            per_head = self.per_head[setting].choices if setting in self.per_head else None
            python = self._lines(f"recommended={self.directory!r}")
            return {"cheaper_from": None, "python": python, "per_head": per_head}
        size = "" if setting.size is None else f", {'num_projections' if kind == 'map' else 'size'}={setting.size}"
        sampler = f", sampler={setting.sampler!r}" if setting.sampler else ""
        kept = f", exact_heads={','.join(self.exact_heads)!r}" * bool(self.exact_heads)
        return {"cheaper_from": None, "python": self._lines(f"{kind}={setting.spec!r}{sampler}{size}{kept}")}

    def _lines(self, arguments: str) -> str:
        """The code that replaces the attention of a model."""
        length = self.evaluator.model.length
        certified = f"; certified for texts of {length} tokens" if length else ""
        return (
            f"import torch\nimport favorbench as fb\n\n# model: a torch module, tokens: its input{certified}\n"
            f"with torch.no_grad(), fb.replace_attention(model, {arguments}):\n    output = model(tokens)\n"
        )


def sign_of(metric: str) -> float:
    """1 where a smaller effect is better, else -1."""
    return 1.0 if EFFECTS[metric].better == "lower" else -1.0


def recommend_model(
    name: str, texts: Sequence[str | Path], target: float, metric: str | None, rule: Rule, max_size: int,
    max_cost: float, maps: str | None, methods: str | None, samplers: str | None, length: int | None, seed: int,
    by: CostUnit, out: str | Path | None, report: Progress, trust_remote_code: bool, per_head: bool = False,
    sizes: Any = None, workers: int | Executor = 1, device: str = "cpu", exact_heads: Any = None,
) -> Recommendation:  # fmt: skip
    """Find the cheapest certified setting for all attention of a model. rule: its target has no sign yet."""
    if metric is not None and metric not in EFFECTS:
        raise ScenarioError(
            f"`metric` {shown(metric)}{nearest(metric, EFFECTS)}; allowed for a model: {', '.join(EFFECTS)}"
        )
    check_target(target, metric, EFFECTS[metric].better if metric else "lower")
    kept = heads_by_layer(exact_heads)
    if kept and per_head:
        raise ScenarioError("`per_head` chooses the heads that stay exact: leave out `exact_heads`, or `per_head`")
    scenario = ModelScenario(
        name, tuple(map(str, texts)), length, (), (), (), (1,), 1, seed=seed, heads=False, device=device
    )
    model = _load(scenario, trust_remote_code)
    metric = _metric(model, metric)
    layers = [layer for layer in model.first if layer.left is None]
    shapes = list({layer.shape for layer in layers})
    requested = load_scenario(None, {"num_projections": sizes}).sizes(shapes[0].d) if sizes is not None else ()
    settings = model_settings(shapes, maps, methods, samplers, max_size, requested)
    path = Path(out) if out is not None else Path("results") / f"recommend-{Path(name).stem}"
    rule = rule._replace(target=sign_of(metric) * target)
    files = len({text.rpartition("#")[0] for text in model.texts})
    chosen_on = min(MOST_TEXTS, len(model.texts) // 3) if per_head else 0
    about = WholeModel(
        name, files, len(model.texts), model.length, by,
        {layer.name: layer.left for layer in model.first if layer.left is not None}, chosen_on=chosen_on,
        exact_heads=head_names(kept),
    )  # fmt: skip
    size = f" of {model.length} tokens" if model.length else ""
    title = f"{Path(name).name}, {about.texts} {about.draws}{size}"
    ahead = workers if isinstance(workers, int) else getattr(workers, "_max_workers", EXECUTOR_WORKERS)
    task = ModelTask(scenario, trust_remote_code, max(1, torch.get_num_threads() // ahead))
    processes = local_processes(workers) if isinstance(workers, int) and workers > 1 else None
    executor = workers if isinstance(workers, Executor) else processes
    with open_rows(path) as store, processes or nullcontext():
        order = _order(model, _earlier_order(path))
        asked = {SEARCH: True, "exact_heads": list(about.exact_heads) or None, ORDER: order}
        request, facts = merged_request(path, model.request() | asked), model.facts()
        known = [row for part in store.parts([*KEY, *EFFECTS]) for row in part.table.to_pylist()]
        write_manifest(path, request, facts, len(known) + 1, len(known))
        evaluator = TextEvaluator(model, order[chosen_on:], known, store.append, task, executor, ahead)
        directory = path.name if path.is_absolute() else path.as_posix()  # pages may be shared, and show no directories
        search = ModelSearch(evaluator, settings, rule, metric, report, directory, kept)
        for replacement in search.replacements.values():
            model.check_replacement(replacement)

        def answer(model: WholeModel) -> Recommendation:
            result = Recommendation(
                path, title, metric, target, rule.probability, 1 - rule.alpha, "texts", max_size, search.exact,
                (search.decision(),), search.finished, model,
            )  # fmt: skip
            store.flush()
            store.join_if_small()
            write_manifest(path, request, facts, evaluator.count + (not search.finished), evaluator.count)
            write_text(path / "recommendation.json", json_text(result.as_dict()) + "\n")
            return result

        try:
            search.set_candidates(_shares(search, path, by), max_cost)
            _check_texts(search, about)
            if chosen_on:
                draws = {text: _draw_of(model, text) for text in order[:chosen_on]}
                search.add_per_head(settings_per_head(model, draws, search.replacements, path, report))
                search.set_candidates(_shares(search, path, by), max_cost)
                _check_texts(search, about)
            search.search()
            about = _with_references(about, search, path, report)
        except KeyboardInterrupt as interruption:
            search.finished = False
            raise Interrupted(answer(about)) from interruption
        return answer(about)


def check_target(target: float, metric: str | None, better: str) -> None:
    """Raise ScenarioError for a target that cannot be certified."""
    if not (is_number(target) and target > 0):
        raise ScenarioError(f"`target` {shown(target)} given, allowed: a number above 0")
    if better == "higher" and target >= 1:
        raise ScenarioError(f"`target` {target:g} given, allowed for {metric}: a number above 0 and below 1")


def _metric(model: MeasuredModel, metric: str | None) -> str:
    """The effect that is certified. Raises ScenarioError for one that this model does not have."""
    if model.loaded.causal:
        return metric or "delta_nll"
    if model.reference(next(iter(model.texts))).logits is not None and metric != "delta_nll":
        return metric or "kl"
    if metric not in (None, "embedding_loss"):
        raise ScenarioError(f"`metric` {metric}: {model.loaded.name} predicts no next token; allowed: embedding_loss")
    return "embedding_loss"


def _shares(search: ModelSearch, path: Path, by: CostUnit) -> dict[EstimatorSetting, float]:
    """The cost of each setting relative to exact attention."""
    if by == "multiplications":
        return {setting: work / search.exact for setting, work in search.work.items()}
    return {setting: row["ratio"] for setting, row in _seconds(search, path, list(search.work)).items()}


def _seconds(
    search: ModelSearch, path: Path, settings: Sequence[EstimatorSetting]
) -> dict[EstimatorSetting, TimedEstimator]:
    """CPU seconds of settings relative to those of exact attention; those that were stored are not measured again."""
    labels = {setting: search.replacements[setting].label for setting in settings}
    names = {setting: (label, setting.sampler or "-", setting.size or 0) for setting, label in labels.items()}
    stored = stored_seconds(path)
    if missing := [search.replacements[setting] for setting in settings if names[setting] not in stored]:
        search.evaluator.model.time(path, TIMINGS, missing)
    times = stored_seconds(path)
    return {setting: times[name] for setting, name in names.items()}


def _check_texts(search: ModelSearch, about: WholeModel) -> None:
    """Raise ScenarioError if there are too few texts to certify any candidate."""
    if search.needed > (count := len(search.evaluator.texts)):
        chosen = f"; {about.chosen_on} more are for the settings per head" * bool(about.chosen_on)
        size = f"of {about.length} tokens " if about.length else ""
        once = ", where equal ones count once" * bool(about.length)
        raise ScenarioError(
            f"`probability` {search.rule.probability:g} at this `confidence` takes {search.needed} {about.draws} that "
            f"all hit, for {counted(len(search.candidates), 'candidate')}; {size}there are {count}{once}{chosen}: give "
            f"more {about.draws}, fewer `methods` and `maps`, or a smaller `length`, `probability` or `confidence`"
        )


def _with_references(about: WholeModel, search: ModelSearch, path: Path, report: Progress) -> WholeModel:
    """Add the effect of bfloat16 and the CPU seconds of the recommended setting to the facts."""
    count, sign = min(REFERENCE_TEXTS, len(search.evaluator.texts)), sign_of(search.metric)
    effects, evaluator, reference = np.zeros(count), search.evaluator, Bfloat16Model()
    for i in range(count):
        left = evaluator.missing(reference, range(i, count))
        report(evaluator.measured, evaluator.measured + left, step="the model in bfloat16")
        effects[i] = sign * evaluator.effect(reference, i, search.metric)
    errors = tuple(sign * quantile(effects, p) for p in (0.5, search.rule.probability, 1.0))
    about, result = about._replace(bfloat16=errors, bfloat16_texts=count), search.decision()
    if result.outcome == "certified" and result.setting is not None:
        timed = _seconds(search, path, [result.setting])[result.setting]
        runs = f"{timed['low']:.2g} to {timed['high']:.2g} in {timed['repeats']} runs, {conditions(path)}"
        about = about._replace(seconds=timed["ratio"], timed=runs)
    return about
