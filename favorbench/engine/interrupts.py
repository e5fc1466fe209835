"""SIGINT, SIGTERM and SIGHUP end a command as KeyboardInterrupt, and wait while an executor is called."""

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_NAMES = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "terminal closed (SIGHUP)"}

#: The name of each signal in the last line of a command. Windows has no SIGHUP.
WORDS = {number: _NAMES[number.name] for number in signal.Signals if number.name in _NAMES}
_received: list[int] = []


class SignalReceived(KeyboardInterrupt):
    """A subclass, as Python exits with 130 after a plain KeyboardInterrupt that exec() has let through."""


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Raise KeyboardInterrupt for signals that would end the process; a second Ctrl-C still kills it."""
    usual = (signal.SIG_DFL, signal.default_int_handler)  # a background shell ignores SIGINT: so do we
    before = {number: signal.getsignal(number) for number in WORDS if signal.getsignal(number) in usual}
    for number in before:
        signal.signal(number, _interrupt)
    report, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number in before:
            signal.signal(number, signal.SIG_DFL if _received else before[number])


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if number == signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
    if not isinstance(sys.exception(), KeyboardInterrupt):  # else results are being saved already
        raise SignalReceived


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt a moment later where Python cannot raise, as inside of the callback of a weak reference."""
    if not isinstance(lost.exc_value, SignalReceived):
        sys.__unraisablehook__(lost)
        return
    number = _received[-1]
    signal.signal(number, _interrupt)
    threading.Timer(0.01, _thread.interrupt_main, [number]).start()


def ending() -> tuple[str, int]:
    """The name and the exit code of the signal that was received first: 128 and its number."""
    number = _received[0] if _received else signal.SIGINT
    return WORDS[signal.Signals(number)], 128 + number


def was_interrupted() -> bool:
    """Whether a signal was received, even if a library has caught its KeyboardInterrupt."""
    return bool(_received)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Deliver signals after the block, and keep Ctrl-C and SIGHUP from processes that are started inside.

    An exception inside an executor may leave a lock taken, and its shutdown would then wait forever.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads are not interrupted
        yield
        return
    held: list[int] = []
    handlers = {number: handler for number in WORDS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: held.append(number))
    mask = None
    try:
        if hasattr(signal, "pthread_sigmask"):
            from multiprocessing import resource_tracker

            kept_away = {signal.SIGINT, signal.SIGHUP}
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, kept_away)
            resource_tracker.ensure_running()  # it inherits the mask, as SIGHUP would end it
            signal.pthread_sigmask(signal.SIG_BLOCK, kept_away)  # its start unblocks SIGINT
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
