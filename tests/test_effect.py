"""The predicted effect on a model from a file with gradients: sums over heads in tables, sentences, figures, pages."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.results import figures, heads
from tests.command_line import printed

LAYERS, HEADS, TEXTS, LENGTH = 2, 4, 2, 16


@pytest.fixture
def run():
    """A sweep of two texts, 2 layers of 4 heads, whose last layer matters ten times as much."""
    rng = np.random.default_rng(0)
    layer, head, text = (a.ravel() for a in np.indices((LAYERS, HEADS, TEXTS)))
    q, k, v = rng.standard_normal((3, len(layer), LENGTH, 8))
    meta = {"effect": "nats per token", "texts": [{"name": "a"}, {"name": "b"}]}
    np.savez(
        Path("heads.npz"), q=q, k=k, v=v, layer=layer, head=head, text=text, meta=json.dumps(meta),
        gradients=rng.standard_normal((len(layer), 3, LENGTH, 8)).astype(np.float16),
        gradient_scales=np.repeat((0.01 * np.sqrt(10.0) ** layer)[:, None], 3, axis=1),
    )  # fmt: skip
    return fb.sweep(
        inputs="heads.npz", maps="positive", samplers="iid", methods="clusters", num_projections=[2, 8],
        trials=2, baselines="uniform", out="run",
    )  # fmt: skip


def test_sums_of_estimators_without_a_size_are_of_all_draws(run):
    """With a draw for each size these have more draws, and were left out."""
    again = fb.sweep(run.scenario, redraw="R", out="again")
    (found,) = heads.summed_effects(again)
    (row,) = found.rows[found.rows["estimator"] == "uniform"].to_dict("records")
    total = again.trials[again.trials["estimator"] == "uniform"]["effect"].sum()  # the same on every draw
    assert_allclose([row["sum_low"] + row["sum_high"]], total / 4)
    assert row["draws"] == 4 and set(found.rows["draws"]) == {2, 4}
    assert "2 texts, 2 to 4 draws of each estimator" in again.table(metric="effect")[0].note
    (sentence,) = [text for text in again.sentences() if "will cost the model about" in text]
    assert "2 texts, 2 draws of each estimator" in sentence


def test_sums_are_those_of_the_rows(run):
    (found,) = heads.summed_effects(run)
    assert (found.heads, found.unit, len(found.rows)) == (8, "nats per token", 5)
    for _, row in found.rows.iterrows():
        trials = run.trials[run.trials["estimator"] == row["estimator"]]
        if not pd.isna(row["num_projections"]):
            trials = trials[trials["num_projections"] == row["num_projections"]]
        sums = trials.groupby([trials["head"].str[-1], "trial"])["effect"].sum()
        assert len(sums) == TEXTS * 2 and row["layer"] == "1" and 0.7 < row["share"] < 1.0
        assert_allclose(
            row[["sum_median", "sum_low", "sum_high"]].astype(float), [sums.median(), *sums.agg(["min", "max"])]
        )


def test_tables_sentences_and_pages_have_the_sum(run):
    table = run.table(metric="effect")[0]
    assert table.title.startswith("Predicted effect on the model (nats per token), sum over 8 heads of heads.npz")
    assert {row["largest layer"][-2:] for row in table.rows} == {"L1"} and "2 texts, 2 draws" in table.note
    (sentence,) = [text for text in run.sentences() if "will cost the model about" in text]
    best = table.data[(table.data["num_projections"] == 8)].iloc[0]
    assert f"at R = 8 will cost the model about {heads.number(best['sum_median'])} nats per token" in sentence
    assert "sum over 8 heads, whose errors are taken as uncorrelated" in sentence
    assert "will cost the model about" in (run.path / "summary.md").read_text("utf-8")
    printed("report", str(run.path), "--out", "page.html", "-q")
    assert "Predicted effect on the model" in Path("page.html").read_text("utf-8")


def test_the_map_shows_where_the_loss_comes_from(run):
    printed("plot", str(run.path), "--estimators", "positive / iid", "--out", "figures", "-q")
    data = pd.read_csv("figures/effect.csv")
    assert set(data["label"]) == {"positive / iid"} and data["percent"].sum() == pytest.approx(100.0)
    rows = run.trials.query("estimator == 'positive' and num_projections == 8")
    expected = rows.groupby(rows["head"].str.partition("@")[0])["effect"].mean()
    assert_allclose(data["effect"], expected)
    assert data.groupby("layer")["percent"].sum()[1] > 70
    assert len(run.plot("effect").texts) == LAYERS * HEADS


def test_a_part_of_the_tokens_has_no_effect(run):
    part = fb.sweep(
        inputs="heads.npz",
        maps="positive",
        num_projections=2,
        trials=1,
        seq_len=8,
        out="part",
    )
    assert part.trials["effect"].isna().all() and heads.summed_effects(part) == []


def test_without_an_effect_there_is_no_map(run):
    """Exact attention has no effect in any head."""
    trials = run.trials.assign(effect=0.0)
    assert figures.charts_of(figures.EFFECTS, run._replace(trials=trials), "mse") == []
    assert all(row["sum"] == "0.0" for row in heads.effect_tables(run._replace(trials=trials))[0].rows)
