"""Gradients of what a model says: they predict what a small error of a head does to it, and other gradients do not."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import favorbench as fb  # noqa: E402
from favorbench.attention.exact import exact_attention  # noqa: E402
from favorbench.errors import InputError, ModelError, ScenarioError  # noqa: E402
from favorbench.models.gradients import check_backward_memory, objective  # noqa: E402
from favorbench.models.interface import intercept_attention  # noqa: E402
from favorbench.numerics import machine  # noqa: E402
from tests.command_line import printed, refused, run  # noqa: E402
from tests.small_models import small_folder, small_model, small_text  # noqa: E402

LENGTH, DRAWS = 12, 400

#: Standard errors of the mean over draws that a prediction may be off: 2e-9 of a normal one are further.
STANDARD_ERRORS = 6.0

SIZE = 1e-4  # of an error: what the second order leaves out is as small, relatively


def language_model(family="llama"):
    """One whose predictions are neither uniform nor certain."""
    return small_model(family, transformers.AutoModelForCausalLM)


def tokens(seed=1, length=LENGTH):
    return {"input_ids": torch.randint(5, 99, (1, length), generator=torch.Generator().manual_seed(seed))}


def said(model, inputs, layer=None, head=0, error=None):
    """The output of a model with an error added to one head, computed independently of the capture."""

    def attend(call):
        output = call.own().clone()
        if call.index == layer:
            output[0, head] += torch.as_tensor(error)
        return output

    with torch.no_grad(), intercept_attention(model, attend):
        output = model(**inputs)
    return output.logits[0] if hasattr(output, "logits") else output.last_hidden_state[0].mean(0)


def effect(exact, other):
    """KL(exact || other), mean over tokens, or 1 - cosine."""
    if exact.ndim == 1:
        exact, other = (vector / vector.norm() for vector in (exact, other))
        return float((exact - other).square().sum()) / 2
    exact, other = (torch.log_softmax(logits, -1) for logits in (exact, other))
    return float((exact.exp() * (exact - other)).sum(-1).mean())


def expansion(model, inputs, layer, head, error):
    """The second order of ``effect`` in an error, without gradients: from the derivative of the output along it."""
    step = 10.0  # norms of Llama are computed in float32, and smaller differences drown in it
    exact, *sides = (said(model, inputs, layer, head, sign * step * error) for sign in (0, 1, -1))
    if exact.ndim == 1:
        ahead, behind = (vector / vector.norm() for vector in sides)
        return float(((ahead - behind) / (2 * step)).square().sum()) / 2
    shares, slope = torch.softmax(exact, -1), (sides[0] - sides[1]) / (2 * step)
    variance = (shares * slope**2).sum(-1) - (shares * slope).sum(-1) ** 2
    return float(variance.mean()) / 2


def errors_of_heads(captured):
    """Three errors of each head, each of one token."""
    rng = np.random.default_rng(0)
    for head in range(len(captured.query)):
        for _ in range(3):
            error = np.zeros(captured.query.shape[1:])
            error[rng.integers(LENGTH - 1)] = SIZE * rng.standard_normal(error.shape[1])
            yield head, error


def effects_of_errors(model, inputs, captured):
    """The errors, and what each does to the model: measured."""
    exact, errors = said(model, inputs), list(errors_of_heads(captured))
    places = [(captured.layer[head], captured.head[head]) for head, _ in errors]
    outputs = (said(model, inputs, *place, error) for place, (_, error) in zip(places, errors, strict=True))
    return [(*one, effect(exact, output)) for one, output in zip(errors, outputs, strict=True)]


def misses(measured, gradients):
    """The errors whose measured effect is not the predicted one, within the standard error of the draws."""
    found = []
    for head, error, truth in measured:
        samples = np.einsum("rnd,nd->r", gradients[head], error) ** 2 / 2
        standard_error = samples.std(ddof=1) / np.sqrt(len(samples))
        if not abs(samples.mean() - truth) <= STANDARD_ERRORS * standard_error + 10 * SIZE * truth:
            found.append((head, samples.mean() / truth))
    return found


def gradients_of(captured):
    return captured.gradients * captured.gradient_scales[..., None, None].astype(np.float64)


@pytest.mark.parametrize("make", [language_model, lambda: small_model("bert")], ids=["nats per token", "1 - cosine"])
def test_the_effect_of_a_small_error_is_predicted(make, request):
    model, inputs = make().double(), tokens()
    with torch.inference_mode():
        captured = fb.capture(model, {"input_ids": inputs["input_ids"].clone()}, gradients=DRAWS)
    assert captured.meta["effect"] in request.node.name and captured.gradients.dtype == np.float16
    gradients, measured = gradients_of(captured), effects_of_errors(model, inputs, captured)
    places = [(captured.layer[head], captured.head[head], error) for head, error, _ in measured]
    expanded = [expansion(model, inputs, *place) for place in places]
    assert_allclose([truth for *_, truth in measured], expanded, rtol=0.02)  # float32 norms, errors of size 1e-4
    assert not misses([(*one[:2], second) for one, second in zip(measured, expanded, strict=True)], gradients)
    assert not misses(measured, gradients)
    assert misses(measured, gradients[::-1])  # another head's
    other = fb.capture(model, tokens(seed=2), gradients=DRAWS)
    assert misses(measured, gradients_of(other))  # of another text
    assert misses(measured, 2**0.5 * gradients)  # without the half
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("chosen", "least", "most"), [(2, 4, 1000), (4, 0.5, 2)], ids=["some", "all"])
def test_a_choice_of_experts_is_not_predicted(chosen, least, most):
    """docs/own-model.md says so: measured effects are far larger where an error moves a few tokens to other experts."""
    config = transformers.MixtralConfig(
        vocab_size=99, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=chosen,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    captured = fb.capture(model, inputs := tokens(length=300), layers=[0], heads=[0], gradients=16)
    error = 0.01 * np.random.default_rng(0).standard_normal(captured.value.shape[1:])
    measured = effect(said(model, inputs), said(model, inputs, 0, 0, error))
    predicted = (np.einsum("rnd,nd->r", gradients_of(captured)[0], error) ** 2).mean() / 2
    assert least < measured / predicted < most


def test_a_gradient_is_the_slope_of_the_log_probability_of_one_token():
    """Of its own sign: an effect is a square, which would hide the other one."""
    model, inputs, step = language_model().double(), tokens(), 10.0
    captured = fb.capture(model, inputs, gradients=16)
    for head, gradients in enumerate(LENGTH**0.5 * gradients_of(captured)[:, :, -1]):
        error = np.zeros((LENGTH, captured.value.shape[-1]))
        error[-1] = SIZE * np.random.default_rng(head).standard_normal(error.shape[1])
        place = captured.layer[head], captured.head[head]
        ahead, behind = (
            torch.log_softmax(said(model, inputs, *place, sign * step * error)[-1], -1) for sign in (1, -1)
        )
        slopes, products = ((ahead - behind) / (2 * step)).numpy(), gradients @ error[-1]
        near, far = (abs(sign * products[:, None] - slopes).min(axis=1) for sign in (1, -1))
        assert near.max() < 2e-3 * abs(slopes).max() < far.max()


def test_rows_have_the_effect_of_the_formula_with_every_backend():
    captured = fb.capture(language_model(), tokens(length=32), gradients=3)
    q, k, v = (getattr(captured, name).astype(float) for name in ("query", "key", "value"))
    means = np.cumsum(v, axis=1) / np.arange(1, 33)[:, None]
    products = np.einsum("hrnd,hnd->hr", gradients_of(captured), means - exact_attention(q, k, v, causal=True))
    keys = {"maps": "positive", "num_projections": [4, 8], "trials": 1, "baselines": "uniform"}
    every = fb.sweep(inputs={"mine": captured}, causal=True, scale=[1.0, 0.5], out="numpy", **keys).trials
    assert every["effect"].isna().tolist() == (every["scale"] == 0.5).tolist()  # there it is not the model's attention
    rows = every[every["scale"] == 1.0]
    uniform = rows.query("estimator == 'uniform'")
    assert_allclose(uniform["effect"], (products**2).mean(1) / 2, rtol=1e-10)
    again = fb.sweep(inputs={"mine": captured}, causal=True, backend="torch", out="torch", **keys).trials
    assert_allclose(again["effect"], rows["effect"], rtol=1e-8)


def test_the_last_queries_have_no_effect():
    """Without the newest keys they are not the model's attention: what was predicted was wrong by a factor of 200."""
    with pytest.raises(ScenarioError, match=r"`gradients` with `last`.* leave one of them out"):
        fb.capture(language_model(), tokens(), gradients=2, last=4)


def test_items_of_a_batch_have_their_own_gradients():
    """Squares of gradients, summed over heads, are those of each text by itself, and not those of the other."""
    model, texts = small_model("bert"), [tokens()["input_ids"], torch.full((1, LENGTH), 7)]

    def squares(ids):
        found = (gradients_of(fb.capture(model, {"input_ids": ids}, gradients=200)) ** 2).sum((2, 3))
        return found.reshape(2, len(ids), 4, 200).sum((0, 2))  # layers, texts, heads, draws

    def differ(a, b):
        return abs(a.mean() - b.mean()) > STANDARD_ERRORS * np.sqrt((a.var() + b.var()) / 200)

    together, alone = squares(torch.cat(texts)), [squares(ids)[0] for ids in texts]
    assert [[bool(differ(a, b)) for b in alone] for a in together] == [[False, True], [True, False]]


def test_a_file_keeps_gradients_and_a_sweep_of_it_has_the_effect():
    small_folder("gpt2", "gpt2")
    language_model("gpt2").save_pretrained(Path("gpt2"))
    for suffix in ("npz", "safetensors"):
        code, out, said = run(
            "capture", "gpt2", "--text", small_text("a.txt"), "--gradients", "4",
            "--out", f"heads.{suffix}",
        )  # fmt: skip
        assert code == 0 and "4 gradients of each (nats per token)" in out
        assert "32 gradients of 24 x 16 numbers, float16: 24 KiB of the file" in said
    with np.load("heads.npz") as file:
        assert json.loads(str(file["meta"]))["effect"] == "nats per token"
    sweep = "sweep --maps none --methods clusters -R 4 --trials 1 --baselines uniform --inputs"
    for suffix in ("npz", "safetensors"):
        printed(*f"{sweep} heads.{suffix} --out {suffix} -q".split())
    effects = [fb.load(suffix).trials["effect"] for suffix in ("npz", "safetensors")]
    assert effects[0].notna().all() and (effects[0] >= 0).all()
    assert "effect" in printed("table", "npz", "--metric", "effect", "--format", "csv")
    printed("capture", "gpt2", "--text", "a.txt", "--out", "plain.npz", "-q")
    printed(*f"{sweep} plain.npz --out plain -q".split())
    assert "effect" not in fb.load("plain").trials
    for command in ("table plain", "table plain --rank", "plot plain", "compare plain plain"):
        assert "have no gradients: `favorbench capture --gradients 16`" in refused(f"{command} --metric effect")


def test_bad_input_is_one_line(monkeypatch):
    small_folder("bert")
    text = small_text("a.txt")
    assert "--gradients" in refused("capture", "bert", "--text", str(text), "--gradients", "0")
    for name, wrong in (("gradients", 0), ("last", 1.5), ("layers", [1.5]), ("heads", 0), ("layers", ["0"])):
        with pytest.raises(ScenarioError, match=f"`{name}` must be"):
            fb.capture(small_model("bert"), tokens(), **{name: wrong})

    class Module(torch.nn.Module):
        def forward(self, x, output=lambda x: x):
            return output(torch.nn.functional.scaled_dot_product_attention(x, x, x))

    # Logits of images were "without logits"; a list, and arrays of NumPy, ended in an AttributeError and a TypeError.
    for output in (
        lambda x: x,
        lambda x: {"logits": x},
        lambda x: {"logits": [x]},
        lambda x: {"logits": x.detach().numpy()},
    ):
        with pytest.raises(ModelError, match=r"the model returns (Tensor|dict); allowed: logits \(batch, classes\) or"):
            fb.capture(Module(), (torch.ones(1, 2, 8, 4), output), gradients=2)
    with (
        monkeypatch.context() as patch,
        pytest.raises(ScenarioError, match="are written, and 100 bytes are free"),
    ):
        patch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
        fb.capture(small_model("bert"), tokens(), gradients=2)
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    with pytest.raises(ScenarioError, match=r"a gradient through 12 tokens needs .*, and 1000 bytes are available"):
        fb.capture(small_model("bert"), tokens(), gradients=2)


def test_every_word_is_drawn_as_often_as_the_model_predicts_it(rng):
    """The gradient of its log-probability is 1 - p at the word drawn, and -p at the others."""
    shares, draws = torch.tensor([0.2, 0.0, 0.3, 0.5]), 4000
    _, _, gradients = objective(SimpleNamespace(logits=shares.log()[None, None]), draws, rng)
    drawn = torch.stack([gradient[0] + shares for gradient in gradients])
    assert_allclose(drawn.sum(1), 1.0, rtol=1e-6)
    assert_allclose(drawn.mean(0), shares, atol=STANDARD_ERRORS * 0.5 * draws**-0.5)
    assert drawn[:, 3].max() > 0.99


@pytest.mark.parametrize("layers, more", [(None, 0.0), (3, 100.0)])
def test_the_memory_of_a_backward_pass_by_hand(layers, more, monkeypatch):
    """Of 2 texts of 5 tokens: 20 values of each of 4 channels a layer, and 3 of each of 7 words."""
    given = []
    monkeypatch.setattr("favorbench.models.gradients.check_memory", lambda needed, *_: given.append(needed))
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=4, vocab_size=7))
    if layers:
        model.config.num_hidden_layers = layers
    check_backward_memory(model, 2, 5, more)
    assert given == [more + 4 * 2 * 5 * (20 * 4 * (layers or 1) + 3 * 7)]


def test_gradients_that_do_not_fit_are_refused():
    captured = fb.capture(small_model("bert"), tokens(), gradients=2)
    for wrong in (
        replace(captured, gradients=captured.gradients[:, :, :-1]),
        replace(captured, gradient_scales=captured.gradient_scales[:, :1]),
        replace(captured, gradient_scales=None),
        replace(captured, gradients=captured.gradients.astype(np.int32)),
    ):
        with pytest.raises(InputError, match=r"array 'gradient.*floating-point numbers of shape .*capture the heads"):
            fb.sweep(inputs={"mine": wrong}, out="run")
