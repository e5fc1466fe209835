"""Claims on what all estimators are compared with: exact attention, by a plain second route."""

import math

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.baselines.trivial import taylor_attention
from favorbench.studies.verify.checks import Measurement, largest, over_rounding
from favorbench.studies.verify.dense import softmax
from favorbench.studies.verify.questions import drawn, logits_of, rounding_of, scaled

#: Around every edge of a chunk of positions (128) and of a tile of keys (2048, and 1024 under a mask).
LENGTHS = (1, 2, 127, 128, 129, 130, 257, 1023, 1024, 1025, 2047, 2048, 2049, 2050, 5000)
QUERIES = 12
#: Of queries and keys: weights spread over all keys, and logits up to some hundreds, of which one key has all.
SCALES = (0.5, 8.0)


def measure(seed: int) -> list[Measurement]:
    """All of exact attention."""
    return [_exact(seed), _causal(seed), exact_features(seed)]


def _exact(seed: int) -> Measurement:
    """Exact attention against all weights at once."""
    ratios = []
    for length in LENGTHS:
        for scale in SCALES:
            inputs = drawn(seed, "exact", QUERIES, length, scale)
            logits = logits_of(inputs)
            error = exact_attention(*inputs[:3]) - softmax(logits, inputs.value)
            ratios.append(largest(error) / rounding_of(logits, inputs.value))
    return over_rounding("exact attention", "equals dense softmax", ratios)


def _causal(seed: int) -> Measurement:
    """The same under a mask: of every position of the shorter sequences, and around the edges of the longer ones."""
    ratios = []
    for length in LENGTHS:
        for scale in SCALES:
            inputs = drawn(seed, "causal exact", length, length, scale)
            edges = {i for i in (0, 1, *(n + step for n in LENGTHS for step in (-2, -1))) if 0 <= i < length}
            positions = np.arange(length) if length < 300 else np.array(sorted(edges | {length - 1}))
            some = inputs._replace(query=inputs.query[positions])
            logits, seen = logits_of(some), np.arange(length) <= positions[:, None]
            expected = softmax(logits, inputs.value, seen)
            outputs = [exact_attention(*some[:3], causal=True, positions=positions)]
            if len(positions) == length:
                outputs.append(exact_attention(*some[:3], causal=True))
            errors = [largest(output - expected) for output in outputs]
            ratios.append(largest(errors) / rounding_of(logits, inputs.value))
    return over_rounding("exact attention", "causal equals masked", ratios)


def exact_features(seed: int, order: int = 24) -> Measurement:
    """Linear attention with enough Taylor features is exact attention: the remainder is below rounding."""
    inputs = drawn(seed, "exact features", 48, 48, 0.5, dim=2)
    answer, logits = taylor_attention(scaled(inputs), order), logits_of(inputs)
    logit = largest(logits)
    remainder = np.exp(logit) * logit ** (order + 1) / math.factorial(order + 1)
    condition = np.exp(2.0 * logit)  # of normalisers, which are at least exp(-logit) where terms are at most exp(logit)
    bound = rounding_of(logits, inputs.value) * condition + 2.0 * remainder * largest(inputs.value)
    error = largest(answer.output - exact_attention(*inputs[:3]))
    detail = f"{answer.num_features} features, error {error:.1e}"
    return Measurement(f"taylor-{order}", "exact features, exact attention", error / bound, 0, detail)
