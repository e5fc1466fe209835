"""Methods that keep a summary of the keys: a kernel estimate, summed over them for any query, causal too.

Every method here answers ``sum_j K(x, y_j) v_j / sum_j K(x, y_j)`` with a kernel estimate K of its own. So one can be
exact on a part of the keys and another on the rest, with one normaliser: what ``methods.prefixes`` does.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from favorbench.attention.causal import CHUNK, chunks, visible
from favorbench.errors import InputError
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape
from favorbench.numerics.arrays import Array, Features, array_namespace
from favorbench.numerics.logsum import Accumulator, accumulate, merge, quotient, tiles, with_ones
from favorbench.numerics.streams import Streams


class Tokens(NamedTuple):
    """Keys (..., l, d), scaled, and values (..., l, d_v)."""

    key: Array
    value: Array

    @property
    def length(self) -> int:
        """How many there are."""
        return self.key.shape[-2]

    def part(self, where: slice) -> "Tokens":
        """Some of them, in a row."""
        return Tokens(self.key[..., where, :], self.value[..., where, :])


class Queries(NamedTuple):
    """Queries (..., n, d), scaled, and their positions among the keys, (n,); None where they have none."""

    query: Array
    positions: np.ndarray | None

    def part(self, where: slice) -> "Queries":
        """Some of them, in a row."""
        return Queries(self.query[..., where, :], None if self.positions is None else self.positions[where])


class KeySummary(Protocol):
    """What is kept of keys and values: sums over them for any queries."""

    def sums(self, queries: Queries) -> Accumulator:
        """Sum over keys of K(x, y_j) [v_j, 1]: (..., n, d_v + 1)."""
        ...

    def kernel(self, queries: Queries, keys: slice) -> Features:
        """K(x, y_j) for keys in a row: (..., n, k)."""
        ...


class StreamingSummary(Protocol):
    """A summary of the first keys of a sequence, which grows: nothing in it depends on the keys that come later."""

    def extend(self, stop: int) -> KeySummary:
        """The summary of the first ``stop`` keys, stop increasing from one call to the next."""
        ...


class KeySummaryMethod(Method):
    """A method that answers from a summary of the keys, which it makes for each size."""

    @abstractmethod
    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        """One for each size (increasing); queries: those that will be asked, for what is fitted to them."""

    def streaming(self, tokens: Tokens, size: int, streams: Streams) -> StreamingSummary:
        """One that grows with the sequence, for causal attention. Raises InputError where there is none."""
        raise InputError(f"method {self.name!r} uses the whole sequence and cannot be causal")

    def num_features(self, size: int, head_dim: int) -> int:
        """Numbers that stand for a key in the kernel estimate, or keys and centres that stand for all."""
        return size

    def num_features_of(self, summary: KeySummary, size: int, head_dim: int) -> int:
        """``num_features`` of one summary, where it follows from the keys how many there are."""
        return self.num_features(size, head_dim)

    #: Summaries that a guard chooses between: what prefixes add is added to each.
    alternatives: int = 1
    #: Of the keys, the first so many and the last so many before a query are exact where attention is causal.
    first: int = 0
    last: int = 0

    def recent(self, size: int) -> int:
        """``last`` at this size."""
        return self.last

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        """Multiplications of the kernel estimate itself for n queries and l keys in a row."""
        return float(shape.n * size * shape.d)

    def width(self, size: int, length: int) -> int:
        """Numbers in a row of its largest tile: logits for each query."""
        return size

    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        tokens, queries = Tokens(problem.key, problem.value), Queries(problem.query, problem.positions)
        xp, d = array_namespace(problem.query), problem.query.shape[-1]
        if problem.causal:
            each = zip(sizes, streams.for_sizes(len(sizes)), strict=True)
            found = ((self._causal(tokens, queries, size, own), self.num_features(size, d)) for size, own in each)
        else:
            each = zip(self.summaries(tokens, queries, sizes, streams), sizes, strict=True)
            found = (
                (self._whole(summary, tokens, queries, size), self.num_features_of(summary, size, d))
                for summary, size in each
            )
        for size, (parts, features) in zip(sizes, found, strict=True):
            outputs, normalisers = zip(*map(quotient, parts), strict=True)
            yield Estimate(size, features, xp.concat(outputs, axis=-2), xp.concat(normalisers, axis=-2))

    def _whole(self, summary: KeySummary, tokens: Tokens, queries: Queries, size: int) -> Iterator[Accumulator]:
        for rows in tiles(queries.query.shape[-2], self.width(size, tokens.length), queries.query):
            yield summary.sums(queries.part(rows))

    def _causal(self, tokens: Tokens, queries: Queries, size: int, streams: Streams) -> Iterator[Accumulator]:
        """The past through the summary, the present chunk exactly, and with it the first and the last keys."""
        positions = queries.positions
        assert positions is not None
        rest = tokens.part(slice(self.first, None))
        state, summary, known = self.streaming(rest, size, streams), None, self.first
        for chunk in chunks(tokens.length):
            rows = slice(*(int(i) for i in np.searchsorted(positions, (chunk.start, chunk.stop))))
            past = chunk.start - max(0, self.recent(size) - 1)  # before every window of the chunk
            if past > known:
                summary, known = state.extend(past - self.first), past
            if rows.start == rows.stop:
                continue
            asked = queries.part(rows)
            sums = None if summary is None else summary.sums(asked)
            for keys in (slice(0, min(self.first, chunk.stop)), slice(known, chunk.stop)):
                if keys.start < keys.stop:
                    sums = merge(sums, exact_sums(asked, tokens, keys, masked=True))
            assert sums is not None
            yield sums


def exact_sums(queries: Queries, tokens: Tokens, keys: slice, masked: bool = False) -> Accumulator:
    """Sum over some keys, in a row, of exp(x.y_j) [v_j, 1]; masked: those up to each query's position only."""
    part = tokens.part(keys)
    xp = array_namespace(queries.query)
    logits = queries.query @ xp.matrix_transpose(part.key)
    if masked:
        assert queries.positions is not None
        logits = xp.where(visible(queries.positions, keys, logits), logits, xp.full_like(logits, -xp.inf))
    return accumulate(None, Features(None, logits), with_ones(part.value))


def causal_multiplications(shape: Shape, last: int = 0) -> float:
    """Multiplications of the exact part of causal attention: half a chunk and the window before it, for each query."""
    pairs = shape.n * min(CHUNK + last, shape.l)
    return float(pairs * (shape.d + shape.d_v))
