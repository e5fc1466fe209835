"""Output of a run: absent values are missing, words follow the numbers, files of others are refused."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import favorbench as fb
from favorbench.baselines import Baseline
from favorbench.engine.columns import CELL, COLUMNS, ESTIMATOR, LABELS
from favorbench.engine.store import SCHEMA
from favorbench.errors import ScenarioError, StoreError
from favorbench.methods import Estimate
from favorbench.results import findings, heads, tables
from favorbench.results.figures import draw_all
from favorbench.results.figures.cost import against_multiplications
from favorbench.results.figures.curves import file_name
from favorbench.results.figures.ranking import ranking
from favorbench.results.heads import select_heads
from favorbench.results.ranking import ranking_section, rankings, rankings_over_heads
from favorbench.run import sweep
from tests.command_line import run
from tests.conftest import change_manifest, parts, random_heads, same_rows, small_scenario

MIXED = "positive,trig,poisson,elu"  # of omega, of their own samples, of nothing


def names(files):
    return {file.stem for file in files}


def test_a_column_is_said_once():
    assert [field.name for field in SCHEMA] == [column.name for column in COLUMNS]
    assert ("draw", "trial", *CELL, *ESTIMATOR) == LABELS
    optional = {"sampler", "num_projections", "budget", "multiplications"}
    assert {column.name for column in COLUMNS if column.optional} == optional
    assert all(column.of for column in COLUMNS if column.role in ("draw", "cell"))


def test_absent_values_of_a_row_are_missing():
    trials = sweep(small_scenario(maps=MIXED, trials=1), "run").trials
    assert str(trials["num_projections"].dtype) == "Int64"
    has = trials.groupby("estimator")[["sampler", "num_projections"]].agg(lambda column: column.notna().all())
    assert has.loc["positive"].tolist() == [True, True] and has.loc["poisson"].tolist() == [False, True]
    assert has.loc["elu"].tolist() == has.loc["uniform"].tolist() == [False, False]
    assert has.loc["best-rank"].tolist() == [False, True]


def test_maps_without_a_sampler_do_not_count_as_comparisons_of_samplers():
    """Holm's family is the maps that have both samplers: other maps beside them change no verdict."""
    alone, beside = (
        sweep(
            small_scenario(maps=maps, trials=16, num_projections="4,16,64", scale="0.5", baselines="uniform"), maps[:5]
        )
        for maps in ("trig", "trig,poisson,elu")
    )
    said = [findings.sentences(one)[-1].split("orthogonal against iid: ")[1] for one in (alone, beside)]
    assert said[0] == said[1] and said[0].startswith("better for trig")


def test_orthogonal_and_iid_are_paired_by_draw():
    """In whatever order rows come; an older pandas mixed draws and samplers."""
    results = sweep(small_scenario(maps="trig,positive", trials=16, num_projections="4,16", baselines="uniform"), "run")
    trials = results.trials
    better = np.where(trials["estimator"] == "trig", 2.0, 0.5)  # of orthogonal, over iid
    trials = trials.assign(mse=trials["draw"] + np.where(trials["sampler"] == "iid", 1.0, better))
    for rows in (trials, trials.sample(frac=1.0, random_state=0)):
        said = findings.cell_sentences(results._replace(trials=rows))[0].partition("orthogonal against iid: ")[2]
        found = {part[:5]: sorted(re.findall(r"\w+ at R = \d+", part)) for part in said.split(";")}
        names = {word: [f"{name} at R = {size}" for size in (16, 4)] for word, name in
                 (("bette", "positive"), (" wors", "trig"))}  # fmt: skip
        assert found == names


@pytest.mark.parametrize("size", ["1", "8"])
def test_features_of_r_are_those_of_the_map(size):
    results = sweep(
        small_scenario(maps="maclaurin(exact=2),tensorsketch,elu", num_projections=size, head_dim="16"), "run"
    )
    said = tables.what_r_means(results)
    assert "maclaurin(exact=2): R + 17" in said and "tensorsketch: 3R + 1" in said and "elu: fixed" in said


def test_a_map_without_r_wins_without_r():
    results = sweep(small_scenario(maps="positive,elu,taylor", scale="0.2", trials=15), "run")
    (sentence,) = findings.sentences(results)
    assert "R = 0" not in sentence and "none" not in sentence
    assert re.search(r"without an R: .*taylor \(15 features\)", sentence)


def test_a_map_without_r_wins_at_a_budget_only_within_it():
    """taylor has 45 features here, and was called the best at 16."""
    won = {}
    for kind, sizes in {"projections": "16", "features": "16", "cost": "16", "many": "64"}.items():
        budget = "features" if kind == "many" else kind
        asked = {"maps": "positive,taylor", "num_projections": sizes, "head_dim": 8, "scale": 0.3, "budget": budget}
        said = findings.sentences(sweep(small_scenario(**asked), kind))
        (won[kind],) = re.findall(r"At [^.]*? (\S+) has the least error", " ".join(said))
    assert {kind: name.partition("/")[0] for kind, name in won.items()} == {
        "projections": "taylor", "features": "positive", "cost": "positive", "many": "taylor"
    }  # fmt: skip


def test_a_star_says_that_the_printed_value_is_worse_than_the_printed_one_of_uniform():
    results = sweep(small_scenario(maps=MIXED, trials=9, scale="0.3,1,2", head_dim="4,8"), "run")
    for metric in ("mse", "relative_error", "relative_l1", "max_abs_error", "skill", "cosine"):
        for by in (["input", "estimator", "sampler", "num_projections"], ["scale", "estimator", "num_projections"]):
            long = tables.long_table(results, by, metric, "median")
            cells = [axis for axis in by if axis in CELL]
            uniform = long.query("estimator == 'uniform'").set_index(cells)[f"{metric}_median"]
            for _, row in long.iterrows():
                ours, theirs = row[f"{metric}_median"], uniform[tuple(row[cells]) if len(cells) > 1 else row[cells[0]]]
                assert row["worse"] == (ours < theirs if metric in ("skill", "cosine") else ours > theirs)
    for metric in ("bad_normalisers", "unnormalised_rows"):
        assert not tables.long_table(results, ["estimator"], metric, "median")["worse"].any()


def test_an_estimator_that_is_not_in_all_cells_is_compared_with_uniform_attention_in_its_own():
    """Such as best-rank, which is not computed at long L, and those that failed on some heads."""
    results = sweep(small_scenario(scale="0.02,0.05,2", maps="none", methods="clusters", num_projections="1"), "run")
    absent = (results.trials["estimator"] == "best-rank") & (results.trials["scale"] < 1)
    run = results._replace(trials=results.trials[~absent])
    for by in (["estimator"], ["estimator", "num_projections"], ["seq_len", "estimator"]):
        long = tables.long_table(run, by, "mse", "median").set_index("estimator")
        assert long["mse_median"]["best-rank"] > long["mse_median"]["uniform"] and not long["worse"]["best-rank"]


@pytest.mark.parametrize("by", [["estimator"], ["estimator", "num_projections"], ["scale", "estimator"]])
def test_an_estimator_that_failed_on_hard_draws_is_compared_with_uniform_attention_on_the_others(by):
    """Else its errors on easy draws would look better than those of uniform attention on all."""
    asked = {"maps": "none", "methods": "clusters", "num_projections": "4", "baselines": "uniform", "trials": 9}
    results = sweep(small_scenario(**asked, scale="0.5,1", inputs="gaussian"), "run")
    uniform = results.trials.query("estimator == 'uniform'").set_index("draw")["mse"]
    of_clusters = results.trials["estimator"] == "clusters"
    theirs = results.trials["draw"].map(uniform)
    trials = results.trials.assign(mse=results.trials["mse"].where(~of_clusters, 1.01 * theirs))
    hard = theirs > theirs.groupby(trials["scale"]).transform("median")
    long = tables.long_table(results._replace(trials=trials[~(of_clusters & hard)]), by, "mse", "median")
    clusters = long.query("estimator == 'clusters'")
    assert (clusters["n"] < trials["draw"].nunique() // (2 if "scale" in by else 1)).all()
    assert (clusters["mse_median"].to_numpy() < long.query("estimator == 'uniform'")["mse_median"].to_numpy()).all()
    assert clusters["worse"].all()


@pytest.mark.parametrize("stat", ["median", "mean", "n"])
@pytest.mark.parametrize("by", [["estimator", "num_projections"], ["estimator"], ["seq_len", "estimator"]])
def test_a_measurement_in_the_rows_of_several_budgets_counts_once(by, stat):
    """At L = 12 two of the three budgets come to all keys."""
    asked = {"maps": "none", "methods": "clusters", "baselines": "uniform,sampled-keys", "seq_len": "12,36"}
    results = sweep(small_scenario(**asked, budget="cost", num_projections="6,18,40", trials=5), "run")
    keys = ["draw", "estimator", "seq_len", "num_projections"]
    once = results.trials.groupby(keys, dropna=False)["mse"]
    assert once.nunique().max() == 1 < once.size().max()
    groups = once.first().groupby(by, dropna=False)
    expected = groups.count() if stat == "n" else groups.agg(stat)
    found = tables.long_table(results, by, "mse", stat).set_index(by)[f"mse_{stat}"].sort_index()
    assert found.to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-12)
    budgets = tables.long_table(results, ["estimator", "budget"], "mse", "n").query("estimator == 'clusters'")
    assert list(budgets["mse_n"]) == [10, 10, 10]


@pytest.mark.parametrize("share", [1, 2])
def test_infinite_errors_have_no_finite_spread(share):
    """The standard deviation of infinite errors alone was 0.000."""
    results = sweep(small_scenario(samplers="iid"), "run")
    rows = results.trials
    infinite = (rows["estimator"] == "trig") & (rows["trial"] % share == 0)
    results = results._replace(trials=rows.assign(mse=rows["mse"].mask(infinite, np.inf)))
    found = tables.long_table(results, ["estimator", "num_projections"], "mse", "std").set_index("estimator")["mse_std"]
    assert np.isinf(found["trig"]).all() and np.isfinite(found["positive"]).all()


def test_the_spread_of_draws_is_divided_by_their_number():
    """That of pandas is divided by one less: at 15 draws 3.5 % more. The help said nothing of it."""
    results = sweep(small_scenario(samplers="iid"), "run")
    found = tables.long_table(results, ["estimator", "num_projections"], "mse", "std").set_index("estimator")["mse_std"]
    draws = results.trials.query("estimator == 'uniform'")["mse"]
    assert found["uniform"] == pytest.approx(np.sqrt(np.mean((draws - draws.mean()) ** 2)), rel=1e-12)
    assert "std (divided by n, not n - 1)" in " ".join(run("table --help")[1].split())


@pytest.mark.parametrize("by", [None, "estimator,L", "L,d,estimator", "head,estimator,budget"])
def test_uniform_attention_is_not_worse_than_itself(by):
    """Sums of the same numbers in another order differ in the last digit."""
    results = sweep(small_scenario(trials=7, maps="none", methods="clusters"), "run")
    rng, trials, worse = np.random.default_rng(0), results.trials, set()
    for _ in range(20):
        table = results._replace(trials=trials.assign(mse=rng.random(len(trials)))).table(by=by, stat="mean")
        data = (table if by else table[0]).data
        worse |= {*data[data["worse"]]["estimator"]}
    assert "uniform" not in worse and "clusters" in worse


def test_a_part_of_a_file_is_said_everywhere():
    np.savez("mine.npz", **random_heads(np.random.default_rng(0), 40, 4))
    flags = {"inputs": "mine.npz", "head_dim": None}
    results = sweep(small_scenario(**flags, seq_len="24"), "part")
    said = "mine.npz: the first 24 of its 40 tokens."
    assert said in findings.sentences(results) and said in tables.legend(results)
    assert said in Path("part/summary.md").read_text()
    whole = sweep(small_scenario(**flags, seq_len=None), "whole")
    assert "the first" not in tables.legend(whole)


def test_a_files_length_wins_over_that_of_a_scenario_for_other_inputs():
    np.savez("mine.npz", **random_heads(np.random.default_rng(0), 600, 8))
    assert fb.load_scenario("catalogue").seq_len == (512,)
    mine = fb.load_scenario("catalogue", {"inputs": "mine.npz"})
    assert mine.seq_len is None and mine.head_dim is None
    assert fb.load_scenario("catalogue", {"inputs": "mine.npz", "seq_len": "512"}).seq_len == (512,)
    assert fb.load_scenario("catalogue", {"inputs": "sphere"}).seq_len == (512,)


@pytest.mark.parametrize("ratio, said", [(0.2, "5.0 times less"), (0.97, "slightly less"), (0.0, "far less")])
def test_a_small_difference_is_not_called_one_time_less(ratio, said):
    assert findings.less_in_words(ratio) == said


def test_where_uniform_attention_is_exact_errors_are_finite():
    """Queries of 0, as of heads that were pruned: a map has errors there, and infinite ratios."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 3, 24, 4))
    query[:2] = 0
    found = fb.sweep(inputs={"x": (query, key, value)}, maps="positive", samplers="iid", num_projections=8, trials=9)
    said = findings.sentences(found)
    assert "no map or method has a finite share of uniform attention's error on more than half of the heads" in said[0]
    assert "taylor-1, 5 features and no randomness, has far less error" in said[1]


def test_one_draw_is_one_draw():
    results = sweep(small_scenario(trials=1), "run")
    assert (
        "1 draws" not in Path("run/summary.md").read_text()
        and "median mse of 1 draw." in Path("run/summary.md").read_text()
    )
    assert "1 draw is too few" in findings.sentences(results)[0]


def test_rounding_is_no_number():
    """best-rank at full rank: another number on every machine, and so a changed file after the README's first line."""
    results = sweep(small_scenario(num_projections="8,24"), "run")
    exact = results.trials.query("estimator == 'best-rank' and num_projections == 24")["mse"]
    assert (exact < 1e-25).all()
    assert "<1e-" in Path("run/summary.md").read_text()
    written = pd.read_csv("run/summary.csv").query("estimator == 'best-rank' and num_projections == 24")
    assert (written.filter(regex="^mse_") == 0).all(axis=None)
    row = next(row for row in tables.cell_tables(results)[0].rows if row["estimator"] == "best-rank")
    assert not row["R = 24"].endswith("*")


def test_figures_are_named_by_their_content():
    assert file_name(["orthogonal", "iid"], "sampler") == "iid-vs-ortho"
    assert file_name(["iid", "antithetic:iid"], "sampler") == "iid-vs-antithetic-iid"
    assert file_name(["positive", "hyperbolic", "elu"], "estimator") == "maps"
    one = sweep(small_scenario(maps=MIXED, samplers="iid"), "one")
    assert names(draw_all(one)) == {"maps"}  # nothing to compare iid with
    both = sweep(small_scenario(maps="positive,hyperbolic"), "both")
    assert names(draw_all(both)) == {"iid-vs-ortho", "positive-vs-hyperbolic"}
    with pytest.raises(ScenarioError, match="`estimators`: only a map of layers and heads shows single ones"):
        draw_all(both, estimators="positive / iid")


def test_a_map_without_r_is_a_line_next_to_the_others():
    results = sweep(small_scenario(maps=MIXED, scale="0.5,1", num_projections="4,16,64"), "run")
    files = {file.stem: file for file in draw_all(results) if file.suffix == ".csv"}
    maps = pd.read_csv(files["maps"])
    assert not maps["panel"].str.endswith(("none", "own")).any()
    lines = maps.query("series == 'elu'").groupby("panel")["num_projections"].apply(list)
    assert (lines.map(lambda sizes: sizes == [4, 16, 64])).all() and len(lines) == maps["panel"].nunique()
    assert {"poisson"} <= set(maps["series"])
    scale = pd.read_csv(files["error-vs-scale"])
    assert {panel.split("R = ")[1] for panel in scale["panel"]} == {"4", "16", "64"}
    samplers = pd.read_csv(files["iid-vs-ortho"])
    assert {"elu", "poisson"}.isdisjoint(samplers["series"])


@dataclass(frozen=True)
class Zero(Baseline):
    """All zeros."""

    name = "zero"
    reference = "-"
    description = "all zeros"
    every_size = False

    def estimates(self, question, sizes, streams):
        yield Estimate(None, 0, np.zeros((len(question.query), question.value.shape[-1])), None)


def test_a_users_baseline_is_drawn():
    results = sweep(small_scenario(baselines="uniform,tests.test_results:Zero"), "run")
    draw_all(results)
    assert {"zero", "uniform"} <= set(pd.read_csv("run/figures/trig-vs-positive.csv")["series"])


@pytest.mark.parametrize("metric", ["mse", "skill", "relative_error"])
def test_values_that_are_all_zero_are_drawn(metric):
    """With queries and keys of zeros attention is uniform attention, and every positive map is right."""
    value = np.random.default_rng(0).normal(size=(16, 4))
    np.savez("zero.npz", q=np.zeros((16, 4)), k=np.zeros((16, 4)), v=value)
    flags = {"inputs": "zero.npz", "seq_len": None, "head_dim": None}
    assert draw_all(sweep(small_scenario(**flags), "run"), metric)


def test_a_ranking_of_one_cell_names_its_inputs():
    maps = "positive,trig,phase,hyperbolic,oprf,taylor"
    results = sweep(small_scenario(maps=maps, budget="features", num_projections="8", trials=8), "run")
    assert not ranking(results, "mse")  # so few draws cannot tell anything from uniform attention
    more = sweep(small_scenario(maps=maps, budget="features", num_projections="8", trials=12), "more")
    draw_all(more)
    assert set(pd.read_csv("more/figures/ranking.csv")["panel"]) == {rankings(more)[0].title}
    assert "Blue: detectably better" in ranking(more, "mse")[0].caption
    scales = sweep(
        small_scenario(maps=maps, budget="features", num_projections="8", trials=12, scale="0.5,1"), "scales"
    )
    assert " Measured on gaussian, L = 24, d = 4. " in ranking(scales, "mse")[0].caption


@pytest.mark.parametrize(
    "values, said",
    [
        ({"input_files": [{"input": "x"}]}, "input_files"),
        ({"input_files": 3}, "input_files"),
        ({"scenario": {"maps": ["trig"]}}, "its scenario has a wrong"),
        ({"scenario": json.loads(small_scenario().model_dump_json()) | {"scale": "big"}}, "a wrong 'scale"),
        ({"scenario": json.loads(small_scenario(seed=8).model_dump_json())}, "not the one that was run"),
        ({"num_features": 3}, "num_features"),
        ({"declared_versions": "3.1.1"}, "its declared_versions"),
        ({"versions": ["numpy"]}, "its versions"),
        ({"workers": [{"cpu": "x", "gpu": None, "blas": [], "done": "many"}]}, r"its workers\.0\.done"),
        ({"blas": [{"version": "1"}]}, r"its blas\.0\.internal_api"),
        ({"draws": 1}, "does not plan"),
    ],
)
def test_a_manifest_that_was_changed_by_hand_is_refused(values, said):
    sweep(small_scenario(), "run")
    change_manifest("run", **values)
    with pytest.raises(StoreError, match=said):
        fb.load("run")


def test_a_run_with_a_scenario_changed_by_hand_is_not_resumed():
    sweep(small_scenario(), "run")
    change_manifest("run", scenario=json.loads(small_scenario(seed=8).model_dump_json()))
    with pytest.raises(StoreError, match="not the one that was run"):
        sweep(small_scenario(), "run")


def test_rows_that_are_there_twice_are_read_once():
    """As a kill may leave them while parts are joined; parts of another run are refused."""
    whole = sweep(small_scenario(), "run").trials
    (part,) = parts()
    shutil.copy(part, Path("run/trials") / part.name.replace("000001", "000002"))
    same_rows(fb.load("run").trials, whole)
    sweep(small_scenario(maps="relu"), "another")
    (part,) = parts("another")
    part.rename(Path("run/trials") / part.name.replace("000001", "000003"))
    with pytest.raises(StoreError, match="a part of another run than its manifest"):
        fb.load("run")


def test_a_run_that_ended_before_its_first_draw_may_be_replaced():
    sweep(small_scenario(), "run")
    for part in parts():
        part.unlink()
    change_manifest("run", complete=False)
    assert sweep(small_scenario(trials=4), "run").manifest["complete"]


def test_costs_are_shares_of_exact_attention_with_the_d_v_of_the_file():
    """By hand at d = 4 and d_v = 12: (n + l) R (d + d_v), of taylor-1 (n + l) (d + 1) d_v, of n l (d + d_v)."""
    rng = np.random.default_rng(0)
    wide = (*rng.normal(size=(2, 2, 24, 4)), rng.normal(size=(2, 24, 12)))
    flags = {"maps": "positive", "samplers": "iid", "num_projections": [3, 8], "methods": "clusters", "trials": 2}
    results = fb.sweep("quick", inputs={"wide": wide}, out="wide", **flags)
    exact = 24 * 24 * (4 + 12)
    costs = {"positive / iid": 48 * 8 * (4 + 12), "taylor-1": 48 * (4 + 1) * 12}
    expected = {name: f"{100 * cost / exact:.0f} %" for name, cost in costs.items()}
    (population,), (ranked,) = heads.populations(results), rankings_over_heads(results)
    single = tables.cell_tables(select_heads(results, "h0"))[0].rows
    for rows in (
        [row for row in heads.rows_of(results, population.rows) if row["R"] in ("8", "-")],
        ranking_section(results, ranked, "mse").rows,
        [row | {"estimator": row["estimator"] + " / iid" * (row["sampler"] == "iid")} for row in single],
    ):
        assert {row["estimator"]: row["cost"] for row in rows}.items() >= expected.items()
    (chart,) = against_multiplications(results, "mse")
    assert "exact attention with d_v = 12" in chart.caption
    both = fb.sweep("quick", inputs={"wider": wide, "usual": wide[:1] * 3}, out="both", **flags)
    assert "exact attention with d_v = 4, 12" in against_multiplications(both, "mse")[0].caption


def test_tables_state_the_cost_of_each_estimator_relative_to_exact_attention():
    """By hand at one shape: linear attention with R features multiplies (n + l) R (d + d_v) times."""
    results = sweep(small_scenario(maps="positive", samplers="iid", num_projections="3,8", methods="clusters"), "run")
    (cell,) = tables.cell_tables(results)
    costs = {row["estimator"]: row["cost"] for row in cell.rows}
    assert costs["positive"] == f"{100 * (24 + 24) * 8 * (4 + 4) / (24 * 24 * (4 + 4)):.0f} %" == "67 %"
    assert costs["best-rank"] == "-" and "share of those of exact attention, at the largest size" in cell.note
    (ranked,) = rankings(results)
    assert {row["estimator"]: row["cost"] for row in ranking_section(results, ranked, "mse").rows}[
        "positive / iid"
    ] == "67 %"
