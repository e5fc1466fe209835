"""Capture: what is written is softmax attention of the model, what is none is refused by name, and the model stays."""

import errno
import importlib.util
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import favorbench as fb  # noqa: E402
from favorbench.errors import InputError, ModelError, ScenarioError, StoreError  # noqa: E402
from favorbench.inputs import SHIPPED, File  # noqa: E402
from favorbench.models import captured as captured_files  # noqa: E402
from favorbench.models.capture import input_runs, record, text_runs  # noqa: E402
from favorbench.models.captured import Spool  # noqa: E402
from favorbench.models.interface import intercept_attention  # noqa: E402
from favorbench.models.load import PACKAGED, load, read_texts  # noqa: E402
from favorbench.models.recorder import TOLERANCE_UNITS, Choice, Recorder  # noqa: E402
from tests.command_line import check_refused, refused, run  # noqa: E402
from tests.small_models import FAMILIES, TOKENS, small_folder, small_inputs, small_model, small_text  # noqa: E402

#: For each family: the mask of each call, and why it is not kept ("" if it is).
FOUND = {name: family["calls"] for name, family in FAMILIES.items() if "calls" in family}


def output_of(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def state_of(model):
    """All that a capture might leave behind."""
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return hooks, [m.training for m in model.modules()], model.config._attn_implementation, dict(vars(model)).keys()


@pytest.mark.parametrize("family", FOUND)
def test_layers_are_kept_or_refused_by_name(family):
    model, inputs = small_model(family), small_inputs(family)
    before, state = output_of(model, inputs), state_of(model)
    with Spool() as spooled, torch.no_grad():
        recorder = Recorder(Choice(), spooled)
        recorder.begin(input_runs(model, inputs)[0])
        with intercept_attention(model, recorder.attend):
            inside = model(**inputs)[0]
    layers = [found[0] for _, found in sorted(recorder.checked.items())]
    assert [layer.mask for layer in layers] == [mask for mask, _ in FOUND[family]]
    for layer, (_, reason) in zip(layers, FOUND[family], strict=True):
        assert reason in layer.reason and bool(layer.reason) == bool(reason)
        assert layer.heads == (0 if reason else 4)
    assert torch.equal(output_of(model, inputs), before) and state_of(model) == state
    # On the way masks are written out that the model may have left out, and torch computes such in another order.
    torch.testing.assert_close(inside, before, rtol=1e-4, atol=1e-4 * float(before.abs().max()))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - FOUND.keys()))
def test_families_that_make_no_call_are_an_error(family):
    model = small_model(family)
    with pytest.raises(ModelError, match=rf"{type(model).__name__}: no attention call was found: in transformers 5"):
        fb.capture(model, small_inputs(family))


def test_eager_attention_that_hides_its_calls_names_the_one_that_does_not():
    """Falcon's fused attention is captured: to say that its family makes no calls is false."""
    config = small_model("falcon").config
    eager = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with pytest.raises(ModelError, match=r"no attention call was found: .* load it with attn_implementation='sdpa'"):
        fb.capture(eager, small_inputs("falcon"))


def test_a_family_with_several_eager_functions_is_computed_by_its_own():
    """TimesFM's is called simple_eager_attention_forward: Llama 4 and Phi-4 have another one beside theirs."""
    settings = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    lengths = {"head_dim": 8, "patch_length": 4, "context_length": 32, "horizon_length": 4}
    config = transformers.TimesFmConfig(**settings, **lengths)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    inputs = {"past_values": torch.randn(1, 32), "past_values_padding": torch.zeros(1, 32, dtype=torch.long)}
    captured = fb.capture(model, inputs | {"freq": torch.zeros(1, 1, dtype=torch.long)})
    assert [layer.heads for layer in captured.layers] == [4, 4]


@pytest.mark.parametrize("family", [name for name, found in FOUND.items() if all(reason for _, reason in found)])
def test_where_nothing_is_kept_the_first_reason_is_given(family):
    with pytest.raises(ModelError, match=f"nothing to capture: layer 0 .*{FOUND[family][0][1]}"):
        fb.capture(small_model(family), small_inputs(family))


def test_inputs_of_another_length_are_left_out_with_a_warning():
    """As of several texts, tokenised one by one: those unlike the first in length were lost without a word."""
    model, inputs = small_model("bert"), small_inputs("bert")
    shorter = {name: tokens[:, :-2] for name, tokens in inputs.items()}
    with pytest.warns(UserWarning, match=r"layer 0 .* in part captured: on 1 of 2 inputs: .* queries .*; and 1 more"):
        captured = fb.capture(model, [inputs, shorter])
    assert {*captured.text.tolist()} == {0}


def test_another_layer_of_the_same_number_on_a_later_input_is_left_out_with_a_warning():
    """Its heads were taken for those of the layer that the first input calls there."""

    class Skipping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
            for layer in self.layers:
                layer.forward = lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)

        def forward(self, x, skipped):
            return [layer(x) for layer in list(self.layers)[skipped:]]

    x = torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    said = r"in part captured: on 1 of 2 inputs: it is layers\.1 on this input, and layers\.0 on the first"
    with pytest.warns(UserWarning, match=said):
        captured = fb.capture(Skipping(), [(x, 0), (x + 1, 1)], layers=[0])
    assert captured.layer.tolist() == [0, 0] and captured.text.tolist() == [0, 0]


def test_queries_and_keys_are_those_of_the_projections():
    """By another way: BERT's own linear layers on the hidden states that go into its second layer."""
    model, inputs = small_model("bert"), small_inputs("bert")
    captured = fb.capture(model, inputs, layers=[1], heads=[0, 3])
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states[1]
        own = model.encoder.layer[1].attention.self
        for role in ("query", "key", "value"):
            rows = getattr(own, role)(hidden)[0].reshape(TOKENS, 4, 16).transpose(0, 1)[[0, 3]]
            assert_array_equal(getattr(captured, role), rows.numpy())  # sqrt(16) / 4 is 1
    assert captured.layer.tolist() == [1, 1] and captured.head.tolist() == [0, 3] and captured.text.tolist() == [0, 0]


def test_groups_are_repeated_and_the_scaling_is_folded_in():
    llama = fb.capture(small_model("llama"), small_inputs("llama"))
    assert_array_equal(llama.key[0], llama.key[1])
    assert_array_equal(llama.value[2], llama.value[3])
    assert np.abs(llama.key[1] - llama.key[2]).max() > 0.1
    assert llama.causal and llama.query.shape == llama.key.shape == (8, TOKENS, 16)
    gpt2 = fb.capture(small_model("gpt2"), small_inputs("gpt2"))
    assert [layer.scaling for layer in gpt2.layers] == [0.25, 0.125]


WRONG = {
    "mask": lambda call: replace(call, kind="full", mask=None),
    "scaling": lambda call: replace(call, scaling=1.01 * call.scaling),
    "groups": lambda call: replace(call, key=call.key.roll(1, 1), value=call.value.roll(1, 1)),
    "values": lambda call: replace(call, value=1.001 * call.value),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_check_finds_faults(wrong):
    """The control of all tests above: the same code at the same sizes."""
    model, inputs = small_model("llama"), small_inputs("llama")
    with Spool() as spooled, torch.no_grad():
        recorder = Recorder(Choice(), spooled)
        recorder.begin(input_runs(model, inputs)[0])
        with intercept_attention(model, lambda call: recorder.attend(WRONG[wrong](call))):
            model(**inputs)
    layers = [found[0] for found in recorder.checked.values()]
    assert len(layers) == 2 and recorder.shape is None
    for layer in layers:
        assert "is not softmax" in layer.reason and layer.difference > 10 * layer.limit


@pytest.mark.parametrize("mean", [0, 1])
def test_rounding_of_sums_is_no_fault(mean):
    """Encoders at initialisation have flat attention: outputs are sums over all keys."""

    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    query, key, value = torch.randn(3, 1, 12, 300, 32, generator=torch.Generator().manual_seed(0))
    (layer,) = fb.capture(Attention(), (0.02 * query, key, value + mean)).layers
    assert layer.heads == 12 and layer.difference < layer.limit


def test_a_precision_that_hides_errors_is_refused():
    model, inputs = small_model("llama"), small_inputs("llama")
    assert fb.capture(model.double(), inputs).layers[0].limit < 1e-14
    with pytest.raises(ModelError, match=r"rounding in bfloat16 may change its output by .*: use float32"):
        fb.capture(model.bfloat16(), inputs)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ModelError, match="rounding in bfloat16 may change"):
        fb.capture(small_model("llama"), small_inputs("llama"))  # its queries are in float32, and its output is not


def test_the_model_is_restored_after_an_exception():
    model, inputs = small_model("bert"), small_inputs("bert")
    model.train()
    model.encoder.layer[0].eval()
    state = state_of(model)

    def fails(call):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), intercept_attention(model, fails):
        model(**inputs)
    with pytest.raises(ScenarioError, match="`heads` 4: layer 0"):
        fb.capture(model, inputs, heads=[4])
    assert state_of(model) == state
    model.eval()
    assert torch.equal(output_of(model, inputs), output_of(small_model("bert"), inputs))


def test_capture_is_without_dropout_and_keeps_the_mode():
    model, inputs = small_model("bert"), small_inputs("bert")
    expected = fb.capture(model, inputs).query
    model.train()
    assert_array_equal(fb.capture(model, inputs).query, expected)
    assert model.training


def test_items_of_a_batch_are_texts_and_padding_is_refused():
    model, inputs = small_model("bert"), small_inputs("bert", batch=2)
    captured = fb.capture(model, [inputs, inputs], layers=[0])
    assert captured.text.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert [text["name"] for text in captured.meta["texts"]] == ["input0.0", "input0.1", "input1.0", "input1.1"]
    alone = fb.capture(model, {"input_ids": inputs["input_ids"][1:]}, layers=[0])
    assert_allclose(captured.query[4:8], alone.query, rtol=0, atol=1e-5)
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, 20:] = 0
    with pytest.raises(ModelError, match="padding hides keys"):
        fb.capture(model, inputs | {"attention_mask": mask})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_files_hold_the_captured_heads(dtype, monkeypatch):
    monkeypatch.setattr(captured_files, "_CHUNK", 1000)
    captured = fb.capture(small_model("llama"), small_inputs("llama"), dtype=dtype)
    full = fb.capture(small_model("llama"), small_inputs("llama"))
    assert captured.meta["rounding"] <= {"float32": 0.0, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    assert (captured.meta["rounding"] > 0) == (dtype != "float32")
    captured.save("a.safetensors")
    found = importlib.import_module("safetensors.torch").load_file("a.safetensors")
    for name, array in {"q": full.query, "k": full.key, "v": full.value}.items():
        assert torch.equal(found[name], torch.tensor(np.array(array)).to(getattr(torch, dtype)))
    header = Path("a.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    assert json.loads(json.loads(header[8 : 8 + length])["__metadata__"]["meta"]) == captured.meta
    if dtype == "bfloat16":
        with pytest.raises(ScenarioError, match="have no bfloat16"):
            captured.save("a.npz")
        return
    captured.save("a.npz")
    with np.load("a.npz") as archive:
        assert_array_equal(archive["k"], captured.key)
        assert json.loads(str(archive["meta"])) == captured.meta
        assert archive["layer"].tolist() == [0] * 4 + [1] * 4 and archive["head"].tolist() == [0, 1, 2, 3] * 2
    first = Path("a.npz").read_bytes()
    captured.save("a.npz")
    assert Path("a.npz").read_bytes() == first
    for name in ("a.npz", "a.safetensors"):
        assert [head.label for head in File(name).heads(None, None)][:2] == ["L0H0", "L0H1"]


def test_files_are_written_in_pieces():
    """Never a copy of all rows in memory: tracemalloc sees what NumPy allocates, and not what is mapped."""
    rows = np.zeros((1, 1 << 20, 16), np.float32)
    with Spool(Path()) as spooled:
        for _ in range(2):
            spooled.add(q=rows, k=rows, v=rows)
        arrays = {role: spooled.array(role, (2, *rows.shape[1:]), "float32") for role in "qkv"}
        for name in ("a.npz", "a.safetensors"):
            tracemalloc.start()
            captured_files.write_heads(Path(name), arrays, {})
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert Path(name).stat().st_size > 3 * 2 * rows.nbytes
            assert peak < rows.nbytes  # a sixth of the file


def test_heads_that_a_full_disk_does_not_take_are_not_lost_silently():
    """NumPy's tofile says nothing of the last bytes, and of others only their number."""
    rows, space = np.ones((1, 64, 8), np.float32), [0]

    def write(data):
        """As a disk does that takes a part, and then nothing."""
        if not space[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        space[0] -= (taken := min(space[0], 700, len(data)))
        kept.extend(data[:taken])
        return taken

    with Spool(Path()) as spooled:
        spooled.files = dict.fromkeys(spooled.files, SimpleNamespace(write=write, seek=lambda place: None))
        for store, size in ((lambda: spooled.add(q=rows), 2048), (lambda: spooled.put_gradients(0, 1, 0, rows), 1024)):
            space[:], kept = [size - 1], bytearray()
            with pytest.raises(StoreError, match=r"cannot store the .* in \.: No space left on device$"):
                store()
            space[:], kept = [size], bytearray()
            store()
            assert set(np.frombuffer(kept, "<f4" if size == 2048 else "<f2")) == {1} and len(kept) == size


def test_a_write_that_fails_keeps_the_existing_file(monkeypatch):
    captured = fb.capture(small_model("bert"), small_inputs("bert"))
    captured.save("a.npz")
    before = Path("a.npz").read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(StoreError, match="No space left"):
        captured.save("a.npz")
    assert [file.name for file in Path().iterdir()] == ["a.npz"]
    assert Path("a.npz").read_bytes() == before


def test_the_last_queries_on_the_keys_before_them():
    model, inputs = small_model("llama"), small_inputs("llama")
    full, last = fb.capture(model, inputs), fb.capture(model, inputs, last=5)
    assert_array_equal(last.query, full.query[:, -5:])
    assert_array_equal(last.key, full.key[:, :-5])
    assert_array_equal(last.value, full.value[:, :-5])
    assert not last.causal and last.meta["last"] == 5
    with pytest.raises(ScenarioError, match="`last` 24: there are 24 tokens"):
        fb.capture(model, inputs, last=24)
    with pytest.raises(ModelError, match="its mask is full: `last` is for causal layers"):
        fb.capture(small_model("bert"), small_inputs("bert"), last=5)


def test_sixteen_bits_that_cannot_hold_a_value_are_refused():
    model = small_model("bert")
    with torch.no_grad():
        model.encoder.layer[0].attention.self.value.weight.mul_(1e6)
    with pytest.raises(ModelError, match="has entries that float16 cannot hold"):
        fb.capture(model, small_inputs("bert"), layers=[0], dtype="float16")
    with pytest.raises(ScenarioError, match="`dtype` 'float8': allowed: float32"):
        fb.capture(model, small_inputs("bert"), dtype="float8")


def test_the_command_line_from_a_folder_to_a_sweep():
    folder = small_folder("model")
    texts = [small_text(name, 30, start) for name, start in (("one.txt", 3), ("two.txt", 4))]
    small_text("short.txt", 20)
    code, out, err = run(f"capture {folder} --text {' '.join(texts)} -L 24 --layers 1 --out h.npz")
    assert (code, err) == (0, "")
    assert "layer" in out and "1      encoder.layer.1.attention.self      4  full     0.25" in out
    assert "h.npz: 8 heads, full, q (24, 16), k (24, 16), v (24, 16), float32" in out
    assert out.endswith("next: favorbench recommend h.npz\n")
    _, out, _ = run(f"capture {folder} --text {texts[0]} -L 24 --gradients 2 --out g.npz")
    assert out.endswith("next: favorbench sweep --inputs g.npz\n")
    code, out, err = run(f"capture {folder} --text {texts[0]} --text short.txt --json -q")
    assert code == 0
    found = json.loads(out)
    assert [text["tokens"] for text in found["texts"]] == [20, 20] and found["file"] == "heads.npz"
    code, out, _ = run("sweep --inputs heads.npz --maps positive -R 4 --trials 1 -q")
    assert code == 0 and "8 heads on 2 texts of heads.npz" in out


def test_texts_of_several_lengths_are_cut_as_the_tokenizer_cuts_them():
    """The longer ones lacked the token that closes a text, and a beginning of another text counted as a second one."""
    folder = small_folder("model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processors = pytest.importorskip("tokenizers").processors
    closing = processors.TemplateProcessing(single="$A w98", special_tokens=[("w98", 98)])
    tokenizer.backend_tokenizer.post_processor = closing
    tokenizer.save_pretrained(folder)
    long, short, begin = small_text("long.txt", 30, 3), small_text("short.txt", 20, 4), small_text("begin.txt", 20, 3)
    run(f"capture {folder} --text {long} {short} --out both.npz")
    run(f"capture {folder} --text {long} -L 21 --out alone.npz")
    with np.load("both.npz") as both, np.load("alone.npz") as alone:
        assert both["q"].shape[1] == 21
        assert_array_equal(both["q"][both["text"] == 0], alone["q"])
    said = refused(f"capture {folder} --text {long} {begin}")
    assert "--text begin.txt: its first 21 tokens are those of long; give one of them" in said


@pytest.mark.parametrize("out", ["model/model.safetensors", "heads.npz", "broken.npz", "folder.npz"])
def test_files_that_were_not_captured_are_not_replaced(out):
    """A model's weights, and arrays of the user's under the default name; before anything is computed."""
    folder, text = small_folder("model"), small_text("text.txt")
    np.savez("heads.npz", q=np.ones((4, 2)), meta=np.array('{"causal": true}'))
    Path("broken.npz").write_text("no archive")
    Path("folder.npz").mkdir()
    before = Path(out).is_file() and Path(out).read_bytes()
    said = f"{out} is there and was not written by favorbench capture; give --out another name"
    assert said in refused(f"capture {folder} --text {text} -L 24 --out {out}")
    assert (Path(out).is_file() and Path(out).read_bytes()) == before
    for _ in range(2):  # a captured one is
        assert run(f"capture {folder} --text {text} -L 24 --out new.safetensors")[0] == 0


def test_a_function_brings_its_inputs(monkeypatch):
    Path("mine.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)\n"
        "def build():\n"
        "    return Model(), torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))\n"
        "def half():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), Model()).bfloat16(), build()[1].bfloat16()\n"
        "def failing():\n"
        "    return torch.nn.Linear(2, 2), torch.randn(2, 3)\n"
        "def wrong():\n"
        "    return Model()\n"
    )
    code, out, _ = run("capture mine:build --out h.safetensors")
    assert (
        code == 0
        and "h.safetensors: 2 heads, causal, q (6, 8)" in out
        and out.endswith("next: favorbench recommend h.safetensors\n")
    )
    assert run("capture mine:half --out half.npz")[0] == 0  # models are in float32, and so are their inputs
    check_refused("""
        capture mine:wrong => mine:wrong returned Model; it must return (model, inputs)
        capture mine:failing => model 'mine:failing' on its inputs failed: RuntimeError: mat1 and
        capture mine:build -L 4 => leave --text and -L out
    """)


@pytest.mark.parametrize("chosen", ["layers", "heads"])
def test_an_empty_choice_is_refused(chosen):
    with pytest.raises(ScenarioError, match="is an empty list, of which nothing is captured"):
        fb.capture(small_model("bert"), small_inputs("bert"), **{chosen: []})


def test_bad_input_is_one_line():
    folder = small_folder("model")
    text = small_text("text.txt")
    Path("short.txt").write_text("w7")
    Path("bytes.txt").write_bytes(b"\xff\xfe")
    model = str(folder)
    assert f"{model} reads texts: give --text FILE" in refused(f"capture {model}")
    check_refused(
        """
        capture MODEL --text nope => cannot read text 'nope'
        capture MODEL --text bytes.txt => bytes.txt: not a text in UTF-8
        capture MODEL --text short.txt => short.txt: 1 token(s); attention needs two or more
    """,
        MODEL=model,
    )
    assert f"-L 33: {model} reads at most 32 tokens" in refused(f"capture {model} --text {text} -L 33")
    check_refused(
        """
        capture MODEL --text TEXT -L 1 => -L 1: attention needs two tokens
        capture MODEL --text TEXT --layers 2 => --layers 2: the model has layers 0 to 1
        capture MODEL --text TEXT --heads 4 => --heads 4: layer 0 (encoder.layer.0
        capture MODEL --text TEXT --layers x => --layers: 'x' given
        capture MODEL --text TEXT -o x.txt => --out x.txt: allowed are files that end in .npz
        capture MODEL --text TEXT -L 0 => -L 0: attention needs two tokens
        capture MODEL --text TEXT -L x => 'x' was given
    """,
        MODEL=model,
        TEXT=text,
    )
    Path("blank.txt").write_text(" \n\n")
    check_refused("capture MODEL --text blank.txt => blank.txt: the file has no text", MODEL=model)
    Path("texts").mkdir()
    check_refused("capture MODEL --text texts => --text texts: a directory; give its files: texts/*.txt", MODEL=model)
    Path("copy.txt").write_bytes(Path("text.txt").read_bytes())
    said = refused(f"capture {model} --text {text} copy.txt")
    assert "--text copy.txt: the same text as text; give each once" in said
    assert not Path("heads.npz").exists()


@pytest.mark.parametrize("inputs", ["some words", None, [], [["some", "words"]], 3, np.ones(3)])
def test_inputs_that_are_not_tensors_are_one_line(inputs):
    with pytest.raises(InputError, match="inputs: a tensor, a tuple, a mapping of keywords, or a list of these"):
        fb.capture(small_model("bert"), inputs)


def real(name):
    """A packaged model, or a skip where its package is not installed."""
    pytest.importorskip("huggingface_hub")
    if importlib.util.find_spec(PACKAGED[name].package.replace("-", "_")) is None:
        pytest.skip(f"{PACKAGED[name].package} is not installed")
    return load(name)


@pytest.mark.slow
def test_minilm_gives_the_heads_that_ship():
    """scenarios/data has four of its heads on the same text, captured by other code."""
    text = "/usr/share/common-licenses/CC0-1.0"
    if not Path(text).exists():
        pytest.skip("no CC0-1.0 here")
    loaded = real("minilm")
    with Spool() as spooled:
        captured = record(loaded, text_runs(loaded, read_texts([text]), 512), Choice(), spooled)
    assert captured.query.shape == (72, 512, 32) and not captured.causal
    assert max(layer.difference / layer.limit for layer in captured.layers) < 2 / TOLERANCE_UNITS
    with np.load(SHIPPED["minilm"].path) as shipped:
        for i, (layer, head) in enumerate(zip(shipped["layer"], shipped["head"], strict=True)):
            rounding = sum(captured.layers[before].limit for before in range(layer + 1))
            for j in np.flatnonzero(captured.layer == layer):
                rows = {"q": captured.query[j], "k": captured.key[j], "v": captured.value[j]}
                off = max(np.abs(rows[r] - shipped[r][i]).max() / np.abs(shipped[r][i]).max() for r in rows)
                if captured.head[j] == head:
                    assert off < rounding
                else:  # the control
                    assert off > 1000 * rounding


@pytest.mark.slow
def test_smollm2_is_causal_with_groups():
    loaded = real("smollm2")
    assert loaded.causal and loaded.limit == 8192
    words = small_text("text.txt", 200)
    with Spool() as spooled:
        runs = text_runs(loaded, read_texts([words]), 96)
        captured = record(loaded, runs, Choice(layers=(0, 29)), spooled)
    assert captured.query.shape == (18, 96, 64) and captured.causal
    assert_array_equal(captured.key[0], captured.key[2])
    assert max(layer.difference / layer.limit for layer in captured.layers) < 2 / TOLERANCE_UNITS
