"""`recommend`: the search, its numbers, what it says, and how it ends."""

import json
import math
import os
import re
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import favorbench as fb
from favorbench.attention.problem import exact_multiplications
from favorbench.cli import choose
from favorbench.engine.plan import plan
from favorbench.engine.store import Store, read_trials
from favorbench.engine.trial import run_draws
from favorbench.errors import ScenarioError
from favorbench.methods import Shape
from favorbench.methods.features import LinearAttention
from favorbench.results import page as pages
from favorbench.studies.recommend import search as search_module
from favorbench.studies.recommend import study as study_module
from favorbench.studies.recommend.answer import (
    _bound,
    _effect,
    _model_certified,
    certified_in_words,
    number,
    python_lines,
    records,
    sentence,
    spent,
)
from favorbench.studies.recommend.candidates import (
    MAPS,
    METHODS,
    TRIVIAL,
    EstimatorSetting,
    cheaper_from,
    families,
    least_errors,
    settings_of,
    study_of,
)
from favorbench.studies.recommend.decision import Decision
from favorbench.studies.recommend.evidence import Rule
from favorbench.studies.recommend.figure import charts
from favorbench.studies.recommend.search import Candidate, CandidateSearch, chosen, search
from favorbench.studies.recommend.study import Interrupted, _check_draws
from favorbench.studies.saved import read_recommendation, saved_study
from tests.command_line import check_refused, commands, printed, refused, run
from tests.test_endings import started

FALSE_ALARM = 1e-6


def candidate(cost, random=True):
    return Candidate(EstimatorSetting("method", f"of cost {cost:g}", None, 1, "clusters"), cost, random)


class Stopped(CandidateSearch):
    """A search with some draws."""

    def measure(self, candidate):
        return False

    def describe(self, candidate):
        return {"cheaper_from": None, "python": ""}


@pytest.mark.parametrize("finished, cost", [(False, 1.0), (True, 2.0)])
def test_until_it_is_finished_a_search_names_the_cheapest_that_hits_and_then_the_best(finished, cost):
    """Of two without a certificate: a search that is continued may certify the cheaper one."""
    stopped = Stopped("h0", Rule(0.3, 0.9, 0.05), 10.0, "mse")
    stopped.candidates = [candidate(0.5), candidate(1.0), candidate(2.0)]
    stopped.finished = finished
    for each, error in zip(stopped.candidates, (0.4, 0.2, 0.1), strict=True):
        each.values = [error, error]
    assert stopped.decision().multiplications == cost


@pytest.mark.parametrize("error, undecided", [(0.1, 3), (0.4, 5)])
def test_candidates_without_a_verdict_are_named_where_they_were_tested(error, undecided):
    """Before a certified one, also of its cost; all if none is. Those behind it have draws that came with others."""
    stopped = Stopped("h0", Rule(0.3, 0.9, 0.05), 10.0, "mse")
    stopped.candidates = [candidate(cost) for cost in (0.5, 1.0, 2.0, 2.0, 2.0, 3.0)]
    for each in stopped.candidates:
        each.values = [0.2 * each.cost]
    stopped.candidates[3].values = [error] * 100
    stopped.search()
    assert len(stopped.decision().undecided) == undecided


def simulated(rates, seed, deterministic=None):
    """A search among candidates with these hit rates by cost; misses are infinite or no number."""
    rng = np.random.default_rng(seed)
    found = [candidate(cost) for cost in rates]
    if deterministic is not None:
        found.append(candidate(deterministic, random=False))

    def measure(one):
        hit = not one.random or rng.random() < rates[one.cost]
        one.values.append(0.05 if hit else float(rng.choice([0.2, np.inf, np.nan])))
        return True

    search(found, Rule(0.1, 0.9, 0.05), measure)
    return found


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Two heads of 48 tokens: one whose keys are four points, where four centroids say all, and one of noise."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(4, 6))
    query, key, value = rng.normal(size=(3, 2, 48, 6))
    key[0] = points[rng.integers(0, 4, 48)] + 1e-3 * key[0]
    query[1], key[1] = 2.5 * query[1], 2.5 * key[1]
    path = tmp_path_factory.mktemp("heads") / "mine.npz"
    np.savez(path, q=query, k=key, v=value)
    return str(path)


FEW = "--maps positive --methods sampled-keys,clusters,nystromformer --target 0.05 --out run"


def test_the_search_is_wrong_no_more_often_than_it_says():
    """60 candidates that all hit a little too rarely, and a dear one that always does: the cheap ones are not taken."""
    searches = 40
    rates = {float(cost): 0.88 for cost in range(1, 61)} | {100.0: 1.0}
    taken = [chosen(simulated(rates, seed)) for seed in range(searches)]
    wrong = sum(one is None or one.cost < 100 for one in taken)
    assert wrong <= stats.binom.isf(FALSE_ALARM, searches, 0.05)


def test_the_search_finds_the_cheapest_and_stops_there():
    found = simulated({1.0: 0.2, 2.0: 0.5, 3.0: 0.999, 4.0: 1.0}, 0)
    assert [one.verdict for one in found] == ["dropped", "dropped", "certified", "open"]
    assert not found[-1].values and len(found[0].values) < 20 and len(found[1].values) < 60


def test_the_best_of_few_draws_that_is_worse_with_more_is_not_named_the_best():
    """Where nothing is certified: a bound of 5 was stated of it, and none of the other."""
    lucky, steady, rule = candidate(1.0), candidate(2.0), Rule(0.1, 0.9, 0.05)

    def measure(one):
        one.values.append(0.3 if one is steady else 0.2 if len(one.values) < 8 else 5.0)
        return True

    rule = search([lucky, steady], rule, measure)
    assert {lucky.verdict, steady.verdict} == {"dropped"} and len(lucky.values) < 12
    assert (lucky.bound(rule), steady.bound(rule)) == (np.inf, 0.3)


def test_deterministic_estimators_are_decided_by_one_evaluation():
    found = simulated({1.0: 0.1, 3.0: 1.0}, 0, deterministic=2.0)
    assert [(one.verdict, len(one.values) > 0) for one in found] == [
        ("dropped", True),
        ("open", False),
        ("certified", True),
    ]
    assert len(found[-1].values) == 1


def test_where_nothing_is_certified_the_best_has_a_bound():
    found = simulated({1.0: 0.0, 2.0: 0.0}, 0)
    assert chosen(found) is None and max(len(one.values) for one in found) >= 43


def test_a_few_draws_without_a_bound_do_not_hide_a_certified_bound():
    """The errors of a candidate that was rejected after three draws look small: no bound follows from them."""
    stopped = Stopped("h0", Rule(0.3, 0.9, 0.05), 10.0, "mse")
    stopped.candidates, stopped.finished = [candidate(1.0), candidate(2.0)], True
    for each, errors in zip(stopped.candidates, ([0.4] * 3, [0.5] * 60), strict=True):
        each.values = errors
    decision = stopped.decision()
    assert (decision.outcome, decision.multiplications, decision.bound) == ("nothing", 2.0, 0.5)


def test_draws_after_a_certificate_leave_its_bound_at_or_below_the_target():
    """Sizes that are measured together have draws beyond their verdict: 60 hits certify, and misses follow."""
    certified, rule = candidate(1.0), Rule(0.3, 0.9, 0.05)
    certified.values = [0.2] * 60 + [0.4] * 20
    certified.judge(rule)
    assert (certified.verdict, certified.bound(rule)) == ("certified", 0.3)


def test_the_numbers_are_those_of_a_sweep_bit_for_bit(heads):
    """Default candidates; a sweep measures all their sizes at once."""
    assert fb.recommend(heads, 1e-9, max_cost=50.0, out="run").complete
    scenario = study_of({"inputs": heads}, None, None, None, 1024).scenario
    whole = fb.sweep(scenario.model_copy(update={"trials": 8}), "whole").trials
    keys = ["draw", "kind", "estimator", "sampler", "num_projections"]
    ours = read_trials(Path("run"))
    ours = ours[ours["trial"] < 8]
    both = ours.merge(whole, on=keys, how="left", suffixes=("", "_sweep"), indicator=True)
    assert len(ours) > 200 and set(both["_merge"]) == {"both"}
    for metric in ("relative_error", "mse", "max_abs_error", "cosine", "multiplications"):
        assert_array_equal(both[metric], both[f"{metric}_sweep"])


def test_the_cost_of_certified_heads_is_their_mean(heads):
    """A quarter, a half and three quarters of exact attention; heads without a certificate do not count."""
    found = fb.recommend(heads, 0.5, maps="none", methods="clusters", max_size=4)
    decision = found.decisions[0]._replace(outcome="certified")
    shares = [decision._replace(share=share, multiplications=share * found.exact) for share in (0.25, 0.5, 0.75)]
    said = sentence(found._replace(decisions=(*shares, decision._replace(outcome="nothing", multiplications=1e9))))
    assert "3 of 4 heads below 50 %, at 50 % of the cost of exact attention (25 % to 75 %)" in said
    many = [decision._replace(share=0.01 * i, bound=2.0 * i) for i in range(1, 9)]
    many += [one._replace(outcome="nothing", share=one.share / 100) for one in many]
    (chart,) = charts(found._replace(decisions=tuple(many)))  # one point for each head, in one panel
    chart.panels[0].draw(ax := Figure().subplots())
    drawn = {(x, y) for line in ax.lines for x, y in zip(*map(tuple, line.get_data()), strict=True)}
    assert {(max(one.share, 1e-3), min(one.bound, 10.0)) for one in many} <= drawn  # larger errors are drawn at 10
    assert ax.get_yscale() == "log" and 1e-3 < ax.get_ylim()[0] < 0.5 and 10 < ax.get_ylim()[1] < 1e3
    (chart,) = charts(found._replace(decisions=tuple(one._replace(share=max(one.share, 0.02)) for one in many)))
    chart.panels[0].draw(ax := Figure().subplots())
    assert {0.03, 0.1, 0.3, 1} <= {float(f"{tick:.3g}") for tick in ax.xaxis.get_majorticklocs()}  # less than 3 decades
    assert not Decision("h9", "not finished").draws and len(many) == 16


def test_every_setting_is_tried_or_counted_with_its_reason(rng):
    """None is counted twice; features of 16 and 32 projections have too low a rank, whatever their cost."""
    query, key, value = rng.normal(size=(3, 1, 96, 64))
    np.savez("wide.npz", q=query, k=key, v=value)
    asked = {"maps": "positive", "methods": "clusters", "metric": "mse", "max_size": 64}
    counts = []
    for target, cost in ((1e9, 1e9), (1e-9, 1e9), (1e-9, 0.5)):
        (one,) = fb.recommend("wide.npz", target, max_cost=cost, **asked).decisions
        counts.append((one.candidates, one.dearer, one.rank))
    assert counts == [(8, 0, 0), (6, 0, 2), (2, 5, 1)]


@pytest.mark.parametrize("probability, said", [(0.9, "takes 43 draws"), (1 - 1e-9, "takes more than 8388608 draws")])
def test_too_few_draws_are_refused_with_the_number_that_is_needed(probability, said):
    units = [SimpleNamespace(indices=range(count)) for count in (50, 42)]
    rule = Rule(0.1, probability, 0.05)
    with pytest.raises(ScenarioError, match=said):
        _check_draws(rule, units, "texts")
    assert probability > 0.99 or _check_draws(rule, units[:1], "texts") is None


def test_a_certified_largest_error_is_said_to_be_that_of_the_measured_rows():
    """That of the mean of V over all rows is beyond its certified bound in every draw."""
    query, key, value = np.random.default_rng(0).standard_t(3, size=(3, 512, 4))
    keys = {"target": 6.0, "maps": "none", "methods": "clusters", "num_projections": [8], "query_rows": 16}
    found = {name: fb.recommend((query, key, value), metric=name, **keys) for name in ("max_abs_error", "mse")}
    decision = found["max_abs_error"].decisions[0]
    assert decision.outcome == "certified" and decision.setting.name == "uniform"
    assert np.abs(value.mean(axis=0) - fb.exact_attention(query, key, value)).max() > decision.bound
    said = {name: "over all rows it can be far larger" in certified_in_words(result) for name, result in found.items()}
    assert said == {"max_abs_error": True, "mse": False}
    whole = fb.recommend((query, key, value), metric="max_abs_error", **keys | {"query_rows": None})
    assert "over all rows" not in certified_in_words(whole)


def test_a_certificate_of_a_model_names_its_texts():
    """Each part of the sentence where it applies."""
    points = [SimpleNamespace(draws=draws) for draws in (2, 9)]
    found = SimpleNamespace(confidence=0.95, decisions=[SimpleNamespace(points=points, candidates=3)])
    model = SimpleNamespace(texts=18, files=4, length=24, chosen_on=6, draws="texts", of_one_file=3, of_each=(2, 3))
    said = _model_certified(found, model)
    assert "further texts like these (18 texts of 24 tokens from 4 files in equal parts), each with a new draw" in said
    assert "up to 3 texts of one file count as independent; settings per head were chosen on 6 of them, and" in said
    assert "With 95 % confidence every verdict" in said and "the 5 % are shared equally among the 3 candidates" in said
    model.of_each = (0, 2)
    assert (
        "(18 texts of 24 tokens from 4 files; the answer was tested on 0 to 2 of each), each with"
        in _model_certified(found, model)
    )
    model.chosen_on, model.files, model.texts, model.of_one_file, model.of_each = 0, 1, 9, 9, (9, 9)
    said = _model_certified(found, model)
    assert "(9 texts of 24 tokens from one file)" in said and "up to 9 texts of one file" in said
    assert "per head" not in said
    model.files, model.of_one_file = 9, 1
    assert "count as independent" not in _model_certified(found, model)
    model.length, model.draws = None, "inputs"
    said = _model_certified(found, model)
    assert "further inputs like these (9 inputs), each with a new draw of the estimator: an input must be" in said


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8")
def test_an_answer_in_a_directory_whose_name_is_not_utf8_can_be_read():
    path = os.fsdecode(b"caf\xe9")
    found = fb.recommend("gaussian", 0.9, maps="elu", methods="none", seq_len=16, head_dim=4, out=path)
    assert read_recommendation(Path(path)) == found


def test_every_head_gets_its_own_answer(heads):
    found = fb.recommend(heads, 0.05, maps="positive", methods="sampled-keys,clusters,nystromformer", out="run")
    few, noise = found.decisions
    assert few.outcome == "certified" and few.setting is not None and few.setting.name == "clusters"
    assert few.bound <= 0.05 and few.share < 1 and few.hits / few.draws >= 0.9
    assert noise.outcome == "nothing" and noise.bound > 0.05 and not math.isinf(noise.bound)
    assert sentence(found).startswith(
        "1 of 2 heads below 5 %, at "
    ) and "on h1 nothing within the cost limit reaches it up to size 32: the best is" in sentence(found)
    assert "uniform attention has " in sentence(found)
    said = certified_in_words(found)
    assert "for these q, k and v, over the random draws" in said and "are computed, not tested" in said
    for panel in charts(found)[0].panels:  # points of two kinds differ in colour
        panel.draw(ax := Figure().subplots())
        points = [line for line in ax.lines if line.get_marker() != "None" and line.get_label()[0] != "_"]
        assert len({line.get_color() for line in points}) == len(points) >= 3
    measured, full = spent(found.decisions)
    assert measured < full


def errors_of(python, arrays, scale, causal, count):
    """Relative errors of the function that lines of Python make."""
    space = {}
    exec(python, space)
    query, key, value = arrays
    exact = fb.exact_attention(scale * query, scale * key, value, causal)
    answers = [space["attention"](query, key, value, np.random.default_rng(i)) for i in range(count)]
    return np.array([np.linalg.norm(answer - exact) / np.linalg.norm(exact) for answer in answers])


@pytest.mark.parametrize("causal", [False, True])
def test_the_lines_of_python_are_the_estimator(heads, causal):
    """As draws of a sweep: equal where nothing is random, else of one law. The control: another size, or no mask."""
    count, detected = 40, 0
    with np.load(heads) as file:
        arrays = [file[name][1] for name in "qkv"]
    maps, methods = "positive,trig,phase,taylor(order=1)", "sampled-keys,clusters,sinks(4):multipole,eva"
    keys = {"inputs": heads, "scale": 0.5, "causal": causal, "heads": "h1"}
    study = study_of(keys, maps, methods, "orthogonal", 16)
    draws = [plan(study)[i] for i in range(count)]
    for family in families(study):
        estimator = family.estimator
        (setting,) = settings_of(estimator.kind, estimator.method, family.spec, draws[0].sizes)
        rows = [row for draw in draws for row in run_draws(family.study, [draw])[0]]
        ours = [row["relative_error"] for row in rows if row["estimator"] == setting.name]
        theirs = errors_of(python_lines(family, setting.size, 0.5), arrays, 0.5, causal, count)
        if not family.estimator.method.random:
            assert_allclose(theirs, ours, rtol=1e-9)
            continue
        exact = max(*ours, *theirs) < 1e-12  # then they differ by rounding, which is of no law
        assert exact or stats.mannwhitneyu(ours, theirs).pvalue > FALSE_ALARM, setting
        control = python_lines(family, 16 if causal else 4, 0.5).replace(", causal=True", "")
        other = errors_of(control, arrays, 0.5, causal, count)
        detected += stats.mannwhitneyu(ours, other).pvalue < FALSE_ALARM
    assert detected >= 4


def test_the_lines_of_python_keep_the_bound(heads):
    with np.load(heads) as file:
        arrays = [file[name][0] for name in "qkv"]
    found = fb.recommend(heads, 0.05, methods="clusters", heads="h0", out="run")
    (decision,) = found.decisions
    inside = int(np.sum(errors_of(decision.python, arrays, 1.0, False, 60) <= decision.bound))
    assert decision.outcome == "certified" and inside >= stats.binom.ppf(FALSE_ALARM, 60, 0.9)


def test_processes_search_the_heads_and_the_answer_is_the_same(heads):
    calls = {1: [], 2: []}
    reports = {n: lambda *now, step, said=said: said.append(now) for n, said in calls.items()}
    alone, by_two = (
        fb.recommend(heads, 0.05, methods="clusters", out=f"{n}", workers=n, progress=report)
        for n, report in reports.items()
    )
    assert calls == {1: [(0, 2), (1, 2)], 2: [(1, 2), (2, 2)]}
    assert by_two._replace(path=alone.path) == alone and len(alone.decisions) > 1
    with pytest.raises(ScenarioError, match="`workers`: 0 given"):
        fb.recommend(heads, 0.05, workers=0)


def test_the_order_of_axes_is_that_of_a_sweep(heads):
    with np.load(heads) as file:
        np.savez("turned.npz", **{name: np.moveaxis(file[name], 0, 1) for name in "qkv"})
    keys = {"target": 0.05, "methods": "clusters", "maps": "none"}
    found = fb.recommend("turned.npz", layout="L,heads,d", out="turned", **keys)
    expected = fb.recommend(heads, out="run", **keys)
    assert [d.uniform for d in found.decisions] == [d.uniform for d in expected.decisions]
    assert len(found.decisions) > 1 and found.decisions[0].uniform != found.decisions[1].uniform


def test_what_a_file_has_beside_heads_is_said_before_the_search(heads):
    """Heads of another layout are taken for many heads of few tokens, and a mask is not used."""
    with np.load(heads) as file:
        np.savez("turned.npz", mask=np.ones(2), **{name: np.moveaxis(file[name][:2, :5], 0, 1) for name in "qkv"})
    arguments = ["recommend", "turned.npz", "--target", "0.9", "--maps", "none", "--methods", "clusters"]
    _, _, said = run(*arguments)
    assert "5 heads of 2 tokens each: if it is the other way round, use --layout L,heads,d; 'mask' is not used" in said
    _, printed, said = run(*arguments, "--quiet", "--out", "quiet")
    assert not said
    for shown in (printed, run("table", "quiet")[1], Path("quiet/recommendation.json").read_text()):
        assert "'mask' is not used" in shown and "other way round" in shown


@pytest.mark.parametrize("texts", [1, 2])
def test_heads_of_several_texts_are_said_to_count_once_for_each(texts):
    query, key, value = np.random.default_rng(5).normal(size=(3, texts, 3, 24, 4))
    found = fb.recommend((query, key, value), 0.99, methods="clusters", maps="none")
    assert len(found.decisions) == 3 * texts
    assert ("A head counts once for each text." in found._repr_html_()) == (texts > 1)


def test_heads_on_which_uniform_attention_is_enough_are_named():
    rng = np.random.default_rng(5)
    query, key, value = rng.normal(size=(3, 64, 4))
    flat, loose = ((1e-4 * query, 1e-4 * key, value), 0.1), ((query, key, value), 0.99)
    for inputs, target in (flat, loose):
        found = sentence(fb.recommend(inputs, target, methods="clusters", maps="none"))
        assert "uniform attention is enough on 1 of them" in found
        assert "hardly matters" not in found  # at a loose target it does
    assert "is enough" not in sentence(fb.recommend(loose[0], 0.1, methods="clusters", maps="none", max_size=8))


def test_sizes_may_be_finer_than_powers_of_two(heads):
    """Among powers of two, 16 centroids are the cheapest sufficient size, at half the cost of exact attention."""
    few = {"maps": "none", "methods": "clusters", "heads": "h0"}
    (coarse,) = fb.recommend(heads, 0.05, out="coarse", **few).decisions
    found = fb.recommend(heads, 0.05, num_projections="10,12,14", out="fine", **few)
    (fine,) = found.decisions
    assert coarse.outcome == fine.outcome == "certified" and fine.share < coarse.share == 0.5
    assert found.max_size == 14 and {point.setting.size for point in fine.points} <= {None, 10, 12, 14}
    command = (
        f"recommend {heads} -R 10,12,14 --maps none --methods clusters --heads h0 --target 0.05 -q --json --out fine"
    )
    assert json.loads(printed(command))["heads"][0]["estimator"]["size"] == fine.setting.size
    assert "-R: 0 given" in refused("recommend gaussian -R 0")


def test_a_long_search_says_after_the_first_head_how_long_it_takes(monkeypatch, capsys):
    clock, seen = iter([0.0, 1.0, 5.0, 10.0, 15.0, 0.0, 9.0, 0.0]), []
    monkeypatch.setattr(choose, "monotonic", lambda: next(clock))
    report = choose.with_hint(lambda *call: seen.append(call), 1)
    for done in range(4):
        report(done, 144, f"h{done}")
    assert seen == [(done, 144, f"h{done}") for done in range(4)]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "144 heads take about 12 min; --workers N searches them in N processes" in said
    short = choose.with_hint(lambda *call: None, 1)
    short(1, 2, "h1")
    assert capsys.readouterr().err == "" and choose.with_hint(None, 1) is None


def test_larger_may_be_better(heads):
    found = fb.recommend(heads, 0.99, metric="cosine", methods="clusters", heads="h0", out="run")
    (decision,) = found.decisions
    assert decision.outcome == "certified" and decision.bound >= 0.99 and decision.quantile <= decision.median
    assert "above cosine 0.99" in sentence(found)
    assert "PARTIAL" not in printed("compare run run")  # a search is complete before all draws that it may make
    assert charts(found)[0].title == "The cheapest estimator above the target: upper left is better"
    (record,) = records(found._replace(decisions=(decision._replace(bound=0.99962),)))
    assert record["certified"] == ">= 0.9996" and _effect(0.99962) == "0.9996"  # not 1.000, more than is certified
    none = found._replace(decisions=(decision._replace(outcome="nothing", bound=0.91277),))
    lower = none._replace(metric="mse", decisions=(none.decisions[0]._replace(bound=0.91234),))
    assert "(certified: 0.912)" in sentence(none) and "(certified: 0.913)" in sentence(lower)


def test_the_best_is_compared_with_uniform_attention_in_one_measure():
    """A certified bound stood beside what uniform attention had in the draws made, where it could be below it."""
    small = {"seq_len": 32, "head_dim": 8, "scale": 2, "num_projections": "4", "maps": "elu,taylor", "methods": "none"}
    (decision,) = (found := fb.recommend("gaussian", 0.1, **small)).decisions
    assert decision.quantile < decision.uniform and decision.quantile < decision.bound
    best, uniform = number(decision.quantile), number(decision.uniform)
    assert re.search(rf"with {best} \(certified: [\d.]+\); uniform attention has {uniform}\.", sentence(found))


@pytest.mark.parametrize("text", [number, _effect])
def test_a_bound_is_rounded_to_the_side_on_which_it_holds(text):
    values = np.random.default_rng(0).choice([-1, 1], 2000) * 10 ** np.random.default_rng(1).uniform(-6, 4, 2000)
    for sign, way in (("<=", 1), (">=", -1)):
        moved = np.array([way * (float(_bound(value, sign, text)) - value) for value in values])
        assert moved.min() >= 0 and np.all(moved <= 0.11 * np.abs(values))  # at most the last digit
    assert any(float(text(value)) < value for value in values)  # rounded to the nearest, some would not hold
    assert _bound(0.01249, "<=", text) in ("0.013", "0.0125") and _bound(math.inf, "<=", text) == "inf"


def test_shares_that_were_asked_for_keep_their_digits(heads):
    asked = {"probability": 0.975, "confidence": 0.985, "methods": "clusters", "maps": "none", "heads": "h0"}
    found = fb.recommend(heads, 0.025, out="run", **asked)
    assert "not below 2.5 %" in sentence(found)
    assert "with 98.5 % confidence" in certified_in_words(found) and "The 1.5 % are split" in certified_in_words(found)
    assert "97.5 % of draws" in records(found)[0]
    assert "97.5 %" in charts(found)[0].caption and "98.5 % confidence" in charts(found)[0].caption


def test_drawn_inputs_are_part_of_the_certificate():
    found = fb.recommend("gaussian(std=0.25)", 0.05, seq_len=64, head_dim=4, methods="clusters", out="run")
    (decision,) = found.decisions
    assert decision.outcome == "certified" and decision.setting is not None
    assert decision.setting.name.startswith("taylor") and decision.draws > 43
    assert "drawn anew from this law" in certified_in_words(found)


def test_over_texts_the_unit_is_the_text():
    rng = np.random.default_rng(4)
    query, key, value = rng.normal(size=(3, 80, 2, 32, 4))
    np.savez("texts.npz", q=0.3 * query, k=0.3 * key, v=value)
    found = fb.recommend("texts.npz", 0.2, over="texts", methods="clusters", out="run")
    assert [d.head for d in found.decisions] == ["h0", "h1"]
    assert all(d.outcome == "certified" and 43 <= d.draws <= 80 for d in found.decisions)
    said = certified_in_words(found)
    assert "exchangeable" in said and said.endswith("and on each head among its candidates.")  # all are tested
    rows = read_trials(Path("run"))
    assert set(rows["trial"]) == {0} and rows["head"].nunique() > 80
    np.savez("some.npz", q=query[:60], k=key[:60], v=value[:60])  # enough for one candidate alone
    np.savez("few.npz", q=query[:20], k=key[:20], v=value[:20])
    check_refused("""
        recommend few.npz --over texts => texts there are 20
        recommend some.npz --over texts --maps none --methods clusters => candidates; over texts there are 60
        recommend minilm --over texts => there is one text only
    """)


def test_of_settings_that_cost_too_much_nothing_is_claimed(rng):
    """It said that nothing up to size 15 reaches the target: size 15 does, and was not tried."""
    ask = {"maps": "none", "methods": "clusters", "num_projections": [2, 15], "probability": 0.5}
    arrays = tuple(rng.normal(size=(3, 16, 4)) * [[[2.0]], [[2.0]], [[1.0]]])
    cheap, dear = (fb.recommend(arrays, 0.25, **ask, max_cost=cost) for cost in (1.0, 9.0))
    assert dear.decisions[0].outcome == "certified" and cheap.decisions[0].dearer == 1
    assert "on h0 nothing within the cost limit reaches it up to size 15: the best is" in sentence(cheap)


def test_another_word_than_texts_is_refused():
    """It pooled the texts, and certified the answer for the q, k and v of each of them."""
    arrays = tuple(np.random.default_rng(0).normal(size=(3, 70, 2, 8, 3)))
    with pytest.raises(ScenarioError, match=r"`over` 'text' \(did you mean 'texts'\?\); allowed: heads, texts"):
        fb.recommend(arrays, 0.9, over="text")  # pyright: ignore[reportArgumentType]


def test_sizes_may_be_an_array():
    arrays = tuple(np.random.default_rng(0).normal(size=(3, 12, 3)))
    found = [
        fb.recommend(arrays, 2.0, maps="none", methods="clusters", num_projections=sizes).max_size
        for sizes in (np.array([4, 6]), [4, 6])
    ]
    assert found == [6, 6]


def test_a_text_that_is_given_twice_is_refused():
    """A head that is 0 on all texts tells none apart; two texts are equal where all heads are."""
    texts = np.random.default_rng(0).normal(size=(3, 70, 2, 8, 3))
    texts[:, :, 0] = 0.0
    ask = {"over": "texts", "methods": "clusters", "maps": "none", "num_projections": [4]}
    assert len(fb.recommend(tuple(texts), 0.9, **ask).decisions) == 2
    texts[:, 30] = texts[:, 7]
    with pytest.raises(fb.InputError, match="b7 is the same text as b30, and would count twice"):
        fb.recommend(tuple(texts), 0.9, **ask)


def test_a_bound_by_rank_is_below_every_output_of_that_rank(rng):
    exact = rng.normal(size=(40, 6)) * [5, 3, 1, 0.5, 0.1, 0.01]
    least = least_errors(exact, "relative_error")
    assert sorted(least) == [1, 2, 3, 4, 5] and least_errors(exact, "cosine") == {}
    u, s, vt = np.linalg.svd(exact, full_matrices=False)
    for rank, bound in least.items():
        best = np.linalg.norm(exact - u[:, :rank] * s[:rank] @ vt[:rank]) / np.linalg.norm(exact)
        assert_allclose(bound, best, rtol=2e-6)
        other = rng.normal(size=(40, rank)) @ rng.normal(size=(rank, 6))
        assert np.linalg.norm(exact - other) / np.linalg.norm(exact) > bound
        assert_allclose(least_errors(exact, "mse")[rank], best**2 * np.mean(exact**2), rtol=3e-6)


@pytest.mark.parametrize("spec, size, causal", [
    ("thinformer", 384, False), ("pisa", 16, False), ("multipole(lloyd=3)", 64, True), ("clusters", 256, True),
])  # fmt: skip
def test_it_is_cheaper_at_every_length_from_there_on(spec, size, causal):
    """Costs have steps: pisa of size 16 is cheaper than exact attention at 23 to 64 keys, and not at 65."""
    method, shape = fb.get_method(spec), Shape(512, 512, 32, 32, causal)
    shapes = [shape._replace(n=length, l=length) for length in range(1, 3000)]
    dearer = [other.l for other in shapes if method.multiplications(other, size) >= exact_multiplications(other)]
    assert cheaper_from(method, size, shape) == max(dearer) + 1


def test_from_which_length_on_it_is_cheaper():
    """By hand: a map of R features costs 2 L R (d + d_v), exact attention L^2 (d + d_v)."""
    shape = Shape(512, 512, 32, 32)
    assert cheaper_from(LinearAttention(fb.get_map("positive")), 64, shape) == 129
    assert cheaper_from(LinearAttention(fb.get_map("positive")), 256, shape) == 513
    few = shape._replace(n=100, l=4096)  # (100 + l) R < 100 l from l = 100 R / (100 - R) on, so never for R = 100
    assert cheaper_from(LinearAttention(fb.get_map("positive")), 50, few) == 101
    assert cheaper_from(LinearAttention(fb.get_map("positive")), 100, few) is None
    for features, length in ((5 << 20, (10 << 20) + 1), (8 << 20, None)):  # lengths up to 2^24 count
        assert cheaper_from(LinearAttention(fb.get_map("positive")), features, shape) == length
    assert (
        exact_multiplications(shape) == 512 * 512 * 64
        and exact_multiplications(shape._replace(causal=True)) == 512 * 513 / 2 * 64
    )


def test_a_second_run_measures_nothing_and_another_target_little(heads, monkeypatch):
    first = fb.recommend(heads, 0.05, methods="clusters,sampled-keys", out="run")
    parts = sorted(os.listdir("run/trials"))
    with monkeypatch.context() as patch:
        patch.setattr(search_module, "run_draws", None)
        assert fb.recommend(heads, 0.05, methods="clusters,sampled-keys", out="run") == first
    assert sorted(os.listdir("run/trials")) == parts
    assert fb.recommend(heads, 0.5, methods="clusters,sampled-keys", out="run").decisions[0].bound <= 0.5
    check_refused("recommend HEADS --methods clusters --out run => holds another run", HEADS=heads)
    shutil.rmtree("run/trials")  # the answer would be replaced
    check_refused("recommend HEADS --methods clusters --out run => holds another run", HEADS=heads)


def test_an_interrupted_search_resumes_to_the_same_answer(heads, monkeypatch):
    whole = fb.recommend(heads, 0.05, methods="clusters,sampled-keys", out="whole")
    calls = []

    def until(study, draws):
        calls.append(draws)
        if len(calls) > 40:
            raise KeyboardInterrupt
        return run_draws(study, draws)

    with monkeypatch.context() as patch, pytest.raises(Interrupted) as caught:
        patch.setattr(search_module, "run_draws", until)
        fb.recommend(heads, 0.05, methods="clusters,sampled-keys", out="run")
    so_far = caught.value.found
    assert not so_far.complete and {d.outcome for d in so_far.decisions} == {"not finished"}
    assert all(math.isinf(d.bound) for d in so_far.decisions) and "2 not finished" in sentence(so_far)
    assert so_far.decisions[0].setting is not None and so_far.decisions[1].setting is None
    assert json.loads(Path("run/recommendation.json").read_text("utf-8"))["complete"] is False
    resumed = fb.recommend(heads, 0.05, methods="clusters,sampled-keys", out="run")
    assert resumed._replace(path=None) == whole._replace(path=None)
    ours, theirs = (
        read_trials(Path(name)).sort_values(["draw", "estimator", "num_projections"], ignore_index=True)
        for name in ("run", "whole")
    )
    pd.testing.assert_frame_equal(ours, theirs)


def test_an_interrupted_search_by_workers_has_the_heads_that_are_decided(heads):
    whole = fb.recommend(heads, 0.3, methods="clusters", maps="none", out="whole")

    def stop(done, total, step=""):
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as executor, pytest.raises(Interrupted) as caught:
        fb.recommend(heads, 0.3, methods="clusters", maps="none", out="run", workers=executor, progress=stop)
    first, second = caught.value.found.decisions
    assert first == whole.decisions[0] and second.outcome == "not finished"


def test_a_search_by_workers_that_is_killed_has_the_draws_of_heads_under_way(heads, monkeypatch):
    whole = fb.recommend(heads, 0.05, methods="clusters", out="whole")
    monkeypatch.setattr(study_module, "STEP_SECONDS", 0.0)  # a draw is a step
    saved = []
    append = Store.append

    def until(store, rows):
        append(store, rows)
        saved.append(len(rows))
        if len(saved) == 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught, monkeypatch.context() as patch, ThreadPoolExecutor(2) as executor:
        patch.setattr(Store, "append", until)
        fb.recommend(heads, 0.05, methods="clusters", out="run", workers=executor)
    assert {decision.outcome for decision in caught.value.found.decisions} == {"not finished"}
    assert len(read_trials(Path("run"))) == sum(saved) > 0
    with ThreadPoolExecutor(2) as executor:
        resumed = fb.recommend(heads, 0.05, methods="clusters", out="run", workers=executor)
    assert resumed._replace(path=None) == whole._replace(path=None)
    ours, theirs = (
        read_trials(Path(name)).sort_values(["draw", "estimator", "num_projections"], ignore_index=True)
        for name in ("run", "whole")
    )
    pd.testing.assert_frame_equal(ours, theirs)


def test_a_search_that_saved_nothing_does_not_say_where(heads, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(search_module, "run_draws", stopped)
    code, out, err = run(f"recommend {heads} --methods clusters --out run --quiet")
    assert code == 130 and not Path("run").exists() and "Saved" not in out
    assert err == "interrupted before a draw was saved in run\n"


@pytest.mark.slow
def test_ctrl_c_prints_the_answer_so_far():
    command = ("recommend", "minilm", "--target", "0.001", "--out", "run")
    process = started(*command, until="run/trials/part-*")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err
    assert "so far: " in out and "not finished" in out and "rerun the command to resume" in err


def test_data_next_to_the_page_of_a_search_replace_no_other_files(heads, monkeypatch):
    printed(f"recommend {heads} {FEW} --quiet")
    monkeypatch.setattr(pages, "PLAIN_DATA", 0)
    monkeypatch.setattr(pages, "PACKED_DATA", 0)
    Path("x.csv").write_text("a,b\n")
    check_refused("report run --out x.html => x.csv is there and was not written")
    assert Path("x.csv").read_text() == "a,b\n" and not Path("x.html").exists()
    for _ in range(2):  # its own is replaced
        assert printed("report run --out y.html -q").splitlines() == ["y.html", "y.csv"]


def test_the_command_says_it_all(heads):
    out = printed(f"recommend {heads} {FEW} --quiet")
    assert "1 of 2 heads below 5 %" in out and "none; best: " in out and "def attention(query, key, value, rng)" in out
    assert Path("run/figures/recommend.png").exists()
    (chart,) = saved_study(Path("run")).charts
    chosen = [panel.title.partition(": ")[2] for panel in chart.panels]  # on the axes a name would cross lines
    assert chart.title and chosen[0].startswith("clusters") and chosen[1].startswith("nothing; best: ")
    for panel in chart.panels:
        panel.draw(ax := Figure().subplots())
        assert not ax.texts and "target" in ax.get_legend_handles_labels()[1][-2]
    _, out, _ = run(f"recommend {heads} {FEW} --json")
    found = json.loads(out)
    assert [head["certified"] for head in found["heads"]] == [True, False]
    assert found["heads"][0]["estimator"]["name"] == "clusters" and "import favorbench" in found["heads"][0]["python"]
    assert json.loads(Path("run/recommendation.json").read_text("utf-8"))["heads"] == found["heads"]


@pytest.mark.parametrize(
    "arguments, said",
    commands("""
        --target 0 => --target 0.0 given, allowed: a number above 0
        --target -1 => --target -1.0 given
        --target nan => --target nan given
        --probability 1 => --probability 1.0 given, allowed: a number between 0 and 1
        --probability 0 => --probability 0.0 given
        --confidence 1.5 => --confidence 1.5 given
        --probability 0.9999999 => --probability 1 at this --confidence takes
        --maps '' => there is no candidate to try
        --maps none --methods none => there is no candidate to try; leave one of them out
        --methods clusters,,nystrom => there is no candidate to try
        --methods 'top(8):clusters' => looks at every pair of a query and a key: a bound, not a candidate
        --methods 'sinks(2):top(8):clusters' => a bound, not a candidate
        --methods best-rank => a bound, not a candidate
        --methods top-keys => a bound, not a candidate
        --methods clustres => did you mean 'clusters'
        --maps clusters => write --methods clusters
        --metric mze => --metric 'mze' (did you mean 'mse'?)
        --metric '' => --metric ''
        -R '' => -R
        --metric rounding => --metric 'rounding'
        --metric cosine => --target has no default for cosine, which is 1 where the estimate is exact: give one
        --metric mse => --target has no default for mse, which has the scale of v: give one
        --metric skill --target 1.5 => allowed for skill: a number above 0 and below 1
        --max-size 0 => --max-size 0 given
        --max-cost 0 => --max-cost 0.0 given
        --causal --methods nystrom => cannot be causal
        --heads L9H9 => has no head 'L9H9'
        --trust-remote-code => --trust-remote-code is for a model, and this is about heads: leave it out
        --by seconds => --by is for a model, and this is about heads: leave it out
    """),
)
def test_mistakes_are_one_line(arguments, said):
    assert said in refused("recommend", "minilm", *arguments)
    assert os.listdir() == []


@pytest.mark.parametrize("several", [{"inputs": "gaussian,sphere"}, {"seq_len": [32, 64]}, {"scale": [0.5, 1]}])
def test_an_answer_is_about_one_input(several):
    """Of two inputs, the title, the claim and the cost of exact attention would be those of the first."""
    (name,) = several
    with pytest.raises(ScenarioError, match=f"`{name}`: 2 .* given, allowed: one; run it for each separately"):
        fb.recommend(**{"inputs": "gaussian", "seq_len": 32} | several)


@pytest.mark.parametrize("key", [{"budget": "cost"}, {"redraw": "R"}, {"trials": 3}, {"baselines": "taylor-1"}])
def test_keys_that_a_search_cannot_follow_are_refused(key):
    """With other budgets it left out candidates without a word; each R was a head of its own; others did nothing."""
    with pytest.raises(ScenarioError, match=f"`{next(iter(key))}` is of a sweep"):
        fb.recommend("gaussian", 0.5, seq_len=32, head_dim=4, methods="clusters", maps="none", max_size=16, **key)


def test_default_candidates_are_such_as_the_inputs_allow():
    causal = study_of({"inputs": "minilm", "causal": True}, None, None, None, 64)
    assert all(method.causal_safe for method in causal.methods) and len(causal.methods) >= 6
    rng = np.random.default_rng(0)
    np.savez("apart.npz", q=rng.normal(size=(8, 4)), k=rng.normal(size=(40, 4)), v=rng.normal(size=(40, 4)))
    apart = study_of({"inputs": "apart.npz"}, None, None, None, 64)
    assert not any(method.needs_positions for method in apart.methods) and apart.scenario.num_projections == (16, 32)
    names = {family.estimator.kind for family in families(apart)}
    assert names == {"baseline", "map", "method"}


@pytest.mark.parametrize(
    "maps, methods, tried",
    [
        ("none", "clusters", {"clusters"}),
        ("positive", "none", {"positive"}),
        ("none", None, {*METHODS}),
        (None, "none", {*MAPS}),
    ],
)
def test_none_is_a_list_of_nothing(maps, methods, tried):
    """Families without a flag have their defaults, unless only the other family is requested."""
    study = study_of({"inputs": "gaussian", "seq_len": 64}, maps, methods, None, 16)
    names = {family.spec for family in families(study)}
    assert names - {"uniform", *TRIVIAL} == tried - {"uniform"}
    assert names & {"uniform"}


@pytest.mark.parametrize("length, dim, value_dim", [(1, 1, 1), (2, 1, 1), (3, 2, 5), (17, 4, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_few_tokens_are_inputs_too(rng, length, dim, value_dim, causal):
    query, key = rng.normal(size=(2, length, dim))
    value = rng.normal(size=(length, value_dim))
    found = fb.recommend([query, key, value], 0.1, causal=causal, max_cost=3.0)
    assert found.complete and found.decisions[0].outcome in ("certified", "nothing")


NANS = """
import numpy as np

def nans(query, key, value, size, rng):
    return np.full((len(query), value.shape[1]), np.nan)

def one_row(query, key, value, size, rng):
    scores = np.exp(query @ key.T / query.shape[1] ** 0.5)
    output = scores / scores.sum(axis=1, keepdims=True) @ value
    output[3] = np.nan
    return output

nans.multiplications = one_row.multiplications = lambda shape, size: 1
"""


def test_nan_errors_are_misses(rng, module):
    module("failing_here", NANS)
    asked = {"maps": "none", "methods": "failing_here:nans", "max_size": 2}
    (decision,) = fb.recommend(tuple(rng.normal(size=(3, 20, 4))), 0.1, **asked).decisions
    (failed,) = (point for point in decision.points if point.setting.name == "nans")
    assert (failed.verdict, failed.median, decision.outcome) == ("dropped", math.inf, "nothing")


@pytest.mark.parametrize("metric, target", [("cosine", 0.9), ("skill", 0.999)])
def test_nan_outputs_are_misses_where_larger_is_better(rng, module, metric, target):
    """The cosine of one row of NaN is 0, so that an output with it was certified; read again, skills were +inf."""
    module("failing_here", NANS)
    asked = {"maps": "none", "methods": "failing_here:one_row", "max_size": 2, "metric": metric}
    found = fb.recommend({"mine": tuple(rng.normal(size=(3, 20, 4)))}, target, **asked, out="run")
    for result in (found, read_recommendation(Path("run"))):
        (failed,) = (point for point in result.decisions[0].points if point.setting.name == "one_row")
        assert (failed.verdict, failed.median, failed.worst) == ("dropped", -math.inf, -math.inf)
