"""Functions of query, key and value that are timed in interleaved runs, and the seconds of a finished run's estimators.

Calls are interleaved so that a machine that becomes busy slows all of them down alike.
"""

import dataclasses
import functools
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from favorbench.attention.exact import softmax_attention
from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.attention.problem import AttentionProblem
from favorbench.engine.calibration import calibrated
from favorbench.engine.columns import CELL, of_draw
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import Draw, Plan, plan
from favorbench.engine.provenance import machine
from favorbench.engine.store import read_manifest, read_scenario
from favorbench.engine.study import Study, distinct_sizes
from favorbench.errors import FavorbenchError, StoreError
from favorbench.formats import shown
from favorbench.inputs import reader_of
from favorbench.inputs.fixed import SHIPPED
from favorbench.maps import Sample
from favorbench.methods import Method, method_attention
from favorbench.methods.features import LinearAttention
from favorbench.methods.function import Function
from favorbench.numerics.arrays import Array, to_backend_of
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.results.seconds import MEASURED, TIMED, Seconds, table
from favorbench.statistics import median_interval
from favorbench.users import failures_named

Call = Callable[[Array, Array, Array], object]
Key = TypeVar("Key", bound=Hashable)

EXACT, FUSED = "exact", "exact, torch SDPA"

#: The columns of an estimator in the seconds of a run.
ESTIMATOR = TIMED[len(CELL) :]

SHORT = 0.05  # seconds below which a call is made twice


def calls_of_exact(backend: Backend, causal: bool = False) -> Iterator[tuple[str, Call]]:
    """Exact attention in tiles, and torch's fused attention where torch is installed."""

    def exact(query: Array, key: Array, value: Array) -> object:
        scaled, positions = query * query.shape[-1] ** -0.5, np.arange(query.shape[-2])
        return softmax_attention(AttentionProblem(scaled, key, value, positions, causal))

    yield EXACT, exact
    if backend.has_fused_attention():
        importlib.import_module("torch")  # now, so that ``Backend.precision`` finds its threads
        yield FUSED, lambda q, k, v: backend.fused_attention(q, k, v, causal)


def call_of(method: Method, size: int, head_dim: int, backend: Backend, dtype: str, causal: bool = False) -> Call:
    """An estimator at one size. Projections are drawn now. A user's function is called once (twice in a sweep)."""
    if isinstance(method, Function):
        name = label(method)

        def call(query: Array, key: Array, value: Array) -> object:
            with failures_named(name):
                return method.output(query, key, value, size, np.random.default_rng(0))

        return call
    if not isinstance(method, LinearAttention):
        return lambda q, k, v: method_attention(q, k, v, method, size, causal=causal)
    name, feature_map = label(method.wrapped), method.wrapped
    drawn = sample_omega(method.law, size, head_dim, stream(0, "speed"), map=feature_map)
    pairs = zip(drawn, (dtype, "float64"), strict=True)  # as in a sweep: what else a map draws must not be rounded
    sample = Sample(*(None if part is None else on_backend([np.asarray(part)], backend, of)[0] for part, of in pairs))

    def attend(query: Array, key: Array, value: Array) -> object:
        with failures_named(name):
            return linear_attention(query, key, value, sample, feature_map, causal)

    return attend


def on_backend(arrays: Sequence[np.ndarray], backend: Backend, dtype: str) -> list[Array]:
    """Host arrays on the backend in a precision, without an axis of draws."""
    moved = [backend.cast(backend.array([array]), dtype) for array in arrays]
    return [array[0] for array in moved] if backend.batched else moved


def interleaved(
    calls: Mapping[Key, Callable[[], object]],
    repeats: int,
    backend: Backend,
    progress: Progress | None = None,
    first: Callable[[Key], object] | None = None,
) -> dict[Key, list[float]]:
    """The seconds of each call, ``repeats`` times, after one call of it, or of ``first``, to warm up."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for done, (turn, key) in enumerate(itertools.product(range(repeats + 1), calls)):
        if progress:
            progress(done, len(calls) * (repeats + 1))
        if turn:
            seconds[key].append(seconds_of(calls[key], backend))
        elif first:
            first(key)
        else:
            calls[key]()
    return seconds


def seconds_of(call: Callable[[], object], backend: Backend) -> float:
    """The time of a call; of a second one if it is short, as the first finds the caches full of another method."""
    seconds = 0.0
    for _ in range(2):
        if seconds < SHORT:
            backend.synchronise()
            start = time.perf_counter()
            call()
            backend.synchronise()
            seconds = time.perf_counter() - start
    return seconds


def seconds_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval."""
    low, high, _ = median_interval(np.array(times))
    return statistics.median(times), low, high


def time_run(run: Path, repeats: int = 7, progress: Progress | None = None) -> Seconds:
    """Time exact attention and the estimators of a run, interleaved, each on the first head of its population.

    All query rows, on one core or one GPU; projections are drawn and calibrated maps fitted before. Bounds among the
    baselines are left out.
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
            for estimator, call in _calls(study, draw, arrays[0]):
                calls[number, estimator] = functools.partial(_in_precision, backend, draw.dtype, call, arrays)
        seconds = interleaved(calls, repeats, backend, progress)
    rows = [
        cells[number] | dict(zip((*ESTIMATOR, *MEASURED), (*estimator, *seconds_interval(times)), strict=True))
        for (number, estimator), times in seconds.items()
    ]
    date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return Seconds(table(rows), repeats, backend.describe(), date, machine(backend))


def _opened(run: Path) -> tuple[Study, Plan]:
    """The study of a run, and its draws. Raises StoreError if they have changed since."""
    manifest = read_manifest(run)
    read = {item["input"] for item in manifest["input_files"]}.intersection(manifest["scenario"]["inputs"])
    if gone := [name for name in sorted(read) if name not in SHIPPED and reader_of(name) is None]:
        here = "is no file or folder here, and arrays in memory are not stored"
        raise StoreError(f"{run} cannot be timed as it was measured: its input {shown(gone[0])} {here}")
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


def _calls(study: Study, draw: Draw, like: Array) -> Iterator[tuple[tuple[str | int | None, ...], Call]]:
    """Exact attention, and every estimator but oracles among baselines, at every size, with the columns ESTIMATOR.

    like: has the type and device of parameters that are fitted to the calibration.
    """
    causal = study.scenario.causal
    for name, call in calls_of_exact(study.backend, causal):
        yield ("exact", name, None, None), call
    for estimator in study.estimators:
        if estimator.kind == "baseline" and estimator.method.oracle:
            continue
        method = calibrated(study, estimator.method, [draw], lambda hosts: to_backend_of(hosts[0], like))
        for size in distinct_sizes(study.sizes_of(estimator, draw.sizes, draw.head)):
            shown = size if method.every_size else None
            call = call_of(method, size, draw.head.head_dim, study.backend, draw.dtype, causal)
            yield (estimator.kind, estimator.name, estimator.sampler, shown), call
