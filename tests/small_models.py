"""Small random models of transformers' families, each built in milliseconds, and a folder with one of them."""

import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 24

FAMILIES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))


def _settings(family):
    inherited = _settings(FAMILIES[family]["like"]) if "like" in FAMILIES[family] else {}
    return inherited | FAMILIES[family].get("settings", {})


def small_model(family, kind=transformers.AutoModel):
    """A model in eval mode, the same at each call; weights four times as large as usual, else logits are tiny."""
    torch.manual_seed(0)
    model = kind.from_config(getattr(transformers, FAMILIES[family]["config"])(**_settings(family))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def small_inputs(family, length=TOKENS, batch=1):
    """The arguments of its call."""
    generator = torch.Generator().manual_seed(1)
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    tokens = torch.randint(5, 99, (batch, length), generator=generator)
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if family == "t5" else {})


def small_folder(path, family="bert", dtype=None):
    """A model's folder as transformers saves it, with a tokenizer whose tokens are words w5 to w98."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{i}": i for i in range(5, 99)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=32
    )
    model = small_model(family)
    (model if dtype is None else model.to(dtype)).save_pretrained(path)
    fast.save_pretrained(path)
    return path


def small_text(path, length=TOKENS, start=5):
    """A text of this many tokens."""
    Path(path).write_text(" ".join(f"w{5 + (start * i * i + i) % 94}" for i in range(length)), "utf-8")
    return path
