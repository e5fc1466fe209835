"""Long inputs and two workers: time and memory against L, and the gain from a second process."""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.ratio import Ratio, seconds_of_call
from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.numerics.machine import one_core
from favorbench.run import sweep


def growth(largest: int, runs: int) -> Iterator[Ratio]:
    """Time and memory of one draw against L, each in a separate process; the longest against its floor."""
    exponents, slopes, over_floor, resident = range(14, largest + 1), [], [], []
    for _ in range(runs):
        seconds, done = [], {}
        for exponent in exponents:
            command = [sys.executable, "-m", "benchmarks.length", str(1 << exponent)]
            done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            seconds.append(done["seconds"])
            times = f"  L = 2^{exponent}: {done['seconds']:.2f} s, floor {done['floor']:.2f} s"
            print(f"{times}, {done['resident_gib']:.2f} GiB resident")
        slopes.append(float(np.polyfit(np.log([1 << e for e in exponents]), np.log(seconds), 1)[0]))
        over_floor.append(done["seconds"] / done["floor"])
        resident.append(done["resident_gib"])
    yield Ratio("slope of log time on log L, from above", slopes, 1.1, most=True)
    yield Ratio("slope of log time on log L, from below", slopes, 0.9)
    yield Ratio(f"L = 2^{largest}, d = 64 / floor of its products and exponentials", over_floor, 1.5, most=True)
    yield Ratio(f"GiB resident at L = 2^{largest}", resident, 1.15, most=True)


def two_workers(total: float, runs: int) -> Iterator[Ratio]:
    """One worker against two on the same sweep, start-up of the processes included: draws of 10 ms, and of 1 s."""
    for length, name in ((512, "10 ms"), (8192, "1 s")):
        keys = {"seq_len": length, "baselines": "uniform"}
        single = Study.of(load_scenario("quick", keys | {"trials": 1}))
        with one_core():
            draws = list(plan(single))
            run_draws(single, draws)
            seconds = seconds_of_call(functools.partial(run_draws, single, draws))
        trials = max(2, round(total / seconds / 2) * 2)
        scenario = load_scenario("quick", keys | {"trials": trials})
        efficiencies = []
        for _ in range(runs):
            times = [_swept(scenario, workers) for workers in (1, 2)]
            print(f"  {trials} draws of {1000 * seconds:.0f} ms: 1 worker {times[0]:.1f} s, 2 workers {times[1]:.1f} s")
            efficiencies.append(times[0] / (2 * times[1]))
        yield Ratio(f"efficiency of 2 workers, draws of about {name}", efficiencies, 0.92)


def _swept(scenario: object, workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of_call(lambda: sweep(scenario, Path(folder) / "run", workers))  # pyright: ignore[reportArgumentType]
