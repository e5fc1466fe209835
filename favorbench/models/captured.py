"""Captured heads and their files. During capture heads are stored on disk, because they may exceed memory."""

import contextlib
import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.errors import ScenarioError, StoreError
from favorbench.files import written_whole
from favorbench.inputs.stored import GRADIENTS, SCALES, write_npz

SUFFIXES = (".npz", ".safetensors")
DTYPES = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}

_CHUNK = 1 << 24  # bytes
_SAFETENSORS = {"<f4": "F32", "<f2": "F16", "<u2": "BF16", "<i4": "I32"}


class CapturedLayer(NamedTuple):
    """One attention layer of a model, and the result of its check.

    layer: its number, in the order of calls. heads: the number of stored heads. difference: of the model's output from
    exact attention of the captured rows, relative to the largest entry. limit: the difference that rounding explains.
    Both are those of the head and input with the largest difference / limit. rounding: the relative change of the
    output from storing 16 bits. reason: why the layer was refused, "" if it was stored.
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

    @property
    def refusal(self) -> str:
        """A sentence on what is not captured, and why; empty where all heads are."""
        left = f"layer {self.layer} ({self.name}) is {'in part' if self.heads else 'not'} captured: {self.reason}"
        return left if self.reason else ""


@dataclass(frozen=True, eq=False)
class Captured:
    """Heads of a model: softmax(q k^T / sqrt(d)) v is the output of its own attention, up to rounding.

    query (heads, n, d), key (heads, l, d), value (heads, l, d_v): memory maps; bfloat16 as 16-bit integers. layer,
    head, text (heads,): the origin of each head. layers: the result for each layer, including refused ones. meta: the
    metadata of the file. gradients (heads, draws, n, d_v) have to be multiplied by gradient_scales (heads, draws). The
    effect of an error is then the mean over draws of (sum over rows of gradient . error)^2 / 2.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    layer: np.ndarray
    head: np.ndarray
    text: np.ndarray
    layers: tuple[CapturedLayer, ...]
    meta: dict[str, Any]
    gradients: np.ndarray | None = None
    gradient_scales: np.ndarray | None = None

    @property
    def causal(self) -> bool:
        """Whether a query sees the keys up to its own position only."""
        return self.meta["causal"]

    def _named(self) -> dict[str, np.ndarray]:
        names = {
            "q": self.query, "k": self.key, "v": self.value, "layer": self.layer, "head": self.head, "text": self.text,
            GRADIENTS: self.gradients, SCALES: self.gradient_scales,
        }  # fmt: skip
        return {name: array for name, array in names.items() if array is not None}

    def save(self, path: str | Path) -> None:
        """Write PATH.npz or PATH.safetensors atomically, in chunks. Raises ScenarioError, StoreError."""
        check_path(Path(path), self.meta["dtype"])
        write_heads(Path(path), self._named(), self.meta)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of its .npz file, for the inputs of a sweep; bfloat16 as float32, which is exact."""
        names = self._named()
        if self.meta["dtype"] == "bfloat16":
            names |= {name: (names[name].astype(np.uint32) << 16).view(np.float32) for name in "qkv"}
        return names | {"meta": np.array(json.dumps(self.meta, sort_keys=True))}


class Spool(contextlib.ExitStack):
    """Unnamed temporary files with the rows of q, k, v and gradients; they are deleted when closed."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: a directory on a disk with enough space. Raises StoreError."""
        super().__init__()
        self.folder = folder or tempfile.gettempdir()
        try:
            roles = (*"qkv", GRADIENTS)
            unbuffered = partial(tempfile.TemporaryFile, buffering=0, dir=folder)
            self.files = {role: self.enter_context(unbuffered()) for role in roles}
        except OSError as error:
            raise StoreError(f"cannot write in {self.folder}: {error.strerror or error}") from None

    def add(self, **heads: np.ndarray) -> None:
        """Append arrays q, k and v (heads, rows, d). Raises StoreError."""
        try:
            for role, array in heads.items():
                _write(self.files[role], array)
        except OSError as error:
            raise StoreError(f"cannot store the captured heads in {self.folder}: {error.strerror or error}") from None

    def put_gradients(self, first: int, draws: int, draw: int, heads: np.ndarray) -> None:
        """Write gradient number ``draw`` of consecutive heads (heads, rows, d) as float16. Raises StoreError."""
        file = self.files[GRADIENTS]
        try:
            for number, head in enumerate(heads.astype(DTYPES["float16"]), first):
                file.seek((number * draws + draw) * head.nbytes)
                _write(file, head)
        except OSError as error:
            raise StoreError(f"cannot store the gradients in {self.folder}: {error.strerror or error}") from None

    def array(self, role: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Memory-map everything that was added. The map stays readable after the spool is closed."""
        return np.memmap(self.files[role], DTYPES[dtype], "r", shape=shape)


def _write(file: io.FileIO, array: np.ndarray) -> None:
    """Write an array whole. Raises OSError: NumPy's tofile loses the last 4 KiB on a full disk without a word."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while data:
        data = data[file.write(data) :]


def check_path(path: Path, dtype: str) -> None:
    """Raise ScenarioError for a file that cannot hold captured heads."""
    if path.suffix not in SUFFIXES:
        raise ScenarioError(f"`out` {path}: allowed are files that end in {' or '.join(SUFFIXES)}")
    if dtype == "bfloat16" and path.suffix == ".npz":
        raise ScenarioError(f"`out` {path}: .npz files have no bfloat16: use .safetensors, or `dtype` float16")


def write_heads(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write a .npz or .safetensors file atomically, in chunks, with ``meta`` as JSON.

    Equal arrays give equal bytes. 16-bit integers are bfloat16, which only .safetensors supports. Raises StoreError.
    """
    text = json.dumps(meta, sort_keys=True)
    with written_whole(path) as file:
        if path.suffix == ".npz":
            write_npz(file, {**arrays, "meta": np.array(text)})
            return
        # Eight bytes of length, a header in JSON padded to eight bytes, and the arrays one after the other.
        header, end = dict[str, Any](__metadata__={"meta": text}), 0
        for name, array in arrays.items():
            start, end = end, end + array.nbytes
            dtype = _SAFETENSORS[array.dtype.str]
            header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
        data = json.dumps(header).encode()
        data += b" " * (-len(data) % 8)
        file.write(len(data).to_bytes(8, "little") + data)
        for array in arrays.values():
            flat, step = array.reshape(-1), _CHUNK // array.itemsize
            for start in range(0, flat.size, step):
                file.write(flat[start : start + step].tobytes())
