"""Modules that are none of transformers': heard at torch's scaled_dot_product_attention, captured and replaced."""

import importlib

import numpy as np
import pytest

import favorbench as fb

torch = pytest.importorskip("torch")


SINGLE = 300 * np.finfo(np.float32).eps  # sums of some hundred terms in float32


def importable(name):
    """A package, or a skip: one that is there may fail in ways of its own, for want of what it needs itself."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"{name} is not installed: {error}")


def own():
    """A user's module: two layers of causal attention, one tensor in and out."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inward, self.outward = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = self.inward(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.outward(attention.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    return torch.nn.Sequential(Attention(), Attention()).eval(), torch.randn(1, 12, 16)


@pytest.mark.slow
def test_weights_that_fully_shard_splits_are_captured_as_the_whole():
    distributed, fsdp = importable("torch.distributed"), importable("torch.distributed.fsdp")
    model, x = own()
    whole = fb.capture(model, x)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        fsdp.fully_shard(model, mesh=distributed.init_device_mesh("cpu", (1,)))
        split = fb.capture(model, x)
    finally:
        distributed.destroy_process_group()
    np.testing.assert_array_equal(split.query, whole.query)
    assert split.meta["weights_sha256"] == whole.meta["weights_sha256"]


class Alone(torch.nn.Module):
    """Attention of the first queries of its input to all of it, and nothing else."""

    def __init__(self, queries=None):
        super().__init__()
        self.queries = queries

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x[:, :, : self.queries], x, x)


def vit():
    timm = importable("timm")
    timm.layers.set_fused_attn(True)
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=3, **sizes)
    return model.eval(), torch.randn(2, 3, 16, 16)


def unet():
    """Self-attention between pixels, and attention to five words."""
    diffusers = importable("diffusers")
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=4, norm_num_groups=8,
    )  # fmt: skip
    words = {"timestep": torch.tensor(3), "encoder_hidden_states": torch.randn(1, 5, 16)}
    return model.eval(), {"sample": torch.randn(1, 4, 8, 8)} | words


def answer(model, inputs):
    with torch.no_grad():
        found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return found if isinstance(found, torch.Tensor) else found.sample


@pytest.fixture(scope="module", params=[own, vit, unet], ids=["own", "timm", "diffusers"])
def module(request):
    return request.param()


#: Heads kept, causal, and whether there are layers whose keys are not those of the first.
EXPECTED = {
    "Sequential": (4, True, False),
    "VisionTransformer": (16, False, False),
    "UNet2DConditionModel": (8, False, True),
}


def test_its_heads_are_captured_and_checked(module):
    model, inputs = module
    before = answer(model, inputs)
    captured = fb.capture(model, inputs)
    heads, causal, others = EXPECTED[type(model).__name__]
    kept = [layer for layer in captured.layers if layer.heads]
    assert all(layer.difference <= layer.limit < 1e-5 for layer in kept)
    assert (len(captured.query) % heads, captured.causal, len(kept) < len(captured.layers)) == (0, causal, others)
    assert all("queries on 5 keys" in layer.reason for layer in captured.layers if layer not in kept)
    assert torch.equal(answer(model, inputs), before)


def test_exact_attention_in_its_place_is_the_module_and_the_mean_is_not(module):
    model, inputs = module
    before = answer(model, inputs)
    off = {}
    for method in ("exact", "uniform"):
        with fb.replace_attention(model, method=method) as replace_attention:
            off[method] = float((answer(model, inputs) - before).norm() / before.norm())
        assert replace_attention.replaced > 1 and not replace_attention.left
    assert off["exact"] < SINGLE and off["uniform"] > 10 * SINGLE
    assert torch.equal(answer(model, inputs), before)


def test_few_queries_may_look_at_many_keys():
    """All keys as centroids are exact attention: the size is at most the number of keys, not of queries."""

    model, x = Alone(5), torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    before = model(x)
    with fb.replace_attention(model, method="clusters", size=40):
        assert float((model(x) - before).norm() / before.norm()) < SINGLE


def test_a_class_may_write_every_output_into_one_array():
    class Written(fb.Method):
        name = reference = description = "written"
        arrays = "host"
        output = np.empty((12, 8))

        def estimates(self, problem, sizes, streams):
            self.output[:] = fb.exact_attention(*problem.unscaled(), problem.value)
            yield fb.Estimate(sizes[0], sizes[0], self.output, None)

    heads = torch.randn(1, 3, 12, 8, generator=torch.Generator().manual_seed(0))
    before = Alone()(heads)
    with fb.replace_attention(model := Alone(), method=Written(), size=1):
        assert float((model(heads) - before).norm() / before.norm()) < SINGLE
