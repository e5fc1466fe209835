"""Seconds of a study's estimators, beside exact attention on the same queries, keys and values of the model."""

import contextlib
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from favorbench.engine.provenance import machine
from favorbench.files import read_json, write_text
from favorbench.formats import plain
from favorbench.models.interface import Call, attending
from favorbench.models.replacements import Exact, LayerHeads, Replacement, Tensor
from favorbench.models.swap import heads_of
from favorbench.numerics.backend import Backend

FILE = "seconds.json"
FORMAT: Literal[1] = 1

#: What has one time.
TIMED = ["estimator", "sampler", "size"]


class TimedEstimator(TypedDict):
    """What readers need of a time; there is more of it."""

    estimator: str
    sampler: str
    size: int
    ratio: float


class TimesFile(TypedDict):
    """What readers need of the file."""

    format: Literal[1]
    rows: list[TimedEstimator]


class _Enough(Exception):
    """All layers that were asked have been seen."""


def sampled(layers: Sequence[int]) -> tuple[int, ...]:
    """The layers that times are taken in: the first and the middle one."""
    return tuple(dict.fromkeys((layers[0], layers[len(layers) // 2])))


def heads_in(model: Any, tokens: Tensor, layers: Sequence[int]) -> dict[int, LayerHeads]:
    """Queries, keys and values of some layers of the model as it is."""
    found: dict[int, LayerHeads] = {}

    def attend(call: Call) -> Tensor:
        if call.index in layers:
            heads = heads_of(call)
            query, key, value = (array.clone() for array in heads[:3])
            found[call.index] = LayerHeads(query, key, value, heads.causal)
        if len(found) == len(layers):
            raise _Enough
        return call.own()

    with contextlib.suppress(_Enough), import_module("torch").no_grad(), attending(model, attend):
        model(tokens, use_cache=False)
    return found


def times(
    heads: Mapping[int, LayerHeads], asked: Sequence[Replacement], repeats: int, seed: int = 0
) -> list[dict[str, Any]]:
    """CPU seconds of each replacement in these layers together, on one thread, in turns with exact attention.

    The processor's time, not the wall's: a busy machine adds less to it. seconds, exact: medians over the repeats,
    after one run that is not counted; ratio, low, high: median, smallest and largest of their quotient in a turn.
    """
    every = (Exact(), *asked)
    taken: list[list[float]] = [[] for _ in every]
    with _one_thread(), np.errstate(all="ignore"):
        for turn in range(repeats + 1):
            for one, seconds in zip(every, taken, strict=True):
                start = time.process_time()
                for layer, part in heads.items():
                    one.outputs(part, seed, (0, "layer", layer), layer)
                seconds += [time.process_time() - start] if turn else []
    exact = taken[0]
    found = []
    for one, seconds in zip(asked, taken[1:], strict=True):
        ratios = [a / b for a, b in zip(seconds, exact, strict=True)]
        found.append({
            "estimator": one.label, "sampler": one.sampler or "-", "size": one.size or 0,
            "seconds": statistics.median(seconds), "exact": statistics.median(exact),
            "ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "repeats": repeats,
        })  # fmt: skip
    return found


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    torch = import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_seconds(path: Path, rows: Sequence[Mapping[str, Any]], text: str, layers: Sequence[int], length: int) -> None:
    """Keep them beside the study, with those of other estimators that are there. Raises StoreError."""
    newest = {tuple(row[name] for name in TIMED): row for row in [*_read(path)["rows"], *rows]}
    content = {
        "format": FORMAT, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "threads": 1, "text": text, "seq_len": length,
        "layers": list(layers), "machine": machine(Backend()), "rows": list(newest.values()),
    }  # fmt: skip
    write_text(path / FILE, json.dumps(plain(content), indent=2) + "\n")


def with_seconds(lines: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The lines of a study with what was timed of them: time, the share of exact attention's seconds."""
    rows = _read(path)["rows"]
    if not rows:
        return lines
    found = pd.DataFrame(rows)[[*TIMED, "ratio"]].rename(columns={"ratio": "time"})
    return lines.merge(found, on=TIMED, how="left", sort=False)


def _read(path: Path) -> TimesFile:
    """The file; without rows where there is none. Raises StoreError where it is damaged."""
    file = path / FILE
    if not file.exists():
        return {"format": FORMAT, "rows": []}
    return read_json(file, TimesFile, "seconds", hint="delete it, and time again with `seconds`")
