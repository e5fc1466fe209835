"""One code for several array libraries: the strictest, and torch where it is installed, agree with NumPy."""

import importlib.util

import array_api_strict
import numpy as np
import pytest

import favorbench as fb
from favorbench.arrays import from_torch, to_torch
from favorbench.attention import Estimator, attention_estimates
from favorbench.maps import Sample, get_map

BACKENDS = [pytest.param(array_api_strict.asarray, np.asarray, id="strict")]
if importlib.util.find_spec("torch") is not None:
    BACKENDS.append(pytest.param(to_torch, from_torch, id="torch"))

MAPS = ["trig", "phase", "positive", "hyperbolic", "trig-tutorial", "exp-tutorial", "positive-eps"]


@pytest.mark.parametrize(("to", "back"), BACKENDS)
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_agrees_with_numpy(rng, to, back, name, causal):
    if causal and not get_map(name).causal_safe:
        return
    q, k, v = 0.5 * rng.normal(size=(3, 150, 8))
    sample = fb.sample_omega("orthogonal", 30, 8, rng, map=name)
    assert isinstance(sample, Sample)
    expected = fb.linear_attention(q, k, v, sample, map=name, causal=causal)
    moved = Sample(to(sample.omega), None if sample.extra is None else to(sample.extra))
    found = fb.linear_attention(to(q), to(k), to(v), moved, map=name, causal=causal)
    np.testing.assert_allclose(back(found), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(("to", "back"), BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_exact_attention_and_kernel_estimate_agree_with_numpy(rng, to, back, causal):
    q, k, v = rng.normal(size=(3, 2, 140, 8))
    exact = fb.exact_attention(q, k, v, causal=causal)
    found = fb.exact_attention(to(q), to(k), to(v), causal=causal)
    np.testing.assert_allclose(back(found), exact, rtol=1e-12, atol=1e-12)
    x, y, omega = 0.3 * q, 0.3 * k, rng.normal(size=(20, 8))
    kernel = fb.kernel_estimate(x, y, omega, map="hyperbolic")
    found = fb.kernel_estimate(to(x), to(y), to(omega), map="hyperbolic")
    np.testing.assert_allclose(back(found), kernel, rtol=1e-12)


@pytest.mark.parametrize(("to", "back"), BACKENDS)
def test_all_sizes_in_one_pass_agree_with_numpy(rng, to, back):
    q, k, v = 0.5 * rng.normal(size=(3, 60, 4))
    omega, sizes = rng.normal(size=(24, 4)), (3, 10, 24)
    estimators = [Estimator(get_map(name), None, sizes) for name in ("positive", "trig")]
    ours = list(attention_estimates(q, k, v, omega, estimators))
    theirs = list(attention_estimates(to(q), to(k), to(v), to(omega), estimators))
    for a, b in zip(ours, theirs, strict=True):
        assert a[:2] == b[:2]
        np.testing.assert_allclose(back(b.output), a.output, rtol=1e-9, atol=1e-12)
