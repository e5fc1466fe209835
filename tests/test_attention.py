"""Exact and linear attention: dense formulas, extreme numbers, arrays of NumPy or torch, many heads, omega of another
library; and what they refuse."""

import functools
import re
import time

import ml_dtypes  # noqa: F401  (gives NumPy the type bfloat16)
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

import favorbench as fb
from favorbench.attention import linear
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.errors import InputError, ScenarioError
from favorbench.maps import calibrate
from favorbench.numerics.machine import one_core

MAPS = ["positive", "trig", "centre:aderf-sderf", "phase", "hybrid", "poisson", "maclaurin", "tensorsketch", "taylor"]


def some(rng, *leading, length=30, dim=4):
    return tuple(0.5 * rng.normal(size=(3, *leading, length, dim)))


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def dense(query, key, value):
    return softmax(query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]), axis=-1) @ value


def test_exact_attention_takes_leading_axes_and_other_dtypes(rng):
    q, k, v = rng.normal(size=(3, 2, 4, 10, 8)).astype(np.float32)
    result = fb.exact_attention(q, k, v)
    assert result.dtype == np.float64
    assert_allclose(result, dense(*(a.astype(np.float64) for a in (q, k, v))), rtol=0, atol=1e-13)


def test_positions_may_be_a_list(rng):
    query, key, value = rng.normal(size=(3, 6, 4))
    assert_allclose(
        fb.exact_attention(query[[1, 4]], key, value, causal=True, positions=[1, 4]),
        fb.exact_attention(query, key, value, causal=True)[[1, 4]], rtol=1e-14,
    )  # fmt: skip


def test_a_sampled_query_whose_keys_are_all_far_away_has_an_answer(rng):
    """It shares a tile with a query that sees later keys, none of which it sees: exp(-800) is 0 in float64."""
    query, key, value = rng.normal(size=(2, 4)), rng.normal(size=(1101, 4)), rng.normal(size=(1101, 3))
    query[0] = -1600 * key[0] / (key[0] @ key[0])
    assert_allclose(fb.exact_attention(query, key, value, causal=True, positions=[0, 1100])[0], value[0], rtol=1e-12)


@pytest.mark.parametrize("positions", [[4, 1], [1, 1], [1], [[1, 4]], [-1, 2], [1, 6], [0.0, 2.0]], ids=str)
def test_wrong_positions_are_refused(positions, rng):
    query, key, value = rng.normal(size=(3, 6, 4))
    with pytest.raises(InputError, match=r"^positions \[.*\] given; allowed: 2 increasing whole numbers from 0 to 5$"):
        fb.exact_attention(query[:2], key, value, causal=True, positions=positions)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_exact_attention_of_short_queries_and_long_keys_does_not_overflow(scale, rng):
    """And of long queries and short keys: their product, about 1e4, decides."""
    q, k, v = rng.normal(size=(3, 6, 4))
    q, k = 100.0 * scale * q, 100.0 / scale * k
    assert_allclose(fb.exact_attention(q, k, v), dense(q, k, v), rtol=1e-9)


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
        linear.attention_estimates(
            AttentionProblem.of(q, k, v), omega, [SampledMap(fb.get_map("positive"), None, (1, 5))]
        )
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
    with pytest.raises(InputError, match="query is a list"):
        fb.kernel_estimate(q.tolist(), q, np.zeros((7, 3)))
    for attend in (fb.exact_attention, functools.partial(fb.linear_attention, omega=np.zeros((7, 3)))):
        with pytest.raises(InputError, match="causal is 'no'; allowed: True or False"):
            attend(q, q, q, causal="no")
    with pytest.raises(ScenarioError, match="batch must be a whole number from 1"):
        fb.sweep("quick", "run", batch=-1)
    for bad in (np.nan, np.inf):
        with pytest.raises(InputError, match="key has values that are NaN or infinite"):
            fb.method_attention(q, np.where(np.eye(4, 3) > 0, bad, 0.0), q, "clusters", size=2)


def test_a_vanishing_normaliser_is_a_measurement(rng):
    """trig on two keys of equal norm and opposite phase: 0/0, but no warning (they are errors here), no exception."""
    length = np.pi * 2**0.25  # the scaled key has norm pi
    omega, q = np.array([[1.0, 0.0]]), np.zeros((1, 2))
    k, v = np.array([[0.0, length], [length, 0.0]]), np.array([[1.0], [2.0]])  # features cos 0 = 1 and cos pi = -1
    (result,) = fb.linear_attention(q, k, v, omega, map="trig").ravel()
    assert not np.isfinite(result) or abs(result) > 1e14


def test_samples_of_other_heads_are_refused(rng):
    tokens, omega = rng.normal(size=(3, 6, 4)), rng.normal(size=(2, 5, 4))
    with pytest.raises(InputError, match=r"omega \(2, 5, 4\), query \(3, 6, 4\): allowed: \(num_projections, d\)"):
        fb.linear_attention(tokens, tokens, tokens, omega)
    assert fb.linear_attention(tokens, tokens, tokens, omega[:1]).shape == (3, 6, 4)


def test_noncausal_members_are_refused(rng):
    q = rng.normal(size=(4, 3))
    with pytest.raises(InputError, match="uses the whole sequence"):
        fb.linear_attention(q, q, q, rng.normal(size=(5, 3)), map="positive-eps", causal=True)
    with pytest.raises(InputError, match="as many queries as keys"):
        fb.exact_attention(q[:2], q, q, causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", [*MAPS, "calibrated:centre:oprf"])
def test_many_heads_equal_separate_calls(rng, spec, causal, monkeypatch):
    """In groups of any number of heads, the last one smaller; with one sample for all heads, or one for each."""
    if causal and not fb.get_map(spec).causal_safe:
        return
    query, key, value = some(rng, 2, 3)
    maps = [[spec] * 3] * 2
    if spec.startswith("calibrated"):
        others = some(rng, 2, 3)
        whole = calibrate(others[0], others[1], spec)
        maps = [[calibrate(others[0][i, j], others[1][i, j], spec) for j in range(3)] for i in range(2)]
    else:
        whole = spec
    samples = [[fb.sample_omega("iid", 12, 4, rng, map=spec) for _ in range(3)] for _ in range(2)]
    own = fb.Sample(*(None if part[0][0] is None else np.array(part) for part in
                      ([[s[i] for s in row] for row in samples] for i in (0, 1))))  # fmt: skip
    for most in (1, 2, 4, 100):
        monkeypatch.setattr(linear, "heads_at_once", lambda like, width, most=most: most)
        for each in (False, True):
            together = fb.linear_attention(query, key, value, own if each else samples[0][0], whole, causal)
            for i, j in np.ndindex(2, 3):
                one = samples[i][j] if each else samples[0][0]
                expected = fb.linear_attention(query[i, j], key[i, j], value[i, j], one, maps[i][j], causal)
                assert_allclose(together[i, j], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", MAPS)
def test_omega_is_moved_and_cast(rng, torch, spec):
    """NumPy's float64 sample for torch's tokens in any precision: as if it had been a tensor of theirs."""
    query, key, value = some(rng, 3)
    sample = fb.sample_omega("iid", 16, 4, rng, map=spec)
    expected = fb.linear_attention(query, key, value, sample, spec)
    for dtype, level in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        tensors = [torch.from_numpy(a).to(dtype) for a in (query, key, value)]
        found = fb.linear_attention(*tensors, sample, spec)
        assert found.dtype == dtype
        assert_allclose(found.numpy(), expected, rtol=level, atol=level)
        gram = fb.kernel_estimate(tensors[0][0], tensors[1][0], sample, spec)
        assert gram.dtype == dtype
    half = fb.linear_attention(*(a.bfloat16() for a in tensors), sample, spec)
    assert half.dtype == torch.bfloat16 and bool(torch.isfinite(half.float()).all())
    back = fb.linear_attention(query, key, value, fb.Sample(torch.from_numpy(sample.omega), sample.extra), spec)
    assert_array_equal(back, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_float16_of_numpy_gives_no_warning(causal, rng):
    arrays = [array.astype(np.float16) for array in rng.normal(size=(3, 16, 4))]
    sample = fb.sample_omega("iid", 8, 4, rng).astype(np.float16)
    assert np.all(np.isfinite(fb.linear_attention(*arrays, sample, causal=causal)))  # warnings are errors in tests


def test_a_calibration_serves_both_libraries(rng, torch):
    query, key, value = some(rng, 3)
    others, omega = some(rng, 3), rng.normal(size=(16, 4))
    frozen = calibrate(others[0], others[1])
    of_torch = calibrate(*(torch.from_numpy(a) for a in others[:2]))
    expected = fb.linear_attention(query, key, value, omega, frozen)
    assert_allclose(fb.linear_attention(query, key, value, omega, of_torch), expected, rtol=1e-10)
    found = fb.linear_attention(*(torch.from_numpy(a) for a in (query, key, value)), omega, frozen)
    assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_arrays_of_two_libraries_are_refused(rng, torch):
    query, key, value = some(rng)
    tensor, omega = torch.from_numpy(key), rng.normal(size=(5, 4))
    said = "query is of NumPy, key of torch on cpu, value of NumPy: they must be arrays of one library on one device"
    for attend in (fb.exact_attention, fb.method_attention, lambda *a: fb.linear_attention(*a, omega)):
        with pytest.raises(InputError, match=re.escape(said)):
            attend(query, tensor, value)


def test_values_that_are_not_arrays_are_named(rng):
    query, key, value = some(rng)
    with pytest.raises(InputError, match="query is a list, key of NumPy"):
        fb.linear_attention(query.tolist(), key, value, rng.normal(size=(5, 4)))
    with pytest.raises(InputError, match=re.escape("omega has shape (); it must be (num_projections, 4)")):
        fb.linear_attention(query, key, value, "x")
    listed = fb.linear_attention(query, key, value, np.eye(4).tolist())  # numbers in a list are numbers
    assert_array_equal(listed, fb.linear_attention(query, key, value, np.eye(4)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", ">i4", ">f8"])
def test_integers_and_other_byte_orders_are_numbers(rng, dtype):
    """Products of small integers must not overflow inside a method: the result is that of float64."""
    query, key, value = (np.abs(5 * a).astype(dtype) for a in some(rng))
    floats, omega = [a.astype(np.float64) for a in (query, key, value)], rng.normal(size=(5, 4))
    for method in fb.METHODS:
        expected = fb.method_attention(*floats, method(), 8)
        assert_allclose(fb.method_attention(query, key, value, method(), 8), expected, rtol=1e-12)
    assert_allclose(fb.exact_attention(query, key, value), fb.exact_attention(*floats), rtol=1e-12)
    expected = fb.linear_attention(*floats, omega)
    assert_allclose(fb.linear_attention(query, key, value, omega), expected, rtol=1e-12)


@pytest.mark.parametrize("feature_map", [m.name for m in fb.MAPS])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_kernel_estimates_of_integers_are_those_of_floats(rng, feature_map, dtype):
    x, y = np.eye(4, dtype=dtype), np.abs(2 * rng.normal(size=(5, 4))).astype(dtype)
    sample = fb.sample_omega("iid", 16, 4, rng, map=feature_map)
    expected = fb.kernel_estimate(x.astype(float), y.astype(float), sample, feature_map)
    assert_array_equal(fb.kernel_estimate(x, y, sample, feature_map), expected)


@pytest.mark.parametrize("dtype", ["complex128", "complex64", "object", "longdouble", "M8[s]", "U3", "bfloat16"])
def test_values_that_are_not_real_numbers_are_refused(rng, dtype):
    arrays = [np.zeros((3, 4), dtype) if dtype[0] in "MU" else a.astype(dtype) for a in some(rng)]
    for attend in (fb.exact_attention, fb.method_attention, lambda *a: fb.linear_attention(*a, np.eye(4))):
        with pytest.raises(InputError, match=r"query has dtype .*: give real numbers of at most 64 bits"):
            attend(*arrays)


def test_masked_arrays_and_matrices_are_refused(rng):
    """Their products are not those of arrays, and a mask would be ignored."""
    query, key, value = some(rng)
    with pytest.raises(InputError, match="query is a MaskedArray, key of NumPy, value of NumPy"):
        fb.exact_attention(np.ma.masked_greater(query, 1.0), key, value)
    with pytest.raises(InputError, match="value a matrix"):
        fb.method_attention(query, key, value.view(np.matrix))


def least_seconds(calls, rounds=7):
    """CPU seconds of each call, interleaved on one thread: other work on the machine can only add to them."""
    found = [[] for _ in calls]
    with one_core():
        for _ in range(rounds):
            for seconds, call in zip(found, calls, strict=True):
                start = time.process_time()
                call()
                seconds.append(time.process_time() - start)
    return [min(seconds) for seconds in found]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_time_grows_as_the_features(rng, request, library):
    """With 12 heads, 4 times the features take about 4 times as long, not 9 as with thin tiles of all heads; and all
    heads in one call no longer than one after the other."""
    arrays = [a.astype(np.float32) for a in some(rng, 12, length=512, dim=32)]
    omegas = [rng.normal(size=(size, 32)).astype(np.float32) for size in (256, 1024)]
    if library == "torch":
        torch = request.getfixturevalue("torch")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        request.addfinalizer(lambda: torch.set_num_threads(threads))
        arrays, omegas = ([torch.from_numpy(a) for a in some] for some in (arrays, omegas))
    few, many, one_by_one = least_seconds([
        lambda: fb.linear_attention(*arrays, omegas[0]),
        lambda: fb.linear_attention(*arrays, omegas[1]),
        lambda: [fb.linear_attention(*(a[i] for a in arrays), omegas[1]) for i in range(12)],
    ])  # fmt: skip
    assert many < 7 * few and many < 1.5 * one_by_one


@pytest.mark.parametrize("size, dim, seed", [(0, 4, 0), (-1, 4, 0), (1.5, 4, 0), (8, "4", 0), (8, 0, 0), (8, 4, None)])
def test_a_sample_needs_sizes_and_a_generator(size, dim, seed):
    """A size of 0 and one below it gave a sample without rows."""
    with pytest.raises(ScenarioError, match="allowed: whole numbers from 1, and a generator"):
        fb.sample_omega("orthogonal", size, dim, seed if seed is None else np.random.default_rng(seed))


@pytest.mark.parametrize("spec", ["positive", "hyperbolic"])
def test_in_float16_a_large_key_makes_no_0_over_0_of_the_rows_before_it(spec):
    """Full attention has no such rows; causal attention had 8 of 1024."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    query, key, value = (torch.from_numpy(f * rng.normal(size=(4, 256, 64))).half() for f in (3.0, 3.0, 1.0))
    sample = fb.sample_omega("orthogonal", 64, 64, np.random.default_rng(3), spec)
    low = fb.linear_attention(query, key, value, sample, spec, causal=True).double()
    high = fb.linear_attention(query.double(), key.double(), value.double(), sample, spec, causal=True)
    assert low.isfinite().all() and (low - high).abs().max() < 0.2


@pytest.mark.parametrize("seed", range(6))
def test_a_causal_chunk_in_parts_serves_several_sizes(seed):
    """In single precision, where features of the smaller size underflow beside a later one in some parts only."""
    rng = np.random.default_rng(seed)
    query, key, value = (f * rng.normal(size=(20, 8)).astype(np.float32) for f in (6.0, 6.0, 1.0))
    problem, omega = AttentionProblem(query, key, value, np.arange(20), True), rng.normal(size=(32, 8))

    def estimates(*sizes):
        sampled = SampledMap(fb.get_map("positive"), None, sizes)
        (tile,) = linear.attention_estimates(problem, omega[: sizes[-1]].astype(np.float32), [sampled])
        return tile.output

    assert_allclose(estimates(1, 32), np.concatenate([estimates(1), estimates(32)]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", ["positive", "trig", "elu", "hybrid", "taylor"])
def test_in_float16_many_equal_features_do_not_overflow(spec, causal):
    """Of short queries all features are near their largest; with them, and the keys of a chunk, sums were infinite."""
    torch = pytest.importorskip("torch")
    query, key, value = (torch.from_numpy(a).half() for a in np.random.default_rng(0).normal(size=(3, 256, 64)))
    query, key, value = 0.05 * query, 0.05 * key, value + 1.0
    sample = fb.sample_omega("orthogonal", 4096, 64, np.random.default_rng(1), spec)
    low = fb.linear_attention(query, key, value, sample, spec, causal=causal).double()
    high = fb.linear_attention(query.double(), key.double(), value.double(), sample, spec, causal=causal)
    assert (low - high).abs().max() < 8 * 2.0**-11 * high.abs().max()  # roundings of features, sums and quotient
