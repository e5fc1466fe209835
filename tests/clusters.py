"""A real Dask scheduler and real workers, as processes on loopback, to be killed by their process ids."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from favorbench.inputs import get_input
from favorbench.numerics.streams import stream

QUIET = {"DASK_LOGGING__DISTRIBUTED": "critical", "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "0"}


class Processes:
    """A scheduler, and workers that come and go. Use as a context manager: whatever is left is killed."""

    def __init__(self, folder, **environment):
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "scheduler.json"
        self._folder, self._started = folder, []
        self._environment = os.environ | QUIET | environment
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file)
        )
        wait_for(lambda: self.file.exists() and self.file.read_text())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a nanny's worker too: each has a session of its own
            process.wait()

    @property
    def address(self):
        return json.loads(self.file.read_text())["address"]

    def worker(self, *options, **environment):
        """A worker of one thread, without a nanny unless asked for; it reads no file of ours."""
        folder = self._folder / f"worker-{len(self._started)}"
        folder.mkdir()
        nanny = [] if "--nanny" in options else ["--no-nanny"]
        return self._start(
            "worker", self.address, "--nthreads", "1", "--no-dashboard", "--memory-limit", "0", "--death-timeout", "60",
            "--local-directory", str(folder), *nanny, *options, cwd=folder, **environment,
        )  # fmt: skip

    def wait_for_workers(self, count):
        """Wait for this many workers: no test depends on the time of a start."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=120)

    def _start(self, *arguments, cwd=None, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=cwd or self._folder, env=self._environment | environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._started.append(process)
        return process


@contextlib.contextmanager
def cluster(folder, workers=2, *options, **environment):
    """A scheduler and its workers, all connected."""
    with Processes(folder, **environment) as processes:
        for _ in range(workers):
            processes.worker(*options)
        if workers:
            processes.wait_for_workers(workers)
        yield processes


def first_query(draw):
    """The first number of the queries of a draw of Gaussian inputs: what an estimator can tell the draw by."""
    return float(get_input("gaussian").draw(stream(0, "inputs", *draw.stream_names), draw.head).query[0, 0])


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
