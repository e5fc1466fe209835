"""Whether a call is softmax attention: computed again in float64 by other code, and compared with the model."""

import math

import numpy as np

from favorbench.attention.exact import exact_attention

#: q, k and v of some heads: (..., n, d), (..., l, d), (..., l, d_v).
Heads = tuple[np.ndarray, np.ndarray, np.ndarray]

#: Queries of a head that are computed again, spread evenly. A wrong mask, factor or group shows in nearly all.
ROWS = 512

#: Of float32, whose factors have 24 bits.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}

#: Units of rounding that a difference may have, see ``limits``. Seen: up to 2.3 in small random models of ten families
#: (d = 8), 0.6 in the heads of MiniLM and 0.4 in those of SmolLM2 at L = 512 and 1024. There a factor of 1.01 on the
#: logits makes 175 times the limit or more in every layer, and a wrong mask or another head's keys 10,000 times.
ROUNDINGS = 8

#: A limit beyond this is none: a factor of 1.01 on the logits makes no more.
VAGUE = 5e-3


def rows_of(n: int, last: int | None = None) -> np.ndarray:
    """The queries to be computed again: all, or ROWS of them; of the last ``last`` only, where that is given."""
    first = 0 if last is None else n - last
    return np.unique(np.linspace(first, n - 1, min(ROWS, n - first)).astype(np.int64))


def answers(heads: Heads, causal: bool, rows: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d)) v of some queries, float64, (..., rows, d_v); causal: query i sees the keys up to i."""
    query, key, value = heads
    return exact_attention(query[..., rows, :], key, value, causal, rows if causal else None)


def differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Of each head (..., rows, d_v) the largest difference, as a share of its largest entry; inf for NaN."""
    with np.errstate(invalid="ignore"):
        size = np.abs(expected).max(axis=(-2, -1))
        shares = np.abs(found - expected).max(axis=(-2, -1)) / np.where(size > 0, size, 1.0)
    return np.nan_to_num(shares, nan=np.inf)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative error of any head, Frobenius."""
    errors = np.linalg.norm(found - expected, axis=(-2, -1))
    return float((errors / np.maximum(np.linalg.norm(expected, axis=(-2, -1)), 1e-300)).max())


def limits(query: np.ndarray, key: np.ndarray, dtype: str) -> np.ndarray:
    """What rounding can make of ``differences``, and hardly anything else.

    A logit of float32 is off by a few units of 2^-24 of |q| |k| / sqrt(d), at least as much as the largest logit, and
    a weight by as much as its logit, relatively: ROUNDINGS 2^-24 (1 + max |q| max |k| / sqrt(d)).
    """
    squares = ((array.astype(np.float64) ** 2).sum(-1).max(-1) for array in (query, key))
    return ROUNDINGS * UNIT_ROUNDOFF[dtype] * (1.0 + np.sqrt(math.prod(squares) / query.shape[-1]))
