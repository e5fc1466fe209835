"""Inputs as libraries write them: axes in another order, several texts, a causal mask, files larger than memory, arrays
in memory."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file

import favorbench as fb
from favorbench.engine.plan import plan
from favorbench.engine.provenance import input_notes
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.errors import InputError, ScenarioError, StoreError
from favorbench.inputs import get_input, same_place, stored
from favorbench.numerics.streams import stream
from favorbench.results.figures import draw_all
from favorbench.results.findings import sentences
from tests.command_line import python, run, succeeded

QUICK = {"maps": "positive", "samplers": "iid", "num_projections": 4, "trials": 2, "baselines": "uniform"}


def some(rng, *leading, length=8, dim=3):
    return {name: rng.normal(size=(*leading, length, dim)).astype(np.float32) for name in "qkv"}


def saved(path, arrays, about=None):
    """The same arrays in any of the ways in which a file may hold them."""
    if path.endswith(".safetensors"):
        save_file(arrays, path, metadata=None if about is None else {"meta": json.dumps(about)})
    elif path.endswith(".npz"):
        extra = {} if about is None else {"meta": np.array(json.dumps(about))}
        (np.savez_compressed if "packed" in path else np.savez)(path, **arrays, **extra)
    else:
        Path(path).mkdir()
        for name, array in (arrays | ({} if about is None else {"meta": np.array(json.dumps(about))})).items():
            np.save(Path(path) / f"{name}.npy", array)
    return path


WAYS = ["in.npz", "packed.npz", "in.safetensors", "folder"]


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize(
    "leading, numbers, labels",
    [
        ((), {}, "h0"), ((2,), {}, "h0 h1"), ((2, 2), {}, "b0h0 b0h1 b1h0 b1h1"),
        ((4,), {"layer": np.array([0, 0, 3, 3]), "head": np.array([1, 2, 1, 2])}, "L0H1 L0H2 L3H1 L3H2"),
    ],
)  # fmt: skip
def test_every_way_of_storing_gives_the_same_heads(rng, path, leading, numbers, labels):
    shapes = {"q": ((5, 3), np.float32), "k": ((7, 3), np.float16), "v": ((7, 2), np.float64)}
    arrays = {name: rng.normal(size=(*leading, *shape)).astype(dtype) for name, (shape, dtype) in shapes.items()}
    law = get_input(saved(path, arrays | numbers))
    heads = law.heads(None, None)
    assert [head.label for head in heads] == labels.split()
    assert {(head.query_len, head.seq_len, head.head_dim) for head in heads} == {(5, 7, 3)}
    for i, head in enumerate(heads):
        for name, array in zip("qkv", law.draw(stream(0), head), strict=True):
            assert_array_equal(array, arrays[name].reshape(-1, *shapes[name][0])[i])
            assert array.dtype == np.float64
    assert law.digest() == get_input(path).digest()
    assert law.notes() == ("q: float32 read as float64 (exact)", "k: float16 read as float64 (exact)")


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize("leading", [(), (5,), (2, 5)])
def test_heads_may_stand_after_the_length(rng, path, leading):
    """(L, heads, d) and (batch, L, heads, d) are the same heads as (heads, L, d) and (batch, heads, L, d)."""
    arrays = some(rng, *leading)
    turned = {k: np.ascontiguousarray(np.swapaxes(a, -3, -2)) if leading else a for k, a in arrays.items()}
    np.savez("first.npz", **arrays)
    law, first = get_input(saved(path, turned), "L,heads,d"), get_input("first.npz")
    assert law.heads(None, None) == first.heads(None, None)
    for head in law.heads((6,), None):
        for one, other in zip(law.draw(stream(0), head), first.draw(stream(0), head), strict=True):
            assert_array_equal(one, other)


def test_columns_that_are_stored_first_are_read_as_they_are(rng):
    arrays = {name: np.asfortranarray(array) for name, array in some(rng, 2).items()}
    np.savez("in.npz", **arrays)
    law = get_input("in.npz")
    key = law.draw(stream(0), law.heads(None, None)[1]).key
    assert_array_equal(key, arrays["k"][1])
    assert key.flags.c_contiguous  # as on a cluster, which receives arrays in memory: else last digits differ


def test_one_file_in_two_spellings_is_refused(rng):
    """One of the two was left out without a word, and the run could not be resumed."""
    saved("in.npz", some(rng, 2))
    with pytest.raises(ScenarioError, match=r"'\./in\.npz' and 'in\.npz' are both called 'in\.npz'"):
        fb.load_scenario(None, {"inputs": "in.npz,./in.npz"})


def test_more_heads_than_tokens_are_said(rng):
    saved("in.npz", some(rng, 12))
    notes = get_input("in.npz").notes()
    assert notes[-1] == "12 heads of 8 tokens each: if it is the other way round, use `layout` L,heads,d"
    assert len(get_input("in.npz", "L,heads,d").heads(None, None)) == 8
    assert not any("other way" in note for note in get_input("in.npz", "L,heads,d").notes())
    with pytest.raises(ScenarioError, match="given, allowed: 'heads,L,d' or 'L,heads,d'"):
        fb.load_scenario(None, {"inputs": "in.npz", "layout": "L,d,heads"})
    asked = QUICK | {"inputs": "in.npz"}
    assert len(fb.sweep(asked, "one").trials["head"].unique()) == 12
    turned = fb.sweep(asked | {"layout": "L,heads,d"}, "two")
    assert set(turned.trials["seq_len"]) == {12} and len(turned.trials["head"].unique()) == 8
    with pytest.raises(StoreError, match=re.escape('layout "heads,L,d" there, "L,heads,d" here')):
        fb.sweep(asked | {"layout": "L,heads,d"}, "one")


def test_more_heads_than_tokens_are_not_said_of_heads_that_have_names(rng):
    """A file of `capture` with 72 heads of 64 tokens was said to be the other way round, perhaps."""
    saved("in.npz", some(rng, 12) | {"layer": np.arange(12) // 6, "head": np.arange(12) % 6})
    assert not any("other way" in note for note in get_input("in.npz").notes())
    saved("turned.npz", some(rng, 12) | {"layer": np.arange(8) // 4, "head": np.arange(8) % 4})
    assert any("other way" in note for note in get_input("turned.npz").notes())


def test_a_sweep_of_maps_names_methods_for_the_same_inputs(rng):
    q, k, v = rng.normal(size=(3, 20, 2, 4))
    np.savez("my heads.npz", q=q, k=k, v=v)
    flags = "--maps positive --samplers iid -R 4 --trials 1"
    inputs = "--inputs 'my heads.npz' --layout L,heads,d --causal --heads h1 -L 18 --scale 0.5,0.3333333"  # the problem
    own = succeeded(f"sweep {inputs} {flags} --out own").splitlines()[-1]
    end = "--methods clusters,multipole -R 16"
    assert own.endswith(f"favorbench sweep {inputs} {end}")
    assert succeeded(f"{own.split(': favorbench ')[1]} --trials 1 --out more")
    np.savez("causal.npz", q=q, k=k, v=v, causal=True)
    whole = succeeded(f"sweep --inputs causal.npz --layout L,heads,d --no-causal -L 1 {flags} --out whole")
    assert "--inputs causal.npz --layout L,heads,d --no-causal -L 1 --methods" in whole
    drawn = succeeded(f"sweep -L 20 -d 4 {flags} --out drawn").splitlines()[-1]
    assert drawn.endswith(f"favorbench sweep --inputs minilm {end},64,256")


@pytest.mark.parametrize("name", ["attention_mask", "Mask"])
def test_a_mask_in_a_file_is_not_ignored_without_a_word(rng, name):
    """A causal mask was said to mask tokens, which are to be left out."""
    said = f"{name!r} is not used: leave out the tokens that it masks"
    np.savez("in.npz", **some(rng, 2), **{name: np.ones(8)})
    assert get_input("in.npz").notes()[-1] == f"{said}; if it hides later keys only, use `causal`"
    np.savez("causal.npz", **some(rng, 2), **{name: np.ones(8)}, causal=True)
    assert get_input("causal.npz").notes()[-1] == said


def test_results_say_what_they_leave_out_of_their_inputs(rng):
    """A page that is sent, and a sweep in Python, have no stderr."""
    few = {"maps": "positive", "samplers": "iid", "num_projections": 4, "trials": 1}
    masked = fb.sweep(inputs={"mine": some(rng, 2) | {"mask": np.ones(8)}}, out="masked", **few)
    assert (
        sentences(masked)[0]
        == "mine: 'mask' is not used: leave out the tokens that it masks; if it hides later keys only, use `causal`."
    )
    assert sentences(masked)[0] in str(masked.table()) and sentences(masked)[0] in str(masked.table(heads="h0"))
    np.savez("masked.npz", **some(rng, 2), mask=np.ones(8))
    assert succeeded("sweep --inputs masked.npz --maps positive -R 4 --trials 1").count("is not used") == 1
    turned = fb.sweep(inputs={"mine": some(rng, 9)}, out="turned", **few)
    assert "use `layout` L,heads,d" in sentences(turned)[0]
    np.savez("causal.npz", **some(rng, 2), causal=True)
    unlike = fb.sweep(inputs="causal.npz", causal=False, out="unlike", **few)
    assert "causal.npz: its heads are causal, and measured without the mask" in sentences(unlike)[0]
    alike = fb.sweep(inputs="causal.npz", out="alike", **few)
    assert not any("measured" in sentence or "not used" in sentence for sentence in sentences(alike))


NOT_USED = ["scale", "softmax_scaling", "position_bias", "alibi_slopes", "sinks", "sliding_window", "SOFTCAP"]


@pytest.mark.parametrize("name", NOT_USED)
def test_what_changes_attention_is_not_ignored_without_a_word(rng, name):
    np.savez("in.npz", **some(rng, 2), **{name: np.ones(2)})
    assert get_input("in.npz").notes()[-1] == f"{name!r} is not used: heads are measured as softmax(q k^T / sqrt(d)) v"


@pytest.mark.parametrize("name", ["is_causal", "Causal", "CAUSAL"])
def test_another_name_of_causal_is_not_ignored_without_a_word(rng, name):
    np.savez("in.npz", **some(rng, 2), **{name: True})
    assert get_input("in.npz").notes()[-1] == f"{name!r} is not used: call it 'causal'"
    np.savez("in.npz", **some(rng, 2), causal=True)
    assert not any("not used" in note for note in get_input("in.npz").notes())


CAPTURED = {"format": 1, "causal": False, "texts": [{"name": "cc0"}, {"name": "a,b (2)"}]}


@pytest.mark.parametrize("path", WAYS)
def test_several_texts_in_one_file(rng, path):
    numbers = {"layer": np.array([0, 0, 1, 1]), "head": np.zeros(4, int), "text": np.array([0, 1, 0, 1])}
    law = get_input(saved(path, some(rng, 4) | numbers, CAPTURED))
    labels = [head.label for head in law.heads(None, None)]
    assert labels == ["L0H0@cc0", "L0H0@a_b__2_", "L1H0@cc0", "L1H0@a_b__2_"]
    assert same_place(labels[0], labels[1]) and not same_place(labels[0], labels[2])
    fb.sweep(QUICK | {"inputs": path, "heads": "L0H0@a_b__2_"}, "run")
    one = get_input(saved(f"one-{path}", some(rng, 4) | numbers | {"text": np.zeros(4, int), "head": np.arange(4)}))
    assert [head.label for head in one.heads(None, None)] == ["L0H0", "L0H1", "L1H2", "L1H3"]


@pytest.mark.parametrize("names", [["a" * 40 + "1", "a" * 40 + "2"], ["one two", "one_two"], ["1", ""]])
def test_texts_whose_short_names_are_equal_are_told_apart_by_their_numbers(rng, names):
    """Else the labels of all heads are lost, and with them the texts."""
    numbers = {"layer": np.array([0, 0, 1, 1]), "head": np.zeros(4, int), "text": np.array([0, 1, 0, 1])}
    law = get_input(saved("in.npz", some(rng, 4) | numbers, {"texts": [{"name": name} for name in names]}))
    assert [head.label for head in law.heads(None, None)] == ["L0H0@0", "L0H0@1", "L1H0@0", "L1H0@1"]
    assert not any("not used" in note for note in law.notes())


def test_texts_are_calibrated_together(rng):
    """One head of three texts: its parameters are those of all their tokens."""
    numbers = {"layer": np.zeros(3, int), "head": np.zeros(3, int), "text": np.arange(3)}
    arrays, measured = some(rng, 3), some(rng, 1)
    saved("other.npz", arrays | numbers, CAPTURED)
    saved("in.npz", measured | {k: a[:1] for k, a in numbers.items()})
    study = Study.of(fb.load_scenario(None, QUICK | {
        "inputs": "in.npz", "calibrate": "other.npz", "maps": "calibrated:oprf", "scale": 2.0}))  # fmt: skip
    query, key = (2.0 * arrays[name].astype(float).reshape(-1, 3) for name in "qk")
    omega = fb.get_sampler("iid").sample(stream(0, "omega", "iid", *plan(study)[0].stream_names), 4, 3)
    q, k, v = (factor * measured[name][0].astype(float) for name, factor in (("q", 2), ("k", 2), ("v", 1)))
    error = fb.linear_attention(q, k, v, omega, fb.calibrate(query, key, "oprf")) - fb.exact_attention(q, k, v)
    found = fb.sweep(study.scenario, "run").trials.query("draw == 0 and estimator == 'calibrated:oprf'")["mse"]
    assert found.item() == pytest.approx(np.mean(error**2), rel=1e-9)


@pytest.mark.parametrize("path", WAYS)
def test_a_file_that_says_that_it_is_causal_is_measured_so(rng, path):
    arrays = some(rng, 2)
    saved(path, arrays, CAPTURED | {"causal": True})
    results = fb.sweep(QUICK | {"inputs": path, "baselines": "uniform"}, "run")
    assert set(results.trials["causal"]) == {"yes"}
    assert results.manifest["input_files"][0]["notes"][-1] == "its heads are causal, and measured so"
    as_asked = fb.sweep(QUICK | {"inputs": path, "causal": False}, "other")
    assert set(as_asked.trials["causal"]) == {"no"}
    said = as_asked.manifest["input_files"][0]["notes"][-1]
    assert said == "its heads are causal, and measured without the mask, like all inputs of this run"


def test_a_flag_next_to_the_arrays_is_enough(rng):
    np.savez("in.npz", **some(rng, 2), causal=True)
    assert fb.load_scenario(None, QUICK | {"inputs": "in.npz"}).causal
    np.savez("no.npz", **some(rng, 2), causal=False)
    assert not fb.load_scenario(None, QUICK | {"inputs": "no.npz"}).causal
    mixed = fb.load_scenario(None, QUICK | {"inputs": "in.npz,no.npz"})
    study = Study.of(mixed)
    assert not mixed.causal  # one mask for a sweep: the one that is said where they differ
    note = input_notes(plan(study), "in.npz", study.inputs["in.npz"].law)[-1]
    assert "without the mask" in note and "asked" not in note
    said = Study.of(fb.load_scenario(None, QUICK | {"inputs": "no.npz", "causal": True}))
    assert "not causal, and measured with the mask" in input_notes(plan(said), "no.npz", said.inputs["no.npz"].law)[-1]


def test_noncausal_members_are_left_out_of_shipped_scenarios_only(rng):
    np.savez("in.npz", **some(rng, 2, length=40), causal=True)
    scenario = fb.load_scenario("estimators", {"inputs": "in.npz"})
    assert scenario.causal and "nystrom" not in scenario.methods and "clusters" in scenario.methods
    assert {"nystrom", "monarch"} <= set(scenario.left_out)
    asked = fb.load_scenario("estimators", {"inputs": "in.npz", "methods": "nystrom,clusters"})
    with pytest.raises(ScenarioError, match="nystrom: it uses the whole sequence and cannot be causal"):
        plan(Study.of(asked))
    all_keys = fb.load_scenario("estimators", {"inputs": "in.npz", "causal": False})
    assert "nystrom" in all_keys.methods and not all_keys.left_out


LAZY = """
import pathlib, re, resource, sys
import numpy as np
import favorbench as fb
from favorbench.engine import study
study.CACHE_BYTES = 1  # exact answers, which are kept for the next draw
fb.sweep({"maps": "positive", "samplers": "iid", "num_projections": 2, "trials": 1, "baselines": "uniform",
          "inputs": "small-" + sys.argv[1]}, "first")
def peak():
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # on Linux the other number begins with that of the process that started this one
        return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
fb.sweep({"maps": "positive", "samplers": "iid", "num_projections": 2, "trials": 1, "baselines": "uniform",
          "inputs": sys.argv[1]}, "run")
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", ["in.npz", "in.safetensors", "folder", "packed.npz"])
def test_a_sweep_holds_one_head_of_a_file_at_a_time(rng, path):
    """48 heads of half a MiB each, as float32: the process grows by a few heads, and not by all of them. The control is
    a compressed file, whose arrays are in memory as a whole: the measurement sees it."""
    heads, size = 48, 3 * 512 * 84 * 4
    saved(f"small-{path}", some(rng, 1, length=512, dim=84))  # what is imported is imported then
    saved(path, some(rng, heads, length=512, dim=84))
    script = python("-c", LAZY, path, check=True)
    grown = int(script.stdout)
    if path == "packed.npz":
        assert grown > 0.75 * heads * size
    else:
        assert grown < 0.5 * heads * size


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_of_arrays_of_other_names_only_the_names_are_read(rng, method):
    """A few bytes, packed, can be terabytes. Here they are no array at all."""
    saved("in.npz", some(rng, 2))
    with zipfile.ZipFile("in.npz", "a", method) as archive:
        archive.writestr("mask.npy", b"torn" * 1000)
    law = get_input("in.npz")
    assert len(law.heads(None, None)) == 2 and "'mask' is not used" in law.notes()[-1]


def test_a_compressed_file_that_does_not_fit_is_refused_before_it_is_read(rng, monkeypatch):
    """Its arrays would be in memory as a whole: the process was killed. Others are read one head at a time."""
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 1 << 20)
    for path in ("in.npz", "packed.npz"):
        saved(path, some(rng, 16, length=1024, dim=8))  # 3 arrays of half a MiB
    assert len(get_input("in.npz").heads(None, None)) == 16
    with pytest.raises(InputError, match=r"packed.npz.* needs 1.5 MiB of memory, .*: write it with numpy.savez"):
        get_input("packed.npz").heads(None, None)


def test_only_the_requested_head_is_read(rng, monkeypatch):
    saved("in.npz", some(rng, 6))
    law, read = get_input("in.npz"), []
    heads = law.heads(None, None)
    part = stored.Stored.part
    monkeypatch.setattr(stored.Stored, "part", lambda self, index: read.append(found := part(self, index)) or found)
    law.draw(stream(0), heads[3])
    assert [a.shape for a in read] == [(8, 3)] * 3


@pytest.mark.parametrize("path", ["in.npz", "in.safetensors", "folder"])
def test_a_file_that_changes_is_read_again(rng, path):
    saved(path, some(rng, 2))
    law = get_input(path)
    first = law.draw(stream(0), law.heads(None, None)[0]).query
    where = Path(path) / "q.npy" if path == "folder" else Path(path)
    if path == "folder":
        np.save(where, 2 * np.load(where))
    else:
        saved(path, some(rng, 2))
    with pytest.raises(InputError, match="have changed since they were first read"):
        law.draw(stream(0), law.heads(None, None)[0])
    anew = get_input(path)
    assert not np.array_equal(first, anew.draw(stream(0), anew.heads(None, None)[0]).query)


@pytest.mark.parametrize(
    "what, said",
    [
        (lambda data: data[:-20], "cannot read 'in.npz' as npz"),
        (lambda data: data.replace(b"(2, 8, 3)", b"(9, 8, 3)"), "cannot read 'in.npz' as npz"),
        (lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:], "cannot read 'in.npz' as npz: Bad CRC-32"),
    ],
    ids=["cut short", "a header that lies", "a flipped bit"],
)
def test_damage_is_seen_before_anything_is_computed(rng, what, said):
    saved("in.npz", some(rng, 2))
    Path("in.npz").write_bytes(what(Path("in.npz").read_bytes()))
    with pytest.raises(InputError, match=re.escape(said)):
        get_input("in.npz").heads(None, None)


def test_a_header_that_lies_in_a_folder_is_seen(rng):
    saved("folder", some(rng, 2))
    data = Path("folder/k.npy").read_bytes()
    Path("folder/k.npy").write_bytes(data.replace(b"(2, 8, 3)", b"(2, 9, 3)"))
    with pytest.raises(InputError, match=re.escape("its header says (2, 9, 3) numbers of float32")):
        get_input("folder").heads(None, None)
    np.save("folder/k.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(InputError, match="Python objects"):
        get_input("folder").heads(None, None)
    Path("empty").mkdir()
    with pytest.raises(InputError, match=r"a folder without \.npy files; q\.npy, k\.npy and v\.npy were expected$"):
        get_input("empty").heads(None, None)
    Path("empty/config.json").touch()
    with pytest.raises(InputError, match="were expected: of a model's folder `favorbench capture` writes heads"):
        get_input("empty").heads(None, None)


def libraries():
    yield "numpy", lambda a: a
    yield "lists", lambda a: a.tolist()
    try:
        import torch
    except ImportError:
        return
    yield "torch", lambda a: torch.from_numpy(a).requires_grad_()


def test_a_file_whose_name_is_not_utf_8_is_refused(rng):
    """Before, its run was computed, and could not be read."""
    Path(saved("in.npz", some(rng))).rename("in\udcff.npz")
    with pytest.raises(ScenarioError, match="its name is not valid UTF-8; rename it"):
        fb.sweep(QUICK, "run", inputs="in\udcff.npz")
    assert not Path("run").exists()


@pytest.mark.parametrize("convert", [f for _, f in libraries()], ids=[name for name, _ in libraries()])
def test_arrays_in_memory_are_inputs(rng, convert):
    """The rows are those of NumPy's arrays; resumed, in workers, and refused for other arrays of the same name."""
    arrays = {name: a.astype(np.float64) for name, a in some(rng, 2, length=12).items()}
    given = {"mine": tuple(convert(arrays[name]) for name in "qkv")}
    results = fb.sweep(QUICK, "run", inputs=given)
    assert set(results.trials["input"]) == {"mine"} and list(results.trials["head"].unique()) == ["h0", "h1"]
    assert results.trials.equals(fb.sweep(QUICK, "numpy", inputs={"mine": arrays}).trials)
    progress = []
    again = fb.sweep(QUICK, "run", inputs=given, progress=lambda done, total: progress.append((done, total)))
    assert progress == [(4, 4)] and again.trials.equals(results.trials)
    assert fb.sweep(QUICK, "two", inputs=given, workers=2).trials.equals(results.trials)
    other = {"mine": tuple(convert(1.5 * arrays[name]) for name in "qkv")}
    with pytest.raises(StoreError, match="run holds another run: its input file"):
        fb.sweep(QUICK, "run", inputs=other)


def test_arrays_may_be_given_in_any_way(rng):
    arrays = some(rng, 2)
    as_tuple = fb.sweep(QUICK | {"inputs": {"a": tuple(arrays.values())}}, "one")
    by_name = fb.sweep("quick", "two", **(QUICK | {"inputs": {"a": arrays}}))
    assert as_tuple.trials.equals(by_name.trials)
    single = some(rng, length=40, dim=16)
    by_columns = single | {"q": np.asfortranarray(single["q"])}
    by_row, by_column = (fb.sweep(QUICK, name, inputs={"a": a}) for name, a in (("r", single), ("c", by_columns)))
    assert by_row.trials.equals(by_column.trials)
    turned = {"a": tuple(np.swapaxes(a, 0, 1) for a in arrays.values())}
    assert set(fb.sweep(QUICK, "three", inputs=turned, layout="L,heads,d").trials["head"]) == {"h0", "h1"}
    frozen = fb.sweep(QUICK, "five", inputs={"a": arrays}, maps="calibrated:oprf", calibrate=some(rng, 2))
    assert "calibrated:oprf" in set(frozen.trials["estimator"])
    with pytest.raises(StoreError, match="five holds another run"):
        fb.sweep(QUICK, "five", inputs={"a": arrays}, maps="calibrated:oprf", calibrate=some(rng, 2))
    with pytest.raises(ScenarioError, match="head h0 of it is the text that is measured"):
        fb.sweep(QUICK, "six", inputs={"a": arrays}, maps="calibrated:oprf", calibrate=arrays)
    assert fb.load("one").trials.equals(as_tuple.trials)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"gaussian": None}, "arrays may not be called 'gaussian'"),
        ({"a,b": None}, "arrays may not be called 'a,b'"),
        ({"mine.npz": None}, "arrays may not be called 'mine.npz'"),
        ({"mine": np.ones((3, 2))}, "`inputs` 'mine': a ndarray was given; allowed: arrays (q, k, v)"),
        ({"mine": {"q": np.ones((3, 2)), "k": np.ones((3, 2))}}, "a dict was given; allowed: arrays (q, k, v)"),
        ({"mine": (np.ma.masked_less(np.eye(3, 2), 1.0),) * 3}, "arrays with masked entries"),
        ({"mine": (np.ones((3, 2)),) * 2}, "a tuple was given; allowed: arrays (q, k, v)"),
        ({"mine": (np.ones((3, 2)), np.ones((3, 4)), np.ones((3, 2)))}, "q has head_dim 2 and k has 4"),
        ({"mine": (np.ones((3, 2)), np.ones((3, 2)), np.full((3, 2), np.inf))}, "6 values that are NaN or infinite"),
        ({"mine": (np.ones((3, 2)), np.ones((3, 2)), np.eye(3, 2) * 1e-200)}, "array 'v' has only values below 1e-100"),
        ({"mine": ("a", "b", "c")}, "array 'q' is <U1"),
        ({"mine": (np.ones((3, 2), object),) * 3}, "array 'q' is object; it must be float64"),
        ({"mine": ([[1.0], [1.0, 2.0]],) * 3}, "not arrays"),
    ],
)
def test_faults_of_arrays_are_named(given, said):
    with pytest.raises((ScenarioError, InputError), match=re.escape(said)):
        fb.sweep(QUICK, "run", inputs=given)


def test_random_inputs_next_to_a_file_have_its_length_and_dimension(rng):
    """Next to files, random inputs are comparable; keys of the scenario that give way are said, in a line each."""
    np.savez("in.npz", **some(rng, 2, length=12))
    Path("mine.toml").write_text("maps = 'trig'\nsamplers = 'iid'\nR = [4, 8]\nL = 16\nd = 3\ntrials = 1\n")
    for inputs in ("in.npz,gaussian", "gaussian,in.npz"):
        assert {(head.seq_len, head.head_dim) for head in heads_of("mine.toml", inputs=inputs)} == {(12, 3)}
    assert {head.seq_len for head in heads_of("mine.toml", inputs="in.npz,gaussian", seq_len=(6, 9))} == {6, 9}
    assert {head.seq_len for head in heads_of("mine.toml", inputs="gaussian,sphere")} == {16}
    np.savez("other.npz", **some(rng, length=9, dim=5))
    shapes = [(head.seq_len, head.head_dim) for head in heads_of("mine.toml", inputs="gaussian,in.npz,other.npz")]
    assert shapes == [(12, 3), (9, 5), (12, 3), (12, 3), (9, 5)]
    _, _, error = run("sweep mine.toml --inputs in.npz,gaussian --dry-run")
    assert "L = 16 of the scenario gives way to that of the inputs: L = 12\n" in error and "d = 3" not in error
    assert "gives way" not in run("sweep mine.toml --inputs in.npz -L 12 --dry-run")[2]


def heads_of(scenario, **flags):
    return [shape.head for shape in plan(Study.of(load_scenario(scenario, flags))).shapes]


def test_no_figure_over_a_length_has_curves_of_one_point(rng):
    np.savez("in.npz", **some(rng, length=12))
    np.savez("other.npz", **some(rng, length=9, dim=5))
    results = fb.sweep(QUICK, "run", inputs="in.npz,other.npz")
    assert not [path for path in draw_all(results) if "error-vs" in path.name]
    both = fb.sweep(QUICK, "both", inputs="gaussian,in.npz", seq_len="6,9")
    assert {path.stem for path in draw_all(both) if path.suffix == ".png"} == {"error-vs-L"}
