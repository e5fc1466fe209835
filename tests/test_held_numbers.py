"""What numeric functions return for every combination of a few arguments: ties, zeros, infinities and single values.

Other tests say what is right. These notice that something has changed where nobody expected it.
"""

import itertools
import math

import numpy as np
import pytest

from favorbench import statistics
from favorbench.engine.cost import _work, cost
from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.errors import FavorbenchError
from favorbench.kernels import (
    gaussian_kernel,
    monomial_features,
    polynomial_features,
    polynomial_kernel,
    squared_distance,
    squared_sum,
)
from favorbench.maps import get_map
from favorbench.methods import Shape, get_method
from favorbench.metrics import add, error_sums, metrics_of
from favorbench.numerics import arrays, logsum
from favorbench.samplers import get_sampler, laws
from favorbench.studies import closed_forms
from favorbench.studies.recommend import candidates, evidence, per_head
from tests.test_held import held, summed

RNG = np.random.default_rng(21)
TIES = [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 0.5]
SAMPLES = [
    [1.0], [2.0, 2.0], [0.0, 0.0, 1.0], TIES, [math.inf, 1.0, 2.0, 1.0], [math.nan, 1.0, 3.0], list(range(1, 26)),
    np.exp(RNG.normal(size=15)).round(2).tolist(), [math.inf] * 3,
]  # fmt: skip
PAIRS = [
    ([1.0], [1.0]), ([1.0], [2.0]), (TIES, TIES[::-1]), ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0]),
    ([math.inf, 1.0, math.nan, 2.0], [math.inf, 2.0, 1.0, math.inf]), (range(1, 13), range(2, 14)),
    (range(12, 0, -1), [6] * 12), *(np.exp(RNG.normal(size=(2, n))).round(1).tolist() for n in (5, 15)),
]  # fmt: skip
TOKENS = np.concatenate([RNG.normal(size=(3, 4)), np.zeros((1, 4)), np.ones((2, 4)), 3 * RNG.normal(size=(1, 4))])
POINTS = np.array([0.0, 1e-9, 0.01, 0.5, 1.0, 4.0, 30.0])
LOGITS = np.array([[0.0, 0.0, 1.0, -1.0], [5.0, 5.0, 5.0, 5.0], [-800.0, -800.0, -801.0, -900.0]])
SHAPES = [Shape(64, 64, 8, 6), Shape(64, 64, 8, 6, True), Shape(7, 300, 4, 2)]
MAPS = ["positive", "hyperbolic", "trig", "oprf", "saderf", "sderf", "poisson", "relu", "taylor", "maclaurin"]
LAWS = [
    "iid", "antithetic:iid", "antithetic:orthogonal", "orthogonal", "simplex", "orthogonal-sqrt-d", "norm-coupled",
    "moment-matched", "sobol", "orthogonal-qr",
]  # fmt: skip


def values(found):
    """Plain data, with infinities and what is no number by name; two sums over each of many numbers."""
    if isinstance(found, np.ndarray) and found.size > 16 and found.dtype == float:
        finite = np.isfinite(found)
        return [*summed(np.where(finite, found, 0.0)), int(np.sum(finite)), values(np.unique(found[~finite]))]
    if isinstance(found, np.ndarray | np.generic):
        return values(found.tolist())
    if isinstance(found, float):
        return float(f"{found:.10g}") if math.isfinite(found) else str(found)
    return [values(part) for part in found] if isinstance(found, list | tuple) else found


def grid(function, *arguments):
    """What a function returns, or what it says, for every combination of the arguments."""
    found = []
    for combination in itertools.product(*arguments):
        try:
            with np.errstate(all="ignore"):
                found.append(values(function(*combination)))
        except FavorbenchError as error:
            found.append(str(error))
    return found


def of_ratios(pair, factor, level):
    ratios = statistics.log_ratios(*(np.array(part, dtype=float) for part in pair))
    return [ratios.median, *ratios.interval(level), *ratios.p_values(factor)]


def errors(output, normaliser, row_sums, gradients):
    exact = TOKENS[:4, :2]
    uniform = error_sums(np.zeros((4, 2)), exact, gradients=gradients)
    sums = error_sums(output, exact, normaliser, exact + 0.25, row_sums, gradients)
    return [values(list(metrics_of(part, uniform).values())) for part in (sums, add(sums, uniform))]


COSTS = [[1.0, 2, 3, 4], [1.0, 1, 2, 2], [4.0, 3, 2, 1], [2.0, 2, 2, 2]]
EFFECTS = [[4.0, 3, 2, 1], [3.0, 3, 1, 1], [1.0, 1, 1, 1], [4, math.inf, 2, 2], [4.0, 1, 3, 0]]
OUTPUTS = [np.zeros((4, 2)), TOKENS[:4, :2], np.full((4, 2), np.nan), 0.5 * TOKENS[:4, :2]]
NORMALISERS = [None, np.ones((4, 1)), np.array([[1.0], [0.0], [-1.0], [np.inf]])]
WEIGHTS = [None, np.array([[1.0], [0.99], [1.01], [0.5]])]
GRADIENTS = [None, np.stack([TOKENS[:4, :2], TOKENS[:4, 1:3]])]


def fitted(spec):
    return get_map(spec).fit(TOKENS, TOKENS, None)


def medians():
    yield grid(statistics.median_interval, SAMPLES, (0.95, 0.5))
    yield grid(statistics.interval_name, range(1, 9))
    yield grid(statistics.fewest_draws, (0, 1, 2, 8, 9, 100), (0.95, 0.9375, 0.5))
    yield grid(lambda x: statistics.unbounded(statistics.bounded(np.array(x))), SAMPLES)
    yield grid(lambda x: statistics.mean_interval(np.array(x)), SAMPLES)
    yield grid(lambda x: statistics.sign_test(np.array(x) - 2), SAMPLES)
    yield grid(statistics.holm, [[0.01, 0.04, 0.03], [0.5] * 3, [1.0], []])
    yield grid(lambda pair, level: statistics.compare(*map(np.array, pair), level), PAIRS, (0.95, 0.5))
    yield grid(statistics.verdict, (0.0, 0.05, 0.5, 1.0), (-1.0, 0.0, 1.0), (0.95, 0.5))


def ratios():
    yield grid(of_ratios, PAIRS, (1.0, 1.05, 2.0), (0.95, 0.5))


def evidences():
    for function in (evidence.log_evidence_often, evidence.log_evidence_rarely):
        yield grid(function, (0, 1, 5, 9), (9, 20), (0.5, 0.9))
    yield grid(
        lambda *rule: [evidence.Rule(1.0, *rule).verdict(hits, 40) for hits in range(20, 41)], (0.5, 0.9), (0.1, 0.2)
    )
    yield grid(evidence.fewest_draws, (0.5, 0.9, 0.999), (0.05, 1e-3), (0, 3), (3, 9))
    yield grid(lambda x, p, alpha: evidence.certified_bound(np.array(x), p, alpha), SAMPLES, (0.5, 0.9), (0.05, 0.3))
    yield grid(lambda x, p: evidence.quantile(np.array(x), p), SAMPLES, (0.1, 0.5, 0.6, 0.9, 1.0))


def metrics():
    yield grid(errors, OUTPUTS, NORMALISERS, WEIGHTS, GRADIENTS)


def kernels():
    for function in (gaussian_kernel, squared_distance, squared_sum):
        yield grid(function, [TOKENS], [TOKENS[2:]])
    yield grid(polynomial_kernel, [TOKENS], [TOKENS], (0, 1, 3))
    yield grid(polynomial_features, [TOKENS[:3, :2]], (1, 3))
    yield grid(monomial_features, [TOKENS[:3, :2]], (0, 2))


def rows():
    def of(name, size, d):
        law, along, across = (
            get_sampler(name).row_law(size, d),
            np.outer(POINTS, np.eye(d)[0]),
            np.outer(POINTS, np.ones(d)),
        )
        return [law.laplace(along), law.cosh(across), law.characteristic(across)]

    yield grid(of, LAWS, (1, 8), (1, 4, 5))
    yield grid(laws.chi_quantile, [0.0, 1e-12, 0.3, 1 - 1e-12, 1.0], (1, 4))
    yield grid(laws.chi_upper_quantile, [1e-12, 0.3, 1.0], (1, 4))


def pairs():
    def of(name, size, d):
        found = get_sampler(name).pair_laws(size, d) or ()
        return [[str(law), count, law.sum(POINTS), law.difference(POINTS), law.even(POINTS)] for count, law in found]

    yield grid(of, LAWS, (1, 2, 7, 8), (2, 4))


def closed():
    x, y = TOKENS[:1] / 2, TOKENS[1:2] / 2
    for function in (closed_forms.relative_variance, closed_forms.declared_variance):
        yield grid(
            lambda spec, law, size, of=function: of(fitted(spec), get_sampler(law), x, TOKENS / 3, size),
            MAPS,
            LAWS,
            (2, 8),
        )
    yield grid(
        lambda spec, law, *most: closed_forms.projections_for(fitted(spec), get_sampler(law), x, y, *most),
        MAPS,
        LAWS,
        (0.1, 0.5),
        (10, 4096),
    )
    yield grid(lambda spec: closed_forms.draws_needed(fitted(spec), TOKENS[:4], TOKENS), MAPS)


def of_arrays():
    yield grid(arrays.cos_sin, [np.linspace(-7, 7, 9)])
    yield grid(arrays.softmax, [LOGITS])
    yield grid(arrays.log_softmax, [LOGITS], (0, -1))
    yield grid(
        arrays.indices_by_share, [np.array([0.5, 0.0, 0.25, 0.25])], [np.array([0.0, 0.49, 0.5, 0.75, 0.99, 1.0])]
    )
    yield grid(arrays.largest, [LOGITS + 0.1 * np.arange(4)], (1, 2, 4))
    yield grid(arrays.of_python, [range(3), (np.int64(1), [np.float32(2)]), "x"])
    yield grid(arrays.take_from, [np.arange(5.0)], [np.array([[0.0, 4.0], [2.0, 2.0]])])
    yield grid(lambda k: arrays.scattered(np.ones((2, k), bool), np.arange(2 * k).reshape(2, k) % 5, 5), (1, 2, 3))
    yield grid(
        arrays.rows_at,
        [np.arange(24.0).reshape(2, 4, 3)],
        [np.array([[0, 3], [1, 1]]), np.array([[[0], [3]], [[1], [2]]])],
    )


def tiles():
    def of(length, width, shape, group):
        found = logsum.tiles(length, width, np.zeros(shape), group)
        return [len(found), found[0].stop, found[-1].start, found[-1].stop]

    yield grid(of, (1, 1000, 5000, 300_000), (1, 64, 5000), ((2, 2), (3, 2, 2)), (1, 3))
    yield grid(lambda peak: logsum.near_zero(np.array([0.0, peak])), (0.0, -100.0, 139.0, 140.0, -141.0, 150.0))


def sizes():
    def split(costs, effects, budget):
        return per_head.allocate(np.array([costs, costs[::-1]]), np.array([effects, EFFECTS[0]]), budget)

    yield grid(candidates._run_name, ("a/b.c.npz", "gaussian(std=0.2)", 90 * "x"), (False, True))
    yield grid(candidates._finer_sizes, (0, 1, 15, 16, 100))
    for function in (per_head._front, per_head._hull):
        yield grid(lambda costs, effects, of=function: of(np.array(costs), np.array(effects)), COSTS, EFFECTS)
    yield grid(split, COSTS[:1], EFFECTS, (0, 2, 3, 5, 6, 9))
    yield grid(
        candidates.least_errors, [TOKENS, np.zeros((3, 2)), np.ones((3, 3))], ("mse", "relative_error", "effect")
    )
    yield grid(candidates.cheaper_from, map(get_method, ("clusters", "multipole", "block-sparse")), (1, 16), SHAPES[:2])


def plans():
    def of(causal, length, rows):
        flags = {"maps": "positive,taylor,trig", "samplers": "iid,orthogonal", "methods": "clusters,multipole"}
        sizes = {"num_projections": "4,16", "seq_len": length, "query_rows": rows, "head_dim": "4", "trials": 3}
        asked = plan(Study.of(load_scenario("quick", flags | sizes | {"causal": causal})))
        return [list(cost(asked))[:4], [list(_work(asked.study, shape)) for shape in asked.shapes]]

    yield grid(of, (False, True), ("32", "32,96"), (None, "8"))


@pytest.mark.parametrize(
    "numbers", [medians, ratios, evidences, metrics, kernels, rows, pairs, closed, of_arrays, tiles, sizes, plans]
)
def test_numbers_are_what_they_were(numbers):
    held(f"numbers: {numbers.__name__}", list(numbers()))
