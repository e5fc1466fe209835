"""Maclaurin features, tensor sketches and Taylor features against enumeration; parameters, and the gate."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import i0

import favorbench as fb
from favorbench.errors import ScenarioError
from favorbench.kernels import polynomial_features
from favorbench.maps import Sample, get_map
from favorbench.maps.polynomial import sketch_variance
from favorbench.samplers import get_sampler
from favorbench.samplers.base import GaussianRows
from favorbench.studies.closed_forms import draws_needed, relative_variance
from tests.command_line import read_table
from tests.conftest import pairs

ROWS = GaussianRows()


def moments(feature_map, x, y, samples, weights):
    """Mean and relative variance of the estimate of one projection, over all samples with their probabilities."""
    values = np.stack([fb.kernel_estimate(x, y, sample, feature_map) for sample in samples])
    mean = np.tensordot(weights, values, axes=1)
    return mean, np.tensordot(weights, values**2, axes=1) - mean**2


@pytest.mark.parametrize("exact", [0, 1, 2])
@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_maclaurin_by_enumeration_of_degrees_and_signs(rng, law, exact):
    """All degrees up to 3 and all sign vectors in two dimensions, each sample with its probability."""
    feature_map = get_map(f"maclaurin(law={law!r}, mean=0.8, exact={exact}, degree=3)")
    x, y = pairs(rng)
    n = np.arange(exact, 4)
    weights = stats.poisson(0.8).pmf(n) if law == "poisson" else (0.8 / 1.8) ** n
    samples, probabilities = [], []
    for degree, weight in zip(n, weights / weights.sum(), strict=True):
        for signs in itertools.product((-1.0, 1.0), repeat=2 * int(degree)):
            extra = np.zeros((1, 3, 3))
            extra[0, :degree, :2] = np.reshape(signs, (degree, 2))
            extra[0, degree:, 2] = 1.0
            samples.append(Sample(np.zeros((1, 2)), extra))
            probabilities.append(weight / 4.0**degree)
    mean, variance = moments(feature_map, x, y, samples, np.array(probabilities))
    series = sum((x @ y.T) ** k / math.factorial(k) for k in range(4))
    assert_allclose(mean, series, rtol=1e-12)
    assert_allclose(feature_map.target_kernel(x, y, ROWS), series, rtol=1e-12)
    assert_allclose(feature_map.relative_variance(x, y, 7), variance / series**2 / 7, rtol=1e-9, atol=1e-13)


def test_maclaurin_draws_the_enumerated_terms():
    """Degrees by chi-square, signs and normals by their moments, both laws; what follows the degree is [0, 1]."""
    for law, vectors in (("geometric", "rademacher"), ("poisson", "gaussian")):
        feature_map = get_map(f"maclaurin(law={law!r}, vectors={vectors!r}, mean=1.5, exact=1, degree=6)")
        extra = feature_map.draw_extra(np.random.default_rng(0), 20_000, 3)
        degrees = 6 - extra[..., -1].sum(axis=-1).astype(int)
        n = np.arange(1, 7)
        weights = stats.poisson(1.5).pmf(n) if law == "poisson" else 0.6**n
        expected = 20_000 * weights / weights.sum()
        assert stats.chisquare(np.bincount(degrees, minlength=7)[1:], expected).pvalue > 1e-7
        used = np.arange(6) < degrees[:, None]
        w = extra[used][:, :3]
        assert np.all(extra[~used] == [0, 0, 0, 1]) and np.all(extra[used][:, 3] == 0)
        assert set(np.unique(w)) == {-1.0, 1.0} or stats.kstest(w.ravel(), "norm").pvalue > 1e-7
        assert np.all(np.abs(w.T @ w / len(w) - np.eye(3)) < 5.5 * np.sqrt(2 / len(w)))


def test_second_moments_of_maclaurin_are_the_closed_forms():
    """E Z^2: 2 I0(2 sqrt(2 s)) for P(n) = 2^-(n+1); exp(mu + s/mu) for Poisson(mu), best at mu = sqrt s."""
    x, y = np.array([[0.8, 0.3, -0.5]]), np.array([[0.4, -0.2, 0.9]])
    t = float((x @ y.T).item())
    for vectors, extra in (("rademacher", -2.0 * float(np.sum((x * y) ** 2))), ("gaussian", 0.0)):
        s = float(np.sum(x * x) * np.sum(y * y)) + 2.0 * t**2 + extra

        def second(spec, vectors=vectors):
            feature_map = get_map(f"maclaurin(vectors={vectors!r}, {spec}, degree=50)")
            return (float(feature_map.relative_variance(x, y, 1).item()) + 1.0) * math.exp(2.0 * t)

        assert second("law='geometric'") == pytest.approx(2.0 * i0(2.0 * math.sqrt(2.0 * s)), rel=1e-12)
        for mu in (0.5, 1.0, math.sqrt(s)):
            assert second(f"law='poisson', mean={mu!r}") == pytest.approx(math.exp(mu + s / mu), rel=1e-12)
        assert second(f"law='poisson', mean={math.sqrt(s)!r}") == pytest.approx(math.exp(2.0 * math.sqrt(s)), rel=1e-12)


@pytest.mark.parametrize(
    "dim, size, degree", [(2, 2, 2), (2, 3, 2), (2, 2, 3), (3, 3, 1), (2, 4, 2), (2, 5, 2), (2, 3, 3)]
)
def test_sketch_variance_by_enumeration_of_all_hashes(rng, dim, size, degree):
    """All buckets and signs; and, for degree 2, the sum of Pham & Pagh 2013 over colliding buckets, multiplied out."""
    feature_map = get_map(f"tensorsketch(degree={degree}, exact={degree})")
    x, y = rng.normal(size=(2, 2, dim))
    values = [s * (h + 1.0) for s in (-1, 1) for h in range(size)]
    all_rows = np.array(list(itertools.product(values, repeat=degree * dim))).reshape(-1, degree, dim)
    estimates = fb.kernel_estimate(x, y, Sample(np.zeros((len(all_rows), size, dim)), all_rows), feature_map)
    target = feature_map.target_kernel(x, y, ROWS)
    assert_allclose(estimates.mean(axis=0), target, rtol=1e-10, atol=1e-10)
    variance = sketch_variance(x, y, degree, size)
    assert_allclose(estimates.var(axis=0) * math.factorial(degree) ** 2, variance, rtol=1e-9)
    assert_allclose(
        feature_map.relative_variance(x, y, size), variance / math.factorial(degree) ** 2 / target**2, rtol=1e-12
    )
    e, square = (x * x) @ (y * y).T, (x @ y.T) ** 2
    p, q = np.sum(x * x, -1)[:, None] * np.sum(y * y, -1) - e, square - e
    kappa = (2 - size % 2) / size**2
    degree_two = (2.0 * square * (p + q) + p**2 + q**2) / size + 2.0 * kappa * p * q
    if degree == 2:
        assert_allclose(variance, degree_two, rtol=1e-12)


def test_tensorsketch_draws_the_enumerated_hashes():
    """Both signs and all buckets are equally likely, in each sketch and in two together; a bucket that is never used
    changes the variance by less than verify can see."""

    def p_value(buckets):
        extra = get_map("tensorsketch").draw_extra(np.random.default_rng(0), buckets, 20_000).astype(int)
        outcomes = np.where(extra > 0, extra - 1, 4 - extra)  # 0 to 4, and 5 to 9 for the other sign
        counts = np.bincount(10 * outcomes[0] + outcomes[1], minlength=100)
        return min(stats.chisquare(counts).pvalue, *(stats.chisquare(np.bincount(o)).pvalue for o in outcomes))

    assert p_value(5) > 1e-7 > p_value(4)


def test_taylor_features_do_not_overflow_and_state_their_cost(rng):
    x = np.array([[3e12, -2e12, 1e12]], dtype=np.float32)
    blocks = get_map("taylor(order=4)").features(x, x, Sample(x))
    assert all(np.all(np.isfinite(block.log_scale)) and np.all(np.abs(block.values) <= 1) for block in blocks)
    assert sum(block.values.shape[-1] for block in blocks) == get_map("taylor(order=4)").num_features(1, 3) == 35
    zero = np.zeros((1, 3))
    assert_array_equal(fb.kernel_estimate(zero, zero, zero, "taylor"), [[1.0]])
    assert_array_equal(polynomial_features(zero, degree=2), np.zeros((1, 6)))


@pytest.mark.parametrize("spec, said", read_table("""
    oprf(rho=0) => rho must be a positive number
    oprf(rho=-1) => rho must be a positive number
    oprf(rho=1e999) => rho must be a positive number
    oprf(rho='a') => rho must be a positive number
    oprf(rho=nan) => values are numbers
    hybrid(n=0) => n must be a whole number from 1
    poisson(rate=0) => rate must be a positive number
    geometric(p=1.0) => p must be a number from
    geometric(p=True) => p must be a number from
    maclaurin(law='zipf') => law must be 'geometric' or 'poisson', got 'zipf'
    maclaurin(vectors='normal') => vectors must be 'rademacher' or 'gaussian'
    maclaurin(mean=-1) => mean must be a positive number
    maclaurin(exact=5, degree=4) => degree must be
    tensorsketch(exact=0) => exact must be a whole number from 1
    relu(eps=0) => eps must be a positive number
    tensorsketch(degree=1, exact=2) => degree must be a whole number from 2
    taylor(order=-1) => order must be
"""))  # fmt: skip
def test_bad_parameters_are_named(spec, said):
    with pytest.raises(ScenarioError, match=said):
        get_map(spec)


def test_maps_without_pair_terms_have_a_gate_from_their_second_moment():
    """As hard to sample as exp(w.z) of equal second moment: for positive itself that is the same number."""
    x, y = np.array([[0.5, 0.2]]), np.array([[0.1, 0.4]])

    class NoPairs(type(get_map("positive"))):
        def pair_argument(self, x, y):
            return None

    assert_allclose(draws_needed(NoPairs(), x, y), draws_needed(get_map("positive"), x, y), rtol=1e-12)
    assert relative_variance(get_map("hybrid"), get_sampler("orthogonal"), x, y, 4) is None
    assert math.isnan(draws_needed(get_map("trig-blog"), x, y).item())  # nothing is known
