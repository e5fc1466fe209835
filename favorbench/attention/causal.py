"""Causal attention: every query sees the keys up to its own position. Exact, and linear as chunked prefix sums."""

from collections.abc import Iterator, Sequence

import numpy as np
from array_api_compat import device

from favorbench.attention.estimator import Estimate, Estimator
from favorbench.numerics.arrays import Array, Features, array_namespace, projected
from favorbench.numerics.logsum import Accumulator, accumulate, joined, merge, prefix_sums, quotient, with_ones

CHUNK = 128  # positions treated together: a chunk costs CHUNK^2 kernel values, all chunks together O(L)


def causal_exact_attention(query: Array, key: Array, value: Array, positions: np.ndarray | None = None) -> Array:
    """Masked softmax attention of (..., n, d) queries at these positions (increasing; None: 0..n-1), in tiles."""
    xp = array_namespace(query)
    scaled, right, outputs = query * query.shape[-1] ** -0.5, with_ones(value), []
    positions = np.arange(query.shape[-2]) if positions is None else positions
    for rows in chunks(len(positions)):
        state, last = None, int(positions[rows][-1])
        for keys in chunks(last + 1, 8 * CHUNK):
            logits = scaled[..., rows, :] @ xp.matrix_transpose(key[..., keys, :])
            if keys.stop > positions[rows][0] + 1:
                seen = visible(positions[rows], keys, logits)
                logits = xp.where(seen, logits, xp.full_like(logits, -xp.inf))
            state = accumulate(state, Features(None, logits), right[..., keys, :])
        outputs.append(quotient(state)[0])
    return xp.concat(outputs, axis=-2)


def causal_outputs(
    query: Array,
    key: Array,
    value: Array,
    omega: Array,
    estimators: Sequence[Estimator],
    positions: np.ndarray | None = None,
) -> Iterator[Estimate]:
    """The estimates of a chunk of positions for each estimator, chunk by chunk.

    What lies before the chunk enters through a summary of one row per feature, the chunk's own keys through kernel
    values under the mask: both are sums over features, for every R from one pass, so they are one product. A query's
    features are taken relative to the largest key up to the end of its chunk. O(L) time, no L x R x d_v array.
    Katharopoulos et al. 2020, arXiv 2006.16236, eq. (9)-(12).
    """
    xp, scale = array_namespace(query), query.shape[-1] ** -0.25
    right = with_ones(value)
    positions = np.arange(query.shape[-2]) if positions is None else positions
    summaries: list[Sequence[Accumulator]] = [() for _ in estimators]
    for keys in chunks(key.shape[-2]):
        rows = slice(*(int(i) for i in np.searchsorted(positions, (keys.start, keys.stop))))
        x, y, values = query[..., rows, :] * scale, key[..., keys, :] * scale, right[..., keys, :]
        of_query, of_key = projected(x, omega), projected(y, omega)
        for index, estimator in enumerate(estimators):
            feature_map, sample = estimator.map, estimator.sample(omega)
            width = sample.omega.shape[-2]
            blocks = [b.transposed() for b in feature_map.key_features(y, of_key[..., :width], sample)]
            past = summaries[index]
            summaries[index] = present = [
                merge(past[i] if past else None, accumulate(None, block, values)) for i, block in enumerate(blocks)
            ]
            if rows.start == rows.stop:
                continue
            queries = feature_map.query_features(x, of_query[..., :width], sample)
            factors = [
                _past_and_own(past[i] if past else None, now.log_peak, block, values)
                for i, (now, block) in enumerate(zip(present, blocks, strict=True))
            ]
            sums = prefix_sums(*joined(queries, [now.log_peak for now in present], factors), estimator.sizes)
            before, kernel = sums.total[..., : values.shape[-1]], sums.total[..., values.shape[-1] :]
            seen = visible(positions[rows], keys, kernel)
            own = xp.where(seen, kernel, xp.zeros_like(kernel)) @ values
            yield Estimate(index, rows, *quotient(sums._replace(total=before + own)))


def _past_and_own(past: Accumulator | None, log_peak: Array, keys: Features, values: Array) -> Array:
    """The summary of what lies before the chunk beside the features of its own keys, divided by exp(log_peak)."""
    xp = array_namespace(log_peak)
    own = keys.relative_to(log_peak)
    if past is None:
        before = own[..., :1] * xp.zeros_like(values[..., :1, :])
    else:
        before = past.total * xp.exp(past.log_peak - log_peak)
    return xp.concat([before, own], axis=-1)


def visible(positions: np.ndarray, keys: slice, like: Array) -> Array:
    """True where a key of the slice is not after the query's position."""
    xp = array_namespace(like)
    return xp.asarray(np.arange(keys.start, keys.stop) <= positions[:, None], device=device(like))


def chunks(length: int, step: int = CHUNK) -> list[slice]:
    """Slices of ``step`` that cover range(length)."""
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
