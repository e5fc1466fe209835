"""What methods and baselines are, written down a second time: answers from all weights, as errors over their bounds."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import entr

from favorbench.methods import AttentionProblem, Estimate, Method
from favorbench.methods.monarch import Monarch
from favorbench.methods.nystromformer import Nystromformer
from favorbench.numerics.streams import Streams
from favorbench.registry import label
from favorbench.studies.verify.attention import EPS
from favorbench.studies.verify.checks import Measurement, largest, over_rounding
from favorbench.studies.verify.dense import softmax
from favorbench.studies.verify.questions import DIM, drawn, logits_of, rounding_of, scaled


class Asked(NamedTuple):
    """A method, queries and keys scaled as it takes them, which keys each query sees, (n, l), and all logits (n, l)."""

    method: Method
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    logits: np.ndarray

    @property
    def exact(self) -> np.ndarray:
        """Softmax attention."""
        return softmax(self.logits, self.value, self.seen)

    @property
    def rounding(self) -> float:
        """How far an exact answer may be off."""
        return rounding_of(self.logits, self.value)


#: An answer's error over its bound.
Definition = Callable[[Asked, Estimate], float]


def definition_of(method: Method) -> Definition | None:
    """None where there is none here: of other parameters than its own, but where these are part of a definition."""
    own = method.name in WITH_PARAMETERS or (method.name in DEFINITIONS and method == type(method)())
    return DEFINITIONS[method.name] if own else None


def measure(method: Method, seed: int) -> Iterator[Measurement]:
    """A method's answers against its definition, causal too where it answers there and draws nothing."""
    inputs = drawn(seed, "baseline", 43, 50, 1.0, DIM)
    yield _against_definition(method, inputs, "equals its definition")
    if method.causal_safe and not method.random:
        inputs = drawn(seed, "causal baseline", 150, 150, 1.0, DIM)
        positions = np.array([0, 1, 40, 126, 127, 128, 149])
        inputs = inputs._replace(query=inputs.query[positions], positions=positions, causal=True)
        yield _against_definition(method, inputs, "causal equals masked")


def _against_definition(method: Method, inputs: AttentionProblem, claim: str) -> Measurement:
    define = definition_of(method)
    if define is None:
        return Measurement(label(method), claim, None, 0, "nothing declared: no definition here")
    seen = np.ones((len(inputs.query), len(inputs.key)), dtype=bool)
    if inputs.causal and inputs.positions is not None:
        seen = np.arange(len(inputs.key)) <= inputs.positions[:, None]
    few = (1, 2) if define in OF_SOME_KEYS else (1, 2, 7, 12)
    question = scaled(inputs)
    asked = Asked(method, *question[:3], seen, logits_of(inputs))
    answers = method.estimates(question, (*few, len(inputs.key)), Streams.of(np.random.default_rng(0)))
    ratios = [define(asked, answer) for answer in answers]
    return over_rounding(label(method), claim, ratios or [math.inf])


def _polynomial(order: int) -> Definition:
    """sum_j p(s_ij) v_j / sum_j p(s_ij) for the Taylor polynomial p of exp: where p < 0, normalisers cancel."""

    def ratio(asked: Asked, answer: Estimate) -> float:
        logits = asked.logits
        kernel = np.where(asked.seen, sum(logits**n / math.factorial(n) for n in range(order + 1)), 0.0)
        total = np.sum(kernel, axis=-1, keepdims=True)
        # the features of x.y are products of coordinates, whose terms add up to those of |x||y|
        norms = np.linalg.norm(asked.query, axis=-1)[:, None] * np.linalg.norm(asked.key, axis=-1)
        terms = sum(norms**n / math.factorial(n) for n in range(order + 1))
        condition = np.sum(np.where(asked.seen, terms, 0.0), axis=-1, keepdims=True) / np.abs(total)
        expected = kernel @ asked.value / total
        bound = asked.rounding * condition * (1.0 + np.abs(expected) / largest(asked.value))
        return largest((answer.output - expected) / bound)

    return ratio


def _uniform(asked: Asked, answer: Estimate) -> float:
    expected = np.array([[math.fsum(column[row]) / np.sum(row) for column in asked.value.T] for row in asked.seen])
    return largest(answer.output - expected) / rounding_of(np.zeros(1), asked.value)


def _best_rank(asked: Asked, answer: Estimate) -> float:
    """The truncated singular value decomposition, and its row sums; the code's route has half of its digits."""
    matrix = softmax(asked.logits, np.eye(len(asked.key)))
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    size = answer.size
    right_hand = np.concatenate([asked.value, np.ones((len(asked.key), 1))], axis=-1)
    expected = (left[:, :size] * values[:size]) @ right[:size] @ right_hand
    sums = np.full_like(expected[:, -1:], np.nan) if answer.row_sums is None else answer.row_sums
    error = np.concatenate([answer.output, sums], axis=-1) - expected
    return largest(error) / (math.sqrt(EPS) * values[0] * np.linalg.norm(right_hand))


def _landmarks(asked: Asked, answer: Estimate) -> float:
    """h(X, S) h(S, S)^-1 h(S, Y) for some R keys S: whichever come nearest, of all there are, for R up to 2.

    Through all keys it is exact attention, but for what a key that is left out lacks, the root of its residual.
    """
    count, size = len(asked.key), answer.size or 0
    if size == count:
        left_out = (count - answer.num_features) * math.sqrt(4.0 * count * EPS)
        bound = 10.0 * asked.rounding + left_out * largest(asked.value)
        return largest(answer.output - asked.exact) / bound
    points = asked.key[list(itertools.combinations(range(count), size))]
    swapped = np.swapaxes(points, -1, -2)
    gram = np.exp(points @ swapped)
    kernel = np.exp(asked.query @ swapped) @ np.linalg.solve(gram, np.exp(points @ asked.key.T))
    total = np.sum(kernel, axis=-1, keepdims=True)
    condition = np.linalg.cond(gram)[:, None, None] * np.sum(np.abs(kernel), axis=-1, keepdims=True) / np.abs(total)
    errors = np.abs((answer.output - kernel @ asked.value / total) / condition)
    return float(np.min(np.max(errors, axis=(-2, -1)))) / (EPS * count * largest(asked.value))


def _some_keys(asked: Asked, answer: Estimate) -> float:
    """Softmax over some m keys: whichever come nearest, of all there are."""
    count, logits = len(asked.key), asked.logits
    subsets = map(list, itertools.combinations(range(count), answer.size or 0))
    errors = [largest(answer.output - softmax(logits[:, chosen], asked.value[chosen])) for chosen in subsets]
    return min(errors) / asked.rounding


def _best_keys(asked: Asked, answer: Estimate) -> float:
    """Softmax over the m largest logits of each query, found by sorting all."""
    logits, size = np.where(asked.seen, asked.logits, -np.inf), answer.size or 0
    best = np.sort(logits, axis=-1)[:, ::-1][:, min(size, logits.shape[-1]) - 1]
    expected = softmax(logits, asked.value, asked.seen & (logits >= best[:, None]))
    return largest(answer.output - expected) / asked.rounding


def _centroids(asked: Asked, answer: Estimate) -> float:
    """Attention to the centroids of the Voronoi cells of some m keys: whichever come nearest, of all there are."""
    count, size = len(asked.key), answer.size or 0
    subsets = itertools.combinations(range(count), size)
    errors = []
    for chosen in subsets:
        distances = np.sum((asked.key[:, None, :] - asked.key[None, list(chosen), :]) ** 2, axis=-1)
        cell = np.argmin(distances, axis=-1)
        members = [cell == i for i in range(size)]
        centres = np.array([np.mean(asked.key[one], axis=0) for one in members])
        logits = asked.query @ centres.T + np.log([np.sum(one) for one in members])
        values = np.array([np.mean(asked.value[one], axis=0) for one in members])
        errors.append(largest(answer.output - softmax(logits, values)))
    return min(errors) / asked.rounding


def _segments(rows: np.ndarray, count: int) -> list[np.ndarray]:
    """Segments in a row, as equal as can be, the longer ones last."""
    return [part[::-1] for part in np.array_split(rows[::-1], count)][::-1]


def _weights(logits: np.ndarray) -> np.ndarray:
    return softmax(logits, np.eye(logits.shape[-1]))


def _nystromformer(asked: Asked, answer: Estimate) -> float:
    """softmax(x Y'^T) Z softmax(X' y^T) v with some steps to Z = softmax(X' Y'^T)^-1, or the pseudo-inverse, and its
    row sums."""
    size, method = answer.size or 0, asked.method
    assert isinstance(method, Nystromformer)
    if size == len(asked.key):
        return largest(answer.output - asked.exact) / asked.rounding
    means = [np.array([np.mean(part, axis=0) for part in _segments(a, size)]) for a in (asked.query, asked.key)]
    middle, identity = _weights(means[0] @ means[1].T), np.eye(size)
    inverse = middle.T / np.max(np.sum(middle, axis=0))
    for _ in range(method.steps):
        product = middle @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    inverse = inverse if method.inverse == "newton" else np.linalg.inv(middle)
    weights = _weights(asked.query @ means[1].T) @ inverse @ _weights(means[0] @ asked.key.T)
    row_sums = np.sum(weights, axis=-1, keepdims=True)
    given = np.full_like(row_sums, np.nan) if answer.row_sums is None else answer.row_sums
    condition = np.linalg.cond(middle) ** 2 * max(1.0, largest(inverse))
    errors = [largest(answer.output - weights @ asked.value), largest(given - row_sums) * largest(asked.value)]
    return largest(errors) / (condition * asked.rounding)


def _monarch(asked: Asked, answer: Estimate) -> float:
    """In turn the weights of each block's keys, for the mean query of each place in a block, and those of the blocks,
    from the mean logit under these weights plus their entropy. The first mean is the block's own query at that place,
    its last where it has none there."""
    count, method = max(answer.size or 0, math.isqrt(len(asked.key) - 1) + 1), asked.method
    assert isinstance(method, Monarch)
    if count == len(asked.key):
        return largest(answer.output - asked.exact) / asked.rounding
    queries, keys, values = (_segments(a, count) for a in (asked.query, asked.key, asked.value))
    blocks, present = range(count), [(r, j) for r, block in enumerate(queries) for j in range(len(block))]
    places = range(len(queries[-1]))
    mean = {(c, j): queries[c][min(j, len(queries[c]) - 1)] for c in blocks for j in places}
    right: dict[tuple[int, int], np.ndarray] = {}
    left: dict[tuple[int, int], np.ndarray] = {}
    for step in range(method.steps):
        for c, j in itertools.product(blocks, places):
            of_place = [r for r in blocks if (r, j) in present]
            if step:
                shares = np.array([left[r, j][c] for r in of_place])
                mean[c, j] = shares @ np.array([queries[r][j] for r in of_place]) / np.sum(shares)
            right[c, j] = _weights(mean[c, j] @ keys[c].T)
        for r, j in present:
            centres = np.array([right[c, j] @ keys[c] for c in blocks])
            left[r, j] = _weights(centres @ queries[r][j] + [np.sum(entr(right[c, j])) for c in blocks])
    expected = [left[r, j] @ np.array([right[c, j] @ values[c] for c in blocks]) for r, j in present]
    return largest(answer.output - np.array(expected)) / (method.steps * asked.rounding)


#: By name.
DEFINITIONS: dict[str, Definition] = {
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

#: Those whose keys may be any: all subsets of so many are tried, so there can be few.
OF_SOME_KEYS = (_landmarks, _some_keys, _centroids)
#: Those whose definition has their parameters in it.
WITH_PARAMETERS = ("nystromformer", "monarch", "thinformer")
