"""Captured heads and their files. On the way heads are kept on disk: they may be larger than memory."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from favorbench.errors import ScenarioError, StoreError
from favorbench.files import written_whole
from favorbench.inputs.heads import GRADIENTS, SCALES
from favorbench.inputs.stored import write_npz

SUFFIXES = (".npz", ".safetensors")
DTYPES = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}

_CHUNK = 1 << 24  # bytes
_SAFETENSORS = {"<f4": "F32", "<f2": "F16", "<u2": "BF16", "<i4": "I32"}


class CapturedLayer(NamedTuple):
    """One attention of a model: its number in the order of calls, its name, its mask, and the result of the check.

    heads: how many were kept. difference: between its own output and exact attention of the captured rows, relative to
    the largest entry, and limit: what rounding explains; both of the head and the input that come closest to it.
    rounding: the relative change of the output by storing 16 bits. reason: why it was refused, "" if it was not.
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


@dataclass(frozen=True, eq=False)
class Captured:
    """Heads of a model: softmax(q k^T / sqrt(d)) v is the output of its own attention, up to rounding.

    query (heads, n, d), key (heads, l, d), value (heads, l, d_v), mapped from disk; bfloat16 as its 16 bits. layer,
    head, text (heads,): where each comes from. layers: the result for each layer, refused ones too. meta: what the file
    holds in addition to the arrays. gradients (heads, draws, n, d_v), to be multiplied by gradient_scales (heads,
    draws): for them the mean over draws of (sum over rows of gradient . error)^2 / 2 is the effect of an error.
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
        """Write PATH.npz or PATH.safetensors, in chunks, whole or not at all. Raises ScenarioError, StoreError."""
        check_path(Path(path), self.meta["dtype"])
        write_heads(Path(path), self._named(), self.meta)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of its .npz file, for the inputs of a sweep; bfloat16 as float32, which is exact."""
        names = self._named()
        if self.meta["dtype"] == "bfloat16":
            names |= {name: (names[name].astype(np.uint32) << 16).view(np.float32) for name in "qkv"}
        return names | {"meta": np.array(json.dumps(self.meta, sort_keys=True))}


class Spool:
    """Rows of heads in unnamed temporary files, for q, k, v and gradients, which are deleted at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: on the disk that has the space. Raises StoreError."""
        self.folder = folder or tempfile.gettempdir()
        try:
            self.files = {role: tempfile.TemporaryFile(dir=folder) for role in (*"qkv", GRADIENTS)}  # noqa: SIM115
        except OSError as error:
            raise StoreError(f"cannot write in {self.folder}: {error.strerror or error}") from None

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()

    def add(self, **heads: np.ndarray) -> None:
        """Append arrays q, k and v (heads, rows, d). Raises StoreError."""
        try:
            for role, array in heads.items():
                np.ascontiguousarray(array).tofile(self.files[role])
        except OSError as error:
            raise StoreError(f"cannot keep the captured heads: {error.strerror or error}") from None

    def put_gradients(self, first: int, draws: int, draw: int, heads: np.ndarray) -> None:
        """Write one of the gradients of each of some heads (heads, rows, d) as float16. Raises StoreError."""
        file = self.files[GRADIENTS]
        try:
            for number, head in enumerate(heads.astype(DTYPES["float16"]), first):
                file.seek((number * draws + draw) * head.nbytes)
                head.tofile(file)
        except OSError as error:
            raise StoreError(f"cannot keep the gradients: {error.strerror or error}") from None

    def array(self, role: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Everything that was added, mapped into memory; it stays readable when the spool is closed."""
        self.files[role].flush()
        return np.memmap(self.files[role], DTYPES[dtype], "r", shape=shape)


def check_path(path: Path, dtype: str) -> None:
    """Raise ScenarioError for a file that cannot hold captured heads."""
    if path.suffix not in SUFFIXES:
        raise ScenarioError(f"`out` {path}: allowed are files that end in {' or '.join(SUFFIXES)}")
    if dtype == "bfloat16" and path.suffix == ".npz":
        raise ScenarioError(f"`out` {path}: .npz files have no bfloat16: use .safetensors, or `dtype` float16")


def write_heads(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write a .npz or .safetensors file with these arrays and ``meta`` as JSON, in chunks, whole or not at all.

    The same heads give the same bytes. 16-bit integers are bfloat16, which only .safetensors has. Raises StoreError.
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
