"""Twelve real heads and 3,000 draws: the same bits wherever they are computed, and whatever dies meanwhile."""

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed")

import favorbench as fb
from favorbench.inputs import SHIPPED
from favorbench.results.status import statuses
from favorbench.run import sweep
from tests.clusters import cluster, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Dask's own, of what was killed

DRAWS = 3000
SCENARIO = """
inputs = "heads.npz"
maps = "positive,trig"
samplers = "iid,orthogonal"
R = [4, 16]
baselines = "uniform"
trials = 250
"""


class Killer:
    """Kills a random worker at random moments of a run, ``kills`` times, and starts another in its place.

    Each moment follows a count of finished draws, all below two thirds: the run is as long as its kills, no longer.
    """

    def __init__(self, processes, kills, seed):
        self.kills, self.killed = kills, 0
        self._processes, self._chance, self._done = processes, random.Random(seed), 0
        self._workers = [processes.worker() for _ in range(2)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def progress(self, done, total):
        """For a sweep: begin with the first draw; the last thirtieth of the run waits until this ends."""
        self._done = done
        if done and not self._thread.ident:
            self._thread.start()
        if done > total - total // 30:
            self._thread.join()

    def _run(self):
        for moment in sorted(self._chance.randrange(1, 2 * DRAWS // 3) for _ in range(self.kills)):
            wait_for(lambda moment=moment: self._done >= moment, 120)
            time.sleep(self._chance.uniform(0.0, 1.0))
            victim = self._workers.pop(self._chance.randrange(2))
            victim.kill()
            self.killed += victim.wait() == -signal.SIGKILL
            self._workers.append(self._processes.worker())


@pytest.fixture
def scenario():
    """A scenario file beside its file of heads, in the current folder: stretches of 160 tokens of the shipped ones."""
    with np.load(SHIPPED["minilm"].path) as held:
        np.savez("heads.npz", **{name: held[name][:, :480].reshape(12, 160, 32) for name in "qkv"})
    Path("long.toml").write_text(SCENARIO)
    return "long.toml"


def bits(trials):
    """The rows with every number as the whole number that has its bits."""
    numbers = trials.select_dtypes("float64")
    return trials.assign(**{name: numbers[name].to_numpy().view(np.int64) for name in numbers})


def begun_and_ended_half_way(folder):
    """Run the sweep as a command, end it when half of its draws are saved, and return their number."""
    command = [sys.executable, "-m", "favorbench", "sweep", "long.toml", "--workers", "2", "--out", "run", "-q"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for((folder / "run" / "manifest.json").exists)
    wait_for(lambda: statuses(folder / "run")[0].done >= DRAWS // 2, 240)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    saved = fb.load(folder / "run").manifest["draws_done"]
    assert (process.returncode, DRAWS // 2 <= saved < DRAWS) == (143, True), said
    assert said == f"terminated: {saved} of {DRAWS} draws are saved in run; rerun the command to resume\n"
    return saved


def test_one_process_two_a_cluster_with_twenty_kills_and_a_move_give_the_same_bits(scenario, monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "120")
    alone = sweep(scenario, "alone")
    assert alone.trials["draw"].nunique() == DRAWS and alone.trials["head"].nunique() == 12
    others = [sweep(scenario, "two", workers=2)]

    with cluster("cluster", 0) as processes:
        killer = Killer(processes, 20, seed=20261122)
        others.append(sweep(scenario, "killed", cluster=processes.address, progress=killer.progress))
        assert killer.killed == 20

    (here := Path("here")).mkdir()
    for file in ("long.toml", "heads.npz"):
        shutil.copy(file, here)
    saved = begun_and_ended_half_way(here)
    shutil.move(here, elsewhere := Path("elsewhere", "far"))
    shutil.move(elsewhere / "run", elsewhere / "another-name")
    monkeypatch.chdir(elsewhere)
    began = []
    others.append(sweep(scenario, "another-name", progress=lambda done, total: began.append(done)))
    assert began[0] == saved

    for other in others:
        assert other.manifest["complete"] and other.manifest["digest"] == alone.manifest["digest"]
        assert bits(other.trials).equals(bits(alone.trials))
    changed = alone.trials.copy()
    changed.loc[77, "mse"] = np.nextafter(changed["mse"].to_numpy()[77], np.inf)
    assert not bits(changed).equals(bits(alone.trials))  # one last digit of all is seen


def test_fifty_kills_at_random(scenario, monkeypatch):
    """And Dask gives no draw up meanwhile, whatever it was with when its worker died."""
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "120")
    with cluster("cluster", 0, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="50") as processes:
        killer = Killer(processes, 50, seed=50)
        found = sweep(scenario, "run", cluster=processes.address, progress=killer.progress)
        assert killer.killed == 50
    assert found.manifest["complete"] and len(set(found.trials["draw"])) == DRAWS
    assert bits(found.trials).equals(bits(sweep(scenario, "alone").trials))
