"""What no file, name or environment may do: hang a command, write to the terminal, or leave half a figure."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from favorbench import style
from favorbench.errors import InputError, StoreError
from favorbench.files import read_regular
from favorbench.formats import format_value, plain, printable

COMMAND = [sys.executable, "-m", "favorbench"]


def test_what_is_printed_can_only_be_seen():
    hostile = "L0\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eabc\r\n\t\udcff"
    shown = printable(hostile)
    assert shown == r"L0\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eabc\r\n\t\udcff"
    assert shown.isprintable() and printable(shown) == shown
    assert printable("a\nb\x1b", but="\n") == "a\nb\\x1b"
    assert printable("größer, 大, |x−y|² ± 1") == "größer, 大, |x−y|² ± 1"  # what can be seen stays


def test_results_are_plain_in_json():
    class Study:
        def as_dict(self):
            return {1.5: np.float64(2.5), "path": Path("a/b"), "rows": pd.Series([1, 2]), "none": (None, True)}

    nested = {"a": [math.inf, -math.inf, math.nan, np.float32("nan"), np.array([1.0, np.inf])], "b": Study()}
    found = {"a": [None, None, None, None, [1.0, None]]}
    found |= {"b": {"1.5": 2.5, "path": str(Path("a/b")), "rows": [1, 2], "none": [None, True]}}
    assert plain(nested) == found
    assert json.loads(json.dumps(plain(nested), allow_nan=False)) == found


@pytest.mark.parametrize(
    ("value", "floor", "text"),
    [(7.5e-33, 3e-16, "<1e-15"), (1e-16, 1e-15, "<1e-15"), (2e-15, 1e-15, "2.0e-15"), (0.0, 1e-15, "0.000"),
     (-7e-17, 1e-15, "<1e-15"), (7.5e-33, 0.0, "7.5e-33"), (math.nan, 1e-15, "-"), (math.inf, 1e-15, "inf")],
)  # fmt: skip
def test_rounding_noise_is_no_number(value, floor, text):
    assert format_value(value, "mse", floor) == text


@pytest.mark.parametrize("name", ["pipe", "device", "folder", "absent", "nul\0"])
def test_only_regular_files_are_read(name):
    os.mkfifo("pipe")
    os.symlink("/dev/zero", "device")
    Path("folder").mkdir()
    with pytest.raises(InputError, match=r"cannot read points '(pipe|device|folder|absent|nul.*)': \w"):
        read_regular(name, "points")
    Path("file").write_bytes(b"abc")
    assert read_regular(Path("file"), "points", StoreError) == b"abc"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_leaves_no_half_figure(monkeypatch, tmp_path):
    """The figure goes where figures go, and only the disk is full: nothing is left under the names of the files."""
    directory = tmp_path / "figures"
    directory.mkdir()
    os.symlink("/dev/full", directory / ".one.png.tmp")
    with style.context():
        figure, (ax,) = style.panels(1, 1)
        ax.plot([1, 2])
        with pytest.raises(StoreError, match=r"one\.png: No space left on device"):
            style.save(figure, directory, "one", pd.DataFrame({"x": [1]}))
    assert os.listdir(directory) == []


FIGURE = """
from pathlib import Path
import pandas as pd
from favorbench import style
with style.context():
    figure, (ax,) = style.panels(1, 1)
    ax.plot([1, 2], label="a_b")
    style.finish(figure, [ax], "caption")
    style.save(figure, Path("figures"), "one", pd.DataFrame({"x": [1]}))
"""


def test_a_figure_does_not_depend_on_the_directory(tmp_path):
    """A matplotlibrc that asks for LaTeX, and for much else, changes no byte."""
    settings = {"plain": "", "latex": "text.usetex: true\nlines.linewidth: 9\nsavefig.dpi: 10\naxes.titlesize: 40\n"}
    for name, text in settings.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(text)
        done = subprocess.run([sys.executable, "-c", FIGURE], cwd=tmp_path / name, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for file in ("one.png", "one.svg"):
        assert (tmp_path / "plain/figures" / file).read_bytes() == (tmp_path / "latex/figures" / file).read_bytes()


HOSTILE = "h\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e"

HOSTILE_MAP = """
from dataclasses import dataclass
from favorbench.maps.random_features import Positive

@dataclass(frozen=True)
class Mine(Positive):
    name = "mine\\x1b[31m\\u202e"
"""


@pytest.mark.parametrize(
    "command",
    ["table run", "table run --format md", "table run --format latex", "table run --by input,map,R", "rank run",
     "table run --json", "rank run --format md", "plot run", "sweep --out run", "sweep --dry-run"],
)  # fmt: skip
def test_names_from_files_do_not_command_the_terminal(command, tmp_path):
    """A file, a map and a directory whose names hold escape sequences, in all that is printed about them."""
    (tmp_path / HOSTILE).mkdir()
    Path("hostile.py").write_text(HOSTILE_MAP, encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez(f"{HOSTILE}.npz", **{name: rng.normal(size=(2, 20, 4)).astype("f4") for name in "qkv"})
    out = f"{HOSTILE}/run"
    sweep = ["--inputs", f"{HOSTILE}.npz", "--maps", "positive,hostile:Mine", "-R", "4,8", "--trials", "6"]
    first, *rest = (out if word == "run" else word for word in command.split())
    if first != "sweep":
        subprocess.run([*COMMAND, "sweep", *sweep, "--out", out, "-q"], check=True, capture_output=True)
    done = subprocess.run([*COMMAND, first, *rest, *(sweep if first == "sweep" else [])], capture_output=True)
    printed = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0 and printed.replace("\n", "").isprintable()
    assert r"\x1b" in printed or r"\u001b" in printed


@pytest.mark.parametrize("command", ["table", "plot", "sweep", "list", "audit", "verify", "theory"])
def test_errors_do_not_command_the_terminal(command):
    done = subprocess.run([*COMMAND, command, HOSTILE], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable() and "owned" in done.stderr


def test_data_stay_as_they_are():
    """What is written to a file or a pipe for another program keeps every character of a name."""
    rng = np.random.default_rng(0)
    np.savez(f"{HOSTILE}.npz", **{name: rng.normal(size=(20, 4)) for name in "qkv"})
    arguments = ["--inputs", f"{HOSTILE}.npz", "--maps", "positive", "-R", "4", "--trials", "1", "--out", "run"]
    subprocess.run([*COMMAND, "sweep", *arguments, "-q"], check=True, capture_output=True)
    done = subprocess.run([*COMMAND, "export", "run", "--csv", "-o", "-"], check=True, capture_output=True)
    assert f"{HOSTILE}.npz".encode() in done.stdout
    listed = json.loads(subprocess.run([*COMMAND, "table", "run", "--json"], capture_output=True).stdout)
    assert {row["input"] for row in listed if "input" in row} <= {f"{HOSTILE}.npz"}


def test_figures_do_not_depend_on_a_backend(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "nosuch")
    sweep = ["sweep", "--maps", "positive", "-R", "4,8", "-L", "8", "-d", "2", "--trials", "2", "--out", "run", "-q"]
    subprocess.run([*COMMAND, *sweep], check=True, capture_output=True)
    done = subprocess.run([*COMMAND, "plot", "run"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and ".png" in done.stdout
