"""One code for several array libraries: the strictest, and torch where it is installed, agree with NumPy."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.engine.scenario import load_scenario
from favorbench.errors import InputError, ScenarioError
from favorbench.maps import MAPS, TRANSFORMS, Sample, get_map
from favorbench.numerics.arrays import on_host
from favorbench.numerics.backend import Backend, to_torch
from favorbench.numerics.machine import one_core
from favorbench.studies.speed import study as speed
from tests import conftest

BACKENDS = [pytest.param(array_api_strict.asarray, np.asarray, id="strict")]
if importlib.util.find_spec("torch") is not None:
    BACKENDS.append(pytest.param(to_torch, on_host, id="torch"))

#: Every registered map, those with parameters that take another path through the code, and transforms.
NAMES = [
    *(member.name for member in MAPS), *(f"{transform.prefix}:hyperbolic" for transform in TRANSFORMS),
    "centre:aderf-sderf", "oprf(rho=0.5)", "poisson(rate=0.5)", "geometric(p=0.5)", "hybrid(n=1)",
    "maclaurin(law='poisson', vectors='gaussian', exact=2)", "tensorsketch(degree=4, exact=3)",
]  # fmt: skip


@pytest.mark.parametrize("to, back", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_agrees_with_numpy(rng, to, back, name, causal):
    """And where it is refused, it is refused with every library."""
    q, k, v = 0.5 * rng.normal(size=(3, 150, 8))
    sample = fb.sample_omega("orthogonal", 30, 8, rng, map=name)
    moved = Sample(to(sample.omega), None if sample.extra is None else to(sample.extra))
    if causal and not get_map(name).causal_safe:
        with pytest.raises(InputError, match="uses the whole sequence and cannot be causal"):
            fb.linear_attention(to(q), to(k), to(v), moved, map=name, causal=True)
        return
    expected = fb.linear_attention(q, k, v, sample, map=name, causal=causal)
    found = fb.linear_attention(to(q), to(k), to(v), moved, map=name, causal=causal)
    size, largest = np.abs(expected).max(axis=-1, keepdims=True), np.abs(v).max()
    # where a normaliser cancels to v / size of its terms, their rounding counts as many times more
    assert np.all(np.abs(back(found) - expected) <= 1e-12 * (size + largest) ** 2 / largest)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_has_the_precision_of_queries_keys_and_values(rng, name, dtype):
    """Whatever omega is in; and it is that of the other precision, to the rounding of the smaller."""
    q, k, v = (0.3 * rng.normal(size=(3, 140, 4))).astype(dtype)
    sample, attention = fb.sample_omega("iid", 12, 4, rng, map=name), {}
    for causal in {False, get_map(name).causal_safe}:
        attention[causal] = fb.linear_attention(q, k, v, sample, map=name, causal=causal)
        assert attention[causal].dtype == dtype
    whole = fb.linear_attention(q, k.astype("float64"), v, sample, map=name)
    assert whole.dtype == "float64"
    assert np.median(np.abs(attention[False] - whole)) < 1e-3


@pytest.mark.parametrize("to, back", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_exact_attention_and_kernel_estimate_agree_with_numpy(rng, to, back, causal):
    q, k, v = rng.normal(size=(3, 2, 140, 8))
    exact = fb.exact_attention(q, k, v, causal=causal)
    found = fb.exact_attention(to(q), to(k), to(v), causal=causal)
    assert_allclose(back(found), exact, rtol=1e-12, atol=1e-12)
    x, y, omega = 0.3 * q, 0.3 * k, rng.normal(size=(20, 8))
    kernel = fb.kernel_estimate(x, y, omega, map="hyperbolic")
    found = fb.kernel_estimate(to(x), to(y), to(omega), map="hyperbolic")
    assert_allclose(back(found), kernel, rtol=1e-12)


@pytest.mark.parametrize("to, back", BACKENDS)
def test_all_sizes_in_one_pass_agree_with_numpy(rng, to, back):
    q, k, v = 0.5 * rng.normal(size=(3, 60, 4))
    omega, sizes = rng.normal(size=(24, 4)), (3, 10, 24)
    estimators = [SampledMap(get_map(name), None, sizes) for name in ("positive", "trig")]
    ours = list(attention_estimates(AttentionProblem.of(q, k, v), omega, estimators))
    theirs = list(attention_estimates(AttentionProblem.of(to(q), to(k), to(v)), to(omega), estimators))
    for a, b in zip(ours, theirs, strict=True):
        assert a[:2] == b[:2]
        assert_allclose(back(b.output), a.output, rtol=1e-9, atol=1e-12)


def rows_of(**changes):
    scenario = load_scenario(
        "quick", {"seq_len": "50", "head_dim": "8", "num_projections": "4,20", "trials": 4} | changes
    )
    return conftest.rows_of(scenario, 3).set_index(["draw", "estimator", "sampler", "num_projections", "dtype"])


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@needs_torch
def test_a_sweep_on_torch_gives_the_rows_of_numpy():
    """Batches of three draws and a rest, every map, maps fitted to their data among them."""
    changes = {"maps": ",".join(NAMES), "scale": "0.5", "samplers": "iid,orthogonal,orthogonal-blog"}
    ours, theirs = rows_of(**changes), rows_of(**changes, backend="torch")
    for metric in ("mse", "relative_error", "max_abs_error"):
        assert_allclose(theirs[metric], ours[metric], rtol=1e-10)  # trig's normalisers cancel to 1e-2
    positive = ours.index.get_level_values("estimator").isin(["positive", "hyperbolic", "uniform", "taylor-2"])
    assert_allclose(theirs["mse"][positive], ours["mse"][positive], rtol=1e-12)
    assert (theirs["rounding"] == 0).all()


@needs_torch
def test_less_precision_rounds_more_and_the_exact_answer_stays_float64():
    dtypes = ["float64", "float32", "float16", "bfloat16"]
    rows = rows_of(backend="torch", dtype=",".join(dtypes), maps="positive,hyperbolic", scale="0.5")
    maps = rows.query("kind == 'map'")
    rounding = maps["rounding"].groupby("dtype").median()
    for dtype, digits in (("float32", 24), ("float16", 11), ("bfloat16", 8)):
        # weights of a mean are rounded: one unit in the last place each, several where exp amplifies a log of size ~4
        assert 2.0 ** -(digits + 4) < rounding[dtype] < 2.0 ** -(digits - 4), dtype
    assert rounding["float64"] == 0
    uniform = rows.xs("uniform", level="estimator")["mse"].groupby("draw").nunique()
    assert (uniform == 1).all()


@needs_torch
def test_long_sums_fit_into_float16():
    """1024 keys and 128 cosines of nearly 1 sum to more than 65504."""
    flags = {"maps": "trig", "scale": "0.3", "seq_len": "1024", "num_projections": "128", "trials": 2}
    rows = rows_of(backend="torch", dtype="float16", **flags)
    assert rows.loc[rows["kind"] == "map", "rounding"].max() < 2.0**-7


@needs_torch
@pytest.mark.parametrize(("length", "dim", "scale", "size"), [(130, 16, 2.0, 16), (2, 64, 4.0, 16)])
def test_a_causal_chunk_in_parts_is_measured_on_all_of_its_rows(length, dim, scale, size):
    """Float16 takes it in parts, float64 whole. The two were compared part by part: a sweep failed, or lost rows."""
    changes = {"seq_len": str(length), "head_dim": str(dim), "scale": str(scale), "num_projections": str(size)}
    rows = rows_of(**changes, backend="torch", dtype="float16,float64", maps="positive", causal=True, trials=12)
    errors = rows.query("kind == 'map'").set_index("trial", append=True)["relative_error"]
    low, high = (errors.xs(dtype, level="dtype").groupby("trial").sum() for dtype in ("float16", "float64"))
    assert_allclose(low, high, atol=0.1)  # roundings of logits


UNEVEN = """
from dataclasses import dataclass
from favorbench import Estimate, Method


@dataclass(frozen=True)
class Uneven(Method):
    name, reference, description = "uneven", "unpublished", "other sizes in other precisions"

    def estimates(self, problem, sizes, streams):
        for size in {"float32": %s, "float64": %s}[str(problem.query.dtype)]:
            yield Estimate(size, size, size * problem.value, None)
"""


@pytest.mark.parametrize("orders", [("sizes", "sizes[:1]"), ("sizes[:1]", "sizes"), ("sizes", "sizes[::-1]")])
def test_estimates_of_other_sizes_in_float64_are_a_failure(module, orders):
    """Rounding compares them one by one. Rows were left out, or compared with those of another size."""
    module("uneven", UNEVEN % orders)
    rows = rows_of(methods="uneven:Uneven", dtype="float32").query("estimator == 'uneven'")
    assert rows["mse"].isna().all() and rows["failure"].str.contains("of other sizes or rows").all()


@needs_torch
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", ["taylor", "positive", "trig", "elu"])
def test_sums_over_more_keys_than_float16_counts_keep_its_digits(spec, causal, rng):
    """They were infinite from 65,504 keys: those of one tile of queries and keys, of many tiles, and of chunks."""
    torch = pytest.importorskip("torch")
    length, (query, key) = 100_000, (torch.from_numpy(0.1 * rng.normal(size=(100_000, 2))).half() for _ in range(2))
    value = torch.from_numpy(1.0 + rng.normal(size=(length, 2))).half()
    sample = fb.sample_omega("iid", 2, 2, rng, spec)
    if not causal:
        query = query[:4, :]
    low = fb.linear_attention(query, key, value, sample, spec, causal).double()
    high = fb.linear_attention(query.double(), key.double(), value.double(), sample, spec, causal)
    errors = (low - high).abs().amax(-1)
    assert errors[-4:].max() < 2.0**-8, errors
    assert errors.isfinite().all()


@needs_torch
@pytest.mark.parametrize("method", ["lara", "nystromformer"])
def test_sums_of_segments_over_more_keys_than_float16_counts_are_finite(method, rng):
    torch = pytest.importorskip("torch")
    query, key, value = (torch.from_numpy(0.01 * rng.normal(size=(n, 2)) + 1.0).half() for n in (4, 100_000, 100_000))
    low, high = (fb.method_attention(*(a.to(dtype) for a in (query, key, value)), method, 2)
                 for dtype in (torch.float16, torch.float64))  # fmt: skip
    assert (low.double() - high).abs().max() < 2.0**-7


def test_missing_devices_and_dtypes_are_one_line(monkeypatch):
    with pytest.raises(ScenarioError, match=r"`dtype` bfloat16: numpy has float64, float32; `backend` torch has it"):
        rows_of(dtype="bfloat16")
    with pytest.raises(ScenarioError, match="`device` cuda: NumPy computes on cpu only; add `backend` torch"):
        rows_of(device="cuda")
    with pytest.raises(ScenarioError, match="`device`: 'gpu' given"):
        rows_of(device="gpu", backend="torch")
    for name in ("gpu", "cuda:x", "mps", "cpu "):
        with pytest.raises(ScenarioError, match=f"`device` {name}: allowed: cpu, cuda or cuda:N"):
            Backend("torch", name).check(["float64"])
        with pytest.raises(ScenarioError, match="allowed: cpu, cuda or cuda:N"):
            speed.study(["positive"], [4], [16], 4, 3, Backend("torch", name))
    with pytest.raises(ScenarioError, match="`backend` jax: allowed: numpy, torch"):
        Backend("jax").check(["float64"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"torch is not installed: pip install 'favorbench\[torch\]'"):
        rows_of(backend="torch")


@needs_torch
def test_a_missing_gpu_is_one_clear_line():
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        with pytest.raises(ScenarioError, match=r"CUDA devices, from cuda:0 on"):
            rows_of(device="cuda:99", backend="torch")
    else:
        with pytest.raises(ScenarioError, match="torch finds no CUDA device here; use `device` cpu"):
            rows_of(device="cuda", backend="torch")
    with pytest.raises(ScenarioError, match="tf32 exists on CUDA devices only"):
        rows_of(dtype="tf32", backend="torch")


def test_torch_computes_on_one_core_and_gives_the_others_back():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Backend("torch").precision("float32"):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_torch_has_its_threads_back_also_in_new_threads():
    """torch counts those of this thread anew for each; matrix products use what was set last."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_core(), Backend("torch").precision("float32"):
            assert in_a_new_thread(torch.get_num_threads) == torch.get_num_threads() == 1
        assert in_a_new_thread(torch.get_num_threads) == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def in_a_new_thread(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
