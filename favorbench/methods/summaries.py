"""Methods that keep a summary of the keys: a kernel estimate, summed over them for any query, causal too.

Every method here computes ``sum_j K(x, y_j) v_j / sum_j K(x, y_j)`` with a kernel estimate K. So a method can be
exact on a part of the keys and estimate the rest, with one normaliser: see ``methods.prefixes``.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from favorbench.attention.causal import CHUNK, chunks, rows_between
from favorbench.errors import InputError
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape, Sizes
from favorbench.numerics.arrays import Array, Features, array_namespace, as_like, rows_at
from favorbench.numerics.logsum import Sums, attention_sums, joined, log_sum, merge, quotient, tiles
from favorbench.numerics.streams import Streams


class Tokens(NamedTuple):
    """Keys (..., l, d), scaled, and values (..., l, d_v)."""

    key: Array
    value: Array

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.key.shape[-2]

    def part(self, where: slice) -> "Tokens":
        """Adjacent tokens."""
        return Tokens(self.key[..., where, :], self.value[..., where, :])

    def at(self, index: Array) -> "Tokens":
        """The tokens at indices (..., m), or (..., a, b)."""
        return Tokens(rows_at(self.key, index), rows_at(self.value, index))


class Queries(NamedTuple):
    """Queries (..., n, d), scaled, and their positions among the keys, (n,), on the host; None without positions.

    first: the index of the first one among all queries of the problem. log_seen: in causal attention, the log of the
    sum of exp(x.y) over the exact keys, (..., n, 1), which are not in the summary. fit_query: all queries of the
    sequence, where the problem has a sample of them.
    """

    query: Array
    positions: Any
    first: int = 0
    log_seen: Array | None = None
    fit_query: Array | None = None

    @property
    def length(self) -> int:
        """The number of queries."""
        return self.query.shape[-2]

    def part(self, where: slice) -> "Queries":
        """Adjacent queries."""
        positions = None if self.positions is None else self.positions[where]
        log_seen = None if self.log_seen is None else self.log_seen[..., where, :]
        return Queries(self.query[..., where, :], positions, self.first + where.indices(self.length)[0], log_seen)

    def moved(self, by: int) -> "Queries":
        """The queries with their positions counted from key ``by``."""
        return self if self.positions is None else self._replace(positions=self.positions - by)


class KeySummary(Protocol):
    """A summary of keys and values, which gives sums over them for any queries."""

    def sums(self, queries: Queries) -> Sums:
        """Sum over keys of K(x, y_j) [v_j, 1]: (..., n, d_v + 1)."""
        ...

    def kernel(self, queries: Queries, keys: slice) -> Features:
        """K(x, y_j) for adjacent keys: (..., n, k)."""
        ...


#: Gives the summary of the first ``stop`` keys, stop increasing from one call to the next.
GrowingSummary = Callable[[int], KeySummary]


class KeySummaryMethod(Method):
    """A method that makes a summary of the keys for each size, and computes all outputs from it."""

    @abstractmethod
    def summaries(self, tokens: Tokens, queries: Queries, sizes: Sizes, streams: Streams) -> Iterator[KeySummary]:
        """Yield a summary for each size (increasing). queries: all later ones, for parameters fitted to them."""

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> GrowingSummary:
        """Return a summary that grows with the sequence, for causal attention. Raises InputError if there is none.

        Nothing in it depends on later keys.
        """
        raise InputError(f"method {self.name!r} uses the whole sequence and cannot be causal")

    def num_features(self, size: int, head_dim: int) -> int:
        """The numbers that represent a key in the kernel estimate, or the keys and centres that represent all keys."""
        return size

    #: Number of summaries that a guard chooses between: prefixes add their exact keys to each.
    alternatives: int = 1
    #: Adjacent queries that are summed together, because they share a choice of keys.
    group: int = 1
    #: In causal attention the first ``first`` keys are exact, and the last ``last`` keys up to a query.
    first: int = 0
    last: int = 0

    #: Positions that causal attention treats together.
    chunk: int = CHUNK

    def recent(self, size: int) -> int:
        """``last`` at this size."""
        return self.last

    def summarised(self, past: int) -> int:
        """In causal attention, how many of the first ``past`` keys a summary may cover."""
        return past

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Multiplications of the kernel estimate itself for n queries and l adjacent keys."""
        return float(shape.n * size * shape.d)

    def choice_multiplications(self, shape: Shape, size: int) -> float:
        """Multiplications for the choice of keys, in sums and in the kernel estimate, causal or not."""
        return 0.0

    def width(self, size: int, length: int) -> int:
        """The row length of its largest tile: logits for each query."""
        return size

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        tokens = Tokens(problem.key, problem.value)
        queries = Queries(problem.query, problem.positions, fit_query=problem.fit_query)
        xp, d = array_namespace(problem.query), problem.query.shape[-1]
        sizes = sizes if self.every_size else sizes[-1:]
        if problem.causal:
            copies = zip(sizes, streams.for_sizes(len(sizes)), strict=True)
            answers = (self._causal(tokens, queries, size, rngs) for size, rngs in copies)
        else:
            summaries = zip(sizes, self.summaries(tokens, queries, sizes, streams), strict=True)
            answers = (self._sums(summary, tokens, queries, size) for size, summary in summaries)
        for size, parts in zip(sizes, answers, strict=True):
            # these arrays live until the next ones are there: freed before, their pages would be taken anew each time
            outputs, normalisers = zip(*map(quotient, parts), strict=True)
            features = self.num_features(size, d)
            yield Estimate(size, features, xp.concat(outputs, axis=-2), xp.concat(normalisers, axis=-2))

    def _sums(self, summary: KeySummary, tokens: Tokens, queries: Queries, size: int) -> Iterator[Sums]:
        rows = tiles(queries.length, self.width(size, tokens.length), queries.query, self.group)
        return map(summary.sums, map(queries.part, rows))

    def _causal(self, tokens: Tokens, queries: Queries, size: int, streams: Streams) -> Iterator[Sums]:
        """Sum over past keys through the summary, and over the present chunk, first and last keys exactly."""
        summary_of, known = self.streaming(tokens.part(slice(self.first, None)), size, streams), self.first
        summary, xp = None, array_namespace(queries.query)
        biases: dict[tuple[int, int, bytes], Array] = {}  # most chunks see their keys alike
        for past, chunks_after in itertools.groupby(  # the past ends before all windows of the chunk
            chunks(tokens.length, self.chunk),
            lambda chunk: self.summarised(chunk.start - max(0, self.recent(size) - 1)),
        ):
            group, exact = list(chunks_after), []
            later = queries.part(rows_between(queries.positions, group[0].start, group[-1].stop))
            if past > known:
                summary, known = summary_of(past - self.first), past
            kept = (slice(0, min(self.first, group[-1].stop)), slice(known, group[-1].stop))
            near = Tokens(*(xp.concat([a[..., part, :] for part in kept], axis=-2) for a in tokens))
            index = np.r_[kept]
            for chunk in group:
                present = later.part(rows_between(later.positions, chunk.start, chunk.stop))
                if present.length == 0:
                    continue
                before, count = np.searchsorted(index, (chunk.start, chunk.stop)).tolist()
                alike = (before, count, (present.positions - chunk.start).tobytes())
                if alike not in biases:
                    if len(biases) == 8:  # without complete segments there are as many as chunks
                        biases.clear()
                    seen = index[:count] <= present.positions[:, None]
                    biases[alike] = as_like(np.where(seen, 0.0, -np.inf), present.query)
                exact.append(attention_sums(present.query, *near.part(slice(0, count)), biases[alike]))
            if not exact:
                continue
            sums = joined(exact)
            if summary is not None:
                sums = merge(summary.sums(later._replace(log_seen=log_sum(sums))), sums)
            yield sums


def logits_of(queries: Queries, tokens: Tokens, keys: slice) -> Array:
    """x.y_j for adjacent keys: (..., n, k)."""
    return queries.query @ tokens.key[..., keys, :].mT


def first_in_order(order: Array, count: int) -> Array:
    """The numbers below ``count`` of a permutation (..., l), in its order: (..., count)."""
    return array_namespace(order).reshape(order[order < count], (*order.shape[:-1], count))
