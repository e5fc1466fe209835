"""Segments of a sequence: m of them in a row, as equal as can be; their means, or their rows as one padded array."""

from typing import NamedTuple

import numpy as np

from favorbench.numerics.arrays import Array, array_namespace, beside


def segment_bounds(length: int, count: int) -> np.ndarray:
    """Where each of ``count`` segments begins, and the last one ends: floor(length / count) tokens in the first ones,
    one more in the last ones, which is how the released Nystromformer for images and LARA lay them out."""
    size, longer = divmod(length, count)
    return np.concatenate([[0], np.cumsum(np.repeat([size, size + 1], [count - longer, longer]))])


def segment_means(tokens: Array, count: int) -> Array:
    """Means of the rows (..., l, d) over each segment: (..., count, d). With more segments than rows, rows again."""
    xp, (*leading, length, d) = array_namespace(tokens), tokens.shape
    if count > length:
        return xp.take(tokens, beside(np.arange(count) * length // count, tokens), axis=-2)
    size, longer = divmod(length, count)
    split = (count - longer) * size
    parts = [(tokens[..., :split, :], size), (tokens[..., split:, :], size + 1)]
    means = [xp.mean(xp.reshape(a, (*leading, a.shape[-2] // n, n, d)), axis=-2) for a, n in parts if a.shape[-2]]
    return xp.concat(means, axis=-2)


class Segments(NamedTuple):
    """Where the tokens of each part are, (count, longest), with any token for padding, and which are none: (count,
    longest)."""

    places: np.ndarray
    padding: np.ndarray

    @staticmethod
    def between(edges: np.ndarray) -> "Segments":
        """The parts between edges that follow one another; none may be empty."""
        lengths = np.diff(edges)
        offsets = np.arange(int(np.max(lengths)))
        padding = offsets >= lengths[:, None]
        return Segments(np.where(padding, edges[:-1, None], edges[:-1, None] + offsets), padding)

    @staticmethod
    def of(length: int, count: int) -> "Segments":
        """``count`` parts of range(length), at most one token longer than one another."""
        return Segments.between(np.arange(count + 1) * length // count)

    def rows(self, tokens: Array) -> Array:
        """The rows (..., length, c) of each part: (..., count, longest, c)."""
        xp = array_namespace(tokens)
        found = xp.take(tokens, beside(self.places.ravel(), tokens), axis=-2)
        return xp.reshape(found, (*tokens.shape[:-2], *self.places.shape, tokens.shape[-1]))

    def without_padding(self, rows: Array, filled: float) -> Array:
        """The entries (..., count, longest) of each part, ``filled`` where there is none."""
        xp = array_namespace(rows)
        return xp.where(beside(self.padding, rows), xp.full_like(rows, filled), rows)
