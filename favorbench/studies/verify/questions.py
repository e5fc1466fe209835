"""What definitions are asked: queries and keys as attention takes them, their logits, and how far rounding goes."""

import math

import numpy as np

from favorbench.methods import AttentionProblem
from favorbench.numerics.streams import stream
from favorbench.studies.verify.attention import EPS
from favorbench.studies.verify.checks import largest

DIM = 6


def drawn(seed: int, name: str, queries: int, length: int, scale: float, dim: int = 3) -> AttentionProblem:
    """Queries and keys with a mean, not scaled; keys grow, so that running maxima move from tile to tile."""
    rng = stream(seed, "verify", name, queries, length, scale)
    query, key = (scale * rng.standard_normal((count, dim)) + 0.3 for count in (queries, length))
    key *= np.linspace(0.5, 1.0, length)[:, None]
    return AttentionProblem(query, key, rng.standard_normal((length, 2)))


def scaled(inputs: AttentionProblem) -> AttentionProblem:
    """As methods take them."""
    factor = inputs.query.shape[-1] ** -0.25
    return inputs._replace(query=inputs.query * factor, key=inputs.key * factor)


def logits_of(inputs: AttentionProblem) -> np.ndarray:
    """x.y / sqrt(d) for every pair."""
    return np.einsum("id,jd->ij", inputs.query, inputs.key) / math.sqrt(inputs.query.shape[-1])


def rounding_of(logits: np.ndarray, value: np.ndarray) -> float:
    """Of an average of values: eps times the logits that are exponentiated and the terms that are summed."""
    return EPS * (2.0 * largest(logits) + DIM + len(value)) * largest(value)
