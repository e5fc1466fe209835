"""CPU seconds of replacements, relative to exact attention on the same queries, keys and values of a model."""

import itertools
import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from favorbench.engine.provenance import machine
from favorbench.files import read_json, write_text
from favorbench.formats import plain
from favorbench.models import torch
from favorbench.models.interface import Call, intercept_attention
from favorbench.models.replacements import Exact, LayerHeads, Replacement, Tensor
from favorbench.models.swap import heads_of
from favorbench.numerics.backend import Backend

FILE = "seconds.json"
FORMAT: Literal[1] = 1

#: The columns that identify a time.
TIMED = ["estimator", "sampler", "size"]


class TimedEstimator(TypedDict):
    """A time, as far as it is read."""

    estimator: str
    sampler: str
    size: int
    ratio: float


class TimesFile(TypedDict):
    """The file, as far as it is read."""

    format: Literal[1]
    rows: list[TimedEstimator]


def heads_in(model: Any, tokens: Tensor, layers: Collection[int]) -> dict[int, LayerHeads]:
    """Queries, keys and values of some layers of the unchanged model."""
    found: dict[int, LayerHeads] = {}

    def attend(call: Call) -> Tensor:
        if call.index in layers:
            heads = heads_of(call)
            query, key, value = (array.clone() for array in heads[:3])
            found[call.index] = heads._replace(query=query, key=key, value=value)
        return call.own()

    with torch.no_grad(), intercept_attention(model, attend):
        model(tokens, use_cache=False)
    return found


def times(
    heads: Mapping[int, LayerHeads], replacements: Sequence[Replacement], repeats: int, seed: int = 0
) -> list[dict[str, Any]]:
    """CPU seconds of each replacement in these layers together, on one thread, interleaved with exact attention.

    CPU time, not wall time: other processes add less to it. seconds, exact: medians over the repeats, after one run
    that is not counted; ratio, low, high: median, smallest and largest of their ratio in one repeat.
    """
    timed, threads = (Exact(), *replacements), torch.get_num_threads()
    seconds = np.zeros((len(timed), repeats + 1))
    torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"):
            for repeat, (i, one) in itertools.product(range(repeats + 1), enumerate(timed)):
                start = time.process_time()
                for layer, part in heads.items():
                    one.outputs(part, seed, (0, "layer", layer), layer)
                seconds[i, repeat] = time.process_time() - start
    finally:
        torch.set_num_threads(threads)
    exact, ratios = seconds[0, 1:], seconds[1:, 1:] / seconds[0, 1:]
    return [
        {
            "estimator": one.label, "sampler": one.sampler or "-", "size": one.size or 0,
            "seconds": np.median(own), "exact": np.median(exact), "ratio": np.median(ratio), "low": ratio.min(),
            "high": ratio.max(), "repeats": repeats,
        }
        for one, own, ratio in zip(replacements, seconds[1:, 1:], ratios, strict=True)
    ]  # fmt: skip


def write_seconds(path: Path, rows: Sequence[Mapping[str, Any]], text: str, heads: Mapping[int, LayerHeads]) -> None:
    """Store times with the study, and keep those of other estimators that are there. Raises StoreError."""
    newest = {tuple(row[name] for name in TIMED): row for row in [*read_seconds(path)["rows"], *rows]}
    length = next(iter(heads.values())).shape.n
    content = {
        "format": FORMAT, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "threads": 1, "text": text, "seq_len": length,
        "layers": list(heads), "machine": machine(Backend()), "rows": list(newest.values()),
    }  # fmt: skip
    write_text(path / FILE, json.dumps(plain(content), indent=2) + "\n")


def with_seconds(lines: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The lines of a study with a column ``time``, the ratio to the seconds of exact attention, if any was timed."""
    rows = read_seconds(path)["rows"]
    if not rows:
        return lines
    found = pd.DataFrame(rows)[[*TIMED, "ratio"]].rename(columns={"ratio": "time"})
    return lines.merge(found, on=TIMED, how="left", sort=False)


def read_seconds(path: Path) -> TimesFile:
    """The file; without rows where there is none. Raises StoreError where it is damaged."""
    file = path / FILE
    if not file.exists():
        return {"format": FORMAT, "rows": []}
    return read_json(file, TimesFile, "seconds", hint="delete it, and time again with `seconds`")
