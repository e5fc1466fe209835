"""The measured effect of a replacement on a model, against direct formulas in NumPy and known values."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from favorbench.models.effects import Reference, effect, head_errors, layers_of, run
from favorbench.models.gradients import dimensions
from favorbench.models.load import load
from favorbench.models.replacements import Exact, Removed
from favorbench.models.store import read_measurements
from favorbench.models.swap import replace_attention
from tests.command_line import printed
from tests.small_models import small_folder, small_text
from tests.test_models_swap import LENGTH, TOLERANCE, bert, llama

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

SINGLE = 300 * np.finfo(np.float32).eps  # sums of some hundred terms in float32


@pytest.fixture(scope="module", params=[bert, llama], ids=["bert", "llama"])
def model(request):
    return request.param()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 40, (1, LENGTH), generator=torch.Generator().manual_seed(7))


def random_reference(rng, tokens, length, vocabulary=11):
    hidden = tuple(torch.as_tensor(rng.normal(size=(length, 5))) for _ in range(3))
    return Reference(tokens, hidden, torch.as_tensor(3 * rng.normal(size=(length, vocabulary))), hidden[-1].mean(dim=0))


def test_metrics_are_their_formulas(rng):
    """On random hidden states and logits, of more positions than are treated together."""
    length = 601
    tokens = torch.as_tensor(rng.integers(0, 11, length))
    exact, other = (random_reference(rng, tokens, length) for _ in range(2))
    found = effect(exact, other)
    for one, a, b in zip(found.hidden_error, exact.hidden[1:], other.hidden[1:], strict=True):
        errors = np.linalg.norm(b.numpy() - a.numpy(), axis=1) / np.linalg.norm(a.numpy(), axis=1)
        assert_allclose(one, errors.mean(), rtol=TOLERANCE)
    a, b = exact.hidden[-1].numpy().mean(axis=0), other.hidden[-1].numpy().mean(axis=0)
    cosine = a @ b / np.sqrt(a @ a * (b @ b))
    assert_allclose([found.embedding_loss, *found.embedding], [1 - cosine, *b], rtol=TOLERANCE)
    p, q = ((x - logsumexp(x, axis=1, keepdims=True)) for x in (exact.logits.numpy(), other.logits.numpy()))
    kl, rows = np.sum(np.exp(p) * (p - q), axis=1), np.arange(length - 1)
    lost = (p - q)[rows, tokens.numpy()[1:]]
    expected = [
        kl.mean(),
        lost.mean(),
        np.mean(p.argmax(axis=1) == q.argmax(axis=1)),
        kl[300:].mean(),
        lost[300:].mean(),
    ]
    measured = [found.kl, found.delta_nll, found.top1, found.late_kl, found.late_delta_nll]
    assert_allclose(measured, expected, rtol=SINGLE, atol=SINGLE)
    assert found.nonfinite == 0


def test_the_negative_log_likelihood_is_that_of_transformers(tokens):
    """Its own loss, before and after: another route to the same number."""
    model = llama()
    reference = run(model, tokens)
    with torch.no_grad():
        before = float(model(tokens, labels=tokens).loss)
        with replace_attention(model, method="uniform"):
            after = float(model(tokens, labels=tokens).loss)
            found = effect(reference, run(model, tokens))
    assert_allclose(found.delta_nll, after - before, rtol=1e-4, atol=SINGLE * (after + before))
    assert abs(found.delta_nll) > 1e-3


def test_a_model_of_several_streams_is_measured_in_the_first(tokens):
    """Gemma 3n has hidden states (streams, 1, L, width): its layers read the first stream."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "laurel_rank": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_kv_shared_layers": 0}
    names = {"vocab_size": 40, "vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8}
    layers = {"layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": None}
    config = transformers.Gemma3nTextConfig(**sizes, **heads, **names, **layers)
    torch.manual_seed(0)
    model = transformers.Gemma3nForCausalLM(config).eval()
    exact, outputs = run(model, tokens), model(tokens, output_hidden_states=True)
    assert outputs.hidden_states[0].ndim == 4
    for state, whole in zip(exact.hidden, outputs.hidden_states, strict=True):
        assert torch.equal(state, whole[0, 0])
    with replace_attention(model, method="uniform"):
        found = effect(exact, run(model, tokens))
    assert len(found.embedding) == 32
    assert min(found.hidden_error) > 0


def test_the_model_itself_has_no_effect(model, tokens):
    reference = run(model, tokens)
    found = effect(reference, run(model, tokens))
    assert found.embedding_loss == 0 and set(found.hidden_error) == {0.0} and found.nonfinite == 0
    if reference.logits is not None:
        assert (found.kl, found.delta_nll, found.top1) == (0, 0, 1)


def test_nan_is_an_infinite_error(rng):
    tokens = torch.as_tensor(rng.integers(0, 11, 8))
    exact = random_reference(rng, tokens, 8)
    broken = exact._replace(
        hidden=(*exact.hidden[:-1], exact.hidden[-1] * torch.nan), logits=exact.logits * torch.nan,
        embedding=exact.embedding * torch.nan,
    )  # fmt: skip
    found = effect(exact, broken)
    assert found.nonfinite == 1 and found.hidden_error[-1] == found.embedding_loss == found.kl == np.inf


def test_layers_are_found_with_their_output_projections(model, tokens):
    names = {transformers.BertModel: "encoder.layer.{}.attention.output.dense"}
    name = names.get(type(model), "model.layers.{}.self_attn.o_proj")
    modules = dict(model.named_modules())
    for index, layer in enumerate(layers_of(model, tokens)):
        assert layer.projection is modules[name.format(index)] and layer.left is None and layer.heads == 4
        assert layer.shape.causal is not isinstance(model, transformers.BertModel)


def test_a_norm_is_no_output_projection():
    """BitNet normalises the output of attention before W_O, which then does not act on an error alone."""
    sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
    config = transformers.BitNetConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, bos_token_id=None, eos_token_id=None
    )
    model, tokens = transformers.BitNetForCausalLM(config).eval(), torch.arange(8)[None]
    layers = layers_of(model, tokens)
    assert len(layers) == 2 and not any(layer.projection for layer in layers)
    found = head_errors(model, run(model, tokens), layers, lambda heads: Removed().outputs(heads, 0, ()))
    assert len(found) == 8 and all(one.head_after_projection is None for one in found)


def test_errors_of_heads_are_their_formulas(model, tokens):
    """Removed: an error of 1 in every head, and after the projection what its part of W_O makes of its output."""
    reference, layers = run(model, tokens), layers_of(model, tokens)
    outputs = {}

    def removed(heads):
        outputs[heads.layer] = Exact().outputs(heads, 0, ())[0].numpy()
        return Removed().outputs(heads, 0, ())

    for one in head_errors(model, reference, layers, removed):
        assert abs(one.head_error - 1) < TOLERANCE
        layer, head = one.head_layer, one.head_number
        weight = layers[layer].projection.weight.detach().numpy()[:, 8 * head : 8 * head + 8]
        lost = outputs[layer][head] @ weight.T
        expected = np.linalg.norm(lost, axis=1) / np.linalg.norm(reference.hidden[layer].numpy(), axis=1)
        assert_allclose(one.head_after_projection, expected.mean(), rtol=TOLERANCE)
    exact = head_errors(model, reference, layers, lambda heads: Exact().outputs(heads, 0, ()))
    assert len(exact) == 8 and max(one.head_error for one in exact) < TOLERANCE


@pytest.mark.parametrize("family", ["Gemma3", "Mistral3", "Voxtral"])  # transformers lists one as a language model
def test_a_language_model_that_reads_images_or_sound_too_is_measured_in_nats(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = {"vocab_size": 99, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    seen = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    parts = {"model_type": "mistral"} | text, {"model_type": "pixtral"} | seen
    if family == "Gemma3":
        parts = text, seen | {"image_size": 8, "patch_size": 4}
    others = {"vision_config": parts[1], "image_token_index": 98, "mm_tokens_per_image": 4}
    if family == "Voxtral":
        parts, others = ({"model_type": "llama"} | text,), {"audio_config": seen, "audio_token_id": 98}
    config = getattr(transformers, f"{family}Config")(text_config=parts[0], **others)
    small_folder(Path("seer"))  # its tokenizer
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.ndim > 1 else 1)  # else logits are tiny
    model.save_pretrained("seer")
    small_text("text.txt")
    printed("model seer --text text.txt -L 16 --maps none --methods none --draws 1 --no-heads --out run")
    rows = read_measurements(Path("run")).set_index("estimator")
    tokens = load("seer").tokenizer(Path("text.txt").read_text(), return_tensors="pt").input_ids[:, :16]
    with torch.no_grad():
        exact = model(tokens, labels=tokens).loss
        with replace_attention(model, method="uniform"):
            expected = float(model(tokens, labels=tokens).loss - exact)
    assert abs(rows.delta_nll["uniform"] - expected) < 1e-5 < abs(expected)
    assert [*dimensions(load("seer").model)] == [16, 1, 99]
