"""Functions of query, key and value that are timed, and their seconds in interleaved runs.

Calls are interleaved so that a machine that becomes busy slows all of them down alike.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.attention.problem import AttentionProblem
from favorbench.maps import Sample
from favorbench.methods import Method, method_attention
from favorbench.methods.features import LinearAttention
from favorbench.methods.function import Function
from favorbench.numerics.arrays import Array
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.statistics import median_interval
from favorbench.users import failures_named

Call = Callable[[Array, Array, Array], object]
Key = TypeVar("Key", bound=Hashable)

EXACT, FUSED = "exact", "exact, torch SDPA"

SHORT = 0.05  # seconds below which a call is made twice


def calls_of_exact(backend: Backend, causal: bool = False) -> Iterator[tuple[str, Call]]:
    """Exact attention in tiles, and torch's fused attention where torch is installed."""

    def exact(query: Array, key: Array, value: Array) -> object:
        scaled, positions = query * query.shape[-1] ** -0.5, np.arange(query.shape[-2])
        return softmax_attention(AttentionProblem(scaled, key, value, positions, causal))

    yield EXACT, exact
    if backend.has_fused_attention():
        yield FUSED, lambda q, k, v: backend.fused_attention(q, k, v, causal)


def call_of(method: Method, size: int, head_dim: int, backend: Backend, dtype: str, causal: bool = False) -> Call:
    """An estimator at one size. Projections are drawn now. A user's function is called once (twice in a sweep)."""
    if isinstance(method, Function):
        name = label(method)

        def call(query: Array, key: Array, value: Array) -> object:
            with failures_named(name):
                return method.output(query, key, value, size, np.random.default_rng(0))

        return call
    if not isinstance(method, LinearAttention):
        return lambda q, k, v: method_attention(q, k, v, method, size, causal=causal)
    name, feature_map = label(method.wrapped), method.wrapped
    drawn = sample_omega(method.law, size, head_dim, stream(0, "speed"), map=feature_map)
    sample = Sample(*(None if part is None else on_backend([np.asarray(part)], backend, dtype)[0] for part in drawn))

    def attend(query: Array, key: Array, value: Array) -> object:
        with failures_named(name):
            return linear_attention(query, key, value, sample, feature_map, causal)

    return attend


def on_backend(arrays: Sequence[np.ndarray], backend: Backend, dtype: str) -> list[Array]:
    """Host arrays on the backend in a precision, without an axis of draws."""
    moved = [backend.cast(backend.array([array]), dtype) for array in arrays]
    return [array[0] for array in moved] if backend.batched else moved


def interleaved(
    calls: Mapping[Key, Callable[[], object]],
    repeats: int,
    backend: Backend,
    progress: Progress | None = None,
    first: Callable[[Key], object] | None = None,
) -> dict[Key, list[float]]:
    """The seconds of each call, ``repeats`` times, after one call of it, or of ``first``, to warm up."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for done, (turn, key) in enumerate(itertools.product(range(repeats + 1), calls)):
        if progress:
            progress(done, len(calls) * (repeats + 1))
        if turn:
            seconds[key].append(seconds_of(calls[key], backend))
        elif first:
            first(key)
        else:
            calls[key]()
    return seconds


def seconds_of(call: Callable[[], object], backend: Backend) -> float:
    """The time of a call; of a second one if it is short, as the first finds the caches full of another method."""
    seconds = 0.0
    for _ in range(2):
        if seconds < SHORT:
            backend.synchronise()
            start = time.perf_counter()
            call()
            backend.synchronise()
            seconds = time.perf_counter() - start
    return seconds


def seconds_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval."""
    low, high, _ = median_interval(np.array(times))
    return statistics.median(times), low, high
