"""Draws: their inputs, exact answers, and every sampler, map and R measured on them. The whole pipeline."""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.estimator import Estimate, Estimator
from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import attention_estimates
from favorbench.baselines import get_baseline
from favorbench.baselines.base import Baseline, Inputs
from favorbench.engine.plan import Draw
from favorbench.engine.scenario import Scenario
from favorbench.errors import EstimatorError, FavorbenchError
from favorbench.inputs import get_input
from favorbench.maps import FeatureMap, get_map
from favorbench.metrics import ErrorSums, add, error_sums, metrics_of
from favorbench.numerics.arrays import Array, columns_first
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler, get_sampler

Row = dict[str, Any]

#: The labels of a row, in the order of the table; the metrics follow.
LABELS = (
    "draw", "trial", "input", "head", "scale", "value_scale", "query_len", "query_rows", "seq_len", "head_dim",
    "causal", "dtype", "kind", "map", "sampler", "num_projections", "num_features",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """A scenario's names, built."""

    maps: tuple[FeatureMap, ...]
    samplers: tuple[Sampler, ...]
    baselines: tuple[Baseline, ...]
    backend: Backend

    @staticmethod
    @functools.cache
    def of(scenario: Scenario) -> "Study":
        """Build the members of a scenario, once for each process."""
        return Study(
            tuple(get_map(spec) for spec in scenario.maps),
            tuple(get_sampler(spec) for spec in scenario.samplers),
            tuple(get_baseline(spec) for spec in scenario.baselines),
            Backend(scenario.backend, scenario.device),
        )


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


def run_draws(scenario: Scenario, draws: Sequence[Draw]) -> list[list[Row]]:
    """All rows of each draw: baselines first, then samplers x maps x R. Depends on its arguments alone.

    draws: of one shape; a single one for the NumPy backend.
    """
    study = Study.of(scenario)  # pyright: ignore[reportArgumentType]  (a frozen model is hashable)
    with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
        hosts = [_inputs(scenario, draw, study) for draw in draws]
        problem = _problem(hosts, study.backend)
        query, key, value, _, positions = problem
        exact = exact_attention(query, key, value, scenario.causal, positions)
        answers = study.backend.host(exact) if study.backend.batched else [exact]
        baselines = [_baselines(scenario, *each, study) for each in zip(draws, hosts, answers, strict=True)]
        uniform = [next(sums for names, sums in found if names["map"] == "uniform") for found in baselines]
        rows = [
            [names | _plain(metrics_of(sums, trivial)) for names, sums in found]
            for found, trivial in zip(baselines, uniform, strict=True)
        ]
        for sampler, omega, estimators in _samples(scenario, draws, study):
            with _failures_named(estimators, sampler), study.backend.precision(draws[0].dtype):
                measured = _measure(problem, exact, omega, estimators, draws[0].dtype, study.backend)
            for estimator, sums in zip(estimators, measured, strict=True):
                for i, trivial in enumerate(uniform):
                    of_draw = sums.each(lambda a, i=i: a[..., i]) if study.backend.batched else sums
                    rows[i] += _rows(estimator, sampler, omega.shape[-1], metrics_of(of_draw, trivial))
    return [[common | row for row in found] for common, found in zip(_common(scenario, draws), rows, strict=True)]


def _inputs(scenario: Scenario, draw: Draw, study: Study) -> Problem:
    """Scaled queries, keys and values of a draw on the host; of the queries a random sample where L is long."""
    head, sampled = draw.head, None
    rows = scenario.rows(head.query_len)
    if rows < head.query_len:
        rng = stream(scenario.seed, "query rows", *draw.stream_names)
        sampled = np.sort(rng.choice(head.query_len, rows, replace=False))
    whole = any(feature_map.takes_data for feature_map in study.maps)
    rng = stream(scenario.seed, "inputs", *draw.stream_names)
    inputs = get_input(draw.input).draw(rng, head, None if whole else sampled)
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
    return Problem(query, key, value, fit_query, positions[0])  # plan.batches sees to it that they are equal


def _baselines(
    scenario: Scenario, draw: Draw, inputs: Problem, exact: np.ndarray, study: Study
) -> list[tuple[Row, ErrorSums]]:
    """What the baselines of one draw answer, on the host."""
    found = []
    given = Inputs(inputs.query, inputs.key, inputs.value, inputs.positions)
    sampled = len(inputs.query) < draw.head.query_len
    for baseline in study.baselines:
        if baseline.needs_all_rows and sampled:
            continue
        rng = stream(scenario.seed, "baseline", label(baseline), *draw.stream_names)
        answers = baseline.answers(given, exact, draw.sizes, rng)
        for size, features, output, normaliser in answers:
            names = _names("baseline", baseline.name, "none", size, features)
            found.append((names, error_sums(output, exact, normaliser)))
    return found


def _samples(scenario: Scenario, draws: Sequence[Draw], study: Study) -> Iterator[tuple[str, Array, list[Estimator]]]:
    """The sampler's label, omega, and what is measured on it: all nested maps at all R at once; others one R at a time.

    A map with a sample of its own is measured once, with the label "own", and one without randomness with "none".
    """
    head_dim, sizes, backend = draws[0].head.head_dim, draws[0].sizes, study.backend

    def omega(sampler: Sampler | None, size: int) -> Array:
        if sampler is None:
            return backend.array([np.zeros((size, head_dim)) for _ in draws])
        streams = [stream(scenario.seed, "omega", label(sampler), *draw.stream_names) for draw in draws]
        return backend.array([sampler.sample(rng, size, head_dim) for rng in streams])

    def estimator(feature_map: FeatureMap, sampler: str, sizes: tuple[int, ...]) -> Estimator:
        if not feature_map.draws_extra:
            return Estimator(feature_map, None, sizes)
        names = (scenario.seed, "extra", label(feature_map), sampler)
        extras = [feature_map.draw_extra(stream(*names, *draw.stream_names), sizes[-1], head_dim) for draw in draws]
        drawn = [extra for extra in extras if extra is not None]
        return Estimator(feature_map, backend.array(drawn) if drawn else None, sizes)

    def num_projections(feature_map: FeatureMap) -> tuple[int, ...]:
        per = feature_map.features_per_projection if scenario.budget == "features" else 1
        return tuple(size // per for size in sizes) if per else (1,)

    sampled = [m for m in study.maps if m.features_per_projection and not m.own_sample]
    alone = [(m, None, "own" if m.features_per_projection else "none") for m in study.maps if m not in sampled]
    for sampler in study.samplers:
        together = [m for m in sampled if sampler.nested and m.nested]
        if together:
            widest, name = max(num_projections(m)[-1] for m in together), label(sampler)
            yield name, omega(sampler, widest), [estimator(m, name, num_projections(m)) for m in together]
        alone += [(m, sampler, label(sampler)) for m in sampled if m not in together]
    for feature_map, sampler, name in alone:
        every = num_projections(feature_map) if feature_map.features_per_projection else (1,)
        for group in [every] if sampler is None and feature_map.nested else [(size,) for size in every]:
            yield name, omega(sampler, group[-1]), [estimator(feature_map, name, group)]


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


def _rows(estimator: Estimator, sampler: str, head_dim: int, metrics: Mapping[str, np.ndarray]) -> list[Row]:
    """One row for every R of an estimator."""
    feature_map, name, rows = estimator.map, label(estimator.map), []
    for i, size in enumerate(estimator.sizes):
        shown = size if feature_map.features_per_projection else 0
        names = _names("map", name, sampler, shown, feature_map.num_features(size, head_dim))
        rows.append(names | _plain({name: values[i] for name, values in metrics.items()}))
    return rows


def _plain(metrics: Mapping[str, np.ndarray]) -> Row:
    return {name: float(value) for name, value in metrics.items()}


@contextlib.contextmanager
def _failures_named(estimators: Sequence[Estimator], sampler: str) -> Iterator[None]:
    """A user's map may fail in any way: say which it was."""
    try:
        yield
    except (MemoryError, FavorbenchError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, on a GPU
            raise MemoryError("on the GPU: use a smaller --batch") from None
        names = ", ".join(e.map.name for e in estimators)
        raise EstimatorError(f"{names} under {sampler} failed: {type(error).__name__}: {error}") from error


def _common(scenario: Scenario, draws: Sequence[Draw]) -> list[Row]:
    """What all rows of a draw share."""
    return [
        {
            "draw": draw.index,
            "trial": draw.trial,
            "input": draw.input,
            "head": draw.head.label,
            "scale": draw.scale,
            "value_scale": scenario.value_scale,
            "query_len": draw.head.query_len,
            "query_rows": scenario.rows(draw.head.query_len),
            "seq_len": draw.head.seq_len,
            "head_dim": draw.head.head_dim,
            "causal": "yes" if scenario.causal else "no",
            "dtype": draw.dtype,
        }
        for draw in draws
    ]


def _names(kind: str, name: str, sampler: str, num_projections: int, num_features: int) -> Row:
    return {
        "kind": kind,
        "map": name,
        "sampler": sampler,
        "num_projections": num_projections,
        "num_features": num_features,
    }
