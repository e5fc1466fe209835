"""Input laws: their distributions, and every way a file can be wrong."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from favorbench.errors import InputError, ScenarioError
from favorbench.inputs import File, Head, data_directory, get_input
from favorbench.numerics.streams import stream

ALPHA = 1e-8


def test_gaussian_inputs_are_standard_normal_and_independent():
    head = Head("-", 2000, 2000, 5)
    inputs = get_input("gaussian").draw(stream(0, "test"), head)
    for a in inputs:
        assert stats.kstest(a.ravel(), "norm").pvalue > ALPHA
    flat = np.stack([a.ravel() for a in inputs])
    assert np.max(np.abs(np.corrcoef(flat) - np.eye(3))) < stats.norm.isf(ALPHA / 6) / np.sqrt(flat.shape[1])


def test_sphere_inputs_have_the_typical_norm_of_the_gaussian():
    query, key, value = get_input("sphere").draw(stream(0, "test"), Head("-", 500, 500, 9))
    for a in (query, key):
        np.testing.assert_allclose(np.linalg.norm(a, axis=-1), 3.0, rtol=1e-14)
        # a coordinate of a uniform direction in d = 9 is a scaled Beta(4, 4)
        assert stats.kstest((a[:, 0] / 3 + 1) / 2, stats.beta(4, 4).cdf).pvalue > ALPHA
    assert stats.kstest(value.ravel(), "norm").pvalue > ALPHA


def test_the_shipped_heads_are_the_documented_ones():
    file = data_directory() / "data" / "minilm-cc0.npz"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest in (data_directory() / "data" / "README.md").read_text(encoding="utf-8")
    law = get_input("minilm")
    assert [h.label for h in law.heads(None, None)] == ["L0H1", "L0H5", "L5H0", "L5H8"]
    assert {(h.query_len, h.seq_len, h.head_dim) for h in law.heads(None, None)} == {(512, 512, 32)}
    first = law.draw(stream(0), law.heads(None, None)[2])
    with np.load(file, allow_pickle=False) as archive:
        np.testing.assert_array_equal(first.query, archive["q"][2])


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize(
    ("leading", "labels"), [((), ["h0"]), ((2,), ["h0", "h1"]), ((2, 2), ["b0h0", "b0h1", "b1h0", "b1h1"])]
)
def test_files_of_every_shape(rng, suffix, leading, labels):
    arrays = {
        "q": rng.normal(size=(*leading, 5, 3)).astype(np.float32),
        "k": rng.normal(size=(*leading, 7, 3)).astype(np.float16),
        "v": rng.normal(size=(*leading, 7, 2)),
    }
    np.savez("in.npz", **arrays) if suffix == "npz" else save_file(arrays, "in.safetensors")
    law = get_input(f"in.{suffix}")
    heads = law.heads(None, None)
    assert [h.label for h in heads] == labels
    assert {(h.query_len, h.seq_len, h.head_dim) for h in heads} == {(5, 7, 3)}
    drawn = law.draw(stream(0), heads[-1])
    np.testing.assert_array_equal(drawn.key, arrays["k"].reshape(-1, 7, 3)[-1])
    assert drawn.key.dtype == np.float64
    assert isinstance(law, File) and any("float16" in note for note in law.notes())  # a stated conversion


def test_seq_len_takes_the_first_tokens(rng):
    np.savez("in.npz", q=rng.normal(size=(9, 2)), k=rng.normal(size=(9, 2)), v=rng.normal(size=(9, 2)))
    law = get_input("in.npz")
    (head,) = law.heads((4,), None)
    assert law.draw(stream(0), head).key.shape == (4, 2)
    with pytest.raises(ScenarioError, match="has 9 tokens"):
        law.heads((10,), None)
    with pytest.raises(ScenarioError, match="head_dim 2: leave -d out"):
        law.heads(None, (3,))


GOOD = {"q": np.ones((2, 4, 3)), "k": np.ones((2, 4, 3)), "v": np.ones((2, 4, 3))}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": None}, "no array 'q' (or 'query'); the file has 'k', 'v'"),
        ({"q": np.ones(3)}, "shape (3,)"),
        ({"q": np.ones((2, 4, 3), dtype=int)}, "int64; it must be float64, float32 or float16"),
        ({"v": np.full((2, 4, 3), np.nan)}, "24 values that are NaN or infinite"),
        ({"k": np.ones((2, 4, 5))}, "q has head_dim 3 and k has 5"),
        ({"v": np.ones((2, 6, 3))}, "k has 4 tokens and v has 6"),
        ({"k": np.ones((1, 4, 3))}, "repeat grouped heads first"),
        ({"q": np.ones((2, 0, 3))}, "an axis is empty"),
        ({"q": np.array([object()])}, "Python objects (pickle), which are never read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change, said):
    arrays = {name: value for name, value in (GOOD | change).items() if value is not None}
    np.savez("in.npz", **arrays)
    with pytest.raises(InputError, match=re.escape(said)):
        get_input("in.npz").heads(None, None)


@pytest.mark.parametrize("name", ["in.npz", "in.safetensors"])
def test_a_truncated_file_is_named(name):
    np.savez("whole.npz", **GOOD)
    save_file(GOOD, "whole.safetensors")
    data = Path(name.replace("in", "whole")).read_bytes()
    Path(name).write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=f"cannot read '{name}'"):
        get_input(name).heads(None, None)
    with pytest.raises(InputError, match="No such file"):
        get_input(f"absent-{name}").heads(None, None)


def test_unknown_inputs_are_named():
    with pytest.raises(ScenarioError, match=re.escape("unknown inputs 'gausian' (did you mean 'gaussian'?)")):
        get_input("gausian")
