"""Draws: their inputs, exact answers, and every sampler, map and R measured on them. The whole pipeline."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import SampledMap, Tile
from favorbench.engine.calibration import calibrated
from favorbench.engine.columns import FAILURE, Row, of_draw
from favorbench.engine.plan import Draw
from favorbench.engine.sizes import Size, own_sizes, work_of_map
from favorbench.engine.study import Group, Study
from favorbench.errors import EstimatorError
from favorbench.methods import AttentionProblem, Estimate, Method
from favorbench.metrics import ErrorSums, add, error_sums, metrics_of
from favorbench.numerics.arrays import Array, beside, columns_first, on_host
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label
from favorbench.users import failures_named


class Problem(NamedTuple):
    """Inputs as estimators get them, in one precision: draws along a leading axis where the backend has one.

    fit_query: all queries, where some map takes parameters from them and ``query`` is a sample of rows.
    positions: of the queries among the keys, where they are the same tokens.
    """

    query: Array
    key: Array
    value: Array
    fit_query: Array | None
    positions: np.ndarray | None


#: Labels of an estimator, and sums of its error on one draw; None where it failed, and the labels say how.
Measured = tuple[Row, ErrorSums | None]


def run_draws(study: Study, draws: Sequence[Draw]) -> list[list[Row]]:
    """All rows of each draw: baselines first, then methods, then samplers x maps x R. Depends on its arguments alone.

    draws: of one shape; a single one for the NumPy backend. An estimator that fails, in a way that is its own, has a
    row that says so and no metrics; the others have theirs.
    """
    scenario, found = study.scenario, []
    with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
        hosts = [_inputs(study, draw) for draw in draws]
        problem = _problem(hosts, study.backend)
        query, key, value, _, positions = problem
        where = positions if scenario.causal else None
        exact = study.once(draws[0], ("exact",), lambda: exact_attention(query, key, value, scenario.causal, where))
        answers = study.backend.host(exact) if study.backend.batched else [exact]
        found = [_baselines(study, *each) for each in zip(draws, hosts, answers, strict=True)]
        uniform = [next(sums for names, sums in each if sums and names["map"] == "uniform") for each in found]
        with study.backend.precision(draws[0].dtype):
            for method in study.methods:
                _add(found, _method(study, method, draws, problem, exact))
            for group in study.groups(draws[0].sizes, draws[0].head):
                _add(found, _group(study, group, draws, problem, exact))
    if len(draws) > 1 and any(sums is None for each in found for _, sums in each):
        return [rows for draw in draws for rows in run_draws(study, [draw])]  # it may have failed on one of them only
    return [
        _rows(of_draw(scenario, draw), each, trivial) for draw, each, trivial in zip(draws, found, uniform, strict=True)
    ]


def _rows(shared: Row, measured: Sequence[Measured], uniform: ErrorSums) -> list[Row]:
    """The rows of one draw; the metrics of all estimators are computed together."""
    sums = ErrorSums._make(map(np.array, zip(*(one for _, one in measured if one), strict=True)))
    metrics = metrics_of(sums, uniform)
    values = zip(*(column.tolist() for column in metrics.values()), strict=True)
    return [shared | names | (dict(zip(metrics, next(values), strict=True)) if one else {}) for names, one in measured]


def _add(found: list[list[Measured]], measured: Iterable[list[Measured]]) -> None:
    for each, more in zip(found, measured, strict=True):
        each += more


def _or_failed(
    kind: str, name: str, under: str | None, draws: Sequence[Draw], compute: Callable[[], list[list[Measured]]]
) -> list[list[Measured]]:
    """What an estimator gives for each draw; where it fails in a way of its own, the labels that say how."""
    try:
        with failures_named(name):
            return compute()
    except EstimatorError as error:
        how = str(error).removeprefix(f"{name} failed: ")
        return [[({"kind": kind, "map": name, "sampler": under, FAILURE: how}, None)] for _ in draws]


def _inputs(study: Study, draw: Draw) -> Problem:
    """Scaled queries, keys and values of a draw on the host; of the queries a random sample where L is long."""
    scenario, head, sampled = study.scenario, draw.head, None
    rows = scenario.rows(head.query_len)
    if rows < head.query_len:
        rng = stream(scenario.seed, "query rows", *draw.stream_names)
        sampled = np.sort(rng.choice(head.query_len, rows, replace=False))
    whole = any(feature_map.data_dependent for feature_map in study.maps)
    rng = stream(scenario.seed, "inputs", *draw.stream_names)
    inputs = study.inputs[draw.input].law.draw(rng, head, None if whole else sampled)
    for array, factor in zip(inputs, (draw.scale, draw.scale, scenario.value_scale), strict=True):
        array *= factor  # in place: at L = 2^20 a copy is half a GiB
    query, key, value = inputs
    positions = None
    if head.query_len == head.seq_len:
        positions = np.arange(head.query_len) if sampled is None else sampled
    if whole and sampled is not None:
        return Problem(query[sampled], key, value, query, positions)
    return Problem(query, key, value, None, positions)


def _problem(hosts: Sequence[Problem], backend: Backend) -> Problem:
    """The inputs of all draws, moved to the device."""
    *arrays, positions = zip(*hosts, strict=True)
    query, key, value, fit_query = (None if parts[0] is None else backend.array(parts) for parts in arrays)
    return Problem(query, key, value, fit_query, positions[0])  # engine.batches sees to it that they are equal


def _baselines(study: Study, draw: Draw, inputs: Problem, exact: np.ndarray) -> list[Measured]:
    """What the baselines of one draw answer, on the host and in float64."""
    found, whole = [], len(inputs.query) == draw.head.query_len
    question = _question(study, inputs)

    def answer(baseline: Method) -> list[list[Measured]]:
        return [_of_method(study, "baseline", baseline, draw, _sums(study, baseline, [draw], question, exact))]

    for baseline in study.baselines:
        if whole or not baseline.needs_all_rows:
            found += _or_failed("baseline", label(baseline), None, [draw], partial(answer, baseline))[0]
    return found


def _method(
    study: Study, method: Method, draws: Sequence[Draw], problem: Problem, exact: Array
) -> list[list[Measured]]:
    """What a method answers, for each draw, or how it failed."""
    name, compute = label(method), partial(_answered, study, method, draws, problem, exact)
    return _or_failed("method", name, None, draws, compute)


def _answered(
    study: Study, method: Method, draws: Sequence[Draw], problem: Problem, exact: Array
) -> list[list[Measured]]:
    """What a method answers, for each draw, in arrays such as it takes."""
    backend, dtype = study.backend, draws[0].dtype
    if method.arrays == "batched" or not backend.batched:
        method = calibrated(study, method, draws, backend.array)
        question = _question(study, problem)
        if method.arrays == "host":
            dtype = "float64"
        sums = _sums(study, method, draws, question, exact, dtype)
        return [
            _of_method(study, "method", method, draw, sums, i if backend.batched else None)
            for i, draw in enumerate(draws)
        ]
    host, found = method.arrays == "host", []
    for i, draw in enumerate(draws):
        query, key, value, answer = (a[i, ...] for a in (problem.query, problem.key, problem.value, exact))
        if host:
            query, key, value, answer = (backend.host(a) for a in (query, key, value, answer))
        question = _question(study, Problem(query, key, value, None, problem.positions))
        own = calibrated(study, method, [draw], lambda hosts: hosts[0])
        sums = _sums(study, own, [draw], question, answer, "float64" if host else dtype)
        found.append(_of_method(study, "method", method, draw, sums))
    return found


def _question(study: Study, problem: Problem) -> AttentionProblem:
    factor = problem.query.shape[-1] ** -0.25
    query, key = problem.query * factor, problem.key * factor
    return AttentionProblem(query, key, problem.value, problem.positions, study.scenario.causal)


Sums = dict[int, tuple[int, ErrorSums]]  # by size, or 0 where the size plays no part: num_features, and the errors


def _sums(
    study: Study,
    method: Method,
    draws: Sequence[Draw],
    question: AttentionProblem,
    exact: Array,
    dtype: str = "float64",
) -> Sums:
    """The errors of a method at each of its sizes; computed once where nothing about them is random."""

    def compute() -> Sums:
        return _fresh_sums(study, method, draws, question, exact, dtype)

    return compute() if method.random else study.once(draws[0], (label(method), draws[0].sizes, dtype), compute)


def _fresh_sums(
    study: Study, method: Method, draws: Sequence[Draw], question: AttentionProblem, exact: Array, dtype: str
) -> Sums:
    """The errors, and the rounding: the distance from the same in float64."""
    sizes = own_sizes(study.sized(method, draws[0].sizes, draws[0].head))

    def estimates(dtype: str) -> Iterator[Estimate]:
        streams = [stream(study.scenario.seed, "method", label(method), *draw.stream_names) for draw in draws]
        alone = question.query.ndim == 2
        put = (lambda hosts: beside(hosts[0], question.query)) if alone else study.backend.array
        query, key, value = (a if dtype == "float64" else study.backend.cast(a, dtype) for a in question[:3])
        return method.estimates(question._replace(query=query, key=key, value=value), sizes, Streams(streams, put))

    found: Sums = {}
    doubles = itertools.repeat(None) if dtype == "float64" else estimates("float64")
    for answer, double in zip(estimates(dtype), doubles, strict=False):
        in_double = None if double is None else double.output
        sums = error_sums(answer.output, exact, answer.normaliser, in_double, answer.row_sums)
        key = answer.size if method.every_size else None
        found[key or 0] = (answer.num_features, sums.each(on_host))
    return found


def _of_method(
    study: Study, kind: str, method: Method, draw: Draw, sums: Sums, index: int | None = None
) -> list[Measured]:
    """Labels and errors for all that was asked of a method or baseline; index: of the draw, where there are several."""
    found = []
    for asked, size in study.sized(method, draw.sizes, draw.head):
        if (key := size if method.every_size else 0) not in sums:
            continue  # it has no answer
        features, errors = sums[key]
        names = _names(kind, label(method), None, size if method.every_size else None, features)
        names |= {"budget": asked, "multiplications": method.multiplications(study.shape(draw.head), size)}
        found.append((names, errors if index is None else errors.each(lambda a: a[..., index])))
    return found


def _group(
    study: Study, group: Group, draws: Sequence[Draw], problem: Problem, exact: Array
) -> Iterator[list[Measured]]:
    """What the maps of a group give, for each draw; where one of them fails, each is measured by itself."""
    name, under = label(group.maps[0][0]), None if group.sampler is None else label(group.sampler)
    found = _or_failed("map", name, under, draws, partial(_together, study, group, draws, problem, exact))
    if len(group.maps) > 1 and any(sums is None for each in found for _, sums in each):
        alone = [_group(study, group._replace(maps=(one,)), draws, problem, exact) for one in group.maps]
        return (list(itertools.chain(*each)) for each in zip(*alone, strict=True))
    return iter(found)


def _together(
    study: Study, group: Group, draws: Sequence[Draw], problem: Problem, exact: Array
) -> list[list[Measured]]:
    omega, estimators = _sample(study, draws, group)
    measured, found = _measure(problem, exact, omega, estimators, draws[0].dtype, study), [[] for _ in draws]
    for (_, sized), estimator, sums in zip(group.maps, estimators, measured, strict=True):
        for i, each in enumerate(found):
            own = sums.each(lambda a, i=i: a[..., i]) if study.backend.batched else sums
            each += _of_map(study, draws[0], group, sized, estimator, own)
    return found


def _sample(study: Study, draws: Sequence[Draw], group: Group) -> tuple[Array, list[SampledMap]]:
    """omega of a group, (R, d) or (draws, R, d), zeros where no map looks at it; and its maps with what they draw."""
    seed, head_dim, width, backend = study.scenario.seed, draws[0].head.head_dim, group.width, study.backend
    if group.sampler is None:
        omega = backend.array([np.zeros((width, head_dim)) for _ in draws])
    else:
        streams = [stream(seed, "omega", group.name, *draw.stream_names) for draw in draws]
        omega = backend.array([group.sampler.sample(rng, width, head_dim) for rng in streams])
    estimators = []
    for feature_map, sized in group.maps:
        sizes = own_sizes(sized)
        names = (seed, "extra", label(feature_map), group.name)
        own = [stream(*names, *draw.stream_names) for draw in draws] if feature_map.draws_extra else []
        drawn = [feature_map.draw_extra(rng, sizes[-1], head_dim) for rng in own]
        extras = [extra for extra in drawn if extra is not None]
        frozen = calibrated(study, feature_map, draws, backend.array)
        estimators.append(SampledMap(frozen, backend.array(extras) if extras else None, sizes))
    return omega, estimators


def _measure(
    problem: Problem, exact: Array, omega: Array, estimators: Sequence[SampledMap], dtype: str, study: Study
) -> list[ErrorSums]:
    """Errors of every estimator for every R (leading axis), and its rounding: its distance from the same in float64."""

    backend, causal = study.backend, study.scenario.causal

    def estimates(dtype: str) -> Iterator[Tile]:
        *arrays, positions = problem
        query, key, value, fit_query, rows = (
            None if array is None else backend.cast(array, dtype) for array in (*arrays, omega)
        )
        return attention_estimates(
            query, key, value, rows, estimators, fit_query, causal=causal, positions=positions if causal else None
        )

    sums: dict[int, ErrorSums] = {}
    exact = columns_first(exact)  # as the estimates are
    doubles = itertools.repeat(None) if dtype == "float64" else estimates("float64")
    for (index, rows, output, normaliser), double in zip(estimates(dtype), doubles, strict=False):
        part = error_sums(output, exact[..., rows, :], normaliser, None if double is None else double.output)
        sums[index] = add(sums[index], part) if index in sums else part
    return [sums[index].each(backend.host) for index in range(len(estimators))]


def _of_map(
    study: Study, draw: Draw, group: Group, sized: Sequence[Size], estimator: SampledMap, sums: ErrorSums
) -> list[Measured]:
    """Labels and errors for all that was asked of a map."""
    feature_map, found = estimator.map, []
    name, under = label(feature_map), None if group.sampler is None else label(group.sampler)
    shape = study.shape(draw.head)
    for asked, size in sized:
        shown, features = None if feature_map.randomness == "none" else size, feature_map.num_features(size, shape.d)
        names = _names("map", name, under, shown, features)
        names |= {"budget": asked, "multiplications": work_of_map(feature_map, shape, size)}
        index = estimator.sizes.index(size)
        found.append((names, sums.each(lambda a, index=index: a[index] if np.ndim(a) else a)))
    return found


def _names(kind: str, name: str, sampler: str | None, num_projections: int | None, num_features: int) -> Row:
    return {
        "kind": kind,
        "map": name,
        "sampler": sampler,
        "num_projections": num_projections,
        "num_features": num_features,
    }
