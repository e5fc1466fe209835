"""Arrays that count the multiplications of their products."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_counts: list[float] = []

#: Products over the last axis of the first array, and products of two matrices, whatever axes these are made of.
_LAST_AXIS = tuple(getattr(np, name) for name in ("matmul", "matvec", "vecmat") if hasattr(np, name))  # NumPy 2.2
_MATRICES = (np.dot, np.inner, np.outer, np.vdot, np.tensordot)


class Counted(np.ndarray):
    """A NumPy array; matrix products of it with any array are counted while ``counting``: of @, dot, einsum and their
    like. Products entry by entry are none of these, and a plain array made of it counts no more."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [np.asarray(a) if isinstance(a, Counted) else a for a in inputs]
        kept = tuple(np.asarray(a) if isinstance(a, Counted) else a for a in out) if out else None
        found = getattr(ufunc, method)(*plain, **options, **({"out": kept} if kept else {}))
        if ufunc in _LAST_AXIS and _counts:
            _counts[-1] += math.prod(found.shape) * plain[0].shape[-1]
        if out:
            return out[0] if len(out) == 1 else out
        return counted(found) if isinstance(found, np.ndarray) and found.ndim else found

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        before = _counts[-1] if _counts else 0.0
        found = super().__array_function__(function, types, inputs, options)
        if _counts and function in _MATRICES:  # (I, K) with (K, J) is IKJ, the root of the product of the three sizes
            _counts[-1] = before + math.sqrt(np.size(inputs[0]) * np.size(inputs[1]) * np.size(found))
        elif _counts and function is np.einsum and isinstance(inputs[0], str):
            _counts[-1] = before + _einsum_work(*inputs)
        return counted(found) if type(found) is np.ndarray else found

    def dot(self, other: Any, out: Any = None) -> Any:
        """As the function, which is counted."""
        return np.dot(self, other, out)


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


def _einsum_work(subscripts: str, *operands: Any) -> float:
    """The product of the lengths of all axes, one multiplication fewer than there are operands; in one loop."""
    lengths: dict[str | int, int] = {}
    for term, operand in zip(subscripts.replace(" ", "").partition("->")[0].split(","), operands, strict=True):
        before, _, after = term.partition("...")
        hidden = np.ndim(operand) - len(before) - len(after)  # axes of the ellipsis, which broadcast from the last
        for name, length in zip([*before, *range(-hidden, 0), *after], np.shape(operand), strict=True):
            lengths[name] = max(lengths.get(name, 1), length)
    return float(math.prod(lengths.values()) * (len(operands) - 1))
