"""python -m benchmarks.store [--rows N]: rows that a writer stores per CPU second, and reading a million rows.

Rows are those of a sweep, with errors drawn at random so that they do not compress; written by the store's writer,
like those of a sweep. Reading is compared with pandas on the same Parquet files, in CPU time. Exit 1 if a target is
missed by a factor of 2.
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from favorbench.engine.plan import Plan, plan
from favorbench.engine.scenario import as_scenario
from favorbench.engine.store import Store
from favorbench.engine.study import Study
from favorbench.engine.trial import batches, run_draws
from favorbench.metrics import METRICS
from favorbench.results.ranking import rankings
from favorbench.results.results import load
from favorbench.results.tables import cell_tables

ROWS_PER_SECOND, TIMES_PANDAS, GROWTH, FILES = 20_000, 10, 1.3, 99
MANY = 1_000_000  # draws of the plan whose batching is timed


def planned(rows: int) -> tuple[Plan, list[dict]]:
    """A plan of about ``rows`` rows, and the rows of one draw."""
    keys = {
        "maps": "positive,trig,hyperbolic", "samplers": "iid,orthogonal", "num_projections": "4,8,16",
        "seq_len": "8,16", "head_dim": "2,4", "baselines": "uniform,taylor-1",
    }  # fmt: skip
    small = plan(Study.of(as_scenario(None, keys | {"trials": 1})))
    first = run_draws(small.study, [small[0]])[0]
    draws = max(4, rows // len(first))
    return plan(Study.of(as_scenario(None, keys | {"trials": draws // 4}))), first


def write(path: str, rows: int, queue: "multiprocessing.Queue") -> None:
    """Store a run; report rows in a second of CPU, files, and the largest resident size before and after."""
    draws, first = planned(rows)
    rng, names = np.random.default_rng(0), list(METRICS)
    before, count, seconds = peak(), 0, 0.0
    with Store(Path(path), draws) as store:
        store.done()
        for start in range(0, len(draws), 1000):
            fresh = []
            for draw in draws[start : start + 1000]:
                labels = {"draw": draw.index, "trial": draw.trial, "seq_len": draw.head.seq_len}
                labels |= {"query_len": draw.head.query_len, "query_rows": draw.head.query_len}
                labels |= {"head_dim": draw.head.head_dim}
                errors = rng.lognormal(size=(len(first), len(names))).tolist()
                fresh.append(
                    [row | labels | dict(zip(names, e, strict=True)) for row, e in zip(first, errors, strict=True)]
                )
            begin = time.process_time()
            for rows_of_draw in fresh:
                store.append(rows_of_draw)
                count += len(rows_of_draw)
            seconds += time.process_time() - begin
        begin = time.process_time()
        store.flush()
        store.finish()
        seconds += time.process_time() - begin
    queue.put((count, count / seconds, len(list(Path(path, "trials").glob("part-*"))), before, peak()))


def stored(path: Path, rows: int) -> tuple[int, float, int, int, int]:
    """Run ``write`` in a separate process, to measure its peak memory alone."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=write, args=(str(path), rows, queue))
    process.start()
    report = queue.get()
    process.join()
    return report


def peak() -> int:
    """The largest resident size of this process so far, in MiB."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size >> (20 if sys.platform == "darwin" else 10)


def cpu(call: Callable[[], object]) -> float:
    """CPU seconds of a call, the smaller of two."""
    times = []
    for _ in range(2):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> int:
    """Print every figure with its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--most", type=int, default=0, help="a second run, to see how memory grows, e.g. 10000000")
    options = parser.parse_args()
    folder, worst = Path(tempfile.mkdtemp()), 1.0
    try:
        count, rate, files, before, after = stored(folder / "run", options.rows)
        print(f"{count} rows: {rate:,.0f} in a second of CPU (target {ROWS_PER_SECOND:,}), {files} files, "
              f"{after} MiB at most, {after - before} of them while writing")  # fmt: skip
        worst = min(worst, rate / ROWS_PER_SECOND, FILES / files)
        if options.most:
            more, rate, files, before, largest = stored(folder / "more", options.most)
            print(f"{more} rows: {rate:,.0f} in a second of CPU, {files} files, {largest} MiB at most: "
                  f"{largest / after:.2f} times (target {GROWTH})")  # fmt: skip
            worst = min(worst, GROWTH * after / largest)
            shutil.rmtree(folder / "more")
        run = folder / "run"
        results = load(run)
        pandas = cpu(lambda: pd.read_parquet(run / "trials"))
        print(f"pandas reads {count} rows in {pandas:.2f} s of CPU")
        steps = {
            "load": lambda: load(run),
            "table": lambda: (load(run), cell_tables(results)),
            "rank": lambda: (load(run), rankings(results)),
            "export": lambda: load(run).trials.to_parquet(folder / "x.parquet", index=False),
        }
        for name, step in steps.items():
            ratio = cpu(step) / pandas
            print(f"{name}: {ratio:.1f} times pandas (target {TIMES_PANDAS})")
            worst = min(worst, TIMES_PANDAS / ratio)
        scenario = as_scenario(None, {"trials": MANY, "seq_len": "8", "head_dim": "2"})
        many = plan(Study.of(scenario))
        tenth = cpu(lambda: sum(1 for _ in batches(many, range(MANY // 10), None)))
        whole = cpu(lambda: sum(1 for _ in batches(many, range(MANY), None)))
        print(json.dumps({"draws": MANY, "seconds": round(whole, 2), "over a tenth": round(whole / tenth, 1)}))
    finally:
        shutil.rmtree(folder)
    return int(worst < 0.5)


if __name__ == "__main__":
    raise SystemExit(main())
