"""A run as small as it gets without losing a bit: to be kept in git."""

from pathlib import Path
from typing import Any

from favorbench.engine.columns import COLUMNS
from favorbench.engine.parts import read_parts, replace_parts
from favorbench.engine.reading import SCHEMA, read_manifest
from favorbench.errors import StoreError

_LEVEL = 19  # of Zstandard: a second where a run took minutes


def compact(path: Path) -> int:
    """Replace the parts of a complete run by one, with the same rows in the order of the plan; its size in bytes.

    Labels are dictionaries, and metrics are split into the bytes of their numbers, as neighbouring exponents are alike.
    Raises StoreError for a run that is not complete, or is damaged.
    """
    if not read_manifest(path)["complete"]:
        raise StoreError(f"{path} is not complete: run the same sweep again first")
    parts, damaged = read_parts(path / "trials", SCHEMA)
    if damaged:
        raise StoreError(f"{path} has a damaged part: run the same sweep again first")
    metrics = [column.name for column in COLUMNS if column.role == "metric"]
    labels = [column.name for column in COLUMNS if column.role != "metric"]
    encoding: dict[str, Any] = {"use_dictionary": labels, "use_byte_stream_split": metrics}
    kept = replace_parts(path / "trials", parts, order="draw", compression="zstd", compression_level=_LEVEL, **encoding)
    return kept.path.stat().st_size
