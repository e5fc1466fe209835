"""How far runs are: what is done, what failed, how fast it went, when it will end, and whether a process is at it."""

import contextlib
import time
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import TypedDict

from favorbench.engine.rows import Failed, StoredPart, failed_draws, failures, in_use, read_parts
from favorbench.engine.store import read_manifest
from favorbench.errors import StoreError
from favorbench.files import clear_errors, read_json

SWEEP, MODEL, RECOMMENDATION = "manifest.json", "model.json", "recommendation.json"


class _Measurements(TypedDict):
    measurements: int
    measurements_done: int


class _Recommended(TypedDict):
    complete: bool


class Status(NamedTuple):
    """How far a run is. done, planned, failed: draws, of a study of a model measurements. per_second: of work, by a
    clock that stands still while a machine sleeps; None where no part says so. left: seconds at that rate. running:
    whether a process of this machine, or of one that shares its locks, has the run open."""

    run: str
    kind: Literal["sweep", "recommend", "model"]
    state: Literal["running", "complete", "stopped"]
    done: int
    planned: int
    failed: int
    failures: Failed
    damaged: int
    per_second: float | None
    left: float | None
    ends: str | None

    @property
    def whole(self) -> bool:
        """Whether nothing is missing and nothing failed."""
        return self.state == "complete" and not self.failed and not self.damaged


def statuses(path: Path) -> list[Status]:
    """The status of every run at or below a path. Raises StoreError."""
    if not path.exists():
        raise StoreError(f"{str(path)!r} does not exist; give the directory of a run, or one of several")
    files = sorted(file for name in (SWEEP, MODEL) for file in path.rglob(name))
    if not files:
        raise StoreError(f"no favorbench run at or below {str(path)!r}; run favorbench sweep first")
    return [_status(file) for file in files]


def progress_of(path: Path) -> tuple[Path, int, int]:
    """The newest run at or below a path, and how much of it its manifest counts as done and planned."""
    files = [file for name in (SWEEP, MODEL) for file in path.rglob(name)]
    if not files:
        raise StoreError(f"no favorbench run at or below {str(path)!r}")
    file = max(files, key=lambda file: file.stat().st_mtime)
    if file.name == MODEL:
        planned, done = _measurements(file)
    else:
        manifest = read_manifest(file.parent)
        planned, done = manifest["draws"], manifest["draws_done"]
    return file.parent, done, planned


def _status(file: Path) -> Status:
    run = file.parent
    with clear_errors(run):
        parts, damaged = read_parts(run / "trials", columns=["draw"] if file.name == SWEEP else [])
    running, failed = in_use(run), failures(parts)
    if file.name == MODEL:
        kind, (planned, kept), (done, timed) = "model", _measurements(file), _rows(parts)
        done = done if (run / "trials").exists() else kept
        complete = done >= planned
    else:
        manifest = read_manifest(run)
        kind, complete, planned, (done, timed) = "sweep", None, manifest["draws"], _draws(parts)
        done = done if (run / "trials").exists() else manifest["draws_done"]  # raw trials were not kept
        if manifest["scenario"].get("title") == "candidates of recommend":
            kind, complete = "recommend", _recommended(run)  # of its draws it takes as many as it needs
        complete = done == planned if complete is None else complete
    seconds = sum(part.seconds or 0.0 for part in parts)
    rate = timed / seconds if seconds else None
    left = None if rate is None or complete or kind == "recommend" else (planned - done) / rate
    state = "running" if running else "complete" if complete else "stopped"
    ends = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + left)) if left and running else None
    return Status(
        str(run),
        kind,
        state,
        min(done, planned),
        planned,
        len(failed_draws(failed)),
        failed,
        len(damaged),
        rate,
        left,
        ends,
    )


def _draws(parts: list[StoredPart]) -> tuple[int, int]:
    """How many draws are there, and how many in parts that say how long they took."""
    return _different(parts), _different([part for part in parts if part.seconds is not None])


def _different(parts: list[StoredPart]) -> int:
    draws = [part.table["draw"].to_numpy() for part in parts]
    return len(np.unique(np.concatenate(draws))) if draws else 0


def _rows(parts: list[StoredPart]) -> tuple[int, int]:
    return sum(part.rows for part in parts), sum(part.rows for part in parts if part.seconds is not None)


def _measurements(file: Path) -> tuple[int, int]:
    """Those that were asked for, and those that were there when the study ended."""
    manifest = read_json(file, _Measurements, "a study of a model")
    return manifest["measurements"], manifest["measurements_done"]


def _recommended(run: Path) -> bool:
    with contextlib.suppress(StoreError):  # there is none yet
        return read_json(run / RECOMMENDATION, _Recommended, "a recommendation")["complete"]
    return False
