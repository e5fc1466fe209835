"""Seconds of estimators and exact attention against L, interleaved on one core or GPU, and the break-even length."""

import functools
import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.engine.scenario import check_labels
from favorbench.inputs import Head, get_input
from favorbench.maps import get_map
from favorbench.methods import Method, Shape, get_method
from favorbench.methods.features import LinearAttention, name_of
from favorbench.methods.function import Function
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import check_memory, one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.statistics import interval_name
from favorbench.studies.speed.calls import (
    EXACT,
    FUSED,
    call_of,
    calls_of_exact,
    interleaved,
    on_backend,
    seconds_interval,
)

ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


class Timing(NamedTuple):
    """One estimator at one length: the median of the repeats in seconds with its 95 % interval, and peak memory.

    memory_bytes: the most that was allocated at a time, without the inputs; None where it cannot be measured.
    """

    estimator: str
    num_projections: int
    seq_len: int
    seconds: float
    low: float
    high: float
    memory_bytes: int | None


class Crossover(NamedTuple):
    """Where an estimator overtakes exact attention. seq_len: where the medians cross, log-log interpolated.

    0: faster at every measured length; inf: at none. slope: of log time on log L, over the upper half of the lengths.
    low, high: the slopes that times within their intervals allow; far apart if the machine was busy.
    """

    estimator: str
    seq_len: float
    slope: float
    low: float
    high: float

    @property
    def uncertain(self) -> bool:
        """Whether the times of one length differ too much for a slope: by more than tells L from L^1.5."""
        return self.high - self.low > 0.5


class SpeedStudy(NamedTuple):
    """The result of ``favorbench speed``."""

    timings: tuple[Timing, ...]
    crossovers: tuple[Crossover, ...]
    head_dim: int
    dtype: str
    repeats: int
    where: str

    @property
    def lengths(self) -> list[int]:
        """The measured lengths, increasing."""
        return sorted({timing.seq_len for timing in self.timings})

    def of(self, estimator: str) -> list[Timing]:
        """The timings of one estimator, by increasing length."""
        return sorted((t for t in self.timings if t.estimator == estimator), key=lambda t: t.seq_len)


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
    """Time exact attention, and all maps and methods at every R and length, ``repeats`` times each, interleaved.

    One head, N(0, I) inputs. Orthogonal projections are drawn before the clock starts. Choices of a method depend on
    the sequence, so they are timed. Raises ScenarioError for unknown names and backends that are not available.
    """
    backend = backend or Backend()
    backend.check([dtype])
    maps, methods = (tuple(dict.fromkeys(specs)) for specs in (maps, methods))
    for key, specs, build in (("maps", maps, get_map), ("methods", methods, get_method)):
        check_labels(key, specs, [label(build(spec)) for spec in specs], maps)
    timed = [*_sized(map(LinearAttention, map(get_map, maps)), sizes, sizes[0])]
    timed += _sized(map(get_method, methods), sizes, sizes[-1])
    for method, size in timed:
        method.check((size,), Shape(min(lengths), min(lengths), head_dim, head_dim))
    _check_memory(timed, lengths, head_dim, backend, dtype)
    calls, members = {name: (0, call) for name, call in calls_of_exact(backend)}, dict[str, Method]()
    for method, size in timed:
        name, shown = (f"{name_of(method)}, R = {size}", size) if method.every_size else (name_of(method), 0)
        calls[name], members[name] = (shown, call_of(method, size, head_dim, backend, dtype)), method
    memory: dict[tuple[str, int], int | None] = {}
    with one_core(), backend.precision(dtype), np.errstate(all="ignore"):
        drawn = {
            n: get_input("gaussian").draw(stream(0, "speed", "inputs"), Head("-", n, n, head_dim)) for n in lengths
        }
        inputs = {length: on_backend(arrays, backend, dtype) for length, arrays in drawn.items()}
        bound = {
            (name, length): functools.partial(calls[name][1], *inputs[length])
            for name, length in itertools.product(calls, lengths)
        }

        def measure_memory(key: tuple[str, int]) -> None:
            peak, method = _peak_memory(bound[key], backend, key[0]), members.get(key[0])
            of_torch = isinstance(method, Function) and method.tensors  # its memory is not seen on a CPU
            memory[key] = None if of_torch and backend.device == "cpu" else peak

        seconds = interleaved(bound, repeats, backend, progress, first=measure_memory)
    timings = tuple(
        Timing(name, calls[name][0], length, *seconds_interval(times), memory[name, length])
        for (name, length), times in seconds.items()
    )
    result = SpeedStudy(timings, (), head_dim, dtype, repeats, backend.describe())
    return result._replace(crossovers=tuple(_crossovers(result)))


def _sized(methods: Iterable[Method], sizes: Sequence[int], usual: int) -> Iterator[tuple[Method, int]]:
    """Each method at each size, or at the usual one if it has no sizes."""
    return ((method, size) for method in methods for size in (sizes if method.every_size else [usual]))


def _check_memory(
    timed: Sequence[tuple[Method, int]], lengths: Sequence[int], head_dim: int, backend: Backend, dtype: str
) -> None:
    """Raise ScenarioError if the memory that is needed at least is not available, before anything is allocated.

    Inputs of all lengths are kept, as runs are interleaved; at the longest there are three more arrays, for drawing,
    scaling and the output, or two and sums over keys. Every R has its projections.
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


def _peak_memory(call: Callable[[], object], backend: Backend, name: str) -> int | None:
    """The most that was allocated at a time during the call. torch does not report it on a CPU."""
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


def _crossovers(timed: SpeedStudy) -> Iterator[Crossover]:
    lengths, references = timed.lengths, [timed.of(EXACT), timed.of(FUSED)]
    exact = [min(timing.seconds for timing in same) for same in zip(*filter(None, references), strict=True)]
    for name in dict.fromkeys(timing.estimator for timing in timed.timings):
        timings = timed.of(name)
        seconds, low, high = ([getattr(t, column) for t in timings] for column in ("seconds", "low", "high"))
        crossing = math.nan if name in (EXACT, FUSED) else _crossing(lengths, seconds, exact)
        slope, _ = _slope_bounds(lengths, seconds, seconds)
        yield Crossover(name, crossing, slope, *_slope_bounds(lengths, low, high))


def _crossing(lengths: Sequence[int], linear: Sequence[float], exact: Sequence[float]) -> float:
    """The length from which linear is faster, by interpolation of log(linear / exact) in log L."""
    gap = np.log(linear) - np.log(exact)
    slower = np.flatnonzero(gap >= 0)
    if not len(slower):
        return 0.0
    last = slower[-1]
    if last == len(gap) - 1:
        return math.inf
    around = [last + 1, last]
    return float(np.exp(np.interp(0.0, gap[around], np.log(lengths)[around])))


def _slope_bounds(lengths: Sequence[int], low: Sequence[float], high: Sequence[float]) -> tuple[float, float]:
    """The least and the largest slope of log time on log L, for times within these bounds.

    It is the least-squares slope over the upper half of the lengths, where overheads are small: sum_i c_i log t_i with
    c_i in proportion to the centred log L_i. Each time is at the end that lowers it, or raises it.
    """
    if len(lengths) < 2:
        return math.nan, math.nan
    upper = slice(min(len(lengths) // 2, len(lengths) - 2), None)
    centred = np.log(lengths[upper]) - np.mean(np.log(lengths[upper]))
    weights = centred / np.sum(centred**2)
    shortest, longest = np.log([low[upper], high[upper]])
    least, most = np.where(weights > 0, (shortest, longest), (longest, shortest))
    return float(weights @ least), float(weights @ most)


def chart(study: SpeedStudy, name: str) -> style.Chart:
    """Seconds against length, with the break-even lengths."""
    caption = (
        f"{study.where}, {study.dtype}, d = {study.head_dim}, one head: median of {study.repeats} interleaved runs, "
        f"band: {interval_name(study.repeats)}."
    )
    data = pd.DataFrame([timing._asdict() for timing in study.timings])
    crossings = {c.estimator: c.seq_len for c in study.crossovers if 0 < c.seq_len < float("inf")}
    if crossings:
        caption += " Dotted: the break-even length, from which an estimator is faster than the faster exact attention."
    panel = style.Panel("", functools.partial(_draw, data, crossings))
    title = "Time against sequence length: lower is better"
    return style.Chart(name, title, caption, [panel], panel_size=(7.0, 4.6), data=data)


def _draw(data: pd.DataFrame, crossings: dict[str, float], ax: Axes) -> None:
    estimators = [name for name in dict.fromkeys(data["estimator"]) if name not in (EXACT, FUSED)]
    for name in dict.fromkeys(data["estimator"]):
        rows = data[data["estimator"] == name].sort_values("seq_len")
        if name in estimators:
            look = style.series_look(estimators.index(name), label=style.plain(name))
        else:
            line, marker = ("-", "x") if name == EXACT else ("--", "+")
            look = {"color": "black", "linestyle": line, "marker": marker, "label": name}
        style.line_with_band(ax, rows["seq_len"], rows["seconds"], (rows["low"], rows["high"]), 0.15, **look)
        if name in crossings:
            ax.axvline(crossings[name], color=look["color"], linewidth=0.8, linestyle=":", zorder=0.5)
            height = 0.98 - 0.09 * (estimators.index(name) % 4)  # the upper left, where no curve is
            ax.annotate(
                f"{crossings[name]:.0f}", (crossings[name], height), xycoords=("data", "axes fraction"),
                xytext=(2, 0), textcoords="offset points", va="top", fontsize=9, color=look["color"],
            )  # fmt: skip
    style.log_limits(ax, [*data["low"], *data["high"]])
    style.number_axis(ax, [*data["seq_len"]], log=True)
    ax.set(xlabel="sequence length L", ylabel="seconds")
