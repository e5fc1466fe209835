"""The study of a model: every estimator in the place of its attention, on every text, measured and stored."""

import copy
import dataclasses
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.provenance import VERSION
from favorbench.errors import InputError, ModelError, ScenarioError
from favorbench.maps import calibrate
from favorbench.methods import Method
from favorbench.models.effects import ModelLayer, Reference, effect, head_errors, layers_of, run
from favorbench.models.interface import Call, attending
from favorbench.models.load import Loaded, Text, load, read_texts
from favorbench.models.plan import ALL, EACH, LENGTH, Asked, Unit, units
from favorbench.models.recommended import ByHead
from favorbench.models.replacements import EstimatedAttention, Exact, Replacement, Tensor
from favorbench.models.seconds import heads_in, sampled, times, write_seconds
from favorbench.models.store import StudyStore
from favorbench.models.swap import heads_of, swapped, why_not
from favorbench.numerics.machine import check_memory
from favorbench.progress import Progress


class Done(NamedTuple):
    """What is to be said of a study: parts that were damaged and set aside, and layers left as they are, by name, with
    the reason."""

    set_aside: list[str]
    left: dict[str, str]


def study(
    asked: Asked, path: Path, trust_remote_code: bool = False, progress: Progress | None = None, repeats: int = 0
) -> Done:
    """Measure all that is asked and not yet in the directory; then time every estimator so often, on the first text.

    Raises what is wrong with models, texts, estimators and directories as a FavorbenchError.
    """
    loaded = load(asked.model, trust_remote_code=trust_remote_code)
    _check_kind(loaded)
    length = min(LENGTH, loaded.limit or LENGTH) if asked.length is None else asked.length
    asked = dataclasses.replace(asked, length=length)
    texts = read_texts(loaded, asked.texts, length)
    of_text = _calibrate(asked, loaded, texts, length)
    _check_memory(loaded, max(text.tokens.shape[-1] for text in texts))
    layers = {text.name: layers_of(loaded.model, text.tokens) for text in texts}
    _check(asked, layers)
    possible = [layer.index for layer in layers[texts[0].name] if layer.left is None]
    planned = units(asked, [text.name for text in texts], possible)
    named = dataclasses.asdict(asked) | {
        "texts": {text.name: text.sha256 for text in texts}, "calibrate": of_text and of_text.sha256,
        "weights": loaded.weights,
        "recommended": {one.name: one.sha256 for one in asked.replacements() if isinstance(one, ByHead)},
    }  # fmt: skip
    about = _about(loaded, texts, layers[texts[0].name])
    named = json.loads(json.dumps(named))  # as it will be read again
    with StudyStore(path, named, about, {unit.key for unit in planned}) as store:
        done = store.done() & store.planned
        if progress:
            progress(len(done), len(planned))
        measuring = Measuring(loaded, {text.name: text for text in texts}, layers, asked, of_text)
        missing = [unit for unit in planned if unit.key not in done]
        for i, unit in enumerate(missing, start=1):
            store.append([measuring.row(unit)])
            if progress:
                progress(len(done) + i, len(planned))
        if repeats:
            asked_ready = [measuring.with_parameters(one) for one in asked.replacements()]
            heads = heads_in(loaded.model, texts[0].tokens, sampled(possible))
            rows = times(heads, asked_ready, repeats, asked.seed)
            write_seconds(path, rows, texts[0].name, list(heads), texts[0].tokens.shape[-1])
        left = {layer.name: layer.left for found in layers.values() for layer in found if layer.left is not None}
        return Done(store.set_aside, left)


def _check_kind(loaded: Loaded) -> None:
    """Raise ModelError for a model whose answer to a text is neither states of its tokens nor the next token."""
    if loaded.tokenizer is not None and getattr(loaded.model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{loaded.name} is an encoder-decoder model; `favorbench model` measures encoders and language models: "
            f"`favorbench capture {loaded.name}` takes its heads, fb.swapped(model, ...) replaces its attention"
        )


def _check_memory(loaded: Loaded, length: int) -> None:
    """Raise ScenarioError where what two runs of the model answer is not to be had: hidden states, and logits."""
    names = ("hidden_size", "num_hidden_layers", "vocab_size")
    hidden, layers, vocabulary = (getattr(loaded.model.config, name, 0) for name in names)
    width = hidden * (layers + 1) + (vocabulary if loaded.causal else 0)
    check_memory(2.0 * 4 * length * width, f"{loaded.name} on {length} tokens", "use a smaller `length`")


def _check(asked: Asked, layers: dict[str, tuple[ModelLayer, ...]]) -> None:
    """Raise ScenarioError or InputError for what cannot be measured, before anything is."""
    some = next(iter(layers.values()))
    left = {str(layer.index): layer.left for layer in some}
    for numbers in asked.layer_sets():
        given = [number for number in numbers.split(",") if number.isdigit()]
        if missing := [number for number in given if number not in left]:
            raise ScenarioError(f"`layers` {missing[0]}: {asked.model} has {len(some)}, 0 to {len(some) - 1}")
        if given and all(left[number] for number in given):
            raise InputError(f"`layers` {numbers}: cannot be replaced: {left[given[0]]}")
    possible = [layer for layer in some if layer.left is None]
    if not possible:
        raise InputError(f"{asked.model}: no attention of it can be replaced: {some[0].name}: {some[0].left}")
    causal = any(layer.shape.causal for layer in possible)
    for one in asked.replacements():
        for part in one.every:
            _check_estimator(part, asked, causal)
        _check_layers(one, asked, layers)


def _check_estimator(one: Replacement, asked: Asked, causal: bool) -> None:
    if one.needs_calibration and asked.calibrate is None:
        raise ScenarioError(f"{one.label} is calibrated on a text of its own: name it with `calibrate`")
    if causal and not one.causal_safe:
        hint = f"; calibrated:{one.label} is, with `calibrate`" if one.kind == "map" else ""
        raise ScenarioError(f"{asked.model} is causal, and {one.label} is not{hint}")


def _check_layers(one: Replacement, asked: Asked, layers: dict[str, tuple[ModelLayer, ...]]) -> None:
    some = next(iter(layers.values()))
    if missing := set(one.layers) - {layer.index for layer in some}:
        raise InputError(f"{one.label} has a choice for layer {min(missing)}: {asked.model} has {len(some)}")
    for numbers in asked.layer_sets():
        if numbers not in (ALL, EACH) and not one.is_for(map(int, numbers.split(","))):
            raise InputError(f"`layers` {numbers}: {one.label} has no choice there, but in {list(one.layers)}")
    for name, found in layers.items():
        try:
            for layer in found:
                one.check(layer.shape, layer.heads, layer.index)
        except ScenarioError as error:
            raise ScenarioError(f"{name}: {error}") from None


def _calibrate(asked: Asked, loaded: Loaded, texts: Sequence[Text], length: int) -> Text | None:
    """The text to calibrate on, which may be none of those that are measured. Raises InputError."""
    if asked.calibrate is None:
        return None
    (found,) = read_texts(loaded, [asked.calibrate], length)
    for text in texts:
        if text.sha256 == found.sha256:
            raise InputError(
                f"`calibrate` {asked.calibrate}: it is measured too, as {text.name}; what is fitted to a text is "
                "measured on others"
            )
    return found


class Measuring:
    """The measurements of one study. What the model as it is answers is kept for one text at a time."""

    def __init__(
        self, loaded: Loaded, texts: dict[str, Text], layers: dict[str, tuple[ModelLayer, ...]], asked: Asked,
        calibration: Text | None,
    ) -> None:  # fmt: skip
        self.model, self.texts, self.layers, self.asked = loaded.model, texts, layers, asked
        self.calibration = calibration
        self._reference: tuple[str, Reference] | None = None
        self._halved: Any = None
        self._fitted: dict[str, Replacement] = {}

    def row(self, unit: Unit) -> dict[str, Any]:
        """One measurement, in the columns of the store."""
        tokens, layers = self.texts[unit.text].tokens, self.layers[unit.text]
        chosen = [layer for layer in layers if unit.layers == ALL or str(layer.index) in unit.layers.split(",")]
        replaced = [layer for layer in chosen if layer.left is None]
        reference = self.reference(unit.text)
        with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
            if unit.what is None:
                found = run(self.halved(), tokens).as_float()
            elif isinstance(unit.what, Exact) and unit.what.dtype is None:
                found = reference
            else:
                found = self._replaced(unit, tokens, [layer.index for layer in chosen])
        named = dict(zip(("text", "layers", "estimator", "sampler", "size", "draw"), unit.key, strict=True))
        exact = sum(layer.multiplications for layer in replaced)
        return {
            **named, "kind": unit.kind, "seq_len": tokens.shape[-1], "replaced": len(replaced),
            "left": len(chosen) - len(replaced), "exact_multiplications": exact,
            "multiplications": exact if unit.what is None else _work(unit.what, replaced),
            **effect(reference, found)._asdict(), **self._of_heads(unit, reference, layers),
        }  # fmt: skip

    def reference(self, text: str) -> Reference:
        """The model as it is, on a text."""
        if self._reference is None or self._reference[0] != text:
            self._reference = None  # two of them would be twice the memory
            self._reference = (text, run(self.model, self.texts[text].tokens))
        return self._reference[1]

    def halved(self) -> Any:
        """The model in bfloat16."""
        if self._halved is None:
            self._halved = copy.deepcopy(self.model).bfloat16()
        return self._halved

    def _replaced(self, unit: Unit, tokens: Any, layers: list[int]) -> Reference:
        assert unit.what is not None
        with swapped(
            self.model, method=self.with_parameters(unit.what), layers=layers, seed=self.asked.seed, draw=unit.draw,
            redraw=self.asked.redraw,  # pyright: ignore[reportArgumentType]
        ):  # fmt: skip
            return run(self.model, tokens)

    def with_parameters(self, what: Replacement) -> Replacement:
        """The estimator, with what it takes from the text to calibrate on."""
        if self.calibration is None or not what.needs_calibration:
            return what
        key = f"{what.label} {what.sampler} {what.size}"
        if key not in self._fitted:
            self._fitted[key] = calibrated(self.model, what, self.calibration.tokens)
        return self._fitted[key]

    def _of_heads(
        self, unit: Unit, reference: Reference, layers: tuple[ModelLayer, ...]
    ) -> dict[str, list[Any] | None]:
        names = ("head_layer", "head_number", "head_error", "head_after_projection")
        what = unit.what
        if not self.asked.heads or unit.layers != ALL or unit.kind == "exact" or what is None:
            return dict.fromkeys(names)
        ready, asked = self.with_parameters(what), self.asked

        def outputs(heads: Any, layer: int) -> Any:
            where = {"model": (), "layer": (layer,), "call": (layer, 0)}[asked.redraw]
            return ready.outputs(heads, asked.seed, (unit.draw, asked.redraw, *where), layer)

        with np.errstate(all="ignore"):
            found = head_errors(self.model, reference, layers, outputs)
        columns = zip(*found, strict=True) if found else ([], [], [], [])
        return {name: list(column) for name, column in zip(names, columns, strict=True)}


def calibrated(model: Any, what: Replacement, tokens: Tensor) -> Replacement:
    """The replacement with the parameters that the model's attention to these tokens (1, L) gives, frozen."""
    assert isinstance(what, EstimatedAttention)
    found: dict[int, Method] = {}

    def attend(call: Call) -> Tensor:
        if why_not(call) is None:
            query, key = heads_of(call)[:2]
            found[call.index] = calibrate(query[0], key[0], what.method)
        return call.own()

    with import_module("torch").no_grad(), attending(model, attend):
        model(tokens, use_cache=False)
    return dataclasses.replace(what, fitted=found)


def _work(what: Replacement, layers: Sequence[ModelLayer]) -> float | None:
    """Multiplications in all heads of these layers; None where they are not known."""
    each = [what.work(layer.shape, layer.heads, layer.index) for layer in layers]
    known = [one for one in each if one is not None]
    return sum(known) if len(known) == len(each) else None


def _about(loaded: Loaded, texts: Sequence[Text], layers: tuple[ModelLayer, ...]) -> dict[str, Any]:
    return {
        "favorbench": VERSION,
        "versions": loaded.versions,
        "threads": import_module("torch").get_num_threads(),
        "tokens": {text.name: int(text.tokens.shape[-1]) for text in texts},
        "causal": loaded.causal,
        "attention": [
            {"layer": one.index, "name": one.name, "heads": one.heads, "d": one.shape.d, "causal": one.shape.causal,
             "left": one.left}
            for one in layers
        ],
    }  # fmt: skip
