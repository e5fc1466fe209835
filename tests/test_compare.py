"""Two runs compared: which rows are the same, every mark, every format, and what cannot be compared."""

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench import statistics
from favorbench.baselines import BASELINES
from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, PREFIXES
from favorbench.results.changes import Errors
from favorbench.results.compare import _geometric_mean, close_errors, comparison, comparison_sections, junit
from favorbench.results.compare import comparison_sentences as sentences
from favorbench.results.figures.ranking import ratios
from favorbench.results.summary import is_random
from favorbench.run import sweep
from tests.command_line import check_refused, in_a_process, run, succeeded
from tests.conftest import change_manifest, random_heads, small_scenario

MODULE = "def mine(query, key, value, size, rng):\n    return value[:size].mean(0) + 0 * query @ key.T @ value\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """One run of 16 draws: four maps under samplers at three sizes, baselines, a method."""
    return sweep(small_scenario(trials=16, methods="clusters"), tmp_path_factory.mktemp("runs") / "base")


def changed(results, name, factor, draws=None):
    """The run with the errors of one estimator multiplied, in some draws or all."""
    trials = results.trials.copy()
    rows = trials["estimator"] == name
    if draws is not None:
        rows &= trials["draw"].isin(draws)
    trials.loc[rows, "mse"] *= factor
    return results._replace(trials=trials)


def marks(found, name):
    return {row.mark for row in found.rows if row.new_estimator.startswith(name)}


def test_a_run_is_the_same_as_itself_read_back(base):
    found = base.compare(base.path)
    assert len(found.rows) == 3 * 4 + 3 + 3 + 3  # maps, clusters, best-rank, and three baselines without a size
    assert {row.mark for row in found.rows} == {"="} and found.paired
    assert {row.change.verdict for row in found.rows if row.change} == {"same bits"}
    assert found.mean.ratio == 1.0 and found.mean.rows == len(found.rows) and not found.changed
    assert fb.compare(base.path, base)["verdict"].unique().tolist() == ["same bits"]


def test_rounding_has_no_part_in_the_geometric_mean(base):
    """Ratios of two rounding errors, as of methods with all keys, moved it to 1.13 where nothing differed."""
    found = comparison(base, changed(base, "trig", 1 + 4e-15))
    assert {row.change.verdict for row in found.rows if row.change} == {"same bits", "equal up to rounding"}
    assert found.mean[:3] == (1.0, 1.0, 1.0)


def test_every_mark(base):
    rng = np.random.default_rng(0)
    noise = pd.Series(np.exp(rng.standard_normal(len(base.trials))), index=base.trials.index)
    other = changed(changed(base, "clusters", 1.5), "positive", 0.5)
    trials = other.trials.copy()
    trials.loc[trials["estimator"] == "trig", "mse"] *= noise[trials["estimator"] == "trig"]
    trials.loc[trials["estimator"] == "taylor-1", "mse"] *= 1 + 1e-15
    trials.loc[trials["estimator"] == "taylor-2", "seq_len"] = 48
    found = comparison(base, other._replace(trials=trials))
    assert marks(found, "clusters") == {"+"} and marks(found, "positive") == {"-"} and marks(found, "uniform") == {"="}
    assert marks(found, "trig") == {"~"} and marks(found, "taylor-2") == {"x"}
    assert {row.change.verdict for row in found.rows if row.new_estimator == "taylor-1"} == {"equal up to rounding"}
    (x,) = [row for row in found.rows if row.mark == "x"]
    assert x.reason == "other L 24 / 48" and (found.only_old, found.only_new) == (0, 0)
    assert len(found.changed) == 3 + 6 + 1
    assert sentences(found)[0] == (
        "WORSE. Of 21 rows: 3 worse, 6 better, 6 no detectable difference, 4 same bits, 1 equal up to rounding, "
        "1 not comparable."
    )
    assert "None" not in junit(found)
    parts = {"x": "skipped", "+": "failure"}
    cases = [list(case) for case in ElementTree.fromstring(junit(found).encode()).findall("testcase")]
    assert [[part.tag for part in case] for case in cases] == [
        [parts.get(row.mark, "system-out")] for row in found.rows
    ]  # fmt: skip
    said = [
        case[0].text or case[0].attrib["message"]
        for case, row in zip(cases, found.rows, strict=True)
        if row.mark != "+"
    ]
    assert "other L 24 / 48" in said and all("new / old" in text for text in said if text != "other L 24 / 48")


def test_the_interval_of_the_geometric_mean_has_the_level_of_the_rows(base):
    """It was that of 95 % beside the rows' 99.9 %."""
    found = comparison(base, estimators="positive iid,clusters", alpha=1e-3)
    by_draw = np.sort(np.mean([np.log(changes_of(base, row)) for row in found.rows], axis=0))
    assert_allclose(np.log(found.mean[1:3]), by_draw[[1, 14]])  # 1 - 2 * 17 / 2^16 of 16 draws, where 95 % are [3, 12]


def test_ratios_and_levels_are_not_rounded_to_1_and_100_percent(base):
    found = comparison(base, changed(base, "trig", 1.00004), factor=1.0, alpha=4e-5)
    shown = [row for section in comparison_sections(found) for row in section.rows if row["estimator"] == "trig / iid"]
    assert [(row["new / old"], row["99.996 % interval"]) for row in shown] == [("1.00004", "1.00004 to 1.00004")] * 3


def changes_of(run, row):
    """new / old of a row of two estimators, by draw."""
    trials = run.trials[run.trials["num_projections"] == row.key.size].set_index("draw")
    old, new = (trials[trials["estimator"] == name]["mse"] for name in ("positive", row.new_estimator))
    return (new / old[trials.loc[trials["estimator"] == "positive", "sampler"] == "iid"]).to_numpy()


def test_no_draws_that_can_be_compared_have_no_ratio():
    mean, alone = _geometric_mean([], 0.95), statistics.compare(np.zeros(3), np.zeros(3))
    assert np.isnan(mean[:3]).all() and mean.rows == 0
    assert np.isnan(alone[:3]).all() and alone[3:] == (0, 1.0, "no detectable difference")


@pytest.mark.parametrize(("draws", "known"), [(5, False), (6, True)])
def test_the_geometric_mean_has_no_interval_of_too_few_draws(draws, known):
    """Of three equal draws an interval from the smallest to the largest leaves 1 out in a quarter of all runs."""
    old = np.exp(np.random.default_rng(0).normal(size=(2, draws)))
    mean = _geometric_mean([Errors(*old, close=np.equal)], 0.95)
    assert mean.rows == 1 and np.isfinite([mean.low, mean.high]).all() == known


def test_worse_values_are_red(base):
    tables = [section for section in comparison_sections(comparison(base, base)) if section.rows]
    styles = {mark: tables[0].style("change", mark) for mark in "+-x="}
    assert styles == {"+": "bold red", "-": "green", "x": "yellow", "=": "dim"}
    assert tables[0].style("old", "+") == ""


def test_other_draws_are_paired_by_number_and_that_is_said(base):
    other = sweep(small_scenario(trials=16, methods="clusters", seed=1), "other")
    found = comparison(base, other)
    assert not found.paired and {row.change.pairs for row in found.rows if row.change} == {16}
    assert {row.mark for row in found.rows} <= {"~", "="}  # nothing has changed; Holm over 21 rows, fixed seeds
    assert "The draws differ (another seed or redraw), and are paired by number: 16 pairs; new" in sentences(found)[-1]
    assert "; new / old is the median over pairs; sign test" in sentences(found)[-1]  # not the ratio of the medians
    assert found.mean.low < 1.0 < found.mean.high
    worse = comparison(base, changed(other, "clusters", 100.0))
    assert {r.new_estimator for r in worse.rows if r.mark == "+"} == {"clusters"}


@pytest.mark.parametrize(("old", "new", "enough"), [(6, 6, False), (7, 7, True), (9, 7, True), (1, 1, False)])
def test_too_few_other_draws_for_a_verdict_are_said(old, new, enough):
    """A gate of runs with other seeds passed whatever had changed, without a word: 2 / 2^6 is above 0.05 / 2."""
    sizes = {"num_projections": 2, "seq_len": 4, "head_dim": 2}
    scenario = {"maps": "positive", "samplers": "iid", "baselines": "uniform", **sizes}
    one, two = (fb.sweep(scenario, f"seed-{s}", trials=n, seed=s) for s, n in ((0, old), (1, new)))
    found = comparison(one, changed(two, "positive", 1e20))
    assert (marks(found, "positive") == {"+"}) is enough
    more = "use 7 trials or more" + ", 2 where nothing is random" * (old == 1)
    assert (f"So few draws cannot tell 2 rows apart: {more}." in sentences(found)) is not enough
    assert any("So few draws" in text for text in sentences(found)) is not enough


def test_draws_are_paired_by_trial_also_where_a_run_is_longer_or_partial(base):
    longer = sweep(small_scenario(trials=20, methods="clusters", maps="positive"), "longer")
    found = comparison(base, longer)
    assert {row.change.pairs for row in found.rows if row.change} == {16} and found.only_old == 6
    assert {row.mark for row in found.rows} == {"="}
    shuffled = base._replace(trials=base.trials.sample(frac=1.0, random_state=0))
    assert {row.mark for row in comparison(base, shuffled).rows} == {"="}


def test_new_inputs_for_each_size_are_paired_where_the_sizes_are_the_same(base):
    one = sweep(small_scenario(trials=16, redraw="R"), "one")
    assert {row.mark for row in comparison(one, fb.load(one.path)).rows} == {"="}
    pairs = {row.new_estimator: row.change.pairs for row in comparison(one, one).rows if row.change}
    assert pairs["uniform"] == 48 and pairs["best-rank"] == 16
    other = sweep(small_scenario(trials=16, redraw="R", num_projections="8,20"), "other")
    assert not comparison(one, other).paired and not comparison(one, base).paired


def test_estimators_whose_sizes_are_counted_differently_are_refused():
    """At equal cost there are more centroids than at equal features: clusters were better than themselves."""
    asked = {"methods": "clusters", "num_projections": "8,20"}
    runs = [sweep(small_scenario(**asked, budget=kind), kind) for kind in ("projections", "features", "cost")]
    for old, new in itertools.combinations(runs, 2):
        with pytest.raises(ScenarioError, match="the runs count sizes differently"):
            comparison(old, new, "clusters,clusters")
    assert {row.mark for row in comparison(runs[1], runs[1], "clusters,clusters").rows} == {"="}


def test_two_estimators_of_one_run(base):
    found = comparison(base, estimators="uniform, clusters")
    assert [row.key.size for row in found.rows] == [3, 8, 20]  # what has no size stands beside every size
    names = {(row.old_estimator, row.new_estimator) for row in found.rows}
    assert names == {("uniform", "clusters")} == {found.estimators}
    back = comparison(base, estimators="clusters,uniform")
    for one, two in zip(found.rows, back.rows, strict=True):
        assert one.change and two.change
        assert one.change.ratio == pytest.approx(1 / two.change.ratio)
        assert {"+": "-", "-": "+"}.get(one.mark, one.mark) == two.mark
    for spelling in ("positive iid", "positive/iid", "positive / iid"):
        assert comparison(base, estimators=f"{spelling},trig orthogonal").estimators == (
            "positive / iid", "trig / orthogonal"
        )  # fmt: skip
    trials = base.trials.set_index(["estimator", "draw", "num_projections"])["mse"]
    logs = np.log(trials["clusters"].xs(8, level=1).to_numpy() / trials["uniform"].to_numpy())
    assert found.rows[1].change and found.rows[1].change.ratio == pytest.approx(np.exp(np.median(logs)))


def test_one_row_is_one_row():
    one = sweep(small_scenario(maps="positive", methods="clusters", num_projections="3", samplers="iid"), "one-row")
    said = " ".join(sentences(comparison(one, estimators="positive,clusters")))
    assert "Of 1 row: " in said and " new / old over 1 row: " in said


@pytest.mark.parametrize("names", ["uniform,positive iid", "positive iid,elu", "uniform,taylor-1"])
@pytest.mark.parametrize("lost", [(), (0, 4, 8), (1, 5), range(20, 48)], ids=["whole", "failed", "missing", "partial"])
def test_two_estimators_are_paired_on_the_same_inputs_where_each_size_has_new_ones(names, lost):
    """lost: draws without the first estimator, or without any."""
    asked = {"maps": "positive,elu", "samplers": "iid", "baselines": "uniform,taylor-1", "trials": 16, "redraw": "R"}
    results = sweep(small_scenario(**asked), "run")
    old, new = (name.partition(" ")[0] for name in names.split(","))
    trials = results.trials
    failed = trials["draw"].isin(lost) & ((trials["estimator"] == old) | (len(lost) != 3))
    results = results._replace(trials=trials[~failed])
    errors = {
        (name, size): rows.set_index("draw")["mse"]
        for (name, size), rows in results.trials.groupby(["estimator", "num_projections"], dropna=False)
    }
    found = comparison(results, estimators=names)
    assert len(found.rows) == (1 if "taylor-1" in names else 3)
    for row in found.rows:
        one, two = (errors.get((name, row.key.size), errors.get((name, pd.NA))) for name in (old, new))
        logs = np.log(two / one).dropna()  # by draw
        assert row.change and row.change.pairs == len(logs)
        assert row.change.ratio == pytest.approx(np.exp(np.median(logs)))


def test_an_estimator_that_fails_only_in_the_new_run_is_worse(base):
    """Its failed draws are in no row, and the others are the same."""
    clusters = base.trials["estimator"] == "clusters"
    kept = base.trials[~(clusters & (base.trials["draw"] < 4))]
    failing = base._replace(trials=kept, failed={"clusters": {"ValueError: no": [0, 1, 2, 3]}})
    said = "Failed on some draws of the new run, and on none of the old: clusters."
    assert sentences(comparison(base, failing))[:2] == ["WORSE. Of 21 rows: 21 same bits.", said]
    for old, new in ((failing, base), (failing, failing), (base._replace(trials=base.trials[~clusters]), failing)):
        assert comparison(old, new).newly_failed == []
    suite = ElementTree.fromstring(junit(comparison(base, failing)).encode())
    assert suite.attrib | {"tests": "22", "failures": "0", "errors": "1"} == suite.attrib
    assert [case.get("name") for case in suite.findall("testcase") if case.find("error") is not None] == ["clusters"]


@pytest.mark.parametrize(
    "estimators, expected",
    [(None, ["clusters", "trig / iid"]), ("trig iid,uniform", []), ("uniform,trig iid", ["trig / iid"]),
     ("trig iid,clusters", ["clusters"])],
)  # fmt: skip
def test_only_failures_of_what_is_compared_count(base, estimators, expected):
    """The old run has no trig / sobol."""
    failing = base._replace(failed={name: {} for name in ("clusters", "trig under iid", "trig under sobol")})
    assert comparison(base, failing, estimators).newly_failed == expected
    of_one_run = [name for name in expected if estimators == "uniform,trig iid"]
    assert comparison(failing, failing, estimators).newly_failed == of_one_run


FAILING = """
import os


def mine(query, key, value, size, rng):
    if "MINE_FAILS" in os.environ and rng.random() < 0.5:
        raise ValueError("no")
    return 0 * query @ key.T @ value
"""


def test_where_an_estimator_fails_that_did_not_the_exit_code_is_one(monkeypatch):
    Path("failing_module.py").write_text(FAILING)
    monkeypatch.syspath_prepend(".")
    asked = small_scenario(maps="none", methods="failing_module:mine", num_projections="2", trials=12, seed=2)
    sweep(asked, "old")
    monkeypatch.setenv("MINE_FAILS", "1")
    assert sweep(asked, "new").failed
    assert [run(f"compare {pair} --fail-on worse")[0] for pair in ("old new", "new old", "new new")] == [1, 0, 0]
    assert json.loads(run("compare old new --json")[1])["newly_failed"] == ["mine"]


def test_other_values_and_declared_versions_are_not_compared(base):
    rng = np.random.default_rng(0)
    arrays = random_heads(rng, 2, 24, 4)
    files = {"one": arrays, "two": random_heads(rng, 2, 24, 4), "again": {**arrays, "meta": "{}"}}
    for name in files:
        Path(name).mkdir()
        np.savez(f"{name}/mine.npz", **files[name])
    first, *others = (
        sweep(small_scenario(inputs=f"{name}/mine.npz", seq_len=None, head_dim=None), f"{name}/run") for name in files
    )
    for other in others:  # the same q, k, v in another file have other draws
        with pytest.raises(ScenarioError, match=r"in common: other contents of mine.npz \(SHA-256 [0-9a-f]{8} / "):
            comparison(first, other)
    declared = base._replace(manifest={**base.manifest, "declared_versions": {"clusters": 2}})
    found = comparison(base, declared)
    assert marks(found, "clusters") == {"x"} and marks(found, "positive") == {"="}
    assert "another version of clusters is declared (1 / 2)" in {row.reason for row in found.rows}


def test_one_file_under_two_names_is_not_one_input():
    """Such runs had no row in common, without a word on the names."""
    for name in ("old", "new"):
        np.savez(f"{name}.npz", **random_heads(np.random.default_rng(1), 2, 24, 4))
        sweep(small_scenario(inputs=f"{name}.npz", seq_len=None, head_dim=None, trials=2), name)
    check_refused("compare old new => no cell and estimator is in both; inputs go by name: old.npz / new.npz")


def test_one_trial_decides_where_nothing_is_declared_to_be_random(module):
    """Of our own estimators on a file; two trials decide for a function."""
    np.savez("heads.npz", **random_heads(np.random.default_rng(1), 2, 24, 4))
    module("fixed", MODULE + "mine.random = False\n")
    module("named", "from favorbench.methods.clusters import Clusters\nclass Named(Clusters):\n    name = 'monarch'\n")
    scenario = {
        "maps": "none", "methods": "monarch,clusters,window(4):nothing,fixed:mine", "num_projections": 8,
        "baselines": "uniform", "inputs": "heads.npz",
    }  # fmt: skip
    ours = {"monarch", "window(4):nothing", "uniform"}

    def worse(name, **changes):
        results = fb.sweep(scenario | changes, name)
        other = results._replace(trials=results.trials.assign(mse=4.0 * results.trials["mse"]))
        found = comparison(results, other)
        return {row.new_estimator for row in found.rows if row.mark == "+"}, " ".join(sentences(found))

    found, said = worse("one", trials=1)
    assert found == ours and ", 2 where nothing is random." in said
    assert worse("two", trials=2)[0] == {*ours, "mine"}
    assert not worse("drawn", trials=1, inputs="gaussian", seq_len=24, head_dim=4)[0]
    assert not worse("some-rows", trials=1, methods="window(4):nothing", query_rows=5)[0]
    assert worse("named", trials=1, methods="named:Named,window(4):nothing")[0] == ours - {"monarch"}


def test_the_name_of_an_estimator_says_whether_it_declares_randomness():
    specs = [member.name for member in METHODS] + ["sinks(1):window(2):pisa(order=1)", "window(2):positive"]
    specs += [f"{prefix.prefix}(2):{name}" for prefix in PREFIXES for name in ("nothing", "clusters")]
    declared = {spec: fb.get_method(spec).random for spec in specs}
    declared |= {member.name: fb.get_baseline(member.name).random for member in BASELINES}
    assert {name: is_random(name) for name in declared} == declared
    assert is_random("mine:monarch") and is_random("positive / iid")


def test_a_function_declares_its_version(module):
    module("versioned", f"{MODULE}mine.version = 7\n")
    assert sweep(small_scenario(methods="versioned:mine"), "run").manifest["declared_versions"] == {"mine": 7}


def test_rows_without_a_finite_ratio_are_named_below_the_figure(base):
    """An error that becomes infinite is the worst change of all."""
    broken = changed(base, "trig", np.inf)
    for runs, verdict in ((comparison(base, broken), "worse"), (comparison(broken, base), "better")):
        (chart,) = ratios(runs)
        assert f"Not drawn, {verdict}, as an end is 0 or infinite: trig / iid 3, " in chart.caption
        assert f"over {runs.mean.rows} of 21 rows, those with finite errors above 0" in " ".join(sentences(runs))


def test_the_gate_and_its_formats(base):
    Path("old").symlink_to(base.path)
    fb.sweep(small_scenario(trials=16, methods="clusters", maps="trig"), "new")
    assert run("compare old new --fail-on worse")[0] == 0
    command = "compare old --estimators 'clusters,trig iid'"
    done = in_a_process(f"{command} --fail-on worse")
    assert (done.returncode, done.stderr) == (1, "")
    assert "WORSE. Of 3 rows: 3 worse." in done.stdout and "trig / iid" in done.stdout
    assert run(command)[:2] == (0, done.stdout)
    out = succeeded("compare old new --only-changed")
    assert "uniform" not in out and "Rows of one run alone: 6 of the old one, 0 of the new one." in out
    out = run("compare old new --format csv")[1]
    assert out.splitlines()[0].startswith("mark,verdict,reason,input,head") and len(out.splitlines()) == 16
    header = out.splitlines()[0]
    assert run("compare old old --format csv --only-changed")[1] == f"{header}\n"  # of no rows, and to be read as any
    out = run("compare old --estimators 'clusters,trig iid' --format md")[1]
    assert out.count("| + |") == 3 and "Geometric mean" in out
    found = json.loads(run("compare old --estimators 'clusters,trig iid' --json")[1])
    assert found["verdicts"] == {"worse": 3} and len(found["rows"]) == 3 and found["geometric_mean"]["rows"] == 3
    assert found["rows"][0]["ratio"] > 1 and found["paired"] is True


def test_junit_is_read_by_a_parser(base):
    Path("old").symlink_to(base.path)
    text = run("compare old --estimators 'clusters,trig iid' --format junit")[1]
    assert text.startswith("<?xml version=")
    suite = ElementTree.fromstring(text.encode())
    assert (suite.tag, suite.attrib["tests"], suite.attrib["failures"]) == ("testsuite", "3", "3")
    cases = suite.findall("testcase")
    assert [case.attrib["name"] for case in cases] == [f"trig / iid R={size}" for size in (3, 8, 20)]
    assert all("worse" in case.find("failure").attrib["message"] for case in cases)  # pyright: ignore


def test_bad_input_is_one_line(base):
    Path("old").symlink_to(base.path)
    check_refused("""
        compare old => give two runs, or one run and --estimators
        compare old --estimators uniform,cluster => did you mean 'clusters'
        compare old --estimators uniform,trig => has several samplers; write one of
        compare old --estimators 'trig iid' => two with a comma
        compare old old --metric skill => allowed: mse, relative_error
        compare old old --factor 0.9 => --factor must be a number from 1
        compare old old --alpha 0 => --alpha must be
        compare old old --only-changed --format junit => --only-changed: leave it out with --format junit
        compare old nowhere => it does not exist
    """)
    Path("answer").mkdir()
    Path("answer/recommendation.json").touch()  # of fb.recommend for a model, which draws no figure
    check_refused("compare old answer => favorbench recommend wrote it; look at answer/recommendation.json")
    sweep(small_scenario(head_dim="5", trials=2), "elsewhere")
    check_refused("compare old elsewhere --fail-on worse => no row in common: other d 4 / 5")
    sweep(small_scenario(scale="0.5", trials=2), "scaled")
    check_refused("compare old scaled => no cell and estimator is in both")
    change_manifest("scaled", format=99)
    check_refused("compare old scaled => is of format 99")


@pytest.mark.parametrize("metric, power", [("mse", 2), ("max_abs_error", 1), ("relative_error", 1)])
@pytest.mark.parametrize("dtype, unit", [("float64", 1e-13), ("float32", 1e-13 * 2**29)])
def test_errors_are_close_up_to_rounding_of_exact_attention_and_of_themselves(metric, power, dtype, unit):
    """By hand, for roots of squared errors: 3 and 3 + x differ by up to ``level`` of 4 units and 6 more."""
    for level, most in ((0.0, 6 * unit), ((4e-13) ** power, 10 * unit)):
        for share, close in ((0.98, True), (1.02, False), (-0.98, True), (-1.02, False)):
            old, new = np.array([3.0]) ** power, np.array([3.0 + share * most]) ** power
            assert close_errors(old, new, metric, level, dtype).all() == close
    same = np.array([3.0])
    for half in ("float16", "bfloat16"):
        assert close_errors(same, same, metric, 1.0, half).all()
        assert not close_errors(same, np.nextafter(same, 4), metric, 1.0, half).any()
