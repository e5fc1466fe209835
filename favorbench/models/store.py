"""The directory of a study of a model: its requests, and its measurements.

    DIR/model.json      requests, weights, texts and versions; complete or not
    DIR/trials/         one row for each measurement (engine/rows.py)
    DIR/summary.csv .md the tables
    DIR/figures/

Rerunning the command computes missing measurements. A command with more texts, estimators, sizes, draws or layers adds
its measurements.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from typing_extensions import TypedDict

from favorbench.engine.provenance import VERSION
from favorbench.engine.rows import Count, RowStore, differences, part_paths, read_rows
from favorbench.errors import StoreError
from favorbench.files import read_json, write_text
from favorbench.models.load import is_function

FORMAT = 1

MANIFEST = "model.json"

_METRICS = ("nonfinite", "embedding_loss", "kl", "delta_nll", "top1", "late_kl", "late_delta_nll")
_LISTS = ("hidden_error", "embedding", "head_error", "head_after_projection")

#: A key that requests of ``recommend`` for a model have, and those of studies do not.
SEARCH = "search"

#: The key of the order in which ``recommend`` measures texts.
ORDER = "order"

#: The key of the number of texts that ``recommend`` chose settings per head on.
CHOSEN_ON = "chosen_on"

#: Parts of a request that may not change within a directory: every measurement depends on them.
FIXED = ("weights", "length", "redraw", "seed", SEARCH, "exact_heads", "left_layers", CHOSEN_ON)

#: Digests by name, or classes by estimator, which may be added but not changed, and the words for messages.
GROWING = {
    "texts": "text ", "read": "what the model reads of ", "recommended": "recommendation ", "modules": "module ",
    "members": "what is called ",
}  # fmt: skip

#: Lists of a request that later commands add to.
LISTS = ("maps", "methods", "samplers", "sizes", "layers", "notes")

#: Files that a search may write before its first row.
BESIDE = ("seconds.json", "effects.json")

#: In the column ``layers``: all of them.
ALL = "all"

#: The columns that identify a row.
KEY = ("text", "layers", "estimator", "sampler", "size", "draw")

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("text", "layers", "kind", "estimator", "sampler")),
        *((name, pa.int64()) for name in ("size", "draw", "seq_len", "replaced", "left")),
        *((name, pa.float64()) for name in ("multiplications", "exact_multiplications", *_METRICS)),
        *((name, pa.list_(pa.float64())) for name in _LISTS),
        *((name, pa.list_(pa.int64())) for name in ("head_layer", "head_number")),
    ]
)


class ModelRequest(TypedDict, total=False):
    """The keys of a request whose values readers take apart."""

    model: str
    weights: str
    texts: dict[str, Any]
    read: dict[str, str]
    recommended: dict[str, Any]
    modules: dict[str, Any]
    members: dict[str, Any]
    sources: dict[str, Any]
    maps: list[str]
    methods: list[str]
    samplers: list[str]
    sizes: list[int]
    layers: list[str] | str
    notes: list[str]
    draws: Count


class ModelManifest(TypedDict):
    """The fields of a manifest that are read."""

    format: int
    favorbench: str
    asked: ModelRequest
    measurements: Count
    measurements_done: Count


def open_rows(path: Path) -> RowStore:
    """The rows of a study, to be opened for writing."""
    return RowStore(path, MANIFEST, SCHEMA, KEY)


def stored_keys(store: RowStore, heads: bool = False) -> set[tuple[Any, ...]]:
    """The keys of the rows that are stored. heads: of those only that have the errors of single heads, if they may."""
    columns = [*KEY, "kind", "head_error"] if heads else KEY
    rows = (row for part in store.parts(columns) for row in part.table.select(columns).to_pylist())
    return {
        tuple(row[name] for name in KEY)
        for row in rows
        if not heads or row["layers"] != ALL or row["kind"] == "exact" or row["head_error"] is not None
    }


def merged_request(path: Path, requested: Mapping[str, Any]) -> dict[str, Any]:
    """The request, merged with earlier ones in the directory. Raises StoreError for another study.

    Without rows there is nothing to merge, but an interrupted search may have left times or effects of another study,
    and the summary or answer of a finished study whose rows were not kept would be lost.
    """
    kept = bool(part_paths(path / "trials"))
    there: dict[str, Any] = {}
    with contextlib.nullcontext() if kept else contextlib.suppress(StoreError):
        there = read_manifest(path)
    earlier = there.get("asked", {})
    named = ["model"] if is_function(requested["model"]) else []  # files are known by their contents, wherever they are
    changed = differences([*named, *FIXED], earlier, requested)
    changed += differences(["favorbench"], there, {"favorbench": VERSION})
    sources, files = earlier.get("sources", {}), requested["sources"]  # a file that came or went is another model's
    changed += [f"{name} has changed" for name in sorted({*sources, *files}) if sources.get(name) != files.get(name)]
    calibrate = earlier.get("calibrate") or requested["calibrate"]  # on which maps without parameters do not depend
    changed += ["the text of `calibrate` has changed"] * (requested["calibrate"] not in (None, calibrate))
    grown = {key: {**earlier.get(key, {}), **requested[key]} for key in GROWING}
    for key, word in GROWING.items():
        changed += [
            f"{word}{name} has changed" for name, old in earlier.get(key, {}).items() if grown[key][name] != old
        ]
    names = {} if SEARCH in requested else {tokens: name for name, tokens in earlier.get("read", {}).items()}
    twins = [(name, names.get(tokens, name)) for name, tokens in requested["read"].items()]  # would count as two
    changed += [f"text {name} has the tokens of {twin}, measured there" for name, twin in twins if name != twin]
    if there.get("complete") and SEARCH not in requested and not any((path / "trials").glob("*")):
        raise StoreError(f"{path} has a summary, but not its measurements ({path}/trials); use another `out`")
    answered = (path / "recommendation.json").exists()  # perhaps of an interrupted search
    if changed and (kept or answered or there.get("complete")):
        raise StoreError(f"{path} holds another study: {'; '.join(changed)}; use another `out`")
    if not kept:
        for name in BESIDE if changed else ():
            (path / name).unlink(missing_ok=True)
        return {**requested}
    lists = {key: [*dict.fromkeys([*earlier.get(key, ()), *requested[key]])] for key in LISTS}
    draws = max(earlier.get("draws", 1), requested["draws"])
    return {**requested, **grown, **lists, "draws": draws, "calibrate": calibrate}


def write_manifest(
    path: Path, requested: Mapping[str, Any], about: Mapping[str, Any], planned: int, done: int, others: int = 0
) -> None:
    """Write the manifest atomically. others: stored rows that are not among those planned. Raises StoreError."""
    manifest = {
        "format": FORMAT, "asked": requested, **about, "measurements": planned, "measurements_done": done,
        "measurements_of_others": others, "complete": done == planned,
    }  # fmt: skip
    write_text(path / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a study. Raises StoreError for a directory without one."""
    file = path / MANIFEST
    if not file.exists():
        raise StoreError(f"{str(path)!r} is not a study of a model: it has no {MANIFEST}")
    manifest = read_json(file, ModelManifest, "a study of a model")
    if manifest["format"] != FORMAT:
        raise StoreError(f"{file} is of format {manifest['format']}; this version of favorbench reads format {FORMAT}")
    return dict(manifest)


def read_measurements(path: Path) -> pd.DataFrame:
    """All measurements of a study, in the order of their keys. Raises StoreError."""
    rows = read_rows(path, SCHEMA, KEY)[0].to_pandas(use_threads=False)
    return rows.sort_values(list(KEY), kind="stable", ignore_index=True)
