"""The evidence that `recommend` decides by: its formulas, its table, and how often it is wrong."""

import functools
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from benchmarks import splits
from favorbench.studies.recommend.evidence import (
    Rule,
    certified_bound,
    fewest_draws,
    log_evidence_often,
    log_evidence_rarely,
    quantile,
)
from favorbench.studies.recommend.search import MAX_EFFORT

STREAMS = 2000
FALSE_ALARM = 1e-6  # of each of these tests


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("hits, draws", [(0, 0), (1, 1), (0, 3), (5, 7), (40, 43), (170, 200), (12, 60)])
def test_the_closed_form_is_the_integral(p, hits, draws):
    """Gauss-Legendre of 200 nodes is exact for polynomials of degree 399 in t."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    for low, high, found in (
        (p, 1.0, log_evidence_often(hits, draws, p)),
        (0.0, p, log_evidence_rarely(hits, draws, p)),
    ):
        t = low + (high - low) * (nodes + 1) / 2
        ratio = np.exp(hits * np.log(t / p) + (draws - hits) * np.log((1 - t) / (1 - p)))
        assert_allclose(found, np.log(weights @ ratio / 2), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "p, alone, of_36", [(0.5, (7, 5), (13, 10)), (0.9, (43, 29), (83, 63)), (0.95, (88, 59), (171, 129))]
)
def test_draws_that_certify_if_all_hit(p, alone, of_36):
    """Beside a test with a number of draws that is fixed before: p^n <= alpha."""
    for (anytime, fixed), alpha in ((alone, 0.05), (of_36, 0.05 / 36)):
        assert fewest_draws(p, alpha) == anytime
        assert math.ceil(math.log(alpha) / math.log(p)) == fixed
        rule = Rule(0.1, p, alpha)
        assert rule.verdict(anytime, anytime) == "certified" and rule.verdict(anytime - 1, anytime - 1) == "open"


def most_false(rate):
    """As many of STREAMS as chance explains where each is wrong with this probability."""
    return int(stats.binom.isf(FALSE_ALARM, STREAMS, rate))


def errors_at(p, shape, rng):
    """Heavy tails, infinities and NaN, with P(error <= 0.1) = p exactly."""
    hit = rng.random(shape) < p
    misses = np.choose(rng.integers(0, 3, shape), [0.1 + rng.pareto(0.5, shape) + 1e-9, np.inf, np.nan])
    return np.where(hit, 0.1 * rng.random(shape), misses)


@functools.cache
def evidence_table(log_evidence, p, most):
    """Log evidence of 0 to ``most`` hits (rows) in 0 to ``most`` draws (columns)."""
    count = np.arange(most + 1)
    return log_evidence(np.minimum(count[:, None], count), count, p)


def ever(hit, log_evidence, p, alpha):
    """Whether the evidence of each stream (last axis) is enough after any of its draws."""
    most = hit.shape[-1]
    enough = evidence_table(log_evidence, p, most) >= -math.log(alpha)
    return np.any(enough[np.cumsum(hit, axis=-1), np.arange(1, most + 1)], axis=-1)


def naive(errors, rule):
    """The rule without a test: 15 draws, and the share of hits is at least the requested one."""
    return np.mean(errors[..., :15] <= rule.target, axis=-1) >= rule.probability


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("candidates", [1, 8, *(pytest.param(count, marks=pytest.mark.slow) for count in (40, 60))])
def test_no_more_is_certified_by_chance_than_confidence_allows(p, candidates):
    """At a hit rate of exactly p, the largest that is not to be certified; looked at after each of 400 draws."""
    rng, wrong, naively = np.random.default_rng(7), 0, 0
    rule = Rule(0.1, p, 0.05 / candidates)
    for _ in range(STREAMS // 100):
        errors = errors_at(p, (100, candidates, 400), rng)
        wrong += int(np.any(ever(errors <= rule.target, log_evidence_often, p, rule.alpha), axis=-1).sum())
        naively += int(np.any(naive(errors, rule), axis=-1).sum())
    assert wrong <= most_false(0.05)
    assert naively > most_false(0.05)  # the control: the same bound refutes it


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_no_more_is_dropped_by_chance_than_confidence_allows(p):
    at_p, below = (np.random.default_rng(8).random((STREAMS, 400)) < rate for rate in (p, p - 0.15))
    assert ever(at_p, log_evidence_rarely, p, 0.05).sum() <= most_false(0.05)
    assert np.mean(ever(below, log_evidence_rarely, p, 0.05)) > 0.9  # the control: it has power


def test_the_bound_is_below_the_quantile_no_more_often_than_allowed():
    """At every number of draws, for heavy tails; the plain sample quantile is, about every second time."""
    rng, p = np.random.default_rng(3), 0.9
    errors = rng.pareto(0.5, (STREAMS // 4, 120))
    true = (1 - p) ** (-1 / 0.5) - 1
    below = [any(certified_bound(row[:n], p, 0.05) < true for n in range(40, 121, 5)) for row in errors]
    assert sum(below) <= stats.binom.isf(FALSE_ALARM, len(below), 0.05)
    plain = [quantile(row, p) < true for row in errors]
    assert sum(plain) > stats.binom.isf(FALSE_ALARM, len(plain), 0.05)


def test_the_bound_agrees_with_the_verdict():
    errors = np.random.default_rng(0).exponential(size=200)
    bound = certified_bound(errors, 0.8, 0.01)
    for target, expected in ((bound, "certified"), (np.nextafter(bound, 0), "open")):
        assert Rule(target, 0.8, 0.01).verdict(int((errors <= target).sum()), 200) == expected
    assert certified_bound(errors[:5], 0.8, 0.01) == math.inf
    failed = np.where(np.arange(200) < 60, np.nan, errors)
    assert certified_bound(failed, 0.8, 0.01) == math.inf


def test_the_sample_quantile_counts_failures_as_infinite():
    assert quantile(np.array([3.0, 1.0, 2.0, np.nan]), 0.5) == 2.0
    assert quantile(np.array([3.0, 1.0, 2.0, np.nan]), 0.9) == math.inf
    assert quantile(np.arange(1.0, 11.0), 0.9) == 9.0


def test_certificates_of_half_of_real_texts_rarely_fail_on_the_other_half():
    """Effects on MiniLM, 1,000 halves of each kind. The control, a rule without a margin, fails much more often."""
    found = splits.table(pd.read_csv(splits.SAVED))
    assert (found["false"] <= 0.05).all()
    assert (found["control"] > 0.05).all()


def test_how_often_a_good_candidate_is_passed_over():
    """By all paths of hits and misses; the patience of a search had no number in any document."""
    page = (Path(__file__).parents[1] / "docs/own-model.md").read_text(encoding="utf-8")
    found = re.search(
        r"98 % of draws at most ([\d.]+) % are passed over, at 97 % (\d+) to (\d+) %, at 95 % (\d+) to (\d+) %", page
    )
    for rate, *said in ((0.98, "0", found[1]), (0.97, found[2], found[3]), (0.95, found[4], found[5])):
        shares = [100 * passed_over(Rule(0.1, 0.9, 0.05 / count), rate) for count in (1, 40, 720)]
        assert float(said[0]) <= min(shares) < float(said[0]) + 1 and float(said[1]) - 1 < max(shares) <= float(said[1])


def passed_over(rule, rate):
    """The probability that a candidate of this hit rate is not certified."""
    still, certified = {0: 1.0}, 0.0
    for draws in range(1, MAX_EFFORT * rule.fewest_draws() + 1):
        after = Counter()
        for hits, share in still.items():
            after.update({hits: share * (1 - rate), hits + 1: share * rate})
        certified += sum(share for hits, share in after.items() if rule.verdict(hits, draws) == "certified")
        still = {hits: share for hits, share in after.items() if rule.verdict(hits, draws) == "open"}
    return 1 - certified
