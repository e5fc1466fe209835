"""Parts of a run: merged as they become many, whole for every reader, and nothing lost or doubled by any kill."""

import multiprocessing
import random
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from favorbench.engine import parts as parts_module
from favorbench.engine import writer as writer_module
from favorbench.engine.parts import About, Part, parts_in, read_parts, replace_parts, settle_parts, together, write_part
from favorbench.engine.writer import MERGE, Writer

SCHEMA = pa.schema([pa.field("draw", pa.int64(), nullable=False), pa.field("mse", pa.float64())])


def rows_of(draws) -> list[dict]:
    return [{"draw": draw, "mse": draw / 7 + part} for draw in draws for part in range(2)]


def draws_in(folder: Path) -> list[int]:
    parts, damaged = read_parts(folder, SCHEMA)
    assert not damaged
    return sorted(draw for part in parts for draw in part.table["draw"].to_pylist())


@pytest.fixture
def at_once(monkeypatch):
    """Every append is a part."""
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", -1.0)


@pytest.mark.usefixtures("at_once")
def test_parts_are_merged_as_they_become_many(tmp_path):
    writer = Writer(tmp_path, SCHEMA)
    most = 0
    for draw in range(600):
        writer.append(rows_of([draw]), {"mine": {"ValueError: no": [draw]}} if draw % 100 == 0 else None)
        most = max(most, len(parts_in(tmp_path)))
    assert most <= 3 * MERGE  # of 1,200 rows there are three sizes
    assert draws_in(tmp_path) == sorted([*range(600)] * 2)
    writer.merge_all()
    parts = read_parts(tmp_path, SCHEMA)[0]
    assert len(parts) <= MERGE and draws_in(tmp_path) == sorted([*range(600)] * 2)
    failed = together(part.about.failed for part in parts)
    assert sorted(failed["mine"]["ValueError: no"]) == [0, 100, 200, 300, 400, 500]
    assert all(part.about.seconds for part in parts)
    assert len(pd.read_parquet(tmp_path)) == 1200  # any reader of Parquet


@pytest.mark.usefixtures("at_once")
def test_a_large_part_is_left_alone(monkeypatch, tmp_path):
    """So merging takes the memory of a few large parts, however many rows there are."""
    monkeypatch.setattr(writer_module, "LARGE", 64)
    writer, merged = Writer(tmp_path, SCHEMA), []

    def counted(folder, old, keep):
        merged.append(sum(part.rows for part in old))
        return replace_parts(folder, old, keep)

    monkeypatch.setattr(writer_module, "replace_parts", counted)
    for draw in range(500):
        writer.append(rows_of([draw]))
    assert draws_in(tmp_path) == sorted([*range(500)] * 2)
    assert max(merged) < 2 * 64 and len(parts_in(tmp_path)) <= 1000 / 32 + 2 * MERGE


def test_rows_that_are_written_twice_are_there_once(monkeypatch, tmp_path):
    """Interrupted after a part was written and before that is known, what is waiting is written again."""
    writer = Writer(tmp_path, SCHEMA)
    writer.append(rows_of([1]))

    def interrupted(*arguments):
        write_part(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer_module, "write_part", interrupted)
        writer.flush()
    writer.flush()
    assert draws_in(tmp_path) == [1, 1]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(12))
def test_a_merge_that_is_broken_off_at_any_step_loses_and_doubles_nothing(monkeypatch, tmp_path, step):
    """Ended before each of its changes to the directory; then read, and ended by the next writer."""
    old = [write_part(tmp_path, rows_of([draw]), SCHEMA, About(1.0)) for draw in range(8)]
    expected, steps = sorted([*range(8)] * 2), 0

    def counted(change):
        def wrapped(*arguments, **keys):
            nonlocal steps
            if steps == step:
                raise Killed
            steps += 1
            return change(*arguments, **keys)

        return wrapped

    found: list[Part] = read_parts(tmp_path, SCHEMA)[0]
    done = False
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(Path, "replace", counted(Path.replace))
        try:
            replace_parts(tmp_path, found)
            done = True
        except Killed:
            pass
    assert done == (step >= 11)  # written: its temporary name, and that removed; 8 removed, 1 renamed
    assert draws_in(tmp_path) == expected
    if list(tmp_path.glob("part-*")):  # other readers may miss rows, and see none twice
        assert set(pd.read_parquet(tmp_path)["draw"].value_counts()) == {2}
    settle_parts(tmp_path, SCHEMA)
    assert draws_in(tmp_path) == expected == sorted(pd.read_parquet(tmp_path)["draw"])
    assert len(parts_in(tmp_path)) in (1, len(old))


def test_a_torn_merge_is_set_aside(tmp_path):
    """As a power cut may leave one: what it was made of is all there."""
    for draw in range(3):
        write_part(tmp_path, rows_of([draw]), SCHEMA, About())
    (tmp_path / "_merge-00112233445566778899.parquet").write_bytes(b"PAR1 torn")
    writer = Writer(tmp_path, SCHEMA)
    assert sorted(draw for part in writer.parts(["draw"]) for draw in part.table["draw"].to_pylist()) == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert list(tmp_path.glob("_damaged-*"))


def _write(folder: Path, draws: int) -> None:
    writer_module.FLUSH_SECONDS = -1.0
    writer = Writer(folder, SCHEMA)
    there = {draw for part in writer.parts(["draw"]) for draw in part.table["draw"].to_pylist()}
    for draw in range(draws):
        if draw not in there:
            writer.append(rows_of([draw]))
    writer.merge_all()


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_random_kills_lose_and_double_nothing(tmp_path, kills):
    """kill -9 of a writer that does nothing but write and merge; what was there once stays."""
    rng, before, context = random.Random(kills), set(), multiprocessing.get_context("fork")
    folder = tmp_path / "trials"
    folder.mkdir()
    for _ in range(kills):
        process = context.Process(target=_write, args=(folder, 10**6))
        process.start()
        time.sleep(0.05 + 0.3 * rng.random())
        process.kill()
        process.join()
        there = draws_in(folder)
        assert all(np.array(np.unique(there, return_counts=True)[1]) == 2) and before <= set(there)
        seen = pd.read_parquet(folder)["draw"].value_counts() if list(folder.glob("part-*")) else pd.Series([2])
        assert set(seen) == {2}
        before = set(there)
    assert before == set(range(len(before)))  # it resumed where it was


def test_a_reader_beside_the_writer_sees_a_whole(tmp_path):
    """Rows only ever come, without a gap, while parts are written and merged under the reader's hands."""
    folder, context = tmp_path / "trials", multiprocessing.get_context("fork")
    folder.mkdir()
    process = context.Process(target=_write, args=(folder, 500))
    process.start()
    seen, reads = 0, 0
    while process.is_alive() or not reads:
        there = draws_in(folder)
        count = len(there) // 2
        assert there == sorted([*range(count)] * 2) and count >= seen
        seen, reads = count, reads + 1
    process.join()
    assert process.exitcode == 0 and draws_in(folder) == sorted([*range(500)] * 2) and reads > 3


def test_a_reader_that_lists_once_would_miss_rows(monkeypatch, tmp_path):
    """The control: what is merged between the listing and the reading is gone under its old name."""
    for draw in range(3):
        write_part(tmp_path, rows_of([draw]), SCHEMA, About())
    listed, original = [], parts_module.read_part

    def merged_meanwhile(path, *arguments):
        if not listed:
            listed.append(path)
            replace_parts(tmp_path, [part for p in parts_in(tmp_path) if (part := original(p, SCHEMA))])
        return original(path, *arguments)

    monkeypatch.setattr(parts_module, "read_part", merged_meanwhile)
    once = [parts_module._state(tmp_path)] * 2
    with monkeypatch.context() as patch:
        patch.setattr(parts_module, "_state", lambda folder: once.pop() if once else pytest.fail("listed again"))
        with pytest.raises(KeyError):
            read_parts(tmp_path, SCHEMA)
    listed.clear()
    assert draws_in(tmp_path) == [0, 0, 1, 1, 2, 2]


def test_draws_are_taken_out(tmp_path):
    writer = Writer(tmp_path, SCHEMA)
    writer.append(rows_of(range(10)), {"mine": {"ValueError: a": [3, 4], "ValueError: b": [5]}})
    writer.flush()
    writer.drop("draw", {3, 5})
    (part,) = read_parts(tmp_path, SCHEMA)[0]
    assert draws_in(tmp_path) == sorted([0, 1, 2, 4, 6, 7, 8, 9] * 2)
    assert part.about.failed == {"mine": {"ValueError: a": [4]}}


def test_what_waits_is_bounded(tmp_path):
    """However fast rows come, and whatever the clock says."""
    writer = Writer(tmp_path, SCHEMA)
    many = rows_of(range(writer_module.FLUSH_ROWS // 2))
    writer.append(many)
    assert len(parts_in(tmp_path)) == 1
    writer.append(many[:10])
    assert len(parts_in(tmp_path)) == 1
