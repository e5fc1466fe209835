"""How a command ends early: signals, a lack of memory, a reader that is gone; and the one line that is said then."""

import contextlib
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NoReturn

from favorbench.engine.interrupts import ENDS
from favorbench.formats import printable

# What the loader of libraries, and Python, say when there is no memory left.
_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread", "cannot enable executable")


class Terminated(KeyboardInterrupt):
    """SIGTERM: the end of a job that a scheduler or a shutdown wants gone. Ends a command as Ctrl-C does."""


class HungUp(KeyboardInterrupt):
    """SIGHUP: the terminal was closed, or the connection to it lost. Ends a command as Ctrl-C does."""


def ending(error: BaseException) -> tuple[str, int]:
    """The word and the exit code for an interruption: 128 and the number of its signal."""
    if isinstance(error, HungUp):
        return "hung up", 129
    return ("terminated", 143) if isinstance(error, Terminated) else ("interrupted", 130)


def _raised_for(number: int) -> KeyboardInterrupt:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return Terminated() if number == signal.SIGTERM else HungUp()


@contextlib.contextmanager
def interruptions(received: list[KeyboardInterrupt], caller: CodeType) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt inside, SIGTERM Terminated, SIGHUP HungUp: workers end, and rows are saved.

    Not while ``caller`` is importing a module: the import machinery swallows an exception, or leaves half a module. The
    signal is then sent again a little later, and so it is until the end: a callback may swallow what is raised in it.
    received: what was raised first, whatever has become of it since.
    """
    over = threading.Event()

    def again(number: int, seconds: float) -> None:
        timer = threading.Timer(seconds, lambda: over.is_set() or signal.raise_signal(number))
        timer.daemon = True
        timer.start()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if over.is_set():
            return
        if _importing(frame, caller):
            again(number, 0.02)
            return
        again(number, 0.2)
        if received and sys.exception() is not None:
            return  # this is the orderly end, and libraries abort where it is broken off
        if not received:
            received.append(_raised_for(number))
        raise received[-1]

    def swallowed(unraisable: Any) -> None:
        if unraisable.exc_value not in received:  # it comes again: nothing to report
            told(unraisable)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told, sys.unraisablehook = sys.unraisablehook, swallowed
    usual = (signal.SIG_DFL, signal.default_int_handler)  # a background shell has them ignored: so it stays
    numbers = [number for number in ENDS if signal.getsignal(number) in usual]
    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        over.set()
        sys.unraisablehook = told
        for number, handler in [] if received else before:
            signal.signal(number, handler)


def _importing(frame: FrameType | None, caller: CodeType) -> bool:
    """Whether an import is under way that began inside ``caller``."""
    while frame is not None and frame.f_code is not caller:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def lack_of_memory(error: BaseException) -> str:
    """What could not be had, if that is memory: for an array, or already for a library or a thread."""
    for cause in reversed(causes(error)):  # the first cause knows best: libraries put pages of advice around it
        text = " ".join(str(cause).split())
        if any(words in text.lower() for words in _NO_MEMORY):
            return f"not enough memory to load the libraries: {text}; allow more (ulimit -v), or end other programs"
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            reason = text or "allocation failed"
            return f"not enough memory: {reason}; use a smaller -L, -R or -d, or fewer --workers"
    return ""


def causes(error: BaseException) -> list[BaseException]:
    """An error, what it was raised for, and so on down to the first."""
    chain = [error]
    while before := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(before)
    return chain


def discard_stdout() -> None:
    """What is still buffered cannot be written, and must not fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(text: str, code: int) -> NoReturn:
    """One line on stderr, and the end."""
    with contextlib.suppress(OSError):  # nobody is listening; the code still says it
        print(f"favorbench: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)


def pipe_is_closed() -> bool:
    """Whether the reader of stdout is gone: libraries turn that into exit code 1, which means a failed check here."""
    if not hasattr(select, "poll"):
        return False  # Windows: there a write to such a pipe fails, and says so itself
    poller = select.poll()
    try:
        poller.register(sys.stdout.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # no file: somebody holds what is printed in memory
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))
