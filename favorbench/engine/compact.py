"""A run as small as it gets without losing a bit: to be kept in git."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from favorbench.engine.columns import COLUMNS
from favorbench.engine.parts import parts_in, read_part, write_bytes
from favorbench.engine.store import SCHEMA, read_manifest
from favorbench.errors import StoreError

_LEVEL = 19  # of Zstandard: a second where a run took minutes


def compact(path: Path) -> int:
    """Replace the parts of a complete run by one, with the same rows in the order of the plan; its size in bytes.

    Labels are dictionaries, and metrics are split into the bytes of their numbers, as neighbouring exponents are alike.
    Raises StoreError for a run that is not complete, or is damaged.
    """
    parts = parts_in(path / "trials")
    if not read_manifest(path)["complete"]:
        raise StoreError(f"{path} is not complete: run the same sweep again first")
    tables = [read_part(part, SCHEMA) for part in parts]
    if None in tables:
        raise StoreError(f"{path} has a damaged part: run the same sweep again first")
    rows = pa.concat_tables([table for table in tables if table is not None]).sort_by("draw")
    metrics = [column.name for column in COLUMNS if column.role == "metric"]
    buffer = io.BytesIO()
    pq.write_table(
        rows.combine_chunks(), buffer, compression="zstd", compression_level=_LEVEL,
        use_dictionary=[column.name for column in COLUMNS if column.role != "metric"], use_byte_stream_split=metrics,
    )  # fmt: skip
    kept = write_bytes(path / "trials", buffer.getvalue())
    for part in parts:
        if part != kept:
            part.unlink()
    return kept.stat().st_size
