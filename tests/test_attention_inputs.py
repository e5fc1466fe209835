"""Inputs of ``linear_attention`` and others: arrays of NumPy or torch, many heads, omega of another library."""

import re
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import favorbench as fb
from favorbench.attention import linear
from favorbench.errors import InputError, ScenarioError
from favorbench.maps import calibrate
from favorbench.numerics.machine import one_core

MAPS = ["positive", "trig", "centre:aderf-sderf", "phase", "hybrid", "poisson", "maclaurin", "tensorsketch", "taylor"]


def some(rng, *leading, length=30, dim=4):
    return tuple(0.5 * rng.normal(size=(3, *leading, length, dim)))


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


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


@pytest.mark.parametrize("dtype", ["complex128", "complex64", "object", "longdouble", "datetime64[s]", "U3"])
def test_values_that_are_not_real_numbers_are_refused(rng, dtype):
    arrays = [np.zeros((3, 4), dtype) if dtype[0] in "dU" else a.astype(dtype) for a in some(rng)]
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
