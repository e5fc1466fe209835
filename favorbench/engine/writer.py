"""The one writer of a Parquet dataset: rows gathered for a moment, parts merged as they become many."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from favorbench.engine.parts import (
    About,
    Failed,
    Part,
    read_part,
    read_parts,
    replace_parts,
    set_aside,
    settle_parts,
    together,
    write_part,
)
from favorbench.errors import StoreError

FLUSH_SECONDS = 1.0  # what a kill may cost

FLUSH_ROWS = 100_000  # held in memory at most, and one draw's

#: So many parts of about one size become one, so that there are at most 15 of each of five sizes, and the large ones.
MERGE = 16

LARGE = 1 << 17  # rows, beyond which a part is left alone: reading and merging take the memory of a few of these


class Writer:
    """Rows to parts in a folder. The lock of the directory is somebody else's affair."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder, self.schema = folder, schema
        self.set_aside: list[str] = []
        self._rows: list[Mapping[str, Any]] = []
        self._failed: Failed = {}
        self._about: About | None = None
        self._flushed = time.monotonic()
        self._rows_of: dict[Path, int] | None = None  # of the parts that are there

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """Some columns of all that is there. A damaged part is set aside, and what it held is missing again."""
        settle_parts(self.folder, self.schema)
        found, damaged = read_parts(self.folder, self.schema, columns)
        for path in damaged:
            set_aside(path)
            self.set_aside.append(path.name)
        self._rows_of = {part.path: part.rows for part in found}
        return found

    def append(self, rows: Sequence[Mapping[str, Any]], failed: Failed | None = None) -> None:
        """Take rows, and what failed beside them; written at most FLUSH_SECONDS later, or with the next ones."""
        # An interruption may fall between any two lines: what failed in a draw without rows says nothing, the
        # opposite would be a draw that looks whole.
        self._failed = together([self._failed, failed or {}])
        self._rows.extend(rows)
        if time.monotonic() - self._flushed > FLUSH_SECONDS or len(self._rows) >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as one part, whole or not at all. Raises StoreError, e.g. for a full disk."""
        now = time.monotonic()
        if self._rows:
            # Said once: where this is interrupted and comes again, the same bytes are written under the same name.
            self._about = self._about or About(now - self._flushed, self._failed)
            path = write_part(self.folder, self._rows, self.schema, self._about)
            written, self._rows = len(self._rows), []
            self._failed, self._about = {}, None
            self._known[path] = written
            self._merge_where_many()
        self._flushed = now

    def merge_all(self) -> None:
        """Few parts of about LARGE rows, if they are many: for when nothing is to be added for a while."""
        while len(small := self._small()) > MERGE:
            self._merge(small)

    def drop(self, column: str, values: Collection[int]) -> None:
        """Take out the rows with one of these values in a column, and what is said to have failed in these draws."""

        def hit(part: Part) -> np.ndarray:
            return np.isin(part.table[column].to_numpy(), list(values))

        def without(part: Part) -> Part:
            failed = _but(part.about.failed, values)
            return part._replace(table=part.table.filter(~hit(part)), about=part.about._replace(failed=failed))

        for part in self.parts([column]):
            if hit(part).any():
                self._replace([part.path], without)

    def _merge_where_many(self) -> None:
        levels: dict[int, list[Path]] = {}
        for path in self._small():
            levels.setdefault(_level(self._known[path]), []).append(path)
        for paths in levels.values():
            if len(paths) >= MERGE:
                self._merge(paths)

    def _merge(self, paths: Sequence[Path]) -> None:
        """Make one part of the first of these, up to a large one."""
        chosen, rows = [], 0
        for path in paths:
            if rows < LARGE:
                chosen.append(path)
                rows += self._known[path]
        self._replace(chosen, lambda part: part)

    def _replace(self, paths: Sequence[Path], keep: Callable[[Part], Part]) -> None:
        whole = [part for path in paths if (part := read_part(path, self.schema)) is not None]
        self._rows_of = {path: rows for path, rows in self._known.items() if path not in paths}
        if any(not part.path.name.startswith("part-") for part in whole):
            raise StoreError(f"{self.folder} is being read by another program: try again when it is done")
        if whole:  # one that was damaged meanwhile is left to the next look at all of them
            known, self._rows_of = self._rows_of, None  # looked at again where this is interrupted
            merged = replace_parts(self.folder, whole, keep)
            self._rows_of = {**known, merged.path: merged.rows}

    def _small(self) -> list[Path]:
        return [path for path, rows in self._known.items() if rows < LARGE // 2 and path.name.startswith("part-")]

    @property
    def _known(self) -> dict[Path, int]:
        if self._rows_of is None:
            self.parts([])
        assert self._rows_of is not None
        return self._rows_of


def _level(rows: int) -> int:
    """0 below 16 rows, 1 below 256, and so on."""
    return max(0, rows.bit_length() - 1) // 4


def _but(failed: Failed, draws: Collection[int]) -> Failed:
    """What failed in other draws than these."""
    kept = {
        name: {message: left for message, of in messages.items() if (left := [d for d in of if d not in draws])}
        for name, messages in failed.items()
    }
    return {name: messages for name, messages in kept.items() if messages}
