"""Points for kernels as such: random ones, or the rows of a .npy or .csv file."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from favorbench.errors import InputError, ScenarioError
from favorbench.files import read_regular
from favorbench.inputs.heads import check_type, checked
from favorbench.inputs.stored import PICKLED, Stored
from favorbench.numerics.streams import stream
from favorbench.parameters import check_positive

DEFAULT_POINTS = 200


class Points(NamedTuple):
    """Points (n, d), and what they are in words."""

    values: np.ndarray
    description: str


def gaussian_points(count: int, head_dim: int, scale: float, seed: int) -> Points:
    """Points ~ N(0, scale^2 I). Raises ScenarioError."""
    check_positive("`scale`", scale, most=1e6)
    values = scale * stream(seed, "kernel", "points").standard_normal((count, head_dim))
    return Points(values, f"{count} points N(0, {'' if scale == 1 else f'{scale:g}^2 '}I), d = {head_dim}")


def points_of_file(path: str, count: int | None, scale: float, seed: int) -> Points:
    """The points of a file, or so many of its rows at random. Raises InputError, ScenarioError."""
    check_positive("`scale`", scale, most=1e6)
    values = read_points(path)
    wanted = min(len(values), DEFAULT_POINTS) if count is None else count
    if wanted > len(values):
        raise ScenarioError(f"`num_points` {wanted}: {path} has {len(values)}; ask for at most that, or leave it out")
    rows = np.sort(stream(seed, "kernel", "rows").choice(len(values), wanted, replace=False))
    of = "" if wanted == len(values) else f" of {len(values)}"
    times = "" if scale == 1 else f" times {scale:g}"
    return Points(scale * values[rows], f"{wanted}{of} points of {path}{times}, d = {values.shape[1]}")


def read_points(path: str) -> np.ndarray:
    """The rows of a file as points (n, d), float64. A .csv may have one line of headings; nothing is ever unpickled.

    Raises InputError with the file and what is wrong with it.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise InputError(f"points {path!r}: allowed: a path ending in .npy or .csv, with one point a row")
    data = read_regular(path, "points")
    try:
        points = np.load(io.BytesIO(data), allow_pickle=False) if suffix == ".npy" else _table(data)
    except Exception as error:  # the reader of .npy fails in many ways; all mean: not such a file
        reason = str(error) or type(error).__name__
        reason = PICKLED if "pickle" in reason else reason
        raise InputError(f"cannot read {path!r} as {suffix[1:]}: {reason}") from None
    if points.ndim != 2:
        raise InputError(f"{path}: the array has shape {points.shape}; allowed: (points, d)")
    points = points.astype(np.float64) if points.dtype.kind in "iu" else points
    check_type(path, "array 'points'", Stored.of(points))
    return checked(path, "array 'points'", points)


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
