"""The run directory, written: a manifest, trials as a Parquet dataset, and what is made from them (read: reading.py).

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

from favorbench.engine.columns import FAILURE, Row, failed_of
from favorbench.engine.earlier import FORMAT
from favorbench.engine.lock import DirectoryLock
from favorbench.engine.parts import Failed, parts_in, together
from favorbench.engine.plan import Plan
from favorbench.engine.provenance import VERSION, count_done, provenance
from favorbench.engine.reading import SCHEMA, draws_of, read_manifest
from favorbench.engine.writer import Writer
from favorbench.errors import StoreError
from favorbench.files import clear_errors, write_text


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


def _parts(path: Path) -> list[Path]:
    return parts_in(path / "trials")


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
