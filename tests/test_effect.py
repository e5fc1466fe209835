"""The predicted effect on a model from a file with gradients: sums over heads in tables, sentences, figures, pages."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal

import favorbench as fb
from favorbench.results import figures, heads
from favorbench.results.compare import comparison
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


def test_members_of_a_batch_are_texts_of_a_sum(rng):
    """Heads of all of them were added up, as if on one text."""
    q, k, v = rng.standard_normal((3, TEXTS, HEADS, LENGTH, 8))
    gradients = rng.standard_normal((TEXTS, HEADS, 3, LENGTH, 8))
    given = {"q": q, "k": k, "v": v, "gradients": gradients, "gradient_scales": np.ones((TEXTS, HEADS, 3))}
    batch = fb.sweep(inputs={"mine": given}, maps="elu", methods="none", baselines="uniform", trials=1, out="batch")
    (found,) = heads.summed_effects(batch)
    assert found.heads == HEADS and set(found.rows["texts"]) == {TEXTS}
    trials = batch.trials[batch.trials["estimator"] == "elu"]
    sums = trials.groupby(trials["head"].str[:2])["effect"].sum()
    row = found.rows[found.rows["estimator"] == "elu"].iloc[0]
    assert_allclose([row["sum_low"], row["sum_high"]], sorted(sums))


@pytest.mark.parametrize("lost", [(), range(0, 96, 11), range(18, 96)], ids=["whole", "missing", "partial"])
def test_sums_with_new_draws_for_each_size_are_those_of_the_rows(run, lost):
    """sampled-keys and clusters have a draw of each trial, uniform attention and elu one for each R of it."""
    asked = {"maps": "elu", "methods": "clusters", "baselines": "uniform,sampled-keys", "num_projections": [2, 5, 8]}
    wide = fb.sweep(inputs="heads.npz", **asked, trials=2, redraw="R", out="wide")
    trials = wide.trials[~wide.trials["draw"].isin(lost)]
    assert wide.trials["draw"].nunique() == 16 * 2 * 3
    wide = wide._replace(trials=trials)
    (found,) = heads.summed_effects(wide)
    of_r = trials["draw"] % 3
    names = {"elu", "uniform"}
    for (name, size), rows in trials.groupby(["estimator", "num_projections"], dropna=False):
        sums = rows.groupby([rows["head"].str[-1], "trial", of_r])["effect"].agg(["sum", "count"])
        whole = sums.loc[sums["count"] == found.heads, "sum"]
        shown = found.rows[(found.rows["estimator"] == name) & (found.rows["num_projections"].fillna(0) == (
            0 if pd.isna(size) else size))]  # fmt: skip
        assert len(shown) == min(1, len(whole)) and (len(lost) or len(whole) == TEXTS * 2 * (3 if name in names else 1))
        for _, row in shown.iterrows():
            values = row[["sum_median", "sum_low", "sum_high"]].astype(float)
            assert_allclose(values, [whole.median(), *whole.agg(["min", "max"])])
    if not lost:
        note = wide.table(metric="effect")[0].note
        assert {"elu", "uniform"} <= set(found.rows["estimator"]) and "2 texts, 2 to 6 draws of each" in note


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("budget", "sizes"), [("features", [2, 8]), ("cost", [4, 8])])
def test_a_map_of_a_fixed_size_has_an_effect_at_a_budget(budget, sizes):
    """taylor has more features than any of these budgets, and elu no more than the largest."""
    asked = {"maps": "elu,taylor,positive", "samplers": "iid", "num_projections": sizes, "budget": budget}
    found = fb.sweep(inputs="heads.npz", **asked, trials=1, baselines="uniform", out=budget)
    (total,) = heads.summed_effects(found)
    assert {"elu", "taylor", "positive"} <= set(total.rows["estimator"])
    kept = total.rows[total.rows["estimator"].isin(["elu", "positive"])].iloc[0]
    (said,) = heads.effect_sentences(found)
    assert f": {kept['estimator']}" in said and total.rows["estimator"].iloc[0] == "taylor"


def test_draws_of_some_heads_alone_have_no_sum(run):
    """A partial run may have some heads of one trial, and the others of the next."""
    first = (run.trials["trial"] == 0) == run.trials["head"].str.startswith("L0")
    part = run._replace(trials=run.trials[first])
    assert part.trials["head"].nunique() == 16 and heads.summed_effects(part) == []
    assert not [text for text in heads.effect_sentences(part) if "will cost" in text]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("scale", [[1, 2], [2, 1]])
def test_draws_with_and_without_gradients_are_not_computed_together(scale):
    """Other scales have none, and another file has another number of them."""
    pytest.importorskip("torch")
    few = {name: array for name, array in np.load("heads.npz").items() if name != "meta"}
    np.savez(
        "few.npz", **few | {"gradients": few["gradients"][:, :2], "gradient_scales": few["gradient_scales"][:, :2]}
    )
    asked = {"inputs": "heads.npz,few.npz", "scale": scale, "maps": "elu", "baselines": "uniform", "trials": 1}
    together, alone = (
        fb.sweep(**asked, num_projections=2, backend=backend, out=backend, batch=batch).trials["effect"]
        for backend, batch in (("torch", 64), ("numpy", None))
    )
    assert together.notna().sum() == len(together) / 2
    assert_allclose(together, alone, rtol=1e-9)


def test_a_draw_that_lacks_a_head_counts_neither_as_a_draw_nor_in_the_share_of_a_layer(run):
    """As in a partial run, or where an estimator failed on some head."""
    first, clusters = run.trials["trial"] == 0, run.trials["estimator"] == "clusters"
    others = ~run.trials["head"].str.startswith("L0H0")
    (expected,), (found,) = (
        heads.summed_effects(run._replace(trials=run.trials[clusters & kept])) for kept in (first, first | others)
    )
    assert set(expected.rows["draws"]) == {1}
    assert_frame_equal(found.rows, expected.rows)


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


def test_effects_are_compared(run):
    found = comparison(run, estimators="positive,clusters", metric="effect")
    assert found.metric == "effect" and len(found.rows) == 2 * LAYERS * HEADS * TEXTS


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
    for asked in (part.table, part.ranking, lambda metric: part.plot("effect", metric=metric)):
        with pytest.raises(fb.ScenarioError, match="`metric` effect: it was not measured in part: it needs gradients"):
            asked(metric="effect")


def test_cells_without_an_effect_are_left_out_and_named(run):
    """Scale 0.5 is not the attention of the model: beside it, scale 1 is shown as it is alone."""
    asked = {"inputs": "heads.npz", "maps": "positive", "samplers": "iid", "num_projections": 2, "trials": 2}
    both, alone = (fb.sweep(**asked, scale=scale, out=out) for scale, out in (([0.5, 1], "both"), (1, "alone")))
    assert both.trials["effect"].isna().equals(both.trials["scale"] == 0.5)
    sections_of = (
        lambda run: run.table(metric="effect"),
        lambda run: run.table(metric="effect", over="heads"),
        lambda run: run.table(metric="effect", heads="L0H1@a"),
        lambda run: run.ranking("effect"),
    )
    for shown in sections_of:
        *sections, note = shown(both)
        expected = [(section.title, section.rows) for section in shown(alone)]
        assert [(section.title, section.rows) for section in sections] == expected
        assert note.note.startswith("effect was not measured on heads.npz, scale 0.5, L = 16, d = 8: it needs ")
    pooled = both.table("estimator,R", "effect")
    assert pooled.rows == alone.table("estimator,R", "effect").rows and pooled.title.endswith("pooled over head")
    assert "not measured on heads.npz, scale 0.5" in pooled.note
    printed("plot", "both", "--metric", "effect", "--out", "figures", "-q")
    assert np.isfinite(pd.read_csv("figures/heads.csv")["ratio"]).all()
    assert not Path("figures/error-vs-scale.csv").exists()
    assert comparison(both, both, metric="effect").verdicts == {"same bits": 80, "not comparable": 80}
    assert comparison(both, estimators="uniform,positive", metric="effect").count("x") == 16


def test_without_an_effect_there_is_no_map(run):
    """Exact attention has no effect in any head."""
    trials = run.trials.assign(effect=0.0)
    assert figures.charts_of(figures.EFFECTS, run._replace(trials=trials), "mse") == []
    assert all(row["sum"] == "0.0" for row in heads.effect_tables(run._replace(trials=trials))[0].rows)
