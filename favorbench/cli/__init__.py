"""The command line: a printer over the library. Results go to stdout, messages and progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 129 hung up (SIGHUP: its terminal was closed), 130 interrupted
(Ctrl-C), 143 terminated (SIGTERM). Heavy imports happen inside the commands.
"""

import itertools
import os
import sys
from typing import NoReturn

import typer

# In the order of --help:
# isort: off
from favorbench.cli import recommend
from favorbench.cli import sweep
from favorbench.cli import capture
from favorbench.cli import model
from favorbench.cli import audit
from favorbench.cli import kernel
from favorbench.cli import speed
from favorbench.cli import status
from favorbench.cli import table
from favorbench.cli import rank
from favorbench.cli import compare
from favorbench.cli import plot
from favorbench.cli import report
from favorbench.cli import export
from favorbench.cli import list_
from favorbench.cli import theory
from favorbench.cli import verify
from favorbench.cli import reproduce

# isort: on
from favorbench.cli import complete
from favorbench.cli.app import app, with_flags
from favorbench.cli.endings import causes, discard_stdout, fail, lack_of_memory
from favorbench.engine.interrupts import ending, was_interrupted
from favorbench.errors import FavorbenchError
from favorbench.files import check_address_space
from favorbench.users import keep_importable_here

__all__ = [
    "app", "audit", "capture", "compare", "export", "kernel", "list_", "main", "model", "plot", "rank",
    "recommend", "report", "reproduce", "speed", "status", "sweep", "table", "theory", "verify",
]  # fmt: skip


def main() -> NoReturn:
    """Run the command line: every error is one line on stderr, and an exit code that means something."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        sys.exit(2)
    _settle()
    if complete.VARIABLE in os.environ:
        complete.answer(lambda: app(["--help"], prog_name="favorbench", standalone_mode=False))
    try:
        check_address_space(160 << 20)
        code = app(arguments or ["--help"], prog_name="favorbench", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # Typer's exit code of a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            raise
        _end(error, arguments)


def _settle() -> None:
    """What libraries read when they are loaded: the command line has its process for itself."""
    # Figures go to files: a backend that matplotlib does not know must not end a command.
    os.environ.pop("MPLBACKEND", None)
    # All studies use one core. OpenBLAS would take memory for more, and where that is short try for it without end.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    keep_importable_here()


def _end(error: BaseException, arguments: list[str]) -> NoReturn:
    """What an exception means to a user: one line, and an exit code."""
    text = " ".join(str(error).split())
    closed = error.__context__ if isinstance(error, SystemExit) else error  # Typer exits with 1 for a closed pipe
    if isinstance(closed, BrokenPipeError):
        discard_stdout()
        sys.exit(0)  # the reader had enough: no error
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt | typer.Abort) or was_interrupted():  # a library may wrap the interruption
        fail(*ending())
    if isinstance(error, FavorbenchError):
        fail(with_flags(text), 2)
    if said := lack_of_memory(error):
        fail(said, 2)
    if isinstance(error, ImportError):
        fail(f"a library cannot be loaded: {causes(error)[-1]}; install favorbench again", 2)
    if isinstance(error, UnicodeError):
        fail(f"a name is not valid UTF-8: {text}", 2)
    if isinstance(error, OSError):
        discard_stdout()
        fail(f"cannot write the output: {error.strerror or text}", 2)
    if format_message := getattr(error, "format_message", None):  # a usage error of click
        usage = " ".join(format_message().split()).replace("Value error, ", "")
        fail(f"{usage}{_given(error, arguments)} (see favorbench {_command(arguments)}--help)", 2)
    fail(f"unexpected {type(error).__name__}: {text} (a bug: --debug shows where)", 2)


def _given(error: BaseException, arguments: list[str]) -> str:
    """What stood after the option that an error is about."""
    options = getattr(getattr(error, "param", None), "opts", [])
    found = [value for option, value in itertools.pairwise(arguments) if option in options]
    return f"; {found[-1]!r} was given" if found else ""


def _command(arguments: list[str]) -> str:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""
