"""Draws: their inputs, exact attention, and every estimator measured on them. The whole pipeline."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.engine.calibration import calibrated
from favorbench.engine.columns import FAILURE, Row, of_draw
from favorbench.engine.plan import Draw
from favorbench.engine.sizes import distinct_sizes
from favorbench.engine.study import EstimatorBatch, Study
from favorbench.errors import EstimatorError
from favorbench.methods import Method
from favorbench.metrics import ErrorSums, add, error_sums, metrics_of
from favorbench.numerics.arrays import Array, array_namespace, beside, columns_first, on_host
from favorbench.numerics.streams import Streams, stream
from favorbench.users import failures_named

#: Labels of an estimator, and sums of its error on one draw; None where it failed, and the labels say how.
Measured = tuple[Row, ErrorSums | None]

#: Errors of the members of a batch: by their number and size, the number of features and the sums.
Errors = dict[tuple[int, int], tuple[int, ErrorSums]]

#: The streams of these names, of all draws.
NamedStreams = Callable[..., Streams]


class Part(NamedTuple):
    """Some rows of the estimates of one member of a batch, (sizes, *batch, n, d_v), and its features at each size."""

    member: int
    features: tuple[tuple[int, int], ...]
    rows: slice
    output: Array
    normaliser: Array | None
    row_sums: Array | None = None


def run_draws(study: Study, draws: Sequence[Draw]) -> list[list[Row]]:
    """All rows of each draw: baselines first, then methods, then maps. A pure function of its arguments.

    draws: of one shape; a single one for the NumPy backend. An estimator that fails with an exception has a row that
    says so, without metrics; the others have theirs.
    """
    measured: list[list[Measured]] = [[] for _ in draws]
    with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
        hosts = [problem_of(study, draw) for draw in draws]
        problem = hosts[0]
        if study.backend.batched:
            arrays = zip(*((one.query, one.key, one.value, one.fit_query) for one in hosts), strict=True)
            query, key, value, fit = (None if of[0] is None else study.backend.array(of) for of in arrays)
            problem = problem._replace(query=query, key=key, value=value, fit_query=fit)
        exact = study.once(draws[0], ("exact",), lambda: softmax_attention(problem))
        with study.backend.precision(draws[0].dtype):
            for batch in study.batches(draws[0].sizes, draws[0].head):
                for each, more in zip(measured, _measured(study, batch, draws, problem, exact), strict=True):
                    each += more
    if len(draws) > 1 and any(sums is None for each in measured for _, sums in each):
        return [rows for draw in draws for rows in run_draws(study, [draw])]  # it may have failed on one of them only
    return [_rows(of_draw(study.scenario, draw), each) for draw, each in zip(draws, measured, strict=True)]


def _rows(shared: Row, measured: Sequence[Measured]) -> list[Row]:
    """The rows of one draw; the metrics of all estimators are computed together."""
    uniform = next(sums for names, sums in measured if sums and names["map"] == "uniform")
    sums = ErrorSums._make(map(np.array, zip(*(one for _, one in measured if one), strict=True)))
    metrics = metrics_of(sums, uniform)
    values = zip(*(column.tolist() for column in metrics.values()), strict=True)
    return [shared | names | (dict(zip(metrics, next(values), strict=True)) if one else {}) for names, one in measured]


def problem_of(study: Study, draw: Draw) -> AttentionProblem:
    """The attention problem of a draw on the host, scaled in place; of the queries a random sample where L is long."""
    scenario, head, sampled = study.scenario, draw.head, None
    rows = scenario.rows(head.query_len)
    if rows < head.query_len:
        rng = stream(scenario.seed, "query rows", *draw.stream_names)
        sampled = np.sort(rng.choice(head.query_len, rows, replace=False))
    whole = any(feature_map.data_dependent for feature_map in study.maps)
    rng = stream(scenario.seed, "inputs", *draw.stream_names)
    query, key, value = study.inputs[draw.input].law.draw(rng, head, None if whole else sampled)
    for array in (query, key):  # in place: at L = 2^20 a copy is half a GiB
        array *= draw.scale
        array *= head.head_dim**-0.25
    value *= scenario.value_scale
    positions = None
    if head.query_len == head.seq_len:
        positions = np.arange(head.query_len) if sampled is None else sampled
    if whole and sampled is not None:
        return AttentionProblem(query[sampled], key, value, positions, scenario.causal, query)
    return AttentionProblem(query, key, value, positions, scenario.causal)


def _measured(
    study: Study, batch: EstimatorBatch, draws: Sequence[Draw], problem: AttentionProblem, exact: Array
) -> list[list[Measured]]:
    """Labels and errors of a batch for each draw. If one of several members fails, each is measured by itself."""
    first = batch.members[0][0]
    if batch.kind == "baseline" and first.method.needs_all_rows and problem.query.shape[-2] < draws[0].head.query_len:
        return [[] for _ in draws]
    try:
        with failures_named(first.name):
            return _in_its_arrays(study, batch, draws, problem, exact)
    except EstimatorError as error:
        if len(batch.members) > 1:
            alone = [_measured(study, EstimatorBatch((one,)), draws, problem, exact) for one in batch.members]
            return [list(itertools.chain(*each)) for each in zip(*alone, strict=True)]
        labels = {"kind": first.kind, "map": first.name, "sampler": first.sampler}
        return [[(labels | {FAILURE: str(error).removeprefix(f"{first.name} failed: ")}, None)] for _ in draws]


def _in_its_arrays(
    study: Study, batch: EstimatorBatch, draws: Sequence[Draw], problem: AttentionProblem, exact: Array
) -> list[list[Measured]]:
    """Labels and errors for each draw, from such arrays as the batch takes: all draws at once, or one by one."""
    arrays = "host" if batch.kind == "baseline" else batch.members[0][0].method.arrays
    dtype = "float64" if arrays == "host" else draws[0].dtype
    if arrays == "batched" or not study.backend.batched:
        errors = _errors(study, batch, draws, problem, exact, dtype)
        several = study.backend.batched
        return [_labelled(study, batch, draw, errors, i if several else None) for i, draw in enumerate(draws)]
    move = on_host if arrays == "host" else lambda array: array
    found = []
    for i, draw in enumerate(draws):
        query, key, value, answer = (move(array[i, ...]) for array in (*problem[:3], exact))
        alone = AttentionProblem(query, key, value, problem.positions, problem.causal)
        found.append(_labelled(study, batch, draw, _errors(study, batch, [draw], alone, answer, dtype), None))
    return found


def _errors(
    study: Study, batch: EstimatorBatch, draws: Sequence[Draw], problem: AttentionProblem, exact: Array, dtype: str
) -> Errors:
    """The errors of all members at all sizes, kept where nothing about them is random.

    Rounding is the distance from the same estimate in float64.
    """
    array = study.backend.array if problem.query.ndim > 2 else lambda hosts: beside(hosts[0], problem.query)

    def streams(*names: str) -> Streams:
        return Streams([stream(study.scenario.seed, *names, *draw.stream_names) for draw in draws], array)

    def compute() -> Errors:
        methods = [calibrated(study, one.method, draws, array) for one, _ in batch.members]

        def parts(dtype: str) -> Iterator[Part]:
            arrays = (None if a is None else study.backend.cast(a, dtype) for a in (*problem[:3], problem.fit_query))
            query, key, value, fit = problem[:3] + problem[5:] if dtype == "float64" else arrays
            cast = AttentionProblem(query, key, value, problem.positions, problem.causal, fit)
            return (_map_parts if batch.kind == "map" else _method_parts)(batch, methods, cast, streams)

        found: dict[tuple[int, tuple[tuple[int, int], ...]], ErrorSums] = {}
        target = columns_first(exact) if batch.kind == "map" else exact  # laid out as the estimates are
        doubles = itertools.repeat(None) if dtype == "float64" else parts("float64")
        for part, double in zip(parts(dtype), doubles, strict=False):
            in_double = None if double is None else double.output
            sums = error_sums(part.output, target[..., part.rows, :], part.normaliser, in_double, part.row_sums)
            key = part.member, part.features
            found[key] = add(found[key], sums) if key in found else sums
        errors: Errors = {}
        for (member, features), sums in found.items():
            hosts = sums.each(on_host)
            for i, (size, count) in enumerate(features):
                # what depends on the exact output alone has no axis of sizes
                own = hosts.each(lambda a, i=i, like=hosts.squared_error: a[i] if a.ndim == like.ndim else a)
                errors[member, size] = count, own
        return errors

    if study.calibration is not None or any(one.method.random for one, _ in batch.members):
        return compute()
    names = tuple((one.kind, one.name) for one, _ in batch.members)
    return study.once(draws[0], ("errors", names, draws[0].sizes, dtype), compute)


def _method_parts(
    batch: EstimatorBatch, methods: Sequence[Method], problem: AttentionProblem, streams: NamedStreams
) -> Iterator[Part]:
    """The estimates of a method or baseline."""
    (estimator, requested), (method,) = batch.members[0], methods
    sizes = distinct_sizes(requested)
    for one in method.estimates(problem, sizes, streams("method", estimator.name)):
        size = one.size if method.every_size and one.size is not None else sizes[0]
        normaliser, row_sums = (None if a is None else a[None, ...] for a in (one.normaliser, one.row_sums))
        yield Part(0, ((size, one.num_features),), slice(None), one.output[None, ...], normaliser, row_sums)


def _map_parts(
    batch: EstimatorBatch, methods: Sequence[Any], problem: AttentionProblem, streams: NamedStreams
) -> Iterator[Part]:
    """The estimates of maps on one sample of projections, zeros where no map looks at them."""
    xp, d, source = array_namespace(problem.query), problem.query.shape[-1], methods[0].source
    law = None if batch.members[0][0].sampler is None else methods[0].law
    width = (batch.width, d)
    omega = streams("omega", source).draw(lambda rng: np.zeros(width) if law is None else law.sample(rng, *width))
    maps, features = [], []
    for (estimator, requested), method in zip(batch.members, methods, strict=True):
        sizes, extra, own = distinct_sizes(requested), None, method.wrapped
        if own.draws_extra:
            draw = streams("extra", estimator.name, source).draw
            extra = draw(lambda rng, own=own, most=sizes[-1]: own.draw_extra(rng, most, d))
        maps.append(SampledMap(own, extra, sizes))
        features.append(tuple((size, own.num_features(size, d)) for size in sizes))
    for tile in attention_estimates(problem, xp.astype(omega, problem.query.dtype, copy=False), maps):
        yield Part(tile.estimator, features[tile.estimator], tile.rows, tile.output, tile.normaliser)


def _labelled(study: Study, batch: EstimatorBatch, draw: Draw, errors: Errors, index: int | None) -> list[Measured]:
    """Labels and errors for all sizes that were requested. index: of the draw, where there are several."""
    found, shape = [], study.shape(draw.head)
    for member, (estimator, sizes) in enumerate(batch.members):
        method = estimator.method
        for requested, size in sizes:
            if (member, size) not in errors:
                continue  # there is no estimate
            features, sums = errors[member, size]
            labels = {
                "kind": estimator.kind, "map": estimator.name, "sampler": estimator.sampler,
                "num_projections": size if method.every_size else None, "num_features": features,
                "budget": requested, "multiplications": method.multiplications(shape, size),
            }  # fmt: skip
            found.append((labels, sums if index is None else sums.each(lambda a: a[..., index])))
    return found
