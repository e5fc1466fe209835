"""The cheapest setting for all attention of a model, certified over texts: each text is a draw."""

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.files import write_text
from favorbench.formats import json_text, shown
from favorbench.methods import Method
from favorbench.models.load import split_texts
from favorbench.models.plan import ALL, ModelScenario, PlannedRow
from favorbench.models.replacements import Bfloat16Model, EstimatedAttention, Replacement
from favorbench.models.seconds import TIMED, read_seconds
from favorbench.models.store import KEY, SEARCH, merged_request, open_rows, write_manifest
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
TIMINGS = 3  # interleaved runs of each estimator


class TextEvaluator:
    """Measure the effect of replacements on texts, each once; ``keep`` is given every new row."""

    def __init__(
        self, model: MeasuredModel, texts: Sequence[str], known: Sequence[Mapping[str, Any]],
        keep: Callable[[Any], None],
    ) -> None:  # fmt: skip
        self.model, self.texts, self._keep = model, texts, keep
        self._known = {tuple(row[name] for name in KEY): row for row in known}

    def effect(self, replacement: Replacement, number: int, metric: str) -> float:
        """The effect on the text of this number."""
        text = self.texts[number]
        planned = PlannedRow(text, ALL, replacement, _draw_of(self.model, text))
        if planned.key not in self._known:
            self._known[planned.key] = row = self.model.row(planned)
            self._keep([row])
        return float(self._known[planned.key][metric])

    @property
    def count(self) -> int:
        """The number of measurements."""
        return len(self._known)


def _draw_of(model: MeasuredModel, text: str) -> int:
    """The draw of a text. The text names it, so that a further text changes no draw of another."""
    return int(sha256(f"{text} {model.texts[text].sha256}".encode()).hexdigest()[:12], 16)


def _order(model: MeasuredModel) -> list[str]:
    """The texts in random order: first one of each file, then a second one of each, and so on."""
    rng, by_file = stream(model.scenario.seed, "texts"), dict[str, list[str]]()
    for name in model.texts:
        by_file.setdefault(name.rpartition("#")[0], []).append(name)
    shuffled = [[texts[i] for i in rng.permutation(len(texts))] for texts in by_file.values()]
    rounds = zip_longest(*(shuffled[i] for i in rng.permutation(len(shuffled))))
    return [text for texts in rounds for text in texts if text is not None]


class ModelSearch(CandidateSearch):
    """The candidates for all attention of a model."""

    def __init__(
        self, evaluator: TextEvaluator, settings: Sequence[tuple[EstimatorSetting, Method]], rule: Rule, metric: str,
        report: Progress, directory: str,
    ) -> None:  # fmt: skip
        model = evaluator.model
        self._layers = [layer for layer in model.first if layer.left is None]
        exact = sum(layer.multiplications for layer in self._layers)
        super().__init__("all layers", rule, exact, sign_of(metric))
        self.evaluator, self.metric, self._report, self.directory = evaluator, metric, report, directory
        self.replacements: dict[EstimatorSetting, Replacement] = {
            setting: EstimatedAttention(method, setting.size or 1) for setting, method in settings
        }
        self.per_head: dict[EstimatorSetting, PerHead] = {}
        self.work = {setting: self._work(one) for setting, one in self.replacements.items()}

    def _work(self, one: Replacement) -> float:
        works = (one.work(layer.shape, layer.heads, layer.index) for layer in self._layers)
        return sum(math.inf if work is None else work for work in works)

    def add_per_head(self, found: Sequence[PerHead]) -> None:
        """Add settings per head to those that may become candidates."""
        self.per_head = {one.setting: one for one in found}
        self.replacements |= {one.setting: one.replacement for one in found}
        self.work |= {one.setting: self._work(one.replacement) for one in found}

    def set_candidates(self, shares: Mapping[EstimatorSetting, float], max_cost: float) -> None:
        """Take those that cost less than ``max_cost`` times exact attention. shares: costs relative to it.

        Settings per head cost no less than the setting for all heads that they are compared with, which is tried first.
        """
        self.candidates, self.too_costly = [], 0
        for setting, own in shares.items():
            share = max(own, shares[self.per_head[setting].single]) if setting in self.per_head else own
            if share < max_cost:
                self.candidates.append(Candidate(setting, share * self.exact, True))
            else:
                self.too_costly += 1

    @property
    def needed(self) -> int:
        """The number of texts that certify a candidate if all hit."""
        return self.rule._replace(alpha=self.rule.alpha / max(1, len(self.candidates))).fewest_draws

    def multiplications(self, candidate: Candidate) -> float:
        return self.work[candidate.setting]

    def measure(self, candidate: Candidate) -> bool:
        """Add the effect on one more text."""
        count = len(candidate.values)
        if count >= len(self.evaluator.texts):
            return False
        done = sum(len(one.values) for one in self.candidates)
        left = max(1, self.needed - count)
        self._report(done, done + left, step=f"until {candidate.setting.text} can be certified")
        effect = self.evaluator.effect(self.replacements[candidate.setting], count, self.metric)
        candidate.values.append(self._sign * effect)
        return True

    def describe(self, candidate: Candidate) -> dict[str, Any]:
        setting, kind = candidate.setting, "map" if candidate.setting.kind == "map" else "method"
        if setting in self.per_head:
            python = _lines(f"recommended={self.directory!r}")
            return {"cheaper_from": None, "python": python, "per_head": self.per_head[setting].choices}
        size = "" if setting.size is None else f", {'num_projections' if kind == 'map' else 'size'}={setting.size}"
        sampler = f", sampler={setting.sampler!r}" if setting.sampler else ""
        return {"cheaper_from": None, "python": _lines(f"{kind}={setting.spec!r}{sampler}{size}")}


def _lines(arguments: str) -> str:
    """The code that replaces the attention of a model."""
    call = f"fb.replace_attention(model, {arguments})"
    return f"import torch\nimport favorbench as fb\n\nwith torch.no_grad(), {call}:\n    output = model(tokens)\n"


def sign_of(metric: str) -> float:
    """1 where a smaller effect is better, else -1."""
    return 1.0 if EFFECTS[metric].better == "lower" else -1.0


def recommend_model(
    name: str, texts: Sequence[str | Path], target: float, metric: str | None, rule: Rule, max_size: int,
    max_cost: float, maps: str | None, methods: str | None, samplers: str | None, length: int | None, seed: int,
    by: CostUnit, out: str | Path | None, report: Progress, trust_remote_code: bool, per_head: bool = False,
) -> Recommendation:  # fmt: skip
    """Find the cheapest certified setting for all attention of a model. rule: without the sign of its target."""
    _check_target(target, metric)
    scenario = ModelScenario(name, tuple(map(str, texts)), length, (), (), (), (1,), 1, seed=seed, heads=False)
    model = MeasuredModel(scenario, trust_remote_code, split_texts)
    size = model.bytes_of(model.length) or 4.0 * model.reference(next(iter(model.texts))).hidden[-1].numel()
    model.kept = int(REFERENCE_BYTES / size)
    metric = _metric(model, metric)
    layers = [layer for layer in model.first if layer.left is None]
    settings = model_settings(list({layer.shape for layer in layers}), maps, methods, samplers, max_size)
    path = Path(out) if out is not None else Path("results") / f"recommend-{Path(name).stem}"
    rule = rule._replace(target=sign_of(metric) * target)
    files = len({text.rpartition("#")[0] for text in model.texts})
    order = _order(model)
    chosen_on = min(MOST_TEXTS, len(order) // 3) if per_head else 0
    about = WholeModel(
        name, files, len(model.texts), model.length, by,
        {layer.name: layer.left for layer in model.first if layer.left is not None}, chosen_on=chosen_on,
    )  # fmt: skip
    size = f" of {model.length} tokens" if model.length else ""
    title = f"{Path(name).name}, {about.texts} {about.draws}{size}"
    with open_rows(path) as store:
        asked, facts = merged_request(path, model.request() | {SEARCH: True}), model.facts()
        known = [row for part in store.parts([*KEY, *EFFECTS]) for row in part.table.to_pylist()]
        write_manifest(path, asked, facts, len(known) + 1, len(known))
        evaluator = TextEvaluator(model, order[chosen_on:], known, store.append)
        directory = path.name if path.is_absolute() else path.as_posix()  # the page may be sent: it names no home
        search = ModelSearch(evaluator, settings, rule, metric, report, directory)
        for one in search.replacements.values():
            model.check_replacement(one)

        def answer(model: WholeModel) -> Recommendation:
            found = Recommendation(
                path, title, metric, target, rule.probability, 1 - rule.alpha, "texts", max_size, search.exact,
                (search.decision(),), search.finished, model,
            )  # fmt: skip
            store.flush()
            write_manifest(path, asked, facts, evaluator.count + (not search.finished), evaluator.count)
            write_text(path / "recommendation.json", json_text(found.as_dict()) + "\n")
            return found

        try:
            search.set_candidates(_shares(search, path, by), max_cost)
            _check_texts(search, about)
            if chosen_on:
                draws = {text: _draw_of(model, text) for text in order[:chosen_on]}
                search.add_per_head(settings_per_head(model, draws, search.replacements, path, report))
                search.set_candidates(_shares(search, path, by), max_cost)
                _check_texts(search, about)
            search.search()
            about = _with_references(about, search, path)
        except KeyboardInterrupt as interruption:
            search.finished = False
            raise Interrupted(answer(about)) from interruption
        return answer(about)


def _check_target(target: float, metric: str | None) -> None:
    """Raise ScenarioError for an effect that does not exist, and a target that cannot be certified."""
    if metric is not None and metric not in EFFECTS:
        raise ScenarioError(
            f"`metric` {shown(metric)}{nearest(metric, EFFECTS)}; allowed for a model: {', '.join(EFFECTS)}"
        )
    if not (is_number(target) and target > 0):
        raise ScenarioError(f"`target` {shown(target)} given, allowed: a number above 0")
    if metric == "top1" and target >= 1:
        raise ScenarioError(f"`target` {target:g} given, allowed for top1: a number above 0 and below 1")


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
    return _seconds(search, path, list(search.work))


def _seconds(search: ModelSearch, path: Path, settings: Sequence[EstimatorSetting]) -> dict[EstimatorSetting, float]:
    """CPU seconds of settings relative to those of exact attention; those that were stored are not measured again."""
    labels = {setting: search.replacements[setting].label for setting in settings}
    names = {setting: (label, setting.sampler or "-", setting.size or 0) for setting, label in labels.items()}

    def stored() -> dict[Any, float]:
        return {tuple(row[name] for name in TIMED): row["ratio"] for row in read_seconds(path)["rows"]}

    if missing := [search.replacements[setting] for setting in settings if names[setting] not in stored()]:
        search.evaluator.model.time(path, TIMINGS, missing)
    times = stored()
    return {setting: times[name] for setting, name in names.items()}


def _check_texts(search: ModelSearch, about: WholeModel) -> None:
    """Raise ScenarioError if there are too few texts to certify any candidate."""
    if search.needed > (count := len(search.evaluator.texts)):
        chosen = f"; {about.chosen_on} more are for the settings per head" * bool(about.chosen_on)
        size = f"of {about.length} tokens " if about.length else ""
        raise ScenarioError(
            f"`probability` {search.rule.probability:g} at this `confidence` takes {search.needed} {about.draws} that "
            f"all hit, for {len(search.candidates)} candidates; {size}there are {count}{chosen}: give more "
            f"{about.draws}, fewer `methods` and `maps`, or a smaller `length`, `probability` or `confidence`"
        )


def _with_references(about: WholeModel, search: ModelSearch, path: Path) -> WholeModel:
    """The facts with the effect of bfloat16, and the CPU seconds of the recommended setting."""
    count, sign = min(REFERENCE_TEXTS, len(search.evaluator.texts)), sign_of(search.metric)
    effects = np.array([sign * search.evaluator.effect(Bfloat16Model(), i, search.metric) for i in range(count)])
    middle, high = (sign * quantile(effects, p) for p in (0.5, search.rule.probability))
    about, found = about._replace(bfloat16=(middle, high), bfloat16_texts=count), search.decision()
    if found.outcome == "certified" and found.setting is not None:
        about = about._replace(seconds=_seconds(search, path, [found.setting])[found.setting])
    return about
