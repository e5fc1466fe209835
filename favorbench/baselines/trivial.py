"""The trivial answers: the mean of V, and Taylor polynomials."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.attention.linear import attention_estimates, linear_multiplications
from favorbench.attention.problem import SampledMap
from favorbench.maps import Taylor
from favorbench.methods import AttentionProblem, Estimate, Shape
from favorbench.methods.base import Baseline, Sizes, line_style
from favorbench.numerics.streams import Streams


class Unsized(Baseline):
    """One answer, whatever the size, and nothing random about it."""

    random = False
    every_size = False
    causal_safe = True
    arrays = "host"


@dataclass(frozen=True)
class Uniform(Unsized):
    """Uniform attention: the mean of V for every query; where attention is causal, of V up to the query."""

    name = "uniform"
    convex = True
    reference = "-"
    description = "uniform attention: the mean of V for every query"
    look = line_style("black", "--", label="uniform (mean of V)")

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        value = problem.value
        if not problem.causal:
            mean = np.mean(value, axis=0)
            yield Estimate(None, 1, np.broadcast_to(mean, (len(problem.query), value.shape[-1])), None)
            return
        means = np.cumsum(value, axis=0) / np.arange(1, len(value) + 1)[:, None]
        yield Estimate(None, 1, means[problem.positions], None)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Zero: there are only sums."""
        return 0.0


class Polynomial(Unsized):
    """Linear attention with the Taylor polynomial of exp(x.y) up to some order."""

    order: ClassVar[int]

    def estimates(self, problem: AttentionProblem, sizes: Sizes, streams: Streams) -> Iterator[Estimate]:
        polynomial, unread = Taylor(self.order), problem.query[:1]  # in the place of omega
        tiles = list(attention_estimates(problem, unread, [SampledMap(polynomial, None, (1,))]))
        output, normaliser = (np.concatenate([getattr(e, part)[0] for e in tiles]) for part in ("output", "normaliser"))
        yield Estimate(None, polynomial.num_features(0, problem.query.shape[-1]), output, normaliser)

    def multiplications(self, shape: Shape, size: int) -> float | None:
        return linear_multiplications(Taylor(self.order), shape, 0)


@dataclass(frozen=True)
class Taylor1(Polynomial):
    """Attention with the kernel 1 + x.y, d + 1 features; the normaliser may be negative."""

    name = "taylor-1"
    order = 1
    reference = "first order of exp(x.y)"
    description = "linear attention with the kernel 1 + x.y: d + 1 features, no randomness"
    look = line_style("0.45", "-.", label="taylor-1")


@dataclass(frozen=True)
class Taylor2(Polynomial):
    """Attention with the kernel 1 + x.y + (x.y)^2/2 >= 1/2, (d + 1)(d + 2)/2 features."""

    name = "taylor-2"
    order = 2
    reference = "Arora et al. 2024 (Based), arXiv 2402.18668"
    description = "linear attention with the kernel 1 + x.y + (x.y)^2/2: (d + 1)(d + 2)/2 features"
    look = line_style("0.45", ":", label="taylor-2")
