"""Files that change while they are measured: the rows are those of one file, or one line says what happened."""

import importlib
import os
import re
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import favorbench as fb
from favorbench.engine.plan import plan
from favorbench.engine.scenario import as_scenario
from favorbench.engine.study import Study, labels_of
from favorbench.engine.tasks import TaskBundle, load_bundle, run_items
from favorbench.engine.trial import run_draws
from favorbench.errors import InputError, ScenarioError, StoreError
from favorbench.inputs import File, get_input
from favorbench.inputs.stored import open_contents
from favorbench.methods.function import user_sources
from favorbench.users import imported_in_functions, module_digest, sources_of
from tests.command_line import python
from tests.conftest import LaterProcess, random_heads, same_rows, stop_after

KEYS = {
    "maps": "positive", "samplers": "iid", "num_projections": "4", "baselines": "uniform",
    "inputs": "x.npz", "trials": 4,
}  # fmt: skip


def write(name, seed, heads=3, length=24):
    rng = np.random.default_rng(seed)
    np.savez(name, **random_heads(rng, heads, length, 4))


def replace_by_rename(seed=1):
    write("new.npz", seed)
    os.replace("new.npz", "x.npz")


def overwrite_in_place():
    write("new.npz", 1)
    times = os.stat("x.npz")
    shutil.copyfile("new.npz", "x.npz")
    os.utime("x.npz", ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size, and the same time of change


def truncate():
    os.truncate("x.npz", os.path.getsize("x.npz") // 2)


CHANGES = {"replaced": replace_by_rename, "overwritten": overwrite_in_place, "truncated": truncate,
           "removed": lambda: os.remove("x.npz")}  # fmt: skip


def sweep_with(change, at, **keys):
    """A sweep whose file changes after a number of draws."""

    def progress(done, total):
        if done == at and not changed:
            changed.append(done)
            change()

    changed = []
    return fb.sweep(KEYS | keys, "run", progress=progress)


@pytest.fixture
def whole():
    write("x.npz", 0)
    return fb.sweep(KEYS, "whole").trials


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [1, 5, 11])
def test_no_row_is_of_another_file(whole, change, at):
    with pytest.raises(InputError, match=r"inputs 'x\.npz'.*(have changed|No such file)|cannot read inputs") as caught:
        sweep_with(CHANGES[change], at)
    assert "\n" not in str(caught.value)
    stored = fb.load("run").trials  # what was done before is kept, and of the first file
    assert 0 < len(stored) < len(whole)
    same = stored.merge(whole, on=["draw", "estimator"], suffixes=("", "_whole"))
    assert len(same) == len(stored) and (same["mse"] == same["mse_whole"]).all()
    write("x.npz", 0)  # put back: the same command goes on
    pd.testing.assert_frame_equal(fb.sweep(KEYS, "run").trials, whole)


def test_a_file_that_is_touched_is_the_same_file(whole):
    found = sweep_with(lambda: os.utime("x.npz"), 3)
    pd.testing.assert_frame_equal(found.trials, whole)


def test_one_of_several_files_of_a_folder():
    rng = np.random.default_rng(0)
    Path("folder").mkdir()
    for role in "qkv":
        np.save(f"folder/{role}.npy", rng.normal(size=(3, 24, 4)))
    with pytest.raises(InputError, match="inputs 'folder' have changed"):
        sweep_with(lambda: np.save("folder/k.npy", rng.normal(size=(3, 24, 4))), 2, inputs="folder")


def test_a_text_that_maps_are_calibrated_on():
    write("x.npz", 0)
    write("y.npz", 5)
    keys = {"maps": "calibrated:centre:aderf-sderf", "inputs": "y.npz", "calibrate": "x.npz"}
    with pytest.raises(InputError, match=r"inputs 'x\.npz' have changed"):
        sweep_with(replace_by_rename, 2, **keys)


def test_a_module_that_is_edited_is_not_swept_before_it_is_reloaded(monkeypatch):
    """Python still runs the old code, which the digest of the new one must not be stored with."""
    code = "def f(query, key, value, size, rng): return 0 * query + {} * value.mean(0)\n"
    monkeypatch.syspath_prepend(".")
    keys = KEYS | {"maps": "none", "methods": "edited_here:f", "inputs": "gaussian", "seq_len": 16, "head_dim": 4}
    Path("edited_here.py").write_text(code.format(1))
    try:
        old = fb.sweep(keys, "old").trials
        Path("edited_here.py").write_text(code.format(10))
        with pytest.raises(ScenarioError, match=r"edited_here\.py has changed since Python imported it: importlib"):
            fb.sweep(keys, "new")
        importlib.reload(sys.modules["edited_here"])
        new = fb.sweep(keys, "new").trials
    finally:
        sys.modules.pop("edited_here", None)
    rows = old["estimator"] == "f"
    assert (new["mse"] != old["mse"])[rows].all() and (new["mse"] == old["mse"])[~rows].all()


def test_a_module_that_is_edited_between_its_import_and_its_first_run_is_refused(module):
    """As while a model loads, or after a first try: the rows of the old code were stored as those of the new one."""
    code = "def f(query, key, value, size, rng): return 0 * query + {} * value.mean(0)\n"
    module("tried", code.format(1))
    arrays = random_heads(np.random.default_rng(0), 1, 16, 4)
    fb.method_attention(*(arrays[name][0] for name in "qkv"), "tried:f", 4)
    Path("tried.py").write_text(code.format(10))
    with pytest.raises(ScenarioError, match=r"tried\.py has changed since Python imported it: importlib"):
        fb.sweep(KEYS | {"maps": "none", "methods": "tried:f", "inputs": "gaussian"}, "new", seq_len=16, head_dim=4)


BUILT = f"built{EXTENSION_SUFFIXES[0]}"


@pytest.mark.parametrize("edited", ["plain.py", "parts/__init__.py", "parts/inner.py", "named.py", BUILT])
def test_a_run_notices_an_edit_of_what_its_module_imports(module, edited):
    """Rows of two versions of an estimator would stand in one run."""
    Path("parts").mkdir()
    files = {
        "plain.py": "FACTOR = 1\n",
        "named.py": "FACTOR = 1\n",
        BUILT: "of C",
        "parts/__init__.py": "nothing = 0\n",
        "parts/inner.py": "from . import nothing",
    }
    keys = KEYS | {"maps": "none", "methods": "using:f", "inputs": "gaussian", "seq_len": 16, "head_dim": 4}
    code = "import importlib, plain\nnamed = importlib.import_module('named')\n"
    code += "def f(query, key, value, size, rng):\n    import built\n    from parts.inner import nothing\n"
    code += "    return value\n"

    def write(end=""):
        for name in ("plain", "named"):
            sys.modules.pop(name, None)
        module("using", code)
        for name in files:
            Path(name).write_text(files[name] + (end if name == edited else ""), encoding="utf-8")

    def digest():
        return Study.of(as_scenario(keys)).digest

    write()
    before = digest()
    assert digest() == before
    write("# edited\n")
    assert digest() != before
    write()
    assert digest() == before
    Path("plain.py").write_text("FACTOR = 2\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"plain\.py has changed .*reload that module, then the module using, or"):
        digest()


@pytest.mark.parametrize(
    "spec", ["sinks(2, sampler='{}:S'):positive", "sinks(1):window(2, sampler='antithetic:{}:S'):trig"]
)
def test_a_run_notices_an_edit_of_the_sampler_of_a_prefix(module, spec):
    """The rows of the old sampler were taken for those of the new one."""
    code = "from dataclasses import dataclass\nimport favorbench as fb\n@dataclass(frozen=True)\nclass S(fb.Sampler):\n"
    code += "    name, reference, coupling = 'mine', '-', 'independent'\n"
    code += "    def sample(self, rng, n, d): return {} * rng.standard_normal((n, d))\n"
    keys = KEYS | {
        "maps": "none",
        "methods": spec.format("sampling"),
        "inputs": "gaussian",
        "seq_len": 16,
        "head_dim": 4,
    }
    module("sampling", code.format(1))
    before = Study.of(as_scenario(keys))
    assert Study.of(as_scenario(keys)).digest == before.digest
    module("sampling", code.format(3))
    assert Study.of(as_scenario(keys)).digest != before.digest
    assert list(user_sources(before.methods)) == ["sampling"]  # of studies of models


def test_a_module_that_is_reloaded_without_what_it_imports_is_refused(module):
    """importlib.reload(using) leaves the old code of `plain` in memory, and the new digest was stored with its rows."""
    module("plain", "FACTOR = 1\n")
    module("using", "import plain\ndef f(query, key, value, size, rng):\n    return plain.FACTOR * value\n")
    before, using = module_digest("using"), sys.modules["using"]
    Path("plain.py").write_text("FACTOR = 22\n", encoding="utf-8")
    importlib.reload(using)
    with pytest.raises(ScenarioError, match=r"plain\.py has changed .*reload that module, then the module using, or"):
        module_digest("using")
    importlib.reload(sys.modules["plain"])
    importlib.reload(using)
    assert module_digest("using") != before


def test_of_an_installed_module_its_package_counts_alone():
    for folder, files in (("dist-packages", 1), ("elsewhere", 2)):
        Path(folder).mkdir()
        Path(folder, "large.py").write_text("", encoding="utf-8")
        Path(folder, "using.py").write_text("import large\n", encoding="utf-8")
        assert len(sources_of("using", Path(folder, "using.py").resolve())) == files
        package = Path(folder, "package").resolve()
        package.mkdir()
        (package / "__init__.py").write_text("from package.inner import f\nimport large\n", encoding="utf-8")
        (package / "inner.py").write_text("", encoding="utf-8")
        for name, file in (("package", "__init__.py"), ("package.inner", "inner.py")):
            assert {*sources_of(name, package / file)} >= {package / "__init__.py", package / "inner.py"}
            assert len(sources_of(name, package / file)) == files + 1


def test_what_a_module_imports_from_elsewhere_counts(module, monkeypatch):
    """As from src, or from a package that is installed to be edited; the run of the old code was taken for its own."""
    inner = Path("src", "elsewhere", "inner.py").resolve()
    inner.parent.mkdir(parents=True)
    inner.write_text("FACTOR = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(inner.parents[1])
    plain = "import json, numpy, pandas, scipy\nfrom elsewhere.inner import FACTOR\n"
    module("plain", plain)
    module("using", "def f(query, key, value, size, rng):\n    from elsewhere.inner import FACTOR\n    return value\n")
    for name in ("plain", "using"):
        assert {*sources_of(name, file := Path(f"{name}.py").resolve())} == {file, inner}
    assert imported_in_functions("using", Path("using.py").resolve()) == {"elsewhere.inner"}
    before = module_digest("plain")
    inner.write_text("FACTOR = 22\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "elsewhere.inner")
    module("plain", plain)
    assert module_digest("plain") != before


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_workers_read_the_requested_file(change):
    """Processes of two workers start when the file has changed already: they compare the digest, not the time."""
    write("x.npz", 0, heads=40)
    whole = fb.sweep(KEYS, "whole").trials
    code = f"""
import favorbench as fb, test_changing_files as t
def progress(done, total):
    if not done: t.CHANGES[{change!r}]()
if __name__ == "__main__":
    try:
        fb.sweep(t.KEYS, "run", workers=2, progress=progress)
    except fb.errors.FavorbenchError as error:
        print(type(error).__name__, error)
"""
    Path("script.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = python("script.py", env=environment, timeout=300)
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and "Error" in done.stdout, done.stderr
    write("x.npz", 0, heads=40)
    pd.testing.assert_frame_equal(fb.sweep(KEYS, "run").trials, whole)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 24, 4), (24, 3, 4), (2, 3, 24, 4), (24, 4), ()])
def test_parts_of_arrays_are_read_without_mapping_the_file(monkeypatch, order, shape):
    """Every kind of index that heads are read by, in pieces of a few rows."""
    array = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    np.savez("x.npz", q=array)
    monkeypatch.setattr("favorbench.inputs.stored.BLOCK", 100)
    stored = open_contents("x.npz").arrays["q"]
    indices = [
        (),
        *((1,), (1, slice(0, 9)), (slice(0, 9), 1), (1, slice(0, 2), 2)) * (len(shape) > 2),
        (slice(0, 3),) * bool(shape),
    ]
    for index in indices:
        assert_array_equal(stored.part(index), array[index])


def test_a_digest_may_be_left_open():
    write("x.npz", 0)
    pinned, free = File("x.npz").pinned(), File("x.npz")
    assert pinned.digest() == free.digest() == pinned.sha256
    replace_by_rename()
    assert free.digest() != pinned.digest()
    assert len(free.heads(None, None)) == 3
    with pytest.raises(InputError, match="have changed"):
        pinned.heads(None, None)


MODULE = """
def mine(query, key, value, size, rng):
    return value[: len(query)] * {factor}
"""


@pytest.mark.parametrize("here", [True, False])
def test_workers_use_the_module_that_was_imported(module, monkeypatch, here):
    """It has changed when a worker imports it: the rows would be those of two modules. here: in this directory."""
    if not here:
        monkeypatch.setattr("favorbench.engine.tasks.modules_here", list)
    module("changing_module", MODULE.format(factor=1))
    keys = KEYS | {"maps": "none", "methods": "changing_module:mine", "inputs": "gaussian", "seq_len": 8, "head_dim": 2}
    study = Study.of(as_scenario(keys))
    bundle = TaskBundle.of(run_draws, study)
    draw = plan(study)[0]
    assert run_items(bundle, [[draw]]).results
    module("changing_module", MODULE.format(factor=2))
    load_bundle.cache_clear()  # as in another worker
    error = run_items(bundle, [[draw]]).error
    assert isinstance(error, ScenarioError) and re.search(r"changing_module:mine.*has changed since", str(error))


def test_workers_of_a_search_use_the_module_that_was_imported(module):
    """Their rows, of the edited module, were saved under the digest of the module before."""
    code = f"{MODULE}mine.multiplications = lambda shape, size: 9\n"
    module("changing_module", code.format(factor=1))
    later = LaterProcess(lambda: module("changing_module", code.format(factor=2)))
    heads = np.random.default_rng(0).normal(size=(3, 2, 16, 4))
    with pytest.raises(ScenarioError, match=r"changing_module:mine has changed since the run began"):
        fb.recommend((*heads,), methods="changing_module:mine", maps="none", target=1e-6, workers=later)


@pytest.mark.parametrize("name", ["mine.npz", "other.npz"])
def test_a_run_is_resumed_where_it_was_moved_to(monkeypatch, name):
    """With or without its inputs, also under other names, it is the same run: files are known by their contents."""
    Path("data").mkdir()
    write("data/mine.npz", 0)
    here = KEYS | {"inputs": "data/mine.npz"}
    whole = fb.sweep(here, "whole").trials
    with pytest.raises(KeyboardInterrupt):
        fb.sweep(here, "run", progress=stop_after(3))
    assert fb.load("run").manifest["draws_done"] == 3
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/another-name")
    shutil.move("data/mine.npz", f"elsewhere/{name}")
    shutil.rmtree("data")
    assert len(fb.load("elsewhere/another-name").trials)  # to read it, its inputs are not needed
    monkeypatch.chdir("elsewhere")
    there = here | {"inputs": name}
    began = []
    moved = fb.sweep(there, "another-name", progress=lambda done, total: began.append(done))
    assert began[0] == 3
    same_rows(moved.trials, whole)
    write(name, 1)
    with pytest.raises(StoreError, match="holds another run"):
        fb.sweep(there, "another-name")


def test_files_of_one_name_are_the_same_inputs_by_any_path():
    """Those of the first part of a run: there were four inputs, each with half of the draws."""
    for folder in ("a", "b"):
        Path(folder).mkdir()
        write(f"{folder}/mine.npz", ord(folder))
    asked = KEYS | {"inputs": "a/mine.npz,b/mine.npz"}
    with pytest.raises(KeyboardInterrupt):
        fb.sweep(asked, "run", progress=stop_after(3))
    resumed = fb.sweep(asked | {"inputs": f"{Path('a/mine.npz').resolve()},./b/mine.npz"}, "run")
    same_rows(resumed.trials, fb.sweep(asked, "whole").trials)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["x/a/mine.npz", "/y/b/mine.npz"], ["a/mine.npz", "b/mine.npz"]),
        (["/x/a/mine.npz", "/y/a/mine.npz", "/y/other.npz"], ["x/a/mine.npz", "y/a/mine.npz", "other.npz"]),
        (["mine.npz", "../mine.npz"], ["mine.npz", "../mine.npz"]),
        (["/mine.npz", "/x/mine.npz", "gaussian"], ["/mine.npz", "x/mine.npz", "gaussian"]),
    ],
)
def test_files_of_one_name_are_called_by_the_folders_that_tell_them_apart(paths, names):
    """Whole paths were cut to the name where a page is made to be sent: it showed two inputs as one."""
    laws = [get_input("gaussian") if path == "gaussian" else object.__new__(File) for path in paths]
    assert labels_of(paths, laws) == names
