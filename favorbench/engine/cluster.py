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
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from favorbench.engine import tasks
from favorbench.engine.interrupts import signals_held
from favorbench.engine.provenance import VERSION, count_done, machine
from favorbench.engine.tasks import MAX_RETRIES, Pool, Task, TaskBundle, TaskResult, TaskRun
from favorbench.errors import FavorbenchError, InputError, ScenarioError, WorkerError
from favorbench.files import read_regular
from favorbench.formats import format_bytes, reason_of, shown
from favorbench.inputs.fixed import Arrays, File
from favorbench.inputs.heads import Layout
from favorbench.inputs.stored import files_of, open_contents
from favorbench.methods.function import Function
from favorbench.numerics.backend import Backend
from favorbench.users import BEFORE_COLON, BUILT, imported_at_once, imported_in_functions, module_digest, modules_here

Value = TypeVar("Value")

ALLOWED = "an address (tcp://host:8786), the path of a scheduler.json, local:N for N processes on this machine, or none"
MAX_SENT = 256 << 20  # bytes of input files that are sent; larger ones must be readable by workers, at the same path
CONNECT_SECONDS = 20.0
CHUNK_SECONDS = 1.0  # of a task, and ...
CHUNK_SECONDS_OF_THREAD = 0.005  # ... so much for each of many threads: a scheduler needs 3.5 ms of CPU for a task
IN_FUNCTION = " (imported in a function)"  # what a function of a sent module imports is not sent: a worker has its own
NOT_SENT = " (imported, and not sent)"  # from another folder, where it may be installed; or built
ABSENT = "(not installed)"
_IN_FUNCTIONS: dict[str, str] = {}  # digests of these modules, from before they were imported or first seen
STUCK_SECONDS, STUCK_FACTOR = 10.0, 5.0  # after which, and after how many times the longest task, one is tried again


def parse_address(text: str, requested_by: str) -> tuple[str, int]:
    """The address of a scheduler, or a number of processes of this machine, that a user has written for a cluster.

    requested_by: a flag or key, for errors. Raises ScenarioError.
    """
    if text.startswith("local:"):
        if not re.fullmatch(r"0*([1-9]\d{0,2}|10[01]\d|102[0-4])", number := text.removeprefix("local:"), re.ASCII):
            raise ScenarioError(f"{requested_by} {shown(text)}: allowed after local: is a number from 1 to 1024")
        return "", int(number)
    if _is_address(text):
        return text, 0
    if not text.endswith(".json") and not Path(text).is_file():
        raise ScenarioError(f"{requested_by} {shown(text)} given, allowed: {ALLOWED}")
    try:
        scheduler = json.loads(read_regular(text, "the scheduler file", ScenarioError))["address"]
    except ScenarioError as error:
        raise ScenarioError(f"{requested_by}: {error}") from None
    except (TypeError, KeyError, RecursionError, ValueError):
        scheduler = ""
    if not _is_address(scheduler):
        wrong = f"{requested_by} {text}: not a scheduler file (dask scheduler --scheduler-file writes one)"
        raise ScenarioError(wrong)
    return scheduler, 0


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
    requested_by = "`cluster`"
    if cluster is None and workers == 1:
        cluster, requested_by = os.environ.get("FAVORBENCH_CLUSTER"), "FAVORBENCH_CLUSTER"
        if not cluster:
            cluster, requested_by = otherwise, "the scenario's `cluster`"
            check_cluster_of_file(cluster, requested_by)
    elif cluster not in (None, "none") and workers != 1:
        raise ScenarioError("`cluster` and `workers`: a cluster has its own workers; give only one of the two")
    return None if cluster in (None, "none") else Cluster(cluster, requested_by)


def check_cluster_of_file(cluster: str | None, requested_by: str) -> None:
    """Raise ScenarioError where a scenario, which may be somebody else's, names a scheduler: it can run code here."""
    if cluster not in (None, "none") and not cluster.startswith("local:"):
        raise ScenarioError(
            f"{requested_by} {shown(cluster)}: a scheduler can run any code on this machine, so a scenario may name "
            "local:N and none only; if you trust it, give it yourself, with `cluster` or FAVORBENCH_CLUSTER"
        )


def check_workers(workers: object) -> int:
    """How many processes of this machine compute, 0 where a scheduler has the workers.

    Raises ScenarioError; ends a worker about to start workers.
    """
    if not isinstance(workers, Executor | Cluster) and not (type(workers) is int and workers >= 1):
        raise ScenarioError(f"`workers`: {workers!r} given, allowed: a whole number from 1 on, or an Executor")
    if workers != 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it, and without the guard arrives here before it has any work.
        raise SystemExit("favorbench: this script sweeps in its workers too: `if __name__ == '__main__':` is missing")
    processes = workers.processes if isinstance(workers, Cluster) else workers if isinstance(workers, int) else 1
    started = processes > 0 if isinstance(workers, Cluster) else processes > 1
    if started and getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise ScenarioError("`workers`: processes import the script, and this one has no file: write it into one")
    return processes


class Cluster:
    """Workers of a Dask cluster. Use as a context manager, which may be entered again inside.

    where: one of ALLOWED, or a Client, which stays open. say: is called with messages for the user.
    machines: those that have computed something, and how many items each.
    """

    def __init__(self, where: Any, requested_by: str = "`cluster`", say: Callable[[str], None] | None = None) -> None:
        self.reply_timeout = _reply_timeout()
        self.say = say or (lambda text: warnings.warn(text, RuntimeWarning, stacklevel=2))
        self.requested_by, self.machines = requested_by, list[dict[str, Any]]()
        self.client: Any = None if isinstance(where, str) else where
        if isinstance(where, str):
            self.name, (self.scheduler, self.processes) = where, parse_address(where, requested_by)
            _distributed()
        else:
            self.name, self.scheduler, self.processes = getattr(where.scheduler, "address", "of the client"), "", 0
        self._entered, self._stack = 0, contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        if not self._entered:
            self._stack.enter_context(contextlib.suppress(Exception))  # what is to be closed may be gone
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
    ) -> Generator[tuple[Any, Any], None, None]:  # fmt: skip
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

    def _error(self, reason: str) -> WorkerError:
        return WorkerError(f"{self.requested_by} {self.name}: {reason}")

    def _connect(self) -> Any:
        dask, limit = _distributed(), min(CONNECT_SECONDS, self.reply_timeout)
        scheduler: Any = self._start_processes() if self.processes else self.scheduler
        host = self.scheduler.rpartition("://")[2].rpartition(":")[0].strip("[]")
        try:
            if host:
                within(limit, lambda: _reach(host, scheduler, limit))  # else the lookup of the name may never end
            client = within(limit + 1, lambda: dask.Client(scheduler, timeout=limit, set_as_default=False))
        except socket.gaierror:
            raise self._error(f"no machine is known here as {host!r}; allowed: {ALLOWED}") from None
        except ScenarioError as error:
            raise self._error(str(error)) from None
        except Exception as error:
            reason = "what answers there is not a Dask scheduler"  # Dask reads any bytes as a length: MemoryError, ...
            if isinstance(error, OSError):
                reason = "no scheduler answers"
            elif isinstance(error, TypeError | RuntimeError):  # of the configuration of TLS
                reason = _reason(error)
            raise self._error(f"{reason} (tried for {limit:g} s); is it running, and reachable from here?") from None
        self._stack.callback(client.close, timeout=5)
        return client

    def _start_processes(self) -> Any:
        """A cluster of this machine, on loopback alone: whoever reaches the port of a scheduler runs code as we do.

        Its folder is new: Dask puts its own, of one name for all users of a machine, into the sys.path of each process.
        """
        try:
            with signals_held():
                folder = tempfile.TemporaryDirectory(prefix="favorbench-", ignore_cleanup_errors=True)
                private = {"local_directory": self._stack.enter_context(folder)}
                started = _distributed().LocalCluster(
                    n_workers=self.processes, threads_per_worker=1, processes=True, host="127.0.0.1",
                    dashboard_address=None, memory_limit=0, silence_logs=logging.CRITICAL, **private,
                    # An idle_timeout of a user's configuration may close it before they start.
                    scheduler_kwargs={"idle_timeout": 1e9, **private},
                )  # fmt: skip
                self._stack.callback(started.close, timeout=10)
        except (OSError, RuntimeError) as error:
            guard = "(a Python script needs an `if __name__ == '__main__':` guard)"
            raise self._error(f"its processes do not start: {_reason(error)} {guard}") from None
        return started

    def _wait_for_workers(self) -> None:
        end = time.monotonic() + self.reply_timeout
        while not self.ask(self.client.nthreads):
            if time.monotonic() > end:
                where = "ADDRESS" if self.processes else self.name
                raise self._error(f"no worker within {self.reply_timeout:g} s; start some: dask worker {where}")
            time.sleep(0.2)


@dataclass(eq=False)
class WorkerState:
    """A worker of a cluster. threads: 0 when it is gone. answer: to the last question for its versions.

    machine: once its versions are known to be those of this process. failures: in a row. left_out: why, if it is.
    """

    threads: int = 0
    answer: "Future[None] | None" = None
    machine: dict[str, Any] | None = None
    failures: int = 0
    left_out: str = ""


class ClusterPool(Pool):
    """The workers of a cluster that have the same versions as this process. Others are left out, and named."""

    def __init__(self, cluster: Cluster, work: bytes, expected: dict[str, str], backend: Backend) -> None:
        self._cluster, self._client, self._over = cluster, cluster.client, threading.Event()
        self._expected, self._backend = expected, backend
        self.name = f"the scheduler {cluster.name}"
        self._workers: dict[str, WorkerState] = {}  # by address; replaced, as threads look at it
        self._manned = time.monotonic()
        self._update_workers()
        cluster.ask(lambda: wait([state.answer for state in self._workers.values() if state.answer]), 60.0)
        if (left_out := self._left_out) and not self._usable:
            raise WorkerError(left_out[0])
        self._heard = self._manned = self._looked = self._advanced = time.monotonic()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            self._work = self._client.submit(bytes, work, pure=False)  # if its worker dies, Dask sends it again
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def _usable(self) -> set[str]:
        states = self._workers.items()
        return {worker for worker, state in states if state.threads and state.machine and not state.left_out}

    @property
    def _left_out(self) -> list[str]:
        return [state.left_out for state in self._workers.values() if state.left_out]

    @property
    def slots(self) -> int:
        return 2 * self._threads

    @property
    def chunk_seconds(self) -> float:
        return max(CHUNK_SECONDS, CHUNK_SECONDS_OF_THREAD * self._threads)

    @property
    def _threads(self) -> int:
        return sum(self._workers[worker].threads for worker in self._usable)

    def submit(self, task: Task[Any]) -> Future[TaskResult]:
        task.workers = frozenset(self._usable - set(task.failed_on) or self._usable)
        executor = self._client.get_executor(pure=False, workers=sorted(task.workers))
        return executor.submit(_run_on_worker, self._work, self._expected, task.items)

    def worker_died(self, error: BaseException) -> bool:
        return super().worker_died(error) or isinstance(error, TimeoutError | ConnectionError)

    def accept(self, result: TaskResult) -> str:
        self._advanced = time.monotonic()
        state, error = self._workers[result.worker], result.error
        if result.results:
            state.failures = 0
            count_done(self._cluster.machines, state.machine or {}, len(result.results))
        why = f"worker {result.worker}: {_reason(error)}"
        if isinstance(error, OtherVersion):
            if not state.left_out:
                self._leave_out(state, why)
            return why
        if isinstance(error, WorkerError | MemoryError | OSError):
            state.failures += 1
            if state.failures == MAX_RETRIES and len(self._usable) > 1:
                self._leave_out(state, why)
            return why
        if isinstance(error, FavorbenchError):
            raise type(error)(why)
        return ""

    def trouble(self) -> str:
        now, limit = time.monotonic(), self._cluster.reply_timeout
        if now - self._looked > 5 * tasks.POLL_SECONDS:  # results came meanwhile, or this process was stopped
            self._heard = self._manned = now
        self._looked = now
        if now - self._heard > limit:
            return f"{self.name} has not answered for {limit:g} s"
        if now - self._manned > limit:
            reasons = "".join(f"; {why}" for why in self._left_out)
            return f"no worker of {self._cluster.name} is left, and none came within {limit:g} s{reasons}"
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
        said = False
        while not self._over.wait(2 * tasks.POLL_SECONDS):
            with contextlib.suppress(WorkerError):
                self._update_workers()
                if not said and time.monotonic() - self._advanced > self._cluster.reply_timeout:
                    said = self._name_paused()

    def _name_paused(self) -> bool:
        """Whether all workers are paused; say so. Such a worker finishes what it has begun, and begins nothing."""
        workers = self._cluster.ask(functools.partial(self._client.scheduler_info, n_workers=-1))["workers"]
        found = {worker["status"] for address, worker in workers.items() if address in self._usable}
        if found == {"paused"}:
            self._cluster.say("all workers have been paused by Dask, near their memory limit; the run waits")
        return found == {"paused"}

    def _update_workers(self) -> None:
        """Ask which workers there are, and new ones for their versions. Raises WorkerError without an answer."""
        threads = self._cluster.ask(self._client.nthreads)
        self._heard = time.monotonic()
        self._workers = {worker: WorkerState() for worker in threads} | self._workers
        for worker, state in self._workers.items():
            if state.left_out and worker in threads and not state.threads:  # started anew, and perhaps mended
                state.left_out, state.failures = "", 0
            state.threads = threads.get(worker, 0)
            known, waiting = state.machine or state.left_out, state.answer and not state.answer.done()
            if state.threads and not known and not waiting:  # each alone: the answer of one that died takes 30 s
                state.answer = in_thread(functools.partial(self._admit, worker, state))
        if self._usable:
            self._manned = self._heard

    def _admit(self, worker: str, state: WorkerState) -> None:
        """Ask a worker for its machine, if its versions are those of this process; it imports favorbench first."""
        try:
            (state.machine,) = self._client.run(
                machine_of_worker, self._backend, self._expected, workers=[worker]
            ).values()
        except WorkerError as error:
            self._leave_out(state, f"worker {worker}: {error}")
        except OSError:
            pass  # it is gone, or too busy to answer: it is asked again
        except Exception as error:
            self._leave_out(state, f"worker {worker} cannot begin: {_reason(error)}; install favorbench {VERSION}")

    def _leave_out(self, state: WorkerState, why: str) -> None:
        state.left_out = why
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
                room = MAX_SENT - sum(_size(file) for file, arrays in sent.items() if arrays is not None)
                sent[obj] = _arrays_of(obj, room)
            if sent[obj] is None:
                return _open_file, (str(Path(obj.path).resolve()), obj.label, obj.layout, obj.digest())
            return Arrays, (obj.title, sent[obj], obj.layout)

    here = [module for module in modules_here() if not str(module.__file__).endswith(BUILT)]  # these have no byte code
    stream, modules = io.BytesIO(), {module.__name__: module for module in here}
    registered = modules.keys() - cloudpickle.list_registry_pickle_by_value()  # what users registered stays so
    for name in registered:
        cloudpickle.register_pickle_by_value(modules[name])
    try:
        Pickler(stream).dump((function, context))
    finally:
        for name in registered:
            cloudpickle.unregister_pickle_by_value(modules[name])
    names = {name for spec in specs for name in BEFORE_COLON.findall(spec)}
    libraries = ["python", "favorbench", "numpy", "scipy", *(["torch"] if backend.name == "torch" else [])]
    files = [(name, Path(str(modules[name].__file__))) for name in names & modules.keys()]
    others = sys.modules.keys() - modules.keys()
    installed = names & others - {"__main__"}
    not_sent = {f"{name}{NOT_SENT}" for file in files for name in imported_at_once(*file) & others}
    _IN_FUNCTIONS.clear()  # what was edited here is reloaded: module_digest has refused it otherwise
    called = {f"{name}{IN_FUNCTION}" for file in files for name in imported_in_functions(*file)}
    return stream.getvalue(), {name: _version(name) for name in (*libraries, *sorted(installed | not_sent | called))}


def _size(file: File) -> int:
    return sum(part.stat().st_size for part in files_of(file.path))


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


class OtherVersion(WorkerError):
    """A worker has another version of something on which the numbers depend."""


def machine_of_worker(backend: Backend, versions: Mapping[str, str]) -> dict[str, Any]:
    """In a worker: the machine. Raises OtherVersion."""
    _compare(tuple(versions.items()))
    return {"host": socket.gethostname(), "python": platform.python_version(), **machine(backend)}


@functools.lru_cache(maxsize=1)
def _compare(versions: tuple[tuple[str, str], ...]) -> None:
    """In a worker: raise OtherVersion where a version there is not that of here."""
    for name, here in versions:
        try:
            there = _version(name)
        except ScenarioError as error:  # a module that this worker has imported before it was edited
            raise OtherVersion(str(error)) from None
        if there != here and not (name.endswith(IN_FUNCTION) and there == ABSENT):
            raise OtherVersion(f"{name} {there} there, {here} here; install the same")


def _version(name: str) -> str:
    """The version of a library; of favorbench and of modules of the user's, with a digest of their files."""
    if name == "python":  # functions are sent as its byte code
        return ".".join(platform.python_version_tuple()[:2])
    if name == "favorbench":
        return f"{VERSION} (files {_digest(*sorted(Path(__file__).resolve().parents[1].rglob('*.py')))})"
    if (library := name.partition(".")[0]) in ("numpy", "scipy", "torch"):
        return importlib.metadata.version(library)
    if name.endswith((IN_FUNCTION, NOT_SENT)):
        return _version_of_file(name.partition(" ")[0])
    try:
        return (module_digest(name) or "")[:8]
    except ImportError:
        return ABSENT


def _version_of_file(name: str) -> str:
    """The digest that a module had when it was imported, or has now; it is not imported, as it may be a script."""
    try:
        file = Path(getattr(importlib.util.find_spec(name), "origin", None) or "")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    except (ImportError, OSError, ValueError):
        return ABSENT
    if name not in sys.modules:
        _IN_FUNCTIONS[name] = digest
    return _IN_FUNCTIONS.setdefault(name, digest)


@functools.cache
def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() + b"\0" for file in files)).hexdigest()[:8]


def _run_on_worker(work: bytes, versions: Mapping[str, str], items: Sequence[Any]) -> TaskResult:
    """In a worker: run a task. The worker may have been started at the address of another, whose versions are known."""
    try:
        _compare(tuple(versions.items()))
        result = tasks.run_items(TaskBundle(work, None), items)
    except OtherVersion as error:
        result = TaskResult([], 0.0, error)
    return result._replace(worker=_distributed().get_worker().address)


@functools.cache
def _distributed() -> Any:
    """Dask's library. Raises ScenarioError where it is not installed."""
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise ScenarioError("`cluster`: Dask is not installed: pip install 'favorbench[dask]'") from None


def _reach(host: str, address: str, seconds: float) -> None:
    """Connect to a scheduler once: a Client that finds none is hard to get rid of, and may wait for minutes."""
    import asyncio  # a sweep without a cluster does not pay for it

    socket.getaddrinfo(host, None)
    dask = _distributed()
    try:
        arguments = dask.Security().get_connection_args("client")
    except OSError as error:
        reason = error.strerror or error
        raise ScenarioError(f"Dask's configuration distributed.comm.tls cannot be used: {reason}") from None

    async def connect() -> None:
        connection = dask.comm.connect(address, timeout=seconds, **arguments)
        (await asyncio.wait_for(connection, seconds)).abort()

    asyncio.run(connect())


def _reply_timeout() -> float:
    """Seconds without a worker, or without a reply of the scheduler, after which a run ends. Raises ScenarioError."""
    text = os.environ.get("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    with contextlib.suppress(ValueError):
        if 1.0 <= (seconds := float(text)) <= 1e6:
            return seconds
    raise ScenarioError(f"FAVORBENCH_CLUSTER_TIMEOUT={shown(text)} given, allowed: seconds from 1 to 1e6")


def within(seconds: float, call: Callable[[], Value]) -> Value:
    """Call a function in a thread. Raises TimeoutError if it does not end in time: Dask may wait forever."""
    return in_thread(call).result(timeout=seconds)


def in_thread(call: Callable[[], Value]) -> Future[Value]:
    """Begin to call a function in a thread, which does not keep the process alive."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _reason(error: BaseException | None) -> str:
    if isinstance(error, FavorbenchError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer"
    return reason_of(error).removesuffix(": ") if error else "no answer"
