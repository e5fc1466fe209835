"""Record the attention calls of a model, after checking that each is softmax attention."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.errors import ModelError, ScenarioError
from favorbench.formats import shown
from favorbench.models import torch
from favorbench.models.captured import DTYPES, Captured, CapturedLayer, Spool
from favorbench.models.interface import Call
from favorbench.models.replacements import Tensor
from favorbench.models.swap import heads_of
from favorbench.numerics.arrays import on_host
from favorbench.parameters import check_whole


class Run(NamedTuple):
    """One forward pass: the name, sha256 and number of tokens of its text, and the function that makes it."""

    name: str
    sha256: str
    tokens: int
    forward: Callable[[], Any]


@dataclass(frozen=True)
class Choice:
    """The part of a model that is captured. None: all. last: only this many queries, on the keys before them.

    gradients: the number for each head; None: none.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    last: int | None = None
    dtype: str = "float32"
    gradients: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ScenarioError(f"`dtype` {shown(self.dtype)}: allowed: {', '.join(DTYPES)}")
        for name in ("last", "gradients"):
            if (number := getattr(self, name)) is not None:
                check_whole(f"`{name}`", number, 1, 1 << 40)
        if self.last and self.gradients:
            raise ScenarioError(
                "`gradients` with `last`: the last queries on the keys before them are not the model's own attention, "
                "so their errors predict no effect: leave one of them out"
            )


#: Queries of a head that are checked, spread evenly. A wrong mask, factor or group shows in nearly all.
ROWS = 512

#: float32 has 24 bits.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}

#: The largest allowed difference in units of rounding, see ``limits``. Observed: up to 2.3 in small random models of
#: ten families (d = 8), 0.6 in the heads of MiniLM and 0.4 in those of SmolLM2 at L = 512 and 1024. There a factor of
#: 1.01 on the logits exceeds the limit by a factor of 175 or more in every layer, a wrong mask or keys by 10,000.
TOLERANCE_UNITS = 8

#: A larger limit would not detect a factor of 1.01 on the logits.
MAX_TOLERANCE = 5e-3

#: Why each kind of mask is refused: files hold full or causal attention only.
MASKS = {
    "window": "a query sees the keys at some distances only: capture texts that are no longer than the window",
    "padded": "padding hides keys: give each text separately",
    "padded and causal": "padding hides keys: give each text separately",
    "bias": "terms are added to the logits (a bias by position)",
    "other": "the mask is neither full nor causal",
}


def checked_rows(n: int, last: int | None = None) -> np.ndarray:
    """The queries to check: all, or ROWS of them; among the last ``last`` only, if that is given."""
    first = 0 if last is None else n - last
    return np.unique(np.linspace(first, n - 1, min(ROWS, n - first)).astype(np.int64))


def exact_rows(tensors: Sequence[Tensor], causal: bool, rows: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v of some queries, float64, (..., rows, d_v); causal: query i sees the keys up to i."""
    query, key, value = map(_numbers, tensors)
    return exact_attention(query[..., rows, :], key, value, causal, rows if causal else None)


def differences(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The largest difference in each head (..., rows, d_v), relative to its largest entry; inf for NaN."""
    with np.errstate(invalid="ignore"):
        size = np.abs(expected).max(axis=(-2, -1))
        shares = np.abs(actual - expected).max(axis=(-2, -1)) / np.where(size > 0, size, 1.0)
    return np.nan_to_num(shares, nan=np.inf)


def limits(query: Tensor, key: Tensor) -> np.ndarray:
    """The largest ``differences`` that rounding explains, for each head.

    A float32 logit has an error of a few units of 2^-24 |q| |k| / sqrt(d). The relative error of a weight is the
    absolute error of its logit. So the limit is TOLERANCE_UNITS 2^-24 (1 + max |q| max |k| / sqrt(d)). Sums over keys
    add 3 to the 1 (observed in flat attention: up to 1.8), in float32 also where the queries are in half precision.
    """
    squares = ((_numbers(array).astype(np.float64) ** 2).sum(-1).max(-1) for array in (query, key))
    unit = UNIT_ROUNDOFF[_precision(query)]
    logits = np.sqrt(math.prod(squares) / query.shape[-1])
    return TOLERANCE_UNITS * (unit * (1.0 + logits) + 3.0 * min(unit, UNIT_ROUNDOFF["float32"]))


class HeadShape(NamedTuple):
    """The mask and the dimensions that all heads of a file share."""

    causal: bool
    batch: int
    n: int
    length: int
    d: int
    d_v: int

    def difference(self, other: "HeadShape") -> str:
        """Describe the parts of this shape that differ from another one."""
        pairs = zip(self._words(), other._words(), strict=True)
        return ", ".join(mine for mine, theirs in pairs if mine != theirs)

    def _words(self) -> tuple[str, ...]:
        return (
            "causal" if self.causal else "full", f"a batch of {self.batch}",
            f"{self.n} queries on {self.length} keys", f"d {self.d}, d_v {self.d_v}",
        )  # fmt: skip


class Recorder:
    """Compute calls with the model's own function, and store those that are softmax attention.

    All heads of a file have the shape and the mask of the first stored one.
    """

    def __init__(self, choice: Choice, spool: Spool) -> None:
        self.choice, self.spool = choice, spool
        self.checked: dict[int, list[CapturedLayer]] = {}
        self.shape: HeadShape | None = None
        self.kept: dict[int, int] = {}  # by layer, the heads stored in this run, of all items of its batch
        self._run, self._calls, self._first_text = Run("", "", 0, dict), 0, 0
        self._texts: list[dict[str, Any]] = []
        self._labels: list[tuple[int, int, int]] = []

    def begin(self, run: Run) -> None:
        """Before a forward pass."""
        self._run, self._calls, self._first_text, self.kept = run, 0, len(self._texts), {}

    def attend(self, call: Call) -> Any:
        """Return the model's own output, after checking and storing the call."""
        output = call.own()
        self._calls += 1
        if self.choice.layers is None or call.index in self.choice.layers:
            self.checked.setdefault(call.index, []).append(self._layer(call, output))
        return output

    def _layer(self, call: Call, output: Tensor) -> CapturedLayer:
        """Check a call, and store it unless there is a reason to refuse it."""
        reason = self._unfit(call)
        layer = CapturedLayer(call.index, call.name, 0, call.kind, call.scaling, np.nan, np.nan, 0.0, reason)
        if reason:
            return layer
        heads = list(self.choice.heads or range(call.query.shape[1]))
        tensors = [array[:, heads] for array in heads_of(call)[:3]]
        rows = checked_rows(call.query.shape[-2], self.choice.last)
        expected = exact_rows(tensors, call.kind == "causal", rows)
        error = differences(_numbers(output[:, heads])[..., rows, :], expected)
        limit = limits(tensors[0].to(output), tensors[1])  # under autocast the output has fewer bits than the queries
        worst = np.unravel_index(np.argmax(error / limit), error.shape)
        layer = layer._replace(difference=float(error[worst]), limit=float(limit[worst]))
        if not layer.difference <= layer.limit:
            names = f": {', '.join(call.extra)} changes it" if call.extra else ""
            reason = f"its output is not softmax(q k^T / sqrt(d)) v{names}"
        elif "softcap" in call.extra:  # too small a change to detect where logits are small
            reason = f"logits are capped (softcap {call.extra['softcap']:g})"
        elif limit.max() > MAX_TOLERANCE:
            reason = (
                f"rounding in {_precision(output)} may change its output by {limit.max():.0e}, too much to check "
                "it: use float32"
            )
        rounding, reason = (0.0, reason) if reason else self._keep(call, heads, tensors)
        return layer._replace(heads=0 if reason else len(heads), rounding=rounding, reason=reason)

    def _unfit(self, call: Call) -> str:
        """Why a call does not fit the file by module, mask or shape; "" if it does. Raises ScenarioError for heads."""
        shape, last, heads = _shape(call), self.choice.last, call.query.shape[1]
        if outside := sorted({*(self.choice.heads or ())} - {*range(heads)}):
            raise ScenarioError(f"`heads` {outside[0]}: layer {call.index} ({call.name}) has heads 0 to {heads - 1}")
        if (first := (*self.checked[call.index], call)[0].name) != call.name:
            return f"it is {call.name} on this input, and {first} on the first: capture such inputs separately"
        if call.kind in MASKS:
            return MASKS[call.kind]
        if shape.causal and shape.n != shape.length:
            return f"causal with {shape.n} queries on {shape.length} keys: give the whole text at once, without a cache"
        if last is not None and not shape.causal:
            return "its mask is full: `last` is for causal layers"
        if last is not None and last >= shape.n:
            raise ScenarioError(f"`last` {last}: there are {shape.n} tokens; at least one must be left before them")
        if self.shape not in (None, shape):
            first = self.shape.difference(shape)
            return f"{shape.difference(self.shape)}; the first layer kept: {first}: capture it separately"
        return ""

    def _keep(self, call: Call, heads: list[int], tensors: list[Tensor]) -> tuple[float, str]:
        """Store q, k and v; return the error from rounding them, and the reason if they cannot be stored."""
        (query, key, value), causal = tensors, call.kind == "causal"
        if last := self.choice.last:
            query, key, value, causal = query[..., -last:, :], key[..., :-last, :], value[..., :-last, :], False
        dtype, rounding = getattr(torch, self.choice.dtype), 0.0
        stored = [array.to(dtype) for array in (query, key, value)]
        if not all(bool(array.isfinite().all()) for array in stored):
            return 0.0, f"has entries that {self.choice.dtype} cannot hold"
        if query.dtype != dtype:
            rows = checked_rows(query.shape[-2])
            exact, rounded = (exact_rows(arrays, causal, rows) for arrays in ((query, key, value), stored))
            errors, norms = (np.linalg.norm(array, axis=(-2, -1)) for array in (rounded - exact, exact))
            rounding = float((errors / np.maximum(norms, 1e-300)).max())
        self.shape = _shape(call)
        batch, run = len(query), self._run
        if len(self._texts) == self._first_text:  # of this run, one for each item of its batch
            names = [run.name] if batch == 1 else [f"{run.name}.{item}" for item in range(batch)]
            self._texts += [{"name": name, "sha256": run.sha256, "tokens": run.tokens} for name in names]
        texts = range(self._first_text, self._first_text + batch)
        self.kept[call.index] = batch * len(heads)
        self._labels += [(call.index, head, text) for text, head in itertools.product(texts, heads)]
        self.spool.add(**{role: _bits(array) for role, array in zip("qkv", stored, strict=True)})
        return rounding, ""

    def check_layers(self) -> None:
        """After a forward pass. Raises ScenarioError for layers of the choice that do not exist."""
        for layer in self.choice.layers or ():
            if not 0 <= layer < self._calls:
                raise ScenarioError(
                    f"`layers` {layer}: the model has layers 0 to {self._calls - 1}, in the order of calls"
                )

    def captured(self, name: str, about: Mapping[str, Any]) -> Captured:
        """All stored heads. Raises ModelError with the reason if there are none."""
        layers = tuple(_combined(parts) for _, parts in sorted(self.checked.items()))
        if self.shape is None:
            raise ModelError(
                f"{name}: nothing to capture: layer {layers[0].layer} ({layers[0].name}): {layers[0].reason}"
            )
        last, (causal, _, n, length, d, d_v) = self.choice.last, self.shape
        n, length = (last, length - last) if last else (n, length)
        shapes = {"q": (n, d), "k": (length, d), "v": (length, d_v)}
        query, key, value = (
            self.spool.array(role, (len(self._labels), *shape), self.choice.dtype) for role, shape in shapes.items()
        )
        kept = [layer for layer in layers if layer.heads]
        meta = {
            "format": 1, **about, "causal": causal and not last, "last": last, "texts": self._texts,
            "layers": [layer._asdict() for layer in kept], "dtype": self.choice.dtype,
            "rounding": max(layer.rounding for layer in kept),
        }  # fmt: skip
        layer, head, text = np.ascontiguousarray(np.array(self._labels, np.int32).T)
        return Captured(query, key, value, layer, head, text, layers, meta)


def _combined(parts: list[CapturedLayer]) -> CapturedLayer:
    """One layer on all inputs: its largest difference relative to the limit, and why some inputs were refused."""
    refused = [layer.reason for layer in parts if layer.reason]
    reason = refused[0] if refused else ""
    if 0 < len(refused) < len(parts):
        reason = f"on {len(refused)} of {len(parts)} inputs: {reason}"
    worst = max(parts, key=lambda layer: -1.0 if np.isnan(layer.difference) else layer.difference / layer.limit)
    heads, rounding = max(layer.heads for layer in parts), max(layer.rounding for layer in parts)
    return worst._replace(heads=heads, rounding=rounding, reason=reason)


def _shape(call: Call) -> HeadShape:
    batch, _, n, d = call.query.shape
    return HeadShape(call.kind == "causal", batch, n, call.key.shape[2], d, call.value.shape[3])


def _precision(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _numbers(tensor: Tensor) -> np.ndarray:
    """A tensor in NumPy: float32, or float64 if it has that precision."""
    return on_host(tensor.to(torch.promote_types(tensor.dtype, torch.float32)))


def _bits(tensor: Tensor) -> np.ndarray:
    """(batch, heads, rows, d) as (batch x heads, rows, d), bfloat16 as its bits."""
    flat = tensor.detach().cpu().reshape(-1, *tensor.shape[-2:]).contiguous()
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy()
