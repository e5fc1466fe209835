"""False certificates of ``recommend --model`` over many halves of real texts.

    python -m benchmarks.splits minilm kinds/*.txt > benchmarks/splits.csv   # the effect on each text
    python -m benchmarks.splits                                              # the table of benchmarks/splits.csv

A setting is certified on one half of the texts, at one target, as ``recommend --model`` does it with one candidate.
The certificate is false if fewer than nine of ten texts of the other half hit. The targets are hit by a given share
of all texts, around nine of ten, where a wrong verdict is likeliest; the table has the worst of them. Halves are
random, of single texts or of runs of 16 texts that follow each other in a file, since such texts resemble each other.
Control: certify wherever nine of ten texts of the first half hit.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from favorbench.numerics.streams import stream
from favorbench.studies.recommend.evidence import log_evidence_often, log_evidence_rarely

SAVED = Path(__file__).with_name("splits.csv")
RUN = 16  # texts that stay together
SHARES = np.arange(0.86, 0.965, 0.01)  # of texts that hit
P, ALPHA = 0.9, 0.05


def certified(hits: np.ndarray) -> np.ndarray:
    """Whether the first verdict on hits (splits, texts) is "certified"."""
    counts, draws = np.cumsum(hits, axis=1), np.arange(1, hits.shape[1] + 1)
    first = []
    for log_evidence in (log_evidence_often, log_evidence_rarely):
        table = log_evidence(np.minimum(np.arange(len(draws) + 1)[:, None], draws), draws, P) >= -np.log(ALPHA)
        enough = table[counts, draws - 1]
        first.append(np.where(enough.any(axis=1), enough.argmax(axis=1), len(draws)))
    return first[0] < first[1]


def halves(texts: list[str], together: int, splits: int) -> np.ndarray:
    """Orders (splits, texts) in which the first half is random; its texts are in random order too.

    together: texts of a file that follow each other and are in the same half.
    """
    rng, files = stream(0, "splits", together), [text.rpartition("#")[::2] for text in texts]
    names = [f"{file}{int(number) // together}" for file, number in files]
    groups = np.unique(names, return_inverse=True)[1]
    orders = []
    for _ in range(splits):
        order = np.argsort(rng.permutation(groups.max() + 1)[groups], kind="stable")
        half = len(texts) // 2
        orders.append(np.concatenate([rng.permutation(order[:half]), order[half:]]))
    return np.array(orders)


def table(effects: pd.DataFrame, splits: int = 1000) -> pd.DataFrame:
    """The worst shares of false certificates over the targets, for each size and kind of half."""
    rows = []
    for together in (1, RUN):
        for size, part in effects.groupby("size"):
            orders, values = halves(list(part["text"]), together, splits), part["effect"].to_numpy()
            half, found = len(values) // 2, []
            for target in np.quantile(values, SHARES, method="inverted_cdf"):
                hits = values[orders] <= target
                first, other = hits[:, :half], hits[:, half:].mean(axis=1)
                rules = certified(first), first.mean(axis=1) >= P
                found.append([(rule & (other < P)).mean() for rule in rules])
            rows.append([together, size, len(values), *np.max(found, axis=0)])
    return pd.DataFrame(rows, columns=["together", "size", "texts", "false", "control"])


def measured(name: str, paths: list[str], length: int, most: int, sizes: list[int]) -> Iterator[str]:
    """Rows of splits.csv: 1 - cosine of sinks(4):multipole on the first texts of each file, one draw each."""
    from favorbench.models.load import split_texts
    from favorbench.models.plan import ALL, ModelScenario, PlannedRow
    from favorbench.models.replacements import replacement
    from favorbench.models.study import MeasuredModel

    model = MeasuredModel(
        ModelScenario(name, tuple(paths), length, (), (), (), (1,), 1, heads=False), False, split_texts
    )
    for number, text in enumerate(text for text in model.texts if int(text.rpartition("#")[2]) < most):
        for size in sizes:
            row = model.row(PlannedRow(text, ALL, replacement("sinks(4):multipole", size), number))
            yield f"{text},{size},{row['embedding_loss']:.4g}"


def main() -> int:
    """Print effects, or the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.splits", description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("-L", "--length", type=int, default=128)
    parser.add_argument("--most", type=int, default=120, help="texts of a file, from its beginning")
    parser.add_argument("--sizes", default="24,32,48")
    options = parser.parse_args()
    if options.model is None:
        print(table(pd.read_csv(SAVED)).to_string(index=False, float_format="%.3f"))
        return 0
    print("text,size,effect")
    sizes = list(map(int, options.sizes.split(",")))
    for row in measured(options.model, options.texts, options.length, options.most, sizes):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
