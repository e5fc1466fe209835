"""Part files of a Parquet dataset: written whole, named by their contents so that damage is seen, merged when many.

    part-ID.parquet      rows
    _merge-ID.parquet    rows of several parts that are about to be removed: this file stands for them, and takes the
                         name part-ID.parquet when they are gone. Readers of Parquet datasets pass it over, so that
                         rows may be missing for them in that moment but are never there twice.

One writer, which holds the lock of the directory; readers at any time.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from favorbench.engine.earlier import as_now
from favorbench.errors import StoreError
from favorbench.files import write_durable, write_whole

_ABOUT = b"favorbench"  # the key of what a part says of itself

_PART, _MERGE = "part-", "_merge-"

#: What failed: by estimator and message, the draws.
Failed = dict[str, dict[str, list[int]]]


class About(NamedTuple):
    """What a part says beside its rows. seconds: of work, by a clock that stands still while a machine sleeps; None for
    parts of earlier versions. replaces: the parts that it stands for while it is being merged."""

    seconds: float | None = None
    failed: Failed = {}  # noqa: RUF012
    replaces: tuple[str, ...] = ()


class Part(NamedTuple):
    """A part as it was read. rows: how many it has; a table of no columns has none."""

    path: Path
    table: pa.Table
    about: About
    rows: int


def parts_in(folder: Path) -> list[Path]:
    """The parts in a folder, sorted; those too that are being merged."""
    return sorted([*folder.glob(f"{_PART}*.parquet"), *folder.glob(f"{_MERGE}*.parquet")])


def write_part(folder: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, about: About) -> Path:
    """Write rows as one part, whole or not at all. Raises StoreError, e.g. for a full disk."""
    data = _encoded(pa.Table.from_pylist(list(rows), schema=schema), about)
    write_whole(path := folder / f"{_PART}{_identity(data)}.parquet", data)
    return path


def read_part(path: Path, schema: pa.Schema | None, columns: Sequence[str] | None = None) -> Part | None:
    """A part, or some columns of it; None if it is not what was written. Raises OSError if it may not be read,
    StoreError for other columns than those of a schema."""
    data = path.read_bytes()
    identity = path.stem.rpartition("-")[2]
    if identity != _identity(data) and len(identity) != 16:  # in the first format parts were named by their draws
        return None
    try:
        file = pq.ParquetFile(io.BytesIO(data))
    except pa.ArrowInvalid:
        return None
    said = json.loads((file.schema_arrow.metadata or {}).get(_ABOUT, b"{}"))
    if schema is None or file.schema_arrow.equals(schema):
        # A few columns are read before a thread is started for them, and a command that ends at once aborts over one.
        table = file.read(columns=columns, use_threads=columns is None).replace_schema_metadata(None)
    else:
        table = as_now(file.read().replace_schema_metadata(None), schema)
        if table is None:
            raise StoreError(f"{path} has other columns than this version of favorbench writes; use another `out`")
        table = table if columns is None else table.select(columns)
    about = About(said.get("seconds"), said.get("failed", {}), tuple(said.get("replaces", ())))
    return Part(path, table, about, file.metadata.num_rows)


def read_parts(
    folder: Path, schema: pa.Schema | None, columns: Sequence[str] | None = None
) -> tuple[list[Part], list[Path]]:
    """All parts in a folder, and the paths of those that are damaged; also while a writer adds and merges parts.

    What is listed may be gone when it is to be read, and a listing made meanwhile may show neither a merged part nor
    what it was made of: so it is listed until nothing has changed while what is new was read.
    """
    found: dict[str, Part | None] = {}
    while True:
        before = _state(folder)
        for path in before[1]:
            if path.stem.rpartition("-")[2] not in found:
                with contextlib.suppress(FileNotFoundError):
                    found[path.stem.rpartition("-")[2]] = read_part(path, schema, columns)
        if _state(folder) == before:
            break
    parts, damaged, replaced = [], [], set()
    for path in before[1]:
        part = found[path.stem.rpartition("-")[2]]
        if part is None:
            damaged.append(path)
            continue
        parts.append(part._replace(path=path))
        if path.name.startswith(_MERGE):
            replaced |= set(part.about.replaces)
    return [part for part in parts if part.path.name not in replaced], damaged


def replace_parts(
    folder: Path,
    old: Sequence[Part],
    keep: Callable[[Part], Part] = lambda part: part,
    order: str | None = None,
    **encoding: Any,
) -> Part:
    """Write what is to be kept of several parts as one, in their place. Killed at any moment, nothing is lost and
    nothing doubled: ``settle_parts`` ends what was begun. order: the column to sort by; encoding: of
    ``pyarrow.parquet.write_table``. Raises StoreError."""
    kept = [keep(part) for part in old]
    seconds = [part.about.seconds for part in kept if part.about.seconds is not None]
    about = About(
        sum(seconds) if seconds else None, together(part.about.failed for part in kept),
        tuple(part.path.name for part in old),
    )  # fmt: skip
    table = pa.concat_tables([part.table for part in kept])
    table = table.sort_by(order).combine_chunks() if order else table
    data = _encoded(table, about, **encoding)
    path = folder / f"{_MERGE}{_identity(data)}.parquet"
    write_durable(path, data)
    return Part(_settled(path, about.replaces), table, about, len(table))


def settle_parts(folder: Path, schema: pa.Schema) -> None:
    """End the merges that a kill broke off. For the writer only."""
    for path in folder.glob(f"{_MERGE}*.parquet"):
        part = read_part(path, schema, columns=[])
        if part is None:  # torn by a power cut, before anything was removed
            set_aside(path)
        else:
            _settled(path, part.about.replaces)


def set_aside(path: Path) -> None:
    """Rename a damaged part, so that what it held is missing."""
    path.rename(path.with_name(f"_damaged-{path.name.lstrip('_')}"))


def together(failures: Iterable[Failed]) -> Failed:
    """What failed in several parts."""
    found: Failed = {}
    for failed in failures:
        for name, messages in failed.items():
            for message, draws in messages.items():
                found.setdefault(name, {}).setdefault(message, []).extend(draws)  # a list of our own
    return {name: {how: sorted(set(draws)) for how, draws in messages.items()} for name, messages in found.items()}


def _settled(merged: Path, replaces: Iterable[str]) -> Path:
    """Remove what a merged part stands for, then show it."""
    try:
        for name in replaces:
            (merged.parent / name).unlink(missing_ok=True)
    except PermissionError:  # Windows: somebody is reading it; until the next time it is replaced without being gone
        return merged
    return merged.replace(merged.with_name(_PART + merged.name.removeprefix(_MERGE)))


def _encoded(table: pa.Table, about: About, **encoding: Any) -> bytes:
    said = {"seconds": about.seconds, "failed": about.failed, "replaces": about.replaces}
    said = {key: value for key, value in said.items() if value not in (None, {}, ())}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_ABOUT: json.dumps(said)}), buffer, **encoding)
    return buffer.getvalue()


def _identity(data: bytes) -> str:
    """A part is named by its contents: whatever is changed in it, or copied, no longer has the right name."""
    return hashlib.sha256(data).hexdigest()[:20]


def _state(folder: Path) -> tuple[int, list[Path]]:
    """What is in a folder, and when something came into it or left it last."""
    return (folder.stat().st_mtime_ns, parts_in(folder)) if folder.exists() else (0, [])
