"""python -m benchmarks.length L: seconds, resident memory and the floor of one draw of a long input, as JSON."""

import json
import resource
import sys
import time

from benchmarks.floor import Work, measured_rates
from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.numerics.machine import one_core


def main() -> None:
    flags = {"maps": "positive,trig", "num_projections": "256", "head_dim": "64", "trials": 1, "query_rows": 1024}
    study = Study.of(load_scenario("quick", flags | {"seq_len": sys.argv[1]}))
    with one_core():
        run_draws(*small(flags))  # imports, and the first pages of every library
        start = time.perf_counter()
        run_draws(study, list(plan(study)))
        seconds = time.perf_counter() - start
        least = Work(study, list(plan(study))).seconds(measured_rates(64)["thin, as attention's"])
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "resident_gib": resident, "floor": least}))


def small(flags: dict) -> tuple:
    study = Study.of(load_scenario("quick", flags | {"seq_len": "256"}))
    return study, list(plan(study))


if __name__ == "__main__":
    main()
