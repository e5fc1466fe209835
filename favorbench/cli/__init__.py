"""The command line: a printer over the library. Results go to stdout, messages and progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM). Heavy
imports happen inside the commands.
"""

import contextlib
import errno
import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import typer

# In the order of --help:
# isort: off
from favorbench.cli import sweep
from favorbench.cli import table
from favorbench.cli import rank
from favorbench.cli import plot
from favorbench.cli import export
from favorbench.cli import list_
from favorbench.cli import reproduce
from favorbench.cli import verify
from favorbench.cli import theory
from favorbench.cli import speed
from favorbench.cli import audit
from favorbench.cli import kernel

# isort: on
from favorbench.cli.app import Terminated, app, ending
from favorbench.cli.flags import with_flags
from favorbench.errors import FavorbenchError
from favorbench.formats import printable

__all__ = [
    "app", "audit", "export", "kernel", "list_", "main", "plot", "rank", "reproduce", "speed", "sweep", "table",
    "theory", "verify",
]  # fmt: skip

# What the loader of libraries, and Python, say when there is no memory left.
_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread", "cannot enable executable")


def main() -> NoReturn:
    """Run the command line: every error is one line on stderr, and an exit code that means something."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        sys.exit(2)
    _settle()
    received: list[KeyboardInterrupt] = []
    try:
        with _interruptions(received):
            code = app(arguments or ["--help"], prog_name="favorbench", standalone_mode=False)
            sys.stdout.flush()
        if received or code == 130:  # Typer makes an exit code of them, and says nothing
            raise received[0] if received else KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            raise
        # Whatever else is raised after a signal was raised because of it: a library may wrap it.
        _end(received[0] if received and not isinstance(error, SystemExit) else error, arguments)


def _settle() -> None:
    """What libraries read when they are loaded: the command line has its process for itself."""
    # Figures go to files: a backend that matplotlib does not know must not end a command.
    os.environ.pop("MPLBACKEND", None)
    # All studies use one core. OpenBLAS would take memory for more, and where that is short try for it without end.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextlib.contextmanager
def _interruptions(received: list[KeyboardInterrupt]) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt inside, and SIGTERM Terminated: workers end, and what is computed is saved.

    Not while a module is being imported: the import machinery swallows an exception, or leaves half a module. The
    signal is then sent again a little later.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _importing(frame):
            again = threading.Timer(0.02, signal.raise_signal, [number])
            again.daemon = True
            again.start()
            return
        received.append(KeyboardInterrupt() if number == signal.SIGINT else Terminated())
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)  # once is enough: what follows is the orderly end
        raise received[-1]

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)  # a background shell has them ignored: so it stays
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) in usual]
    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _end(error: BaseException, arguments: list[str]) -> NoReturn:
    """What an exception means to a user: one line, and an exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, BrokenPipeError) or (isinstance(error, SystemExit) and error.code == 1 and _pipe_is_closed()):
        _discard_stdout()
        sys.exit(0)  # the reader had enough: no error
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        _fail(*ending(error))
    if isinstance(error, FavorbenchError):
        _fail(with_flags(text), 2)
    if said := _lack_of_memory(error):
        _fail(said, 2)
    if isinstance(error, ImportError):
        _fail(f"a library cannot be loaded: {_causes(error)[-1]}; install favorbench again", 2)
    if isinstance(error, UnicodeError):
        _fail(f"a name is not valid UTF-8: {text}", 2)
    if isinstance(error, OSError):
        _discard_stdout()
        _fail(f"cannot write the output: {error.strerror or text}", 2)
    if format_message := getattr(error, "format_message", None):  # a usage error of click
        usage = " ".join(format_message().split()).replace("Value error, ", "")
        _fail(f"{usage}{_given(error, arguments)} (see favorbench {_command(arguments)}--help)", 2)
    _fail(f"unexpected {type(error).__name__}: {text} (a bug: --debug shows where)", 2)


def _lack_of_memory(error: BaseException) -> str:
    """What could not be had, if that is memory: for an array, or already for a library or a thread."""
    for cause in reversed(_causes(error)):  # the first cause knows best: libraries put pages of advice around it
        text = " ".join(str(cause).split())
        if any(words in text.lower() for words in _NO_MEMORY):
            return f"not enough memory to load the libraries: {text}; allow more (ulimit -v), or end other programs"
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            reason = text or "allocation failed"
            return f"not enough memory: {reason}; use a smaller -L, -R or -d, or fewer --workers"
    return ""


def _causes(error: BaseException) -> list[BaseException]:
    """An error, what it was raised for, and so on down to the first."""
    causes = [error]
    while before := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(before)
    return causes


def _discard_stdout() -> None:
    """What is still buffered cannot be written, and must not fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(text: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # nobody is listening; the code still says it
        print(f"favorbench: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)


def _pipe_is_closed() -> bool:
    """Whether the reader of stdout is gone: libraries turn that into exit code 1, which means a failed check here."""
    if not hasattr(select, "poll"):
        return False  # Windows: there a write to such a pipe fails, and says so itself
    poller = select.poll()
    poller.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _given(error: BaseException, arguments: list[str]) -> str:
    """What stood after the option that an error is about."""
    options = getattr(getattr(error, "param", None), "opts", [])
    found = [value for option, value in itertools.pairwise(arguments) if option in options]
    return f"; {found[-1]!r} was given" if found else ""


def _command(arguments: list[str]) -> str:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""
