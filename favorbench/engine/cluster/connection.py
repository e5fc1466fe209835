"""The connection to a cluster: made, asked with a limit to every wait, and closed."""

import asyncio
import contextlib
import importlib
import importlib.metadata
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from favorbench.engine.cluster.luggage import Luggage, opened
from favorbench.engine.cluster.place import ALLOWED, address, distributed, host_of, patience, processes
from favorbench.engine.interrupts import interrupts_ignored
from favorbench.engine.provenance import count_done
from favorbench.errors import FavorbenchError, ScenarioError, WorkerError

Value = TypeVar("Value")

CONNECT = 20.0  # seconds in which a scheduler must answer first


def chosen(where: Any, workers: Any, otherwise: str | None) -> "Cluster | None":
    """The cluster that is asked for, if one is: by ``where``, as ``workers``, by the environment, by a scenario file.

    Raises ScenarioError for what is no cluster, and for one beside other workers.
    """
    for given in (workers, where):
        if isinstance(given, Cluster):
            return given
    if type(workers).__module__.startswith("distributed.") and hasattr(workers, "get_executor"):
        return Cluster(workers)
    if where == "none":
        return None
    if where is not None:
        if workers != 1:
            raise ScenarioError("`cluster` and `workers`: a cluster has workers of its own; give one of the two")
        return Cluster(where)
    if workers != 1:
        return None
    there = os.environ.get("FAVORBENCH_CLUSTER")
    found, asked = (there, "FAVORBENCH_CLUSTER") if there else (otherwise, "the scenario's `cluster`")
    return Cluster(found, asked) if found and found != "none" else None


class Cluster:
    """Workers of a Dask cluster. Use as a context manager, which may be entered again inside.

    where: what ALLOWED says, or a Client, which stays open. asked: by what it was asked for, in errors.
    """

    def __init__(self, where: Any, asked: str = "`cluster`") -> None:
        self.patience = patience()
        self._machines: list[dict[str, Any]] = []
        self._where, self._asked, self._entered = where, asked, 0
        self._local = processes(where, asked) if isinstance(where, str) else None
        self._address = where if not isinstance(where, str) or self._local else address(where, asked)
        if isinstance(where, str):
            distributed()
        self._stack = contextlib.ExitStack()
        self._client: Any = None

    @property
    def client(self) -> Any:
        """Dask's client, while this is entered."""
        return self._client

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return (
            self._where if isinstance(self._where, str) else getattr(self._where.scheduler, "address", "of the client")
        )

    @property
    def local_workers(self) -> int:
        """How many processes of this machine it is made of; 1 where it is elsewhere, as nothing is known of it."""
        return self._local or 1

    def __enter__(self) -> "Cluster":
        if not self._entered:
            try:
                self._client = self._connected()
                self.wait_for_workers()
            except BaseException:
                self._stack.close()
                raise
        self._entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if not self._entered:
            self._stack.close()
            self._stack, self._client = contextlib.ExitStack(), None

    def _connected(self) -> Any:
        if not isinstance(self._where, str):
            return self._where
        dask, limit = distributed(), min(CONNECT, self.patience)
        scheduler: Any = self._processes() if self._local else self._address
        try:
            if isinstance(scheduler, str):
                within(limit, lambda: socket.getaddrinfo(host_of(scheduler), None))  # else the name is asked for again
                within(limit, lambda: asyncio.run(_reached(scheduler, limit)))
            client = within(limit + 1, lambda: dask.Client(scheduler, timeout=limit, set_as_default=False))
        except socket.gaierror:
            raise WorkerError(
                f"{self._asked} {self.name}: no machine is known here as {host_of(scheduler)!r}; allowed: {ALLOWED}"
            ) from None
        except Exception as error:
            reason = "what answers there is no Dask scheduler"  # it reads whatever as a length: MemoryError and others
            if isinstance(error, OSError):
                reason = "no scheduler answers"
            elif isinstance(error, TypeError | RuntimeError | FavorbenchError):  # of the configuration of TLS
                reason = _said(error)
            raise WorkerError(
                f"{self._asked} {self.name}: {reason} (tried for {limit:g} s); is it running, and reachable from here?"
            ) from None
        self._stack.callback(_quietly, lambda: client.close(timeout=5))
        return client

    def _processes(self) -> Any:
        """A cluster of this machine, on loopback alone: whoever reaches the port of a scheduler runs code as we do."""
        dask = distributed()
        try:
            with interrupts_ignored():  # they inherit it: Ctrl-C is ours to handle
                started = dask.LocalCluster(
                    n_workers=self._local, threads_per_worker=1, processes=True, host="127.0.0.1",
                    dashboard_address=None, memory_limit=0, silence_logs=logging.CRITICAL,
                )  # fmt: skip
        except (OSError, RuntimeError) as error:
            raise WorkerError(
                f"{self._asked} {self.name}: its processes do not start: {_said(error)} "
                "(a Python script needs an `if __name__ == '__main__':` guard)"
            ) from None
        self._stack.callback(_quietly, lambda: started.close(timeout=10))
        return started

    def wait_for_workers(self) -> None:
        """Until there is one. Raises WorkerError after ``patience`` seconds."""
        end = time.monotonic() + self.patience
        while not self.threads():
            if time.monotonic() > end:
                raise WorkerError(
                    f"{self._asked} {self.name}: no worker within {self.patience:g} s; start some: dask worker "
                    f"{'ADDRESS' if self._local else self.name}"
                )
            time.sleep(0.2)

    def threads(self) -> int:
        """How many tasks can run at once now. Raises WorkerError where the scheduler does not say."""
        return sum(self.ask(self._client.nthreads).values())

    def ask(self, question: Callable[[], Value]) -> Value:
        """An answer of the scheduler or of workers, within ``patience``. Raises WorkerError."""
        try:
            return within(self.patience, question)
        except FavorbenchError:
            raise
        except Exception as error:
            raise WorkerError(f"{self._asked} {self.name}: {_said(error)} (waited up to {self.patience:g} s)") from None

    def send(self, luggage: Luggage) -> None:
        """Luggage to all workers that there are and that will be; every one opens it. Raises WorkerError, e.g. where
        versions differ."""
        self._compare_installed()
        plugin = importlib.import_module("distributed.diagnostics.plugin")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, luggage.name)
            path.write_bytes(luggage.data)
            upload = plugin.UploadFile(str(path), load=False)
        self.ask(lambda: self._client.register_plugin(upload, name=luggage.name))
        found = self.ask(lambda: self._client.run(_open_here, luggage.name, on_error="return"))
        _refuse(found)

    def leave(self, luggage: Luggage) -> None:
        """Workers that come need it no more."""
        _quietly(lambda: within(5.0, lambda: self._client.unregister_worker_plugin(luggage.name)))

    def _compare_installed(self) -> None:
        """Raise WorkerError where there is no favorbench, or no module of this version to ask. By the standard library
        alone: ours may not be there."""
        version = importlib.metadata.version
        here = version("favorbench")
        found = self.ask(lambda: self._client.run(version, "favorbench", on_error="return"))
        for worker, there in found.items():
            if isinstance(there, importlib.metadata.PackageNotFoundError):
                raise WorkerError(
                    f"worker {worker} has no favorbench; install {here} there: pip install 'favorbench[dask]'"
                )
            if there != here:
                raise WorkerError(
                    f"worker {worker}: favorbench {there} there, {here} here; install the same on every worker"
                )

    def count(self, machine: Mapping[str, Any], items: int) -> None:
        """That a worker has done so many items."""
        count_done(self._machines, machine, items)

    def take_machines(self) -> list[dict[str, Any]]:
        """Machines of the workers that have computed something since this was asked last, and how many items each."""
        taken, self._machines = self._machines, []
        return taken


async def _reached(address: str, seconds: float) -> None:
    """Whether a scheduler answers: a Client that finds none is not easily got rid of, and may wait for minutes."""
    dask = distributed()
    connection = dask.comm.connect(address, timeout=seconds, **dask.Security().get_connection_args("client"))
    (await asyncio.wait_for(connection, seconds)).abort()


def _open_here(name: str, dask_worker: Any = None) -> None:
    """In a worker: open luggage, and so find out whether it can be."""
    opened(name, dask_worker.local_directory)


def _refuse(found: Mapping[str, Any]) -> None:
    for worker, error in found.items():
        if isinstance(error, FavorbenchError):
            raise type(error)(f"worker {worker}: {error}") from None
        if isinstance(error, BaseException):
            raise WorkerError(f"worker {worker} cannot begin: {_said(error)}") from None


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def within(seconds: float, call: Callable[[], Value]) -> Value:
    """What a call returns or raises. Raises TimeoutError where it does neither in time: Dask may wait for ever."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(timeout=seconds)


def _quietly(call: Callable[[], object]) -> None:
    """The end of what may be gone already."""
    with contextlib.suppress(Exception):
        call()
