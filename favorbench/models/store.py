"""The directory of a study of a model: what was asked, and its measurements.

    DIR/model.json      what was asked, of which weights and texts, with which versions; complete or not
    DIR/trials/         one row for each measurement (engine/rows.py)
    DIR/summary.csv .md the tables
    DIR/figures/

The same command again computes what is missing; one that asks for more (texts, estimators, sizes, draws, layers) adds
to what is there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pandas as pd
import pyarrow as pa
from typing_extensions import TypedDict

from favorbench.engine.rows import RowStore, part_paths, read_rows
from favorbench.errors import StoreError
from favorbench.files import read_json, write_text

FORMAT = 1

MANIFEST = "model.json"

_METRICS = ("nonfinite", "embedding_loss", "kl", "delta_nll", "top1", "late_kl", "late_delta_nll")
_LISTS = ("hidden_error", "embedding", "head_error", "head_after_projection")

#: What every measurement depends on: of what is asked, this may not change within a directory.
FIXED = ("model", "weights", "length", "calibrate", "redraw", "seed")

#: Digests by name, of what may be added to but not changed, and how one is called.
GROWING = {"texts": "text ", "recommended": "recommendation "}

#: What tells one row from another.
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


class ModelManifest(TypedDict):
    """What readers need of a manifest; there is more in it."""

    format: int
    asked: dict[str, Any]
    measurements: int
    measurements_done: int


class StudyStore(RowStore):
    """The directory of a study of a model, open for writing."""

    def __init__(self, path: Path, asked: Mapping[str, Any], about: Mapping[str, Any], planned: set[Any]) -> None:
        super().__init__(path, MANIFEST, SCHEMA, KEY)
        self.planned, self._asked, self._about = planned, asked, about

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._open_manifest()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.flush()
            if error is None:
                self.join_if_small()
            self._write_manifest(self.done())
        finally:
            super().__exit__(kind, error, trace)

    def done(self) -> set[tuple[Any, ...]]:
        """The keys of the rows that are stored."""
        columns = [part.table.to_pydict() for part in self.parts(KEY)]
        return {key for names in columns for key in zip(*(names[name] for name in KEY), strict=True)}

    def _open_manifest(self) -> None:
        there = read_manifest(self.path)["asked"] if self.manifest_file.exists() else {}
        if not part_paths(self.path / "trials"):
            self._write_manifest(set())
            return
        changed = [
            f"{key} {json.dumps(there.get(key))} there, {json.dumps(self._asked[key])} here"
            for key in FIXED
            if there.get(key) != self._asked[key]
        ]
        grown = {key: {**there.get(key, {}), **self._asked[key]} for key in GROWING}
        for key, word in GROWING.items():
            changed += [
                f"{word}{name} has changed" for name, digest in there.get(key, {}).items() if grown[key][name] != digest
            ]
        if changed:
            raise StoreError(f"{self.path} holds another study: {'; '.join(changed)}; use another `out`")
        self._asked = {**self._asked, **grown}

    def _write_manifest(self, done: set[tuple[Any, ...]]) -> None:
        there = len(done & self.planned)
        manifest = {
            "format": FORMAT, "asked": dict(self._asked), **self._about, "measurements": len(self.planned),
            "measurements_done": there, "complete": there == len(self.planned),
        }  # fmt: skip
        write_text(self.manifest_file, json.dumps(manifest, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """What a directory holds. Raises StoreError where it is not a study of a model."""
    file = path / MANIFEST
    if not file.exists():
        raise StoreError(f"{str(path)!r} is not a study of a model: it has no {MANIFEST}")
    manifest = read_json(file, ModelManifest, "a study of a model")
    if manifest["format"] != FORMAT:
        raise StoreError(f"{file} is of format {manifest['format']}; this version of favorbench reads format {FORMAT}")
    return dict(manifest)


def read_measurements(path: Path) -> pd.DataFrame:
    """All measurements of a study, in the order of their keys. Raises StoreError."""
    rows = read_rows(path, SCHEMA, KEY)[0].to_pandas()
    return rows.sort_values(list(KEY), kind="stable", ignore_index=True)
