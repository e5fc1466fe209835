"""multipole in blocks beside torch's fused attention: CPU seconds of heads, and of a whole SmolLM2 with its loss.

``python -m benchmarks fused``; ``python -m benchmarks.fused TEXT [LENGTH ...]`` for the model.
"""

import argparse
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.ratio import Ratio

TREE = "multipole(block=128, cells='tree')"
#: Heads, length, size, whether attention is causal, and the goal.
HEADS = ((1, 8192, 512, False, 0.3), (9, 2048, 384, True, 0.75), (9, 4096, 512, True, 0.5), (9, 8192, 1024, True, 0.4))
#: By length: an estimator and its size.
MODEL = {
    2048: (("sinks(4):multipole(block=128, cells='tree', segment=256, exact=0.66)", 384),),
    4096: ((f"sinks(4):{TREE}", 512), ("sinks(4):multipole(block=128, cells='tree', segment=256)", 512)),
    8192: ((f"sinks(4):{TREE}", 1024), ("sinks(4):multipole(block=128, cells='tree', exact=0.3333)", 768)),
}


def heads_beside_fused(runs: int, longest: int) -> Iterator[Ratio]:
    """Heads of clustered keys, d = 64, float32: CPU seconds of one thread, interleaved."""
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed (pip install 'favorbench[torch]'): not measured beside its fused attention")
        return
    from favorbench.models import torch
    from favorbench.models.replacements import LayerHeads, replacement
    from favorbench.models.seconds import times

    rng = np.random.default_rng(0)
    centres = 1.5 * rng.standard_normal((64, 64))
    for count, length, size, causal, goal in HEADS:
        if length > longest:
            continue
        topics = np.repeat(rng.integers(64, size=(count, length // 32)), 32, axis=1)
        noise = 0.7 * rng.standard_normal((3, count, length, 64))
        arrays = noise[0] + centres[topics], noise[1] + centres[rng.integers(64, size=topics.shape)], noise[2]
        query, key, value = (torch.as_tensor(part[None]).float() for part in arrays)
        group = 3 if causal else 1  # query heads with the same keys, as in SmolLM2
        key, value = (part[:, ::group].repeat_interleave(group, 1) for part in (key, value))
        specs = [f"sinks(4):{TREE}"] if causal else [TREE, "multipole(block=128)"]
        chosen = [replacement(spec, size) for spec in specs]
        for row in times({0: LayerHeads(query, key, value, causal, group=group)}, chosen, runs):
            name = f"{row['estimator']}, m = {size}, L = {length}{', causal' if causal else ''} / fused"
            yield Ratio(name, [row["low"], row["ratio"], row["high"]], goal, most=True)


def main() -> None:
    """Print the loss in nats per token, and seconds and multiplications over those of exact attention, of SmolLM2."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fused", description=main.__doc__)
    parser.add_argument("text", help="a text in UTF-8 of as many tokens")
    parser.add_argument("length", nargs="*", type=int, help=f"of the text in tokens: {', '.join(map(str, MODEL))}")
    given = parser.parse_args()
    import favorbench as fb
    from favorbench.models import torch
    from favorbench.models.load import load, read_texts, tokenise
    from favorbench.models.replacements import exact_multiplications, replacement
    from favorbench.models.seconds import heads_in, times

    torch.set_num_threads(1)
    loaded = load("smollm2")

    def loss(tokens: Any) -> float:
        total = 0.0
        with torch.no_grad():
            hidden = loaded.model.model(tokens, use_cache=False).last_hidden_state[0, :-1]
            for part, following in zip(hidden.split(1024), tokens[0, 1:].split(1024), strict=True):  # all: gigabytes
                logits = loaded.model.lm_head(part)
                total += float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
        return total / len(hidden)

    print(
        "length, estimator, m: nats lost, seconds over fused attention (lowest to highest), multiplications over exact"
    )
    for length in given.length or MODEL:
        (text,) = tokenise(loaded, read_texts([given.text]), length)
        exact, heads = loss(text.tokens), heads_in(loaded.model, text.tokens, range(0, 30, 6))
        for spec, size in MODEL[length]:
            chosen = replacement(spec, size)
            (row,) = times(heads, [chosen], 3)
            with fb.replace_attention(loaded.model, method=spec, size=size):
                lost = loss(text.tokens) - exact
            share = (chosen.multiplications(heads[0].shape) or np.nan) / exact_multiplications(heads[0].shape)
            seconds = f"{row['ratio']:.3g} ({row['low']:.3g} to {row['high']:.3g})"
            print(f"{length}, {spec}, {size}: {lost:.4f}, {seconds}, {share:.2f}", flush=True)


if __name__ == "__main__":
    main()
