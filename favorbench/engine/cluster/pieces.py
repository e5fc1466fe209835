"""Items to tasks of about a second: a scheduler spends milliseconds on each, and a draw may take less than that."""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

SECONDS = 1.0  # of a task, and ...
SECONDS_PER_THREAD = 0.005  # ... on many threads so much for each: a scheduler needs 3.5 ms of CPU for a task
MOST_ITEMS = 4096  # of a task


class Pieces(Generic[Item]):
    """Lists of items, each of a second of work or, for many threads, a few, as far as is known; smaller at the end.

    kind: items of one kind take equally long. What a kind takes is learned from the pieces that are done.
    """

    def __init__(self, items: Iterator[Item], count: int, kind: Callable[[Item], Hashable]) -> None:
        self._items, self.left, self._kind = items, count, kind
        self._held: deque[Item] = deque()
        self._seconds: dict[Hashable, float] = {}

    def next(self, threads: int) -> list[Item]:
        """The next piece, for one of so many threads; empty at the end. Of an unknown kind, an item alone."""
        piece: list[Item] = []
        most, expected = min(MOST_ITEMS, math.ceil(self.left / max(1, 2 * threads))), 0.0
        while len(piece) < most and expected < max(SECONDS, SECONDS_PER_THREAD * threads):
            item = self._held.popleft() if self._held else next(self._items, None)
            if item is None:
                break
            known = self._seconds.get(self._kind(item))
            if known is None and piece:
                self._held.append(item)
                break
            piece.append(item)
            if known is None:
                break
            expected += known
        self.left = self.left - len(piece) if piece else 0
        return piece

    def expected(self, piece: list[Item]) -> float:
        """Seconds that a piece will take; 0 of what is not known."""
        return sum(self._seconds.get(self._kind(item), 0.0) for item in piece)

    def learn(self, piece: list[Item], seconds: float) -> None:
        """What the items of a piece took; the last half counts as much as all before."""
        expected = self.expected(piece)
        for kind in {self._kind(item) for item in piece}:
            known = self._seconds.get(kind)
            each = max(seconds, 1e-6) / len(piece)
            self._seconds[kind] = each if known is None else known * (1 + seconds / max(expected, 1e-6)) / 2
