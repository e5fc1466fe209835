"""Seconds of a finished run: every estimator has its own, beside the rows, and the figure joins them with errors."""

import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from favorbench.errors import StoreError
from favorbench.results import heads
from favorbench.results.figures import draw_all
from favorbench.results.results import load
from favorbench.results.seconds import TIMED, by_cell, exact_seconds, read_seconds, write_seconds
from favorbench.results.summary import is_oracle
from favorbench.run import sweep
from favorbench.studies.speed import calls
from tests.command_line import check_refused, refused, run
from tests.conftest import small_scenario
from tests.test_calibration import heads_file
from tests.test_heads import head_file, of_heads

ASKED = []


def first_keys(query, key, value, size, rng):
    ASKED.append((len(query), size))
    return np.tile(np.mean(value[:size], axis=0), (len(query), 1))


@pytest.fixture
def clock(monkeypatch):
    """Every call takes longer than the one before: no two estimators have the same seconds."""
    ticks = itertools.count(1)
    monkeypatch.setattr(calls, "seconds_of", lambda call, backend: call() is None or 1e-3 * next(ticks))


def timed(directory, repeats=3):
    found = calls.time_run(Path(directory), repeats)
    write_seconds(Path(directory), found)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {
            "methods": "clusters,nystrom,top(2):clusters",
            "baselines": "uniform,taylor-1,sampled-keys,top-keys,best-rank",
        },
        {"maps": "positive,elu,trig", "budget": "features", "num_projections": "4,8", "redraw": "R"},
        {"methods": "window(4):multipole,sinks(1):positive", "causal": True, "dtype": "float64,float32"},
        {"scale": "0.5,1", "samplers": "iid,orthogonal,antithetic:iid", "num_projections": "8"},
        {"methods": "clusters", "budget": "cost", "num_projections": "8,20", "query_rows": 5},
    ],
)
def test_every_estimator_at_every_size_has_its_seconds(changes):
    """All that the run has rows of, but for the bounds among baselines: the independent list is the run's own."""
    results = of_heads(3, **changes)
    found = timed("run").rows
    rows = results.trials[
        (results.trials["kind"] != "baseline") | ~results.trials["estimator"].map(is_oracle).astype(bool)
    ]
    keys = [name for name in TIMED if name != "head"]
    expected = rows[keys].astype(object).where(rows[keys].notna(), None)
    measured = found[found["kind"] != "exact"][keys].astype(object)
    measured = measured.where(measured.notna(), None)
    assert set(measured.itertuples(index=False, name=None)) == set(expected.itertuples(index=False, name=None))
    assert len(measured) == len(measured.drop_duplicates()) and set(found["head"]) == {"h0"}
    assert ((found["low"] > 0) & (found["low"] <= found["seconds"]) & (found["seconds"] <= found["high"])).all()
    for _, cell in by_cell(read_seconds(Path("run"))):
        assert exact_seconds(cell) == cell[cell["estimator"].isin(["exact", "exact, torch SDPA"])]["seconds"].min() > 0


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_calibrated_maps_are_timed_as_the_calibration_of_the_run_fits_them(backend, rng):
    pytest.importorskip(backend)
    heads_file("test.npz", rng), heads_file("other.npz", rng)
    specs = {"maps": "calibrated:centre:oprf,positive", "methods": "sinks(2):calibrated:aderf-sderf,clusters"}
    files = {"inputs": "test.npz", "calibrate": "other.npz", "seq_len": None, "head_dim": None}
    sweep(small_scenario(**files, **specs, samplers="iid", backend=backend, dtype="float64,float32"), "run")
    timings = timed("run").rows
    assert {*specs["maps"].split(","), *specs["methods"].split(",")} < set(timings["estimator"])
    assert (timings["seconds"] > 0).all()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_run_of_torch_is_timed_with_torch():
    of_heads(2, backend="torch", dtype="float32,bfloat16", methods="clusters,nystrom", num_projections="8")
    found = timed("run")
    assert found.where == "torch, one core" and set(found.rows["dtype"]) == {"float32", "bfloat16"}


def test_seconds_are_stored_next_to_the_run_without_changing_it(clock):
    before = of_heads(3)
    written = timed("run")
    again = load("run")
    pd.testing.assert_frame_equal(again.trials, before.trials)
    back = read_seconds(Path("run"))
    pd.testing.assert_frame_equal(back.rows, written.rows)
    assert back._replace(rows=None) == written._replace(rows=None)
    kept = json.loads(Path("run/seconds.json").read_text())
    assert {"cpu", "cores", "gpu", "blas", "blas_threads_per_worker", "platform"} <= set(kept["machine"])
    assert back.on().endswith(back.date[:10]) and "NumPy, one core" in back.on()
    sweep(before.scenario, "run")  # resumes: nothing to do, and nothing foreign in it


@pytest.mark.parametrize("count", [3, 7])
def test_the_figure_joins_seconds_and_errors(clock, count):
    results = of_heads(count, methods="clusters,multipole")
    assert "error-vs-seconds" not in {file.stem for file in draw_all(results)}
    found = timed("run").rows
    assert "error-vs-seconds" in {file.stem for file in draw_all(results)}
    data = pd.read_csv("run/figures/error-vs-seconds.csv").astype({"num_projections": "Int64"})
    assert set(data["heads"]) == ({7} if count == 7 else {3, 1})  # of few heads each has a panel, too
    over = data[data["heads"] == count].set_index(["label", "num_projections"])
    assert {"clusters", "multipole", "positive / iid"} <= set(over.index.get_level_values(0))
    table = heads.over_heads(results).set_index(["estimator", "num_projections"])
    for (name, size), row in over[over["kind"] != "baseline"].iterrows():
        plain = name.partition(" / ")[0]
        (one,) = found.query("estimator == @plain and num_projections == @size").itertuples()
        assert (row["seconds"], row["cost_low"], row["cost_high"]) == pytest.approx((one.seconds, one.low, one.high))
        assert row["ratio"] == pytest.approx(table.loc[(plain, size), "ratio_median"], rel=1e-12)
    assert over["seconds"].is_unique  # the control: a join that mixed sizes would repeat some
    (line,) = (line for line in results.plot("error-vs-seconds").lines if line.get_label() == "exact attention")
    assert line.get_xdata()[0] == pytest.approx(exact_seconds(found))  # of torch's and NumPy's, the faster


def test_times_of_a_busy_machine_are_doubted():
    of_heads(2)
    found = timed("run")
    quiet = found._replace(rows=found.rows.assign(low=1e-3, seconds=1.1e-3, high=1.9e-3))
    assert quiet.doubts() == ""
    busy = quiet._replace(rows=quiet.rows.assign(high=[2.1e-3, *quiet.rows["high"][1:]]))
    assert busy.doubts().startswith(f"1 of {len(busy.rows)} have times that differ by more than a factor of 2")


def test_one_size_each_is_a_figure_too(clock):
    results = of_heads(7, methods="clusters,multipole", num_projections="8")
    timed("run")
    assert {"error-vs-cost", "error-vs-seconds"} <= {file.stem for file in draw_all(results)}


def test_a_users_function_is_timed_by_itself(monkeypatch):
    monkeypatch.setenv("FAVORBENCH_TRUST", __name__.partition(".")[0])  # a module that is not of the working directory
    of_heads(2, methods=f"{__name__}:first_keys", num_projections="4,8")
    ASKED.clear()
    found = timed("run", 4).rows.query("estimator == 'first_keys'")
    assert sorted(found["num_projections"]) == [4, 8]
    assert ASKED.count((24, 4)) in range(5, 10)  # a warm-up and four turns, each once or, being short, twice


@pytest.mark.slow
def test_the_command_and_the_plot_that_follows():
    head_file(3)
    run("sweep --inputs heads.npz --maps positive --methods clusters -R 3,8 --trials 2 -q --out run")
    code, out, err = run("plot", "run")
    assert code == 0 and "error-vs-cost.png" in out and "favorbench speed run" in err
    assert "favorbench speed" not in run("plot run -q")[2]
    code, out, err = run("speed run --repeats 3")
    assert code == 0 and "clusters" in out and "exact" in out and "run/seconds.json" in out and "plot run" in err
    assert max(len(line) for line in out.splitlines() if " to " in line) <= 100
    assert {"rows", "machine", "date", "file"} <= set(json.loads(run("time run --repeats 3 --json -q")[1]))
    code, out, err = run("plot", "run")
    assert code == 0 and "error-vs-seconds.png" in out and "favorbench speed" not in err


def test_missing_or_changed_inputs_are_one_line():
    check_refused("speed nowhere => is not a favorbench run")
    of_heads(3)
    Path("heads.npz").rename("away.npz")
    said = refused("speed", "run")
    assert "run cannot be timed as it was measured: inputs: cannot read inputs 'heads.npz'" in said
    with np.load("away.npz") as arrays:
        np.savez("heads.npz", **{name: arrays[name][:, :12] for name in arrays.files})
    check_refused("speed run => its input file, or a module of yours that it uses, has changed since")
    assert not Path("run/seconds.json").exists()
    check_refused("speed run -L 64 --maps trig => --maps, --seq-len: run has its own estimators and inputs")


def test_arrays_in_memory_are_not_taken_for_an_unknown_name():
    arrays = np.ones((3, 1, 8, 2))
    sweep(maps="positive", num_projections=2, trials=1, inputs={"mine": tuple(arrays)}, out="held")
    check_refused("speed held => its input 'mine' is no file or folder here, and arrays in memory are not stored")


def test_the_old_name_says_the_new_one():
    of_heads(2)
    code, _, err = run("time run --repeats 3")
    assert code == 0 and "favorbench time is now favorbench speed;" in err and Path("run/seconds.json").exists()


def test_no_figure_of_a_recommendation_is_promised():
    head_file(1)
    run("recommend heads.npz --target 0.9 --max-size 2 -q --out choice")
    code, _, err = run("speed choice --repeats 3")
    assert code == 0 and Path("choice/seconds.json").exists() and "favorbench plot" not in err


def test_an_interruption_keeps_stored_seconds(monkeypatch):
    of_heads(2)
    timed("run")
    before = Path("run/seconds.json").read_bytes()

    def broken_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(calls, "interleaved", broken_off)
    code, out, err = run("speed", "run")
    assert (code, out) == (130, "") and err.count("\n") == 1 and "interrupted: no seconds of run are kept" in err
    assert Path("run/seconds.json").read_bytes() == before


@pytest.mark.parametrize("break_it", ["not json", "rows", "digest", "format", "machine", "cell"])
def test_damaged_seconds_are_one_line_and_the_other_figures_are_drawn(break_it, clock):
    of_heads(2)
    timed("run")
    content = json.loads(Path("run/seconds.json").read_text())
    changed = {"rows": [1, 2], "digest": "other", "format": 0, "machine": {}, "cell": None}
    content["rows"][0] |= {"query_rows": None} if break_it == "cell" else {}
    text = "{" if break_it == "not json" else json.dumps(content | {break_it: changed[break_it]})
    Path("run/seconds.json").write_text(text)
    with pytest.raises(StoreError, match="favorbench speed run"):
        read_seconds(Path("run"))
    said = refused("plot", "run")
    assert "seconds.json" in said and Path("run/figures/error-vs-cost.png").exists()


def test_one_cell_without_heads(clock):
    sweep(small_scenario(methods="clusters"), "drawn")
    assert set(timed("drawn").rows["head"]) == {"-"}
    assert "error-vs-seconds" in {file.stem for file in draw_all(load("drawn"))}
