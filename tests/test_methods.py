"""Clusters, multipole, sampled keys and prefixes against definitions: a weight for each query and key, in loops.

A definition is a dense matrix of weights K(x_i, y_j). It replays the draws of the method from the same generator, and
knows nothing of cells, peaks, tiles or sums.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from favorbench.methods import AttentionProblem, get_method
from favorbench.numerics.streams import Streams
from favorbench.samplers import get_sampler

CHUNK = 128


class Dense(NamedTuple):
    """Weights sign * exp(log) of (n, l) pairs; mass: log of the sizes of all terms that were added up for a pair."""

    sign: np.ndarray
    log: np.ndarray
    mass: np.ndarray

    @staticmethod
    def of(log: np.ndarray) -> "Dense":
        return Dense(np.ones_like(log), log, log)


#: The weights on the first ``stop`` keys, for each stop (increasing): of a summary that grows with the sequence.
Grown = Iterator[tuple[int, Callable[[np.ndarray], Dense]]]


def logits(x, y):
    return np.array([[float(a @ b) for b in y] for a in x])


# clusters and multipole


def assigned(keys, centres):
    """The first of the nearest centres."""
    return [int(np.argmin([np.sum((y - c) ** 2) for c in centres])) for y in keys]


def cell_means(keys, labels, count):
    members = [[y for y, one in zip(keys, labels, strict=True) if one == c] for c in range(count)]
    return np.array([np.mean(own, axis=0) if own else np.zeros(keys.shape[1]) for own in members])


def pivots(keys, size, rng):
    """Keys with probability in proportion to what is left of the diagonal of the Gaussian kernel matrix."""
    left = np.array([[math.exp(-0.5 * np.sum((a - b) ** 2)) for b in keys] for a in keys])
    chosen = []
    for _ in range(size):
        noise = rng.gumbel(size=len(keys))
        chosen.append(int(np.argmax([math.log(max(left[j, j], 1e-300)) + noise[j] for j in range(len(keys))])))
        left = left - np.outer(left[:, chosen[-1]], left[chosen[-1]]) / left[chosen[-1], chosen[-1]]
        left[chosen[-1], chosen[-1]] = 0.0
    return chosen


def cells(keys, size, rng, stops, causal, lloyd=0, points="random"):
    """The cell of each of the first ``stop`` keys: made anew when they have doubled, else new keys join the nearest."""
    order = rng.permutation(len(keys)) if causal or points == "random" else None
    labels, made = [], 0
    for stop in stops:
        seen = keys[:stop]
        if stop <= size:
            labels = list(range(stop))
        elif stop >= 2 * made:
            starts = pivots(seen, size, rng) if points == "pivots" else [j for j in order if j < stop][:size]
            labels, made = assigned(seen, keys[starts]), stop
            for _ in range(lloyd):
                labels = assigned(seen, cell_means(seen, labels, size))
        else:
            labels = labels + assigned(keys[len(labels) : stop], cell_means(keys[: len(labels)], labels, size))
        yield stop, labels


def clusters(keys, values, size, rng, stops, causal, order=1, lloyd=0, points="random") -> Grown:
    for stop, labels in cells(keys, size, rng, stops, causal, lloyd, points):
        means = cell_means(keys[:stop], labels, size)[labels]
        spread = cell_means((keys[:stop] - means) ** 2, labels, size)[labels]

        def weights(x, means=means, spread=spread):
            return Dense.of(logits(x, means) + (0.5 * logits(x * x, spread) if order == 2 else 0.0))

        yield stop, weights


def multipole(keys, values, size, rng, stops, causal, exact=0.5, lloyd=0, points="random") -> Grown:
    """The best cells by exp(x.c) E|y - c|^2, as long as half of the next one's keys fit into the share of exact ones,
    and no more than twice as many (rounded up, and one) as hold it on average."""
    share = min(round(exact * size), size - 1)
    count = size - share
    for stop, labels in cells(keys, count, rng, stops, causal, lloyd, points):
        seen, labels = keys[:stop], np.array(labels)
        means = cell_means(seen, labels, count)
        number = [int(np.sum(labels == c)) for c in range(count)]
        spread = np.sum(cell_means((seen - means[labels]) ** 2, labels, count), axis=-1)
        most = 2 * math.ceil(share * count / stop) + 1

        def weights(x, seen=seen, labels=labels, means=means, number=number, spread=spread, most=most):
            log = []
            for a in x:
                score = [a @ c + math.log(max(s, 1e-300)) for c, s in zip(means, spread, strict=True)]
                near, used = [], 0
                for cell in sorted(range(count), key=lambda c: -score[c])[:most]:
                    if used + number[cell] / 2 < share:
                        near.append(cell)
                    used += number[cell]
                log.append([a @ (y if c in near else means[c]) for y, c in zip(seen, labels, strict=True)])
            return Dense.of(np.array(log))

        yield stop, weights


# sampled keys


def sampled_keys(keys, values, size, rng, stops, causal, weights="uniform") -> Grown:
    if weights == "values":
        norms = [math.sqrt(v @ v) for v in values]
        shares = [a / sum(norms) for a in norms] if sum(norms) else [1 / len(norms)] * len(norms)
        drawn = [next(j for j in range(len(keys)) if sum(shares[: j + 1]) >= u) for u in rng.random(size)]
        times = [drawn.count(j) / (size * p) if p else 0.0 for j, p in enumerate(shares)]
        yield len(keys), lambda x: Dense.of(logits(x, keys) + log_of(times))
        return
    order = rng.permutation(len(keys))
    for stop in stops:
        chosen = [j for j in order if j < stop][:size]
        times = [stop / len(chosen) if j in chosen else 0.0 for j in range(stop)]
        yield stop, lambda x, stop=stop, times=times: Dense.of(logits(x, keys[:stop]) + log_of(times))


def log_of(numbers):
    return np.array([math.log(a) if a > 0 else -math.inf for a in numbers])


# maps


def positive(keys, values, size, rng, stops, causal) -> Grown:
    omega = get_sampler("orthogonal").sample(rng, size, keys.shape[1])
    for stop in stops:
        yield stop, lambda x, stop=stop: positive_kernel(x, keys[:stop], omega)


def positive_kernel(x, y, omega, log_factor=0.0):
    log = [[[w @ (a + b) - 0.5 * (a @ a + b @ b) for w in omega] for b in y] for a in x]
    return Dense.of(np.logaddexp.reduce(log, axis=-1) - math.log(len(omega)) + log_factor)


def trig(keys, values, size, rng, stops, causal) -> Grown:
    omega = get_sampler("orthogonal").sample(rng, size, keys.shape[1])
    for stop in stops:

        def weights(x, y=keys[:stop]):
            mean = np.array([[np.mean([math.cos(w @ (a - b)) for w in omega]) for b in y] for a in x])
            mass = np.array([[0.5 * (a @ a + b @ b) for b in y] for a in x])
            return Dense(np.sign(mean), mass + log_of(np.abs(mean).ravel()).reshape(mean.shape), mass)

        yield stop, weights


def centred_positive(keys, values, size, rng, stops, causal) -> Grown:
    """exp(x.y) = exp((x - a).(y - b)) exp(b.x + a.y - a.b)."""
    omega = get_sampler("orthogonal").sample(rng, size, keys.shape[1])

    def weights(x):
        a, b = np.mean(x, axis=0), np.mean(keys, axis=0)
        return positive_kernel(x - a, keys - b, omega, (x @ b)[:, None] + keys @ a - a @ b)

    yield len(keys), weights


DEFINED = {
    "clusters": clusters, "multipole": multipole, "sampled-keys": sampled_keys, "positive": positive, "trig": trig,
    "centre:positive": centred_positive,
}  # fmt: skip


# prefixes, and one answer


class Asked(NamedTuple):
    """A spec in its parts: prefixes from the outermost in, the method inside, and its parameters."""

    prefixes: tuple[tuple[str, int], ...]
    inside: str
    parameters: dict

    @staticmethod
    def of(spec: str) -> "Asked":
        prefixes = []
        while spec.split("(")[0] in ("sinks", "window", "top"):
            first, spec = spec.split(":", 1)
            name, number = first.rstrip(")").split("(")
            prefixes.append((name, int(number)))
        name, _, arguments = spec.rstrip(")").partition("(")
        return Asked(tuple(prefixes), name, eval(f"dict({arguments})"))

    def grown(self, keys, values, size, rng, stops, causal):
        return dict(DEFINED[self.inside](keys, values, size, rng, stops, causal, **self.parameters))


def exact_where(near, x, keys, dense):
    log = logits(x, keys)
    mass = np.where(near, np.logaddexp(dense.mass, log), dense.mass)
    return Dense(np.where(near, 1.0, dense.sign), np.where(near, log, dense.log), mass)


def whole(asked, question, size, rng):
    """The weights of all queries on all keys."""
    x, keys, values, at = question[:4]
    if not asked.prefixes:
        return asked.grown(keys, values, size, rng, [len(keys)], False)[len(keys)](x)
    (name, number), rest = asked.prefixes[0], asked._replace(prefixes=asked.prefixes[1:])
    if name == "sinks":
        moved = None if at is None else at - number
        inner = whole(rest, AttentionProblem(x, keys[number:], values[number:], moved), size, rng)
        first = logits(x, keys[:number])
        parts = zip(Dense.of(first), inner, strict=True)
        return Dense(*(np.concatenate(pair, axis=1) for pair in parts))
    inner = whole(rest, question, size, rng)
    if name == "window":
        near = [[-(number // 2) <= j - i < (number + 1) // 2 for j in range(len(keys))] for i in at]
    else:
        near = [[j in row[:number] for j in range(len(keys))] for row in np.argsort(-logits(x, keys), axis=1)]
    return exact_where(np.array(near), x, keys, inner)


def causal(asked, question, size, rng):
    """The first keys and those from the beginning of the chunk's windows on are exact, the others from a summary."""
    x, keys, values, at = question[:4]
    first = sum(number for name, number in asked.prefixes if name == "sinks")
    last = max((number for name, number in asked.prefixes if name == "window"), default=1)
    ends = [max(first, start - (last - 1)) for start in range(0, len(keys), CHUNK)]
    stops = sorted({end - first for end in ends} - {0})
    past = asked.grown(keys[first:], values[first:], size, rng, stops, True)
    sign, log, mass = np.ones((len(x), len(keys))), np.full((len(x), len(keys)), -np.inf), None
    mass = log.copy()
    for i, position in enumerate(at):
        end = ends[position // CHUNK]
        for j in range(position + 1):
            if j < first or j >= end:
                log[i, j] = mass[i, j] = x[i] @ keys[j]
    for chunk, end in enumerate(ends):
        rows = np.flatnonzero(at // CHUNK == chunk)
        if end > first and len(rows):
            dense = past[end - first](x[rows])
            for target, part in zip((sign, log, mass), dense, strict=True):
                target[np.ix_(rows, range(first, end))] = part
    return Dense(sign, log, mass)


def ratio(spec, question, size, seed=0, sizes=None, eps=None):
    """The error of an answer over its rounding: of the terms that were added up, relative to what is left of them."""
    eps = eps or np.finfo(float).eps
    method, asked = get_method(spec) if ":" in spec or "sampled" not in spec else sampled(spec), Asked.of(spec)
    answers = method.estimates(question, sizes or (size,), Streams.of(np.random.default_rng(seed)))
    found = next(answer.output for answer in answers if answer.size == size)
    exact = question._replace(**{k: np.asarray(getattr(question, k), float) for k in ("query", "key", "value")})
    define = causal if question.causal else whole
    sign, log, mass = define(asked, exact, size, np.random.default_rng(seed))
    x, y = (np.max(np.linalg.norm(a, axis=1)) for a in exact[:2])
    projected = 8.0 * (x + y) if asked.inside in ("positive", "trig", "centre:positive") else 0.0
    terms = len(log[0]) + x.size + (x + y) ** 2 + projected * math.sqrt(exact.key.shape[1])
    terms += (x * y) ** 2 if asked.parameters.get("order") == 2 else 0.0
    bound = eps * terms
    worst = 0.0
    for i in range(len(log)):
        weights, sizes_of = sign[i] * np.exp(log[i] - np.max(log[i])), np.exp(mass[i] - np.max(log[i]))
        expected = weights @ exact.value / np.sum(weights)
        scale = np.max(np.abs(exact.value)) + np.max(np.abs(expected))
        allowed = bound * np.sum(sizes_of) / abs(np.sum(weights)) * scale
        error = np.max(np.abs(found[i] - expected))
        worst = max(worst, error / allowed if error == error else math.inf)
    return worst


def sampled(spec):
    from favorbench.baselines import get_baseline

    return get_baseline(spec)


def problem(seed=0, n=40, length=40, d=5, d_v=3, norm=0.8, dtype=float, at=None, is_causal=False):
    rng = np.random.default_rng(seed)
    query, key = norm * rng.normal(size=(n, d)) + 0.3, norm * rng.normal(size=(length, d)) - 0.2
    positions = np.arange(n) if n == length else at
    arrays = (a.astype(dtype) for a in (query, key, rng.normal(size=(length, d_v))))
    return AttentionProblem(*arrays, positions, is_causal)


INSIDE = [
    "clusters", "clusters(order=2)", "clusters(lloyd=2)", "clusters(order=2, lloyd=1)", "clusters(points='pivots')",
    "multipole", "multipole(exact=0.25)", "multipole(exact=0.8)", "multipole(exact=0)",
    "multipole(exact=0.3, lloyd=1)", "sampled-keys",
]  # fmt: skip
PREFIXED = [
    *(f"{prefix}:{inside}" for prefix in ("sinks(3)", "window(7)", "window(8)", "top(3)")
      for inside in ("clusters", "multipole", "sampled-keys", "positive", "trig", "centre:positive")),
    "sinks(4):window(8):clusters", "window(8):sinks(4):clusters", "window(4):window(9):clusters(order=2)",
    "sinks(2):sinks(3):multipole", "top(2):window(5):sampled-keys", "sinks(4):top(3):trig", "window(1):trig",
    "sinks(2):sampled-keys(weights='values')", "window(5):sampled-keys(weights='values')",
]  # fmt: skip
SPECS = [*INSIDE, "sampled-keys(weights='values')", *PREFIXED]
SAFE = [spec for spec in SPECS if not any(part in spec for part in ("top", "centre", "values"))]


@pytest.mark.parametrize("spec", SPECS)
def test_an_answer_is_its_definition(spec):
    """Of every size that is asked for at once."""
    for size in (3, 10, 24):
        assert ratio(spec, problem(), size, sizes=(3, 10, 24)) <= 1


@pytest.mark.parametrize("spec", ["clusters", "multipole", "sampled-keys", "sinks(3):positive", "window(8):trig"])
def test_the_definitions_tell_wrong_answers_apart(spec):
    """The control: those of another seed, and of another size, are far outside of the rounding."""
    question, method = problem(), get_method(spec) if spec != "sampled-keys" else sampled(spec)
    (right,) = method.estimates(question, (10,), Streams.of(np.random.default_rng(0)))
    for size, seed in ((9, 0), (10, 1)):
        (wrong,) = method.estimates(question, (size,), Streams.of(np.random.default_rng(seed)))
        assert np.max(np.abs(wrong.output - right.output)) > 1e-3


@pytest.mark.parametrize("spec", [s for s in SPECS if "window" not in s])
def test_fewer_queries_than_keys_and_more(spec):
    for n, length in ((7, 33), (20, 9), (1, 8)):
        assert ratio(spec, problem(1, n, length), 4) <= 1


@pytest.mark.parametrize("spec", [s for s in SPECS if "top" not in s and "centre" not in s and "sinks" not in s])
def test_one_key_is_all_there_is(spec):
    assert ratio(spec, problem(2, 1, 1), 1) <= 1


@pytest.mark.parametrize("spec", ["window(7):clusters", "window(8):trig", "sinks(4):window(8):clusters"])
def test_windows_of_a_sample_of_queries(spec):
    """Positions of any blocks; and windows around queries whose blocks are far apart."""
    at = np.array([0, 1, 5, 63, 64, 65, 130, 199])
    assert ratio(spec, problem(3, len(at), 200, at=at), 9) <= 1


@pytest.mark.parametrize("spec", [s for s in SPECS if not any(a in s for a in ("multipole", "pivots", "top"))])
def test_duplicates_leave_cells_empty(spec):
    question = problem(4, 30, 30)
    key = np.repeat(question.key[:6], 5, axis=0)
    assert ratio(spec, question._replace(key=key), 12) <= 1
    assert ratio(spec, question._replace(key=0.0 * key), 12) <= 1


@pytest.mark.parametrize("spec", ["multipole", "clusters(points='pivots')", "sinks(2):multipole"])
def test_what_is_chosen_among_duplicates_plays_no_part(spec):
    """Keys that are all the same have one cell: an exact answer, the mean of values."""
    question = problem(4, 30, 30)
    question = question._replace(key=np.repeat(question.key[:1], 30, axis=0))
    (answer,) = get_method(spec).estimates(question, (12,), Streams.of(np.random.default_rng(0)))
    np.testing.assert_allclose(answer.output, np.mean(question.value, axis=0) + 0 * answer.output, atol=1e-14)


def huge(question):
    """Logits up to 500 and down to -500."""
    factor = math.sqrt(500.0 / np.max(np.abs(question.query @ question.key.T)))
    return question._replace(query=factor * question.query, key=factor * question.key)


@pytest.mark.parametrize("spec", [s for s in SPECS if "trig" not in s and "window(9):clusters(order=2)" not in s])
def test_logits_of_hundreds(spec):
    """What is left out loses all its digits in the difference of estimates that are far too large."""
    for size in (4, 12):
        assert ratio(spec, huge(problem(5)), size) <= 1


@pytest.mark.parametrize("spec", [s for s in SPECS if "values" not in s])
def test_float32(spec):
    """The answer has the precision of its inputs, and is the one of float64 to its rounding."""
    question = problem(6, dtype=np.float32)
    assert ratio(spec, question, 9, eps=np.finfo(np.float32).eps) <= 1
    method = get_method(spec) if spec != "sampled-keys" else sampled(spec)
    (answer,) = method.estimates(question, (9,), Streams.of(np.random.default_rng(0)))
    assert answer.output.dtype == np.float32


CAUSAL = np.array([0, 1, 60, 126, 127, 128, 129, 200, 254, 255, 256, 257, 300, 383, 384, 399])


@pytest.mark.parametrize("spec", SAFE)
def test_causal_answers_are_their_definitions(spec):
    """At some positions of 400 keys, for sizes below a chunk and above the first ones; 400 is no multiple of 128."""
    question = problem(7, len(CAUSAL), 400, at=CAUSAL, is_causal=True, norm=0.6)
    few = any(name in spec for name in ("positive", "trig"))
    for size in (6, 20) if few else (6, 150):
        assert ratio(spec, question, size, sizes=(6, 20, 150)) <= 1


@pytest.mark.parametrize("spec", ["clusters", "multipole", "sinks(4):window(8):clusters", "window(300):sampled-keys"])
def test_causal_answers_do_not_depend_on_which_are_asked(spec):
    method = get_method(spec)
    question = problem(8, 300, 300, is_causal=True)
    (every,) = method.estimates(question, (20,), Streams.of(np.random.default_rng(0)))
    for at in (np.array([5]), np.array([130, 131]), np.arange(250, 300), np.array([0, 299])):
        some = question._replace(query=question.query[at], positions=at)
        (answer,) = method.estimates(some, (20,), Streams.of(np.random.default_rng(0)))
        np.testing.assert_allclose(answer.output, every.output[at], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_key_far_from_its_centroid_overflows_nothing(dtype):
    """Logits of keys attended exactly are above those of all centroids by more than exp takes, 88 in float32."""
    question = problem(12, 40, 60, norm=0.5)
    above = 1.2 * math.log(np.finfo(dtype).max)
    direction = question.query[0] / np.sum(question.query[0] ** 2)
    keys = question.key.copy()
    keys[7], keys[8] = keys[9] + above * direction, keys[9] - above * direction  # their mean is where key 9 is
    given = AttentionProblem(*(array.astype(dtype) for array in (question.query, keys, question.value)), None)
    (answer,) = get_method("multipole(exact=0.9)").estimates(given, (20,), Streams.of(np.random.default_rng(3)))
    np.testing.assert_allclose(answer.output[0], question.value[7], rtol=8 * np.finfo(dtype).eps)  # the others: e^-88


@pytest.mark.parametrize(
    "spec", ["clusters", "sinks(3):multipole", "window(40):trig", "sinks(2):window(5):sampled-keys"]
)
def test_the_first_keys_of_causal_attention_are_exact(spec):
    """Up to the first chunk there is no past; one key, and sinks that reach over chunks."""
    for length in (1, 2, 127, 128):
        question = problem(9, length, length, is_causal=True)
        (answer,) = get_method(spec).estimates(question, (1,), Streams.of(np.random.default_rng(0)))
        log = question.query @ question.key.T
        weights = np.where(np.tri(length, dtype=bool), np.exp(log), 0.0)
        expected = weights @ question.value / np.sum(weights, axis=1, keepdims=True)
        np.testing.assert_allclose(answer.output, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("spec", ["sinks(130):clusters", "sinks(200):window(90):clusters", "window(250):clusters"])
def test_sinks_and_windows_longer_than_a_chunk(spec):
    question = problem(10, len(CAUSAL), 400, at=CAUSAL, is_causal=True)
    assert ratio(spec, question, 9) <= 1


@pytest.mark.parametrize("spec", ["clusters", "sampled-keys", "sinks(3):clusters(order=2)", "window(9):positive"])
def test_causal_logits_of_hundreds_and_duplicates(spec):
    question = problem(11, len(CAUSAL), 400, at=CAUSAL, is_causal=True)
    assert ratio(spec, huge(question), 9) <= 1
    key = question.key.copy()
    key[::2], key[1::4] = key[0], 0.0
    assert ratio(spec, question._replace(key=key), 9) <= 1


@pytest.mark.parametrize("spec", [s for s in SAFE if "pivots" not in s] + ["clusters(points='pivots')"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_an_answer_does_not_depend_on_the_other_sizes(spec, is_causal):
    question = problem(12, 140, 140, is_causal=is_causal)
    method = sampled(spec) if spec.startswith("sampled") else get_method(spec)
    several = list(method.estimates(question, (4, 9, 20), Streams.of(np.random.default_rng(0))))
    for answer, size in zip(several, (4, 9, 20), strict=True):
        (alone,) = method.estimates(question, (size,), Streams.of(np.random.default_rng(0)))
        np.testing.assert_allclose(answer.output, alone.output, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("spec", ["window(5):sampled-keys", "sinks(9):window(4):clusters", "top(2):sampled-keys"])
def test_logits_that_are_all_far_below_zero(spec):
    """exp of them underflows, and most windows hold no sampled key: nothing may be lost beside a peak of 0."""
    for dtype, shift in ((np.float64, 60.0), (np.float32, 12.0)):
        question = problem(13)
        query, key = (question.query + shift / math.sqrt(5), question.key - shift / math.sqrt(5))
        assert np.max(query @ key.T) < (-2000 if shift > 20 else -80)
        cast = question._replace(
            **{k: a.astype(dtype) for k, a in zip(question._fields, (query, key, question.value), strict=False)}
        )
        assert ratio(spec, cast, 6, eps=np.finfo(dtype).eps) <= 1
