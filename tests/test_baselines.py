"""Baselines against their definitions."""

import numpy as np
import pytest
from matplotlib.lines import Line2D

import favorbench as fb
from favorbench.baselines import BASELINES
from favorbench.errors import InputError
from favorbench.methods import AttentionProblem, Shape
from tests.definitions import member
from tests.test_methods import answers, problem


def test_best_rank_says_nothing_about_a_matrix_that_does_not_fit(monkeypatch):
    monkeypatch.setattr("favorbench.baselines.members.MATRIX_LIMIT", 40 * 40 - 1)
    assert answers("best-rank", problem(), (4,)) == []
    with pytest.raises(InputError, match=r"'best-rank' has no answer for 40 queries and 40 keys: .* up to 2048 x 2048"):
        fb.method_attention(*np.ones((3, 40, 5)), fb.get_baseline("best-rank"))


def test_names_and_looks_are_unique():
    assert len({member.name for member in BASELINES}) == len(BASELINES)
    looks = [tuple(member.look.get(part) for part in ("color", "linestyle", "marker")) for member in BASELINES]
    assert len(set(looks)) == len(BASELINES) == len({member.look["label"] for member in BASELINES})
    assert all(Line2D([], [], **member.look) for member in BASELINES)  # matplotlib has these colours, lines and markers


@pytest.mark.parametrize(
    "spec, entries",
    [("best-rank", 80_000), ("wildcat", 200 * 16), ("clusters", 0), ("monarch", 2 * (16 * 16 * 7 + 16 * 7 * 13)),
     ("nystromformer", 5 * 16 * 16), ("thinformer", 3 * 1024), ("lara", 3 * 16 * 16),
     ("clusters(points='pivots')", 200 * 16), ("sinks(4):multipole(exact=0.25, points='pivots')", 200 * 12 + 100 * 24)],
)  # fmt: skip
def test_matrices_other_than_inputs_and_outputs_are_counted(spec, entries):
    """For 100 queries, 200 keys, d = d_v = 8, m = 16. thinformer: 16 buckets of 8 keys, 4 of 16 or one of 32.

    multipole: copies of 100 queries for one near cell each, of 4 exact keys.
    """
    assert member(spec).matrix_entries(Shape(100, 200, 8, 8), 16) == entries


#: (d, scale of N(0, 1) inputs), n = 256: median output errors of wildcat with 64 and 128 landmarks, as an independent
#: implementation of Schroeder & Mackey 2026, arXiv 2602.10056, tabulated them.
PRINTED = {(16, 0.5): (1e-5, 2e-6), (16, 1.0): (3.1e-3, 9e-4), (16, 1.5): (7.8e-2, 1.7e-2), (64, 1.0): (2.6e-2, 7.7e-3)}


@pytest.mark.parametrize("dim, scale", PRINTED)
def test_errors_are_the_tabulated_ones(dim, scale):
    """The tabulated medians, themselves of a few draws, lie in the range of 25; the control: not in that of others."""
    rng, found = np.random.default_rng(2), []
    for _ in range(25):
        q, k, v = rng.normal(size=(3, 256, dim))
        q, k = scale * q, scale * k
        exact, scaled = fb.exact_attention(q, k, v), AttentionProblem(q * dim**-0.25, k * dim**-0.25, v)
        found.append([np.mean((one.output - exact) ** 2) for one in answers("wildcat", scaled, (64, 128), seed=rng)])
    low, high = np.min(found, axis=0), np.max(found, axis=0)
    printed = np.array(PRINTED[dim, scale])
    rounding = 0.5 * np.array([10.0 ** np.floor(np.log10(p)) * (1.0 if f"{p:e}"[2] == "0" else 0.1) for p in printed])
    assert np.all((low - rounding <= printed) & (printed <= high + rounding))
    assert printed[1] < low[0] and printed[0] > high[1]
