"""Arrays of a file or in memory, read in parts: a file may be larger than memory."""

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from favorbench.errors import InputError, ScenarioError
from favorbench.files import matching, open_regular
from favorbench.numerics.machine import check_memory

#: NumPy's types for those of a .safetensors file; a bfloat16 is the upper half of a float32.
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip

BLOCK = 4 << 20  # bytes read at a time if a part of an array is scattered over the file

#: The names of the three arrays; the first letter is enough.
ROLES = ("query", "key", "value")

#: The names of the arrays that ``capture --gradients`` adds: (heads, draws, L, d_v), and a factor (heads, draws).
GRADIENTS, SCALES = "gradients", "gradient_scales"

#: The names of the integers that label the heads.
LABELS = ("layer", "head", "text")

#: The arrays that are read; of others only the names matter.
USED = {*ROLES, *"qkv", *LABELS, GRADIENTS, SCALES, "causal", "meta"}

PICKLED = "it holds Python objects (pickle), which are never read"


@dataclass(frozen=True, eq=False)
class Stored:
    """An array of numbers that is read in parts. type: NumPy's name, if it has one. source: the array, or its place."""

    shape: tuple[int, ...]
    type: str
    numpy_type: str
    source: "np.ndarray | ArrayLocation"

    @staticmethod
    def of(array: np.ndarray) -> "Stored":
        """An array in memory."""
        return Stored(array.shape, str(array.dtype), array.dtype.str, array)

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        """Read array[index] into a new array; nothing else of a file stays in memory."""
        if isinstance(self.source, np.ndarray):
            values = np.array(self.source[index], order="C")
        else:
            values = self.source.read(self.shape, np.dtype(self.numpy_type), index)
            values = np.asarray(values, order="C")  # as in memory: BLAS rounds by memory order
        if self.type != "bfloat16":
            return values
        return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values.astype(float)

    def whole(self) -> np.ndarray:
        """Read the whole array."""
        return self.part(())


class ArrayLocation(NamedTuple):
    """Where an array begins in a file. rows_first: the last index changes fastest."""

    path: str
    offset: int
    rows_first: bool = True

    def read(self, shape: tuple[int, ...], dtype: np.dtype, index: tuple[int | slice, ...]) -> np.ndarray:
        """Read ``array[index]``. The file is not mapped, as truncating a mapped file kills the process.

        Raises InputError if the file ends too early.
        """
        places = [*index, *[slice(None)] * (len(shape) - len(index))]
        if not self.rows_first:
            shape, places = shape[::-1], places[::-1]
        offset = self.offset
        while places and isinstance(place := places[0], int):
            shape, places = shape[1:], places[1:]
            offset += place * math.prod(shape) * dtype.itemsize
        start, stop, _ = places[0].indices(shape[0]) if places else (0, 1, 1)
        row, inside = shape[1:], tuple(places[1:])
        row_bytes, whole = math.prod(row) * dtype.itemsize, all(place == slice(None) for place in inside)
        step = max(1, stop - start if whole else BLOCK // max(1, row_bytes))
        parts = []
        with open_regular(self.path, "inputs") as file:
            for first in range(start, stop, step):
                file.seek(offset + first * row_bytes)
                block = self._numbers(file, dtype, (min(step, stop - first), *row))
                parts.append(block if whole else block[(slice(None), *inside)].copy())
        array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return array.reshape(()) if not places else array if self.rows_first else array.T

    def _numbers(self, file: io.BufferedReader, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        numbers = np.fromfile(file, dtype, math.prod(shape))
        if numbers.size < math.prod(shape):
            raise InputError(f"cannot read inputs {self.path!r}: it has become shorter")
        return numbers.reshape(shape)


class Contents(NamedTuple):
    """The arrays of a file by name, and the text about them that it carries, if any."""

    arrays: Mapping[str, Stored]
    about: str | None = None


def files_of(path: str) -> list[Path]:
    """The .npy files of a folder in order; a file itself. Raises OSError."""
    return matching(Path(path), "*.npy") if Path(path).is_dir() else [Path(path)]


def open_contents(path: str) -> Contents:
    """Open the arrays of a .npz or .safetensors file, or of the .npy files of a folder. Raises InputError.

    Numbers are read later, except those of a compressed .npz.
    """
    kind = "a folder of .npy files" if Path(path).is_dir() else Path(path).suffix.lower()[1:]
    try:
        if Path(path).is_dir():
            return _of_folder(path)
        with open_regular(path, "inputs"):
            return _of_npz(path) if kind == "npz" else _of_safetensors(path)
    except InputError:
        raise
    except ScenarioError as error:  # of the memory
        raise InputError(str(error)) from None
    except Exception as error:  # zip, npy and safetensors readers fail in many ways; all mean: not such a file
        reason = PICKLED if "pickle" in str(error) else str(error) or type(error).__name__
        raise InputError(f"cannot read {path!r} as {kind}: {reason}") from None


def _of_folder(path: str) -> Contents:
    arrays = {}
    for file in files_of(path):
        with open_regular(file, "inputs") as opened:
            arrays[file.stem] = _npy(opened, str(file), file.stat().st_size)
    if not arrays:
        hint = ": of a model's folder `favorbench capture` writes heads" * Path(path, "config.json").exists()
        raise InputError(f"{path}: a folder without .npy files; q.npy, k.npy and v.npy were expected{hint}")
    return with_about(arrays)


def _of_npz(path: str) -> Contents:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not an .npz archive, or it is cut short")
    arrays: dict[str, Stored] = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        whole = sum(i.file_size for i in archive.infolist() if _packed(i) and i.filename.removesuffix(".npy") in USED)
        check_memory(whole, f"{path}, which is compressed,", "write it with numpy.savez, not numpy.savez_compressed")
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in USED:  # a few bytes can be packed terabytes
                arrays[name] = Stored.of(np.empty(0))
                continue
            with archive.open(info) as member:
                if _packed(info):
                    arrays[name] = Stored.of(np.lib.format.read_array(member, allow_pickle=False))
                while member.read(1 << 20):  # its end compares the checksum
                    pass
            if _packed(info):
                continue
            file.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", file.read(4))
            start = info.header_offset + 30 + name_length + extra_length
            file.seek(start)
            arrays[name] = _npy(file, path, start + info.file_size)
    return with_about(arrays)


def _packed(info: zipfile.ZipInfo) -> bool:
    """Whether a member is compressed or encrypted, and so read whole."""
    return info.compress_type != zipfile.ZIP_STORED or bool(info.flag_bits & 1)


def _npy(file: io.BufferedIOBase, path: str, end: int) -> Stored:
    """An array in the format of .npy between the position of a file and ``end``."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(PICKLED)
    if file.tell() + math.prod(shape) * dtype.itemsize != end:
        raise ValueError(f"its header says {shape} numbers of {dtype}, and there are {end - file.tell()} bytes")
    if dtype.kind == "V":
        raise ValueError(f"its type is {dtype.descr}, no numbers")
    if not math.prod(shape):
        return Stored(shape, str(dtype), dtype.str, np.empty(shape, dtype))
    return Stored(shape, str(dtype), dtype.str, ArrayLocation(path, file.tell(), not columns_first))


def with_about(arrays: dict[str, Stored]) -> Contents:
    """Take the text of the array ``meta`` as the description."""
    meta = arrays.pop("meta", None)
    return Contents(arrays, None if meta is None or "U" not in meta.numpy_type else str(meta.whole()))


def _of_safetensors(path: str) -> Contents:
    from safetensors import safe_open

    with safe_open(path, framework="numpy"):  # checks the header against the file
        pass
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    about = header.pop("__metadata__", None) or {}
    arrays = {}
    for name, entry in header.items():
        kind, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        place = ArrayLocation(path, 8 + length + start)
        if kind in _TYPES:
            numpy_type = np.dtype(_TYPES[kind])
            shown = "bfloat16" if kind == "BF16" else str(numpy_type)
            source = place if start < end else np.empty(shape, numpy_type)
            arrays[name] = Stored(shape, shown, numpy_type.str, source)
        else:  # 8 bits and fewer: their bytes; to be refused by its name where it is q, k or v
            arrays[name] = Stored((end - start,), kind, "|u1", place)
    return Contents(arrays, about.get("meta"))


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the bytes that numpy.savez writes for these arrays, whatever their names, without compression."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)  # in pieces of 16 MiB
