"""Draws to rows to the store: in this process, in worker processes, or in any Executor; always resuming."""

import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from favorbench.engine.batches import Batch, batches, rows_of_batch
from favorbench.engine.cluster import Cluster, choose_cluster
from favorbench.engine.columns import Row, failed_of
from favorbench.engine.cost import check_fits
from favorbench.engine.plan import plan
from favorbench.engine.scenario import Scenario, as_scenario
from favorbench.engine.study import Study, default_directory
from favorbench.engine.tasks import LocalPool, Pool, TaskBundle, TaskRun
from favorbench.errors import EstimatorError, ScenarioError
from favorbench.progress import Progress, progress_callback

if TYPE_CHECKING:
    from favorbench.results.results import Results

_SAVED = (
    "all others are saved: run the same command again, with fewer `workers` if memory was short "
    "(a Python script needs an `if __name__ == '__main__':` guard)"
)

_SAVED_BY_CLUSTER = "all others are saved: run the same command again, on any cluster or on none"


def sweep(
    scenario: Scenario | Study | str | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    workers: int | Executor | Cluster | Any = 1,
    progress: Progress | None = None,
    batch: int | None = None,
    retry_failed: bool = False,
    cluster: str | None = None,
    **keys: Any,
) -> "Results":
    """Measure everything a scenario asks for, and return the results; what is in ``out`` already is not done again.

    scenario: a Scenario, a shipped name or a TOML path, or a mapping of keys on top of the default scenario, which is
    what None is. keys: of the scenario, on top, as the flags of ``favorbench sweep``: maps, methods, samplers,
    num_projections (R), seq_len (L), head_dim (d), scale, inputs, heads, budget, trials, seed and so on; lists may be
    texts with commas: maps="positive,trig", num_projections=[64, 256].
    inputs may be arrays in memory, (q, k, v), or a mapping of names to such, inputs={"mine": (q, k, v)}: of NumPy,
    torch or what NumPy reads, (L, d), (heads, L, d) or (batch, heads, L, d), before any division by sqrt(d); or what
    ``fb.capture`` gives.
    The rows are those of the file that numpy.savez(path, q=q, k=k, v=v) writes, bit for bit. calibrate: the same.
    out: the run directory, by default results/<name>. workers: processes, or an executor whose workers can import
    favorbench; the rows are the same bits for any number of them. progress: called with (draws done, draws in all);
    None: a bar in a notebook, elsewhere nothing.
    cluster: a Dask cluster, as a Client given for ``workers`` is: "tcp://host:8786", the path of a scheduler.json,
    "local:4", or "none", whatever FAVORBENCH_CLUSTER and the scenario say.
    retry_failed: compute the draws anew in which an estimator failed; without it they count as done.
    batch: draws computed together by the torch backend, by default one on a CPU and as many as fill a GPU.

    Errors of estimators are in the units of the metric: mse in those of v squared, relative_error a share of |exact|.
    Raises ScenarioError, also for what will not fit into memory, InputError, StoreError; EstimatorError for a member
    that fails on the first draw; WorkerError if a worker process dies twice over the same draws. All finished draws
    are saved first.

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

    study = scenario if isinstance(scenario, Study) and not keys else Study.of(as_scenario(_described(scenario), keys))
    on = choose_cluster(cluster, workers, study.scenario.cluster)
    _check_workers(on or workers)
    if study.scenario.device.startswith("cuda") and (on or workers != 1):
        raise ScenarioError("`workers`: a CUDA device is used by one process; leave `workers` out, and see `batch`")
    draws = plan(study)
    check_fits(draws, max(1, on.address.processes) if on else workers if isinstance(workers, int) else 1)
    path = Path(out) if out is not None else default_directory(study)
    with Store(path, draws) as store, progress_callback(progress, f"sweep {study.scenario.name}", "draws") as report:
        missing = np.flatnonzero(~store.done(but_failed=retry_failed)).tolist()
        count = len(draws) - len(missing)
        report(count, len(draws))
        try:
            for rows in _rows(study, batches(draws, missing, batch), len(missing), on or workers):
                if not count and (failed := failed_of(rows)):  # most likely for good, and nothing is lost yet
                    name, how = next(iter(failed.items()))
                    raise EstimatorError(f"{name} failed: {next(iter(how))}")
                store.append(rows)
                count += 1
                report(count, len(draws))
        finally:
            if missing or not store.complete:
                store.flush()
                store.record_workers(on.take_machines() if on else [])
                count = store.finish()
            results = _results(path, anew=bool(missing)) if count else None
        set_aside = tuple(store.set_aside)
    assert results is not None  # there are draws, and none failed
    return results._replace(set_aside=set_aside)


def _described(
    scenario: Scenario | Study | str | Mapping[str, Any] | None,
) -> Scenario | str | Mapping[str, Any] | None:
    return scenario.scenario if isinstance(scenario, Study) else scenario


def _check_workers(workers: object) -> None:
    """Raise ScenarioError unless this is a number of processes or an executor; end a worker that is about to sweep."""
    if not isinstance(workers, Executor | Cluster) and not (type(workers) is int and workers >= 1):
        raise ScenarioError(f"`workers`: {workers!r} given, allowed: a whole number from 1 on, or an Executor")
    if workers != 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it, and without the guard is here again before it has any work.
        raise SystemExit("favorbench: this script sweeps in its workers too: `if __name__ == '__main__':` is missing")


def _results(path: Path, anew: bool) -> "Results":
    """The finished draws, and the files that say what they show."""
    from favorbench.results.results import load
    from favorbench.results.sections import write_summary

    results = load(path)
    if anew or not (path / "summary.md").exists():
        write_summary(results)
    return results


def _rows(study: Study, work: Iterator[Batch], draws: int, workers: int | Executor | Cluster) -> Iterator[list[Row]]:
    """The rows of each draw, in the order in which they are finished."""
    left = draws

    def missing(why: str, batch: Batch) -> str:
        first = batch[0]
        where = f"draw {first.index}, {first.input}, L = {first.head.seq_len}, d = {first.head.head_dim}"
        saved = _SAVED_BY_CLUSTER if isinstance(workers, Cluster) else _SAVED
        return f"draws missing: {left}, {why}; the first is {where}; {saved}"

    if not draws:
        return
    if isinstance(workers, Cluster):
        results = workers.results(rows_of_batch, study, work, draws, missing, study.specs, study.backend)
    elif workers == 1 or (draws == 1 and not isinstance(workers, Executor)):
        results = ((batch, rows_of_batch(study, batch)) for batch in work)
    else:
        bundle = TaskBundle.of(rows_of_batch, study)
        pool = Pool(bundle, workers) if isinstance(workers, Executor) else LocalPool(bundle, min(workers, draws))
        results = TaskRun(pool, work, draws, missing).results()
    for batch, rows in results:
        left -= len(batch)
        yield from rows
