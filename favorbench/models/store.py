"""The directory of a study of a model: what was asked, and its measurements as a Parquet dataset.

    DIR/model.json      what was asked, of which weights and texts, with which versions; complete or not
    DIR/trials/         part files, each written whole and renamed into place
    DIR/summary.csv .md the tables
    DIR/figures/

The same command again computes what is missing; one that asks for more (texts, estimators, sizes, draws, layers) adds
to what is there. One writer at a time.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from favorbench.engine.lock import DirectoryLock
from favorbench.engine.parts import parts_in, read_parts
from favorbench.engine.writer import Writer
from favorbench.errors import StoreError
from favorbench.files import clear_errors, write_text

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


class Store:
    """A directory, open for writing. Use as a context manager: it holds the lock, and flushes on the way out."""

    def __init__(self, path: Path, asked: Mapping[str, Any], about: Mapping[str, Any], planned: set[Any]) -> None:
        self.path, self.planned = path, planned
        self._asked, self._about = asked, about
        self._writer = Writer(path / "trials", SCHEMA)
        self._lock = DirectoryLock(path)

    def __enter__(self) -> "Store":
        with clear_errors(self.path):
            _refuse_foreign(self.path)
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                self._open()
            except BaseException:
                self._lock.release()
                raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self._writer.flush()
            self._writer.merge_all()
            self._write(self.done())
        finally:
            self._lock.release()

    def _open(self) -> None:
        file = self.path / MANIFEST
        if file.exists() and parts_in(self.path / "trials"):
            there = read_manifest(self.path)["asked"]
            changed = [key for key in FIXED if there.get(key) != self._asked[key]]
            told = [f"{key} {json.dumps(there.get(key))} there, {json.dumps(self._asked[key])} here" for key in changed]
            grown = {key: {**there.get(key, {}), **self._asked[key]} for key in GROWING}
            for key, word in GROWING.items():
                before = there.get(key, {})
                told += [f"{word}{name} has changed" for name in before if grown[key][name] != before[name]]
            if told:
                raise StoreError(f"{self.path} holds another study: {'; '.join(told)}; use another `out`")
            self._asked = {**self._asked, **grown}
        else:
            self._write(set())

    def _write(self, done: set[tuple[Any, ...]]) -> None:
        there = len(done & self.planned)
        manifest = {
            "format": FORMAT, "asked": dict(self._asked), **self._about, "measurements": len(self.planned),
            "measurements_done": there, "complete": there == len(self.planned),
        }  # fmt: skip
        write_text(self.path / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    def done(self) -> set[tuple[Any, ...]]:
        """The keys of the rows that are there. A damaged part is set aside, and its rows are missing again."""
        found: set[tuple[Any, ...]] = set()
        with clear_errors(self.path):
            for part in self._writer.parts(KEY):
                found |= set(zip(*(part.table[name].to_pylist() for name in KEY), strict=True))
        return found

    @property
    def set_aside(self) -> list[str]:
        """Names of parts that were damaged."""
        return self._writer.set_aside

    def append(self, row: Mapping[str, Any]) -> None:
        """Take one measurement; written a second later at most, or with the next one."""
        self._writer.append([row])


def read_manifest(path: Path) -> dict[str, Any]:
    """What a directory holds. Raises StoreError where it is no study of a model."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{str(path)!r} is no study of a model: it has no {MANIFEST}") from None
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        manifest = None
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != FORMAT
        or not isinstance(manifest.get("asked"), dict)
    ):
        raise StoreError(f"{file} was damaged, or not written by this version of favorbench (format {FORMAT})")
    return manifest


def read_rows(path: Path) -> pd.DataFrame:
    """All measurements of a study, in the order of their keys. Raises StoreError."""
    with clear_errors(path):
        parts, damaged = read_parts(path / "trials", SCHEMA)
    if damaged:
        raise StoreError(f"{damaged[0]} is damaged; run the same command again: it computes anew what was in it")
    if not parts:
        raise StoreError(f"{path} has no measurements yet; run the same command again to resume it")
    rows = pa.concat_tables([part.table for part in parts]).to_pandas()
    return rows.sort_values(list(KEY), kind="stable", ignore_index=True)


def _refuse_foreign(path: Path) -> None:
    """A directory that is not empty and no study of a model is somebody else's."""
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is a file, not a directory; use another `out`")
    if path.is_dir() and not (path / MANIFEST).exists():
        others = sorted(entry.name for entry in os.scandir(path) if entry.name not in ("trials", ".lock"))
        if others or parts_in(path / "trials"):
            what = others[0] if others else "trials"
            raise StoreError(f"{path} is not empty and no study of a model (it has {what!r}); use another `out`")
