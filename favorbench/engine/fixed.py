"""What is the same in every draw of fixed inputs: computed once in a process, and kept."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")

KEPT_BYTES = 256 << 20  # of arrays: exact answers of 1000 heads at L = 512, d = 64, or of 100 at L = 4096


class Cache:
    """Values by key; the arrays that were not asked for longest go first when they are too many."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type["Cache"], tuple[()]]:
        return Cache, ()  # another process begins with nothing

    def get_or_compute(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """The value of ``key``, computed if it is not there. Nobody may change it."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = compute()
        self._bytes += getattr(value, "nbytes", 0)
        while self._bytes > KEPT_BYTES and len(self._values) > 1:
            self._bytes -= getattr(self._values.popitem(last=False)[1], "nbytes", 0)
        return value
