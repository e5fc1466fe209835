"""Every metric on a case small enough to do by hand, and against plain formulas over tiles and leading axes."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from favorbench.metrics import METRICS, add, error_sums, metrics_of
from favorbench.numerics.arrays import to_column_major
from favorbench.run import sweep
from tests.conftest import small_scenario
from tests.test_backends import BACKENDS

EXACT = np.array([[1.0, 2.0], [3.0, 4.0]])
# errors: 1, 0, -2, 2; squares 1, 0, 4, 4, sum 9, mean 9/4
OUTPUT = np.array([[2.0, 2.0], [1.0, 6.0]])
# uniform answer 2.5, 2.5: errors 1.5, .5, -.5, -1.5; squares 2.25, .25, .25, 2.25, sum 5
UNIFORM = np.full((2, 2), 2.5)
DOUBLE = OUTPUT + np.array([[0.5, 0.0], [0.0, -0.5]])
NORMALISER = np.array([[0.5], [-0.1]])
GRADIENTS = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 2.0]]])  # times the error: 1, and -2 + 4

BY_HAND = {
    "mse": 9 / 4,
    "relative_error": math.sqrt(9 / 30),  # |exact|^2 = 1 + 4 + 9 + 16 = 30
    "relative_l1": 5 / 10,  # 1 + 0 + 2 + 2 over 1 + 2 + 3 + 4
    "cosine": (6 / math.sqrt(8 * 5) + 27 / math.sqrt(37 * 25)) / 2,
    "skill": 1 - 9 / 5,  # (9/4) / (5/4)
    "rounding": math.sqrt(0.5 / 30),  # DOUBLE: half of it in one entry, half in another
    "max_abs_error": 2.0,
    "bad_normalisers": 1 / 2,  # the second of two rows
    "unnormalised_rows": 0.0,  # both normalisers divide
    "effect": (1 + 4) / 2 / 2,
}


@pytest.mark.parametrize("name", METRICS)
def test_metric_by_hand(name):
    sums, uniform = error_sums(OUTPUT, EXACT, NORMALISER, DOUBLE, None, GRADIENTS), error_sums(UNIFORM, EXACT)
    assert METRICS[name].compute(sums, uniform) == pytest.approx(BY_HAND[name], rel=1e-15)


#: Unit, which way is good, on a log axis, of the output, and the power of |exact| that it grows with.
PROPERTIES = {
    "mse": ("value^2", "lower", True, True, 2),
    "relative_error": ("none", "lower", True, True, 0),
    "relative_l1": ("none", "lower", True, True, 0),
    "cosine": ("none", "higher", False, True, 0),
    "skill": ("none", "higher", False, True, 0),
    "rounding": ("none", "lower", False, False, 0),
    "max_abs_error": ("value", "lower", True, True, 1),
    "bad_normalisers": ("none", "lower", False, False, 0),
    "unnormalised_rows": ("none", "lower", False, False, 0),
    "effect": ("nats per token, or 1 - cosine", "lower", True, True, 0),
}


def test_metrics_have_the_properties_that_tables_and_figures_rely_on():
    found = {name: (m.unit, m.better, m.log, m.error, m.power) for name, m in METRICS.items()}
    assert found == PROPERTIES


def test_every_metric_is_checked_and_described():
    assert set(BY_HAND) == set(METRICS)
    for metric in METRICS.values():
        assert metric.formula and metric.unit and metric.better in ("lower", "higher")


def test_sums_over_rows_add_up():
    whole = error_sums(OUTPUT, EXACT, NORMALISER)
    parts = [error_sums(OUTPUT[[i]], EXACT[[i]], NORMALISER[[i]]) for i in range(2)]
    assert add(*parts) == whole


def plain_cosines(output, exact):
    """The definition, row by row: 0 where a row has no direction."""
    found = []
    for a, b in zip(output.reshape(-1, output.shape[-1]), exact.reshape(-1, exact.shape[-1]), strict=True):
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        found.append(float(a @ b) / lengths if np.isfinite(lengths) and lengths > 0 else 0.0)
    return np.array(found).reshape(output.shape[:-1])


def tiled(whole, starts, to=lambda a: a):
    """The sums over tiles of rows, added up."""
    ends = [*starts[1:], whole[0].shape[-2]]
    parts = [
        error_sums(*(None if a is None else to(to_column_major(a[..., i:j, :])) for a in whole))
        for i, j in zip(starts, ends, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return total


@pytest.mark.parametrize("to, back", [pytest.param(np.asarray, np.asarray, id="numpy"), *BACKENDS])
def test_sizes_and_draws_in_tiles_agree_with_plain_formulas(rng, to, back):
    """Leading axes of sizes and draws (the exact answer has draws only); a failure and a row of zeros."""
    exact = rng.normal(size=(2, 30, 5))
    output = exact + rng.normal(size=(3, 2, 30, 5)) * np.array([0.01, 1.0, 100.0])[:, None, None, None]
    output[0, 1, 7, 2], output[1, 0, 3], output[2, 1, 4, 0], exact[1, 9] = np.nan, 0.0, np.inf, 0.0
    normaliser, row_sums = rng.normal(size=(3, 2, 30, 1)), 1.0 + 0.01 * rng.normal(size=(3, 2, 30, 1))
    normaliser[0, 0, 2], normaliser[1, 1, 3], normaliser[2, 0, :2] = 0.0, np.inf, np.nan
    row_sums[2, 0, 5] = np.nan
    exact_everywhere = np.broadcast_to(exact, output.shape)
    with np.errstate(invalid="ignore"):
        error = np.abs(output - exact)
        unnormalised = 1.0 - np.mean((row_sums > 0.99) & (row_sums < 1.01), axis=(-2, -1))
    expected = {
        "relative_l1": np.where(np.isnan(error.sum((-2, -1))), np.inf, error.sum((-2, -1)))
        / np.abs(exact).sum((-2, -1)),
        "cosine": plain_cosines(output, exact_everywhere).mean(axis=-1),
        "max_abs_error": np.where(np.isnan(error.max((-2, -1))), np.inf, error.max((-2, -1))),
        "unnormalised_rows": unnormalised,
    }
    for starts in ([0], [0, 1, 12, 29]):
        sums = tiled([output, exact, normaliser, None, row_sums], starts, to).map_arrays(back)
        quotient = tiled([output, exact, normaliser, None, None], starts, to).map_arrays(back)
        found = metrics_of(sums, sums)
        for name, values in expected.items():
            assert_allclose(found[name], values, rtol=1e-13, atol=1e-15, err_msg=name)
        lost = np.array([[1, 0], [0, 1], [2, 0]]) / 30
        assert_allclose(metrics_of(quotient, quotient)["unnormalised_rows"], lost, rtol=1e-15)


@pytest.mark.parametrize(
    "row, cosine",
    [
        ([2.0, 4.0], 1.0), ([-1.0, -2.0], -1.0), ([2.0, -1.0], 0.0), ([1e-150, 2e-150], 1.0), ([1e150, 2e150], 1.0),
        ([0.0, 0.0], 0.0), ([np.nan, 2.0], 0.0), ([np.inf, 2.0], 0.0), ([-np.inf, np.inf], 0.0), ([1e200, 2e200], 0.0),
    ],
)  # fmt: skip
def test_a_row_without_a_direction_has_a_cosine_of_nought(row, cosine):
    """Beside one that is right: of the mean it is a half."""
    exact = np.array([[1.0, 2.0], [3.0, 4.0]])
    sums = error_sums(np.array([row, [3.0, 4.0]]), exact)
    assert METRICS["cosine"].compute(sums, sums) == pytest.approx((1.0 + cosine) / 2, rel=1e-15)
    zeros = error_sums(exact, np.array([[0.0, 0.0], [3.0, 4.0]]))
    assert METRICS["cosine"].compute(zeros, zeros) == 0.5


@pytest.mark.parametrize("error, relative, skill", [(0.0, 0.0, 0.0), (0.5, np.inf, -3.0)])
def test_zeros_are_the_exact_output_of_a_pruned_head(error, relative, skill):
    """Its values are 0, and so is every mean of them; an estimate of anything else is wrong without bound."""
    exact = np.zeros((4, 3))
    sums, uniform = (error_sums(exact + size, exact, double=exact) for size in (error, error / 2))
    found = metrics_of(sums, uniform)
    assert [found[name] for name in ("relative_error", "relative_l1", "rounding")] == 3 * [relative]
    assert found["skill"] == skill
    assert found["mse"] == error**2


def test_a_mean_cosine_is_never_above_one(rng):
    exact = rng.normal(size=(50, 40, 3))
    sums = error_sums(exact * rng.uniform(0.1, 9.0, size=(50, 40, 1)), exact)
    cosine = METRICS["cosine"].compute(sums, sums)
    assert np.all(cosine <= 1.0) and np.all(cosine > 1.0 - 1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_failure_never_looks_small(bad):
    output = OUTPUT.copy()
    output[0, 0] = bad
    sums, uniform = error_sums(output, EXACT, gradients=GRADIENTS), error_sums(UNIFORM, EXACT)
    assert METRICS["mse"].compute(sums, uniform) == np.inf
    assert METRICS["skill"].compute(sums, uniform) == -np.inf
    assert METRICS["max_abs_error"].compute(sums, uniform) == np.inf
    for name in ("relative_l1", "relative_error", "effect"):
        assert METRICS[name].compute(sums, uniform) == np.inf
    failed = error_sums(output, EXACT, double=DOUBLE)
    assert METRICS["rounding"].compute(failed, uniform) == np.inf


@pytest.mark.parametrize("value, bad", [(0.0, 1), (-1.0, 1), (np.nan, 1), (np.inf, 1), (1e-300, 0), (1.0, 0)])
def test_which_normalisers_are_bad(value, bad):
    assert error_sums(EXACT[:1], EXACT[:1], np.array([[value]])).bad_rows == bad


@pytest.mark.parametrize(
    "value, lost", [(0.0, 1), (-0.0, 1), (np.nan, 1), (-np.inf, 1), (-1.0, 0), (1e-300, 0), (2.0, 0)]
)
def test_rows_without_a_normaliser_are_counted(value, lost):
    """Whatever the scale of the normaliser is, and its sign."""
    assert error_sums(EXACT[:1], EXACT[:1], np.array([[value]])).unnormalised_rows == lost
    assert error_sums(EXACT[:1], EXACT[:1]).unnormalised_rows == 0


@pytest.mark.parametrize(
    "total, bad", [(1.0, 0), (1.009, 0), (0.991, 0), (1.011, 1), (0.989, 1), (0.0, 1), (-1.0, 1), (np.nan, 1),
                       (np.inf, 1)],
)  # fmt: skip
def test_which_rows_are_not_normalised(total, bad):
    """By what their weights add up to alone, where nothing divides by that."""
    sums = error_sums(EXACT[:1], EXACT[:1], row_sums=np.array([[total]]))
    assert sums.unnormalised_rows == bad and sums.bad_rows == 0


def test_the_weights_of_best_rank_do_not_add_up_to_one():
    """Those of every quotient do."""
    trials = sweep(small_scenario(num_projections="1,3,24", scale="2"), "run").trials
    lost = trials.set_index(["estimator", "num_projections"])["unnormalised_rows"]
    assert (lost["best-rank"].loc[1] > 0.5).all() and (lost["best-rank"].loc[24] == 0).all()
    assert (lost.drop("best-rank") == 0).all()
