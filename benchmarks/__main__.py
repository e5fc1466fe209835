"""python -m benchmarks [--quick] [PART ...]: ratios of interleaved measurements, with targets. Exit 1 far below one."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

import threadpoolctl

from benchmarks import loop, plain
from benchmarks.engine import against_floor, against_peer, against_torch, side_by_side
from benchmarks.fused import heads_against_fused
from benchmarks.long import growth, two_workers
from benchmarks.members import data_dependent, methods_at_equal_cost
from benchmarks.ratio import Ratio
from benchmarks.tables import EXPERIMENTS, TABLE, studies
from benchmarks.waits import a_large_plan, first_command, many_heads, own_data, whole_process
from favorbench.numerics.machine import one_core

FAR = 0.2  # share of a target that a busy machine without AVX-512 reaches: at the least 0.33, see README.md


def parts(quick: bool) -> dict[str, Callable[[], Iterator[Ratio]]]:
    """The measurements, by name."""
    trials, runs, once = (2, 3, 1) if quick else (15, 3, 3)
    return {
        "blog": lambda: side_by_side("the blog's protocol", plain.table, studies(trials, EXPERIMENTS), runs, 80.0),
        "loop": lambda: side_by_side("vectorised loop", loop.table, studies(trials, TABLE), runs, 36.0),
        "peer": lambda: against_peer(trials, runs),
        "floor": lambda: against_floor(studies(15, TABLE), runs),  # takes less than a second: two trials are too few
        "exact": lambda: against_torch(12 if quick else 14, runs),
        "maps": lambda: data_dependent(runs),
        "methods": lambda: methods_at_equal_cost(1024 if quick else 4096, runs),
        "fused": lambda: heads_against_fused(runs, 2048 if quick else 8192),
        "process": lambda: whole_process(15, once),
        "first": lambda: first_command(once),
        "file": lambda: own_data(1024 if quick else 4096, runs),
        "heads": lambda: many_heads(once, ((72, 2),) if quick else ((72, 15), (300, 2))),
        "plan": lambda: a_large_plan(once),
        "long": lambda: growth(16 if quick else 20, once),
        "workers": lambda: two_workers(6.0 if quick else 22.0, once),
    }


TOO_SHORT = ("first", "file", "heads", "plan")  # for the quick version, which would measure start-up only
OF_PROCESSES = ("process", "first", "plan", "long", "workers")  # which limit their threads themselves


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small version: a few minutes")
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(parts(True))}; by default all")
    options = parser.parse_args()
    available = parts(options.quick)
    if unknown := set(options.part) - set(available):
        parser.error(f"{', '.join(sorted(unknown))}: allowed are {', '.join(available)}")
    kernels = ", ".join(
        f"{pool['internal_api']} {pool.get('architecture')}" for pool in threadpoolctl.threadpool_info()
    )
    print(f"{kernels}; minimum / median / maximum of the runs of each part")
    ratios: list[Ratio] = []
    for name in options.part or [name for name in available if not (options.quick and name in TOO_SHORT)]:
        with contextlib.nullcontext() if name in OF_PROCESSES else one_core():
            for ratio in available[name]():
                print(ratio, flush=True)
                ratios.append(ratio)
    print("\n| ratio | measured | target | |\n| --- | ---: | ---: | --- |")
    print(*(ratio.row() for ratio in ratios), sep="\n")
    if any(ratio.share() < FAR for ratio in ratios):
        sys.exit(f"a ratio is below {FAR:.0%} of its target")


if __name__ == "__main__":
    main()
