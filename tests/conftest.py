"""Shared by the tests: small scenarios and random inputs."""

import json
import os
import sys
import zlib
from concurrent.futures import Executor, Future
from pathlib import Path

# Before NumPy is imported: the workers of pytest-xdist share the cores, so each takes one BLAS thread.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

THOROUGH = "THOROUGH" in os.environ  # one job of CI checks shapes in signatures, and renders every figure
if THOROUGH:
    import shape_checks
    from jaxtyping import install_import_hook

    install_import_hook(shape_checks.PACKAGES, "shape_checks.checked")

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

from favorbench.engine.plan import plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.engine.tasks import load_bundle
from favorbench.engine.trial import batches, run_draws
from favorbench.style import charts

REPOSITORY = Path(__file__).resolve().parent.parent

# Hypothesis: no test asserts a time, and where CI is set each run of a commit has the same examples.
settings.register_profile("ours", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ours")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return the number of CPUs that this process may use; pytest-xdist alone counts those of the machine."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    return len(os.sched_getaffinity(0))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Where CASES is set, keep so many cases of each test, evenly spread; which ones differs between tests."""
    most, tests = int(os.environ.get("CASES", len(items))), {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set()
    for name, cases in tests.items():
        step = -(-len(cases) // most)
        kept.update(cases[zlib.crc32(name.encode()) % step :: step])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def campaign(fast, slow):
    """Seeds of a campaign: a few in the fast tests, some in the slow ones, or as many as CAMPAIGN says, 500 a test."""
    last = int(os.environ.get("CAMPAIGN", slow))
    slower = [range(start, min(start + 500, last)) for start in range(fast, last, 500)]
    tests = [range(fast), *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in slower)]
    return pytest.mark.parametrize("seeds", tests, ids=lambda seeds: f"{seeds.start}-{seeds.stop}")


def small_scenario(**changes):
    """A scenario that takes milliseconds."""
    flags = {
        "maps": "positive,trig",
        "samplers": "iid,orthogonal",
        "num_projections": "3,8,20",
        "seq_len": "24",
        "head_dim": "4",
        "trials": 3,
    }
    return load_scenario(None, flags | changes)


def random_heads(rng, *shape):
    """Standard normal q, k and v of one shape, by name, as a file of heads has them."""
    return {name: rng.normal(size=shape) for name in "qkv"}


def parts(run="run"):
    """The files with the rows of a run."""
    return sorted(Path(run, "trials").glob("part-*.parquet"))


def change_manifest(run, **values):
    """Change what the manifest of a run says, as somebody may by hand."""
    file = Path(run, "manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def stop_after(count):
    """A progress callback that interrupts after some steps, as Ctrl-C does."""

    def stop(done, total, step=""):
        if done == count:
            raise KeyboardInterrupt

    return stop


class LaterProcess(Executor):
    """Runs each task at once, as a worker does that starts after a change: it has loaded nothing yet."""

    def __init__(self, change):
        self._change = change

    def submit(self, function, *arguments):
        self._change()
        load_bundle.cache_clear()
        future = Future()
        future.set_result(function(*arguments))
        return future


def same_rows(one, other):
    """Every value of two tables is the same, to the last bit."""
    pd.testing.assert_frame_equal(one, other, check_exact=True)


def pairs(rng, count=4, dim=2, norm=0.7):
    """x and y (count, dim) with zeros, exact zeros as rows, and equal and opposite rows among them."""
    x, y = norm * rng.normal(size=(2, count, dim))
    x[0, 0], y[1, 1], x[2] = 0.0, 0.0, 0.0
    y[3] = -x[3]
    return x, y


def rows_of(scenario, batch=1):
    """The rows of a scenario, computed here, some draws at a time."""
    study = Study.of(scenario)
    draws = plan(study)
    found = [rows for part in batches(draws, range(len(draws)), batch) for rows in run_draws(study, part)]
    return pd.DataFrame([row for rows in found for row in rows]).sort_values("draw", kind="stable", ignore_index=True)


@pytest.fixture
def rng():
    return np.random.default_rng(20240607)


@pytest.fixture
def module(monkeypatch):
    """Writes a module that can be imported, as those in the working directory of a command can."""
    monkeypatch.syspath_prepend(os.getcwd())

    def write(name, text):
        sys.modules.pop(name, None)
        Path(f"{name}.py").write_text(text, encoding="utf-8")

    return write


def _blank(drawing, kind, *_, **options):
    """A placeholder for the image of a figure, in tests that do not look at it."""
    return b'<svg viewBox="0 0 1 1"></svg>' if kind == "svg" else b"not rendered" * 10


@pytest.fixture
def drawn(monkeypatch):
    """Figures by name, laid out, in the place of files."""
    found = {}

    def keep(drawing, directory):
        drawing.figure.draw_without_rendering()
        found[drawing.chart.name] = drawing.figure
        return [directory / f"{drawing.chart.name}.png"]

    monkeypatch.setattr(charts, "save", keep)
    return found


@pytest.fixture(autouse=True)
def _images_of_figures(request, monkeypatch):
    """Drawing a figure writes its numbers and captions; its images only for tests marked ``rendered``, or THOROUGH."""
    if not THOROUGH and not request.node.get_closest_marker("rendered"):
        monkeypatch.setattr(charts, "_image", _blank)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """No test writes into the repository, and none meets the modules of another one, which may have the same name."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
