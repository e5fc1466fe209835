"""Draws: their inputs, exact answers, and every sampler, map and R measured on them. The whole pipeline."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from favorbench.attention.estimator import Estimate, Estimator
from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import attention_estimates
from favorbench.baselines import Question
from favorbench.engine.columns import Row, of_draw
from favorbench.engine.plan import Draw
from favorbench.engine.study import Group, Study
from favorbench.metrics import ErrorSums, add, error_sums, metrics_of
from favorbench.numerics.arrays import Array, columns_first
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.users import failures_named


class Problem(NamedTuple):
    """Inputs as estimators get them, in one precision: draws along a leading axis where the backend has one.

    fit_query: all queries, where some map takes parameters from them and ``query`` is a sample of rows.
    positions: of the queries among the keys, where attention is causal.
    """

    query: Array
    key: Array
    value: Array
    fit_query: Array | None
    positions: np.ndarray | None


def run_draws(study: Study, draws: Sequence[Draw]) -> list[list[Row]]:
    """All rows of each draw: baselines first, then samplers x maps x R. Depends on its arguments alone.

    draws: of one shape; a single one for the NumPy backend.
    """
    scenario = study.scenario
    with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
        hosts = [_inputs(study, draw) for draw in draws]
        problem = _problem(hosts, study.backend)
        query, key, value, _, positions = problem
        exact = exact_attention(query, key, value, scenario.causal, positions)
        answers = study.backend.host(exact) if study.backend.batched else [exact]
        baselines = [_baselines(study, *each) for each in zip(draws, hosts, answers, strict=True)]
        uniform = [next(sums for names, sums in found if names["map"] == "uniform") for found in baselines]
        rows = [
            [names | _plain(metrics_of(sums, trivial)) for names, sums in found]
            for found, trivial in zip(baselines, uniform, strict=True)
        ]
        for group in study.groups(draws[0].sizes):
            with failures_named(_who(group)), study.backend.precision(draws[0].dtype):
                omega, estimators = _sample(study, draws, group)
                measured = _measure(problem, exact, omega, estimators, draws[0].dtype, study.backend)
            for estimator, sums in zip(estimators, measured, strict=True):
                for i, trivial in enumerate(uniform):
                    own = sums.each(lambda a, i=i: a[..., i]) if study.backend.batched else sums
                    rows[i] += _rows(estimator, group.sampler, omega.shape[-1], metrics_of(own, trivial))
    return [[of_draw(scenario, draw) | row for row in found] for draw, found in zip(draws, rows, strict=True)]


def _inputs(study: Study, draw: Draw) -> Problem:
    """Scaled queries, keys and values of a draw on the host; of the queries a random sample where L is long."""
    scenario, head, sampled = study.scenario, draw.head, None
    rows = scenario.rows(head.query_len)
    if rows < head.query_len:
        rng = stream(scenario.seed, "query rows", *draw.stream_names)
        sampled = np.sort(rng.choice(head.query_len, rows, replace=False))
    whole = any(feature_map.takes_data for feature_map in study.maps)
    rng = stream(scenario.seed, "inputs", *draw.stream_names)
    inputs = study.inputs[draw.input].law.draw(rng, head, None if whole else sampled)
    for array, factor in zip(inputs, (draw.scale, draw.scale, scenario.value_scale), strict=True):
        array *= factor  # in place: at L = 2^20 a copy is half a GiB
    query, key, value = inputs
    positions = (np.arange(head.query_len) if sampled is None else sampled) if scenario.causal else None
    if whole and sampled is not None:
        return Problem(query[sampled], key, value, query, positions)
    return Problem(query, key, value, None, positions)


def _problem(hosts: Sequence[Problem], backend: Backend) -> Problem:
    """The inputs of all draws, moved to the device."""
    *arrays, positions = zip(*hosts, strict=True)
    query, key, value, fit_query = (None if parts[0] is None else backend.array(parts) for parts in arrays)
    return Problem(query, key, value, fit_query, positions[0])  # engine.batches sees to it that they are equal


def _baselines(study: Study, draw: Draw, inputs: Problem, exact: np.ndarray) -> list[tuple[Row, ErrorSums]]:
    """What the baselines of one draw answer, on the host."""
    found = []
    given = Question(inputs.query, inputs.key, inputs.value, inputs.positions)
    sampled = len(inputs.query) < draw.head.query_len
    for baseline in study.baselines:
        if baseline.needs_all_rows and sampled:
            continue
        rng = stream(study.scenario.seed, "baseline", label(baseline), *draw.stream_names)
        with failures_named(label(baseline)):
            for size, features, output, normaliser in baseline.answers(given, exact, draw.sizes, rng):
                names = _names("baseline", baseline.name, None, size, features)
                found.append((names, error_sums(output, exact, normaliser)))
    return found


def _sample(study: Study, draws: Sequence[Draw], group: Group) -> tuple[Array, list[Estimator]]:
    """omega of a group, (R, d) or (draws, R, d), zeros where no map looks at it; and its maps with what they draw."""
    seed, head_dim, width, backend = study.scenario.seed, draws[0].head.head_dim, group.width, study.backend
    if group.sampler is None:
        omega = backend.array([np.zeros((width, head_dim)) for _ in draws])
    else:
        streams = [stream(seed, "omega", group.name, *draw.stream_names) for draw in draws]
        omega = backend.array([group.sampler.sample(rng, width, head_dim) for rng in streams])
    estimators = []
    for feature_map, sizes in group.maps:
        names = (seed, "extra", label(feature_map), group.name)
        own = [stream(*names, *draw.stream_names) for draw in draws] if feature_map.draws_extra else []
        drawn = [feature_map.draw_extra(rng, sizes[-1], head_dim) for rng in own]
        extras = [extra for extra in drawn if extra is not None]
        estimators.append(Estimator(feature_map, backend.array(extras) if extras else None, sizes))
    return omega, estimators


def _measure(
    problem: Problem, exact: Array, omega: Array, estimators: Sequence[Estimator], dtype: str, backend: Backend
) -> list[ErrorSums]:
    """Errors of every estimator for every R (leading axis), and its rounding: its distance from the same in float64."""

    def estimates(dtype: str) -> Iterator[Estimate]:
        *arrays, positions = problem
        query, key, value, fit_query, rows = (
            None if array is None else backend.cast(array, dtype) for array in (*arrays, omega)
        )
        return attention_estimates(
            query, key, value, rows, estimators, fit_query, causal=positions is not None, positions=positions
        )

    sums: dict[int, ErrorSums] = {}
    exact = columns_first(exact)  # as the estimates are
    doubles = itertools.repeat(None) if dtype == "float64" else estimates("float64")
    for (index, rows, output, normaliser), double in zip(estimates(dtype), doubles, strict=False):
        part = error_sums(output, exact[..., rows, :], normaliser, None if double is None else double.output)
        sums[index] = add(sums[index], part) if index in sums else part
    return [sums[index].each(backend.host) for index in range(len(estimators))]


def _rows(estimator: Estimator, sampler: Sampler | None, head_dim: int, metrics: Mapping[str, np.ndarray]) -> list[Row]:
    """One row for every R of an estimator."""
    feature_map, name, rows = estimator.map, label(estimator.map), []
    under = None if sampler is None else label(sampler)
    for i, size in enumerate(estimator.sizes):
        shown = None if feature_map.randomness == "none" else size
        names = _names("map", name, under, shown, feature_map.num_features(size, head_dim))
        rows.append(names | _plain({name: values[i] for name, values in metrics.items()}))
    return rows


def _plain(metrics: Mapping[str, np.ndarray]) -> Row:
    return {name: float(value) for name, value in metrics.items()}


def _who(group: Group) -> str:
    """Whose failure it is, where a map or a sampler of the user's fails."""
    names = ", ".join(label(feature_map) for feature_map, _ in group.maps)
    return names + (f" under {label(group.sampler)}" if group.sampler else "")


def _names(kind: str, name: str, sampler: str | None, num_projections: int | None, num_features: int) -> Row:
    return {
        "kind": kind,
        "map": name,
        "sampler": sampler,
        "num_projections": num_projections,
        "num_features": num_features,
    }
