"""Arrays that count the multiplications of their matrix products."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_counts: list[float] = []


class Counted(np.ndarray):
    """A NumPy array; products of it with any array are counted while ``counting``."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [np.asarray(a) if isinstance(a, Counted) else a for a in inputs]
        kept = tuple(np.asarray(a) if isinstance(a, Counted) else a for a in out) if out else None
        found = getattr(ufunc, method)(*plain, **options, **({"out": kept} if kept else {}))
        if ufunc is np.matmul and _counts:
            _counts[-1] += math.prod(found.shape) * plain[0].shape[-1]
        if out:
            return out[0] if len(out) == 1 else out
        return counted(found) if isinstance(found, np.ndarray) and found.ndim else found

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        found = super().__array_function__(function, types, inputs, options)
        return counted(found) if type(found) is np.ndarray else found


def counted(array: np.ndarray) -> Counted:
    """The same numbers, counted."""
    return np.asarray(array).view(Counted)


@contextmanager
def counting() -> Iterator[list[float]]:
    """A list whose last entry is the number of multiplications inside."""
    _counts.append(0.0)
    found = [0.0]
    try:
        yield found
    finally:
        found[0] = _counts.pop()
