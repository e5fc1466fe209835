"""Causal attention: every query sees the keys up to its own position. Exact, and linear as chunked prefix sums."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.attention.problem import AttentionProblem, SampledMap, Shape, Tile, projection_of
from favorbench.maps import Sample
from favorbench.numerics.arrays import Array, Features, array_namespace, masked
from favorbench.numerics.logsum import (
    Accumulator,
    accumulate,
    accumulate_blocks,
    joined,
    query_sums,
    quotient,
    with_ones,
)

CHUNK = 128  # positions treated together: a chunk costs CHUNK^2 kernel values, all chunks together O(L)


def causal_softmax(problem: AttentionProblem) -> Array:
    """Masked softmax attention, in tiles."""
    query, key, value, positions = problem[:4]
    assert positions is not None
    xp, right, outputs = array_namespace(query), with_ones(value), []
    for rows in chunks(len(positions)):
        state, last = None, int(positions[rows][-1])
        for keys in chunks(last + 1, 8 * CHUNK):
            logits = query[..., rows, :] @ key[..., keys, :].mT
            if keys.stop > positions[rows][0] + 1:
                logits = masked(logits, visible(positions[rows], keys, logits))
            state = accumulate(state, Features(None, logits), right[..., keys, :])
        outputs.append(quotient(state)[0])
    return xp.concat(outputs, axis=-2)


class _Chunk(NamedTuple):
    """Positions treated together.

    Their queries and keys, scaled, the projections of both, [value, 1], the positions of the queries, and those of the
    keys.
    """

    x: Array
    y: Array
    of_query: Array
    of_key: Array
    values: Array
    positions: np.ndarray
    keys: range

    def halves(self) -> Iterator["_Chunk"]:
        """The same positions in two chunks."""
        half = len(self.keys) // 2
        cut = int(np.searchsorted(self.positions, self.keys[half]))
        for rows, keys in ((slice(cut), slice(half)), (slice(cut, None), slice(half, None))):
            x, of_query = (a[..., rows, :] for a in (self.x, self.of_query))
            y, of_key, values = (a[..., keys, :] for a in (self.y, self.of_key, self.values))
            yield _Chunk(x, y, of_query, of_key, values, self.positions[rows], self.keys[keys])


def causal_outputs(problem: AttentionProblem, omega: Array, maps: Sequence[SampledMap], scale: float) -> Iterator[Tile]:
    """The estimates of a chunk of positions for each estimator, chunk by chunk.

    Keys before the chunk enter through a summary of one row per feature, the chunk's own keys through kernel values
    under the mask. Both are sums over features, for every R from one pass, so they are one product. The features of a
    query are relative to the largest key up to the end of its chunk. O(L) time, no L x R x d_v array.
    Katharopoulos et al. 2020, arXiv 2006.16236, eq. (9)-(12).
    """
    query, key, value, positions = problem[:4]
    assert positions is not None
    right = with_ones(value)
    summaries: list[Sequence[Accumulator]] = [() for _ in maps]
    for keys in chunks(key.shape[-2]):
        rows = rows_between(positions, keys.start, keys.stop)
        x, y, values = query[..., rows, :] * scale, key[..., keys, :] * scale, right[..., keys, :]
        of_query, of_key = (projection_of(a, omega, (estimator.map for estimator in maps)) for a in (x, y))
        chunk = _Chunk(x, y, of_query, of_key, values, positions[rows], range(keys.start, keys.stop))
        for index, estimator in enumerate(maps):
            summaries[index], sums = _chunk_sums(estimator, estimator.sample(omega), summaries[index], chunk)
            if sums:  # one tile, in however many parts the chunk was summed: another precision takes others
                output, normaliser = quotient(joined(sums))
                yield Tile(index, rows, array_namespace(value).astype(output, value.dtype, copy=False), normaliser)


def _chunk_sums(
    estimator: SampledMap, sample: Sample, past: Sequence[Accumulator], chunk: _Chunk
) -> tuple[Sequence[Accumulator], list[Accumulator]]:
    """The summary of all keys up to the chunk's end, and the sums of its queries for every R, of adjacent rows each.

    A later key of the chunk may be so much larger than all visible keys of a query that these underflow. Then
    the two halves of the chunk are taken one after the other, and their halves, as far as necessary.
    """
    xp = array_namespace(chunk.values)
    blocks = estimator.key_blocks(chunk.y, chunk.of_key, sample.omega)
    present = accumulate_blocks(past, blocks, chunk.values)
    if not len(chunk.positions):
        return present, []
    queries = estimator.query_blocks(chunk.x, chunk.of_query, sample.omega)
    factors = [
        _past_and_own(past[i] if past else None, now.log_peak, block.transposed(), chunk.values)
        for i, (now, block) in enumerate(zip(present, blocks, strict=True))
    ]
    sums = query_sums(queries, factors, estimator.sizes)
    columns = chunk.values.shape[-1]
    before, kernel = sums.total[..., :columns], sums.total[..., columns:]
    seen = visible(chunk.positions, chunk.keys, kernel)
    own = xp.where(seen, kernel, 0.0), chunk.values
    weights, values = (xp.astype(a, xp.result_type(a.dtype, xp.float32), copy=False) for a in own)  # float16 overflows
    sums = sums._replace(total=before + weights @ values)
    if len(chunk.keys) == 1 or not _underflows(sums.total[..., -1:], kernel.dtype):
        return present, [sums]
    parts, summary = [], past
    for half in chunk.halves():
        summary, more = _chunk_sums(estimator, sample, summary, half)
        parts += more
    return summary, parts


def _underflows(normaliser: Array, dtype: Any) -> bool:
    """Whether any is so small that terms of it, of this dtype, may have underflowed.

    In float16, whose factors are divided by their largest, small normalisers are common: there only if it has itself.
    """
    xp = array_namespace(normaliser)
    limits = xp.finfo(dtype)
    least = limits.smallest_normal / (limits.eps if float(limits.max) > 1e5 else 1.0)
    return bool(xp.any(xp.abs(normaliser) < least))


def _past_and_own(past: Accumulator | None, log_peak: Array, keys: Features, values: Array) -> Accumulator:
    """The summary of the keys before the chunk, and the features of its own keys, side by side."""
    xp = array_namespace(log_peak)
    present = keys.relative_to(log_peak)
    if past is None:
        before = present[..., :1] * xp.zeros_like(values[..., :1, :])
    else:
        before = past.total * xp.exp(past.log_peak - log_peak)
    return Accumulator(log_peak, xp.concat([before, present], axis=-1))


def rows_between(positions: np.ndarray, start: int, stop: int) -> slice:
    """The rows whose positions, which increase, are in range(start, stop)."""
    return slice(*(int(i) for i in np.searchsorted(positions, (start, stop))))


def visible(positions: np.ndarray, keys: slice | range, like: Array) -> Array:
    """True where a key is not after the query's position."""
    xp = array_namespace(like)
    return xp.asarray(np.arange(keys.start, keys.stop) <= positions[:, None], device=device(like))


def chunk_multiplications(shape: Shape, num_features: int, last: int = 0) -> float:
    """Additional multiplications where attention is causal: kernel values inside chunks, and with these values.

    last: keys of a window before each query, which count as those of a chunk do.
    """
    return float(shape.n * min(CHUNK + last, shape.l) * (num_features + shape.d_v)) if shape.causal else 0.0


def chunks(length: int, step: int = CHUNK) -> list[slice]:
    """Slices of ``step`` that cover range(length)."""
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
