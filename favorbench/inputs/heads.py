"""Heads of stored arrays: which are q, k and v, in which order their axes are, what the heads are called."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from favorbench.errors import InputError
from favorbench.inputs.base import Inputs
from favorbench.inputs.stored import Contents, Stored

LARGEST = 1e100  # of an entry: q.k and |v|^2 stay far inside float64

Layout = Literal["heads,L,d", "L,heads,d"]

#: What three arrays are, by name or by its first letter.
ROLES = ("query", "key", "value")

_NAMES = {role: (role[0], role) for role in ROLES}


@dataclass(frozen=True, eq=False)
class Axes:
    """An array (..., L, d) of heads, or (..., L, heads, d)."""

    name: str
    stored: Stored
    layout: Layout

    @property
    def leading(self) -> tuple[int, ...]:
        """Sizes of the axes of heads."""
        shape = self.stored.shape
        return (*shape[:-3], shape[-2]) if self._length_first else shape[:-2]

    @property
    def length(self) -> int:
        """Tokens."""
        return self.stored.shape[-3 if self._length_first else -2]

    @property
    def dim(self) -> int:
        """The last axis."""
        return self.stored.shape[-1]

    @property
    def _length_first(self) -> bool:
        return self.layout == "L,heads,d" and len(self.stored.shape) > 2

    def read(self, head: int, length: int) -> np.ndarray:
        """The first tokens of one head, (length, d), as they are stored."""
        places: list[int | slice] = [int(i) for i in np.unravel_index(head, self.leading)] if self.leading else []
        places.insert(len(places) - 1 if self._length_first else len(places), slice(0, length))
        return self.stored.part(tuple(places))


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a file or of arrays in memory; name: what they are called in messages.

    causal: whether a query sees the keys up to its own position only, where that is known. notes: what was converted,
    and what else is to be known.
    """

    name: str
    query: Axes
    key: Axes
    value: Axes
    labels: tuple[str, ...]
    causal: bool | None
    notes: tuple[str, ...]

    def read(self, head: int, query_len: int, seq_len: int) -> Inputs:
        """One head in float64, checked. Raises InputError."""
        lengths = ((self.query, query_len), (self.key, seq_len), (self.value, seq_len))
        return Inputs(*(self._checked(axes, head, length) for axes, length in lengths))

    def check(self) -> None:
        """Read all of it, a head at a time. Raises InputError for what cannot be measured."""
        for head in range(len(self.labels)):
            self.read(head, self.query.length, self.key.length)

    def _checked(self, axes: Axes, head: int, length: int) -> np.ndarray:
        where = f"array {axes.name!r}" + (f", head {self.labels[head]}," if len(self.labels) > 1 else "")
        return checked(self.name, where, axes.read(head, length))


def checked(name: str, where: str, array: np.ndarray) -> np.ndarray:
    """The numbers in float64, if they can be measured. Raises InputError."""
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise InputError(f"{name}: {where} has {bad} values that are NaN or infinite")
    if float(np.max(np.abs(array))) > LARGEST:
        raise InputError(f"{name}: {where} has values beyond {LARGEST:g}, whose products overflow")
    return array.astype(np.float64)


def heads_of(name: str, contents: Contents, layout: Layout = "heads,L,d") -> Heads:
    """The heads of some arrays. Raises InputError with the array and what is wrong with it."""
    arrays, found, notes = contents.arrays, {}, []
    for role, names in _NAMES.items():
        present = [one for one in names if one in arrays]
        if not present:
            has = ", ".join(map(repr, arrays)) or "nothing"
            raise InputError(f"{name}: no array {names[0]!r} (or {names[1]!r}); the file has {has}")
        found[role] = Axes(present[0], arrays[present[0]], layout)
        check_type(name, f"array {present[0]!r}", found[role].stored)
        if found[role].stored.type != "float64":
            notes.append(f"{present[0]}: {found[role].stored.type} read as float64 (exact)")
    query, key, value = found["query"], found["key"], found["value"]
    _check_fit(name, query, key, value)
    count = math.prod(query.leading)
    if len(query.leading) and query.leading[-1] > query.length:
        other = "L,heads,d" if layout == "heads,L,d" else "heads,L,d"
        notes.append(f"{count} heads of {query.length} tokens each: if it is the other way round, use `layout` {other}")
    if (named := arrays.get("layer")) is not None and math.prod(named.shape) != count:
        notes.append(f"`layer` has {math.prod(named.shape)} numbers for {count} heads, and is not used")
    about = _about(contents.about)
    causal = about.get("causal", _causal(arrays))
    if causal is not None and type(causal) is not bool:
        raise InputError(f"{name}: `causal` is {causal!r} in it; allowed: true or false")
    return Heads(name, query, key, value, _labels(query.leading, arrays, about), causal, tuple(notes))


def check_type(name: str, where: str, stored: Stored) -> None:
    """Raise InputError unless these are floating-point numbers in 2, 3 or 4 axes."""
    if stored.type not in ("float64", "float32", "float16", "bfloat16"):
        raise InputError(f"{name}: {where} is {stored.type}; it must be float64, float32, float16 or bfloat16")
    if len(stored.shape) not in (2, 3, 4):
        raise InputError(
            f"{name}: {where} has shape {stored.shape}; allowed: (L, d), (heads, L, d), (batch, heads, L, d), or with "
            "`layout` L,heads,d: (L, heads, d), (batch, L, heads, d)"
        )
    if not math.prod(stored.shape):
        raise InputError(f"{name}: {where} has shape {stored.shape}: an axis is empty")


def _check_fit(name: str, query: Axes, key: Axes, value: Axes) -> None:
    leading = {role: axes.leading for role, axes in (("query", query), ("key", key), ("value", value))}
    if len(set(leading.values())) > 1:
        raise InputError(f"{name}: q, k and v differ in their leading axes: {leading}; repeat grouped heads first")
    if query.dim != key.dim:
        raise InputError(f"{name}: q has head_dim {query.dim} and k has {key.dim}; they must be equal")
    if key.length != value.length:
        raise InputError(f"{name}: k has {key.length} tokens and v has {value.length}; they must be equal")


def _about(text: str | None) -> dict[str, Any]:
    """What a file of captured heads says of itself; nothing for other texts of that name."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _causal(arrays: Mapping[str, Stored]) -> bool | None:
    """A flag ``causal`` beside the arrays, as numpy.savez writes it."""
    flag = arrays.get("causal")
    return None if flag is None or flag.shape not in ((), (1,)) else bool(flag.whole().item())


def _labels(leading: tuple[int, ...], arrays: Mapping[str, Stored], about: Mapping[str, Any]) -> tuple[str, ...]:
    """L0H5 from ``layer`` and ``head``, L0H5@cc0 where there are several texts; else h5, or b0h5 of a batch."""
    layer, head, text = (_whole_numbers(arrays.get(name), leading) for name in ("layer", "head", "text"))
    if layer is not None and head is not None:
        labels = [f"L{i}H{j}" for i, j in zip(layer, head, strict=True)]
        if text is not None and len(set(text)) > 1:
            names = _text_names(about)
            labels = [f"{label}@{names.get(i, i)}" for label, i in zip(labels, text, strict=True)]
        if len(set(labels)) == len(labels):
            return tuple(labels)
    if len(leading) == 2:
        return tuple(f"b{i}h{j}" for i in range(leading[0]) for j in range(leading[1]))
    return tuple(f"h{i}" for i in range(leading[0])) if leading else ("h0",)


def _whole_numbers(array: Stored | None, leading: tuple[int, ...]) -> Sequence[int] | None:
    """The numbers of an array such as one for each head has; None of any other."""
    if array is None or array.shape != leading or np.dtype(array.numpy_type).kind not in "iu":
        return None
    return array.whole().ravel().tolist()


def _text_names(about: Mapping[str, Any]) -> dict[int, str]:
    """The names of texts by number, fit for a list with commas."""
    texts = about.get("texts")
    return dict(_named(texts)) if isinstance(texts, list) else {}


def _named(texts: list[Any]) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(texts):
        if isinstance(text, dict) and isinstance(text.get("name"), str) and text["name"]:
            yield number, re.sub(r"[^\w.-]", "_", text["name"])[:40]
