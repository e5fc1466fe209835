"""Draws to rows to the store: in this process, in worker processes, or in any Executor; always resuming."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from favorbench.errors import WorkerError
from favorbench.machine import one_core
from favorbench.plan import Draw, plan
from favorbench.report import write_summary
from favorbench.scenario import Scenario, as_scenario, default_directory
from favorbench.store import Store
from favorbench.summary import Results, load
from favorbench.trial import Row, run_draw

#: Called with (draws done, draws in all), first with what was there already.
Progress = Callable[[int, int], None]


def sweep(
    scenario: Scenario | str | Mapping[str, Any],
    out: str | Path | None = None,
    workers: int | Executor = 1,
    progress: Progress | None = None,
) -> Results:
    """Measure everything a scenario asks for, and return the results; what is in ``out`` already is not done again.

    scenario: a Scenario, a shipped name or a TOML path, or a mapping of keys on top of the default scenario.
    out: the run directory, by default results/<name>. workers: processes, or an executor whose workers can import
    favorbench. The rows are the same bits for any number of workers.
    Raises ScenarioError, InputError, StoreError; WorkerError if a worker process dies. Finished draws are saved first.
    """
    scenario = as_scenario(scenario)
    draws = plan(scenario)
    path = Path(out) if out is not None else default_directory(scenario)
    with Store(path, scenario, len(draws)) as store:
        done = store.done()
        missing = [draw for draw in draws if draw.index not in done]
        count = len(draws) - len(missing)
        report = progress or (lambda done, total: None)
        report(count, len(draws))
        try:
            for rows in _rows(scenario, missing, workers):
                store.append(rows)
                count += 1
                report(count, len(draws))
        finally:
            if missing or not store.complete:
                store.flush()
                count = store.finish()
            if count and (missing or not (path / "summary.md").exists()):
                write_summary(path)
        set_aside = tuple(store.set_aside)
    return load(path)._replace(set_aside=set_aside)


def _rows(scenario: Scenario, draws: Sequence[Draw], workers: int | Executor) -> Iterator[list[Row]]:
    """The rows of each draw, in whatever order they are finished."""
    if isinstance(workers, Executor):
        yield from _finished(_submit(workers, scenario, draws))
    elif workers > 1 and len(draws) > 1:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(workers, len(draws)), mp_context=context, initializer=_prepare_worker)
        try:
            with _interrupts_ignored():  # workers inherit it: Ctrl-C is the parent's to handle
                futures = _submit(pool, scenario, draws)
            yield from _finished(futures)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    else:
        with one_core():
            for draw in draws:
                yield run_draw(scenario, draw)


def _submit(executor: Executor, scenario: Scenario, draws: Sequence[Draw]) -> list[Future[list[Row]]]:
    return [executor.submit(_run_in_worker, scenario, draw) for draw in draws]


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """No KeyboardInterrupt inside; only the main thread may say so, others are not interrupted anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _finished(futures: Sequence[Future[list[Row]]]) -> Iterator[list[Row]]:
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenExecutor:
        raise WorkerError(
            "a worker process died (killed, or out of memory); finished draws are saved: run the same command again, "
            "with fewer --workers if memory was short (a Python script needs an `if __name__ == '__main__':` guard)"
        ) from None
    finally:
        for future in futures:
            future.cancel()


def _run_in_worker(scenario: Scenario, draw: Draw) -> list[Row]:
    with one_core():
        return run_draw(scenario, draw)


def _prepare_worker() -> None:
    """A worker must not outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
