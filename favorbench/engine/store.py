"""The directory of a sweep, written and read.

results/<name>/manifest.json    the scenario, versions, machine, times, complete or not
results/<name>/trials/          one row for each measurement (engine/rows.py)
results/<name>/summary.csv .md  the tables; summary-heads.csv where there are several heads
results/<name>/seconds.json     times on a machine (results/seconds.py)
results/<name>/figures/
"""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, Self

import numpy as np
import pyarrow as pa
from pydantic import ValidationError
from typing_extensions import TypedDict

from favorbench.engine.columns import COLUMNS, ESTIMATOR, Row
from favorbench.engine.plan import Plan
from favorbench.engine.provenance import VERSION, count_done, machine, provenance
from favorbench.engine.rows import (
    FLUSH_ROWS,
    Count,
    Failed,
    RowStore,
    differences,
    failed_draws,
    failures,
    part_paths,
    read_rows,
)
from favorbench.engine.scenario import NAMES_ONLY, Scenario
from favorbench.engine.study import digest_of, labels_of
from favorbench.errors import StoreError
from favorbench.files import clear_errors, files_below, read_json, write_text
from favorbench.formats import shortened, shown
from favorbench.metrics import EFFECT, METRICS

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 6  # of the manifest and the rows; 5 has the column `map` in place of `estimator`

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
SCHEMA = pa.schema([pa.field(c.name, _TYPES[c.kind], nullable=c.optional) for c in COLUMNS])
KEY = ("draw", *ESTIMATOR)


def schema(effect: bool) -> pa.Schema:
    """The columns of a run; effect: whether an input has gradients."""
    return SCHEMA.append(pa.field(EFFECT, pa.float64())) if effect else SCHEMA


MANIFEST, SUMMARY = "manifest.json", "summary.md"

#: Files that only one other command writes, and files to look at.
_OTHERS = {"recommendation.json": "recommend", "model.json": "model", "speed.csv": "speed"}
_SUMMARIES = ("recommendation.json", "summary.md", "summary.csv", "speed.csv", "figures")


class InputFile(TypedDict):
    """A file of heads that was read."""

    input: str
    notes: list[str]
    effect: NotRequired[str]
    value_dim: NotRequired[Count]


class BlasPool(TypedDict):
    """A library of matrix products, as threadpoolctl describes it."""

    internal_api: str
    version: str | None
    architecture: str | None


class Machine(TypedDict):
    """The machine, on which the last digits of a run depend."""

    cpu: str
    gpu: str | None
    blas: list[BlasPool]


class Worker(Machine):
    """A machine of a cluster, and the draws that it has done."""

    done: Count


class Manifest(Machine):
    """The keys of a manifest that readers need."""

    digest: str
    favorbench: str
    scenario: dict[str, Any]
    draws: Count
    draws_done: Count
    complete: bool
    scenario_digest: NotRequired[str]
    num_features: dict[str, str]
    input_files: list[InputFile]
    versions: NotRequired[dict[str, str]]
    declared_versions: NotRequired[dict[str, Any]]
    workers: NotRequired[list[Worker]]


class _Numbered(TypedDict, total=False):
    format: Any
    favorbench: str


class Store(RowStore):
    """The directory of a sweep, open for writing.

    machines: that have computed draws, and how many each, but for those of the machine that began the run without a
    cluster. They are written into the manifest at the end.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        effect = any(source.law.effect for source in plan.study.inputs.values())
        super().__init__(path, MANIFEST, schema(effect), KEY, plan.study.digest)
        self.plan, self.scenario = plan, plan.study.scenario
        self._manifest: dict[str, Any] = {}
        #: By the name of each input here, that in the rows of the run: a file may have been renamed or moved since.
        self._names: dict[str, str] = {}
        self.machines: list[dict[str, Any]] = []
        #: This machine, where another one began the run.
        self._elsewhere: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Lock the directory and read or write its manifest.

        Raises StoreError for a directory that is foreign, in use, or holds another scenario.
        """
        super().__enter__()
        try:
            self._manifest = self._open_manifest()
            self.machines += self._manifest.get("workers", [])
        except BaseException:
            self._lock.release()
            raise
        return self

    def done(self, but_failed: bool = False) -> np.ndarray:
        """Whether each draw of the plan is stored. but_failed: draws in which an estimator failed do not count."""
        parts = self.parts(["draw"])
        stored = np.zeros(len(self.plan), bool)
        for part in parts:
            draws = part.table["draw"].to_numpy()
            stored[draws[(draws >= 0) & (draws < len(stored))]] = True
        if but_failed:
            stored[[draw for draw in failed_draws(failures(parts)) if draw < len(stored)]] = False
        return stored

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows and failures, with the names that inputs have in the run."""
        super().append(row | {"input": self._names.get(row["input"], row["input"])} for row in rows)

    def count_here(self) -> None:
        """Count a draw that was computed on this machine, if another one began the run."""
        if self._elsewhere:
            count_done(self.machines, self._elsewhere, 1)

    @property
    def complete(self) -> bool:
        """Whether the manifest says that all draws are there."""
        return bool(self._manifest.get("complete"))

    def finish(self) -> int:
        """Write the number of stored draws into the manifest, and return it. Join the parts of a complete run.

        The summary, which is of fewer draws, is removed first: that it is missing says that it has to be written.
        """
        with clear_errors(self.path):
            (self.path / SUMMARY).unlink(missing_ok=True)
        done = int(self.done().sum())
        complete = done == len(self.plan)
        if complete:
            self.join_if_small()
        workers = {"workers": self.machines} if self.machines else {}
        self._write_manifest(self._manifest | workers | {"end": _now(), "draws_done": done, "complete": complete})
        return done

    def _write_manifest(self, manifest: dict[str, Any]) -> dict[str, Any]:
        write_text(self.manifest_file, json.dumps(manifest, indent=2) + "\n")
        self._manifest = manifest
        return manifest

    def _open_manifest(self) -> dict[str, Any]:
        identity, scenario = self.plan.study.digest, self.scenario.model_dump(mode="json")
        if self.manifest_file.exists():
            manifest = read_manifest(self.path)
            if (manifest["digest"], manifest["favorbench"]) == (identity, VERSION):
                inputs = self.plan.study.inputs
                there = labels_of(read_scenario(self.path).inputs, [source.law for source in inputs.values()])
                self._names = dict(zip(inputs, there, strict=True))
                here = machine(self.plan.study.backend)
                self._elsewhere = here if _unlike(here, manifest) else {}
                return manifest
            answered = (self.path / "recommendation.json").exists()  # its draws may have been removed
            if manifest["complete"] or answered or part_paths(self.path / "trials"):  # else no draw of it was saved
                raise StoreError(f"{self.path} holds another run: {self._difference(manifest)}; use another `out`")
        lengths = sorted({shape.head.query_len for shape in self.plan.shapes})
        return self._write_manifest({
            "format": FORMAT, "favorbench": VERSION, "scenario": scenario, "scenario_digest": digest_of(scenario),
            "digest": identity, "draws": len(self.plan), "draws_done": 0,
            "query_rows_of_length": {str(length): self.scenario.rows(length) for length in lengths},
            "complete": False, "start": _now(), "end": None, **provenance(self.plan),
        })  # fmt: skip

    def _difference(self, manifest: Mapping[str, Any]) -> str:
        here = self.scenario.model_dump(mode="json", exclude={"name", "title"})
        changed = differences(here, manifest["scenario"], here)
        if manifest["favorbench"] != VERSION:
            changed.append(f"favorbench {manifest['favorbench']} there, {VERSION} here")
        return "; ".join(changed) or "its input file, or a module of yours that it uses, has changed since"


def _unlike(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether two machines differ in processor or in the kernels of a library that both have loaded."""
    old, new = ({pool["internal_api"]: pool["architecture"] for pool in facts["blas"]} for facts in (there, here))
    kernels = any(old.get(name, kernel) != kernel for name, kernel in new.items())
    return kernels or any(here[name] != there[name] for name in ("cpu", "gpu"))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a run. Raises StoreError if there is none, or it has another format."""
    file = path / MANIFEST
    if not file.exists():
        raise StoreError(f"{str(path)!r} is not a favorbench run: {_explain(path)}")
    numbered = read_json(file, _Numbered, "a manifest")
    number, version = numbered.get("format"), shortened(numbered.get("favorbench", "?"))
    if type(number) is not int or not 1 <= number < 1000:
        raise StoreError(f"{file} was not written by favorbench: it has no number of a format")
    if number not in (FORMAT - 1, FORMAT):
        reader = "version 0.2.0 reads it" if number < FORMAT else "use a newer one"
        raise StoreError(
            f"{file} is of format {number}, written by favorbench {version}; this is favorbench {VERSION}, which reads "
            f"formats {FORMAT - 1} and {FORMAT}: {reader}"
        )
    return dict(read_json(file, Manifest, "a manifest"))


def read_scenario(path: Path) -> Scenario:
    """Read the scenario of a run, as it was resolved then. No user's module is imported."""
    manifest = read_manifest(path)
    try:
        scenario = Scenario.model_validate(manifest["scenario"], context=NAMES_ONLY)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise StoreError(f"{path / MANIFEST} was changed by hand: its scenario has a wrong {key!r}") from None
    if manifest.get("scenario_digest", digest := digest_of(manifest["scenario"])) != digest:
        raise StoreError(f"{path / MANIFEST} was changed by hand: its scenario is not the one that was run")
    return scenario


def read_trials(path: Path) -> "pd.DataFrame":
    """Read the rows of a run."""
    return read_run(path)[0]


def read_run(path: Path) -> "tuple[pd.DataFrame, Failed]":
    """Read the rows of a run, in the order of its plan, and the failures.

    Optional columns of integers are Int64. Raises StoreError for damaged parts, and for rows that are not in the plan.
    """
    import pandas as pd

    manifest = read_manifest(path)
    effect = any("effect" in file for file in manifest["input_files"])
    table, failed = read_rows(path, schema(effect), KEY, manifest["digest"])
    rows = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get, use_threads=table.num_rows > FLUSH_ROWS)
    rows = rows.astype({c.name: "int64" for c in COLUMNS if c.kind is int and not c.optional})
    if unknown := set(rows[rows["kind"] == "map"]["estimator"]) - set(manifest["num_features"]):
        raise StoreError(
            f"{path} has rows of {shown(min(unknown))}, which its manifest.json does not plan; it was changed by hand"
        )
    if not rows["draw"].between(0, manifest["draws"] - 1).all():
        raise StoreError(f"{path} has rows of draws that its manifest.json does not plan; it was changed by hand")
    errors = [name for name, metric in METRICS.items() if metric.error and name in rows and name != EFFECT]
    sizes = rows[["query_len", "query_rows", "seq_len", "head_dim"]]
    usual = sizes.ge(1).all(axis=1) & sizes.le(1 << 24).all(axis=1) & rows[errors].notna().all(axis=1)
    if not (usual & rows["kind"].isin(["map", "method", "baseline"])).all():
        raise StoreError(f"{path} has rows that no sweep writes: a kind, a length or an error; it was changed by hand")
    return rows.sort_values("draw", kind="stable", ignore_index=True), failed


def find_runs(path: Path) -> list[Path]:
    """Find the runs, recommendations and studies of models at or below a path, sorted. Raises StoreError if none."""
    if not path.exists():
        raise StoreError(f"{str(path)!r} does not exist; give a directory that favorbench sweep wrote")
    found = files_below(path, MANIFEST, "recommendation.json", "model.json")
    runs = {file.parent for file in found if file.name != "model.json" or (file.parent / "trials").exists()}
    if not runs:
        raise StoreError(f"no favorbench run at or below {str(path)!r}: {_explain(path)}")
    return sorted(runs)


def _explain(path: Path) -> str:
    """Explain why a path is not a run, and what to do."""
    if not path.exists():
        return "it does not exist; give a directory that favorbench sweep wrote"
    for file, command in _OTHERS.items():
        if (path / file).exists():
            written = ", ".join(str(path / name) for name in _SUMMARIES if (path / name).exists())
            return f"favorbench {command} wrote it{f'; look at {written}' if written else ', and has not ended'}"
    if runs := sorted([*path.glob(f"*/{MANIFEST}"), *path.glob(f"*/*/{MANIFEST}")]):
        return f"it holds {len(runs)} runs; give one of them, e.g. {min(run.parent for run in runs)}"
    if models := sorted(file.parent.name for file in path.glob("*/model.json")):
        return f"it holds what favorbench model wrote ({', '.join(models[:6])}); look at the summary.md in each"
    return (
        "it has no manifest.json (a summary alone? its sweep computes the trials); give a directory that favorbench "
        "sweep wrote"
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
