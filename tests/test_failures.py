"""An estimator that fails on a draw: the others' rows are kept, it is said which failed, and it can be tried again."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.engine.columns import LABELS
from favorbench.engine.store import read_manifest
from favorbench.errors import EstimatorError
from favorbench.results.findings import sentences
from favorbench.results.heads import over_heads, select_heads, summed_effects
from favorbench.results.summary import summarise
from tests.conftest import change_manifest, random_heads

#: A method and a map that fail on some draws while a file is there; not on the first, which would end the sweep.
MODULE = """
import os
from dataclasses import dataclass
import numpy as np
from favorbench.maps.random_features import Positive

def fails(x, when):
    return os.path.exists("broken") and int(abs(x[0, 0]) * 1e6) % 8 == when

def mine(query, key, value, size, rng):
    if fails(key, 1):
        raise ValueError("odd keys")
    return np.repeat(value.mean(axis=0, keepdims=True), len(query), axis=0)

@dataclass(frozen=True)
class Odd(Positive):
    name = "odd"
    def features(self, x, projection, sample):
        if fails(x, 2):
            raise ArithmeticError("odd tokens")
        return super().features(x, projection, sample)
"""
HARD = """
from favorbench import method_attention
calls = []

def easy(query, key, value, size, rng):
    if key.mean() > 4:
        raise ValueError("a hard head")
    return method_attention(query, key, value, "clusters", size=15)

easy.multiplications = lambda shape, size: shape.n * size

def rare(query, key, value, size, rng):
    calls.append(0)
    if len(calls) % 16 > 3:
        raise ValueError("not now")
    return value[: len(query)]
"""
KEYS = {
    "maps": "positive,failing_module:Odd", "methods": "failing_module:mine", "num_projections": "8,16", "seq_len": 32,
    "head_dim": 4, "samplers": "iid,orthogonal", "trials": 24, "seed": 3,
}  # fmt: skip


@pytest.fixture
def failing(module):
    module("failing_module", MODULE)


def broken_sweep(out, workers=1, **more):
    Path("broken").touch()
    try:
        return fb.sweep(KEYS, out, workers, **more)
    finally:
        Path("broken").unlink()


@pytest.mark.usefixtures("failing")
def test_other_rows_are_kept_and_failures_are_named():
    whole, found = fb.sweep(KEYS, "whole"), broken_sweep("run")
    failed = {name: {draw for draws in how.values() for draw in draws} for name, how in found.failed.items()}
    assert set(failed) == {"mine", "odd under iid", "odd under orthogonal"}
    assert 0 < len(failed["mine"]) < 24 and failed["odd under iid"] == failed["odd under orthogonal"]
    assert found.failed["mine"].keys() == {"ValueError: odd keys"}
    merged = whole.trials.merge(found.trials, on=[*LABELS], how="left", suffixes=("", "_found"))
    missing = merged["mse_found"].isna()
    wanted = [
        draw in failed.get(name if pd.isna(sampler) else f"{name} under {sampler}", ())
        for draw, name, sampler in zip(merged["draw"], merged["estimator"], merged["sampler"], strict=True)
    ]
    assert missing.tolist() == wanted
    assert_allclose(merged["mse_found"][~missing], merged["mse"][~missing], rtol=1e-9)
    assert found.manifest["complete"]
    assert (
        f"FAILED: mine on {len(failed['mine'])} of 24 draws (ValueError: odd keys)"
        in Path("run/summary.md").read_text()
    )
    n = found.summary.set_index(["estimator", "num_projections"])["n"]
    assert n["mine"].iloc[0] == 24 - len(failed["mine"])


@pytest.mark.usefixtures("failing")
def test_failed_draws_are_computed_again_on_request_only():
    whole, found = fb.sweep(KEYS, "whole"), broken_sweep("run")
    assert fb.sweep(KEYS, "run").failed == found.failed
    mended = fb.sweep(KEYS, "run", retry_failed=True)
    assert not mended.failed and "FAILED" not in Path("run/summary.md").read_text()
    pd.testing.assert_frame_equal(mended.trials, whole.trials, rtol=1e-9)


@pytest.mark.usefixtures("failing")
def test_failures_do_not_depend_on_workers_and_survive_a_kill():
    found = broken_sweep("run")
    assert broken_sweep("two", workers=2).failed == found.failed
    change_manifest("two", complete=False, draws_done=0)
    assert fb.load("two").failed == found.failed


@pytest.mark.usefixtures("failing")
def test_every_command_reads_a_run_with_failures():
    broken_sweep("run")
    for command in ("table run --rank", "table run --rows", "compare run run", "report run", "table run"):
        code, out, err = run(command)
        assert code == 0, (command, err)
    assert "FAILED: mine on" in out + err
    page = Path("run/report.html").read_text()
    assert "To compute the failed draws again: retry_failed." in page


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    "raised, said",
    [
        (r'raise ValueError("no \udcff")', r"ValueError: no \\udcff"),  # of a file whose name is not UTF-8
        ('raise ValueError("x" * 100_000)', r"ValueError: x{200,300}\.\.\."),
        ('raise type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})', r"Odd: \(without a text\)"),
    ],
)
def test_whatever_an_exception_says_the_run_can_be_read(module, raised, said):
    """Before, a lone surrogate in one message made all rows of a run unreadable."""
    module("failing_module", MODULE.replace('raise ValueError("odd keys")', raised))
    broken_sweep("run")
    (message,) = fb.load("run").failed["mine"]
    assert re.fullmatch(said, message)


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_on_the_first_draw_ends_the_sweep(module, there):
    """It is most likely a mistake of the user, who should not wait for the other draws. It leaves nothing behind;
    a directory of the user's stays."""
    if there:
        Path("run").mkdir()
    module("failing_module", MODULE.replace("% 8 == when", "% 1 == 0"))
    with pytest.raises(EstimatorError, match="mine failed: ValueError: odd keys"):
        broken_sweep("run")
    assert Path("run").exists() == there
    assert not there or read_manifest(Path("run"))["draws_done"] == 0


@pytest.fixture
def hard_head(module):
    """Two heads; a method that fails on the second in all draws, and one that fails in most draws."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 2, 16, 4))
    np.savez("heads.npz", q=query, k=key + np.reshape([0, 9], (2, 1, 1)), v=value)
    module("hard_module", HARD)


@pytest.mark.usefixtures("hard_head")
def test_a_head_without_any_draw_counts_as_an_infinite_error():
    """Else the median over the other heads, which are easier, makes the winner."""
    asked = {"inputs": "heads.npz", "maps": "none", "methods": "hard_module:easy,clusters", "num_projections": "12"}
    found = fb.sweep({**asked, "trials": 9, "baselines": "uniform"}, "run")
    rows = over_heads(found).set_index("estimator")
    assert rows.loc["easy", ["heads", "worse", "worst_head"]].tolist() == [2, 1, "h1"]
    least = found.summary.query("head == 'h0'").set_index("estimator")["mse_median"]
    assert least["easy"] < least["clusters"] < least["uniform"]
    assert rows.loc["easy", ["ratio_median", "worst_ratio"]].tolist() == [np.inf, np.inf]
    said = " ".join(sentences(found))
    assert "Its numbers, at every size, are those of the other draws" in said
    assert "clusters has the least error" in said and "a head without any counts as an infinite error" in said


@pytest.mark.usefixtures("hard_head")
def test_a_head_that_is_not_measured_yet_did_not_fail():
    """In a partial run with a draw for each size, h2 has no draw of the larger one."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 3, 16, 4))
    key[1] += 9
    np.savez("three.npz", q=query, k=key, v=value)
    found = fb.sweep({"inputs": "three.npz", "maps": "none", "methods": "hard_module:easy,clusters", "trials": 1,
                      "num_projections": [4, 12], "baselines": "uniform", "redraw": "R"}, "run")  # fmt: skip
    trials = found.trials
    missing = (trials["head"] == "h2") & (trials.groupby("draw")["budget"].transform("max") == 12)
    rows = over_heads(found._replace(trials=trials[~missing], summary=summarise(trials[~missing])))
    counts = rows.set_index(["estimator", "num_projections"])[["heads", "worst_head"]]
    assert counts.loc[("easy", 4)].tolist() == [3, "h1"]
    assert counts.loc[("easy", 12)].tolist() == [2, "h1"]
    assert counts.loc[("clusters", 12), "heads"] == 2


@pytest.mark.usefixtures("hard_head")
def test_figures_over_heads_have_the_numbers_of_the_table():
    """Of a head that failed, too: else the figure of a page contradicts the table below it."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 9, 16, 4))
    key[8] += 9
    weights = {"gradients": np.ones((9, 2, 16, 4)), "gradient_scales": np.ones((9, 2))}
    np.savez("nine.npz", q=query, k=key, v=value, layer=np.arange(9) // 3, head=np.arange(9) % 3, **weights)
    found = fb.sweep({"inputs": "nine.npz", "maps": "none", "methods": "hard_module:easy,clusters", "trials": 3,
                      "num_projections": [4, 12], "baselines": "uniform"}, "run")  # fmt: skip
    assert run("plot run --estimators easy --format svg")[0] == 0
    drawn, table = pd.read_csv("run/figures/error-vs-cost.csv"), over_heads(found)
    keys = ["estimator", "num_projections"]
    both = table.merge(drawn.rename(columns={"label": "estimator"}), on=keys)
    assert len(both) == len(drawn) == 4
    assert_allclose(both[["low", "ratio", "high"]], both[["ratio_q25", "ratio_median", "ratio_q75"]])
    heads = pd.read_csv("run/figures/heads.csv")
    assert heads.loc[heads["worse"], ["layer", "head", "ratio"]].values.tolist() == [[2, 2, np.inf]]
    effects = pd.read_csv("run/figures/effect.csv")
    assert set(effects["label"]) == {"clusters"} == set(summed_effects(found)[0].rows["estimator"]) - {"uniform"}


@pytest.mark.usefixtures("hard_head")
def test_a_head_on_which_all_failed_has_no_curves():
    fb.sweep({"inputs": "heads.npz", "maps": "none", "methods": "hard_module:easy", "num_projections": "4,12",
              "scale": [0.9, 1], "trials": 2}, "run")  # fmt: skip
    assert run("plot run --heads h1")[0] == 0


@pytest.mark.usefixtures("hard_head")
def test_finite_on_half_of_the_heads_is_not_on_more():
    found = fb.sweep({"inputs": "heads.npz", "maps": "none", "methods": "hard_module:easy", "num_projections": "12",
                      "trials": 9}, "run")  # fmt: skip
    said = " ".join(sentences(found))
    assert "no map or method has a finite share of uniform attention's error on more than half of the heads" in said
    assert "every map and method failed in all draws" in said
    for command in (
        "table run --rank",
        "table run --rank --heads h1",
        "plot run",
        "report run",
        "table run --heads h1",
    ):
        code, out, err = run(command)
        assert code == 0, (command, out, err)


@pytest.mark.usefixtures("hard_head")
def test_few_draws_of_one_estimator_hide_no_verdict_on_others():
    asked = {"inputs": "heads.npz", "heads": "h0", "maps": "none", "methods": "hard_module:rare,clusters"}
    found = fb.sweep({**asked, "num_projections": "12", "trials": 16, "baselines": "uniform"}, "run")
    assert found.summary.set_index("estimator")["n"].loc[["rare", "clusters"]].between([2, 16], [4, 16]).all()
    assert "too few" not in (said := sentences(found)[-1]) and "beat uniform attention: clusters" in said


def test_every_view_of_a_run_says_on_how_many_draws_an_output_is_nan(tmp_path, monkeypatch):
    """Medians hide a third of the draws, so the sentence belongs to the run and not to the sweep alone."""
    (tmp_path / "rare_nan_module.py").write_text(
        "def rare(q, k, v, size, rng):\n    return v * (float('nan') if rng.random() < 0.3 else 1.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = fb.sweep({"maps": "none", "methods": "rare_nan_module:rare", "num_projections": "4", "seq_len": "16",
                      "head_dim": "4", "inputs": "gaussian", "trials": 9}, "run")  # fmt: skip
    bad = int((~np.isfinite(found.trials["mse"])).sum())
    assert 0 < bad < 5
    said = f"rare: the output is NaN or infinite in {bad} of 9 measurements; such errors count as infinite."
    assert said in sentences(found)
    code, _, err = run("table run --json")
    assert code == 0 and said in " ".join(err.split())


def test_an_estimator_that_fails_on_a_pruned_head_is_worse_than_exact_ones(module):
    """All other errors are 0 there, so nothing finite says how large rounding is."""
    module("nan_module", "def broken(query, key, value, size, rng):\n    return value * float('nan')\n")
    query, key, value = np.random.default_rng(0).normal(size=(3, 2, 16, 4))
    value[1] = 0
    np.savez("heads.npz", q=query, k=key, v=value)
    keys = {"inputs": "heads.npz", "maps": "positive", "samplers": "iid", "methods": "nan_module:broken"}
    found = fb.sweep({**keys, "num_projections": 4, "trials": 9, "baselines": "uniform"}, "run")
    groups = found.ranking(heads="h1")[0].data.set_index("estimator")["groups"]
    assert groups.to_dict() == {"uniform": "a", "positive": "a", "broken": "b"}
    worse = found.table("head,estimator,R").data.query("head == 'h1'").set_index("estimator")["worse"]
    assert worse.to_dict() == {"uniform": False, "positive": False, "broken": True}
    (table,) = found.table(heads="h1")
    assert [row["R = 4"] for row in table.rows] == ["0.000", "inf*", "0.000"]


def test_failures_are_counted_on_the_heads_that_are_shown(module, rng):
    body = "    assert key[0, 0] < 0, 'positive'\n    return value[: len(query)]\n"
    module("picky", f"def mine(query, key, value, size, rng):\n{body}")
    heads = random_heads(rng, 2, 16, 4)
    heads["k"][:, 0, 0] = -1.0, 1.0
    np.savez("heads.npz", **heads)
    fb.sweep(
        {"inputs": "heads.npz", "maps": "positive", "methods": "picky:mine", "num_projections": 8, "trials": 3}, "run"
    )
    found = fb.load("run")
    told = {names: "".join(sentences(select_heads(found, names))) for names in ("h0", "h1", "h0,h1")}
    assert "FAILED" not in told["h0"] and "on 3 of 3 draws" in told["h1"] and "on 3 of 6 draws" in told["h0,h1"]
