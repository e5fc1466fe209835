"""Methods in sweeps: sizes at equal cost, the same rows in any order, users' functions, what is computed once, and one
clear line for every mistake."""

import importlib.util
import json
import pickle
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import favorbench as fb
from favorbench.engine import trial
from favorbench.engine.study import Study, budget_of, sizes_of
from favorbench.errors import ScenarioError, StoreError
from favorbench.methods import METHODS, Shape, get_method
from favorbench.methods.function import Function
from favorbench.methods.monarch import Monarch
from favorbench.registry import label
from favorbench.studies.verify import verify
from tests.command_line import check_refused, read_table, refused, run, succeeded
from tests.conftest import random_heads, rows_of, same_rows, small_scenario
from tests.test_sweep import METHODS_OF_ALL_KINDS

SPECS = [
    *(member.name for member in METHODS), "clusters(lloyd=2)", "clusters(order=2)", "clusters(points='pivots')",
    "multipole(exact=0.2)", "sinks(4):clusters", "window(8):trig", "sinks(4):window(8):multipole", "sinks(4):positive",
]  # fmt: skip
SHAPES = [Shape(512, 512, 32, 32), Shape(40, 300, 8, 5), Shape(2048, 2048, 64, 64, True), Shape(600, 600, 4, 16, True)]


# equal cost


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_cost_is_the_largest_size_that_pays(spec, shape):
    """At most (n + l) R (d + d_v) multiplications; one size more would be above it, or above what there is."""
    method = get_method(spec)
    refuses = (method.needs_positions and shape.n != shape.l) or (shape.causal and not method.causal_safe)
    if refuses:
        return
    asked = (200, 260, 500)
    for one, size in sizes_of(method, method.name, "cost", asked, shape):
        budget, most = budget_of(one, shape), method.largest_size(shape)
        own = shape.n * min(128, shape.l) * (one + shape.d_v) if shape.causal else 0
        assert budget == (shape.n + shape.l) * one * (shape.d + shape.d_v) + own
        assert method.multiplications(shape, size) <= budget
        above = range(size + 1, min(most, 4 * shape.l) + 1)
        assert all(method.multiplications(shape, larger) > budget for larger in above)
        method.check((size,), shape)


def test_the_largest_size_is_found_beyond_sizes_that_cost_too_much():
    """344 of 8,192 keys, which are halved four times, are as many as pay for 256 queries below 345; 7,920 pay too."""
    method, shape = get_method("thinformer"), Shape(256, 8192, 64, 64)
    assert method.multiplications(shape, 345) > budget_of(240, shape) >= method.multiplications(shape, 7920)
    assert sizes_of(method, method.name, "cost", (8, 240), shape)[1] == (240, 7920)


def test_costs_rise_with_the_size_but_in_blocks():
    """Not that of thinformer, which jumps at powers of two, nor of those that cut the keys into whole blocks, nor
    causal ones, which begin later with more cells."""
    in_blocks = (
        "thinformer", "eva", "hyperattention", "kdeformer", "block-sparse", "xattention", "spargeattn",
        "pbs-attn", "pisa",
    )  # fmt: skip
    for spec in [spec for spec in SPECS if spec not in in_blocks]:
        method, shape = get_method(spec), Shape(256, 256, 16, 16)
        sizes = [m for m in range(1, 240) if not isinstance(method, Monarch) or 256 % m == 0]
        work = [method.multiplications(shape, size) for size in sizes]
        assert work == sorted(work), spec


def test_two_budgets_that_come_to_one_size_are_two_rows_of_the_same_answer():
    """The caps: more than all keys cannot be had."""
    rows = rows_of(
        small_scenario(methods="clusters,sinks(4):clusters", budget="cost", num_projections="30,60,90", trials=2)
    )
    found = rows.query("kind == 'method'").set_index(["estimator", "draw"]).sort_index()
    assert set(found.loc["clusters", "num_projections"]) == {24}
    assert set(found.loc["sinks(4):clusters", "num_projections"]) == {20}
    assert set(found["budget"]) == {30, 60, 90} and found.groupby(level=[0, 1])["mse"].nunique().max() == 1
    affordable = found["multiplications"] <= found["budget"] * 48 * 8
    assert affordable.all()


def test_every_row_states_its_cost_within_its_budget():
    names = "clusters,multipole,lara,thinformer,monarch,nystromformer,nystrom,wildcat,sinks(2):positive"
    rows = rows_of(small_scenario(methods=names, budget="cost", num_projections="25,40", trials=1, samplers="iid"))
    asked = rows[rows["budget"].notna() & (rows["kind"] != "baseline")]
    assert set(asked["estimator"]) == {*names.split(","), "positive", "trig"}
    assert (asked["multiplications"] <= asked["budget"] * (24 + 24) * (4 + 4)).all()


# the same rows


KEY = ["draw", "estimator", "sampler", "num_projections"]


def same(one, other):
    one, other = (frame.sort_values(KEY).reset_index(drop=True) for frame in (one, other))
    same_rows(one, other)


@pytest.mark.parametrize("changes", [{"redraw": "R"}, {"scale": "0.5,1", "dtype": "float64,float32"}])
def test_rows_do_not_depend_on_workers(changes):
    scenario = small_scenario(methods=METHODS_OF_ALL_KINDS, baselines="sampled-keys", **changes)
    one = fb.sweep(scenario, "one").trials
    assert {*METHODS_OF_ALL_KINDS.split(",")} <= set(one["estimator"])
    same(one, fb.sweep(scenario, "two", workers=2).trials)


# what is computed once


@pytest.mark.parametrize("fixed", [True, False])
def test_deterministic_estimators_are_computed_once_for_fixed_inputs(monkeypatch, rng, fixed):
    """For each head; and with or without the cache the rows are the same."""
    np.savez("heads.npz", **random_heads(rng, 2, 24, 4))
    calls = {"exact": 0, "monarch": 0, "clusters": 0, "uniform": 0}
    softmax_attention, method_parts = trial.softmax_attention, trial._method_parts

    def counting_exact(*given):
        calls["exact"] += 1
        return softmax_attention(*given)

    def counting_parts(batch, *given):
        calls[batch.members[0][0].name] += 1
        return method_parts(batch, *given)

    monkeypatch.setattr(trial, "softmax_attention", counting_exact)
    monkeypatch.setattr(trial, "_method_parts", counting_parts)
    inputs = {"inputs": "heads.npz", "seq_len": None, "head_dim": None} if fixed else {}
    scenario = small_scenario(methods="monarch,clusters", baselines="uniform", trials=5, **inputs)
    rows = rows_of(scenario)
    cells = 2 if fixed else 1
    once = cells if fixed else 5
    assert calls == {"exact": once, "monarch": once, "uniform": once, "clusters": 5 * cells}
    monkeypatch.setattr(Study, "once", lambda study, draw, what, compute: compute())
    same(rows, rows_of(scenario))


def test_scales_and_precisions_of_fixed_inputs_are_kept_apart(rng, monkeypatch):
    np.savez("head.npz", **random_heads(rng, 24, 4))
    asked = {"inputs": "head.npz", "seq_len": None, "head_dim": None, "scale": "0.5,2", "dtype": "float64,float32"}
    scenario = small_scenario(methods="monarch,nystromformer", trials=2, **asked)
    rows = rows_of(scenario)
    assert rows.query("estimator == 'monarch'").groupby(["num_projections"])["mse"].nunique().eq(4).all()
    monkeypatch.setattr(Study, "once", lambda study, draw, what, compute: compute())
    same(rows, rows_of(scenario))


# functions of users


MINE = """
import functools
import numpy as np

def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)

def sampled(query, key, value, size, rng):
    some = rng.choice(len(key), size, replace=False)
    return softmax(query @ key[some].T / query.shape[-1] ** 0.5) @ value[some]

def exact(q, k, v, m, generator):
    return softmax(q @ k.T / q.shape[-1] ** 0.5) @ v

def in_place(query, key, value, size, rng):
    query *= 0.0
    key *= 0.0
    value[:] = 7.0
    return value[: len(query)]

def torches(query, key, value, size, rng):
    import torch
    assert isinstance(query, torch.Tensor)
    return torch.softmax(query @ key.T / query.shape[-1] ** 0.5, -1) @ value

def wrong_shape(query, key, value, size, rng):
    return value[:3]

def a_list(query, key, value, size, rng):
    return value.tolist()

def nothing(query, key, value, size, rng):
    pass

def imaginary(query, key, value, size, rng):
    return value * 1j

def not_a_number(query, key, value, size, rng):
    return np.where(np.arange(len(value))[:, None] < 6, np.nan, value)

def fails(query, key, value, size, rng):
    raise RuntimeError("several\\nlines")

def leaves(query, key, value, size, rng):
    raise SystemExit(3)

def two(query, key):
    return query

number = 3
partial = functools.partial(exact)

class Called:
    def __call__(self, query, key, value, size, rng):
        return value
"""


@pytest.fixture
def mine(module):
    module("my_methods", MINE)


def test_a_users_function_is_a_method(mine):
    rows = rows_of(small_scenario(methods="my_methods:sampled,my_methods:exact", baselines="sampled-keys"))
    found = rows.query("kind == 'method'")
    assert set(found["estimator"]) == {"sampled", "exact"} and set(found["num_projections"]) == {3, 8, 20}
    assert found.query("estimator == 'exact'")["mse"].max() < 1e-28
    means = rows.groupby(["estimator", "num_projections"])["mse"].mean()
    assert 0.1 < means["sampled", 8] / means["sampled-keys", 8] < 10
    assert (found["unnormalised_rows"] == 0).all()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_users_function_of_torch(mine):
    rows = rows_of(small_scenario(methods="my_methods:torches", backend="torch", trials=2))
    assert rows.query("estimator == 'torches'")["mse"].max() < 1e-28


def test_a_users_function_travels_to_workers(mine):
    scenario = small_scenario(methods="my_methods:sampled", trials=4)
    same(fb.sweep(scenario, "one").trials, fb.sweep(scenario, "two", workers=2).trials)
    method = get_method("my_methods:sampled")
    assert pickle.loads(pickle.dumps(method)) == method and label(method) == "sampled"


def test_an_edited_function_is_another_study(mine):
    scenario = small_scenario(methods="my_methods:sampled")
    before = Study.of(scenario).digest
    fb.sweep(scenario, "run")
    Path("my_methods.py").write_text(MINE + "# another version\n")
    del sys.modules["my_methods"]  # as in another process
    assert Study.of(scenario).digest != before
    with pytest.raises(StoreError, match="a module of yours that it uses, has changed since"):
        fb.sweep(scenario, "run")


def test_a_function_that_works_in_place_changes_nothing_else(mine):
    """Neither what methods and maps after it are given, nor its own weights."""
    alone = rows_of(small_scenario(methods="clusters"))
    beside = rows_of(small_scenario(methods="my_methods:in_place,clusters"))
    same(alone, beside[beside["estimator"] != "in_place"])


IN_PLACE = """
import favorbench as fb

class Emptied(type(fb.get_method("clusters"))):
    name = "emptied"
    def estimates(self, problem, sizes, streams):
        yield from [*super().estimates(problem, sizes, streams)]
        for array in (problem.query, problem.key, problem.value):
            array *= 0.0

class Spent(type(fb.get_map("positive"))):
    name = "spent"
    def query_features(self, x, projected, sample):
        return self.spend(super().query_features(1 * x, 1 * projected, sample), x, projected)
    def key_features(self, x, projected, sample):
        return self.spend(super().key_features(1 * x, 1 * projected, sample), x, projected)
    def spend(self, features, x, projected):
        x *= 0.0
        projected *= 0.0
        return features
"""


@pytest.mark.parametrize("causal", [False, True])
def test_a_class_that_works_in_place_changes_nothing_else(module, causal):
    """A user's method and map, also inside a prefix; and the map's own errors are those of the map it derives from."""
    module("in_place", IN_PLACE)
    given = {"causal": causal, "samplers": "iid,orthogonal", "methods": "clusters", "maps": "positive,trig"}
    alone = rows_of(small_scenario(**given))
    given |= {"methods": "in_place:Emptied,sinks(2):in_place:Spent,clusters", "maps": "in_place:Spent,positive,trig"}
    beside = rows_of(small_scenario(**given))
    same(alone, beside[beside["estimator"].isin(alone["estimator"])])
    by_name = beside.sort_values(["sampler", "num_projections", "draw"]).set_index("estimator")["mse"]
    np.testing.assert_allclose(by_name["spent"], by_name["positive"], rtol=1e-9)


WRONG = """
import favorbench as fb
from favorbench.methods import Estimate

class Drawn(type(fb.get_method("clusters"))):
    name = "drawn"
    random = False

class Counting(type(fb.get_method("clusters"))):
    name = "counting"
    calls = []
    def estimates(self, problem, sizes, streams):
        self.calls.append(0)
        for one in super().estimates(problem, sizes, streams):
            yield one._replace(output=one.output * (1 + 1e-3 * len(self.calls)))

class SameSize(type(fb.get_method("clusters"))):
    name = "same-size"
    def estimates(self, problem, sizes, streams):
        for one in super().estimates(problem, sizes, streams):
            yield one._replace(size=sizes[0])

class OneRow(type(fb.get_method("clusters"))):
    name = "one-row"
    def estimates(self, problem, sizes, streams):
        for one in super().estimates(problem, sizes, streams):
            yield one._replace(output=one.output[:1])
"""


def test_what_a_class_says_of_its_randomness_and_sizes_is_tested(module):
    module("wrong", WRONG)
    refuted = {name: {check.claim for check in verify([f"wrong:{name}"]).refuted} for name in ("Drawn", "Counting")}
    assert "nothing is random" in refuted["Drawn"] and "a draw can be repeated" in refuted["Counting"]
    for name, said in (("SameSize", r"size \d where one of"), ("OneRow", r"shape \(1, 4\); \(24, 4\) was expected")):
        with pytest.raises(fb.EstimatorError, match=said):
            fb.sweep(small_scenario(methods=f"wrong:{name},clusters", num_projections="3,8"), name)


def test_functions_are_called_for_each_size_with_the_same_numbers(mine):
    question = fb.methods.AttentionProblem(*np.random.default_rng(0).normal(size=(3, 12, 4)))
    method = get_method("my_methods:sampled")
    several = list(method.estimates(question, (2, 5), fb.numerics.streams.Streams.of(np.random.default_rng(1))))
    (alone,) = method.estimates(question, (5,), fb.numerics.streams.Streams.of(np.random.default_rng(1)))
    assert_array_equal(several[1].output, alone.output)


def test_nan_is_an_infinite_error_of_the_function(mine):
    """A measurement, as of any estimator: its row has its name, and says how many rows have failed."""
    rows = rows_of(small_scenario(methods="my_methods:not_a_number"))
    found = rows.query("estimator == 'not_a_number'")
    assert np.isinf(found["mse"]).all() and (found["unnormalised_rows"] >= 0.25).all()
    assert np.isfinite(rows.query("estimator == 'positive'")["mse"]).all()


def test_two_functions_of_one_name_are_refused(mine):
    Path("others.py").write_text(MINE)
    said = refused("sweep --methods my_methods:exact,others:exact")
    assert "'others:exact' and 'my_methods:exact' are both called 'exact'" in said


def test_a_function_from_python_is_a_method():
    def mean(query, key, value, size, rng):
        return np.broadcast_to(np.mean(value, axis=0), (len(query), value.shape[1])).copy()

    assert isinstance(get_method(mean), Function)
    with pytest.raises(fb.errors.ScenarioError, match=r"write `def two\(query, key, value, size, rng\)`"):

        def two(a, b):
            return a

        get_method(two)


def test_a_function_states_its_cost():
    """That of the documents, as it stands there: a candidate of ``recommend``, and none without its attribute."""
    page = (Path(__file__).parents[1] / "docs/own-estimator.md").read_text(encoding="utf-8")
    code = page.split("# mine.py\n")[1].split("```")[0]
    Path("of_the_page.py").write_text(code)  # no test has imported another module of this name
    Path("mute.py").write_text(code.split("nearest.multiplications")[0])
    ask = ("recommend", "gaussian", "-L", "64", "-d", "4", "--maps", "none", "--max-size", "8", "--target", "0.01")
    assert "'mute:nearest' does not declare its cost" in refused(*ask, "--methods", "mute:nearest")
    status, out, err = run(*ask, "--methods", "of_the_page:nearest", "--json", "-q")
    assert (status, err) == (0, "")
    points = json.loads(out)["heads"][0]["points"]
    costs = {point["setting"]: point["multiplications"] for point in points if point["setting"].startswith("nearest")}
    assert costs and all(cost == 64 * int(name.split()[-1]) * (4 + 4) for name, cost in costs.items())


# mistakes


SMALL = "sweep --maps positive -R 4,8 -L 24 -d 4 --trials 2"
MISTAKES = [
    *read_table("""
    clusters -R 30 => method 'clusters': size 30 given, allowed: at most 24, the number of keys (sizes: -R)
    nystromformer -R 30 => method 'nystromformer': size 30 given, allowed: at most 24, the number of keys
    sinks(20):clusters => sinks(20):clusters: size 8 given, allowed: at most the 4 keys after the first 20
    sinks(24):clusters => sinks(24):clusters: n must be below 24, the number of keys, got 24
    sinks(30):sinks(2):clusters => n must be below 24, the number of keys, got 32
    sinks(20):sinks(5):clusters => sinks(20):sinks(5):clusters: n must be below 24, the number of keys, got 25
    sinks(0):clusters => 'sinks(0):clusters': n must be a whole number from 1 to 1048576, got 0
    window(0):clusters => 'window(0):clusters': w must be a whole number from 1 to 1048576, got 0
    window(2.5):clusters => w must be a whole number from 1 to 1048576, got 2.5
    top(5):clusters => top(5):clusters: k must be at most the size, 4, got 5
    clustres => unknown method 'clustres' (did you mean 'clusters'?)
    sinks(2):clustres => unknown method 'clustres' (did you mean 'clusters'?)
    snks(2):clusters => unknown transform 'snks' (did you mean 'sinks'?)
    positive => 'positive' is a map, not a method: write --maps positive
    sampled-keys => 'sampled-keys' is a baseline, not a method: write --baselines sampled-keys
    uniform => 'uniform' is a baseline, not a method: write --baselines uniform
    centre:clusters => unknown transform 'centre'
    sinks(2) => 'sinks(2)' is a prefix: write what it stands before, e.g. sinks(2):clusters
    sinks:clusters => sinks needs n, e.g. sinks(64)
    clusters,clusters(lloyd=0) => 'clusters(lloyd=0)' and 'clusters' are both called 'clusters'
    clusters(points='x') => points must be 'random' or 'pivots', got 'x'
    clusters(lloyd=-1) => lloyd must be a whole number from 0 to 100, got -1
    clusters(order=3) => order must be a whole number from 1 to 2, got 3
    multipole(exact=1) => exact must be a number from 0 up to, but not, 1, got 1
    multipole(exact=-0.5) => exact must be a number from 0 up to, but not, 1, got -0.5
    sinks(2):my_methods:exact => exact has no sums over keys that exact ones could be added to
    sinks(2, sampler='x'):positive => unknown sampler 'x'
    nystromformer --query-rows 4 => --methods nystromformer: it answers from all queries together
    nystromformer --causal => --methods nystromformer: it uses the whole sequence and cannot be causal
    top(2):clusters --causal => --methods top(2):clusters: it uses the whole sequence and cannot be causal
    window(2):centre:positive --causal => window(2):centre:positive: it uses the whole sequence
    my_methods:exact --causal => --methods exact: it uses the whole sequence and cannot be causal
    my_methods:wrong_shape => wrong_shape returned ndarray of shape (3, 4) and float64; it must return ndarray of
    my_methods:a_list => a_list returned list; it must return ndarray of shape (24, 4) and float64
    my_methods:nothing => nothing returned NoneType; it must return ndarray of shape (24, 4) and float64
    my_methods:imaginary => imaginary returned ndarray of shape (24, 4) and complex128
    my_methods:fails => fails failed: RuntimeError: several lines
    my_methods:leaves => leaves failed: SystemExit: 3
    my_methods:two => 'my_methods:two': write `def two(query, key, value, size, rng)`, not `def two(query, key)`
    my_methods:number => 'my_methods:number' is of type int; it must be a function f(query, key, value, size, rng)
    my_methods:Called => is of type Called; it must be a function f(query, key, value, size, rng)
    my_methods:absent => method 'my_methods:absent' cannot be imported: AttributeError
    absent:absent => method 'absent:absent' cannot be imported: ModuleNotFoundError
    my_methods:exact(x=1) => 'exact' is already built and takes no parameters
    my_methods:exact --budget cost => --budget cost: exact does not declare its cost; use --budget projections
    window(2):trig --budget features -R 5 => method 'window(2):trig' has 2 features for each projection; use a
    sinks(2):window(2):centre:trig --budget features -R 7 => use a multiple of 2, e.g. 8
    monarch --budget cost -R 1 => --budget cost: monarch costs more than a map of 1 features here; use -R 6 or more
    clusters(lloyd=99) --budget cost -R 1 => clusters(lloyd=99) costs more than a map of 1 features here; use -R
"""),
    ("sinks(2):monarch", "monarch has no sums over keys that exact ones could be added to; allowed inside sinks: "),
]


@pytest.mark.parametrize("given, said", MISTAKES, ids=[given for given, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_that_names_the_method(mine, given, said):
    spec, dash, flags = given.partition(" -")
    assert said in refused(*SMALL.split(), "--methods", spec, *(dash.strip() + flags).split())


@pytest.mark.parametrize("spec", ["nystrom", "clusters", "wildcat"])
def test_a_method_among_maps_or_baselines_is_refused_with_the_right_flag(spec):
    assert f"{spec!r} is a method, not a map: write --methods {spec}" in refused("sweep", "--maps", spec)
    assert f"{spec!r} is a method, not a baseline: write --methods {spec}" in refused("sweep", "--baselines", spec)


@pytest.mark.parametrize(
    "spec, said",
    read_table("""
        window(8):clusters => 'clusters' is a method, not a map: write --methods window(8):clusters
        clusters(lloyd=2) => 'clusters' is a method, not a map: write --methods clusters(lloyd=2)
        window(8):positive => 'window(8)' is a prefix, not a map: write --methods window(8):positive
        sampled-keys(weights='values') => 'sampled-keys' is a baseline, not a map: write --baselines sampled-keys(
    """),
)
def test_prefixes_and_parameters_among_maps_are_refused_with_the_right_flag(spec, said):
    assert said in refused("sweep", "--maps", f"positive,{spec}")


@pytest.mark.parametrize("spec", ["clusters", "sinks(2):clusters", "window(8):positive", "top-keys"])
def test_commands_about_kernels_name_the_command_that_measures_methods(spec):
    for command in (f"theory '{spec}' iid", f"kernel gaussian --maps 'trig,{spec}'"):
        flag = "--baselines" if spec == "top-keys" else "--methods"
        assert f"favorbench sweep {flag} {shlex.quote(spec)} measures its attention" in refused(command)


def test_a_baseline_given_as_a_method_is_refused_with_the_right_flag():
    with pytest.raises(
        ScenarioError, match=r"is a baseline, not a method: .* in Python get_baseline\('sampled-keys'\)"
    ):
        fb.get_method("sampled-keys")
    assert fb.get_method("window(2):sampled-keys").name == "window(2):sampled-keys"


def test_a_function_that_leaves_ends_no_worker(mine):
    code, out, err = run(f"{SMALL} --methods my_methods:leaves --workers 2 -q")
    assert (code, out, err) == (2, "", "favorbench: leaves failed: SystemExit: 3\n")


@pytest.mark.parametrize("none", ["none", [], "toml"])
def test_methods_alone(none):
    """No map, no row of one; and all that reads a run knows what to say of it."""
    asked = {"maps": none, "methods": "clusters,nystrom", "trials": 8}
    if none == "toml":
        text = 'maps = []\nsamplers = "iid"\nmethods = ["clusters", "nystrom"]\nR = [3, 8]\nL = 24\nd = 4\ntrials = 8\n'
        Path("alone.toml").write_text(text)
    results = fb.sweep("alone.toml" if none == "toml" else small_scenario(**asked), "run")
    rows = results.trials
    assert (
        set(rows.query("kind == 'method'")["estimator"]) == {"clusters", "nystrom"}
        and not (rows["kind"] == "map").any()
    )
    for command in ("table run --rank", "plot run", "table run --rows", "speed run", "table run"):
        out = succeeded(command)
        assert out
    assert "R counts the centroids, keys or landmarks of methods." in out
    plan_of = run("sweep --maps none --methods clusters --dry-run")[1]
    assert any(line.split() == ["maps", "none"] for line in plan_of.splitlines())


def test_an_empty_request_is_one_line():
    check_refused("""
        sweep --maps none => neither a map nor a method to measure: give --maps, --methods or both
        sweep --maps none --methods none => neither a map nor a method to measure: give --maps, --methods or both
    """)
    with pytest.raises(ScenarioError, match="neither a map nor a method"):
        small_scenario(maps=[], methods=[])
    check_refused("sweep --maps '' --methods clusters => an item of the list is empty")


@pytest.mark.parametrize(
    "spec", ["window(2):trig", "sinks(2):window(2):trig", "window(2):positive", "top(2):hyperbolic"]
)
def test_a_budget_of_features_counts_those_of_maps_inside_prefixes(spec):
    """As many features as the budget says, whatever the map has for each projection; and methods count as before."""
    flags = {"methods": f"{spec},clusters", "budget": "features", "num_projections": "4,8"}
    rows = fb.sweep(small_scenario(**flags), "run").trials.query("kind == 'method'")
    assert (rows["num_features"] == rows["budget"]).all() and set(rows["budget"]) == {4, 8}
    per = 2 if "trig" in spec or "hyperbolic" in spec else 1
    assert set(rows[rows["estimator"] == spec]["num_projections"]) == {4 // per, 8 // per}
    assert set(rows.query("estimator == 'clusters'")["num_projections"]) == {4, 8}


@pytest.mark.parametrize("spec", ["nystrom", "wildcat"])
def test_draws_that_leave_different_numbers_of_landmarks_are_of_one_size(rng, spec):
    """Keys that occur several times leave fewer landmarks than m, in each draw another number."""
    heads = random_heads(rng, 3, 24, 4)
    heads["k"][:, ::2] = heads["k"][:, :1]
    np.savez("heads.npz", **heads)
    found = fb.sweep(small_scenario(inputs="heads.npz", methods=spec, num_projections="16", trials=9), "run")
    rows = found.summary.query("kind == 'method'")
    assert len(rows) == 3 and set(rows["n"]) == {9} and set(rows["num_features"]) == {16}


def test_a_method_twice_is_once():
    code, _, err = run(f"{SMALL} --methods 'clusters, clusters' --out run --json")
    assert (code, err) == (0, "")
    rows = fb.load("run").trials
    assert len(rows.query("estimator == 'clusters'")) == 2 * 2


def test_windows_need_as_many_queries_as_keys(rng):
    np.savez("cross.npz", q=rng.normal(size=(6, 4)), k=rng.normal(size=(24, 4)), v=rng.normal(size=(24, 3)))
    said = refused("sweep --inputs cross.npz -R 4 --methods 'window(3):clusters'")
    assert "--methods window(3):clusters: there is no window where 6 queries look at 24 keys; it needs as many" in said
    assert run("sweep --inputs cross.npz -R 4 --methods 'sinks(3):clusters,multipole'")[0] == 0


def test_a_method_called_directly_refuses_the_same(rng):
    from favorbench.errors import InputError, ScenarioError
    from favorbench.methods import method_attention

    q, k, v = rng.normal(size=(3, 24, 4))
    with pytest.raises(ScenarioError, match="at most 24, the number of keys"):
        method_attention(q, k, v, "clusters", 25)
    with pytest.raises(InputError, match="'nystrom' uses the whole sequence and cannot be causal"):
        method_attention(q, k, v, "nystrom", 4, causal=True)
    with pytest.raises(InputError, match=r"'window\(3\):clusters' needs as many queries as keys"):
        method_attention(q[:5], k, v, "window(3):clusters", 4)
    with pytest.raises(InputError, match=r"has shape \(1, 24, 4\); methods are asked for one head"):
        method_attention(q[None], k[None], v[None], "clusters", 4)
