"""The best keys: an oracle."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from favorbench.methods import AttentionProblem, Estimate, Shape
from favorbench.methods.base import Baseline, Sizes, line_style
from favorbench.numerics.arrays import array_namespace, largest
from favorbench.numerics.logsum import tiles
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class TopKeys(Baseline):
    """Softmax over the m keys with the largest logits of each query: the bound of all that choose m keys by logits.

    It looks at every pair of a query and a key.
    """

    name = "top-keys"
    reference = "-"
    description = "oracle: softmax over the m keys with the largest logits of each query"
    random = False
    causal_safe = True
    oracle = True
    convex = True
    exact_at_full_size = True
    arrays = "single"
    look = line_style("0.45", (0, (3, 1, 1, 1)), "^", 4, label="top-keys (oracle)")

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        xp = array_namespace(problem.query)
        outputs: list[list] = [[] for _ in sizes]
        normalisers: list[list] = [[] for _ in sizes]
        for rows in tiles(problem.query.shape[-2], problem.key.shape[-2], problem.query):
            logits = problem.query[rows, :] @ problem.key.mT
            if problem.causal:
                assert problem.positions is not None
                seen = np.arange(len(problem.key)) <= problem.positions[rows][:, None]
                logits = xp.where(xp.asarray(seen, device=device(logits)), logits, xp.full_like(logits, -xp.inf))
            index = largest(logits, min(sizes[-1], logits.shape[-1]))
            weights = xp.take_along_axis(logits, index, axis=-1)
            weights = xp.exp(weights - weights[..., :1])
            for i, size in enumerate(sizes):
                chosen = xp.take(problem.value, xp.reshape(index[:, :size], (-1,)), axis=0)
                chosen = xp.reshape(chosen, (index.shape[0], -1, problem.value.shape[-1]))
                normaliser = xp.sum(weights[:, :size], axis=-1, keepdims=True)
                outputs[i].append(xp.sum(weights[:, :size, None] * chosen, axis=-2) / normaliser)
                normalisers[i].append(normaliser)
        for size, output, normaliser in zip(sizes, outputs, normalisers, strict=True):
            yield Estimate(size, size, xp.concat(output, axis=0), xp.concat(normaliser, axis=0))

    def multiplications(self, shape: Shape, size: int) -> float:
        """Every pair of a query and a key, and m d_v for each query."""
        return float(shape.n * (shape.l * shape.d + size * shape.d_v))
