"""Workers of a Dask cluster as a pool for tasks. Dask is the extra `dask`, and imported when a cluster is asked for."""

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import multiprocessing
import os
import platform
import re
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from favorbench.engine import tasks
from favorbench.engine.interrupts import signals_held
from favorbench.engine.provenance import VERSION, count_done, machine
from favorbench.engine.tasks import MAX_RETRIES, Pool, Retry, Task, TaskBundle, TaskResult, TaskRun
from favorbench.errors import FavorbenchError, InputError, ScenarioError, WorkerError
from favorbench.files import read_regular
from favorbench.formats import format_bytes, reason_of, shown
from favorbench.inputs.fixed import Arrays, File
from favorbench.inputs.heads import Layout
from favorbench.inputs.stored import open_contents
from favorbench.methods.function import Function
from favorbench.numerics.backend import Backend
from favorbench.users import modules_here

Value = TypeVar("Value")

ALLOWED = "an address (tcp://host:8786), the path of a scheduler.json, local:N for N processes on this machine, or none"
MAX_SENT = 256 << 20  # bytes of input files that are sent; larger ones must be readable by workers, at the same path
CONNECT_SECONDS = 20.0
STUCK_SECONDS, STUCK_FACTOR = 10.0, 5.0  # after which, and after how many times the longest task, one is tried again


class ClusterAddress(NamedTuple):
    """The address of a scheduler, or a number of processes of this machine. requested_by: a flag or key, in errors."""

    text: str
    requested_by: str
    scheduler: str = ""
    processes: int = 0

    @staticmethod
    def parse(text: str, requested_by: str) -> "ClusterAddress":
        """Read what a user may write for a cluster. Raises ScenarioError."""
        if text.startswith("local:"):
            if not re.fullmatch(r"0*([1-9]\d{0,2}|10[01]\d|102[0-4])", number := text.removeprefix("local:"), re.ASCII):
                raise ScenarioError(f"{requested_by} {shown(text)}: allowed after local: is a number from 1 to 1024")
            return ClusterAddress(text, requested_by, processes=int(number))
        if _is_address(text):
            return ClusterAddress(text, requested_by, text)
        if not text.endswith(".json") and not Path(text).is_file():
            raise ScenarioError(f"{requested_by} {shown(text)} given, allowed: {ALLOWED}")
        try:
            scheduler = json.loads(read_regular(text, "the scheduler file", ScenarioError))["address"]
        except ScenarioError as error:
            raise ScenarioError(f"{requested_by}: {error}") from None
        except (TypeError, KeyError, RecursionError, json.JSONDecodeError):
            scheduler = ""
        if not _is_address(scheduler):
            wrong = f"{requested_by} {text}: not a scheduler file (dask scheduler --scheduler-file writes one)"
            raise ScenarioError(wrong)
        return ClusterAddress(text, requested_by, scheduler)


def _is_address(text: object) -> bool:
    match = re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[\w.\-\[\]:]+:(\d{1,5})", str(text), re.ASCII)
    return match is not None and 1 <= int(match[3]) <= 65535


def choose_cluster(cluster: Any, workers: Any, otherwise: str | None) -> "Cluster | None":
    """The cluster that is requested, if one is: as ``cluster`` or ``workers``, by the environment, by a scenario file.

    Raises ScenarioError for anything else, and for both a cluster and other workers.
    """
    for given in (workers, cluster):
        if isinstance(given, Cluster):
            return given
    if type(workers).__module__.startswith("distributed.") and hasattr(workers, "get_executor"):
        return Cluster(workers)
    if cluster == "none":
        return None
    if cluster is not None:
        if workers != 1:
            raise ScenarioError("`cluster` and `workers`: a cluster has its own workers; give only one of the two")
        return Cluster(cluster)
    if workers != 1:
        return None
    variable = os.environ.get("FAVORBENCH_CLUSTER")
    text, requested_by = (variable, "FAVORBENCH_CLUSTER") if variable else (otherwise, "the scenario's `cluster`")
    if not variable:
        check_cluster_of_file(otherwise, requested_by)
    return Cluster(text, requested_by) if text and text != "none" else None


def check_cluster_of_file(cluster: str | None, requested_by: str) -> None:
    """Raise ScenarioError where a scenario, which may be somebody else's, names a scheduler: it can run code here."""
    if cluster not in (None, "none") and not cluster.startswith("local:"):
        raise ScenarioError(
            f"{requested_by} {shown(cluster)}: a scheduler can run any code on this machine, so a scenario may name "
            "local:N and none only; if you trust it, give it yourself, with `cluster` or FAVORBENCH_CLUSTER"
        )


def check_workers(workers: object) -> int:
    """How many processes of this machine compute. Raises ScenarioError; ends a worker about to start workers."""
    if not isinstance(workers, Executor | Cluster) and not (type(workers) is int and workers >= 1):
        raise ScenarioError(f"`workers`: {workers!r} given, allowed: a whole number from 1 on, or an Executor")
    if workers != 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it, and without the guard arrives here before it has any work.
        raise SystemExit("favorbench: this script sweeps in its workers too: `if __name__ == '__main__':` is missing")
    if isinstance(workers, Cluster):
        return max(1, workers.address.processes)
    return workers if isinstance(workers, int) else 1


class Cluster:
    """Workers of a Dask cluster. Use as a context manager, which may be entered again inside.

    where: one of ALLOWED, or a Client, which stays open. say: is called with messages for the user.
    """

    def __init__(self, where: Any, requested_by: str = "`cluster`", say: Callable[[str], None] | None = None) -> None:
        self.reply_timeout = _reply_timeout()
        self.client: Any = None if isinstance(where, str) else where
        self.say = say or (lambda text: warnings.warn(text, RuntimeWarning, stacklevel=2))
        name = where if isinstance(where, str) else getattr(where.scheduler, "address", "of the client")
        self.address = ClusterAddress(name, requested_by)
        if isinstance(where, str):
            self.address = ClusterAddress.parse(where, requested_by)
            _distributed()
        self.machines: list[dict[str, Any]] = []
        self._entered, self._stack = 0, contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        if not self._entered:
            try:
                if self.client is None:
                    self.client = self._connect()
                    self._stack.callback(setattr, self, "client", None)
                self._wait_for_workers()
            except BaseException:
                self._stack.close()
                raise
        self._entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if not self._entered:
            with signals_held():
                self._stack.close()

    def results(
        self, function: Callable[[Any, Any], Any], context: Any, items: Iterator[Any], count: int,
        missing: Callable[[str, Any], str], specs: Sequence[str] = (), backend: Backend | None = None,
    ) -> Iterator[tuple[Any, Any]]:  # fmt: skip
        """Yield each item with the result of function(context, item), as they finish. Raises WorkerError.

        specs: of members, which may name modules of the user's. missing: as of a TaskRun.
        """
        backend = backend or Backend()
        work, expected = _pack(function, context, specs, backend)
        with self:
            yield from TaskRun(ClusterPool(self, work, expected, backend), items, count, missing).results()

    def ask(self, question: Callable[[], Value], at_least: float = 0.0) -> Value:
        """Wait for an answer of the scheduler or of workers. Raises WorkerError if none comes in time."""
        seconds = max(self.reply_timeout, at_least)
        try:
            return within(seconds, question)
        except Exception as error:
            raise self._error(f"{_reason(error)} (waited up to {seconds:g} s)") from None

    def take_machines(self) -> list[dict[str, Any]]:
        """The machines that have computed something since the last call, and how many items each."""
        taken, self.machines = self.machines, []
        return taken

    def _error(self, reason: str) -> WorkerError:
        return WorkerError(f"{self.address.requested_by} {self.address.text}: {reason}")

    def _connect(self) -> Any:
        import asyncio  # a sweep without a cluster does not pay for it

        dask, limit = _distributed(), min(CONNECT_SECONDS, self.reply_timeout)
        scheduler: Any = self._start_processes() if self.address.processes else self.address.scheduler
        host = self.address.scheduler.rpartition("://")[2].rpartition(":")[0].strip("[]")
        try:
            if host:
                within(limit, lambda: socket.getaddrinfo(host, None))  # else the lookup may never end
                within(limit, lambda: asyncio.run(_reach(scheduler, limit)))
            client = within(limit + 1, lambda: dask.Client(scheduler, timeout=limit, set_as_default=False))
        except socket.gaierror:
            raise self._error(f"no machine is known here as {host!r}; allowed: {ALLOWED}") from None
        except Exception as error:
            reason = "what answers there is not a Dask scheduler"  # Dask reads any bytes as a length: MemoryError, ...
            if isinstance(error, OSError):
                reason = "no scheduler answers"
            elif isinstance(error, TypeError | RuntimeError | FavorbenchError):  # of the configuration of TLS
                reason = _reason(error)
            raise self._error(f"{reason} (tried for {limit:g} s); is it running, and reachable from here?") from None
        self._stack.callback(_quietly, client.close, timeout=5)
        return client

    def _start_processes(self) -> Any:
        """A cluster of this machine, on loopback alone: whoever reaches the port of a scheduler runs code as we do."""
        try:
            with signals_held():
                started = _distributed().LocalCluster(
                    n_workers=self.address.processes, threads_per_worker=1, processes=True, host="127.0.0.1",
                    dashboard_address=None, memory_limit=0, silence_logs=logging.CRITICAL,
                )  # fmt: skip
                self._stack.callback(_quietly, started.close, timeout=10)
        except (OSError, RuntimeError) as error:
            guard = "(a Python script needs an `if __name__ == '__main__':` guard)"
            raise self._error(f"its processes do not start: {_reason(error)} {guard}") from None
        return started

    def _wait_for_workers(self) -> None:
        end = time.monotonic() + self.reply_timeout
        while not self.ask(self.client.nthreads):
            if time.monotonic() > end:
                where = "ADDRESS" if self.address.processes else self.address.text
                raise self._error(f"no worker within {self.reply_timeout:g} s; start some: dask worker {where}")
            time.sleep(0.2)


class ClusterPool(Pool):
    """The workers of a cluster that have the same versions as this process. Others are left out, and named."""

    chunk_seconds = 1.0  # a scheduler needs 3.5 ms of CPU for a task

    def __init__(self, cluster: Cluster, work: bytes, expected: dict[str, str], backend: Backend) -> None:
        self._cluster, self._client, self._over = cluster, cluster.client, threading.Event()
        self._expected, self._backend = expected, backend
        self.name = f"the scheduler {cluster.address.text}"
        self._threads: dict[str, int] = {}  # of all workers that are there
        self._machines: dict[str, dict[str, Any]] = {}  # of workers whose versions were compared
        self._left_out: dict[str, str] = {}
        self._failures: Counter[str] = Counter()
        self._checking: set[str] = set()
        self._manned = time.monotonic()
        self._update_workers()
        self._compare_versions(set(self._threads))
        if self._left_out and not self._usable:
            raise WorkerError(next(iter(self._left_out.values())))
        self._heard = self._manned = time.monotonic()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            self._work = self._client.submit(bytes, work, pure=False)  # if its worker dies, Dask sends it again
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def _usable(self) -> set[str]:
        return set(self._threads) & set(self._machines) - set(self._left_out)

    @property
    def slots(self) -> int:
        return 2 * sum(self._threads[worker] for worker in self._usable)

    def submit(self, task: Task[Any]) -> Future[TaskResult]:
        task.workers = frozenset(self._usable - set(task.failed_on) or self._usable)
        executor = self._client.get_executor(pure=False, workers=sorted(task.workers))
        return executor.submit(_run_on_worker, self._work, task.items)

    def worker_died(self, error: BaseException) -> bool:
        return super().worker_died(error) or isinstance(error, TimeoutError | ConnectionError)

    def accept(self, task: Task[Any], result: TaskResult) -> Retry | None:
        if result.results:
            self._failures[result.worker] = 0
            count_done(self._cluster.machines, self._machines[result.worker], len(result.results))
        error, why = result.error, f"worker {result.worker}: {_reason(result.error)}"
        if isinstance(error, WorkerError | MemoryError | OSError):
            self._failures[result.worker] += 1
            if self._failures[result.worker] == MAX_RETRIES and len(self._usable) > 1:
                self._leave_out(result.worker, why)
            return Retry(why, (*task.failed_on, result.worker))
        if isinstance(error, FavorbenchError):
            raise type(error)(why)
        return None

    def trouble(self) -> str:
        now, limit = time.monotonic(), self._cluster.reply_timeout
        if now - self._heard > limit:
            return f"{self.name} has not answered for {limit:g} s"
        if now - self._manned > limit:
            left_out = "".join(f"; {why}" for why in self._left_out.values())
            return f"no worker of {self._cluster.address.text} is left, and none came within {limit:g} s{left_out}"
        return ""

    def has_lost(self, task: Task[Any]) -> bool:
        return not task.workers & self._usable

    def is_stuck(self, task: Task[Any], longest: float) -> bool:
        limit = max(STUCK_SECONDS, STUCK_FACTOR * longest) if longest else self._cluster.reply_timeout
        return len(task.futures) < MAX_RETRIES and time.monotonic() - task.since > limit

    def close(self, failed: bool) -> None:
        self._over.set()
        self._work.release()
        with contextlib.suppress(Exception):  # workers or scheduler may be gone
            within(5.0, lambda: self._client.run(tasks.load_bundle.cache_clear, on_error="ignore"))

    def _watch(self) -> None:
        """Ask in a thread which workers there are: an answer may never come."""
        while not self._over.wait(2 * tasks.POLL_SECONDS):
            with contextlib.suppress(WorkerError):
                self._update_workers()
                for worker in set(self._threads) - self._checking:  # each alone: the answer of one that died takes 30 s
                    compare = functools.partial(_quietly, self._compare_versions, new={worker})
                    threading.Thread(target=compare, daemon=True).start()

    def _update_workers(self) -> None:
        """Ask which workers there are. Raises WorkerError without an answer."""
        self._threads = self._cluster.ask(self._client.nthreads)
        self._heard = time.monotonic()
        if self._usable:
            self._manned = self._heard

    def _compare_versions(self, new: set[str]) -> None:
        """Ask workers for their versions; they import favorbench first. Raises WorkerError without an answer."""
        self._checking |= new
        ask = functools.partial(self._client.run, describe_worker, self._backend, list(self._expected))
        try:
            answers = self._cluster.ask(lambda: ask(workers=sorted(new), on_error="return"), 60.0)
        except WorkerError:
            self._checking -= new  # one may have died meanwhile
            raise
        for worker, versions in answers.items():
            self._admit(worker, versions)

    def _admit(self, worker: str, versions: Any) -> None:
        if isinstance(versions, OSError):  # it is gone, or too busy to answer
            self._checking.discard(worker)
            return
        if isinstance(versions, BaseException):
            self._leave_out(worker, f"worker {worker} cannot begin: {_reason(versions)}; install favorbench {VERSION}")
            return
        there, self._machines[worker] = versions
        for name, here in self._expected.items():
            if there[name] != here and worker not in self._left_out:
                self._leave_out(worker, f"worker {worker}: {name} {there[name]} there, {here} here; install the same")

    def _leave_out(self, worker: str, why: str) -> None:
        self._left_out[worker] = why
        self._cluster.say(f"{why}; it is left out")


def _pack(
    function: Callable[[Any, Any], Any], context: Any, specs: Sequence[str], backend: Backend
) -> tuple[bytes, dict[str, str]]:
    """A function and its context, with the input files and modules of the user's that they need; and all versions."""
    cloudpickle = importlib.import_module("cloudpickle")

    sent: dict[File, dict[str, np.ndarray] | None] = {}  # None: too large

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Function):  # by value: a worker may not have its module
                return Function.of, (obj.function, obj.path)
            if not isinstance(obj, File):
                return super().reducer_override(obj)
            if obj not in sent:
                sent[obj] = _arrays_of(obj, MAX_SENT - sum(_size(file) for file in sent))
            if sent[obj] is None:
                return _open_file, (str(Path(obj.path).resolve()), obj.label, obj.layout, obj.digest())
            return Arrays, (obj.title, sent[obj], obj.layout)

    stream, modules = io.BytesIO(), modules_here()
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        Pickler(stream).dump((function, context))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    names = {part.partition("(")[0].strip() for spec in specs for part in re.split("[:/]", spec)}
    installed = names & set(sys.modules) - {module.__name__ for module in modules}
    libraries = ["python", "favorbench", "numpy", "scipy", *(["torch"] if backend.name == "torch" else [])]
    return stream.getvalue(), {name: _version(name) for name in (*libraries, *sorted(installed))}


def _size(file: File) -> int:
    path = Path(file.path)
    return sum(part.stat().st_size for part in (path.glob("*.npy") if path.is_dir() else [path]))


def _arrays_of(file: File, room: int) -> dict[str, np.ndarray] | None:
    if _size(file) > room:
        return None
    contents = open_contents(file.path)
    about = {} if contents.about is None else {"meta": np.array(contents.about)}
    return {name: stored.whole() for name, stored in contents.arrays.items()} | about


def _open_file(path: str, label: str, layout: Layout, digest: str) -> File:
    """In a worker: a file that was too large to send. Raises WorkerError."""
    file = File(path, label, layout, digest)
    try:
        file.opened()
    except InputError:
        raise WorkerError(
            f"{path} is not there, or is another file; inputs of more than {format_bytes(MAX_SENT)} are not sent: "
            "put them where every worker can read them, at the same path"
        ) from None
    return file


def describe_worker(backend: Backend, names: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """In a worker: the versions that determine the numbers, and the machine."""
    about = {"host": socket.gethostname(), "python": platform.python_version(), **machine(backend)}
    return {name: _version(name) for name in names}, about


def _version(name: str) -> str:
    """The version of a library; of favorbench and of modules of the user's, with a digest of their files."""
    if name == "python":  # functions are sent as its byte code
        return ".".join(platform.python_version_tuple()[:2])
    if name == "favorbench":
        return f"{VERSION} (files {_digest(*sorted(Path(__file__).resolve().parents[1].rglob('*.py')))})"
    if name in ("numpy", "scipy", "torch"):
        return importlib.metadata.version(name)
    try:
        file = getattr(importlib.util.find_spec(name), "origin", None)
    except (ImportError, ValueError):
        file = None
    return _digest(Path(file)) if file else "(not installed)"


@functools.cache
def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() + b"\0" for file in files)).hexdigest()[:8]


def _run_on_worker(work: bytes, items: Sequence[Any]) -> TaskResult:
    """In a worker: run a task."""
    return tasks.run_items(TaskBundle(work, ""), items)._replace(worker=_distributed().get_worker().address)


@functools.cache
def _distributed() -> Any:
    """Dask's library. Raises ScenarioError where it is not installed."""
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise ScenarioError("`cluster`: Dask is not installed: pip install 'favorbench[dask]'") from None


async def _reach(address: str, seconds: float) -> None:
    """Connect to a scheduler once: a Client that finds none is hard to get rid of, and may wait for minutes."""
    import asyncio

    dask = _distributed()
    connection = dask.comm.connect(address, timeout=seconds, **dask.Security().get_connection_args("client"))
    (await asyncio.wait_for(connection, seconds)).abort()


def _reply_timeout() -> float:
    """Seconds without a worker, or without a reply of the scheduler, after which a run ends. Raises ScenarioError."""
    text = os.environ.get("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    with contextlib.suppress(ValueError):
        if 1.0 <= (seconds := float(text)) <= 1e6:
            return seconds
    raise ScenarioError(f"FAVORBENCH_CLUSTER_TIMEOUT={shown(text)} given, allowed: seconds from 1 to 1e6")


def within(seconds: float, call: Callable[[], Value]) -> Value:
    """Call a function in a thread. Raises TimeoutError if it does not end in time: Dask may wait forever."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(timeout=seconds)


def _reason(error: BaseException | None) -> str:
    if isinstance(error, FavorbenchError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer"
    return reason_of(error).removesuffix(": ") if error else "no answer"


def _quietly(call: Callable[..., object], **arguments: Any) -> None:
    """Close something that may already be gone."""
    with contextlib.suppress(Exception):
        call(**arguments)
