"""Rows on disk: no kill loses or doubles one, readers see a whole, and what is damaged is found."""

import errno
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import random
import stat
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import check_refused, refused

import favorbench as fb
from favorbench.engine import rows as rows_module
from favorbench.engine.columns import FAILURE
from favorbench.engine.rows import RowStore, failures, in_use, part_paths, read_parts, read_rows
from favorbench.errors import StoreError
from favorbench.files import write_text
from favorbench.studies.saved import read_recommendation

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


@pytest.mark.skipif(os.name != "posix", reason="folders are not synchronised there")
@pytest.mark.parametrize("error", [errno.EINVAL, errno.EIO])
def test_parts_are_joined_where_a_file_system_cannot_synchronise_folders(monkeypatch, run, at_once, error):
    sync = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with store_at(run) as store:
        for draw in range(3):
            store.append(rows_of([draw]))
        if error == errno.EIO:
            with pytest.raises(StoreError, match="Input/output error; saved results are intact"):
                store.join()
        else:
            store.join()
    assert len(part_paths(run / "trials")) == (4 if error == errno.EIO else 1)
    same(read(run), 3)


def test_folders_that_cannot_be_read_are_not_taken_for_empty(monkeypatch):
    fb.sweep({"maps": ["elu"], "methods": [], "seq_len": [16], "head_dim": [4], "trials": 2}, "run")
    Path("heads").mkdir()

    def refusing(function):
        def wrapped(folder="."):
            if str(folder).endswith(("trials", "heads")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            return function(folder)

        return wrapped

    for name in ("listdir", "scandir"):  # root may read everything
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    for command in ("table run", "status run", "sweep --maps elu -L 16 -d 4 --trials 2 --out run", "recommend heads"):
        assert "Permission denied" in refused(*command.split())
    with pytest.raises(StoreError, match=r"cannot use run.trials: Permission denied"):
        part_paths(Path("run/trials"))


def test_runs_that_cannot_be_read_are_not_left_out(monkeypatch):
    """`status` of a folder with a run of another user was 0: all complete."""
    for name in ("here", "theirs"):
        fb.sweep({"maps": ["elu"], "methods": [], "seq_len": [16], "head_dim": [4], "trials": 2}, f"runs/{name}")
    scandir = os.scandir

    def refusing(folder="."):
        if "theirs" in str(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    for command in ("status", "plot"):
        assert "cannot use runs/theirs: Permission denied" in refused(command, "runs")


@pytest.mark.usefixtures("at_once")
def test_parts_that_can_be_listed_but_not_opened_keep_no_reader_waiting(monkeypatch, run):
    """chmod 644 of the folder: they were taken for parts that a writer joins meanwhile, and listed again forever."""
    with store_at(run) as store:
        store.append(rows_of([0]))
    times, listing = iter(range(5)), part_paths

    def refusing(function):
        def wrapped(path, *arguments, **options):
            if "part-" in str(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return function(path, *arguments, **options)

        return wrapped

    for name in ("open", "stat", "lstat"):  # root may read everything
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    monkeypatch.setattr(rows_module, "part_paths", lambda folder: next(times, None) is not None and listing(folder))
    with pytest.raises(StoreError, match="Permission denied"):
        read(run)


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


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("then", ["nothing", "another"])
def test_a_run_that_is_removed_or_moved_while_it_is_written_is_said(run, then):
    """And what is at its path now is left alone."""
    moved = run.with_name("moved")
    with pytest.raises(fb.StoreError, match="was removed, moved or replaced while it was written"):  # noqa: SIM117
        with store_at(run) as store:
            store.append(rows_of(range(2)))
            run.rename(moved)
            if then == "another":
                (run / "trials").mkdir(parents=True)
            store.append(rows_of([2]))
    same(read(moved), 2)
    assert [*run.parent.rglob("run/*")] == [run / "trials"] * (then == "another")


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
def test_a_named_pipe_in_a_study_keeps_no_reader_waiting():
    for name in ("model.json", "recommendation.json"):
        os.mkfifo(name)
    for command in ("table", "report"):
        assert "model.json': not a regular file" in refused(command, ".")
    with pytest.raises(StoreError, match="not a regular file"):
        read_recommendation(Path("."))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "3", '{"format": Infinity}', f'{{"format": {10**400}}}', '{"format": {}}', "\x00", ""]
)
def test_a_hostile_manifest_is_one_line_that_names_it(text):
    fb.sweep({"trials": 1, "seq_len": 8, "head_dim": 2, "maps": "positive", "num_projections": 4}, "run")
    Path("run/manifest.json").write_text(text)
    for command in ("table", "status"):
        check_refused("COMMAND run => run/manifest.json", COMMAND=command)


def hostile_parts():
    """Parts with the digest that their name says, by what is wrong with them, and what the message says."""
    rows = pa.Table.from_pylist(rows_of(range(2)), SCHEMA)

    def part(table, **facts):
        sink = pa.BufferOutputStream()
        packing = facts.pop("compression", "snappy")
        text = facts.pop("text", json.dumps(facts))
        pq.write_table(table.replace_schema_metadata({b"favorbench": text}), sink, compression=packing)
        return sink.getvalue().to_pybytes()

    yield b"", "Parquet file size is 0 bytes"
    yield b"PAR1junk", "Parquet magic bytes"
    for text in ("[]", "5", "null", "{", "[" * 100_000, "\xff", f'{{"seconds": {"9" * 5000}}}'):
        yield part(rows, text=text), "it is not valid JSON|its content: Input should be an object"
    for seconds in ("long", -1, 1e300, [], {}):
        yield part(rows, seconds=seconds), "its seconds: Input should be"
    for failed in ([1], {"mine": 3}, {"mine": {"why": 3}}, {"mine": {"why": ["a"]}}, {"mine": {"why": [-1]}},
                   {"mine": {"why": [10**30]}}, {"mine": {"why": []}}):  # fmt: skip
        yield part(rows, failed=failed), "its failed"
    yield part(rows.drop_columns("draw")), "has other columns"
    yield part(rows.set_column(0, "draw", pa.array(["x"] * 4))), "has other columns"
    yield part(rows[:0]), "no finished draws"
    packed = "bytes of values in .* bytes: it was changed by hand"
    yield part(pa.concat_tables([rows[:1]] * 100_000).combine_chunks()), packed
    long = pa.Table.from_pydict({"draw": [0], "estimator": ["x" * 30_000_000], "mse": [0.0]}, SCHEMA)
    yield part(long, compression="zstd"), packed


@pytest.mark.parametrize("data, said", [*hostile_parts()], ids=lambda value: "" if isinstance(value, bytes) else value)
def test_a_hostile_part_is_one_line_for_every_reader(run, data, said):
    (run / "trials").mkdir()
    (run / "trials" / f"part-000001-{hashlib.sha256(data).hexdigest()[:20]}.parquet").write_bytes(data)
    with pytest.raises(StoreError, match=said):
        read(run)
    if "no finished" not in said:
        with pytest.raises(StoreError, match=said):
            read_parts(run / "trials", columns=["draw"])  # as `status` does
        with store_at(run) as store, pytest.raises(StoreError, match=said):
            store.parts()


def test_a_text_that_thousands_of_rows_share_is_not_repeated_in_memory(run):
    """Parquet stores it once, so that a file of 170 kB held 20 GB of it."""
    with store_at(run) as store:
        store.append([{"draw": draw, "estimator": "x" * 100_000, "mse": 0.0} for draw in range(200)])
    with pytest.raises(StoreError, match=r"20000000 bytes of values in \d+ bytes: it was changed by hand"):
        read(run)


def test_repeated_rows_of_one_part_count_once(run):
    """Repeated draws would make every interval too short."""
    with store_at(run) as store:
        store.append(rows_of(range(3), 2.0) + rows_of(range(3)))
    assert len(part_paths(run / "trials")) == 1
    same(read(run), 3)


def test_nothing_is_changed_through_a_folder_that_is_a_link(run):
    """The writer renames damaged parts, and removes temporary files of one that was killed."""
    outside = run.with_name("outside")
    outside.mkdir()
    for name in (".part-000001-aa.parquet.tmp", "part-000001-aa.parquet"):
        (outside / name).write_text("precious")
    (run / "trials").symlink_to(outside)
    with pytest.raises(StoreError, match="run/trials is a link to another folder"), store_at(run) as store:
        store.parts()
    assert sorted(os.listdir(outside)) == [".part-000001-aa.parquet.tmp", "part-000001-aa.parquet"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_keeps_no_reader_waiting(run, make):
    make(run / ".lock")
    assert not in_use(run)


@pytest.mark.parametrize("name", ["summary.csv", "summary.md", "report.csv", "figures", "seconds.json"])
def test_files_of_the_user_are_not_taken_for_those_of_a_run(name, tmp_path):
    """Names that other tools use, too: a sweep into this directory would replace them."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("precious")
    with (
        pytest.raises(StoreError, match=f"not empty and not a favorbench run .it has '{name}'"),
        store_at(tmp_path / "mine"),
    ):
        pass
    assert os.listdir(tmp_path / "mine") == [name]


def test_a_kill_while_the_first_manifest_is_written_is_resumed(run):
    """The temporary file was taken for somebody else's, and the same command refused."""
    (run / "manifest.json").rename(run / ".manifest.json.0123456789abcdef.tmp")
    with store_at(run) as store:
        store.append(rows_of([0]))
    same(read(run), 1)


def test_a_long_name_of_a_file_is_written(tmp_path):
    """The name of the temporary file was longer than a name may be."""
    name = "名" * 80  # of three bytes each
    write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    "column, value", [("kind", "zz"), ("seq_len", 1 << 62), ("head_dim", 0), ("mse", math.nan), ("cosine", math.nan)]
)
def test_rows_that_no_sweep_writes_are_refused(column, value, tmp_path):
    """Each ended `report` or `table --rank` with ZeroDivisionError, IndexError or KeyError."""
    fb.sweep("quick", maps="positive", num_projections=4, seq_len=8, head_dim=4, trials=2, out="run")
    (file,) = part_paths(Path("run/trials"))
    table = pq.read_table(file)
    place, field = table.column_names.index(column), table.schema.field(column)
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(place, field, pa.array([value] * len(table), field.type)), sink)
    file.unlink()
    digest = hashlib.sha256(sink.getvalue()).hexdigest()[:20]
    Path(f"run/trials/part-000001-{digest}.parquet").write_bytes(sink.getvalue().to_pybytes())
    with pytest.raises(StoreError, match="run has rows that no sweep writes"):
        fb.load("run")


def test_parts_of_two_runs_are_not_mixed():
    """Two directories copied into one, as of two machines: the rows of either won, by the names of the parts."""
    for seed in (0, 1):
        fb.sweep("quick", maps="positive", num_projections=4, seq_len=8, head_dim=4, trials=2, seed=seed, out=f"{seed}")
    (other,) = part_paths(Path("1/trials"))
    other.rename(Path("0/trials") / other.name)
    for command in (
        "table 0",
        "report 0",
        "compare 0 0",
        "sweep quick --maps positive -R 4 -L 8 -d 4 --trials 2 --out 0",
    ):
        assert "is a part of another run than its manifest.json: move it away" in refused(command)
    Path("0/trials", other.name).unlink()
    fb.load("0")
