"""Measured seconds of the estimators of a run, in a file next to its rows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
from typing_extensions import TypedDict

from favorbench.engine.columns import CELL, COLUMNS, RENAMED, describe_cell
from favorbench.engine.store import Machine, read_manifest
from favorbench.errors import StoreError
from favorbench.files import read_json, write_text
from favorbench.formats import in_shell, plain

FILE, FORMAT = "seconds.json", 1

BUSY = 2

#: The key of a time: a head and how it is measured, and an estimator at one size; kind "exact" is exact attention.
TIMED = (*CELL, "kind", "estimator", "sampler", "num_projections")
MEASURED = ("seconds", "low", "high")

_ROWS = {
    column.name: {int: "Int64" if column.optional else "int64", float: "float64", str: "object"}[column.kind]
    for column in COLUMNS
    if column.name in TIMED
} | dict.fromkeys(MEASURED, "float64")


class SecondsFile(TypedDict):
    """The file."""

    format: Literal[1]
    digest: str
    date: str
    repeats: int
    where: str
    machine: Machine
    rows: list[dict[str, str | int | float | None]]


class Seconds(NamedTuple):
    """rows: TIMED, and the median of the repeats in seconds with its interval. machine: what it was measured on."""

    rows: pd.DataFrame
    repeats: int
    where: str
    date: str
    machine: Mapping[str, Any]

    def on(self) -> str:
        """ "AMD EPYC 9B14, NumPy, one core, OpenBLAS SkylakeX, 2026-11-21"."""
        names = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}
        kernels = [
            f"{names.get(library['internal_api'], library['internal_api'])} {library['architecture']}"
            for library in self.machine["blas"]
            if library["architecture"]
        ]
        chip = self.machine["gpu"] or self.machine["cpu"]
        return ", ".join(filter(None, [chip, self.where, *kernels[:1], self.date[:10]]))

    def doubts(self) -> str:
        """A sentence where times differ by more than a factor of BUSY: then medians of few repeats are unreliable."""
        wide = int((self.rows["high"] > BUSY * self.rows["low"]).sum())
        if not wide:
            return ""
        return (
            f"{wide} of {len(self.rows)} have times that differ by more than a factor of {BUSY}: was the machine busy?"
        )


def table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows with the columns and types that they have in every other table."""
    return pd.DataFrame(rows).rename(columns=RENAMED).reindex(columns=list(_ROWS)).astype(_ROWS)


def write_seconds(run: Path, seconds: Seconds) -> Path:
    """Write them into the run, whole or not at all; return the file. Raises StoreError."""
    rows = plain(seconds.rows.to_dict(orient="records"))
    head = {"format": FORMAT, "digest": read_manifest(run)["digest"], "date": seconds.date, "repeats": seconds.repeats}
    content = head | {"where": seconds.where, "machine": dict(seconds.machine), "rows": rows}
    write_text(run / FILE, json.dumps(content, indent=2) + "\n")
    return run / FILE


def timed(run: Path) -> bool:
    """Whether a run was timed."""
    return (run / FILE).exists()


def read_seconds(run: Path) -> Seconds | None:
    """Read the seconds of a run; None if it was not timed. Raises StoreError for a file of another run."""
    path = run / FILE
    if not timed(run):
        return None
    again = f"time it again: favorbench speed {in_shell(run)}"
    content = read_json(path, SecondsFile, "seconds", hint=again)
    if content["digest"] != read_manifest(run)["digest"]:
        raise StoreError(f"{path} is of another run than the one that is here now; {again}")
    try:
        rows = table(content["rows"])
    except (ValueError, TypeError):
        raise StoreError(f"{path} is damaged, or was changed by hand: its rows; {again}") from None
    return Seconds(rows, content["repeats"], content["where"], content["date"], {**content["machine"]})


def by_cell(seconds: Seconds) -> Iterator[tuple[str, pd.DataFrame]]:
    """The head that was timed, in words, and its rows, for each population."""
    for _, rows in seconds.rows.groupby(list(CELL), sort=False, dropna=False):
        yield describe_cell({**rows.iloc[0]}), rows


def exact_seconds(rows: pd.DataFrame) -> float:
    """The seconds of the faster exact attention in one population."""
    return float(rows[rows["kind"] == "exact"]["seconds"].min())
