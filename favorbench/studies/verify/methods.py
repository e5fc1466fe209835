"""What methods and baselines declare, each held to it on queries and keys of two scales, causal too."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import softmax

from favorbench.baselines import BASELINES
from favorbench.methods import METHODS, PREFIXES, AttentionProblem, Method, SampledKeys, get_method
from favorbench.methods.guarded import GuardedSummary
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label
from favorbench.studies.verify import cost
from favorbench.studies.verify.checks import EPS, Measurement, largest, over_rounding

#: LONG: four chunks, the last cut short. In the third, keys join cells that exist.
DIM, VALUES, LENGTH, LONG = 6, 3, 48, 400
SIZES = (1, 5, 16)
#: Of queries and keys: weights spread over all keys, and on few of them.
SCALES = (0.5, 4.0)
#: Draws for claims about means.
DRAWS = 2000
#: Prefixes, each around a method and around a map, and parameters that select another path.
PREFIXED = (
    "sinks(2):clusters", "window(5):multipole", "top(1):sampled-keys", "sinks(2):window(5):positive",
    "window(6):clusters(order=2)", "top(2):clusters(lloyd=1)",
)  # fmt: skip


def measure(seed: int) -> list[Measurement]:
    """Measure every claim of every registered method and baseline."""
    members = [member() for member in (*METHODS, *BASELINES)] + [get_method(spec) for spec in PREFIXED]
    members.append(SampledKeys(weights="values"))
    return [measurement for method in members for measurement in of_method(method, seed)]


def of_method(method: Method, seed: int) -> Iterator[Measurement]:
    """Measure every claim of one method."""
    for claim in CLAIMS:
        yield from claim(method, seed)


def _convex(method: Method, seed: int) -> Iterator[Measurement]:
    """How far outputs lie outside the values, along axes and random directions."""
    if not method.convex:
        return
    directions = stream(seed, "verify", "directions").standard_normal((VALUES, 50))
    directions = np.concatenate([np.eye(VALUES), directions / np.linalg.norm(directions, axis=0)], axis=1)
    ratios = []
    for question in _questions(method, seed):
        values = question.value @ directions
        for output in _outputs(method, question, seed):
            along = output @ directions
            above, below = along - np.max(values, axis=0), np.min(values, axis=0) - along
            # a minimum of 0, which NaN passes through
            ratios += [largest(np.maximum(part, 0.0)) / _rounding(question) for part in (above, below)]
    yield over_rounding(label(method), "weighted means of values", ratios)


def _row_sums(method: Method, seed: int) -> Iterator[Measurement]:
    """The answer where every value is 1 against the row sums that the method states, or 1."""
    if method.oracle:
        return
    ratios = []
    for question in _questions(method, seed):
        ones = question._replace(value=np.ones_like(question.value))
        for answer in method.estimates(ones, SIZES, _streams(method, seed)):
            error = answer.output - (1.0 if answer.row_sums is None else answer.row_sums)
            ratios.append(largest(error / np.maximum(1.0, np.abs(answer.output))) / _rounding(ones))
    yield over_rounding(label(method), "row sums", ratios)


def _exact_at_full_size(method: Method, seed: int) -> Iterator[Measurement]:
    """The answer at size l against softmax attention; half the digits of our landmark methods: they invert a matrix."""
    if not method.exact_at_full_size:
        return
    inside = method
    while isinstance(inside, PREFIXES):
        inside = inside.inner
    ratios, lost = [], EPS**-0.5 if isinstance(inside, METHODS) and not method.convex else 1.0
    for question in _questions(method, seed):
        (output,) = _outputs(method, question, seed, (len(question.key),))
        ratios.append(largest(output - _exact(question)) / _rounding(question) / lost)
    yield over_rounding(label(method), "exact at m = l", ratios)


def _causal(method: Method, seed: int) -> Iterator[Measurement]:
    """The change in all rows up to a position when every key and value after it changes."""
    if not method.causal_safe:
        return
    ratios = []
    for scale in SCALES:
        question = _question(seed, scale, LONG, causal=True)
        before = _outputs(method, question, seed)
        for last in (0, 1, 126, 127, 128, 200, 255):
            later = slice(last + 1, None)
            key, value = question.key.copy(), question.value.copy()
            key[later], value[later] = -2.0 * key[later] + 1.0, 3.0 - value[later]
            after = _outputs(method, question._replace(key=key, value=value), seed)
            errors = [largest((a - b)[: last + 1]) for a, b in zip(after, before, strict=True)]
            ratios.append(largest(errors) / _rounding(question))
    yield over_rounding(label(method), "the future plays no part", ratios)


def _sums(method: Method, seed: int) -> Iterator[Measurement]:
    """The sums of a summary against those of its kernel estimates, key by key: the quotient, and the normaliser."""
    if not isinstance(method, KeySummaryMethod):
        return
    ratios = []
    for question in _questions(method, seed, causal=False):
        tokens, queries = _parts(question)
        right = _with_ones(question)
        for size, summary in zip(SIZES, method.summaries(tokens, queries, SIZES, _streams(method, seed)), strict=True):
            sums, parts = summary.sums(queries), []
            for keys in (slice(0, 7), slice(7, len(question.key))):
                kernel = summary.kernel(queries, keys)
                logs = kernel.log_scale - sums.log_peak
                parts.append(np.exp(logs) * (1.0 if kernel.values is None else kernel.values))
            total = np.concatenate(parts, axis=-1) @ right
            condition = _mass(summary, queries, len(question.key), size, sums.log_peak)
            ratios.append(largest((sums.total - total) / condition) / _rounding(question))
    yield over_rounding(label(method), "sums are those of its kernel", ratios)


def _mass(summary: KeySummary, queries: Queries, length: int, size: int, log_peak: np.ndarray) -> np.ndarray:
    """The sum of the sizes of all terms for each query: of features, and of estimates that prefixes subtract again."""
    kernel = summary.kernel(queries, slice(0, length))
    terms = 1.0 if kernel.values is None else np.maximum(np.abs(kernel.values), float(size))
    mass = np.sum(np.exp(kernel.log_scale - log_peak) * terms * np.ones((1, length)), axis=-1, keepdims=True)
    if isinstance(summary, GuardedSummary):
        return mass + sum(_mass(part, queries, length, size, log_peak) for part in (summary.free, summary.bound))
    inner, first = getattr(summary, "inner", None), getattr(summary, "n", 0)
    if inner is None:
        return mass
    positions = None if queries.positions is None else queries.positions - first
    return mass + _mass(inner, queries._replace(positions=positions), length - first, size, log_peak)


def _unbiased(method: Method, seed: int) -> Iterator[Measurement]:
    """The mean of the sums with [value, 1] over many draws, relative to the exact normaliser."""
    if not (isinstance(method, KeySummaryMethod) and method.unbiased):
        return
    question = _question(seed, SCALES[0])
    tokens, queries = _parts(question)
    kernel = np.exp(question.query @ question.key.T)
    scale = np.sum(kernel, axis=-1, keepdims=True)
    expected, streams, drawn = (
        kernel @ _with_ones(question) / scale,
        Streams.of(stream(seed, "verify", method.name)),
        [],
    )
    for _ in range(DRAWS):
        (summary,) = method.summaries(tokens, queries, (SIZES[-1],), streams)
        sums = summary.sums(queries)
        drawn.append(sums.total * np.exp(sums.log_peak) / scale)
    errors = np.array(drawn) - expected
    spread = np.std(errors, axis=0, ddof=1) / math.sqrt(DRAWS)
    certain = spread <= 4.0 * EPS * len(question.key)  # what does not vary must be right to rounding
    z = np.where(certain, np.abs(np.mean(errors, axis=0)) / (EPS * 1e3), np.mean(errors, axis=0) / spread)
    yield Measurement(label(method), "unbiased sums", largest(z), z.size, f"{DRAWS} draws")


def _permuted(method: Method, seed: int) -> Iterator[Measurement]:
    """The error with the keys in another order: the same where nothing is random, else the same in the mean."""
    if not method.permutation_invariant:
        return
    claim, question = "the order of keys plays no part", _question(seed, SCALES[1])
    order = stream(seed, "verify", "order").permutation(LENGTH)
    other = question._replace(key=question.key[order], value=question.value[order])
    if not method.random:
        pairs = zip(_outputs(method, question, seed), _outputs(method, other, seed), strict=True)
        conditioned = 1.0 if method.convex else 1e6
        ratios = [largest(a - b) / _rounding(question) / conditioned for a, b in pairs]
        yield over_rounding(label(method), claim, ratios)
        return
    exact, logs = _exact(question), []
    for problem in (question, other):
        streams = Streams.of(stream(seed, "verify", "order", method.name, len(logs)))
        errors = [next(method.estimates(problem, (SIZES[-1],), streams)).output - exact for _ in range(DRAWS // 4)]
        logs.append([math.log(np.mean(error**2)) for error in errors])
    # Where nothing is drawn after all, errors differ by rounding alone: that is no spread to test with.
    spread = math.hypot(1e-12, *(np.std(part, ddof=1) / math.sqrt(len(part)) for part in logs))
    z = (np.mean(logs[0]) - np.mean(logs[1])) / spread
    yield Measurement(label(method), claim, largest(z), 1, f"{DRAWS // 4} draws of each order")


#: A claim yields nothing for a method that does not make it.
CLAIMS: tuple[Callable[[Method, int], Iterator[Measurement]], ...] = (
    _convex, _row_sums, _exact_at_full_size, _causal, _sums, _unbiased, cost.of_method, _permuted,
)  # fmt: skip


def _question(seed: int, scale: float, length: int = LENGTH, causal: bool = False) -> AttentionProblem:
    """Scaled queries and keys with a mean; keys fall along one axis, so that their order can be seen."""
    rng = stream(seed, "verify", "methods", scale, length)
    query, key = (scale * rng.standard_normal((length, DIM)) + 0.2 for _ in range(2))
    key = key[np.argsort(-key[:, 0])]
    value = rng.standard_normal((length, VALUES)) + key[:, :VALUES] / scale
    factor = DIM**-0.25
    return AttentionProblem(query * factor, key * factor, value, np.arange(length), causal)


def _questions(method: Method, seed: int, causal: bool = True) -> Iterator[AttentionProblem]:
    for scale in SCALES:
        yield _question(seed, scale)
        if causal and method.causal_safe:
            yield _question(seed, scale, LONG, causal=True)


def _streams(method: Method, seed: int) -> Streams:
    return Streams.of(stream(seed, "verify", "methods", method.name))


def _outputs(method: Method, question: AttentionProblem, seed: int, sizes: tuple[int, ...] = SIZES) -> list[np.ndarray]:
    return [answer.output for answer in method.estimates(question, sizes, _streams(method, seed))]


def _parts(question: AttentionProblem) -> tuple[Tokens, Queries]:
    return Tokens(question.key, question.value), Queries(question.query, question.positions)


def _with_ones(question: AttentionProblem) -> np.ndarray:
    return np.concatenate([question.value, np.ones((len(question.value), 1))], axis=-1)


def _exact(question: AttentionProblem) -> np.ndarray:
    """Softmax attention, all weights at once."""
    logits = np.einsum("id,jd->ij", question.query, question.key)
    if question.causal:
        logits = np.where(np.tri(*logits.shape, dtype=bool), logits, -np.inf)
    return softmax(logits, axis=-1) @ question.value


def _rounding(question: AttentionProblem) -> float:
    """Of a weighted mean of values: eps times the largest logit that is exponentiated, and the terms of its sums."""
    norms = [np.max(np.linalg.norm(part, axis=-1)) for part in question[:2]]
    return 8.0 * EPS * (norms[0] * norms[1] + DIM + len(question.key)) * largest(question.value)
