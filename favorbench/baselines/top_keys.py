"""The best keys: an oracle."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import device

from favorbench.methods import AttentionProblem, Estimate, Shape
from favorbench.methods.base import Baseline
from favorbench.numerics.arrays import array_namespace, largest
from favorbench.numerics.logsum import tiles
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class TopKeys(Baseline):
    """Softmax over the m keys with the largest logits of each query: the bound of all that choose m keys by logits.

    It looks at every pair of a query and a key.
    """

    name: ClassVar[str] = "top-keys"
    reference: ClassVar[str] = "-"
    description: ClassVar[str] = "oracle: softmax over the m keys with the largest logits of each query"
    random: ClassVar[bool] = False
    causal_safe: ClassVar[bool] = True
    oracle: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    exact_at_full_size: ClassVar[bool] = True
    arrays: ClassVar = "single"
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.45", "linestyle": (0, (3, 1, 1, 1)), "label": "top-keys (oracle)", "marker": "^", "markersize": 4,
    }  # fmt: skip

    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        xp = array_namespace(problem.query)
        outputs: list[list] = [[] for _ in sizes]
        normalisers: list[list] = [[] for _ in sizes]
        for rows in tiles(problem.query.shape[-2], problem.key.shape[-2], problem.query):
            logits = problem.query[rows, :] @ xp.matrix_transpose(problem.key)
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
