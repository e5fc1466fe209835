"""Attention, exact and linear, against the plain oracle: lengths round every edge, norms from 0.1 to 20, several R at
once, heads, causal and not. Not every combination, but every pair of a map and a length, and every value of the rest.
"""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.maps import MAPS, TRANSFORMS, Sample, get_map
from tests.oracle import (
    EDGES,
    EPS,
    KERNELS,
    Asked,
    Case,
    Exact,
    attention_of,
    compared,
    exact,
    kernel_of,
    sample_for,
)

SPECS = [member.name for member in MAPS] + [f"{transform.prefix}:positive" for transform in TRANSFORMS]
SPECS += ["maclaurin(exact=2)", "maclaurin(law='poisson', vectors='gaussian')", "tensorsketch(exact=2)",
          "oprf(rho=0.5)", "poisson(rate=0.5)", "geometric(p=0.5)", "hybrid(n=2)", "centre:trig"]  # fmt: skip
LARGE = ["poisson(rate=30.0)", "geometric(p=0.05)"]  # at d = 64 the oracle's features are below any number it has
DIMS, SIZES, VALUE_DIMS, BATCHES = (3, 8, 24, 64, 1), (9, 20, 6, 14), (2, 1, 5), ((), (2,), (2, 1))
NORMS = ((0.1, 0.1), (1.0, 0.5), (0.6, 2.0), (4.0, 3.0), (20.0, 5.0), (3.0, 20.0), (8.0, 8.0))
SHORT = tuple(length for length in EDGES if length < 300)


def design(lengths, causal):
    """(spec, case) for every map that can be asked and every length; the other properties take turns."""
    found = []
    for i, spec in enumerate(SPECS):
        for j, length in enumerate(lengths):
            turn = i + 3 * j + causal
            dim = DIMS[turn % 5] if length < 2000 else DIMS[turn % 2]
            case = Case(length, dim, *NORMS[(i + j) % 7], SIZES[(i + 2 * j) % 4], causal, VALUE_DIMS[turn % 3],
                        BATCHES[(i + j) % 3] if length < 300 else ())  # fmt: skip
            if not causal or get_map(spec).causal_safe:
                found.append(pytest.param(spec, case, id=f"{spec}-{length}{'-causal' * causal}"))
    return found


ALL = design(EDGES, False) + design(EDGES, True)
#: A third of the short ones, so that every length has a third of the maps and every map a third of the lengths.
QUICK = [part for i, part in enumerate(ALL) if part.values[1].length < 300 and i % 3 == 0]
SLOW = [part for part in ALL if part not in QUICK]


@pytest.mark.parametrize("spec, case", QUICK)
def test_linear_attention_is_the_oracles(spec, case):
    assert compared(spec, case).worst <= 1


@pytest.mark.slow
@pytest.mark.parametrize("spec, case", SLOW)
def test_linear_attention_is_the_oracles_everywhere(spec, case):
    assert compared(spec, case).worst <= 1


def test_the_design_covers_its_stated_cases():
    for causal in (False, True):
        cases = [part.values[1] for part in ALL if part.values[1].causal == causal]
        for axis, values in enumerate(zip(*cases, strict=True)):
            assert set(values) >= {1: {*DIMS}, 4: {*SIZES}, 7: {*BATCHES}}.get(axis, set())
        assert {case[2:4] for case in cases} == set(NORMS)
        assert {case[:2] for case in cases} >= set(itertools.product(SHORT, DIMS))
    quick = [part.values for part in QUICK]
    assert {(case.length, case.causal) for _, case in quick} == {(n, causal) for n in SHORT for causal in (False, True)}
    assert {spec for spec, _ in quick} == set(SPECS) and {m.name for m in MAPS} == set(KERNELS)


@pytest.mark.parametrize("spec", ["trig", "trig-blog", "taylor", "maclaurin", "tensorsketch", "phase", "hybrid"])
def test_rows_are_compared_where_normalisers_cancel(spec):
    """The comparison is not empty: most rows have digits left at moderate norms, whatever the signs."""
    case = Case(130, 8, 0.5, 0.6, 12)
    assert compared(spec, case).share > 0.9


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("norm", [0.1, 2.0, 8.0, 20.0])
def test_exact_attention_is_the_oracles(length, causal, norm):
    """norm 20: logits up to 400, one key with all of the weight; the running maximum moves in every tile."""
    turn = EDGES.index(length) + int(norm)
    case = Case(length, DIMS[turn % 5], norm, norm / 2, 1, causal, VALUE_DIMS[turn % 3], BATCHES[turn % 3])
    if length > 300:
        case = case._replace(batch=())
    query, key, value = case.arrays()
    rows, expected, allowed = exact(case)
    output = fb.exact_attention(query, key, value, causal=causal)
    assert output.shape == (*query.shape[:-1], case.value_dim)
    assert np.max(np.abs(output[..., rows, :] - expected)) <= allowed
    if causal:
        some = fb.exact_attention(query[..., rows, :], key, value, causal=True, positions=rows)
        assert np.max(np.abs(some - expected)) <= allowed


@pytest.mark.parametrize("spec", SPECS + LARGE)
@pytest.mark.parametrize("dim", [1, 3, 8, 24])
def test_kernel_estimates_are_the_oracles(spec, dim):
    """phi(x).phi(y) by the formula, for several samples at once; without ``fit``, as kernel estimates are made."""
    case = Case(9, dim, 0.9, 1.2, 10)
    x, y = (a * dim**-0.25 for a in case.arrays()[:2])
    feature_map, sample = get_map(spec), sample_for(get_map(spec), case)
    found = fb.kernel_estimate(x, y, sample, map=feature_map)
    assert found.shape == (7, 9)
    if spec == "positive-eps":
        return_to = fb.kernel_estimate(x, y, Sample(sample.omega), map="positive")
        assert np.all(found > return_to)  # without ``fit`` it has no shifts, which are what the oracle has
        return
    ready = feature_map.with_parameters(x, y)
    if spec in ("poisson", "geometric"):  # without data the parameter is that of standard normal points
        ready = get_map(f"{spec}({'rate' if spec == 'poisson' else 'p'}={feature_map.parameter(dim)!r})")
    kernel = kernel_of(Asked(*(a.astype(Exact) for a in (x, y, sample.omega)), sample.extra, ready))
    terms = kernel.terms + np.finfo(float).tiny  # at large rates an estimate may be smaller than any float64
    assert np.max(np.abs(found - kernel.values) / terms) <= 1000 * EPS


def test_the_oracle_is_attention():
    """With the softmax kernel itself its quotient is exact attention, and so is that of many Taylor features."""
    case = Case(130, 3, 1.0, 1.0, 1, causal=True)
    rows, expected, _ = exact(case)
    query, key, value = (a.astype(Exact) for a in case.arrays())
    seen = np.arange(130) <= rows[:, None]
    asked = Asked(query[rows] * 3**-0.25, key * 3**-0.25, np.zeros((1, 3)), None, fb.get_map("taylor(order=30)"))
    output, condition = attention_of(kernel_of(asked), value, seen)
    assert_allclose(np.asarray(output, float), np.asarray(expected, float), rtol=0, atol=1e-10)
    assert np.all(condition >= 1)


@pytest.mark.parametrize("spec", ["trig", "hybrid", "positive", "hyperbolic", "maclaurin(exact=2)", "exp-tutorial"])
@pytest.mark.parametrize("falling", [False, True])
def test_a_key_far_larger_than_earlier_keys_of_its_chunk_hides_nothing(spec, falling, monkeypatch):
    """Scales that grow by exp(1800) within a chunk (or fall): every row has its digits, where 0/0 was."""
    case = Case(131, 1, 3.0, 60.0, 6, causal=True)
    if falling:
        arrays = Case.arrays
        monkeypatch.setattr(Case, "arrays", lambda self: (arrays(self)[0], arrays(self)[1][::-1], arrays(self)[2]))
    found = compared(spec, case)
    assert found.worst <= 1 and found.share > 0.5
