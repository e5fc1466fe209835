"""python -m benchmarks.cluster [--quick]: a Dask cluster of two workers against two processes, interleaved.

Efficiency: seconds of two processes over seconds of the cluster, which is already running; starting the processes is
included. Both compute the same draws, and their rows are bit-identical. Overhead: seconds of an empty task. Messages:
read and written by the scheduler, for each row. Exit 1 if the efficiency is below half of its target.
"""

import argparse
import importlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from favorbench.engine.cluster import Cluster, ClusterPool
from favorbench.run import sweep
from tests.clusters import cluster

TARGET = 0.9


def main(quick: bool) -> int:
    tasks, runs, trials = (200, 1, 20) if quick else (2000, 3, 600)
    scenario = {"seq_len": 1024, "trials": trials, "baselines": "uniform"}
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder, "cluster")) as started,
        Cluster(started.address) as connected,
    ):
        while sum(connected.client.nthreads().values()) < 2:
            time.sleep(0.1)
        seconds, scheduler, client = (1e3 * value for value in overhead(connected, tasks))
        print(f"overhead: {seconds:.2f} ms for each empty task, a few at a time; "
              f"of CPU {scheduler:.2f} ms in the scheduler, {client:.2f} ms in the client")  # fmt: skip
        ratios = [side_by_side(scenario, connected, Path(folder, str(run))) for run in range(runs)]
    median = statistics.median(ratios)
    verdict = "met" if median >= TARGET else "NOT MET"
    print(f"efficiency: {min(ratios):.2f} / {median:.2f} / {max(ratios):.2f} (target at least {TARGET}: {verdict})")
    return int(median < TARGET / 2)


def side_by_side(scenario: dict[str, Any], connected: Cluster, out: Path) -> float:
    """Seconds of two processes over those of the cluster."""
    start = time.perf_counter()
    alone = sweep(scenario, out / "processes", workers=2).trials
    processes, before, start = time.perf_counter() - start, messages(connected), time.perf_counter()
    rows = sweep(scenario, out / "cluster", workers=connected).trials
    seconds, sent = time.perf_counter() - start, messages(connected) - before
    assert rows.equals(alone)
    rate = f"{sent} messages of the scheduler for {len(rows)} rows: {sent / len(rows):.3f} each, including idle ones"
    print(f"  processes {processes:.2f} s, cluster {seconds:.2f} s; {rate}")
    return processes / seconds


def overhead(connected: Cluster, tasks: int) -> tuple[float, float, float]:
    """Seconds for each empty task: by the clock, of the scheduler's CPU, and of the client's (this process).

    A busy machine changes the first much more than the others.
    """

    def now() -> tuple[float, float, float]:
        return time.perf_counter(), connected.client.run_on_scheduler(time.process_time), time.process_time()

    before = now()
    with patch.object(ClusterPool, "chunk_seconds", 0.0):  # each item is a task
        results = connected.results(
            nothing, None, iter(range(tasks)), tasks, lambda why, item: f"{item} is missing, {why}"
        )
        assert len(list(results)) == tasks
    clock, scheduler, client = ((end - start) / tasks for start, end in zip(before, now(), strict=True))
    return clock, scheduler, client


def nothing(context: None, item: int) -> None:
    """A task that takes no time."""


def messages(connected: Cluster) -> int:
    """The number of messages that the scheduler has read and written since the first call."""
    return connected.client.run_on_scheduler(_counted)


def _counted(dask_scheduler: Any = None) -> int:
    TCP: Any = importlib.import_module("distributed.comm.tcp").TCP

    if not hasattr(TCP, "counted"):
        TCP.counted = 0
        for name in ("read", "write"):
            original = getattr(TCP, name)

            async def counting(self: Any, *arguments: Any, original: Any = original, **named: Any) -> Any:
                TCP.counted += 1
                return await original(self, *arguments, **named)

            setattr(TCP, name, counting)
    return TCP.counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A Dask cluster of two workers against two processes.")
    parser.add_argument("--quick", action="store_true", help="fewer draws and tasks, one run")
    sys.exit(main(parser.parse_args().quick))
