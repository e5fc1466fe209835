"""One writer at a time in a directory."""

import contextlib
import os
from pathlib import Path

import filelock

from favorbench.engine.interrupts import signals_held
from favorbench.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


PATIENCE = 0.2  # seconds: ``in_use`` has the lock for a moment


def in_use(path: Path) -> bool:
    """Whether a process is writing into a directory, as far as locks are seen from here."""
    file = path / ".lock"
    if not file.exists():
        return False
    with contextlib.suppress(OSError):
        if fcntl is None:
            with filelock.FileLock(file, timeout=0):
                return False
        with file.open("rb") as held:  # shared, which a reader may take
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    return True


class DirectoryLock:
    """A lock that the operating system frees when its process ends.

    Of a file ``.lock``, and of the directory itself where the system can: with the file deleted, another one of that
    name would be another lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with signals_held():  # a half-made lock fails at the end of the program
            self._file = filelock.FileLock(path / ".lock", timeout=PATIENCE)
        self._directory: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises StoreError if another process has it."""
        try:
            self._file.acquire(poll_interval=PATIENCE / 10)
            self._lock_directory()
        except (filelock.Timeout, BlockingIOError):
            self.release()
            raise StoreError(
                f"{self._path} is in use by another favorbench; wait for it, or use another `out`"
            ) from None

    def _lock_directory(self) -> None:
        if fcntl is None:
            return
        self._directory = os.open(self._path, os.O_RDONLY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system that locks no directories, such as NFS: the file has to do
            self._close()

    def release(self) -> None:
        """Give the lock back."""
        self._close()
        self._file.release()

    def _close(self) -> None:
        if self._directory is not None:
            with contextlib.suppress(OSError):
                os.close(self._directory)
            self._directory = None
