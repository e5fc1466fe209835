"""python -m benchmarks [--quick]: ratios measured side by side, each with its target. Exit 1 below half of one."""

import argparse
import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import floor, loop, peer, plain
from benchmarks.tables import EXPERIMENTS, SIZES, TABLE, Made, studies
from favorbench.attention.estimator import Estimator
from favorbench.attention.linear import attention_estimates, linear_attention, sample_omega
from favorbench.engine.plan import Draw, plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.sizes import sizes_of_method
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.maps import get_map
from favorbench.methods import METHODS, Method, Question, Shape, get_method
from favorbench.numerics.machine import Rates, one_core
from favorbench.numerics.streams import Streams
from favorbench.registry import label
from favorbench.run import sweep


@dataclass(frozen=True)
class Ratio:
    """A ratio over several runs and what it should be: at least the target, or at most where ``most`` is set."""

    name: str
    values: list[float]
    target: float
    most: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def share(self) -> float:
        """How much of the target is reached: 1 and more is enough."""
        return self.target / self.median if self.most else self.median / self.target

    def __str__(self) -> str:
        word = "at most" if self.most else "at least"
        verdict = "met" if self.share() >= 1 else "NOT MET"
        return f"{self.name}: {spread(self.values)} (target {word} {self.target:g}: {verdict})"


def sweep_table(study: Study, draws: list[Draw]) -> plain.Table:
    rows = [row for draw in draws for row in run_draws(study, [draw])[0] if row["kind"] == "map"]
    return {(row["trial"], row["map"], row["sampler"], row["num_projections"]): row["mse"] for row in rows}


def timed(table: Callable, made: list[Made]) -> tuple[float, dict]:
    start = time.perf_counter()
    found = {}
    for i, (study, draws) in enumerate(made):
        found |= {(i, *key): mse for key, mse in table(study, draws).items()}
    return time.perf_counter() - start, found


def side_by_side(name: str, slow: Callable, made: list[Made], runs: int, target: float) -> Iterator[Ratio]:
    """A slow way and the sweep, in turns; and how far their tables differ."""
    timed(sweep_table, [(study, draws[:1]) for study, draws in made])  # the first call pays for imports
    pairs = [(timed(slow, made), timed(sweep_table, made)) for _ in range(runs)]
    (_, theirs), (_, ours) = pairs[0]
    assert ours.keys() == theirs.keys()
    difference = np.array([abs(np.log(ours[key] / theirs[key])) for key in theirs])
    print(f"{name}, s: {spread([a for (a, _), _ in pairs])}; favorbench, s: {spread([b for _, (b, _) in pairs])}")
    print(f"  same table: median difference {np.median(difference):.1e}, largest {difference.max():.1e} (of log mse)")
    yield Ratio(f"{name} / favorbench", [a / b for (a, _), (b, _) in pairs], target)


def against_peer(trials: int, runs: int) -> Iterator[Ratio]:
    """The library a user would pick, in two precisions; its eps makes other numbers, so tables are close, not equal."""
    if not peer.installed():
        print("performer-pytorch is not installed (pip install 'favorbench[audit]'): not measured beside it")
        return
    for dtype, target in (("float64", 12.0), ("float32", 6.0)):
        made = studies(trials, ({**peer.TABLE, "dtype": dtype},))
        yield from side_by_side(f"performer-pytorch, {dtype}", peer.table, made, runs, target)


def against_floor(made: list[Made], runs: int) -> Iterator[Ratio]:
    """The sweep against its own matrix products and transcendental functions at the rates of this minute."""
    found: dict[str, list[float]] = {}
    for _ in range(2 * runs):
        seconds, _ = timed(sweep_table, made)
        for name, machine in floor.measured_rates().items():
            least = sum(floor.Work(study, draws).seconds(machine) for study, draws in made)
            found.setdefault(name, []).append(seconds / least)
            print(f"  {name}: {described(machine)}; floor {least:.3f} s, favorbench {seconds:.3f} s")
    for name, ratios in found.items():
        yield Ratio(f"favorbench / floor, products {name}", ratios, 2.0, most=True)


def described(machine: Rates) -> str:
    return (
        f"{machine.gemm / 1e9:.1f} GFLOP/s, exp {machine.exp / 1e9:.2f} G/s, "
        f"cos and sin {machine.cos_sin / 1e9:.2f} G pairs/s"
    )


def whole_process(trials: int, runs: int) -> Iterator[Ratio]:
    """The command a user types against a script of their own: start-up, store and printed table included."""
    ratios = []
    for _ in range(runs):
        script = seconds_of([sys.executable, "-m", "benchmarks.loop", str(trials)])
        with tempfile.TemporaryDirectory() as folder:
            flags = ["-R", SIZES, "--baselines", "uniform", "--trials", str(trials), "--out", folder + "/run"]
            ours = seconds_of([sys.executable, "-m", "favorbench", "sweep", "--maps", "positive,trig", *flags])
        print(f"  loop's process {script:.2f} s, favorbench's {ours:.2f} s")
        ratios.append(script / ours)
    yield Ratio("loop's process / favorbench's process", ratios, 5.0)


def seconds_of(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def growth(largest: int, runs: int) -> Iterator[Ratio]:
    """Time and memory of one draw against L, each in a process of its own."""
    exponents, slopes = range(14, largest + 1), []
    for _ in range(runs):
        seconds = []
        for exponent in exponents:
            command = [sys.executable, "-m", "benchmarks.length", str(1 << exponent)]
            done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            seconds.append(done["seconds"])
            print(f"  L = 2^{exponent}: {done['seconds']:.2f} s, {done['resident_gib']:.2f} GiB resident")
        slopes.append(float(np.polyfit(np.log([1 << e for e in exponents]), np.log(seconds), 1)[0]))
    yield Ratio("slope of log time on log L, from above", slopes, 1.1, most=True)
    yield Ratio("slope of log time on log L, from below", slopes, 0.9)


def two_workers(seconds: float, runs: int) -> Iterator[Ratio]:
    """One worker against two on the same sweep, start-up of the processes included."""
    one = Study.of(load_scenario("quick", {"trials": 1, "seq_len": "2048", "baselines": "uniform"}))
    with one_core():
        run_draws(one, plan(one))
        start = time.perf_counter()
        run_draws(one, plan(one))
    trials = max(2, round(seconds / (time.perf_counter() - start)))
    scenario = load_scenario("quick", {"trials": trials, "seq_len": "2048", "baselines": "uniform"})
    efficiencies = []
    for _ in range(runs):
        times = []
        for workers in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                sweep(scenario, Path(folder) / "run", workers)
                times.append(time.perf_counter() - start)
        print(f"  {trials} draws: 1 worker {times[0]:.1f} s, 2 workers {times[1]:.1f} s")
        efficiencies.append(times[0] / (2 * times[1]))
    yield Ratio("efficiency of 2 workers", efficiencies, 0.9)


def data_dependent(runs: int) -> Iterator[Ratio]:
    """Maps that are fitted to their data against positive, in turns."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1024, 64))
    omega = rng.standard_normal((256, 64))

    def seconds(name: str) -> float:
        feature_map = get_map(name)
        estimator = Estimator(feature_map, feature_map.draw_extra(rng, 256, 64), (256,))
        start = time.perf_counter()
        list(attention_estimates(query, key, value, omega, [estimator]))
        return time.perf_counter() - start

    for name in FITTED:
        seconds(name)
        ratios = []
        for _ in range(runs):
            turns = [(seconds(name), seconds("positive")) for _ in range(7)]
            ratios.append(min(own for own, _ in turns) / min(other for _, other in turns))
        yield Ratio(f"{name} / positive", ratios, 2.0, most=True)


def methods_at_equal_cost(length: int, runs: int) -> Iterator[Ratio]:
    """Every method against a map of as many multiplications, in turns: d = 64, R = 256, and causal where it can be."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, length, 64))
    omega, factor = sample_omega("orthogonal", 256, 64, rng), 64**-0.25
    for causal, method in itertools.product((False, True), map(get_method, METHOD_SPECS)):
        if causal and not method.causal_safe:
            continue
        (sized,) = sizes_of_method(method, "cost", (256,), Shape(length, length, 64, 64, causal))
        question = Question(query * factor, key * factor, value, np.arange(length), causal)
        ours = functools.partial(answered, method, question, sized.size)
        theirs = functools.partial(linear_attention, query, key, value, omega, causal=causal)
        for call in (ours, theirs):  # warm up
            call()
        ratios = []
        for _ in range(runs):
            turns = [(seconds_of_call(ours), seconds_of_call(theirs)) for _ in range(3)]
            ratios.append(min(own for own, _ in turns) / min(other for _, other in turns))
        word = ", causal" if causal else ""
        yield Ratio(f"{label(method)}, m = {sized.size}{word} / positive, R = 256", ratios, 3.0, most=True)


def answered(method: Method, question: Question, size: int) -> None:
    """One answer of a method."""
    list(method.answers(question, (size,), Streams.of(np.random.default_rng(0))))


def seconds_of_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


METHOD_SPECS = [member.name for member in METHODS] + ["clusters(lloyd=3)", "sinks(4):window(64):multipole"]
FITTED = ("oprf", "saderf", "sderf", "aderf", "aderf-sderf", "centre:positive", "poisson", "geometric")


def spread(values: list[float]) -> str:
    return f"{min(values):.3g} / {statistics.median(values):.3g} / {max(values):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small version: a minute or two")
    quick = parser.parse_args().quick
    trials, runs = (2, 3) if quick else (15, 3)
    print(f"minimum / median / maximum of {runs} runs; L = 1024, d = 16, 12 R, {trials} draws, one thread")
    ratios: list[Ratio] = []
    with one_core():
        ratios += side_by_side("the blog's protocol", plain.table, studies(trials, EXPERIMENTS), runs, 60.0)
        ratios += side_by_side("vectorised loop", loop.table, studies(trials, TABLE), runs, 20.0)
        ratios += against_peer(trials, runs)
        ratios += against_floor(studies(trials, TABLE), runs)
        ratios += data_dependent(runs)
        ratios += methods_at_equal_cost(1024 if quick else 4096, runs)
    ratios += whole_process(15, 1 if quick else runs)
    ratios += growth(16 if quick else 20, 1 if quick else runs)
    ratios += two_workers(6.0 if quick else 22.0, 1 if quick else runs)
    print()
    print(*ratios, sep="\n")
    if any(ratio.share() < 0.5 for ratio in ratios):
        sys.exit("a ratio is below half of its target")


if __name__ == "__main__":
    main()
