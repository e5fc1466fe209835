"""Record the attention calls of a model that are softmax attention, checked one by one."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.errors import ModelError, ScenarioError
from favorbench.formats import shown
from favorbench.models.interface import Call
from favorbench.models.spool import DTYPES, SUFFIXES, Spool, write_heads


class CapturedLayer(NamedTuple):
    """One attention of a model: its number in the order of calls, its name, its mask, and what the check said.

    heads: how many were kept. difference: between its own output and the captured rows' exact attention, as a share of
    the largest entry, and limit: what rounding explains; of the head and the input that come closest to it.
    rounding: what storing in 16 bits changed, as a share of the output. reason: why it was refused, "" if it was not.
    """

    layer: int
    name: str
    heads: int
    mask: str
    scaling: float
    difference: float
    limit: float
    rounding: float
    reason: str


class Run(NamedTuple):
    """One forward pass: of which text, its sha256, how many tokens it has, and how it is made."""

    name: str
    sha256: str
    tokens: int
    forward: Callable[[], Any]


@dataclass(frozen=True)
class Choice:
    """What of a model is captured. None: all. last: so many queries, the last ones, on the keys before them all."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    last: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ScenarioError(f"`dtype` {shown(self.dtype)}: allowed: {', '.join(DTYPES)}")
        if self.last is not None and self.last < 1:
            raise ScenarioError(f"`last` {self.last}: at least 1")


@dataclass(frozen=True, eq=False)
class Captured:
    """Heads of a model: softmax(q k^T / sqrt(d)) v is what its own attention gave, up to rounding.

    query (heads, n, d), key (heads, l, d), value (heads, l, d_v), mapped from disk; bfloat16 as its 16 bits. layer,
    head, text (heads,): which each is. layers: what was found of each layer, refused ones too. meta: what the file
    says beside the arrays.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    layer: np.ndarray
    head: np.ndarray
    text: np.ndarray
    layers: tuple[CapturedLayer, ...]
    meta: dict[str, Any]

    @property
    def causal(self) -> bool:
        """Whether a query sees the keys up to its own position only."""
        return self.meta["causal"]

    def save(self, path: str | Path) -> None:
        """Write PATH.npz or PATH.safetensors, in pieces, whole or not at all. Raises ScenarioError, StoreError."""
        check_path(Path(path), self.meta["dtype"])
        names = {"q": self.query, "k": self.key, "v": self.value}
        write_heads(Path(path), names | {"layer": self.layer, "head": self.head, "text": self.text}, self.meta)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a .npz file of it holds, for the inputs of a sweep; bfloat16 as float32, which holds all of these."""
        names = {"q": self.query, "k": self.key, "v": self.value}
        if self.meta["dtype"] == "bfloat16":
            names = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in names.items()}
        about = {"meta": np.array(json.dumps(self.meta, sort_keys=True))}
        return names | {"layer": self.layer, "head": self.head, "text": self.text} | about


def check_path(path: Path, dtype: str) -> None:
    """Raise ScenarioError for a file that cannot hold captured heads."""
    if path.suffix not in SUFFIXES:
        raise ScenarioError(f"`out` {path}: allowed are files that end in {' or '.join(SUFFIXES)}")
    if dtype == "bfloat16" and path.suffix == ".npz":
        raise ScenarioError(f"`out` {path}: .npz files have no bfloat16: use .safetensors, or `dtype` float16")


#: q, k and v of some heads: (..., n, d), (..., l, d), (..., l, d_v).
Heads = tuple[np.ndarray, np.ndarray, np.ndarray]

#: Queries of a head that are computed again, spread evenly. A wrong mask, factor or group shows in nearly all.
ROWS = 512

#: Of float32, whose factors have 24 bits.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}

#: Units of rounding that a difference may have, see ``limits``. Seen: up to 2.3 in small random models of ten families
#: (d = 8), 0.6 in the heads of MiniLM and 0.4 in those of SmolLM2 at L = 512 and 1024. There a factor of 1.01 on the
#: logits makes 175 times the limit or more in every layer, and a wrong mask or another head's keys 10,000 times.
ROUNDINGS = 8

#: A limit beyond this is none: a factor of 1.01 on the logits makes no more.
VAGUE = 5e-3


def rows_of(n: int, last: int | None = None) -> np.ndarray:
    """The queries to be computed again: all, or ROWS of them; of the last ``last`` only, where that is given."""
    first = 0 if last is None else n - last
    return np.unique(np.linspace(first, n - 1, min(ROWS, n - first)).astype(np.int64))


def answers(heads: Heads, causal: bool, rows: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v of some queries, float64, (..., rows, d_v); causal: query i sees the keys up to i."""
    query, key, value = heads
    return exact_attention(query[..., rows, :], key, value, causal, rows if causal else None)


def differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Of each head (..., rows, d_v) the largest difference, as a share of its largest entry; inf for NaN."""
    with np.errstate(invalid="ignore"):
        size = np.abs(expected).max(axis=(-2, -1))
        shares = np.abs(found - expected).max(axis=(-2, -1)) / np.where(size > 0, size, 1.0)
    return np.nan_to_num(shares, nan=np.inf)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative error of any head, Frobenius."""
    errors = np.linalg.norm(found - expected, axis=(-2, -1))
    return float((errors / np.maximum(np.linalg.norm(expected, axis=(-2, -1)), 1e-300)).max())


def limits(query: np.ndarray, key: np.ndarray, dtype: str) -> np.ndarray:
    """What rounding can make of ``differences``, and hardly anything else.

    A logit of float32 is off by a few units of 2^-24 of |q| |k| / sqrt(d), at least as much as the largest logit, and
    a weight by as much as its logit, relatively: ROUNDINGS 2^-24 (1 + max |q| max |k| / sqrt(d)).
    """
    squares = ((array.astype(np.float64) ** 2).sum(-1).max(-1) for array in (query, key))
    return ROUNDINGS * UNIT_ROUNDOFF[dtype] * (1.0 + np.sqrt(math.prod(squares) / query.shape[-1]))


#: Why a mask cannot go into a file, whose attention is full or causal.
MASKS = {
    "window": "a query sees the keys at some distances only: captured where the text is no longer than the window",
    "padded": "padding hides keys: give each text by itself",
    "bias": "terms are added to the logits (a bias by position)",
    "other": "the mask is neither full nor causal",
}


#: q, k and v of some heads, of torch.
Tensors = tuple[Any, Any, Any]


class HeadShape(NamedTuple):
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
    shape: HeadShape | None = None
    texts: list[dict[str, Any]] = field(default_factory=list)
    first_text: int = 0
    labels: list[tuple[int, int, int]] = field(default_factory=list)
    found: dict[int, list[CapturedLayer]] = field(default_factory=dict)

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

    def _layer(self, call: Call, output: Any) -> CapturedLayer:
        """What is found of a call, which is kept if nothing speaks against it."""
        reason = self._unfit(call)
        if reason:
            return CapturedLayer(call.index, call.name, 0, call.kind, call.scaling, np.nan, np.nan, 0.0, reason)
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
        return CapturedLayer(call.index, call.name, kept, call.kind, call.scaling, off, most, rounding, reason)

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


def _together(found: list[CapturedLayer]) -> CapturedLayer:
    """One layer on all inputs: its worst check, and the first reason to refuse it."""
    refused = [layer.reason for layer in found if layer.reason]
    reason = refused[0] if refused else ""
    if 0 < len(refused) < len(found):
        reason = f"on {len(refused)} of {len(found)} inputs: {reason}"
    worst = max(found, key=lambda layer: -1.0 if np.isnan(layer.difference) else layer.difference / layer.limit)
    heads, rounding = max(layer.heads for layer in found), max(layer.rounding for layer in found)
    return worst._replace(heads=heads, rounding=rounding, reason=reason)


def _shape(call: Call) -> HeadShape:
    batch, _, n, d = call.query.shape
    return HeadShape(call.kind == "causal", batch, n, call.key.shape[2], d, call.value.shape[3])


def _described(shape: HeadShape, other: HeadShape) -> str:
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
