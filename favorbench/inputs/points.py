"""Points for kernels from a file: .npy or .csv."""

import io
from pathlib import Path

import numpy as np

from favorbench.errors import InputError
from favorbench.inputs.file import checked_array, read_bytes


def read_points(path: str) -> np.ndarray:
    """The rows of a file as points (n, d), float64. A .csv may have one line of headings; nothing is ever unpickled.

    Raises InputError with the file and what is wrong with it.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise InputError(f"points {path!r}: allowed: a path ending in .npy or .csv, with one point a row")
    data = read_bytes(path, "points")
    try:
        points = np.load(io.BytesIO(data), allow_pickle=False) if suffix == ".npy" else _table(data)
    except Exception as error:  # the reader of .npy fails in many ways; all mean: not such a file
        reason = str(error) or type(error).__name__
        reason = "it holds Python objects (pickle), which are never read" if "pickle" in reason else reason
        raise InputError(f"cannot read {path!r} as {suffix[1:]}: {reason}") from None
    if points.ndim != 2:
        raise InputError(f"{path}: the array has shape {points.shape}; allowed: (points, d)")
    points = points.astype(np.float64) if points.dtype.kind in "iu" else points
    return checked_array(path, "points", points, [])


def _table(data: bytes) -> np.ndarray:
    """Numbers with commas; a first line in which no cell is a number is taken for headings."""
    lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    headings = not any(_is_number(cell) for cell in lines[0].split(","))
    if len(lines) == headings:
        raise ValueError("it has headings only")
    return np.loadtxt(lines[headings:], delimiter=",", ndmin=2, comments=None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
