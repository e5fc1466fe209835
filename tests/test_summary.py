"""Statistics against scipy, hand-made cases and their own promises."""

import math

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from favorbench.results import findings, heads, tables
from favorbench.results.summary import RunData, is_oracle, labelled, summarise
from favorbench.run import sweep
from favorbench.statistics import compare, holm, median_interval, sign_test
from tests.conftest import small_scenario


@pytest.mark.parametrize("n, j, coverage", [(6, 0, 0.96875), (15, 3, 0.96484375), (20, 5, 0.958610534667969)])
def test_median_interval_is_the_tabulated_one(n, j, coverage):
    """n = 15: order statistics 4 and 12, 96.5 % (David & Nagaraja, sec. 7.1; any table of the sign test)."""
    low, high, found = median_interval(np.arange(n)[::-1])
    assert (low, high) == (j, n - 1 - j)
    assert found == pytest.approx(coverage, rel=1e-12)


def test_median_interval_covers_as_often_as_it_says(rng):
    """A law with no mean (Cauchy): the share of intervals that hold 0 is binomial with the stated coverage."""
    samples = rng.standard_cauchy(size=(4000, 15))
    covered = sum(low <= 0 <= high for low, high, _ in map(median_interval, samples))
    assert stats.binomtest(covered, 4000, median_interval(samples[0]).coverage).pvalue > 1e-8
    # negative control: the interval one order statistic narrower must be refuted
    narrow = np.sort(samples, axis=-1)
    covered = int(np.sum((narrow[:, 4] <= 0) & (narrow[:, 10] >= 0)))
    assert stats.binomtest(covered, 4000, median_interval(samples[0]).coverage).pvalue < 1e-8


@pytest.mark.parametrize("n", [1, 2, 5])
def test_too_few_values_give_the_whole_range_and_say_so(n):
    low, high, coverage = median_interval(np.arange(n))
    assert (low, high) == (0, n - 1)
    assert coverage == pytest.approx(1 - 2.0 ** (1 - n)) and coverage < 0.95


@pytest.mark.parametrize("positive, n", [*((k, 11) for k in range(12)), (0, 1), (1, 2), (9, 30), (470, 1001)])
def test_sign_test_is_scipys(positive, n):
    differences = np.array([1.0] * positive + [-1.0] * (n - positive) + [0.0, np.nan])
    expected = stats.binomtest(positive, n).pvalue
    assert sign_test(differences) == pytest.approx(expected, rel=max(1e-12, 1e-14 * (n + 10)))


def test_holm_by_hand():
    # sorted .01 .02 .03 .5: times 4, 3, 2, 1 = .04 .06 .06 .5, made monotone
    assert_allclose(holm([0.03, 0.01, 0.5, 0.02]), [0.06, 0.04, 0.5, 0.06], rtol=1e-14)
    assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])


def test_compare_agrees_with_its_interval(rng):
    """The verdict and the interval are one fact: a difference is found exactly when 1 lies outside the interval."""
    for _ in range(300):
        a, b = np.exp(rng.normal(size=(2, 15)) + rng.normal() * np.array([[1.0], [0.0]]))
        result = compare(a, b)
        assert (result.verdict == "better") == (result.high < 1)
        assert (result.verdict == "worse") == (result.low > 1)
        assert result.ratio == pytest.approx(np.exp(np.median(np.log(a / b))))


def test_compare_finds_true_changes_and_no_false_ones(rng):
    b = np.exp(rng.normal(size=15))
    assert compare(0.5 * b, b).verdict == "better"
    assert compare(2.0 * b, b).verdict == "worse"
    assert compare(b, b).verdict == "no detectable difference"
    assert compare(np.array([np.inf] * 15), b).verdict == "worse"
    false_alarms = sum(
        compare(*np.exp(rng.normal(size=(2, 15)))).verdict != "no detectable difference" for _ in range(2000)
    )
    assert stats.binomtest(false_alarms, 2000, 0.05, alternative="greater").pvalue > 1e-8


def test_summary_by_hand():
    results = sweep(small_scenario(trials=4), "run")
    one = results.trials.query("estimator == 'trig' and sampler == 'iid'")
    mse = one[one["num_projections"] == 8]["mse"].to_numpy()
    row = results.summary.query("estimator == 'trig' and sampler == 'iid' and num_projections == 8").iloc[0]
    assert row["n"] == 4
    assert row["mse_median"] == pytest.approx(np.median(mse))
    assert row["mse_mean"] == pytest.approx(np.mean(mse))
    assert row["mse_q90"] == pytest.approx(np.quantile(mse, 0.9))
    assert (row["mse_low"], row["mse_high"]) == (mse.min(), mse.max())


def test_quantiles_of_infinite_errors_are_infinite_and_worse():
    """NumPy and pandas make NaN of them, which is worse than nothing."""
    results = sweep(small_scenario(trials=4), "run")
    failed = (results.trials["kind"] == "map") & (results.trials["trial"] > 0)
    infinite = {name: results.trials[name].where(~failed, np.inf) for name in ("mse", "relative_error")}
    trials = results.trials.assign(**infinite)
    summary = summarise(trials)
    of_maps = summary["kind"] == "map"
    assert np.isposinf(summary["mse_q90"][of_maps]).all() and np.isfinite(summary["mse_q90"][~of_maps]).all()
    run = RunData(results.path, results.manifest, results.scenario, trials, summary)
    table = tables.long_table(run, ["estimator", "num_projections"], "mse", "q90")
    maps = table[table["estimator"].isin(["positive", "trig"])]
    assert len(maps) == 6 and maps["worse"].all() and np.isposinf(maps["mse_q90"]).all()


def test_verdicts_against_uniform():
    """A made-up cell: one map always better, one always worse, one mixed."""
    base = sweep(small_scenario(maps="positive", samplers="iid", num_projections="3", trials=12), "run").trials
    rows = base.query("estimator == 'positive'")
    frames = [base.query("estimator == 'uniform'")]
    for name, skill in (("good", 0.5), ("bad", -0.5), ("mixed", [0.1, -0.1] * 6)):
        frames.append(rows.assign(estimator=name, skill=skill))
    summary = summarise(pd.concat(frames, ignore_index=True)).set_index("estimator")["versus_uniform"]
    assert summary.to_dict() == {"uniform": "-", "good": "better", "bad": "worse", "mixed": "no detectable difference"}


def test_uniform_attention_under_a_mask_is_the_mean_up_to_the_query():
    """Two sentences and a caption called it the mean of V, which no causal query sees; the legend beside them did not.

    The figure over heads has its caption from the same words.
    """
    run = sweep(small_scenario(scale="3", num_projections="4", trials=12, causal=True, baselines="uniform"), "causal")
    assert " uniform attention (the mean of V up to the query) at any R up to 4" in " ".join(findings.sentences(run))
    assert "that of uniform attention (the mean of V up to the query); then the median" in heads.legend(run)


def test_sentences_say_what_the_verdicts_say():
    weak = sweep(small_scenario(scale="3", num_projections="4", trials=15), "weak")
    assert "no map detectably beats uniform attention (the mean of V) at any R up to 4" in " ".join(
        findings.sentences(weak)
    )
    strong = sweep(small_scenario(scale="0.3", num_projections="4,300", trials=15, baselines="uniform"), "strong")
    (sentence,) = findings.sentences(strong)
    better = strong.summary.query("versus_uniform == 'better' and kind == 'map'")
    first = better.sort_values("num_projections", kind="stable").iloc[0]
    assert f"the first to beat uniform attention: {first['estimator']}/{first['sampler']}" in sentence
    assert f"at R = {first['num_projections']}." in sentence
    few = sweep(small_scenario(trials=2), "few")
    (sentence,) = findings.sentences(few)
    assert "2 draws are too few" in sentence
    needed = int(sentence.split("; use ")[1].split()[0])
    assert 2.0 ** (1 - needed) * 17 <= 0.05 < 2.0 ** (2 - needed) * 17  # 12 estimators and 5 baseline rows are judged


def test_windows_alone_have_no_features_and_are_no_users():
    flags = {"maps": "none", "methods": "window(40):nothing,sinks(1):window(40):nothing", "baselines": "uniform"}
    results = sweep(small_scenario(trials=10, **flags), "windows")
    rows = labelled(results.summary.query("kind == 'method'"))
    assert len(rows) == 2 and not rows["num_features"].any() and not rows["own"].any()
    assert "without an R: window(40):nothing, " in findings.sentences(results)[0]


@pytest.mark.parametrize(
    "value, metric, text",
    [
        (0.00551, "mse", "5.5e-3"),
        (74.6, "mse", "7.5e1"),
        (0.0, "mse", "0.000"),
        (1.5e-33, "mse", "1.5e-33"),
        (math.inf, "mse", "inf"),
        (math.nan, "mse", "-"),
        (0.5803, "relative_error", "0.580"),
        (123.4, "relative_error", "123"),
        (0.00149, "relative_error", "1.5e-3"),  # two digits also of what is small
        (-31900.0, "skill", "-3.2e4"),
        (0.99962, "cosine", "0.9996"),
        (1 - 1e-9, "cosine", "1.000"),
        (-math.inf, "skill", "-inf"),
    ],
)
def test_numbers_are_short(value, metric, text):
    assert tables.format_value(value, metric) == text


@pytest.mark.parametrize(
    "name, oracle",
    [
        ("top(3):clusters", True), ("window(4):top(3):mine:top", True), ("best-rank", True), ("mine:top", False),
        ("top", False), ("window(4):mine:top", False), ("mine:top(n=3)", False), ("clusters", False),
    ],
)  # fmt: skip
def test_a_users_function_may_have_the_name_of_an_oracle(name, oracle):
    assert is_oracle(name) == oracle


def test_what_is_equal_but_for_rounding_stays_in_its_order():
    values = pd.DataFrame({"ratio": [2.0 + 1e-15, 2.0, np.inf, np.nan, 1.0, 1.0 - 1e-15]})
    assert list(tables.ascending(values, "ratio").index) == [4, 5, 0, 1, 2, 3]
