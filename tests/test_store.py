"""Rows on disk: no kill loses or doubles one, readers see a whole, and what is damaged is found."""

import itertools
import multiprocessing
import os
import random
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from command_line import check_refused, refused

import favorbench as fb
from favorbench.engine import rows as rows_module
from favorbench.engine.columns import FAILURE
from favorbench.engine.rows import RowStore, failures, part_paths, read_parts, read_rows

SCHEMA = pa.schema(
    [pa.field("draw", pa.int64(), nullable=False), pa.field("estimator", pa.string()), pa.field("mse", pa.float64())]
)
KEY = ("draw", "estimator")


def rows_of(draws, factor=1.0):
    return [{"draw": draw, "estimator": name, "mse": factor * draw / 7} for draw in draws for name in ("mine", "yours")]


def store_at(path):
    return RowStore(path, "manifest.json", SCHEMA, KEY)


def read(path):
    """The rows that a reader sees, in the order of the draws."""
    return read_rows(path, SCHEMA, KEY)[0].to_pandas().sort_values("draw", kind="stable", ignore_index=True)


def expected(draws):
    return pd.DataFrame(rows_of(range(draws)))


def same(found, draws):
    pd.testing.assert_frame_equal(found, expected(draws), check_exact=True, check_dtype=False)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    return tmp_path / "run"


@pytest.fixture
def at_once(monkeypatch):
    """Every append is a part."""
    monkeypatch.setattr(rows_module, "FLUSH_SECONDS", -1.0)


def test_parts_stay_few_however_long_it_takes(monkeypatch, run):
    """A row every second for a week: a kill costs a second at first, and 2 % of the time worked later."""
    now, written = 0.0, []
    monkeypatch.setattr(rows_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(rows_module, "write_whole", lambda path, data: written.append(now))
    with store_at(run) as store:
        for draw in range(7 * 24 * 3600):
            now += 1.0
            store.append([{"draw": draw}])
    assert len(written) < 600
    assert all(after - before <= 2.0 + 0.02 * before for before, after in itertools.pairwise(written))


def test_pending_results_in_memory_are_bounded(monkeypatch, run):
    """However fast rows come, and whatever the clock says."""
    monkeypatch.setattr(rows_module, "FLUSH_SECONDS", 1e9)
    with store_at(run) as store:
        store.append(rows_of(range(rows_module.FLUSH_ROWS // 2)))
        assert len(part_paths(run / "trials")) == 1
        store.append(rows_of(range(10)))
        assert len(part_paths(run / "trials")) == 1


@pytest.mark.usefixtures("at_once")
def test_later_rows_replace_earlier_and_failed_ones(run):
    with store_at(run) as store:
        failed = [{"draw": draw, "estimator": "odd", "sampler": None, FAILURE: "ValueError: no"} for draw in (1, 2)]
        store.append([*rows_of(range(4), factor=3.0), *failed])
        assert failures(store.parts(["draw"])) == {"odd": {"ValueError: no": [1, 2]}}
        store.append([*rows_of([0, 1, 3]), *failed[:1]])
        store.append(rows_of([2]))
        for _ in range(2):
            same(read(run), 4)
            assert failures(store.parts(["draw"])) == {"odd": {"ValueError: no": [1]}}
            store.join()
        assert len(part_paths(run / "trials")) == 1
    assert len(pd.read_parquet(run / "trials")) == 8  # any reader of Parquet


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(12))
def test_a_join_that_is_broken_off_at_any_step_loses_and_doubles_nothing(monkeypatch, run, step):
    with monkeypatch.context() as patch, store_at(run) as store:
        patch.setattr(rows_module, "FLUSH_SECONDS", -1.0)
        for draw in range(8):
            store.append(rows_of([draw]))
    steps, done = 0, False

    def counted(change):
        def wrapped(*arguments, **keys):
            nonlocal steps
            if steps == step:
                raise Killed
            steps += 1
            return change(*arguments, **keys)

        return wrapped

    with monkeypatch.context() as patch, store_at(run) as store:
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(rows_module, "write_durable", counted(rows_module.write_durable))
        try:
            store.join()
            done = True
        except Killed:
            pass
    assert done == (step >= 10)  # one file is written, its temporary name is removed, then 8 parts
    same(read(run), 8)
    with store_at(run) as store:
        store.join()
    same(pd.read_parquet(run / "trials").sort_values("draw", kind="stable", ignore_index=True), 8)


def _write(path, draws):
    """Write and join without an end, as fast as it goes."""
    rows_module.FLUSH_SECONDS = -1.0
    with store_at(path) as store:
        there = {draw for part in store.parts(["draw"]) for draw in part.table["draw"].to_pylist()}
        for draw in range(draws):
            if draw not in there:
                store.append(rows_of([draw]))
                if draw % 20 == 19:
                    store.join()


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_random_kills_lose_and_double_nothing(run, kills):
    """kill -9 of a writer that does nothing but write and join; what was there once stays."""
    rng, before, context = random.Random(kills), 0, multiprocessing.get_context("fork")
    for _ in range(kills):
        process = context.Process(target=_write, args=(run, 10**6))
        process.start()
        time.sleep(0.05 + 0.3 * rng.random())
        process.kill()
        process.join()
        if part_paths(run / "trials"):
            count = len(read(run)) // 2
            assert count >= before
            same(read(run), count)
            before = count
    assert before


def test_a_reader_during_a_write_sees_a_complete_file(run):
    """Rows only ever come, without a gap, while parts are written and joined under the reader's hands."""
    process = multiprocessing.get_context("fork").Process(target=_write, args=(run, 300))
    process.start()
    seen, reads = 0, 0
    while process.is_alive() or not reads:
        if part_paths(run / "trials"):
            count = len(found := read(run)) // 2
            same(found, count)
            assert count >= seen
            seen, reads = count, reads + 1
    process.join()
    assert process.exitcode == 0 and reads > 3
    same(read(run), 300)


@pytest.mark.usefixtures("at_once")
def test_a_reader_that_lists_once_would_miss_rows(monkeypatch, run):
    """The control: what is joined between the listing and the reading is gone under its old name."""
    with store_at(run) as store:
        for draw in range(3):
            store.append(rows_of([draw]))
        listed = part_paths(run / "trials")
        answers = [listed]

        def joined_meanwhile(folder):
            if not answers:
                return part_paths(folder)
            found = answers.pop()
            store.join()
            return found

        monkeypatch.setattr(rows_module, "part_paths", joined_meanwhile)
        parts, damaged = read_parts(run / "trials", SCHEMA)
    assert not damaged and not any(path.exists() for path in listed)
    assert sorted({draw for part in parts for draw in part.table["draw"].to_pylist()}) == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
@pytest.mark.parametrize("name", ["manifest.json", "trials/part-000009-00112233445566778899.parquet"])
def test_a_named_pipe_keeps_no_reader_waiting(name):
    fb.sweep({"trials": 1, "seq_len": 8, "head_dim": 2, "maps": "positive", "num_projections": 4}, "run")
    Path("run", name).unlink(missing_ok=True)
    os.mkfifo(Path("run", name))
    for command in ("table", "status", "report"):
        assert "not a regular file" in refused(command, "run")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "3", '{"format": Infinity}', f'{{"format": {10**400}}}', '{"format": {}}', "\x00", ""]
)
def test_a_hostile_manifest_is_one_line_that_names_it(text):
    fb.sweep({"trials": 1, "seq_len": 8, "head_dim": 2, "maps": "positive", "num_projections": 4}, "run")
    Path("run/manifest.json").write_text(text)
    for command in ("table", "status"):
        check_refused("COMMAND run => run/manifest.json", COMMAND=command)
