"""The command line: a printer over the library. Results go to stdout, messages and progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 129 terminal closed (SIGHUP), 130 interrupted (Ctrl-C), 143
terminated (SIGTERM). Heavy imports happen inside the commands.
"""

import contextlib
import errno
import io
import itertools
import logging
import os
import re
import sys
import warnings
from typing import NoReturn

import typer.main

from favorbench.cli import choose, sweep, studies, look, reference, complete  # isort: skip  (the order of --help)
from favorbench.cli.app import app, with_flags
from favorbench.engine.interrupts import ending, was_interrupted
from favorbench.errors import FavorbenchError
from favorbench.files import check_address_space, check_memory_of_libraries
from favorbench.formats import printable, shown
from favorbench.users import keep_importable_here

__all__ = ["app", "choose", "complete", "look", "main", "reference", "studies", "sweep"]

#: Messages of Python and of the loader of libraries when no memory is left.
_NO_MEMORY = (
    "failed to launch worker thread", "failed to map segment", "cannot allocate memory", "can't start new thread",
    "cannot enable executable", "returned null without setting an exception", "error return without exception set",
)  # fmt: skip

_LOADING = "not enough memory to load the libraries"


def main() -> NoReturn:
    """Run the command line: every error is one line on stderr, and an exit code that means something."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if sys.stdout is None or sys.stderr is None:  # closed by the caller: files would be opened in their place
        print("favorbench: stdout or stderr is closed; redirect it to /dev/null", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    # Libraries read these when they are loaded. Figures go to files: a backend that matplotlib does not know must not
    # end a command. All studies use one core: where memory is short, OpenBLAS would try forever to start threads.
    os.environ.pop("MPLBACKEND", None)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that are started import nothing from the working directory unasked
    if not debug:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where no home directory can be written
        warnings.showwarning = _show_warning
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have characters that its encoding lacks
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # python -u: what a full disk does not take would be lost
            buffer = io.BufferedWriter(sys.stdout.buffer)
            sys.stdout = io.TextIOWrapper(buffer, encoding=sys.stdout.encoding, line_buffering=True)
        sys.stdout.reconfigure(errors="backslashreplace")
    keep_importable_here()
    check_memory_of_libraries()
    if complete.VARIABLE in os.environ:
        complete.answer(lambda: app(["--help"], prog_name="favorbench", standalone_mode=False))
    try:
        check_address_space(160 << 20)
        code = app(arguments or ["--help"], prog_name="favorbench", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # Typer's exit code of a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.exit(code or 0)
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            raise
        _end(error, arguments)


def _show_warning(message: object, *_: object) -> None:
    with contextlib.suppress(OSError):  # a closed stderr is no reason to end
        print(f"favorbench: {printable(str(message))}", file=sys.stderr)  # noqa: T201


def _end(error: BaseException, arguments: list[str]) -> NoReturn:
    """End the process for an exception: one line, and an exit code."""
    closed = error.__context__ if isinstance(error, SystemExit) else error  # Typer exits with 1 for a closed pipe
    if isinstance(closed, BrokenPipeError):
        _discard_stdout()
        sys.exit(0)  # the reader had enough: no error
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt | typer.Abort) or was_interrupted():  # a library may wrap the interruption
        text, code = ending()
    else:
        text, code = _explanation(error, arguments), 2
        if isinstance(error, OSError):
            _discard_stdout()
    with contextlib.suppress(OSError):  # a closed terminal; the exit code still says it
        print(f"favorbench: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201
    if text.startswith(_LOADING):
        os._exit(code)  # libraries that are loaded in part may crash when Python ends
    sys.exit(code)


def _explanation(error: BaseException, arguments: list[str]) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, FavorbenchError):
        return with_flags(text)
    causes = [error]
    while before := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(before)
    if memory := next(filter(None, map(_lack_of_memory, reversed(causes))), None):  # libraries add pages to the first
        return memory
    if isinstance(error, ImportError):
        return f"a library cannot be loaded: {causes[-1]}; install favorbench and its extras again"
    if isinstance(error, UnicodeError):
        return f"a name is not valid UTF-8: {text}"
    if isinstance(error, BlockingIOError) and error.strerror == os.strerror(errno.EAGAIN):
        return f"cannot start another process: {error.strerror}; end others, or allow more (ulimit -u)"
    if isinstance(error, OSError):
        what = "write the output" if error.filename is None else f"use {shown(error.filename)}"
        return f"cannot {what}: {error.strerror or text}"
    if format_message := getattr(error, "format_message", None):  # a usage error of click
        usage = " ".join(format_message().split()).replace("Value error, ", "")
        usage = re.sub(r"(\S{80})\S{80,}", r"\1...", f"{usage}{_given(error, arguments)}")
        return f"{usage} (see favorbench {_command(arguments)}--help)"
    return f"unexpected {type(error).__name__}: {text} (a bug: --debug shows where)"


def _lack_of_memory(error: BaseException) -> str:
    """The message for a lack of memory, of an array, a library or a thread; empty for other errors."""
    text = " ".join(str(error).split())
    if any(words in text.lower() for words in _NO_MEMORY):
        return f"{_LOADING}: {text}; allow more (ulimit -v), or end other programs"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return f"not enough memory: {text or 'allocation failed'}; use a smaller -L, -R or -d, or fewer --workers"
    return ""


def _discard_stdout() -> None:
    """Discard the buffered output: it cannot be written, and must not fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _given(error: BaseException, arguments: list[str]) -> str:
    """The value of the option that an error is about."""
    options = getattr(getattr(error, "param", None), "opts", [])
    values = [value for option, value in itertools.pairwise(arguments) if option in options]
    return f"; {values[-1]!r} was given" if values else ""


def _command(arguments: list[str]) -> str:
    return f"{arguments[0]} " if arguments and arguments[0] in typer.main.get_group(app).commands else ""
