"""Rows on disk: a directory with a manifest and Parquet parts, for one writer at a time and any number of readers.

    DIR/trials/part-000001-DIGEST.parquet    rows; seconds of work and failures are in the metadata of the file
    DIR/trials/_damaged-*                    parts whose contents are not what their digest says
    DIR/.lock                                held by the writer; the operating system frees it when the process ends

Parts are written whole and only ever added. A row replaces the row with the same key in earlier parts, so a kill at any
moment changes nothing for readers, not even while parts are joined: the joined part is written before the others go.
It loses the draws in progress, and those finished since the last part: a second of work, or 2 % of it if that is more.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, Self

import filelock
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field
from typing_extensions import TypedDict

from favorbench.engine.columns import CELL, FAILURE, RENAMED, Failed, Row, by_message, failed_of
from favorbench.engine.interrupts import signals_held
from favorbench.errors import StoreError
from favorbench.files import (
    RUN_MANIFESTS,
    checked_json,
    clear_errors,
    matching,
    read_regular,
    refuse_links,
    write_durable,
    write_whole,
)
from favorbench.formats import shortened
from favorbench.metrics import METRICS

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FLUSH_SECONDS = 1.0
FLUSH_SHARE = 0.02  # of the time worked: the number of parts grows with its logarithm
FLUSH_ROWS = 100_000  # held in memory
MOST_UNPACKED = 1000  # bytes in memory for each of a part; those of measurements have fewer than 300
JOIN_ROWS = 1 << 20  # joined in memory when a run is finished; larger runs keep their parts

LOCK_TIMEOUT = 0.2  # seconds: `in_use` may hold the lock for a moment

_METADATA = b"favorbench"  # the key in a part's metadata


#: Files of a sweep next to the manifest and the parts. Other tools use such names, too.
_OURS = {
    ".lock", "figures", "report.csv", "report.html", "seconds.json", "summary-heads.csv", "summary.csv", "summary.md",
    "trials",
}  # fmt: skip

Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class PartFacts(TypedDict):
    """The metadata of a part. run: the digest of what was measured, if it is known."""

    run: NotRequired[str]
    seconds: NotRequired[Annotated[float, Field(ge=0, le=1e12)] | None]
    failed: NotRequired[dict[str, dict[str, Annotated[list[Count], Field(min_length=1)]]]]


class StoredPart(NamedTuple):
    """A part that was read. table: the requested columns. rows: their number. seconds: of work, None if unknown."""

    path: Path
    table: pa.Table
    rows: int
    seconds: float | None
    failed: Failed


class RowStore:
    """A directory, open for writing: a context manager that holds the lock, and flushes when it ends."""

    def __init__(self, path: Path, manifest: str, schema: pa.Schema, key: Sequence[str], run: str = "") -> None:
        """manifest: the name of its file. key: the columns that identify a row. run: as in ``PartFacts``."""
        self.path, self.manifest_file, self.schema, self.key = path, path / manifest, schema, key
        self.run = run
        self.set_aside: list[str] = []  # names of damaged parts
        self._folder = path / "trials"
        with signals_held():  # a half-made lock fails at the end of the program
            self._lock = filelock.FileLock(path / ".lock", timeout=LOCK_TIMEOUT)
        self._rows: list[Row] = []
        self._flushed = self._worked = 0.0

    def __enter__(self) -> Self:
        """Lock the directory. Raises StoreError for one that is in use, or is not favorbench's."""
        self._new = not self.path.exists()
        with clear_errors(self.path):
            _refuse_foreign(self.path, self.manifest_file)
            refuse_links(self._folder / "part")
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(poll_interval=LOCK_TIMEOUT / 10)
            except filelock.Timeout:
                raise StoreError(
                    f"{self.path} is in use by another favorbench; wait for it, or use another `out`"
                ) from None
            for path in self._folder.glob(".part-*.tmp"):  # of a writer that was killed
                path.unlink()
        self._opened = self._identity()
        self._flushed = time.monotonic()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.flush()
        finally:
            self._lock.release()
        if self._new and error is not None and self._identity() == self._opened:
            self._remove_if_empty()

    def _identity(self) -> tuple[int, int] | None:
        """What tells the directory from another one at its path; None if there is none."""
        with contextlib.suppress(OSError):
            state = self.path.stat()
            return state.st_dev, state.st_ino
        return None

    def _remove_if_empty(self) -> None:
        """Remove the directory of a run that ended before its first row."""
        files = [self.manifest_file, self.path / ".lock"]
        with contextlib.suppress(OSError):
            if not [*self._folder.iterdir()] and {*self.path.iterdir()} <= {*files, self._folder}:
                for file in files:
                    file.unlink(missing_ok=True)
                self._folder.rmdir()
                self.path.rmdir()

    def parts(self, columns: Sequence[str] | None = None) -> list[StoredPart]:
        """Read some columns of all parts. Damaged parts are renamed, so that their rows are missing again."""
        with clear_errors(self.path):
            stored, damaged = read_parts(self._folder, self.schema, columns, self.run)
            for path in damaged:
                path.rename(path.with_name(f"_damaged-{path.name}"))
                self.set_aside.append(path.name)
        self._worked = sum(part.seconds or 0.0 for part in stored)
        return stored

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows and failures. They are written with the next part."""
        self._rows.extend(rows)
        waited = time.monotonic() - self._flushed
        if waited > FLUSH_SECONDS * max(1.0, FLUSH_SHARE * self._worked) or len(self._rows) >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows as one part, whole or not at all.

        Raises StoreError, e.g. for a full disk, and if the directory is no longer the one that was opened.
        """
        if self._identity() != self._opened:
            raise StoreError(
                f"{self.path} was removed, moved or replaced while it was written (or the working directory changed); "
                "rerun the same command: missing rows are computed again"
            )
        now = time.monotonic()
        if self._rows:
            rows = [row for row in self._rows if FAILURE not in row]
            seconds = now - self._flushed
            self._write(pa.Table.from_pylist(rows, self.schema), seconds, failed_of(self._rows), write_whole)
            self._rows = []
            self._worked += seconds
        self._flushed = now

    def join_if_small(self) -> None:
        """Join the parts if they fit into memory."""
        parts = self.parts([])
        if len(parts) > 1 and sum(part.rows for part in parts) <= JOIN_ROWS:
            self.join()

    def join(self, order: str | None = None, **encoding: Any) -> Path:
        """Replace the parts by one, sorted by a column, without rows that later ones replace. Return its path.

        encoding: of ``pyarrow.parquet.write_table``.
        """
        parts = self.parts()
        table = newest(parts, self.key)
        table = table if order is None else table.sort_by(order).combine_chunks()
        seconds = sum(part.seconds or 0.0 for part in parts)
        joined = self._write(table, seconds, failures(parts), write_durable, **encoding)
        for part in parts:
            with contextlib.suppress(PermissionError):  # Windows: somebody reads it
                part.path.unlink()
        return joined

    def _write(
        self, table: pa.Table, seconds: float, failed: Failed, write: Callable[[Path, Any], None], **encoding: Any
    ) -> Path:
        buffer = pa.BufferOutputStream()
        facts = {"seconds": seconds, "failed": failed} | ({"run": self.run} if self.run else {})
        metadata = {_METADATA: json.dumps(facts)}
        pq.write_table(table.replace_schema_metadata(metadata), buffer, **encoding)
        data = buffer.getvalue()
        number = 1 + max(map(_number, part_paths(self._folder)), default=0)
        path = self._folder / f"part-{number:06}-{_digest(data)}.parquet"
        write(path, data)
        return path


def read_parts(
    folder: Path, schema: pa.Schema | None = None, columns: Sequence[str] | None = None, run: str = ""
) -> tuple[list[StoredPart], list[Path]]:
    """Read all parts in a folder, in order, even while a writer adds and joins parts; also return damaged paths.

    A listing made while parts are joined may show neither the old ones nor the new one, so it is repeated until it
    equals the parts that were read. Raises StoreError for parts with other columns than ``schema``, or of another run.
    """
    stored: dict[Path, StoredPart | None] = {}
    while (paths := part_paths(folder)) != sorted(stored):
        stored = {path: part for path, part in stored.items() if path in paths}
        for path in paths:
            if path not in stored:
                try:
                    stored[path] = _read(path, schema, columns, run)
                except StoreError:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        path.lstat()
                        raise
    parts = [part for _, part in sorted(stored.items()) if part is not None]
    return parts, [path for path, part in stored.items() if part is None]


def part_paths(folder: Path) -> list[Path]:
    """The paths of the parts in a folder, in the order in which they were written.

    Raises StoreError for a folder that cannot be read.
    """
    with clear_errors(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return matching(folder, "part-*.parquet")
    return []


def _read(path: Path, schema: pa.Schema | None, columns: Sequence[str] | None, run: str) -> StoredPart | None:
    """Read one part; None if it is damaged."""
    data = read_regular(path, "a part", StoreError)
    if path.stem.rpartition("-")[2] != _digest(data):
        return None
    try:
        return _parsed(path, data, schema, columns, run)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} is damaged, or was changed by hand: {shortened(str(error))}") from None


def _parsed(path: Path, data: bytes, schema: pa.Schema | None, columns: Sequence[str] | None, run: str) -> StoredPart:
    """The rows of a part. Without a schema only columns of integers are read."""
    file = pq.ParquetFile(pa.BufferReader(data))
    stored = pa.schema(field.with_name(RENAMED.get(field.name, field.name)) for field in file.schema_arrow)
    if schema is None:
        types = {field.name: field.type for field in stored}
        fits = all(types.get(name) == pa.int64() for name in columns or ())
    else:  # a metric may be newer than the part
        fits = stored.equals(pa.schema(f for f in schema if f.name in stored.names or f.name not in METRICS))
    if not fits:
        raise StoreError(f"{path} has other columns than this version of favorbench writes; use another `out`")
    metadata = checked_json((file.schema_arrow.metadata or {}).get(_METADATA, b"{}"), PartFacts, path)
    if run and metadata.get("run", run) != run:
        raise StoreError(f"{path} is a part of another run than its manifest.json: move it away")
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    _check_unpacked(path, 8 * values + sum(group.total_byte_size for group in groups), data)
    # Few rows are read without starting a thread: where memory is short, that aborts the process.
    threads = columns is None and file.metadata.num_rows > FLUSH_ROWS
    # Each text is decoded once at first: a thousand rows can share one of a megabyte.
    texts = [field.name for field in file.schema_arrow if field.type == pa.string()]
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    table = file.read(columns=columns, use_threads=threads).replace_schema_metadata(None)
    chunks = [chunk for column in table.columns if pa.types.is_dictionary(column.type) for chunk in column.chunks]
    sizes = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks)  # pyright: ignore
    _check_unpacked(path, sum(pc.sum(size).as_py() or 0 for size in sizes), data)  # pyright: ignore
    plain = (pa.string() if pa.types.is_dictionary(field.type) else field.type for field in table.schema)
    table = table.cast(pa.schema([*map(pa.Field.with_type, table.schema, plain)]))
    table = table.rename_columns([RENAMED.get(name, name) for name in table.column_names])
    return StoredPart(path, table, file.metadata.num_rows, metadata.get("seconds"), metadata.get("failed", {}))


def _check_unpacked(path: Path, size: int, data: bytes) -> None:
    """Raise StoreError for a part that is packed as no rows of measurements are."""
    if size > MOST_UNPACKED * len(data):
        raise StoreError(f"{path} has {size} bytes of values in {len(data)} bytes: it was changed by hand")


def read_rows(path: Path, schema: pa.Schema, key: Sequence[str], run: str = "") -> tuple[pa.Table, Failed]:
    """Read all rows of a directory, and the failures. Raises StoreError for a damaged part, or if there are no rows."""
    with clear_errors(path):
        parts, damaged = read_parts(path / "trials", schema, run=run)
    if damaged:
        raise StoreError(f"{damaged[0]} is damaged; rerun the command: it sets the part aside and recomputes its rows")
    if not any(part.rows for part in parts):
        raise StoreError(f"{path} has no finished draws yet; rerun the command to resume it")
    return newest(parts, key), failures(parts)


def newest(parts: Sequence[StoredPart], key: Sequence[str]) -> pa.Table:
    """The rows of all parts, without columns that only some have; the last row of each key."""
    known = [name for name in parts[0].table.column_names if all(name in part.table.column_names for part in parts)]
    table = pa.concat_tables([part.table.select(known) for part in parts])
    replaced = table.select(key).to_pandas(use_threads=table.num_rows > FLUSH_ROWS).duplicated(keep="last").to_numpy()
    return table.filter(~replaced) if replaced.any() else table


def failures(parts: Iterable[StoredPart]) -> Failed:
    """The failures in draws that no later part has rows of."""
    kept: list[tuple[str, str, int]] = []
    for part in parts:
        drawn = set(part.table["draw"].to_pylist()) if kept else set()
        kept = [failure for failure in kept if failure[2] not in drawn]
        kept += [
            (name, how, draw) for name, hows in part.failed.items() for how, draws in hows.items() for draw in draws
        ]
    return by_message(sorted(set(kept)))


def failed_draws(failed: Failed) -> set[int]:
    """The draws in which an estimator failed."""
    return {draw for hows in failed.values() for draws in hows.values() for draw in draws}


def in_use(path: Path) -> bool:
    """Whether a process is writing into a directory, as far as its lock is visible here."""
    file = path / ".lock"
    if not file.is_file():  # a pipe would wait for a writer
        return False
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        try:
            if fcntl is None:
                with filelock.FileLock(file, timeout=0):
                    return False
            with file.open("rb") as held:  # a shared lock, which needs no permission to write
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, filelock.Timeout):
            return True
        except OSError:  # a file system without locks: while filelock holds one there, it names its process in the file
            return file.stat().st_size > 0
    return False


def _refuse_foreign(path: Path, manifest: Path) -> None:
    """Raise StoreError for a file, and for a directory that has no manifest but files that favorbench did not write."""
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is a file, not a directory; use another `out`")
    if path.is_dir() and not manifest.exists():
        if part_paths(path / "trials"):
            if other := next((name for name in RUN_MANIFESTS if (path / name).exists()), ""):
                raise StoreError(f"{path} holds another study, which {path / other} describes; use another `out`")
            raise StoreError(
                f"{path} has trials but no {manifest.name} to say of what; use another `out`, or remove trials"
            )
        ours = _OURS if _is_summary(path / "summary.csv") else {".lock", "trials"}
        unfinished = {file.name for file in matching(path, f".{manifest.name}.*.tmp")}  # of a writer that was killed
        if others := sorted({*os.listdir(path)} - ours - unfinished):
            raise StoreError(f"{path} is not empty and not a favorbench run (it has {others[0]!r}); use another `out`")


def _is_summary(file: Path) -> bool:
    """Whether a sweep wrote this: a run may have been kept without its rows."""
    with contextlib.suppress(OSError):
        if file.is_file():
            with file.open("rb") as opened:
                return opened.readline(80).startswith(",".join(CELL[:4]).encode())
    return False


def differences(keys: Iterable[str], there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """How a stored request differs from the present one, in these keys."""
    return [
        f"{key} {json.dumps(there.get(key))} there, {json.dumps(here.get(key))} here"
        for key in keys
        if there.get(key) != here.get(key)
    ]


def _number(path: Path) -> int:
    """The number of a part; 0 for those of version 0.2, which have none."""
    match = re.fullmatch(r"part-(\d+)-[0-9a-f]+", path.stem)
    return int(match[1]) if match else 0


def _digest(data: Any) -> str:
    """A part is named by its contents, so that a changed byte and a copy under another name are noticed."""
    return hashlib.sha256(data).hexdigest()[:20]
