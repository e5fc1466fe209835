"""One draw: its inputs, its exact answer, and every sampler, map and R measured on them. The whole pipeline."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from favorbench.attention import Estimator, attention_estimates, exact_attention
from favorbench.baselines import Baseline, get_baseline
from favorbench.errors import EstimatorError, FavorbenchError
from favorbench.inputs import Inputs, get_input
from favorbench.maps import FeatureMap, get_map
from favorbench.metrics import METRICS, ErrorSums, add, error_sums
from favorbench.plan import Draw
from favorbench.registry import label
from favorbench.samplers import Sampler, get_sampler
from favorbench.scenario import Scenario
from favorbench.streams import stream

Row = dict[str, Any]

#: The labels of a row, in the order of the table; the metrics follow.
LABELS = (
    "draw", "trial", "input", "head", "scale", "value_scale", "query_len", "seq_len", "head_dim", "dtype",
    "kind", "map", "sampler", "num_projections", "num_features",
)  # fmt: skip


@dataclass(frozen=True)
class Study:
    """A scenario's names, built."""

    maps: tuple[FeatureMap, ...]
    samplers: tuple[Sampler, ...]
    baselines: tuple[Baseline, ...]

    @staticmethod
    @functools.cache
    def of(scenario: Scenario) -> "Study":
        """Build the members of a scenario, once for each process."""
        return Study(
            tuple(get_map(spec) for spec in scenario.maps),
            tuple(get_sampler(spec) for spec in scenario.samplers),
            tuple(get_baseline(spec) for spec in scenario.baselines),
        )


def run_draw(scenario: Scenario, draw: Draw) -> list[Row]:
    """All rows of one draw: baselines first, then samplers x maps x R. Depends on its arguments alone."""
    with np.errstate(all="ignore"):  # an estimator that overflows is a measurement
        return _run_draw(scenario, draw)


def _run_draw(scenario: Scenario, draw: Draw) -> list[Row]:
    study = Study.of(scenario)  # pyright: ignore[reportArgumentType]  (a frozen model is hashable)
    rng = stream(scenario.seed, "inputs", *draw.stream_names)
    query, key, value = get_input(draw.input).draw(rng, draw.head)
    query, key, value = query * draw.scale, key * draw.scale, value * scenario.value_scale
    exact = exact_attention(query, key, value)

    measured: list[tuple[Row, ErrorSums]] = []
    for baseline in study.baselines:
        for size, features, output, normaliser in baseline.answers(query, key, value, exact, draw.sizes):
            names = _names("baseline", baseline.name, "none", size, features)
            measured.append((names, error_sums(output, exact, normaliser)))
    inputs = Inputs(query.astype(draw.dtype), key.astype(draw.dtype), value.astype(draw.dtype))
    for sampler, omega, estimators in _samples(scenario, draw, study):
        try:
            measured += _measure(inputs, exact, omega, estimators, sampler)
        except (MemoryError, FavorbenchError):
            raise
        except Exception as error:  # a user's map may fail in any way
            names = ", ".join(e.map.name for e in estimators)
            raise EstimatorError(f"{names} under {sampler} failed: {type(error).__name__}: {error}") from error

    uniform = next(sums for names, sums in measured if names["map"] == "uniform")
    common = _common_labels(scenario, draw)
    return [
        common | names | {metric: m.compute(sums, uniform) for metric, m in METRICS.items()} for names, sums in measured
    ]


def _samples(scenario: Scenario, draw: Draw, study: Study) -> Iterator[tuple[str, np.ndarray, list[Estimator]]]:
    """The sampler's label, omega, and what is measured on it: all nested maps at all R at once; others one R at a time.

    A map with a sample of its own is measured once, with the label "own", and one without randomness with "none".
    """
    head_dim = draw.head.head_dim

    def estimator(feature_map: FeatureMap, sampler: str, sizes: tuple[int, ...]) -> Estimator:
        rng = stream(scenario.seed, "extra", label(feature_map), sampler, *draw.stream_names)
        return Estimator(feature_map, feature_map.draw_extra(rng, sizes[-1], head_dim), sizes)

    def num_projections(feature_map: FeatureMap) -> tuple[int, ...]:
        per = feature_map.features_per_projection if scenario.budget == "features" else 1
        return tuple(size // per for size in draw.sizes)

    for feature_map in study.maps:
        if feature_map.features_per_projection == 0:
            yield "none", np.zeros((1, head_dim)), [estimator(feature_map, "none", (1,))]
        elif feature_map.own_sample:
            sizes = num_projections(feature_map)
            for group in [sizes] if feature_map.nested else [(size,) for size in sizes]:
                yield "own", np.zeros((group[-1], head_dim), draw.dtype), [estimator(feature_map, "own", group)]
    sampled = [m for m in study.maps if m.features_per_projection and not m.own_sample]
    for sampler in study.samplers:
        name = label(sampler)

        def omega(size: int, sampler: Sampler = sampler, name: str = name) -> np.ndarray:
            rng = stream(scenario.seed, "omega", name, *draw.stream_names)
            return sampler.sample(rng, size, head_dim).astype(draw.dtype)

        together = [m for m in sampled if sampler.nested and m.nested]
        if together:
            widest = max(num_projections(m)[-1] for m in together)
            yield name, omega(widest), [estimator(m, name, num_projections(m)) for m in together]
        for feature_map in sampled:
            if feature_map not in together:
                for size in num_projections(feature_map):
                    yield name, omega(size), [estimator(feature_map, name, (size,))]


def _measure(
    inputs: Inputs, exact: np.ndarray, omega: np.ndarray, estimators: list[Estimator], sampler: str
) -> list[tuple[Row, ErrorSums]]:
    found: dict[int, ErrorSums] = {}
    for index, rows, output, normaliser in attention_estimates(
        inputs.query, inputs.key, inputs.value, omega, estimators
    ):
        part = error_sums(output, exact[rows], normaliser)
        found[index] = add(found[index], part) if index in found else part
    measured, head_dim = [], omega.shape[-1]
    for index, (feature_map, _, sizes) in enumerate(estimators):
        for i, size in enumerate(sizes):
            shown = size if feature_map.features_per_projection else 0
            names = _names("map", label(feature_map), sampler, shown, feature_map.num_features(size, head_dim))
            measured.append((names, found[index].of(i)))
    return measured


def _names(kind: str, name: str, sampler: str, num_projections: int, num_features: int) -> Row:
    return {
        "kind": kind,
        "map": name,
        "sampler": sampler,
        "num_projections": num_projections,
        "num_features": num_features,
    }


def _common_labels(scenario: Scenario, draw: Draw) -> Row:
    return {
        "draw": draw.index,
        "trial": draw.trial,
        "input": draw.input,
        "head": draw.head.label,
        "scale": draw.scale,
        "value_scale": scenario.value_scale,
        "query_len": draw.head.query_len,
        "seq_len": draw.head.seq_len,
        "head_dim": draw.head.head_dim,
        "dtype": draw.dtype,
    }
