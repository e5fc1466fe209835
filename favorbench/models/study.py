"""The study of a model: replace its attention by every estimator on every text, and store the effects."""

import copy
import dataclasses
import itertools
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.provenance import VERSION
from favorbench.errors import EstimatorError, InputError, ModelError, ScenarioError
from favorbench.formats import reason_of, shown
from favorbench.maps import calibrate
from favorbench.methods import Method
from favorbench.methods.features import name_of, sampler_of
from favorbench.methods.function import user_paths, user_sources
from favorbench.models import torch
from favorbench.models.capture import over_inputs
from favorbench.models.effects import (
    HeadError,
    ModelLayer,
    Reference,
    effect,
    head_effects,
    head_errors,
    layers_of,
    run,
)
from favorbench.models.gradients import check_backward_memory, dimensions, gradient_draws
from favorbench.models.interface import Call, observe_attention
from favorbench.models.load import (
    Loaded,
    Text,
    TextFile,
    load,
    memory_errors,
    read_texts,
    tokenise,
    warn_of_tokenizer,
    warn_of_unknown,
)
from favorbench.models.plan import ALL, EACH, LENGTH, ModelScenario, PlannedRow, plan
from favorbench.models.recommended import ByHead, certified_on
from favorbench.models.replacements import (
    Bfloat16Model,
    EstimatedAttention,
    Exact,
    LayerHeads,
    Replacement,
    Tensor,
    total,
)
from favorbench.models.seconds import heads_in, times, write_seconds
from favorbench.models.store import KEY, merged_request, open_rows, stored_keys, write_manifest
from favorbench.models.swap import heads_of, replace_calls, stream_names
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import check_memory
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.users import failures_named

GRADIENT_BYTES = 1 << 30  # the most that gradients take in memory
NOISE = 1e-2  # relative difference of two outputs for one input that is more than rounding

#: Converts files to texts of a length, in tokens.
TextsOfFiles = Callable[[Loaded, Sequence[TextFile], int], list[Text]]


class NotInBfloat16(ModelError):
    """The model does not run in bfloat16."""


class StudyNotes(NamedTuple):
    """Notes on a study: names of damaged parts that were set aside, and by layer why it was not replaced."""

    set_aside: list[str]
    left: dict[str, str]


def study(
    scenario: ModelScenario, path: Path, trust_remote_code: bool = False, progress: Progress | None = None,
    repeats: int = 0, after: Callable[["MeasuredModel"], None] | None = None,
) -> StudyNotes:  # fmt: skip
    """Make the missing measurements of a scenario, then time each estimator on the first text.

    repeats: timed runs of each estimator. after: called with the model after all measurements.

    Raises FavorbenchError for unusable models, texts, estimators and directories.
    """
    model = MeasuredModel(scenario, trust_remote_code)
    model.loaded.warn_of_output()
    estimators = itertools.chain.from_iterable(item.members() for item in scenario.replacements)
    if model.calibration is not None and not any(item.needs_calibration for item in estimators):
        raise ScenarioError(
            f"`calibrate` {scenario.calibrate}: nothing asked for has parameters to fit; write calibrated:MAP for a "
            "map that has, e.g. `maps` calibrated:centre:aderf-sderf"
        )
    replaceable = [layer.index for layer in model.replaceable]
    planned = {row.key: row for row in plan(scenario, list(model.texts), replaceable)}
    progress = progress or (lambda done, total: None)
    with open_rows(path) as store:
        requested, about = merged_request(path, model.request()), model.facts()
        done = stored_keys(store, scenario.heads) & planned.keys()

        def state() -> None:
            others = sum(part.rows for part in store.parts([])) - len(done)
            write_manifest(path, requested, about, len(planned), len(done), others)

        state()
        try:
            progress(len(done), len(planned))
            for key in [key for key in planned if key not in done]:
                try:
                    store.append([model.row(planned[key])])
                except NotInBfloat16 as error:
                    warnings.warn(str(error), stacklevel=2)
                    del planned[key]
                    continue
                done.add(key)
                progress(len(done), len(planned))
            store.flush()
            store.join_if_small()
            if repeats:
                model.time(path, repeats, scenario.replacements)
            if after:
                after(model)
        finally:
            store.flush()
            state()
        layers = itertools.chain.from_iterable(model.layers.values())
        return StudyNotes(store.set_aside, {layer.name: layer.left for layer in layers if layer.left is not None})


class MeasuredModel:
    """A model with its texts, and the measurements of a scenario.

    kept: the outputs of the unchanged model are cached for this many first texts, and for the latest one.
    """

    kept = 0

    def __init__(
        self, scenario: ModelScenario, trust_remote_code: bool = False, texts_of: TextsOfFiles = tokenise
    ) -> None:
        """Load and validate everything. Raises FavorbenchError."""
        files, calibration = read_texts(scenario.texts), read_texts([scenario.calibrate] if scenario.calibrate else [])
        self.scenario, self.loaded = scenario, load(scenario.model, trust_remote_code=trust_remote_code)
        Backend("torch", scenario.device).check(())
        self.loaded.model.to(scenario.device)
        if self.loaded.tokenizer is not None and getattr(self.loaded.model.config, "is_encoder_decoder", False):
            raise ModelError(
                f"{self.loaded.name} is an encoder-decoder model; `favorbench model` measures encoders and language "
                f"models: use `favorbench capture {self.loaded.name}`, or fb.replace_attention(model, ...) in Python"
            )
        usual = min(LENGTH, self.loaded.limit or LENGTH)
        self.length = usual if scenario.length is None else scenario.length
        if self.loaded.inputs is None:
            warn_of_tokenizer(self.loaded, files)
            self.model, texts = self.loaded.model, texts_of(self.loaded, files, self.length)
            warn_of_unknown(self.loaded, texts)
        else:
            self.length = 0
            self.model, texts = over_inputs(self.loaded)
        self.texts = {text.name: text._replace(tokens=text.tokens.to(scenario.device)) for text in texts}
        self.calibration = next(iter(tokenise(self.loaded, calibration, self.length)), None) if calibration else None
        fitted = self.calibration
        if fitted and (same := [text.name for text in texts if _begin_alike(text.tokens, fitted.tokens)]):
            raise InputError(
                f"`calibrate` {scenario.calibrate}: what is read of it is measured too, as {same[0]}; an estimator "
                "that is fitted to a text is measured on others"
            )
        longest = max(text.tokens.shape[-1] for text in self.texts.values())
        check_memory(2.0 * self.bytes_of(longest), f"{self.loaded.name} on {longest} tokens", "use a smaller `length`")
        # Texts of one length are alike; inputs may have other padding.
        kinds = {text.name: text.tokens.shape[-1] if self.length else text.name for text in self.texts.values()}
        tokens_of = {kinds[text.name]: text.tokens for text in self.texts.values()}
        with failures_named(f"model {shown(self.loaded.name)} on its inputs"), memory_errors():
            found = {kind: layers_of(self.model, tokens) for kind, tokens in tokens_of.items()}
        # A window masks only longer texts: what is left in one of them is left in all, so that they can be compared.
        left = {layer.index: layer.left for layers in found.values() for layer in layers if layer.left is not None}
        self.layers = {
            name: [dataclasses.replace(layer, left=left.get(layer.index)) for layer in found[kind]]
            for name, kind in kinds.items()
        }
        self.first = next(iter(self.layers.values()))
        self.replaceable = [layer for layer in self.first if layer.left is None]
        self._check()
        self._references: dict[str, Reference] = {}
        self._fitted: dict[Replacement, Replacement] = {}
        self._check_repeats()
        self._check_padding()

    def _check_repeats(self) -> None:
        """Raise ModelError for a user's module that draws noise, or keeps a state: each effect would include it."""
        if self.loaded.inputs is None:
            return
        name, text = next(iter(self.texts.items()))
        once, again = (states.hidden[-1] for states in (self.reference(name), run(self.model, text.tokens)))
        if (again - once).abs().max() > NOISE * once.abs().max():
            raise ModelError(
                f"{self.loaded.name} returns another output for the same input: turn off its dropout, noise or memory "
                "(F.dropout(x, p) needs training=self.training)"
            )

    def _check_padding(self) -> None:
        """Warn where the output of a user's module has as many positions as its attention has with padding."""
        for text, layers in self.layers.items() if self.loaded.inputs is not None else ():
            if cut := {layer.batch * layer.shape.n for layer in layers if layer.queries < layer.batch * layer.shape.n}:
                if len(self.reference(text).hidden[-1]) in cut:
                    self.loaded.warn(
                        f"{self.loaded.name}: its effect counts padding, whose output stays exact, so that it seems "
                        "smaller: give an attention_mask with a number for each position of the output, 0 for padding",
                        stacklevel=2,
                    )
                return

    def _check(self) -> None:
        """Raise ScenarioError or InputError for layers that cannot be replaced, or not by these estimators."""
        scenario, count = self.scenario, len(self.first)
        for numbers in {*scenario.layer_sets} - {ALL, EACH}:
            chosen = [int(number) for number in numbers.split(",")]
            if outside := {*chosen} - {*range(count)}:
                raise ScenarioError(f"`layers` {min(outside)}: {scenario.model} has {count}, 0 to {count - 1}")
            if not any(layer.index in chosen for layer in self.replaceable):
                raise InputError(f"`layers` {numbers}: cannot be replaced: {self.first[chosen[0]].left}")
            for item in scenario.replacements:
                if not item.is_for(chosen):
                    raise InputError(
                        f"`layers` {numbers}: {item.label} has no choice there, but in {list(item.layers)}"
                    )
        if not self.replaceable:
            name, reason = self.first[0].name, self.first[0].left
            raise InputError(f"{scenario.model}: no attention of it can be replaced: {name}: {reason}")
        for item in scenario.replacements:
            self.check_replacement(item)
        lengths = sorted({text.tokens.shape[-1] for text in self.texts.values()} if self.length else [])
        for directory in scenario.recommended:
            length, weights = certified_on(directory)
            if length and (others := ", ".join(str(count) for count in lengths if count != length)):
                self.loaded.warn(
                    f"{directory} is certified for texts of {length} tokens; these have {others}", stacklevel=2
                )
            if weights not in (None, self.loaded.weights):
                self.loaded.warn(f"{directory} is certified for other weights than {scenario.model} has", stacklevel=2)

    def check_replacement(self, replacement: Replacement) -> None:
        """Raise ScenarioError or InputError for a replacement that does not work for this model and these texts."""
        name = self.scenario.model
        causal = any(layer.shape.causal for layer in self.replaceable if layer.index in self.asked)
        for part in replacement.members():
            if part.needs_calibration and self.calibration is None:
                raise ScenarioError(
                    f"{part.label} is calibrated on another text: `favorbench model` takes `calibrate` FILE"
                )
            if causal and not part.causal_safe:
                hint = (
                    f"; `favorbench model` takes calibrated:{part.label} with `calibrate`" if part.kind == "map" else ""
                )
                raise ScenarioError(f"{name} is causal, and {part.label} is not{hint}")
        if missing := {*replacement.needed_layers} - {layer.index for layer in self.first}:
            raise InputError(f"{replacement.label} has a choice for layer {min(missing)}: {name} has {len(self.first)}")
        for text, layer in ((text, layer) for text, layers in self.layers.items() for layer in layers):
            if layer.index not in self.asked:
                continue
            try:
                for shape in layer.shapes:
                    replacement.check(shape, layer.heads, layer.index)
            except ScenarioError as error:
                raise ScenarioError(f"{text}: {error}") from None

    @cached_property
    def asked(self) -> set[int]:
        """The numbers of the replaceable layers that some set of layers names."""
        words = {word for layers in self.scenario.layer_sets for word in layers.split(",")}
        return {layer.index for layer in self.replaceable if words & {ALL, EACH, str(layer.index)}}

    @cached_property
    def costed(self) -> list[list[ModelLayer]]:
        """The replaceable layers of all inputs, whose padding may differ; of the first text where all are as long."""
        every = [self.first] if self.length else self.layers.values()
        return [[layer for layer in layers if layer.left is None] for layers in every]

    def request(self) -> dict[str, Any]:
        """The request with digests of all its files, as plain JSON data."""
        chosen = self.scenario.replacements
        parts = itertools.chain.from_iterable(item.members() for item in chosen)
        named = dataclasses.asdict(self.scenario) | {
            "model": Path(self.scenario.model).as_posix(), "length": self.length,  # "./llama/" is "llama"
            "layers": self.scenario.layer_sets,
            "texts": {text.name: text.sha256 for text in self.texts.values()},
            "read": {text.name: sha256(text.tokens.cpu().numpy()).hexdigest() for text in self.texts.values()},
            "calibrate": self.calibration and self.calibration.sha256, "weights": self.loaded.weights,
            "sources": self.loaded.sources, "notes": self.loaded.notes,
            "recommended": {item.name: item.sha256 for item in chosen if isinstance(item, ByHead) and item.sha256},
            "left_layers": [layer.index for layer in self.first if layer.left is not None] or None,
            **computed_by(part.method for part in parts if isinstance(part, EstimatedAttention)),
        }  # fmt: skip
        return json.loads(json.dumps(named))

    def facts(self) -> dict[str, Any]:
        """Versions and facts of the model for the manifest."""
        return {
            "favorbench": VERSION, "versions": self.loaded.versions, "threads": torch.get_num_threads(),
            "tokens": {text.name: int(text.tokens.shape[-1]) for text in self.texts.values()},
            "causal": self.loaded.causal,
            "attention": [
                {"layer": item.index, "name": item.name, "heads": item.heads, "d": item.shape.d,
                 "causal": item.shape.causal, "left": item.left}
                for item in self.first
            ],
        }  # fmt: skip

    def row(self, measurement: PlannedRow) -> dict[str, Any]:
        """One measurement, in the columns of the store."""
        text, numbers, replacement, _ = measurement
        layers = [layer for layer in self.layers[text] if numbers == ALL or str(layer.index) in numbers.split(",")]
        replaced = [layer for layer in layers if layer.left is None]
        reference = self.reference(text)
        with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
            output = self._output(measurement, reference, [layer.index for layer in replaced])
            errors = self._head_errors(measurement, reference)
        return {
            **dict(zip(KEY, measurement.key, strict=True)), "kind": replacement.kind,
            "seq_len": len(reference.tokens), "replaced": len(replaced), "left": len(layers) - len(replaced),
            "exact_multiplications": sum(layer.multiplications for layer in replaced),
            "multiplications": total(layer.work(replacement) for layer in replaced),
            **effect(reference, output)._asdict(), **errors,
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
        hidden, layers, vocabulary = dimensions(self.model)
        return 4.0 * length * (hidden * (layers + 1) + (vocabulary if self.loaded.causal else 0))

    @cached_property
    def _bfloat16(self) -> Any:
        return copy.deepcopy(self.model).bfloat16()

    def _output(self, measurement: PlannedRow, reference: Reference, layers: list[int]) -> Reference:
        replacement, tokens = measurement.replacement, self.texts[measurement.text].tokens
        if isinstance(replacement, Bfloat16Model):
            try:
                return run(self._bfloat16, tokens)
            except (EstimatorError, RuntimeError, TypeError) as error:  # TypeError: it cannot be copied
                why = reason_of(error.__cause__ or error)
                raise NotInBfloat16(
                    f"{self.loaded.name} does not run in bfloat16, and is not compared with it: {why}"
                ) from None
        if isinstance(replacement, Exact) and replacement.dtype is None:
            return reference
        redraw, seed, draw = self.scenario.redraw, self.scenario.seed, measurement.draw
        chosen = self.calibrated(replacement)
        with replace_calls(self.model, chosen, layers, None, redraw, seed, draw):
            return run(self.model, tokens)

    def _head_errors(self, measurement: PlannedRow, reference: Reference) -> dict[str, list[Any]]:
        """The columns of the errors of single heads, where they are measured."""
        text, numbers, replacement, draw = measurement
        if not self.scenario.heads or numbers != ALL or replacement.kind == "exact":
            return {}
        outputs = partial(self._outputs, replacement, draw)
        errors = head_errors(self.model, reference, self.layers[text], outputs)
        return {name: [getattr(error, name) for error in errors] for name in HeadError._fields}

    def _outputs(self, replacement: Replacement, draw: int, heads: LayerHeads) -> Tensor:
        """The output of some heads of a layer, as in ``_output``."""
        names = stream_names(self.scenario.redraw, draw, heads.layer)
        return self.calibrated(replacement).outputs(heads, self.scenario.seed, names)

    def head_effects(self, text: str, replacements: Sequence[Replacement], draw: int, gradients: int) -> np.ndarray:
        """The predicted effect of each replacement on each replaceable head alone (replacements, heads).

        Gradients take at most GRADIENT_BYTES of memory at a time, or as much as those of one layer.
        """
        groups, _ = self.gradient_groups(text, gradients)
        tokens = self.texts[text].tokens
        forward = partial(self.model, tokens, use_cache=False)
        estimators, result = [partial(self._outputs, item, draw) for item in replacements], []
        for layers in groups:
            rng = stream(self.scenario.seed, "gradients", draw)
            drawn = list(gradient_draws(self.model, forward, layers, gradients, rng)[1])
            with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
                stacked = {layer: torch.stack([part.pop(layer) for part in drawn]) for layer in layers}
                result.append(head_effects(self.model, tokens, stacked, estimators))
        return np.concatenate(result, axis=1)

    def gradient_groups(self, text: str, gradients: int) -> tuple[list[list[int]], float]:
        """The replaceable layers, in groups whose gradients are in memory together, and the most bytes of a group.

        Raises ScenarioError where memory does not suffice for a backward pass and the gradients of a group.
        """
        groups, size, most = [list[int]()], 0.0, 0.0
        for layer in self.layers[text]:
            if layer.left is None:
                bytes_of_layer = 4.0 * gradients * layer.batch * layer.heads * layer.shape.n * layer.shape.d_v
                if groups[-1] and size + bytes_of_layer > GRADIENT_BYTES:
                    groups.append([])
                    size = 0.0
                groups[-1].append(layer.index)
                size += bytes_of_layer
                most = max(most, size)
        check_backward_memory(self.model, 1, self.texts[text].tokens.shape[-1], most)
        return groups, most

    def calibrated(self, replacement: Replacement) -> Replacement:
        """The replacement with its parameters fitted to the calibration text, if it has such parameters."""
        if self.calibration is None or not replacement.needs_calibration:
            return replacement
        if replacement not in self._fitted:
            tokens = self.calibration.tokens.to(self.scenario.device)
            layers = {layer.index for layer in self.replaceable}
            self._fitted[replacement] = calibrated(self.model, replacement, tokens, layers)
        return self._fitted[replacement]

    def time(self, path: Path, repeats: int, replacements: Sequence[Replacement]) -> None:
        """Time replacements on the first text in the first and middle layer that is asked for, and store the seconds.

        In all of these if shapes or replacements differ between them, so that no two layers stand for the others.
        """
        ready, text = [self.calibrated(item) for item in replacements], next(iter(self.texts.values()))
        numbers = sorted(self.asked)
        shapes = {(layer.shape, layer.heads, layer.batch) for layer in self.first if layer.index in self.asked}
        if len(shapes) == 1 and not any(isinstance(item, ByHead) for item in ready):
            numbers = numbers[:: max(1, len(numbers) // 2)][:2]
        heads = heads_in(self.model, text.tokens, numbers)
        write_seconds(path, times(heads, ready, repeats, self.scenario.seed), text.name, heads)


def computed_by(methods: Iterable[Method]) -> dict[str, dict[str, str]]:
    """The part of a request that says what computes its rows.

    modules: by name, the SHA-256 of the user's modules. members: by the estimator and sampler of the rows, the classes
    and functions of the user's, as modules may use the same names.
    """
    methods = [*methods]
    samplers = [f" with {sampler}" if (sampler := sampler_of(method)) else "" for method in methods]
    members = {name_of(m) + sampler: " ".join(user_paths(m)) for m, sampler in zip(methods, samplers, strict=True)}
    return {"modules": user_sources(methods), "members": members}


def _begin_alike(first: Tensor, second: Tensor) -> bool:
    """Whether the tokens (1, L) of two texts are equal up to the last of the shorter one, which may only close it."""
    length = min(first.shape[-1], second.shape[-1]) - 1
    return torch.equal(first[:, :length], second[:, :length])


def calibrated(model: Any, replacement: Replacement, tokens: Tensor, layers: Collection[int]) -> Replacement:
    """The replacement with parameters that are fitted to the queries and keys of layers for these tokens (1, L).

    Also where a window masks them, as it may not mask the shorter texts that are measured.
    """
    assert isinstance(replacement, EstimatedAttention)
    method, fitted = replacement.method, dict[int, Method]()

    def look(call: Call, output: Tensor) -> None:
        if call.index in layers:
            query, key = heads_of(call)[:2]
            fitted[call.index] = calibrate(query[0], key[0], method)

    observe_attention(model, tokens, look)
    return EstimatedAttention(method, replacement.requested_size, fitted)
