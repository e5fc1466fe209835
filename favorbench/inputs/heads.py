"""Heads of stored arrays: find q, k and v, the order of their axes, and the labels of the heads."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from favorbench.errors import InputError
from favorbench.inputs.base import Inputs
from favorbench.inputs.stored import GRADIENTS, LABELS, ROLES, SCALES, Contents, Stored

FLOATS = ("float64", "float32", "float16", "bfloat16")

#: Of an entry, and of the largest entry unless all are 0: q.k and |v|^2 stay far inside float64.
LARGEST, SMALLEST = 1e100, 1e-100

Layout = Literal["heads,L,d", "L,heads,d"]


@dataclass(frozen=True, eq=False)
class Axes:
    """An array (..., L, d) of heads, or (..., L, heads, d). axis: of the tokens."""

    name: str
    stored: Stored
    axis: int

    @property
    def leading(self) -> tuple[int, ...]:
        """Sizes of the axes of heads."""
        shape = self.stored.shape
        return (*shape[: self.axis], *shape[self.axis + 1 : -1])

    @property
    def length(self) -> int:
        """Tokens."""
        return self.stored.shape[self.axis]

    @property
    def dim(self) -> int:
        """The last axis."""
        return self.stored.shape[-1]

    def place(self, head: int) -> list[int | slice]:
        """The indices of a head in the axes of heads."""
        return [int(i) for i in np.unravel_index(head, self.leading)]

    def read(self, head: int, length: int) -> np.ndarray:
        """The first tokens of one head, (length, d), in the stored type."""
        place = self.place(head)
        place.insert(self.axis, slice(0, length))
        return self.stored.part(tuple(place))


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a file or of arrays in memory. name: for messages.

    causal: whether a query sees only the keys up to its own position; None if unknown. notes: conversions and warnings.
    gradients: of each head (draws, L, d_v), and factors (draws,) to multiply them by, or None. effect: their unit.
    """

    name: str
    query: Axes
    key: Axes
    value: Axes
    labels: tuple[str, ...]
    causal: bool | None
    notes: tuple[str, ...]
    gradients: tuple[Stored, Stored] | None = None
    effect: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are whole in memory: those given, and those of a compressed file."""
        stored = (self.query.stored, self.key.stored, self.value.stored, *(self.gradients or ()))
        return sum(array.source.nbytes for array in stored if isinstance(array.source, np.ndarray))

    @property
    def gradient_draws(self) -> int:
        """The number of gradients of each head; 0 without them."""
        return self.gradients[0].shape[-3] if self.gradients else 0

    def read(self, head: int, query_len: int, seq_len: int) -> Inputs:
        """One head in float64, checked. Raises InputError."""
        lengths = ((self.query, query_len), (self.key, seq_len), (self.value, seq_len))
        return Inputs(*(self._checked(axes, head, length) for axes, length in lengths))

    def read_gradients(self, head: int, query_len: int, seq_len: int) -> np.ndarray | None:
        """The gradients of one head in float64, checked; None without them, and for a part of the tokens."""
        if self.gradients is None or (query_len, seq_len) != (self.query.length, self.key.length):
            return None
        place = tuple(self.query.place(head))
        array, scales = (
            checked(self.name, f"array {name!r}, head {self.labels[head]},", stored.part(place))
            for name, stored in zip((GRADIENTS, SCALES), self.gradients, strict=True)
        )
        return array * scales[:, None, None]

    def check(self) -> None:
        """Read all heads, one at a time. Raises InputError for numbers that cannot be measured."""
        for head in range(len(self.labels)):
            self.read(head, self.query.length, self.key.length)
            self.read_gradients(head, self.query.length, self.key.length)

    def _checked(self, axes: Axes, head: int, length: int) -> np.ndarray:
        where = f"array {axes.name!r}" + (f", head {self.labels[head]}," if len(self.labels) > 1 else "")
        return checked(self.name, where, axes.read(head, length))


def checked(name: str, where: str, array: np.ndarray) -> np.ndarray:
    """Convert to float64. Raises InputError for NaN, infinite and huge numbers, and for numbers that are all tiny."""
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise InputError(f"{name}: {where} has {bad} values that are NaN or infinite")
    largest = float(np.max(np.abs(array)))
    if largest > LARGEST:
        raise InputError(f"{name}: {where} has values beyond {LARGEST:g}, whose products overflow")
    if 0 < largest < SMALLEST:
        raise InputError(f"{name}: {where} has only values below {SMALLEST:g}, whose squares underflow: scale them up")
    return array.astype(np.float64)


def heads_of(name: str, contents: Contents, layout: Layout = "heads,L,d") -> Heads:
    """The heads of some arrays. Raises InputError with the array and what is wrong with it."""
    arrays = contents.arrays
    query, key, value = roles = [_axes(name, role, arrays, layout) for role in ROLES]
    _check_fit(name, query, key, value)
    notes = [f"{a.name}: {a.stored.type} read as float64 (exact)" for a in roles if a.stored.type != "float64"]
    count = math.prod(query.leading)
    about = _about(contents.about)
    labels = _labels(query.leading, arrays, about)
    named = labels[0].startswith("L")  # by `layer` and `head`, which have the shape of the heads
    if query.leading and query.leading[-1] > query.length and not named:
        other = "L,heads,d" if layout == "heads,L,d" else "heads,L,d"
        notes.append(f"{count} heads of {query.length} tokens each: if it is the other way round, use `layout` {other}")
    causal = about.get("causal", _causal(arrays))
    remedy = "leave out the tokens that it masks" + "; if it hides later keys only, use `causal`" * (causal is None)
    notes += [f"{array!r} is not used: {remedy}" for array in arrays if "mask" in array.lower()]
    changing = re.compile("bias|scal|sink|slope|window|softcap", re.IGNORECASE)
    others = [array for array in arrays if array != SCALES and changing.search(array)]
    notes += [f"{array!r} is not used: heads are measured as softmax(q k^T / sqrt(d)) v" for array in others]
    flags = [array for array in arrays if array != "causal" and array.lower() in ("causal", "is_causal")]
    notes += [f"{array!r} is not used: call it 'causal'" for array in flags]
    if causal is not None and type(causal) is not bool:
        raise InputError(f"{name}: causal is {causal!r} in it; allowed: true or false")
    gradients = _gradients(name, arrays, query, value)
    if "layer" in arrays and not named:
        shape = " x ".join(map(str, query.leading)) or 1
        notes.append(
            f"`layer` and `head` are not used: labels take {shape} integers from 0 to 1000000 in each, no pair twice"
        )
    effect = str(about.get("effect", "loss")) if gradients else ""
    return Heads(name, query, key, value, labels, causal, tuple(notes), gradients, effect)


def _gradients(name: str, arrays: Mapping[str, Stored], query: Axes, value: Axes) -> tuple[Stored, Stored] | None:
    """The gradients of all heads and their factors; None without them. Raises InputError where they do not fit."""
    if (gradients := arrays.get(GRADIENTS)) is None:
        return None
    shape, scales, draws = gradients.shape, arrays.get(SCALES), gradients.shape[len(query.leading) :][:1]
    expected = (*query.leading, *(draws or (1,)), query.length, value.dim)
    for array, values, fits in ((GRADIENTS, gradients, expected), (SCALES, scales, expected[:-2])):
        has = "missing" if values is None else f"{values.type} of shape {values.shape}"
        if values is None or values.shape != fits or values.type not in FLOATS or not math.prod(shape):
            raise InputError(
                f"{name}: array {array!r} is {has}; its q, k and v need floating-point numbers of shape {fits}: "
                "capture the heads again with `gradients`, or leave the array out"
            )
    assert scales is not None
    return gradients, scales


def _axes(name: str, role: str, arrays: Mapping[str, Stored], layout: Layout) -> Axes:
    """The array of a role, called "query" or "q". Raises InputError."""
    found = [key for key in (role[0], role) if key in arrays]
    if len(found) != 1:
        has = ", ".join(map(repr, arrays)) or "nothing"
        what = f"both {role[0]!r} and {role!r}, of which one is due" if found else f"no array {role[0]!r} (or {role!r})"
        raise InputError(f"{name}: {what}; the file has {has}")
    (known,) = found
    check_type(name, f"array {known!r}", arrays[known])
    axes = len(arrays[known].shape)
    return Axes(known, arrays[known], axes - 3 if layout == "L,heads,d" and axes > 2 else axes - 2)


def check_type(name: str, where: str, stored: Stored) -> None:
    """Raise InputError unless these are floating-point numbers in 2, 3 or 4 axes."""
    if stored.type not in FLOATS:
        raise InputError(
            f"{name}: {where} is {stored.type}; it must be float64, float32, float16 or bfloat16"
            ": convert it, e.g. with .astype('float32')"
        )
    if len(stored.shape) not in (2, 3, 4):
        raise InputError(
            f"{name}: {where} has shape {stored.shape}; allowed: (L, d), (heads, L, d), (batch, heads, L, d), or with "
            "`layout` L,heads,d: (L, heads, d), (batch, L, heads, d)"
        )
    if not math.prod(stored.shape):
        raise InputError(f"{name}: {where} has shape {stored.shape}: an axis is empty")


def _check_fit(name: str, query: Axes, key: Axes, value: Axes) -> None:
    leading = {role: axes.leading for role, axes in zip(ROLES, (query, key, value), strict=True)}
    if len(set(leading.values())) > 1:
        raise InputError(f"{name}: q, k and v differ in their leading axes: {leading}; repeat grouped heads first")
    if query.dim != key.dim:
        raise InputError(f"{name}: q has head_dim {query.dim} and k has {key.dim}; they must be equal")
    if key.length != value.length:
        raise InputError(f"{name}: k has {key.length} tokens and v has {value.length}; they must be equal")


def _about(text: str | None) -> dict[str, Any]:
    """The description in a file of captured heads; empty for other texts."""
    try:
        description = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return description if isinstance(description, dict) else {}


def _causal(arrays: Mapping[str, Stored]) -> Any:
    """A flag ``causal`` next to the arrays, as numpy.savez writes it; any other value is refused by the caller."""
    flag = arrays.get("causal")
    if flag is None:
        return None
    if flag.shape not in ((), (1,)):
        return f"{flag.type} of shape {flag.shape}"
    value = flag.whole().item()  # a text "false" is no flag, and neither is NaN
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else value


def _labels(leading: tuple[int, ...], arrays: Mapping[str, Stored], about: Mapping[str, Any]) -> tuple[str, ...]:
    """L0H5 from ``layer`` and ``head``, L0H5@cc0 or L0H5@0 of several texts; otherwise h5, or b0h5 in a batch."""
    layer, head, text = (_integers(arrays.get(name), leading) for name in LABELS)
    if layer and head:
        labels = [f"L{i}H{j}" for i, j in zip(layer, head, strict=True)]
        if len(set(text)) > 1:
            names = {i: str(i) for i in text} | _text_names(about.get("texts"))
            if len({names[i] for i in text}) < len(set(text)):  # shortened, two may be equal
                names = {i: str(i) for i in text}
            labels = [f"{label}@{names[i]}" for label, i in zip(labels, text, strict=True)]
        if len(set(labels)) == len(labels):
            return tuple(labels)
    if len(leading) == 2:
        return tuple(f"b{i}h{j}" for i, j in np.ndindex(leading))
    return tuple(f"h{i}" for i in range(math.prod(leading)))


def head_and_text(label: str) -> tuple[str, str]:
    """The head and the text in "L0H5@text", or in "b3h5": each member of a batch is a text."""
    batch = re.fullmatch(r"(b\d+)(h\d+)", label)
    head, _, text = label.partition("@")
    return (batch[2], batch[1]) if batch else (head, text)


def _integers(array: Stored | None, leading: tuple[int, ...]) -> Sequence[int]:
    """The integers of an array with one for each head, from 0 to 10^6; empty for any other array."""
    if array is None or array.shape != leading or np.dtype(array.numpy_type).kind not in "iu":
        return ()
    numbers = array.whole().ravel().tolist()
    return numbers if all(0 <= number <= 1_000_000 for number in numbers) else ()


def _text_names(texts: object) -> dict[int, str]:
    """The names of texts by number, without characters that a list with commas could not hold."""
    names = [text.get("name") if isinstance(text, dict) else None for text in texts] if isinstance(texts, list) else []
    return {i: re.sub(r"[^\w.-]", "_", name)[:40] for i, name in enumerate(names) if isinstance(name, str) and name}
