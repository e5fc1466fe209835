"""Every metric on a case small enough to do by hand."""

import math

import numpy as np
import pytest

from favorbench.metrics import METRICS, add, error_sums

EXACT = np.array([[1.0, 2.0], [3.0, 4.0]])
# errors: 1, 0, -2, 2; squares 1, 0, 4, 4, sum 9, mean 9/4
OUTPUT = np.array([[2.0, 2.0], [1.0, 6.0]])
# uniform answer 2.5, 2.5: errors 1.5, .5, -.5, -1.5; squares 2.25, .25, .25, 2.25, sum 5
UNIFORM = np.full((2, 2), 2.5)
DOUBLE = OUTPUT + np.array([[0.5, 0.0], [0.0, -0.5]])
NORMALISER = np.array([[0.5], [-0.1]])

BY_HAND = {
    "mse": 9 / 4,
    "relative_error": math.sqrt(9 / 30),  # |exact|^2 = 1 + 4 + 9 + 16 = 30
    "skill": 1 - 9 / 5,  # (9/4) / (5/4)
    "rounding": math.sqrt(0.5 / 30),  # DOUBLE: half of it in one entry, half in another
    "max_abs_error": 2.0,
    "bad_normalisers": 1 / 2,  # the second of two rows
}


@pytest.mark.parametrize("name", METRICS)
def test_metric_by_hand(name):
    sums, uniform = error_sums(OUTPUT, EXACT, NORMALISER, DOUBLE), error_sums(UNIFORM, EXACT)
    assert METRICS[name].compute(sums, uniform) == pytest.approx(BY_HAND[name], rel=1e-15)


def test_every_metric_is_checked_and_described():
    assert set(BY_HAND) == set(METRICS)
    for metric in METRICS.values():
        assert metric.formula and metric.unit and metric.better in ("lower", "higher")


def test_sums_over_rows_add_up():
    whole = error_sums(OUTPUT, EXACT, NORMALISER)
    parts = [error_sums(OUTPUT[[i]], EXACT[[i]], NORMALISER[[i]]) for i in range(2)]
    assert add(*parts) == whole


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_failure_never_looks_small(bad):
    output = OUTPUT.copy()
    output[0, 0] = bad
    sums, uniform = error_sums(output, EXACT), error_sums(UNIFORM, EXACT)
    assert METRICS["mse"].compute(sums, uniform) == np.inf
    assert METRICS["skill"].compute(sums, uniform) == -np.inf
    assert METRICS["max_abs_error"].compute(sums, uniform) == np.inf


@pytest.mark.parametrize(("value", "bad"), [(0.0, 1), (-1.0, 1), (np.nan, 1), (np.inf, 1), (1e-300, 0), (1.0, 0)])
def test_which_normalisers_are_bad(value, bad):
    assert error_sums(EXACT[:1], EXACT[:1], np.array([[value]])).bad_rows == bad
