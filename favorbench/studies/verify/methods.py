"""What methods and baselines declare, each held to it on queries and keys of two scales, causal too."""

import math
from collections.abc import Iterator

import numpy as np

from favorbench.baselines import BASELINES
from favorbench.methods import METHODS, AttentionProblem, Method, SampledKeys, get_method
from favorbench.methods.clusters import Clusters
from favorbench.methods.guarded import GuardedSummary
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label
from favorbench.studies.verify import cost, definitions, landmarks
from favorbench.studies.verify.checks import Measurement, largest, over_rounding
from favorbench.studies.verify.dense import softmax
from favorbench.studies.verify.weights import is_defined, weights_of

EPS = float(np.finfo(float).eps)
#: LONG: four chunks, of which the third joins cells that there are and the last is no whole one.
DIM, VALUES, LENGTH, LONG = 6, 3, 48, 400
SIZES = (1, 5, 16)
#: Of which half are as many keys as a cell has, of all that precede the last chunk.
LARGER = 40
#: Of queries and keys: weights spread over all keys, and on few of them.
SCALES = (0.5, 4.0)
#: Logits of thousands, of which some are hundreds above those of the centroid of their cell.
FAR = 40.0
#: Draws of what can only be seen in the mean.
DRAWS = 2000
#: Prefixes, which stand in no list of members: each around a method and around a map. And parameters that change more
#: than a number.
PREFIXED = (
    "sinks(2):clusters", "window(5):multipole", "top(1):sampled-keys", "sinks(2):window(5):positive",
    "window(6):clusters(order=2)", "top(2):clusters(lloyd=1)",
)  # fmt: skip


def measure(seed: int) -> list[Measurement]:
    """All that is declared by all."""
    members = [member() for member in (*METHODS, *BASELINES)] + [get_method(spec) for spec in PREFIXED]
    members.append(SampledKeys(weights="values"))
    return [measurement for method in members for measurement in of_method(method, seed)]


def of_method(method: Method, seed: int) -> Iterator[Measurement]:
    """What one method declares."""
    if method.convex:
        yield _worst(method, "weighted means of values", [_outside(method, q, seed) for q in _questions(method, seed)])
    if not method.oracle and method.name != "best-rank":
        yield _worst(method, "row sums", [_from_row_sums(method, q, seed) for q in _questions(method, seed)])
    if definitions.definition_of(method):
        yield from definitions.measure(method, seed)
    if method.exact_at_full_size and (method.convex or not definitions.definition_of(method)):
        ratios = [_from_exact(method, question, seed) for question in _questions(method, seed)]
        yield _worst(method, "exact at m = l", ratios)
    if method.causal_safe:
        yield _worst(method, "the future plays no part", [_seen_of_future(method, scale, seed) for scale in SCALES])
    if isinstance(method, KeySummaryMethod):
        ratios = [_sums_apart(method, question, seed) for question in _questions(method, seed, causal=False)]
        yield _worst(method, "sums are those of its kernel", ratios)
        if method.unbiased:
            yield _unbiased(method, seed)
    if is_defined(method):
        # blocks of queries whose windows are taken together, and enough pairs of keys that each choice can be seen
        questions = [*_questions(method, seed), _question(seed, SCALES[0], LONG)]
        questions += [_fewer(question) for question in questions[:1] if not method.oracle]
        far = not any(part in label(method) for part in ("order=2", ":lara"))  # whose estimates of a key may be e^1000
        questions += [_question(seed, FAR)] if far else []
        yield _worst(method, "the weights that it defines", [_apart(method, q, seed) for q in questions])
    if landmarks.through_landmarks(method):
        yield _worst(method, "the landmarks that it draws", [_from_landmarks(method, seed)])
    if isinstance(method, Clusters) and method.order == 1:
        ratios = [_above_exact(method, question, seed) for question in _questions(method, seed, causal=False)]
        yield _worst(method, "normaliser below the exact one", ratios)
    yield cost.of_method(method, seed)
    if method.permutation_invariant:
        yield _permuted(method, seed)


def _worst(method: Method, claim: str, ratios: list[float]) -> Measurement:
    return over_rounding(label(method), claim, ratios)


def _question(seed: int, scale: float, length: int = LENGTH, causal: bool = False) -> AttentionProblem:
    """Scaled queries and keys with a mean, keys in falling order of one axis, so that an order can be seen."""
    rng = stream(seed, "verify", "methods", scale, length)
    query, key = (scale * rng.standard_normal((length, DIM)) + 0.2 for _ in range(2))
    key = key[np.argsort(-key[:, 0])]
    value = rng.standard_normal((length, VALUES)) + key[:, :VALUES] / scale
    factor = DIM**-0.25
    return AttentionProblem(query * factor, key * factor, value, np.arange(length), causal)


def _fewer(question: AttentionProblem) -> AttentionProblem:
    """Of the last two thirds of the tokens, every second one asks."""
    asked = np.arange(len(question.query) // 3, len(question.query), 2)
    return question._replace(query=question.query[asked], positions=asked)


def _questions(method: Method, seed: int, causal: bool = True) -> Iterator[AttentionProblem]:
    for scale in SCALES:
        yield _question(seed, scale)
        if causal and method.causal_safe:
            yield _question(seed, scale, LONG, causal=True)


def _answers(method: Method, question: AttentionProblem, sizes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    streams = Streams.of(stream(seed, "verify", "methods", method.name))
    return [answer.output for answer in method.estimates(question, sizes, streams)]


def _exact(question: AttentionProblem) -> np.ndarray:
    logits = np.einsum("id,jd->ij", question.query, question.key)
    seen = np.tri(*logits.shape, dtype=bool) if question.causal else None
    return softmax(logits, question.value, seen)


def _apart(method: Method, question: AttentionProblem, seed: int) -> float:
    """Answers against those from all weights, with the same draws."""
    found, sizes = 0.0, (*SIZES, LARGER)
    for size, output in zip(sizes, _answers(method, question, sizes, seed), strict=True):
        weights = weights_of(method, question, size, stream(seed, "verify", "methods", method.name))
        expected, condition = weights.output(question.value)
        found = max(found, largest((output - expected) / condition) / _rounding(question))
    return found


def _from_landmarks(method: Method, seed: int) -> float:
    """Where the kernel of the landmarks is far from singular; weights of some keys are outputs, which may be < 0."""
    found = 0.0
    for scale in (SCALES[0], 2.0 * SCALES[0]):
        question = _question(seed, scale)._replace(value=np.eye(LENGTH)[:, :: LENGTH // VALUES])
        for size, output in zip(SIZES, _answers(method, question, SIZES, seed), strict=True):
            rng = stream(seed, "verify", "methods", method.name)
            expected, rounding = landmarks.answer(method, question, size, rng)
            found = max(found, largest(output - expected) / rounding)
    return found


def _rounding(question: AttentionProblem) -> float:
    """Of a weighted mean of values: eps times the largest logit that is exponentiated, and the terms of its sums."""
    norms = [np.max(np.linalg.norm(part, axis=-1)) for part in question[:2]]
    return 8.0 * EPS * (norms[0] * norms[1] + DIM + len(question.key)) * largest(question.value)


def _outside(method: Method, question: AttentionProblem, seed: int) -> float:
    """How far outputs lie outside the values, along axes and random directions."""
    directions = stream(seed, "verify", "directions").standard_normal((VALUES, 50))
    directions = np.concatenate([np.eye(VALUES), directions / np.linalg.norm(directions, axis=0)], axis=1)
    values, found = question.value @ directions, 0.0
    for output in _answers(method, question, SIZES, seed):
        along = output @ directions
        above = np.max(along - np.max(values, axis=0)), np.max(np.min(values, axis=0) - along)
        found = max(found, *(largest(max(x, 0.0) if x == x else math.nan) for x in above))
    return found / _rounding(question)


def _from_exact(method: Method, question: AttentionProblem, seed: int) -> float:
    (output,) = _answers(method, question, (len(question.key),), seed)
    return largest(output - _exact(question)) / _rounding(question)


def _from_row_sums(method: Method, question: AttentionProblem, seed: int) -> float:
    """The answer where every value is 1 against the row sums that it gives, or 1."""
    ones, found = question._replace(value=np.ones_like(question.value)), 0.0
    for answer in method.estimates(ones, SIZES, Streams.of(stream(seed, "verify", "methods", method.name))):
        error = answer.output - (1.0 if answer.row_sums is None else answer.row_sums)
        found = max(found, largest(error / np.maximum(1.0, np.abs(answer.output))))
    return found / _rounding(ones)


def _seen_of_future(method: Method, scale: float, seed: int) -> float:
    """The change in all rows up to a position when every key and value after it changes."""
    question, found = _question(seed, scale, LONG, causal=True), 0.0
    before = _answers(method, question, SIZES, seed)
    for last in (0, 1, 126, 127, 128, 200, 255):
        later = slice(last + 1, None)
        key, value = question.key.copy(), question.value.copy()
        key[later], value[later] = -2.0 * key[later] + 1.0, 3.0 - value[later]
        after = _answers(method, question._replace(key=key, value=value), SIZES, seed)
        errors = [largest((a - b)[: last + 1]) for a, b in zip(after, before, strict=True)]
        found = max(found, largest(errors) / _rounding(question))
    return found


def _sums_apart(method: KeySummaryMethod, question: AttentionProblem, seed: int) -> float:
    """Its sums against those of its kernel estimates, key by key: the quotient, and the normaliser."""
    tokens, queries = Tokens(question.key, question.value), Queries(question.query, question.positions)
    streams, found = Streams.of(stream(seed, "verify", "methods", method.name)), 0.0
    for size, summary in zip(SIZES, method.summaries(tokens, queries, SIZES, streams), strict=True):
        sums, parts = summary.sums(queries), []
        for keys in (slice(0, 7), slice(7, len(question.key))):
            kernel = summary.kernel(queries, keys)
            logs = kernel.log_scale - sums.log_peak
            parts.append(np.exp(logs) * (1.0 if kernel.values is None else kernel.values))
        weights = np.concatenate(parts, axis=-1)
        total = weights @ np.concatenate([question.value, np.ones((len(question.key), 1))], axis=-1)
        condition = _mass(summary, queries, len(question.key), size, sums.log_peak) * largest(question.value)
        found = max(found, largest((sums.total - total) / condition))
    return found * largest(question.value) / _rounding(question)


def _mass(summary: KeySummary, queries: Queries, length: int, size: int, log_peak: np.ndarray) -> np.ndarray:
    """The sizes of all terms that are added up for each query: of features, and of what prefixes take out again."""
    kernel = summary.kernel(queries, slice(0, length))
    terms = 1.0 if kernel.values is None else np.maximum(np.abs(kernel.values), float(size))
    own = np.sum(np.exp(kernel.log_scale - log_peak) * terms * np.ones((1, length)), axis=-1, keepdims=True)
    if isinstance(summary, GuardedSummary):
        return own + sum(_mass(part, queries, length, size, log_peak) for part in (summary.free, summary.bound))
    inner, first = getattr(summary, "inner", None), getattr(summary, "n", 0)
    if inner is None:
        return own
    positions = None if queries.positions is None else queries.positions - first
    return own + _mass(inner, queries._replace(positions=positions), length - first, size, log_peak)


def _above_exact(method: Clusters, question: AttentionProblem, seed: int) -> float:
    """How far the log of its normaliser is above the exact one's: never, by Jensen's inequality."""
    tokens, queries = Tokens(question.key, question.value), Queries(question.query, question.positions)
    logits = question.query @ question.key.T
    peak = np.max(logits, axis=-1, keepdims=True)
    exact = peak + np.log(np.sum(np.exp(logits - peak), axis=-1, keepdims=True))
    streams, found = Streams.of(stream(seed, "verify", "methods", method.name)), 0.0
    for summary in method.summaries(tokens, queries, SIZES, streams):
        sums = summary.sums(queries)
        above = sums.log_peak + np.log(sums.total[:, -1:]) - exact
        found = max(found, largest(np.maximum(above, 0.0)))
    return found * largest(question.value) / _rounding(question)


def _unbiased(method: KeySummaryMethod, seed: int) -> Measurement:
    """The mean of the kernel estimate's sums with [value, 1], relative to the exact normaliser, over many draws."""
    question = _question(seed, SCALES[0])
    tokens, queries = Tokens(question.key, question.value), Queries(question.query, question.positions)
    logits = question.query @ question.key.T
    right = np.concatenate([question.value, np.ones((LENGTH, 1))], axis=-1)
    scale = np.sum(np.exp(logits), axis=-1, keepdims=True)
    expected, streams, drawn = np.exp(logits) @ right / scale, Streams.of(stream(seed, "verify", method.name)), []
    for _ in range(DRAWS):
        (summary,) = method.summaries(tokens, queries, (SIZES[-1],), streams)
        sums = summary.sums(queries)
        drawn.append(sums.total * np.exp(sums.log_peak) / scale)
    errors = np.array(drawn) - expected
    spread = np.std(errors, axis=0, ddof=1) / math.sqrt(DRAWS)
    certain = spread <= 4.0 * EPS * len(question.key)  # what does not vary must be right to rounding
    z = np.where(certain, np.abs(np.mean(errors, axis=0)) / (EPS * 1e3), np.mean(errors, axis=0) / spread)
    return Measurement(label(method), "unbiased sums", largest(z), z.size, f"{DRAWS} draws")


def _permuted(method: Method, seed: int) -> Measurement:
    """The error with the keys in another order: the same where nothing is random, else the same in the mean."""
    claim, question = "the order of keys plays no part", _question(seed, SCALES[1])
    order = stream(seed, "verify", "order").permutation(LENGTH)
    other = question._replace(key=question.key[order], value=question.value[order])
    if not method.random:
        pairs = zip(_answers(method, question, SIZES, seed), _answers(method, other, SIZES, seed), strict=True)
        conditioned = 1.0 if method.convex else 1e6
        return _worst(method, claim, [largest(a - b) / _rounding(question) / conditioned for a, b in pairs])
    exact, logs = _exact(question), []
    for asked in (question, other):
        streams = Streams.of(stream(seed, "verify", "order", method.name, len(logs)))
        errors = [next(method.estimates(asked, (SIZES[-1],), streams)).output - exact for _ in range(DRAWS // 4)]
        logs.append([math.log(np.mean(error**2)) for error in errors])
    # What draws nothing, though it may, has errors that differ by rounding alone: that is no spread to test with.
    spread = math.hypot(1e-12, *(np.std(each, ddof=1) / math.sqrt(len(each)) for each in logs))
    z = (np.mean(logs[0]) - np.mean(logs[1])) / spread
    return Measurement(label(method), claim, largest(z), 1, f"{DRAWS // 4} draws of each order")
