"""Queries, keys and values from a file: .npz or .safetensors."""

import functools
import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from favorbench.errors import InputError, ScenarioError
from favorbench.files import open_regular, read_regular
from favorbench.inputs.base import Head, InputLaw, Inputs

LARGEST = 1e100  # of an entry: q.k and |v|^2 stay far inside float64

#: NumPy's types for those of a .safetensors file.
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip

_NAMES = {"query": ("q", "query"), "key": ("k", "key"), "value": ("v", "value")}


class _Contents(NamedTuple):
    """The file's heads: arrays (heads, length, dim) in float64, a label each, and what was converted."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    labels: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class File(InputLaw):
    """Heads of a file with arrays q, k, v (or query, key, value), before any scaling by 1/sqrt(d).

    Shapes (heads, L, d), (batch, heads, L, d) or (L, d); each head is one input. Lengths of q and k may differ.
    Integer arrays ``layer`` and ``head`` of shape (heads,), if there, give the labels. Nothing is ever unpickled.
    """

    path: str
    label: str = ""
    name: ClassVar[str] = "file"
    description: ClassVar[str] = (
        "PATH.npz or PATH.safetensors with arrays q, k, v: (heads, L, d), (batch, heads, L, d), (L, d)"
    )
    fixed: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = (".npz", ".safetensors")

    def heads(self, seq_lens: tuple[int, ...] | None, head_dims: tuple[int, ...] | None) -> tuple[Head, ...]:
        contents = _contents(self.path)
        _, query_len, dim = contents.query.shape
        seq_len, name = contents.key.shape[1], self.label or self.path
        for asked in head_dims or ():
            if asked != dim:
                raise ScenarioError(
                    f"`head_dim` {asked} was asked for, but {name} has head_dim {dim}: leave `head_dim` out"
                )
        for asked in seq_lens or ():
            if asked > min(query_len, seq_len):
                raise ScenarioError(
                    f"`seq_len` {asked} was asked for, but {name} has {min(query_len, seq_len)} tokens: "
                    f"ask for at most that, or leave `seq_len` out"
                )
        lengths = [(n, n) for n in seq_lens] if seq_lens else [(query_len, seq_len)]
        d_v = contents.value.shape[-1]
        return tuple(
            Head(label, n, m, dim, None if d_v == dim else d_v) for n, m in lengths for label in contents.labels
        )

    def draw(self, rng: np.random.Generator, head: Head, rows: np.ndarray | None = None) -> Inputs:
        contents = _contents(self.path)
        i = contents.labels.index(head.label)
        query = contents.query[i, : head.query_len]
        query = query.copy() if rows is None else query[rows]
        return Inputs(query, contents.key[i, : head.seq_len].copy(), contents.value[i, : head.seq_len].copy())

    def digest(self) -> str:
        with open_regular(self.path, "inputs") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def notes(self) -> tuple[str, ...]:
        """What was converted while reading, in words."""
        return _contents(self.path).notes


def read_bytes(path: str, what: str = "inputs") -> bytes:
    """The contents of a regular file. Raises InputError."""
    return read_regular(path, what)


def _contents(path: str) -> _Contents:
    """The file's heads, read once as long as it does not change."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read inputs {path!r}: {error.strerror}") from None
    return _read(path, (str(Path(path).resolve()), status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=4)
def _read(path: str, version: tuple[str, int, int]) -> _Contents:
    """Read and check a file of heads. Raises InputError with the file, the array and what is wrong with it."""
    arrays, types = _load(path)
    notes: list[str] = []
    found: dict[str, np.ndarray] = {}
    for role, names in _NAMES.items():
        present = [name for name in names if name in arrays]
        if not present:
            has = ", ".join(map(repr, arrays)) or "nothing"
            raise InputError(f"{path}: no array {names[0]!r} (or {names[1]!r}); the file has {has}")
        found[role] = checked_array(path, present[0], arrays[present[0]], notes, types.get(present[0]))
    query, key, value = found["query"], found["key"], found["value"]
    leading = {role: array.shape[:-2] for role, array in found.items()}
    if len(set(leading.values())) > 1:
        raise InputError(f"{path}: q, k and v differ in their leading axes: {leading}; repeat grouped heads first")
    if query.shape[-1] != key.shape[-1]:
        raise InputError(f"{path}: q has head_dim {query.shape[-1]} and k has {key.shape[-1]}; they must be equal")
    if key.shape[-2] != value.shape[-2]:
        raise InputError(f"{path}: k has {key.shape[-2]} tokens and v has {value.shape[-2]}; they must be equal")
    labels = _labels(query.shape[:-2], arrays)
    query, key, value = (a.reshape(-1, *a.shape[-2:]) for a in (query, key, value))
    return _Contents(query, key, value, labels, tuple(notes))


def _load(path: str) -> tuple[Mapping[str, np.ndarray], Mapping[str, str]]:
    """The arrays of a file, and the types of those that NumPy has no type for."""
    data, suffix = read_bytes(path), Path(path).suffix.lower()
    try:
        return (_of_npz(data), {}) if suffix == ".npz" else _of_safetensors(data)
    except Exception as error:  # zip, npy and safetensors readers fail in many ways; all mean: not such a file
        reason = str(error) or type(error).__name__
        reason = "it holds Python objects (pickle), which are never read" if "pickle" in reason else reason
        raise InputError(f"cannot read {path!r} as {suffix[1:]}: {reason}") from None


def _of_npz(data: bytes) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ValueError("it is not an .npz archive, or it is cut short")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _of_safetensors(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """As safetensors.numpy reads them, and also bfloat16: its 16 bits are the upper half of a float32."""
    from safetensors import deserialize

    arrays, types = {}, {}
    for name, tensor in deserialize(data):
        kind, shape = tensor["dtype"], tensor["shape"]
        if kind == "BF16":
            halves = np.frombuffer(tensor["data"], "<u2").astype(np.uint32)
            arrays[name], types[name] = (halves << 16).view(np.float32).reshape(shape), "bfloat16"
        elif kind in _TYPES:
            arrays[name] = np.frombuffer(tensor["data"], _TYPES[kind]).reshape(shape)
        else:  # 8 bits and fewer: their bytes; to be refused by its name where it is q, k or v
            arrays[name], types[name] = np.frombuffer(tensor["data"], np.uint8), kind
    return arrays, types


def checked_array(path: str, name: str, array: np.ndarray, notes: list[str], stored: str | None = None) -> np.ndarray:
    """The array in float64, if it can be measured; notes: what was converted. Raises InputError.

    stored: its type in the file, where NumPy has none such.
    """
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: {name!r} is not an array")
    stored = stored or str(array.dtype)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise InputError(f"{path}: array {name!r} is {stored}; it must be float64, float32, float16 or bfloat16")
    if array.ndim not in (2, 3, 4):
        raise InputError(
            f"{path}: array {name!r} has shape {array.shape}; allowed: (L, d), (heads, L, d), (batch, heads, L, d)"
        )
    if array.size == 0:
        raise InputError(f"{path}: array {name!r} has shape {array.shape}: an axis is empty")
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise InputError(f"{path}: array {name!r} has {bad} values that are NaN or infinite")
    if float(np.max(np.abs(array))) > LARGEST:
        raise InputError(f"{path}: array {name!r} has values beyond {LARGEST:g}, whose products overflow")
    if array.dtype != np.float64:
        notes.append(f"{name}: {stored} read as float64 (exact)")
    return array.astype(np.float64)


def _labels(leading: tuple[int, ...], arrays: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    layer, head = arrays.get("layer"), arrays.get("head")
    if layer is not None and head is not None and layer.shape == head.shape == leading and layer.dtype.kind in "iu":
        labels = tuple(f"L{i}H{j}" for i, j in zip(layer.ravel(), head.ravel(), strict=True))
        if len(set(labels)) == len(labels):
            return labels
    if len(leading) == 2:
        return tuple(f"b{i}h{j}" for i in range(leading[0]) for j in range(leading[1]))
    return tuple(f"h{i}" for i in range(leading[0])) if leading else ("h0",)
