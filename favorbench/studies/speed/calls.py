"""What is timed, as functions of query, key and value, and their seconds in interleaved runs.

Calls are interleaved so that a machine that becomes busy makes all of them slower alike.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.attention.problem import AttentionProblem
from favorbench.maps import Sample
from favorbench.methods import Method
from favorbench.methods.attention import method_attention
from favorbench.methods.features import LinearAttention
from favorbench.methods.function import Function
from favorbench.numerics.arrays import Array
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.users import failures_named

Call = Callable[[Array, Array, Array], object]
Key = TypeVar("Key", bound=Hashable)

EXACT, FUSED = "exact", "exact, torch SDPA"

SHORT = 0.05  # seconds below which a call is made twice


def calls_of_exact(backend: Backend, causal: bool = False) -> Iterator[tuple[str, Call]]:
    """favorbench's tiles, and torch's fused attention where torch is there."""

    def exact(query: Array, key: Array, value: Array) -> object:
        scaled, positions = query * query.shape[-1] ** -0.5, np.arange(query.shape[-2])
        return softmax_attention(AttentionProblem(scaled, key, value, positions, causal))

    yield EXACT, exact
    if backend.has_fused_attention():
        yield FUSED, lambda q, k, v: backend.fused_attention(q, k, v, causal)


def call_of(method: Method, size: int, head_dim: int, backend: Backend, dtype: str, causal: bool = False) -> Call:
    """An estimator at one size. Projections are drawn now; a user's function is called once, sweeps call it twice."""
    if isinstance(method, Function):
        name = label(method)

        def call(query: Array, key: Array, value: Array) -> object:
            with failures_named(name):
                return method.function(query, key, value, size, np.random.default_rng(0))

        return call
    if not isinstance(method, LinearAttention):
        return lambda q, k, v: method_attention(q, k, v, method, size, causal=causal)
    name, own = label(method.wrapped), method.wrapped
    drawn = sample_omega(method.law, size, head_dim, stream(0, "speed"), map=own)
    sample = Sample(*(None if part is None else on_backend([np.asarray(part)], backend, dtype)[0] for part in drawn))

    def attend(query: Array, key: Array, value: Array) -> object:
        with failures_named(name):
            return linear_attention(query, key, value, sample, own, causal)

    return attend


def on_backend(arrays: Sequence[np.ndarray], backend: Backend, dtype: str) -> list[Array]:
    """Host arrays in the precision and where they are computed with, without an axis of draws."""
    found = [backend.cast(backend.array([array]), dtype) for array in arrays]
    return [array[0] for array in found] if backend.batched else found


def interleaved(
    calls: Mapping[Key, Callable[[], object]],
    repeats: int,
    backend: Backend,
    progress: Progress | None = None,
    first: Callable[[Key], object] | None = None,
) -> dict[Key, list[float]]:
    """The seconds of each call, ``repeats`` times; before that each is made once, or ``first`` called, to warm up."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    total, done = len(calls) * (repeats + 1), 0
    for turn in range(repeats + 1):
        for key, call in calls.items():
            if progress:
                progress(done, total)
            done += 1
            if turn:
                seconds[key].append(seconds_of(call, backend))
            elif first:
                first(key)
            else:
                call()
    return seconds


def seconds_of(call: Callable[[], object], backend: Backend) -> float:
    """The time of a call; of the second one if it is short, as the first finds the caches full of another method."""

    def once() -> float:
        backend.synchronise()
        start = time.perf_counter()
        call()
        backend.synchronise()
        return time.perf_counter() - start

    first = once()
    return once() if first < SHORT else first
