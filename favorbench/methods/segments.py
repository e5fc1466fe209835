"""Segments of nearly equal length, and the methods that take the mean of each: Nystromformer and LARA."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from array_api_compat import device

from favorbench.errors import ScenarioError
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape, Sizes
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm, softmax, to_backend_of
from favorbench.numerics.logsum import (
    Accumulator,
    SomeSums,
    accumulate_blocks,
    query_sums,
    quotient,
    summed_products,
    tiles,
    with_ones,
)
from favorbench.numerics.streams import Streams
from favorbench.parameters import whole


def segment_bounds(length: int, count: int) -> np.ndarray:
    """The first token of each of ``count`` segments, and the end of the last one.

    The first segments have floor(length / count) tokens, the last ones one more, as in the released Nystromformer for
    images and in LARA.
    """
    size, longer = divmod(length, count)
    return np.concatenate([[0], np.cumsum(np.repeat([size, size + 1], [count - longer, longer]))])


def segment_means(tokens: Array, count: int) -> Array:
    """Means of the rows (..., l, d) over each segment: (..., count, d). More segments than rows repeat rows."""
    xp, (*leading, length, d) = array_namespace(tokens), tokens.shape
    if count > length:
        return xp.take(tokens, to_backend_of(np.arange(count) * length // count, tokens), axis=-2)
    size, longer = divmod(length, count)
    split = (count - longer) * size
    parts = [(tokens[..., :split, :], size), (tokens[..., split:, :], size + 1)]
    means = [xp.mean(xp.reshape(a, (*leading, a.shape[-2] // n, n, d)), axis=-2) for a, n in parts if a.shape[-2]]
    return xp.concat(means, axis=-2)


class Segments(NamedTuple):
    """The indices of the tokens of each segment, (count, longest), and the flags of padding, of the same shape.

    A segment is padded with its last token.
    """

    places: np.ndarray
    padding: np.ndarray

    @staticmethod
    def between(edges: np.ndarray) -> "Segments":
        """Segments between consecutive edges."""
        index = edges[:-1, None] + np.arange(int(np.max(np.diff(edges))))
        ends = edges[1:, None]
        return Segments(np.clip(np.minimum(index, ends - 1), 0, None), index >= ends)

    @staticmethod
    def of(length: int, count: int) -> "Segments":
        """``count`` segments of range(length), whose lengths differ by at most one."""
        return Segments.between(np.arange(count + 1) * length // count)

    def rows(self, tokens: Array) -> Array:
        """The rows (..., length, c) of each segment: (..., count, longest, c)."""
        xp, flat = array_namespace(tokens), tokens
        if self.padding.any() or self.places.size < tokens.shape[-2]:
            flat = xp.take(tokens, to_backend_of(self.places.ravel(), tokens), axis=-2)
        return xp.reshape(flat, (*tokens.shape[:-2], *self.places.shape, tokens.shape[-1]))

    def in_sequence(self, parts: Array) -> Array:
        """The rows (..., length, c) from those of each segment, without padding: the inverse of ``rows``."""
        xp = array_namespace(parts)
        flat = xp.reshape(parts, (*parts.shape[:-3], -1, parts.shape[-1]))
        if not self.padding.any():
            return flat
        return xp.take(flat, to_backend_of(np.flatnonzero(~self.padding), parts), axis=-2)


def pieces(length: int, size: int) -> Segments:
    """Adjacent pieces of ``size`` tokens; the last one may be shorter, and is padded."""
    index = np.arange(-(-length // size) * size).reshape(-1, size)
    return Segments(np.minimum(index, length - 1), index >= length)


def zeroed(a: Array, keep: np.ndarray) -> Array:
    """The entries whose flag is set, and 0 elsewhere."""
    return a if keep.all() else array_namespace(a).where(to_backend_of(keep, a), a, 0.0)


def means(rows: Array, segments: Segments) -> Array:
    """The mean over each piece, (..., pieces, c), of its rows with padding, (..., pieces, longest, c)."""
    xp, present = array_namespace(rows), ~segments.padding[..., None]
    counts = to_backend_of(np.sum(present, axis=1), rows)
    return xp.sum(zeroed(rows, present), axis=-2) / xp.astype(counts, rows.dtype)


class Groups(NamedTuple):
    """Groups of queries that choose keys together: (..., groups, longest, d), and their indices in ``queries``."""

    query: Array
    segments: Segments
    queries: Queries

    @staticmethod
    def of(queries: Queries, size: int) -> "Groups":
        """Groups of adjacent queries."""
        segments = pieces(queries.query.shape[-2], min(size, queries.query.shape[-2]))
        return Groups(segments.rows(queries.query), segments, queries)

    @property
    def mean(self) -> Array:
        """The mean query of each group: (..., groups, d)."""
        return means(self.query, self.segments)

    def last(self, count: int) -> Segments:
        """The last ``count`` queries of each group; padding comes first where a group has fewer."""
        starts, ends = self.segments.places[:, :1], self.segments.places[:, -1:]
        index = ends + np.arange(1 - count, 1)
        return Segments(np.maximum(index, starts), index < starts)

    def in_sequence(self, sums: SomeSums) -> SomeSums:
        """Sums of each query, without padding."""
        return type(sums)(*map(self.segments.in_sequence, sums))


@dataclass(frozen=True)
class Nystromformer(Method):
    """softmax(x Y'^T) A^+ softmax(X' y^T) v with A = softmax(X' Y'^T), X' and Y' the means of m segments.

    inverse: "newton" takes ``steps`` of Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / (largest sum
    of a column of A), as released, which damps the small singular values of A; "pinv" takes the pseudo-inverse. Where
    m does not divide l the last segments have one token more. At m = l it is exact attention, as released. Weights
    may be negative, and sum to 1 with a true inverse only. The output of a query depends on all others.
    Xiong et al. 2021, arXiv 2102.03902, without the trained convolution.
    """

    name = "nystromformer"
    reference = "Xiong et al. 2021, arXiv 2102.03902"
    description = "two softmax matrices through the means of m segments, an inverse between them"
    random = False
    exact_at_full_size = True
    permutation_invariant = False
    needs_all_rows = True
    inverse: Literal["newton", "pinv"] = "newton"
    steps: int = whole(0, 100, default=6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inverse == "pinv" and self.steps != 6:
            raise ScenarioError(f"steps are ignored with inverse='pinv'; leave out steps={self.steps}")

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        query, key, value = problem[:3]
        for size in sizes:
            if size == key.shape[-2]:
                yield Estimate(size, size, _softmax_mean(query, key, value), None)
                continue
            query_means, key_means = segment_means(query, size), segment_means(key, size)
            summary = with_ones(_softmax_mean(query_means, key, value))  # the rows of a softmax sum to 1
            summary = self._inverse(softmax(query_means @ key_means.mT)) @ summary
            output = _softmax_mean(query, key_means, summary)
            yield Estimate(size, size, output[..., :-1], None, output[..., -1:])

    def _inverse(self, matrix: Array) -> Array:
        """The inverse of (..., m, m) with rows that sum to 1, or an approximation."""
        xp, m = array_namespace(matrix), matrix.shape[-1]
        if self.inverse == "pinv":
            # torch has none in half precision
            dtype, matrix = matrix.dtype, xp.astype(matrix, xp.result_type(matrix, xp.float32))
            return xp.astype(xp.linalg.pinv(matrix, rtol=m * float(xp.finfo(matrix.dtype).eps)), dtype)
        identity = xp.eye(m, dtype=matrix.dtype, device=device(matrix))
        inverse = matrix.mT / xp.max(xp.sum(matrix, axis=-2, keepdims=True), axis=-1, keepdims=True)
        for _ in range(self.steps):
            product = matrix @ inverse
            inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
        return inverse

    def multiplications(self, shape: Shape, size: int) -> float:
        """m (d + d_v) for each query, key and landmark, plus 4 m^3 a step, or 11.5 m^3 (decomposition, product).

        The singular value decomposition as in Golub & Van Loan, 21 m^3 operations.
        """
        if size >= shape.l:
            return float(shape.n * shape.l * shape.per_pair)
        cubes = 4.0 * self.steps if self.inverse == "newton" else 11.5
        return float((shape.n + shape.l + size) * size * shape.per_pair) + cubes * size**3

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The matrix of landmarks, its inverse, and the intermediate results of a step."""
        return 5 * size * size if size < shape.l else 0


def _softmax_mean(x: Array, y: Array, value: Array) -> Array:
    """softmax(x y^T) value, in tiles: (..., n, d_v)."""
    xp, right, parts = array_namespace(x), with_ones(value), []
    for rows in tiles(x.shape[-2], y.shape[-2], x):
        (sums,) = accumulate_blocks([], [Features(None, y @ x[..., rows, :].mT)], right)
        parts.append(quotient(sums)[0])
    return xp.astype(xp.concat(parts, axis=-2), value.dtype, copy=False)


@dataclass(frozen=True)
class Lara(KeySummaryMethod):
    """K(x, y) = sum_c xi(x, w_c) xi(y, w_c) / sum_c' xi(mu_c', w_c), with xi(x, w) = exp(w.x - |x|^2 / 2).

    w_c ~ N(mu_c, I), one for each of m segments; mu_c is the sum of its mean query and mean key. The quotient is the
    density of N(0, I) over the sum of the densities of all proposals (the balance heuristic). K is positive, with mean
    exp(x.y), but its variance may be infinite. The output of a query depends on all others.
    Zheng et al. 2022 ("LARA"), arXiv 2204.04667, with the parameter-free proposals. Their code divides the noise by
    d^1/4 (and adds none outside training), while the density in the denominator is that of undivided noise.
    """

    name = "lara"
    reference = "Zheng et al. 2022, arXiv 2204.04667"
    description = "positive features around the mean query and key of m segments, reweighted"
    convex = True
    unbiased = True
    permutation_invariant = False
    needs_all_rows = True

    def multiplications(self, shape: Shape, size: int) -> float:
        """m (d + d_v) for each query and key, and m^2 d for the proposals."""
        return float((shape.n + shape.l) * size * shape.per_pair + size * size * shape.d)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return float((shape.n + shape.l) * size * shape.d + shape.n * shape.l * size)

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The densities of all proposals, three times."""
        return 3 * size * size

    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        noise = streams.draw(lambda rng: rng.normal(size=(sizes[-1], tokens.key.shape[-1])), tokens.key)
        for size in sizes:
            mean = segment_means(queries.query, size) + segment_means(tokens.key, size)
            omega = mean + noise[..., :size, :]
            yield LaraSummary.of(tokens, omega, mean)


@dataclass(frozen=True)
class LaraSummary:
    """Sums over the keys for sampled rows.

    omega (..., m, d). states: a list of one, for each of its rows the sum over keys of xi(y, w) [v, 1]. log_density
    (..., 1, m): the log of the sum of the densities of all proposals at each row, over that of N(0, I).
    """

    tokens: Tokens
    omega: Array
    log_density: Array
    states: list[Accumulator]

    @staticmethod
    def of(tokens: Tokens, omega: Array, mean: Array) -> "LaraSummary":
        """Build the summary from the rows and the centres (..., m, d) of their proposals."""
        states: list[Accumulator] = []
        for rows in tiles(tokens.length, omega.shape[-2], tokens.key):
            part = tokens.part(rows)
            log_keys = Features(None, _log_feature(part.key, omega))
            states = accumulate_blocks(states, [log_keys], with_ones(part.value))
        xp, logs = array_namespace(omega), _log_feature(mean, omega)
        peak = xp.max(logs, axis=-2, keepdims=True)
        density = xp.log(xp.sum(xp.exp(logs - peak), axis=-2, keepdims=True)) + peak
        return LaraSummary(tokens, omega, density, states)

    def sums(self, queries: Queries) -> Accumulator:
        features = Features(None, _log_feature(queries.query, self.omega) - self.log_density)
        peak, total = query_sums([features], self.states, [self.omega.shape[-2]])
        return Accumulator(peak[0, ...], total[0, ...])

    def kernel(self, queries: Queries, keys: slice) -> Features:
        of_query = Features(None, _log_feature(queries.query, self.omega) - self.log_density)
        of_key = Features(None, _log_feature(self.tokens.key[..., keys, :], self.omega))
        return summed_products([of_query], [of_key], 1)


def _log_feature(x: Array, omega: Array) -> Array:
    """log xi(x, w) for every pair of rows: (..., n, m)."""
    return x @ omega.mT - half_squared_norm(x)
