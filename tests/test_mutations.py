"""Single wrong lines: each fault of ``mutants.toml`` is caught by verify, by a definition or by the oracle.

A fault is a change of the syntax tree of one function: an expression or a statement, in which names of variables match
any name, becomes another. So a rename, a new layout or a move to another module leaves it as it is.
"""

import ast
import builtins
import copy
import dis
import functools
import importlib
import inspect
import pkgutil
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import favorbench as fb
from favorbench.errors import EstimatorError
from favorbench.methods import AttentionProblem, multipole
from favorbench.metrics import METRICS
from favorbench.numerics import logsum
from favorbench.registry import label
from favorbench.samplers import get_sampler
from favorbench.studies.verify import attention, kernel, laws, methods
from favorbench.studies.verify.checks import REFUTED, judged
from tests import definitions, oracle, test_methods, test_metrics
from tests.oracle import Case


class Mutant(NamedTuple):
    """In which function which expression becomes which; place: of several that match, which one."""

    catchers: tuple[str, ...]
    name: str
    function: str
    old: str
    new: str
    place: int = 0

    def __str__(self):
        return f"{self.catchers[0]}: {self.name}"


def all_mutants():
    groups = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text(encoding="utf-8"))["group"]
    return [Mutant(tuple(group["catchers"]), *mutant) for group in groups for mutant in group["mutants"]]


# finding functions, and changing them


@functools.cache
def functions():
    """Every function and method of the estimators, by module and name."""
    found = {}
    for package in ("attention", "baselines", "maps", "methods", "numerics", "samplers"):
        root = importlib.import_module(f"favorbench.{package}")
        for info in pkgutil.iter_modules(root.__path__, f"{root.__name__}."):
            module = importlib.import_module(info.name)
            for owner in [module, *(a for a in vars(module).values() if inspect.isclass(a))]:
                for value in vars(owner).values():
                    value = inspect.unwrap(getattr(value, "__func__", value))
                    if inspect.isfunction(value) and value.__module__ == module.__name__:
                        found[f"{info.name}.{value.__qualname__}"] = value
    return found


def function_of(name):
    """The one function that ``name`` is the end of: "Class.method", or "module.function"."""
    same = [function for path, function in functions().items() if path.endswith(f".{name}")]
    assert len(same) == 1, f"{len(same)} functions are called {name}"
    return same[0]


def parsed(code):
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def matches(pattern, node, names):
    """Whether the trees are equal but for names of variables, which are bound in ``names``."""
    if isinstance(pattern, ast.Name) and isinstance(node, ast.Name):
        return names.setdefault(pattern.id, node.id) == node.id
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(matches(a, b, names) for a, b in zip(pattern, node, strict=True))
    if not isinstance(pattern, ast.AST):
        return pattern == node
    fields = [field for field in pattern._fields if field not in ("ctx", "type_comment")]
    return type(pattern) is type(node) and all(
        matches(getattr(pattern, field), getattr(node, field), names) for field in fields
    )


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new, place):
        self.old, self.new, self.left, self.found = old, new, place, 0

    def visit(self, node):
        names = {}
        if matches(self.old, node, names):
            self.found += 1
            if self.found == self.left + 1:
                new = copy.deepcopy(self.new)
                for part in ast.walk(new):
                    if isinstance(part, ast.Name):
                        part.id = names.get(part.id, part.id)
                return ast.copy_location(new, node)
        return self.generic_visit(node)


def mutate(mutant, monkeypatch):
    """Change the function, wherever it was imported to."""
    function = function_of(mutant.function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    replace = _Replace(parsed(mutant.old), parsed(mutant.new), mutant.place)
    tree = ast.fix_missing_locations(replace.visit(tree))
    assert replace.found > mutant.place, f"{mutant.function} has no {mutant.old!r} (number {mutant.place})"
    namespace = {}
    exec(compile(tree, "<mutant>", "exec"), dict(function.__globals__), namespace)
    changed = inspect.unwrap(getattr(namespace[function.__name__], "__func__", namespace[function.__name__]))
    unknown = names_read_outside(changed) - set(function.__globals__) - set(vars(builtins))
    assert not unknown, f"{mutant}: nothing is called {unknown}"  # a NameError would be no wrong number
    monkeypatch.setattr(function, "__code__", changed.__code__)


def names_read_outside(function):
    """The names that a function, but not what is defined inside of it, reads from its module."""
    return {step.argval for step in dis.get_instructions(function) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


# who catches


def refuted(measured):
    return REFUTED in {check.verdict for check in judged(measured)}


CASES = {
    "far": Case(50, 24, 2.0, 20.0, 20), "far causal": Case(257, 24, 1.0, 20.0, 9, causal=True),
    "near causal": Case(129, 8, 0.5, 0.5, 9, causal=True), "near": Case(60, 8, 1.0, 1.0, 12),
    "unequal": Case(60, 8, 2.0, 1.0, 12), "edge": Case(130, 8, 1.0, 1.0, 1, causal=True),
    "tiles": Case(5000, 8, 14.0, 14.0, 1, num_queries=100), "last tile": Case(2050, 3, 1.0, 1.0, 1, num_queries=300),
}  # fmt: skip


def exact_attention_is_wrong(case):
    query, key, value = CASES[case].arrays()
    rows, expected, allowed = oracle.exact(CASES[case])
    output = fb.exact_attention(query, key, value, causal=CASES[case].causal)[..., rows, :]
    return not np.max(np.abs(output - expected)) <= allowed


def linear_attention_is_wrong(asked):
    spec, _, case = asked.partition(" ")
    return oracle.compared(spec, CASES[case]).worst > 1


def first_size_underflows_wrongly(_):
    """Two sizes. The first lies e^-1000 below the second, so only the fixed block is left of it."""
    rng = np.random.default_rng(3)
    fixed, right = rng.normal(size=(4, 2)), rng.normal(size=(2, 3))
    logs = np.full((4, 3), -1000.0)
    logs[:, 2] = 1000.0
    blocks = [logsum.Features(fixed, np.zeros((4, 1)), fixed=True), logsum.Features(None, logs)]
    state = logsum.prefix_sums(blocks, [right, rng.normal(size=(3, 3))], (2, 3))
    expected = 2.0 * fixed @ right
    return not np.allclose(state.total[0] * np.exp(state.log_peak[0]), expected, rtol=1e-12, atol=1e-12)


def method_is_refuted(spec):
    """By its definition, or as verify judges; a claim that chance has no part in need not wait for the others."""
    method, measured = definitions.member(spec), []
    try:
        for question in questions(method):
            if not definitions.error(method, question, (1, 5, 16, 40)) <= 1:
                return True
        for measurement in methods.of_method(method, 0):
            if measurement.tests == 0 and refuted([measurement]):
                return True
            measured.append(measurement)
    except (IndexError, ValueError, ZeroDivisionError):
        return True
    return refuted(measured)


def questions(method):
    """Few keys and many, some of the queries, causal too, and logits of thousands."""
    first = methods._question(0, methods.SCALES[0])
    yield first
    if any(part in label(method) for part in ("monarch", "nystrom", "wildcat")):
        yield methods._question(0, 1.0)  # beyond, what is inverted or iterated has no digits left
        return
    yield methods._question(0, methods.SCALES[1])
    if not method.oracle:
        some = np.arange(16, 48, 2)
        yield first._replace(query=first.query[some], positions=some)
    if method.causal_safe:
        yield from (methods._question(0, scale, methods.LONG, causal=True) for scale in methods.SCALES)
    yield methods._question(0, 0.5, methods.LONG)
    if not any(part in label(method) for part in ("order=2", "lara")):
        yield methods._question(0, 40.0)


def fails_far_below_zero(spec):
    """Whether the test of logits that are all far below zero fails."""
    try:
        test_methods.test_logits_that_are_all_far_below_zero(spec)
    except AssertionError:
        return True
    return False


def wide_cell():
    """A near cell whose keys lie far on both sides of its centroid, beside a heavy cell in another direction."""
    key = np.array([[0.0, 0.0], [20.0, 0.0], [-20.0, 0.0], [0.0, 60.0], [0.0, 60.0], [0.0, 61.0]])
    return AttentionProblem(np.array([[20.0, 0.0]]), key, np.arange(6.0)[:, None], None, False)


def turned_away():
    """Queries that point away from keys: the logs of all features are far from 0."""
    given = test_methods.problem(5, 60, 60, d=4)
    shift = np.array([20.0, 0.0, 0.0, 0.0])
    return given._replace(query=given.query - shift, key=given.key + shift)


#: Inputs and sizes where a rare branch decides: logits far above the centroid's, votes that underflow, outputs outside,
#: many buckets.
HARD = {
    "multipole": lambda: (wide_cell(), (4,)),
    "multipole(block=8)": lambda: (methods._question(0, 40.0), (16, 40)),
    "multipole(block=16)": lambda: (methods._question(0, 40.0), (16, 40)),  # of four votes
    "nystrom(guard='cells')": lambda: (test_methods.problem(6, 60, 60, d=4, norm=1.5), (9,)),
    "thinformer": lambda: (test_methods.problem(3, 200, 200, d=4, norm=0.8), (40,)),
    "window(9):lara": lambda: (turned_away(), (20,)),
}


def differs_on_hard_inputs(spec):
    """Whether a method is not its definition on inputs where a rare branch decides."""
    return not definitions.error(definitions.member(spec), *HARD[spec]()) <= 1


@pytest.mark.parametrize("spec", HARD)
def test_rare_branches_are_their_definitions(spec):
    assert not differs_on_hard_inputs(spec)


def differs_in_small_tiles(spec):
    """Whether a method is not its definition where one group of queries is computed at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logsum, "tile_elements", lambda _: 1)
        return not definitions.error(definitions.member(spec), methods._question(0, methods.SCALES[0]), (5, 40)) <= 1


def takes_other_cells(_):
    """Cells of 1, 1, 1 and 9 keys, 3 exact keys: at most 2 * ceil(3 * 4 / 12) + 1 cells, here the first three."""
    near = multipole.near_cells(np.array([[3.0, 2.0, 1.0, 0.0]]), np.array([1, 1, 1, 9]), 12, 3)
    return near.tolist() != [[True, True, True, False]]


CATCHERS = {
    "near-cells": takes_other_cells,
    "hard": differs_on_hard_inputs,
    "small-tiles": differs_in_small_tiles,
    "far-below-zero": fails_far_below_zero,
    "method": method_is_refuted,
    "map": lambda spec: refuted(kernel.measure(get_sampler("iid"), [fb.get_map(spec)], 8000, 1)),
    "attention": lambda spec: refuted(attention.measure([fb.get_map(spec)], get_sampler("orthogonal"), 1)),
    "sampler": lambda name: refuted(laws.measure(get_sampler(name), 12_000, 1)),
    "linear": linear_attention_is_wrong,
    "exact": exact_attention_is_wrong,
    "underflow": first_size_underflows_wrongly,
}


def is_caught(catcher):
    kind, _, asked = catcher.partition(" ")
    with np.errstate(all="ignore"):
        try:
            return CATCHERS[kind](asked)
        except EstimatorError:  # refused
            return True


MUTANTS = all_mutants()


def test_every_mutant_changes_its_function(monkeypatch):
    """And no two are called the same."""
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS) >= 254
    for mutant in MUTANTS:
        with monkeypatch.context() as patch:
            mutate(mutant, patch)


@pytest.mark.slow
@pytest.mark.parametrize("catcher", sorted({catcher for mutant in MUTANTS for catcher in mutant.catchers}))
def test_right_members_are_not_caught(catcher):
    assert not is_caught(catcher)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_mutant_is_caught(mutant, monkeypatch):
    mutate(mutant, monkeypatch)
    assert any(map(is_caught, mutant.catchers))


WRONG_METRICS = {
    "1.001 times": lambda right: lambda sums, uniform: 1.001 * right(sums, uniform),
    "too large by 1e-9": lambda right: lambda sums, uniform: right(sums, uniform) + 1e-9,
    "a failure looks small": lambda right: (
        lambda sums, uniform: np.nan_to_num(right(sums, uniform), posinf=9.0, neginf=0.0)
    ),
}
#: A mean over rows is always finite.
OVER_ROWS = ("cosine", "bad_normalisers", "unnormalised_rows")
METRIC_MUTANTS = [(name, wrong) for name in METRICS for wrong in WRONG_METRICS
                  if not (name in OVER_ROWS and wrong == "a failure looks small")]  # fmt: skip


@pytest.mark.parametrize("name, wrong", METRIC_MUTANTS)
def test_every_mutant_of_a_metric_is_caught(rng, name, wrong, monkeypatch):
    monkeypatch.setitem(METRICS, name, METRICS[name]._replace(compute=WRONG_METRICS[wrong](METRICS[name].compute)))
    with pytest.raises(AssertionError):
        test_metrics.test_metric_by_hand(name)
        test_metrics.test_a_failure_never_looks_small(np.nan)
        test_metrics.test_sizes_and_draws_in_tiles_agree_with_plain_formulas(rng, np.asarray, np.asarray)
