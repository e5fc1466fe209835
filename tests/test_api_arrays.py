"""Arrays in memory from Python: the same numbers, bit for bit, as from the file that numpy.savez writes of them."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import favorbench as fb
from favorbench.errors import InputError, ScenarioError
from favorbench.inputs import Arrays, get_input
from favorbench.inputs.stored import write_npz
from favorbench.studies.function_errors import function_error

QUICK = {"maps": "positive,oprf", "samplers": "iid", "num_projections": [4, 8], "trials": 2, "baselines": "uniform"}


def some(rng, *leading, length=8, dim=3):
    return tuple(rng.normal(size=(*leading, length, dim)) for _ in "qkv")


def save(arrays):
    np.savez("mine.npz", **dict(zip("qkv", arrays, strict=True)))


def renamed(trials, name):
    return trials.assign(input=pd.Series(name, trials.index, trials["input"].dtype))


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)], ids=["L,d", "heads", "batch,heads"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_arrays_are_the_file_that_savez_writes_of_them(rng, leading, dtype):
    arrays = [array.astype(dtype) for array in some(rng, *leading)]
    save(arrays)
    assert Arrays.of("mine", arrays).digest() == get_input("mine.npz").digest()
    results = fb.sweep("quick", inputs={"mine": arrays}, out="memory", **QUICK)
    of_file = fb.sweep("quick", inputs="mine.npz", out="file", **QUICK)
    assert results.trials.equals(renamed(of_file.trials, "mine"))
    assert results.trials["head"].nunique() == int(np.prod(leading))
    without_a_name = fb.sweep("quick", inputs=tuple(arrays), out="nameless", **QUICK)
    assert without_a_name.trials.equals(renamed(of_file.trials, "arrays"))
    arrays[2] = np.nextafter(arrays[2], dtype(np.inf))  # the control: other values are other inputs
    assert Arrays.of("mine", arrays).digest() != get_input("mine.npz").digest()


def test_arrays_in_bfloat16_are_their_numbers(rng):
    """Of JAX, in a type of ml_dtypes. The bits of files were expected, so that 0.3 was 0."""
    arrays = [array.astype(ml_dtypes.bfloat16) for array in some(rng, 3)]
    results = fb.sweep("quick", inputs={"mine": tuple(arrays)}, out="narrow", **QUICK)
    same = fb.sweep("quick", inputs={"mine": tuple(a.astype(np.float32) for a in arrays)}, out="wide", **QUICK)
    exact, wide = (run.trials.query("estimator == 'uniform'") for run in (results, same))  # draws are of the digest
    assert exact.equals(wide) and (exact["mse"] > 0.01).all()


def test_a_file_is_written_as_numpy_does(rng):
    arrays = dict(zip("qkv", some(rng, 2), strict=True)) | {"layer": np.arange(2), "meta": np.array("{}")}
    np.savez("numpy.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with open("ours.npz", "wb") as file:
        write_npz(file, arrays)
    assert Path("ours.npz").read_bytes() == Path("numpy.npz").read_bytes()


def test_the_memory_order_of_rows_does_not_matter(rng):
    arrays = some(rng, 4)
    turned = [np.asfortranarray(array) for array in arrays]
    strided = [np.repeat(array, 2, axis=1)[:, ::2] for array in arrays]
    digests = {Arrays.of("mine", one).digest() for one in (arrays, turned, strided, [a.tolist() for a in arrays])}
    assert len(digests) == 1


def test_without_out_the_run_is_named_by_its_contents(rng):
    """Two sweeps of the same arrays are one run, of others another; and it can be read back."""
    arrays, progress = some(rng, 2), []
    first = fb.sweep("quick", inputs={"mine": arrays}, **QUICK)
    again = fb.sweep("quick", inputs={"mine": arrays}, progress=lambda *said: progress.append(said), **QUICK)
    other = fb.sweep("quick", inputs={"mine": [2 * a for a in arrays]}, **QUICK)
    assert first.path == again.path != other.path and progress == [(4, 4)]
    assert again.trials.equals(first.trials) and fb.load(first.path).trials.equals(first.trials)


def test_several_inputs_of_several_shapes(rng):
    """Each has the numbers that it has alone."""
    given = {"a": some(rng), "b": some(rng, 2, length=12), "c": some(rng, 2, 2, length=6, dim=4)}
    together = fb.sweep("quick", inputs=given, **QUICK)
    assert together.trials.groupby("input")["head"].nunique().to_dict() == {"a": 1, "b": 2, "c": 4}
    labels = ["input", "head", "estimator", "num_projections"]
    alone = fb.sweep("quick", inputs={"b": given["b"]}, **QUICK).trials.groupby(labels, dropna=False)["mse"].min()
    both = together.trials.groupby(labels, dropna=False)["mse"].min()
    assert both[both.index.get_level_values("input") == "b"].equals(alone)


def test_facts_that_a_file_declares(rng):
    """layer, head and causal are understood in a mapping too, and in an open file."""
    arrays = dict(zip("qkv", some(rng, 2), strict=True))
    arrays |= {"layer": np.array([0, 3]), "head": np.array([5, 1]), "causal": np.array(True)}
    results = fb.sweep("quick", inputs={"mine": arrays}, **QUICK | {"maps": "positive"})
    assert list(results.trials["head"].unique()) == ["L0H5", "L3H1"] and results.scenario.causal
    np.savez("mine.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with np.load("mine.npz") as opened:
        assert Arrays.of("mine", opened).digest() == get_input("mine.npz").digest()


def test_a_scenario_object_takes_mask_and_length_from_new_inputs_as_a_name_does():
    """Unless it says itself whether attention is causal."""
    arrays = dict(zip("qkv", np.random.default_rng(0).normal(size=(3, 2, 24, 4)), strict=True)) | {"causal": True}
    keys = {"maps": "positive", "num_projections": 8, "trials": 1}
    given = {"baselines": ["uniform", "best-rank"], "seq_len": 16, "head_dim": 8, **keys}
    for i, (scenario, causal) in enumerate(
        [(fb.load_scenario(None, given), True), (fb.load_scenario(None, given | {"causal": False}), False)]
    ):
        found = fb.sweep(scenario, f"run{i}", inputs={"mine": arrays})
        assert found.scenario.causal is causal and set(found.summary["seq_len"]) == {24}
        assert ("best-rank" in found.scenario.baselines) is not causal  # it cannot be causal
    assert "best-rank" not in fb.sweep(fb.load_scenario(None, given), "masked", causal=True).scenario.baselines
    masked = fb.load_scenario(None, keys | {"inputs": {"mine": arrays}})
    assert masked.causal and not fb.sweep(masked, "full", inputs="gaussian", seq_len=16).scenario.causal


def test_recommend_takes_the_same_arrays(rng):
    """The same answer as for the file, and nothing is written where no `out` is given."""
    query, key, value = some(rng, 2, length=32, dim=4)
    arrays = (0.3 * query, 0.3 * key, value)
    save(arrays)
    asked = {"target": 0.2, "methods": "clusters", "max_size": 32}
    of_arrays, named = fb.recommend(arrays, **asked), fb.recommend({"mine": arrays}, **asked)
    assert [path.name for path in Path().iterdir()] == ["mine.npz"]
    of_file = fb.recommend("mine.npz", **asked)
    for one, other, third in zip(of_arrays.decisions, named.decisions, of_file.decisions, strict=True):
        assert one == other == third
    assert of_arrays.title.startswith("arrays,") and named.title.startswith("mine,")
    kept = fb.recommend(arrays, out="kept", **asked)
    assert kept.decisions == of_file.decisions and Path("kept/manifest.json").exists()
    assert sorted(path.name for path in Path().iterdir()) == ["kept", "mine.npz", "results"]
    with pytest.raises(ScenarioError, match="2 inputs were given, allowed: one"):
        fb.recommend({"a": arrays, "b": arrays}, **asked)
    with pytest.raises(InputError, match="k has 4"):
        fb.recommend((query[..., :3], key, value), **asked)


def test_compare_takes_runs_of_arrays(rng):
    """The same numbers are the same problem, and others of the same name are not."""
    arrays = some(rng, 2)
    one = fb.sweep("quick", inputs={"mine.arrays": arrays}, out="one", **QUICK)
    two = fb.sweep("quick", inputs={"mine.arrays": arrays}, out="two", **QUICK)
    assert set(fb.compare(one, two)["mark"]) == {"="}
    other = fb.sweep("quick", inputs={"mine.arrays": [1.5 * a for a in arrays]}, out="other", **QUICK)
    with pytest.raises(ScenarioError, match=re.escape("other contents of mine.arrays")):
        fb.compare(one, other)


def test_captured_heads_are_inputs():
    """Those of a model, with their labels and their mask, as the file of them has."""
    torch = pytest.importorskip("torch")

    class Small(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    captured = fb.capture(Small(), torch.randn(1, 2, 16, 4))
    captured.save("mine.npz")
    assert Arrays.of("mine", captured).digest() == get_input("mine.npz").digest()
    results = fb.sweep("quick", inputs={"mine": captured}, out="memory", **QUICK | {"maps": "positive"})
    of_file = fb.sweep("quick", inputs="mine.npz", out="file", **QUICK | {"maps": "positive"})
    assert results.scenario.causal and set(results.trials["head"]) == {"L0H0", "L0H1"}
    assert results.trials.equals(renamed(of_file.trials, "mine"))
    assert fb.recommend(captured, 0.3, methods="sampled-keys").title.endswith("causal")
    half = fb.capture(Small(), torch.randn(1, 2, 16, 4), dtype="bfloat16")
    half.save("half.safetensors")
    laws = (Arrays.of("half", half), get_input("half.safetensors"))
    for one, other in zip(*(law.draw(np.random.default_rng(), law.heads(None, None)[1]) for law in laws), strict=True):
        assert_array_equal(one, other)


def test_scenarios_may_be_paths_and_numbers_those_of_numpy(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "mine"\nmaps = ["positive"]\nsamplers = ["iid"]\n')
    keys = {"seq_len": np.int64(16), "head_dim": [np.int32(4)], "trials": np.int64(2), "baselines": "uniform"}
    found = [fb.sweep(path, f"run{i}", num_projections=r, seed=np.uint8(3), **keys).trials
             for i, r in enumerate([[np.int64(4), 8], range(4, 9, 4), 2 ** np.arange(2, 4), "4,8"])]  # fmt: skip
    assert sorted(found[0]["num_projections"].dropna().unique()) == [4, 8]
    assert all(rows.drop(columns="seconds", errors="ignore").equals(found[0]) for rows in found[1:])
    arrays = np.random.default_rng(0).normal(size=(3, 16, 4))
    for size in np.array([4, 8]):
        assert_array_equal(*(fb.method_attention(*arrays, "clusters", given) for given in (size, int(size))))
    with pytest.raises(ScenarioError, match="size must be a whole number"):
        fb.method_attention(*arrays, "clusters", size=np.float64(4))


def test_recommend_takes_lists_of_names_and_paths(rng, tmp_path):
    np.savez(tmp_path / "mine.npz", **dict(zip("qkv", rng.normal(size=(3, 16, 4)), strict=True)))
    asked = {"target": 9.0, "max_size": 4, "samplers": ["iid"], "maps": ["positive", "trig"], "methods": ["clusters"]}
    found = fb.recommend(tmp_path / "mine.npz", out="run", **asked)
    asked |= {"maps": "positive,trig", "max_size": np.int64(4)}
    same = fb.recommend(str(tmp_path / "mine.npz"), out="run", **asked)
    assert found.decisions == same.decisions and found.decisions[0].candidates > 3
    with pytest.raises(ScenarioError, match=r"`methods` <function .*allowed: names, in a list or with commas"):
        fb.recommend(tmp_path / "mine.npz", methods=lambda query, key, value, size, rng: value)


def test_errors_of_functions_take_arrays_of_any_library_and_what_is_no_number_is_refused(rng):
    torch = pytest.importorskip("torch")
    arrays = [a.astype(np.float32) for a in rng.normal(size=(3, 2, 30, 4))]

    def mean(q, k, v):
        return v * 0 + v.mean(0)

    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    assert function_error(mean, tensors) == function_error(mean, arrays)
    half = [t.detach().bfloat16() for t in tensors]
    assert function_error(mean, half) == function_error(mean, [t.float().numpy() for t in half])
    masked = np.ma.masked_greater(arrays[1], 0.5)  # what the mask hides was measured
    for key, said in (
        (masked, "k has masked"),
        (arrays[1] + 1j, "k has dtype"),
        ([[1], []], "not arr"),
    ):
        with pytest.raises(InputError, match=said):
            function_error(mean, (arrays[0], key, arrays[2]))
