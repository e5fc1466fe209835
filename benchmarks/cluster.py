"""python -m benchmarks.cluster [--quick]: a Dask cluster of two workers beside two processes, in turns.

Efficiency: seconds of two processes over seconds of the cluster, which is up already, while the processes are started;
both compute the same draws, and the rows are the same bits. Overhead: seconds of an empty task. Messages: what the
scheduler reads and writes for a run, over its rows. Exit 1 where the efficiency misses its target by more than half.
"""

import argparse
import importlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from favorbench.engine.cluster import Cluster, ClusterPool
from favorbench.run import sweep
from tests.clusters import cluster

TARGET = 0.9


def main(quick: bool) -> int:
    tasks, runs, trials = (200, 1, 20) if quick else (2000, 3, 600)
    scenario = {"seq_len": 1024, "trials": trials, "baselines": "uniform"}
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder, "cluster")) as two,
        Cluster(two.address) as place,
    ):
        while sum(place.client.nthreads().values()) < 2:
            time.sleep(0.1)
        seconds, scheduler, client = (1e3 * found for found in overhead(place, tasks))
        print(f"overhead: {seconds:.2f} ms for each empty task, a few at a time; "
              f"of CPU {scheduler:.2f} ms in the scheduler, {client:.2f} ms in the client")  # fmt: skip
        ratios = [side_by_side(scenario, place, Path(folder, str(run))) for run in range(runs)]
    median = statistics.median(ratios)
    verdict = "met" if median >= TARGET else "NOT MET"
    print(f"efficiency: {min(ratios):.2f} / {median:.2f} / {max(ratios):.2f} (target at least {TARGET}: {verdict})")
    return int(median < TARGET / 2)


def side_by_side(scenario: dict[str, Any], place: Cluster, out: Path) -> float:
    """Seconds of two processes over those of the cluster."""
    start = time.perf_counter()
    alone = sweep(scenario, out / "processes", workers=2).trials
    processes, before, start = time.perf_counter() - start, messages(place), time.perf_counter()
    found = sweep(scenario, out / "cluster", workers=place).trials
    seconds, sent = time.perf_counter() - start, messages(place) - before
    assert found.equals(alone)
    rate = f"{sent} messages of the scheduler for {len(found)} rows: {sent / len(found):.3f} each, with those when idle"
    print(f"  processes {processes:.2f} s, cluster {seconds:.2f} s; {rate}")
    return processes / seconds


def overhead(place: Cluster, tasks: int) -> tuple[float, float, float]:
    """Seconds for each task that does nothing: by the clock, of the scheduler's CPU, and of the client's, which is this
    process with its threads. What a busy machine does to the first it hardly does to the others."""

    def now() -> tuple[float, float, float]:
        return time.perf_counter(), place.client.run_on_scheduler(time.process_time), time.process_time()

    usual, ClusterPool.chunk_seconds = ClusterPool.chunk_seconds, 0.0  # each item is a task
    before = now()
    results = place.results(nothing, None, iter(range(tasks)), tasks, lambda why, item: f"{item} is missing, {why}")
    assert len(list(results)) == tasks
    ClusterPool.chunk_seconds = usual
    clock, scheduler, client = ((end - start) / tasks for start, end in zip(before, now(), strict=True))
    return clock, scheduler, client


def nothing(context: None, item: int) -> None:
    """A task that takes no time."""


def messages(place: Cluster) -> int:
    """How many messages the scheduler has read and written since it was asked first."""
    return place.client.run_on_scheduler(_counted)


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
    parser = argparse.ArgumentParser(description="A Dask cluster of two workers beside two processes.")
    parser.add_argument("--quick", action="store_true", help="fewer draws and tasks, one run")
    sys.exit(main(parser.parse_args().quick))
