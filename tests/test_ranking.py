"""Rankings: different letters mean detectable differences."""

import functools
import itertools
import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from favorbench.errors import ScenarioError
from favorbench.results.findings import cell_sentences
from favorbench.results.ranking import _legend, group_names, groups_of, ranking_section, rankings, rankings_over_heads
from favorbench.results.summary import rows_of, summarise
from favorbench.results.tables import rounding_level
from favorbench.run import sweep
from favorbench.statistics import sign_test
from tests.command_line import check_refused, run
from tests.conftest import random_heads, small_scenario
from tests.test_heads import of_heads

PAIRS = list(itertools.combinations(range(6), 2))


@given(st.sets(st.sampled_from(PAIRS)))
def test_a_shared_letter_is_no_difference_and_nothing_else(different):
    found = groups_of(6, sorted(different))
    for i, j in PAIRS:
        assert bool(set(found[i]) & set(found[j])) == ((i, j) not in different)


def test_many_groups_are_ranges_and_more_than_letters_are_numbers():
    assert group_names([(0,), (0, 1), (1, 2, 3, 4), (0, 2, 3, 4, 5)]) == ["a", "ab", "b-e", "a c-f"]
    assert group_names([(0,), (30,), (1, 2, 3, 9), tuple(range(40))]) == ["1", "31", "2 3 4 10", "1-40"]
    chain = groups_of(60, [(i, j) for i in range(60) for j in range(i + 2, 60)])  # each like its neighbours only
    names = group_names(chain)
    assert names[:3] == ["1", "1 2", "2 3"] and names[-1] == "59" and len(set(names)) == 60


def test_the_legend_explains_ranges_of_letters():
    ranking = SimpleNamespace(heads=None, draws=20, draws_needed=5)
    for names, said in ((["a", "b-d"], "letter in common (a-d: a to d) differ"), (["a", "ab"], "in common differ"),
                        (["1-40", "41"], "number in common differ")):  # fmt: skip
        ranking.group_names = names
        assert said in _legend(ranking, "mse")


def test_letters_of_a_chain():
    """1 and 2, and 2 and 3, do not differ detectably; 1 and 3 do."""
    assert group_names(groups_of(3, [(0, 2)])) == ["a", "ab", "b"]
    assert group_names(groups_of(2, [])) == ["a", "a"]


@pytest.mark.parametrize("metric", ["mse", "skill"])
def test_a_ranking_is_in_order_and_its_letters_follow_from_the_draws(metric):
    results = sweep(small_scenario(trials=20, num_projections="8,64", baselines="uniform,taylor-2"), "run")
    (ranking,) = rankings(results, metric)
    values = [row.median for row in ranking.rows]
    assert values == sorted(values, reverse=metric == "skill") and ranking.draws == 20
    assert {(row.estimator, row.sampler) for row in ranking.rows} == {
        ("uniform", None), ("taylor-2", None), *itertools.product(("positive", "trig"), ("iid", "orthogonal"))
    }  # fmt: skip
    assert {row.num_features for row in ranking.rows if row.estimator == "trig"} == {128}
    for row in ranking.rows:
        assert row.low <= row.median <= row.high
    trials = results.trials[results.trials["num_projections"].fillna(64) == 64].set_index("draw")
    for a, b in itertools.combinations(ranking.rows, 2):
        differences = rows_of(trials, a.estimator, a.sampler)["mse"] - rows_of(trials, b.estimator, b.sampler)["mse"]
        p = sign_test(differences.to_numpy())
        if set(a.groups) & set(b.groups):
            assert p > 0.05 / len(list(itertools.combinations(ranking.rows, 2)))
        else:
            assert p <= 0.05
    assert not set(ranking.rows[0].groups) & set(ranking.rows[-1].groups)


@pytest.mark.parametrize("metric, sign", [("max_abs_error", 1), ("cosine", -1), ("unnormalised_rows", 1), ("mse", 1)])
def test_the_verdict_against_uniform_is_of_the_metric(metric, sign):
    """Signs and Holm's steps written out, over all sizes. Rows of best-rank's weights need not sum to 1."""
    results = sweep(small_scenario(trials=20, num_projections="2,4", baselines="uniform,best-rank"), "run")
    (ranking,) = rankings(results, metric)
    keys = [results.trials[key].astype(object).where(results.trials[key].notna(), "-") for key in
            ("estimator", "sampler", "num_projections")]  # fmt: skip
    errors = sign * results.trials.set_index(["draw", *keys])[metric].unstack([1, 2, 3]).round(12)
    uniform = errors.pop(("uniform", "-", "-"))
    wins = {key: ((errors[key] < uniform).sum(), (errors[key] != uniform).sum()) for key in errors}
    p_values = {key: scipy.stats.binomtest(*counts).pvalue if counts[1] else 1.0 for key, counts in wins.items()}
    largest, expected = 0.0, {}
    for step, key in enumerate(sorted(p_values, key=p_values.get)):
        largest = max(largest, p_values[key] * (len(p_values) - step))
        better = "better" if 2 * wins[key][0] > wins[key][1] else "worse"
        expected[key] = better if largest <= 0.05 else "no detectable difference"
    for row in ranking.rows:
        if row.estimator != "uniform":
            assert row.versus_uniform == expected[row.estimator, row.sampler or "-", 4]
    if metric == "unnormalised_rows":
        assert next(row for row in ranking.rows if row.estimator == "best-rank").versus_uniform == "worse"


def test_rounding_on_both_sides_is_a_tie_in_a_cell():
    """Softmax over all keys is exact, in whatever order it is computed; of one key uniform attention is, too."""
    asked = {"maps": "none", "methods": "clusters,thinformer,wildcat", "baselines": "uniform,sampled-keys"}
    results = sweep(small_scenario(trials=30, seq_len="8", num_projections="8", **asked), "all")
    (ranking,) = rankings(results)
    assert [set(row.groups) for row in ranking.rows] == [{0}] * 4 + [{1}]
    (said,) = cell_sentences(results)
    assert "At R = 8 exact up to rounding: clusters, thinformer, wildcat." in said
    assert "None is detectably better than softmax over as many random keys" in said
    asked = {"maps": "positive,trig", "baselines": "uniform,taylor-1", "seq_len": "1", "num_projections": "1"}
    results = sweep(small_scenario(trials=30, **asked), "one")
    assert set(results.summary["versus_uniform"]) == {"-", "no detectable difference"}
    (said,) = cell_sentences(results)
    assert "no map detectably beats" in said and "worse" not in said
    assert {group for row in rankings(results)[0].rows for group in row.groups} == {0}


def test_a_map_that_is_exact_is_not_compared_with_uniform_attention():
    """Clusters of single keys and a long Taylor polynomial have rounding errors only."""
    asked = {"maps": "taylor(order=30)", "methods": "clusters", "seq_len": "8", "num_projections": "8"}
    (said,) = cell_sentences(sweep(small_scenario(trials=30, **asked), "run"))
    assert "exact up to rounding: " in said and "clusters" in said
    assert "the best map" not in said


def test_what_the_draws_do_not_show_is_not_denied():
    """On 9 of 12 draws clusters have a tenth of the error of uniform attention and random keys, nystrom on all 12."""
    asked = {"maps": "none", "methods": "clusters,nystrom", "baselines": "uniform,sampled-keys", "num_projections": "8"}
    results = sweep(small_scenario(trials=12, **asked), "run")
    trials, tenth = results.trials.copy(), {"clusters": 9, "nystrom": 12}
    wins = trials["estimator"].map(tenth).fillna(0) > trials["draw"]
    trials["skill"] = np.where(wins, 0.9, np.where(trials["estimator"].isin(tenth), -1.0, 0.0))
    trials["mse"] = 1.0 - trials["skill"]
    (said,) = cell_sentences(results._replace(trials=trials, summary=summarise(trials)))
    assert "the first to beat uniform attention: nystrom, at R = 8. Never detectably, up to R = 8: clusters." in said
    assert "Not detectably better than softmax over as many random keys (sampled-keys): clusters." in said


@pytest.mark.parametrize("trials", [3, 12])
def test_with_new_draws_for_each_size_those_of_the_largest_size_are_ranked(trials):
    """Medians, letters and counts from the draws of R = 20 alone; the k-th R has the draws k, k + 3, ..."""
    asked = {"maps": "positive,elu", "samplers": "iid", "methods": "clusters", "baselines": "uniform,taylor-1"}
    results = sweep(small_scenario(trials=trials, redraw="R", **asked), "run")
    (ranking,) = rankings(results)
    assert ranking.draws == trials and len(ranking.rows) == 5
    last = results.trials[results.trials["draw"] % 3 == 2].pivot(index="draw", columns="estimator", values="mse")
    assert len(last) == trials and last.notna().all(axis=None)
    for row in ranking.rows:
        values = last[row.estimator].sort_values().to_numpy()
        j = 0 if trials == 3 else 2  # P(at most 2 of 12 fair coins show heads) = 0.019
        assert_allclose([row.median, row.low, row.high], [np.median(values), values[j], values[-1 - j]], rtol=1e-6)
    assert [row.median for row in ranking.rows] == sorted(last.median())
    pairs = list(itertools.combinations(ranking.rows, 2))
    p_values = [scipy.stats.binomtest(int((last[a.estimator] < last[b.estimator]).sum()), trials).pvalue
                for a, b in pairs]  # fmt: skip
    largest, steps = 0.0, sorted(range(len(pairs)), key=p_values.__getitem__)
    for step, i in enumerate(steps):
        largest = max(largest, p_values[i] * (len(pairs) - step))
        a, b = pairs[i]
        assert bool(set(a.groups) & set(b.groups)) == (largest > 0.05)
    note, row = ranking_section(results, ranking, "mse").note, ranking_section(results, ranking, "mse").rows[0]
    assert note.startswith(f"{trials} draws, ")
    (said,) = cell_sentences(results)
    few = trials == 3
    assert ("So few can tell no two estimators apart" in note) == ("smallest to largest" in row) == few
    assert ("3 draws are too few to compare" in said) == few


def test_a_draw_on_which_one_estimator_failed_counts_for_the_others():
    results = sweep(small_scenario(trials=8, redraw="R", samplers="iid"), "run")
    failed = (results.trials["estimator"] == "trig") & results.trials["draw"].isin([2, 5])
    trials = results.trials[~failed]
    (ranking,) = rankings(results._replace(trials=trials, summary=summarise(trials)))
    assert ranking.draws == 8
    last = trials[trials["draw"] % 3 == 2].groupby("estimator")["mse"].median()
    assert {row.estimator: row.median for row in ranking.rows} == {row.estimator: last[row.estimator] for row in
                                                                   ranking.rows}  # fmt: skip


def test_cells_are_ranked_in_the_order_of_the_run():
    """The first scale lacks its first draw at the largest size; the page put the ranking of each beside the other."""
    results = sweep(small_scenario(trials=3, redraw="R", scale="0.5,2"), "run")
    trials = results.trials[results.trials["draw"] != 2]
    part = results._replace(trials=trials, summary=summarise(trials))
    assert [ranking.cell["scale"] for ranking in rankings(part)] == [0.5, 2]
    assert [ranking.draws for ranking in rankings(part)] == [2, 3]


def test_heads_whose_largest_size_is_not_measured_yet_are_not_ranked():
    """The draws of a trial are those of h0 at R = 4 and 8, then of h1, and h2 at R = 4 alone."""
    results = of_heads(3, num_projections="4,8", trials=2, redraw="R", maps="none")
    trials = results.trials[results.trials["draw"] < 5]
    asked = {"trials": trials, "summary": summarise(trials), "manifest": {**results.manifest, "complete": False}}
    (found,) = rankings_over_heads(results._replace(**asked))
    measured = trials[trials["draw"].isin([1, 3])].pivot(index="head", columns="estimator", values="mse")
    assert found.heads == len(measured) == 2 and measured.notna().all(axis=None)
    for row in found.rows:
        assert row.worse == (measured[row.estimator] > measured["uniform"]).sum()
        assert row.rank == measured.rank(axis="columns")[row.estimator].median()
    assert len(found.rows) == len(measured.columns)
    (whole,) = rankings_over_heads(results)
    assert whole.heads == 3
    trials = trials[trials["draw"] < 3]
    part = results._replace(**asked | {"trials": trials, "summary": summarise(trials)})
    with pytest.raises(ScenarioError, match=r"no two heads with draws at their largest size yet.* `heads` h0"):
        part.ranking()
    assert part.ranking(heads="h1")[0].rows


@functools.cache
def many_heads(count=16, **changes):
    asked = {"methods": "clusters,multipole", "num_projections": "4,8", "baselines": "uniform,top-keys,sampled-keys"}
    return of_heads(count, **asked | changes)


def test_over_heads_each_head_is_one_measurement():
    """Ranks by SciPy, and letters from binomial tests and Holm's steps written out, on medians taken from the rows."""
    results = many_heads()
    (found,) = rankings_over_heads(results)
    assert found.heads == 16 and len(found.rows) == 7 and found.draws_needed == 10
    last = results.trials[results.trials["num_projections"].fillna(8) == 8]
    medians = last.groupby(["head", "estimator"])["mse"].median().unstack()
    ranks = pd.DataFrame(scipy.stats.rankdata(medians, axis=1), medians.index, medians.columns)
    for row in found.rows:
        expected = np.quantile(ranks[row.estimator], [0.25, 0.5, 0.75])
        assert_allclose([row.rank_q25, row.rank, row.rank_q75], expected, rtol=1e-12)
        assert row.worse == (medians[row.estimator] > medians["uniform"]).sum()
        least = medians.drop(columns="top-keys").min(axis=1)
        assert row.first == (None if row.estimator == "top-keys" else (medians[row.estimator] == least).sum())
        assert row.best_group is None
    assert [row.rank for row in found.rows] == sorted(row.rank for row in found.rows)
    pairs = list(itertools.combinations(found.rows, 2))
    signs = [medians[a.estimator] < medians[b.estimator] for a, b in pairs]
    p_values = np.array([scipy.stats.binomtest(int(sign.sum()), 16).pvalue for sign in signs])
    adjusted, largest = {}, 0.0
    for step, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = adjusted[i] = max(largest, p_values[i] * (len(pairs) - step))
    for i, (a, b) in enumerate(pairs):
        assert bool(set(a.groups) & set(b.groups)) == (adjusted[i] > 0.05)
    assert min(adjusted.values()) <= 0.05 < max(adjusted.values())  # the control: both are there


@pytest.mark.parametrize("wins, differ", [(16, True), (8, False), (11, False)])
def test_a_difference_on_half_of_the_heads_is_none_over_heads(wins, differ):
    """Draws of one head are not draws of heads: sure differences of both signs tell nothing over heads."""
    results = many_heads()
    summary = results.summary.copy()
    names = [f"h{i}" for i in range(wins)]
    for (name, head), i in summary.groupby(["estimator", "head"]).groups.items():
        if name in ("clusters", "multipole"):
            summary.loc[i, "mse_median"] = 1.0 if (name == "clusters") == (head in names) else 2.0
    (found,) = rankings_over_heads(results._replace(summary=summary))
    a, b = (set(row.groups) for row in found.rows if row.estimator in ("clusters", "multipole"))
    assert bool(a & b) != differ


@pytest.mark.parametrize(("wins", "differ"), [(12, True), (9, False)])
def test_texts_of_one_head_are_not_heads(wins, differ):
    """A difference on 9 of 12 heads may be chance, also where it is seen on three texts of each: 27 of 36."""
    rng, shape = np.random.default_rng(0), (12, 3)
    layer, text = (np.broadcast_to(numbers, shape) for numbers in (np.arange(12)[:, None], np.arange(3)))
    np.savez("texts.npz", **random_heads(rng, *shape, 8, 4), layer=layer, head=0 * layer, text=text)
    asked = {"methods": "clusters,nystrom", "maps": "none", "baselines": "uniform", "inputs": "texts.npz"}
    results = sweep(small_scenario(seq_len=None, head_dim=None, num_projections="4", trials=1, **asked), "run")
    summary = results.summary.copy()
    layers = summary["head"].str.extract(r"L(\d+)")[0].astype(int)
    summary["mse_median"] = np.where(summary["estimator"] == "uniform", 3.0, np.where(layers < wins, 0.5, 2.0))
    summary.loc[summary["estimator"] == "nystrom", "mse_median"] = 1.0
    (found,) = rankings_over_heads(results._replace(summary=summary))
    a, b = (set(row.groups) for row in found.rows if row.estimator != "uniform")
    assert a.isdisjoint(b) == differ
    assert found.title.startswith("12 heads on 3 texts of texts.npz,") and found.heads == 36
    assert "12 heads on 3 texts" in run("table", "run")[1]


def test_rounding_on_both_sides_is_a_tie_over_heads():
    results = many_heads()
    summary = results.summary.copy()
    floor = rounding_level(results.trials, "mse")
    for name, value in (("clusters", floor / 2), ("multipole", floor / 9), ("top-keys", np.nan)):
        summary.loc[summary["estimator"] == name, "mse_median"] = value
    (found,) = rankings_over_heads(results._replace(summary=summary))
    by_name = {row.estimator: row for row in found.rows}
    assert by_name["clusters"].first == by_name["multipole"].first == 16 and by_name["clusters"].rank == 1.5
    assert by_name["top-keys"].rank == 7 and by_name["top-keys"].worse == 16


def test_in_how_many_best_groups_with_draws_enough():
    results = many_heads(7, trials=20, methods="clusters", maps="positive")
    (found,) = rankings_over_heads(results)
    counts = dict.fromkeys([row.estimator for row in found.rows], 0)
    for one in rankings(results):
        best = next(set(row.groups) for row in one.rows if row.estimator != "top-keys")
        for row in one.rows:
            counts[row.estimator] += bool(best & set(row.groups))
    assert counts | {"top-keys": None} == {row.estimator: row.best_group for row in found.rows}
    assert min(counts.values()) == 0 < max(counts.values()) <= 7
    section = ranking_section(results, found, "mse")
    assert "Groups: so few heads tell no two apart, 9 or more would" in section.note
    assert [row["best"] for row in section.rows] == [
        "-" if row.best_group is None else f"{row.best_group}/7" for row in found.rows
    ]
    assert "best" not in ranking_section(results, found._replace(enough_draws=False), "mse").rows[0]


@pytest.mark.parametrize("short", [0, 1])
def test_as_many_draws_as_are_needed_are_enough(short):
    """Two estimators and uniform attention are three pairs: 2^(1 - n) <= 0.05 / 3 from n = 7 on."""
    asked = {"methods": "clusters", "maps": "none", "baselines": "uniform,sampled-keys"}
    (found,) = rankings_over_heads(many_heads(2, trials=7 - short, **asked))
    assert found.enough_draws == (not short) and found.draws_needed == 7


def test_rank_over_heads_first_and_single_heads_on_request():
    many_heads(7)
    code, out, err = run("table", "run", "--rank")
    assert code == 0 and out.count("estimator") == 1 + out.count("each estimator at") and "over 7 heads" in out
    assert "top-keys (bound)" in out and "favorbench table run --heads h0 --rank" in err
    assert "its median is the least" in out
    assert "its median is the greatest" in " ".join(run("table run --rank --metric cosine")[1].split())
    single = run("table run --rank --heads h2,h5")[1]
    assert "heads.npz h2" in single and "heads.npz h5" in single and "over 7" not in single
    check_refused("table run --rank --heads h9 => has no head 'h9' (did you mean 'h")
    rows = json.loads(run("table run --rank --json")[1])
    read = pd.read_csv(StringIO(run("table run --rank --format csv")[1]))
    assert len(rows) == len(read) == 7 and {row["heads"] for row in rows} == {7}
    assert "| estimator | cost | rank |" in run("table run --rank --format md")[1]
    many_heads(3, out="few")
    few = run("table", "few", "--rank")[1]
    assert "over 3 heads" in few and "so few heads tell no two apart" in few and "against uniform" not in few
    each = run("table few --rank --heads h0,h1,h2")[1]
    assert "over 3 heads" not in each and each.count("against uniform") == 3
    sweep(small_scenario(), "drawn")
    check_refused("table drawn --rank --heads h0 => have no heads: leave --heads out")


def test_the_summary_of_many_heads_at_equal_features_ranks_over_them_first():
    many_heads(7, budget="features")
    written = Path("run/summary.md").read_text()
    assert "## Ranking over 7 heads" in written and "## Ranking: heads.npz h0" not in written
    many_heads(3, budget="features", out="few")
    assert "## Ranking: heads.npz h0" in Path("few/summary.md").read_text()


@pytest.mark.parametrize("factor, told_apart", [(1 + 1e-12, False), (1 + 1e-5, True)])
def test_estimators_that_differ_by_rounding_are_tied(factor, told_apart):
    """taylor-2 and the map taylor are the same; the control is more than rounding."""
    run = sweep(small_scenario(inputs="minilm", seq_len=None, head_dim=None, maps="taylor", trials=12), "run")
    trials = run.trials.copy()
    trials.loc[trials["estimator"] == "taylor-2", "mse"] *= factor
    changed = run._replace(trials=trials, summary=summarise(trials))
    for ranking in rankings(changed):
        groups = {row.estimator: row.groups for row in ranking.rows}
        assert set(groups["taylor"]).isdisjoint(groups["taylor-2"]) == told_apart
    ranks = rankings_over_heads(changed)[0].frame.set_index("estimator")["rank"]
    assert (ranks["taylor"] != ranks["taylor-2"]) == told_apart
