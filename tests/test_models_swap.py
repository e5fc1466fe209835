"""A model with its attention replaced: random small models of torch in float64, each built in a second."""

import asyncio
import contextlib
import copy
import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.errors import InputError, ModelError, ScenarioError
from favorbench.maps import MAPS, get_map
from favorbench.methods import METHODS, Estimate, Method
from favorbench.methods.features import LinearAttention
from favorbench.models.interface import intercept_attention
from favorbench.models.recommended import ByHead
from favorbench.models.replacements import (
    EstimatedAttention,
    Exact,
    LayerHeads,
    Removed,
    Replacement,
    exact_multiplications,
    replacement,
)
from favorbench.models.swap import replace_attention
from favorbench.numerics.streams import stream
from favorbench.studies.function_errors import function_error

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
from tests.definitions import member  # noqa: E402

LENGTH = 24
TOLERANCE = 4 * np.finfo(float).eps ** 0.5  # of a result of a thousand operations in float64
CLEAR = 1000 * TOLERANCE  # what a mistake changes, at least
SHAPE = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


def bert():
    """An encoder: layer norms after attention, biases, no groups."""
    return built(transformers.BertModel(transformers.BertConfig(**SHAPE)))


def llama():
    """A causal language model with rotary positions and two query heads for each key head."""
    return built(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, num_key_value_heads=2)))


def built(model):
    """In float64, with weights that are large enough for attention to be far from uniform."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


@pytest.fixture(scope="module", params=[bert, llama], ids=["bert", "llama"])
def model(request):
    return request.param()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 40, (1, LENGTH), generator=torch.Generator().manual_seed(7))


def hidden(model, tokens, **more):
    with torch.no_grad():
        return model(tokens, output_hidden_states=True, use_cache=False, **more).hidden_states[-1]


def difference(a, b):
    return float((a - b).norm() / b.norm())


class Uncausal(Replacement):
    """A mistake: exact attention that forgets the causal mask."""

    label = "uncausal"

    def outputs(self, heads, seed, names):
        return Exact().outputs(heads._replace(causal=False), seed, names)


def test_exact_attention_in_its_place_changes_nothing_but_rounding(model, tokens):
    """And in bfloat16 it does: the bound is one that could fail."""
    own = hidden(model, tokens)
    with replace_attention(model, method="exact") as record:
        assert difference(hidden(model, tokens), own) < TOLERANCE
    assert record.replaced == 2 and not record.left
    with replace_attention(model, method="exact", dtype="bfloat16"):
        assert 1e-4 < difference(hidden(model, tokens), own) < 0.5
    assert torch.equal(hidden(model, tokens), own)


def test_a_forgotten_mask_is_seen(tokens):
    model = llama()
    with replace_attention(model, method=Uncausal()):
        assert difference(hidden(model, tokens), hidden(llama(), tokens)) > CLEAR


def test_uniform_attention_is_the_mean_of_the_values(model, tokens):
    """The other way: values are read where they are made, and their mean is given to what projects them."""
    made = {}

    def project(index):
        def before(module, given):
            value = made[index]
            if isinstance(model, transformers.BertModel):
                return (value.mean(dim=1, keepdim=True).expand_as(value),)
            value = value.unflatten(-1, (2, 8)).repeat_interleave(2, dim=-2).flatten(-2)
            counts = torch.arange(1, LENGTH + 1, dtype=value.dtype)[:, None]
            return (value.cumsum(dim=1) / counts,)

        return before

    hooks = []
    for index in range(2):
        if isinstance(model, transformers.BertModel):
            layer = model.encoder.layer[index].attention
            value, projection = layer.self.value, layer.output.dense
        else:
            layer = model.model.layers[index].self_attn
            value, projection = layer.v_proj, layer.o_proj
        hooks.append(value.register_forward_hook(lambda m, i, output, index=index: made.__setitem__(index, output)))
        hooks.append(projection.register_forward_pre_hook(project(index)))
    expected = hidden(model, tokens)
    for hook in hooks:
        hook.remove()
    with replace_attention(model, method="uniform"):
        assert difference(hidden(model, tokens), expected) < TOLERANCE
    assert difference(hidden(model, tokens), expected) > CLEAR


def test_removed_attention_is_a_projection_that_is_given_zeros(model, tokens):
    modules = [m for name, m in model.named_modules() if name.endswith(("attention.output.dense", "o_proj"))]
    hooks = [m.register_forward_pre_hook(lambda m, given: (torch.zeros_like(given[0]),)) for m in modules]
    expected = hidden(model, tokens)
    for hook in hooks:
        hook.remove()
    with replace_attention(model, method=Removed()):
        assert torch.equal(hidden(model, tokens), expected)


@pytest.mark.parametrize("method", ["clusters", "sampled-keys", "window(8):clusters"])
def test_a_method_with_a_centre_for_each_key_is_the_model(model, tokens, method):
    """And with half as many it is not."""
    own = hidden(model, tokens)
    with replace_attention(model, method=method, size=LENGTH):
        assert difference(hidden(model, tokens), own) < TOLERANCE
    if isinstance(model, transformers.BertModel):  # a causal chunk of 128 is exact whatever the size
        with replace_attention(model, method=method, size=LENGTH // 2):
            assert difference(hidden(model, tokens), own) > TOLERANCE


@pytest.mark.parametrize("method", ["sinks(4):window(16):multipole(lloyd=2)", "clusters", "sampled-keys", None])
def test_no_output_depends_on_later_keys(method):
    """The last 20 of 300 tokens (more than two chunks) are changed; None: a map."""
    shape = {**SHAPE, "max_position_embeddings": 300}
    model = built(transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_key_value_heads=2)))
    tokens = torch.randint(0, 40, (1, 300), generator=torch.Generator().manual_seed(8))
    others = tokens.clone()
    others[0, 280:] = (others[0, 280:] + 1) % 40

    def change(what):
        outputs = []
        for given in (tokens, others):
            asked = {"map": "positive", "num_projections": 16} if what is None else {"method": what, "size": 32}
            with replace_attention(model, **asked):
                outputs.append(hidden(model, given))
        return difference(outputs[0][:, :280], outputs[1][:, :280])

    assert change(method) < TOLERANCE
    assert change(Uncausal()) > CLEAR


@pytest.mark.parametrize("length", [256, 300])
def test_query_heads_with_the_same_keys_share_near_cells(length):
    """Equal queries choose as each of them alone would, others do not; whole blocks only, and with a rest."""
    method = replacement("sinks(2):multipole(block=128, cells='tree', segment=64)", 64)
    query, key, value = torch.randn((3, 1, 2, length, 8), generator=torch.Generator().manual_seed(3)).double()
    heads = LayerHeads(*(2 * part.repeat_interleave(3, 1) for part in (query, key, value)), True)
    alone = method.outputs(heads, 0, ())
    assert difference(method.outputs(heads._replace(group=3), 0, ()), alone) < 1e-12
    others = heads._replace(query=heads.query.roll(1, 1))
    assert difference(method.outputs(others._replace(group=3), 0, ()), method.outputs(others, 0, ())) > CLEAR


def test_heads_share_near_cells_in_a_batch_with_padding_as_they_do_in_each_text_alone():
    shape = {**SHAPE, "max_position_embeddings": 300}
    model = built(transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_key_value_heads=2)))
    tokens = torch.randint(0, 40, (2, 300), generator=torch.Generator().manual_seed(8))
    mask = (torch.arange(300) < torch.tensor([[280], [300]])).long()
    with torch.no_grad(), replace_attention(model, method="multipole(block=128, cells='tree', segment=64)", size=64):
        together = model(tokens, attention_mask=mask).logits
        for text, real, output in zip(tokens, mask.bool(), together, strict=True):
            assert difference(output[real], model(text[real][None]).logits[0]) < TOLERANCE


def test_some_heads_stay_exact_and_whole_groups_of_the_others_share_near_cells():
    method = replacement("sinks(2):multipole(block=128, cells='tree', segment=64)", 64)
    query, key, value = torch.randn((3, 1, 9, 300, 8), generator=torch.Generator().manual_seed(3)).double()
    heads = LayerHeads(2 * query, 2 * key[:, ::3].repeat_interleave(3, 1), value[:, ::3].repeat_interleave(3, 1), True)
    heads = heads._replace(group=3)
    all_replaced, exact = method.outputs(heads, 0, ()), Exact().outputs(heads, 0, ())
    some = ByHead.but_exact(method, {0: (6, 8, 7)})
    assert some.label.endswith("3 heads exact") and some.size == 64
    assert ByHead.but_exact(replacement("uniform"), {0: (6, 7, 8)}).kind == "method"  # no longer the trivial answer
    output = some.outputs(heads, 0, ())
    assert torch.equal(output[:, :6], all_replaced[:, :6]) and difference(output[:, 6:], exact[:, 6:]) < 1e-12
    assert torch.equal(some.outputs(heads._replace(layer=1), 0, ()), all_replaced)  # another layer
    alone = ByHead.but_exact(method, {0: (8,)}).outputs(heads, 0, ())
    assert difference(alone[:, :6], all_replaced[:, :6]) > CLEAR  # a group without its last head is none
    kept, every = exact_multiplications(heads.shape), method.work(heads.shape, 1, 0)
    assert some.work(heads.shape, 9, 0) == pytest.approx(6 * every + 3 * kept)


def test_heads_that_stay_exact_in_a_model(model, tokens):
    own = hidden(model, tokens)
    with replace_attention(model, method="uniform", exact_heads={}):
        replaced = hidden(model, tokens)
    with replace_attention(model, method="uniform", exact_heads={0: range(4), 1: range(4)}):
        assert difference(hidden(model, tokens), own) < TOLERANCE
    with replace_attention(model, method="uniform", heads=[1, 2], layers=[1]):
        two = hidden(model, tokens)
    with replace_attention(model, method="uniform", exact_heads={0: range(4), 1: (0, 3)}):
        assert difference(hidden(model, tokens), two) < TOLERANCE < CLEAR < difference(two, replaced)
    for wrong, said in (
        ({7: [0]}, "layers 7: not in this model; it has 2 layers"),
        ({1: [9]}, "L1H9: this model has 4 heads there"),
        ({-1: [0]}, "layers of `exact_heads` must be whole numbers"),
        ({1: "a"}, "heads of `exact_heads` must be whole numbers"),
        ("L1H3-1", "`exact_heads` 'L1H3-1' given"),
        ([0, 1], "give both"),
    ):
        with pytest.raises((InputError, ScenarioError), match=said):  # noqa: SIM117
            with replace_attention(model, method="uniform", exact_heads=wrong):
                hidden(model, tokens)
    with replace_attention(model, "positive", exact_heads="L0H0-3,L1H0-3"):
        assert difference(hidden(model, tokens), own) < TOLERANCE


def test_a_map_is_linear_attention_of_the_heads_of_the_model(tokens):
    """One layer, one head at a time, by hand: omega of the stream's name, the scaling folded in."""
    model, found = llama(), {}

    class Seen(Replacement):
        label = "seen"

        def outputs(self, heads, seed, names):
            positive = EstimatedAttention(LinearAttention(fb.get_map("positive"), "iid"), 16)
            found[heads.layer] = heads, positive.outputs(heads, seed, names)
            return found[heads.layer][1]

    with replace_attention(model, method=Seen(), layers=[1], seed=3, draw=2):
        hidden(model, tokens)
    ((layer, (heads, output)),) = found.items()
    assert layer == 1 and heads.shape == (LENGTH, LENGTH, 8, 8, True)
    omega = fb.sample_omega("iid", 16, 8, stream(3, "model", "omega", 2, "layer", 1))
    for head in range(4):
        query, key, value = (array[0, head].numpy() for array in heads[:3])
        expected = fb.linear_attention(query, key, value, omega, causal=True)
        assert_allclose(output[0, head].numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE)
    exact = fb.exact_attention(*(array[0].numpy() for array in heads[:3]), causal=True)
    own = Exact().outputs(heads, 0, ())[0].numpy()
    assert_allclose(own, exact, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_requested_number_of_samples_is_drawn(model, tokens):
    def twice(redraw):
        with replace_attention(model, "positive", num_projections=8, redraw=redraw):
            return hidden(model, tokens), hidden(model, tokens)

    for redraw, same in (("layer", True), ("model", True), ("call", False)):
        first, second = twice(redraw)
        assert torch.equal(first, second) is same
    names = []

    class Names(Removed):
        def outputs(self, heads, seed, names_):
            names.append(tuple(names_))
            return Removed.outputs(self, heads, seed, names_)

    for redraw in ("model", "layer", "call"):
        with replace_attention(model, method=Names(), redraw=redraw):
            hidden(model, tokens), hidden(model, tokens)
    assert [len(set(names[i : i + 4])) for i in (0, 4, 8)] == [1, 2, 4]
    assert names[8:] == [(0, "call", layer, call) for call in (0, 1) for layer in (0, 1)]


def test_only_the_requested_layers_and_heads(model, tokens):
    """Replaced one by one, heads of the last layer add up to all of them: what projects them is linear."""
    own = hidden(model, tokens)
    with replace_attention(model, method="uniform", layers=[0, 1]):
        both = hidden(model, tokens)
    with replace_attention(model, method="uniform", heads=range(4)):
        assert torch.equal(hidden(model, tokens), both)
    with replace_attention(model, method="uniform", heads=[]):
        assert torch.equal(hidden(model, tokens), own)
    with replace_attention(model, method="uniform", layers=[1]) as record:
        one = hidden(model, tokens)
    assert record.replaced == 1 and difference(one, both) > CLEAR


def flat_mean(query, key, value, size, rng):
    return value.mean(axis=0) + 0 * query


def test_a_function_is_called_as_a_sweep_calls_it(tokens):
    """With NumPy's arrays, or torch's where it says so: exact attention, written either way."""
    model = bert()
    own = hidden(model, tokens)

    def host(query, key, value, size, rng):
        weights = np.exp(query @ key.T / np.sqrt(query.shape[-1]))
        return weights @ value / weights.sum(axis=-1, keepdims=True)

    def tensors(query, key, value, size, rng):
        return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, dim=-1) @ value

    def flat(query, key, value, size, rng):
        return np.broadcast_to(value.mean(axis=0), (len(query), value.shape[-1])).copy()

    tensors.tensors = True
    for function in (host, tensors):
        with replace_attention(model, method=function, size=4):
            assert difference(hidden(model, tokens), own) < TOLERANCE
    with replace_attention(model, method=flat, size=4):
        assert difference(hidden(model, tokens), own) > CLEAR


@pytest.mark.parametrize("method", ["uniform", "nystrom", "taylor-1", "wildcat", flat_mean])
def test_what_is_computed_in_numpy_needs_no_no_grad(tokens, method):
    with replace_attention(model := bert(), method=method, size=4):
        found = model(tokens, output_hidden_states=True).hidden_states[-1].detach()
        assert torch.equal(found, hidden(model, tokens))


@pytest.mark.parametrize("name", ["clusters", "multipole", "sinks(4):window(8):nothing"])
def test_autocast_changes_nothing_inside_an_estimator(name):
    """Rotary models have queries and keys in float32 then, and values in bfloat16."""
    item, (query, key, value) = replacement(name, 8), torch.randn(3, 1, 2, 40, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = item.outputs(LayerHeads(query, key, value.bfloat16(), False), 0, ())
    assert torch.equal(found, item.outputs(LayerHeads(query, key, value.bfloat16().float(), False), 0, ()))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_autocast_does_not_change_a_named_precision(dtype):
    item, heads = replacement("exact", dtype=dtype), LayerHeads(*torch.randn(3, 1, 2, 40, 8), False)
    with torch.autocast("cpu", torch.bfloat16):
        found, cast = item.outputs(heads, 0, ()), replacement("exact").outputs(heads, 0, ())
    assert torch.equal(found, item.outputs(heads, 0, ())) and not torch.equal(found, cast)


@pytest.mark.parametrize("visible, heads", [(15, None), (20, [1])])
def test_under_autocast_padding_and_other_heads_keep_their_output(visible, heads):
    """Rotary models have queries and keys in float32 then, and an output in bfloat16."""

    class Attention(torch.nn.Module):
        def forward(self, query, key, value, mask):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)

    (query, key, value), mask = torch.randn(3, 1, 2, 20, 8), torch.arange(20).expand(20, 20) < visible
    expected = (model := Attention())(query, key, value, mask)
    expected[:, heads or [0, 1], :visible] = value[:, heads or [0, 1], :visible].mean(-2, keepdim=True)
    with torch.autocast("cpu", torch.bfloat16), replace_attention(model, method="uniform", heads=heads):
        assert difference(model(query, key, value, mask), expected) < 0.01  # of bfloat16


@pytest.mark.parametrize("method", ["uniform", "nystrom", "multipole", "multipole(block=128)"])
def test_the_default_device_of_torch_changes_nothing(method):
    """The meta device stands for a GPU here: nothing may be created there."""
    item, (query, key, value) = replacement(method, 8), torch.randn(3, 1, 2, 200, 8)
    heads = LayerHeads(query, key, value, causal="multipole" in method, group=2)
    expected = item.outputs(heads, 0, ())
    with torch.device("meta"):
        found = item.outputs(heads, 0, ())
    assert torch.equal(found, expected)


def test_padding_is_no_key(tokens):
    """The text alone, and in a batch with a longer one: what is drawn does not depend on the batch either."""
    model = bert()
    short = tokens[:, :16]
    batch = torch.cat([tokens, torch.cat([short, torch.zeros(1, LENGTH - 16, dtype=torch.long)], dim=1)])
    mask = torch.ones_like(batch)
    mask[1, 16:] = 0
    for asked in ({"method": "clusters", "size": 6}, {"map": "positive"}, {"method": "nystrom", "size": 4}):
        with replace_attention(model, **asked):
            alone, together = hidden(model, short), hidden(model, batch, attention_mask=mask)
            unmasked = hidden(model, batch[1:])
        assert difference(together[1, :16], alone[0]) < TOLERANCE
        assert difference(unmasked[0, :16], alone[0]) > CLEAR


class Attention(torch.nn.Module):
    """Attention of other queries than keys, as its mask says: (batch, 2, n, 4)."""

    def __init__(self):
        super().__init__()
        self.encoder_attn = torch.nn.Identity()

    def forward(self, n=6, mask=None):
        query, key = torch.randn(2, 2, 2, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        attend = torch.nn.functional.scaled_dot_product_attention
        self.encoder_attn.forward = lambda query: attend(query, key, key, mask)
        return self.encoder_attn(query[..., -n:, :])


def mask_of(*shape, hidden):
    mask = torch.ones(shape, dtype=torch.bool)
    mask[hidden] = False
    return mask


ROWS, KEYS = torch.arange(8)[:, None], torch.arange(8)
CALLS = {  # queries, the mask, and whether its attention can be replaced
    "full": (8, None, True),
    "causal": (8, ROWS >= KEYS, True),
    "a cache, one query": (1, (ROWS >= KEYS)[-1:], True),
    "a cache": (4, (ROWS >= KEYS)[-4:], False),
    "causal from the top left": (4, (ROWS >= KEYS)[:4], False),
    "padded": (6, mask_of(2, 1, 1, 8, hidden=(0, ..., slice(5, 8))), True),
    "padded alike in all of a batch": (6, mask_of(1, 1, 1, 8, hidden=(..., slice(5, 8))), True),
    "padded, as many queries as keys": (8, mask_of(2, 1, 1, 8, hidden=(0, ..., slice(5, 8))), True),
    "padded by head": (6, mask_of(1, 2, 1, 8, hidden=(0, 0, 0, slice(5, 8))), False),
    "window": (8, (ROWS >= KEYS) & (ROWS < KEYS + 3), False),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_under_any_mask_exact_attention_is_the_models_own_or_refused(call, mode):
    *arguments, replaced = CALLS[call]
    with mode():
        own = Attention()(*arguments)
        with contextlib.nullcontext() if replaced else pytest.raises(InputError, match="no attention was replaced"):  # noqa: SIM117
            with replace_attention(model := Attention(), method="exact"):
                assert difference(model(*arguments), own) < TOLERANCE


SHIFTED = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]]).bool()
MASKS_WITH_PADDING = {  # of three texts: padding before, none, and after; and whether they can be replaced
    "causal": ((ROWS >= KEYS) & SHIFTED[:, None, None], True),
    "padding before sees all": (
        ((ROWS >= KEYS) & SHIFTED[:, None, None]) | (SHIFTED.cumsum(1) == 0)[:, None, :, None], True),
    "itself": ((ROWS == KEYS).expand(3, 1, 8, 8), False),
    "two texts in one": (((ROWS >= KEYS) & ((ROWS < 4) == (KEYS < 4))).expand(3, 1, 8, 8), False),
}  # fmt: skip


@pytest.mark.parametrize("case", MASKS_WITH_PADDING)
def test_causal_attention_with_padding_is_that_of_each_text_alone(case):
    mask, replaced = MASKS_WITH_PADDING[case]
    attend = torch.nn.functional.scaled_dot_product_attention
    x = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = attend(x[:, None], x[:, None], x[:, None], mask)[:, 0]
    with contextlib.nullcontext() if replaced else pytest.raises(InputError, match="no attention was replaced"):
        with replace_attention(model := Reader(), method="exact"):
            output = model(x, mask=mask)
        assert difference(output[SHIFTED], own[SHIFTED]) < TOLERANCE
        assert torch.equal(output[~SHIFTED].nan_to_num(), own[~SHIFTED].nan_to_num())
        with replace_attention(model, "elu", num_projections=4):
            together = model(x, mask=mask)
            for i, text in enumerate(x):
                alone = model(text[SHIFTED[i]][None], mask=(ROWS >= KEYS)[: SHIFTED[i].sum(), : SHIFTED[i].sum()])
                assert difference(together[i, SHIFTED[i]], alone[0]) < TOLERANCE


def test_layers_that_are_replaced_in_some_calls_only_are_said():
    x = torch.randn(1, 8, 4, dtype=torch.float64)
    with (
        pytest.warns(UserWarning, match=r"Reader: replaced in some calls, and exact in others: its mask is 'window'"),
        replace_attention(model := Reader(), "elu", num_projections=4) as record,
    ):
        model(x), model(x, mask=(ROWS >= KEYS) & (ROWS < KEYS + 3))
    assert record.replaced == 1 and [*record.left] == ["Reader"]


class Reader(torch.nn.Module):
    """Attention of (B, L, 4) whose name is of no kind."""

    def forward(self, x, memory=None, mask=None):
        query, memory = x[:, None], (x if memory is None else memory)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(query, memory, memory, mask)[:, 0]


SPECS = [*(cls.name for cls in METHODS), "sinks(2):positive", "window(4):elu", "sinks(2):window(3):multipole",
         "top(2):clusters", "uniform"]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "spec",
    [*(cls.name for cls in MAPS if cls.name != "poisson"), "poisson(rate=0.5)", "centre:oprf", *SPECS],
)  # the rate that poisson fits is a constant to a gradient
def test_gradients_through_replaced_attention_are_right_or_refused(spec, causal):
    """Fused attention gave its normalisers none, and what NumPy computes none at all: some gradients lacked them."""
    asked = {"method": spec, "size": 8} if spec in SPECS else {"map": spec, "num_projections": 8}
    one = member(spec) if spec in SPECS else LinearAttention(get_map(spec))
    x, w, step = torch.randn(3, 1, 24, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(24, 24).tril().bool() if causal else None
    model, point = Reader(), x.clone().requires_grad_()

    def loss(x):
        with replace_attention(model, **asked):
            return (model(x, mask=mask) * w).sum()

    if causal and not one.causal_safe:
        return
    output = loss(point)
    with contextlib.nullcontext() if one.arrays != "host" else pytest.raises(ModelError, match="in NumPy"):
        (gradient,) = torch.autograd.grad(output, point)
        with torch.no_grad():
            slope = (loss(x + 1e-6 * step) - loss(x - 1e-6 * step)) / 2e-6
        assert_allclose((gradient * step).sum(), slope, rtol=1e-4, atol=1e-6)


def fused(query: torch.Tensor, key, value, size, rng):
    return torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]


def detached(query: torch.Tensor, key, value, size, rng):
    return fused(query, key, value, size, rng).detach()


def test_gradients_through_a_users_function_of_torch_are_right_or_refused():
    """It ran without gradients: beside a residual connection, training went on without those of attention."""
    model, x = Reader(), torch.randn(1, 24, 4, dtype=torch.float64, requires_grad=True)
    (right,) = torch.autograd.grad((x + model(x)).square().sum(), x)
    with replace_attention(model, method=fused, size=8):
        (gradient,) = torch.autograd.grad((x + model(x)).square().sum(), x)
    assert_allclose(gradient, right, rtol=1e-12)
    with replace_attention(model, method=detached, size=8), pytest.raises(ModelError, match="no gradient passes"):
        torch.autograd.grad((x + model(x)).square().sum(), x)


class Mixing(torch.nn.Module):
    """Keys and values that a trained matrix mixes, as Linformer does."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Parameter(torch.linspace(0.0, 1.0, 6 * 24, dtype=torch.float64).reshape(6, 24))

    def forward(self, query, key, value, size, rng):
        key, value = self.mix @ key, self.mix.square() @ value
        return torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]


@pytest.mark.parametrize("by", ["module", "function"])
def test_an_approximation_is_trained_in_a_frozen_model_without_saying_that_it_takes_tensors(by):
    """The first layer asked it with NumPy's arrays: its parameters had the gradients of all layers but that one."""
    model, mixing = torch.nn.Sequential(Reader(), Reader()), Mixing()
    mixed = mixing if by == "module" else lambda *inputs: mixing(*inputs)
    x = torch.randn(1, 24, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss():
        with replace_attention(model, method=mixed, size=6):
            return model(x).square().sum()

    (gradient,) = torch.autograd.grad(loss(), mixing.mix)
    with torch.no_grad():
        losses = []
        for step in (1e-6, -2e-6):
            mixing.mix += step
            losses.append(loss())
    assert_allclose(gradient.sum(), (losses[0] - losses[1]) / 2e-6, rtol=1e-5)


@dataclass(frozen=True)
class Detached(Method):
    """A class of one's own, for all heads together, that computes without gradients."""

    name, reference, description, random = "detached", "none", "exact attention", False

    @torch.no_grad()
    def output(self, problem):
        return torch.softmax(problem.query @ problem.key.mT, dim=-1) @ problem.value

    def estimates(self, problem, sizes, streams):
        yield from (Estimate(size, size, self.output(problem), None) for size in sizes)


def test_gradients_through_a_users_class_without_any_are_refused():
    """They were 0 without a word."""
    model, x = Reader(), torch.randn(1, 24, 4, dtype=torch.float64, requires_grad=True)
    with replace_attention(model, method=Detached(), size=8), pytest.raises(ModelError, match="no gradient passes"):
        torch.autograd.grad((x + model(x)).square().sum(), x)


@dataclass(frozen=True)
class Halving(Detached):
    """It changes its values in place."""

    name = "halving"

    def output(self, problem):
        return super().output(problem._replace(value=problem.value.mul_(0.5)))


def test_a_class_that_changes_values_in_place_leaves_those_of_the_caller_and_of_other_heads():
    """Of two heads, the one that was to stay exact was computed from the changed values."""
    query, key, value = torch.randn(3, 1, 2, 24, 4, dtype=torch.float64)
    before, model = value.clone(), Heads()
    own = model(query, key, value)
    with replace_attention(model, method=Halving(), size=8, heads=[0]):
        assert_allclose(model(query, key, value)[:, 1], own[:, 1])
    fb.method_attention(query[0, 0], key[0, 0], value[0, 0], Halving(), 8)
    assert torch.equal(value, before)


class Heads(torch.nn.Module):
    """Attention of heads that it is given."""

    def forward(self, query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def test_a_module_in_single_precision_is_called_in_that_of_the_model():
    """The first layer asked it in float64, which a matrix in float32 cannot be multiplied with."""
    model, x = Reader(), torch.randn(1, 24, 4)
    with torch.no_grad(), replace_attention(model, method=Mixing().float(), size=6):
        assert model(x).isfinite().all()


def test_a_model_calls_a_function_once_for_each_head(tokens):
    """It was called again for the sums of its weights, which nothing here takes: seconds were twice too many."""
    calls = []

    def counted(query: torch.Tensor, key, value, size, rng):
        calls.append(None)
        return fused(query, key, value, size, rng)

    with replace_attention(model := bert(), method=counted, size=8):
        hidden(model, tokens)
    assert len(calls) == SHAPE["num_hidden_layers"] * SHAPE["num_attention_heads"]


def test_a_function_of_torch_is_measured_without_gradients(rng):
    """Those of its own parameters would take memory and seconds that inference does not need."""
    graphs = []

    def scaled(query: torch.Tensor, key, value, size, rng):
        graphs.append((query @ torch.nn.Parameter(torch.eye(4, dtype=query.dtype))).requires_grad)
        return fused(query, key, value, size, rng)

    function_error(scaled, tuple(rng.standard_normal((3, 24, 4))), draws=2)
    assert not any(graphs)
    model = Reader()
    with replace_attention(model, method=scaled, size=8):  # the control
        model(torch.randn(1, 24, 4, dtype=torch.float64))
    assert graphs[-1]


@pytest.mark.parametrize("name", ["indices", "block_indices"])
def test_attention_that_chooses_keys_by_itself_is_refused(tokens, name):
    """As in DeepSeek-V3.2 and MiniMax-M3, whose choice is not in the mask: it was lost."""
    model = llama()
    model(tokens, use_cache=False, **{name: torch.arange(3)})  # passed on to the function of its attention
    with pytest.raises(ModelError, match="LlamaAttention chooses keys by itself: it cannot be captured or"):  # noqa: SIM117
        with replace_attention(model, method="exact"):
            model(tokens, use_cache=False, **{name: torch.arange(3)})


REFUSED = "Reader is computed again for gradients: call it without checkpoints"


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_computed_again_for_gradients_are_refused(reentrant):
    """They would be exact then, and gradients those of another function."""
    model, x = Reader(), torch.randn(1, 24, 4, requires_grad=True)
    with pytest.raises(ModelError, match=REFUSED), replace_attention(model, "elu", num_projections=4):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum().backward()


def test_a_reentrant_checkpoint_is_refused_before_gradients_are_computed_after_the_context():
    """They were those of exact attention, without a word. Without gradients nothing is computed again."""
    model, x = Reader(), torch.randn(1, 24, 4, requires_grad=True)
    with pytest.raises(ModelError, match=REFUSED), replace_attention(model, "elu", num_projections=4):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True)
    with pytest.warns(UserWarning, match="None of the inputs"), replace_attention(model, "elu", num_projections=4):
        torch.utils.checkpoint.checkpoint(model, x.detach(), use_reentrant=True)


class Splitter(Reader):
    """The same, by a module inside that is given the heads."""

    def __init__(self):
        super().__init__()
        self.core = Given()

    def forward(self, x, memory=None, mask=None):
        query, memory = x[:, None], (x if memory is None else memory)[:, None]
        return self.core(query, memory, memory, attn_mask=mask)[:, 0]


@pytest.mark.parametrize("kind", [Reader, Splitter])
def test_as_many_padded_keys_as_queries_are_of_other_tokens_where_a_module_has_two_inputs(kind):
    tokens, memory = torch.randn(2, 2, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = mask_of(2, 1, 1, 8, hidden=(..., slice(5, 8)))
    for first, second in ((tokens, memory), (tokens, tokens), (tokens, None)):
        own = kind()(first, memory=second, mask=mask)
        with replace_attention(model := kind(), method="exact"):
            output = model(first, memory=second, mask=mask)
        assert difference(output, own) < TOLERANCE
        with replace_attention(model, method="removed"):
            output = model(first, memory=second, mask=mask)
        assert not output[:, :5].any()
        assert torch.equal(output[:, 5:], 0 * own[:, 5:] if second is memory else own[:, 5:])  # padding is the model's


class Turned(torch.nn.Module):
    """Self-attention that is given tables of rotary positions, without a batch."""

    def forward(self, x, cos, sin, mask=None):
        query = (x * cos + x.roll(2, -1) * sin)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(query, query, x[:, None], mask)[:, 0]


def test_tables_of_positions_are_not_other_tokens():
    x, cos, sin = torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs, mask = (x, cos[:1], sin[:1]), mask_of(2, 1, 1, 8, hidden=(..., slice(5, 8)))
    own = Turned()(*inputs, mask)
    with replace_attention(model := Turned(), method="window(2):nothing"):  # needs the positions of queries
        output, alone = model(*inputs, mask), model(*(given[:, :5] for given in inputs))
    assert difference(output[:, :5], alone) < TOLERANCE
    assert torch.equal(output[:, 5:], own[:, 5:])  # padding is the model's


@pytest.mark.parametrize("named", [False, True])
def test_queries_and_keys_with_positions_are_of_the_tokens_of_the_values(named):
    """As in DETR: padding's queries took part in methods that look at all queries, and windows were refused."""

    class Mixer(torch.nn.Module):
        def forward(self, query, key, value, mask):
            return torch.nn.functional.scaled_dot_product_attention(*(x[:, None] for x in (query, key, value)), mask)

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = Mixer()

        def forward(self, x, real):
            placed = x + torch.arange(x.shape[1])[:, None] / 12
            if named:
                return self.mixer(value=x, key=placed, query=placed, mask=real[:, None, None])[:, 0]
            return self.mixer(placed, placed, x, real[:, None, None])[:, 0]

    model, x = Encoder(), torch.randn(1, 12, 4, generator=torch.Generator().manual_seed(0))
    real = torch.arange(12)[None] < 8
    for method in ("monarch", "window(3):nothing"):
        with replace_attention(model, method=method, size=4):
            assert difference(model(x, real)[:, :8], model(x[:, :8], real[:, :8])) < TOLERANCE


def test_keys_and_values_given_as_one_tensor_are_not_of_the_tokens_of_the_queries():
    """Where they came before the queries, queries were taken for padding that has no methods."""

    class Mixer(torch.nn.Module):
        def forward(self, values, keys, query, mask):
            return torch.nn.functional.scaled_dot_product_attention(*(x[:, None] for x in (query, keys, values)), mask)

    mixer, real = Mixer(), torch.arange(12)[None] < 8
    query, memory = torch.randn(2, 1, 12, 4, generator=torch.Generator().manual_seed(0))
    named = {"keys": memory, "values": memory, "query": query}
    with replace_attention(mixer, method="uniform"):
        alone = mixer(memory[:, :8], memory[:, :8], query, None)
        assert difference(mixer(memory, memory, query, real[:, None, None]), alone) < TOLERANCE
        assert difference(mixer(**named, mask=real[:, None, None]), alone) < TOLERANCE


def test_parts_that_are_called_one_by_one_have_the_masks_and_numbers_of_the_whole(tokens):
    """A layer without a mask is causal as the model's own; numbers began anew with each part."""
    model = llama()
    with torch.no_grad():
        states = model.model.embed_tokens(tokens)
        given = {"position_embeddings": model.model.rotary_emb(states, torch.arange(LENGTH)[None])}
        _, second = model.model.layers
        own = second(states, **given)
        with replace_attention(model, method="exact"):
            assert difference(second(states, **given), own) < TOLERANCE
        for layer in (0, 1):
            with replace_attention(model, method="uniform", layers=[layer]):
                called = model(tokens, use_cache=False).logits
            for _ in range(2):
                with replace_attention(model, method="uniform", layers=[layer]) as record:
                    forward, again = (model.forward(tokens, use_cache=False).logits for _ in range(2))
                assert record.replaced == 2 and torch.equal(forward, called) and torch.equal(again, called)


@pytest.mark.parametrize("named", [False, True])
def test_queries_that_are_given_again_attend_to_other_tokens(named):
    """As a residual, or after the memory: self-attention was assumed, and queries beside padding of the memory lost."""

    class Mixer(torch.nn.Module):
        def forward(self, tokens, memory, values, residual=0):
            states = (a[:, None] for a in (tokens, memory, values))
            return torch.nn.functional.scaled_dot_product_attention(*states)[:, 0] + residual

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = Mixer()

        def forward(self, x):
            if named:
                return self.mixer(values=(memory := -x), memory=memory, tokens=x)
            return self.mixer(x, -x, -x, x)

    seen, model = [], Decoder()
    with intercept_attention(model, lambda call: seen.append(call.crosses) or call.own()):
        model(torch.ones(1, 3, 4))
    assert seen == [True]


def test_layers_have_the_same_numbers_where_texts_are_generated():
    """An encoder is called once then, and a decoder often."""
    config = transformers.BartConfig(
        vocab_size=40, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = built(transformers.BartForConditionalGeneration(config))
    tokens = torch.arange(5, 17)[None]
    for layer in range(3):  # of the encoder, and the two of the decoder
        with replace_attention(model, method="uniform", layers=[layer]) as record:
            model(tokens, decoder_input_ids=tokens)
            model.generate(tokens, max_new_tokens=4, min_new_tokens=4, use_cache=False)
            model.generate(tokens, max_new_tokens=4, min_new_tokens=4, use_cache=False)
        assert record.replaced == (3 if layer == 0 else 9) and record.layers == {0, 1, 2}


def test_methods_that_need_all_queries_say_how_to_generate(tokens):
    model, chosen = llama(), {"method": "window(2):multipole", "size": 4}
    with torch.no_grad(), replace_attention(model, **chosen):
        model.generate(tokens, max_new_tokens=2, min_new_tokens=2, use_cache=False)
    with pytest.raises(ScenarioError, match="use_cache=False"), replace_attention(model, **chosen):
        model.generate(tokens, max_new_tokens=2, min_new_tokens=2)


@pytest.mark.parametrize(
    ("chosen", "unlike"),
    [({"map": "positive"}, False), ({"method": "uniform"}, False), ({"method": "clusters", "size": 4}, True)],
)
def test_methods_that_group_keys_are_unlike_with_a_cache_which_is_said(tokens, chosen, unlike):
    """Maps and uniform attention answer one query on cached keys as in the whole text."""
    model, second = llama(), {}
    for cache in (False, True):
        with warnings.catch_warnings(record=True) as said, replace_attention(model, **chosen):
            warnings.simplefilter("always")
            text = model.generate(
                tokens, max_new_tokens=2, min_new_tokens=2, use_cache=cache, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
            second[cache] = text.logits[1]
        assert any("use_cache=False" in str(each.message) for each in said) == (cache and unlike)
    assert ((second[True] - second[False]).abs().max() > 1e-4) == unlike


def test_so_it_is_after_a_prompt_of_one_token(tokens):
    """As of all models with an encoder."""
    model = llama()
    with pytest.warns(UserWarning, match="use_cache=False"), replace_attention(model, method="clusters", size=1):
        model.generate(tokens[:1, :1], max_new_tokens=3, min_new_tokens=3)


def test_layers_have_the_same_numbers_where_a_part_is_called_before_the_whole(tokens):
    """The layers of the whole counted as further ones, which stayed exact without a word."""
    model = llama()
    with torch.no_grad():
        for chosen in ({"layers": [0, 1]}, {"exact_heads": "L0H0-2"}):
            with replace_attention(model, method="uniform", **chosen):
                alone = model(tokens).logits
            with replace_attention(model, method="uniform", **chosen) as record:
                model.model(tokens)
                assert torch.equal(model(tokens).logits, alone) and record.layers == {0, 1}
                assert torch.equal(model(tokens).logits, alone) and record.replaced == 6


def test_all_that_torch_repeats_is_repeated():
    """Queries, keys, values and masks may have 1 where others have more, and any number of axes before the heads."""
    generator, five = torch.Generator().manual_seed(0), [(2, 5, 4, 8, 4)] * 3
    real = torch.arange(1, 9) <= torch.tensor([5, 8, 3, 6, 8])[:, None]
    for shapes, mask, grouped in (
        ([(1, 4, 6, 4), (3, 4, 8, 4), (3, 4, 8, 4)], None, False),
        ([(3, 4, 6, 4), (1, 4, 8, 4), (1, 1, 8, 4)], None, False),
        ([(3, 4, 6, 4), (3, 1, 8, 4), (3, 4, 8, 4)], None, False),
        ([(3, 1, 6, 4), (3, 4, 8, 4), (4, 8, 4)], None, False),
        ([(3, 4, 8, 4), (3, 2, 8, 4), (3, 1, 8, 4)], None, True),
        (five, real[:, None, None], False),
        (five, real[:1, None, None, None], False),
        (five, real[:2, None, None, None], False),
    ):
        arrays = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        own = Given()(*arrays, mask, enable_gqa=grouped)
        for asked, far in (({"method": "exact"}, False), ({"map": "elu", "num_projections": 4}, True)):
            with replace_attention(model := Given(), **asked):
                output = model(*arrays, mask, enable_gqa=grouped)
            change = difference(output, own)
            assert output.shape == own.shape and (change > CLEAR if far else change < TOLERANCE)


def test_a_causal_bias_of_torch_is_a_causal_mask():
    """Its own numbers are those of memory that nobody has set: it seemed to be a bias, or no mask where they are 0."""
    bias = pytest.importorskip("torch.nn.attention.bias")
    arrays = torch.randn(3, 2, 4, 48, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    means = arrays[2].cumsum(-2) / torch.arange(1, 49)[:, None]
    for mask in (bias.causal_upper_left(48, 48), bias.causal_lower_right(48, 48)):
        for own, method in ((Given()(*arrays, mask), "exact"), (means, "uniform")):
            with replace_attention(model := Given(), method=method):
                assert difference(model(*arrays, mask), own) < TOLERANCE


def test_a_bias_that_is_trained_is_one_where_it_begins_at_0():
    """It seemed to be no mask, and the replaced layer gave it no gradient: it would have stayed at 0."""
    model, (query, key, value) = Given(), torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    bias = torch.nn.Parameter(torch.zeros(1, 2, 8, 8))
    with pytest.raises(InputError, match="its mask is 'bias'"), replace_attention(model, method="uniform"):
        model(query, key, value, bias).square().sum().backward()
    assert bias.grad.abs().max() > CLEAR
    with torch.no_grad(), replace_attention(model, method="uniform") as record:
        model(query, key, value, bias)
    assert record.replaced == 1


class Given(torch.nn.Module):
    """Attention of the queries, keys and values that it is given."""

    def forward(self, *arrays, **keywords):
        return torch.nn.functional.scaled_dot_product_attention(*arrays, **keywords)


class Pruned(torch.nn.Module):
    """Hides the last tokens from its second layer, in the mask that the first one had."""

    def forward(self, x):
        attention, mask = torch.nn.functional.scaled_dot_product_attention, x.new_zeros(1, 1, 1, 8)
        x = attention(x, x, x, mask)
        mask[..., 5:] = -torch.inf
        return attention(x, x, x, mask)[:, :, :5]


def test_a_mask_that_is_changed_in_place_is_another_mask():
    """The second layer saw the hidden keys, as the first one did."""
    x = torch.randn(2, 4, 8, 4, dtype=torch.float64)
    with replace_attention(model := Pruned(), method="exact"):
        assert difference(model(x), Pruned()(x)) < TOLERANCE
    whole = torch.nn.functional.scaled_dot_product_attention(*[Given()(x, x, x)] * 3)[:, :, :5]
    assert difference(whole, Pruned()(x)) > CLEAR


def test_masks_of_windows_are_left_by_name():
    x, mask = torch.randn(2, 5, 4, 8, 4), torch.arange(320).view(5, 1, 8, 8) % 7 > 0
    with pytest.raises(InputError, match="replaced by exact: Given: its mask is 'other'"):  # noqa: SIM117
        with replace_attention(model := Given(), method="exact"):
            assert torch.equal(model(x, x, x, mask), Given()(x, x, x, mask))


def test_a_text_of_padding_alone_is_left():
    x, mask = torch.randn(3, 8, 4), SHIFTED[:, None, None] & (torch.arange(3) < 2)[:, None, None, None]
    for causal in (False, True):
        seen = mask & (ROWS >= KEYS) if causal else mask
        own = Reader()(x, mask=seen)
        with replace_attention(model := Reader(), method="uniform"):
            output = model(x, mask=seen)
        assert torch.equal(output[2].nan_to_num(), own[2].nan_to_num()) and difference(output[:2], own[:2]) > CLEAR


def test_a_batch_without_items_is_left():
    with pytest.raises(InputError, match="no attention was replaced by exact: Reader: its batch is empty"):  # noqa: SIM117
        with replace_attention(model := Reader(), method="exact"):
            assert model(torch.empty(0, 8, 4)).shape == (0, 8, 4)


class WithHidden(torch.nn.Module):
    """Attention beside a layer of torch whose own is not heard."""

    def __init__(self):
        super().__init__()
        self.reader, self.layer = Reader(), torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x):
        return self.layer(self.reader(x))


def test_attention_that_hides_its_calls_is_named():
    """It was left without a word wherever another layer was heard."""
    x, name = torch.randn(1, 8, 4), "no attention call was found in layer.self_attn: left as in the model"
    with (
        pytest.warns(UserWarning, match=name),
        replace_attention(model := WithHidden().eval(), method="exact") as record,
    ):
        model(x)
    assert record.replaced == 1 and record.left == {"layer.self_attn": "no attention call was found"}
    with pytest.warns(UserWarning, match=name):
        assert [layer.name for layer in fb.capture(model, x).layers] == ["reader"]


def test_sizes_and_seeds_may_be_numbers_of_numpy():
    model, x, outputs = Reader(), torch.randn(1, 8, 4, generator=torch.Generator().manual_seed(0)), []
    for kind in (int, np.int64):
        with replace_attention(model, method="sampled-keys", size=kind(2), seed=kind(3), draw=kind(1)):
            outputs.append(model(x))
    assert torch.equal(*outputs)


def test_a_pass_after_an_interrupted_one_counts_its_layers_anew():
    """torch calls no forward hook after a KeyboardInterrupt, as a notebook's stop button raises it."""
    model, x = torch.nn.Sequential(Reader(), Reader()), torch.ones(1, 8, 4)
    with replace_attention(model, method="removed", layers=[1]) as record:
        interrupt = model[1].register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model(x)
        interrupt.remove()
        assert not model(x).any() and record.layers == {0, 1}


def test_contexts_and_threads_of_one_model_do_not_meet(tokens):
    """Another replacement of a model, and its forward pass in another thread, are refused; other models are not."""
    model, other = llama(), bert()
    own, exact = hidden(model, tokens), hidden(other, tokens)
    with replace_attention(model, method="removed"):
        removed = hidden(model, tokens)
        for wrong in (model, model.base_model):
            with pytest.raises(ModelError, match="replaced or captured already"), replace_attention(wrong, "positive"):
                pass
        with ThreadPoolExecutor(1) as pool, pytest.raises(ModelError, match="runs in another thread"):
            pool.submit(hidden, model, tokens).result()
        with pytest.raises(ModelError, match="runs in another thread"):
            asyncio.run(asyncio.to_thread(hidden, model, tokens))  # which copies the context
        assert torch.equal(hidden(model, tokens), removed)
        with replace_attention(other, method="uniform"):
            assert torch.equal(hidden(model, tokens), removed) and not torch.equal(hidden(other, tokens), exact)
    first, second = (replace_attention(each, method="removed") for each in (other, model))
    first.__enter__(), second.__enter__()
    hidden(other, tokens)
    first.__exit__(None, None, None)  # before the one that was entered later
    assert torch.equal(hidden(model, tokens), removed)
    second.__exit__(None, None, None)
    assert torch.equal(hidden(model, tokens), own) and torch.equal(hidden(other, tokens), exact)


def test_contexts_of_torch_modules_end_in_any_order():
    """As in two tasks of asyncio: the first to end took away the hook of the other, whose attention was exact again."""
    x = torch.ones(1, 8, 4)
    contexts = [(model := Reader(), replace_attention(model, method="removed")) for _ in range(3)]
    for _, context in contexts:
        context.__enter__()
    while contexts:
        assert not any(model(x).any() for model, _ in contexts)
        model, context = contexts.pop(0)
        context.__exit__(None, None, None)
        assert model(x).all()
    assert not torch._C._len_torch_function_stack()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_of_a_model_with_replaced_attention_is_refused(tokens, copied):
    with replace_attention(model := bert(), method="uniform"):
        hidden(model, tokens)
        with pytest.raises(ModelError, match="copy or save it outside that context"):
            copied(model)
    assert torch.equal(hidden(copy.deepcopy(model), tokens), hidden(model, tokens))


def test_modules_that_cannot_be_replaced_say_why():
    twice = llama().train()
    twice.model.layers[0].gradient_checkpointing = True
    for model, said in ((llama().to("meta"), "has no weights"), (twice, "computes layers twice")):
        with pytest.raises(ModelError, match=said), replace_attention(model, "positive"):
            pass


@pytest.mark.parametrize("method", ["forward", "read"])
def test_attention_in_a_method_that_is_called_by_itself_is_refused(method):
    """It stayed exact without a word beside attention that was replaced."""
    x, inner = torch.randn(1, 8, 4), Reader()
    outer = type("Twice", (Reader,), {"read": lambda self, x: Reader.forward(self, inner(x))})()
    outer.inner, other = inner, Reader()
    with pytest.raises(ModelError, match="outside a call of the module"), replace_attention(outer, method="uniform"):
        other.forward(x)  # of another model
        getattr(outer, method)(x)


def test_a_swap_that_does_nothing_is_an_error(model, tokens):
    with pytest.raises(ModelError, match="no attention call was found: it was not called"):  # noqa: SIM117
        with replace_attention(model, method="uniform"):
            pass
    with pytest.raises(InputError, match=r"`layers` 7: not in this model; it has 2 layers, 0 to 1"):  # noqa: SIM117
        with replace_attention(model, method="uniform", layers=[0, 7]):
            hidden(model, tokens)
    with pytest.raises(InputError, match=r"`heads` 7: .* has heads 0 to 3"):  # noqa: SIM117
        with replace_attention(model, method="uniform", heads=[0, 7]):
            hidden(model, tokens)


def test_layers_with_other_attention_are_kept_and_named(tokens):
    config = transformers.MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=8)
    model = built(transformers.MistralForCausalLM(config))
    own = hidden(model, tokens)
    with pytest.raises(InputError, match=r"no attention was replaced by clusters: model\.layers\.0\.self_attn: its"):  # noqa: SIM117
        with replace_attention(model, method="clusters", size=4) as record:
            assert difference(hidden(model, tokens), own) < TOLERANCE
    assert set(record.left.values()) == {"its mask is 'window'"}


@pytest.mark.parametrize(
    "asked, said",
    [
        ({}, "give `map`, `method` or `recommended`"),
        ({"map": "positive", "method": "clusters"}, "give `map`, `method` or `recommended`"),
        ({"map": "positve"}, "did you mean 'positive'"),
        ({"method": "cluster"}, "did you mean 'clusters'"),
        ({"method": "exact", "dtype": "bfloat"}, "did you mean 'bfloat16'"),
        ({"method": "clusters", "dtype": "bfloat16"}, "`dtype` is the precision of exact attention"),
        ({"map": "positive", "dtype": "float64"}, "`dtype` is the precision of exact attention"),
        ({"recommended": "any", "dtype": "float64"}, "`dtype` is the precision of exact attention"),
        ({"method": "clusters", "size": 0}, "`size` must be a whole number from 1"),
        ({"method": "clusters", "size": (1 << 20) + 1}, "`size` must be a whole number from 1 to 1048576"),
        ({"map": "positive", "num_projections": 0}, "`num_projections` must be a whole number from 1"),
        ({"map": "positive", "size": 32}, "`size` 32: `map` has num_projections, `method` has size"),
        ({"method": "monarch", "num_projections": 32}, "`num_projections` 32: `map` has num_projections"),
        ({"map": "positive", "heads": [-1]}, "`heads` must be whole numbers from 0"),
        ({"map": "positive", "layers": "01"}, "`layers` must be whole numbers from 0"),
        ({"map": "positive", "seed": -1}, "`seed` must be a whole number from 0"),
        ({"map": "positive", "draw": 1 << 63}, "`draw` must be a whole number from 0"),
        ({"map": "positive", "seed": 1.5}, "`seed` must be a whole number from 0"),
        ({"map": "positive", "redraw": "calls"}, "did you mean 'call'"),
        ({"map": "positive", "sampler": "ortogonal"}, "did you mean 'orthogonal'"),
    ],
)
def test_senseless_values_are_one_line(model, asked, said):
    with pytest.raises(ScenarioError, match=said):  # noqa: SIM117
        with replace_attention(model, **asked):
            pass


@pytest.mark.parametrize("most", [False, True])
def test_the_least_and_the_most_that_numbers_may_be(model, most):
    numbers = {"seed": (1 << 63) - 1, "draw": (1 << 63) - 1} if most else {"seed": 0, "draw": 0}
    size = 1 << 20 if most else 1
    for estimator in ({"map": "positive", "num_projections": size, **numbers}, {"method": "clusters", "size": size}):
        with pytest.raises(ModelError, match="it was not called"):  # noqa: SIM117
            with replace_attention(model, **estimator):
                pass


def test_noncausal_members_are_refused(tokens):
    model = llama()
    for asked in ({"map": "centre:positive"}, {"method": "nystrom", "size": 4}):
        with pytest.raises((InputError, ScenarioError), match="uses the whole sequence and cannot be causal"):  # noqa: SIM117
            with replace_attention(model, **asked):
                hidden(model, tokens)


def test_costs_are_those_of_the_estimators():
    shape = LayerHeads(*(torch.zeros(1, 2, n, d) for n, d in ((10, 4), (10, 4), (10, 6))), True).shape
    assert exact_multiplications(shape) == 55 * 10
    assert exact_multiplications(shape._replace(causal=False)) == 100 * 10
    assert Removed().multiplications(shape) == 0
    clusters = EstimatedAttention(fb.get_method("clusters"), 3)
    assert clusters.multiplications(shape._replace(causal=False)) == 10 * 3 * 4 + 10 * 3 * 10
    positive = EstimatedAttention(LinearAttention(fb.get_map("positive"), "iid"), 5)
    assert positive.multiplications(shape._replace(causal=False)) == 20 * 5 * (4 + 6)
    assert math.isclose(EstimatedAttention(fb.get_baseline("uniform"), 1).multiplications(shape), 0)


@pytest.mark.parametrize("name", [
    "uniform", "taylor-2", "multipole", "wildcat", "nystromformer(inverse='pinv')", "kdeformer", "aderf-sderf",
])  # fmt: skip
def test_what_follows_a_failed_estimate_is_nan_and_no_error(name):
    """An estimate of an earlier layer that is NaN makes this one NaN: the effect of it is infinite, a measurement."""
    query, key, value = torch.randn(3, 1, 2, 16, 4, generator=torch.Generator().manual_seed(0))
    query[:, 1, 3] = torch.nan
    is_map = name == "aderf-sderf"
    chosen = EstimatedAttention(LinearAttention(fb.get_map(name)), 4) if is_map else replacement(name, 4)
    output = chosen.outputs(LayerHeads(query, key, value, False, layer=1), 0, (0, "layer", 1))
    assert output.shape == value.shape and output.isnan().all()


@pytest.mark.parametrize("name", ["poisson", "geometric", "tensorsketch"])
def test_what_maps_draw_is_not_rounded_in_a_model_in_bfloat16(name):
    """Uniform numbers that round to 1 make infinite exponents, and of buckets above 256 every other one is left."""
    arrays = [0.5 * a.bfloat16() for a in torch.randn(3, 1, 2, 200, 8, generator=torch.Generator().manual_seed(0))]
    chosen = EstimatedAttention(LinearAttention(fb.get_map(name)), 2000)
    low, high = (
        chosen.outputs(LayerHeads(*(a.to(dtype) for a in arrays), False), 0, ("layer", 1)).double()
        for dtype in (torch.bfloat16, torch.float64)
    )
    assert (low - high).abs().median() < 0.01 * high.abs().median()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["clusters", "block-sparse", "sinks(4):window(400):nothing", "multipole(block=128)"])
def test_large_logits_are_not_rounded_in_a_model_in_half_precision(name, dtype):
    """As in fused attention: a bias that all keys share, as in Qwen2, cancels in the weights, but not when rounded."""
    query, key, value = (a.to(dtype) for a in torch.randn(3, 1, 2, 200, 8, generator=torch.Generator().manual_seed(0)))
    query[..., 0] = key[..., 0] = 30.0
    heads, item = LayerHeads(query, key, value, True), replacement(name, 200)  # exact at this size, or in this segment
    own, found = Exact().outputs(heads, 0, ()), item.outputs(heads, 0, ())
    rounding = 2 * torch.finfo(dtype).eps * value.abs().max()
    assert found.dtype == dtype and (found - own).abs().max() <= rounding
    rounded = fb.method_attention(query[0, 0], key[0, 0], value[0, 0], name, 200, causal=True)
    assert (rounded - own[0, 0]).abs().max() > 2 * rounding
