"""Times that users wait for: the first command, data from a file, many heads, a plan."""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.ratio import Ratio, seconds_of_call
from benchmarks.tables import SIZES
from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.numerics.machine import one_core
from favorbench.run import sweep

IMPORTS = "import numpy, pandas, pyarrow, rich, pydantic"
FAVORBENCH = (sys.executable, "-m", "favorbench")


def whole_process(trials: int, runs: int) -> Iterator[Ratio]:
    """The command a user types against a user's script: start-up, store and printed table included."""
    ratios, flags = [], ("--maps", "positive,trig", "-R", SIZES, "--baselines", "uniform", "--trials", str(trials))
    _sweep_process(*flags)  # the first after a while waits for the disk
    for _ in range(runs):
        script = seconds_of(sys.executable, "-m", "benchmarks.loop", str(trials))
        ours = _sweep_process(*flags)
        print(f"  loop's process {script:.2f} s, favorbench's {ours:.2f} s")
        ratios.append(script / ours)
    yield Ratio("loop's process / favorbench's process", ratios, 12.0)


def first_command(runs: int) -> Iterator[Ratio]:
    """README's first command against bare imports plus its sweep without best-rank."""
    bare = Study.of(load_scenario("quick", {"maps": "positive,trig", "baselines": "uniform,taylor-1,taylor-2"}))
    ratios = []
    for _ in range(runs):
        ours, imports = _sweep_process("--maps", "positive,trig"), seconds_of(sys.executable, "-c", IMPORTS)
        with one_core():
            swept = seconds_of_call(functools.partial(_draws_of, bare))
        print(f"  first command {ours:.2f} s; imports {imports:.2f} s, its sweep without best-rank {swept:.2f} s")
        ratios.append(ours / (imports + swept))
    yield Ratio("README's first command / imports and its sweep without best-rank", ratios, 2.2, most=True)


def own_data(length: int, runs: int) -> Iterator[Ratio]:
    """15 draws on a file: against one exact answer and the estimates alone, and against exact answers in every draw."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, length, 64))
    omegas = [sample_omega(name, 64, 64, rng) for name in ("iid", "orthogonal") for _ in range(15)]
    least, every = [], []
    with tempfile.TemporaryDirectory() as folder, one_core():
        file = Path(folder) / "own.npz"
        np.savez(file, q=query, k=key, v=value)
        keys = {"maps": "positive", "num_projections": "64", "inputs": [str(file)], "trials": 15}
        scenario = load_scenario("quick", keys | {"baselines": "uniform"})

        def swept(once: bool) -> None:
            study = Study.of(scenario)
            for draw in plan(study):
                run_draws(study if once else Study.of(scenario), [draw])  # a new study has an empty cache

        def alone() -> None:
            exact_attention(query, key, value)
            for omega in omegas:
                linear_attention(query * 64**-0.25, key * 64**-0.25, value, omega)

        swept(once=True)
        for _ in range(runs):
            calls = (lambda: swept(once=True), alone, lambda: swept(once=False))
            once, bare, always = map(seconds_of_call, calls)
            least.append(once / bare)
            every.append(always / once)
    yield Ratio(f"15 draws on a file, L = {length} / one exact answer and the estimates", least, 1.3, most=True)
    yield Ratio(f"exact answers in each draw / once, L = {length}", every, 4.0)


def many_heads(runs: int, cells: tuple[tuple[int, int], ...] = ((72, 15), (300, 2))) -> Iterator[Ratio]:
    """Plan, rows, store, summary and sentences of many heads, over the time of the estimators themselves."""
    rng = np.random.default_rng(0)
    for heads, trials in cells:
        with tempfile.TemporaryDirectory() as folder, one_core():
            file = Path(folder) / "heads.npz"
            query, key, value = rng.standard_normal((3, heads, 512, 32))
            np.savez(file, q=query, k=key, v=value)
            keys = {"inputs": [str(file)], "trials": trials, "num_projections": "64,256", "baselines": "uniform"}
            scenario, ratios = load_scenario("quick", keys), []
            for run in range(runs):
                study = Study.of(scenario)
                bare = seconds_of_call(functools.partial(_draws_of, study))
                whole = seconds_of_call(functools.partial(sweep, scenario, Path(folder) / f"run{run}"))
                ratios.append(whole / bare - 1.0)
        yield Ratio(f"bookkeeping / estimators, {heads} heads x {trials} draws", ratios, 0.15, most=True)


def a_large_plan(runs: int) -> Iterator[Ratio]:
    """--dry-run of 10^6 draws against the same of 10: the plan is a range, not a list."""
    ratios = []
    for _ in range(runs):
        many, few = (seconds_of(*FAVORBENCH, "sweep", "--trials", n, "--dry-run") for n in ("1000000", "10"))
        print(f"  --dry-run of 10^6 draws: {many:.2f} s, of 10: {few:.2f} s")
        ratios.append(many / few)
    yield Ratio("--dry-run --trials 1000000 / --trials 10", ratios, 3.0, most=True)


def _draws_of(study: Study) -> None:
    for draw in plan(study):
        run_draws(study, [draw])


def seconds_of(*command: str) -> float:
    return seconds_of_call(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def _sweep_process(*flags: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of(*FAVORBENCH, "sweep", *flags, "--out", folder + "/run")
