"""Nystromformer, MonarchAttention, LARA and Thinformer: each against its formulas, written plainly and in full."""

import importlib.util
import itertools
import math

import array_api_strict
import numpy as np
import pytest

from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, AttentionProblem, Shape, get_method
from favorbench.methods.lara import Lara, LaraSummary
from favorbench.methods.monarch import Blocks, Monarch, blocks_of, monarch_factors
from favorbench.methods.nystromformer import Nystromformer
from favorbench.methods.segments import segment_bounds, segment_means
from favorbench.methods.summaries import Queries, Tokens
from favorbench.methods.thinformer import Thinformer, halved, rounds_of
from favorbench.numerics.backend import from_torch, to_torch
from favorbench.numerics.streams import Streams

MEMBERS = (Nystromformer, Monarch, Lara, Thinformer)
SPECS = ["nystromformer", "nystromformer(inverse='pinv')", "monarch", "monarch(steps=3)", "lara", "thinformer"]
TORCH = importlib.util.find_spec("torch") is not None
BACKENDS = [pytest.param(array_api_strict.asarray, np.asarray, id="strict")]
if TORCH:
    BACKENDS.append(pytest.param(to_torch, from_torch, id="torch"))


def problem(rng, n=48, length=48, d=6, d_v=5, norm=1.0):
    """Queries and keys, scaled, and values."""
    return norm * rng.normal(size=(n, d)), norm * rng.normal(size=(length, d)), rng.normal(size=(length, d_v))


def ask(spec, question, sizes, seed=0):
    question = AttentionProblem(*question) if isinstance(question, tuple) else question
    return list(get_method(spec).estimates(question, sizes, Streams.of(np.random.default_rng(seed))))


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def exact(query, key, value):
    return softmax(query @ key.T) @ value


def test_they_are_registered():
    assert set(MEMBERS) <= set(METHODS)
    looks = [(m.look.get("color"), str(m.look.get("linestyle")), m.look.get("marker")) for m in METHODS]
    assert len(set(looks)) == len(looks)


# segments


@pytest.mark.parametrize(("length", "count"), [(12, 4), (13, 4), (15, 4), (5, 5), (240, 7), (3, 7)])
def test_segments_are_in_a_row_and_as_equal_as_can_be(rng, length, count):
    bounds, tokens = segment_bounds(length, count), rng.normal(size=(2, length, 3))
    sizes = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == length and len(sizes) == count
    assert set(sizes) <= {length // count, length // count + 1} and list(sizes) == sorted(sizes)
    means = segment_means(tokens, count)
    if count <= length:
        expected = [tokens[:, a:b].mean(axis=1) for a, b in itertools.pairwise(bounds)]
        np.testing.assert_allclose(means, np.stack(expected, axis=1), rtol=1e-13, atol=1e-15)
    else:
        assert means.shape == (2, count, 3) and {tuple(r) for r in means[0]} == {tuple(r) for r in tokens[0]}


# all of them


@pytest.mark.parametrize("spec", [*SPECS, "sinks(n=3):lara", "window(w=5):lara", "sinks(n=3):thinformer"])
def test_weights_are_nonnegative_and_sum_to_one_where_that_is_claimed(rng, spec):
    """The weights are the answer to the unit vectors as values."""
    query, key, _ = problem(rng)
    question = AttentionProblem(query, key, np.eye(48), np.arange(48))
    for answer in ask(spec, question, (5, 12, 24)):
        sums = np.sum(answer.output, axis=-1, keepdims=True)
        if get_method(spec).convex:
            assert answer.output.min() >= 0.0
            np.testing.assert_allclose(sums, 1.0, rtol=1e-12)
        else:
            assert answer.row_sums is not None
            np.testing.assert_allclose(answer.row_sums, sums, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS)
def test_at_full_size_they_are_exact_where_they_claim_it_and_only_there(rng, spec):
    question = problem(rng)
    (answer,) = ask(spec, question, (48,))
    error = np.abs(answer.output - exact(*question)).max()
    assert (error < 1e-12) == get_method(spec).exact_at_full_size
    (smaller,) = ask(spec, question, (47,))
    assert np.abs(smaller.output - exact(*question)).max() > 1e-4


@pytest.mark.parametrize("spec", SPECS)
def test_the_order_of_the_keys_matters_as_they_say(rng, spec):
    query, key, value = problem(rng)
    order = rng.permutation(48)
    (one,), (other,) = ask(spec, (query, key, value), (8,)), ask(spec, (query, key[order], value[order]), (8,))
    assert not get_method(spec).permutation_invariant and np.abs(one.output - other.output).max() > 1e-3


@pytest.mark.parametrize("spec", SPECS)
def test_draws_depend_on_the_seed_as_they_say_and_a_size_on_no_other(rng, spec):
    question = problem(rng)
    first, again, other = (ask(spec, question, (4, 10, 20), seed)[1].output for seed in (1, 1, 2))
    (alone,) = ask(spec, question, (10,), 1)
    np.testing.assert_array_equal(first, again)
    assert bool(np.any(first != other)) == get_method(spec).random
    if spec != "lara":  # whose noise is drawn for the largest size: the same numbers, all the same
        np.testing.assert_array_equal(first, alone.output)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("n", "length"), [(7, 48), (60, 48), (1, 9), (48, 47)])
def test_there_may_be_more_or_fewer_queries_than_keys(rng, spec, n, length):
    question = problem(rng, n=n, length=length)
    for answer in ask(spec, question, (1, 4, 9)):
        assert answer.output.shape == (n, 5) and np.isfinite(answer.output).all()


@pytest.mark.parametrize("spec", SPECS)
def test_draws_may_be_computed_together(rng, spec):
    problems = [problem(rng) for _ in range(3)]
    stacked = AttentionProblem(*(np.stack(arrays) for arrays in zip(*problems, strict=True)))
    streams = Streams([np.random.default_rng(i) for i in range(3)], np.stack)
    together = list(get_method(spec).estimates(stacked, (7, 16), streams))
    for i, alone in enumerate(problems):
        for all_of_them, one in zip(together, ask(spec, alone, (7, 16), i), strict=True):
            np.testing.assert_allclose(all_of_them.output[i], one.output, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("to", "back"), BACKENDS)
def test_other_libraries_agree_with_numpy(rng, spec, to, back):
    question = problem(rng)
    streams = Streams((np.random.default_rng(0),), lambda hosts: to(hosts[0]))
    found = get_method(spec).estimates(AttentionProblem(*map(to, question)), (7, 16, 48), streams)
    for there, here in zip(found, ask(spec, question, (7, 16, 48)), strict=True):
        np.testing.assert_allclose(back(there.output), here.output, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
def test_float32_agrees_to_its_rounding(rng, spec):
    question = tuple(a.astype(np.float32) for a in problem(rng, norm=0.7))
    doubles = tuple(a.astype(np.float64) for a in question)
    for single, double in zip(ask(spec, question, (6, 16)), ask(spec, doubles, (6, 16)), strict=True):
        assert single.output.dtype == np.float32
        tolerance = 2e-2 if "pinv" in spec else 1e-4  # of a matrix whose condition number is in the thousands
        np.testing.assert_allclose(single.output, double.output, atol=tolerance * np.abs(double.output).max())


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_logits_are_no_difficulty(rng, spec, dtype):
    query, key, value = problem(rng)
    factor = math.sqrt(500 / np.abs(query @ key.T).max())
    question = tuple(a.astype(dtype) for a in (factor * query, factor * key, value))
    for answer in ask(spec, question, (5, 16, 48)):
        assert np.isfinite(answer.output).all()
        if get_method(spec).convex:
            assert (answer.output >= value.min(axis=0) - 1e-5).all()
            assert (answer.output <= value.max(axis=0) + 1e-5).all()


@pytest.mark.parametrize(
    "spec", ["nystromformer", "nystromformer(steps=2)", "monarch", "monarch(steps=3)", "lara", "thinformer"]
)
@pytest.mark.parametrize(("n", "length", "size"), [(64, 64, 16), (32, 96, 24), (64, 64, 9), (96, 96, 96)])
def test_the_cost_is_that_of_the_matrix_products(rng, monkeypatch, spec, n, length, size):
    """But for the column of ones beside the values."""
    counted, product = [], array_api_strict._array_object.Array.__matmul__

    def counting(left, right):
        found = product(left, right)
        counted.append(math.prod(found.shape) * left.shape[-1])
        return found

    monkeypatch.setattr(array_api_strict._array_object.Array, "__matmul__", counting)
    question = AttentionProblem(*map(array_api_strict.asarray, problem(rng, n, length, 16, 64)))
    streams = Streams((np.random.default_rng(0),), lambda hosts: array_api_strict.asarray(hosts[0]))
    list(get_method(spec).estimates(question, (size,), streams))
    stated = get_method(spec).multiplications(Shape(n, length, 16, 64), size)
    assert stated <= sum(counted) <= 1.02 * stated


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nystromformer(inverse='newtn')", "inverse must be 'newton' or 'pinv', got 'newtn' .did you mean 'newton'"),
        ("nystromformer(steps=-1)", "steps must be a whole number from 0 to 100, got -1"),
        ("nystromformer(inverse='pinv', steps=3)", "steps play no part with inverse='pinv'"),
        ("monarch(steps=0)", "steps must be a whole number from 1 to 100, got 0"),
        ("thinformer(delta=2)", "delta must be a positive number, at most 1, got 2"),
    ],
)
def test_impossible_parameters_are_refused(spec, message):
    with pytest.raises(ScenarioError, match=message):
        get_method(spec)


# Nystromformer


def test_the_weights_of_nystromformer_sum_to_one_with_a_true_inverse_only(rng):
    """A 1 = 1, so A^-1 1 = 1."""
    question = problem(rng)
    (pinv,), (steps,) = (ask(f"nystromformer({a})", question, (8,)) for a in ("inverse='pinv'", "steps=3"))
    assert np.abs(pinv.row_sums - 1).max() < 1e-9 and np.abs(steps.row_sums - 1).max() > 1e-2


@pytest.mark.parametrize("size", [4, 12, 17, 47])
def test_nystromformer_is_its_formula(rng, size):
    query, key, value = problem(rng)
    parts = [np.stack([a.mean(axis=0) for a in np.split(x, segment_bounds(48, size)[1:-1])]) for x in (query, key)]
    left, middle, right = softmax(query @ parts[1].T), softmax(parts[0] @ parts[1].T), softmax(parts[0] @ key.T)
    (pinv,) = ask("nystromformer(inverse='pinv')", (query, key, value), (size,))
    expected = left @ np.linalg.pinv(middle, rcond=size * np.finfo(float).eps) @ right @ value
    np.testing.assert_allclose(pinv.output, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    found = middle.T / middle.sum(axis=0).max()
    for _ in range(6):
        product, one = middle @ found, np.eye(size)
        found = found @ (13 * one - product @ (15 * one - product @ (7 * one - product))) / 4
    (newton,) = ask("nystromformer", (query, key, value), (size,))
    np.testing.assert_allclose(newton.output, left @ found @ right @ value, rtol=1e-9, atol=1e-12)


def test_the_steps_of_nystromformer_converge_to_the_inverse(rng):
    question = problem(rng, norm=1.5)
    (pinv,) = ask("nystromformer(inverse='pinv')", question, (6,))
    errors = [
        np.abs(ask(f"nystromformer(steps={s})", question, (6,))[0].output - pinv.output).max() for s in (2, 6, 30)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-8


def test_nystromformer_agrees_with_the_one_of_transformers(rng):
    """With the identity for what is trained, at its own layout: m divides l."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    from transformers import NystromformerConfig

    config = NystromformerConfig(hidden_size=8, num_attention_heads=1, num_landmarks=12, segment_means_seq_len=48)
    layer = module.NystromformerSelfAttention(config).double().eval()
    layer.conv_kernel_size = None
    x = rng.normal(size=(48, 8))
    with torch.no_grad():
        for part in (layer.query, layer.key, layer.value):
            part.weight.copy_(torch.eye(8))
            part.bias.zero_()
        expected = layer(torch.asarray(x)[None])[0][0].numpy()
    scaled = x * 8**-0.25
    (found,) = ask("nystromformer", (scaled, scaled, x), (12,))
    np.testing.assert_allclose(found.output, expected, rtol=1e-9, atol=1e-11)


# MonarchAttention


def dense_monarch(log_left, log_right, length):
    """The attention matrix, entry by entry: queries r, j and keys c, i in blocks of segment_bounds."""
    left, right = np.exp(log_left), np.exp(log_right)
    count, bounds = right.shape[0], segment_bounds(length, right.shape[0])
    matrix = np.zeros((length, length))
    for r in range(count):
        for j in range(bounds[r + 1] - bounds[r]):
            for c in range(count):
                for i in range(bounds[c + 1] - bounds[c]):
                    matrix[bounds[r] + j, bounds[c] + i] = left[j, r, c] * right[c, j, i]
    return matrix


def objective(matrix, logits):
    """Sum of A (logits - log A): what softmax maximises among matrices with rows that sum to 1."""
    log = np.log(np.where(matrix > 0, matrix, 1.0))
    return float(np.sum(matrix * (logits - log)))


@pytest.mark.parametrize("count", [1, 4, 7, 13, 48])
def test_the_objective_of_monarch_never_falls_and_softmax_is_above_it(rng, count):
    query, key, value = problem(rng)
    logits, values = query @ key.T, []
    for steps in (1, 2, 3, 5, 9):
        matrix = dense_monarch(*monarch_factors(query, key, count, steps), 48)
        np.testing.assert_allclose(matrix.sum(axis=-1), 1.0, rtol=1e-12)
        values.append(objective(matrix, logits))
        if blocks_of(count, 48) == count:
            (answer,) = ask(f"monarch(steps={steps})", (query, key, value), (count,))
            np.testing.assert_allclose(answer.output, matrix @ value, rtol=1e-10, atol=1e-12)
    best = objective(softmax(logits), logits)
    assert (np.diff(values) >= -1e-9).all() and values[-1] <= best + 1e-9
    if count in (1, 48):  # any matrix is a Monarch matrix
        np.testing.assert_allclose(values, best, rtol=1e-12)
    else:
        assert values[-1] > values[0] + 1e-3 and values[-1] < best - 1e-3


def test_the_last_factor_of_monarch_is_the_best_one(rng):
    """Beside the other factor no L is better, and where the steps have converged no R is; the control: before, some R
    is."""
    query, key, _ = problem(rng)
    logits = query @ key.T

    def gains(log_left, log_right, side):
        here = objective(dense_monarch(log_left, log_right, 48), logits)
        found = []
        for _ in range(40):
            log = (log_left, log_right)[side]
            moved = log + 1e-3 * rng.normal(size=log.shape)
            moved = moved - np.log(np.sum(np.exp(moved), axis=-1, keepdims=True))
            pair = (moved, log_right) if side == 0 else (log_left, moved)
            found.append(objective(dense_monarch(*pair, 48), logits) - here)
        return np.array(found)

    assert (gains(*monarch_factors(query, key, 8, 1), 0) < 0).all()
    assert (gains(*monarch_factors(query, key, 8, 1), 1) > 0).any()
    assert (gains(*monarch_factors(query, key, 8, 3000), 1) < 0).all()


def test_monarch_has_no_fewer_blocks_than_cost_least():
    """More of them cost more, so `budget` cost finds the largest it can pay."""
    shape, sizes = Shape(512, 512, 32, 32), range(1, 512)
    work = [Monarch().multiplications(shape, size) for size in sizes if 512 % blocks_of(size, 512) == 0]
    assert work == sorted(work) and blocks_of(1, 512) == 23 and blocks_of(64, 512) == 64 and blocks_of(1, 1) == 1


def test_blocks_come_back_as_they_were(rng):
    rows = rng.normal(size=(2, 23, 3))
    for count in (1, 4, 23, 30):
        blocks = Blocks.of(rows, count)
        np.testing.assert_array_equal(blocks.unfolded(blocks.rows), rows)


# LARA


def test_lara_is_its_formula(rng):
    query, key, value = problem(rng, norm=0.6)
    noise = np.random.default_rng(3).normal(size=(9, 6))
    (answer,) = ask("lara", (query, key, value), (9,), seed=3)
    bounds = segment_bounds(48, 9)
    mean = np.stack([query[a:b].mean(0) + key[a:b].mean(0) for a, b in itertools.pairwise(bounds)])
    kernel = np.zeros((48, 48))
    for w in mean + noise:
        of_query, of_key, density = (np.exp(x @ w - np.sum(x * x, axis=-1) / 2) for x in (query, key, mean))
        kernel += np.outer(of_query, of_key) / density.sum()
    np.testing.assert_allclose(answer.output, kernel @ value / kernel.sum(axis=-1, keepdims=True), rtol=1e-9)
    summary = LaraSummary.of(Tokens(key, value), mean + noise, mean)
    part = summary.kernel(Queries(query, None), slice(5, 20))
    assert part.values is not None
    np.testing.assert_allclose(part.values * np.exp(part.log_scale), kernel[:, 5:20], rtol=1e-9)


@pytest.mark.parametrize(("scale", "unbiased"), [(1.0, True), (6**-0.25, False)], ids=["the paper's", "the code's"])
def test_the_kernel_of_lara_is_unbiased_under_the_law_of_the_paper(rng, scale, unbiased):
    """z scores of 600 means over 8,000 draws; the control is the law that the released code draws from."""
    query, key, value = problem(rng, n=20, length=30, norm=0.35)
    tokens, draws = Tokens(key, value), []
    mean = segment_means(query, 5) + segment_means(key, 5)
    for _ in range(8000):
        summary = LaraSummary.of(tokens, mean + scale * rng.normal(size=mean.shape), mean)
        kernel = summary.kernel(Queries(query, None), slice(0, 30))
        draws.append(kernel.values * np.exp(kernel.log_scale))
    z = (np.mean(draws, axis=0) - np.exp(query @ key.T)) / (np.std(draws, axis=0) / math.sqrt(len(draws)))
    limit = 6.3  # 600 normals exceed it with probability 2e-7
    assert (np.abs(z).max() < limit) == unbiased


# Thinformer


def plain_halving(kernel, uniform, log_factor):
    """Whether the first of each pair is kept, from sums over all keys of the bucket, with signs."""
    signs, kept, largest = np.zeros(len(kernel)), [], 0.0
    for i, u in enumerate(uniform):
        f = np.zeros(len(kernel))
        f[2 * i], f[2 * i + 1] = 1.0, -1.0
        norm = math.sqrt(f @ kernel @ f)
        largest = max(largest, norm)
        kept.append(u > 0.5 + 0.5 * (signs @ kernel @ f) / (norm * largest * log_factor))
        signs += f if kept[-1] else -f
    return np.array(kept)


def kernel_of(key, value, bound):
    return np.exp(key @ key.T) * (value @ value.T + bound)


@pytest.mark.parametrize("size", [3, 6, 10, 16, 24, 48])
def test_thinformer_is_its_formula(rng, size):
    query, key, value = problem(rng, length=50)
    (answer,) = ask("thinformer", (query, key, value), (size,), seed=5)
    choices, flips = np.random.default_rng(5).random((2, 50))
    rounds, used, turned = rounds_of(50, size), 0, 0
    total = size * 2 ** len(rounds)
    index = np.array([i * 50 // total for i in range(total)])
    for buckets, width in rounds:
        left = []
        for bucket in index.reshape(buckets, width):
            kernel = kernel_of(key[bucket], value[bucket], np.abs(value).max() ** 2)
            factor = 0.5 + math.log(2 * width * len(rounds) * buckets / 0.5)
            first = plain_halving(kernel, choices[used : used + width // 2], factor) ^ (flips[turned] < 0.5)
            used, turned = used + width // 2, turned + 1
            left += list(np.where(first, bucket[::2], bucket[1::2]))
        index = np.array(left)
    assert len(set(index)) == size and used <= 50 and turned <= 50
    np.testing.assert_allclose(answer.output, exact(query, key[index], value[index]), rtol=1e-9)


@pytest.mark.parametrize(
    ("length", "size", "expected"),
    [
        (256, 16, [(64, 4), (16, 8), (4, 16), (1, 32)]),  # as released with g = 0: 2^g sqrt(l) keys, 4^(g + 1) at first
        (256, 32, [(16, 16), (4, 32), (1, 64)]),
        (512, 240, [(1, 480)]),
        (100, 25, [(2, 50), (1, 50)]),
        (7, 7, []),
        (7, 1, [(2, 2), (1, 2)]),
    ],
)
def test_the_rounds_of_thinformer(length, size, expected):
    assert rounds_of(length, size) == expected


@pytest.mark.parametrize("law", ["halving", "chance"])
def test_halving_balances_the_kernel_better_than_chance(rng, law):
    """The discrepancy of what is kept from what is not, in the norm of the kernel, against that of choices by chance;
    the control: other choices by chance."""
    ratios = []
    for _ in range(60):
        _, key, value = problem(rng, length=64, norm=0.4)
        kernel, (one, other) = kernel_of(key, value, np.abs(value).max() ** 2), rng.random((2, 32))
        signs = [
            np.where(kept, 1, -1) for kept in (halved(kernel, one, 1.0) if law == "halving" else one > 0.5, other > 0.5)
        ]
        both = [np.stack([s, -s], axis=-1).reshape(-1) for s in signs]
        ratios.append(math.log((both[0] @ kernel @ both[0]) / (both[1] @ kernel @ both[1])))
    t = np.mean(ratios) / (np.std(ratios) / math.sqrt(len(ratios)))
    assert (t < -5.5) == (law == "halving")
