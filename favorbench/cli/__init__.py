"""The command line: a printer over the library. Results go to stdout, messages and progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 130 interrupted. Heavy imports happen inside the commands.
"""

import contextlib
import itertools
import os
import select
import sys
from typing import NoReturn

import typer

# In the order of --help:
# isort: off
from favorbench.cli import sweep
from favorbench.cli import results
from favorbench.cli import catalogue
from favorbench.cli import proof
from favorbench.cli import kernel

# isort: on
from favorbench.cli.app import app
from favorbench.cli.flags import with_flags
from favorbench.errors import FavorbenchError

__all__ = ["app", "catalogue", "kernel", "main", "proof", "results", "sweep"]


def main() -> NoReturn:
    """Run the command line: every error is one line on stderr, and an exit code that means something."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        sys.exit(2)
    try:
        code = app(arguments or ["--help"], prog_name="favorbench", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            raise
        _end(error, arguments)


def _end(error: BaseException, arguments: list[str]) -> NoReturn:
    """What an exception means to a user: one line, and an exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, BrokenPipeError) or (isinstance(error, SystemExit) and error.code == 1 and _pipe_is_closed()):
        _discard_stdout()
        sys.exit(0)  # the reader had enough: no error
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        _fail("interrupted", 130)
    if isinstance(error, FavorbenchError):
        _fail(with_flags(text), 2)
    if isinstance(error, MemoryError):
        _fail(f"not enough memory: {text or 'allocation failed'}; use a smaller -L, -R or -d, or fewer --workers", 2)
    if isinstance(error, UnicodeError):
        _fail(f"a name is not valid UTF-8: {text}", 2)
    if isinstance(error, OSError):
        _discard_stdout()
        _fail(f"cannot write the output: {error.strerror or text}", 2)
    if format_message := getattr(error, "format_message", None):  # a usage error of click
        usage = " ".join(format_message().split()).replace("Value error, ", "")
        _fail(f"{usage}{_given(error, arguments)} (see favorbench {_command(arguments)}--help)", 2)
    _fail(f"unexpected {type(error).__name__}: {text} (a bug: --debug shows where)", 2)


def _discard_stdout() -> None:
    """What is still buffered cannot be written, and must not fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(text: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # nobody is listening; the code still says it
        print(f"favorbench: {text}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)


def _pipe_is_closed() -> bool:
    """Whether the reader of stdout is gone: libraries turn that into exit code 1, which means a failed check here."""
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
