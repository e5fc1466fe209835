"""Claims of methods and baselines, each tested on queries and keys of two scales, causal too."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from favorbench.baselines import BASELINES
from favorbench.methods import METHODS, PREFIXES, AttentionProblem, Method, SampledKeys, get_method
from favorbench.methods.function import Function
from favorbench.methods.landmarks import GuardedSummary
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.streams import Streams, stream
from favorbench.registry import label
from favorbench.studies.verify import cost
from favorbench.studies.verify.checks import EPS, NOT_MEASURABLE, MeasuredClaim, largest, over_rounding

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
    "window(6):clusters(order=2)", "top(2):clusters(lloyd=1)", "multipole(block=16, segment=64)",
    "sinks(2):multipole(block=16, cells='tree', segment=64)", "window(5):multipole(cells='tree')",
)  # fmt: skip


class ExactClaim(NamedTuple):
    """A claim that holds to rounding: which methods make it, and the errors of one problem over their bounds."""

    name: str
    made_by: Callable[[Method], bool]
    ratios: Callable[[Method, AttentionProblem, int], Iterator[float]]


def measure(seed: int) -> list[MeasuredClaim]:
    """Measure every claim of every registered method and baseline."""
    members = [member() for member in (*METHODS, *BASELINES)] + [get_method(spec) for spec in PREFIXED]
    members.append(SampledKeys(weights="values"))
    return [measurement for method in members for measurement in of_method(method, seed)]


def of_method(method: Method, seed: int) -> Iterator[MeasuredClaim]:
    """Measure every claim of one method."""
    for claim in EXACT_CLAIMS:
        if claim.made_by(method):
            ratios = [ratio for problem in _problems(method, seed) for ratio in claim.ratios(method, problem, seed)]
            yield over_rounding(label(method), claim.name, ratios)
    if method.unbiased:
        yield _unbiased(method, seed)
    yield cost.of_method(method, seed)
    if method.permutation_invariant:
        yield _permuted(method, seed)


def _outside_values(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """How far outputs lie outside the values, along axes and random directions."""
    directions = stream(seed, "verify", "directions").standard_normal((VALUES, 50))
    directions = np.concatenate([np.eye(VALUES), directions / np.linalg.norm(directions, axis=0)], axis=1)
    values = problem.value @ directions
    for output in _outputs(method, problem, seed):
        along = output @ directions
        for part in (along - np.max(values, axis=0), np.min(values, axis=0) - along):
            yield largest(np.maximum(part, 0.0)) / _rounding(problem)  # NaN passes through the maximum


def _row_sums(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The output where every value is 1 against the row sums that the method states, or 1."""
    ones = problem._replace(value=np.ones_like(problem.value))
    for estimate in method.estimates(ones, _sizes(method, ones), _streams(method, seed)):
        error = estimate.output - (1.0 if estimate.row_sums is None else estimate.row_sums)
        yield largest(error / np.maximum(1.0, np.abs(estimate.output))) / _rounding(ones)


def _change_of_draw(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """Whether the same draw has other outputs the second time; where nothing is random, another draw, too."""
    first, again = _outputs(method, problem, seed), [_streams(method, seed)]
    if not method.random:
        again.append(Streams.of(stream(seed, "verify", "another draw")))
    for streams in again:
        for estimate, output in zip(method.estimates(problem, _sizes(method, problem), streams), first, strict=True):
            yield largest(estimate.output - output) / _rounding(problem)


def _error_at_full_size(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The output at the largest size up to l against softmax attention; half the digits of our landmark methods."""
    inside = method
    while isinstance(inside, PREFIXES):
        inside = inside.inner
    lost = EPS**-0.5 if isinstance(inside, METHODS) and not method.convex else 1.0
    (output,) = _outputs(method, problem, seed, (min(len(problem.key), method.largest_size(problem.shape)),))
    yield largest(output - _exact(problem)) / _rounding(problem) / lost


def _change_by_future(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The change in all rows up to a position, the end of a block, when every key and value after it changes.

    Also where half of all keys are chosen: of few, hardly any is the next one after a query.
    """
    half = min(len(problem.key), method.largest_size(problem.shape)) // 2
    sizes = tuple(sorted({*_sizes(method, problem), max(1, half)}))
    before = _outputs(method, problem, seed, sizes) if problem.causal else []
    block = method.causal_block
    ends = {-(-end // block) * block for end in (1, 2, 127, 128, 129, 201, 256, len(problem.key) - 90)}
    for end in sorted(ends) if problem.causal else ():
        later = slice(end, None)
        key, value = problem.key.copy(), problem.value.copy()
        key[later], value[later] = -2.0 * key[later] + 1.0, 3.0 - value[later]
        after = _outputs(method, problem._replace(key=key, value=value), seed, sizes)
        errors = [largest((a - b)[:end]) for a, b in zip(after, before, strict=True)]
        yield largest(errors) / _rounding(problem)


def _of_fewer(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The change in each third row when the other queries are left out, as sweeps of long sequences do."""
    rows, problem = slice(1, None, 3), _spread(problem)
    positions = None if problem.positions is None else problem.positions[rows]
    fewer = problem._replace(query=problem.query[rows], positions=positions, fit_query=problem.query)
    for output, alone in zip(_outputs(method, problem, seed), _outputs(method, fewer, seed), strict=True):
        yield largest(output[rows] - alone) / _rounding(problem) / _lost(method)


def _of_single_sizes(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The change in the output of each size when it is the only one."""
    problem = _spread(problem)
    for size, output in zip(_sizes(method, problem), _outputs(method, problem, seed), strict=True):
        (alone,) = _outputs(method, problem, seed, (size,))
        yield largest(output - alone) / _rounding(problem) / _lost(method)


def _of_single_heads(method: Method, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The change in the output of each of two heads, with draws of their own, when it is the only one.

    Infinite where two at a time fail.
    """
    problem = _spread(problem)
    heads = [problem, problem._replace(**{name: getattr(problem, name)[::-1].copy() for name in problem._fields[:3]})]
    both = problem._replace(**{name: np.stack([getattr(head, name) for head in heads]) for name in problem._fields[:3]})
    streams = Streams([_streams(method, seed + i).generators[0] for i in range(len(heads))], np.stack)
    try:
        together = [1 * estimate.output for estimate in method.estimates(both, _sizes(method, problem), streams)]
    except Exception:  # a class for one head at a time, with leading axes
        yield math.inf
        return
    for i, head in enumerate(heads):
        for output, alone in zip(together, _outputs(method, head, seed + i), strict=True):
            error = output[i] - alone if output.shape == (len(heads), *alone.shape) else math.inf
            yield largest(error) / _rounding(problem) / _lost(method)


def _lost(method: Method) -> float:
    """The factor by which rounding may grow: half of the digits are lost at most, and none if weights are positive."""
    return 1.0 if method.convex else EPS**-0.5


def _spread(problem: AttentionProblem) -> AttentionProblem:
    """With short queries, whose weights are spread over all keys: prefixes subtract little."""
    return problem._replace(query=0.1 * problem.query)


def _error_of_sums(method: Any, problem: AttentionProblem, seed: int) -> Iterator[float]:
    """The sums of a summary against those of its kernel estimates, key by key: the quotient, and the normaliser."""
    if problem.causal:
        return
    (tokens, queries), sizes = _parts(problem), _sizes(method, problem)
    for size, summary in zip(sizes, method.summaries(tokens, queries, sizes, _streams(method, seed)), strict=True):
        sums, parts = summary.sums(queries), []
        for keys in (slice(0, 7), slice(7, len(problem.key))):
            kernel = summary.kernel(queries, keys)
            parts.append(np.exp(kernel.log_scale - sums.log_peak) * (1.0 if kernel.values is None else kernel.values))
        total = np.concatenate(parts, axis=-1) @ _with_ones(problem)
        condition = _mass(summary, queries, len(problem.key), size, sums.log_peak)
        yield largest((sums.total - total) / condition) / _rounding(problem)


EXACT_CLAIMS = (
    ExactClaim("weighted means of values", lambda method: method.convex, _outside_values),
    ExactClaim("row sums", lambda method: not method.oracle, _row_sums),
    ExactClaim("a draw can be repeated", lambda method: method.random, _change_of_draw),
    ExactClaim("nothing is random", lambda method: not method.random, _change_of_draw),
    ExactClaim("exact at m = l", lambda method: method.exact_at_full_size, _error_at_full_size),
    ExactClaim("future keys have no effect", lambda m: m.causal_safe and m.causal_block == 1, _change_by_future),
    ExactClaim("keys after a block have no effect", lambda m: m.causal_safe and m.causal_block > 1, _change_by_future),
    ExactClaim("other queries have no effect", lambda m: not (m.needs_all_rows or isinstance(m, Function)), _of_fewer),
    ExactClaim("other sizes have no effect", lambda m: m.every_size and not isinstance(m, Function), _of_single_sizes),
    ExactClaim("other heads have no effect", lambda m: m.arrays == "batched", _of_single_heads),
    ExactClaim("sums are those of its kernel", lambda method: isinstance(method, KeySummaryMethod), _error_of_sums),
)


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


def _unbiased(method: Method, seed: int) -> MeasuredClaim:
    """The mean of the sums with [value, 1] over many draws, relative to the exact normaliser.

    Only a KeySummaryMethod gives its sums; the normaliser of an estimate is known up to a factor that may be random.
    """
    claim = "unbiased sums"
    if not isinstance(method, KeySummaryMethod):
        detail = "it gives the quotient of its sums only"
        return MeasuredClaim(label(method), claim, None, 0, detail, otherwise=NOT_MEASURABLE)
    problem = _question(seed, SCALES[0])
    tokens, queries = _parts(problem)
    kernel = np.exp(problem.query @ problem.key.T)
    scale = np.sum(kernel, axis=-1, keepdims=True)
    streams, drawn = Streams.of(stream(seed, "verify", method.name)), []
    for _ in range(DRAWS):
        (summary,) = method.summaries(tokens, queries, _sizes(method, problem)[-1:], streams)
        sums = summary.sums(queries)
        drawn.append(sums.total * np.exp(sums.log_peak) / scale)
    errors = np.array(drawn) - kernel @ _with_ones(problem) / scale
    mean, spread = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1) / math.sqrt(DRAWS)
    certain = spread <= 4.0 * EPS * len(problem.key)  # without variance it must be right to rounding
    z = np.where(certain, np.abs(mean) / (EPS * 1e3), mean / spread)
    return MeasuredClaim(label(method), claim, largest(z), z.size, f"{DRAWS} draws")


def _permuted(method: Method, seed: int) -> MeasuredClaim:
    """The error with the keys in another order: the same where nothing is random, else the same in the mean."""
    claim, problem = "the order of keys has no effect", _question(seed, SCALES[1])
    order = stream(seed, "verify", "order").permutation(LENGTH)
    other = problem._replace(key=problem.key[order], value=problem.value[order])
    if not method.random:
        pairs = zip(_outputs(method, problem, seed), _outputs(method, other, seed), strict=True)
        conditioned = 1.0 if method.convex else 1e6
        return over_rounding(
            label(method), claim, [largest(a - b) / _rounding(problem) / conditioned for a, b in pairs]
        )
    exact, logs, largest_only = _exact(problem), [], _sizes(method, problem)[-1:]
    for current in (problem, other):
        streams = Streams.of(stream(seed, "verify", "order", method.name, len(logs)))
        errors = [next(method.estimates(current, largest_only, streams)).output - exact for _ in range(DRAWS // 4)]
        logs.append([math.log(np.mean(error**2)) for error in errors])
    # Where nothing is drawn after all, errors differ by rounding alone: that is no spread to test with.
    spread = math.hypot(1e-12, *(np.std(part, ddof=1) / math.sqrt(len(part)) for part in logs))
    z = (np.mean(logs[0]) - np.mean(logs[1])) / spread
    return MeasuredClaim(label(method), claim, largest(z), 1, f"{DRAWS // 4} draws of each order")


def _question(seed: int, scale: float, length: int = LENGTH, causal: bool = False) -> AttentionProblem:
    """Scaled queries and keys with a mean; keys fall along one axis, so that their order can be seen."""
    rng = stream(seed, "verify", "methods", scale, length)
    query, key = (scale * rng.standard_normal((length, DIM)) + 0.2 for _ in range(2))
    key = key[np.argsort(-key[:, 0])]
    value = rng.standard_normal((length, VALUES)) + key[:, :VALUES] / scale
    factor = DIM**-0.25
    return AttentionProblem(query * factor, key * factor, value, np.arange(length), causal)


def _problems(method: Method, seed: int) -> Iterator[AttentionProblem]:
    for scale in SCALES:
        yield _question(seed, scale)
        if method.causal_safe:  # long enough for a complete segment of keys, with queries after it
            short = isinstance(method, KeySummaryMethod) and method.summarised(LONG // 2) == 0
            yield _question(seed, scale, 2 * LONG if short else LONG, causal=True)


def _streams(method: Method, seed: int) -> Streams:
    return Streams.of(stream(seed, "verify", "methods", method.name))


def _sizes(method: Method, problem: AttentionProblem) -> tuple[int, ...]:
    """Those of SIZES with an estimate; the largest one in the place of those beyond."""
    return tuple(sorted({min(size, method.largest_size(problem.shape)) for size in SIZES}))


def _outputs(method: Method, problem: AttentionProblem, seed: int, sizes: tuple[int, ...] = ()) -> list[np.ndarray]:
    sizes = sizes or _sizes(method, problem)
    # copies, as a class may write each output into the same array
    return [1 * estimate.output for estimate in method.estimates(problem, sizes, _streams(method, seed))]


def _parts(problem: AttentionProblem) -> tuple[Tokens, Queries]:
    return Tokens(problem.key, problem.value), Queries(problem.query, problem.positions)


def _with_ones(problem: AttentionProblem) -> np.ndarray:
    return np.concatenate([problem.value, np.ones((len(problem.value), 1))], axis=-1)


def _exact(problem: AttentionProblem) -> np.ndarray:
    """Softmax attention, all weights at once."""
    logits = np.einsum("id,jd->ij", problem.query, problem.key)
    if problem.causal:
        logits = np.where(np.tri(*logits.shape, dtype=bool), logits, -np.inf)
    return softmax(logits, axis=-1) @ problem.value


def _rounding(problem: AttentionProblem) -> float:
    """Rounding of a weighted mean of values: eps times the largest exponentiated logit, and the terms of its sums."""
    norms = [np.max(np.linalg.norm(part, axis=-1)) for part in problem[:2]]
    return 8.0 * EPS * (norms[0] * norms[1] + DIM + len(problem.key)) * largest(problem.value)
