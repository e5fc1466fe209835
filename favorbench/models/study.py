"""The study of a model: replace its attention by every estimator on every text, and store the effects."""

import copy
import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.provenance import VERSION
from favorbench.errors import InputError, ModelError, ScenarioError
from favorbench.maps import calibrate
from favorbench.methods import Method
from favorbench.models import torch
from favorbench.models.capture import over_inputs
from favorbench.models.effects import HeadError, Reference, effect, head_effects, head_errors, layers_of, run
from favorbench.models.gradients import check_backward_memory, gradient_draws
from favorbench.models.interface import Call, intercept_attention
from favorbench.models.load import Loaded, Text, TextFile, load, read_texts, tokenise
from favorbench.models.plan import ALL, EACH, LENGTH, ModelScenario, PlannedRow, plan
from favorbench.models.recommended import ByHead
from favorbench.models.replacements import Bfloat16Model, EstimatedAttention, Exact, Replacement, Tensor, total
from favorbench.models.seconds import heads_in, times, write_seconds
from favorbench.models.store import merged_request, open_rows, stored_keys, write_manifest
from favorbench.models.swap import heads_of, replace_calls, stream_names, unsupported_reason
from favorbench.numerics.machine import check_memory
from favorbench.numerics.streams import stream
from favorbench.progress import Progress

#: Makes the texts that a model reads, of a length, from files.
TextsOfFiles = Callable[[Loaded, Sequence[TextFile], int], list[Text]]


class StudyNotes(NamedTuple):
    """Notes on a study: names of damaged parts that were set aside, and by layer why it was not replaced."""

    set_aside: list[str]
    left: dict[str, str]


def study(
    scenario: ModelScenario, path: Path, trust_remote_code: bool = False, progress: Progress | None = None,
    repeats: int = 0,
) -> StudyNotes:  # fmt: skip
    """Measure all of a scenario that is not yet in the directory; then time each estimator, on the first text.

    Raises FavorbenchError for unusable models, texts, estimators and directories.
    """
    model = MeasuredModel(scenario, trust_remote_code)
    planned = {row.key: row for row in plan(scenario, list(model.texts), model.replaceable)}
    progress = progress or (lambda done, total: None)
    with open_rows(path) as store:
        asked, about = merged_request(path, model.request()), model.facts()
        done = stored_keys(store) & planned.keys()
        write_manifest(path, asked, about, len(planned), len(done))
        try:
            progress(len(done), len(planned))
            for key in [key for key in planned if key not in done]:
                store.append([model.row(planned[key])])
                done.add(key)
                progress(len(done), len(planned))
            store.flush()
            store.join_if_small()
            if repeats:
                model.time(path, repeats, scenario.replacements)
        finally:
            store.flush()
            write_manifest(path, asked, about, len(planned), len(done))
        layers = itertools.chain.from_iterable(model.layers.values())
        return StudyNotes(store.set_aside, {one.name: one.left for one in layers if one.left is not None})


class MeasuredModel:
    """A model with its texts, and the measurements of a scenario.

    kept: for how many texts the outputs of the unchanged model are kept, the first ones, besides those of the last.
    """

    kept = 0

    def __init__(
        self, scenario: ModelScenario, trust_remote_code: bool = False, texts_of: TextsOfFiles = tokenise
    ) -> None:
        """Load and validate everything. Raises FavorbenchError."""
        files, calibration = _read(scenario)
        self.scenario, self.loaded = scenario, load(scenario.model, trust_remote_code=trust_remote_code)
        _check_kind(self.loaded)
        usual = min(LENGTH, self.loaded.limit or LENGTH)
        self.length = usual if scenario.length is None else scenario.length
        if self.loaded.inputs is None:
            self.model, texts = self.loaded.model, texts_of(self.loaded, files, self.length)
        else:
            self.length = 0
            self.model, texts = over_inputs(self.loaded)
        self.texts = {text.name: text for text in texts}
        self.calibration = next(iter(tokenise(self.loaded, calibration, self.length)), None) if calibration else None
        longest = max(text.tokens.shape[-1] for text in self.texts.values())
        check_memory(2.0 * self.bytes_of(longest), f"{self.loaded.name} on {longest} tokens", "use a smaller `length`")
        by_length = {text.tokens.shape[-1]: text.tokens for text in self.texts.values()}
        layers = {length: layers_of(self.model, tokens) for length, tokens in by_length.items()}
        self.layers = {text.name: layers[text.tokens.shape[-1]] for text in self.texts.values()}
        self.first = next(iter(self.layers.values()))
        self.replaceable = [layer.index for layer in self.first if layer.left is None]
        self._check()
        self._references: dict[str, Reference] = {}
        self._fitted: dict[Replacement, Replacement] = {}

    def _check(self) -> None:
        """Raise ScenarioError or InputError for layers that cannot be replaced, or not by these estimators."""
        scenario, count = self.scenario, len(self.first)
        for numbers in scenario.layer_sets:
            chosen = [] if numbers in (ALL, EACH) else [int(number) for number in numbers.split(",")]
            if outside := {*chosen} - {*range(count)}:
                raise ScenarioError(f"`layers` {min(outside)}: {scenario.model} has {count}, 0 to {count - 1}")
            if chosen and not {*chosen} & {*self.replaceable}:
                raise InputError(f"`layers` {numbers}: cannot be replaced: {self.first[chosen[0]].left}")
            for one in scenario.replacements if chosen else ():
                if not one.is_for(chosen):
                    raise InputError(f"`layers` {numbers}: {one.label} has no choice there, but in {list(one.layers)}")
        if not self.replaceable:
            name, reason = self.first[0].name, self.first[0].left
            raise InputError(f"{scenario.model}: no attention of it can be replaced: {name}: {reason}")
        for one in scenario.replacements:
            self.check_replacement(one)

    def check_replacement(self, one: Replacement) -> None:
        """Raise ScenarioError or InputError for a replacement that does not work for this model and these texts."""
        name = self.scenario.model
        for part in one.members():
            self._check_estimator(part)
        if missing := {*one.layers} - {layer.index for layer in self.first}:
            raise InputError(f"{one.label} has a choice for layer {min(missing)}: {name} has {len(self.first)}")
        for text, layer in ((text, layer) for text, layers in self.layers.items() for layer in layers):
            try:
                one.check(layer.shape, layer.heads, layer.index)
            except ScenarioError as error:
                raise ScenarioError(f"{text}: {error}") from None

    def _check_estimator(self, one: Replacement) -> None:
        if one.needs_calibration and self.calibration is None:
            raise ScenarioError(f"{one.label} is calibrated on another text: give one with `calibrate`")
        if not one.causal_safe and any(self.first[index].shape.causal for index in self.replaceable):
            hint = f"; calibrated:{one.label} is, with `calibrate`" if one.kind == "map" else ""
            raise ScenarioError(f"{self.scenario.model} is causal, and {one.label} is not{hint}")

    def request(self) -> dict[str, Any]:
        """The request, with digests of everything that it names, as JSON has it."""
        chosen = [one for one in self.scenario.replacements if isinstance(one, ByHead)]
        named = dataclasses.asdict(self.scenario) | {
            "length": self.length, "texts": {text.name: text.sha256 for text in self.texts.values()},
            "calibrate": self.calibration and self.calibration.sha256, "weights": self.loaded.weights,
            "recommended": {one.name: one.sha256 for one in chosen},
        }  # fmt: skip
        return json.loads(json.dumps(named))

    def facts(self) -> dict[str, Any]:
        """Versions and facts of the model for the manifest."""
        return {
            "favorbench": VERSION, "versions": self.loaded.versions, "threads": torch.get_num_threads(),
            "tokens": {text.name: int(text.tokens.shape[-1]) for text in self.texts.values()},
            "causal": self.loaded.causal,
            "attention": [
                {"layer": one.index, "name": one.name, "heads": one.heads, "d": one.shape.d,
                 "causal": one.shape.causal, "left": one.left}
                for one in self.first
            ],
        }  # fmt: skip

    def row(self, measurement: PlannedRow) -> dict[str, Any]:
        """One measurement, in the columns of the store."""
        text, numbers, one, _ = measurement
        layers = [layer for layer in self.layers[text] if numbers == ALL or str(layer.index) in numbers.split(",")]
        replaced = [layer for layer in layers if layer.left is None]
        reference = self.reference(text)
        with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
            output = self._output(measurement, reference, [layer.index for layer in layers])
            errors = self._head_errors(measurement, reference) if numbers == ALL else None
        columns = zip(*errors, strict=True) if errors else [None if errors is None else []] * len(HeadError._fields)
        names = ("text", "layers", "estimator", "sampler", "size", "draw")
        return {
            **dict(zip(names, measurement.key, strict=True)), "kind": one.kind, "seq_len": len(reference.tokens),
            "replaced": len(replaced), "left": len(layers) - len(replaced),
            "exact_multiplications": sum(layer.multiplications for layer in replaced),
            "multiplications": total(one.work(layer.shape, layer.heads, layer.index) for layer in replaced),
            **effect(reference, output)._asdict(), **dict(zip(HeadError._fields, columns, strict=True)),
        }  # fmt: skip

    def reference(self, text: str) -> Reference:
        """The output of the unchanged model for a text."""
        if text not in self._references:
            if len(self._references) > self.kept:
                self._references.popitem()  # before the next is computed: both would take twice the memory
            self._references[text] = run(self.model, self.texts[text].tokens)
        return self._references[text]

    def bytes_of(self, length: int) -> float:
        """The memory of one output of the model: hidden states, and logits."""
        names = ("hidden_size", "num_hidden_layers", "vocab_size")
        hidden, layers, vocabulary = (getattr(getattr(self.model, "config", None), name, 0) for name in names)
        return 4.0 * length * (hidden * (layers + 1) + (vocabulary if self.loaded.causal else 0))

    @cached_property
    def _bfloat16(self) -> Any:
        return copy.deepcopy(self.model).bfloat16()

    def _output(self, measurement: PlannedRow, reference: Reference, layers: list[int]) -> Reference:
        one, tokens = measurement.replacement, self.texts[measurement.text].tokens
        if isinstance(one, Bfloat16Model):
            return run(self._bfloat16, tokens).as_float()
        if isinstance(one, Exact) and one.dtype is None:
            return reference
        scenario = self.scenario
        with replace_calls(
            self.model, self.calibrated(one), layers, None, scenario.redraw, scenario.seed, measurement.draw
        ):
            return run(self.model, tokens)

    def _head_errors(self, measurement: PlannedRow, reference: Reference) -> list[HeadError] | None:
        one, scenario = self.calibrated(measurement.replacement), self.scenario
        if not scenario.heads or one.kind == "exact":
            return None

        def outputs(heads: Any, layer: int) -> Tensor:
            return one.outputs(heads, scenario.seed, stream_names(scenario.redraw, measurement.draw, layer), layer)

        return head_errors(self.model, reference, self.layers[measurement.text], outputs)

    def head_effects(self, text: str, replacements: Sequence[Replacement], draw: int, gradients: int) -> np.ndarray:
        """The predicted effect of each replacement in each replaceable head alone (replacements, heads)."""
        tokens, seed, redraw = self.texts[text].tokens, self.scenario.seed, self.scenario.redraw
        check_backward_memory(self.model, 1, tokens.shape[-1])
        forward = partial(self.model, tokens, use_cache=False)
        rng = stream(seed, "gradients", draw)
        _, drawn = gradient_draws(self.model, forward, self.replaceable, gradients, rng)
        parts = list(drawn)
        by_layer = {layer: torch.stack([part[layer][0] for part in parts]) for layer in self.replaceable}

        def outputs(one: Replacement, heads: Any, layer: int) -> Tensor:
            return one.outputs(heads, seed, stream_names(redraw, draw, layer), layer)

        with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
            return head_effects(forward, self.model, by_layer, [partial(outputs, one) for one in replacements])

    def calibrated(self, one: Replacement) -> Replacement:
        """The replacement, with its parameters fitted to the text to calibrate on, if it has any."""
        if self.calibration is None or not one.needs_calibration:
            return one
        if one not in self._fitted:
            self._fitted[one] = calibrated(self.model, one, self.calibration.tokens)
        return self._fitted[one]

    def time(self, path: Path, repeats: int, replacements: Sequence[Replacement]) -> None:
        """Time replacements in the first and the middle layer of the first text, and store the seconds."""
        ready, text = [self.calibrated(one) for one in replacements], next(iter(self.texts.values()))
        heads = heads_in(self.model, text.tokens, self.replaceable[:: max(1, len(self.replaceable) // 2)][:2])
        write_seconds(path, times(heads, ready, repeats, self.scenario.seed), text.name, heads)


def _read(scenario: ModelScenario) -> tuple[list[TextFile], list[TextFile]]:
    """The texts, and the one to calibrate on, if any. Raises InputError for a text that is used for both."""
    files, calibration = read_texts(scenario.texts), read_texts([scenario.calibrate] if scenario.calibrate else [])
    names = {text.sha256: text.name for text in files}
    if measured := [names[text.sha256] for text in calibration if text.sha256 in names]:
        raise InputError(
            f"`calibrate` {scenario.calibrate}: it is measured too, as {measured[0]}; an estimator that is fitted to a "
            "text is measured on others"
        )
    return files, calibration


def _check_kind(loaded: Loaded) -> None:
    """Raise ModelError for a model whose output is neither states of the tokens of a text nor the next token."""
    if loaded.tokenizer is not None and getattr(loaded.model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{loaded.name} is an encoder-decoder model; `favorbench model` measures encoders and language models: "
            f"use `favorbench capture {loaded.name}`, or fb.replace_attention(model, ...) in Python"
        )


def calibrated(model: Any, one: Replacement, tokens: Tensor) -> Replacement:
    """The replacement with parameters that are fitted to the model's attention to these tokens (1, L)."""
    assert isinstance(one, EstimatedAttention)
    method, fitted = one.method, dict[int, Method]()

    def attend(call: Call) -> Tensor:
        if unsupported_reason(call) is None:
            query, key = heads_of(call)[:2]
            fitted[call.index] = calibrate(query[0], key[0], method)
        return call.own()

    with torch.no_grad(), intercept_attention(model, attend):
        model(tokens, use_cache=False)
    return EstimatedAttention(method, one.requested_size, fitted)
