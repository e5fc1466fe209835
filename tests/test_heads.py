"""Many heads are a population: what is said over heads follows from the rows of each, and replaces dozens of tables."""

import json
import math
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from favorbench import style
from favorbench.errors import ScenarioError
from favorbench.results import findings, heads
from favorbench.results.figures import draw_all
from favorbench.results.figures.cost import front
from favorbench.run import sweep
from favorbench.sections import Section
from tests.command_line import check_refused, run, succeeded
from tests.conftest import small_scenario


def head_file(count, name="heads.npz"):
    """Heads of growing scale: the later, the harder."""
    rng = np.random.default_rng(1)
    query, key, value = rng.normal(size=(3, count, 24, 4))
    np.savez(name, q=query * np.linspace(0.2, 2.0, count)[:, None, None], k=key, v=value)
    return name


def of_heads(count, out="run", **changes):
    flags = {"inputs": head_file(count), "seq_len": None, "head_dim": None, "methods": "clusters", "samplers": "iid"}
    return sweep(small_scenario(**flags | changes), out)


def test_the_table_over_heads_by_hand():
    results = of_heads(7)
    table = heads.over_heads(results)
    sizes = results.trials["num_projections"].fillna(0).astype(int)
    medians = results.trials.assign(size=sizes).groupby(["estimator", "size", "head"], sort=False)["mse"].median()
    for _, row in table.iterrows():
        size = row["num_projections"]
        ratio = medians[row["estimator"]][0 if pd.isna(size) else size] / medians["uniform"][0]
        assert (row["heads"], row["worse"]) == (7, (ratio > 1).sum())
        found = [row["ratio_q25"], row["ratio_median"], row["ratio_q75"], row["worst_ratio"]]
        assert_allclose(found, [*np.quantile(ratio, [0.25, 0.5, 0.75]), ratio.max()], rtol=1e-12)
        assert row["worst_head"] == ratio.idxmax()
    assert set(table["estimator"]) == set(results.trials["estimator"]) - {"uniform"}
    assert 0 < table["worse"].sum() < table["heads"].sum()  # the control: neither all nor none
    assert heads.over_heads(results, "relative_error")["ratio_median"].ne(table["ratio_median"]).any()


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=9))
def test_quartiles_are_numpys_and_know_infinity(values):
    expected = np.quantile(values, [0.25, 0.5, 0.75])
    rounding = 8.0 * np.finfo(float).eps * max(values)  # of interpolation between a small value and a large one
    assert_allclose(heads.quartiles(np.array(values)), expected, rtol=0, atol=rounding)
    with_failures = heads.quartiles(np.array([*values, np.inf, *[np.inf] * len(values)]))
    assert with_failures[0] < np.inf if len(values) > 1 else True
    assert with_failures[1:] == (np.inf, np.inf)


def test_heads_of_two_scales_are_two_populations_and_one_head_is_none():
    assert [one.heads for one in heads.populations(of_heads(3, scale="0.5,1"))] == [3, 3]
    alone = of_heads(3, "alone", heads="h1")
    assert heads.populations(alone) == [] and not Path("alone/summary-heads.csv").exists()
    assert heads.over_heads(alone).empty and findings.head_sentences(alone) == []
    assert heads.populations(sweep(small_scenario(scale="0.5,1"), "drawn")) == []


def test_two_exact_results_do_not_differ():
    """Keys of zeros: attention is uniform attention, both errors are rounding, and neither is worse."""
    query, value = np.random.default_rng(0).normal(size=(2, 2, 16, 4))
    np.savez("zero.npz", q=query, k=np.zeros((2, 16, 4)), v=value)
    flags = {"seq_len": None, "head_dim": None, "baselines": "uniform,taylor-1,taylor-2,sampled-keys"}
    results = sweep(small_scenario(inputs="zero.npz", num_projections="3,8", **flags), "run")
    table = heads.over_heads(results)
    assert np.isinf(table.query("estimator == 'sampled-keys'")["ratio_median"]).all()  # not a share of rounding
    exact = table[table["estimator"].isin(["taylor-1", "taylor-2"])]
    assert len(exact) == 2 and (exact["worse"] == 0).all() and (exact["worst_ratio"] == 1).all()


def test_an_estimator_that_fails_on_a_head_is_worst_there():
    results = of_heads(3)
    broken = (results.summary["estimator"] == "clusters") & (results.summary["head"] == "h0")
    summary = results.summary.assign(mse_median=results.summary["mse_median"].mask(broken, np.nan))
    table = heads.over_heads(results._replace(summary=summary)).query("estimator == 'clusters'")
    assert (table["worst_head"] == "h0").all() and np.isinf(table["worst_ratio"]).all() and (table["worse"] > 0).all()


def test_many_heads_are_shown_together_and_each_on_request():
    head_file(7)
    command = "sweep --inputs heads.npz --maps positive --methods clusters -R 3,8 --trials 2 -q"
    out = succeeded(f"{command} --out run")
    assert out.count("over 7 heads of heads.npz") == 1
    assert "mse, heads.npz h0" not in out and "heads.npz h0, scale" not in out
    assert "Each head by itself: favorbench table run --heads h0" in out and "worse on " in out
    written = Path("run/summary.md").read_text()
    assert "over 7 heads" in written and "mse, heads.npz h0" not in written and "--heads h0" in written
    assert "mse, heads.npz h3" in run("table run --heads h3")[1]
    few = run(f"{command} --heads h0,h1 --out few")[1]
    assert "mse, heads.npz h0" not in few and "over 2 heads of heads.npz" in few and "Each head by itself" in few
    assert "h0, scale 1, L = 24" not in few and few.count("too few to compare") == 0  # one sentence, over both
    alone, why = run("table few --stat mean")[1:]  # there is no table of means over heads
    assert "mse, heads.npz h0" in alone and "mse, heads.npz h1" in alone and "--heads h0" in why
    check_refused("""
        table run --stat mean => --stat mean of --metric mse is not shown over heads
        table run --metric cosine => name some with --heads h0, or show all with --by head,estimator,R
    """)
    assert "h6" in run("table run --metric cosine --by head,estimator,R")[1]


def test_an_input_with_too_many_heads_is_not_left_out_without_a_word():
    """Beside one that is shown; over heads there are no means, and no cosines."""
    of_heads(7)
    assert run("sweep --inputs gaussian,heads.npz --maps positive -R 3 --trials 1 --out both")[0] == 0
    for flags, said in (("--stat mean", "--stat mean of --metric mse"), ("--metric cosine", "of --metric cosine")):
        out = " ".join(run(f"table both {flags}")[1].split())
        assert (
            "gaussian, scale 1" in out and f"{said} is not shown over heads, and both has too many of heads.npz" in out
        )
    assert "too many" not in run("table both")[1]


def test_table_over_heads_in_every_format():
    results = of_heads(3)
    frame = heads.over_heads(results)
    read = pd.read_csv(StringIO(run("table run --over heads --format csv")[1]))
    assert_allclose(read["ratio_median"], frame["ratio_median"], rtol=1e-14)
    assert (
        len(json.loads(run("table run --over heads --json")[1]))
        == len(frame)
        == len(pd.read_csv("run/summary-heads.csv"))
    )
    for format in ("rich", "md", "latex"):
        out = run(f"table run --over heads --format {format}")[1]
        assert "over 3 heads of heads.npz" in out and "clusters" in out and "worst head" in out
    check_refused("""
        table run --over heads --by estimator,R => leave --by and --stat out
        table run --over heads --metric skill => skill given, allowed: mse
    """)
    sweep(small_scenario(), "drawn")
    check_refused("table drawn --over heads => no input with two heads")


def test_long_names_are_broken_before_columns_are_parted():
    """At 80 columns with the longest names of the shipped scenario; what they say is not lost."""
    from rich.console import Console

    from favorbench.console import show

    names = ["centre:aderf-sderf / antithetic:orthogonal", "sinks(4):window(32):multipole", "top-keys (bound)"]
    row = {"R": "1024", "median": "0.0012", "quartiles": "8.0e-4 to 0.0016", "worse": "72/72", "worst": "6.9e3 L11H11"}
    narrow = Console(width=80, file=StringIO())
    show(narrow, [Section(rows=[{"estimator": name} | row for name in names])])
    text = narrow.file.getvalue()
    lines = text.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80 and text.count("estimator") == 1 and len(lines) == 6
    assert "centre:aderf-sderf /" in text and "\n  antithetic:orthogonal" in text and "\n  multipole" in text
    wide = Console(width=120, file=StringIO())
    show(wide, [Section(rows=[{"estimator": name} | row for name in names])])
    assert len(wide.file.getvalue().splitlines()) == 4


@pytest.mark.parametrize("width", [50, 80, 110])
def test_names_of_any_length_leave_room_for_every_number(width):
    """Two names that differ at their ends, in the second of three columns of labels."""
    from rich.console import Console

    from favorbench.console import show

    names = [f"sinks(4):window(128):multipole(exact=0.75, block=128, cells='tree', segment={n})" for n in (128, 256)]
    values = {f"R = {size}": f"{size}.5e-300" for size in (16, 32, 64, 128, 256, 512)}
    console = Console(width=width, file=StringIO())
    rows = [{"change": "=", "estimator": name, "sampler": "orthogonal"} | values for name in [*names, "uniform"]]
    show(console, [Section(rows=rows, labels=3)])
    text = console.file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert all(text.count(value) == 3 for value in values.values())
    assert text.count("segment=128)") == text.count("segment=256)") == text.count("uniform") == text.count("change")


@pytest.mark.parametrize("width", [50, 80])
def test_names_without_a_place_to_break_leave_room_for_every_number(width):
    """Such as the names of files, in heads and runs."""
    from rich.console import Console

    from favorbench.console import show

    console = Console(width=width, file=StringIO())
    row = {"head": "L0H0@" + 9 * "wwwww", "map": "trig", "R = 16": "7.9e-300", "R = 32": "6.5e-300", "R = 64": "3e-300"}
    show(console, [Section(rows=[row, row | {"head": "L0H0@two"}], labels=2)])
    text = console.file.getvalue()
    assert all(text.count(value) == 2 for value in ("7.9e-300", "6.5e-300", "3e-300"))
    assert text.count("w") == 46 * text.count("two") and text.count("trig") == 2 * text.count("L0H0@two")


def test_a_run_of_bounds_alone_has_no_map_of_heads():
    arrays = np.random.default_rng(1).normal(size=(3, 7, 24, 4))
    np.savez("layers.npz", **dict(zip("qkv", arrays, strict=True)), layer=np.arange(7) // 4, head=np.arange(7) % 4)
    results = of_heads(7, maps="none", methods="top(2):clusters", inputs="layers.npz")
    assert "heads" not in {file.stem for file in draw_all(results)}


def test_values_without_the_last_axis_have_a_column_of_their_own():
    results = of_heads(2, maps="none")
    for by in ("estimator,sampler", "head,R"):  # no estimator has a sampler; some have no R
        table = results.table(by)
        shown = [text for row in table.rows for name, text in row.items() if " = " in name]
        assert len(shown) == len(table.data) and "-" not in shown
        assert list(table.rows[0])[-1] == f"{by.rpartition(',')[2]} = -"


def test_bounds_are_marked_in_tables_over_heads():
    results = of_heads(3, methods="clusters,top(2):clusters", baselines="uniform,best-rank,top-keys,sampled-keys")
    (population,) = heads.populations(results)
    marked = {row["estimator"] for row in heads.rows_of(results, population.rows) if "(bound)" in row["estimator"]}
    assert marked == {"best-rank (bound)", "top-keys (bound)", "top(2):clusters (bound)"}
    assert "best-rank, top-keys, top(2):clusters look at every pair" in heads.legend(results)
    assert "look" not in heads.legend(of_heads(3, "without", baselines="uniform"))


def test_the_sentence_over_heads_names_the_best():
    results = of_heads(5)
    (sentence,) = findings.head_sentences(results)
    last = heads.over_heads(results).query("num_projections == 20 and kind != 'baseline'").sort_values("ratio_median")
    assert f"at R = 20 {last.iloc[0]['estimator']}" in sentence and f"worse on {last.iloc[0]['worse']} of 5" in sentence
    assert findings.sentences(results)[0] == sentence


def test_error_against_cost_over_heads_and_of_one():
    results = of_heads(7, baselines="uniform,sampled-keys,best-rank")
    assert {file.stem for file in draw_all(results)} == {"error-vs-cost"}  # no panels of 7 heads
    data = pd.read_csv("run/figures/error-vs-cost.csv")
    table = heads.over_heads(results)
    clusters = data.query("label == 'clusters'").sort_values("multiplications")
    expected = table.query("estimator == 'clusters'").sort_values("multiplications")
    assert_allclose(clusters["ratio"], expected["ratio_median"], rtol=1e-12)
    assert_allclose(clusters["high"], expected["ratio_q75"], rtol=1e-12)
    assert set(data["heads"]) == {7} and "best-rank" not in set(data["label"])  # a bound, at any cost
    one = of_heads(7, "one", heads="h3")
    assert {"error-vs-cost", "maps"} <= {file.stem for file in draw_all(one)}
    own = pd.read_csv("one/figures/error-vs-cost.csv").query("label == 'clusters'")
    median, uniform = (one.summary[one.summary["estimator"] == name]["mse_median"] for name in ("clusters", "uniform"))
    assert_allclose(own["ratio"], median / uniform.iloc[0], rtol=1e-12)
    assert draw_all(one, "skill") and "error-vs-cost" not in {file.stem for file in draw_all(one, "skill")}


def test_why_a_figure_of_many_heads_is_missing():
    """Runs of two maps and two sizes were told that a figure needs two maps and two sizes."""
    results = of_heads(7)
    for name, metric, why in [
        ("maps", "mse", "of more than 6 heads it needs `heads`, e.g. h0"),
        ("maps", "skill", "of more than 6 heads it needs `heads`, e.g. h0"),
        ("error-vs-cost", "skill", "it cannot show skill"),
        ("error-vs-L", "mse", "it needs two values of L, d or scale"),
    ]:
        with pytest.raises(ScenarioError, match=f"nothing to show in it; {why}$"):
            results.plot(name, metric=metric)
    assert "scale, and of more than 6 heads also --heads, e.g. h0" in run("plot run --metric skill")[2]
    assert "nothing to draw" not in run("plot run --metric skill --heads h0")[2]


def test_nothing_cheaper_beats_the_front():
    points = pd.DataFrame(
        {
            "estimator": list("zabcdef"),
            "cost": [0.5, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0],
            "ratio": [1.6, 1.5, 0.5, 0.6, 0.2, 0.01, 0.1],
            "bound": [False, False, False, False, False, True, False],
        }
    )
    assert front(points, math.nan)["estimator"].tolist() == ["b", "d", "f"]
    assert front(points, 4.5)["estimator"].tolist() == ["b", "d"]  # what costs more than exact attention


def test_what_is_on_the_front_has_a_colour_before_what_has_less_error(monkeypatch):
    """Members of the front were grey, and others had colours."""
    from favorbench.results.figures import blocks, cost

    monkeypatch.setattr(blocks, "MAX_CURVES", 3)
    points = pd.DataFrame({"label": ["cheap", *"abcd"], "cost": [1.0, 4, 5, 5, 5], "ratio": [0.9, 0.1, 0.2, 0.3, 0.4]})
    points = points.assign(estimator=points["label"], kind="method", own=False, bound=False, exact=9.0)
    assert cost.coloured_of([("panel", points)]) == ["cheap", "a", "b"]
    assert cost.coloured_of([("panel", points.assign(cost=5.0))]) == ["a", "b", "c"]  # on no front


@pytest.mark.parametrize("causal, cost", [(False, 24 * 24 * 8), (True, 12 * 25 * 8)])  # pairs times d + d_v
def test_the_front_ends_at_exact_attention(causal, cost):
    """Causal, it went on to estimators that cost more than exact attention, which was not drawn."""
    (ax,) = of_heads(2, causal=causal).plot("error-vs-cost").figure.axes[:1]
    lines = {line.get_label(): line.get_xdata() for line in ax.lines}
    assert lines["exact attention"][0] == cost and max(lines.get("Pareto front", [0])) <= cost


@pytest.mark.parametrize("count", [13, 3])
def test_estimators_near_the_front_keep_their_colours(count, monkeypatch):
    from favorbench.results.figures import blocks

    monkeypatch.setattr(blocks, "MAX_CURVES", 4)
    maps = ",".join(f"positive-eps(eps={i + 1}e-3)" for i in range(count))
    results = of_heads(2, maps=maps)
    (page, *_) = results.plot("error-vs-cost", ax=None).figure.axes
    named = {line.get_label() for line in page.lines if line.get_color() in style.COLOURS}
    assert len(named) == min(count + 1, 4) and "clusters" in named
    assert len(draw_all(results)) > 0
