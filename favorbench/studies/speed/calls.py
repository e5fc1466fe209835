"""What is timed: exact attention, maps and methods as functions of query, key and value."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from favorbench.attention.exact import exact_attention, tiled_attention
from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.maps import FeatureMap, Sample
from favorbench.methods import Method
from favorbench.methods.attention import method_attention
from favorbench.methods.function import Function
from favorbench.numerics.arrays import Array
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.users import failures_named

Call = Callable[[Array, Array, Array], object]

EXACT, FUSED = "exact", "exact, torch SDPA"


def calls_of_exact(backend: Backend, causal: bool = False) -> Iterator[tuple[str, Call]]:
    """favorbench's tiles, and torch's fused attention where torch is there."""
    yield EXACT, (lambda q, k, v: exact_attention(q, k, v, causal=True)) if causal else tiled_attention
    if backend.has_fused_attention():
        yield FUSED, lambda q, k, v: backend.fused_attention(q, k, v, causal)


def call_of_map(
    feature_map: FeatureMap,
    size: int,
    head_dim: int,
    backend: Backend,
    dtype: str,
    sampler: str | Sampler = "orthogonal",
    causal: bool = False,
) -> Call:
    """Linear attention with projections that are drawn now."""
    drawn = sample_omega(sampler, size, head_dim, stream(0, "speed"), map=feature_map)
    sample = Sample(*(None if part is None else on_backend([np.asarray(part)], backend, dtype)[0] for part in drawn))

    def call(query: Array, key: Array, value: Array) -> object:
        with failures_named(label(feature_map)):
            return linear_attention(query, key, value, sample, feature_map, causal)

    return call


def call_of_method(method: Method, size: int, causal: bool = False) -> Call:
    """A method; of a user's function the function itself, as sweeps ask it twice."""
    if not isinstance(method, Function):
        return lambda q, k, v: method_attention(q, k, v, method, size, causal=causal)

    def call(query: Array, key: Array, value: Array) -> object:
        with failures_named(label(method)):
            return method.function(query, key, value, size, np.random.default_rng(0))

    return call


def on_backend(arrays: Sequence[np.ndarray], backend: Backend, dtype: str) -> list[Array]:
    """Host arrays in the precision and where they are computed with, without an axis of draws."""
    found = [backend.cast(backend.array([array]), dtype) for array in arrays]
    return [array[0] for array in found] if backend.batched else found
