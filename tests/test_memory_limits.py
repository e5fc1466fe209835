"""Commands where memory is short: a result, or one line within a minute. OpenBLAS waits for ever for its buffers."""

import os
import resource
import subprocess
import sys

import pytest

SWEEP = ["sweep", "--maps", "positive", "-R", "16", "-L", "256", "-d", "8", "--trials", "2", "--out", "run", "-q"]


#: SciPy's OpenBLAS is loaded while the sweep runs, by another import than that of best-rank.
LANDMARKS = ["sweep", "--methods", "clusters,nystrom", "-R", "16,64", "-L", "512", "-d", "32", "--trials", "1", "-q"]
SOME = [300, 360, *range(400, 700, 20), 800, 1200, 2000]
ALL = range(300, 2001, 20)


def run_with(megabytes, *command):
    """A command in a process of so much address space; killed after a minute."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    words = [sys.executable, "-m", "favorbench", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, preexec_fn=limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, megabytes",
    [(command, megabytes) for command in (SWEEP, LANDMARKS) for megabytes in ALL]
    if "CAMPAIGN" in os.environ
    else [*((SWEEP, megabytes) for megabytes in SOME), (LANDMARKS, 440), (LANDMARKS, 480)],
)
def test_a_result_or_one_line(command, megabytes):
    done = run_with(megabytes, *command)
    if done.returncode != 0:
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "memory" in done.stderr or "failed to map segment" in done.stderr
        assert "unexpected" not in done.stderr
    assert megabytes < 700 or done.returncode == 0
