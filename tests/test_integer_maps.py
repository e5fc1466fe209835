"""Maps with integer exponents against enumeration, their own formula and a grid of parameters."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import favorbench as fb
from favorbench.maps import get_map
from favorbench.maps.integer import MEAN_LIMIT
from favorbench.samplers.base import GaussianRows
from favorbench.studies.verify import REFUTED
from favorbench.studies.verify.controls import checks
from tests.conftest import pairs

ROWS = GaussianRows()


def integer_law(feature_map, x, dim):
    """The law of one exponent, as (numbers, probabilities), written down from its definition."""
    k = np.arange(60)
    if feature_map.name == "poisson":
        return k, stats.poisson(feature_map.parameter(dim)).pmf(k)
    return k, stats.geom(feature_map.parameter(dim), loc=-1).pmf(k)


@pytest.mark.parametrize("spec", ["poisson", "poisson(rate=0.8)", "geometric", "geometric(p=0.4)"])
def test_integer_maps_have_the_mean_and_the_variance_they_declare(rng, spec):
    """By enumeration of all exponents in two dimensions, from the formula of the features; 0^0 = 1."""
    feature_map = get_map(spec)
    x, y = pairs(rng)
    numbers, p = integer_law(feature_map, x, 2)
    per_coordinate = []
    for a, b in ((x[:, i][:, None], y[:, i]) for i in range(2)):
        phi = np.sqrt(np.array([float(math.factorial(k)) for k in numbers]) * p)
        values = (a[..., None] ** numbers / phi) * (b[..., None] ** numbers / phi)
        per_coordinate.append((np.sum(p * values, axis=-1), np.sum(p * values**2, axis=-1)))
    mean, second = (np.prod([m[i] for m in per_coordinate], axis=0) for i in (0, 1))
    assert_allclose(mean, np.exp(x @ y.T), rtol=1e-12)
    assert_allclose(feature_map.target_kernel(x, y, ROWS), mean, rtol=1e-12)
    assert_allclose(feature_map.relative_variance(x, y, 5), (second / mean**2 - 1) / 5, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["poisson", "geometric"])
def test_the_fit_is_optimal(rng, name):
    """Against a fine grid: of the mean log second moment for poisson; of the declared bound of it for geometric."""
    x, y = rng.normal(size=(40, 6)) * 1.3, rng.normal(size=(30, 6)) * 0.4 + 0.2
    fitted = float(get_map(name).fit(x, y, x).fitted.values.item())
    grid = np.geomspace(fitted / 1.5, min(fitted * 1.5, 0.999), 301) if name == "geometric" else fitted * np.geomspace(
        0.5, 2, 301
    )  # fmt: skip
    parameter = "rate" if name == "poisson" else "p"

    def mean_log_second_moment(value):
        built = get_map(f"{name}({parameter}={float(value)!r})")
        return np.mean(np.log1p(built.relative_variance(x, y, 1)))

    def bound(value):
        rms_x, rms_y = (np.sqrt(np.mean(a * a, axis=0))[None, :] for a in (x, y))
        built = get_map(f"{name}({parameter}={float(value)!r})")
        constant = 2.0 * rms_x @ rms_y.T - 2.0 * np.mean(x @ y.T)
        return float((np.log1p(built.relative_variance(rms_x, rms_y, 1)) + constant).item())

    objective = mean_log_second_moment if name == "poisson" else bound
    values = [objective(v) for v in grid]
    assert objective(fitted) <= min(values) + 1e-9
    assert max(values) > objective(fitted) + 1e-3
    assert bound(fitted) >= mean_log_second_moment(fitted) - 1e-9  # Jensen


@pytest.mark.parametrize("name", ["poisson", "geometric"])
def test_zero_and_huge_inputs_fit(rng, name):
    zero, huge = np.zeros((5, 4)), 1e6 * rng.normal(size=(5, 4))
    for x, y in ((zero, huge), (zero, zero), (huge, huge)):
        fitted = get_map(name).fit(x, y, x)
        assert 0 < float(fitted.fitted.values.item()) <= MEAN_LIMIT
        sample = fb.sample_omega("iid", 7, 4, rng, map=name)
        if x is zero:  # only the constant is left of exp(0), times the chance of that
            expected = fb.kernel_estimate(x, y, sample, fitted)
            assert np.all(np.isfinite(expected)) and np.all(expected >= 0)
    assert_allclose(fb.kernel_estimate(zero, zero, sample, get_map(name).fit(zero, zero, zero)), 1.0, rtol=1e-8)
    assert np.all(np.isfinite(fb.linear_attention(zero, zero, huge, sample, map=name)))


def test_a_given_parameter_is_not_fitted_and_is_causal_safe(rng):
    q, k, v = 0.4 * rng.normal(size=(3, 30, 4))
    for given, by_data in (("poisson(rate=0.5)", "poisson"), ("geometric(p=0.6)", "geometric")):
        feature_map = get_map(given)
        assert feature_map.fit(q, k, q) is feature_map
        assert feature_map.causal_safe and not get_map(by_data).causal_safe
        sample = fb.sample_omega("iid", 50, 4, rng, map=given)
        causal = fb.linear_attention(q, k, v, sample, map=given, causal=True)
        assert_allclose(causal[-1:], fb.linear_attention(q[-1:], k, v, sample, map=given), rtol=1e-6)


def test_a_wrong_variance_of_an_integer_map_is_refuted():
    """The gate lets enough through that the variance alone is seen to be wrong, by 20 %."""

    class Boast(type(get_map("poisson"))):
        def relative_variance(self, x, y, num_projections):
            return 0.8 * super().relative_variance(x, y, num_projections)

    found = {c.claim: c.verdict for c in checks(Boast(), 2500, seed=0)}
    assert found["variance"] == REFUTED and REFUTED not in (found["target"], found["unbiased"])


@pytest.mark.parametrize("rate", [0.5, 7.0, 200.0])
def test_exponents_are_quantiles_of_poisson_far_into_the_tail(rate):
    """log phi(e) - log phi(1) is the exponent."""
    uniform = np.array([[1e-9], [0.5], [0.99], [1 - 1e-12]])
    sample = fb.Sample(np.zeros((4, 1)), uniform)
    (block,) = fb.get_map(f"poisson(rate={rate})").features(np.array([[1.0], [math.e]]), np.zeros((2, 4)), sample)
    exponents = block.log_scale[1] - block.log_scale[0]
    assert_allclose(exponents, stats.poisson.ppf(uniform[:, 0], rate), atol=1e-9)


@pytest.mark.parametrize("spec", ["poisson(rate=200)", "geometric(p=0.004)"])
def test_keys_whose_features_are_all_0_hide_no_others(spec):
    """No logarithm stands for the powers of 0: beside one, the features of short keys would vanish."""
    rng = np.random.default_rng(0)
    query, key = np.abs(rng.normal(size=(2, 9, 3)))
    value, sample = rng.normal(size=(9, 2)), fb.sample_omega("iid", 8, 3, rng, map=spec)
    short = 1e-3 * key
    short[:2] = 0.0
    expected = fb.linear_attention(query, short[2:], value[2:], sample, map=spec)
    assert_allclose(fb.linear_attention(query, short, value, sample, map=spec), expected, rtol=1e-9)
