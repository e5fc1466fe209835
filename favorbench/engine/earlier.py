"""Runs of earlier formats, as they would be written today.

1  the first
2  query_rows, rounding; backend and device in the scenario
3  causal
4  what is missing is null: samplers "none" and "own", and R = 0 before
5  methods, budget, multiplications, num_features in the manifest; metrics were added under this number
"""

from typing import Any

import pandas as pd
import pyarrow as pa

from favorbench.engine.columns import COLUMNS

FORMAT = 5  # of the manifest and of the parts

#: What a sampler was called where there was none to choose, up to format 3.
_NO_SAMPLER = ("none", "own", "-")


def as_now(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Rows of an earlier format, with the columns of today: a metric that was not measured then is not a number.

    None for columns that no format had.
    """
    known = {column.name: column for column in COLUMNS}
    if not set(table.column_names) <= set(schema.names) <= set(known) or "draw" not in table.column_names:
        return None
    given = {name: table[name] for name in table.column_names}
    rows = len(table)
    if "query_len" in given:
        given.setdefault("query_rows", given["query_len"])
    if "sampler" in given:
        chosen = given["sampler"].to_pylist()
        given["sampler"] = pa.array([None if one in _NO_SAMPLER else one for one in chosen], pa.string())
    if "num_projections" in given:
        sizes = given["num_projections"].to_pylist()
        given["num_projections"] = pa.array([size or None for size in sizes], pa.int64())
        given.setdefault("budget", given["num_projections"])
    given.setdefault("causal", pa.array(["no"] * rows, pa.string()))
    for name, column in known.items():
        if column.role == "metric":
            given.setdefault(name, pa.array([float("nan")] * rows, pa.float64()))
        elif column.optional:
            given.setdefault(name, pa.nulls(rows, schema.field(name).type))
    if set(given) != set(schema.names):
        return None
    return pa.table([given[name] for name in schema.names], schema=schema)


def features_of_maps(trials: pd.DataFrame) -> dict[str, str]:
    """num_features of each map as a function of R, as manifests say it since format 5, from the rows of a run."""
    found = {}
    for name, rows in trials[trials["kind"] == "map"].groupby("map", sort=False):
        per = (rows["num_features"] / rows["num_projections"].astype(float)).dropna().unique()
        one = f"{per[0]:g}R" if len(per) == 1 else "another number"
        found[str(name)] = "fixed" if not len(per) else "R" if one == "1R" else one
    return found


def manifest_as_now(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest of an earlier format says, with the keys of today."""
    found = {"num_features": {}, "query_rows_of_length": {}, "declared_versions": {}} | manifest
    files = found.get("input_files")
    if isinstance(files, list):
        found["input_files"] = [{"notes": []} | file if isinstance(file, dict) else file for file in files]
    return found
