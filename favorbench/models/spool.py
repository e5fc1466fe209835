"""Heads on their way into a file, by way of the disk: they may be larger than memory."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from favorbench.errors import StoreError
from favorbench.files import written_whole
from favorbench.inputs.stored import write_npz

ROLES = ("q", "k", "v")
SUFFIXES = (".npz", ".safetensors")
DTYPES = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}

_PIECE = 1 << 24  # bytes
_SAFETENSORS = {"<f4": "F32", "<f2": "F16", "<u2": "BF16", "<i4": "I32"}


class Spool:
    """Rows of heads in nameless files, one for each of q, k and v: what is not mapped when it is left is gone."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: on the disk that has the space. Raises StoreError."""
        try:
            self.files = {role: tempfile.TemporaryFile(dir=folder) for role in ROLES}  # noqa: SIM115
        except OSError as error:
            raise StoreError(f"cannot write in {folder or tempfile.gettempdir()}: {error.strerror or error}") from None

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()

    def add(self, **heads: np.ndarray) -> None:
        """Arrays q, k and v (heads, rows, d) behind those that are there. Raises StoreError."""
        try:
            for role, array in heads.items():
                np.ascontiguousarray(array).tofile(self.files[role])
        except OSError as error:
            raise StoreError(f"cannot keep the captured heads: {error.strerror or error}") from None

    def array(self, role: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """All that was added, mapped into memory as it is read, also when this is left."""
        self.files[role].flush()
        return np.memmap(self.files[role], DTYPES[dtype], "r", shape=shape)


def write_heads(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """A .npz or .safetensors file with these arrays and ``meta`` as JSON, in pieces, whole or not at all.

    The same heads give the same bytes. 16-bit integers are bfloat16, which only .safetensors has. Raises StoreError.
    """
    text = json.dumps(meta, sort_keys=True)
    with written_whole(path) as file:
        if path.suffix == ".npz":
            write_npz(file, {**arrays, "meta": np.array(text)})
        else:
            _write_safetensors(file, arrays, text)


def _write_safetensors(file: Any, arrays: Mapping[str, np.ndarray], meta: str) -> None:
    """Eight bytes of length, a header in JSON padded to eight bytes, and the arrays one behind the other."""
    header: dict[str, Any] = {"__metadata__": {"meta": meta}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        kind = _SAFETENSORS[array.dtype.str]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        flat = array.reshape(-1)
        step = max(1, _PIECE // array.itemsize)
        for start in range(0, flat.size, step):
            file.write(flat[start : start + step].tobytes())
