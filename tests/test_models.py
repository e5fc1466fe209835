"""Models by name, their masks, and the two doors that attention calls come through. Without the extra: one line."""

import importlib.util
import json
from typing import Any

import pytest

import favorbench as fb
from favorbench.errors import InputError, ModelError
from favorbench.formats import plain
from tests.command_line import refused


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra_one_line_says_what_to_install(missing, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    hidden = {"torch", "transformers"} if missing == "torch" else {"transformers"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else found(name, *rest))
    (tmp_path / "text.txt").write_text("some words")
    said = refused("capture", "minilm", "--text", "text.txt")
    if missing == "transformers" and found("torch") is None:
        missing = "torch"
    expected = f"favorbench: models need {missing}, which is not installed: pip install 'favorbench[models]'\n"
    assert said == (expected if found("torch") or missing == "torch" else said)


def test_what_is_wrong_without_a_model_is_said_without_torch(tmp_path):
    (tmp_path / "text.txt").write_text("some words")
    assert "minilm reads texts: give --text FILE" in refused("capture", "minilm")
    assert "--out a.txt: allowed are" in refused("capture", "minilm", "--text", "text.txt", "--out", "a.txt")
    assert "cannot read text" in refused("capture", "minilm", "--text", str(tmp_path))
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(ModelError, match=r"pip install 'favorbench\[models\]'"):
            fb.capture(None, None)


class TestMasks:
    """Read from the mask alone."""

    torch: Any = None

    @pytest.fixture(autouse=True)
    def _torch(self):
        self.torch = pytest.importorskip("torch")

    def kind(self, seen):
        """Of a boolean mask, in all the forms that models give it."""
        from favorbench.models.interface import additive, kind_of

        like = self.torch.zeros(1)
        masks = [additive(seen, like), self.torch.zeros(seen.shape).masked_fill(~seen, -self.torch.inf)]
        masks.append(additive(seen, like.bfloat16()))
        masks.append(masks[0][None, None].expand(2, 3, *seen.shape))
        (kind,) = {kind_of(mask, tuple(seen.shape)) for mask in masks}
        return kind

    def test_kinds(self):
        ones, eye = self.torch.ones(5, 7).bool(), self.torch.eye(5).bool()
        assert self.kind(ones) == "full"
        assert self.kind(ones.tril(2)) == "causal"  # the last query sees all keys
        assert self.kind(ones.tril()) == "window"  # aligned at the top left, of five queries on seven keys
        assert self.kind(ones[:, :5].tril()) == "causal"
        padded = ones.clone()
        padded[:, 5:] = False
        assert self.kind(padded) == "padded"
        assert self.kind(ones[:, :5].tril().triu(-2)) == "window"
        assert self.kind(ones[:, :5].tril(1).triu(-1)) == "window"
        assert self.kind(ones[:, :5].tril().triu(-4)) == "causal"  # a window as long as the text
        assert self.kind(eye) == "window"
        assert self.kind(padded[:, :5] & ones[:, :5].tril() | eye) == "causal"
        left = ones[:, :5].tril()
        left[:, 0] = False
        assert self.kind(left | eye) == "other"
        assert self.kind(self.torch.rand(5, 5, generator=self.torch.Generator().manual_seed(0)) < 0.5) == "other"

    def test_items_of_a_batch_that_are_padded_differently(self):
        from favorbench.models.interface import additive, kind_of

        seen = self.torch.ones(2, 1, 4, 4).bool()
        seen[1, ..., 3] = False
        assert kind_of(additive(seen, self.torch.zeros(1)), (4, 4)) == "padded"

    def test_finite_terms_are_a_bias(self):
        from favorbench.models.interface import kind_of

        assert kind_of(self.torch.full((4, 4), 1e-3), (4, 4)) == "bias"
        assert kind_of(self.torch.zeros(4, 4), (4, 4)) == kind_of(None, (4, 4)) == "full"


class TestFunctional:
    """Modules that are not of transformers, and call torch's scaled_dot_product_attention."""

    @pytest.fixture(autouse=True)
    def _torch(self):
        self.torch = pytest.importorskip("torch")

    def module(self, forward):
        """A module with one inside, whose forward this is."""

        class Inner(self.torch.nn.Module):
            def forward(self, *tensors):
                return forward(*tensors)

        class Outer(self.torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = Inner(), Inner()

            def forward(self, *tensors):
                return self.second(self.first(*tensors), *tensors[1:])

        return Outer()

    def rows(self, *shape):
        return self.torch.randn(*shape, generator=self.torch.Generator().manual_seed(len(shape)))

    @pytest.mark.parametrize(
        "shape, keywords, kind",
        [
            ((2, 4, 6, 8), {}, "full"),
            ((2, 4, 6, 8), {"is_causal": True}, "causal"),
            ((2, 4, 6, 8), {"scale": 0.3}, "full"),
            ((4, 6, 8), {"is_causal": True}, "causal"),
            ((2, 3, 4, 6, 8), {}, "full"),
            ((6, 8), {}, "full"),
        ],
    )
    def test_calls_are_heard_in_any_shape(self, shape, keywords, kind):
        from favorbench.models.interface import intercept_attention

        attention, calls = self.torch.nn.functional.scaled_dot_product_attention, []
        model = self.module(lambda q, k, v: attention(q, key=k, value=v, **keywords))
        tensors = [self.rows(*shape) for _ in range(3)]

        def attend(call):
            calls.append(call)
            return call.own()

        expected = model(*tensors)
        with intercept_attention(model, attend):
            for _ in range(2):
                assert self.torch.equal(model(*tensors), expected)
        assert [(call.name, call.index, call.kind) for call in calls] == [("first", 0, kind), ("second", 1, kind)] * 2
        assert calls[0].query.ndim == 4 and calls[0].scaling == keywords.get("scale", 8**-0.5)
        assert self.torch.equal(model(*tensors), expected) and len(calls) == 4

    def test_groups_boolean_masks_and_answers_of_ones_own(self):
        from favorbench.models.interface import intercept_attention

        attention, calls = self.torch.nn.functional.scaled_dot_product_attention, []
        seen = self.torch.ones(6, 6).bool().tril()
        model = self.module(lambda q, k, v: attention(q, k, v, attn_mask=seen, enable_gqa=True))
        query, key = self.rows(2, 4, 6, 8), self.rows(2, 2, 6, 8)

        def attend(call):
            calls.append(call)
            return self.torch.zeros_like(call.query)

        with intercept_attention(model, attend):
            assert not bool(model(query, key, key).any())
        assert calls[0].kind == "causal" and calls[0].key.shape == (2, 4, 6, 8)
        assert self.torch.equal(calls[0].key[:, 0], calls[0].key[:, 1])
        with (
            pytest.raises(ModelError, match=r"first: the attention given returned shape \(1,\)"),
            intercept_attention(model, lambda call: self.torch.zeros(1)),
        ):
            model(query, key, key)

    def test_models_that_cannot_be_heard(self):
        mha = self.torch.nn.MultiheadAttention(8, 2, batch_first=True)
        x = self.rows(1, 4, 8)
        with pytest.raises(ModelError, match=r"no attention call came by.*MultiheadAttention"):
            fb.capture(mha, (x, x, x))
        attention = self.torch.nn.functional.scaled_dot_product_attention
        model = self.module(lambda q, k, v: attention(q, k, v))
        model.compile(backend="eager")
        with pytest.raises(ModelError, match=r"Outer is compiled: give it before torch.compile"):
            fb.capture(model, (x, x, x))
        quantised = self.torch.nn.Linear(2, 2)
        quantised.weight = self.torch.nn.Parameter(self.torch.ones(2, 2, dtype=self.torch.int8), requires_grad=False)
        with pytest.raises(ModelError, match=r"Linear is quantised \(weight is torch.int8\)"):
            fb.capture(quantised, (x,))
        with pytest.raises(ModelError, match=r"a torch.nn.Module is needed, not int"):
            fb.capture(3, (x,))

    def test_a_biased_mask_is_refused_and_a_scale_is_not(self):
        attention = self.torch.nn.functional.scaled_dot_product_attention
        x = self.rows(1, 2, 6, 8)
        bias = self.rows(6, 6)
        with pytest.raises(ModelError, match="terms are added to the logits"):
            fb.capture(self.module(lambda q, k, v: attention(q, k, v, attn_mask=bias)), (x, x, x))
        captured = fb.capture(self.module(lambda q, k, v: attention(q, k, v, scale=0.3)), (x, x, x))
        assert [layer.scaling for layer in captured.layers] == [0.3, 0.3]


class TestLoad:
    """A model by its name."""

    @pytest.fixture(autouse=True)
    def _offline(self, monkeypatch):
        pytest.importorskip("transformers")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def folder(self, path, **changes):
        from tests.small_models import small_folder

        small_folder(path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        return str(path)

    def test_a_folder(self, tmp_path):
        from favorbench.models.load import load, read_texts, tokenise
        from tests.small_models import small_text

        loaded = load(self.folder(tmp_path / "model"))
        assert (loaded.causal, loaded.limit, loaded.model.training) == (False, 32, False)
        digest = importlib.import_module("hashlib").sha256((tmp_path / "model/model.safetensors").read_bytes())
        assert loaded.weights == digest.hexdigest() and len(plain(loaded.versions)) == 3
        text = small_text(tmp_path / "text.txt", 20)
        files = read_texts([text])
        assert [tokenise(loaded, files, length)[0].tokens.shape for length in (8, 32)] == [(1, 8), (1, 20)]
        with pytest.raises(ModelError, match=r"`length` 33: .* reads at most 32 tokens"):
            tokenise(loaded, files, 33)
        with pytest.raises(InputError, match="two tokens or more"):
            tokenise(loaded, files, 1)

    def test_weights_that_are_replaced_meanwhile_are_an_error(self, tmp_path, monkeypatch):
        import transformers

        from favorbench.models.load import load

        name, weights = self.folder(tmp_path / "model"), tmp_path / "model" / "model.safetensors"
        own = transformers.AutoModel.from_pretrained

        def replaced(*given: Any, **more: Any) -> Any:
            weights.write_bytes(weights.read_bytes())
            return own(*given, **more)

        monkeypatch.setattr(transformers.AutoModel, "from_pretrained", replaced)
        with pytest.raises(ModelError, match="its weights changed while they were read; run the command again"):
            load(name)

    def test_weights_of_sixteen_bits_are_float32(self, tmp_path):
        from favorbench.models.load import load
        from tests.small_models import small_folder, torch

        loaded = load(str(small_folder(tmp_path / "model", "llama", torch.bfloat16)))
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}

    def test_what_is_no_model(self, tmp_path):
        from favorbench.models.load import load

        (tmp_path / "empty").mkdir()
        (tmp_path / "a.txt").write_text("x")
        for name, said in {
            "minilmm": r"no model 'minilmm' \(did you mean 'minilm'\?\): no such folder; allowed",
            "./none": "no model './none': no such folder; allowed: minilm, smollm2, a folder",
            "nobody-knows/this-model": "no model 'nobody-knows/this-model'.*not to be had from the hub",
            str(tmp_path / "empty"): "no model's folder: it has no config.json",
            str(tmp_path / "a.txt"): "neither a folder with config.json nor a .gguf file",
        }.items():
            with pytest.raises(ModelError, match=said):
                load(name)

    def test_a_model_of_the_hub_that_is_here_needs_no_network(self, tmp_path, monkeypatch):
        """In the cache of huggingface_hub, as its own tools leave it: asked for by its id."""
        from favorbench.models.load import load

        revision = 40 * "1"
        home = tmp_path / "hub" / "models--nobody--tiny"
        self.folder(home / "snapshots" / revision)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(revision)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        loaded = load("nobody/tiny")
        assert loaded.name == "nobody/tiny" and loaded.tokenizer is not None
        assert loaded.weights == load(str(home / "snapshots" / revision)).weights
        (home / "snapshots" / revision / "config.json").unlink()  # the control: a part of it is not enough
        with pytest.raises(ModelError, match=r"no model 'nobody/tiny'.*not to be had from the hub"):
            load("nobody/tiny")

    def test_code_of_others_is_never_run_unasked(self, tmp_path, monkeypatch):
        from favorbench.models.load import load

        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
        path = tmp_path / "model"
        name = self.folder(path, auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"}, model_type="own")
        (path / "own.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nraise RuntimeError('it ran')\n")
        with pytest.raises(ModelError, match="brings Python code of its own, which is never run unasked"):
            load(name)
        assert not (tmp_path / "ran").exists()
        with pytest.raises(ModelError, match="it ran"):  # and the control: with it, it is
            load(name, trust_remote_code=True)
        assert (tmp_path / "ran").exists()

    def test_weights_that_are_missing_or_quantised(self, tmp_path):
        from safetensors.numpy import load_file, save_file

        from favorbench.models.load import load

        name = self.folder(tmp_path / "quantised", quantization_config={"quant_method": "gptq", "bits": 4})
        with pytest.raises(ModelError, match="its weights are quantised"):
            load(name)
        name = self.folder(tmp_path / "missing")
        weights = load_file(tmp_path / "missing/model.safetensors")
        weights.pop("encoder.layer.1.attention.self.key.weight")
        save_file(weights, tmp_path / "missing/model.safetensors", {"format": "pt"})
        with pytest.raises(
            ModelError, match=r"1 of its weights are not in its files, and would be random: encoder.lay"
        ):
            load(name)
        (tmp_path / "missing/model.safetensors").unlink()
        with pytest.raises(ModelError, match="it has no weights"):
            load(name)
        (tmp_path / "missing/model.safetensors").write_bytes(b"torn")
        with pytest.raises(ModelError, match="cannot be loaded: Safetensor"):
            load(name)

    def test_more_than_memory(self, tmp_path, monkeypatch):
        from favorbench.models.load import load

        def fails(*_, **__):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

        name = self.folder(tmp_path / "model")
        with monkeypatch.context() as patch:
            patch.setattr("transformers.AutoModel.from_pretrained", fails)
            with pytest.raises(MemoryError, match="can't allocate memory"):
                load(name)
        monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 1000)
        with pytest.raises(fb.errors.ScenarioError, match=r"model in float32 needs .* KiB of memory"):
            load(name)
