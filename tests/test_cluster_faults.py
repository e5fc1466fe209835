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
from tests.conftest import parts, small_scenario

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
def scenario(module, monkeypatch):
    """A scenario whose method takes time, and kills its worker where an expression says so."""

    def written(deadly="False", trials=100):
        module("mine", METHOD.format(deadly=deadly))
        return small_scenario(maps="positive", methods="mine:mine", num_projections="3", trials=trials)

    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "4")
    return written


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


def check_rows(asked, processes, fault=lambda: None):
    """A run on a cluster has all rows, whatever happens after 20 draws."""
    found = sweep(asked, "run", cluster=processes.address, progress=at(20, fault))
    assert found.trials.equals(sweep(asked, "alone").trials)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped for ever"])
def test_a_worker_that_is_gone(scenario, number):
    """Others do what it had; the scheduler drops one that is stopped after minutes only."""
    with cluster("c", 1) as processes:
        second = processes.worker()
        check_rows(scenario(), processes, lambda: os.kill(second.pid, number))
    assert second.wait() == -signal.SIGKILL


def test_a_worker_twenty_times_slower(scenario):
    with cluster("c", 1) as processes:
        processes.worker(TIMES_SLOWER="20")
        check_rows(scenario(), processes)


def test_all_workers_are_gone_and_others_come(scenario, monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    with cluster("c", 0) as processes:
        worker = processes.worker()

        def replace():
            worker.kill()
            threading.Timer(3.0, processes.worker).start()

        check_rows(scenario(), processes, replace)


def test_a_worker_with_a_nanny_is_killed(scenario):
    with cluster("c", 2, "--nanny") as processes:
        check_rows(scenario(), processes, lambda: os.kill(pid_of_a_worker(processes), signal.SIGKILL))


@pytest.mark.parametrize(
    "victim, number, said",
    [
        ("scheduler", signal.SIGKILL, "the scheduler tcp.* is gone; the first"),
        ("scheduler", signal.SIGSTOP, "the scheduler tcp.* has not answered for 4 s"),
        ("workers", signal.SIGKILL, "no worker of tcp.* is left, and none came within 4 s"),
    ],
)
def test_a_cluster_that_is_gone(scenario, victim, number, said):
    asked = scenario()
    with cluster("c", 0) as processes:
        workers = [processes.worker(), processes.worker()]
        processes.wait_for_workers(2)
        victims = workers if victim == "workers" else [processes.scheduler]
        end = at(20, lambda: [os.kill(process.pid, number) for process in victims])
        with pytest.raises(WorkerError, match=f"draws missing: .*, as {said}") as error:
            sweep(asked, "run", cluster=processes.address, progress=end)
    check_resumed(asked, str(error.value))


def test_workers_that_dask_has_paused_are_named_while_the_run_waits(scenario):
    scenario()
    with cluster("c", 1, "--memory-limit", "100 MB") as processes:  # the libraries alone need more
        command = [*MINE, "--trials", "4000", "--cluster", processes.address]
        with open("err.txt", "w") as err:
            process = subprocess.Popen(command, stderr=err, stdout=subprocess.DEVNULL)
        said = "all workers have been paused by Dask, near their memory limit; the run waits"
        wait_for(lambda: said in Path("err.txt").read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


ONE_OF_THEM = "abs(query[0, 0] - {value!r}) < 1e-12"


@pytest.mark.parametrize("failures", ["1", "3"])
def test_a_draw_that_kills_its_worker_each_time_fails_alone(scenario, failures, monkeypatch):
    """Also with Dask's own 3, which is more than there are workers."""
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "60")
    from favorbench.engine.plan import plan
    from favorbench.engine.study import Study

    study = Study.of(scenario(trials=12))
    value = first_query(plan(study)[7])
    asked = scenario(ONE_OF_THEM.format(value=value), trials=12)
    with (
        cluster("c", 2, "--nanny", DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=failures) as processes,
        pytest.raises(WorkerError, match=r"draws missing: 1, as their worker died .*; the first is draw 7, gaussian"),
    ):
        sweep(asked, "run", cluster=processes.address)
    assert set(fb.load("run").trials["draw"]) == set(range(12)) - {7}


@pytest.mark.parametrize(
    "nanny, timeout, said",
    [
        (["--nanny"], "60", "their worker died .*; the first is draw "),
        ([], "4", "no worker of tcp.* is left, and none came within 4 s;"),
    ],
)
def test_where_every_draw_kills_its_worker_it_is_given_up(scenario, nanny, timeout, said, monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", timeout)
    asked = scenario("True", trials=6)
    with (
        cluster("c", 2, *nanny, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as processes,
        pytest.raises(WorkerError, match=f"draws missing: 6, as {said}"),
    ):
        sweep(asked, "run", cluster=processes.address)


SWEEP = [
    sys.executable,
    "-m",
    "favorbench",
    "sweep",
    *["--maps", "positive", "-R", "3", "-L", "24", "-d", "4", "--out", "run"],
]
MINE = [*SWEEP, "--methods", "mine:mine"]


@pytest.mark.parametrize("dies, said", [("scheduler", "is gone"), ("workers", "none came within 4 s")])
def test_a_command_names_the_dead_worker_in_one_line(scenario, dies, said):
    """And nothing of what Dask logs meanwhile."""
    scenario()
    with cluster("c", 0) as processes:
        workers = [processes.worker(), processes.worker()]
        processes.wait_for_workers(2)
        command = [*MINE, "--trials", "1000", "--cluster", processes.address]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_for(parts, 180)
        for victim in [processes.scheduler] if dies == "scheduler" else workers:
            victim.kill()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("\n") == 1, err
    assert err.startswith("favorbench: ") and said in err and "draws missing: " in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("local", [False, True])
def test_ctrl_c_cancels_and_says_how_much_is_saved(scenario, number, local):
    scenario()
    with cluster("c", 0 if local else 2) as processes:
        where = "local:2" if local else processes.address
        command = [*MINE, "--trials", "400", "--cluster", where]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        wait_for(parts, 180)
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


def test_a_local_cluster_does_not_end_where_dask_is_told_to_end_idle_ones(monkeypatch):
    """It closed before its processes had started, and the command could not be ended."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__IDLE_TIMEOUT", "1 s")
    command = [*SWEEP, "--trials", "2", "-q", "--cluster", "local:1"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=120).returncode == 0


@pytest.mark.parametrize("seed", range(int(os.environ.get("KILLS", "2"))))
def test_any_moment_of_the_start_of_a_local_cluster_is_a_good_one_to_be_ended(seed):
    command = [*SWEEP, "--trials", "20000", "-q", "--cluster", "local:2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(random.Random(seed).uniform(1.0, 9.0))
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode in (143, -signal.SIGTERM), err
    assert err.count("\n") == (process.returncode == 143), err
