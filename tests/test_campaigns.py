"""Campaigns: random command lines, and kills of every command that writes. A few run fast, more as slow tests.

``CAMPAIGN=10000 pytest -m slow tests/test_campaigns.py -k lines`` runs ten thousand command lines.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer.main

from favorbench import cli
from tests.command_line import in_a_process, run
from tests.conftest import REPOSITORY, campaign, random_heads

#: Commands that are not run: they take a minute or load a model, or are old names.
HEAVY = {"verify", "reproduce", "audit", "kernel", "speed", "time", "plot", "report", "theory", "rank", "export"}
#: Options that would start processes, clusters or downloads.
LEFT_OUT = {"--workers", "--cluster", "--trust-remote-code", "--install-completion", "--show-completion", "--out"}
WORDS = [
    "", " ", "-", "--", "0", "1", "2", "-1", "3.5", "1e999", "nan", "inf", "1e-320", "99999999999999999999", "x" * 300,
    "positive", "trig,positive", "iid", "orthogonal,sobol", "gaussian", "minilm", "in.npz", "bad.npz", "run", "absent",
    "quick", "none", "all", "mse", "cosine", "estimator,R", "heads", "a:b", "os:system", "positive(",
    "window(-1):clusters", "clusters,clusters", "h0", "absent/..", ".", "\t", "a\nb", "\u202e", "é",
    "[red]x[/red]", "1..9", "4,8,",
    "sinks(4):window(2):multipole", "calibrated:trig", "top(2):positive", "float16", "md", "json", "L,d,h", "*", "%s",
]  # fmt: skip


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A folder with a run, a file of heads, and one that is none."""
    folder, before = tmp_path_factory.mktemp("material"), Path.cwd()
    os.chdir(folder)
    try:
        np.savez("in.npz", **random_heads(np.random.default_rng(0), 2, 12, 4))
        Path("bad.npz").write_bytes(b"PK\3\4 no archive")
        assert run("sweep --inputs in.npz --maps positive,trig -R 2,4 --trials 2 --out run -q")[0] == 0
        yield folder
    finally:
        os.chdir(before)


#: Arguments and values that fit.
ARGUMENTS = {
    "recommend": ["gaussian", "in.npz"], "table": ["run"], "status": ["run", "."],
    "compare": ["run run", "run run --metric mse"], "list": ["maps", "methods", "metrics", ""],
}  # fmt: skip
FITTING = {
    "--num-projections": "2,4", "--seq-len": "8", "--head-dim": "2", "--trials": "1", "--maps": "positive,trig",
    "--samplers": "iid", "--methods": "clusters", "--inputs": "in.npz", "--metric": "mse", "--by": "estimator,R",
    "--scale": "0.5", "--heads": "h1", "--dtype": "float32", "--baselines": "uniform", "--seed": "3", "--max-size": "4",
    "--target": "0.5", "--format": "md", "--stat": "median", "--over": "heads", "--budget": "features",
}  # fmt: skip


def command_line(rng, commands):
    """A random command with options that it has, and arguments and values that fit, mostly."""
    name = rng.choice(sorted(commands))
    options = [
        option for option in commands[name].params
        if option.param_type_name == "option" and not LEFT_OUT & {*option.opts}
    ]  # fmt: skip
    fits = rng.random() < 0.8
    words = rng.choice(ARGUMENTS.get(name, [""])).split() if fits else rng.choices(WORDS, k=rng.choice([1, 2]))
    words = [name, *words]
    for option in rng.sample(options, min(len(options), rng.choice([0, 1, 1, 2, 3, 5]))):
        words.append(rng.choice(option.opts))
        value = next((FITTING[opt] for opt in option.opts if opt in FITTING), "1")
        if not getattr(option, "is_flag", False):
            words.append(value if rng.random() < 0.6 else rng.choice(WORDS))
    if name == "recommend":
        words += ["-L", "8", "-d", "2"] if "gaussian" in words else ["--max-size", "4"]
    elif name == "sweep":  # runs that take no second
        cheap = ["--trials", "1", "-L", "8", "-d", "2", "-R", "2", "-q", "--maps", "trig"]
        words += cheap if rng.random() < 0.2 else ["--dry-run"]
    return words


@campaign(40, 1000)
def test_random_command_lines_are_answered_or_refused_in_one_line(material, seeds, monkeypatch):
    commands = typer.main.get_command(cli.app).commands
    commands = {name: command for name, command in commands.items() if name not in HEAVY | {"model", "capture"}}
    bad, codes = [], set()
    monkeypatch.chdir(material)
    for seed in seeds:
        words = command_line(random.Random(seed), commands)
        code, _, err = run(*words)
        codes.add(code)
        one_line = err.startswith("favorbench: ") and err.count("\n") == 1
        if code not in (0, 1, 2) or "(a bug" in err or "Traceback" in err or (code == 2 and not one_line):
            bad.append((seed, words, code, err[-300:]))
    assert not bad
    assert {0, 2} <= codes


#: Commands that write, and one that shows what they wrote.
SWEEP = "sweep --inputs in.npz --maps positive,trig -R 2,4 --trials 300 -q --out new"
WRITERS = {
    SWEEP: "table new --format csv", f"{SWEEP} --workers 2": "table new --format csv",
    "recommend in.npz --maps positive --methods clusters --max-size 8 --out new -q": "table new --format csv",
    "speed run -q --repeats 20": "status run", "table run --rows -o new.csv": "status run",
    "plot run": "status run",
    "report run -o new.html": "table run --format csv",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("seed", range(int(os.environ.get("KILLS", "5"))))
def test_a_command_that_writes_may_be_ended_at_any_moment(material, seed, monkeypatch, tmp_path):
    """KILLS=200 for two hundred. The same command again makes what an undisturbed one makes."""
    rng = random.Random(seed)
    command, shows = rng.choice(sorted(WRITERS.items()))
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    shutil.copytree(material, tmp_path / "disturbed")
    shutil.copytree(material, tmp_path / "whole")
    monkeypatch.chdir(tmp_path / "whole")
    start = time.monotonic()
    assert in_a_process(command).returncode == 0
    seconds, whole = time.monotonic() - start, run(shows)
    monkeypatch.chdir(tmp_path / "disturbed")
    process = subprocess.Popen(
        [sys.executable, "-m", "favorbench", *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(rng.uniform(0.1, 1.0) * seconds)
    with contextlib.suppress(ProcessLookupError):
        rng.choice([os.kill, os.killpg])(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (0, -number, 128 + number), err
    assert process.returncode != 128 + number or ("Traceback" not in err and err.count("\n") == 1), err
    assert run(command)[0] == 0 and run(shows)[::2] == whole[::2]
    assert "csv" not in shows or run(shows) == whole


def test_every_known_defect_has_its_test():
    """tests/data/findings.txt names a test for each entry, or says why it was left."""
    lines = (REPOSITORY / "tests/data/findings.txt").read_text().splitlines()[2:]
    assert len(lines) > 30
    for line in lines:
        name, _, held = re.split(r"  +", line, maxsplit=2)
        file, _, test = held.partition("::")
        assert held.startswith("left: ") or f"def {test}(" in (REPOSITORY / "tests" / file).read_text(), name
