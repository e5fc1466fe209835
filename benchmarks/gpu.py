"""python -m benchmarks.gpu [--device cuda] [--quick]: torch on a GPU, checked against NumPy first, and then timed.

Needs favorbench[torch]. It prints the device, the difference of float64 from NumPy for every map and method, and times,
memory and the share of the device's product rate. If a number differs, it exits with 1 and times nothing.
``--device cpu --quick`` is the short version that the tests run.
"""

import argparse
import functools
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.floor import Work
from benchmarks.tables import EXPERIMENTS, Made, studies
from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario, override
from favorbench.engine.study import Study
from favorbench.engine.trial import batches, run_draws
from favorbench.maps import MAPS, Sample, get_map
from favorbench.methods import METHODS, get_method, method_attention
from favorbench.numerics.arrays import Array, on_host
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import Rates, one_core
from favorbench.studies.speed import study as speed

TOLERANCE = 1e-10  # of the largest entry of an output

#: In addition to the registered ones. Pseudo-inverses amplify rounding by a condition number of thousands.
MORE_METHODS = ("clusters(lloyd=3)", "sinks(4):window(16):multipole", "top(4):positive")
LOOSE = {"nystromformer": 1e-7}


class Difference(NamedTuple):
    """The largest difference of an output from NumPy's, over its largest entry, and the allowed one."""

    name: str
    difference: float
    allowed: float = TOLERANCE


def differences(backend: Backend) -> Iterator[Difference]:
    """Every estimator, causal too where possible. Queries and keys are N(0, 1/4), so that no normaliser cancels."""
    rng = np.random.default_rng(0)
    arrays = 0.5 * rng.normal(size=(3, 256, 16))
    moved = [backend.array([array])[0] for array in arrays]

    def difference(here: Callable[..., Array], there: Callable[..., Array]) -> float:
        expected, actual = here(*arrays), on_host(there(*moved))
        return float(np.abs(actual - expected).max() / np.abs(expected).max())

    for causal, word in ((False, ""), (True, ", causal")):
        exact = functools.partial(exact_attention, causal=causal)
        yield Difference(f"exact{word}", difference(exact, exact))
        for name in [member.name for member in MAPS] + ["centre:aderf-sderf"]:
            if get_map(name).causal_safe or not causal:
                drawn = sample_omega("orthogonal", 32, 16, np.random.default_rng(1), map=name)
                sample = Sample(*(None if part is None else backend.array([part])[0] for part in drawn))
                linear = functools.partial(linear_attention, map=name, causal=causal)
                share = difference(*(functools.partial(linear, omega=o) for o in (drawn, sample)))
                yield Difference(name + word, share)
        for name in [member.name for member in METHODS] + list(MORE_METHODS):
            if get_method(name).causal_safe or not causal:
                method_output = functools.partial(method_attention, method=name, size=32, causal=causal)
                yield Difference(name + word, difference(method_output, method_output), LOOSE.get(name, TOLERANCE))


def seconds_of(made: list[Made], backend: Backend) -> float:
    """The time of every draw of some studies."""
    start = time.perf_counter()
    for study, draws in made:
        all_draws = plan(study)
        for batch in batches(all_draws, [draw.index for draw in draws], None):
            run_draws(study, batch)
    backend.synchronise()
    return time.perf_counter() - start


def on(backend: Backend, made: list[Made]) -> list[Made]:
    """The same studies on a device."""
    flags = {"backend": backend.name, "device": backend.device}
    moved = [Study.of(override(study.scenario, **flags)) for study, _ in made]
    return [(study, list(plan(study))) for study in moved]


def blogs_table(backend: Backend, draws: int) -> None:
    """The blog's table: time of a draw with NumPy on one core (15 draws), and on the device (``draws`` draws)."""
    here, there = studies(min(draws, 15), EXPERIMENTS), on(backend, studies(draws, EXPERIMENTS))
    warm = on(backend, studies(2, EXPERIMENTS))
    seconds_of(warm, backend)
    for _ in range(3):
        ours, theirs = 1e3 * seconds_of(here, Backend()) / min(draws, 15), 1e3 * seconds_of(there, backend) / draws
        print(f"  blog's table, {draws} draws: {theirs:.3g} ms a draw; NumPy {ours:.3g} ms; ratio {ours / theirs:.3g}")


def lengths(backend: Backend, exponents: range) -> None:
    """One draw of a long input with positive, trig and the default baselines; d = 64, R = 256, 1024 query rows."""
    flags = {"maps": "positive,trig", "num_projections": "256", "head_dim": "64", "trials": 1, "query_rows": 1024}
    flags |= {"backend": backend.name, "device": backend.device}
    for exponent in exponents:
        study = Study.of(load_scenario("quick", flags | {"seq_len": str(1 << exponent)}))
        made = [(study, list(plan(study)))]
        seconds_of(made, backend)
        with backend.peak_memory() as peak:
            seconds = min(seconds_of(made, backend) for _ in range(3))
        used = peak()
        memory = "" if used is None else f", {used / 2**30:.2f} GiB"
        print(f"  L = 2^{exponent}: {seconds:.3g} s{memory}")


def crossovers(backend: Backend, dtypes: list[str], longest: int) -> None:
    """The L from which estimators are faster than the fastest exact attention, including torch's fused one."""
    lengths_tried = [256 << i for i in range(12) if 256 << i <= longest]
    for dtype in dtypes:
        result = speed.study(
            ["positive", "trig"], [64, 256], lengths_tried, 64, 7, backend, dtype, methods=["clusters"]
        )
        for crossover in result.crossovers:
            since = "" if math.isnan(crossover.seq_len) else f"faster from L = {crossover.seq_len:.6g} on, "
            print(f"  {dtype}: {crossover.estimator}: {since}slope {crossover.slope:.2f}")
        last = {t.estimator: t for t in result.timings if t.seq_len == lengths_tried[-1]}
        for name, timing in last.items():
            print(f"  {dtype}, L = {lengths_tried[-1]}: {name}: {1e3 * timing.seconds:.3g} ms")


def share_of_products(backend: Backend, length: int) -> None:
    """The time of a table at the device's rates of large products and of exp, over its measured time."""
    torch = importlib.import_module("torch")
    flags = {"maps": "positive", "num_projections": "256", "head_dim": "64", "trials": 4, "seq_len": str(length)}
    made = on(backend, [(s := Study.of(load_scenario("quick", flags | {"baselines": "uniform"})), list(plan(s)))])
    for dtype in ("float64", "float32"):
        side = 4096 if backend.device != "cpu" else 1024
        square = torch.rand(side, side, dtype=getattr(torch, dtype), device=backend.device)
        values = torch.rand(1 << 22, dtype=getattr(torch, dtype), device=backend.device)
        products = best(lambda: square @ square, backend)  # noqa: B023
        exps = best(lambda: torch.exp(values), backend)  # noqa: B023
        rates = Rates(gemm=2.0 * side**3 / products, exp=values.numel() / exps, cos_sin=values.numel() / (2 * exps))
        print(f"  {dtype}: {rates.gemm / 1e12:.3g} Tflop/s in a {side}^3 product, {rates.exp / 1e9:.3g} G exp/s")
        if dtype == "float64":  # the precision of exact answers and, by default, of estimators
            seconds_of(made, backend)
            seconds = statistics.median(seconds_of(made, backend) for _ in range(3))
            least = sum(Work(study, draws).seconds(rates) for study, draws in made)
            print(
                f"  sweep of L = {length}: {seconds:.3g} s, products and exp alone {least:.3g} s: {least / seconds:.0%}"
            )


def best(call: Callable[[], object], backend: Backend) -> float:
    """The shortest of a few calls, in seconds."""
    seconds = []
    for _ in range(5):
        backend.synchronise()
        start = time.perf_counter()
        call()
        backend.synchronise()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="the short version: seconds, on any device")
    options = parser.parse_args()
    backend = Backend("torch", options.device)
    dtypes = ["float64", "float32", "bfloat16"] + (["tf32"] if options.device != "cpu" else [])
    backend.check(dtypes)
    torch = importlib.import_module("torch")
    print(f"{backend.describe()}; torch {torch.__version__}, CUDA {torch.version.cuda}, NumPy {np.__version__}")
    with one_core(), backend.precision("float64"), np.errstate(all="ignore"):
        wrong = 0
        for result in differences(backend):
            wrong += (off := not result.difference <= result.allowed)
            print(f"  {'WRONG' if off else 'ok':5} {result.difference:.1e} {result.name}")
        if wrong:
            sys.exit(f"{wrong} estimators differ from NumPy's")
        parts = (
            lambda: blogs_table(backend, 4 if options.quick else 1000),
            lambda: lengths(backend, range(10, 12) if options.quick else range(14, 21)),
            lambda: crossovers(backend, dtypes[1:], 512 if options.quick else 1 << 17),
            lambda: share_of_products(backend, 512 if options.quick else 8192),
        )
        for part in parts:
            part()


if __name__ == "__main__":
    main()
