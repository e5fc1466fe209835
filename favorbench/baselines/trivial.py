"""The trivial answers: the mean of V, and Taylor polynomials."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.attention.estimator import Estimator
from favorbench.attention.linear import attention_estimates
from favorbench.baselines.base import Answer, Baseline, Question
from favorbench.maps import Taylor
from favorbench.numerics.shapes import Float


@dataclass(frozen=True)
class Uniform(Baseline):
    """Uniform attention: the mean of V for every query; where attention is causal, of V up to the query."""

    name: ClassVar[str] = "uniform"
    reference: ClassVar[str] = "-"
    description: ClassVar[str] = "uniform attention: the mean of V for every query"
    look: ClassVar[Mapping[str, object]] = {"color": "black", "linestyle": "--", "label": "uniform (mean of V)"}

    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        if question.positions is None:
            yield Answer(None, 1, np.broadcast_to(np.mean(question.value, axis=0), exact.shape), None)
            return
        means = np.cumsum(question.value, axis=0) / np.arange(1, len(question.value) + 1)[:, None]
        yield Answer(None, 1, means[question.positions], None)


def taylor_attention(question: Question, order: int) -> Answer:
    """Linear attention with the explicit features of the Taylor polynomial of exp(x.y), in tiles."""
    query, key, value, positions = question
    estimator, no_omega = Estimator(Taylor(order), None, (1,)), query[:1] * 0.0
    found = list(
        attention_estimates(query, key, value, no_omega, [estimator], causal=positions is not None, positions=positions)
    )
    output, normaliser = (np.concatenate([getattr(e, part)[0] for e in found]) for part in ("output", "normaliser"))
    return Answer(None, Taylor(order).num_features(0, query.shape[-1]), output, normaliser)


@dataclass(frozen=True)
class Taylor1(Baseline):
    """Attention with the kernel 1 + x.y, d + 1 features; the normaliser may be negative."""

    name: ClassVar[str] = "taylor-1"
    reference: ClassVar[str] = "first order of exp(x.y)"
    description: ClassVar[str] = "linear attention with the kernel 1 + x.y: d + 1 features, no randomness"
    look: ClassVar[Mapping[str, object]] = {"color": "0.45", "linestyle": "-.", "label": "taylor-1"}

    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        yield taylor_attention(question, order=1)


@dataclass(frozen=True)
class Taylor2(Baseline):
    """Attention with the kernel 1 + x.y + (x.y)^2/2 >= 1/2, (d + 1)(d + 2)/2 features."""

    name: ClassVar[str] = "taylor-2"
    reference: ClassVar[str] = "Arora et al. 2024 (Based), arXiv 2402.18668"
    description: ClassVar[str] = "linear attention with the kernel 1 + x.y + (x.y)^2/2: (d + 1)(d + 2)/2 features"
    look: ClassVar[Mapping[str, object]] = {"color": "0.45", "linestyle": ":", "label": "taylor-2"}

    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        yield taylor_attention(question, order=2)
