"""The fixture in a test-suite of somebody else: what it says, stores and refuses, and what it costs if unused."""

import functools
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from favorbench.errors import EstimatorError, InputError, ScenarioError
from favorbench.studies.function_errors import MeasurementSettings, check_stored, function_error
from tests.command_line import python
from tests.conftest import REPOSITORY

pytest_plugins = ["pytester"]

#: Ours, whether or not it is installed; and not Hypothesis, which would be imported anew in every run.
PLUGINS = ("-p", "favorbench.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")

FUNCTIONS = """
import numpy as np

q, k, v = np.random.default_rng(0).normal(size=(3, 2, 40, 8))
inputs = (q, k, v)

def exact(q, k, v):
    a = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
    return a @ v / a.sum(-1, keepdims=True)

def mean(q, k, v):
    return np.tile(v.mean(0), (len(q), 1))

def sampled(query, key, value, size, rng):
    chosen = rng.choice(len(key), size, replace=False)
    return exact(query, key[chosen], value[chosen])

own = np.random.default_rng()

def unseeded(q, k, v):
    return sampled(q, k, v, 8, own)
"""

SUITE = """
from functions import *

def test_mean(attention_error):
    attention_error.check({mean}, "mean", inputs)

def test_sampled(attention_error):
    attention_error.check({sampled}, inputs=inputs, size=8)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs a suite as somebody would: (passed, failed) and the output."""
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(functions=FUNCTIONS)

    def run(*arguments, text=SUITE, mean="mean", sampled="sampled"):
        for cache in Path().rglob("*.pyc"):
            cache.unlink()  # the same second, the same size: Python would not see a change
        pytester.makepyfile(test_theirs=text.format(mean=mean, sampled=sampled))
        done = pytester.runpytest_inprocess(*PLUGINS, *arguments)
        counts = done.parseoutcomes()
        return counts.get("passed", 0), counts.get("failed", 0), done.stdout.str()

    return run


def test_errors_are_stored_compared_and_found_worse(suite, monkeypatch):
    passed, failed, out = suite()
    assert (passed, failed) == (0, 2) and "run pytest --favorbench-update once" in out and "Traceback" not in out
    assert not Path("test_theirs").exists()
    assert suite("--favorbench-update")[:2] == (2, 0)
    assert sorted(path.name for path in Path("test_theirs").iterdir()) == ["mean.json", "test_sampled.json"]
    stored = Path("test_theirs/test_sampled.json").read_text()
    assert len(json.loads(stored)["rows"]["h0"]["errors"]) == 15
    assert suite()[:2] == (2, 0)

    worse = "lambda query, key, value, size, rng: sampled(query, key, value, size // 4, rng)"
    passed, failed, out = suite(mean="lambda q, k, v: 1.001 * mean(q, k, v) + 0.01", sampled=worse)
    assert (passed, failed) == (0, 2)
    assert re.search(r"\+ h0: relative_error \S+ -> \S+, new / old 1\.\d+ \(1\.\d+ to \d\.\d+\), worse", out)
    assert "15 draws, sign test, Holm over 2 rows: false alarms at most 0.0005. If it is meant, run pytest" in out

    better = "lambda query, key, value, size, rng: sampled(query, key, value, 2 * size, rng)"
    assert suite(mean="exact", sampled=better)[:2] == (2, 0)
    rounded = "lambda q, k, v: np.tile(v[::-1].mean(0), (len(q), 1)) * (1 + 1e-16)"
    assert suite(mean=rounded, sampled="unseeded")[:2] == (2, 0)  # other draws of the same law
    monkeypatch.setenv("CI", "true")
    passed, failed, out = suite("--favorbench-update", mean="exact")
    assert (passed, failed) == (0, 2) and "does not write" in out and "on CI" in out
    assert Path("test_theirs/test_sampled.json").read_text() == stored
    assert suite()[:2] == (2, 0)


def test_where_no_draw_differs_a_failure_names_no_sign_test(suite):
    """A module whose projections are drawn when it is made fails unchanged, "false alarms at most 0.0005"."""
    made = """
generator = np.random.default_rng({seed})
projections = generator.normal(size=(8, 8))

def module(q, k, v):
    return exact(q @ projections, k @ projections, v)
"""
    Path("functions.py").write_text(FUNCTIONS + made.format(seed=0))
    assert suite("--favorbench-update", mean="module")[:2] == (2, 0)
    Path("functions.py").write_text(FUNCTIONS + made.format(seed=2))
    passed, failed, out = suite(mean="module")
    assert (passed, failed) == (1, 1) and "sign test" not in out
    assert "so only rounding may change it; seed what may be drawn before the call. If it is meant" in out


def test_two_tests_never_share_a_file(suite):
    """Else the one would be compared with the other, and pass whatever it has become."""
    text = """
from functions import *

class TestA:
    def test_it(self, attention_error):
        attention_error.check({mean}, inputs=inputs)

class TestB:
    def test_it(self, attention_error):
        attention_error.check(exact, inputs=inputs)

@pytest.mark.parametrize("function", [mean, exact], ids=["a/b", "a b"])
def test_parameters(attention_error, function):
    attention_error.check(function, inputs=inputs)

def test_twice(attention_error):
    attention_error.check(mean, inputs=inputs)
    attention_error.check(exact, inputs=inputs)
"""
    passed, failed, out = suite("--favorbench-update", text="import pytest" + text)
    assert (passed, failed) == (0, 5) and len(re.findall(r"E .* is of another test or check, too: give each", out)) == 5
    named = text.replace("exact, inputs", "exact, 'exact', inputs").replace("function, inputs", "function, 'a', inputs")
    passed, failed, out = suite("--favorbench-update", text="import pytest" + named)
    assert (passed, failed) == (2, 3) and "a.json is of another" in out and "exact.json is of another" in out


def test_stored_errors_must_have_the_same_settings(suite):
    assert suite("--favorbench-update")[:2] == (2, 0)
    out = suite(text=SUITE.replace("size=8", "size=8, draws=20"))[2]
    assert "was measured with other settings: draws 15 stored, 20 requested; run pytest --favorbench-update" in out
    out = suite(text=SUITE.replace("inputs=inputs", "inputs=(q, k, 2 * v)"))[2]
    assert re.search(r"other settings: inputs [0-9a-f]{12} stored, [0-9a-f]{12} requested", out)
    out = suite(mean="dict(one=mean)")[2]
    assert "x one, h0: nothing is stored for it" in out and "x h0: stored, and not measured any more" in out
    assert "draws: 5 can tell no change of 2 random rows at 0.001; use 12 or more" in suite(
        "--favorbench-update", text=SUITE.replace("size=8", "size=8, draws=5")
    )[2]  # fmt: skip
    Path("test_theirs/mean.json").write_text("{")
    assert "is damaged" in (said := suite()[2]) and "take it from your version control" in said


def test_errors_that_cannot_get_worse_are_not_stored(suite):
    """A check of them could never fail."""
    passed, failed, out = suite("--favorbench-update", mean="(lambda q, k, v: mean(q, k, v) * [[np.nan], *[[1]] * 39])")
    assert (passed, failed) == (1, 1) and not Path("test_theirs/mean.json").exists()
    assert "2 of 2 rows, such as 'h0', have only infinite errors, which cannot get worse: mend the function" in out


@pytest.mark.parametrize(
    ("update", "mean", "given", "needed"),
    [
        (True, "mean", "size=8, draws=2", 12),  # two draws of a random function
        (False, "unseeded", "size=8", 14),  # random since it was stored: twelve rows in all
        (False, "mean", "size=8, alpha=1e-6", 22),
    ],
)
def test_a_check_that_can_never_fail_is_refused(update, mean, given, needed, suite):
    text = SUITE.replace("size=8", given)
    if not update:
        few = SUITE.replace('"mean", inputs', '"mean", (q[[0] * 6], k[[0] * 6], v[[0] * 6]), draws=2')
        text = few.replace("size=8", given)
        assert suite("--favorbench-update", text=few)[:2] == (2, 0)
    passed, failed, out = suite(*["--favorbench-update"] * update, text=text, mean=mean)
    assert (passed, failed) == (1, 1)
    assert re.search(rf"can tell no change of \d random rows .* use {needed} or more", out)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("alpha=0", "alpha must be a number from 1e-12"),
        ("alpha=2", "alpha must be a number from 1e-12"),
        ("factor=0.5", "factor must be a number from 1 to"),
        ("seed=1.5", "seed must be a whole number from 0"),
    ],
)
def test_no_errors_are_stored_under_wrong_settings(given, line, suite):
    """A file with such a seed was called damaged by the next run."""
    assert f"ScenarioError: {line}" in suite("--favorbench-update", text=SUITE.replace("size=8", f"size=8, {given}"))[2]
    assert not Path("test_theirs/test_sampled.json").exists()


def test_numbers_of_numpy_are_stored_as_those_of_python(suite):
    text = SUITE.replace("size=8", "size=np.int64(8), seed=np.int64(3)")
    assert suite("--favorbench-update", text=text)[:2] == suite(text=text)[:2] == (2, 0)


def test_it_costs_nothing_where_it_is_not_used():
    """pytest with the plugin imports no module of NumPy, pandas or SciPy, and of ours two."""
    code = "import sys, favorbench.pytest_plugin; print(*sys.modules)"
    modules = python("-c", code, check=True).stdout.split()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"favorbench.pytest_plugin": "favorbench.pytest_plugin"}
    heavy = {name.partition(".")[0] for name in modules} & {"numpy", "scipy", "pandas", "pyarrow", "rich", "matplotlib"}
    assert heavy == set()
    assert [name for name in modules if name.startswith("favorbench")] == ["favorbench", "favorbench.pytest_plugin"]


def test_a_size_that_a_partial_binds_is_kept(rng):
    arrays = tuple(rng.normal(size=(3, 16, 4)))

    def first(q, k, v, size):
        return v[:size].mean(axis=0) + 0 * v

    bound = function_error(functools.partial(first, size=2), arrays, size=8)
    assert bound.value == function_error(first, arrays, size=2).value != function_error(first, arrays, size=8).value


def test_functions_may_be_named_by_numbers(rng, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    given = {4: lambda q, k, v: v, 8: lambda q, k, v: 2 * v}, tuple(rng.normal(size=(3, 8, 4)))
    settings = MeasurementSettings("", "mse", 3, 8, 0)
    check_stored(Path("numbers.json"), *given, settings, 1.0, 0.1, update=True)
    rows, failure = check_stored(Path("numbers.json"), *given, settings, 1.0, 0.1, update=False)
    assert [row.name for row in rows] == ["4, h0", "8, h0"] and not failure


def test_the_value_is_the_error_of_the_function(rng):
    q, k, v = rng.normal(size=(3, 2, 30, 4))

    def exact(query, key):
        weights = np.exp(query @ key.T / 2)
        return weights / weights.sum(-1, keepdims=True)

    found = function_error(lambda q, k, v: v * 0 + v.mean(0), (q, k, v))
    wanted = []
    for one in range(2):
        answer = exact(q[one], k[one]) @ v[one]
        wanted.append(np.linalg.norm(v[one].mean(0) - answer) / np.linalg.norm(answer))
    assert found.value == found.low == found.high == float(found) == pytest.approx(np.mean(wanted), rel=1e-12)
    assert (found.draws, found.coverage) == (2, 1.0)  # nothing in it is random, and two draws are kept
    assert function_error(lambda q, k, v: exact(q, k) @ v, (q, k, v)).value < 1e-14
    random = function_error(lambda q, k, v, rng: v + rng.normal(size=v.shape), (q, k, v), draws=9)
    assert random.draws == 9 and random.low < random.value < random.high and random.coverage >= 0.95
    assert function_error(lambda q, k, v, rng: v + rng.normal(size=v.shape), (q, k, v), draws=2).coverage == 0.5
    assert random == function_error(lambda q, k, v, rng: v + rng.normal(size=v.shape), (q, k, v), draws=9)
    assert function_error(lambda q, k, v: v * np.nan, (q, k, v)).value == np.inf
    gaussian = function_error(lambda q, k, v: v * 0 + v.mean(0), "gaussian", draws=3)
    assert gaussian.draws == 3 and len(set(gaussian.heads["-"].errors)) == 3


def test_rounding_is_measured_and_not_guessed(rng):
    """A function that cancels moves more by the same last places; one in float32 by its own."""
    q, k, v = rng.normal(size=(3, 30, 4))
    calm = function_error(lambda q, k, v: v, (q, k, v)).heads["h0"]
    cancelling = function_error(lambda q, k, v: v + 1e9 * (q / 3 * 3 - q), (q, k, v)).heads["h0"]
    single = function_error(lambda q, k, v: v.astype(np.float32), (q, k, v)).heads["h0"]
    unseeded = function_error(lambda q, k, v: v + np.random.default_rng().normal(size=v.shape), (q, k, v)).heads["h0"]
    reused = np.empty_like(v)
    in_place = function_error(lambda q, k, v: np.copyto(reused, v) or reused, (q, k, v)).heads["h0"]
    assert in_place == calm
    assert 0 <= calm.rounding < 1e-13 < 1e-10 < cancelling.rounding
    assert single.dtype == "float32" and 1e-9 < single.rounding < 1e-4
    assert unseeded.rounding == 0.0 and len(unseeded.errors) == 15


def _exact(product, dtype="float64", factor=1.0, output=None):
    def function(q, k, v):
        q, k, v = (array.astype(dtype) for array in (q, k, v))
        weights = np.exp(product(q, k.T) / q.dtype.type(2))
        found = product(weights / weights.sum(-1, keepdims=True), v) * q.dtype.type(factor)
        return found.astype(output or dtype)

    return function


def _summed(a, b):
    """a @ b, summed in another order: one key after another."""
    return sum(a[:, i, None] * b[i] for i in range(len(b)))


@pytest.mark.parametrize("metric", ["relative_error", "mse", "max_abs_error"])
@pytest.mark.parametrize(
    "before, after, verdict",
    [
        (("float64",), ("float64",), "equal up to rounding"),
        (("float32",), ("float32",), "equal up to rounding"),
        (("float64",), ("float64", 1 + 1e-9), "worse"),
        (("float32",), ("float32", 1.001), "worse"),
        (("float64",), ("float32", 1 + 2e-5), "worse"),
        (("float32", 1.0, "float64"), ("float32", 1.0, "float64"), "equal up to rounding"),
        (("float32", 1.0, "float64"), ("float32", 1.001, "float64"), "worse"),
        (("float64",), ("float32", 1.0, "float64"), "worse"),
    ],
)
def test_errors_that_are_rounding_may_change(before, after, verdict, metric, rng, monkeypatch):
    """As they do where sums are taken in another order; a real error in their place is found.

    A function may compute in float32 and return float64, as NumPy does after a division by np.sqrt(d).
    """
    monkeypatch.delenv("CI", raising=False)
    path, inputs = Path("rounding.json"), tuple(1 + rng.normal(size=(3, 1024, 4)))
    settings = MeasurementSettings("", metric, 3, 8, 0)
    check_stored(path, _exact(np.matmul, *before), inputs, settings, 1.0, 0.1, update=True)
    rows, _ = check_stored(path, _exact(_summed, *after), inputs, settings, 1.0, 0.1, update=False)
    assert [row.change.verdict for row in rows] == [verdict]


def test_equal_first_draws_do_not_make_a_function_fixed(rng):
    outcomes = iter([1.0, 1.0, 2.0] + 9 * [1.0])
    found = function_error(lambda q, k, v: next(outcomes) * v, tuple(rng.normal(size=(3, 8, 4))), draws=6)
    assert found.draws == 6 and len(set(found.heads["h0"].errors)) == 2


@pytest.mark.parametrize(
    "arguments, error, line",
    [
        ({"metric": "skill"}, ScenarioError, "metric: 'skill' given, allowed: mse"),
        ({"draws": 1}, ScenarioError, "draws must be a whole number from 2"),
        ({"seed": 1.5}, ScenarioError, "seed must be a whole number from 0"),
        ({"inputs": "minlm"}, ScenarioError, "did you mean 'minilm'"),
        ({"inputs": (np.ones(3),) * 3}, InputError, r"q has shape \(3,\); allowed: \(L, d\) or \(heads, L, d\)"),
        ({"inputs": np.ones((3, 4, 4))}, InputError, "ndarray given; allowed: a name, a path, or arrays"),
        ({"function": lambda q, k: q}, ScenarioError, "cannot be called with q, k, v"),
        ({"function": 3}, ScenarioError, "a int given; allowed: a function"),
        ({"function": lambda q, k, v: q[:2]}, EstimatorError, r"returned float64 of shape \(2, 4\)"),
        ({"function": lambda q, k, v: q @ k}, EstimatorError, "<lambda> failed: ValueError"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, error, line):
    given = {"function": lambda q, k, v: v, "inputs": tuple(np.ones((3, 5, 4)))} | arguments
    with pytest.raises(error, match=line):
        function_error(**given)
