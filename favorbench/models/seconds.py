"""CPU seconds of replacements, relative to exact attention on the same queries, keys and values of a model."""

import functools
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
from favorbench.models.interface import Call, observe_attention
from favorbench.models.replacements import Exact, LayerHeads, Replacement, Tensor
from favorbench.models.swap import heads_of
from favorbench.numerics.backend import Backend

FILE = "seconds.json"
FORMAT: Literal[1] = 1

#: The columns that identify a time.
TIMED = ["estimator", "sampler", "size"]


class TimedEstimator(TypedDict):
    """The fields of a time that are read."""

    estimator: str
    sampler: str
    size: int
    ratio: float


class TimesFile(TypedDict):
    """The fields of the file that are read."""

    format: Literal[1]
    rows: list[TimedEstimator]


def heads_in(model: Any, tokens: Tensor, layers: Collection[int]) -> dict[int, LayerHeads]:
    """Queries, keys and values of some layers of the unchanged model."""
    by_layer: dict[int, LayerHeads] = {}

    def look(call: Call, output: Tensor) -> None:
        if call.index in layers:
            heads = heads_of(call)
            query, key, value = (array.clone() for array in heads[:3])
            by_layer[call.index] = heads._replace(query=query, key=key, value=value)

    observe_attention(model, functools.partial(model, tokens, use_cache=False), look)
    return by_layer


def times(
    heads: Mapping[int, LayerHeads], replacements: Sequence[Replacement], repeats: int, seed: int = 0, threads: int = 1
) -> list[dict[str, Any]]:
    """Seconds of each replacement in these layers together, interleaved with exact attention.

    CPU time is measured, because other processes affect it less; wall time with several threads or on a GPU. seconds,
    exact: medians over the repeats, after one warm-up run. ratio, low, high: the median, minimum and maximum over
    repeats of the ratio of both.
    """
    timed, before = (Exact(), *replacements), torch.get_num_threads()
    seconds, device = np.zeros((len(timed), repeats + 1)), str(next(iter(heads.values())).query.device)
    clock = time.process_time if device == "cpu" and threads == 1 else time.perf_counter
    torch.set_num_threads(threads)
    try:
        with np.errstate(all="ignore"):
            for repeat, (i, item) in itertools.product(range(repeats + 1), enumerate(timed)):
                start = clock()
                for layer, part in heads.items():
                    item.outputs(part, seed, (0, "layer", layer), layer)
                Backend("torch", device).synchronise()
                seconds[i, repeat] = clock() - start
    finally:
        torch.set_num_threads(before)
    exact, ratios = seconds[0, 1:], seconds[1:, 1:] / seconds[0, 1:]
    return [
        {
            "estimator": item.label, "sampler": item.sampler or "-", "size": item.size or 0,
            "seconds": np.median(row), "exact": np.median(exact), "ratio": np.median(ratio), "low": ratio.min(),
            "high": ratio.max(), "repeats": repeats,
        }
        for item, row, ratio in zip(replacements, seconds[1:, 1:], ratios, strict=True)
    ]  # fmt: skip


def write_seconds(path: Path, rows: Sequence[Mapping[str, Any]], text: str, heads: Mapping[int, LayerHeads]) -> None:
    """Store times with the study, and keep the stored times of other estimators. Raises StoreError."""
    newest = {tuple(row[name] for name in TIMED): row for row in [*read_seconds(path)["rows"], *rows]}
    first = next(iter(heads.values()))
    computed_on = machine(Backend("torch", str(first.query.device)))
    content = {
        "format": FORMAT, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "threads": 1, "text": text,
        "seq_len": first.shape.n, "layers": list(heads), "machine": computed_on, "rows": list(newest.values()),
    }  # fmt: skip
    write_text(path / FILE, json.dumps(plain(content), indent=2) + "\n")


def with_seconds(lines: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The lines of a study with a column ``time``, the ratio to the seconds of exact attention, if any was timed."""
    rows = read_seconds(path)["rows"]
    if not rows:
        return lines
    timed = pd.DataFrame(rows)[[*TIMED, "ratio"]].rename(columns={"ratio": "time"})
    return lines.merge(timed, on=TIMED, how="left", sort=False)


def read_seconds(path: Path) -> TimesFile:
    """The stored times; no rows if there is no file. Raises StoreError if it is damaged."""
    file = path / FILE
    if not file.exists():
        return {"format": FORMAT, "rows": []}
    return read_json(file, TimesFile, "seconds", hint="delete it, and time again with `seconds`")
