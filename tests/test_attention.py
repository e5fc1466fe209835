"""Exact and linear attention against dense formulas written the plain way."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

import favorbench as fb
from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.errors import InputError, ScenarioError
from favorbench.maps import MAPS, Sample
from favorbench.numerics import arrays
from favorbench.studies.verify.attention import Shifted


def dense(query, key, value):
    return softmax(query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]), axis=-1) @ value


def sample_for(name, num_projections, head_dim, seed=1, sampler="orthogonal"):
    sample = fb.sample_omega(sampler, num_projections, head_dim, np.random.default_rng(seed), map=name)
    assert isinstance(sample, Sample)
    return sample


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 9, 3, 2), (700, 3000, 16, 16), (3, 5000, 4, 1)])
def test_exact_attention_is_softmax_attention(rng, shape):
    n, length, d, d_v = shape
    q, k, v = rng.normal(size=(n, d)), rng.normal(size=(length, d)), rng.normal(size=(length, d_v))
    # an average of values: rounding of order eps times the logits (|q||k|/sqrt d < 40) and the log of the length
    assert_allclose(fb.exact_attention(q, k, v), dense(q, k, v), rtol=0, atol=100 * np.finfo(float).eps * 5)


def test_exact_attention_takes_leading_axes_and_other_dtypes(rng):
    q, k, v = rng.normal(size=(3, 2, 4, 10, 8)).astype(np.float32)
    result = fb.exact_attention(q, k, v)
    assert result.dtype == np.float64
    assert_allclose(result, dense(*(a.astype(np.float64) for a in (q, k, v))), rtol=0, atol=1e-13)


def test_exact_attention_does_not_overflow():
    q = np.array([[1e4, 0.0]])
    k = np.array([[1e4, 0.0], [0.0, 1.0]])
    assert_array_equal(fb.exact_attention(q, k, np.array([[1.0], [2.0]])), [[1.0]])


@pytest.mark.parametrize("member", MAPS, ids=lambda m: m.name)
@pytest.mark.parametrize("sampler", ["iid", "orthogonal"])
def test_linear_attention_is_the_kernel_estimate_normalised(rng, member, sampler):
    """The O(L) route through key summaries equals the L x L route through the kernel estimate."""
    q, k, v = 0.7 * rng.normal(size=(3, 60, 8))
    sample = sample_for(member.name, 40, 8, sampler=sampler)
    x, y = q * 8**-0.25, k * 8**-0.25
    kernel = fb.kernel_estimate(x, y, sample, map=member().fit(x, y, sample.omega))
    normaliser = kernel.sum(axis=-1, keepdims=True)
    # a signed normaliser may cancel: its rounding is relative to the sum of absolute terms
    condition = np.abs(kernel).sum(axis=-1, keepdims=True) / np.abs(normaliser)
    result = fb.linear_attention(q, k, v, sample, map=member.name)
    expected = kernel @ v / normaliser
    assert np.all(np.abs(result - expected) <= 1e-12 * condition * (1 + np.abs(expected)))


@pytest.mark.parametrize("member", MAPS, ids=lambda m: m.name)
@pytest.mark.parametrize("tile", [64, 1 << 16])
def test_all_sizes_in_one_pass_equal_each_size_alone(rng, monkeypatch, member, tile):
    """ExactKeys sums over features, in tiles of any size, change nothing but rounding."""
    q, k, v = rng.normal(size=(3, 50, 6))
    sample, sizes = sample_for(member.name, 31, 6), (1, 5, 6, 30, 31)
    if not member.nested:
        sizes = (31,)
    monkeypatch.setattr(arrays, "TILE_ELEMENTS", tile)
    outputs = {size: np.full((50, 6), np.nan) for size in sizes}
    normalisers = {size: np.full((50, 1), np.nan) for size in sizes}
    for _, rows, output, normaliser in attention_estimates(
        AttentionProblem.of(q, k, v), sample.omega, [SampledMap(member(), sample.extra, sizes)]
    ):
        for i, size in enumerate(sizes):
            outputs[size][rows], normalisers[size][rows] = output[i], normaliser[i]
    monkeypatch.undo()
    for size in sizes:
        alone = fb.linear_attention(q, k, v, sample_for(member.name, size, 6), map=member.name)  # a sample's prefix
        well_conditioned = (np.abs(normalisers[size]) > (0.0 if member.nonnegative else 1e-3))[:, 0]
        assert_allclose(outputs[size][well_conditioned], alone[well_conditioned], rtol=1e-9, atol=1e-9)
        if member.nonnegative:
            assert well_conditioned.all()
            assert np.all(normalisers[size] >= np.finfo(float).tiny ** 0.5)


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


@pytest.mark.parametrize("member", MAPS, ids=lambda m: m.name)
def test_permuting_keys_and_shifting_their_log_scale_change_nothing(rng, member):
    q, k, v = 0.5 * rng.normal(size=(3, 30, 4))
    sample, order = sample_for(member.name, 12, 4), rng.permutation(30)
    result = fb.linear_attention(q, k, v, sample, map=member.name)
    permuted = fb.linear_attention(q, k[order], v[order], sample, map=member.name)
    assert_allclose(permuted, result, rtol=1e-9, atol=1e-11)
    fitted = member().fit(q * 4**-0.25, k * 4**-0.25, sample.omega)
    for shift in (-40.0, 3.0, 600.0):  # near and far branch of the sums
        shifted = fb.linear_attention(q, k, v, sample, map=Shifted(fitted, shift))
        assert_allclose(shifted, result, rtol=1e-9, atol=1e-11)


def test_float32_is_near_float64(rng):
    q, k, v = 0.5 * rng.normal(size=(3, 100, 8))
    omega = fb.sample_omega("iid", 64, 8, rng)
    double = fb.linear_attention(q, k, v, omega)
    single = fb.linear_attention(*(a.astype(np.float32) for a in (q, k, v)), omega.astype(np.float32))
    assert_allclose(single, double, rtol=0, atol=4 * np.sqrt(100) * 64 * np.finfo(np.float32).eps)
    assert np.max(np.abs(single - double)) > 1e-9  # it really was single precision


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


@pytest.mark.parametrize("length", [1, 5, 128, 129, 300])
def test_causal_exact_attention_is_masked_softmax(rng, length):
    q, k, v = rng.normal(size=(3, 2, length, 4))
    logits = np.where(np.tril(np.ones((length, length))), q @ np.swapaxes(k, -1, -2) / 2, -np.inf)
    expected = softmax(logits, axis=-1) @ v
    assert_allclose(fb.exact_attention(q, k, v, causal=True), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["trig", "phase", "positive", "hyperbolic"])
def test_causal_linear_attention_sees_no_future(rng, name):
    """Equal to the estimate on every prefix, at its last position; and later keys change nothing before them."""
    q, k, v = 0.5 * rng.normal(size=(3, 200, 4))
    sample = sample_for(name, 16, 4)
    output = fb.linear_attention(q, k, v, sample, map=name, causal=True)
    for n in (1, 2, 128, 129, 200):
        prefix = fb.linear_attention(q[n - 1 : n], k[:n], v[:n], sample, map=name)
        assert_allclose(output[n - 1 : n], prefix, rtol=1e-9, atol=1e-11)
    changed = fb.linear_attention(q, np.where(np.arange(200)[:, None] < 150, k, -k), v, sample, map=name, causal=True)
    assert_allclose(changed[:128], output[:128], rtol=0, atol=0)
    assert_allclose(changed[128:150], output[128:150], rtol=1e-9, atol=1e-11)
    assert np.max(np.abs(changed[150:] - output[150:])) > 1e-3


@pytest.mark.parametrize("member", [m for m in MAPS if m.nested and m().causal_safe], ids=lambda m: m.name)
def test_causal_estimates_of_all_sizes_and_some_rows_equal_the_masked_kernel(rng, member):
    """One pass over chunks for every R, and for some of the positions only, against the dense masked kernel."""
    q, k, v = 0.6 * rng.normal(size=(3, 300, 5))
    sample, sizes = sample_for(member.name, 20, 5), (1, 7, 20) if member.features_per_projection else (1,)
    positions = np.sort(rng.choice(300, 90, replace=False))
    positions[-1] = 299
    outputs = np.full((len(sizes), 90, 5), np.nan)
    problem = AttentionProblem.of(q[positions], k, v, causal=True)._replace(positions=positions)
    maps = [SampledMap(member(), sample.extra, sizes)]
    for _, rows, output, _ in attention_estimates(problem, sample.omega, maps):
        outputs[:, rows] = output
    for output, size in zip(outputs, sizes, strict=True):
        extra = sample.extra[:size] if sample.extra is not None and len(sample.extra) == 20 else sample.extra
        kernel = fb.kernel_estimate(*(a * 5**-0.25 for a in (q, k)), Sample(sample.omega[:size], extra), map=member())
        seen = np.where(np.arange(300) <= positions[:, None], kernel[positions], 0.0)
        normaliser = seen.sum(axis=-1, keepdims=True)
        condition = np.abs(seen).sum(axis=-1, keepdims=True) / np.abs(normaliser)
        expected = seen @ v / normaliser
        assert np.all(np.abs(output - expected) <= 1e-12 * condition * (1 + np.abs(expected)))
    exact = fb.exact_attention(q[positions], k, v, causal=True, positions=positions)
    assert_allclose(exact, fb.exact_attention(q, k, v, causal=True)[positions], rtol=0, atol=1e-13)


def test_what_cannot_be_causal_is_refused(rng):
    q = rng.normal(size=(4, 3))
    with pytest.raises(InputError, match="uses the whole sequence"):
        fb.linear_attention(q, q, q, rng.normal(size=(5, 3)), map="positive-eps", causal=True)
    with pytest.raises(InputError, match="as many queries as keys"):
        fb.exact_attention(q[:2], q, q, causal=True)
