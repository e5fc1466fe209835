"""How far runs are."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import check_refused, run
from test_store import rows_of, store_at

import favorbench as fb
from favorbench.engine.plan import plan
from favorbench.engine.rows import in_use
from favorbench.engine.scenario import as_scenario
from favorbench.engine.store import Store
from favorbench.engine.study import Study
from favorbench.results.status import statuses

KEYS = {"maps": "positive", "samplers": "iid", "num_projections": "8", "seq_len": 32, "head_dim": 4, "trials": 5}


def test_a_whole_run_is_whole():
    fb.sweep(KEYS, "runs/one")
    code, out, err = run("status runs --json")
    (found,) = json.loads(out)
    assert (code, err) == (0, "") and found["whole"]
    assert (found["kind"], found["state"], found["done"], found["planned"]) == ("sweep", "complete", 5, 5)
    assert found["per_second"] > 0 and found["left"] is None


def test_a_run_that_was_stopped_says_how_much_is_missing():
    fb.sweep(KEYS, "whole")
    rows = fb.load("whole").trials
    with Store(Path("whole"), plan(Study.of(as_scenario(None, KEYS)))) as store:
        for part in store.parts([]):
            part.path.unlink()
        store.append(rows[rows["draw"] < 2].astype(object).where(rows.notna(), None).to_dict("records"))
        store._flushed -= 4.0
    code, out, err = run("status whole --json")
    (found,) = json.loads(out)
    assert code == 1 and (found["done"], found["state"]) == (2, "stopped")
    assert found["per_second"] == pytest.approx(0.5, rel=0.1) and found["left"] == pytest.approx(
        6.0, rel=0.1
    )  # 2 in 4 s, 3 are missing
    code, out, err = run("status", "whole")
    assert code == 1 and "2 of 5" in out and " s " in out and "to resume" in err


def test_draws_that_were_saved_as_a_signal_came_are_counted(monkeypatch):
    """It came after the last draw, before the manifest had their number: "before a draw was saved"."""

    def interrupted(store: Store) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "finish", interrupted)
    code, _, err = run("sweep --maps positive --samplers iid -R 8 -L 32 -d 4 --trials 5 --out whole")
    assert code == 130 and "interrupted: 5 of 5 draws are saved in whole; rerun the command to resume\n" in err


def test_a_resumed_sweep_announces_the_draws_that_are_missing(monkeypatch):
    monkeypatch.setattr("favorbench.cli.sweep.LONG", 0.0)
    command = "sweep --maps positive --samplers iid -R 8 -L 32 -d 4 --trials 5 --out whole"
    assert "5 draws to compute, about" in run(command)[2]
    rows = fb.load("whole").trials
    with Store(Path("whole"), plan(Study.of(as_scenario(None, KEYS)))) as store:
        for part in store.parts([]):
            part.path.unlink()
        store.append(rows[rows["draw"] < 2].astype(object).where(rows.notna(), None).to_dict("records"))
    assert "3 draws to compute, about" in run(command)[2]
    assert "to compute" not in run(command)[2]


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


def test_reading_a_lock_does_not_take_it(tmp_path):
    assert not in_use(tmp_path)
    with store_at(Path("run")):
        assert in_use(Path("run")) and in_use(Path("run"))
    assert not in_use(Path("run"))


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_whole_run_on_a_file_system_without_locks_is_not_running(error, monkeypatch):
    fb.sweep(KEYS, "run")

    def flock(*arguments):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.flock", flock)
    code, out, err = run("status run --json")
    assert (code, err) == (0, "") and json.loads(out)[0]["state"] == "complete"


def test_a_study_of_a_model_counts_measurements(tmp_path):
    with store_at(Path("run")) as store:
        store.append(rows_of(range(3)))
        store._flushed -= 2.0
    model = Path("run/model.json")
    model.write_text(json.dumps({"measurements": 12, "measurements_done": 0}))
    (found,) = statuses(tmp_path)
    assert (found.kind, found.state, found.done, found.planned) == ("model", "stopped", 6, 12)
    assert found.left == pytest.approx(2.0, rel=0.1)
    model.write_text("{}")
    check_refused("status TMP_PATH => is damaged", TMP_PATH=tmp_path)


def test_a_recommendation_is_complete_when_it_says_so():
    fb.recommend("gaussian", target=0.5, maps="positive", max_size=16, seq_len=32, head_dim=4, out="run")
    (found,) = statuses(Path("run"))
    assert (found.kind, found.state) == ("recommend", "complete")
    Path("run/recommendation.json").unlink()
    assert statuses(Path("run"))[0].state == "stopped"


def test_directories_without_a_run_are_refused(tmp_path):
    check_refused(
        """
        status nowhere => does not exist
        status TMP_PATH => no favorbench run
    """,
        TMP_PATH=tmp_path,
    )
