"""Methods with other array libraries: the strictest, and torch where it is installed, agree with NumPy."""

import importlib.util
from typing import Any

import array_api_strict
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.baselines import get_baseline
from favorbench.engine.scenario import load_scenario
from favorbench.methods import METHODS, PREFIXES, AttentionProblem, SampledKeys, get_method
from favorbench.methods.clusters import cells_of
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.arrays import on_host
from favorbench.numerics.backend import to_torch
from favorbench.numerics.streams import Streams
from tests import conftest

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is not installed")

#: Every member, every prefix around a method, a sample and a map, and parameters that take another path.
SPECS = [
    *(member.name for member in METHODS if member.arrays != "host"), "sampled-keys", "sampled-keys(weights='values')",
    *(f"{prefix.prefix}(5):{inside}" for prefix in PREFIXES
      for inside in ("clusters", "multipole", "sampled-keys", "trig", "lara", "thinformer")),
    "clusters(order=2)", "clusters(lloyd=2)", "clusters(points='pivots')", "multipole(exact=0.2)", "top(2):positive",
    "multipole(block=16, segment=40)", "multipole(block=16, cells='tree', segment=40)", "multipole(cells='tree')",
    "sinks(3):window(9):multipole(block=16, cells='tree', segment=40)",
    "sinks(3):window(6):clusters", "window(4):centre:positive", "nystromformer(inverse='pinv')", "monarch(steps=2)",
]  # fmt: skip
#: Methods that need no more than the array API standard: no scatter, no topk.
STANDARD = ["sampled-keys", "sampled-keys(weights='values')", "sinks(5):trig", "window(6):trig",
            "sinks(2):sampled-keys", "window(5):sampled-keys", "sinks(3):window(4):positive", "nystromformer",
            "nystromformer(inverse='pinv')", "monarch", "monarch(steps=3)", "lara", "thinformer"]  # fmt: skip
#: Matrices whose condition is in the thousands are inverted.
LOOSE = {"nystromformer": 1e-8, "nystromformer(inverse='pinv')": 1e-7}


def method_of(spec):
    return get_baseline(spec) if spec.startswith("sampled") else get_method(spec)


def problem(rng, spec="", length=150, d=6, d_v=4):
    query, key = (0.3 if "trig" in spec else 0.7) * rng.normal(size=(2, length, d))
    return query, key, rng.normal(size=(length, d_v))


def answers(spec, arrays, causal=False, to=np.asarray, seed=0, sizes=(6, 20)):
    streams = Streams((np.random.default_rng(seed),), lambda hosts: to(hosts[0]))
    question = AttentionProblem(*map(to, arrays), np.arange(arrays[0].shape[-2]), causal)
    return list(method_of(spec).estimates(question, sizes, streams))


def in_torch(array):
    return to_torch(array) if isinstance(array, np.ndarray) else array


def agree(found, expected, spec, back):
    for there, here in zip(found, expected, strict=True):
        assert there[:2] == here[:2] and type(there.output) is not np.ndarray
        tolerance = LOOSE.get(spec, 1e-12) * np.abs(here.output).max()
        assert_allclose(back(there.output), here.output, rtol=1e-12, atol=tolerance)


CASES = [(spec, causal) for spec in SPECS for causal in (False, True) if not causal or method_of(spec).causal_safe]


@needs_torch
@pytest.mark.parametrize("spec, causal", CASES)
def test_torch_agrees_with_numpy(rng, spec, causal):
    arrays = problem(rng, spec)
    agree(answers(spec, arrays, causal, to_torch), answers(spec, arrays, causal), spec, on_host)


@needs_torch
@pytest.mark.parametrize("spec, causal", CASES)
def test_the_memory_order_of_tensors_does_not_matter(rng, spec, causal):
    """Column order is that of queries which a convolution computed, (d, L)."""
    arrays = problem(rng, spec, d_v=6)  # as many as d: then torch has attention as one operation

    def in_columns(array):
        return to_torch(array.T).mT if array.ndim == 2 else to_torch(array)

    agree(answers(spec, arrays, causal, in_columns), answers(spec, arrays, causal), spec, on_host)


@pytest.mark.parametrize("spec", STANDARD)
@pytest.mark.parametrize("causal", [False, True])
def test_the_strictest_library_agrees_with_numpy(rng, spec, causal):
    arrays = problem(rng, spec)
    if causal and not method_of(spec).causal_safe:
        return
    agree(answers(spec, arrays, causal, array_api_strict.asarray), answers(spec, arrays, causal), spec, np.asarray)


def together(spec, problems, causal, to, stack):
    """The answers to several draws at once, each with a generator of its own."""
    streams = Streams([np.random.default_rng(i) for i in range(len(problems))], stack)
    stacked = [to(np.stack(arrays)) for arrays in zip(*problems, strict=True)]
    question = AttentionProblem(*stacked, np.arange(problems[0][0].shape[-2]), causal)
    return list(method_of(spec).estimates(question, (6, 20), streams))


BATCHED = [case for case in CASES if method_of(case[0]).arrays == "batched"]


@pytest.mark.parametrize("to, back", [(np.asarray, np.asarray), pytest.param(to_torch, on_host, marks=needs_torch)])
@pytest.mark.parametrize("spec, causal", BATCHED)
def test_each_draw_of_a_batch_is_the_draw_alone_in_numpy(rng, spec, causal, to, back):
    problems = [problem(rng, spec) for _ in range(3)]
    found = together(spec, problems, causal, to, lambda hosts: to(np.stack(hosts)))
    for i, arrays in enumerate(problems):
        for every, alone in zip(found, answers(spec, arrays, causal, seed=i), strict=True):
            tolerance = LOOSE.get(spec, 1e-12) * np.abs(alone.output).max()
            assert_allclose(back(every.output)[i], alone.output, rtol=1e-12, atol=tolerance)


def rows_of(**changes):
    flags = {"maps": "positive", "samplers": "iid", "seq_len": "140", "head_dim": "6", "num_projections": "6,20"}
    rows = conftest.rows_of(load_scenario("quick", flags | {"trials": 3} | changes), 2)
    return rows.fillna({"num_projections": 0}).set_index(["draw", "estimator", "num_projections"])


@needs_torch
@pytest.mark.parametrize("changes", [{}, {"causal": True}, {"budget": "cost", "scale": "0.5"}, {"query_rows": 50}])
def test_a_sweep_of_methods_on_torch_gives_the_rows_of_numpy(changes):
    """Batches of two draws and a rest."""
    names = [spec for spec in (*SPECS, "nystrom", "wildcat") if not spec.startswith("sampled") and "top" not in spec]
    if changes.get("causal"):
        names = [name for name in names if get_method(name).causal_safe]
    if "query_rows" in changes:
        names = [name for name in names if not get_method(name).needs_all_rows]
    asked = changes | {"methods": ",".join(names), "baselines": "sampled-keys"}
    if "budget" in changes:
        asked["num_projections"] = "90,100"
    ours, theirs = rows_of(**asked), rows_of(**asked, backend="torch")
    assert list(ours.index) == list(theirs.index)
    for column in ("kind", "num_features", "budget", "multiplications"):
        pd.testing.assert_series_equal(ours[column], theirs[column])
    loose = ours.index.get_level_values("estimator").isin([*LOOSE, "nystrom", "wildcat"])
    assert_allclose(theirs["mse"][~loose], ours["mse"][~loose], rtol=1e-10, atol=1e-25)
    assert_allclose(theirs["mse"][loose], ours["mse"][loose], rtol=1e-5, atol=1e-25)


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "spec",
    ["clusters", "multipole", "multipole(block=64)", "sinks(3):window(9):clusters", "sampled-keys", "thinformer",
     "sinks(3):positive", "window(9):elu", "top(3):oprf", "sinks(3):window(9):trig"],
)  # fmt: skip
def test_less_precision_keeps_its_type_and_rounds(rng, spec, dtype):
    import torch

    arrays = problem(rng, spec)
    kept = [getattr(torch, dtype), torch.float64]
    streams = [Streams((np.random.default_rng(0),), lambda hosts: to_torch(hosts[0])) for _ in kept]
    questions = [AttentionProblem(*(to_torch(a).to(kept[0]).to(one) for a in arrays), np.arange(150)) for one in kept]
    (low,), (high,) = (
        list(method_of(spec).estimates(question, (20,), stream))
        for question, stream in zip(questions, streams, strict=True)
    )
    assert low.output.dtype == kept[0]
    error = (low.output.to(torch.float64) - high.output).abs().median()
    assert error <= 64 * torch.finfo(kept[0]).eps * high.output.abs().max()


@needs_torch
@pytest.mark.parametrize("spec", ["sinks(3):poisson", "sinks(3):geometric"])
def test_what_maps_draw_is_not_rounded(rng, spec):
    """A uniform number that rounds to 1 makes an exponent far too large, or infinite."""
    import torch

    arrays = [0.5 * to_torch(a).to(torch.bfloat16) for a in problem(rng)]
    for seed in range(3):
        low, high = (fb.method_attention(*(a.to(dtype) for a in arrays), spec, 128, seed)
                     for dtype in (torch.bfloat16, torch.float64))  # fmt: skip
        assert (low.double() - high).abs().max() < 0.1 * high.abs().max()


@needs_torch
def test_in_half_precision_every_key_may_be_sampled(rng):
    """In bfloat16 the sums of shares are one of a few hundred numbers, for 3000 keys."""
    import torch

    tokens = Tokens(*torch.ones((2, 3000, 4), dtype=torch.bfloat16))
    streams = Streams((rng,), lambda hosts: to_torch(hosts[0]))
    method = SampledKeys(weights="values")
    summary: Any = next(method.summaries(tokens, Queries(tokens.key, None), (2000,), streams))
    assert len(set(summary.index.tolist())) > 1300  # of 1460 that are expected


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_method_answers_in_half_precision(rng, spec, dtype):
    """Of eigenvalues and pseudoinverses, torch has none there."""
    import torch

    arrays = [to_torch(a).to(getattr(torch, dtype)) for a in problem(rng, spec)]
    (answer,) = answers(spec, arrays, to=in_torch, sizes=(20,))
    assert answer.output.dtype == getattr(torch, dtype) and bool(answer.output.isfinite().all())


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cells_have_the_variance_of_their_keys_in_half_precision(rng, dtype):
    """Keys with a large mean, whose squares leave no digits of it there; some were below 0."""
    import torch

    key = to_torch(20.0 + rng.normal(size=(600, 4))).to(getattr(torch, dtype))
    labels = to_torch(rng.integers(3, size=600))
    low, high = (cells_of(a, a, labels, 3, with_variance=True) for a in (key, key.double()))
    assert_allclose(low.variance.double(), high.variance, rtol=0.01)
    assert {part.dtype for part in low} == {key.dtype}


@needs_torch
def test_keys_sampled_by_their_shares_in_float16_have_finite_weights(rng):
    """The lengths of these values add up to 120,000, and float16 ends at 65,504."""
    import torch

    arrays = [to_torch(a).to(torch.float16) for a in (0.1 * rng.normal(size=(8, 4)), 0.1 * rng.normal(size=(6000, 4)))]
    value = torch.full((6000, 4), 10.0, dtype=torch.float16)
    (answer,) = answers("sampled-keys(weights='values')", (*arrays, value), to=in_torch, sizes=(20,))
    assert_allclose(answer.output, 10.0, rtol=1e-2)


@needs_torch
@pytest.mark.parametrize(
    "spec", ["window(16):positive", "top(16):oprf", "sinks(2):window(16):hyperbolic", "window(16):lara"]
)
@pytest.mark.parametrize("dtype, mean", [("float16", 12.0), ("float32", 30.0)])
def test_where_queries_point_away_from_keys_estimates_that_are_subtracted_do_not_vanish(rng, spec, dtype, mean):
    """As in heads with sinks: the largest features of a query and of a key are others, and their product is small."""
    import torch

    query, key, value = problem(rng, spec)
    query[:, 0] -= mean
    key[:, 0] += mean
    arrays = [to_torch(a).to(getattr(torch, dtype)) for a in (query, key, value)]
    (low,), (high,) = (answers(spec, [a.to(one) for a in arrays], to=in_torch, sizes=(20,))
                       for one in (arrays[0].dtype, torch.float64))  # fmt: skip
    error = (low.output.double() - high.output).abs()
    assert error.isfinite().all() and error.median() < 0.05


@needs_torch
def test_what_queries_have_seen_counts_in_their_votes_in_both_libraries():
    """For queries of very different lengths. NumPy keeps sums, and torch the logs of normalisers."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        query, key, value = rng.normal(size=(3, 600, 4))
        arrays = [3.0 * np.exp(rng.normal(size=(600, 1))) * query, key, value]
        ours, theirs = (
            fb.method_attention(*map(convert, arrays), "multipole(block=16)", 16, causal=True)
            for convert in (np.asarray, to_torch)
        )
        assert_allclose(theirs.numpy(), ours, atol=1e-10)
