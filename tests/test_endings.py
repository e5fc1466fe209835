"""How a command ends: interrupted, terminated, out of memory, on a system without POSIX; and what is said meanwhile."""

import contextlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from favorbench import console
from favorbench.engine.interrupts import WORDS, signals_held
from favorbench.engine.store import read_manifest
from favorbench.progress import Tracker
from tests.command_line import in_a_process, python
from tests.conftest import parts

COMMAND = [sys.executable, "-m", "favorbench"]
LONG = ["sweep", "-R", "512", "-L", "512", "--trials", "2000", "--baselines", "uniform", "--out", "run"]

#: Runs the command line in a process in which something happens when a module is first asked for.
WHEN_ASKED_FOR = """
import importlib, os, runpy, signal, sys

class Happens:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not self.__dict__.setdefault("done", False):
            self.done = True
            {what}

sys.meta_path.insert(0, Happens())
sys.argv = ["favorbench", *{arguments!r}]
runpy.run_module("favorbench", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def signals_of_a_terminal():
    """A background shell ignores SIGINT and nohup ignores SIGHUP, and commands inherit that."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def when_asked_for(module, what, *arguments):
    code = WHEN_ASKED_FOR.format(module=module, what=what, arguments=list(arguments))
    return python("-c", code, timeout=120)


#: Python raises nothing inside of the callback of a weak reference.
IN_A_CALLBACK = (
    "import weakref; thing = Happens(); kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.{})); del thing"
)


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_an_interruption_that_python_cannot_raise_is_one_line_a_moment_later(name, code):
    done = when_asked_for("favorbench.results.summary", IN_A_CALLBACK.format(name), *LONG, "-q")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("module", ["typer", "favorbench.cli.sweep", "pydantic", "pandas"])
def test_an_interruption_while_libraries_are_loaded_is_one_line(module, name, code):
    """typer: the command line itself is still being loaded; pydantic, pandas: a command is."""
    done = when_asked_for(module, f"os.kill(os.getpid(), signal.{name})", *LONG, "-q")
    word = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "terminal closed (SIGHUP)"}[name]
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.removeprefix("favorbench: ").startswith(word)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_interruption_while_a_module_is_imported():
    """A module that runs the command line when it is imported is never done with being imported."""
    Path("runs.py").write_text(
        f"import sys\nsys.argv = {['favorbench', *LONG]!r}\nfrom favorbench import cli\ncli.main()\n"
    )
    process = started("-c", "import runs", until="run/trials/part-*", program=[sys.executable])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "rerun the command to resume" in err


@pytest.mark.slow
def test_an_ignored_interruption_stays_ignored():
    """A background job of a shell, and what nohup starts, are not ended by another's Ctrl-C."""
    arguments = ["sweep", "--maps", "positive", "-R", "4", "-L", "8", "-d", "2", "--trials", "1", "--out", "run", "-q"]
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGINT)"
    code = (
        f"import os, signal, sys; {ignored}; sys.argv = {['favorbench', *arguments]!r}; import favorbench.__main__ as m"
    )
    code += "; m.main()"
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def started(*arguments, until, program=COMMAND):
    """A command in a process group of its own, once it has saved something."""
    process = subprocess.Popen(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(Path().glob(until)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    "workers, whole_group",
    [("2", True), *(pytest.param(*case, marks=pytest.mark.slow) for case in [("1", True), ("1", False), ("2", False)])],
)
@pytest.mark.parametrize("number, word", [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_signal_saves_computed_draws(workers, whole_group, number, word):
    """As terminals, schedulers and shutdowns send it, to the process or to its group: one line with the count."""
    process = started(*LONG, "-q", "--workers", workers, until="run/trials/part-*")
    (os.killpg if whole_group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=60)
    saved = pd.read_parquet("run/trials")["draw"].nunique()
    assert (process.returncode, out) == (128 + number, "") and saved > 0 and err.count("\n") == 1
    assert f"{word}: {saved} of 2000 draws are saved in run; rerun the command to resume" in err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
def test_a_terminal_that_is_closed_ends_a_sweep_in_good_order():
    """Its processes get SIGHUP and cannot print: draws are saved all the same, and no process is left."""
    import pty

    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [*COMMAND, *LONG, "--workers", "2"])
    deadline = time.monotonic() + 60
    while not list(Path().glob("run/trials/part-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    manifest = read_manifest(Path("run"))
    assert manifest["draws_done"] == pd.read_parquet("run/trials")["draw"].nunique() > 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_any_moment_is_a_good_one_to_be_ended(name, workers):
    """Random moments of one sweep, to the process and to its group: one line, the code, and no draw lost."""
    rng, saved, number = random.Random(f"{name} {workers}"), 0, getattr(signal, name)
    endless = [*LONG, "--trials", "200000"]  # it is resumed each time: 2,000 draws are done after 40 seconds
    start = time.monotonic()
    process, until_saved = started(*endless, "--workers", workers, until="run/trials/part-*"), time.monotonic() - start
    for moment in range(25):
        if moment:
            process = subprocess.Popen(
                [*COMMAND, *endless, "--workers", workers],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            time.sleep(1 + until_saved * rng.random())  # the interpreter itself has a second to start
        rng.choice([os.kill, os.killpg])(process.pid, number)
        out, err = process.communicate(timeout=60)
        said = [line for line in err.splitlines() if "draws to compute" not in line]
        assert (process.returncode, out, len(said)) == (128 + number, "", 1), err
        there = pd.read_parquet("run/trials")["draw"].nunique() if parts() else 0
        assert there >= saved and there > 0
        saved = there


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02, 0.08, 0.3])
def test_a_second_interruption_ends_without_waiting(pause):
    """As people press Ctrl-C, and as ``timeout`` sends it: to the process, and to its group."""
    process = started(*LONG, "--workers", "2", until="run/trials/part-*")
    os.kill(process.pid, signal.SIGINT)
    time.sleep(pause)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT) and len(pd.read_parquet("run/trials"))


@pytest.mark.slow
def test_an_interrupted_reproduction_names_the_saved_runs():
    process = started("reproduce", "iid-vs-ortho", "--out", "blog", "--workers", "1", until="blog/runs/*/trials/part-*")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    (run,) = Path("blog/runs").iterdir()
    saved = pd.read_parquet(run / "trials")["draw"].nunique()
    assert process.returncode == 130 and saved > 0
    assert err == f"interrupted: {saved} of 180 draws are saved in {run}; rerun the command to resume\n"


@pytest.mark.parametrize(
    "module", ["pandas", *(pytest.param(name, marks=pytest.mark.slow) for name in ("typer", "pydantic"))]
)
@pytest.mark.parametrize(
    "what",
    [
        "ImportError('libx.so.1: failed to map segment from shared object')",
        "SystemError('libx.so.1: <function _find_and_load> returned NULL without setting an exception')",
        "SystemError('libx.so.1: error return without exception set')",
    ],
)
def test_a_library_that_does_not_fit_into_memory_is_one_line(module, what):
    done = when_asked_for(module, f"raise {what}", *LONG)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("favorbench: ") and done.stderr.count("\n") == 1
    assert "libx.so.1: " in done.stderr and "memory" in done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v")
def test_a_limit_on_memory_is_said():
    done = subprocess.run(
        ["bash", "-c", f"ulimit -v 200000; exec {' '.join([*COMMAND, *LONG])}"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr and "(a bug" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("favorbench: not enough memory")


#: Parts of Python that Windows does not have, as far as anything of ours could use them.
NOT_EVERYWHERE = """
import os, select, signal, sys
for module, names in [
    (select, ["poll", "epoll"]), (signal, ["SIGHUP", "SIGALRM", "setitimer", "pthread_kill", "pthread_sigmask"]),
    (os, ["fork", "killpg", "getuid", "sched_getaffinity", "O_NONBLOCK", "mkfifo", "nice", "getloadavg"]),
]:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty"):
    sys.modules[name] = None
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list", "maps"], ["sweep", "-R", "4", "-L", "16", "--trials", "1", "--out", "run"],
     ["sweep", "-R", "4", "-L", "16", "--trials", "2", "--out", "run", "--workers", "2"]],
)  # fmt: skip
def test_nothing_needs_posix(arguments):
    code = NOT_EVERYWHERE + f"sys.argv = {['favorbench', *arguments]!r}\n"
    code += "if __name__ == '__main__':\n    from favorbench.__main__ import main\n    main()\n"
    Path("elsewhere.py").write_text(code)
    done = python("elsewhere.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("reader", [pytest.param("| true", marks=pytest.mark.slow), "> /dev/full"])
def test_the_end_of_a_reader_without_poll(reader):
    """Where a closed pipe cannot be asked for, the failing write says it."""
    code = "import select; del select.poll; import sys; sys.argv = ['favorbench', 'list', 'maps']; "
    code += "from favorbench.__main__ import main; main()"
    line = f'{sys.executable} -c "{code}" {reader}; echo ${{PIPESTATUS[0]}} >&2'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
@pytest.mark.parametrize("descriptor", [1, 2])
def test_a_closed_output_is_one_line_before_anything_is_opened_in_its_place(descriptor):
    done = in_a_process("sweep --maps trig -R 2 -L 8 --trials 1 --out run", preexec_fn=lambda: os.close(descriptor))
    assert done.returncode == 2 and not Path("run").exists()
    assert done.stdout + done.stderr == "favorbench: stdout or stderr is closed; redirect it to /dev/null\n"


def said(quiet, seconds, *calls):
    """The lines of progress where stderr is no terminal and a minute lasts 50 ms."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as err:
        patch.setattr(console, "SECONDS_BETWEEN_LINES", 0.05)
        with console.progress("sweep quick", quiet, "draws") as report:
            for call in calls:
                if report is not None:
                    report(*call)
            time.sleep(seconds)
    return err.getvalue().splitlines()


def test_a_line_a_minute_without_a_terminal():
    """Also while one step lasts; none below a minute, none when quiet, none before there is anything to say."""
    lines = said(False, 0.5, (20, 400), (120, 400))
    assert 2 <= len(lines) <= 10 and all(line.startswith("sweep quick: 120 of 400 draws, ") for line in lines)
    assert said(False, 0.2, (3, 9, "trig/iid"))[0] == "sweep quick: 3 of 9 draws, trig/iid"
    assert said(False, 0.0, (20, 400), (120, 400)) == said(True, 0.2, (20, 400)) == said(False, 0.2) == []


def test_a_long_step_leaves_room_for_the_bar(monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    with console.progress("recommend smollm2", False) as report:
        report(3, 54, step="until sinks(4):multipole(exact=0.75, block=128, cells='tree'), size 1024 can be certified")
    assert re.search(r"until sinks.*… ━.*3/54", terminal.file.getvalue())


def test_brackets_in_a_step_are_shown(monkeypatch):
    """Heads are named after their texts, such as [slug].md; a file of heads may have any label."""
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    with console.progress("recommend", False) as report:
        report(1, 3, step="L0H1@[slug][/x]")
    assert "recommend L0H1@[slug][/x]" in terminal.file.getvalue()


def test_the_time_left_counts_only_remaining_work():
    """Draws that were there at the start took no time now; a long last step does not make it 0."""
    tracker = Tracker("sweep", "draws")
    tracker.calls = [(910.0, 100, 430, ""), (1000.0, 130, 430, "")]
    assert repr(tracker) == "sweep: 130 of 430 draws, about 15 min left"
    tracker.calls = [(0.0, 0, 4, ""), (90.0, 3, 4, "")]
    assert repr(tracker) == "sweep: 3 of 4 draws, about 30.0 s left"


@pytest.mark.slow
def test_a_sweep_under_nohup_says_how_far_it_is():
    code = "import sys; from favorbench import console; console.SECONDS_BETWEEN_LINES = 0.3; "
    code += f"sys.argv = {['favorbench', *LONG]!r}; sys.argv[sys.argv.index('2000')] = '120'; "
    code += "from favorbench.cli import main; main()"
    done = python("-c", code)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("sweep quick: ") and " of 120 draws" in line for line in lines)


@pytest.mark.parametrize("number", WORDS)
def test_signals_are_held_while_an_executor_is_called(number):
    """An exception may leave a lock of an executor taken: the end of the program then waits for ever."""

    def interrupted(*_):
        raise KeyboardInterrupt

    before = signal.signal(number, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)  # the control: at once
        steps = []
        with pytest.raises(KeyboardInterrupt), signals_held():
            signal.raise_signal(number)
            steps.append("lock taken and given back")
        assert steps and signal.getsignal(number) is interrupted
        with signals_held():
            pass
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_second_signal_does_not_break_off_the_saving_of_results(name):
    """As timeout sends it: to the process, and to its group. A second Ctrl-C kills at once."""
    code = f"""
import os, signal
from favorbench.engine.interrupts import ending, signals_raised
with signals_raised():
    try:
        os.kill(os.getpid(), signal.{name})
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.{name})
        print("saved", *ending())
"""
    done = python("-c", code)
    expected = (0, "saved terminated 143\n") if name == "SIGTERM" else (-signal.SIGINT, "")
    assert (done.returncode, done.stdout, done.stderr) == (*expected, "")
