"""Causal attention: every query sees the keys up to its own position. Exact, and linear as chunked prefix sums."""

import math
from collections.abc import Sequence

from array_api_compat import array_namespace

from favorbench.arrays import Array, Features
from favorbench.logsum import Accumulator, accumulate, quotient, with_ones
from favorbench.maps import FeatureMap, Sample

CHUNK = 128  # positions treated together: a chunk costs CHUNK^2 kernel values, all chunks together O(L)


def causal_exact_attention(query: Array, key: Array, value: Array) -> Array:
    """Masked softmax attention of (..., L, d) float64 arrays, in tiles of CHUNK x CHUNK."""
    xp = array_namespace(query)
    scaled, right, outputs = query * query.shape[-1] ** -0.5, with_ones(value), []
    chunks = _chunks(query.shape[-2])
    for i, rows in enumerate(chunks):
        state = None
        for keys in chunks[: i + 1]:
            logits = scaled[..., rows, :] @ xp.matrix_transpose(key[..., keys, :])
            if keys == rows:
                logits = xp.where(_visible(logits), logits, xp.full_like(logits, -xp.inf))
            state = accumulate(state, Features(None, logits), right[..., keys, :])
        outputs.append(quotient(state)[0])
    return xp.concat(outputs, axis=-2)


def causal_linear_attention(x: Array, y: Array, value: Array, sample: Sample, feature_map: FeatureMap) -> Array:
    """Linear attention of scaled queries x and keys y (..., L, d) as prefix sums over chunks; no L x R x d_v array.

    A query's features are taken relative to the largest key up to the end of its chunk. Katharopoulos et al. 2020,
    arXiv 2006.16236, eq. (9)-(12).
    """
    xp = array_namespace(x)
    weights, right, outputs = xp.matrix_transpose(sample.omega), with_ones(value), []
    past: Sequence[Accumulator | None] = ()
    log_size = math.log(sample.omega.shape[-2])  # a fixed block counts R times, as there is no factor 1/R
    for rows in _chunks(x.shape[-2]):
        x_rows, y_rows, right_rows = x[..., rows, :], y[..., rows, :], right[..., rows, :]
        keys = feature_map.key_features(y_rows, y_rows @ weights, sample)
        past = past or [None for _ in keys]
        present = [accumulate(state, k.transposed(), right_rows) for state, k in zip(past, keys, strict=True)]
        queries = [
            q._replace(log_scale=q.log_scale + xp.matrix_transpose(state.log_peak) + (log_size if q.fixed else 0.0))
            for q, state in zip(feature_map.query_features(x_rows, x_rows @ weights, sample), present, strict=True)
        ]
        outputs.append(_chunk_output(queries, keys, past, present, right_rows))
        past = present
    return xp.concat(outputs, axis=-2)


def _chunk_output(
    queries: Sequence[Features],
    keys: Sequence[Features],
    past: Sequence[Accumulator | None],
    present: Sequence[Accumulator],
    right: Array,
) -> Array:
    """What came before the chunk, through its summary, and the chunk's own keys under the mask."""
    xp = array_namespace(right)
    peak = xp.max(queries[0].log_scale, axis=-1, keepdims=True)
    for q in queries[1:]:
        peak = xp.maximum(peak, xp.max(q.log_scale, axis=-1, keepdims=True))
    scores, total = 0.0, 0.0
    for q, k, before, now in zip(queries, keys, past, present, strict=True):
        left = q.relative_to(peak)
        scores = scores + left @ k.transposed().relative_to(now.log_peak)
        if before is not None:
            total = total + left @ (before.total * xp.exp(before.log_peak - now.log_peak))
    masked = xp.where(_visible(scores), scores, xp.zeros_like(scores))
    return quotient(Accumulator(peak, total + masked @ right))[0]


def _visible(square: Array) -> Array:
    """True where the column is not after the row."""
    xp = array_namespace(square)
    return xp.tril(xp.ones(square.shape[-2:], dtype=xp.bool))


def _chunks(length: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]
