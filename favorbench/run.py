"""Compute the missing draws of a sweep, here, in worker processes or in any Executor, and store their rows."""

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from favorbench.engine.cluster import Cluster, check_workers, choose_cluster
from favorbench.engine.columns import Row, failed_of
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import plan
from favorbench.engine.scenario import Scenario, as_scenario
from favorbench.engine.study import Study, default_directory
from favorbench.engine.tasks import results_of_processes
from favorbench.engine.trial import Batch, batches, run_draws
from favorbench.errors import EstimatorError, ScenarioError
from favorbench.numerics.machine import one_core
from favorbench.parameters import check_whole
from favorbench.progress import Progress, progress_callback

if TYPE_CHECKING:
    from favorbench.results.results import Results

_SAVED = (
    "all others are saved: run the same command again, with fewer `workers` if memory was short "
    "(a Python script needs an `if __name__ == '__main__':` guard)"
)

_SAVED_BY_CLUSTER = "all others are saved: run the same command again, on any cluster or on none"


def sweep(
    scenario: Scenario | Study | str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    workers: int | Executor | Cluster | Any = 1,
    progress: Progress | None = None,
    batch: int | None = None,
    retry_failed: bool = False,
    cluster: str | None = None,
    **keys: Any,
) -> "Results":
    """Run a sweep and return its results. Draws already stored in ``out`` are reused.

    Parameters
    ----------
    scenario
        A Scenario, a shipped name, a TOML path, or a mapping of keys on top of the default scenario, which None is.
    out
        The run directory, by default results/<name>.
    workers
        A number of processes, or an executor whose workers can import favorbench. The rows are the same bits for any
        number of workers.
    progress
        Called with (draws done, draws in all). None is a bar in a notebook, and nothing elsewhere.
    batch
        Draws computed together by the torch backend, by default one on a CPU and enough to fill a GPU.
    retry_failed
        Recompute draws in which an estimator failed. By default they count as done.
    cluster
        A Dask cluster: "tcp://host:8786", the path of a scheduler.json, "local:4", or "none", which overrides
        FAVORBENCH_CLUSTER and the scenario. A Client given as ``workers`` is one, too.
    **keys
        Keys of the scenario, on top, as the flags of ``favorbench sweep``: maps, methods, samplers, num_projections
        (R), seq_len (L), head_dim (d), scale, inputs, heads, budget, trials, seed and so on. Lists may be texts with
        commas: maps="positive,trig", num_projections=[64, 256]. ``inputs`` and ``calibrate`` may be arrays in memory,
        (q, k, v), or a mapping of names to such, inputs={"mine": (q, k, v)}: of NumPy, torch or what NumPy reads,
        (L, d), (heads, L, d) or (batch, heads, L, d), before any division by sqrt(d); or the result of ``fb.capture``.
        Their rows are those of the file that numpy.savez(path, q=q, k=k, v=v) writes of them in C order, bit for bit.

    Returns
    -------
    Results
        Errors are in the units of the metric: mse in those of v squared, relative_error a share of |exact|.

    Raises
    ------
    ScenarioError
        A key is wrong, or the sweep does not fit into memory.
    InputError, StoreError
        The inputs or the run directory cannot be used.
    EstimatorError
        A member failed on the first draw.
    WorkerError
        A worker process died twice over the same draws. All finished draws are saved first.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 32, 4))  # two heads
    >>> results = fb.sweep("quick", maps="positive,oprf", num_projections=[8, 16], trials=2, inputs={"mine": (q, k, v)})
    >>> results.trials["head"].unique().tolist(), len(results.trials)
    (['h0', 'h1'], 52)
    >>> fb.sweep("quick", mapz="positive")
    Traceback (most recent call last):
    favorbench.errors.ScenarioError: ...: unknown key 'mapz' (did you mean 'maps'?); allowed: ...
    """
    from favorbench.engine.store import Store  # imports pyarrow, which workers do not need

    if isinstance(scenario, Study) and keys:
        scenario = scenario.scenario
    study = scenario if isinstance(scenario, Study) else Study.of(as_scenario(scenario, keys))
    cluster_used = choose_cluster(cluster, workers, study.scenario.cluster)
    workers = cluster_used or workers
    processes = check_workers(workers)
    if batch is not None:
        check_whole("batch", batch, 1, 1 << 24)
    if study.scenario.device.startswith("cuda") and workers != 1:
        raise ScenarioError("`workers`: a CUDA device is used by one process; leave `workers` out, and see `batch`")
    draws = plan(study)
    check_fits(draws, processes, batch)
    path = Path(out) if out is not None else default_directory(study)
    reporting = progress_callback(progress, f"sweep {study.scenario.name}", "draws")
    with one_core(), Store(path, draws) as store, reporting as report:
        if cluster_used:
            cluster_used.machines = store.machines
        missing = np.flatnonzero(~store.done(but_failed=retry_failed)).tolist()
        count = len(draws) - len(missing)
        report(count, len(draws))
        try:
            for rows in _rows(study, batches(draws, missing, batch), len(missing), workers):
                if not count:
                    _check_first(rows)
                store.append(rows)
                if cluster_used is None:
                    store.count_here()
                count += 1
                report(count, len(draws))
        finally:
            if missing or not store.complete:
                store.flush()
                count = store.finish()
            results = _results(path) if count else None
        set_aside = tuple(store.set_aside)
    assert results is not None  # there are draws, and none failed
    return results._replace(set_aside=set_aside)


def _check_first(rows: list[Row]) -> None:
    """Raise EstimatorError if an estimator failed on the first draw: it would most likely fail on all."""
    for name, messages in failed_of(rows).items():
        raise EstimatorError(f"{name} failed: {next(iter(messages))}")


def _results(path: Path) -> "Results":
    """Load the finished draws, and write their summary where it is missing."""
    from favorbench.engine.store import SUMMARY
    from favorbench.results.results import load
    from favorbench.results.sections import write_summary

    results = load(path)
    if not (path / SUMMARY).exists():
        write_summary(results)
    return results


def _rows(study: Study, work: Iterator[Batch], draws: int, workers: int | Executor | Cluster) -> Iterator[list[Row]]:
    """The rows of each draw, as they are finished."""
    left = draws

    def missing(why: str, batch: Batch) -> str:
        first = batch[0]
        where = f"draw {first.index}, {first.input}, L = {first.head.seq_len}, d = {first.head.head_dim}"
        saved = _SAVED_BY_CLUSTER if isinstance(workers, Cluster) else _SAVED
        return f"draws missing: {left}, {why}; the first is {where}; {saved}"

    if not draws:
        return
    if isinstance(workers, Cluster):
        results = workers.results(run_draws, study, work, draws, missing, study.specs, study.backend)
    elif workers == 1 or (draws == 1 and not isinstance(workers, Executor)):
        results = ((batch, run_draws(study, batch)) for batch in work)
    else:
        results = results_of_processes(run_draws, study, work, draws, missing, workers)
    with contextlib.closing(results):
        for batch, rows in results:
            left -= len(batch)
            yield from rows
