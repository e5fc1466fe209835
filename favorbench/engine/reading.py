"""The run directory, read back: its manifest, its scenario and its rows, whoever wrote them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pydantic import ValidationError

from favorbench.engine.columns import COLUMNS, ESTIMATOR
from favorbench.engine.earlier import FORMAT, manifest_as_now
from favorbench.engine.parts import Failed, read_parts, together
from favorbench.engine.provenance import VERSION
from favorbench.engine.scenario import NAMES_ONLY, Scenario
from favorbench.errors import StoreError
from favorbench.files import clear_errors

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
SCHEMA = pa.schema([pa.field(c.name, _TYPES[c.kind], nullable=c.optional) for c in COLUMNS])

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


def find_runs(path: Path) -> list[Path]:
    """Every run directory at or below path, sorted. Raises StoreError if there is none."""
    if not path.exists():
        raise StoreError(f"{str(path)!r} does not exist; give a directory that favorbench sweep wrote")
    runs = sorted(file.parent for file in path.rglob("manifest.json"))
    if not runs:
        raise StoreError(f"no favorbench run at or below {str(path)!r}: {_what_it_is(path)}")
    return runs
