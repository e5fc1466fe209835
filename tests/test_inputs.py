"""Input laws: their distributions, and every way a file can be wrong."""

import hashlib
import importlib
import json
import os
import pkgutil
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors import deserialize
from safetensors.numpy import save_file
from scipy import stats

from favorbench import catalogue, inputs
from favorbench.errors import InputError, ScenarioError
from favorbench.inputs import INPUTS, Arrays, File, Fixed, Gaussian, Head, InputSource, data_directory, get_input
from favorbench.numerics.streams import stream
from tests.conftest import random_heads

ALPHA = 1e-8


def test_gaussian_inputs_are_standard_normal_and_independent():
    head = Head("-", 2000, 2000, 5)
    drawn = get_input("gaussian").draw(stream(0, "test"), head)
    for a in drawn:
        assert stats.kstest(a.ravel(), "norm").pvalue > ALPHA
    flat = np.stack([a.ravel() for a in drawn])
    assert np.max(np.abs(np.corrcoef(flat) - np.eye(3))) < stats.norm.isf(ALPHA / 6) / np.sqrt(flat.shape[1])


def test_sphere_inputs_have_the_typical_norm_of_the_gaussian():
    query, key, value = get_input("sphere").draw(stream(0, "test"), Head("-", 500, 500, 9))
    for a in (query, key):
        assert_allclose(np.linalg.norm(a, axis=-1), 3.0, rtol=1e-14)
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
        assert_array_equal(first.query, archive["q"][2])


def test_seq_len_takes_the_first_tokens(rng):
    np.savez("in.npz", **random_heads(rng, 9, 2))
    law = get_input("in.npz")
    (head,) = law.heads((4,), None)
    assert law.draw(stream(0), head).key.shape == (4, 2)
    with pytest.raises(ScenarioError, match="has 9 tokens"):
        law.heads((10,), None)
    with pytest.raises(
        ScenarioError, match=r"`head_dim` 3 was requested, but in\.npz has head_dim 2: leave `head_dim` out"
    ):
        law.heads(None, (3,))


GOOD = {"q": np.ones((2, 4, 3)), "k": np.ones((2, 4, 3)), "v": np.ones((2, 4, 3))}


def test_labels_of_a_batch_that_do_not_fit_are_asked_for_by_shape():
    """The note asked for 6 integers, which were given."""
    heads = {role: np.ones((2, 3, 4, 3)) for role in "qkv"}
    np.savez("in.npz", **heads, layer=np.zeros(6, int), head=np.arange(6))
    assert "labels take 2 x 3 integers" in get_input("in.npz").notes()[0]


@pytest.mark.parametrize(
    "layer", [np.array([-1, 1]), np.array([2**63, 1], np.uint64), np.array([0.0, 1.0]), np.array([0]), np.array([0, 0])]
)
def test_numbers_of_layers_that_no_model_has_are_no_labels(layer):
    """They ended figures with OverflowError, or were left out without a word."""
    np.savez("in.npz", **GOOD, layer=layer, head=np.array([0, 0]))
    law = get_input("in.npz")
    assert [head.label for head in law.heads(None, None)] == ["h0", "h1"]
    (note,) = law.notes()
    assert note.startswith("`layer` and `head` are not used: labels take 2 integers from 0 to 1000000 in each")


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_factors_of_gradients_are_checked(scale):
    """They made every effect infinite, without a word."""
    gradients = {"gradients": np.ones((2, 3, 4, 3)), "gradient_scales": np.full((2, 3), scale)}
    np.savez("in.npz", **GOOD, **gradients)
    with pytest.raises(InputError, match="array 'gradient_scales', head h0, has 3 values that are NaN or infinite"):
        get_input("in.npz").heads(None, None)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"q": None}, "no array 'q' (or 'query'); the file has 'k', 'v'"),
        ({"key": np.ones((8, 4))}, "both 'k' and 'key', of which one is due"),
        ({"q": np.ones(3)}, "shape (3,)"),
        ({"q": np.ones((2, 4, 3), dtype=int)}, "int64; it must be float64, float32, float16 or bfloat16"),
        ({"v": np.full((2, 4, 3), np.nan)}, "array 'v', head h0, has 12 values that are NaN or infinite"),
        ({"k": np.ones((2, 4, 5))}, "q has head_dim 3 and k has 5"),
        ({"v": np.ones((2, 6, 3))}, "k has 4 tokens and v has 6"),
        ({"k": np.ones((1, 4, 3))}, "repeat grouped heads first"),
        ({"q": np.ones((2, 0, 3))}, "an axis is empty"),
        ({"causal": np.array("false")}, "in.npz: causal is 'false' in it; allowed: true or false"),
        ({"causal": np.array(np.nan)}, "is nan in it; allowed: true or false"),
        ({"causal": np.ones(2, bool)}, "is 'bool of shape (2,)' in it; allowed: true or false"),  # one for each head
        ({"q": np.array([object()])}, "Python objects (pickle), which are never read"),
    ],
)
def test_faults_of_a_file_are_named(change, said):
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
    with pytest.raises(
        ScenarioError, match="`inputs`: a ndarray was given; allowed: gaussian, sphere, minilm, or a path"
    ):
        get_input(np.ones(3))


def test_every_law_is_registered():
    """One file and one line: a law that is defined and not in INPUTS would be in no list and in no test."""
    modules = [importlib.import_module(f"{inputs.__name__}.{m.name}") for m in pkgutil.iter_modules(inputs.__path__)]
    defined = {
        law
        for module in modules
        for law in vars(module).values()
        if isinstance(law, type) and issubclass(law, InputSource) and law not in (InputSource, Fixed, Arrays)
    }  # Arrays: what is in memory has no name of its own
    assert defined == set(INPUTS)
    assert all(law.description and law.name for law in INPUTS)


@dataclass(frozen=True)
class Ones(Gaussian):
    name = "ones"
    description = "all ones"


@dataclass(frozen=True)
class Raw(File):
    description = "numbers without a header"
    suffixes = (".raw",)


def test_registered_members_are_listed_and_accepted(monkeypatch):
    monkeypatch.setattr(inputs, "INPUTS", (*INPUTS, Ones, Raw))
    listed = {record["name"]: record["description"] for record in catalogue.records("inputs")}
    assert listed["ones"] == "all ones" and get_input("ones(std=2.0)") == Ones(std=2.0)
    assert "numbers without a header" in [r["description"] for r in catalogue.records("inputs")]
    Path("a.RAW").touch()
    assert get_input("a.RAW") == Raw("a.RAW", label="a.RAW").pinned()
    with pytest.raises(
        ScenarioError, match=re.escape("(did you mean 'ones'?); allowed: gaussian, sphere, ones, minilm")
    ):
        get_input("onez")


def test_a_second_shipped_file_has_words_of_its_own(monkeypatch):
    monkeypatch.setitem(inputs.SHIPPED, "second", inputs.SHIPPED["minilm"]._replace(description="another model"))
    described = {record["name"]: record["description"] for record in catalogue.records("inputs")}
    assert described["second"] == "another model" != described["minilm"]
    assert get_input("second").heads(None, None) == get_input("minilm").heads(None, None)


def safetensors(**tensors):
    """A file of tensors of any type: a length, a header in JSON, the bytes."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": (len(data), len(data) + len(content))}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_bfloat16_is_read_exactly(rng):
    """Every bfloat16 is a float32 whose lower half is zero: signs, subnormal numbers and the largest come through."""
    halves = np.concatenate(
        [rng.integers(0, 1 << 16, 90).astype("<u2"), np.array([0, 0x8000, 1, 0x7F, 0x80, 0x7F7F], "<u2")]
    )
    halves = np.where((halves & 0x7F80) == 0x7F80, 0x3F80, halves).astype("<u2").reshape(2, 16, 3)  # finite ones only
    Path("in.safetensors").write_bytes(
        safetensors(**{name: ("BF16", halves.shape, halves.tobytes()) for name in "qkv"})
    )
    assert len(deserialize(Path("in.safetensors").read_bytes())) == 3  # the reader takes it for such a file
    law = get_input("in.safetensors")
    drawn = law.draw(stream(0), law.heads(None, None)[1])
    exponent, fraction = (halves[1].astype(int) >> 7) & 0xFF, halves[1].astype(int) & 0x7F
    magnitude = np.where(exponent > 0, 1 + fraction / 128, fraction / 64) * 2.0 ** (exponent - 127)
    assert_array_equal(drawn.key, np.where(halves[1] >> 15, -magnitude, magnitude))
    assert isinstance(law, File) and law.notes()[0] == "q: bfloat16 read as float64 (exact)"


def test_a_type_without_numbers_for_it_is_named():
    one = ("F32", (2, 3), np.ones((2, 3), "<f4").tobytes())
    Path("in.safetensors").write_bytes(safetensors(q=("F8_E4M3", (2, 3), b"\x38" * 6), k=one, v=one))
    with pytest.raises(InputError, match=re.escape("array 'q' is F8_E4M3; it must be float64, float32, float16 or")):
        get_input("in.safetensors").heads(None, None)
    Path("in.safetensors").write_bytes(safetensors(q=one, k=one, v=one, scales=("F8_E4M3", (6,), b"\x38" * 6)))
    assert len(get_input("in.safetensors").heads(None, None)) == 1  # what is not asked for may be of any type


def test_a_link_to_itself_is_refused_as_one():
    os.symlink("loop.npz", "loop.npz")
    with pytest.raises(InputError, match=r"cannot read inputs 'loop\.npz': Too many levels of symbolic links"):
        get_input("loop.npz")


@pytest.mark.parametrize("name", ["pipe.npz", "pipe.safetensors"])
def test_a_named_pipe_is_refused_at_once(name):
    os.mkfifo(name)
    with pytest.raises(InputError, match=f"cannot read inputs '{name}': not a regular file"):
        get_input(name).heads(None, None)
    with pytest.raises(InputError, match="not a regular file"):
        get_input(name).digest()


def test_the_digest_is_that_of_the_file():
    np.savez("in.npz", **GOOD)
    assert get_input("in.npz").digest() == hashlib.sha256(Path("in.npz").read_bytes()).hexdigest()
