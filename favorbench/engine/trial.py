"""Compute draws: their inputs, exact attention, and the errors of every estimator."""

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.engine.calibration import calibrated
from favorbench.engine.columns import FAILURE, Row, of_draw
from favorbench.engine.plan import Draw, Plan
from favorbench.engine.study import EstimatorBatch, Study, distinct_sizes
from favorbench.errors import EstimatorError
from favorbench.inputs import Head
from favorbench.methods import Method
from favorbench.metrics import ErrorSums, add, error_sums, metrics_of
from favorbench.numerics.arrays import (
    GPU_TILE_ELEMENTS,
    Array,
    array_namespace,
    on_host,
    to_backend_of,
    to_column_major,
)
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import all_on_one_core, one_core
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import is_ours
from favorbench.samplers.base import draw_omega
from favorbench.users import failures_named

#: Draws that are computed together.
Batch = list[Draw]

#: Labels of an estimator, and sums of its error on one draw; None if it failed, and the labels then say how.
Measured = tuple[Row, ErrorSums | None]

#: Errors of the members of a batch: by member and size, the number of features and the sums.
Errors = dict[tuple[int, int], tuple[int, ErrorSums]]

#: A function from names to the random streams of these names, one for each draw.
NamedStreams = Callable[..., Streams]


class EstimateRows(NamedTuple):
    """Some rows of the estimates of one member of a batch, (sizes, *batch, n, d_v), and its features at each size."""

    member: int
    features: tuple[tuple[int, int], ...]
    rows: slice
    output: Array
    normaliser: Array | None
    row_sums: Array | None = None

    @property
    def place(self) -> tuple[int, list[int], slice]:
        """The member, its sizes and the rows."""
        return self.member, [size for size, _ in self.features], self.rows


def batches(plan: Plan, missing: Iterable[int], batch: int | None) -> Iterator[Batch]:
    """Group the missing draws of a plan by shape, ``batch`` at a time; one at a time for NumPy.

    Inputs and scale 1 are groups of their own: an input has its own number of gradients, and other scales have none.
    batch: None is one on a CPU, and enough to fill a GPU.
    """
    scenario, backend = plan.study.scenario, plan.study.backend
    if not backend.batched:
        for index in missing:
            yield [plan[index]]
        return
    groups: dict[tuple, list[int]] = {}
    for index in missing:
        draw = plan[index]
        key = draw.head._replace(label=""), draw.sizes, draw.dtype, draw.input, draw.scale == 1.0
        groups.setdefault(key, []).append(index)
    for (head, sizes, *_), members in groups.items():
        size = batch or _automatic_batch(backend, head, sizes[-1])
        positions = scenario.causal or any(method.needs_positions for method in plan.study.methods)
        if positions and scenario.rows(head.query_len) < head.query_len:
            size = 1  # each draw has its own query rows, and so its own mask
        for start in range(0, len(members), size):
            yield [plan[index] for index in members[start : start + size]]


def _automatic_batch(backend: Backend, head: Head, width: int) -> int:
    """On a GPU as many draws as make two full tiles of features, in at most a quarter of its free memory."""
    free = backend.free_memory()
    if free is None:
        return 1
    tokens = head.query_len + head.seq_len
    fits = free // 4 // (8 * tokens * (6 * head.head_dim + 2))
    return max(1, min(fits, 2 * GPU_TILE_ELEMENTS // (head.seq_len * width)))


def run_draws(study: Study, draws: Sequence[Draw]) -> list[list[Row]]:
    """All rows of each draw: baselines first, then methods, then maps. A pure function of its arguments.

    draws: of one shape; a single one for the NumPy backend. An estimator that raises an exception has a row with the
    message in place of metrics.
    """
    with one_core(), np.errstate(all="ignore"):  # an estimator that overflows is a measurement
        problems = [problem_of(study, draw) for draw in draws]
        problem = _stacked(study.backend, problems) if study.backend.batched else problems[0]
        exact = study.once(draws[0], ("exact",), lambda: softmax_attention(problem))
        with study.backend.precision(draws[0].dtype):
            groups = [
                _measured(study, batch, draws, problem, exact) for batch in study.batches(draws[0].sizes, draws[0].head)
            ]
    measured = [list(itertools.chain(*results)) for results in zip(*groups, strict=True)]
    if len(draws) > 1 and any(sums is None for results in measured for _, sums in results):
        return [rows for draw in draws for rows in run_draws(study, [draw])]  # it may have failed on one of them only
    return [_rows(of_draw(study.scenario, draw), results) for draw, results in zip(draws, measured, strict=True)]


#: The arrays of a problem. Estimators see all but the gradients.
_ARRAYS = ("query", "key", "value", "fit_query", "gradients")


def _mapped(problem: AttentionProblem, function: Callable[[Array], Array]) -> AttentionProblem:
    """Apply a function to all arrays of a problem."""
    arrays = {name: getattr(problem, name) for name in _ARRAYS}
    return problem._replace(**{name: function(array) for name, array in arrays.items() if array is not None})


def _stacked(backend: Backend, problems: Sequence[AttentionProblem]) -> AttentionProblem:
    """Several problems of one shape as one, on the device of the backend."""
    first, arrays = problems[0], {name: [getattr(problem, name) for problem in problems] for name in _ARRAYS}
    return first._replace(**{name: backend.array(parts) for name, parts in arrays.items() if parts[0] is not None})


def _rows(shared: Row, measured: Sequence[Measured]) -> list[Row]:
    """The rows of one draw. The metrics of all estimators are computed together."""
    uniform = next(sums for names, sums in measured if sums and names["estimator"] == "uniform")
    sums = ErrorSums._make(map(np.array, zip(*(errors for _, errors in measured if errors), strict=True)))
    metrics = metrics_of(sums, uniform)
    values = zip(*(column.tolist() for column in metrics.values()), strict=True)
    return [
        shared | names | (dict(zip(metrics, next(values), strict=True)) if errors else {}) for names, errors in measured
    ]


def problem_of(study: Study, draw: Draw) -> AttentionProblem:
    """The attention problem of a draw on the host, scaled; if L is long, with a random sample of the queries."""
    scenario, head, sampled = study.scenario, draw.head, None
    rows = scenario.rows(head.query_len)
    if rows < head.query_len:
        rng = stream(scenario.seed, "query rows", *draw.stream_names)
        sampled = np.sort(rng.choice(head.query_len, rows, replace=False))
    whole = any(estimator.method.fits_queries for estimator in study.estimators)
    source, fit_query = study.inputs[draw.input].law, None
    rng = stream(scenario.seed, "inputs", *draw.stream_names)
    query, key, value = source.draw(rng, head, None if whole else sampled)
    for array in (query, key):  # in place: at L = 2^20 a copy is half a GiB
        array *= draw.scale
        array *= head.head_dim**-0.25
    value *= scenario.value_scale
    positions = None
    if head.query_len == head.seq_len:
        positions = np.arange(head.query_len) if sampled is None else sampled
    if whole and sampled is not None:
        query, fit_query = query[sampled], query
    as_in_model = draw.scale == scenario.value_scale == 1.0 and source.causal in (None, scenario.causal)
    gradients = source.gradients(head) if as_in_model and sampled is None else None
    return AttentionProblem(query, key, value, positions, scenario.causal, fit_query, gradients)


def _measured(
    study: Study, batch: EstimatorBatch, draws: Sequence[Draw], problem: AttentionProblem, exact: Array
) -> list[list[Measured]]:
    """Labels and errors of a batch for each draw. If one of several members fails, each is measured alone."""
    first = batch.members[0][0]
    try:
        with failures_named(first.name):
            return _measured_in_arrays(study, batch, draws, problem, exact)
    except EstimatorError as error:
        if len(batch.members) > 1:
            alone = [_measured(study, EstimatorBatch((member,)), draws, problem, exact) for member in batch.members]
            return [list(itertools.chain(*results)) for results in zip(*alone, strict=True)]
        labels = {"kind": first.kind, "estimator": first.name, "sampler": first.sampler}
        return [[(labels | {FAILURE: str(error).removeprefix(f"{first.name} failed: ")}, None)] for _ in draws]


def _measured_in_arrays(
    study: Study, batch: EstimatorBatch, draws: Sequence[Draw], problem: AttentionProblem, exact: Array
) -> list[list[Measured]]:
    """Labels and errors for each draw, in the arrays that the batch takes: of all draws at once, or of each alone."""
    arrays = "host" if batch.kind == "baseline" else batch.members[0][0].method.arrays
    dtype = "float64" if arrays == "host" else draws[0].dtype
    if arrays == "batched" or not study.backend.batched:
        errors = _errors(study, batch, draws, problem, exact, dtype)
        several = study.backend.batched
        return [_labelled(study, batch, draw, errors, i if several else None) for i, draw in enumerate(draws)]
    move = on_host if arrays == "host" else lambda array: array
    results = []
    for i, draw in enumerate(draws):
        alone, answer = _mapped(problem, lambda array, i=i: move(array[i, ...])), move(exact[i, ...])
        results.append(_labelled(study, batch, draw, _errors(study, batch, [draw], alone, answer, dtype), None))
    return results


def _errors(
    study: Study, batch: EstimatorBatch, draws: Sequence[Draw], problem: AttentionProblem, exact: Array, dtype: str
) -> Errors:
    """The errors of all members at all sizes, from the cache if nothing about them is random."""
    array = study.backend.array if problem.query.ndim > 2 else lambda hosts: to_backend_of(hosts[0], problem.query)

    def streams(*names: str) -> Streams:
        return Streams([stream(study.scenario.seed, *names, *draw.stream_names) for draw in draws], array)

    def estimates(methods: Sequence[Any], dtype: str) -> Iterator[EstimateRows]:
        cast = problem._replace(gradients=None)
        if dtype != "float64":
            cast = _mapped(cast, lambda array: study.backend.cast(array, dtype))
        if not all(is_ours(method) for method in methods):  # a user's may change its arguments in place
            cast = _mapped(cast, lambda array: 1 * array)
        return (_map_parts if batch.kind == "map" else _method_parts)(batch, methods, cast, streams)

    def sums(methods: Sequence[Any]) -> Errors:
        doubles = None if dtype == "float64" else estimates(methods, "float64")
        answer = to_column_major(exact) if batch.kind == "map" else exact
        with one_core(), study.backend.precision(draws[0].dtype):  # also in what another estimator has imported
            return _summed(estimates(methods, dtype), doubles, answer, problem.gradients)

    def compute() -> Errors:
        methods = [calibrated(study, estimator.method, draws, array) for estimator, _ in batch.members]
        imported, errors = len(sys.modules), sums(methods)
        if len(sys.modules) == imported or all_on_one_core():
            return errors
        return sums(methods)  # a user's estimator has imported a library, which computed on all cores

    if study.calibration is not None or any(estimator.method.random for estimator, _ in batch.members):
        return compute()
    names = tuple(estimator.labels for estimator, _ in batch.members)
    return study.once(draws[0], ("errors", names, draws[0].sizes, dtype), compute)


def _summed(
    estimates: Iterable[EstimateRows], doubles: Iterable[EstimateRows] | None, exact: Array, gradients: Array | None
) -> Errors:
    """Sum the errors of estimates over rows. Rounding is the distance from the same estimates in float64.

    exact: laid out as the estimates are. Raises EstimatorError where those in float64 are of other sizes or rows.
    """
    totals: dict[tuple[int, tuple[tuple[int, int], ...]], ErrorSums] = {}
    pairs = ((part, None) for part in estimates) if doubles is None else itertools.zip_longest(estimates, doubles)
    for part, double in pairs:
        if part is None or (doubles is not None and (double is None or double.place != part.place)):
            raise EstimatorError("its estimates in float64, which `rounding` takes, are of other sizes or rows")
        in_double = None if double is None else double.output
        sums = error_sums(
            part.output, exact[..., part.rows, :], part.normaliser, in_double, part.row_sums,
            None if gradients is None else gradients[..., part.rows, :],
        )  # fmt: skip
        key = part.member, part.features
        totals[key] = add(totals[key], sums) if key in totals else sums
    errors: Errors = {}
    for (member, features), sums in totals.items():
        hosts = sums.map_arrays(on_host)
        dims = hosts.squared_error.ndim  # sums of the exact output alone have no axis of sizes
        for i, (size, count) in enumerate(features):
            errors[member, size] = count, hosts.map_arrays(lambda a, i=i, dims=dims: a[i] if a.ndim >= dims else a)
    return errors


def _method_parts(
    batch: EstimatorBatch, methods: Sequence[Method], problem: AttentionProblem, streams: NamedStreams
) -> Iterator[EstimateRows]:
    """The estimates of a method or baseline."""
    (estimator, requested), (method,) = batch.members[0], methods
    sizes, expected = distinct_sizes(requested), (*problem.query.shape[:-1], problem.value.shape[-1])
    left = [*sizes] if method.every_size else [sizes[0]]
    for estimate in method.estimates(problem, sizes, streams("method", estimator.name)):
        size = estimate.size if method.every_size and estimate.size is not None else sizes[0]
        if size not in left:
            raise EstimatorError(f"an estimate of size {size} where one of {left} was due")
        left.remove(size)
        if tuple(estimate.output.shape) != expected:
            raise EstimatorError(f"its output has shape {tuple(estimate.output.shape)}; {expected} was expected")
        normaliser, row_sums = (None if a is None else a[None, ...] for a in (estimate.normaliser, estimate.row_sums))
        yield EstimateRows(
            0, ((size, estimate.num_features),), slice(None), estimate.output[None, ...], normaliser, row_sums
        )


def _map_parts(
    batch: EstimatorBatch, methods: Sequence[Any], problem: AttentionProblem, streams: NamedStreams
) -> Iterator[EstimateRows]:
    """The estimates of maps on one sample of projections, zeros if no map uses it."""
    xp, d, source = array_namespace(problem.query), problem.query.shape[-1], methods[0].source
    law = None if batch.members[0][0].sampler is None else methods[0].law
    width = (batch.width, d)
    omega = streams("omega", source).draw(lambda rng: np.zeros(width) if law is None else draw_omega(law, rng, *width))
    maps, features = [], []
    for (estimator, requested), method in zip(batch.members, methods, strict=True):
        sizes, extra, feature_map = distinct_sizes(requested), None, method.wrapped
        if feature_map.draws_extra:
            draw = streams("extra", estimator.name, source).draw
            extra = draw(lambda rng, feature_map=feature_map, most=sizes[-1]: feature_map.draw_extra(rng, most, d))
        maps.append(SampledMap(feature_map, extra, sizes))
        features.append(tuple((size, feature_map.num_features(size, d)) for size in sizes))
    for tile in attention_estimates(problem, xp.astype(omega, problem.query.dtype, copy=False), maps):
        yield EstimateRows(tile.estimator, features[tile.estimator], tile.rows, tile.output, tile.normaliser)


def _labelled(study: Study, batch: EstimatorBatch, draw: Draw, errors: Errors, index: int | None) -> list[Measured]:
    """Labels and errors for all sizes that were requested. index: of the draw, where there are several."""
    results, shape = [], study.shape(draw.head)
    for member, (estimator, sizes) in enumerate(batch.members):
        method = estimator.method
        for requested, size in sizes:
            if (member, size) not in errors:
                continue  # there is no estimate
            features, sums = errors[member, size]
            work = study.kept.get_or_compute(
                ("multiplications", *estimator.labels, size, shape),
                functools.partial(method.multiplications, shape, size),
            )
            labels = {
                "kind": estimator.kind, "estimator": estimator.name, "sampler": estimator.sampler,
                "num_projections": size if method.every_size else None, "num_features": features,
                "budget": requested, "multiplications": work,
            }  # fmt: skip
            results.append((labels, sums if index is None else sums.map_arrays(lambda a: a[index])))
    return results
