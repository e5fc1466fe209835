"""Baselines against their definitions."""

import numpy as np
import pytest
from scipy.special import softmax

import favorbench as fb
from favorbench import baselines
from favorbench.baselines import BASELINES, Inputs, get_baseline


@pytest.fixture
def problem(rng):
    q, k, v = rng.normal(size=(40, 6)), rng.normal(size=(50, 6)), rng.normal(size=(50, 3))
    return q, k, v, fb.exact_attention(q, k, v)


def answers(name, problem, sizes=(4,), positions=None):
    inputs = Inputs(*problem[:3], positions)
    return list(get_baseline(name).answers(inputs, problem[3], sizes, np.random.default_rng(0)))


def test_uniform_is_the_mean_of_v(problem):
    (answer,) = answers("uniform", problem)
    np.testing.assert_allclose(answer.output, np.tile(problem[2].mean(axis=0), (40, 1)), rtol=1e-15)
    assert (answer.num_projections, answer.num_features) == (0, 1)


@pytest.mark.parametrize(("name", "kernel", "features"), [
    ("taylor-1", lambda s: 1 + s, 7), ("taylor-2", lambda s: 1 + s + s * s / 2, 28)
])  # fmt: skip
def test_taylor_is_attention_with_the_polynomial(problem, name, kernel, features):
    q, k, v, _ = problem
    weights = kernel(q @ k.T / np.sqrt(6))
    (answer,) = answers(name, problem)
    total = weights.sum(axis=-1, keepdims=True)
    condition = np.abs(weights).sum(axis=-1, keepdims=True) / np.abs(total)  # taylor-1's weights may be negative
    expected = weights @ v / total
    assert np.all(np.abs(answer.output - expected) <= 1e-13 * condition * (1 + np.abs(expected)))
    np.testing.assert_allclose(answer.normaliser, total, rtol=1e-11)
    assert answer.num_features == features


def test_best_rank_is_the_truncated_svd(problem):
    q, k, v, _ = problem
    matrix = softmax(q @ k.T / np.sqrt(6), axis=-1)
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    for answer in answers("best-rank", problem, (1, 3, 10, 40, 99)):
        r = answer.num_projections
        expected = (u[:, :r] * s[:r]) @ vt[:r] @ v
        # eigenvectors of A A^T lose half the digits of small singular values: see the docstring
        np.testing.assert_allclose(answer.output, expected, rtol=0, atol=1e-7 * s[0] * np.abs(v).max())


def test_best_rank_says_nothing_about_a_matrix_that_does_not_fit(problem, monkeypatch):
    monkeypatch.setattr(baselines, "MATRIX_LIMIT", 40 * 50 - 1)
    assert answers("best-rank", problem) == []


@pytest.mark.parametrize("member", [m for m in BASELINES if m.causal_safe], ids=lambda m: m.name)
def test_a_causal_answer_is_that_of_each_prefix(rng, member):
    """For some of the positions: what the baseline says of the keys up to there, to the last query alone."""
    q, k, v = rng.normal(size=(3, 150, 6))
    positions = np.array([0, 1, 40, 127, 128, 149])
    exact = fb.exact_attention(q[positions], k, v, causal=True, positions=positions)
    (found,) = answers(member.name, (q[positions], k, v, exact), positions=positions)
    for i, position in enumerate(positions):
        seen = slice(0, position + 1)
        prefix = (q[position : position + 1], k[seen], v[seen], exact[i : i + 1])
        (expected,) = answers(member.name, prefix)
        np.testing.assert_allclose(found.output[i : i + 1], expected.output, rtol=1e-10)


def test_names_are_unique():
    assert len({member.name for member in BASELINES}) == len(BASELINES)
