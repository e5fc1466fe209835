"""Methods: estimators of attention that are not feature maps. A new one is a class and a line in METHODS."""

from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from favorbench.attention.problem import check_shapes
from favorbench.errors import InputError, ScenarioError
from favorbench.formats import shown
from favorbench.maps import MAPS, FeatureMap
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape
from favorbench.methods.block_sparse import BlockSparse, SpargeAttn, XAttention
from favorbench.methods.clusters import Clusters
from favorbench.methods.eva import Eva
from favorbench.methods.function import Function
from favorbench.methods.hashed import HyperAttention, KDEformer
from favorbench.methods.landmarks import Nystrom, WildCat
from favorbench.methods.last_queries import PbsAttn, VerticalSlash
from favorbench.methods.monarch import Monarch
from favorbench.methods.multipole import Multipole
from favorbench.methods.pisa import Pisa
from favorbench.methods.prefixes import ExactKeys, Nothing, Sinks, Top, Window
from favorbench.methods.sampled import SampledKeys, Thinformer
from favorbench.methods.segments import Lara, Nystromformer
from favorbench.numerics.arrays import Array, Float, array_namespace, of_python, on_host, to_backend_of
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole
from favorbench.registry import build, label, split_list
from favorbench.users import failures_named

METHODS: tuple[type[Method], ...] = (
    Clusters, Multipole, Nystrom, WildCat, Nystromformer, Monarch, Lara, Thinformer, Eva, HyperAttention,
    KDEformer, BlockSparse, VerticalSlash, XAttention, SpargeAttn, PbsAttn, Pisa,
)  # fmt: skip

#: ``prefix(number):method`` and ``prefix(number):map``, a user's too; they nest.
PREFIXES: tuple[type[ExactKeys], ...] = (Sinks, Window, Top)

#: Members that prefixes take in addition to methods: baselines that keep a sum over keys, and maps.
INSIDE = (SampledKeys, Nothing, *MAPS)


def get_method(spec: str | Method | Callable[..., Any]) -> Method:
    """Return the method that ``spec`` names, or that calls a function.

    Parameters
    ----------
    spec : str, Method or callable
        "clusters", "multipole(exact=0.25)", "sinks(4):window(128):multipole", "window(64):positive",
        "my_module:my_attention", or a function f(query, key, value, size, rng) -> output.

    Raises
    ------
    ScenarioError
        For an unknown name or parameter, with the nearest name.

    Examples
    --------
    >>> import favorbench as fb
    >>> fb.get_method("multipole(lloyd=3)").lloyd
    3
    """
    if isinstance(spec, Method):
        return spec
    if _is_function(spec):
        return Function.of(spec)
    text: Any = spec  # ``build`` refuses anything else
    members, transforms = _allowed(text) if isinstance(text, str) else (METHODS, PREFIXES)

    def adapted(member: Any) -> Any:
        """A user's function as a method."""
        try:
            return Function.of(member, ":".join(split_list(text, ":")[-2:])) if _is_function(member) else member
        except ScenarioError as error:
            raise ScenarioError(f"method {shown(text)}: {error}") from None

    method = build("method", text, members, (Method, FeatureMap), transforms, adapted)
    if isinstance(method, FeatureMap):
        raise ScenarioError(f"method {spec!r} is a map: write `maps` {spec}")
    return method


def _is_function(given: object) -> TypeGuard[Callable[..., Any]]:
    """Whether this is a user's function: also a partial, a bound method or an object with ``__call__``."""
    return callable(given) and not isinstance(given, type | Method | FeatureMap)


def _allowed(spec: str) -> tuple[tuple[type[Any], ...], tuple[type[Any], ...]]:
    """The members and transforms that a spec may have; maps and some baselines inside prefixes only."""
    name = spec.split(":")[0].partition("(")[0].strip()
    if name in {feature_map.name for feature_map in MAPS}:
        raise ScenarioError(f"{spec!r} is a map, not a method: write `maps` {spec}")
    if name == SampledKeys.name:
        raise ScenarioError(
            f"{spec!r} is a baseline, not a method: write `baselines` {spec}; in Python get_baseline({spec!r})"
        )
    if name not in {prefix.prefix for prefix in PREFIXES}:
        return METHODS, PREFIXES
    if ":" not in spec:
        raise ScenarioError(f"{spec!r} is a prefix: write what it stands before, e.g. {spec}:clusters")
    return (*METHODS, *INSIDE), (*PREFIXES, *MAP_TRANSFORMS)


def method_attention(
    query: Float[Array, "n d"],
    key: Float[Array, "l d"],
    value: Float[Array, "l d_v"],
    method: str | Method | Callable[..., Any] = "clusters",
    size: int = 64,
    rng: np.random.Generator | int = 0,
    causal: bool = False,
) -> Float[Array, "n d_v"]:
    """Estimate attention by a method at one size, for one head.

    Parameters
    ----------
    query : array (n, d)
        Queries as attention takes them, not scaled.
    key : array (l, d)
        Keys.
    value : array (l, d_v)
        Values.
    method : str, Method or callable
        A method, as ``get_method`` takes it.
    size : int
        The size m.
    rng : numpy.random.Generator or int
        A generator, or a seed.
    causal : bool
        A query sees only the keys up to its own position.

    Returns
    -------
    array (n, d_v)

    Raises
    ------
    InputError
        If the shapes do not fit or the method cannot be causal.
    ScenarioError
        For an unknown method or an impossible size.
    EstimatorError
        Where a user's method fails.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 64, 8))
    >>> fb.method_attention(query, key, value, "sinks(4):clusters", size=16, causal=True).shape
    (64, 8)
    """
    check_shapes(query, key, value, causal)
    estimator = get_method(method)
    if query.ndim != 2:
        raise InputError(f"query has shape {tuple(query.shape)}; methods are asked for one head, (n, d)")
    if causal and not estimator.causal_safe:
        raise InputError(f"method {label(estimator)!r} uses the whole sequence and cannot be causal")
    if estimator.needs_positions and query.shape[-2] != key.shape[-2]:
        raise InputError(f"method {estimator.name!r} needs as many queries as keys")
    check_whole("size", size := of_python(size), 1, 1 << 24)
    on_device = estimator.arrays != "host"
    given = [array if on_device else on_host(array).astype(float) for array in (query, key, value)]
    for name, array in zip(("query", "key", "value"), given, strict=True):
        if not bool((xp := array_namespace(array)).all(xp.isfinite(array))):
            raise InputError(f"{name} has values that are NaN or infinite")
    problem = AttentionProblem.of(given[0], given[1], given[2], causal)
    estimator.check((size,), problem.shape)
    streams = Streams((np.random.default_rng(rng),), lambda hosts: to_backend_of(hosts[0], given[0]))
    with failures_named(estimator.name):
        if isinstance(estimator, Function):  # once: its row sums, of a second call, are for sweeps
            copies = [array_namespace(array).astype(array, problem.query.dtype) for array in given[:2]]
            output = estimator.output(copies[0], copies[1], problem.value, size, streams.generators[0])
        else:
            (output,) = [estimate.output for estimate in estimator.estimates(problem, (size,), streams)] or [None]
    if output is None:
        raise InputError(
            f"method {estimator.name!r} has no answer for {len(query)} queries and {len(key)} keys: "
            f"{estimator.description}"
        )
    return output if on_device else to_backend_of(on_host(output), query)


__all__ = [
    "METHODS", "PREFIXES", "AttentionProblem", "Estimate", "Method", "SampledKeys", "Shape", "get_method",
    "method_attention",
]  # fmt: skip
