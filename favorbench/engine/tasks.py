"""Tasks on any executor: a bounded number at a time, in chunks. Items whose worker died are tried once more, alone.

A worker imports this module, so it is kept apart from the libraries that only the parent needs.
"""

import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from favorbench.engine.interrupts import signals_held
from favorbench.errors import FavorbenchError, WorkerError
from favorbench.files import check_memory_of_libraries
from favorbench.users import importable_from, keep_importable_here, modules_here

Item = TypeVar("Item")

MAX_RETRIES = 3  # items in a row whose worker died, or workers that had no memory for an item
MAX_CHUNK = 4096  # items of a task
POLL_SECONDS = 1.0


class TaskBundle(NamedTuple):
    """Data that every task needs: a pickled function with its context, and the folder of the user's modules.

    An empty folder: none are in the working directory. None: they are in the data.
    """

    data: bytes
    folder: str | None

    @staticmethod
    def of(function: Callable[[Any, Any], Any], context: Any) -> "TaskBundle":
        """A function of a context and an item."""
        return TaskBundle(pickle.dumps((function, context)), os.getcwd() if modules_here() else "")


class TaskResult(NamedTuple):
    """The results of a task's first items, and the error that kept it from the others. worker: where, on a cluster."""

    results: list[Any]
    seconds: float
    error: Exception | None
    worker: str = ""


class Unfinished(NamedTuple):
    """A result so far, of a long item, and the item that computes the rest."""

    result: Any
    rest: Any


@functools.lru_cache(maxsize=2)
def load_bundle(bundle: TaskBundle) -> tuple[Callable[[Any, Any], Any], Any]:
    """The function and its context, unpickled once for each process."""
    with importable_from(bundle.folder) if bundle.folder else contextlib.nullcontext():
        function, context = pickle.loads(bundle.data)
        if bundle.folder is not None and (check := getattr(context, "check_sources", None)):
            check()
    return function, context


def run_items(bundle: TaskBundle, items: Sequence[Any]) -> TaskResult:
    """Run a task in a worker."""
    start, results, error = time.perf_counter(), [], None
    try:
        function, context = load_bundle(bundle)
        for item in items:
            results.append(function(context, item))
    except (FavorbenchError, MemoryError, OSError) as failure:  # other errors keep their traceback
        error = failure
    return TaskResult(results, time.perf_counter() - start, error)


@dataclass(eq=False)
class Task(Generic[Item]):
    """Items that are computed together.

    alone: their worker died before. failed_on: workers that had no memory or disk for them. workers: that may compute
    them, on a cluster. futures: the same task on several workers, where one is stuck. losses: how often all that
    may compute them were gone.
    """

    items: list[Item]
    alone: bool = False
    failed_on: tuple[str, ...] = ()
    workers: frozenset[str] = frozenset()
    since: float = field(default_factory=time.monotonic)
    futures: list[Future[TaskResult]] = field(default_factory=list)
    losses: int = 0


class Pool:
    """An executor as a place for tasks."""

    name = "the executor"

    def __init__(self, bundle: TaskBundle, executor: Executor, slots: int = 1024) -> None:
        self._bundle, self._executor, self._slots = bundle, executor, slots

    @property
    def slots(self) -> int:
        """How many tasks may be submitted at a time."""
        return self._slots

    @property
    def chunk_seconds(self) -> float:
        """How long a task should take; 0 is one item for each."""
        return 0.0

    def submit(self, task: Task[Any]) -> Future[TaskResult]:
        """Submit a task. Raises BrokenExecutor where no worker is left."""
        return self._executor.submit(run_items, self._bundle, task.items)

    def worker_died(self, error: BaseException) -> bool:
        """Whether an error says that the worker died, not that the task is wrong."""
        return isinstance(error, BrokenExecutor) or type(error).__module__.startswith("distributed")

    def accept(self, result: TaskResult) -> str:
        """Record a result; return why another worker should compute the rest of the task, if one should."""
        return ""

    def trouble(self) -> str:
        """Why nothing can be computed any more; empty while it can."""
        return ""

    def has_lost(self, task: Task[Any]) -> bool:
        """Whether all workers that may compute a task are gone, so that no result of it will come."""
        return False

    def is_stuck(self, task: Task[Any], longest: float) -> bool:
        """Whether an idle worker should compute a task too. longest: seconds of the slowest item so far."""
        return False

    def cancel(self, futures: Iterable[Future[TaskResult]]) -> None:
        """Cancel tasks that are no longer needed, before the pool is closed."""
        for future in futures:
            future.cancel()

    def close(self, failed: bool) -> None:
        """Stop the workers that were started here. failed: without waiting for running tasks."""


class LocalPool(Pool):
    """Processes of this machine, started anew when one has died."""

    def __init__(self, bundle: TaskBundle, workers: int) -> None:
        super().__init__(bundle, local_processes(workers), 2 * workers)
        self._workers, self._running, self._broken = workers, workers, False

    def submit(self, task: Task[Any]) -> Future[TaskResult]:
        workers = 1 if task.alone else self._workers
        if workers != self._running or (self._broken and task.alone):  # then no other task is under way
            LocalPool.close(self, self._broken)
            self._executor, self._running, self._broken = local_processes(workers), workers, False
        return super().submit(task)

    def worker_died(self, error: BaseException) -> bool:
        self._broken = super().worker_died(error)
        return self._broken

    def cancel(self, futures: Iterable[Future[TaskResult]]) -> None:
        """Leave that to `close`: where a process is killed, Python fails on futures that others have cancelled."""

    def close(self, failed: bool) -> None:
        if failed:
            for process in list((getattr(self._executor, "_processes", None) or {}).values()):
                process.kill()  # Python 3.14 has Executor.kill_workers()
        self._executor.shutdown(wait=failed, cancel_futures=True)  # idle workers end while the summary is made


class KeptPool(LocalPool):
    """Processes that stay for further runs of tasks. Use as a context manager."""

    def __enter__(self) -> "KeptPool":
        return self

    def __exit__(self, *error: object) -> None:
        super().close(error[0] is not None)

    def close(self, failed: bool) -> None:
        """Leave that to the end of the context."""


def results_of_processes(
    function: Callable[[Any, Any], Any], context: Any, items: Iterator[Item], count: int,
    missing: Callable[[str, Item], str], workers: int | Executor,
) -> Generator[tuple[Item, Any], None, None]:  # fmt: skip
    """Yield each item with the result of function(context, item), as processes or an executor finish them.

    missing: as of a TaskRun. Raises WorkerError. To be closed by the caller: a traceback may keep it alive.
    """
    bundle = TaskBundle.of(function, context)
    pool = Pool(bundle, workers) if isinstance(workers, Executor) else LocalPool(bundle, min(workers, count))
    return TaskRun(pool, items, count, missing).results()


def local_processes(workers: int) -> ProcessPoolExecutor:
    """Processes of this machine."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_prepare_worker)


def _prepare_worker() -> None:
    """Let modules of the user import others later, and end this process when its parent was killed."""
    keep_importable_here()
    check_memory_of_libraries()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


class TaskRun(Generic[Item]):
    """Items to results in a pool. missing: a sentence about the items that are missing, given why and the first.

    The rest of an ``Unfinished`` result is computed before items that nobody has begun.
    """

    def __init__(self, pool: Pool, items: Iterator[Item], count: int, missing: Callable[[str, Item], str]) -> None:
        self._pool, self._items, self._left, self._missing = pool, items, count, missing
        self._exhausted, self._chunk, self._longest = False, 1, 0.0
        self._tasks: dict[Future[TaskResult], Task[Item]] = {}
        self._done: queue.SimpleQueue[Future[TaskResult]] = queue.SimpleQueue()
        self._again: deque[Task[Item]] = deque()  # for another worker, or where their worker died: alone
        self._lost: list[Item] = []
        self._lost_in_a_row, self._why = 0, "as their worker died twice (killed, or out of memory)"

    def results(self) -> Generator[tuple[Item, Any], None, None]:
        """Yield each item with its result, as they finish. Raises WorkerError, which says what is missing."""
        failed = True
        try:
            while self._submit_tasks():
                try:
                    future = self._done.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    if why := self._pool.trouble():
                        raise self._error(f"as {why}") from None
                    self._submit_stuck_tasks()
                else:
                    yield from self._finish(future)
            failed = False
        finally:
            with signals_held():
                self._pool.cancel(self._tasks)
                self._pool.close(failed)
        if self._lost or self._again:
            raise self._error(self._why)

    def _submit_tasks(self) -> bool:
        """Submit as many tasks as may be under way; whether anything is left to wait for."""
        with signals_held():
            while len(self._tasks) < self._pool.slots and (task := self._next_task()):
                self._submit(task)
        more = self._again or not self._exhausted
        return bool(self._tasks or (more and self._lost_in_a_row < MAX_RETRIES))

    def _next_task(self) -> Task[Item] | None:
        if any(task.alone for task in self._tasks.values()):
            return None
        if self._again:
            waits = self._again[0].alone and (self._tasks or self._lost_in_a_row >= MAX_RETRIES)
            return None if waits else self._again.popleft()
        size = min(self._chunk, math.ceil(self._left / (2 * self._pool.slots)))
        items = list(itertools.islice(self._items, max(1, size)))
        self._left -= len(items)
        self._exhausted |= not items
        return Task(items) if items else None

    def _submit(self, task: Task[Item]) -> None:
        try:
            future = self._pool.submit(task)
        except Exception as error:
            if not self._pool.worker_died(error):
                raise
            future = Future()
            future.set_exception(error)
        task.futures.append(future)
        self._tasks[future] = task
        future.add_done_callback(self._done.put)

    def _submit_stuck_tasks(self) -> None:
        """Let idle workers compute what a slow, paused or stopped one has not finished; the first result counts."""
        idle = len(self._tasks) < self._pool.slots
        for task in set(self._tasks.values()) if self._pool.slots else ():
            if lost := self._pool.has_lost(task):
                self._forget(task)
                task.losses += 1
            if task.losses == MAX_RETRIES:  # it may be what kills them
                self._lose(task)
            elif lost or (idle and self._pool.is_stuck(task, self._longest)):
                task.since = time.monotonic()
                with signals_held():
                    self._submit(task)

    def _forget(self, task: Task[Item]) -> None:
        """Expect no result of a task any more."""
        for future in task.futures:
            self._tasks.pop(future, None)
            future.cancel()
        task.futures.clear()

    def _finish(self, future: Future[TaskResult]) -> Iterator[tuple[Item, Any]]:
        task = self._tasks.pop(future, None)
        if task is None:  # another worker was faster
            return
        if future.cancelled():
            raise self._error(f"as {self._pool.name} is gone", task)
        if error := future.exception():
            if not self._pool.worker_died(error):
                raise error
            task.futures.remove(future)
            if not task.futures:
                self._lose(task)
            return
        self._forget(task)
        result = future.result()
        done, rest = task.items[: len(result.results)], task.items[len(result.results) :]
        if done:
            self._learn(len(done), result.seconds)
        why = self._pool.accept(result)
        self._again += [Task([part.rest]) for part in result.results if isinstance(part, Unfinished)]
        yield from zip(done, result.results, strict=True)
        if why:
            self._retry(rest, (*task.failed_on, result.worker), why)
        elif result.error is not None:
            raise result.error

    def _learn(self, items: int, seconds: float) -> None:
        self._lost_in_a_row, self._longest = 0, max(self._longest, seconds)
        if chunk_seconds := self._pool.chunk_seconds:
            fitting = int(items * chunk_seconds / max(seconds, 1e-6))
            self._chunk = max(1, min(fitting, 2 * items, MAX_CHUNK))

    def _lose(self, task: Task[Item]) -> None:
        if task.alone:
            self._lost += task.items
            self._lost_in_a_row += 1
        else:
            self._again += [Task([item], alone=True) for item in task.items]

    def _retry(self, items: list[Item], failed_on: tuple[str, ...], why: str) -> None:
        if len(failed_on) < MAX_RETRIES:
            self._again += [Task([item], failed_on=failed_on) for item in items]
        else:
            self._lost += items
            self._why = f"as {why}"

    def _error(self, why: str, *tasks: Task[Item]) -> WorkerError:
        waiting = (item for task in (*tasks, *self._tasks.values(), *self._again) for item in task.items)
        return WorkerError(self._missing(why, next(itertools.chain(self._lost, waiting, self._items))))
