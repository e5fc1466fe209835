"""Status of runs: draws done and failed, speed, time left, and whether a process is running."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired

import numpy as np
from typing_extensions import TypedDict

from favorbench.engine.rows import Count, Failed, StoredPart, failed_draws, failures, in_use, read_parts
from favorbench.engine.store import read_manifest
from favorbench.errors import StoreError
from favorbench.files import clear_errors, files_below, read_json

SWEEP, MODEL, RECOMMENDATION = "manifest.json", "model.json", "recommendation.json"


class _Measurements(TypedDict):
    measurements: Count
    measurements_done: Count
    measurements_of_others: NotRequired[Count]
    asked: NotRequired[dict[str, Any]]


class _Recommended(TypedDict):
    complete: bool


class Status(NamedTuple):
    """The progress of a run.

    done, planned, failed: draws, or measurements of a model. per_second: of work, by a clock that stands still while a
    machine sleeps; None where no part says so. left: seconds at that rate. running: whether a process of this machine,
    or of one that shares its locks, has the run open.
    """

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
    return [_status(file) for file in _manifests(path)]


def _manifests(path: Path) -> list[Path]:
    files = files_below(path, SWEEP, MODEL)
    if not files:
        raise StoreError(f"no favorbench run at or below {str(path)!r}; run favorbench sweep first")
    return files


def progress_of(path: Path) -> tuple[Path, int, int]:
    """The newest run at or below a path, and how much of it is saved and planned."""
    newest = _status(max(_manifests(path), key=lambda file: file.stat().st_mtime))
    return Path(newest.run), newest.done, newest.planned


def _status(file: Path) -> Status:
    run, count = file.parent, _rows if file.name == MODEL else _draws
    with clear_errors(run):
        parts, damaged = read_parts(run / "trials", columns=["draw"])
    planned, done, kind, complete, others = _planned(file)
    if (run / "trials").exists():  # raw trials may not have been kept
        done = max(0, count(parts) - others)
    if complete is None:
        complete = done >= planned
    failed, rate = failures(parts), _rate(parts, count)
    state = "running" if in_use(run) else "complete" if complete else "stopped"
    left, ends = None, None
    if rate and kind != "recommend" and not complete:
        left = (planned - done) / rate
        if state == "running":
            ends = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + left))
    return Status(
        str(run), kind, state, min(done, planned), planned, len(failed_draws(failed)), failed, len(damaged), rate, left,
        ends,
    )  # fmt: skip


def _planned(file: Path) -> tuple[int, int, Literal["sweep", "recommend", "model"], bool | None, int]:
    """Planned and finished draws or measurements by the manifest, the kind of run, whether a recommendation is made.

    At last the number of stored measurements that only earlier commands planned.
    """
    others = 0
    if file.name == MODEL:  # planned measurements, and those that were there when the study ended
        study = read_json(file, _Measurements, "a study of a model")
        planned, done = study["measurements"], study["measurements_done"]
        others, searching = study.get("measurements_of_others", 0), study.get("asked", {}).get("search")
    else:
        manifest = read_manifest(file.parent)
        planned, done = manifest["draws"], manifest["draws_done"]
        searching = manifest["scenario"].get("title") == "candidates of recommend"
    if not searching:
        return planned, done, "model" if file.name == MODEL else "sweep", None, others
    complete = False
    with contextlib.suppress(StoreError):  # there is none yet
        complete = read_json(file.parent / RECOMMENDATION, _Recommended, "a recommendation")["complete"]
    return planned, done, "recommend", complete, others


def _rate(parts: list[StoredPart], count: Callable[[list[StoredPart]], int]) -> float | None:
    """Draws or rows per second, where parts have times."""
    seconds = sum(part.seconds or 0.0 for part in parts)
    return count([part for part in parts if part.seconds is not None]) / seconds if seconds else None


def _draws(parts: list[StoredPart]) -> int:
    """The number of different draws."""
    draws = [part.table["draw"].to_numpy() for part in parts]
    return len(np.unique(np.concatenate(draws))) if draws else 0


def _rows(parts: list[StoredPart]) -> int:
    return sum(part.rows for part in parts)
