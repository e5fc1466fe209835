"""Attention the plain way: every term of every kernel value, in log space, one query at a time.

It shares no code with the estimators beyond the features themselves, and needs neither tiles, running maxima nor prefix
sums: what these do is held against it, at norms where nothing else can be computed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from favorbench.numerics.arrays import Features


class Dense(NamedTuple):
    """Outputs (n, d_v) and, for each query, how much rounding of the terms grows in them: (n, 1).

    Sum of absolute terms over the absolute sum, 1 where no term is negative.
    """

    output: np.ndarray
    condition: np.ndarray


def quotient(
    queries: Sequence[Features], keys: Sequence[Features], value: np.ndarray, size: int, causal: bool = False
) -> Dense:
    """sum_j K_ij v_j / sum_j K_ij with K = phi(x).phi(y) of the first ``size`` projections; causal: over j <= i."""
    outputs, conditions = [], []
    for i in range(queries[0].log_scale.shape[-2]):
        seen = slice(0, i + 1) if causal else slice(None)
        signs, logs = zip(*(_terms(q, k, i, seen, size) for q, k in zip(queries, keys, strict=True)), strict=True)
        sign, log = np.concatenate(signs, axis=-1), np.concatenate(logs, axis=-1)
        largest = np.max(log)
        terms = sign * np.exp(log - largest) if np.isfinite(largest) else sign * np.nan
        kernel, total = np.sum(terms, axis=-1), np.sum(terms)
        outputs.append(kernel @ value[seen] / total)
        conditions.append([np.sum(np.abs(terms)) / np.abs(total)])
    return Dense(np.array(outputs), np.array(conditions))


def _terms(query: Features, key: Features, i: int, seen: slice, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Signs and logs of the terms phi_r(x_i) phi_r(y_j) of one block, each (keys, columns)."""
    q, k = query.columns(0, size), key.columns(0, size)
    log = q.log_scale[i] + k.log_scale[seen] - (0.0 if q.fixed else np.log(size))
    left = 1.0 if q.values is None else q.values[i]
    right = 1.0 if k.values is None else k.values[seen]
    columns = size if not q.fixed else max(part.shape[-1] for part in (*q[:2], *k[:2]) if part is not None)
    shape = (log.shape[0], columns)
    return np.broadcast_to(left * right, shape), np.broadcast_to(log, shape)


def softmax(logits: np.ndarray, value: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """Softmax attention from all logits (n, l), whole rows at once; seen: which keys each query sees."""
    logits = logits if seen is None else np.where(seen, logits, -np.inf)
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return weights @ value / np.sum(weights, axis=-1, keepdims=True)
