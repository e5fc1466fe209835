"""The machine a run uses: its BLAS threads, its allocator, its free memory, its rates."""

import contextlib
import functools
import importlib
import os
import sys
import threading
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from favorbench.errors import ScenarioError
from favorbench.formats import format_bytes
from favorbench.numerics.arrays import cos_sin


class Rates(NamedTuple):
    """Operations of one core per second, float64: multiply-adds of a matrix product count as 2 flops."""

    gemm: float
    exp: float
    cos_sin: float


class _Limit:
    """One BLAS thread while it is held: threads of a process share it, and release it in any order."""

    def __init__(self) -> None:
        self._lock, self._holders = threading.Lock(), 0
        self._undo: list[Callable[[], None]] = []
        self._modules = 0

    def take(self) -> None:
        """One thread; libraries are looked for again, in milliseconds, where a module was imported meanwhile."""
        with self._lock:
            self._holders += 1
            if not self._undo or self._modules != len(sys.modules):
                self._limit()
                self._modules = len(sys.modules)

    def take_new_libraries(self) -> None:
        """One thread also in libraries that were loaded meanwhile, if it is held."""
        with self._lock:
            if self._undo:
                self._limit()

    def give_back(self) -> None:
        with self._lock:
            self._holders -= 1
            while self._undo and not self._holders:
                with _any_thread():
                    self._undo.pop()()

    def _limit(self) -> None:
        if torch := imported_torch():  # asked first: its number for new threads and its MKL are apart
            self._undo.append(functools.partial(torch.set_num_threads, torch.get_num_threads()))
            torch.set_num_threads(1)
        with _any_thread():
            self._undo.append(threadpoolctl.threadpool_limits(1).restore_original_limits)


@contextlib.contextmanager
def _any_thread() -> Iterator[None]:
    """Let this thread set the threads of OpenBLAS: threadpoolctl 3.8 ignores all but the first that did."""
    release = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", lambda force: None)
    release(force=True)
    yield
    release(force=True)


def imported_torch() -> Any:
    """The library torch, if it is imported. Where another thread imports it, wait for that."""
    return importlib.import_module("torch") if sys.modules.get("torch") else None


_LIMIT = _Limit()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """One BLAS thread inside, so that sums have the same order everywhere, and an allocator that keeps freed tiles."""
    keep_freed_memory()
    _LIMIT.take()
    try:
        yield
    finally:
        _LIMIT.give_back()


def all_on_one_core() -> bool:
    """Whether every library that is loaded computes on one core."""
    return all(pool["num_threads"] == 1 for pool in threadpoolctl.threadpool_info())


@functools.cache
def scipy_linalg() -> Any:
    """Import scipy.linalg when needed: it has its own BLAS library, which is set to one thread like the others."""
    linalg = importlib.import_module("scipy.linalg")
    _LIMIT.take_new_libraries()
    return linalg


@functools.cache
def keep_freed_memory() -> None:
    """Let malloc keep freed tiles for the next arrays: on glibc attention is then three to four times as fast.

    By default glibc gives a freed tile of a MiB back to the system, and the next one costs a page fault every 4 KiB.
    Once an array of up to 32 MiB was freed, smaller ones come from memory that glibc keeps. So such an array is
    allocated and freed, untouched; with other C libraries this has no effect.
    """
    np.empty((1 << 25) - (1 << 16), dtype=np.uint8)


def available_memory() -> int | None:
    """Available bytes: those of the machine, or of the container if fewer; None where unknown."""
    known = [bytes_left for bytes_left in (_free_of_machine(), *_free_of_groups()) if bytes_left is not None]
    return max(0, min(known)) if known else None


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Raise ScenarioError if ``needed`` bytes are not available, before anything is allocated."""
    available = available_memory()
    if available is not None and needed > available:
        raise ScenarioError(
            f"{what} needs {format_bytes(needed)} of memory, and {format_bytes(available)} are available: {remedy}"
        )


def _free_of_machine() -> int | None:
    """Available memory on Linux; elsewhere all memory, which is an upper bound."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no sysconf on Windows
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_of_groups() -> Iterator[int]:
    """Available memory in the control groups of this process, where they have limits."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            names = VERSION_1 if controllers else VERSION_2
            yield from left_in_group(Path("/sys/fs/cgroup", controllers), path, names)


#: The files of a control group with its limit and its use of memory.
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
VERSION_2 = ("memory.max", "memory.current")


def left_in_group(root: Path, path: str, names: tuple[str, str]) -> Iterator[int]:
    """Available memory in a control group and in each of its parents, where there is a limit."""
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(root):
            with contextlib.suppress(OSError, ValueError):  # "max": no limit
                limit, used = (int((folder / name).read_text()) for name in names)
                yield limit - used + _cached(folder)


def _cached(folder: Path) -> int:
    """Bytes of cached files, which a control group counts as used and frees when memory is short."""
    try:
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return 0
    return next((int(value) for name, value in pairs if name in ("inactive_file", "total_inactive_file")), 0)


def rates(gemm: Callable[[], object], flops: float, repeats: int = 5) -> Rates:
    """Measure rates: of a matrix product with ``flops`` operations, of exp and of cos_sin, each the best of a few."""
    values, out = np.linspace(-1.0, 1.0, 1 << 16), np.empty(1 << 16)
    return Rates(
        gemm=flops / best_time(gemm, repeats),
        exp=values.size / best_time(lambda: np.exp(values, out=out), repeats),
        cos_sin=values.size / best_time(lambda: cos_sin(values), repeats),
    )


def best_time(operation: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few runs, in seconds."""
    return min(timeit.repeat(operation, number=1, repeat=repeats))
