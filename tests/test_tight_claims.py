"""Claims of members: shown by cases to hold where they are made, and not to hold where they are not."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import favorbench as fb
from favorbench.baselines import BASELINES
from favorbench.errors import InputError, ScenarioError
from favorbench.inputs import get_input
from favorbench.maps import MAPS, Sample, get_map
from favorbench.maps.base import FeatureMap
from favorbench.methods import METHODS, AttentionProblem, Method, Shape, clusters, get_method
from favorbench.methods.hashed import sampling_shares
from favorbench.methods.sampled import _kernel as halving_kernel
from favorbench.methods.summaries import KeySummaryMethod, Queries, Tokens
from favorbench.numerics.logsum import quotient
from favorbench.numerics.streams import Streams
from favorbench.samplers import SAMPLERS, get_sampler
from favorbench.samplers.laws import GaussianRows, OppositeRow
from favorbench.studies.verify import methods as verify
from tests.command_line import read_table
from tests.definitions import member
from tests.test_registry import LIMITS, check_limits

SPECS = [
    *(cls.name for cls in (*METHODS, *BASELINES)), "eva(form='mean')", "eva(form='released')", "pisa(order=1)",
    "multipole(cells='tree')", "multipole(block=16, segment=64)", "sampled-keys(weights='values')",
    "sinks(2):clusters", "window(5):sampled-keys", "top(1):clusters", "window(5):taylor(order=1)", "top(1):positive",
    "sinks(2):nothing", "top(1):taylor(order=1)",
]  # fmt: skip
ORACLES = ("best-rank", "top-keys")
NOT_BATCHED = {
    "host": ["nystrom", "wildcat", "uniform", "taylor-1", "taylor-2", "best-rank"],
    "single": ["top-keys", "multipole"],
}
EXACT = {claim.name: claim for claim in verify.EXACT_CLAIMS}
HALVES = "causal attention with it is refused: it would be another method"
#: Claims that are not made, or not shown by these cases, and why.
EXCEPTIONS = {
    ("taylor-2", "convex"): "1 + x + x^2 / 2 is never negative", ("wildcat", "convex"): "rarely shown",
    ("pisa(order=1)", "causal_safe"): HALVES, ("sampled-keys(weights='values')", "causal_safe"): HALVES,
    ("top(1):clusters", "causal_safe"): HALVES, ("top(1):positive", "causal_safe"): HALVES,
    ("top(1):taylor(order=1)", "causal_safe"): HALVES,
}  # fmt: skip


def tokens(length, seed=0, scale=0.7):
    """Queries that are the keys, in an order that shows: they fall along one axis."""
    key = scale * np.random.default_rng(seed).standard_normal((length, 6))
    key = key[np.argsort(-key[:, 0])]
    value = np.random.default_rng(seed + 1).standard_normal((length, 3)) + 3 * key[:, :3]
    return AttentionProblem(key.copy(), key, value, np.arange(length))


def outputs(method, problem, sizes=(1, 5, 16), seed=0):
    return [e.output for e in method.estimates(problem, sizes, Streams.of(np.random.default_rng(seed)))]


def differ(some, others):
    return any(np.max(np.abs(a - b)) > 1e-7 for a, b in zip(some, others, strict=True))


def holds(claim, method, causal=False, scales=(0.5, 1.5, 4.0)):
    """Whether a claim of ``verify`` holds to rounding."""
    problems = [verify._question(0, scale, 400 if causal else 48, causal) for scale in scales]
    return max(ratio for problem in problems for ratio in EXACT[claim].ratios(method, problem, 0)) <= 1


def is_causal_safe(method):
    try:
        return holds("future keys have no effect", method, causal=True)
    except InputError:
        return False


def order_matters(method):
    """In the mean of 300 outputs, where anything is random."""
    problem, order = tokens(32), np.random.default_rng(5).permutation(32)
    other = problem._replace(key=problem.key[order], value=problem.value[order])
    if not is_random(method):
        return differ(outputs(method, problem), outputs(method, other))
    asked = ((problem, range(300)), (other, range(300, 600)))
    drawn = [[outputs(method, one, (4,), seed)[0] for seed in seeds] for one, seeds in asked]
    both = np.concatenate([drawn, np.square(drawn)], axis=-1)
    (a, b), (da, db) = np.mean(both, axis=1), np.std(both, axis=1)
    return np.max(np.abs(a - b) / np.hypot(da, db) * 300**0.5) > 6  # one of 192 numbers: 4e-7


def is_random(method):
    return differ(outputs(method, tokens(32)), outputs(method, tokens(32), seed=1))


def needs_positions(method):
    problem = tokens(32)._replace(query=tokens(32).query[::3], positions=None)
    try:
        outputs(method, problem)
    except (InputError, TypeError, AttributeError):
        return True
    return False


def needs_all_rows(method):
    """Other answers for some queries alone."""
    problem, rows = tokens(32), np.arange(5, 29, 2)
    with contextlib.suppress(InputError):
        some = outputs(method, problem._replace(query=problem.query[rows], positions=rows))
        return differ(some, [output[rows] for output in outputs(method, problem)])


SHOWN = {
    "random": is_random,
    "every_size": lambda method: len(outputs(method, tokens(32))) == 3,
    "causal_safe": is_causal_safe,
    "convex": lambda method: holds("weighted means of values", method),
    "exact_at_full_size": lambda method: holds("exact at m = l", method),
    "permutation_invariant": lambda method: not order_matters(method),
    "needs_positions": needs_positions,
    "needs_all_rows": needs_all_rows,
}


@pytest.mark.parametrize("spec", SPECS)
def test_methods_claim_what_they_show_and_nothing_else(spec):
    method = member(spec)
    shown = {claim: bool(show(method)) for claim, show in SHOWN.items() if (spec, claim) not in EXCEPTIONS}
    assert shown == {claim: getattr(method, claim) for claim in shown}
    assert method.oracle == (spec in ORACLES or spec.startswith("top("))
    assert method.arrays == next((how for how, specs in NOT_BATCHED.items() if spec in specs), "batched")


@pytest.mark.parametrize("name", [method.name for method in METHODS if issubclass(method, KeySummaryMethod)])
def test_methods_inside_sinks_are_exact_where_all_keys_are_in_their_size(name):
    """verify asked sinks for as many keys as there are, and they take their own from these."""
    method = member(f"sinks(2):{name}")
    assert not method.exact_at_full_size or holds("exact at m = l", method)


SIDES = ("query_features", "key_features")
POINTS = 0.6 * np.random.default_rng(3).standard_normal((9, 3))
OMEGA = np.random.default_rng(4).standard_normal((6, 3))
MAP_SPECS = [
    *(cls.name for cls in MAPS), "centre:positive", "oprf(rho=0.5)", "poisson(rate=1.0)", "geometric(p=0.5)",
    "taylor(order=3)", "maclaurin(exact=2)", "tensorsketch(degree=4)", "calibrated:centre:oprf",
]  # fmt: skip


#: The papers give queries and keys different features.
ASYMMETRIC = ("saderf", "aderf", "aderf-sderf", "hybrid", "centre:positive", "centre:oprf")


def some_map(spec):
    return fb.calibrate(POINTS, 2 * POINTS + 1, spec) if spec.startswith("calibrated") else get_map(spec)


def features(feature_map, points=POINTS, side="key_features", seed=0, omega=OMEGA, fitted=POINTS, sign=1.0):
    """Blocks of features of some points, by a map that is fitted to others. sign: of everything that is drawn."""
    extra = feature_map.draw_extra(np.random.default_rng(seed), len(omega), points.shape[-1])
    sample = Sample(sign * omega, extra if extra is None else sign * extra)
    ready = feature_map.fit(fitted, fitted, sample.omega)
    blocks = getattr(ready, side)(points, points @ sample.omega.T, sample)
    return [np.exp(b.log_scale) * (1.0 if b.values is None else b.values) for b in blocks]


def is_positive(feature_map):
    asked = [(side, seed) for side in SIDES for seed in range(9)]
    return all(np.min(b) >= 0 for side, seed in asked for b in features(feature_map, 3 * POINTS, side, seed))


def is_unbiased(feature_map):
    points = 3.0 * POINTS
    kernel = feature_map.with_parameters(points, points).target_kernel(points, points, GaussianRows())
    return np.allclose(kernel, np.exp(points @ points.T), rtol=1e-9)


def depends_on_others(feature_map):
    return any(
        differ(*(features(feature_map, side=side, fitted=fitted) for fitted in (POINTS, 2 * POINTS + 1)))
        for side in SIDES
    )


def is_nested(feature_map):
    few, many = (features(feature_map, omega=OMEGA[:size]) for size in (3, 6))
    return not differ(few, [block[:, : part.shape[-1]] for part, block in zip(few, many, strict=True)])


def is_even(feature_map):
    query, key = ([np.concatenate(features(feature_map, side=s, sign=x), axis=-1) for x in (1, -1)] for s in SIDES)
    return np.allclose(query[0] @ key[0].T, query[1] @ key[1].T)


def needs_omega(feature_map):
    """Other parameters for another omega, or none without."""
    try:
        feature_map.fit(POINTS, POINTS, None)
    except (AssertionError, AttributeError, TypeError):
        return True
    return False


MAPS_SHOW = {
    "nonnegative": is_positive,
    "unbiased": is_unbiased,
    "causal_safe": lambda feature_map: not depends_on_others(feature_map),
    "data_dependent": depends_on_others,
    "nested": is_nested,
    "own_sample": lambda feature_map: not differ(features(feature_map), features(feature_map, omega=2 * OMEGA)),
    "even": is_even,
    "fit_needs_omega": needs_omega,
    "features_per_projection": lambda feature_map: feature_map.num_features(6, 3) - feature_map.num_features(5, 3),
}


@pytest.mark.parametrize("spec", MAP_SPECS)
def test_maps_claim_what_they_show_and_nothing_else(spec):
    feature_map = some_map(spec)
    useless = {"own_sample"} if not feature_map.features_per_projection else set()  # where nothing is drawn
    if feature_map.with_parameters(POINTS, POINTS).pair_argument(POINTS, POINTS) is None:
        useless.add("even")  # where the law of two rows is not known
    known = {claim: claim not in useless and show(feature_map) for claim, show in MAPS_SHOW.items()}
    assert known == {claim: getattr(feature_map, claim) for claim in known}
    assert feature_map.data_dependent or feature_map.fit_multiplications(5, 9, 3) == 0
    assert feature_map.asymmetric == (spec.removeprefix("calibrated:").partition("(")[0] in ASYMMETRIC)
    assert feature_map.outermost == spec.startswith("calibrated:")


@pytest.mark.parametrize("spec", MAP_SPECS)
def test_closed_forms_take_fewer_queries_than_keys(spec):
    feature_map = some_map(spec).with_parameters(POINTS, POINTS[::-1])
    assert feature_map.target_kernel(POINTS, POINTS, GaussianRows()).shape == (9, 9)
    for form in (
        lambda x, y: feature_map.target_kernel(x, y, GaussianRows()),
        lambda x, y: feature_map.relative_variance(x, y, 4),
        feature_map.pair_argument,
        lambda x, y: feature_map.pair_moment(x, y, OppositeRow(GaussianRows(), 3)),
    ):
        whole, part = (form(x, 0.7 * POINTS[::-1] + 0.1) for x in (POINTS, POINTS[2:6]))
        assert (whole is None) == (part is None)
        if part is not None:
            assert part.shape == (4, 9)
            assert_allclose(part, whole[2:6], rtol=1e-12)


#: A sampler: its coupling, the fewest rows that show it at d = 3 and 4, the least R from 1 and from 7 on at d = 3,
#: whether its rows are Gaussian, and whether the first of more rows are the same.
SAMPLERS_BY_HAND = """
    iid => independent 4 5 1 7 True True
    orthogonal => orthogonal 4 5 1 7 True True
    gram-schmidt => orthogonal 4 5 1 7 True True
    orthogonal-sqrt-d => orthogonal 4 5 1 7 False True
    sorf => orthogonal 4 5 1 7 False True
    simplex => simplex 4 5 1 7 True True
    simplex-plus => simplex, fitted to the norms 4 5 1 7 True True
    norm-coupled => orthogonal, norms in couples 4 5 1 7 True True
    stratified-norms => orthogonal, norms stratified 4 5 1 7 True False
    sobol => low-discrepancy 16 16 1 7 True True
    halton => low-discrepancy 5 7 1 7 True True
    moment-matched => moment-matched 16 20 4 7 False False
    orthogonal-qr => orthogonal 4 5 1 7 False True
    orthogonal-blog => orthogonal 4 5 1 7 False False
    antithetic:iid => antithetic 8 10 2 8 True True
    antithetic:stratified-norms => antithetic 8 10 2 8 True False
    antithetic:moment-matched => antithetic 32 40 8 8 False False
    antithetic:antithetic:halton => antithetic 20 28 4 8 True True
"""
BY_HAND = dict(read_table(SAMPLERS_BY_HAND))


def test_every_sampler_is_in_the_table():
    assert {sampler.name for sampler in SAMPLERS} == {name for name in BY_HAND if ":" not in name}


@pytest.mark.parametrize("spec", BY_HAND)
def test_samplers_claim_what_they_show_and_nothing_else(spec):
    sampler, coupling = get_sampler(spec), get_sampler(spec).coupling
    least = [coupling.fewest_rows(3), coupling.fewest_rows(4), sampler.round_up(1, 3), sampler.round_up(7, 3)]
    assert " ".join(map(str, [coupling, *least, sampler.gaussian_rows, sampler.nested])) == BY_HAND[spec]
    size, rng = sampler.round_up(4, 4), np.random.default_rng(0)
    rows = np.array([sampler.sample(rng, size, 4)[0] for _ in range(400)])
    norms, first = stats.kstest(np.sum(rows**2, axis=-1), stats.chi2(4).cdf), stats.kstest(rows[:, 0], "norm")
    assert (min(norms.pvalue, first.pvalue) > 1e-6) == sampler.gaussian_rows
    few, many = (sampler.sample(np.random.default_rng(1), count, 4) for count in (size, 2 * size))
    assert np.allclose(few, many[:size]) == sampler.nested


#: The parameters of every member that has some, and their defaults.
DEFAULTS = """
    hybrid => n=4
    poisson => rate=None
    geometric => p=None
    oprf => rho=None
    maclaurin => law='geometric' mean=1.0 vectors='rademacher' exact=0 degree=20
    tensorsketch => degree=3 exact=1
    taylor => order=2
    relu => eps=0.001
    exp-tutorial => eps=1e-06
    positive-eps => eps=0.0001
    clusters => points='random' lloyd=0 order=1
    multipole => exact=0.5 points='random' lloyd=0 block=1 cells='random' segment=512
    nystrom => guard='none'
    wildcat => guard='none'
    nystromformer => inverse='newton' steps=6
    monarch => steps=1
    thinformer => delta=0.5
    eva => window=0.5 form='drawn'
    hyperattention => block=0.25 projections=7
    kdeformer => block=0.25 projections=7
    block-sparse => group=64 block=64
    vertical-slash => group=64 columns=0.5 rows=16
    xattention => group=64 block=64 stride=8
    spargeattn => group=64 block=64 similarity=0.6
    pbs-attn => group=64 block=64 segment=256 rows=16
    pisa => group=64 block=64 order=0
    sampled-keys => weights='uniform'
"""


@pytest.mark.parametrize("cls", [*MAPS, *SAMPLERS, *METHODS, *BASELINES], ids=lambda cls: cls.name)
def test_defaults_and_limits_of_parameters_are_written(cls):
    """Runs know their estimators by these names: another default would be another estimator under the same one."""
    written, shape, made = dict(read_table(DEFAULTS)), Shape(8, 8, 4, 4), cls()
    fields = [f"{field.name}={field.default!r}" for field in dataclasses.fields(cls) if field.init]
    assert " ".join(fields) == written.get(cls.name, "")
    for line, above in LIMITS:
        if line.split()[0] == cls.name:
            check_limits(line, above)
    for parameter in {"rho", "rate", "mean", "eps", "delta"} & vars(made).keys():
        cls(**{parameter: 5e-324}), cls(**{parameter: MOST.get(parameter, 1e300)})
        for wrong in (0, -1e-9, math.inf, *(math.nextafter(one, 1e9) for one in [MOST.get(parameter)] if one)):
            with pytest.raises(ScenarioError, match=f"{parameter} must be a positive number"):
                cls(**{parameter: wrong})
    if issubclass(cls, Method):
        assert made.multiplications(shape, 4) is not None
    elif issubclass(cls, FeatureMap):
        assert features(made)
    else:
        assert made.sample(np.random.default_rng(0), 8, 4).shape == (8, 4)


#: The largest of those positive numbers that have a limit.
MOST = {"delta": 1, "rate": 256}

SUMMARISED = [spec for spec in SPECS if isinstance(member(spec), KeySummaryMethod) and member(spec).arrays == "batched"]


@pytest.mark.parametrize("spec", [*SUMMARISED, "pisa(order=1, group=4, block=3)", "block-sparse(group=4, block=3)"])
def test_kernel_estimates_of_heads_together_are_those_of_each_alone(spec, rng):
    """All sizes differ: 2 heads, 13 queries, 29 keys, 5 dimensions, 3 of values."""
    method, at = member(spec), np.arange(3, 29, 2)
    query, key, value = (rng.normal(size=shape) for shape in ((2, 13, 5), (2, 29, 5), (2, 29, 3)))
    stacks = [Streams([np.random.default_rng(i) for i in range(2)], np.stack)]
    stacks += [Streams.of(np.random.default_rng(i)) for i in range(2)]
    found = []
    for heads, streams in zip((slice(None), 0, 1), stacks, strict=True):
        queries = Queries(query[heads], at)
        (summary,) = method.summaries(Tokens(key[heads], value[heads]), queries, (9,), streams)
        kernel, sums = summary.kernel(queries, slice(4, 15)), quotient(summary.sums(queries))[0]
        found.append((np.exp(kernel.log_scale) * (1.0 if kernel.values is None else kernel.values), sums))
    for i in range(2):
        for together, alone in zip(found[0], found[1 + i], strict=True):
            assert alone.shape in ((13, 11), (13, 3))
            assert_allclose(together[i], alone, rtol=1e-9, atol=1e-12)


NESTED = ("nystrom(guard='cells')", "sinks(2):wildcat(guard='cells')", "window(5):sinks(2):trig")


@pytest.mark.parametrize("spec", [*(spec for spec in SPECS if isinstance(member(spec), KeySummaryMethod)), *NESTED])
def test_sums_are_those_of_kernel_estimates(spec):
    assert holds("sums are those of its kernel", member(spec))


def test_the_laws_that_sample_keys_by_hand():
    """Keys of kdeformer, and the kernel of thinformer, at values of different norms."""
    value = np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0], [-4.0, 0.0]])  # singular values 5 and 2
    assert_allclose(sampling_shares(value), np.array([3 / 5, 2 / 5, 0, 4 / 5]) / 2.8 + 0.25 / 2.8 * np.ones(4))
    key = np.array([[1.0, 0.0], [0.5, 1.0], [0.0, -1.0], [2.0, 0.0]])
    found = halving_kernel(key, value, np.full((1, 1), 16.0))
    assert_allclose(found / found[0, 0], np.exp(key @ key.T - 1) * (value @ value.T + 16) / 25, rtol=1e-12)


@pytest.mark.parametrize("delta", [0.5, 0.05])
def test_where_thinformer_keeps_the_second_key_of_a_pair(delta):
    """Of four keys in one bucket, after the first of them was kept: from p = 1/2 - <S, f> / (2 a) on."""
    key, value = np.array([[0.3], [-0.4], [0.5], [-0.2]]), np.array([[1.0], [-1.0], [2.0], [0.5]])
    kernel = np.exp(key @ key.T) * (value @ value.T + 4)
    s, f = np.array([1, -1, 0, 0]), np.array([0, 0, 1, -1])
    norms = np.sqrt([s @ kernel @ s, f @ kernel @ f])
    lean = s @ kernel @ f / (norms[1] * norms.max() * (0.5 + math.log(2 * 4 / delta)))
    for uniform, second in ((0.5 + lean / 2 + 1e-9, 2), (0.5 + lean / 2 - 1e-9, 3)):
        choices = np.array([0.9, uniform])
        kept = get_method(f"thinformer(delta={delta})").kept(Tokens(key, value), 2, choices, np.ones(1))
        assert [*kept] == [0, second]


@pytest.mark.parametrize("std", [5e-324, 1, 0.5, 1e6])
def test_a_standard_deviation_is_above_0_and_at_most_a_million(std):
    assert get_input(f"gaussian(std={std})").std == std


@pytest.mark.parametrize("std", ["0", "0.0", "-1", "-1e-9", "1000000.1", "1e9", "None", "'1'"])
def test_other_standard_deviations_are_refused(std):
    with pytest.raises(ScenarioError, match="std"):
        get_input(f"gaussian(std={std})")


@pytest.mark.parametrize("share, kept", [(0.9, 1), (1.1, 2)])
def test_a_landmark_that_is_only_rounding_is_left_out(monkeypatch, share, kept):
    """What one leaves of the other is a share of 4 eps (n + |y|^2), with n = 2 points of 400 entries of 10."""
    similar = math.sqrt(1 - share * 4 * (2 + 400 * 10**2) * 2.0**-52)
    monkeypatch.setattr(clusters, "gaussian_kernel", lambda *_: np.array([[1.0, similar]]))
    found = clusters.pivoted_cholesky(np.full((2, 400), 10.0), 2, lambda residual, step: step)
    assert len(found.chosen) == kept
