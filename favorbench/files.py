"""Files read and written with failures in one line: only regular files are read, and files are written whole."""

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from favorbench.errors import FavorbenchError, InputError, StoreError


def read_regular(path: str | Path, what: str, error: type[FavorbenchError] = InputError) -> bytes:
    """The contents of a file that a user named; what: what it should hold, for the message. Raises ``error``."""
    with open_regular(path, what, error) as file:
        return file.read()


@contextlib.contextmanager
def open_regular(path: str | Path, what: str, error: type[FavorbenchError] = InputError) -> Iterator[io.BufferedReader]:
    """A regular file, open for reading; failures to open or read it, in one line, as ``error``.

    A named pipe would wait for a writer for ever, and a device may have no end: both are refused.
    """
    try:
        with os.fdopen(_opened(path), "rb") as file:
            yield file
    except OSError as failure:
        raise error(f"cannot read {what} {str(path)!r}: {failure.strerror or failure}") from None


def _opened(path: str | Path) -> int:
    """A descriptor of a regular file. Raises OSError."""
    # O_NONBLOCK: to open a pipe without a writer must not wait either. O_BINARY: Windows has it, and needs it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except ValueError as failure:
        raise OSError(str(failure)) from None  # a NUL in the path
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError("it is a directory" if stat.S_ISDIR(mode) else "it is no regular file (a pipe, a socket or a device)")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all. Raises StoreError."""
    write_whole(path, text.encode("utf-8"))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises StoreError."""
    with written_whole(path) as file:
        file.write(data)


def write_durable(path: Path, data: bytes) -> None:
    """Write a file whole, and onto the disk: other files may be removed after it. Raises StoreError."""
    with written_whole(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if os.name == "posix":  # elsewhere directories are not opened
        with clear_errors(path), _directory(path.parent) as folder:
            os.fsync(folder)


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[io.BufferedWriter]:
    """A file to be written in pieces, which is there when all of them are, or not at all. Raises StoreError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Failures of the file system, in one line that says what is safe."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"cannot use {path}: {reason}; nothing saved before is lost: mend it and run the same again"
        ) from None


def data_directory() -> Path:
    """scenarios/: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"
