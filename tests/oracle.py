"""The one plain route that tests compare with: attention from all kernel values at once, in numbers of long exponents.

No tiles, no chunks, no running maxima, no prefix sums; the kernels are those of ``tests.formulas``.
"""

import math
from typing import NamedTuple

import numpy as np

from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.maps import Sample, get_map
from favorbench.samplers import get_sampler
from tests.formulas import Asked, Exact, kernel_of

EPS = float(np.finfo(np.float64).eps)


class Case(NamedTuple):
    """A problem: length, head dimension, norms of scaled queries and keys, R; causal: as many queries as keys.

    Keys have one norm, so that none has all the weight for being short. Under a mask they grow to it, so that running
    maxima move from chunk to chunk.
    """

    length: int
    head_dim: int
    query_norm: float
    key_norm: float
    num_projections: int
    causal: bool = False
    value_dim: int = 2
    batch: tuple[int, ...] = ()
    num_queries: int = 7

    def arrays(self):
        """Unscaled queries and keys, means away from 0, and values."""
        rng = np.random.default_rng([self.length, self.head_dim, self.causal])
        count = self.length if self.causal else self.num_queries
        points = []
        for norm, n in ((self.query_norm, count), (self.key_norm, self.length)):
            spread = rng.normal(size=(*self.batch, n, self.head_dim)) + rng.normal(size=self.head_dim)
            points.append(norm * self.head_dim**0.25 * spread / np.linalg.norm(spread, axis=-1, keepdims=True))
        if self.causal:
            points[1] *= np.linspace(0.5, 1.0, self.length)[:, None]
        return points[0], points[1], rng.normal(size=(*self.batch, self.length, self.value_dim))


#: Edges of chunks of positions (128) and of tiles of keys (2048; 1024 under a mask).
EDGES = (1, 2, 127, 128, 129, 130, 257, 1024, 2047, 2048, 2049, 2050, 5000)


def rows_near_edges(case):
    """The queries that are compared: all of a few, else those around every edge."""
    count = case.length if case.causal else case.num_queries
    if count <= 20:
        return np.arange(count)
    near = {e + step for e in EDGES for step in (-2, -1, 0)} | {count - 2, count - 1}
    return np.array(sorted(i for i in near if 0 <= i < count))


def attention_of(kernel, value, seen):
    """sum_j K_ij v_j / sum_j K_ij over the keys that each query sees, and the condition number of the sums."""
    values, terms = np.where(seen, kernel.values, 0.0), np.where(seen, kernel.terms, 0.0)
    total = np.sum(values, axis=-1, keepdims=True)
    return values @ value / total, np.sum(terms, axis=-1, keepdims=True) / np.abs(total)


def exact(case):
    """The rows that are compared, softmax attention there (..., rows, d_v), and the rounding that is allowed."""
    query, key, value = (a.astype(Exact) for a in case.arrays())
    rows = rows_near_edges(case)
    logits = np.einsum("...id,...jd->...ij", query[..., rows, :], key) / np.sqrt(Exact(case.head_dim))
    seen = np.arange(case.length) <= rows[:, None] if case.causal else True
    weights = np.where(seen, np.exp(logits), 0.0)
    output = np.einsum("...ij,...jv->...iv", weights, value) / np.sum(weights, axis=-1, keepdims=True)
    largest = float(np.max(np.abs(logits)))
    norms = float(np.max(np.linalg.norm(query, axis=-1)) * np.max(np.linalg.norm(key, axis=-1))) / case.head_dim**0.5
    return rows, output, EPS * (largest + norms + case.head_dim + case.length) * float(np.max(np.abs(value)))


def sample_for(feature_map, case, sampler="orthogonal"):
    """One sample, its own for each case."""
    rng = np.random.default_rng([7, case.length, case.head_dim])
    omega = get_sampler(sampler).sample(rng, case.num_projections, case.head_dim)
    return Sample(omega, feature_map.draw_extra(rng, case.num_projections, case.head_dim))


def sizes_of(feature_map, case):
    """Several R at once, where the map has them."""
    count = case.num_projections
    return tuple(sorted({1, -(-count // 3), count})) if feature_map.nested else (count,)


def estimated(feature_map, case):
    """The output of favorbench: (sizes, ..., n, d_v)."""
    query, key, value = case.arrays()
    sample = sample_for(feature_map, case)
    estimator = SampledMap(feature_map, sample.extra, sizes_of(feature_map, case))
    tiles = attention_estimates(AttentionProblem.of(query, key, value, case.causal), sample.omega, [estimator])
    return np.concatenate([tile.output for tile in tiles], axis=-2)


class Compared(NamedTuple):
    """The largest error over what rounding explains, nan counting as infinite, and the share of rows compared."""

    worst: float
    share: float


def compared(spec, case):
    """Linear attention against the oracle, for every R, head and row near an edge.

    Rounding: eps for each operation that a term goes through, times the condition number of the sums. Rows that it
    leaves no digit of are not compared.
    """
    feature_map = get_map(spec)
    sample, outputs, rows = sample_for(feature_map, case), estimated(feature_map, case), rows_near_edges(case)
    # maps that look at all queries cannot be causal; elsewhere all rows are compared
    assert case.causal or len(rows) == case.num_queries
    query, key, value = (a.reshape(-1, *a.shape[-2:]) for a in case.arrays())
    outputs = outputs.reshape(len(outputs), -1, *outputs.shape[-2:])[..., rows, :]
    seen = np.arange(case.length) <= rows[:, None] if case.causal else np.ones((len(rows), case.length), dtype=bool)
    worst, rows_compared = [0.0], []
    for head, (q, k, v) in enumerate(zip(query, key, value, strict=True)):
        x, y = q * case.head_dim**-0.25, k * case.head_dim**-0.25
        fitted = feature_map.fit(x, y, sample.omega)
        growth = EPS * _operations(x, y, sample.omega, case)
        for size, found in zip(sizes_of(feature_map, case), outputs[:, head], strict=True):
            extra = _first(sample.extra, size, case)
            asked = Asked(*(a.astype(Exact) for a in (x[rows], y, sample.omega[:size])), extra, fitted)
            kernel = kernel_of(asked)
            expected, condition = attention_of(kernel, v.astype(Exact), seen)
            allowed = growth * condition * (np.max(np.abs(v)) + np.abs(expected))
            with_digits = ~(growth * condition > 0.1)[:, 0]
            error = np.asarray(np.abs(found - expected) / allowed, dtype=float)[with_digits]
            worst.append(float(np.max(np.where(np.isnan(error), np.inf, error), initial=0.0)))
            rows_compared.append(float(np.mean(with_digits)))
    return Compared(max(worst), float(np.mean(rows_compared)))


def _first(extra, size, case):
    """The sample of the first R projections, with all that they share (the hybrid's vectors, hashes)."""
    return extra[:size] if extra is not None and len(extra) == case.num_projections else extra


def _operations(x, y, omega, case):
    """The relative error of a term in units of eps: logs and angles, as long as they are, and the lengths of sums."""
    norm = [float(np.max(np.linalg.norm(a, axis=-1))) for a in (omega, x, y)]
    logs = 2.0 * math.pi * norm[0] * (norm[1] + norm[2]) + norm[1] ** 2 + norm[2] ** 2 + norm[0] ** 2
    return logs + case.head_dim + len(omega) + case.length
