"""How far runs are."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import refused, run
from test_store import SCHEMA, rows_of

import favorbench as fb
from favorbench.engine.lock import DirectoryLock, in_use
from favorbench.engine.parts import About, read_parts, write_part
from favorbench.results.status import statuses

KEYS = {"maps": "positive", "samplers": "iid", "num_projections": "8", "seq_len": 32, "head_dim": 4, "trials": 5}


def test_a_whole_run_is_whole():
    fb.sweep(KEYS, "runs/one")
    code, out, err = run("status", "runs", "--json")
    (found,) = json.loads(out)
    assert (code, err) == (0, "") and found["whole"]
    assert (found["kind"], found["state"], found["done"], found["planned"]) == ("sweep", "complete", 5, 5)
    assert found["per_second"] > 0 and found["left"] is None


def test_a_run_that_was_stopped_says_how_much_is_missing():
    fb.sweep(KEYS, "whole")
    part = next(Path("whole/trials").glob("part-*"))
    (before,), _ = read_parts(part.parent, None)
    part.unlink()
    write_part(
        part.parent, before.table.slice(0, len(before.table) * 2 // 5).to_pylist(), before.table.schema, About(4.0)
    )
    code, out, err = run("status", "whole", "--json")
    (found,) = json.loads(out)
    assert code == 1 and (found["done"], found["state"]) == (2, "stopped")
    assert found["per_second"] == pytest.approx(0.5) and found["left"] == pytest.approx(6.0)  # 2 in 4 s, 3 are missing
    code, out, err = run("status", "whole")
    assert code == 1 and "2 of 5" in out and "6.0 s" in out and "resumes" in err


def test_a_run_under_way_is_running_and_one_that_was_killed_is_not():
    process = subprocess.Popen(
        [sys.executable, "-m", "favorbench", "sweep", "-L", "256", "--trials", "5000", "--out", "run", "-q"],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(Path().glob("run/trials/part-*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    (found,) = statuses(Path("run"))
    assert found.state == "running" and found.ends and found.left and 0 < found.done < 5000
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (found,) = statuses(Path("run"))
    assert found.state == "stopped" and found.ends is None and found.left


def test_looking_at_a_lock_takes_it_from_nobody(tmp_path):
    lock = DirectoryLock(tmp_path)
    assert not in_use(tmp_path)
    lock.acquire()
    assert in_use(tmp_path) and in_use(tmp_path)
    lock.release()
    assert not in_use(tmp_path)


def test_a_study_of_a_model_counts_measurements(tmp_path):
    (tmp_path / "trials").mkdir()
    write_part(tmp_path / "trials", rows_of(range(3)), SCHEMA, About(2.0))
    (tmp_path / "model.json").write_text(json.dumps({"measurements": 12, "measurements_done": 0}))
    (found,) = statuses(tmp_path)
    assert (found.kind, found.state, found.done, found.planned, found.left) == ("model", "stopped", 6, 12, 2.0)
    (tmp_path / "model.json").write_text("{}")
    assert "was damaged" in refused("status", str(tmp_path))


def test_a_recommendation_is_complete_when_it_says_so():
    fb.recommend("gaussian", target=0.5, maps="positive", max_size=16, seq_len=32, head_dim=4, out="run")
    (found,) = statuses(Path("run"))
    assert (found.kind, found.state) == ("recommend", "complete")
    Path("run/recommendation.json").unlink()
    assert statuses(Path("run"))[0].state == "stopped"


def test_what_is_no_run_is_refused(tmp_path):
    assert "does not exist" in refused("status", "nowhere")
    assert "no favorbench run" in refused("status", str(tmp_path))
