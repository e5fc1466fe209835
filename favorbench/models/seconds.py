"""CPU seconds of replacements, relative to exact attention on the same queries, keys and values of a model."""

import itertools
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from favorbench.engine.provenance import machine
from favorbench.engine.store import Machine
from favorbench.files import read_json, write_text
from favorbench.formats import plain
from favorbench.models import torch
from favorbench.models.interface import Call, observe_attention
from favorbench.models.replacements import Exact, LayerHeads, Replacement, Tensor
from favorbench.models.swap import heads_of
from favorbench.numerics.backend import Backend

FILE = "seconds.json"
FORMAT: Literal[1] = 1

STEPS = 10  # of the clock, that a run takes at least; shorter ones are repeated

#: The columns that identify a time.
TIMED = ["estimator", "sampler", "size"]
Key = tuple[str, str, int]


class TimedEstimator(TypedDict):
    """The fields of a time that are read. where: the machine and layers, if not those of the file."""

    estimator: str
    sampler: str
    size: int
    ratio: float
    low: float
    high: float
    repeats: int
    where: NotRequired[str]


class TimesFile(TypedDict):
    """The fields of the file that are read."""

    format: Literal[1]
    layers: list[int]
    machine: Machine
    rows: list[TimedEstimator]


def heads_in(model: Any, tokens: Tensor, layers: Collection[int]) -> dict[int, LayerHeads]:
    """Queries, keys and values of some layers of the unchanged model."""
    by_layer: dict[int, LayerHeads] = {}

    def look(call: Call, output: Tensor) -> None:
        if call.index in layers:
            heads = heads_of(call)
            query, key, value = (array.clone() for array in heads[:3])
            by_layer[call.index] = heads._replace(query=query, key=key, value=value)

    observe_attention(model, tokens, look)
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
    shortest = STEPS * _step(clock)
    torch.set_num_threads(threads)
    try:
        with np.errstate(all="ignore"):
            for repeat, (i, item) in itertools.product(range(repeats + 1), enumerate(timed)):
                start, runs = clock(), 0
                while not runs or clock() - start < shortest:
                    for layer, part in heads.items():
                        item.outputs(part, seed, (0, "layer", layer))
                    Backend("torch", device).synchronise()
                    runs += 1
                seconds[i, repeat] = (clock() - start) / runs
    finally:
        torch.set_num_threads(before)
    exact, ratios = seconds[0, 1:], seconds[1:, 1:] / seconds[0, 1:]
    return [
        {
            **dict(zip(TIMED, item.key, strict=True)), "seconds": np.median(row), "exact": np.median(exact),
            "ratio": np.median(ratio), "low": ratio.min(), "high": ratio.max(), "repeats": repeats,
        }
        for item, row, ratio in zip(replacements, seconds[1:, 1:], ratios, strict=True)
    ]  # fmt: skip


def _step(clock: Callable[[], float]) -> float:
    """The seconds by which a clock advances: a microsecond of CPU time on Linux, 16 ms on Windows."""
    start = clock()
    while (end := clock()) == start:
        pass
    return end - start


def write_seconds(path: Path, rows: Sequence[Mapping[str, Any]], text: str, heads: Mapping[int, LayerHeads]) -> None:
    """Store times with the study, and keep the stored times of other estimators. Raises StoreError."""
    first = next(iter(heads.values()))
    computed_on = machine(Backend("torch", str(first.query.device)))
    where = _where([*heads], computed_on)
    before = {key: {**row, "where": conditions(path, key)} for key, row in stored_seconds(path).items()}
    newest = {**before, **{_key(row): {**row, "where": where} for row in rows}}
    content = {
        "format": FORMAT, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "threads": 1, "text": text,
        "seq_len": first.shape.n, "layers": list(heads), "machine": computed_on, "rows": list(newest.values()),
    }  # fmt: skip
    write_text(path / FILE, json.dumps(plain(content), indent=2) + "\n")


def with_seconds(lines: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The lines of a study with a column ``time``, the ratio to the seconds of exact attention, if any was timed."""
    rows = list(stored_seconds(path).values())
    if not rows:
        return lines
    timed = pd.DataFrame(rows)[[*TIMED, "ratio"]].rename(columns={"ratio": "time"})
    return lines.merge(timed, on=TIMED, how="left", sort=False)


def stored_seconds(path: Path) -> dict[Key, TimedEstimator]:
    """The stored times by estimator, sampler and size; none if there is no file. Raises StoreError if it is damaged."""
    return {_key(row): row for row in _read(path)["rows"]} if (path / FILE).exists() else {}


def conditions(path: Path, key: Key | None = None) -> str:
    """Where the stored times were measured, such as "one thread of AMD EPYC 9B14, layers 0 and 3".

    key: of one time; without it, of all times, which earlier commands may have measured elsewhere.
    """
    stored = _read(path)
    usual, rows = _where(stored["layers"], dict(stored["machine"])), stored["rows"]
    places = (row.get("where", usual) for row in rows if key in (None, _key(row)))
    return " or ".join(dict.fromkeys(places))


def _where(layers: Sequence[int], computed_on: Mapping[str, Any]) -> str:
    parts = f"layers {' and '.join(map(str, layers))}" if len(layers) < 3 else f"{len(layers)} layers"
    return f"{computed_on['gpu'] or 'one thread of ' + computed_on['cpu']}, {parts}"


def _read(path: Path) -> TimesFile:
    return read_json(path / FILE, TimesFile, "seconds", hint="delete it, and time again with `seconds`")


def _key(row: Mapping[str, Any]) -> Key:
    return row["estimator"], row["sampler"], row["size"]
