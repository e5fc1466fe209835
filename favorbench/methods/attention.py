"""A method asked by itself, outside a sweep."""

from collections.abc import Callable
from typing import Any

import numpy as np

from favorbench.attention.problem import check_shapes
from favorbench.errors import InputError
from favorbench.methods import Method, get_method
from favorbench.methods.base import AttentionProblem, Shape
from favorbench.numerics.arrays import Array, Float, beside, on_host
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole
from favorbench.users import failures_named


def method_attention(
    query: Float[Array, "n d"],
    key: Float[Array, "l d"],
    value: Float[Array, "l d_v"],
    method: str | Method | Callable[..., Any] = "clusters",
    size: int = 64,
    rng: np.random.Generator | int = 0,
    causal: bool = False,
) -> Float[Array, "n d_v"]:
    """The attention estimate of a method at one size; queries and keys as attention takes them, of one head.

    rng: a generator, or the seed of one. causal: a query sees the keys up to its own position only. Raises InputError
    if the shapes do not fit or the method cannot be causal, ScenarioError for an unknown method or an impossible size,
    EstimatorError where a user's method fails.

    >>> import favorbench as fb, numpy as np
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 64, 8))
    >>> fb.method_attention(query, key, value, "sinks(4):clusters", size=16, causal=True).shape
    (64, 8)
    """
    check_shapes(query, key, value, causal)
    asked = get_method(method)
    if query.ndim != 2:
        raise InputError(f"query has shape {tuple(query.shape)}; methods are asked for one head, (n, d)")
    if causal and not asked.causal_safe:
        raise InputError(f"method {asked.name!r} uses the whole sequence and cannot be causal")
    if asked.needs_positions and query.shape[-2] != key.shape[-2]:
        raise InputError(f"method {asked.name!r} needs as many queries as keys")
    check_whole("size", size, 1, 1 << 24)
    asked.check((size,), Shape(query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1], causal))
    given = [on_host(array) if asked.arrays == "host" else array for array in (query, key, value)]
    streams = Streams((np.random.default_rng(rng),), lambda hosts: beside(hosts[0], given[0]))
    with failures_named(asked.name):
        problem = AttentionProblem.of(given[0], given[1], given[2], causal)
        (estimate,) = asked.estimates(problem, (size,), streams)
    return beside(on_host(estimate.output), query) if asked.arrays == "host" else estimate.output
