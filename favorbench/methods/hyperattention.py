"""Sorted blocks and a uniform sample."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from favorbench.methods.hashed import Hashed, Sampled
from favorbench.methods.summaries import Tokens
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class HyperAttention(Hashed):
    """Exact attention in blocks of a sorted angular hash, beside s keys sampled uniformly, each of weight l / s.

    The sample is without replacement, which has less variance than the paper's, and leaves out keys of the query's
    block. The released kernel (amirzandieh/HyperAttention) takes the first s keys for a sample, with weight 1, and
    counts those of the block twice.
    Han et al. 2024 ("HyperAttention"), arXiv 2310.05869, algorithms 1 to 3.
    """

    name: ClassVar[str] = "hyperattention"
    reference: ClassVar[str] = "Han et al. 2024, arXiv 2310.05869"
    description: ClassVar[str] = "the keys of the query's hash block exactly, a uniform sample of all others"
    look: ClassVar[Mapping[str, object]] = {"color": "C6", "linestyle": "-.", "marker": "v", "markersize": 4}

    def sampled(self, tokens: Tokens, counts: tuple[int, ...], streams: Streams) -> Iterator[Sampled]:
        order = streams.draw(lambda rng: rng.permutation(tokens.length))
        for count in counts:
            weight = math.log(tokens.length / max(count, 1))
            yield Sampled(order[..., :count], 0.0 * tokens.key[..., :count, 0] + weight)
