"""What one wrong line does: each of these faults passed verify and the tests of 0.1.0, and is caught now.

A mutant is the function as it stands with one text replaced; the catcher must pass before and fail after.
"""

import inspect
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import favorbench as fb
from favorbench.attention import causal, exact
from favorbench.baselines import trivial
from favorbench.maps import centre, integer, other_kernels, polynomial, random_features
from favorbench.methods import Method, landmarks, nystrom
from favorbench.numerics import logsum
from favorbench.samplers import base, get_sampler, orthogonal
from favorbench.studies.verify import attention, kernel, laws
from favorbench.studies.verify.checks import REFUTED, judged
from tests import definitions, oracle
from tests.oracle import Case
from tests.test_methods import problem


def mutate(monkeypatch: pytest.MonkeyPatch, function: Callable, old: str, new: str) -> None:
    """Replace ``old``, which must stand there once, in a function's source; wherever it was imported to."""
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {function.__qualname__}"
    namespace: dict = {}
    exec(compile(source.replace(old, new), "<mutant>", "exec"), dict(function.__globals__), namespace)
    mutant = inspect.unwrap(namespace[function.__name__])
    monkeypatch.setattr(function, "__code__", mutant.__code__)


def linear_attention_is_wrong(*asked: tuple[str, Case]) -> bool:
    return any(oracle.compared(spec, case).worst > 1 for spec, case in asked)


def exact_attention_is_wrong(case: Case) -> bool:
    query, key, value = case.arrays()
    rows, expected, allowed = oracle.exact(case)
    output = fb.exact_attention(query, key, value, causal=case.causal)[..., rows, :]
    return not np.max(np.abs(output - expected)) <= allowed


def refuted(measured: list) -> bool:
    return REFUTED in {check.verdict for check in judged(measured)}


def map_is_refuted(spec: str, draws: int = 2000) -> bool:
    return refuted(kernel.measure(get_sampler("iid"), [fb.get_map(spec)], draws, 1))


def attention_is_refuted(spec: str) -> bool:
    return refuted(attention.measure([fb.get_map(spec)], get_sampler("orthogonal"), 1))


def sampler_is_refuted(name: str) -> bool:
    return refuted(laws.measure(get_sampler(name), 12_000, 1))


def is_not_its_definition(method: Method) -> bool:
    return not definitions.error(method, problem(), (1, 2, 7, 12)) <= 1


class Mutant(NamedTuple):
    function: Callable
    old: str
    new: str
    is_wrong: Callable[[], bool]


FAR, FAR_CAUSAL = Case(50, 24, 2.0, 20.0, 20), Case(257, 24, 1.0, 20.0, 9, causal=True)
NEAR_CAUSAL = Case(129, 8, 0.5, 0.5, 9, causal=True)
_THIRD = "transform * signs[:, 0] @ transform * signs[:, 1] @ transform * signs[:, 2]"

#: By the rows of the review that found them; each by the oracle, by verify, or by both.
MUTANTS: dict[str, Mutant] = {
    "exact causal mask off by one at a chunk's edge, by the oracle": Mutant(
        causal.causal_exact_attention, "keys.stop > positions[rows][0] + 1", "keys.stop > positions[rows][0] + 2",
        lambda: exact_attention_is_wrong(Case(130, 8, 1.0, 1.0, 1, causal=True))),
    "causal mask that sees one key too many": Mutant(
        causal.visible, "<= positions[:, None]", "<= positions[:, None] + 1",
        lambda: attention_is_refuted("positive")),
    "causal mask that leaves the first row nothing": Mutant(
        causal.visible, "<= positions[:, None]", "<= positions[:, None] - (positions[:, None] == 0)",
        lambda: attention_is_refuted("positive")),
    "key peaks lost in the near branch, causal": Mutant(
        logsum.joined, "[right * xp.exp(log_peak) for right, log_peak", "[right for right, log_peak",
        lambda: linear_attention_is_wrong(("positive", NEAR_CAUSAL)) and linear_attention_is_wrong(
            ("maclaurin", NEAR_CAUSAL))),
    "key peaks lost in the far branch, by the oracle": Mutant(
        logsum.joined, "log_scale=block.log_scale + xp.matrix_transpose(log_peak)", "log_scale=block.log_scale",
        lambda: linear_attention_is_wrong(("positive", FAR))),
    "key peaks lost in the far branch, by verify": Mutant(
        logsum.joined, "log_scale=block.log_scale + xp.matrix_transpose(log_peak)", "log_scale=block.log_scale",
        lambda: attention_is_refuted("positive")),
    "fixed blocks counted stop times, by the oracle": Mutant(
        logsum.prefix_sums, "(stop - start) * (right @ weight)", "stop * (right @ weight)",
        lambda: linear_attention_is_wrong(("maclaurin(exact=2)", Case(60, 8, 1.0, 1.0, 12)))),
    "fixed blocks counted stop times, by verify": Mutant(
        logsum.prefix_sums, "(stop - start) * (right @ weight)", "stop * (right @ weight)",
        lambda: attention_is_refuted("maclaurin(exact=2)")),
    "fixed blocks counted once in the underflow branch": Mutant(
        logsum._prefix_sum, "product.times(size) if block.fixed", "product.times(1) if block.fixed",
        lambda: first_size_underflows_wrongly()),
    "a merge that does not rescale the old sum, by the oracle": Mutant(
        logsum.merge, "state.total * xp.exp(state.log_peak - peak)", "state.total",
        lambda: exact_attention_is_wrong(Case(5000, 8, 14.0, 14.0, 1, num_queries=100))),
    "a causal past that is not rescaled, by the oracle": Mutant(
        causal._past_and_own, "past.total * xp.exp(past.log_peak - log_peak)", "past.total",
        lambda: linear_attention_is_wrong(("trig", FAR_CAUSAL))),
    "a causal past that is not rescaled, by verify": Mutant(
        causal._past_and_own, "past.total * xp.exp(past.log_peak - log_peak)", "past.total",
        lambda: attention_is_refuted("trig")),
    "a tile of keys that loses its last": Mutant(
        exact.tiled_attention, "min(start + width, length)", "min(start + width, length) - (start > 0)",
        lambda: exact_attention_is_wrong(Case(2050, 3, 1.0, 1.0, 1, num_queries=300))),
    "positive-eps: the queries' shift includes the norm": Mutant(
        other_kernels.PositiveEps.query_features, "xp.max(projection, axis=-1, keepdims=True)",
        "xp.max(projection - half_squared_norm(x), axis=-1, keepdims=True)",
        lambda: linear_attention_is_wrong(("positive-eps", Case(60, 8, 2.0, 1.0, 12)))),
    "hybrid: the last angular bucket unused, by the oracle": Mutant(
        random_features.Hybrid._features, "for i in range(self.n):", "for i in range(self.n - 1):",
        lambda: linear_attention_is_wrong(("hybrid", Case(60, 8, 1.0, 1.0, 12)))),
    "hybrid: the last angular bucket unused, weights adapted": Mutant(
        random_features.Hybrid.draw_extra, "rng.standard_normal((self.n, head_dim))",
        "np.repeat(rng.standard_normal((self.n - 1, head_dim)), [1] * (self.n - 2) + [2], axis=0)",
        lambda: map_is_refuted("hybrid", 8000)),
    "hybrid: buckets shared": Mutant(
        random_features.Hybrid._features, "signs[..., i : i + 1]", "signs[..., max(i - 1, 0) : max(i, 1)]",
        lambda: linear_attention_is_wrong(("hybrid", Case(60, 8, 1.0, 1.0, 12)))),
    "centring without its factor exp(a.b)": Mutant(
        centre.Centre.query_features, "factor = _dot(moved, means.key)", "factor = _dot(x, means.key)",
        lambda: map_is_refuted("centre:positive")),
    "relu: a declared variance of 1.3 times": Mutant(
        other_kernels.ReLU.relative_variance, "/ num_projections", "/ num_projections * 1.3",
        lambda: map_is_refuted("relu")),
    "maclaurin: a declared variance of 1.3 times": Mutant(
        polynomial.Maclaurin.relative_variance, "/ target**2 / num_projections", "/ target**2 / num_projections * 1.3",
        lambda: map_is_refuted("maclaurin", 8000)),
    "tensorsketch: a declared variance of 1.3 times": Mutant(
        polynomial.TensorSketch.relative_variance, "return variance /", "return 1.3 * variance /",
        lambda: map_is_refuted("tensorsketch", 8000)),
    "poisson: a declared variance that is not a number": Mutant(
        integer.Poisson.relative_variance, "np.expm1(", "np.nan * np.expm1(", lambda: map_is_refuted("poisson", 500)),
    "sorf: rows of sqrt(d) for sqrt(p)": Mutant(
        orthogonal.SORF.sample, "np.sqrt(size) * rows", "np.sqrt(head_dim) * rows",
        lambda: sampler_is_refuted("sorf")),
    "sorf: without the third matrix of signs": Mutant(
        orthogonal.SORF.sample, _THIRD, _THIRD.removesuffix(" * signs[:, 2]"), lambda: sampler_is_refuted("sorf")),
    "sorf: H D only": Mutant(
        orthogonal.SORF.sample, _THIRD, "transform * signs[:, 0]", lambda: sampler_is_refuted("sorf")),
    "haar blocks without the signs": Mutant(
        base.haar_blocks, "np.copysign(1.0, ", "np.abs(1.0 + 0.0 * ", lambda: sampler_is_refuted("orthogonal")),
    "uniform attention of all but the first": Mutant(
        trivial.Uniform.estimates, "np.mean(value, axis=0)", "np.mean(value[1:], axis=0)",
        lambda: is_not_its_definition(trivial.Uniform())),
    "landmarks seen by shorter queries": Mutant(
        landmarks.LandmarkSummary.sums, "queries.query @ self.points.T", "0.99 * queries.query @ self.points.T",
        lambda: is_not_its_definition(nystrom.Nystrom())),
    "landmarks of other keys": Mutant(
        nystrom.Nystrom.landmarks, "chosen=order[landmarks.chosen]", "chosen=landmarks.chosen",
        lambda: is_not_its_definition(nystrom.Nystrom())),
}  # fmt: skip


def first_size_underflows_wrongly() -> bool:
    """Two sizes of which the first lies e^-1000 below the second: the fixed block is all that it has."""
    rng = np.random.default_rng(3)
    fixed, right = rng.normal(size=(4, 2)), rng.normal(size=(2, 3))
    logs = np.full((4, 3), -1000.0)
    logs[:, 2] = 1000.0
    blocks = [logsum.Features(fixed, np.zeros((4, 1)), fixed=True), logsum.Features(None, logs)]
    state = logsum.prefix_sums(blocks, [right, rng.normal(size=(3, 3))], (2, 3))
    expected = 2.0 * fixed @ right
    return not np.allclose(state.total[0] * np.exp(state.log_peak[0]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name, monkeypatch):
    function, old, new, is_wrong = MUTANTS[name]
    with np.errstate(all="ignore"):
        assert not is_wrong(), "the catcher refutes what is right"
        mutate(monkeypatch, function, old, new)
        assert is_wrong()
