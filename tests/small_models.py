"""Small random models of transformers' families, each built in milliseconds, and a folder with one of them."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 24

_SIZES = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {"vocab_size": 99, **_SIZES}
_GROUPS = {**_TEXT, "num_key_value_heads": 2, "head_dim": 16}

CONFIGS = {
    "bert": lambda: transformers.BertConfig(**_TEXT),
    "distilbert": lambda: transformers.DistilBertConfig(vocab_size=99, dim=64, hidden_dim=32, n_layers=2, n_heads=4),
    "llama": lambda: transformers.LlamaConfig(**_GROUPS),
    "mistral": lambda: transformers.MistralConfig(**_GROUPS, sliding_window=8),
    "mistral-wide": lambda: transformers.MistralConfig(**_GROUPS, sliding_window=4096),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=99, n_embd=64, n_layer=2, n_head=4, scale_attn_by_inverse_layer_idx=True
    ),
    "vit": lambda: transformers.ViTConfig(**_SIZES, image_size=16, patch_size=4),
    "bart": lambda: transformers.BartConfig(
        vocab_size=99, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
    ),
    "modernbert": lambda: transformers.ModernBertConfig(
        **_TEXT, local_attention=6, global_attn_every_n_layers=2, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        cls_token_id=3, sep_token_id=4,
    ),
    "gemma2": lambda: transformers.Gemma2Config(**_GROUPS, sliding_window=4096),
    "t5": lambda: transformers.T5Config(vocab_size=99, d_model=64, d_ff=32, d_kv=16, num_layers=1, num_heads=4),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **_GROUPS, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2
    ),
    "falcon": lambda: transformers.FalconConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4
    ),
    "mpnet": lambda: transformers.MPNetConfig(**_TEXT),
    "bloom": lambda: transformers.BloomConfig(vocab_size=99, hidden_size=64, n_layer=1, n_head=4),
}  # fmt: skip


def small_model(family):
    """A model in eval mode, the same at each call; weights four times as large as usual, else logits are tiny."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(CONFIGS[family]()).eval()
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
    path.write_text(" ".join(f"w{5 + (start * i * i + i) % 94}" for i in range(length)), "utf-8")
    return path
