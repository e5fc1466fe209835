"""Rankings: letters stand for differences, and what does not differ is not told apart."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from favorbench.results.ranking import letters, rankings
from favorbench.results.summary import rows_of
from favorbench.run import sweep
from favorbench.statistics import sign_test
from tests.conftest import small_scenario

PAIRS = list(itertools.combinations(range(6), 2))


@given(st.sets(st.sampled_from(PAIRS)))
def test_a_shared_letter_is_no_difference_and_nothing_else(different):
    found = letters(6, sorted(different))
    for i, j in PAIRS:
        assert bool(set(found[i]) & set(found[j])) == ((i, j) not in different)


def test_letters_of_a_chain():
    """1 and 2, and 2 and 3, cannot be told apart, 1 and 3 can."""
    assert letters(3, [(0, 2)]) == ["a", "ab", "b"]
    assert letters(2, []) == ["a", "a"]


@pytest.mark.parametrize("metric", ["mse", "skill"])
def test_a_ranking_is_in_order_and_its_letters_follow_from_the_draws(metric):
    results = sweep(small_scenario(trials=20, num_projections="8,64", baselines="uniform,taylor-2"), "run")
    (ranking,) = rankings(results, metric)
    values = [row.median for row in ranking.rows]
    assert values == sorted(values, reverse=metric == "skill") and ranking.draws == 20
    assert {(row.map, row.sampler) for row in ranking.rows} == {
        ("uniform", None), ("taylor-2", None), *itertools.product(("positive", "trig"), ("iid", "orthogonal"))
    }  # fmt: skip
    assert {row.num_features for row in ranking.rows if row.map == "trig"} == {128}
    for row in ranking.rows:
        assert row.low <= row.median <= row.high
    trials = results.trials[results.trials["num_projections"].fillna(64) == 64].set_index("draw")
    for a, b in itertools.combinations(ranking.rows, 2):
        differences = rows_of(trials, a.map, a.sampler)["mse"] - rows_of(trials, b.map, b.sampler)["mse"]
        p = sign_test(differences.to_numpy())
        if set(a.groups) & set(b.groups):
            assert p > 0.05 / len(list(itertools.combinations(ranking.rows, 2)))
        else:
            assert p <= 0.05
    assert not set(ranking.rows[0].groups) & set(ranking.rows[-1].groups)
