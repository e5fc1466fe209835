"""Items to results on a cluster: what fails is tried elsewhere, and what is missing is told."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from favorbench.engine.cluster.connection import Cluster, within
from favorbench.engine.cluster.luggage import Luggage, opened
from favorbench.engine.cluster.pieces import Pieces
from favorbench.engine.cluster.place import distributed
from favorbench.engine.interrupts import Deferred
from favorbench.errors import FavorbenchError, WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

TICK = 1.0  # seconds between two looks at what is there
AGAIN_AFTER = 10.0  # seconds, and ...
AGAIN_TIMES = 5.0  # ... so many times what was expected, after which idle workers do what another has not finished
MOST_TASKS = 3  # with the same items
GIVEN_UP = 3  # items in a row, each alone, whose workers died


class Done(NamedTuple):
    """What a task returns: results of its first items, and the error that kept it from the others, if one did."""

    results: list[Any]
    seconds: float
    worker: Mapping[str, Any]
    error: Exception | None


def do(name: str, function: Callable[[Any, Any], Any], items: list[Any]) -> Done:
    """In a worker: the function of the work in some luggage, and of each item."""
    work, worker = opened(name, distributed().get_worker().local_directory)
    start, results, error = time.perf_counter(), [], None
    try:
        for item in items:
            results.append(function(work, item))
    except (FavorbenchError, MemoryError) as failure:  # of anything else the traceback is wanted
        error = failure
    return Done(results, time.perf_counter() - start, worker, error)


@dataclass(eq=False)
class _Piece(Generic[Item]):
    """Items on their way: since when, and by which tasks. alone: tried once more, after a worker died with it."""

    items: list[Item]
    seconds: float
    alone: bool = False
    since: float = field(default_factory=time.monotonic)
    tasks: list[Future[Done]] = field(default_factory=list)


class Watch:
    """Asks the scheduler from a thread how many threads its workers have: an answer may take for ever."""

    def __init__(self, cluster: Cluster) -> None:
        self.threads = 1
        self.heard = self.manned = time.monotonic()
        self._cluster, self._over = cluster, threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.is_set():
            try:
                threads = within(self._cluster.patience, self._cluster.client.nthreads)
            except Exception:
                self._over.wait(TICK)
                continue
            self.threads, self.heard = sum(threads.values()), time.monotonic()
            if self.threads:
                self.manned = self.heard
            self._over.wait(2 * TICK)

    def trouble(self) -> str:
        """What has been wrong for longer than one waits; nothing, mostly."""
        now, limit, name = time.monotonic(), self._cluster.patience, self._cluster.name
        if now - self.heard > limit:
            return f"the scheduler {name} has not answered for {limit:g} s"
        if now - self.manned > limit:
            return f"no worker of {name} is left, and none came within {limit:g} s"
        return ""


class Work(Generic[Item, Result]):
    """What is to be done with items on a cluster.

    function: of the work in the luggage and an item, importable by its name. kind: items of one kind take equally long.
    missing: in words, what is not done now, of which an item is given.
    """

    def __init__(
        self, cluster: Cluster, luggage: Luggage, function: Callable[[Any, Item], Result],
        kind: Callable[[Item], Hashable], missing: Callable[[Item], str],
    ) -> None:  # fmt: skip
        self._cluster, self._luggage, self._function = cluster, luggage, function
        self._kind, self._missing = kind, missing
        self._tasks: dict[Future[Done], _Piece[Item]] = {}
        self._done: queue.SimpleQueue[Future[Done]] = queue.SimpleQueue()
        self._suspects: deque[Item] = deque()
        self._lost: list[Item] = []
        self._lost_in_a_row = 0

    def results(self, items: Iterator[Item], count: int) -> Iterator[tuple[Item, Result]]:
        """Each item with its result, in whatever order they are finished.

        Items whose worker died are tried once more, each alone, after all others. Raises WorkerError, which says what
        is missing, at the end, or when there has been no worker or no scheduler for as long as one waits.
        """
        pieces = Pieces(items, count, self._kind)
        with self._cluster:
            self._cluster.send(self._luggage)
            executor, watch = self._cluster.client.get_executor(pure=False), Watch(self._cluster)
            try:
                with Deferred() as interrupts:
                    while self._hand_out(executor, pieces, watch.threads):
                        task = interrupts.wait_a_while(self._done, TICK)
                        if task is not None:
                            yield from self._finished(task, pieces)
                        elif trouble := watch.trouble():
                            raise self._ended(trouble, pieces)
                        else:
                            self._hand_out_again(executor, pieces)
            finally:
                watch.end()
                for task in self._tasks:
                    task.cancel()
                self._cluster.leave(self._luggage)
        if self._lost:
            raise self._ended("each time a worker died (killed, or out of memory)", pieces)

    def _submit(self, executor: Executor, piece: _Piece[Item]) -> None:
        try:
            task = executor.submit(do, self._luggage.name, self._function, piece.items)
        except Exception as error:
            if not _of_dask(error):
                raise
            task = Future[Done]()  # the client has found out, as its tasks will
            task.cancel()
        piece.tasks.append(task)
        self._tasks[task] = piece
        task.add_done_callback(self._done.put)

    def _hand_out(self, executor: Executor, pieces: Pieces[Item], threads: int) -> bool:
        """Two tasks for each thread, one to do and one to have; then what is suspected, alone. Whether there is any."""
        while len(self._tasks) < 2 * max(1, threads) and (items := pieces.next(threads)):
            self._submit(executor, _Piece(items, pieces.expected(items)))
        if self._suspects and not self._tasks and self._lost_in_a_row < GIVEN_UP:
            self._submit(executor, _Piece([self._suspects.popleft()], 0.0, alone=True))
        return bool(self._tasks)

    def _hand_out_again(self, executor: Executor, pieces: Pieces[Item]) -> None:
        """Where nothing else is left for idle workers: what slow or stuck ones have had for long."""
        if pieces.left:
            return
        now = time.monotonic()
        for piece in set(self._tasks.values()):
            limit = max(AGAIN_AFTER, AGAIN_TIMES * piece.seconds) if piece.seconds else self._cluster.patience
            if now - piece.since > limit and len(piece.tasks) < MOST_TASKS:
                piece.since = now
                self._submit(executor, piece)

    def _finished(self, task: Future[Done], pieces: Pieces[Item]) -> Iterator[tuple[Item, Result]]:
        """What a task has done; nothing where it failed, or where another was earlier."""
        piece = self._tasks.get(task)
        if piece is None:
            return
        if task.cancelled():
            raise self._ended(f"the scheduler {self._cluster.name} is gone", pieces)
        error = task.exception()
        if error is not None:
            if not _of_dask(error):
                raise error
            self._failed(task, piece)
            return
        for each in piece.tasks:
            self._tasks.pop(each, None)
            each.cancel()
        done = task.result()
        found = piece.items[: len(done.results)]
        self._lost_in_a_row = 0
        self._cluster.count(done.worker, len(found))
        if found:
            pieces.learn(found, done.seconds)
        yield from zip(found, done.results, strict=True)
        if done.error is not None:
            raise done.error

    def _failed(self, task: "Future[Done]", piece: _Piece[Item]) -> None:
        """A task died with its workers."""
        del self._tasks[task]
        piece.tasks.remove(task)
        if piece.tasks:
            return  # another has the same items
        if piece.alone:
            self._lost_in_a_row += 1
        (self._lost if piece.alone else self._suspects).extend(piece.items)

    def _ended(self, why: str, pieces: Pieces[Item]) -> WorkerError:
        """The error that says what is missing."""
        under_way = [item for piece in self._tasks.values() for item in piece.items]
        return WorkerError(f"{why}; {self._missing([*self._lost, *self._suspects, *under_way, *pieces.next(1)][0])}")


def _of_dask(error: BaseException) -> bool:
    """Whether it says that the work was lost, not that it is wrong: KilledWorker, a broken connection, a timeout."""
    return type(error).__module__.startswith("distributed") or isinstance(error, TimeoutError | ConnectionError)
