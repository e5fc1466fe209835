"""Methods for long inputs, which choose keys for blocks of queries, beside `multipole` that chooses for each query.

python -m benchmarks.blocks > benchmarks/blocks.csv     # half an hour, half of it choices for each query
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.fused import heads_of_model, of_each_kind
from favorbench.statistics import median_interval

#: Methods of which the first is the one that errors are compared with, at equal size; `vertical-slash` takes too long.
METHODS = (
    "multipole", "multipole(block=16)", "multipole(block=128)", "multipole(block=128, cells='tree')",
    "multipole(exact=0.75, block=128, cells='tree')", "block-sparse", "pisa", "spargeattn", "xattention", "pbs-attn",
)  # fmt: skip
DRAWS = 3


def inputs() -> Iterator[tuple[str, tuple[int, ...], Mapping[int, Any]]]:
    """Name, sizes and heads by layer: the four shipped heads, all heads of MiniLM, and 54 heads of SmolLM2."""
    from favorbench.inputs.fixed import SHIPPED
    from favorbench.models import torch
    from favorbench.models.replacements import LayerHeads

    shipped = np.load(SHIPPED["minilm"].path)
    arrays = (torch.as_tensor(shipped[name]).float().reshape(1, 4, 512, 32) for name in "qkv")
    yield "minilm, shipped heads", (64, 128, 256), {0: LayerHeads(*arrays, causal=False)}
    text = of_each_kind()["topic"]
    yield "minilm", (64, 128, 256), heads_of_model("minilm", text, 512, range(6))
    yield "smollm2", (512, 1024), heads_of_model("smollm2", text, 8192, range(2, 30, 5))


def errors(heads: Mapping[int, Any], item: Any) -> np.ndarray:
    """Squared error of each head over that of uniform attention, the mean of draws if it is random."""
    from favorbench.models.replacements import Exact, replacement

    uniform, ratios = replacement("uniform"), []
    for layer, part in heads.items():
        exact = Exact().outputs(part, 0, ("layer", layer))
        first, *others = (
            ((one.outputs(part, draw, ("layer", layer)) - exact) ** 2).sum(dim=(-2, -1)).flatten()
            for draw, one in [(0, uniform), *((draw, item) for draw in range(DRAWS if item.random else 1))]
        )
        ratios.append((sum(others) / len(others) / first).double().numpy())
    return np.concatenate(ratios)


def rows(runs: int) -> Iterator[dict[str, Any]]:
    """A row for each input, size and method.

    seconds: CPU seconds over those of torch's fused attention. median, median_low, median_high, worst: squared errors
    over those of uniform attention, with a 95 % interval of the median of heads. beside_median, beside_worst: the
    relative error over that of `multipole` at the same size, of each head.
    """
    from favorbench.models.replacements import replacement
    from favorbench.models.seconds import times

    for name, sizes, heads in inputs():
        for size in sizes:
            chosen = [replacement(f"sinks(4):{method}", size) for method in METHODS]
            chosen.append(replacement(f"sinks(4):window({size}):nothing"))
            measured = [errors(heads, item) for item in chosen]
            for time, error in zip(times(heads, chosen, runs), measured, strict=True):
                low, high = median_interval(error)[:2]
                beside = np.sqrt(error / measured[0])
                yield {
                    "model": name, "heads": len(error), "estimator": time["estimator"], "size": size,
                    "seconds": time["ratio"], "seconds_low": time["low"], "seconds_high": time["high"],
                    "median": np.median(error), "median_low": low, "median_high": high, "worst": error.max(),
                    "beside_median": np.median(beside), "beside_worst": beside.max(),
                }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, which has no options."""
    return argparse.ArgumentParser(prog="python -m benchmarks.blocks", description=main.__doc__)


def main() -> None:
    """Print errors and CPU seconds of methods that choose keys for blocks of queries."""
    parser().parse_args()
    print(pd.DataFrame(rows(3)).to_csv(index=False, float_format="%.4g"), end="")


if __name__ == "__main__":
    main()
