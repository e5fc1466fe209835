"""Linear attention from features: the engine that evaluates every map at every R, in log space and in tiles."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from favorbench.attention.causal import causal_outputs, chunk_multiplications
from favorbench.attention.problem import AttentionProblem, SampledMap, Shape, Tile, check_shapes, projection_of
from favorbench.errors import InputError, ScenarioError
from favorbench.formats import shown
from favorbench.maps import Calibrated, FeatureMap, Sample, get_map
from favorbench.maps.base import checked_blocks
from favorbench.maps.transforms import with_arrays
from favorbench.numerics.arrays import Array, Float, array_namespace, device_elements, moved
from favorbench.numerics.logsum import (
    Accumulator,
    accumulate_blocks,
    inner_products,
    query_sums,
    quotient,
    tiles,
    with_ones,
)
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.base import draw_omega
from favorbench.users import stated_cost

LEAST_ROWS = 128  # of a tile: below it matrix products wait for memory, so heads are processed in groups


def linear_attention(
    query: Float[Array, "*batch n d"],
    key: Float[Array, "*batch l d"],
    value: Float[Array, "*batch l d_v"],
    omega: Sample | Float[Array, "*heads num_projections d"],
    map: str | FeatureMap = "positive",
    causal: bool = False,
) -> Float[Array, "*batch n d_v"]:
    """Estimate attention by phi(q) (phi(k)^T value) / phi(q) (phi(k)^T 1), without an eps; O(l) time and memory.

    Parameters
    ----------
    query : array (..., n, d)
        Queries as attention takes them: the factor d^-1/4 is applied here. Of NumPy or torch.
    key : array (..., l, d)
        Keys.
    value : array (..., l, d_v)
        Values.
    omega : array (..., num_projections, d) or Sample
        A sample of ``sample_omega``. It is moved to the library, device and dtype of the queries, and may have the axes
        of the heads, one sample each.
    map : str or FeatureMap
        A map, as ``get_map`` takes it.
    causal : bool
        A query sees only the keys up to its own position.

    Returns
    -------
    array (..., n, d_v)
        In the dtype of the arguments.

    Raises
    ------
    InputError
        If the shapes do not fit, or if causal is set for a map that uses the whole sequence.
    ScenarioError
        For an unknown map.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = 0.5 * rng.normal(size=(3, 2, 64, 8))
    >>> omega = fb.sample_omega("orthogonal", num_projections=32, head_dim=8, rng=rng)
    >>> fb.linear_attention(query, key, value, omega, map="positive", causal=True).shape
    (2, 64, 8)
    """
    check_shapes(query, key, value, causal)
    feature_map, sample = _resolved(map, omega, query)
    axes = zip(sample.omega.shape[-3::-1], query.shape[-3::-1], strict=False)
    if any(a != b and 1 not in (a, b) for a, b in axes):
        shapes = f"omega {tuple(sample.omega.shape)}, query {tuple(query.shape)}"
        raise InputError(
            f"{shapes}: allowed: (num_projections, d), or with the leading axes of the queries before them"
        )
    if causal and not feature_map.causal_safe:
        raise InputError(f"map {feature_map.name!r} uses the whole sequence and cannot be causal")
    estimator = SampledMap(feature_map, sample.extra, (sample.omega.shape[-2],))
    positions, scale = np.arange(query.shape[-2]) if causal else None, query.shape[-1] ** -0.25
    xp, dtype = array_namespace(query, key, value), _precision(query, key, value)
    query, key, value, rows = (xp.astype(a, dtype, copy=False) for a in (query, key, value, sample.omega))

    def attend(query: Array, key: Array, value: Array, omega: Array, estimator: SampledMap) -> Array:
        problem = AttentionProblem(query, key, value, positions, causal)
        parts = attention_estimates(problem, omega, [estimator], scale)
        return xp.concat([tile.output[0, ...] for tile in parts], axis=-2)

    width = max(rows.shape[-2], feature_map.num_features(rows.shape[-2], query.shape[-1]))
    batch, count = tuple(query.shape[:-2]), heads_at_once(query, width)
    if math.prod(batch) <= count:
        return attend(query, key, value, rows, estimator)
    parts = []
    for start in range(0, math.prod(batch), count):
        heads = slice(start, start + count)
        q, k, v, omega_rows = (_of_heads(array, batch, heads) for array in (query, key, value, rows))
        parts.append(attend(q, k, v, omega_rows, _estimator_of(estimator, rows, batch, heads)))
    output = xp.concat(parts, axis=0)
    return xp.reshape(output, (*batch, *output.shape[1:]))


def _precision(*arrays: Array) -> Any:
    """Their common dtype, which omega, drawn in float64, gets too; float64 for whole numbers."""
    xp = array_namespace(*arrays)
    dtype = xp.result_type(*arrays)
    return dtype if xp.isdtype(dtype, "real floating") else xp.float64


def heads_at_once(like: Array, width: int) -> int:
    """The number of heads for which a tile has LEAST_ROWS rows of ``width`` features each."""
    return max(1, device_elements(like) // (width * LEAST_ROWS))


def _of_heads(array: Array, batch: tuple[int, ...], heads: slice, trailing: int = 2) -> Array:
    """Some heads of an array with the axes of the heads before its own; an array without any serves all of them."""
    if array.ndim <= trailing:
        return array
    xp, rest = array_namespace(array), tuple(array.shape[array.ndim - trailing :])
    return xp.reshape(xp.broadcast_to(array, (*batch, *rest)), (-1, *rest))[heads, ...]


def _estimator_of(estimator: SampledMap, omega: Array, batch: tuple[int, ...], heads: slice) -> SampledMap:
    """The estimator of some heads: the extra sample and the parameters of a calibrated map may have their axes."""
    extra, feature_map = estimator.extra, estimator.map
    if extra is not None and omega.ndim > 2:  # the extra sample has the axes of its omega
        extra = _of_heads(extra, batch, heads, extra.ndim - omega.ndim + 2)
    if isinstance(feature_map, Calibrated):
        feature_map = with_arrays([feature_map], lambda arrays: _of_heads(arrays[0], batch, heads))
    return estimator._replace(map=feature_map, extra=extra)


def kernel_estimate(
    x: Float[Array, "*batch n d"],
    y: Float[Array, "*batch l d"],
    omega: Sample | Float[Array, "*samples num_projections d"],
    map: str | FeatureMap = "positive",
) -> Float[Array, "*any n l"]:
    """Estimate exp(x.y) by phi(x).phi(y) for every pair of rows; x and y are ALREADY scaled by d^-1/4.

    Parameters
    ----------
    x : array (..., n, d)
        Scaled queries.
    y : array (..., l, d)
        Scaled keys.
    omega : array (..., num_projections, d) or Sample
        A sample of ``sample_omega``. Leading axes are independent samples.
    map : str or FeatureMap
        A map, as ``get_map`` takes it.

    Returns
    -------
    array (..., n, l)
        With the leading axes of omega, too.

    Raises
    ------
    InputError
        If the shapes do not fit.
    ScenarioError
        For an unknown map.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = 0.3 * rng.normal(size=(2, 5, 8))
    >>> omega = fb.sample_omega("orthogonal", num_projections=4096, head_dim=8, rng=rng)
    >>> bool(np.max(np.abs(fb.kernel_estimate(x, y, omega) / np.exp(x @ y.T) - 1)) < 0.2)
    True
    """
    check_shapes(x, y, y)
    feature_map, sample = _resolved(map, omega, x)
    xp, dtype = array_namespace(x, y), _precision(x, y)
    x, y, omega_rows = (xp.astype(a, dtype, copy=False) for a in (x, y, sample.omega))
    feature_map, sample = feature_map.with_parameters(x, y), sample._replace(omega=omega_rows)
    weights = sample.omega.mT
    left = checked_blocks(feature_map, feature_map.query_features(x, x @ weights, sample), sample)
    right = checked_blocks(feature_map, feature_map.key_features(y, y @ weights, sample), sample)
    estimate = inner_products(left, right, sample.omega.shape[-2])
    return estimate.relative_to(xp.zeros_like(estimate.log_scale))


@overload
def sample_omega(
    sampler: str | Sampler, num_projections: int, head_dim: int, rng: np.random.Generator, map: None = None
) -> Float[np.ndarray, "num_projections head_dim"]: ...


@overload
def sample_omega(
    sampler: str | Sampler, num_projections: int, head_dim: int, rng: np.random.Generator, map: str | FeatureMap
) -> Sample: ...


def sample_omega(
    sampler: str | Sampler,
    num_projections: int,
    head_dim: int,
    rng: np.random.Generator,
    map: str | FeatureMap | None = None,
) -> Sample | Float[np.ndarray, "num_projections head_dim"]:
    """Draw omega; with ``map``, the whole sample that map needs (for "phase", omega and the phases).

    Parameters
    ----------
    sampler : str or Sampler
        A sampler, as ``get_sampler`` takes it.
    num_projections : int
        The number of projections R.
    head_dim : int
        The head dimension d.
    rng : numpy.random.Generator
        The source of randomness.
    map : str or FeatureMap, optional
        The map that the sample is for.

    Returns
    -------
    array (num_projections, head_dim) or Sample

    Raises
    ------
    ScenarioError
        For an unknown sampler or map, numbers below 1, and anything but a generator.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> fb.sample_omega("orthogonal", num_projections=64, head_dim=16, rng=np.random.default_rng(0)).shape
    (64, 16)
    >>> fb.sample_omega("orthogonl", 64, 16, np.random.default_rng(0))
    Traceback (most recent call last):
    favorbench.errors.ScenarioError: unknown sampler 'orthogonl' (did you mean 'orthogonal'?); allowed: ...
    """
    sizes = [number for number in (num_projections, head_dim) if isinstance(number, int | np.integer) and number > 0]
    if len(sizes) < 2 or not isinstance(rng, np.random.Generator):
        raise ScenarioError(
            f"sample_omega: num_projections {shown(num_projections)}, head_dim {shown(head_dim)} and rng {shown(rng)} "
            "given; allowed: whole numbers from 1, and a generator, such as np.random.default_rng(0)"
        )
    omega = draw_omega(get_sampler(sampler), rng, num_projections, head_dim)
    return omega if map is None else Sample(omega, get_map(map).draw_extra(rng.spawn(1)[0], num_projections, head_dim))


def attention_estimates(
    problem: AttentionProblem, omega: Array, maps: Sequence[SampledMap], scale: float = 1.0
) -> Iterator[Tile]:
    """Estimates of every map at every R, tile by tile, from one projection of queries and of keys.

    There are two passes: over keys, for one (R, d_v + 1) summary per block of features; over queries, for the outputs,
    all R from one running sum over features. Memory is O(tile + R d_v) beyond the inputs. In the causal case there is
    one pass, chunk by chunk. scale: the factor of queries and keys that are not scaled by d^-1/4 yet. It is applied to
    tiles, so no whole array is copied.
    """
    if problem.causal:
        yield from causal_outputs(problem, omega, maps, scale)
        return
    query, key = problem[:2]
    maps = _fitted(maps, omega, query if problem.fit_query is None else problem.fit_query, key, scale)
    width = max(omega.shape[-2], *(_width(estimator, query.shape[-1]) for estimator in maps))
    summaries = _key_summaries(key, problem.value, omega, maps, width, scale)
    for rows in tiles(query.shape[-2], width, query):
        x = query[..., rows, :] * scale
        projection = projection_of(x, omega, (estimator.map for estimator in maps))
        for index, (estimator, summary) in enumerate(zip(maps, summaries, strict=True)):
            blocks = estimator.query_blocks(x, projection, omega)
            # A fixed block counts R times, as there is no factor 1/R.
            yield Tile(index, rows, *quotient(query_sums(blocks, summary, estimator.sizes)))


def _width(estimator: SampledMap, head_dim: int) -> int:
    """The row length that tiles are made for: fixed features, and a 32nd of all where a projection has many."""
    fixed, every = (estimator.map.num_features(size, head_dim) for size in (0, estimator.sizes[-1]))
    return max(fixed, every // 32)


def _fitted(maps: Sequence[SampledMap], omega: Array, query: Array, key: Array, scale: float) -> Sequence[SampledMap]:
    """The maps with their parameters from the data. Arrays are scaled only if a map takes some."""
    if not any(estimator.map.data_dependent for estimator in maps):
        return maps
    x, y = (query, key) if scale == 1.0 else (query * scale, key * scale)
    return [
        member._replace(map=member.map.fit(x, y, member.sample(omega).omega)) if member.map.data_dependent else member
        for member in maps
    ]


def linear_multiplications(feature_map: FeatureMap, shape: Shape, size: int) -> float | None:
    """Multiplications of linear attention with ``size`` projections; None where the map does not state its own."""
    work = stated_cost(feature_map.name, lambda: feature_map.multiplications(*shape[:4], size))
    return None if work is None else work + chunk_multiplications(shape, feature_map.num_features(size, shape.d))


def _key_summaries(
    key: Array,
    value: Array,
    omega: Array,
    maps: Sequence[SampledMap],
    width: int,
    scale: float,
) -> list[list[Accumulator]]:
    """For each map and block of features: sum over keys of feature times [value, 1], one row per feature."""
    summaries: list[list[Accumulator]] = [[] for _ in maps]
    for keys in tiles(key.shape[-2], width, key):
        y, right = key[..., keys, :] * scale, with_ones(value[..., keys, :])
        projection = projection_of(y, omega, (estimator.map for estimator in maps))
        for i, estimator in enumerate(maps):
            summaries[i] = accumulate_blocks(summaries[i], estimator.key_blocks(y, projection, omega), right)
    return summaries


def _resolved(map: str | FeatureMap, omega: Sample | Array, like: Array) -> tuple[FeatureMap, Sample]:
    """The map, and its sample in the library and on the device of tokens (..., n, d)."""
    feature_map, head_dim = get_map(map), like.shape[-1]
    sample = omega if isinstance(omega, Sample) else Sample(omega)
    extra = None if sample.extra is None else moved("what the map draws", sample.extra, like)
    sample = Sample(moved("omega", sample.omega, like), extra)
    if sample.omega.ndim < 2 or sample.omega.shape[-1] != head_dim or sample.omega.shape[-2] == 0:
        raise InputError(f"omega has shape {tuple(sample.omega.shape)}; it must be (num_projections, {head_dim})")
    if sample.extra is None and feature_map.draws_extra:
        raise InputError(
            f"map {feature_map.name!r} draws more than omega: use sample_omega(..., map={feature_map.name!r})"
        )
    return feature_map, sample
