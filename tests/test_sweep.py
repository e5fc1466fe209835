"""The sweep: the same bits in any order and with any workers, resumed after anything, refused where it must be."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import threadpoolctl
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.engine import rows as rows_module
from favorbench.engine import trial
from favorbench.engine.columns import LABELS
from favorbench.engine.plan import plan
from favorbench.engine.provenance import machine
from favorbench.engine.scenario import override
from favorbench.engine.store import read_manifest, read_trials
from favorbench.engine.study import Study
from favorbench.engine.trial import problem_of, run_draws
from favorbench.errors import EstimatorError, ScenarioError, StoreError, WorkerError
from favorbench.files import written_whole
from favorbench.inputs import get_input
from favorbench.maps import get_map
from favorbench.metrics import METRICS
from favorbench.numerics.backend import Backend
from favorbench.numerics.streams import Streams, stream
from favorbench.results.tables import describe_cell
from favorbench.run import sweep
from favorbench.samplers import get_sampler
from tests.command_line import python
from tests.conftest import change_manifest, parts, rows_of, same_rows, small_scenario, stop_after

KEY = ["trial", "estimator", "sampler", "num_projections"]
SIZES = "3,5,8,12,20,22"
METHODS_OF_ALL_KINDS = "clusters,multipole,lara,nystrom,monarch,sinks(2):window(3):sampled-keys,top(2):positive"


def test_rows_equal_the_slow_way():
    """Each cell alone, dense, from the documented streams: the reference for the engine."""
    scenario = small_scenario(maps="positive,trig,hyperbolic,phase,positive-eps,trig-blog", trials=2)
    scenario = scenario.model_copy(update={"samplers": ("iid", "orthogonal", "orthogonal-blog"), "scale": (0.7,)})
    rows = rows_of(scenario).set_index(["trial", "estimator", "sampler", "num_projections"])["mse"]
    for draw in plan(Study.of(scenario)):
        q, k, v = get_input("gaussian").draw(stream(0, "inputs", *draw.stream_names), draw.head)
        x, y = 0.7 * q * 4**-0.25, 0.7 * k * 4**-0.25
        weights = np.exp(x @ y.T)
        exact = weights @ v / weights.sum(-1, keepdims=True)
        for sampler in scenario.samplers:
            for name in scenario.maps:
                for size in (3, 8, 20):
                    omega = get_sampler(sampler).sample(stream(0, "omega", sampler, *draw.stream_names), size, 4)
                    extra = get_map(name).draw_extra(stream(0, "extra", name, sampler, *draw.stream_names), size, 4)
                    fitted = get_map(name).fit(x, y, omega)
                    kernel = fb.kernel_estimate(x, y, fb.maps.Sample(omega, extra), fitted)  # pyright: ignore
                    normaliser = kernel.sum(-1, keepdims=True)
                    mse = np.mean((kernel @ v / normaliser - exact) ** 2)
                    condition = np.max(np.abs(kernel).sum(-1) / np.abs(normaliser[:, 0]))
                    assert rows[draw.trial, name, sampler, size] == pytest.approx(mse, rel=1e-10 * condition)


@pytest.mark.parametrize(
    "few, more",
    [
        ({}, {"maps": "phase,hyperbolic,positive,trig", "samplers": "gram-schmidt,orthogonal,iid"}),
        ({"methods": METHODS_OF_ALL_KINDS}, {"methods": f"thinformer,{METHODS_OF_ALL_KINDS},clusters(lloyd=1)"}),
    ],
)
def test_adding_estimators_and_sizes_changes_rows_by_rounding_at_most(few, more):
    few, many = (
        rows_of(small_scenario(**flags)).set_index(KEY)["mse"] for flags in (few, more | {"num_projections": SIZES})
    )
    assert_allclose(many[few.index], few, rtol=1e-10)


class _FirstRows:
    """A generator that picks the first rows, where a random sample is asked for."""

    def choice(self, n, size, replace):
        return np.arange(size)


@pytest.mark.parametrize("biased", [False, True])
def test_the_error_on_sampled_rows_is_unbiased(monkeypatch, biased):
    """Mean of (sampled / full mse) over independent samples of rows is 1; not so if the rows are not random."""
    rng, length = np.random.default_rng(0), 64
    growing = np.linspace(0.1, 2.0, length)[:, None]  # the error depends on the row
    np.savez(
        "own.npz",
        q=growing * rng.normal(size=(length, 4)),
        k=rng.normal(size=(length, 4)),
        v=rng.normal(size=(length, 4)),
    )
    if biased:
        monkeypatch.setattr(
            trial, "stream", lambda *names: _FirstRows() if names[1] == "query rows" else stream(*names)
        )
    flags = {
        "maps": "positive",
        "inputs": "own.npz",
        "seq_len": None,
        "head_dim": None,
        "trials": 200,
        "samplers": "iid",
    }
    full, sampled = (
        rows_of(small_scenario(**flags, query_rows=n)).fillna({"num_projections": 0}).set_index(KEY) for n in (None, 8)
    )
    assert set(sampled["query_rows"]) == {8} and set(full["query_rows"]) == {length}
    z = []
    for name, size in (("positive", 3), ("positive", 20), ("uniform", 0)):
        ratio = (sampled["mse"] / full["mse"]).xs((name, size), level=("estimator", "num_projections"))
        z.append((ratio.mean() - 1) / (ratio.std(ddof=1) / len(ratio) ** 0.5 + 1e-12))
    assert (np.max(np.abs(z)) > 5) == biased  # 5: false alarm once in a million


def test_long_inputs_are_measured_on_a_sample_of_rows():
    scenario = small_scenario(seq_len="5000", trials=1)
    assert scenario.rows(4096) == 4096 and scenario.rows(4097) == 1024
    rows = rows_of(scenario)
    assert set(rows["query_rows"]) == {1024} and "best-rank" not in set(rows["estimator"])
    assert "L = 5000 (1024 query rows measured)" in describe_cell(rows.iloc[0])


def test_a_causal_sweep_is_measured_against_masked_attention():
    """Rows say so; where only some query rows are measured, the error is that of these rows."""
    scenario = small_scenario(causal=True, seq_len="200", maps="positive,trig,taylor", trials=1)
    assert "best-rank" not in scenario.baselines
    rows = rows_of(scenario)
    assert set(rows["causal"]) == {"yes"} and ", causal" in describe_cell(rows.iloc[0])
    (draw,) = plan(Study.of(scenario))
    q, k, v = get_input("gaussian").draw(stream(0, "inputs", *draw.stream_names), draw.head)
    exact = fb.exact_attention(q, k, v, causal=True)
    omega = get_sampler("iid").sample(stream(0, "omega", "iid", *draw.stream_names), 20, 4)
    found = fb.linear_attention(q, k, v, omega, map="positive", causal=True)
    (row,) = rows.query("estimator == 'positive' and sampler == 'iid' and num_projections == 20")["mse"]
    assert_allclose(row, np.mean((found - exact) ** 2), rtol=1e-10)
    means = np.cumsum(v, axis=0) / np.arange(1, 201)[:, None]
    assert_allclose(rows.query("estimator == 'uniform'")["mse"], np.mean((means - exact) ** 2), rtol=1e-10)
    some = override(scenario, query_rows=30)
    positions = np.sort(stream(0, "query rows", *draw.stream_names).choice(200, 30, replace=False))
    (row,) = rows_of(some).query("estimator == 'positive' and sampler == 'iid' and num_projections == 20")["mse"]
    assert_allclose(row, np.mean((found - exact)[positions] ** 2), rtol=1e-10)


@pytest.mark.parametrize("spec", ["sinks(1):centre:oprf", "window(3):sinks(2):aderf"])
def test_maps_inside_prefixes_are_fitted_to_all_queries_where_few_are_measured(spec):
    outputs = []
    for query_rows in (24, 2):
        study = Study.of(small_scenario(maps="positive", methods=spec, query_rows=query_rows, trials=1))
        problem = problem_of(study, plan(study)[0])
        (estimate,) = study.methods[0].estimates(problem, (8,), Streams.of(np.random.default_rng(0)))
        outputs.append(estimate.output)
    assert_allclose(outputs[1], outputs[0][problem.positions], rtol=1e-10)


@pytest.mark.parametrize(
    "flags, name", [({"maps": "positive-eps"}, "positive-eps"), ({"baselines": "best-rank"}, "best-rank")]
)
def test_members_that_see_the_whole_sequence_are_refused_in_a_causal_sweep(flags, name):
    with pytest.raises(ScenarioError, match=f"{name}: it uses the whole sequence and cannot be causal"):
        plan(Study.of(small_scenario(causal=True, **flags)))


def test_scale_and_dtype_share_their_random_numbers():
    """Draws that differ only there are paired: float32 is float64 plus rounding, not other numbers."""
    rows = rows_of(small_scenario(dtype="float64,float32", maps="positive", baselines="uniform"))
    double, single = (rows[rows["dtype"] == t].set_index(KEY)["mse"] for t in ("float64", "float32"))
    assert_allclose(single, double, rtol=1e-3)
    assert (single != double).any()


def test_budget_features_compares_at_equal_features():
    rows = rows_of(small_scenario(budget="features", num_projections="8,16"))
    maps = rows.query("kind == 'map'")
    assert set(maps["num_features"]) == {8, 16}
    assert set(maps.query("estimator == 'trig'")["num_projections"]) == {4, 8}


def test_bits_do_not_depend_on_workers_or_order():
    scenario = small_scenario(trials=4)
    serial = sweep(scenario, "serial").trials
    processes = sweep(scenario, "processes", workers=2).trials
    with ThreadPoolExecutor(3) as executor:
        threads = sweep(scenario, "threads", workers=executor).trials
    shuffled = [row for draw in reversed(plan(Study.of(scenario))) for row in run_draws(Study.of(scenario), [draw])[0]]
    backwards = pd.DataFrame(shuffled).sort_values("draw", kind="stable", ignore_index=True)
    for other in (processes, threads, backwards[list(serial.columns)]):
        pd.testing.assert_frame_equal(other, serial, check_exact=True, check_dtype=False)


def test_the_run_directory_has_the_documented_files():
    results = sweep(small_scenario(), "run")
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["complete"] and manifest["draws"] == manifest["draws_done"] == 3
    assert {"scenario", "digest", "versions", "git", "cpu", "blas", "start", "end", "favorbench"} <= set(manifest)
    rows = pd.read_parquet("run/trials")
    assert set(rows.columns) == {*LABELS, *METRICS} - {"effect"}  # there are no gradients
    assert len(rows) == len(results.trials)
    pd.testing.assert_frame_equal(pd.read_csv("run/summary.csv"), results.summary, check_dtype=False)
    assert Path("run/summary.md").read_text().startswith("# quick")


def test_the_commit_is_that_of_favorbench_inside_a_hook_of_another_repository(monkeypatch, tmp_path):
    sweep(small_scenario(), "before")
    subprocess.run(["git", "init", "-q", tmp_path / "other"], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    sweep(small_scenario(), "inside")
    before, inside = (json.loads(Path(run, "manifest.json").read_text())["git"] for run in ("before", "inside"))
    assert inside == before


def test_the_same_sweep_again_computes_nothing():
    first = sweep(small_scenario(), "run")
    calls = []
    again = sweep(small_scenario(), "run", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 3)]
    same_rows(again.trials, first.trials)


@pytest.mark.parametrize("methods", [None, METHODS_OF_ALL_KINDS])
def test_an_interrupted_sweep_resumes_to_the_same_bits(methods):
    scenario = small_scenario(trials=5, methods=methods)
    whole = sweep(scenario, "whole")

    with pytest.raises(KeyboardInterrupt):
        sweep(scenario, "run", progress=stop_after(2))
    partial = fb.load("run")
    assert not partial.manifest["complete"] and partial.trials["draw"].nunique() == 2
    assert "PARTIAL: 2 of 5 draws" in Path("run/summary.md").read_text()
    resumed = sweep(scenario, "run")
    same_rows(resumed.trials, whole.trials)
    assert resumed.manifest["complete"] and "PARTIAL" not in Path("run/summary.md").read_text()


def test_processes_end_where_a_sweep_is_interrupted_between_two_draws(monkeypatch):
    """A traceback kept them to the end of Python, which takes them apart in any order, once with an error."""
    ended = []

    class Interrupts(list):
        def __len__(self):
            raise KeyboardInterrupt

    def results(*work):
        try:
            yield Interrupts(), []
        finally:
            ended.append(True)

    monkeypatch.setattr("favorbench.run.results_of_processes", results)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        sweep(small_scenario(), "run", workers=2)
    assert interrupted.traceback and ended


def test_a_summary_that_could_not_be_written_is_written_later(monkeypatch):
    """Else that of the first draws stays for ever, as nothing is missing any more."""

    def full(path, text):
        raise StoreError("quota exceeded")

    scenario = small_scenario(trials=5)
    with pytest.raises(KeyboardInterrupt):
        sweep(scenario, "run", progress=stop_after(2))
    assert "PARTIAL: 2 of" in Path("run/summary.md").read_text()
    with monkeypatch.context() as patched, pytest.raises(StoreError, match="quota"):
        patched.setattr("favorbench.results.sections.write_text", full)
        sweep(scenario, "run")
    sweep(scenario, "run")
    assert "PARTIAL" not in Path("run/summary.md").read_text()


KILLED = """
import sys
from favorbench.run import sweep
from favorbench.engine.scenario import load_scenario
import favorbench.engine.rows
favorbench.engine.rows.FLUSH_SECONDS = 0.0
if __name__ == "__main__":
    flags = dict(maps="positive,trig", samplers="iid,orthogonal", num_projections="64,512", seq_len="512", trials=40)
    sweep(load_scenario(None, flags | {"baselines": "uniform"}), "run", workers=int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_then_the_same_command_gives_the_same_table(workers):
    """A real SIGKILL of a real process, at a moment when some parts are there and others are not."""
    Path("killed.py").write_text(KILLED)
    command = [sys.executable, "killed.py", str(workers)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while len(parts()) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = len(parts())
    assert 3 <= saved < 40, "killed too late to test anything"
    subprocess.run(command, check=True)
    resumed = fb.load("run")
    assert resumed.manifest["complete"]
    whole = sweep(resumed.scenario, "whole")
    same_rows(resumed.trials, whole.trials)
    assert Path("run/summary.csv").read_bytes() == Path("whole/summary.csv").read_bytes()


def _sweep_and_save_every_draw(workers):
    """Run in a forked process, so no kill falls into the import of libraries, which saves nothing."""
    rows_module.FLUSH_SECONDS = 0.0
    return sweep(small_scenario(num_projections="3,20", seq_len="64", trials=40), "run", workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers, kills", [(1, 100), (2, 100)])
def test_many_kills_at_any_moment_change_nothing(workers, kills):
    """Killed while it starts, computes, writes, joins its parts or writes its tables; what is there is always right."""
    rng, context, compared, completed = random.Random(workers), multiprocessing.get_context("fork"), 0, 0

    def whole_run(seconds=None):
        process = context.Process(target=_sweep_and_save_every_draw, args=(workers,))
        process.start()
        process.join(seconds)
        if seconds is None:
            assert process.exitcode == 0
        process.kill()
        process.join()

    started = time.monotonic()
    whole_run()
    longest = 1.2 * (time.monotonic() - started)
    whole = fb.load("run").trials
    Path("run").rename("whole")
    for _ in range(kills):
        whole_run(longest * rng.random())
        if parts():
            there = fb.load("run")
            same_rows(there.trials, whole[whole["draw"].isin(there.trials["draw"])].reset_index(drop=True))
            compared += 1
            if there.manifest["complete"]:
                completed += 1
                if rng.random() < 0.5:
                    shutil.rmtree("run")
    whole_run()
    assert 0 < completed < compared
    same_rows(fb.load("run").trials, whole)
    assert Path("run/summary.csv").read_bytes() == Path("whole/summary.csv").read_bytes()
    assert len(pd.read_parquet("run/trials")) == len(whole)


def test_a_truncated_part_is_set_aside_and_computed_again():
    whole = sweep(small_scenario(), "run").trials
    (part,) = parts()
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(StoreError, match="is damaged; rerun the command"):
        fb.load("run")
    again = sweep(small_scenario(), "run")
    assert again.set_aside == (part.name,)
    same_rows(again.trials, whole)
    assert list(Path("run/trials").glob("_damaged-*"))
    assert len(pd.read_parquet("run/trials")) == len(whole)  # what is set aside is not read


def test_another_scenario_in_the_same_directory_is_refused_with_the_differences():
    sweep(small_scenario(), "run")
    with pytest.raises(StoreError, match="trials 3 there, 4 here; use another `out`"):
        sweep(small_scenario(trials=4), "run")


def test_a_second_writer_is_refused_and_readers_are_not():
    def meanwhile(done, total):
        with pytest.raises(StoreError, match="in use by another favorbench"):
            sweep(small_scenario(), "run")
        assert fb.load("run").trials["draw"].nunique() == done == total

    sweep(small_scenario(), "run")
    sweep(small_scenario(), "run", progress=meanwhile)


def test_a_foreign_directory_is_refused(tmp_path):
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="not empty and not a favorbench run"):
        sweep(small_scenario(), "mine")
    assert os.listdir("mine") == ["thesis.tex"]
    Path("file").write_text("")
    with pytest.raises(StoreError, match="is a file, not a directory"):
        sweep(small_scenario(), "file")
    for path, said in (("mine", "no manifest.json"), ("absent", "does not exist")):
        with pytest.raises(StoreError, match=said):
            fb.load(path)
    Path("mine/manifest.json").write_text("{")
    with pytest.raises(StoreError, match="not valid JSON"):
        fb.load("mine")
    Path("mine/manifest.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match="is of format 99"):
        fb.load("mine")


def test_a_full_disk_loses_nothing(monkeypatch):
    """The third part does not fit: one clear error, the first two stay, and the sweep resumes."""
    monkeypatch.setattr("favorbench.engine.rows.FLUSH_SECONDS", 0.0)
    written = []

    def full(path, data):
        with written_whole(path) as file:
            file.write(data if len(written) < 2 else data[:100])
            if len(written) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr("favorbench.engine.rows.write_whole", full)
        with pytest.raises(StoreError, match="No space left on device; saved results are intact"):
            sweep(small_scenario(trials=5), "run")
    assert read_trials(Path("run"))["draw"].nunique() == 2
    assert not list(Path("run/trials").glob(".*.tmp"))
    whole = sweep(small_scenario(trials=5), "whole").trials
    same_rows(sweep(small_scenario(trials=5), "run").trials, whole)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_one_clear_line():
    Path("locked").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        sweep(small_scenario(), "locked/run")


DYING = """
import os
from pathlib import Path
from dataclasses import dataclass
from favorbench.maps.random_features import Positive

@dataclass(frozen=True)
class Dying(Positive):
    name = "dying"

    def features(self, x, projection, sample):
        if {condition}:
            Path("died").touch()
            os._exit(9)
        return super().features(x, projection, sample)
"""


def test_a_worker_that_dies_once_costs_nothing(module):
    module("dying", DYING.format(condition="not Path('died').exists()"))
    scenario = small_scenario(maps="dying:Dying", trials=6)
    found = sweep(scenario, "run", workers=2).trials
    assert Path("died").exists()
    same_rows(found, sweep(scenario, "serial").trials)


def test_a_draw_that_kills_its_worker_fails_alone(module):
    scenario = small_scenario(trials=6)
    draw = plan(Study.of(scenario))[3]
    query = get_input("gaussian").draw(stream(0, "inputs", *draw.stream_names), draw.head).query
    module("dying", DYING.format(condition=f"abs(x[0, 0] - {float(query[0, 0]) * 4**-0.25!r}) < 1e-12"))
    with pytest.raises(WorkerError, match=r"draws missing: 1, .* the first is draw 3, gaussian, L = "):
        sweep(small_scenario(maps="dying:Dying", trials=6), "run", workers=2)
    assert set(pd.read_parquet("run/trials")["draw"]) == {0, 1, 2, 4, 5}


def test_if_every_worker_dies_it_ends_at_once(module):
    module("dying", DYING.format(condition="True"))
    with pytest.raises(WorkerError, match="draws missing: "):
        sweep(small_scenario(maps="dying:Dying", trials=1000), "run", workers=2)


def test_any_changed_byte_of_a_part_is_noticed(rng):
    """Parts are named by their contents: no flipped bit and no copied file is ever read as data."""
    whole = sweep(small_scenario(), "run").trials
    (part,) = parts()
    data = part.read_bytes()
    for position in rng.integers(len(data), size=40):
        part.write_bytes(data[:position] + bytes([data[position] ^ 1 << int(rng.integers(8))]) + data[position + 1 :])
        with pytest.raises(StoreError, match="is damaged"):
            fb.load("run")
    part.write_bytes(data)
    part.with_name("part-copy.parquet").write_bytes(data)
    again = sweep(small_scenario(), "run")
    assert again.set_aside == ("part-copy.parquet",)
    same_rows(again.trials, whole)


def test_trials_without_a_manifest_may_be_replaced():
    sweep(small_scenario(), "run")
    Path("run/manifest.json").unlink()
    with pytest.raises(StoreError, match="has trials but no manifest"):
        sweep(small_scenario(trials=5), "run")


def test_a_run_whose_raw_trials_were_not_kept_can_be_made_again():
    first = sweep(small_scenario(), "run").trials
    for part in parts():
        part.unlink()
    Path("run/manifest.json").unlink()
    same_rows(sweep(small_scenario(), "run").trials, first)


def test_a_killed_run_says_how_much_is_there():
    """kill -9 leaves a manifest that was never finished: what counts is what is in the parts."""
    sweep(small_scenario(), "run")
    change_manifest("run", draws_done=0, complete=False, draws=7)
    found = fb.load("run").manifest
    assert (found["draws_done"], found["draws"], found["complete"]) == (3, 7, False)


EDITED = """
from dataclasses import dataclass
from favorbench.maps.random_features import Positive

@dataclass(frozen=True)
class Mine(Positive):
    name = "mine"
"""


def test_an_edited_map_of_the_users_is_noticed_and_not_needed_to_read(module):
    module("edited", EDITED)
    sweep(small_scenario(maps="edited:Mine"), "run")
    Path("edited.py").write_text(EDITED + "# another version\n")
    del sys.modules["edited"]  # as in another process
    with pytest.raises(StoreError, match="a module of yours that it uses, has changed since"):
        sweep(small_scenario(maps="edited:Mine"), "run")
    del sys.modules["edited"]
    Path("edited.py").unlink()
    assert set(fb.load("run").trials["estimator"]) >= {"mine"}


FAILING = """
from dataclasses import dataclass
from favorbench.maps.random_features import Positive

@dataclass(frozen=True)
class Failing(Positive):
    name = "failing"
    def features(self, x, projection, sample):
        raise ValueError("several\\nlines")

@dataclass(frozen=True)
class Uniform(Positive):
    name = "uniform"

class NoDataclass(Positive):
    pass
"""


def test_a_users_map_that_fails_is_named(module):
    module("failing", FAILING)
    with pytest.raises(EstimatorError, match="failing under iid failed: ValueError: several"):
        sweep(small_scenario(maps="failing:Failing"), "run")
    with pytest.raises(ScenarioError, match="may not be called 'uniform': that is the name of a baseline"):
        small_scenario(maps="failing:Uniform")


def test_extreme_inputs_are_measurements_not_warnings():
    """Warnings are errors here: one token, one dimension, one draw; and values that overflow the estimator."""
    sweep(small_scenario(num_projections="1", seq_len="1", head_dim="1", trials=1), "tiny")
    found = sweep(small_scenario(scale="60", dtype="float32", trials=2), "huge").trials
    assert np.isfinite(found.query("estimator == 'positive'")["mse"]).all()


@pytest.mark.parametrize("workers", [0, -3, 1.5, "x", True])
def test_invalid_workers_are_refused(workers):
    with pytest.raises(ScenarioError, match=r"`workers`: .* given, allowed: a whole number from 1 on, or an Executor"):
        sweep(small_scenario(), "here", workers)
    assert not Path("here").exists()


def test_a_script_without_its_main_guard_gets_one_line(tmp_path):
    script = tmp_path / "bare.py"
    script.write_text("import favorbench\nfavorbench.sweep({'trials': 2, 'seq_len': '16'}, 'here', workers=2)\n")
    done = python(str(script))
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert "favorbench: this script sweeps in its workers too: `if __name__ == '__main__':` is missing" in lines
    assert "in use by another" not in done.stderr and done.stderr.count("Traceback") <= 2  # the parent's own


@pytest.mark.parametrize("given", ["workers=2", "cluster='local:1'"])
def test_a_script_that_is_piped_into_python_is_told_to_be_a_file(given):
    """Processes import the script that starts them, and ended in FileNotFoundError: "their worker died twice"."""
    if "cluster" in given:
        pytest.importorskip("distributed")
    script = f"import favorbench\nfavorbench.sweep({{'trials': 2, 'seq_len': '16'}}, 'run', {given})\n"
    done = python("-", input=script)
    assert done.returncode == 1 and done.stderr.endswith("this one has no file: write it into one\n")
    assert "FileNotFoundError" not in done.stderr and not Path("run").exists()


@pytest.mark.parametrize("kernel, kinds", [("other", 2), ("here", 0)])
def test_a_run_that_is_resumed_on_another_machine_says_so(kernel, kinds, monkeypatch):
    """Its last digits are those of two processors or BLAS kernels, and it named that of its first draws alone."""

    def interrupt(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(small_scenario(trials=3), "run", progress=interrupt)
    there = machine(Backend())
    if kernel != "here":
        there["blas"] = [pool | {"architecture": kernel} for pool in there["blas"]]
    monkeypatch.setattr("favorbench.engine.store.machine", lambda backend: there, raising=False)
    sweep(small_scenario(trials=3), "run")
    workers, said = read_manifest(Path("run")).get("workers", []), Path("run/summary.md").read_text()
    assert ("Computed on 2 kinds of machine" in said) == (kinds == 2)
    assert [(there | worker == worker, worker["done"]) for worker in workers] == [(True, 2)] * (kinds == 2)


def test_a_process_in_which_torch_or_faiss_is_imported_is_not_another_kind_of_machine(monkeypatch):
    """Their libraries stood beside NumPy's, so a run in two such processes was said to be of two."""
    pools = threadpoolctl.threadpool_info()
    torch = {"user_api": "openmp", "internal_api": "openmp", "version": None, "filepath": "torch/lib/libgomp.so.1"}
    other = {"user_api": "blas", "internal_api": "mkl", "version": "2025", "filepath": "libmkl_rt.so.2"}
    faiss = other | {"filepath": "site-packages/faiss_cpu.libs/libopenblaso-r0.so"}
    opencv = other | {"filepath": "site-packages/cv2/.dylibs/libopenblas.dylib"}
    before = machine(Backend())
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [*pools, torch, faiss, opencv])
    assert machine(Backend()) == before and before["blas"]
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [*pools, other])
    assert len(machine(Backend())["blas"]) == len(before["blas"]) + 1


def test_the_manifest_says_on_how_many_query_rows_errors_are_measured():
    sweep(small_scenario(seq_len="24,48", query_rows=30, trials=1), "here")
    assert json.loads(Path("here/manifest.json").read_text())["query_rows_of_length"] == {"24": 24, "48": 30}
