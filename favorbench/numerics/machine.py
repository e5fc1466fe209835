"""The machine a run uses: its allocator, its BLAS threads, its rates."""

import contextlib
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import threadpoolctl

from favorbench.numerics.arrays import cos_sin


class Rates(NamedTuple):
    """What one core does in a second, float64: multiply-adds of a matrix product count as 2 flops."""

    gemm: float
    exp: float
    cos_sin: float


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """One BLAS thread inside, so that sums have the same order everywhere, and an allocator that keeps freed tiles.

    By default glibc gives a tile of a MiB back to the system when it is freed, and the next one costs a page fault
    every 4 KiB: attention then takes three to four times as long. Elsewhere than on glibc nothing is changed.
    """
    keep_freed_memory()
    with threadpoolctl.threadpool_limits(1):
        yield


@functools.cache
def keep_freed_memory() -> None:
    """Let malloc keep up to 256 MiB of freed memory for the next arrays, for the rest of the process."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # their numbers in malloc.h
        mallopt(mmap_threshold, 1 << 25)
        mallopt(trim_threshold, 1 << 28)


def rates(gemm: Callable[[], object], flops: float, repeats: int = 5) -> Rates:
    """Rates measured now, each the best of a few: of a matrix product of so many flops, of exp and of cos_sin."""
    values, out = np.linspace(-1.0, 1.0, 1 << 16), np.empty(1 << 16)
    return Rates(
        gemm=flops / best_time(gemm, repeats),
        exp=values.size / best_time(lambda: np.exp(values, out=out), repeats),
        cos_sin=values.size / best_time(lambda: cos_sin(values), repeats),
    )


def best_time(operation: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return min(times)
