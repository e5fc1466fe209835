"""The seconds of a finished run's estimators, on one head of its inputs and on this machine."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from favorbench.engine.columns import CELL, of_draw
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import Draw, Plan, plan
from favorbench.engine.provenance import machine
from favorbench.engine.store import read_manifest, read_scenario
from favorbench.engine.study import Study, distinct_sizes
from favorbench.errors import FavorbenchError, StoreError
from favorbench.numerics.arrays import Array
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.results.seconds import MEASURED, Seconds, table
from favorbench.studies.speed.calls import Call, call_of, calls_of_exact, interleaved, on_backend, seconds_interval


class _Timed(NamedTuple):
    """An estimator, in the columns of a run."""

    kind: str
    estimator: str
    sampler: str | None
    num_projections: int | None


def time_run(run: Path, repeats: int = 7, progress: Progress | None = None) -> Seconds:
    """Time exact attention and the estimators of a run, interleaved, each on the first head of its population.

    All query rows, on one core or one GPU; projections are drawn before. Bounds among the baselines are left out.
    Raises StoreError if the inputs or modules of the run are missing, EstimatorError if a user's estimator fails.
    """
    study, draws = _opened(run)
    backend, calls, cells = study.backend, {}, []
    with one_core(), np.errstate(all="ignore"):
        for number, draw in enumerate(_first_heads(draws)):
            cells.append({name: value for name, value in of_draw(study.scenario, draw).items() if name in CELL})
            rng = stream(study.scenario.seed, "inputs", *draw.stream_names)
            query, key, value = study.inputs[draw.input].law.draw(rng, draw.head)
            scaled = (query * draw.scale, key * draw.scale, value * study.scenario.value_scale)
            arrays = on_backend(scaled, backend, draw.dtype)
            for estimator, call in _calls(study, draw):
                calls[number, estimator] = functools.partial(_in_precision, backend, draw.dtype, call, arrays)
        seconds = interleaved(calls, repeats, backend, progress)
    rows = [
        cells[number] | estimator._asdict() | dict(zip(MEASURED, seconds_interval(times), strict=True))
        for (number, estimator), times in seconds.items()
    ]
    date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return Seconds(table(rows), repeats, backend.describe(), date, machine(backend))


def _opened(run: Path) -> tuple[Study, Plan]:
    """The study of a run, and its draws. Raises StoreError if they have changed since."""
    manifest = read_manifest(run)
    try:
        study = Study.of(read_scenario(run))
        if study.digest != manifest["digest"]:
            changed = "its input file, or a module of yours that it uses, has changed since; sweep anew"
            raise StoreError(f"{changed} into another `out`")
        draws = plan(study)
        check_fits(draws)
    except FavorbenchError as error:
        raise StoreError(f"{run} cannot be timed as it was measured: {error}") from None
    return study, draws


def _first_heads(draws: Plan) -> Iterable[Draw]:
    """The first of the draws that differ in their head and in R only, with the R of all."""
    kept: dict[object, Draw] = {}
    for draw in draws[: len(draws.shapes)]:
        key = (draw.input, draw.head._replace(label=""), draw.scale, draw.dtype)
        first = kept.setdefault(key, draw)
        kept[key] = dataclasses.replace(first, sizes=tuple(sorted({*first.sizes, *draw.sizes})))
    return kept.values()


def _in_precision(backend: Backend, dtype: str, call: Call, arrays: Sequence[Array]) -> object:
    """The call in the precision of its cell, which the calls before and after it need not share."""
    with backend.precision(dtype):
        return call(*arrays)


def _calls(study: Study, draw: Draw) -> Iterator[tuple[_Timed, Call]]:
    """Exact attention, and every estimator but oracles among baselines, at every size."""
    causal = study.scenario.causal
    for name, call in calls_of_exact(study.backend, causal):
        yield _Timed("exact", name, None, None), call
    for estimator in study.estimators:
        if estimator.kind == "baseline" and estimator.method.oracle:
            continue
        for size in distinct_sizes(study.sizes_of(estimator, draw.sizes, draw.head)):
            shown = size if estimator.method.every_size else None
            call = call_of(estimator.method, size, draw.head.head_dim, study.backend, draw.dtype, causal)
            yield _Timed(estimator.kind, estimator.name, estimator.sampler, shown), call
