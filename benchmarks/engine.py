"""The sweep against slower programs for the same table, another library, and its matrix products alone."""

import importlib.util
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import floor, peer, plain
from benchmarks.ratio import Ratio, seconds_of_call, spread
from benchmarks.tables import Made, studies
from favorbench.attention.exact import softmax_attention
from favorbench.attention.problem import AttentionProblem
from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.engine.trial import run_draws
from favorbench.numerics.machine import Rates


def sweep_table(study: Study, draws: list[Draw]) -> plain.Table:
    rows = [row for draw in draws for row in run_draws(study, [draw])[0] if row["kind"] == "map"]
    return {(row["trial"], row["estimator"], row["sampler"], row["num_projections"]): row["mse"] for row in rows}


def timed(table: Callable, made: list[Made]) -> tuple[float, dict]:
    start = time.perf_counter()
    errors = {}
    for i, (study, draws) in enumerate(made):
        errors |= {(i, *key): mse for key, mse in table(study, draws).items()}
    return time.perf_counter() - start, errors


def side_by_side(name: str, slow: Callable, made: list[Made], runs: int, target: float) -> Iterator[Ratio]:
    """Time a slower program and the sweep, interleaved, and compare their tables."""
    timed(sweep_table, [(study, draws[:1]) for study, draws in made])  # the first call pays for imports
    pairs = [(timed(slow, made), timed(sweep_table, made)) for _ in range(runs)]
    (_, theirs), (_, ours) = pairs[0]
    assert ours.keys() == theirs.keys()
    difference = np.array([abs(np.log(ours[key] / theirs[key])) for key in theirs])
    print(f"{name}, s: {spread([a for (a, _), _ in pairs])}; favorbench, s: {spread([b for _, (b, _) in pairs])}")
    print(f"  same table: median difference {np.median(difference):.1e}, largest {difference.max():.1e} (of log mse)")
    yield Ratio(f"{name} / favorbench", [a / b for (a, _), (b, _) in pairs], target)


def against_peer(trials: int, runs: int) -> Iterator[Ratio]:
    """The library a user would pick, in two precisions; its eps changes the numbers, so tables are close, not equal."""
    if not peer.installed():
        print("performer-pytorch is not installed (pip install 'favorbench[audit]'): not compared")
        return
    for dtype, target in (("float64", 12.0), ("float32", 6.0)):
        made = studies(trials, ({**peer.TABLE, "dtype": dtype},))
        yield from side_by_side(f"performer-pytorch, {dtype}", peer.table, made, runs, target)


def against_floor(made: list[Made], runs: int) -> Iterator[Ratio]:
    """The sweep against its own matrix products and transcendental functions at the current rates of the machine."""
    by_product: dict[str, list[float]] = {}
    for _ in range(2 * runs):
        seconds, _ = timed(sweep_table, made)
        for name, machine in floor.measured_rates().items():
            least = sum(floor.Work(study, draws).seconds(machine) for study, draws in made)
            by_product.setdefault(name, []).append(seconds / least)
            print(f"  {name}: {described(machine)}; floor {least:.3f} s, favorbench {seconds:.3f} s")
    for name, ratios in by_product.items():
        yield Ratio(f"favorbench / floor, products {name}", ratios, 1.9, most=True)


def described(machine: Rates) -> str:
    return (
        f"{machine.gemm / 1e9:.1f} GFLOP/s, exp {machine.exp / 1e9:.2f} G/s, "
        f"cos and sin {machine.cos_sin / 1e9:.2f} G pairs/s"
    )


def against_torch(largest: int, runs: int) -> Iterator[Ratio]:
    """Exact attention against torch's fused attention, interleaved on one thread: d = 64, both precisions."""
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed (pip install 'favorbench[torch]'): exact attention is not compared with it")
        return
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for dtype, exponent in ((t, e) for t in (np.float64, np.float32) for e in range(10, largest + 1)):
        arrays = rng.standard_normal((3, 1 << exponent, 64)).astype(dtype)
        tensors = [torch.from_numpy(array)[None, None] for array in arrays]

        def ours(arrays: np.ndarray = arrays) -> object:
            query, key, value = arrays
            return softmax_attention(AttentionProblem(query * 64**-0.5, key, value))

        def theirs(tensors: list = tensors) -> object:
            with torch.inference_mode():
                return torch.nn.functional.scaled_dot_product_attention(*tensors)

        pairs = [(seconds_of_call(ours), seconds_of_call(theirs)) for _ in range(1 + runs)][1:]  # the first warms up
        name = f"exact attention / torch's, {np.dtype(dtype).name}, L = {1 << exponent}"
        yield Ratio(name, [a / b for a, b in pairs], 1.15, most=True)
