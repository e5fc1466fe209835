"""The run directory: a manifest, trials as a Parquet dataset, and what is made from them.

    results/<name>/manifest.json    what was asked, with what, when, complete or not
    results/<name>/trials/          part files, each written whole and renamed into place, merged as they become many
    results/<name>/summary.csv .md  the tables; summary-heads.csv where there are several heads
    results/<name>/seconds.json     of some machine, where it was timed (results/seconds.py)
    results/<name>/figures/

A killed run leaves whole parts only. One writer at a time, held by a lock the operating system frees.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import ValidationError

from favorbench.engine.columns import COLUMNS, ESTIMATOR, FAILURE, Row, failed_of
from favorbench.engine.earlier import FORMAT, manifest_as_now
from favorbench.engine.lock import DirectoryLock
from favorbench.engine.parts import Failed, parts_in, read_parts, together
from favorbench.engine.plan import Plan
from favorbench.engine.provenance import VERSION, count_done, provenance
from favorbench.engine.scenario import NAMES_ONLY, Scenario
from favorbench.engine.writer import Writer
from favorbench.errors import StoreError
from favorbench.files import clear_errors, write_text

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
SCHEMA = pa.schema([pa.field(c.name, _TYPES[c.kind], nullable=c.optional) for c in COLUMNS])


class Store:
    """One run directory, open for writing. Use as a context manager: it holds the lock and flushes on the way out."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan, self.scenario = path, plan, plan.study.scenario
        self._writer = Writer(path / "trials", SCHEMA)
        self._lock = DirectoryLock(path)
        self._manifest: dict[str, Any] = {}
        self._new = False

    def __enter__(self) -> "Store":
        """Lock the directory and read or write its manifest.

        Raises StoreError for a directory that is foreign, locked, or holds another scenario.
        """
        with clear_errors(self.path):
            _refuse_foreign(self.path)
            self._new = not self.path.exists()
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                self._manifest = self._opened_manifest()
            except BaseException:
                self._lock.release()
                raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.flush()
        finally:
            empty = self._new and error is not None and not _parts(self.path)
            self._lock.release()
            if empty:
                self._remove()

    def _remove(self) -> None:
        """Leave nothing of a run that ended before its first row."""
        with contextlib.suppress(OSError):
            for file in (self.path / "manifest.json", self.path / ".lock"):
                file.unlink(missing_ok=True)
            (self.path / "trials").rmdir()
            self.path.rmdir()

    @property
    def set_aside(self) -> list[str]:
        """Names of parts that were damaged."""
        return self._writer.set_aside

    def done(self) -> np.ndarray:
        """Whether each draw of the plan is there. A damaged part is set aside, and its draws are missing again."""
        found = np.zeros(len(self.plan), bool)
        with clear_errors(self.path):
            for part in self._writer.parts(["draw"]):
                draws = part.table["draw"].to_numpy()
                found[draws[(draws >= 0) & (draws < len(found))]] = True
        return found

    def failed(self) -> Failed:
        """What failed in the draws that are there."""
        with clear_errors(self.path):
            return together(part.about.failed for part in self._writer.parts([]))

    def forget_failed(self) -> None:
        """Take out the draws in which something failed, so that they are missing."""
        draws = draws_of(self.failed())
        if draws:
            with clear_errors(self.path):
                self._writer.drop("draw", draws)

    def append(self, rows: Sequence[Row]) -> None:
        """Take the rows of finished draws, and of what failed in them; written a second later at most."""
        self._writer.append([row for row in rows if FAILURE not in row], failed_of(rows))

    def flush(self) -> None:
        """Write what is waiting as one part, whole or not at all. Raises StoreError, e.g. for a full disk."""
        self._writer.flush()

    def record_workers(self, machines: Sequence[Mapping[str, Any]]) -> None:
        """The machines of a cluster, and how many batches each has done, beside those of earlier; for ``finish``."""
        for machine in machines:
            count_done(self._manifest.setdefault("workers", []), machine, machine["done"])

    @property
    def complete(self) -> bool:
        """Whether the manifest says that all draws are there."""
        return bool(self._manifest.get("complete"))

    def finish(self) -> int:
        """Write the manifest's end: how many draws are there, and whether that is all; returns how many.

        Counted from the parts: an interrupt may fall between any two lines of the writer.
        """
        with clear_errors(self.path):
            self._writer.merge_all()
        done = int(self.done().sum())
        self._manifest |= {"end": _now(), "draws_done": done, "complete": done == len(self.plan)}
        write_text(self.path / "manifest.json", json.dumps(self._manifest, indent=2) + "\n")
        return done

    def _opened_manifest(self) -> dict[str, Any]:
        digest, file = self.plan.study.digest, self.path / "manifest.json"
        if file.exists():
            manifest = read_manifest(self.path)
            same = (manifest["digest"], manifest["favorbench"], manifest["format"]) == (digest, VERSION, FORMAT)
            if same:
                return manifest
            if _parts(self.path):
                raise StoreError(f"{self.path} holds another run: {self._difference(manifest)}; use another `out`")
            # a run that ended before its first draw is nobody's
        manifest = {
            "format": FORMAT,
            "favorbench": VERSION,
            "scenario": self.scenario.model_dump(mode="json"),
            "digest": digest,
            "draws": len(self.plan),
            "draws_done": 0,
            "query_rows_of_length": {
                str(length): self.scenario.rows(length)
                for length in sorted({shape.head.query_len for shape in self.plan.shapes})
            },
            "complete": False,
            "start": _now(),
            "end": None,
            **provenance(self.plan),
        }
        write_text(file, json.dumps(manifest, indent=2) + "\n")
        return manifest

    def _difference(self, manifest: dict[str, Any]) -> str:
        there, here = manifest["scenario"], self.scenario.model_dump(mode="json")
        changed = [
            f"{key} {json.dumps(there.get(key))} there, {json.dumps(here.get(key))} here"
            for key in here
            if key not in ("name", "title") and there.get(key) != here.get(key)
        ]
        if manifest["format"] != FORMAT:
            changed.append(f"format {manifest['format']} there, {FORMAT} here, which can be read and not resumed")
        if manifest["favorbench"] != VERSION:
            changed.append(f"favorbench {manifest['favorbench']} there, {VERSION} here")
        return "; ".join(changed) or "its input file, or a module of yours that it uses, has changed since"


#: What other commands leave in a folder, by a file that only they write.
_OTHERS = {"model.json": "model", "speed.csv": "speed"}


def _what_it_is(path: Path) -> str:
    """What a path that is no run is, and what to do."""
    if not path.exists():
        return "it does not exist; give a directory that favorbench sweep wrote"
    for file, command in _OTHERS.items():
        if (path / file).exists():
            there = [name for name in ("summary.md", "summary.csv", "speed.csv", "figures") if (path / name).exists()]
            said = f"favorbench {command} wrote it; look at {', '.join(str(path / name) for name in there)}"
            return said if there else f"favorbench {command} wrote it, and has not ended"
    if below := sorted(file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/manifest.json")):
        return f"it holds {len(below)} runs; give one of them, e.g. {below[0]}"
    if below := sorted(file.parent.name for file in path.glob("*/model.json")):
        return f"it holds what favorbench model wrote ({', '.join(below[:6])}); look at the summary.md in each"
    return (
        "it has no manifest.json (a summary alone? its sweep computes the trials); give a directory that favorbench "
        "sweep wrote"
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run directory. Raises StoreError if there is none or it is not favorbench's."""
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{str(path)!r} is not a favorbench run: {_what_it_is(path)}") from None
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise StoreError(f"{file} is not valid JSON; this is not a favorbench run, or it was damaged") from None
    keys = {
        "digest": str, "favorbench": str, "scenario": dict, "draws": int, "draws_done": int, "complete": bool,
        "num_features": dict,
    }  # fmt: skip
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if type(number) is not int or number < 1:
        raise StoreError(f"{file} was not written by favorbench: it has no number of a format")
    if number > FORMAT:
        raise StoreError(
            f"{file} is of format {number}, written by favorbench {manifest.get('favorbench')}; this is favorbench "
            f"{VERSION}, which reads formats 1 to {FORMAT}: use a newer one"
        )
    if number < FORMAT:
        manifest = manifest_as_now(manifest)
    for key, kind in keys.items():
        if not isinstance(manifest.get(key), kind):
            raise StoreError(f"{file} was changed by hand: its {key} is no {kind.__name__}")
    files = manifest.get("input_files")
    if not isinstance(files, list) or not all(isinstance(f, dict) and {"input", "notes"} <= set(f) for f in files):
        raise StoreError(f"{file} was changed by hand: its input_files are not a list of input, sha256 and notes")
    return manifest


def read_scenario(path: Path) -> Scenario:
    """The scenario a run directory was made from, as it was resolved then: reading a run imports no user's module."""
    try:
        return Scenario.model_validate(read_manifest(path)["scenario"], context=NAMES_ONLY)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise StoreError(f"{path / 'manifest.json'} was changed by hand: its scenario has a wrong {key!r}") from None


def draws_of(failed: Failed) -> set[int]:
    """The draws in which something failed."""
    return {draw for messages in failed.values() for draws in messages.values() for draw in draws}


def read_trials(path: Path) -> pd.DataFrame:
    """All rows of a run, in the order of the plan, whatever order they were computed in.

    Columns of whole numbers that may be missing are Int64. Raises StoreError for damaged parts, and for rows that no
    sweep wrote.
    """
    return read_run(path)[0]


def read_run(path: Path) -> tuple[pd.DataFrame, Failed]:
    """All rows of a run as ``read_trials`` has them, and what failed beside them."""
    manifest = read_manifest(path)
    with clear_errors(path):
        parts, damaged = read_parts(path / "trials", SCHEMA)
    if damaged:
        raise StoreError(f"{damaged[0]} is damaged; run the same sweep again: it sets the part aside and recomputes it")
    if not parts:
        raise StoreError(f"{path} has no finished draws yet; run favorbench sweep again to resume it")
    table = pa.concat_tables([part.table for part in parts])
    rows = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    rows = rows.astype({c.name: "int64" for c in COLUMNS if c.kind is int and not c.optional})
    _check_rows(path, rows, manifest)
    rows = rows.sort_values("draw", kind="stable", ignore_index=True)
    return rows, together(part.about.failed for part in parts)


def _check_rows(path: Path, rows: pd.DataFrame, manifest: dict[str, Any]) -> None:
    """Raise StoreError for rows that are there twice, or are no part of the plan."""
    if rows.duplicated(["draw", *ESTIMATOR]).any():
        raise StoreError(f"{path} has rows twice: two sweeps wrote into it at once; remove its trials and run it again")
    if not rows["draw"].between(0, manifest["draws"] - 1).all():
        raise StoreError(f"{path} has rows of draws that its manifest.json does not plan; it was changed by hand")


def _parts(path: Path) -> list[Path]:
    return parts_in(path / "trials")


def find_runs(path: Path) -> list[Path]:
    """Every run directory at or below path, sorted. Raises StoreError if there is none."""
    if not path.exists():
        raise StoreError(f"{str(path)!r} does not exist; give a directory that favorbench sweep wrote")
    runs = sorted(file.parent for file in path.rglob("manifest.json"))
    if not runs:
        raise StoreError(f"no favorbench run at or below {str(path)!r}: {_what_it_is(path)}")
    return runs


def _refuse_foreign(path: Path) -> None:
    """A directory with no manifest, but with files that no run writes, is somebody else's."""
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is a file, not a directory; use another `out`")
    if path.is_dir() and not (path / "manifest.json").exists():
        # Of a run whose raw trials were not kept:
        ours = {"trials", ".lock", "summary.csv", "summary-heads.csv", "summary.md", "figures", "seconds.json"}
        ours |= {"report.html", "report.csv"}
        others = sorted(entry.name for entry in os.scandir(path) if entry.name not in ours)
        if _parts(path):
            raise StoreError(
                f"{path} has trials but no manifest.json to say of what; use another `out`, or remove trials"
            )
        if others:
            raise StoreError(f"{path} is not empty and not a favorbench run (it has {others[0]!r}); use another `out`")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
