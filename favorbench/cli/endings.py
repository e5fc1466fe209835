"""How a command ends early: a lack of memory, a reader that is gone, and the one line that is printed then."""

import contextlib
import errno
import os
import sys
from typing import NoReturn

from favorbench.formats import printable

# What the loader of libraries, and Python, say when there is no memory left.
_NO_MEMORY = (
    "failed to launch worker thread",
    "failed to map segment",
    "cannot allocate memory",
    "can't start new thread",
    "cannot enable executable",
)


def causes(error: BaseException) -> list[BaseException]:
    """An error, what it was raised for, and so on down to the first."""
    chain = [error]
    while before := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(before)
    return chain


def lack_of_memory(error: BaseException) -> str:
    """The message for a lack of memory, for an array or already for a library or a thread; empty for other errors."""
    for cause in reversed(causes(error)):  # the first cause knows best: libraries put pages of advice around it
        text = " ".join(str(cause).split())
        if any(words in text.lower() for words in _NO_MEMORY):
            return f"not enough memory to load the libraries: {text}; allow more (ulimit -v), or end other programs"
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            reason = text or "allocation failed"
            return f"not enough memory: {reason}; use a smaller -L, -R or -d, or fewer --workers"
    return ""


def discard_stdout() -> None:
    """Discard what is still buffered: it cannot be written, and must not fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(text: str, code: int) -> NoReturn:
    """Print one line on stderr, and exit."""
    with contextlib.suppress(OSError):  # a closed terminal; the exit code still says it
        print(f"favorbench: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)
