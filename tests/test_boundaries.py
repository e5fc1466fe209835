"""Numbers at which an answer changes, from both sides: each line of a table is by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import favorbench as fb
from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, Shape
from favorbench.methods.clusters import growth
from favorbench.results.ranking import _legend, group_names
from favorbench.statistics import interval_name, mean_interval, verdict
from favorbench.studies.recommend.answer import Recommendation, notes, records, sentence
from favorbench.studies.recommend.candidates import EstimatorSetting, _can_run, _finer_sizes, _sizes, _trivial
from favorbench.studies.recommend.decision import Decision, MeasuredCandidate, WholeModel
from favorbench.studies.recommend.figure import charts
from favorbench.studies.recommend.study import _check_limits, target_of
from tests.command_line import read_table
from tests.definitions import member

CLUSTERS = EstimatorSetting("method", "clusters", None, 16, "clusters")
UNIFORM = EstimatorSetting("baseline", "uniform", None, None, "uniform")


def recommendation(count, model=None, metric="mse", setting=UNIFORM, **decision):
    decisions = (Decision(f"h{i}", "certified", setting, 9, candidates=2, full=9, **decision) for i in range(count))
    return Recommendation(None, "title", metric, 0.1, 0.9, 0.95, "inputs", 8, 1.0, tuple(decisions), True, model)


def test_three_heads_or_layers_are_named_and_the_others_counted():
    for count, last in ((3, "h0: x; h1: x; h2: x."), (4, "h0: x; h1: x; h2: x; and some on 1 more heads.")):
        assert notes(recommendation(count, undecided=("x",)))[-1] == f"Too near to the target to decide: {last}"
        left = {f"layer {i}": "a reason" for i in range(count)}
        said = notes(recommendation(1, WholeModel("name", 1, 9, 60, "multiplications", left), metric="delta_nll"))
        assert sum("is left unchanged: a reason." in line for line in said) == 3
        assert [line for line in said if line.startswith("So are")] == ["So are 1 more."] * (count - 3)


def test_six_heads_have_a_panel_each():
    assert [len(charts(recommendation(count))[0].panels) for count in (1, 6, 7)] == [1, 6, 1]
    assert isinstance(recommendation(1).plot(), Axes) and isinstance(recommendation(7).plot(), Axes)
    assert [type(ax).__name__ for ax in recommendation(6).plot()] == ["Axes"] * 6
    ax = Figure().subplots()
    assert recommendation(1).plot(ax) is ax


def test_what_a_recommendation_says_of_heads_and_settings_without_a_certificate():
    unfinished = recommendation(0)._replace(decisions=(Decision("h9", "not finished"),))
    assert not any("candidate" in note.partition("uniform:")[2] for note in notes(unfinished))
    row = records(unfinished)[0]
    assert {name: text for name, text in row.items() if text != "-"} == {"head": "h9", "estimator": "not begun"}
    points = [MeasuredCandidate(CLUSTERS._replace(kind=kind), 1.0, 0.5, 9, 0, 0, 0, "too few hits")
              for kind in ("per head", "per head", "method")]  # fmt: skip
    model = WholeModel("name", 1, 9, 60, "multiplications", {}, chosen_on=4)
    found = recommendation(1, model, "delta_nll", CLUSTERS, points=tuple(points), undecided=("a", "b"), share=0.5)
    assert "No settings per head that cost less are certified (2 tried)." in sentence(found)
    assert notes(found)[-1] == "Too near to the target to decide with these texts, more may do: a, b."
    tested = [MeasuredCandidate(CLUSTERS._replace(size=size), 1.0, 0.5, size, 0, 0, 0, "open") for size in (5, 4)]
    names = tuple(point.setting.text for point in tested)
    found = recommendation(1, model, "delta_nll", CLUSTERS, points=tuple(tested), undecided=names)  # of 9 - 4 texts
    assert notes(found)[-2:] == [
        "Too near to the target to decide with these texts, more may do: clusters, size 5.",
        "Too near to the target to decide with the most texts that a candidate is tested on: clusters, size 4.",
    ]


def test_five_draws_have_no_interval_and_one_no_mean_interval():
    assert [interval_name(n) for n in (5, 6)] == ["smallest to largest", "95 % interval"]
    assert math.isnan(mean_interval([1.0]).low)
    low, high = mean_interval([1.0, 2.0])[1:]  # 1.5 -+ t s / sqrt 2, with t = 12.7062 and s = sqrt 1/2
    assert (low, high) == (pytest.approx(1.5 - 6.3531, abs=1e-4), pytest.approx(1.5 + 6.3531, abs=1e-4))


@pytest.mark.parametrize("heads", [None, 9])
def test_enough_draws_are_enough(heads):
    for short in (0, 1):
        count = heads if heads is None else heads - short
        counts = {"heads": count, "distinct_heads": count, "draws": 9 - short, "draws_needed": 9}
        made = SimpleNamespace(**counts, enough_draws=True, group_names=["a"], frame=[0])
        assert ("tell no two" in _legend(made, "mse")) or not short
        assert ("differ detectably" in _legend(made, "mse")) == (not short)


def test_there_are_26_letters():
    assert [group_names([(most,)])[0] for most in (25, 26)] == ["z", "27"]
    assert [group_names([tuple(range(count))])[0] for count in (3, 4)] == ["abc", "a-d"]


def test_sizes_of_candidates():
    """Powers of two from 16 below the number of keys, and for a model 1.5 times these; the largest where none is."""
    clusters, keys = [fb.get_method("clusters")], {15: [8], 16: [8], 17: [16], 32: [16], 33: [16, 32], 2: [1]}
    assert {length: _sizes(clusters, [Shape(9, length, 4, 4)], 1024) for length in keys} == keys
    assert [_sizes(clusters, [Shape(99, 99, 4, 4)], most) for most in (31, 32)] == [[16], [16, 32]]
    finer = {0: [1], 15: [15], 16: [16], 23: [16], 24: [16, 24], 31: [16, 24], 32: [16, 24, 32], 48: [16, 24, 32, 48]}
    assert {most: _finer_sizes(most) for most in finer} == finer


def test_candidates_that_leave_one_key_are_tried():
    spec = "sinks(4):clusters"
    assert [_can_run(member(spec), [Shape(n, n, 2, 2)], all_rows=True) for n in (4, 5)] == [False, True]


def test_trivial_answers_that_cost_as_much_as_exact_attention_are_tried():
    """n = l = 6, d = d_v = 2: 2 * 6 tokens, (1 + 2 + 3) features and 2 values are 144, as 36 pairs of 4 are."""
    assert _trivial([Shape(6, 6, 2, 2)]) == ["taylor(order=1)", "taylor"]
    assert _trivial([Shape(6, 6, 2, 2), Shape(5, 5, 2, 2)]) == ["taylor(order=1)"] == _trivial([Shape(1, 1, 9, 9)])


def test_a_p_value_at_the_level_is_enough():
    assert [verdict(p, -1.0, 0.5) for p in (0.5, 0.5000000001)] == ["better", "no detectable difference"]


#: What `recommend` allows: probability, confidence, max_size and max_cost.
ALLOWED = """
    5e-324 0.5 1 1e-300
    0.9999999999999999 0.5 1048576 1e300
    0.5 5e-324 1 1
    0.5 0.9999999999999999 1 1
"""
REFUSED = """
    probability => 0.0 0.5 1 1
    probability => 1.0 0.5 1 1
    confidence => 0.5 0.0 1 1
    confidence => 0.5 1.0 1 1
    max_size => 0.5 0.5 0 1
    max_size => 0.5 0.5 1048577 1
    max_cost => 0.5 0.5 1 0.0
"""


def limits(line):
    probability, confidence, max_size, max_cost = line.split()
    return float(probability), float(confidence), int(max_size), float(max_cost)


def test_what_recommend_allows():
    for line in ALLOWED.strip().splitlines():
        _check_limits(*limits(line))
    for name, line in read_table(REFUSED):
        with pytest.raises(ScenarioError, match=f"`{name}`"):
            _check_limits(*limits(line))
    for target, metric in ((5e-324, "mse"), (1.0, "mse"), (0.9999999999999999, "cosine")):
        target_of(target, metric)
    for target, metric in ((0.0, "mse"), (1.0, "cosine"), (1.0, "top1")):
        with pytest.raises(ScenarioError, match="`target`"):
            target_of(target, metric)


@pytest.mark.parametrize("name, given", [("per_head", True), ("exact_heads", "L0H0"), ("device", "cuda")])
def test_what_is_for_a_model_is_refused_without_one(name, given):
    with pytest.raises(ScenarioError, match=f"`{name}` is for a model, and this is about heads"):
        fb.recommend("gaussian", 0.1, **{name: given})


def test_a_block_is_at_most_a_fourth_of_the_keys_that_are_attended_to():
    method = fb.get_method("block-sparse")
    assert {size: method.block_of(size) for size in (3, 4, 7, 8, 255, 256)} == {
        3: 1,
        4: 1,
        7: 1,
        8: 2,
        255: 32,
        256: 64,
    }


def test_cells_are_made_anew_where_the_keys_have_doubled():
    """In causal attention after 128, 256, 512, ... keys, once there are more than cells; the others join them."""
    by_hand = {(128, 16): (0, 0), (129, 16): (128, 0), (1024, 16): (128 + 256 + 512, 512), (513, 128): (256 + 512, 128)}
    assert {asked: growth(*asked) for asked in by_hand} == by_hand


def test_sizes_of_a_call_are_from_1_to_2_to_the_24():
    tokens = np.ones((3, 4, 2))
    assert fb.method_attention(*tokens, "clusters", size=1).shape == (4, 2)
    for size in (0, (1 << 24) + 1):
        with pytest.raises(ScenarioError, match="size must be a whole number from 1 to 16777216"):
            fb.method_attention(*tokens, size=size)


def test_as_many_top_keys_as_the_size():
    method, shape = member("top(5):clusters"), Shape(9, 9, 4, 4)
    method.check((5,), shape)
    with pytest.raises(ScenarioError, match="k must be at most the size, 4, got 5"):
        method.check((4, 5), shape)


def test_first_keys_leave_one_for_the_method():
    shape = Shape(9, 9, 4, 4)
    member("sinks(8):clusters").check((1,), shape)
    for spec, size, said in (
        ("sinks(9):clusters", 1, "n must be below 9"),
        ("sinks(8):clusters", 2, "at most the 1"),
    ):
        with pytest.raises(ScenarioError, match=said):
            member(spec).check((size,), shape)


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.name)
def test_a_method_takes_its_largest_size_and_no_larger(cls):
    method, shape = cls(), Shape(40, 40, 4, 4)
    most = method.largest_size(shape)
    method.check((most,), shape)
    if most < 1 << 20:
        with pytest.raises(ScenarioError):
            method.check((most + 1,), shape)
