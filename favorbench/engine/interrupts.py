"""Interruptions that wait for a safe moment."""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType, TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")

#: What ends a command in good order: Ctrl-C, the end of a job, and of its terminal (Windows knows no SIGHUP).
ENDS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Deferred:
    """Ctrl-C, SIGTERM and SIGHUP are held back inside, and raised where something is waited for.

    Elsewhere an exception may fall between the taking of a lock of an executor and the line that remembers it: the lock
    is then taken for ever, and so the end of the program waits for ever. Use as a context manager; only the main thread
    is interrupted, so in others nothing changes.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._held: int | None = None
        self._waiting = False

    def __enter__(self) -> "Deferred":
        if threading.current_thread() is threading.main_thread():
            for number in ENDS:
                handler = signal.getsignal(number)
                if callable(handler):  # neither ignored nor the end of the process
                    self._before[number] = handler
                    signal.signal(number, self._received)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error is None:
            self._raise_held(None)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._held = number
        if self._waiting:
            self._raise_held(frame)

    def _raise_held(self, frame: FrameType | None) -> None:
        if self._held is not None:
            number, self._held = self._held, None
            self._before[number](number, frame)

    def wait_for(self, items: "queue.SimpleQueue[Item]") -> Item:
        """The next item of a queue; what was held back, or comes meanwhile, is raised here."""
        while (item := self.wait_a_while(items, 1.0)) is None:  # Windows interrupts no wait without an end
            pass
        return item

    def wait_a_while(self, items: "queue.SimpleQueue[Item]", seconds: float) -> Item | None:
        """The same, or None where none came in so many seconds."""
        self._waiting = True
        try:
            self._raise_held(None)
            return items.get(timeout=seconds)
        except queue.Empty:
            return None
        finally:
            self._waiting = False


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Processes started inside never hear of a Ctrl-C or a closed terminal; here it is heard of afterwards.

    SIGTERM stays: workers must end when they are told to. Only the main thread may say so, others are not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = [number for number in ENDS if number != signal.SIGTERM]
    if hasattr(signal, "pthread_sigmask"):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            resource_tracker.ensure_running()  # multiprocessing's own helper; it unblocks SIGINT
            signal.pthread_sigmask(signal.SIG_BLOCK, held)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in held]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
