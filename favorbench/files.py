"""Files written whole or not at all, and failures of the file system in one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from favorbench.errors import StoreError


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all. Raises StoreError."""
    write_whole(path, text.encode("utf-8"))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises StoreError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
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
