"""Files read and written with failures in one line: only regular files are read, and files are written whole."""

import contextlib
import errno
import fnmatch
import functools
import io
import mmap
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from favorbench.errors import FavorbenchError, InputError, StoreError

#: Folders that favorbench makes inside the directory of a run.
RUN_FOLDERS = ("trials", "figures")

#: Files that describe a run.
RUN_MANIFESTS = ("manifest.json", "model.json")

Json = TypeVar("Json")


def read_regular(path: str | Path, what: str, error: type[FavorbenchError] = InputError) -> bytes:
    """The contents of a file that a user named; what: what it should hold, for the message. Raises ``error``."""
    with open_regular(path, what, error) as file:
        return file.read()


@contextlib.contextmanager
def open_regular(path: str | Path, what: str, error: type[FavorbenchError] = InputError) -> Iterator[io.BufferedReader]:
    """A regular file, open for reading; failures to open or read it, in one line, as ``error``.

    A named pipe would wait for a writer forever, and a device may have no end: both are refused. So are names that are
    not UTF-8, but for files of runs (StoreError): manifests hold the names of the others, and are UTF-8.
    """
    try:
        if error is not StoreError:
            os.fspath(path).encode()
        with os.fdopen(_opened(path), "rb") as file:
            yield file
    except UnicodeEncodeError:
        raise error(f"cannot read {what} {str(path)!r}: its name is not valid UTF-8; rename it") from None
    except OSError as failure:
        raise error(f"cannot read {what} {str(path)!r}: {failure.strerror or failure}") from None


def read_json(path: Path, kind: type[Json], what: str, hint: str = "") -> Json:
    """The contents of a JSON file, checked against a TypedDict, which may leave keys out. Raises StoreError.

    what: the file should hold, and hint: what to do where it does not, for the message.
    """
    return checked_json(read_regular(path, what, StoreError), kind, path, hint)


def checked_json(data: bytes, kind: type[Json], path: Path, hint: str = "") -> Json:
    """The same for JSON that was read from a file."""
    from pydantic import ValidationError  # slow to import, and not needed by workers
    from pydantic_core import from_json

    try:
        _validator(kind).validate_json(data, strict=True)
        return from_json(data)
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        reason = (
            "it is not valid JSON" if first["type"] == "json_invalid" else f"its {key or 'content'}: {first['msg']}"
        )
        raise StoreError(f"{path} is damaged, or was changed by hand: {reason}{hint and f'; {hint}'}") from None


@functools.cache
def _validator(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


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
    raise OSError("it is a directory" if stat.S_ISDIR(mode) else "not a regular file (a pipe, a socket or a device)")


def check_address_space(size: int) -> None:
    """Raise OSError if ``size`` bytes cannot be mapped.

    A library with OpenBLAS allocates a buffer of 32 MiB when it is loaded, and tries again forever if it cannot.
    """
    mmap.mmap(-1, size).close()


class _MemoryOfLibraries:
    """Before SciPy loads its OpenBLAS, raise OSError if there is no memory for it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("scipy.special", "scipy.linalg"):
            check_address_space(128 << 20)


def check_memory_of_libraries() -> None:
    """For the rest of this process, raise OSError where a library would wait forever for memory."""
    if not any(isinstance(finder, _MemoryOfLibraries) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MemoryOfLibraries())


def file_version(path: str | Path) -> tuple[str, ...]:
    """A value that changes when a file is written, replaced or touched. Raises OSError."""
    state = os.stat(path)
    return tuple(map(str, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)))


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
        with clear_errors(path), contextlib.ExitStack() as stack:
            folder = os.open(path.parent, os.O_RDONLY)
            stack.callback(os.close, folder)
            try:
                os.fsync(folder)
            except OSError as error:
                if error.errno != errno.EINVAL:  # of file systems without it: shared folders of VirtualBox, older CIFS
                    raise


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[io.BufferedWriter]:
    """A file to be written in pieces; it appears under its name when all of them are written. Raises StoreError.

    The temporary file next to it has a random name, so that no link can stand there and no other process uses it.
    A link at ``path`` is replaced, not followed. A device or a pipe is written into: nothing may take its name.
    """
    refuse_links(path)
    if not path.name:
        raise StoreError(f"cannot write to {str(path)!r}: it is a folder; give the name of a file")
    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if (descriptor := _special(path)) is not None:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            return
        temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _special(path: Path) -> int | None:
    """A descriptor of the device, the pipe or the open file of this process (/dev/stdout) that has this name.

    None for all other names, and for links in a run, which may be somebody else's. Raises OSError for a pipe without a
    reader, which may never come.
    """
    if opened := re.fullmatch(r"/dev/(?:fd/(\d+)|stdout|stderr)", str(path)):
        return os.dup(int(opened[1]) if opened[1] else {"/dev/stdout": 1, "/dev/stderr": 2}[str(path)])
    try:
        mode = (path.lstat() if _in_run(path) else path.stat()).st_mode
    except (OSError, ValueError):  # there is none, or there cannot be one: to create it says why
        mode = stat.S_IFREG
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        return None
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    os.set_blocking(descriptor, True)
    return descriptor


def _in_run(path: Path) -> bool:
    """Whether a file is in the directory of a run or in a folder of one."""
    return any(folder.name in RUN_FOLDERS for folder in path.parents) or any(
        (path.parent / name).exists() for name in RUN_MANIFESTS
    )


def refuse_links(path: Path) -> None:
    """Raise StoreError where a folder of a run, or one inside it, is a link: the run may be somebody else's."""
    folders = [*path.parents]
    own = next((i for i, folder in enumerate(folders) if folder.name in RUN_FOLDERS), -1)
    if linked := next((folder for folder in folders[: own + 1] if folder.is_symlink()), None):
        raise StoreError(f"{linked} is a link to another folder, and nothing is written through it: remove the link")


@contextlib.contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Failures of the file system, in one line that says what is safe."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"cannot use {path}: {reason}; saved results are intact; fix this and rerun the same command"
        ) from None


def matching(folder: Path, pattern: str) -> list[Path]:
    """The entries of a folder whose names match a pattern, sorted. Raises OSError if the folder cannot be read."""
    return sorted(folder / name for name in os.listdir(folder) if fnmatch.fnmatch(name, pattern))


def files_below(folder: Path, *names: str) -> list[Path]:
    """The files of these names in a folder and below it, sorted. Raises StoreError for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        with clear_errors(Path(error.filename)), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            raise error

    places = (Path(place, name) for place, _, files in os.walk(folder, onerror=refuse) for name in {*files} & {*names})
    return sorted(path for path in places if path.exists())


def data_directory() -> Path:
    """scenarios/: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"
