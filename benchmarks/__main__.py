"""python -m benchmarks [--quick]: how much faster the sweep is than the same table computed the plain way."""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import plain
from favorbench.plan import Draw, plan
from favorbench.scenario import Scenario, load_scenario
from favorbench.trial import run_draws

SIZES = ",".join(str(r) for r in range(16, 193, 16))
#: The blog post's two experiments: trig with both samplers at scale 1, trig and positive with orthogonal rows at 1.5.
EXPERIMENTS = (
    {"maps": "trig", "samplers": "iid,orthogonal", "scale": "1.0", "value_scale": 1.0},
    {"maps": "trig,positive", "samplers": "orthogonal", "scale": "1.5", "value_scale": 1.5},
)
TARGET = 15.0


def studies(trials: int) -> list[tuple[Scenario, tuple[Draw, ...]]]:
    common = {"num_projections": SIZES, "seq_len": "1024", "head_dim": "16", "trials": trials, "baselines": "uniform"}
    scenarios = [load_scenario("quick", common | experiment) for experiment in EXPERIMENTS]
    return [(scenario, plan(scenario)) for scenario in scenarios]


def sweep_table(scenario: Scenario, draws: tuple[Draw, ...]) -> dict[tuple[int, str, str, int], float]:
    rows = [row for draw in draws for row in run_draws(scenario, [draw])[0] if row["kind"] == "map"]
    return {(row["trial"], row["map"], row["sampler"], row["num_projections"]): row["mse"] for row in rows}


def timed(table: Callable, trials: int) -> tuple[float, dict]:
    start = time.perf_counter()
    found = {}
    for i, (scenario, draws) in enumerate(studies(trials)):
        found |= {(i, *key): mse for key, mse in table(scenario, draws).items()}
    return time.perf_counter() - start, found


def spread(values: list[float]) -> str:
    return f"min {min(values):.3g}, median {statistics.median(values):.3g}, max {max(values):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 draws instead of 15, 3 runs instead of 2")
    trials, runs = (2, 3) if parser.parse_args().quick else (15, 2)
    with threadpool_limits(1):
        timed(sweep_table, 1)  # the first call pays for imports
        pairs = [(timed(plain.table, trials), timed(sweep_table, trials)) for _ in range(runs)]
    dense, ours = pairs[0][0][1], pairs[0][1][1]
    assert dense.keys() == ours.keys()
    difference = np.array([abs(np.log(ours[key] / dense[key])) for key in dense])
    ratios = [a / b for (a, _), (b, _) in pairs]
    print(f"the blog's two experiments, L = 1024, d = 16, 12 R, {trials} draws, one thread, {runs} runs")
    print(f"plain way, s:    {spread([a for (a, _), _ in pairs])}")
    print(f"favorbench, s:   {spread([b for _, (b, _) in pairs])}")
    print(f"ratio:           {spread(ratios)} (target {TARGET:g})")
    print(
        f"same table:      median difference {np.median(difference):.1e}, largest {difference.max():.1e} (of log mse)"
    )
    print(
        "                 (large only where a normaliser of trig nearly vanishes: any two orders of summation differ)"
    )


if __name__ == "__main__":
    main()
