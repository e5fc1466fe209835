"""Maps that are fitted to their data, and methods, against positive."""

import functools
import itertools
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.ratio import Ratio, seconds_of_call
from favorbench.attention.linear import attention_estimates, linear_attention, sample_omega
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.engine.study import sizes_of
from favorbench.maps import get_map
from favorbench.methods import METHODS, Method, Shape, get_method
from favorbench.numerics.streams import Streams
from favorbench.registry import label

METHOD_SPECS = [member.name for member in METHODS] + ["clusters(lloyd=3)", "sinks(4):window(64):multipole"]
#: The target of a method. Diagonals are not dense products: vertical-slash copies its keys for each query.
TARGETS = {"vertical-slash": 10.0}
FITTED = ("oprf", "saderf", "sderf", "aderf", "aderf-sderf", "centre:positive", "poisson", "geometric")


def data_dependent(runs: int) -> Iterator[Ratio]:
    """Maps that are fitted to their data against positive, interleaved."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1024, 64))
    omega = rng.standard_normal((256, 64))

    def seconds(name: str) -> float:
        feature_map = get_map(name)
        estimator = SampledMap(feature_map, feature_map.draw_extra(rng, 256, 64), (256,))
        start = time.perf_counter()
        list(attention_estimates(AttentionProblem.of(query, key, value), omega, [estimator]))
        return time.perf_counter() - start

    for name in FITTED:
        seconds(name)
        ratios = []
        for _ in range(runs):
            pairs = [(seconds(name), seconds("positive")) for _ in range(7)]
            ratios.append(min(a for a, _ in pairs) / min(b for _, b in pairs))
        yield Ratio(f"{name} / positive", ratios, 2.0, most=True)


def methods_at_equal_cost(length: int, runs: int) -> Iterator[Ratio]:
    """Every method against a map of as many multiplications, interleaved: d = 64, R = 256, causal where possible."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, length, 64))
    omega, factor = sample_omega("orthogonal", 256, 64, rng), 64**-0.25
    for causal, method in itertools.product((False, True), map(get_method, METHOD_SPECS)):
        if causal and not method.causal_safe:
            continue
        (sized,) = sizes_of(method, method.name, "cost", (256,), Shape(length, length, 64, 64, causal))
        problem = AttentionProblem(query * factor, key * factor, value, np.arange(length), causal)
        ours = functools.partial(run_once, method, problem, sized.size)
        theirs = functools.partial(linear_attention, query, key, value, omega, causal=causal)
        for call in (ours, theirs):  # warm up
            call()
        ratios = []
        for _ in range(runs):
            pairs = [(seconds_of_call(ours), seconds_of_call(theirs)) for _ in range(3)]
            ratios.append(min(a for a, _ in pairs) / min(b for _, b in pairs))
        word = ", causal" if causal else ""
        target = TARGETS.get(method.name, 3.0)
        yield Ratio(f"{label(method)}, m = {sized.size}{word} / positive, R = 256", ratios, target, most=True)


def run_once(method: Method, problem: AttentionProblem, size: int) -> None:
    """Compute the output of a method once."""
    list(method.estimates(problem, (size,), Streams.of(np.random.default_rng(0))))
