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
    for sampler in study.samplers:
        for omega, estimators in _samples(scenario, draw, sampler, study.maps):
            try:
                measured += _measure(inputs, exact, omega, estimators, label(sampler))
            except (MemoryError, FavorbenchError):
                raise
            except Exception as error:  # a user's map may fail in any way
                names = ", ".join(e.map.name for e in estimators)
                raise EstimatorError(
                    f"{names} under {label(sampler)} failed: {type(error).__name__}: {error}"
                ) from error

    uniform = next(sums for names, sums in measured if names["map"] == "uniform")
    common = _common_labels(scenario, draw)
    return [
        common | names | {metric: m.compute(sums, uniform) for metric, m in METRICS.items()} for names, sums in measured
    ]


def _samples(
    scenario: Scenario, draw: Draw, sampler: Sampler, maps: tuple[FeatureMap, ...]
) -> Iterator[tuple[np.ndarray, list[Estimator]]]:
    """Omega and what is measured on it: all nested maps at all R at once; what is not nested, one R at a time."""
    head_dim = draw.head.head_dim

    def omega(num_projections: int) -> np.ndarray:
        rng = stream(scenario.seed, "omega", label(sampler), *draw.stream_names)
        return sampler.sample(rng, num_projections, head_dim).astype(draw.dtype)

    def estimator(feature_map: FeatureMap, sizes: tuple[int, ...]) -> Estimator:
        rng = stream(scenario.seed, "extra", label(feature_map), label(sampler), *draw.stream_names)
        return Estimator(feature_map, feature_map.draw_extra(rng, sizes[-1]), sizes)

    def num_projections(feature_map: FeatureMap) -> tuple[int, ...]:
        per = feature_map.features_per_projection if scenario.budget == "features" else 1
        return tuple(size // per for size in draw.sizes)

    together = [m for m in maps if sampler.nested and m.nested]
    if together:
        yield omega(max(num_projections(m)[-1] for m in together)), [estimator(m, num_projections(m)) for m in together]
    for feature_map in maps:
        if feature_map not in together:
            for size in num_projections(feature_map):
                yield omega(size), [estimator(feature_map, (size,))]


def _measure(
    inputs: Inputs, exact: np.ndarray, omega: np.ndarray, estimators: list[Estimator], sampler: str
) -> list[tuple[Row, ErrorSums]]:
    sums: dict[tuple[int, int], ErrorSums] = {}
    for index, size, rows, output, normaliser in attention_estimates(
        inputs.query, inputs.key, inputs.value, omega, estimators
    ):
        part = error_sums(output, exact[rows], normaliser)
        sums[index, size] = add(sums[index, size], part) if (index, size) in sums else part
    return [
        (_names("map", label(m), sampler, size, size * m.features_per_projection), sums[index, size])
        for index, (m, _, sizes) in enumerate(estimators)
        for size in sizes
    ]


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
