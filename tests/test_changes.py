"""Verdicts over families of rows: a false-alarm rate that is stated and held, changes that must be found, ties."""

import math

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

from favorbench.results.changes import BETTER, NO_CHANGE, SAME, SAME_BITS, UNDECIDED, WORSE, Errors, judged
from favorbench.results.compare import close_errors
from favorbench.statistics import log_ratios, median_interval, sign_test

FAMILIES, ROWS, DRAWS, ALPHA, FACTOR = 400, 6, 15, 0.05, 1.05


def never_close(a, b):
    return np.zeros(len(a), bool)


def heavy(rng, *shape):
    """Errors without a mean, every tenth of them a failure."""
    errors = np.abs(rng.standard_cauchy(shape))
    return np.where(rng.random(shape) < 0.1, rng.choice([np.inf, np.nan], shape), errors)


def family(rng, paired, spread, ratio):
    """Rows where the median of new is ``ratio`` times that of old; pairs share their difficulty."""
    rows = []
    for _ in range(ROWS):
        shared = heavy(rng, DRAWS) if paired else 1.0
        old, new = (shared * np.exp(width * rng.standard_normal(DRAWS)) for width in (1.0 / spread, 1.0))
        rows.append(Errors(old, ratio * new, never_close))
    return rows


def alarms(paired, spread, ratio, decide):
    """In how many families any row is called worse."""
    rng = np.random.default_rng(7)
    return sum(any(decide(family(rng, paired, spread, ratio))) for _ in range(FAMILIES))


def by_test(rows):
    return [change.verdict == WORSE for change in judged(rows, FACTOR, ALPHA)]


def by_medians(rows):
    """The naive gate: the median has grown by more than the factor."""
    return [np.median(row.new) > FACTOR * np.median(row.old) for row in rows]


@pytest.mark.parametrize("paired, spread", [(True, 1.0), (False, 1.0), (False, 40.0)])
def test_false_alarms_are_as_rare_as_they_are_said_to_be(paired, spread):
    """At the worst change that is none, new = factor * old in the median, over rows with infinite and NaN errors.

    Each side has half of alpha. The bound is the count that the families exceed with probability 1e-7. spread: of the
    new errors, relative to that of the old ones; a test of ranks over all pairs says 15 % for 5 % there.
    """
    most = scipy.stats.binom.isf(1e-7, FAMILIES, ALPHA / 2)
    assert alarms(paired, spread, FACTOR, by_test) <= most
    assert alarms(paired, spread, FACTOR, by_medians) > most  # the control: the same bound tells the two apart
    assert alarms(paired, spread, 6.0, by_test) > 0.9 * FAMILIES  # and a change of that size is found


def test_both_directions_are_found_and_failures_count_as_infinite():
    old = np.linspace(1.0, 2.0, 15)
    rows = [
        Errors(old, 1.2 * old, never_close), Errors(old, old / 1.2, never_close),
        Errors(old, np.full(15, np.nan), never_close), Errors(np.full(15, np.inf), old, never_close),
    ]  # fmt: skip
    found = judged(rows, FACTOR, ALPHA)
    assert [change.verdict for change in found] == [WORSE, BETTER, WORSE, BETTER]
    assert [change.mark for change in found] == ["+", "-", "+", "-"]
    assert found[2].ratio == math.inf and found[3].ratio == 0.0 and found[2].pairs == 15
    assert found[0].ratio == pytest.approx(1.2) and found[0].low <= 1.2 + 1e-12


def test_no_change_is_said_only_where_the_interval_lies_inside_the_factor():
    rng = np.random.default_rng(3)
    old = rng.lognormal(size=30)
    tight = Errors(old, old * np.exp(0.01 * rng.standard_normal(30)), never_close)
    wide = Errors(old, old * np.exp(rng.standard_normal(30)), never_close)
    few = Errors(old[:4], tight.new[:4], never_close)
    for row, verdict in ((tight, NO_CHANGE), (wide, UNDECIDED), (few, UNDECIDED)):
        (change,) = judged([row], FACTOR, ALPHA)
        assert (change.verdict, change.mark) == (verdict, "~")
        inside = change.low >= 1 / FACTOR and change.high <= FACTOR and change.coverage >= 1 - ALPHA
        assert inside == (verdict == NO_CHANGE)


def test_a_change_below_the_factor_is_flagged_only_without_it():
    old = np.linspace(1.0, 2.0, 15)
    row = Errors(old, 1.03 * old, never_close)
    assert judged([row], 1.05, ALPHA)[0].verdict == NO_CHANGE
    assert judged([row], 1.0, ALPHA)[0].verdict == WORSE


def test_deterministic_functions_are_measured_once():
    """Thirty copies of a change of 2 % are no thirty pieces of evidence; and beyond the factor one is enough."""
    fixed = np.full(30, 0.3)
    for ratio, verdict in ((1.0, SAME_BITS), (1.02, NO_CHANGE), (1.2, WORSE), (0.8, BETTER)):
        (change,) = judged([Errors(fixed, ratio * fixed, never_close)], FACTOR, ALPHA)
        assert change.verdict == verdict and change.p_value == 1.0
    one = Errors(fixed[:1], 1.2 * fixed[:1], never_close)
    for declared, verdict in ((False, UNDECIDED), (True, WORSE)):
        assert judged([one._replace(declared=declared)], FACTOR, ALPHA)[0].verdict == verdict


def test_an_infinite_error_is_not_a_finite_one_but_for_rounding():
    """Their difference is within any share of their sum, as infinity is at most infinity."""
    finite, infinite = np.linspace(0.1, 0.2, 15), np.full(15, np.inf)

    def close(a, b):
        return close_errors(a, b, "mse", 1e-26, "float64")

    for old, new, verdict in ((finite, infinite, WORSE), (infinite, finite, BETTER), (infinite, infinite, SAME_BITS)):
        for count in (15, 2):
            fixed = [np.full(count, side[0]) for side in (old, new)]
            assert judged([Errors(*fixed, close)], FACTOR, ALPHA)[0].verdict == verdict
        assert judged([Errors(old, new, close)], FACTOR, ALPHA)[0].verdict == verdict
    failed = np.where(np.arange(15) == 3, np.nan, finite)
    assert judged([Errors(finite, failed, close)], FACTOR, ALPHA)[0].verdict in (NO_CHANGE, UNDECIDED)


@pytest.mark.parametrize("metric", ["mse", "relative_error", "max_abs_error"])
def test_only_more_than_rounding_is_a_change(metric):
    rng = np.random.default_rng(0)
    roots = 0.1 + rng.random(15)  # errors of an exact answer of size 1
    power = 2 if metric == "mse" else 1
    level = 1e-13**power if metric != "relative_error" else 1e-13

    def close(a, b):
        return close_errors(a, b, metric, level, "float64")

    for off, verdict in ((5e-14, SAME), (1e-11, WORSE)):
        row = Errors(roots**power, (roots + off) ** power, close)
        assert judged([row], 1.0, ALPHA)[0].verdict == verdict
    in_float32 = close_errors(roots**power, (roots + 1e-5) ** power, metric, level, "float32")
    in_half = close_errors(roots**power, (roots + 1e-5) ** power, metric, level, "float16")
    assert in_float32.all() and not in_half.any()


def test_ties_are_no_evidence():
    """Same bits in ten draws and worse in five of fifteen: five signs, p = 1/16; beyond a factor they speak against."""
    old = np.linspace(1.0, 2.0, 15)
    new = np.where(np.arange(15) < 5, 2 * old, old)
    ratios = log_ratios(old, new)
    assert 2 * ratios.p_values()[0] == pytest.approx(sign_test(new - old)) == pytest.approx(2 * 0.5**5)
    assert ratios.p_values(1.05)[0] == 1.0
    ten = np.array([1.0, np.inf, 0.0, np.nan] * 5)
    assert log_ratios(ten, ten).p_values() == (1.0, 1.0)  # both infinite, both 0: equal


def test_log_ratios_are_the_sign_test_and_the_interval_of_the_median(rng):
    old, new = rng.lognormal(size=(2, 17))
    ratios = log_ratios(old, new)
    for factor in (1.0, 1.3):
        above = int(np.sum(new / old > factor))
        wanted = scipy.stats.binom.sf(above - 1, 17, 0.5)
        assert ratios.p_values(factor)[0] == pytest.approx(min(1.0, wanted) if above > 17 / 2 else 1.0)
    low, high, coverage = median_interval(np.log(new / old))
    assert_allclose(ratios.interval(), (np.exp(low), np.exp(high), coverage), rtol=1e-12)
    assert ratios.median == pytest.approx(np.exp(np.median(np.log(new / old))))
