"""A worker that dies costs time only: the table is complete, or one line says which draws are missing."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")

import favorbench as fb
from favorbench.errors import WorkerError
from favorbench.run import sweep
from tests.clusters import cluster, first_query, wait_for
from tests.conftest import small_scenario

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Dask's own, of what was killed

METHOD = """
import os, signal, time
from pathlib import Path


def mine(query, key, value, size, rng):
    time.sleep(0.01 * float(os.environ.get("TIMES_SLOWER", "1")))
    if {deadly}:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0 * query + value.mean(0)
"""


@pytest.fixture
def scenario(monkeypatch):
    """A scenario whose method takes time, and kills its worker where an expression says so."""

    def written(deadly="False", trials=100):
        sys.modules.pop("mine", None)
        Path("mine.py").write_text(METHOD.format(deadly=deadly))
        return small_scenario(maps="positive", methods="mine:mine", num_projections="3", trials=trials)

    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "4")
    yield written
    sys.modules.pop("mine", None)


def at(count, act):
    """A progress callback that acts once, after a number of draws."""
    done_already = []

    def progress(done, total):
        if done >= count and not done_already:
            done_already.append(done)
            act()

    return progress


def pid_of_a_worker(processes):
    from distributed import Client

    with Client(processes.address, set_as_default=False) as client:
        return next(iter(client.run(os.getpid).values()))


def check_resumed(asked, missing):
    """The draws that the error names are missing; the same command without a cluster completes the run."""
    there = fb.load("run")
    count = 100 - there.manifest["draws_done"]
    assert 0 < count < 100 and f"draws missing: {count}, as " in missing and "; the first is draw " in missing
    assert "all others are saved: run the same command again, on any cluster or on none" in missing
    assert sweep(asked, "run").trials.equals(sweep(asked, "alone").trials)


def test_a_worker_is_killed(tmp_path, scenario):
    asked = scenario()
    with cluster(tmp_path / "c", 1) as processes:
        second = processes.worker()
        found = sweep(asked, "run", cluster=processes.address, progress=at(20, second.kill))
    assert second.wait() == -signal.SIGKILL
    assert found.trials.equals(sweep(asked, "alone").trials)


def test_the_scheduler_is_killed(tmp_path, scenario):
    asked = scenario()
    with cluster(tmp_path / "c") as processes:
        kill = at(20, processes.scheduler.kill)
        with pytest.raises(WorkerError, match=r"draws missing: .*, as the scheduler tcp.* is gone; the first") as error:
            sweep(asked, "run", cluster=processes.address, progress=kill)
    check_resumed(asked, str(error.value))


def test_all_workers_are_gone(tmp_path, scenario):
    asked = scenario()
    with cluster(tmp_path / "c", 0) as processes:
        workers = [processes.worker(), processes.worker()]
        processes.wait_for_workers(2)
        kill = at(20, lambda: [worker.kill() for worker in workers])
        with pytest.raises(
            WorkerError, match=r"draws missing: .*, as no worker of tcp.* is left, and none came within 4 s"
        ) as error:
            sweep(asked, "run", cluster=processes.address, progress=kill)
    check_resumed(asked, str(error.value))


def test_all_workers_are_gone_and_others_come(tmp_path, scenario, monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    asked = scenario()
    with cluster(tmp_path / "c", 0) as processes:
        worker = processes.worker()

        def replace():
            worker.kill()
            threading.Timer(3.0, processes.worker).start()

        found = sweep(asked, "run", cluster=processes.address, progress=at(20, replace))
    assert found.trials.equals(sweep(asked, "alone").trials)


def test_a_worker_with_a_nanny_is_killed(tmp_path, scenario):
    asked = scenario()
    with cluster(tmp_path / "c", 2, "--nanny") as processes:
        kill = at(20, lambda: os.kill(pid_of_a_worker(processes), signal.SIGKILL))
        found = sweep(asked, "run", cluster=processes.address, progress=kill)
    assert found.trials.equals(sweep(asked, "alone").trials)


ONE_OF_THEM = "abs(query[0, 0] - {value!r}) < 1e-12"


def test_a_draw_that_kills_its_worker_each_time_fails_alone(tmp_path, scenario, monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    from favorbench.engine.plan import plan
    from favorbench.engine.study import Study

    study = Study.of(scenario(trials=12))
    value = first_query(plan(study)[7])
    asked = scenario(ONE_OF_THEM.format(value=value), trials=12)
    with (
        cluster(tmp_path / "c", 2, "--nanny", DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1") as processes,
        pytest.raises(WorkerError, match=r"draws missing: 1, as their worker died .*; the first is draw 7, gaussian"),
    ):
        sweep(asked, "run", cluster=processes.address)
    assert set(fb.load("run").trials["draw"]) == set(range(12)) - {7}


def test_where_every_draw_kills_its_worker_it_is_given_up(tmp_path, scenario, monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    asked = scenario("True", trials=6)
    with (
        cluster(tmp_path / "c", 2, "--nanny", DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as processes,
        pytest.raises(WorkerError, match=r"draws missing: 6, as their worker died .*; the first is draw "),
    ):
        sweep(asked, "run", cluster=processes.address)


def test_a_draw_that_kills_every_worker_and_no_nanny(tmp_path, scenario):
    asked = scenario("not Path('/nowhere').exists()", trials=6)
    with (
        cluster(tmp_path / "c", 2) as processes,
        pytest.raises(WorkerError, match=r"draws missing: 6, as no worker of tcp.* is left, and none came within 4 s;"),
    ):
        sweep(asked, "run", cluster=processes.address)


def test_a_worker_twenty_times_slower(tmp_path, scenario):
    asked = scenario()
    with cluster(tmp_path / "c", 1) as processes:
        processes.worker(TIMES_SLOWER="20")
        found = sweep(asked, "run", cluster=processes.address)
    assert found.trials.equals(sweep(asked, "alone").trials)


def test_a_worker_that_is_stopped_for_ever(tmp_path, scenario):
    """Others do what it had; the scheduler drops it after minutes only."""
    asked = scenario()
    with cluster(tmp_path / "c", 1) as processes:
        second = processes.worker()
        stop = at(20, lambda: os.kill(second.pid, signal.SIGSTOP))
        found = sweep(asked, "run", cluster=processes.address, progress=stop)
    assert found.trials.equals(sweep(asked, "alone").trials)


def test_a_scheduler_that_is_stopped_for_ever(tmp_path, scenario):
    asked = scenario()
    with cluster(tmp_path / "c") as processes:
        stop = at(20, lambda: os.kill(processes.scheduler.pid, signal.SIGSTOP))
        with pytest.raises(
            WorkerError, match=r"draws missing: .*, as the scheduler tcp.* has not answered for 4 s"
        ) as error:
            sweep(asked, "run", cluster=processes.address, progress=stop)
    check_resumed(asked, str(error.value))


@pytest.mark.parametrize("dies, said", [("scheduler", "is gone"), ("workers", "none came within 4 s")])
def test_a_command_names_the_dead_worker_in_one_line(tmp_path, scenario, dies, said):
    """And nothing of what Dask logs meanwhile."""
    scenario()
    arguments = ["sweep", "--maps", "positive", "--methods", "mine:mine", "-R", "3", "-L", "24", "-d", "4"]
    with cluster(tmp_path / "c", 0) as processes:
        workers = [processes.worker(), processes.worker()]
        processes.wait_for_workers(2)
        command = [sys.executable, "-m", "favorbench", *arguments, "--trials", "1000", "--out", "run"]
        process = subprocess.Popen([*command, "--cluster", processes.address], stderr=subprocess.PIPE, text=True)
        wait_for(lambda: list(Path("run/trials").glob("part-*")), 180)
        for victim in [processes.scheduler] if dies == "scheduler" else workers:
            victim.kill()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("\n") == 1, err
    assert err.startswith("favorbench: ") and said in err and "draws missing: " in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("local", [False, True])
def test_ctrl_c_cancels_and_says_how_much_is_saved(tmp_path, scenario, number, local):
    scenario()
    arguments = ["sweep", "--maps", "positive", "--methods", "mine:mine", "-R", "3", "-L", "24", "-d", "4"]
    with cluster(tmp_path / "c", 0 if local else 2) as processes:
        where = "local:2" if local else processes.address
        command = [sys.executable, "-m", "favorbench", *arguments, "--trials", "400", "--out", "run"]
        process = subprocess.Popen(
            [*command, "--cluster", where], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        wait_for(lambda: list(Path("run/trials").glob("part-*")), 180)
        os.killpg(process.pid, number)  # as a terminal does: to workers of this machine too
        _, err = process.communicate(timeout=60)
        word, code = ("interrupted", 130) if number == signal.SIGINT else ("terminated", 143)
        saved = fb.load("run").manifest["draws_done"]
        assert process.returncode == code
        assert err.splitlines()[-1] == (f"{word}: {saved} of 400 draws are saved in run; rerun the command to resume")
        assert "Traceback" not in err
        if not local:  # what was handed out is cancelled
            from distributed import Client

            with Client(processes.address, set_as_default=False) as client:
                wait_for(lambda: not any(client.processing().values()))


@pytest.mark.parametrize("seed", range(int(os.environ.get("KILLS", "2"))))
def test_any_moment_of_the_start_of_a_local_cluster_is_a_good_one_to_be_ended(seed):
    command = [sys.executable, "-m", "favorbench", "sweep", "--maps", "positive", "-R", "3", "-L", "24", "-d", "4"]
    process = subprocess.Popen(
        [*command, "--trials", "20000", "--out", "run", "-q", "--cluster", "local:2"], stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    time.sleep(random.Random(seed).uniform(1.0, 9.0))
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode in (143, -signal.SIGTERM), err
    assert err.count("\n") == (process.returncode == 143), err
