"""Part files of a Parquet dataset: written whole, and named by their contents, so that damage is seen."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from favorbench.errors import StoreError
from favorbench.files import write_whole


def parts_in(folder: Path) -> list[Path]:
    """The parts in a folder, sorted."""
    return sorted(folder.glob("part-*.parquet"))


def write_part(folder: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write rows as one part, whole or not at all. Raises StoreError, e.g. for a full disk."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer)
    write_bytes(folder, buffer.getvalue())


def write_bytes(folder: Path, data: bytes) -> Path:
    """Write the bytes of a part, whole or not at all; where they are. Raises StoreError, e.g. for a full disk."""
    path = folder / _part_name(data)
    write_whole(path, data)
    return path


def read_part(part: Path, schema: pa.Schema) -> pa.Table | None:
    """The rows of a part; None if it is not what was written. Raises OSError if it may not be read, StoreError for
    other columns."""
    data = part.read_bytes()
    if part.name != _part_name(data):
        return None
    table = pq.read_table(io.BytesIO(data))
    if not table.schema.equals(schema):
        raise StoreError(f"{part} has other columns than this version of favorbench writes; use another `out`")
    return table


def set_aside(part: Path) -> None:
    """Rename a damaged part, so that what it held is missing."""
    part.rename(part.with_name(f"_damaged-{part.name}"))


def _part_name(data: bytes) -> str:
    """A part is named by its contents: whatever is changed in it, or copied, no longer has the right name."""
    return f"part-{hashlib.sha256(data).hexdigest()[:20]}.parquet"
