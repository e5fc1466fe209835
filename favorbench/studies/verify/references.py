"""Claims on what estimators are compared with: exact attention, baselines and metrics, each by a plain second route."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.baselines import BASELINES
from favorbench.baselines.trivial import taylor_attention
from favorbench.methods import METHODS, Answer, Method, Question
from favorbench.metrics import METRICS, error_sums, metrics_of
from favorbench.numerics.streams import Streams, stream
from favorbench.studies.verify.attention import EPS
from favorbench.studies.verify.checks import Measurement, largest
from favorbench.studies.verify.dense import softmax

#: Around every edge of a chunk of positions (128) and of a tile of keys (2048, and 1024 under a mask).
LENGTHS = (1, 2, 127, 128, 129, 130, 257, 1023, 1024, 1025, 2047, 2048, 2049, 2050, 5000)
QUERIES = 12
#: Of queries and keys: weights spread over all keys, and logits up to some hundreds, of which one key has all.
SCALES = (0.5, 8.0)

DIM = 6


def measure(seed: int) -> list[Measurement]:
    """All references. Methods without a definition here are held to what they declare (``methods``)."""
    members = [*BASELINES, *(member for member in METHODS if member.name in DEFINITIONS)]
    baselines = [measurement for member in members for measurement in _baseline(member(), seed)]
    return [_exact(seed), _causal(seed), exact_features(seed), *baselines, *metrics(seed)]


def _drawn(seed: int, name: str, queries: int, length: int, scale: float, dim: int = 3) -> Question:
    rng = stream(seed, "verify", name, queries, length, scale)
    query, key = (scale * rng.standard_normal((count, dim)) + 0.3 for count in (queries, length))
    key *= np.linspace(0.5, 1.0, length)[:, None]  # so that running maxima move from tile to tile
    return Question(query, key, rng.standard_normal((length, 2)))


def _scaled(inputs: Question) -> Question:
    """As methods take them."""
    factor = inputs.query.shape[-1] ** -0.25
    return inputs._replace(query=inputs.query * factor, key=inputs.key * factor)


def _logits(inputs: Question) -> np.ndarray:
    return np.einsum("id,jd->ij", inputs.query, inputs.key) / math.sqrt(inputs.query.shape[-1])


def _rounding(logits: np.ndarray, value: np.ndarray) -> float:
    """Of an average of values: eps times the logits that are exponentiated and the terms that are summed."""
    return EPS * (2.0 * largest(logits) + DIM + len(value)) * largest(value)


def _exact(seed: int) -> Measurement:
    """Exact attention against all weights at once."""
    ratios = []
    for length in LENGTHS:
        for scale in SCALES:
            inputs = _drawn(seed, "exact", QUERIES, length, scale)
            logits = _logits(inputs)
            error = exact_attention(*inputs[:3]) - softmax(logits, inputs.value)
            ratios.append(largest(error) / _rounding(logits, inputs.value))
    return _over_rounding("exact attention", "equals dense softmax", ratios)


def _causal(seed: int) -> Measurement:
    """The same under a mask: of every position of the shorter sequences, and around the edges of the longer ones."""
    ratios = []
    for length in LENGTHS:
        for scale in SCALES:
            inputs = _drawn(seed, "causal exact", length, length, scale)
            edges = {i for i in (0, 1, *(n + step for n in LENGTHS for step in (-2, -1))) if 0 <= i < length}
            positions = np.arange(length) if length < 300 else np.array(sorted(edges | {length - 1}))
            some = inputs._replace(query=inputs.query[positions])
            logits, seen = _logits(some), np.arange(length) <= positions[:, None]
            expected = softmax(logits, inputs.value, seen)
            outputs = [exact_attention(*some[:3], causal=True, positions=positions)]
            if len(positions) == length:
                outputs.append(exact_attention(*some[:3], causal=True))
            errors = [largest(output - expected) for output in outputs]
            ratios.append(largest(errors) / _rounding(logits, inputs.value))
    return _over_rounding("exact attention", "causal equals masked", ratios)


def _over_rounding(subject: str, claim: str, ratios: list[float]) -> Measurement:
    """The worst of some errors over their bounds."""
    return Measurement(subject, claim, largest(ratios), 0, f"error over rounding {largest(ratios):.1e}")


def exact_features(seed: int, order: int = 24) -> Measurement:
    """Linear attention with enough Taylor features is exact attention: the remainder is below rounding."""
    inputs = _drawn(seed, "exact features", 48, 48, 0.5, dim=2)
    answer, logits = taylor_attention(_scaled(inputs), order), _logits(inputs)
    logit = largest(logits)
    remainder = np.exp(logit) * logit ** (order + 1) / math.factorial(order + 1)
    condition = np.exp(2.0 * logit)  # of normalisers, which are at least exp(-logit) where terms are at most exp(logit)
    bound = _rounding(logits, inputs.value) * condition + 2.0 * remainder * largest(inputs.value)
    error = largest(answer.output - exact_attention(*inputs[:3]))
    detail = f"{answer.num_features} features, error {error:.1e}"
    return Measurement(f"taylor-{order}", "exact features, exact attention", error / bound, 0, detail)


def _baseline(baseline: Method, seed: int) -> Iterator[Measurement]:
    """A baseline's answers against its definition, causal too where it answers there."""
    if baseline.name not in DEFINITIONS:
        yield Measurement(baseline.name, "equals its definition", None, 0, "nothing declared: no definition here")
        return
    inputs = _drawn(seed, "baseline", 40, 50, 1.0, DIM)
    yield from _against_definition(baseline, inputs, "equals its definition")
    if baseline.causal_safe and not baseline.random:
        inputs = _drawn(seed, "causal baseline", 150, 150, 1.0, DIM)
        positions = np.array([0, 1, 40, 126, 127, 128, 149])
        inputs = inputs._replace(query=inputs.query[positions], positions=positions, causal=True)
        yield from _against_definition(baseline, inputs, "causal equals masked")


def _against_definition(baseline: Method, inputs: Question, claim: str) -> Iterator[Measurement]:
    seen = np.ones((len(inputs.query), len(inputs.key)), dtype=bool)
    if inputs.causal and inputs.positions is not None:
        seen = np.arange(len(inputs.key)) <= inputs.positions[:, None]
    exact = softmax(_logits(inputs), inputs.value, seen)
    streams = Streams.of(np.random.default_rng(0))
    answers = list(baseline.answers(_scaled(inputs), (1, 2, len(inputs.key)), streams))
    define = DEFINITIONS[baseline.name]
    ratios = [define(inputs, seen, exact, answer) for answer in answers]
    yield _over_rounding(baseline.name, claim, ratios or [math.inf])


def _polynomial(order: int) -> Callable[[Question, np.ndarray, np.ndarray, Answer], float]:
    """sum_j p(s_ij) v_j / sum_j p(s_ij) for the Taylor polynomial p of exp: where p < 0, normalisers cancel."""

    def ratio(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
        logits = _logits(inputs)
        kernel = np.where(seen, sum(logits**n / math.factorial(n) for n in range(order + 1)), 0.0)
        total = np.sum(kernel, axis=-1, keepdims=True)
        # the features of x.y are products of coordinates, whose terms add up to those of |x||y|
        norms = np.linalg.norm(inputs.query, axis=-1)[:, None] * np.linalg.norm(inputs.key, axis=-1)
        terms = sum((norms / math.sqrt(inputs.query.shape[-1])) ** n / math.factorial(n) for n in range(order + 1))
        condition = np.sum(np.where(seen, terms, 0.0), axis=-1, keepdims=True) / np.abs(total)
        expected = kernel @ inputs.value / total
        bound = _rounding(logits, inputs.value) * condition * (1.0 + np.abs(expected) / largest(inputs.value))
        return largest((answer.output - expected) / bound)

    return ratio


def _uniform(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    expected = np.array([[math.fsum(column[row]) / np.sum(row) for column in inputs.value.T] for row in seen])
    return largest(answer.output - expected) / _rounding(np.zeros(1), inputs.value)


def _best_rank(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """The truncated singular value decomposition, and its row sums; the code's route has half of its digits."""
    matrix = softmax(_logits(inputs), np.eye(len(inputs.key)))
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    size = answer.num_projections
    right_hand = np.concatenate([inputs.value, np.ones((len(inputs.key), 1))], axis=-1)
    expected = (left[:, :size] * values[:size]) @ right[:size] @ right_hand
    sums = np.full_like(expected[:, -1:], np.nan) if answer.row_sums is None else answer.row_sums
    error = np.concatenate([answer.output, sums], axis=-1) - expected
    return largest(error) / (math.sqrt(EPS) * values[0] * np.linalg.norm(right_hand))


def _landmarks(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """h(X, S) h(S, S)^-1 h(S, Y) for some R keys S: whichever come nearest, of all there are, for R up to 2.

    Through all keys it is exact attention, but for what a key that is left out lacks, the root of its residual.
    """
    count, size = len(inputs.key), answer.num_projections or 0
    if size == count:
        left_out = (count - answer.num_features) * math.sqrt(4.0 * count * EPS)
        bound = 10.0 * _rounding(_logits(inputs), inputs.value) + left_out * largest(inputs.value)
        return largest(answer.output - exact) / bound
    x, y = (a * a.shape[-1] ** -0.25 for a in (inputs.query, inputs.key))
    ratios = []
    for chosen in map(list, itertools.combinations(range(count), size)):
        gram = np.exp(y[chosen] @ y[chosen].T)
        kernel = np.exp(x @ y[chosen].T) @ np.linalg.solve(gram, np.exp(y[chosen] @ y.T))
        total = np.sum(kernel, axis=-1, keepdims=True)
        expected = kernel @ inputs.value / total
        condition = np.linalg.cond(gram) * np.sum(np.abs(kernel), axis=-1, keepdims=True) / np.abs(total)
        ratios.append(largest((answer.output - expected) / condition))
    return min(ratios) / (EPS * count * largest(inputs.value))


def _some_keys(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """Softmax over some m keys: whichever come nearest, of all there are."""
    count, logits = len(inputs.key), _logits(inputs)
    subsets = map(list, itertools.combinations(range(count), answer.num_projections or 0))
    errors = [largest(answer.output - softmax(logits[:, chosen], inputs.value[chosen])) for chosen in subsets]
    return min(errors) / _rounding(logits, inputs.value)


def _best_keys(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """Softmax over the m largest logits of each query, found by sorting all."""
    logits, size = np.where(seen, _logits(inputs), -np.inf), answer.num_projections or 0
    best = np.sort(logits, axis=-1)[:, ::-1][:, min(size, logits.shape[-1]) - 1]
    expected = softmax(logits, inputs.value, seen & (logits >= best[:, None]))
    return largest(answer.output - expected) / _rounding(_logits(inputs), inputs.value)


def _centroids(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """Attention to the centroids of the Voronoi cells of some m keys: whichever come nearest, of all there are."""
    count, size = len(inputs.key), answer.num_projections or 0
    subsets = itertools.combinations(range(count), size)
    errors = []
    for chosen in subsets:
        distances = np.sum((inputs.key[:, None, :] - inputs.key[None, list(chosen), :]) ** 2, axis=-1)
        cell = np.argmin(distances, axis=-1)
        members = [cell == i for i in range(size)]
        centres = np.array([np.mean(inputs.key[one], axis=0) for one in members])
        logits = inputs.query @ centres.T / math.sqrt(inputs.query.shape[-1])
        logits += np.log([np.sum(one) for one in members])
        values = np.array([np.mean(inputs.value[one], axis=0) for one in members])
        errors.append(largest(answer.output - softmax(logits, values)))
    return min(errors) / _rounding(_logits(inputs), inputs.value)


def _segments(rows: np.ndarray, count: int) -> list[np.ndarray]:
    """Segments in a row, as equal as can be, the longer ones last."""
    return [part[::-1] for part in np.array_split(rows[::-1], count)][::-1]


def _weights(logits: np.ndarray) -> np.ndarray:
    return softmax(logits, np.eye(logits.shape[-1]))


def _nystromformer(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """softmax(x Y'^T) Z softmax(X' y^T) v with six steps to Z = softmax(X' Y'^T)^-1, and its row sums."""
    count, size = len(inputs.key), answer.num_projections or 0
    if size == count:
        return largest(answer.output - exact) / _rounding(_logits(inputs), inputs.value)
    x, y = (a * a.shape[-1] ** -0.25 for a in (inputs.query, inputs.key))
    means = [np.array([np.mean(part, axis=0) for part in _segments(a, size)]) for a in (x, y)]
    middle, identity = _weights(means[0] @ means[1].T), np.eye(size)
    inverse = middle.T / np.max(np.sum(middle, axis=0))
    for _ in range(6):
        product = middle @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    weights = _weights(x @ means[1].T) @ inverse @ _weights(means[0] @ y.T)
    row_sums = np.sum(weights, axis=-1, keepdims=True)
    given = np.full_like(row_sums, np.nan) if answer.row_sums is None else answer.row_sums
    condition = np.linalg.cond(middle) ** 2 * max(1.0, largest(inverse))
    errors = [largest(answer.output - weights @ inputs.value), largest(given - row_sums) * largest(inputs.value)]
    return largest(errors) / (condition * _rounding(_logits(inputs), inputs.value))


def _monarch(inputs: Question, seen: np.ndarray, exact: np.ndarray, answer: Answer) -> float:
    """Of queries in blocks all as long: the softmax over the keys of each block of the query at the same place
    in the same block, and the softmax over blocks of the mean logit under these weights plus their entropy."""
    count = max(answer.num_projections or 0, math.isqrt(len(inputs.key) - 1) + 1)
    rounding = _rounding(_logits(inputs), inputs.value)
    if count == len(inputs.key):
        return largest(answer.output - exact) / rounding
    x, y = (a * a.shape[-1] ** -0.25 for a in (inputs.query, inputs.key))
    queries, keys, values = (_segments(a, count) for a in (x, y, inputs.value))
    output, errors = np.concatenate(_segments(answer.output, count)), []
    for r, j in itertools.product(range(count), range(len(queries[0]))):
        logits, means = [], []
        for c in range(count):
            weights = _weights((queries[c][j] @ keys[c].T)[None])[0]
            logits.append(queries[r][j] @ (weights @ keys[c]) - np.sum(weights * np.log(weights)))
            means.append(weights @ values[c])
        errors.append(output[r * len(queries[0]) + j] - _weights(np.array(logits)[None])[0] @ np.array(means))
    return largest(errors) / rounding


#: What each baseline is, written down a second time: an error over its bound.
DEFINITIONS: dict[str, Callable[[Question, np.ndarray, np.ndarray, Answer], float]] = {
    "uniform": _uniform,
    "taylor-1": _polynomial(1),
    "taylor-2": _polynomial(2),
    "best-rank": _best_rank,
    "sampled-keys": _some_keys,
    "top-keys": _best_keys,
    "clusters": _centroids,
    "nystrom": _landmarks,
    "wildcat": _landmarks,
    "nystromformer": _nystromformer,
    "monarch": _monarch,
    "thinformer": _some_keys,
}


class Measured(NamedTuple):
    """What metrics are of: estimate, exact answer, uniform answer, float64 estimate, normalisers and row sums."""

    e: np.ndarray
    o: np.ndarray
    u: np.ndarray
    d: np.ndarray
    n: np.ndarray
    s: np.ndarray


#: Metrics from the entries one by one.
FORMULAS: dict[str, Callable[[Measured], float]] = {
    "mse": lambda m: _sum_squares(m.e - m.o) / m.e.size,
    "relative_error": lambda m: math.sqrt(_sum_squares(m.e - m.o) / _sum_squares(m.o)),
    "relative_l1": lambda m: _sum_sizes(m.e - m.o) / _sum_sizes(m.o),
    "cosine": lambda m: math.fsum(_cosine(a, b) for a, b in zip(m.e, m.o, strict=True)) / len(m.e),
    "skill": lambda m: 1.0 - _sum_squares(m.e - m.o) / _sum_squares(m.u - m.o),
    "rounding": lambda m: math.sqrt(_sum_squares(m.e - m.d) / _sum_squares(m.o)),
    "max_abs_error": lambda m: max(abs(float(a)) for a in (m.e - m.o).ravel()),
    "bad_normalisers": lambda m: sum(not (0.0 < float(a) < math.inf) for a in m.n.ravel()) / m.n.size,
    "unnormalised_rows": lambda m: sum(not (0.99 <= float(a) <= 1.01) for a in m.s.ravel()) / m.s.size,
}

#: Means over rows, of which one that has failed is one of many.
OVER_ROWS = ("cosine", "bad_normalisers", "unnormalised_rows")


def _sum_squares(a: np.ndarray) -> float:
    return math.fsum(float(x) ** 2 for x in a.ravel())


def _sum_sizes(a: np.ndarray) -> float:
    return math.fsum(abs(float(x)) for x in a.ravel())


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """0 where one of the rows has no direction."""
    lengths = math.hypot(*a) * math.hypot(*b)
    return math.fsum(a * b) / lengths if 0.0 < lengths < math.inf else 0.0


def metrics(seed: int) -> Iterator[Measurement]:
    """Every metric of several estimates at once, one of which has failed: its error is infinite, never small."""
    rng = stream(seed, "verify", "metrics")
    exact, uniform, normaliser = (
        rng.standard_normal((7, 3)),
        rng.standard_normal((7, 3)),
        rng.standard_normal((4, 7, 1)),
    )
    estimates, double = exact + rng.standard_normal((2, 4, 7, 3))
    estimates[3, 2, 1], normaliser[1, 0] = np.nan, np.nan
    row_sums = 1.0 + 0.02 * rng.standard_normal((4, 7, 1))
    row_sums[2, 5] = np.nan
    found = metrics_of(error_sums(estimates, exact, normaliser, double, row_sums), error_sums(uniform, exact))
    for name in METRICS:
        if name not in FORMULAS:
            yield Measurement(f"metric {name}", "equals its formula", None, 0, "nothing declared: no formula here")
            continue
        formula = FORMULAS[name]
        every = zip(estimates, double, normaliser, row_sums, strict=True)
        expected = np.array([formula(Measured(e, exact, uniform, d, n, s)) for e, d, n, s in every])
        if name not in OVER_ROWS:
            expected[3] = -math.inf if METRICS[name].better == "higher" else math.inf
        same = found[name] == expected
        error = np.where(same, 0.0, np.abs(found[name] - np.where(same, 0.0, expected)))
        bound = estimates[0].size * EPS * (1.0 + np.abs(np.where(np.isfinite(expected), expected, 0.0)))
        yield _over_rounding(f"metric {name}", "equals its formula", [largest(error / bound)])
