"""What is kept of a model's calls: those that are softmax attention, checked one by one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from favorbench.errors import ModelError, ScenarioError
from favorbench.models.calls import Call
from favorbench.models.check import VAGUE, Heads, answers, differences, limits, relative_error, rows_of
from favorbench.models.records import Captured, Choice, Layer, Run
from favorbench.models.spool import Spool

#: Why a mask cannot go into a file, whose attention is full or causal.
MASKS = {
    "window": "a query sees the keys at some distances only: captured where the text is no longer than the window",
    "padded": "padding hides keys: give each text by itself",
    "bias": "terms are added to the logits (a bias by position)",
    "other": "the mask is neither full nor causal",
}


#: q, k and v of some heads, of torch.
Tensors = tuple[Any, Any, Any]


class Shape(NamedTuple):
    """What all heads of a file share."""

    causal: bool
    batch: int
    n: int
    length: int
    d: int
    d_v: int


@dataclass
class Recorder:
    """Listens to calls, answers them by the model's own function, and keeps those that are softmax attention.

    All heads of a file have the shape and the mask of the first that is kept.
    """

    choice: Choice
    spool: Spool
    run: Run | None = None
    calls: int = 0
    shape: Shape | None = None
    texts: list[dict[str, Any]] = field(default_factory=list)
    first_text: int = 0
    labels: list[tuple[int, int, int]] = field(default_factory=list)
    found: dict[int, list[Layer]] = field(default_factory=dict)

    def begin(self, run: Run) -> None:
        """Before a forward pass."""
        self.run, self.calls, self.first_text = run, 0, len(self.texts)

    def attend(self, call: Call) -> Any:
        """The model's own answer; on the way the call is checked and kept."""
        output = call.own()
        self.calls += 1
        if self.choice.layers is None or call.index in self.choice.layers:
            self.found.setdefault(call.index, []).append(self._layer(call, output))
        return output

    def _layer(self, call: Call, output: Any) -> Layer:
        """What is found of a call, which is kept if nothing speaks against it."""
        reason = self._unfit(call)
        if reason:
            return Layer(call.index, call.name, 0, call.kind, call.scaling, np.nan, np.nan, 0.0, reason)
        heads = list(self.choice.heads or range(call.query.shape[1]))
        folded = call.query * (call.scaling * call.query.shape[-1] ** 0.5)
        tensors = folded[:, heads], call.key[:, heads], call.value[:, heads]
        arrays = _all_numbers(tensors)
        causal = call.kind == "causal"
        rows = rows_of(call.query.shape[-2], self.choice.last)
        expected = answers(arrays, causal, rows)
        precision = str(call.query.dtype).removeprefix("torch.")
        off = differences(_numbers(output[:, heads])[..., rows, :], expected)
        most = limits(arrays[0], arrays[1], precision)
        worst = np.unravel_index(np.argmax(off / most), off.shape)
        off, most, vague = float(off[worst]), float(most[worst]), float(most.max())
        if not off <= most:
            names = f": {', '.join(call.extra)} changes it" if call.extra else ""
            reason = f"its output is not softmax(q k^T / sqrt(d)) v{names}"
        elif "softcap" in call.extra:  # small where logits are, and never nothing
            reason = f"logits are capped (softcap {call.extra['softcap']:g})"
        elif vague > VAGUE:
            reason = f"rounding in {precision} may change its output by {vague:.0e}, too much to check it: use float32"
        rounding = 0.0
        if not reason:
            rounding, reason = self._keep(call, heads, tensors)
        kept = 0 if reason else len(heads)
        return Layer(call.index, call.name, kept, call.kind, call.scaling, off, most, rounding, reason)

    def _unfit(self, call: Call) -> str:
        """What of a call's mask or shape keeps it out of the file; "" for nothing. Raises ScenarioError for heads."""
        heads, n, length = call.query.shape[1], call.query.shape[2], call.key.shape[2]
        if outside := [head for head in self.choice.heads or () if not 0 <= head < heads]:
            raise ScenarioError(f"`heads` {outside[0]}: layer {call.index} ({call.name}) has heads 0 to {heads - 1}")
        last, causal = self.choice.last, call.kind == "causal"
        if call.kind in MASKS:
            return MASKS[call.kind]
        if causal and n != length:
            return f"causal with {n} queries on {length} keys: give the whole text at once, without a cache"
        if last is not None and not causal:
            return "its mask is full: `last` is for causal layers"
        if last is not None and last >= n:
            raise ScenarioError(f"`last` {last}: there are {n} tokens; at least one must be left before them")
        if self.shape is not None and self.shape != _shape(call):
            shapes = _shape(call), self.shape
            return f"{_described(*shapes)}; the first layer kept: {_described(*shapes[::-1])}: capture it by itself"
        return ""

    def _keep(self, call: Call, heads: list[int], tensors: Tensors) -> tuple[float, str]:
        """Store q, k and v; the error that storing makes, and what speaks against it."""
        (query, key, value), causal = tensors, call.kind == "causal"
        if last := self.choice.last:
            query, key, value, causal = query[..., -last:, :], key[..., :-last, :], value[..., :-last, :], False
        kind = getattr(import_module("torch"), self.choice.dtype)
        stored = query.to(kind), key.to(kind), value.to(kind)
        if not all(bool(array.isfinite().all()) for array in stored):
            return 0.0, f"has entries that {self.choice.dtype} cannot hold"
        rounding = 0.0
        if query.dtype != kind:
            some = rows_of(query.shape[-2])
            exact = answers(_all_numbers((query, key, value)), causal, some)
            found = answers(_all_numbers(stored), causal, some)
            rounding = relative_error(found, exact)
        self.shape = _shape(call)
        self._name_texts(len(query))
        self.labels += [(call.index, head, self.first_text + item) for item in range(len(query)) for head in heads]
        self.spool.add(**{role: _raw(array) for role, array in zip("qkv", stored, strict=True)})
        return rounding, ""

    def _name_texts(self, batch: int) -> None:
        """The texts of this run: one for each item of its batch."""
        if self.run and len(self.texts) == self.first_text:
            names = [self.run.name] if batch == 1 else [f"{self.run.name}.{item}" for item in range(batch)]
            self.texts += [{"name": name, "sha256": self.run.sha256, "tokens": self.run.tokens} for name in names]

    def check_layers(self) -> None:
        """After a forward pass. Raises ScenarioError for layers that were asked for and are not there."""
        for layer in self.choice.layers or ():
            if not 0 <= layer < self.calls:
                raise ScenarioError(
                    f"`layers` {layer}: the model has layers 0 to {self.calls - 1}, in the order of calls"
                )

    def captured(self, name: str, about: Mapping[str, Any]) -> Captured:
        """All that was kept. Raises ModelError if that is nothing, with the reason."""
        layers = tuple(_together(found) for _, found in sorted(self.found.items()))
        if self.shape is None:
            raise ModelError(
                f"{name}: nothing to capture: layer {layers[0].layer} ({layers[0].name}): {layers[0].reason}"
            )
        last, (causal, _, n, length, d, d_v) = self.choice.last, self.shape
        n, length = (last, length - last) if last else (n, length)
        query, key, value = (
            self.spool.array(role, (len(self.labels), *shape), self.choice.dtype)
            for role, shape in (("q", (n, d)), ("k", (length, d)), ("v", (length, d_v)))
        )
        meta = {
            "format": 1, **about, "causal": causal and not last, "last": last, "texts": self.texts,
            "layers": [layer._asdict() for layer in layers if layer.heads],
            "dtype": self.choice.dtype, "rounding": max(layer.rounding for layer in layers if layer.heads),
        }  # fmt: skip
        layer, head, text = np.ascontiguousarray(np.array(self.labels, np.int32).T)
        return Captured(query, key, value, layer, head, text, layers, meta)


def _together(found: list[Layer]) -> Layer:
    """One layer on all inputs: its worst check, and the first reason to refuse it."""
    refused = [layer.reason for layer in found if layer.reason]
    reason = refused[0] if refused else ""
    if 0 < len(refused) < len(found):
        reason = f"on {len(refused)} of {len(found)} inputs: {reason}"
    worst = max(found, key=lambda layer: -1.0 if np.isnan(layer.difference) else layer.difference / layer.limit)
    heads, rounding = max(layer.heads for layer in found), max(layer.rounding for layer in found)
    return worst._replace(heads=heads, rounding=rounding, reason=reason)


def _shape(call: Call) -> Shape:
    batch, _, n, d = call.query.shape
    return Shape(call.kind == "causal", batch, n, call.key.shape[2], d, call.value.shape[3])


def _described(shape: Shape, other: Shape) -> str:
    """In what a shape differs from another."""
    parts = {
        "mask": "causal" if shape.causal else "full", "batch": f"a batch of {shape.batch}",
        "rows": f"{shape.n} queries on {shape.length} keys", "dims": f"d {shape.d}, d_v {shape.d_v}",
    }  # fmt: skip
    same = {
        "mask": shape.causal == other.causal, "batch": shape.batch == other.batch,
        "rows": shape[2:4] == other[2:4], "dims": shape[4:] == other[4:],
    }  # fmt: skip
    return ", ".join(text for name, text in parts.items() if not same[name])


def _all_numbers(tensors: Tensors) -> Heads:
    query, key, value = tensors
    return _numbers(query), _numbers(key), _numbers(value)


def _numbers(tensor: Any) -> np.ndarray:
    """A tensor in NumPy: float32, or float64 if it is that."""
    return (tensor if str(tensor.dtype) == "torch.float64" else tensor.float()).detach().cpu().numpy()


def _raw(tensor: Any) -> np.ndarray:
    """(batch, heads, rows, d) as (batch x heads, rows, d), bfloat16 as its bits."""
    flat = tensor.detach().cpu().reshape(-1, *tensor.shape[-2:]).contiguous()
    return (flat.view(import_module("torch").int16) if str(flat.dtype) == "torch.bfloat16" else flat).numpy()
