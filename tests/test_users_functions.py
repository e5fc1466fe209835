"""Functions as people bring them: through sweep, verify, audit, recommend, the fixture and workers, each works, or one
line says what to change."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import favorbench as fb
from favorbench.errors import ScenarioError
from favorbench.methods import AttentionProblem, get_method
from favorbench.numerics.streams import Streams
from favorbench.results.findings import run_sentences
from favorbench.studies.audit import audit
from favorbench.studies.function_errors import function_error
from favorbench.studies.verify import verify
from tests.command_line import refused

FUNCTIONS = """
import functools

import numpy as np


def exact(query, key, value, size, rng):
    weights = query @ key.T / query.shape[-1] ** 0.5
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    return weights @ value / weights.sum(-1, keepdims=True)


def cost(shape, size):
    return shape.n * shape.l * shape.d  # less than exact attention, for recommend


def cast(dtype):
    def inside(query, key, value, size, rng):
        return exact(*(a.astype(dtype) for a in (query, key, value)), size, rng)

    inside.multiplications = cost
    return inside


class Called:
    multiplications = staticmethod(cost)

    def __call__(self, query, key, value, size, rng):
        return exact(query, key, value, size, rng)

    def bound(self, query, key, value, size, rng):
        return exact(query, key, value, size, rng)


def whole(query, key, value, size, rng):
    return np.rint(exact(query, key, value, size, rng)).astype(int)


def view(query, key, value, size, rng):
    return np.broadcast_to(value[:1], (len(query), value.shape[1]))


def nans(query, key, value, size, rng):
    return np.full((len(query), value.shape[1]), np.nan)


def in_place(query, key, value, size, rng):
    output = exact(query, key, value, size, rng)
    for array in (query, key, value):
        array[:] = 0
    return output


def same_array(query, key, value, size, rng, kept={}):
    output = kept.setdefault(value.shape, np.empty((len(query), value.shape[1])))
    output[:] = exact(query, key, value, size, rng)
    return output


def pair(query, key, value, size, rng):
    return exact(query, key, value, size, rng), None


def _four(extra, query, key, value, size, rng):
    return exact(query, key, value, size, rng)


exact.multiplications = cost
float32, float16 = cast("float32"), cast("float16")
instance, bound, made = Called(), Called().bound, lambda query, key, value, size, rng: exact(query, key, value, 0, rng)
partial = functools.partial(_four, None)
for function in (whole, view, nans, in_place, same_array, pair, made, partial):
    function.multiplications = cost
"""

TORCH = """
import torch
from torch.nn.functional import scaled_dot_product_attention


def tensors(query, key, value, size, rng):
    return scaled_dot_product_attention(query[None], key[None], value[None])[0]


def annotated(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int, rng) -> torch.Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


def brain(query, key, value, size, rng):
    return tensors(*(torch.as_tensor(a).bfloat16() for a in (query, key, value)), size, rng)


def graph(query, key, value, size, rng):
    return tensors(*(a.requires_grad_() for a in (query, key, value)), size, rng)


def drawing(query, key, value, size, rng):
    picked = rng.permutation(len(key))[:size]
    return tensors(query, key[picked], value[picked], size, rng)


def broken(query, key, value, size, rng):
    return tensors(query, key, value, size, rng).absent


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, query, key, value, size, rng):
        query, key, value = (array.to(self.weight.dtype) for array in (query, key, value))
        return tensors(query * self.weight, key, value, size, rng)


layer = Layer()
for function in (tensors, annotated, brain, graph, drawing, broken, layer):
    function.multiplications = lambda shape, size: shape.n * shape.l * shape.d
"""

#: Functions, and the largest relative error that their precision allows; None: they are not exact attention.
NUMPY = {
    "exact": 1e-12, "float32": 1e-5, "float16": 2e-2, "instance": 1e-12, "bound": 1e-12, "made": 1e-12,
    "partial": 1e-12, "in_place": 1e-12, "same_array": 1e-12, "whole": None, "view": None,
}  # fmt: skip
OF_TORCH = {
    "tensors": 1e-12, "annotated": 1e-12, "brain": 5e-2, "graph": 1e-12, "layer": 1e-5, "drawing": None,
}  # fmt: skip

RUN = {"maps": "none", "num_projections": 4, "seq_len": 24, "head_dim": 4, "trials": 2, "baselines": "uniform"}


@pytest.fixture
def functions(module):
    """The modules, in an importable working directory; torch's functions where it is installed."""
    module("brought", FUNCTIONS)
    module("brought_torch", TORCH)


def swept(module, names, **flags):
    """The relative errors of functions of a module, by name."""
    methods = ",".join(f"{module}:{name}" for name in names)
    rows = fb.sweep("quick", f"{module}{len(flags)}", **RUN, methods=methods, **flags).trials
    return {name: rows[rows["estimator"] == name]["relative_error"].to_list() for name in names}


def check_errors(errors, limits):
    for name, limit in limits.items():
        assert len(errors[name]) == 2 and np.isfinite(errors[name]).all(), name
        assert limit is None or max(errors[name]) <= limit, name
        assert limit is not None or min(errors[name]) > 1e-2, name


@pytest.fixture(params=[("brought", NUMPY), ("brought_torch", OF_TORCH)], ids=["numpy", "torch"])
def brought(request, functions):
    """A module of functions and their limits."""
    if request.param[0] == "brought_torch":
        pytest.importorskip("torch")
    return request.param


def test_functions_are_swept(brought):
    check_errors(swept(*brought), brought[1])


@pytest.mark.parametrize("name", ["brought", pytest.param("brought_torch", marks=pytest.mark.slow)])
def test_two_processes_sweep_functions_as_one_does(functions, name):
    if name == "brought_torch":
        pytest.importorskip("torch")
    names = NUMPY if name == "brought" else OF_TORCH
    assert swept(name, names, workers=2) == swept(name, names)


def test_a_sweep_by_torch_takes_functions_of_numpy_too(brought):
    pytest.importorskip("torch")
    module, limits = brought
    check_errors(swept(module, limits, backend="torch"), limits)


def test_verify_and_audit_take_them(brought):
    module, limits = brought
    chosen = {"float32", "instance", "brain", "layer", "tensors"} & limits.keys()
    some = {f"{module}:{name}": limits[name] for name in sorted(chosen)}
    claims = [check for check in verify([*some]).checks if check.claim == "row sums"]
    assert [check.verdict for check in claims] == ["holds"] * len(some)
    found = [f.median for f in audit([*some], runs=6) if f.measure == "error against exact"]
    assert (np.reshape(found, (len(some), -1)).max(1) <= [*some.values()]).all()


def test_recommend_and_the_fixture_take_them(brought, rng):
    module, limits = brought
    arrays = tuple(rng.normal(size=(3, 24, 4)))
    for name, limit in limits.items():
        function = getattr(importlib.import_module(module), name)
        error = float(function_error(function, arrays, draws=2, size=6))
        assert error <= limit if limit is not None else error > 1e-2
        if name == "bound":  # no attribute can be set on it
            continue
        answer = fb.recommend(arrays, maps="none", methods=f"{module}:{name}", target=limit or 0.5, max_size=8)
        assert name in {point.setting.name for point in answer.decisions[0].points}


def test_a_torch_function_draws_the_same_as_a_numpy_function(functions, rng):
    """A first call that fails has not moved the generator, and the output is NumPy's where the inputs are."""
    torch = pytest.importorskip("torch")
    drawing = importlib.import_module("brought_torch").drawing
    query, key, value = rng.normal(size=(3, 24, 4))
    output = fb.method_attention(query, key, value, drawing, 6, 7)
    picked = np.random.default_rng(7).permutation(24)[:6]
    assert isinstance(output, np.ndarray)
    np.testing.assert_allclose(output, fb.exact_attention(query, key[picked], value[picked]), atol=1e-12)
    tensors = fb.method_attention(*map(torch.from_numpy, (query, key, value)), drawing, 6, 7)
    np.testing.assert_array_equal(tensors.numpy(), output)


def spawning(query, key, value, size, rng):
    (child,) = rng.spawn(1)
    return child.random() * value[child.integers(len(key), size=len(query))]


def test_each_size_and_the_row_sums_have_the_same_draw_where_a_function_spawns_generators(rng):
    problem = AttentionProblem.of(*rng.normal(size=(3, 8, 4)))
    problem = problem._replace(value=np.ones_like(problem.value))

    def estimates(sizes):
        return [*get_method(spawning).estimates(problem, sizes, Streams.of(np.random.default_rng(0)))]

    first, second = estimates((2, 3))
    (alone,) = estimates((3,))
    np.testing.assert_array_equal(first.output, second.output)  # it ignores its size
    np.testing.assert_array_equal(second.output, alone.output)
    np.testing.assert_array_equal(alone.output[:, :1], alone.row_sums)


def test_a_function_in_a_model_in_half_precision_is_given_its_numbers():
    """And not those of queries and keys that were scaled and scaled back, which a common bias of keys makes large."""
    torch = pytest.importorskip("torch")
    tokens, given = [torch.randn(1, 1, 20, 32, dtype=torch.bfloat16) for _ in range(3)], []

    def function(query, key, value, size, rng):
        given[:] = query, key, value
        return value + 0 * query

    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    function.tensors = True
    with fb.replace_attention(model := Attention(), method=function, size=8):
        model(*tokens)
    assert all(torch.equal(seen, own[0, 0]) for seen, own in zip(given, tokens, strict=True))


def test_infinite_errors_are_a_measurement_and_other_mistakes_one_line(functions):
    assert swept("brought", ["nans"])["nans"] == [np.inf] * 2
    flags = "-R 4 -L 24 -d 4 --trials 2 --maps none --methods"
    assert "pair returned tuple; it must return ndarray of shape (24, 4)" in refused(f"sweep {flags} brought:pair")
    assert "pair failed: pair returned tuple" in refused("audit brought:pair --runs 6")
    assert "brought:Called' is of type Called; it must be a function" in refused(f"sweep {flags} brought:Called")
    if importlib.util.find_spec("torch"):
        error = refused(f"sweep {flags} brought_torch:broken")
        assert "broken failed: AttributeError: 'Tensor' object has no attribute 'absent'" in error


def test_a_function_without_a_signature_is_refused(rng):
    """As torch's scaled_dot_product_attention, it ended with a ValueError of Python's inspect."""
    with pytest.raises(
        ScenarioError, match=r"^max does not say .* wrap it in `def max\(query, key, value, size, rng\)`$"
    ):
        fb.method_attention(*rng.normal(size=(3, 4, 2)), max, 2)
    assert "--methods: method 'builtins:max': max does not say what parameters it takes" in refused(
        "sweep --maps none --methods builtins:max -R 4 -L 16 -d 2 --trials 2"
    )


COSTS = {
    "lambda shape: 1": "failed: TypeError",
    "7": "failed: TypeError: 'int' object is not callable",
    "lambda shape, size: 'many'": "failed: ValueError",
    "lambda shape, size: 1 / 0": "failed: ZeroDivisionError",
    "lambda shape, size: float('nan')": "are nan; allowed: a finite number from 0 on",
    "lambda shape, size: -5": "are -5; allowed: a finite number from 0 on",
}


@pytest.mark.parametrize("stated", COSTS)
def test_a_cost_that_is_no_number_is_said(stated):
    module = f"costs_{list(COSTS).index(stated)}"
    function = "def mine(query, key, value, size, rng):\n    return value[: len(query)]\n"
    Path(f"{module}.py").write_text(f"{function}mine.multiplications = {stated}\n")
    sweep = f"sweep --maps none --methods {module}:mine -R 4 -L 16 -d 2 --trials 2"
    recommend = f"recommend gaussian --maps none --methods {module}:mine -L 16 -d 2 --target 0.5"
    for command in (sweep, f"{sweep} --budget cost", recommend):
        assert f"mine: its multiplications {COSTS[stated]}" in refused(command)


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_what_a_notebook_defines_is_refused(monkeypatch, file):
    """A run could not notice that a cell was edited, and answered with the errors of the function before."""
    monkeypatch.setattr("__main__.nearest", lambda query, key, value, size, rng: query, raising=False)
    monkeypatch.setattr("__main__.__file__", file, raising=False)
    with pytest.raises(ScenarioError, match="__main__ has no file: write the estimator into one"):
        fb.sweep("quick", maps="none", methods="__main__:nearest", num_projections=[8], trials=1)


def test_projections_drawn_when_a_module_is_made_are_one_draw_and_that_is_said(module, rng):
    """ "Median of 8 draws" and "better" stood where the same command, run again, gave "worse"."""
    module("drawn", """
import numpy as np

projections = np.random.default_rng().standard_normal((6, 4))

def features(x, omega):
    return np.exp(x @ omega.T - (x * x).sum(-1, keepdims=True) / 2)

def attend(query, key, value, omega):
    a, b = features(query, omega), features(key, omega)
    return a @ (b.T @ value) / (a @ b.sum(0))[:, None]

def once(query, key, value, size, rng):
    return attend(query, key, value, projections)

def anew(query, key, value, size, rng):
    return attend(query, key, value, rng.standard_normal((size, 4)))
""")  # fmt: skip
    inputs = {"heads": tuple(rng.standard_normal((3, 2, 24, 4)))}
    results = fb.sweep(maps="none", methods="drawn:once,drawn:anew", num_projections=6, trials=3, inputs=inputs)
    said = [sentence for sentence in run_sentences(results) if "one measurement" in sentence]
    assert [sentence.partition(":")[0] for sentence in said] == ["once"]
