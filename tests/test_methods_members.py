"""What is special about single methods, beside their definitions (test_methods) and claims (verify)."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import favorbench as fb
from favorbench.errors import FavorbenchError, ScenarioError
from favorbench.methods import Shape
from favorbench.methods.hashed import sampling_shares
from favorbench.methods.monarch import blocks_of
from favorbench.methods.segments import Segments, segment_bounds, segment_means
from tests.command_line import read_table
from tests.definitions import Weights, attention_of, hashed, member
from tests.test_methods import answers, problem


@pytest.mark.parametrize("length, count", [(12, 4), (13, 4), (15, 4), (5, 5), (240, 7), (5, 1)])
def test_segments_are_in_a_row_and_as_equal_as_can_be(rng, length, count):
    sizes, tokens = np.diff(segment_bounds(length, count)), rng.normal(size=(2, length, 3))
    assert np.sum(sizes) == length and np.ptp(sizes) <= 1 and list(sizes) == sorted(sizes)
    expected = [np.mean(part, axis=1) for part in np.split(tokens, np.cumsum(sizes)[:-1], axis=1)]
    assert_allclose(segment_means(tokens, count), np.stack(expected, axis=1), rtol=1e-13, atol=1e-15)
    parts = Segments.of(length, count)
    assert_array_equal(parts.places[~parts.padding], np.arange(length))
    assert np.ptp(np.sum(~parts.padding, axis=-1)) <= 1


@pytest.mark.parametrize(
    "spec, message",
    read_table("""
        nystromformer(inverse='newtn') => inverse must be 'newton' or 'pinv', got 'newtn' .did you mean 'newton'
        nystromformer(steps=-1) => steps must be a whole number from 0 to 100, got -1
        nystromformer(inverse='pinv', steps=3) => steps play no part with inverse='pinv'
        monarch(steps=0) => steps must be a whole number from 1 to 100, got 0
        thinformer(delta=2) => delta must be a positive number, at most 1, got 2
        nystrom(guard='cell') => did you mean 'cells'
        eva(form='release') => did you mean 'released'
        eva(window=1.0) => window
        hyperattention(block=-0.1) => block
        kdeformer(projections=0) => projections
        kdeformer(projections=2.5) => projections
        window(4):hyperattention => no sums over keys
    """),
)
def test_impossible_parameters_are_refused(spec, message):
    with pytest.raises(ScenarioError, match=message):
        fb.get_method(spec)


@pytest.mark.parametrize("spec", ["eva(form='released')", "nystrom", "window(4):wildcat"])
def test_what_cannot_be_causal_says_so(spec):
    assert not fb.get_method(spec).causal_safe
    with pytest.raises(FavorbenchError, match="cannot be causal"):
        answers(spec, problem(causal=True), (8,))


def test_what_needs_positions_says_so():
    with pytest.raises(FavorbenchError, match="not the same tokens"):
        answers("eva", problem(n=30), (8,))


def test_a_guard_is_certain_of_what_it_refuses(rng):
    """Far from the keys Nystrom's normalisers are wrong by any factor; guarded, no output leaves the values."""
    question = problem(n=200, length=200, d=8)
    question = question._replace(query=3.0 * rng.normal(size=(200, 8)), key=0.7 * rng.normal(size=(200, 8)) + 1.0)
    exact = Weights.of(question.query @ question.key.T).attention().matrix @ question.value
    uniform = np.mean((np.mean(question.value, axis=0) - exact) ** 2)
    low, high = np.min(question.value, axis=0) - 1e-5, np.max(question.value, axis=0) + 1e-5
    errors = []
    for spec in ("nystrom", "nystrom(guard='cells')", "clusters"):
        (answer,) = answers(spec, question, (30,))
        errors.append(np.mean((answer.output - exact) ** 2) / uniform)
        assert spec == "nystrom" or np.all((answer.output >= low) & (answer.output <= high))
    assert errors[0] > 10 and errors[1] < 1.2 and errors[2] < 1.2, errors


def test_a_guard_leaves_good_queries_alone():
    plain, guarded = (answers(spec, problem(n=100, length=100, d=4, norm=0.3), (60,))[0]
                      for spec in ("nystrom", "nystrom(guard='cells')"))  # fmt: skip
    assert np.sum(np.all(plain.output == guarded.output, axis=-1)) > 80 and plain.num_features == guarded.num_features


@pytest.mark.parametrize("spec", ["hyperattention(block=0.3)", "kdeformer(block=0.3)"])
def test_hashed_kernels_have_the_exact_mean(spec):
    """Over draws of the sample and the hash; the control: without the keys' weights they have another."""
    question = problem(n=24, length=24, d=3, norm=0.6)
    exact = np.exp(question.query @ question.key.T)
    kernels = np.array(
        [np.exp(hashed(member(spec), question, 10, np.random.default_rng(seed)).log) for seed in range(2000)]
    )
    right = exact @ np.c_[question.value, np.ones(24)]
    for found, is_right in ((kernels, True), (np.where(kernels > 0, exact, 0.0), False)):
        sums = found @ np.c_[question.value, np.ones(24)]
        z = np.abs(np.mean(sums, axis=0) - right) / (np.std(sums, axis=0) / np.sqrt(2000))
        assert (np.max(z) < 5) == is_right


def test_shares_of_keys_whose_values_are_nothing_are_equal():
    assert_allclose(sampling_shares(np.zeros((7, 3))), np.full(7, 1 / 7), rtol=1e-15)


def objective(matrix, logits):
    """Sum of A (logits - log A): what softmax maximises among matrices with rows that sum to 1."""
    return float(np.sum(matrix * (logits - np.log(np.where(matrix > 0, matrix, 1.0)))))


@pytest.mark.parametrize("count", [7, 13, 48])
def test_the_objective_of_monarch_never_falls_and_softmax_is_above_it(count):
    """Through the definition, which test_methods holds the code to."""
    question = problem(n=48, length=48)
    logits, values = question.query @ question.key.T, []
    for steps in (1, 2, 3, 5, 9):
        method = fb.get_method(f"monarch(steps={steps})")
        values.append(objective(attention_of(method, question, count, np.random.default_rng(0)).matrix, logits))
    best = objective(Weights.of(logits).attention().matrix, logits)
    assert (np.diff(values) >= -1e-9).all() and values[-1] <= best + 1e-9
    assert (values[-1] > values[0] + 1e-3 and values[-1] < best - 1e-3) == (count < 48)  # at 48 it is softmax


def test_monarch_has_no_fewer_blocks_than_cost_least():
    """More of them cost more, so `budget` cost finds the largest it can pay."""
    shape, sizes = Shape(512, 512, 32, 32), range(1, 512)
    work = [fb.get_method("monarch").multiplications(shape, size) for size in sizes if 512 % blocks_of(size, 512) == 0]
    assert work == sorted(work) and blocks_of(1, 512) == 23 and blocks_of(64, 512) == 64 and blocks_of(1, 1) == 1
