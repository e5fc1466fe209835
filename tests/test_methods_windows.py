"""Landmarks inside prefixes, their guard, eva, and what sorts by a hash: against dense definitions."""

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

import favorbench as fb
from favorbench.errors import FavorbenchError, ScenarioError
from favorbench.methods import (
    PREFIXES,
    AttentionProblem,
    Eva,
    HyperAttention,
    KDEformer,
    Nystrom,
    Sinks,
    Top,
    WildCat,
    Window,
)
from favorbench.methods.base import Shape
from favorbench.methods.eva import Chunks
from favorbench.methods.guarded import GuardedSummary
from favorbench.methods.hashed import angular_hash
from favorbench.methods.kdeformer import sampling_shares
from favorbench.methods.segments import Segments
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.streams import Streams

HASHED = [HyperAttention(), KDEformer(), HyperAttention(block=0.6), KDEformer(block=0.6, projections=3)]
EVAS = [Eva(), Eva(form="mean"), Eva(form="released"), Eva(window=0.0), Eva(window=0.8)]
LANDMARKS = [Nystrom(), WildCat(), Nystrom(guard="cells"), WildCat(guard="cells")]


def streams(seed=0):
    return Streams.of(np.random.default_rng(seed))


def drawn(rng, length=60, dim=5, scale=1.0, queries=None):
    """Scaled queries and keys of the same tokens, or of as many queries elsewhere."""
    x, y = scale * rng.normal(size=(queries or length, dim)), scale * rng.normal(size=(length, dim)) + 0.2
    return AttentionProblem(x, y, rng.normal(size=(length, 3)), None if queries else np.arange(length))


def answer(method, question, size, seed=0):
    (found,) = method.estimates(question, (size,), streams(seed))
    return found


def attention(kernel, value):
    return kernel @ value / np.sum(kernel, axis=-1, keepdims=True)


def landmark_kernel(x, y, points):
    """h(X, S) h(S, S)^-1 h(S, Y) as it is written."""
    return np.exp(x @ points.T) @ np.linalg.solve(np.exp(points @ points.T), np.exp(points @ y.T))


def cell_kernel(x, y, points):
    """exp(x.c), with c the mean of the keys that are nearest to the same landmark."""
    label = np.argmin(np.sum((y[:, None] - points) ** 2, axis=-1), axis=-1)
    means = np.array([y[label == i].mean(axis=0) for i in range(len(points))])
    return np.exp(x @ means[label].T)


def trusts(free, bound, value):
    """Where the normaliser of the first is within 4/3 of that of the second, and its output in range: (n, 1)."""
    ratio, output = free.sum(axis=-1) / bound.sum(axis=-1), attention(free, value)
    inside = np.all((output >= value.min(axis=0)) & (output <= value.max(axis=0)), axis=-1)
    return (inside & (ratio >= 1) & (ratio <= 4 / 3))[:, None]


def landmarks_of(method, key, size):
    return method.landmarks(key, size, streams()).chosen


@pytest.mark.parametrize("method", LANDMARKS, ids=repr)
def test_landmarks_inside_prefixes_are_the_dense_definition(rng, method):
    """An exact kernel where the prefix says so, that of the landmarks elsewhere, one normaliser."""
    question = drawn(rng, scale=0.7)
    x, y, value, positions, _ = question[:5]
    near = positions - positions[:, None]
    logits = x @ y.T
    top = logits >= np.sort(logits, axis=-1)[:, -6:-5]
    cases = [
        (Window(method, 9), 0, (near >= -4) & (near < 5)),
        (Sinks(method, 4), 4, np.broadcast_to(positions < 4, logits.shape)),
        (Top(method, 6), 0, top),
        (Sinks(Window(method, 3), 4), 4, (positions < 4) | ((near >= -1) & (near < 2) & (positions >= 4))),
    ]
    for prefixed, first, exact in cases:
        chosen = landmarks_of(method, y[first:], 12) + first
        kernel, bound = (np.exp(logits), np.exp(logits))
        kernel[:, first:] = landmark_kernel(x, y[first:], y[chosen])
        bound[:, first:] = cell_kernel(x, y[first:], y[chosen])
        kernel, bound = (np.where(exact, np.exp(logits), part) for part in (kernel, bound))
        if method.guard == "cells":
            trusted = trusts(kernel, bound, value)
            assert 1 < np.sum(trusted) < 59
            kernel = np.where(trusted, kernel, bound)
        found = answer(prefixed, question, 12).output
        condition = np.linalg.cond(np.exp(y[chosen] @ y[chosen].T)) * np.abs(kernel).sum(axis=-1) / kernel.sum(axis=-1)
        error = np.max(np.abs(found - attention(kernel, value)), axis=-1)
        assert np.all(error <= 1e-13 * np.abs(condition)), prefixed.name


@pytest.mark.parametrize("method", LANDMARKS, ids=repr)
@pytest.mark.parametrize("scale", [0.4, 1.5, 6.0])
def test_landmark_sums_are_those_of_its_kernel(rng, method, scale):
    """Of any part of the keys; and no prefix changes what is exact: at full size the answer is attention."""
    question = drawn(rng, scale=scale)
    tokens, queries = Tokens(question.key, question.value), Queries(question.query, None)
    for summary in method.summaries(tokens, queries, (7, 60), streams()):
        parts = [summary.kernel(queries, keys) for keys in (slice(0, 11), slice(11, 60))]
        values = np.concatenate([np.broadcast_to(part.values, part.log_scale.shape) for part in parts], axis=-1)
        logs = np.concatenate([part.log_scale for part in parts], axis=-1)
        peak, total = summary.sums(queries)
        kernel = values * np.exp(logs - peak)
        bound = 1e-9 * np.abs(kernel).sum(axis=-1, keepdims=True)
        assert np.all(np.abs(kernel @ question.value - total[:, :-1]) <= bound * np.abs(question.value).max())
        assert np.all(np.abs(kernel.sum(axis=-1, keepdims=True) - total[:, -1:]) <= bound)
    full, exact = answer(Window(method, 8), question, 60), softmax(question.query @ question.key.T, axis=-1)
    np.testing.assert_allclose(full.output, exact @ question.value, rtol=0, atol=1e-7)


def test_a_guard_is_certain_of_what_it_refuses(rng):
    """Far from the keys Nystrom's normalisers are wrong by any factor; guarded, no output leaves the values."""
    x, y, value = 3.0 * rng.normal(size=(200, 8)), 0.7 * rng.normal(size=(200, 8)) + 1.0, rng.normal(size=(200, 3))
    question = AttentionProblem(x, y, value)
    exact = softmax(question.query @ question.key.T, axis=-1) @ question.value
    plain, guarded, cells = (
        answer(method, question, 30).output for method in (Nystrom(), Nystrom(guard="cells"), fb.get_method("clusters"))
    )
    uniform = np.mean((question.value.mean(axis=0) - exact) ** 2)
    errors = [np.mean((output - exact) ** 2) / uniform for output in (plain, guarded, cells)]
    assert errors[0] > 10 and errors[1] < 1.2 and errors[2] < 1.2, errors
    assert np.all((guarded <= question.value.max(axis=0) + 1e-5) & (guarded >= question.value.min(axis=0) - 1e-5))
    tokens, queries = Tokens(question.key, question.value), Queries(question.query, None)
    (summary,) = Nystrom(guard="cells").summaries(tokens, queries, (30,), streams())
    assert isinstance(summary, GuardedSummary)
    bound = summary.bound.sums(queries)
    log_bound = np.log(bound.total[:, -1]) + bound.log_peak[:, 0]
    assert np.all(log_bound <= logsumexp(question.query @ question.key.T, axis=-1) + 1e-12)  # Jensen


@pytest.mark.parametrize(
    "prefix",
    [
        lambda inner: Window(inner, 9), lambda inner: Sinks(inner, 5), lambda inner: Top(inner, 3),
        lambda inner: Sinks(Window(inner, 9), 5),
    ],
)  # fmt: skip
def test_a_guard_looks_at_the_whole_answer_with_the_exact_keys_in_it(prefix):
    """An answer chosen with the estimates of the exact keys in it may be one that leaves the values without them."""
    worst = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, y, value = rng.normal(size=(200, 8)), 0.7 * rng.normal(size=(200, 8)) + 1.0, rng.normal(size=(200, 3))
        question = AttentionProblem(3.0 * x, y, value, np.arange(200))
        low, high = value.min(axis=0) - 1e-5, value.max(axis=0) + 1e-5
        plain, guarded = (answer(prefix(Nystrom(guard=guard)), question, 30).output for guard in ("none", "cells"))
        assert np.all((guarded >= low) & (guarded <= high))
        worst.append(np.max(np.abs(plain)))
        tokens, queries = Tokens(y, value), Queries(question.query, question.positions)
        (summary,) = prefix(Nystrom(guard="cells")).summaries(tokens, queries, (30,), streams())
        assert isinstance(summary, GuardedSummary)  # whatever the prefixes: one guard, around all
    assert max(worst) > 10 * np.max(np.abs(value))


def test_a_guard_costs_what_it_says_and_leaves_good_queries_alone(rng):
    question = drawn(rng, 100, 4, 0.3)
    plain, guarded = (answer(method, question, 60) for method in (Nystrom(), Nystrom(guard="cells")))
    same = np.all(plain.output == guarded.output, axis=-1)
    assert np.sum(same) > 80 and plain.num_features == guarded.num_features
    shape = Shape(40, 100, 4, 3)
    extra = Nystrom(guard="cells").multiplications(shape, 60) - Nystrom().multiplications(shape, 60)
    assert extra == 100 * 60 * 4 + 40 * 60 * 7


@pytest.mark.parametrize(("call", "said"), [
    (lambda: Nystrom(guard="cell"), "did you mean 'cells'"), (lambda: Eva(form="release"), "did you mean 'released'"),
    (lambda: Eva(window=1.0), "window"), (lambda: HyperAttention(block=-0.1), "block"),
    (lambda: KDEformer(projections=0), "projections"), (lambda: KDEformer(projections=2.5), "projections"),
    (lambda: Window(HyperAttention(), 4), "no sums over keys"),
])  # fmt: skip
def test_parameters_are_checked(call, said):
    with pytest.raises(ScenarioError, match=said):
        call()


# --- eva -------------------------------------------------------------------------------------------------------------


def eva_kernel(question, size, window, form, noise):
    """Every weight of eva: the block exactly, n_c exp(x.c) p_j elsewhere."""
    x, y, _, positions, _ = question[:5]
    w = min(round(window * size), size - 1)
    count, length = size - w, len(y)
    chunks = [np.arange(c * length // count, (c + 1) * length // count) for c in range(count)]
    far = np.zeros((len(x), length))
    for c, keys in enumerate(chunks):
        mean = y[keys].mean(axis=0)
        of = np.isin(positions, keys)
        proposal = mean + x[of if np.any(of) else slice(None)].mean(axis=0) + noise[c]
        if form == "released":
            proposal = proposal / 2
        share = softmax(y[keys] @ proposal - np.sum(y[keys] ** 2, axis=-1) / 2)
        weight = 1.0 if form == "released" else len(keys)
        far[:, keys] = weight * np.exp(x @ mean)[:, None] * share
    if w == 0:
        return far
    same = np.arange(length) // w == positions[:, None] // w
    exact = np.exp(x @ y.T)
    return np.where(same, exact + far if form == "released" else exact, far)


def eva_noise(method, size, dim, seed=0):
    shape = (size - method.block(size), dim)
    return np.random.default_rng(seed).standard_normal(shape) if method.form == "drawn" else np.zeros(shape)


@pytest.mark.parametrize("method", EVAS, ids=repr)
@pytest.mark.parametrize(("length", "size"), [(60, 1), (60, 2), (60, 13), (61, 24), (64, 32), (57, 57)])
def test_eva_is_its_definition(rng, method, length, size):
    question = drawn(rng, length)
    kernel = eva_kernel(question, size, method.window, method.form, eva_noise(method, size, 5))
    found = answer(method, question, size)
    np.testing.assert_allclose(found.output, attention(kernel, question.value), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(found.normaliser > 0, True)
    some = np.array([0, 3, 4, 30, 50])
    part = question._replace(query=question.query[some], positions=some)
    kernel = eva_kernel(part, size, method.window, method.form, eva_noise(method, size, 5))
    np.testing.assert_allclose(answer(method, part, size).output, attention(kernel, part.value), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", EVAS, ids=repr)
def test_eva_inside_prefixes_is_the_dense_definition(rng, method):
    question = drawn(rng)
    near = question.positions - question.positions[:, None]
    kernel = eva_kernel(question, 16, method.window, method.form, eva_noise(method, 16, 5))
    kernel = np.where((near >= -5) & (near < 6), np.exp(question.query @ question.key.T), kernel)
    found = answer(Window(method, 11), question, 16)
    np.testing.assert_allclose(found.output, attention(kernel, question.value), rtol=1e-10, atol=1e-12)
    rest = AttentionProblem(question.query, question.key[4:], question.value[4:], question.positions - 4)
    kernel = np.exp(question.query @ question.key.T)
    kernel[:, 4:] = eva_kernel(rest, 16, method.window, method.form, eva_noise(method, 16, 5))
    w = method.block(16)
    found = answer(Sinks(method, 4), question, 16)
    rows = slice(4, None) if w else slice(None)  # those before are in no block
    expected = attention(kernel, question.value)[rows]
    np.testing.assert_allclose(found.output[rows], expected, rtol=1e-10, atol=1e-12)


def causal_eva_kernel(question, size, method, noise, first=0, last=0):
    """Exact for the chunk of 128 positions, the last w keys before it and the first, pseudo-keys for the others."""
    x, y, _, positions, _ = question[:5]
    w, length, kernel = method.block(size), len(y) - first, np.zeros((len(x), len(y)))
    count = size - w
    for i, position in enumerate(positions):
        start = max(first, position // 128 * 128 - max(0, max(w, last) - 1))
        exact = [*range(min(first, position + 1)), *range(start, position + 1)]
        kernel[i, exact] = np.exp(y[exact] @ x[i])
        for c in range(count):
            keys = first + np.arange(c * length // count, min(start - first, (c + 1) * length // count))
            if len(keys):
                mean = y[keys].mean(axis=0)
                share = softmax(y[keys] @ (mean + noise[c]) - np.sum(y[keys] ** 2, axis=-1) / 2)
                kernel[i, keys] = len(keys) * np.exp(x[i] @ mean) * share
    return kernel


@pytest.mark.parametrize("method", [m for m in EVAS if m.causal_safe], ids=repr)
def test_causal_eva_is_masked_and_the_future_changes_nothing(rng, method):
    question = drawn(rng, 400)._replace(causal=True)
    noise = eva_noise(method, 40, 5)
    found = answer(method, question, 40)
    kernel = causal_eva_kernel(question, 40, method, noise)
    np.testing.assert_allclose(found.output, attention(kernel, question.value), rtol=1e-10, atol=1e-12)
    other = question._replace(key=question.key.copy(), value=question.value.copy(), query=question.query.copy())
    for a in (other.key, other.value, other.query):
        a[261:] = rng.normal(size=a[261:].shape)
    np.testing.assert_array_equal(answer(method, other, 40).output[:261], found.output[:261])
    some = np.array([0, 127, 128, 260, 399])
    part = answer(method, question._replace(query=question.query[some], positions=some), 40)
    np.testing.assert_allclose(part.output, found.output[some], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("w", [5, 60])
def test_causal_eva_inside_prefixes_is_masked(rng, w):
    question, method = drawn(rng, 400)._replace(causal=True), Eva()
    found = answer(Sinks(Window(method, w), 4), question, 40)
    kernel = causal_eva_kernel(question, 40, method, eva_noise(method, 40, 5), 4, w)
    np.testing.assert_allclose(found.output, attention(kernel, question.value), rtol=1e-10, atol=1e-12)


def test_what_cannot_be_causal_or_has_no_positions_says_so(rng):
    for method in (Eva(form="released"), Nystrom(), Window(WildCat(), 4)):
        assert not method.causal_safe
        with pytest.raises(FavorbenchError, match="cannot be causal"):
            answer(method, drawn(rng)._replace(causal=True), 8)
    with pytest.raises(FavorbenchError, match="not the same tokens"):
        answer(Eva(), drawn(rng, queries=30), 8)


def test_the_control_counts_matter(rng):
    """Where chunks have many keys the released form, without their number, is another answer: no test passes both."""
    question = drawn(rng, 400)
    counted, released = (answer(Eva(form=form), question, 20).output for form in ("mean", "released"))
    exact = softmax(question.query @ question.key.T, axis=-1) @ question.value
    assert np.mean((counted - exact) ** 2) < 0.7 * np.mean((released - exact) ** 2)


# --- hashed ----------------------------------------------------------------------------------------------------------


def test_neighbouring_buckets_differ_in_one_sign():
    """For all 2^5 signs; the control: the order of the released code, the Gray code of the bits, has no such order."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T
    buckets = angular_hash(signs, np.eye(5))
    np.testing.assert_array_equal(np.sort(buckets), np.arange(32))
    ordered = signs[np.argsort(buckets)]
    np.testing.assert_array_equal(np.sum(ordered[1:] != ordered[:-1], axis=-1), 1)
    code = (signs > 0) @ (2 ** np.arange(5))
    released = signs[np.argsort(code ^ (code >> 1))]
    assert np.max(np.sum(released[1:] != released[:-1], axis=-1)) > 1


def hashed_kernel(method, question, size, seed=0):
    """Every weight: exp(x.y) in the block, elsewhere exp(x.y) times 1 / (s p) for each draw of the key."""
    x, y, value, *_ = question
    rng, b = np.random.default_rng(seed), method.exact_keys(size)
    directions, s, length = rng.standard_normal((x.shape[-1], method.projections)), size - b, len(y)

    def blocks_of(a):
        """Of each row: its place when rows are sorted by the rank of their signs in the Gray code."""
        bits = (a @ directions > 0).astype(int)
        ranks = [sum((sum(row[: i + 1]) % 2) << (len(row) - 1 - i) for i in range(len(row))) for row in bits]
        order, blocks = np.argsort(ranks, kind="stable"), np.empty(len(a), dtype=int)
        edges = np.arange(count + 1) * len(a) // count
        blocks[order] = np.searchsorted(edges, np.arange(len(a)), side="right") - 1
        return blocks

    count = min(-(-length // b), len(x))
    same = blocks_of(x)[:, None] == blocks_of(y)
    if isinstance(method, HyperAttention):
        weight = np.zeros(length)
        weight[rng.permutation(length)[:s]] = length / max(s, 1)
    else:
        p = np.linalg.norm(value, axis=-1) / np.linalg.norm(value, 2) + 1 / length
        p /= p.sum()
        draws = np.searchsorted(np.cumsum(p), rng.random(s))
        weight = np.bincount(draws, minlength=length) / (max(s, 1) * p)
    return np.exp(x @ y.T) * np.where(same, 1.0, weight), same


@pytest.mark.parametrize("method", HASHED, ids=repr)
@pytest.mark.parametrize(
    ("length", "queries", "size"), [(60, 60, 1), (60, 60, 20), (61, 47, 33), (30, 100, 30), (64, 3, 9)]
)
def test_hashed_methods_are_their_definition(rng, method, length, queries, size):
    question = drawn(rng, length, queries=queries)
    kernel, same = hashed_kernel(method, question, size)
    assert np.max(same.sum(axis=-1)) <= method.exact_keys(size) or queries < 60
    found = answer(method, question, size)
    np.testing.assert_allclose(found.output, attention(kernel, question.value), rtol=1e-10, atol=1e-12)
    assert np.all(found.normaliser > 0)


@pytest.mark.parametrize("member", [HyperAttention, KDEformer], ids=lambda m: m.name)
def test_hashed_kernels_have_the_exact_mean(rng, member):
    """Over draws of the sample and the hash: within 5 standard errors; the control: without the keys' weights not."""
    question, method = drawn(rng, 24, 3, 0.6), member(block=0.3)
    exact = np.exp(question.query @ question.key.T)
    kernels = np.array([hashed_kernel(method, question, 10, seed)[0] for seed in range(2000)])
    normalisers, right = kernels.sum(axis=-1), exact.sum(axis=-1)
    error = np.std(normalisers, axis=0) / np.sqrt(2000)
    assert np.max(np.abs(normalisers.mean(axis=0) - right) / error) < 5
    numerators = kernels @ question.value
    error = np.std(numerators, axis=0) / np.sqrt(2000)
    assert np.max(np.abs(numerators.mean(axis=0) - exact @ question.value) / error) < 5
    unweighted = np.where(kernels > 0, exact, 0.0).sum(axis=-1)
    assert np.max(np.abs(unweighted.mean(axis=0) - right) / (np.std(unweighted, axis=0) / np.sqrt(2000))) > 5


def test_shares_of_keys_whose_values_are_nothing_are_equal(rng):
    np.testing.assert_allclose(sampling_shares(np.zeros((7, 3))), np.full(7, 1 / 7), rtol=1e-15)
    value = rng.normal(size=(9, 4))
    expected = np.linalg.norm(value, axis=-1) / np.linalg.norm(value, 2) + 1 / 9
    np.testing.assert_allclose(sampling_shares(value), expected / expected.sum(), rtol=1e-12)


# --- all -------------------------------------------------------------------------------------------------------------

ALL = [*LANDMARKS, *EVAS, *HASHED, *(prefix(Eva(), 4) for prefix in PREFIXES)]


@pytest.mark.parametrize("method", ALL, ids=repr)
def test_a_member_declares_what_it_is(rng, method):
    question = drawn(rng, 200, 5, 0.8)
    first, second = (answer(method, question, 24, seed).output for seed in (0, 1))
    assert (np.max(np.abs(first - second)) > 1e-9) == method.random
    order = rng.permutation(200)
    if method.permutation_invariant and not method.random:
        mixed = question._replace(key=question.key[order], value=question.value[order])
        np.testing.assert_allclose(answer(method, mixed, 24).output, first, rtol=1e-9)
    if method.convex:
        low, high = question.value.min(axis=0), question.value.max(axis=0)
        assert np.all((first >= low - 1e-12) & (first <= high + 1e-12))
    if method.exact_at_full_size:
        exact = softmax(question.query @ question.key.T, axis=-1) @ question.value
        np.testing.assert_allclose(answer(method, question, 200).output, exact, rtol=0, atol=1e-6)
    assert method.multiplications(Shape(200, 200, 5, 3), 24) > 0


@pytest.mark.parametrize("method", [*EVAS, *HASHED, *LANDMARKS[2:]], ids=repr)
def test_logits_of_hundreds_are_no_problem(rng, method):
    """Against the definition in logarithms; also where all logits are so small that exp of them is 0."""
    question = drawn(rng, 60, 5, 12.0)
    for shift in (0.0, 40.0):
        far = question._replace(query=question.query - shift, key=question.key + shift)
        assert np.max(np.abs(far.query @ far.key.T)) > 300
        for size in (13, 40):
            output = answer(method, far, size).output
            assert np.all(np.isfinite(output))
            low, high = far.value.min(axis=0), far.value.max(axis=0)
            slack = 1e-12 if method.convex else 1e-5
            assert np.all((output >= low - slack) & (output <= high + slack))


def test_multiplications_are_those_of_the_products(rng, monkeypatch):
    """What eva and the hashed methods say, beside the shapes of their products; values have a column of ones more."""

    class Counted(np.ndarray):
        work = 0

        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
            plain = [np.asarray(a) for a in inputs]
            found = getattr(ufunc, method)(*plain, **kwargs)
            if ufunc is np.matmul:
                Counted.work += found.size * plain[0].shape[-1]
            return found.view(Counted)

        def __array_function__(self, function, types, args, kwargs):
            def plain(a):
                return (
                    type(a)(map(plain, a))
                    if isinstance(a, list | tuple)
                    else np.asarray(a)
                    if type(a) is Counted
                    else a
                )

            found = function(*plain(args), **{name: plain(a) for name, a in kwargs.items()})
            return found.view(Counted) if isinstance(found, np.ndarray) else found

    namespace = "favorbench.methods.{}.array_namespace"
    for module in ("eva", "hashed", "segments", "kdeformer"):
        monkeypatch.setattr(namespace.format(module), lambda *arrays: np)
    monkeypatch.setattr("favorbench.numerics.logsum.array_namespace", lambda *arrays: np)
    monkeypatch.setattr("favorbench.numerics.arrays.array_namespace", lambda *arrays: np)
    question = drawn(rng, 256, 8)
    counted = AttentionProblem(*(a.view(Counted) for a in question[:3]), question.positions)
    for method in (Eva(form="mean"), HyperAttention(), KDEformer()):
        Counted.work = 0
        answer(method, counted, 64)
        said = method.multiplications(Shape(256, 256, 8, 3), 64)
        assert said is not None and 0.8 * said < Counted.work < 1.3 * said, (method, Counted.work / said)


@pytest.mark.parametrize(
    ("method", "causal"),
    [*((m, False) for m in (*EVAS, *HASHED)), *((m, True) for m in EVAS if m.causal_safe)],
    ids=str,
)
def test_torch_agrees_and_takes_several_draws_at_once(rng, method, causal):
    torch = pytest.importorskip("torch")
    questions = [drawn(rng, 300)._replace(causal=causal) for _ in range(2)]
    together = AttentionProblem(
        *(torch.stack([torch.from_numpy(q[i]) for q in questions]) for i in range(3)), np.arange(300), causal
    )
    generators = [np.random.default_rng(seed) for seed in range(2)]
    many = Streams(generators, lambda hosts: torch.stack([torch.from_numpy(np.asarray(host)) for host in hosts]))
    found = list(method.estimates(together, (9, 32), many))
    for i, question in enumerate(questions):
        for one, alone in zip(found, method.estimates(question, (9, 32), streams(i)), strict=True):
            np.testing.assert_allclose(one.output[i].numpy(), alone.output, rtol=1e-9, atol=1e-11)


def test_segments_hold_every_token_once():
    for length, count in ((10, 3), (7, 7), (5, 1)):
        parts = Segments.of(length, count)
        np.testing.assert_array_equal(parts.places[~parts.padding], np.arange(length))
        assert np.ptp(np.sum(~parts.padding, axis=-1)) <= 1
    chunks = Chunks.of(Tokens(np.ones((5, 2)), np.ones((5, 1))), np.array([0, 2, 5]), np.zeros((2, 2)), True)
    np.testing.assert_allclose(np.exp(chunks.log_share), [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3], rtol=1e-14)


# --- the authors' code, where it is installed ------------------------------------------------------------------------


def test_released_eva_is_that_of_the_authors(rng):
    """HKUNLP/efficient-attention, its adaptive projections the identity, for one head and no projections of its own."""
    torch = pytest.importorskip("torch")
    code = pytest.importorskip("efficient_attention.eva")
    length, dim, w, count = 64, 8, 16, 8
    module = code.EVA(adaptive_proj="no-ln", num_landmarks=count, dim=dim, num_heads=1, window_size=w).double().eval()
    q, k, v = rng.normal(size=(3, length, dim))
    with torch.no_grad():
        for linear in (module.adaptive_mu_q[0], module.adaptive_mu_k[0], module.proj):
            linear.weight.copy_(torch.eye(dim))
            if linear.bias is not None:
                linear.bias.zero_()
        module.proj_and_split_heads = lambda x: tuple(torch.from_numpy(a)[None, None] for a in (q, k, v))
        theirs = module(torch.zeros(1, length, dim, dtype=torch.float64))[0].numpy()
    question = AttentionProblem(q * dim**-0.25, k * dim**-0.25, v, np.arange(length))
    ours = answer(Eva(window=w / (w + count), form="released"), question, w + count).output
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_kdeformer_is_that_of_the_authors(rng, monkeypatch):
    """majid-daliri/kdeformer, its order of buckets put right, for values of equal norms: then shares are equal."""
    torch = pytest.importorskip("torch")
    code = pytest.importorskip("KDEformer")
    length, dim, method = 64, 6, KDEformer(block=0.25, projections=5)
    question = drawn(rng, length, dim)
    question = question._replace(value=question.value / np.linalg.norm(question.value, axis=-1, keepdims=True))
    source = np.random.default_rng(0)
    directions, uniforms = source.standard_normal((dim, 5)), source.random(24)
    order = np.argsort(angular_hash(question.key, directions), kind="stable")
    draws = np.argsort(order)[(uniforms * length).astype(int)]  # their sample is one of sorted keys

    def rank(bits):
        codes = np.arange(2**bits)
        signs = np.where((codes[:, None] >> np.arange(bits)) & 1, 1.0, -1.0)
        return torch.from_numpy(angular_hash(signs, np.eye(bits)))

    normal = torch.randn
    monkeypatch.setattr(code, "unit_hamming_distance_array", rank)
    monkeypatch.setattr(torch, "randn", lambda *shape, **kwargs: torch.from_numpy(directions)[None, None]
                        if len(shape) == 1 and len(shape[0]) == 4 else normal(*shape, **kwargs))  # fmt: skip
    monkeypatch.setattr(torch.Tensor, "multinomial", lambda *a, **k: torch.from_numpy(draws)[None])
    stable = torch.sort
    monkeypatch.setattr(torch, "sort", lambda a, dim: stable(a, dim=dim, stable=True))
    theirs = code.KDEformer(sample_size=24, num_projs=5, Bucket_size=8).double()
    inputs = [torch.from_numpy(a)[None, :, None].contiguous() for a in question[:3]]
    output = theirs(*inputs)[0, 0].numpy()
    np.testing.assert_allclose(answer(method, question, 32).output, output, rtol=1e-6, atol=1e-8)
