"""Exact and linear attention against dense formulas written the plain way."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

import favorbench as fb
from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.errors import InputError, ScenarioError


def dense(query, key, value):
    return softmax(query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]), axis=-1) @ value


def test_exact_attention_takes_leading_axes_and_other_dtypes(rng):
    q, k, v = rng.normal(size=(3, 2, 4, 10, 8)).astype(np.float32)
    result = fb.exact_attention(q, k, v)
    assert result.dtype == np.float64
    assert_allclose(result, dense(*(a.astype(np.float64) for a in (q, k, v))), rtol=0, atol=1e-13)


def test_exact_attention_does_not_overflow():
    q = np.array([[1e4, 0.0]])
    k = np.array([[1e4, 0.0], [0.0, 1.0]])
    assert_array_equal(fb.exact_attention(q, k, np.array([[1.0], [2.0]])), [[1.0]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_size_far_below_the_others_does_not_underflow(rng, dtype):
    """The first projection is useless (features near e^-2000 of the others): its estimate is as good as alone."""
    q, k, v = rng.normal(size=(3, 20, 4)).astype(dtype)
    omega = rng.normal(size=(5, 4)).astype(dtype)
    omega[0] = 0.0
    q, k = 60.0 * np.sign(omega[1]) + q, 60.0 * np.sign(omega[1]) + k
    alone = fb.linear_attention(q, k, v, omega[:1], map="positive")
    together = next(
        attention_estimates(AttentionProblem.of(q, k, v), omega, [SampledMap(fb.get_map("positive"), None, (1, 5))])
    )
    assert_allclose(together.output[0], alone, rtol=100 * np.finfo(dtype).eps)
    assert np.all(np.isfinite(together.output))


@pytest.mark.parametrize("name", ["positive", "hyperbolic"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_positive_maps_never_overflow(rng, name, dtype, scale):
    """With norms up to 1e4 the features range over exp(+-1e8): every output is finite and inside the values' range."""
    q, k, v = (scale * rng.normal(size=(3, 40, 16))).astype(dtype)
    omega = fb.sample_omega("orthogonal", 24, 16, rng).astype(dtype)
    result = fb.linear_attention(q, k, v, omega, map=name)
    assert result.dtype == dtype
    slack = 1e-3 if dtype == np.float32 else 1e-12
    assert np.all(result <= v.max(axis=0) + slack * np.abs(v).max())
    assert np.all(result >= v.min(axis=0) - slack * np.abs(v).max())


@pytest.mark.parametrize(
    "shapes, said",
    [
        (((4, 3), (5, 2), (5, 2)), "same head_dim"),
        (((4, 3), (5, 3), (6, 2)), "same length"),
        (((4, 3), (0, 3), (0, 2)), "empty"),
        (((3,), (5, 3), (5, 2)), "at least 2 axes"),
        (((2, 4, 3), (5, 3), (5, 2)), "leading axes"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, said):
    q, k, v = (np.zeros(shape) for shape in shapes)
    with pytest.raises(InputError, match=said):
        fb.exact_attention(q, k, v)
    with pytest.raises(InputError, match=said):
        fb.linear_attention(q, k, v, np.zeros((7, 3)))


def test_other_mistakes_of_the_python_api_are_named(rng):
    q = np.zeros((4, 3))
    with pytest.raises(InputError, match="num_projections, 3"):
        fb.linear_attention(q, q, q, np.zeros((7, 2)))
    with pytest.raises(InputError, match="use sample_omega"):
        fb.linear_attention(q, q, q, np.zeros((7, 3)), map="phase")
    with pytest.raises(ScenarioError, match="did you mean 'positive'"):
        fb.linear_attention(q, q, q, np.zeros((7, 3)), map="positve")
    with pytest.raises(InputError, match="head_dim"):
        fb.kernel_estimate(q, np.zeros((4, 2)), np.zeros((7, 3)))


def test_a_vanishing_normaliser_is_a_measurement(rng):
    """trig on two keys of equal norm and opposite phase: 0/0, but no warning (they are errors here), no exception."""
    length = np.pi * 2**0.25  # the scaled key has norm pi
    omega, q = np.array([[1.0, 0.0]]), np.zeros((1, 2))
    k, v = np.array([[0.0, length], [length, 0.0]]), np.array([[1.0], [2.0]])  # features cos 0 = 1 and cos pi = -1
    (result,) = fb.linear_attention(q, k, v, omega, map="trig").ravel()
    assert not np.isfinite(result) or abs(result) > 1e14


def test_noncausal_members_are_refused(rng):
    q = rng.normal(size=(4, 3))
    with pytest.raises(InputError, match="uses the whole sequence"):
        fb.linear_attention(q, q, q, rng.normal(size=(5, 3)), map="positive-eps", causal=True)
    with pytest.raises(InputError, match="as many queries as keys"):
        fb.exact_attention(q[:2], q, q, causal=True)
