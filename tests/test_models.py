"""Models by name, their masks, and the two doors that attention calls come through."""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import favorbench as fb
from favorbench.errors import InputError, ModelError
from favorbench.formats import plain

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from favorbench.models.interface import additive, intercept_attention, kind_of  # noqa: E402
from favorbench.models.load import (  # noqa: E402
    Loaded,
    load,
    module_digest,
    read_texts,
    tokenise,
    warn_of_unknown,
    weights_digest,
)
from tests.command_line import run  # noqa: E402
from tests.small_models import small_folder, small_model, small_text  # noqa: E402

attention = torch.nn.functional.scaled_dot_product_attention

#: The keys that each query sees: a word for each query, an x for each visible key.
HALVES = (torch.float16, torch.bfloat16)
MASKS = [
    ("full", "xxxxxxx xxxxxxx xxxxxxx xxxxxxx xxxxxxx"),
    ("causal", "xxx.... xxxx... xxxxx.. xxxxxx. xxxxxxx"),  # the last query sees all keys
    ("window", "x...... xx..... xxx.... xxxx... xxxxx.."),  # aligned at the top left, of five queries on seven keys
    ("causal", "x.... xx... xxx.. xxxx. xxxxx"),
    ("padded", "xxxxx.. xxxxx.. xxxxx.. xxxxx.. xxxxx.."),
    ("padded and causal", "..... .x... .xx.. .xxx. .xxxx"),
    ("padded and causal", "xxxxx xxxxx ..x.. ..xx. ..xxx"),  # padding must see something where a softmax is taken
    ("padded and causal", "x.... xx... xxx.. xxx.. xxx.."),
    ("other", "xxx.. xx... xxx.. xxx.. xxx.."),
    ("other", "xx... xx... ..x.. ..xx. ..xxx"),
    ("window", "x.... xx... xxx.. .xxx. ..xxx"),
    ("window", "xx... xxx.. .xxx. ..xxx ...xx"),
    ("window", "x.... .x... ..x.. ...x. ....x"),
    ("other", "x.... .x... .xx.. .xxx. .xxxx"),
    ("other", "x.xx. .xx.. xx..x ..xxx x..x."),
    ("other", "xxxxx xxxxx xxxxx xxxxx ....."),  # the last query alone is hidden
]


@pytest.mark.parametrize("kind, drawing", MASKS)
def test_the_kind_of_a_mask_is_read_from_it_alone(kind, drawing):
    """In all the forms that models give it."""
    seen, like = torch.tensor([[key == "x" for key in query] for query in drawing.split()]), torch.zeros(1)
    masks = [additive(seen, like), torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)]
    masks += [additive(seen, like.bfloat16()), masks[0][None, None].expand(2, 3, *seen.shape)]
    masks += [masks[0].new_zeros(seen.shape, dtype=half).masked_fill(~seen, -1e4) for half in HALVES]
    masks += [torch.zeros(seen.shape).masked_fill(~seen, lowest) for lowest in (-1e9, -1e4)]
    assert {kind_of(mask, tuple(seen.shape)) for mask in masks} == {kind}


def test_items_of_a_batch_may_be_padded_differently_and_finite_terms_are_a_bias():
    seen = torch.ones(2, 1, 4, 4).bool()
    seen[1, ..., 3] = False
    by_head, none = torch.stack([seen[1, 0], seen[0, 0]]).tril()[None], torch.zeros(1)
    masks = {"padded": additive(seen, none), "other": additive(by_head, none), "full": torch.zeros(4, 4)}
    masks |= {"padded and causal": additive(by_head[:, :1], none), "bias": torch.full((4, 4), 1e-3)}
    assert kind_of(torch.full((4, 4), -100.0).triu(1), (4, 4)) == "bias"  # a key with a large logit is still seen
    for kind, mask in masks.items():
        assert kind_of(mask, (4, 4)) == kind
    assert kind_of(None, (4, 4)) == "full"


class Inner(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


class Outer(torch.nn.Module):
    """A module that is not of transformers, with two inside that call torch's scaled_dot_product_attention."""

    def __init__(self, **keywords):
        super().__init__()
        self.first, self.second = (Inner(lambda q, k, v: attention(q, key=k, value=v, **keywords)) for _ in range(2))

    def forward(self, *tensors):
        return self.second(self.first(*tensors), *tensors[1:])


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("shape, keywords", [
    ((2, 4, 6, 8), {}), ((2, 4, 6, 8), {"is_causal": True}), ((2, 4, 6, 8), {"scale": 0.3}),
    ((4, 6, 8), {"is_causal": True}), ((2, 3, 4, 6, 8), {}), ((6, 8), {}),
])  # fmt: skip
def test_calls_are_heard_in_any_shape(shape, keywords):
    calls, model = [], Outer(**keywords)
    tensors = [rows(*shape) for _ in range(3)]

    def attend(call):
        calls.append(call)
        return call.own()

    expected = model(*tensors)
    with intercept_attention(model, attend):
        for _ in range(2):
            assert torch.equal(model(*tensors), expected)
    kind = "causal" if "is_causal" in keywords else "full"
    assert [(call.name, call.index, call.kind) for call in calls] == [("first", 0, kind), ("second", 1, kind)] * 2
    assert calls[0].query.ndim == 4 and calls[0].scaling == keywords.get("scale", 8**-0.5)
    assert torch.equal(model(*tensors), expected) and len(calls) == 4


def test_groups_boolean_masks_and_answers_of_ones_own():
    calls, model = [], Outer(attn_mask=torch.ones(6, 6).bool().tril(), enable_gqa=True)
    query, key = rows(2, 4, 6, 8), rows(2, 2, 6, 8)

    def attend(call):
        calls.append(call)
        return torch.zeros_like(call.query)

    with intercept_attention(model, attend):
        assert not bool(model(query, key, key).any())
    assert calls[0].kind == "causal" and calls[0].key.shape == (2, 4, 6, 8)
    assert torch.equal(calls[0].key[:, 0], calls[0].key[:, 1])
    said = r"first: the attention given returned shape \(1,\)"
    with pytest.raises(ModelError, match=said), intercept_attention(model, lambda call: torch.zeros(1)):
        model(query, key, key)


def compiled():
    model = Outer()
    model.compile(backend="eager")
    return model


def quantised():
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    return model


@pytest.mark.parametrize("build, said", [
    (lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True), "no attention call was found.*MultiheadAttention"),
    (compiled, "Outer is compiled: pass it as it was before torch.compile"),
    (quantised, r"Linear is quantised \(weight is torch.int8\)"), (lambda: 3, "a torch.nn.Module is needed, not int"),
    (lambda: Outer(attn_mask=rows(4, 4)), "terms are added to the logits"),
])  # fmt: skip
def test_models_that_cannot_be_heard_or_captured(build, said):
    with pytest.raises(ModelError, match=said):
        fb.capture(build(), (rows(1, 4, 8),) * 3)


def test_an_attention_function_that_the_user_has_registered_is_refused(monkeypatch):
    """Its formula is not known, and eager attention is not the model's own."""
    registry = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(registry, "twice", lambda module, query, *rest, **keywords: registry["sdpa"](module, 2 * query))
    model = small_model("bert")
    model.set_attn_implementation("twice")
    with pytest.raises(ModelError, match="BertModel computes attention by 'twice', not a function of transformers"):
        fb.capture(model, {"input_ids": torch.ones(1, 4, dtype=int)})
    model.set_attn_implementation("sdpa")
    assert len(fb.capture(model, {"input_ids": torch.ones(1, 4, dtype=int)}).layers) == 2


def test_a_scale_is_captured():
    captured = fb.capture(Outer(scale=0.3), (rows(1, 2, 6, 8),) * 3)
    assert [layer.scaling for layer in captured.layers] == [0.3, 0.3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes the folder of a small model, with some values of its configuration changed."""
    pytest.importorskip("transformers")
    from tests.small_models import small_folder

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def written(path=tmp_path / "model", family="bert", dtype=None, **changes):
        small_folder(path, family, dtype)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        return str(path)

    return written


def test_a_folder(folder, tmp_path):
    from tests.small_models import small_text

    loaded = load(folder())
    assert (loaded.causal, loaded.limit, loaded.model.training) == (False, 32, False)
    assert loaded.weights == hashlib.sha256((tmp_path / "model/model.safetensors").read_bytes()).hexdigest()
    assert len(plain(loaded.versions)) == 3
    text = small_text("text.txt", 20)
    files = read_texts([text])
    assert [tokenise(loaded, files, length)[0].tokens.shape for length in (8, 32)] == [(1, 8), (1, 20)]
    with pytest.raises(ModelError, match=r"`length` 33: .* reads at most 32 tokens"):
        tokenise(loaded, files, 33)
    with pytest.raises(InputError, match="two tokens or more"):
        tokenise(loaded, files, 1)


def test_positions_that_begin_behind_that_of_padding_leave_room_for_fewer_tokens():
    config = transformers.RobertaConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=12, pad_token_id=1,
    )  # fmt: skip
    loaded = Loaded(transformers.RobertaModel(config).eval(), None, "roberta", "", causal=False)
    assert loaded.limit == 10
    assert loaded.model(torch.full((1, 10), 5)).last_hidden_state.shape == (1, 10, 8)
    with pytest.raises((IndexError, RuntimeError)):
        loaded.model(torch.full((1, 11), 5))


def test_a_byte_order_mark_is_no_part_of_a_text():
    Path("marked.txt").write_bytes(b"\xef\xbb\xbfw5 w6")
    assert read_texts(["marked.txt"])[0].content == "w5 w6"


def test_the_work_of_reading_texts_grows_like_their_number():
    """It grew like its square: 34 s for 5,784 files."""
    texts = [f"{number}.txt" for number in range(400)]
    for text in texts:
        Path(text).write_text(text)

    def calls(count):
        events, before = [], sys.getprofile()
        sys.setprofile(lambda frame, event, given: events.append(event))
        try:
            read_texts(texts[:count])
        finally:
            sys.setprofile(before)
        return events.count("call")

    calls(1)  # what is imported at first
    assert calls(400) < 5 * calls(100)


@pytest.mark.parametrize("gap, whole", [(" ", False), (" " * 200, True)])
def test_of_a_long_text_only_the_beginning_is_tokenised(folder, gap, whole):
    loaded = load(folder())
    given, tokenizer = [], loaded.tokenizer
    Path("long.txt").write_text(gap.join(f"w{5 + i % 90}" for i in range(2000)))
    (file,) = read_texts(["long.txt"])
    expected = tokenizer(file.content, truncation=True, max_length=8)["input_ids"]

    def recording(text, **options):
        given.append(len(text))
        return tokenizer(text, **options)

    recorded = dataclasses.replace(loaded, tokenizer=recording)
    assert tokenise(recorded, [file], 8)[0].tokens.tolist() == [expected]
    assert (max(given) == len(file.content)) is whole


def test_weights_that_are_replaced_meanwhile_are_an_error(folder, tmp_path, monkeypatch):
    import transformers

    name, weights = folder(), tmp_path / "model/model.safetensors"
    own = transformers.AutoModel.from_pretrained

    def replaced(*given, **more):
        weights.write_bytes(weights.read_bytes())
        return own(*given, **more)

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", replaced)
    with pytest.raises(ModelError, match="its weights changed while they were read; run the command again"):
        load(name)


def write_gguf(path, seed, tensors=(), **more):
    """A causal model of one layer with random weights. tensors: the names of further ones; more: further fields."""
    gguf, sizes = pytest.importorskip("gguf"), {"token_embd": (40, 8), "output": (40, 8), "output_norm": (8,)}
    path.parent.mkdir(exist_ok=True)
    writer, random = gguf.GGUFWriter(path, "llama"), np.random.default_rng(seed)
    for name, value in {
        "context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8, "head_count": 2,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": 40, "rope_dimension_count": 4,
        "tokenizer_model": "gpt2", "token_list": ["a", "b", "ab", *map(str, range(37))], "token_merges": ["a b"],
        "token_types": [1] * 40, **more,
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    sizes |= {f"blk.0.attn_{part}": (8, 8) for part in ("q", "k", "v", "output")} | {"blk.0.attn_norm": (8,)}
    sizes |= {f"blk.0.ffn_{part}": (8, 8) for part in ("gate", "up", "down")} | {"blk.0.ffn_norm": (8,)}
    sizes |= dict.fromkeys(tensors, (2,))
    for name, size in sizes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_not_one_of_its_name_in_the_working_directory(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    for seed, place in enumerate(("here", "there")):
        write_gguf(tmp_path / place / "model.gguf", seed)
    monkeypatch.chdir(tmp_path / "here")
    near, far = (load(name) for name in ("model.gguf", "../there/model.gguf"))
    monkeypatch.chdir(tmp_path)
    assert [module_digest(load(f"{place}/model.gguf").model) for place in ("here", "there")] == [
        module_digest(loaded.model) for loaded in (near, far)
    ]
    assert module_digest(near.model) != module_digest(far.model)


@pytest.mark.parametrize("more, lost", [
    ({"rope_freq_base": 5e5}, None),
    ({"tensors": ["rope_freqs"]}, "rope_freqs.weight"),  # as of Llama 3.1 and 3.2
    ({"rope_scaling_factor": 4.0}, "llama.rope.scaling.factor"),
])  # fmt: skip
def test_scaled_positions_of_a_gguf_file_are_named(tmp_path, more, lost):
    """transformers leaves them out: another model was measured without a word."""
    pytest.importorskip("accelerate")
    write_gguf(tmp_path / "model.gguf", 0, **more)
    with warnings.catch_warnings(record=True, action="always") as caught:
        load(str(tmp_path / "model.gguf"))
    said = [str(warning.message) for warning in caught if "rotary positions" in str(warning.message)]
    assert len(said) == (lost is not None) and all(f"({lost}), which transformers does not read" in it for it in said)


def test_a_function_of_a_script_counts_with_the_script(monkeypatch, tmp_path):
    """After an edit of the script the rows of its old model were taken for those of the new one."""
    script, file = ModuleType("__main__"), tmp_path / "script.py"
    vars(script)["make"] = lambda: (torch.nn.Linear(2, 2), torch.zeros(1, 2))
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert load("__main__:make").sources == {}  # in a notebook
    file.write_text("SCALE = 1", encoding="utf-8")
    script.__file__ = str(file)
    assert load("__main__:make").sources == {"__main__": weights_digest([file])}


@pytest.mark.filterwarnings("always")
def test_a_tokenizer_beside_a_gguf_file_is_named(folder, tmp_path, monkeypatch, capsys):
    """Transformers takes it for that of the file: tokens were those of another model, without a word.

    The warning was lost with what transformers writes to stderr.
    """
    monkeypatch.setattr("warnings.showwarning", lambda message, *_: sys.stderr.write(str(message)))
    pytest.importorskip("accelerate")
    folder()
    write_gguf(tmp_path / "alone" / "model.gguf", 0)
    assert load(str(tmp_path / "alone" / "model.gguf")).sources == {}
    (tmp_path / "alone" / "model.gguf").rename(tmp_path / "model" / "model.gguf")
    loaded = load(str(tmp_path / "model" / "model.gguf"))
    assert "is read with the tokenizer beside it, " in capsys.readouterr().err
    assert loaded.tokenizer("w7 w9")["input_ids"] == [7, 9] and [*loaded.sources] == ["tokenizer.json"]


def test_a_folder_with_the_name_of_a_packaged_model_is_said_to_be_another(folder, tmp_path, monkeypatch):
    """A model of the user's in a folder smollm2 was taken for the packaged one, without a word."""
    monkeypatch.chdir(Path(folder()).parent)
    Path("model").rename("minilm")
    monkeypatch.setattr("favorbench.models.load._packaged", lambda name, _: f"the package's {name}")
    with pytest.warns(UserWarning, match="minilm is the packaged model; for the folder .* give ./minilm"):
        assert load("minilm") == "the package's minilm"
    assert load("./minilm").sources


def test_a_folder_without_a_tokenizer_is_refused_with_what_writes_one(folder, tmp_path):
    name = folder(family="llama")
    (tmp_path / "model/tokenizer.json").unlink()
    with pytest.raises(
        ModelError, match=r"has no tokenizer \(tokenizer.save_pretrained writes one into the folder\): "
    ):
        tokenise(load(name), [], 8)


def test_weights_of_sixteen_bits_are_float32(folder):
    loaded = load(folder(family="llama", dtype=torch.bfloat16))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name, said", [
    ("minilmm", r"no model 'minilmm' \(did you mean 'minilm'\?\): no such folder; allowed"),
    ("./none", "no model './none': no such folder; allowed: minilm, smollm2, a folder"),
    ("nobody-knows/this-model", "no model 'nobody-knows/this-model'.*not available from the hub"),
    ("./empty", "not a model's folder: it has no config.json"),
    ("./a.txt", "neither a folder with config.json nor a .gguf file"),
])  # fmt: skip
def test_values_that_are_not_models(name, said, tmp_path, folder):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ModelError, match=said):
        load(name)


@pytest.fixture
def snapshot(folder, tmp_path, monkeypatch):
    """The folder of the model nobody/tiny in the cache of the hub."""
    home = tmp_path / "hub" / "models--nobody--tiny"
    path = home / "snapshots" / (40 * "1")
    folder(path)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(path.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/hub")
    return path


def test_a_model_of_the_hub_that_is_here_needs_no_network(snapshot):
    """As huggingface_hub's own tools leave it: asked for by its id."""
    loaded = load("nobody/tiny")
    assert loaded.name == "nobody/tiny" and loaded.tokenizer is not None
    assert loaded.weights == load(str(snapshot)).weights
    (snapshot / "config.json").unlink()  # the control: a part of it is not enough
    with pytest.raises(ModelError, match=r"no model 'nobody/tiny'.*not available from the hub"):
        load("nobody/tiny")


def test_why_the_hub_does_not_give_a_model_is_said(monkeypatch):
    """A gated model, such as Llama, was said not to exist, as were all models of a hub that does not answer."""

    def refuse(*_, **__):
        raise OSError(
            "You are trying to access a gated repo.\nMake sure to have access to it at https://hub/some/model."
        )

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    with pytest.raises(ModelError, match=r"not available from the hub \(OSError: You are trying to access a gated"):
        load("some/model")


def test_a_model_of_the_hub_needs_no_other_files_of_its_repository(snapshot):
    """As after `hf download --include "*.safetensors" "*.json"`, which keeps the list of all files."""
    trees = snapshot.parents[1] / "trees"
    trees.mkdir()
    files = {"README.md": {"size": 9, "blob_id": "1"}}
    (trees / f"{snapshot.name}.json").write_text(json.dumps({"format_version": 1, "files": files}))
    assert load("nobody/tiny").tokenizer is not None


def test_the_settings_of_a_tokenizer_of_the_hub_are_asked_for(snapshot, monkeypatch):
    """Other programs fetch tokenizer.json alone, of which transformers makes a BERT's that has no capital letters."""
    asked, load_it = [], transformers.AutoTokenizer.from_pretrained
    monkeypatch.setattr(
        "transformers.AutoTokenizer.from_pretrained", lambda home, **more: asked.append(home) or load_it(home, **more)
    )
    load("nobody/tiny")
    (snapshot / "tokenizer_config.json").unlink()
    load("nobody/tiny")
    absent = snapshot.parents[1] / ".no_exist" / snapshot.name / "tokenizer_config.json"  # as transformers has asked
    absent.parent.mkdir(parents=True)
    absent.touch()
    load("nobody/tiny")
    assert asked == [snapshot, "nobody/tiny", snapshot]


def test_the_pooling_of_a_model_of_the_hub_is_asked_for(snapshot, monkeypatch):
    """transformers downloads only what it needs, which is not how sentence-transformers embeds texts."""
    (snapshot / "tokenizer.json").unlink()  # not complete, so that the hub is asked

    def download(name, file, revision=snapshot.name):
        assert (name, revision) == ("nobody/tiny", snapshot.name)
        if file != "1_Pooling/config.json":
            raise OSError("not there")
        (snapshot / file).parent.mkdir()
        (snapshot / file).write_text('{"pooling_mode": "cls"}')

    monkeypatch.setattr("transformers.utils.cached_file", download)
    assert load("nobody/tiny").own_output == "embeds texts by cls (1_Pooling/config.json)"


def test_a_model_that_is_downloaded_is_the_same_one_afterwards(snapshot, monkeypatch):
    """Its digests were taken before transformers downloaded the tokenizer: the next command refused the study."""
    saved = {name: (snapshot / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}
    for name in saved:
        (snapshot / name).unlink()

    def download(_, file, revision=snapshot.name):
        if file != "merges.txt":
            raise OSError("not there")
        (snapshot / file).write_text("")

    def tokenizer(*given, load_it=transformers.AutoTokenizer.from_pretrained, **more):
        for name, content in saved.items():
            (snapshot / name).write_bytes(content)
        return load_it(*given, **more)

    monkeypatch.setattr("transformers.utils.cached_file", download)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", tokenizer)
    first = load("nobody/tiny")
    assert first.sources.keys() == {"config.json", "merges.txt", *saved}
    assert load("nobody/tiny").sources == first.sources


def test_a_model_of_the_hub_is_of_one_revision(snapshot, monkeypatch):
    """A new revision during the download of weights gave its tokenizer, under the digest of the old one."""
    (snapshot / "tokenizer.json").rename(kept := snapshot.parent / "kept.json")  # not complete: the hub is asked
    revisions = []

    def tokenizer(*given, load_it=transformers.AutoTokenizer.from_pretrained, **more):
        revisions.append(more.get("revision"))
        kept.rename(snapshot / "tokenizer.json")
        return load_it(*given, **more)

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", tokenizer)
    load("nobody/tiny")
    assert revisions == [snapshot.name]


def test_a_tokenizer_that_is_downloaded_and_cannot_be_read_is_said_to_be_so(snapshot, monkeypatch):
    """The model was said to have none, where sentencepiece is not installed."""
    (snapshot / "tokenizer.json").rename(kept := snapshot.parent / "kept.json")  # not complete: the hub is asked

    def tokenizer(*_, **__):
        kept.rename(snapshot / "tokenizer.json")
        raise ValueError("`sentencepiece` is required")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", tokenizer)
    with pytest.raises(ModelError, match="nobody/tiny: its tokenizer cannot be loaded: ValueError: `sentencepiece` is"):
        load("nobody/tiny")


def test_a_model_of_characters_needs_no_files_of_a_tokenizer(tmp_path):
    """A folder of CANINE, as transformers saves it, was said to have no tokenizer."""
    settings = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "intermediate_size"), 1)
    transformers.CanineModel(transformers.CanineConfig(hidden_size=8, num_hash_buckets=8, **settings)).save_pretrained(
        tmp_path
    )
    assert load(str(tmp_path)).tokenizer("ab", add_special_tokens=False)["input_ids"] == [97, 98]


def test_a_model_of_the_hub_without_a_tokenizer_reads_no_texts(snapshot):
    """Each of its tokens was unknown, without a word."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / file).unlink()
    assert load("nobody/tiny").tokenizer is None


def test_remote_code_runs_only_on_request(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", f"{tmp_path}/cache")
    ran = tmp_path / "ran"
    name = folder(auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"}, model_type="own")
    (tmp_path / "model/own.py").write_text(f"import os\nos.mkdir({str(ran)!r})\nraise RuntimeError('it ran')\n")
    with pytest.raises(ModelError, match="contains Python code, which is not run without permission"):
        load(name)
    assert not ran.exists()
    with pytest.raises(ModelError, match="it ran"):  # and the control: with it, it is
        load(name, trust_remote_code=True)
    assert ran.exists()


def test_code_that_is_not_run_is_named_where_transformers_has_its_own(folder):
    """For jina-embeddings-v2-base-de a BERT of its weights, with other outputs, was measured without a word."""
    own = {"AutoModel": "own.Model"}
    with pytest.warns(UserWarning, match=r"code of its own \(auto_map in config.json\), which is not run: the bert of"):
        load(folder(auto_map=own))
    with pytest.warns(UserWarning, match="code of its own"), pytest.raises(ModelError, match="would be random"):
        load(folder(auto_map=own, num_hidden_layers=9))  # as of jina-embeddings-v2-base-en


@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_model_that_transformers_does_not_run_is_not_said_to_be_trusted(trusted, folder):
    """As of rerankers, whose code is a class of another kind: with --trust-remote-code it was left without a word."""
    name = folder(auto_map={"AutoModelForSequenceClassification": "own.Model"})
    with pytest.warns(UserWarning, match="is not run: .*; to run it, read it, then give a module:function"):
        load(name, trust_remote_code=trusted)


def test_a_text_is_cut_at_its_end(folder, tmp_path):
    """Tokenizers of chats, such as that of Zephyr, keep the last tokens."""
    name = folder()
    settings = json.loads((tmp_path / "model/tokenizer_config.json").read_text())
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    (tmp_path / "text.txt").write_text("w5 w6 w7 w8")
    (text,) = tokenise(load(name), read_texts([tmp_path / "text.txt"]), 3)
    assert text.tokens.tolist() == [[5, 6, 7]]


def test_a_class_that_transformers_lacks_is_named(folder):
    """A subclass of a user, saved by save_pretrained, was measured as the class of transformers without a word."""
    with pytest.warns(UserWarning, match="is saved as 'ScaledBert', which transformers does not have: the bert of"):
        load(folder(architectures=["ScaledBert"]))


@pytest.mark.parametrize("layers, extra, first", [
    (2, {}, None),
    (1, {}, "encoder.layer.1.attention.output.LayerNorm.bias"),
    (2, {"encoder.layer.0.attention.distance_embedding": 8}, "encoder.layer.0.attention.distance_embedding"),
    (2, {"bert.encoder.layer.0.output.dense.lora_A.weight": 8}, "bert.encoder.layer.0.output.dense.lora_A.weight"),
    (2, {"cls.predictions.bias": 9, "classifier.0.weight": 3, "mtp.layers.0.self_attn.q_proj.weight": 3}, None),
    (2, {"encoder.layer.0.attention.rotary_emb.inv_freq": 4}, "encoder.layer.0.attention.rotary_emb.inv_freq"),
    (2, {"embeddings.position_ids": 32}, None),
    (2, {"encoder.layer.0.attention.masked_bias": 1, "encoder.layer.0.attention.bias": 1}, None),
])  # fmt: skip
def test_weights_that_have_no_place_inside_the_model_are_named(folder, tmp_path, layers, extra, first):
    """Further layers, or relative positions that transformers 5 dropped for BERT, were left out without a word."""
    from safetensors.torch import load_file, save_file

    name, weights = folder(num_hidden_layers=layers), tmp_path / "model/model.safetensors"
    more = {key: torch.ones(size) for key, size in extra.items()}
    save_file({**load_file(weights), **more}, weights, {"format": "pt"})
    with warnings.catch_warnings(record=True, action="always") as caught:
        load(name)
    said = [str(warning.message) for warning in caught]
    if first is None:
        assert not said
    else:
        count = "1 weight" if extra else "16 weights"
        assert len(said) == 1 and f"has {count} without a place in the bert" in said[0]
        assert said[0].endswith(f": {first}")


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("content, share", [("w5 x y w6 z q w7", "57 %"), ("w5 x w6 y", None), ("x y z", "100 %")])
def test_a_text_that_the_tokenizer_hardly_knows_is_named(folder, content, share):
    """Text in another script was one token, repeated, and each estimator was said to replace attention unnoticed."""
    Path("text.txt").write_text(content)
    for command in ("capture {} --out heads.npz", "model {} --maps none --methods none --draws 1 --no-heads --out run"):
        code, _, error = run(f"{command.format(folder())} --text text.txt -q")
        assert code == 0, error
        assert error.count("punctuation, are [UNK]: the tokenizer of") == (share is not None)
        assert f"text: {share} of its tokens" in error or share is None
    Path("more.txt").write_text("w5 w6 w7")
    assert run(f"{command.format(folder())} --text more.txt -q")[0] == 0
    assert ("are [UNK]" in run("table run")[1]) == (share is not None)  # its rows are still there


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_tokenizer_that_is_not_that_of_its_file_is_named(folder, tmp_path, family):
    """As of a file that tokenizers wrote alone: the words of a GPT-2 were taken for pieces of bytes, without a word."""
    name, settings = folder(family=family), tmp_path / "model/tokenizer_config.json"
    command = f"capture {name} --text {small_text(tmp_path / 'text.txt')} --out {tmp_path / 'heads.npz'}"
    assert "gives other tokens" not in run(command)[2]
    settings.unlink()
    assert run(command)[2].count("the GPT2Tokenizer that transformers makes gives other tokens") == (family == "gpt2")


def test_the_marks_of_words_and_punctuation_do_not_make_a_text_known(folder, tmp_path):
    """SentencePiece has a mark before each unknown word, so that no text was mostly unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581", -1.0), (".", -1.0), ("w", -2.0)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(folder())
    (tmp_path / "text.txt").write_text("x. y. z. w", encoding="utf-8")
    loaded = load(str(tmp_path / "model"))
    with pytest.warns(UserWarning, match="^text: 75 % of its tokens, beside punctuation, are <unk>: the tokenizer"):
        warn_of_unknown(loaded, tokenise(loaded, read_texts([tmp_path / "text.txt"]), 20))


class Evil:
    """Unpickling it makes the folder ``ran``."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@pytest.mark.parametrize("variable", FORCED)
def test_no_library_unpickles_a_file_that_a_configuration_names(folder, tmp_path, monkeypatch, variable):
    """timm reads the `checkpoint_path` of a config.json so, while transformers builds the model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "0")
    name, before, build = folder(), list(map(os.environ.get, FORCED)), transformers.AutoModel.from_config
    torch.save(Evil(), "evil.pth")

    def builds(config, **given):
        torch.load("evil.pth", weights_only=False)
        return build(config, **given)

    monkeypatch.setattr("transformers.AutoModel.from_config", builds)
    with pytest.raises(ModelError, match="cannot be loaded: UnpicklingError"):
        load(name)
    assert not Path("ran").exists() and list(map(os.environ.get, FORCED)) == before
    load(name, trust_remote_code=True)  # and the control
    assert Path("ran").exists() and list(map(os.environ.get, FORCED)) == before


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_a_folder_names_no_attention_of_the_hub(folder, key):
    """Transformers would download `somebody/kernel` and run it, if the package `kernels` is installed."""
    with pytest.raises(ModelError, match="asks for attention 'somebody/kernel'; allowed: eager, sdpa"):
        load(folder(**{key: "somebody/kernel"}))
    load(folder(**{key: "eager"}))
    loaded = load(folder(_attn_implementation_internal="somebody/kernel"))  # not read from a file
    assert loaded.model.config._attn_implementation in ("eager", "sdpa")


def test_nor_for_a_part_of_a_part(folder):
    parts = {"attn_implementation": {"text_config": {"text_config": "somebody/kernel"}}}
    with pytest.raises(ModelError, match="asks for attention 'somebody/kernel'; allowed: eager, sdpa"):
        load(folder(model_type="llava", text_config={"model_type": "gemma3"}, architectures=None, **parts))


@pytest.mark.parametrize("key", ["sudachi_config_path", "sudachi_resource_dir"])
def test_a_tokenizer_names_no_plug_ins(folder, tmp_path, key):
    """Sudachi loads the shared libraries that its settings name, which are files of the folder."""
    name, file = folder(), tmp_path / "model/tokenizer_config.json"
    settings = json.loads(file.read_text())
    for given, refused in [({key: "model/sudachi.json"}, True), ({"sudachi_dict_type": "small"}, False), (None, False)]:
        file.write_text(json.dumps(settings | {"sudachi_kwargs": given}))
        with pytest.raises(ModelError, match="plug-ins") if refused else contextlib.nullcontext():
            load(name)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("named", ["RagTokenizer", "AutoProcessor", "LlavaForConditionalGeneration", "AutoModelFast"])
def test_a_class_that_loads_other_models_is_no_tokenizer(folder, tmp_path, file, named):
    """Transformers takes any of its classes: RagTokenizer reads folders inside, and a processor a model of the hub."""
    name = folder()
    settings = {"config.json": {}, "tokenizer_config.json": {"tokenizer_class": None}, file: {"tokenizer_class": named}}
    for other, given in settings.items():
        path = tmp_path / "model" / other
        path.write_text(json.dumps(json.loads(path.read_text()) | given))
    with pytest.raises(ModelError, match=f"its `tokenizer_class` '{named}' is no tokenizer"):
        load(name)
    for given in (None, "BertTokenizer", "PreTrainedTokenizerFast"):  # the control
        path = tmp_path / "model" / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": given}))
        assert load(name).tokenizer is not None


def test_an_index_that_is_a_pipe_keeps_nobody_waiting(folder, tmp_path):
    name = folder()
    (tmp_path / "model/model.safetensors").unlink()
    os.mkfifo(tmp_path / "model/model.safetensors.index.json")
    with pytest.raises(ModelError, match=r"cannot read an index of weights.*not a regular file"):
        load(name)


def test_weights_that_are_missing_or_quantised(folder, tmp_path):
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "model/model.safetensors"
    name = folder(quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelError, match="its weights are quantised"):
        load(name)
    part = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}  # transformers looks there, too
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "llava", "text_config": part}))
    with pytest.raises(ModelError, match="its weights are quantised"):
        load(name)
    folder()
    weights = load_file(file)
    weights.pop("encoder.layer.1.attention.self.key.weight")
    for change, said in [
        (lambda: save_file(weights, file, {"format": "pt"}), "1 of its weights are not in its files, and would be ran"),
        (file.unlink, "model: it has no weights, neither model.safetensors nor pytorch_model.bin$"),
        (lambda: (tmp_path / "model/m.gguf").touch(), "pytorch_model.bin; give the file itself: .*m.gguf"),
        (lambda: file.write_bytes(b"torn"), "cannot be loaded: Safetensor"),
    ]:
        change()
        with pytest.raises(ModelError, match=said):
            load(name)


def test_an_adapter_beside_the_weights(folder, tmp_path, monkeypatch):
    # Weights would be those without it, unless peft is installed; then a run would mix rows of two adapters, and peft
    # before 0.20 imports the `megatron_core` that the adapter names.
    name = folder()
    monkeypatch.setattr("transformers.AutoModel.from_pretrained", lambda *_, **__: pytest.fail("peft would read it"))
    (tmp_path / "model/adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelError, match=r"has an adapter of peft .*save the model with it merged"):
        load(name)


def test_more_than_memory(folder, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    name = folder()
    with monkeypatch.context() as patch:
        patch.setattr("transformers.AutoModel.from_pretrained", fails)
        with pytest.raises(MemoryError, match="can't allocate memory"):
            load(name)
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 1000)
    with pytest.raises(fb.errors.ScenarioError, match=r"model in float32 needs .* KiB of memory"):
        load(name)


def test_the_digest_is_of_the_weights_that_are_loaded(tmp_path):
    """An index beside model.safetensors is not read; a file that the configuration names is."""
    folder = small_folder(tmp_path / "model")
    expected = load(str(folder)).weights
    assert expected == weights_digest([folder / "model.safetensors"])
    for index in ("pytorch_model.bin.index.json", "model.safetensors.index.json"):
        (folder / index).write_text('{"weight_map": {"a": "absent"}}')
    assert load(str(folder)).weights == expected
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").write_bytes(b"another")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "other.safetensors"}))
    assert load(str(folder)).weights == expected


def test_a_damaged_tokenizer_is_named(tmp_path):
    folder = small_folder(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
        load(str(folder))


def test_a_model_or_tokenizer_that_fails_on_texts_is_named(tmp_path, monkeypatch):
    """Tokens beyond the model's embedding, no token for unknown words, and a model that needs images, too."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("zebra " + "w5 w6 w7 " * 8)
    for name in ("beyond", "unknown"):
        tokenizer = small_folder(Path(name)) / "tokenizer.json"
        content = json.loads(tokenizer.read_text())
        vocabulary = content["model"]["vocab"]
        vocabulary |= {"w5": 5000} if name == "beyond" else {"[NONE]": vocabulary.pop("[UNK]")}
        tokenizer.write_text(json.dumps(content))
    parts = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
    config = transformers.CLIPConfig(
        text_config=parts | {"vocab_size": 99}, vision_config=parts | {"image_size": 8, "patch_size": 4}
    )
    small_folder(Path("clip"))
    transformers.CLIPModel(config).save_pretrained("clip")
    failed = {
        "beyond": "model 'beyond' on its inputs failed: IndexError",
        "unknown": "the tokenizer of model 'unknown' failed",
        "clip": "model 'clip' on its inputs failed",
    }
    for name, message in failed.items():
        for command in (f"capture {name} --out heads.npz", f"model {name} --methods clusters -R 4 --out {name}-run"):
            code, _, error = run(f"{command} --text text.txt -L 16")
            assert code == 2 and message in error and error.count("\n") == 1 and "bug" not in error
