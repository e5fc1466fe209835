"""Segments of a sequence: m of them in a row, as equal as can be."""

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
