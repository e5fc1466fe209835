"""No file, name or environment may hang a command, write to the terminal, or leave half a figure."""

import ast
import errno
import json
import math
import os
import select
import stat
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from favorbench import files, style
from favorbench.errors import InputError, StoreError
from favorbench.files import RUN_FOLDERS, read_regular, write_whole, written_whole
from favorbench.formats import format_value, plain, printable
from favorbench.sections import Section, to_latex, to_markdown
from tests.command_line import in_a_process, python, read_table, refused, run
from tests.conftest import random_heads


def test_printed_texts_are_escaped():
    hostile = "L0\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eabc\r\n\t\udcff\uffff"
    shown = printable(hostile)
    assert shown == r"L0\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eabc\r\n\t\udcff\uffff"
    assert shown.isprintable() and printable(shown) == shown
    assert printable("a\nb\x1b", but="\n") == "a\nb\\x1b"
    assert printable("größer, 大, |x−y|² ± 1") == "größer, 大, |x−y|² ± 1"  # what can be seen stays


def test_a_name_with_line_breaks_stays_in_its_line():
    """It could close a title, forge a finding, or end the comment that a LaTeX file has it in."""
    name = "a\n\\input{x}\n# b"
    section = Section(name, [{"estimator": name}], name, [name])
    for text in (to_markdown([section]), to_latex([section]), repr(section)):
        assert not any(line.startswith(("\\input", "# b")) for line in text.splitlines()), text


def test_results_are_plain_in_json():
    class Study:
        def as_dict(self):
            return {1.5: np.float64(2.5), "path": Path("a/b"), "rows": pd.Series([1, 2]), "none": (None, True, 3)}

    nested = {
        "a": [math.inf, -math.inf, math.nan, np.float32("nan"), np.array([1.0, np.inf])],
        "b": Study(),
        "c": namedtuple("Pair", "left right")(math.inf, "text"),
    }
    found = {"a": [None, None, None, None, [1.0, None]]}
    found |= {"b": {"1.5": 2.5, "path": str(Path("a/b")), "rows": [1, 2], "none": [None, True, 3]}}
    found["c"] = {"left": None, "right": "text"}
    assert plain(nested) == found
    assert json.loads(json.dumps(plain(nested), allow_nan=False)) == found


@pytest.mark.parametrize(
    "value, floor, text",
    [(7.5e-33, 3e-16, "<1e-15"), (1e-16, 1e-15, "<1e-15"), (2e-15, 1e-15, "2.0e-15"), (0.0, 1e-15, "0.000"),
     (-7e-17, 1e-15, "<1e-15"), (7.5e-33, 0.0, "7.5e-33"), (math.nan, 1e-15, "-"), (math.inf, 1e-15, "inf")],
)  # fmt: skip
def test_rounding_noise_is_shown_as_rounding(value, floor, text):
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


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that is full after the first 100 bytes of each file."""
    opened = os.fdopen

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            self.file.__enter__()
            return self

        def __exit__(self, *error):
            self.file.__exit__(*error)

        def write(self, data):
            self.file.write(data[:100])
            if len(data) > 100:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        os, "fdopen", lambda number, mode="r": opened(number, mode) if "r" in mode else Full(opened(number, mode))
    )


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_half_figure(tmp_path):
    """Nothing is left under the names of the files, nor under others."""
    directory = tmp_path / "figures"
    chart = style.Chart("one", "", "caption", [style.Panel("", lambda ax: ax.plot([1, 2]) and None)], data=DATA)
    with pytest.raises(StoreError, match=r"one\.png: No space left on device"):
        style.write([chart], directory)
    assert os.listdir(directory) == []


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_keeps_existing_files():
    Path("page").write_bytes(b"old")
    with pytest.raises(StoreError, match="page: No space left on device"):
        write_whole(Path("page"), b"new" * 100)
    assert Path("page").read_bytes() == b"old" and os.listdir() == ["page"]


def test_files_replace_links_and_are_never_written_through_them():
    """Names that a temporary file might have, and the name itself, as links to a file outside."""
    Path("outside").write_bytes(b"precious")
    Path("run").mkdir()
    for name in (".page.tmp", ".page.html.tmp", "page"):
        os.symlink("../outside", f"run/{name}")
    write_whole(Path("run/page"), b"new")
    assert Path("outside").read_bytes() == b"precious"
    assert Path("run/page").read_bytes() == b"new" and not Path("run/page").is_symlink()
    umask = os.umask(0o022)
    os.umask(umask)
    assert Path("run/page").stat().st_mode & 0o777 == 0o666 & ~umask


def test_nothing_is_written_through_a_folder_that_is_a_link():
    Path("outside").mkdir()
    Path("run").mkdir()
    for name in RUN_FOLDERS:
        os.symlink("../outside", f"run/{name}")
        with pytest.raises(StoreError, match=f"run/{name} is a link to another folder.*remove the link"):
            write_whole(Path("run") / name / "of-one-head" / "file", b"new")
    for name in RUN_FOLDERS:  # a folder inside one
        Path("run", name).unlink()
        Path("run", name).mkdir()
        os.symlink("../../outside", f"run/{name}/of-one-head")
        with pytest.raises(StoreError, match=f"run/{name}/of-one-head is a link to another folder"):
            write_whole(Path("run") / name / "of-one-head" / "file", b"new")
    assert os.listdir("outside") == []
    os.symlink("run", "mine")  # the directory of a run is the user's own choice
    write_whole(Path("mine/file"), b"new")
    assert Path("run/file").read_bytes() == b"new"


def test_many_writers_of_one_name_do_not_meet():
    """All in pieces at the same time: each file that is ever seen is that of one of them, and whole."""

    def write(number):
        with written_whole(Path("page")) as file:
            for _ in range(100):
                file.write(bytes([number]) * 100)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(64)))
    found = Path("page").read_bytes()
    assert len(found) == 10_000 and len(set(found)) == 1 and os.listdir() == ["page"]


def test_a_pipe_is_written_into_and_stays_a_pipe():
    os.mkfifo("pipe")
    with pytest.raises(StoreError, match="cannot use pipe: "):  # without a reader it fails at once, without waiting
        write_whole(Path("pipe"), b"lost")
    data = b"x" * 1_000_000  # more than a pipe holds
    descriptor = os.open("pipe", os.O_RDWR)  # a reader from now on, and no end before the writer has come
    with ThreadPoolExecutor(1) as threads, os.fdopen(descriptor, "rb") as pipe:
        written = threads.submit(write_whole, Path("pipe"), data)
        assert pipe.read(len(data)).count(b"x") == len(data)
        written.result()
    assert stat.S_ISFIFO(os.stat("pipe").st_mode) and os.listdir() == ["pipe"]


def test_a_link_to_a_device_is_written_into():
    """As /dev/stdout is one; the device is this test's own terminal, whose end is read here."""
    ours, theirs = os.openpty()
    os.symlink(os.ttyname(theirs), "terminal")
    write_whole(Path("terminal"), b"seen\n")
    assert os.read(ours, 100).strip() == b"seen"
    assert Path("terminal").is_symlink() and stat.S_ISCHR(os.stat(theirs).st_mode)
    Path("manifest.json").write_text("{}")  # in a run, which may be somebody else's, it is replaced as any link
    write_whole(Path("terminal"), b"unseen\n")
    assert Path("terminal").read_bytes() == b"unseen\n" and not Path("terminal").is_symlink()
    assert not select.select([ours], [], [], 0)[0]
    os.close(ours)
    os.close(theirs)


def test_files_that_are_open_are_written_into():
    """/dev/fd/N is a link to a regular file: nothing takes the place of the link, and what follows comes behind."""
    with open("file", "wb", buffering=0) as file:
        write_whole(Path(f"/dev/fd/{file.fileno()}"), b"new")
        file.write(b"er")
    assert Path("file").read_bytes() == b"newer" and os.listdir() == ["file"]


#: Calls that write a file. All of the package go through favorbench/files.py, but for these, each with its reason.
WRITERS = {
    "models/captured.py": "files without a name, gone when they are closed",
    "inputs/fixed.py": "a file without a name, to take its digest",
    "inputs/stored.py": "into a file that is already open: an archive in it, and its members",
}


def test_every_file_is_written_by_one_function():
    package = Path(files.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if names := {name for call in calls if (name := writes(call))}:
            found[path.relative_to(package).as_posix()] = names
    ours = {path: names for path, names in found.items() if path not in WRITERS and path != "files.py"}
    assert found["files.py"]  # or this test sees nothing
    assert {path: names for path, names in ours.items() if "cluster" not in path} == {}


def writes(call):
    """The name of a call that writes a file, or nothing."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [
        node.value for node in (*call.args, *(word.value for word in call.keywords)) if isinstance(node, ast.Constant)
    ]
    modes = [
        text for text in texts if isinstance(text, str) and set(text) <= set("rwaxbt+") and set(text) & set("wax+")
    ]
    if name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile", "ZipFile") and (modes or "Temp" in name):
        return name
    return (
        name
        if name in ("write_text", "write_bytes", "mkstemp", "symlink_to") and isinstance(call.func, ast.Attribute)
        else ""
    )


@pytest.mark.parametrize(
    "source, name",
    [*read_table("""
        open(p, 'w') => open
        p.open(mode='xb') => open
        open(p, 'r+') => open
        p.write_text(t) => write_text
    """), ("open(p)", ""), ("open(p, 'rb')", ""), ("p.open()", ""), ("write_text(p, t)", "")],
)  # fmt: skip
def test_the_search_for_writers_sees_them(source, name):
    assert writes(ast.parse(source, mode="eval").body) == name


DATA = pd.DataFrame({"x": [1]})

FIGURE = """
from pathlib import Path
import pandas as pd
from favorbench import style
panel = style.Panel("", lambda ax: ax.plot([1, 2], label="a_b") and None)
style.write([style.Chart("one", "title", "caption", [panel], data=pd.DataFrame({"x": [1]}))], Path("figures"))
"""


@pytest.mark.slow
def test_a_figure_does_not_depend_on_the_directory(tmp_path):
    """A matplotlibrc that asks for LaTeX, and for much else, changes no byte."""
    settings = {"plain": "", "latex": "text.usetex: true\nlines.linewidth: 9\nsavefig.dpi: 10\naxes.titlesize: 40\n"}
    for name, text in settings.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(text)
        done = python("-c", FIGURE, cwd=tmp_path / name)
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
    ["table run", "table run --format md", "table run --format latex", "table run --by input,estimator,R",
     "table run --rank",
     "table run --json", "table run --rank --format md", "plot run", "sweep --out run", "sweep --dry-run"],
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
        run("sweep", *sweep, "--out", out, "-q")
    code, *printed = run(first, *rest, *(sweep if first == "sweep" else []))
    printed = "".join(printed)
    assert code == 0 and printed.replace("\n", "").isprintable()
    assert r"\x1b" in printed or r"\u001b" in printed


@pytest.mark.parametrize("command", ["table", "plot", "sweep", "list", "audit", "verify", "theory"])
def test_errors_do_not_command_the_terminal(command):
    line = refused(command, HOSTILE)
    assert line.rstrip("\n").isprintable() and "owned" in line


@pytest.mark.slow
def test_data_stay_as_they_are():
    """Output to a file or a pipe, for another program, keeps every character of a name."""
    rng = np.random.default_rng(0)
    np.savez(f"{HOSTILE}.npz", **random_heads(rng, 20, 4))
    in_a_process(f"sweep --inputs '{HOSTILE}.npz' --maps positive -R 4 --trials 1 --out run -q", check=True)
    assert f"{HOSTILE}.npz" in in_a_process("table run --rows", check=True, encoding="utf-8").stdout
    listed = json.loads(in_a_process("table run --json").stdout)
    assert {row["input"] for row in listed if "input" in row} <= {f"{HOSTILE}.npz"}


@pytest.mark.slow
def test_figures_do_not_depend_on_a_backend(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "nosuch")
    in_a_process("sweep --maps positive -R 4,8 -L 8 -d 2 --trials 2 --out run -q", check=True)
    done = in_a_process("plot run")
    assert (done.returncode, done.stderr) == (0, "") and ".png" in done.stdout
