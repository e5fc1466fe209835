"""multipole in blocks against torch's fused attention: CPU seconds of heads, and the increase in loss of SmolLM2.

python -m benchmarks.fused > benchmarks/fused-nats.csv                 # SmolLM2 on four texts
python -m benchmarks.fused --seconds > benchmarks/fused-seconds.csv    # heads of its shape
"""

import argparse
import importlib.util
import itertools
import math
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.ratio import Ratio
from benchmarks.texts import LICENCES
from favorbench.methods.base import Shape

TREE = "multipole(block=128, cells='tree')"
CAUSAL = "sinks(4):multipole(exact=0.6, block=128, cells='tree'{})"
#: Replacements of SmolLM2's attention, by length: an estimator and its size.
MODEL = {
    8192: (CAUSAL.format(""), 1280),
    4096: (CAUSAL.format(""), 640),
    2048: (CAUSAL.format(", segment=256"), 384),
}
#: Heads, length, whether attention is causal, estimators, size, and the goal.
HEADS = [
    (1, 8192, False, (TREE, "multipole(block=128)"), 512, 0.3),
    *(
        (9, length, True, MODEL[length][:1], MODEL[length][1], goal)
        for length, goal in ((2048, 0.75), (4096, 0.5), (8192, 0.4))
    ),
]


def seconds_of_heads(runs: int, longest: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Heads of clustered keys, d = 64, float32: CPU seconds of one thread, interleaved, and their goal."""
    from favorbench.models import torch
    from favorbench.models.replacements import LayerHeads, replacement
    from favorbench.models.seconds import times

    rng = np.random.default_rng(0)
    centres = 1.5 * rng.standard_normal((64, 64))
    for count, length, causal, specs, size, goal in HEADS:
        if length > longest:
            continue
        topics = np.repeat(rng.integers(64, size=(count, length // 32)), 32, axis=1)
        noise = 0.7 * rng.standard_normal((3, count, length, 64))
        arrays = noise[0] + centres[topics], noise[1] + centres[rng.integers(64, size=topics.shape)], noise[2]
        query, key, value = (torch.as_tensor(part[None]).float() for part in arrays)
        group = 3 if causal else 1  # query heads with the same keys, as in SmolLM2
        key, value = (part[:, ::group].repeat_interleave(group, 1) for part in (key, value))
        chosen = [replacement(spec, size) for spec in specs]
        for row in times({0: LayerHeads(query, key, value, causal, group=group)}, chosen, runs):
            yield {"length": length, "causal": causal} | row, goal


def heads_against_fused(runs: int, longest: int) -> Iterator[Ratio]:
    """The ratios of ``seconds_of_heads``, with goals."""
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed (pip install 'favorbench[torch]'): not compared with its fused attention")
        return
    for row, goal in seconds_of_heads(runs, longest):
        mask = ", causal" if row["causal"] else ""
        name = f"{row['estimator']}, m = {row['size']}, L = {row['length']}{mask} / fused"
        yield Ratio(name, [row["low"], row["ratio"], row["high"]], goal, most=True)


def longest_of_each_kind() -> dict[str, Path]:
    """The longest topic of Python's help, licence of Debian, module of the standard library and HTML page in it."""
    library = Path(sysconfig.get_path("stdlib"))
    folder = Path(tempfile.mkdtemp())
    name, topic = max(topics.items(), key=lambda item: len(item[1]))
    (folder / f"{name}.txt").write_text(topic, encoding="utf-8")
    licences = (path for path in LICENCES.glob("*") if not path.is_symlink())
    kinds = {"licence": licences, "module": library.glob("*.py"), "page": (library / "idlelib").glob("*.html")}
    return {"topic": folder / f"{name}.txt"} | {
        kind: max(paths, key=lambda path: (path.stat().st_size, path.name)) for kind, paths in kinds.items()
    }


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.fused", description=main.__doc__)
    options.add_argument("length", nargs="*", type=int, help=f"in tokens: {', '.join(map(str, MODEL))}; by default all")
    options.add_argument("--seconds", action="store_true", help="CPU seconds over those of fused attention instead")
    return options


def main() -> None:
    """Print the increase in loss of SmolLM2 with all attention replaced, in nats per token, on four texts a length."""
    options = parser().parse_args()
    if options.seconds:
        rows = [row for row, _ in seconds_of_heads(5, max(options.length or MODEL))]
        print(pd.DataFrame(rows).drop(columns=["sampler"]).to_csv(index=False, float_format="%.4g"), end="")
        return
    import favorbench as fb
    from favorbench.models import torch
    from favorbench.models.load import load, read_texts, tokenise
    from favorbench.models.replacements import exact_multiplications, replacement

    torch.set_num_threads(1)
    loaded = load("smollm2")

    def loss(tokens: Any) -> float:
        total = 0.0
        with torch.no_grad():
            hidden = loaded.model.model(tokens, use_cache=False).last_hidden_state[0, :-1]
            # All logits at once would take gigabytes.
            for part, following in zip(hidden.split(1024), tokens[0, 1:].split(1024), strict=True):
                logits = loaded.model.lm_head(part)
                total += float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
        return total / len(hidden)

    print("length,kind,text,sha256,tokens,estimator,size,multiplications,exact,nats")
    for length, (kind, path) in itertools.product(options.length or MODEL, longest_of_each_kind().items()):
        (text,) = tokenise(loaded, read_texts([path]), length)
        exact, tokens = loss(text.tokens), text.tokens.shape[-1]
        spec, size = MODEL[length]
        with fb.replace_attention(loaded.model, method=spec, size=size):
            lost = loss(text.tokens) - exact
        shape = Shape(tokens, tokens, 64, 64, causal=True)
        share = (replacement(spec, size).multiplications(shape) or math.nan) / exact_multiplications(shape)
        facts = f"{length},{kind},{text.name},{text.sha256[:16]},{tokens}"
        print(f'{facts},"{spec}",{size},{share:.3f},{exact:.4f},{lost:.4f}', flush=True)


if __name__ == "__main__":
    main()
