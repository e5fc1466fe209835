"""Calls timed in turns, so that a machine that becomes busy makes all of them slower alike."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from favorbench.numerics.backend import Backend
from favorbench.progress import Progress

Key = TypeVar("Key", bound=Hashable)

SHORT = 0.05  # seconds below which a call is made twice


def in_turns(
    calls: Mapping[Key, Callable[[], object]],
    repeats: int,
    backend: Backend,
    progress: Progress | None = None,
    first: Callable[[Key], object] | None = None,
) -> dict[Key, list[float]]:
    """The seconds of each call, ``repeats`` times; before that each is made once, or ``first`` called, to warm up."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    total, done = len(calls) * (repeats + 1), 0
    for turn in range(repeats + 1):
        for key, call in calls.items():
            if progress:
                progress(done, total)
            done += 1
            if turn:
                seconds[key].append(seconds_of(call, backend))
            elif first:
                first(key)
            else:
                call()
    return seconds


def seconds_of(call: Callable[[], object], backend: Backend) -> float:
    """The time of a call; of the second one if it is short, as the first finds the caches full of another method."""

    def once() -> float:
        backend.synchronise()
        start = time.perf_counter()
        call()
        backend.synchronise()
        return time.perf_counter() - start

    first = once()
    return once() if first < SHORT else first
