"""From which length on linear attention is faster: it, methods and exact attention timed side by side, on one core or
GPU."""

import functools
import itertools
import math
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.formats import plain
from favorbench.inputs import Head, get_input
from favorbench.maps import get_map
from favorbench.methods import Method, Shape, get_method
from favorbench.methods.features import LinearAttention, name_of
from favorbench.numerics.arrays import Array
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import check_memory, one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.statistics import median_interval
from favorbench.studies.speed.calls import EXACT, FUSED, call_of, calls_of_exact, interleaved, on_backend

ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


class Timing(NamedTuple):
    """One method at one length: median of the repeats in seconds with its 95 % interval, and peak memory.

    memory_bytes: the most that was allocated at a time beside inputs; None where it cannot be measured.
    """

    method: str
    num_projections: int
    seq_len: int
    seconds: float
    low: float
    high: float
    memory_bytes: int | None


class Crossover(NamedTuple):
    """Where a method overtakes exact attention. seq_len: where the curves of the medians cross, log-log interpolated.

    0: faster at every length measured; inf: at none. slope: of log time on log L, over the upper half of the lengths.
    low, high: the slopes that times within their intervals can make; far apart where the machine was busy.
    """

    method: str
    seq_len: float
    slope: float
    low: float
    high: float

    @property
    def uncertain(self) -> bool:
        """Whether the times of one length differ too much for a slope: by more than tells L from L^1.5."""
        return self.high - self.low > 0.5


class SpeedStudy(NamedTuple):
    """What ``favorbench speed`` shows."""

    timings: tuple[Timing, ...]
    crossovers: tuple[Crossover, ...]
    head_dim: int
    dtype: str
    repeats: int
    where: str

    @property
    def lengths(self) -> list[int]:
        """The lengths measured, increasing."""
        return sorted({timing.seq_len for timing in self.timings})

    def of(self, method: str) -> list[Timing]:
        """The timings of one method, by increasing length."""
        return sorted((t for t in self.timings if t.method == method), key=lambda t: t.seq_len)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; a crossover or a slope that is not there is null."""
        return plain(self._asdict())


def study(
    maps: Sequence[str],
    sizes: Sequence[int],
    lengths: Sequence[int],
    head_dim: int = 64,
    repeats: int = 7,
    backend: Backend | None = None,
    dtype: str = "float64",
    progress: Progress | None = None,
    methods: Sequence[str] = (),
) -> SpeedStudy:
    """Time exact attention, and all maps and methods at every R and length, ``repeats`` times each in interleaved runs.

    One head, N(0, I) inputs. Projections are orthogonal, and drawn before; what methods choose they choose for each
    sequence, so it is timed. Raises ScenarioError for what is unknown or not to be had.
    """
    backend = backend or Backend()
    backend.check([dtype])
    timed: list[tuple[Method, int]] = [
        (m, r) for m in map(LinearAttention, map(get_map, maps)) for r in (sizes if m.every_size else sizes[:1])
    ]
    timed += [(m, r) for m in map(get_method, methods) for r in (sizes if m.every_size else sizes[-1:])]
    for method, size in timed:
        method.check((size,), Shape(min(lengths), min(lengths), head_dim, head_dim))
    _check_memory(timed, lengths, head_dim, backend, dtype)
    calls = {name: (0, call) for name, call in calls_of_exact(backend)}
    for method, size in timed:
        name = name_of(method)
        key, shown = (f"{name}, R = {size}", size) if method.every_size else (name, 0)
        calls[key] = shown, call_of(method, size, head_dim, backend, dtype)
    memory: dict[tuple[str, int], int | None] = {}
    with one_core(), backend.precision(dtype), np.errstate(all="ignore"):
        inputs = {length: _inputs(length, head_dim, backend, dtype) for length in lengths}
        bound = {
            (name, length): functools.partial(calls[name][1], *inputs[length])
            for name, length in itertools.product(calls, lengths)
        }

        def measure_memory(key: tuple[str, int]) -> None:
            memory[key] = _peak_memory(bound[key], backend, key[0])

        seconds = interleaved(bound, repeats, backend, progress, first=measure_memory)
    timings = []
    for (name, length), times in seconds.items():
        low, high, _ = median_interval(np.array(times))
        median = statistics.median(times)
        timings.append(Timing(name, calls[name][0], length, median, low, high, memory[name, length]))
    found = SpeedStudy(tuple(timings), (), head_dim, dtype, repeats, backend.describe())
    return found._replace(crossovers=tuple(_crossovers(found)))


def _check_memory(
    timed: Sequence[tuple[Method, int]], lengths: Sequence[int], head_dim: int, backend: Backend, dtype: str
) -> None:
    """Raise ScenarioError if the least that this takes is not available, before anything is allocated.

    Inputs of all lengths are kept, as runs are interleaved; at the longest there are three arrays more, in which
    they are drawn, scaled, and answered, or two and sums over keys. Every R has its projections.
    """
    maps = [(method, size) for method, size in timed if isinstance(method, LinearAttention)]
    if backend.device == "cpu":
        projections = 8 * sum(size for _, size in maps)
        features = max((method.num_features(size, head_dim) for method, size in maps), default=0)
        tokens = ITEM_BYTES[dtype] * 3 * sum(lengths) + 8 * (2 * max(lengths) + max(*lengths, features))
        check_memory(
            (tokens + projections) * head_dim,
            f"`seq_len` {max(lengths)} with `head_dim` {head_dim} and {features} features",
            "use a smaller `seq_len`, `num_projections` or `head_dim`",
        )
    shape = Shape(max(lengths), max(lengths), head_dim, head_dim)
    for method, size in timed:
        if entries := method.matrix_entries(shape, size):
            what = f"{label(method)} at `seq_len` {max(lengths)}"
            check_memory(8 * entries, what, "use a smaller `seq_len` or `num_projections`")


def _inputs(length: int, head_dim: int, backend: Backend, dtype: str) -> list[Array]:
    drawn = get_input("gaussian").draw(stream(0, "speed", "inputs"), Head("-", length, length, head_dim))
    return on_backend(drawn, backend, dtype)


def _peak_memory(call: Callable[[], object], backend: Backend, name: str) -> int | None:
    """The most that was allocated at a time while the call ran. torch does not tell it on a CPU."""
    if backend.batched or name == FUSED:
        with backend.peak_memory() as peak:
            call()
        return peak()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _crossovers(found: SpeedStudy) -> Iterator[Crossover]:
    names = list(dict.fromkeys(timing.method for timing in found.timings))
    exact = [
        min(t.seconds for t in found.timings if t.seq_len == n and t.method in (EXACT, FUSED)) for n in found.lengths
    ]
    for name in names:
        timings = found.of(name)
        seconds = [timing.seconds for timing in timings]
        crossing = math.nan if name in (EXACT, FUSED) else _crossing(found.lengths, seconds, exact)
        bounds = _slope_bounds(found.lengths, [t.low for t in timings], [t.high for t in timings])
        yield Crossover(name, crossing, _slope(found.lengths, seconds), *bounds)


def _crossing(lengths: Sequence[int], linear: Sequence[float], exact: Sequence[float]) -> float:
    """The length from which on linear is faster, by interpolation of log(linear / exact) in log L."""
    gap = [math.log(a / b) for a, b in zip(linear, exact, strict=True)]
    if gap[-1] >= 0:
        return math.inf
    slower = [i for i, value in enumerate(gap) if value >= 0]
    if not slower:
        return 0.0
    i = slower[-1]
    share = gap[i] / (gap[i] - gap[i + 1])
    return float(math.exp(math.log(lengths[i]) + share * math.log(lengths[i + 1] / lengths[i])))


def _slope(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """Least-squares slope of log time on log L over the upper half of the lengths, where overheads are small."""
    return _slope_bounds(lengths, seconds, seconds)[0]


def _slope_bounds(lengths: Sequence[int], low: Sequence[float], high: Sequence[float]) -> tuple[float, float]:
    """The least and the largest slope of times that lie within these bounds.

    The slope is sum_i c_i log t_i with c_i in proportion to the centred log L_i: each time at the end that lowers it.
    """
    if len(lengths) < 2:
        return math.nan, math.nan
    upper = slice(min(len(lengths) // 2, len(lengths) - 2), None)
    centred = np.log(lengths[upper]) - np.mean(np.log(lengths[upper]))
    weights = centred / np.sum(centred**2)
    ends = np.log([low[upper], high[upper]])
    least = np.where(weights > 0, ends[0], ends[1])
    most = np.where(weights > 0, ends[1], ends[0])
    return float(weights @ least), float(weights @ most)
