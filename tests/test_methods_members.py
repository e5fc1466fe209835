"""Properties of single methods, besides their definitions (test_methods) and claims (verify)."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.attention.exact import softmax_attention
from favorbench.errors import FavorbenchError, ScenarioError
from favorbench.methods import Shape
from favorbench.methods.hashed import sampling_shares
from favorbench.methods.monarch import blocks_of
from favorbench.methods.shared_cells import near_cells
from favorbench.studies.verify import methods as verify
from tests.command_line import read_table
from tests.test_methods import answers, problem


@pytest.mark.parametrize(
    "spec, message",
    read_table("""
        nystromformer(inverse='newtn') => inverse must be 'newton' or 'pinv', got 'newtn' .did you mean 'newton'
        nystromformer(steps=-1) => steps must be a whole number from 0 to 100, got -1
        nystromformer(inverse='pinv', steps=3) => steps are ignored with inverse='pinv'
        monarch(steps=0) => steps must be a whole number from 1 to 100, got 0
        thinformer(delta=2) => delta must be a positive number, at most 1, got 2
        nystrom(guard='cell') => did you mean 'cells'
        eva(form='release') => did you mean 'released'
        eva(window=1.0) => window
        hyperattention(block=-0.1) => block
        kdeformer(projections=0) => projections
        kdeformer(projections=2.5) => projections
        block-sparse(group=48) => group must divide 64, got 48
        xattention(stride=0) => stride
        spargeattn(similarity=2) => similarity
        pisa(order=2) => order must be a whole number from 0 to 1, got 2
        nothing => sinks
        window(4):hyperattention => no sums over keys
    """),
)
def test_impossible_parameters_are_refused(spec, message):
    with pytest.raises(ScenarioError, match=message):
        fb.get_method(spec)


@pytest.mark.parametrize("spec", ["eva(form='released')", "nystrom", "window(4):wildcat"])
def test_noncausal_members_are_refused_in_causal_attention(spec):
    assert not fb.get_method(spec).causal_safe
    with pytest.raises(FavorbenchError, match="cannot be causal"):
        answers(spec, problem(causal=True), (8,))


@pytest.mark.parametrize("prefix", ["", "sinks(2)", "window(4)", "window(4):sinks(2)"])
def test_a_bound_inside_prefixes_is_a_bound(prefix):
    """So `budget` cost does not limit it."""
    spec = f"{prefix}:top(4):clusters".lstrip(":")
    assert fb.get_method(spec).oracle
    assert not fb.get_method(f"{prefix}:clusters".lstrip(":")).oracle
    results = fb.sweep(
        maps="positive", methods=spec, seq_len=64, head_dim=8, num_projections=[16], trials=1, budget="cost"
    )
    assert spec in set(results.trials["estimator"])


@pytest.mark.parametrize("prefix", ["sinks(4)", "window(6)", "top(3)"])
def test_the_shifts_of_positive_eps_cancel_beside_exact_keys(prefix):
    """Without an eps it is ``positive``."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 40, 8))
    eps, plain = (
        fb.method_attention(query, key, value, f"{prefix}:{spec}", size=32)
        for spec in ("positive-eps(eps=1e-16)", "positive")
    )
    assert_allclose(eps, plain, rtol=1e-7)


def test_a_refusal_in_causal_attention_names_the_parameters():
    """It said "pisa", which can be causal."""
    q, k, v = np.zeros((3, 8, 2))
    with pytest.raises(FavorbenchError, match=r"'pisa\(order=1\)' uses the whole sequence"):
        fb.method_attention(q, k, v, "pisa(order=1)", 4, causal=True)


def test_estimators_that_need_positions_say_so():
    with pytest.raises(FavorbenchError, match="not the same tokens"):
        answers("eva", problem(n=30), (8,))


def test_shares_of_keys_whose_values_are_nothing_are_equal():
    assert_allclose(sampling_shares(np.zeros((7, 3))), np.full(7, 1 / 7), rtol=1e-15)


def test_monarch_has_no_fewer_blocks_than_cost_least():
    """More of them cost more, so `budget` cost finds the largest it can pay."""
    shape, sizes = Shape(512, 512, 32, 32), range(1, 512)
    work = [fb.get_method("monarch").multiplications(shape, size) for size in sizes if 512 % blocks_of(size, 512) == 0]
    assert work == sorted(work) and blocks_of(1, 512) == 23 and blocks_of(64, 512) == 64 and blocks_of(1, 1) == 1


@pytest.mark.parametrize("prefix", ["", "sinks(2):window(9):"])
def test_the_choice_of_a_block_depends_on_keys_up_to_its_end_and_on_no_later_ones(prefix):
    method, changed = fb.get_method(f"{prefix}multipole(block=32, segment=64)"), 0
    assert method.causal_block == 32 and fb.get_method("sinks(2):block-sparse").causal_block == 1
    for seed in range(20):
        query, key, value = np.random.default_rng(seed).normal(size=(3, 192, 4))
        later = key.copy()
        later[168:] = 10.0 * key[168:]  # in the middle of the block of 160 to 191
        before, after = (fb.method_attention(2 * query, k, value, method, 24, causal=True) for k in (key, later))
        assert_allclose(before[:160], after[:160], rtol=1e-12, atol=1e-12)
        changed += np.max(np.abs(before - after)[160:168]) > 1e-6
    assert changed > 0


@pytest.mark.parametrize("spec", ["multipole(block=128)", "multipole(cells='tree')", "clusters"])
def test_causal_claims_are_tested_where_there_are_cells(spec):
    method = fb.get_method(spec)
    for question in filter(lambda question: question.causal, verify._problems(method, 0)):
        output, exact = verify._outputs(method, question, 0, (5,))[0], softmax_attention(question)
        assert np.max(np.abs(output - exact)) > 1e-3


def test_near_cells_are_at_most_twice_as_many_as_hold_the_keys_on_average_and_one():
    """40 cells of 10 keys on average, of which the best hold one each: 10 keys would be 10 of these."""
    scores, counts = -np.arange(40.0), np.where(np.arange(40) < 20, 1, 19)
    assert np.flatnonzero(near_cells(scores, counts, 400, 10)).tolist() == [0, 1, 2]
    assert np.flatnonzero(near_cells(scores, counts, 400, 11)).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(near_cells(scores, counts[::-1], 400, 10)).tolist() == [0]  # half of its keys fit
    assert not np.any(near_cells(scores, counts[::-1], 400, 9))
