"""The answers every estimator must beat: trivial ones, and the best that any map of R features can do."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from favorbench.attention import Estimator, attention_estimates
from favorbench.maps import Taylor
from favorbench.registry import build

MATRIX_LIMIT = 1 << 22  # entries of the largest attention matrix that best-rank decomposes: 2048 x 2048


class Answer(NamedTuple):
    """A baseline's output. num_projections is 0 where R plays no part."""

    num_projections: int
    num_features: int
    output: Float[np.ndarray, "n d_v"]
    normaliser: Float[np.ndarray, "n 1"] | None


class Baseline(ABC):
    """An answer that needs no random features."""

    name: ClassVar[str]
    reference: ClassVar[str]
    description: ClassVar[str]
    #: It answers from the whole attention matrix, so a sample of query rows will not do.
    needs_all_rows: ClassVar[bool] = False

    @abstractmethod
    def answers(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, exact: np.ndarray, sizes: tuple[int, ...]
    ) -> Iterator[Answer]:
        """One answer for every R in sizes, or a single one; none where it cannot be had."""


@dataclass(frozen=True)
class Uniform(Baseline):
    """Uniform attention: the mean of V for every query."""

    name: ClassVar[str] = "uniform"
    reference: ClassVar[str] = "-"
    description: ClassVar[str] = "uniform attention: the mean of V for every query"

    def answers(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, exact: np.ndarray, sizes: tuple[int, ...]
    ) -> Iterator[Answer]:
        yield Answer(0, 1, np.broadcast_to(np.mean(value, axis=0), exact.shape), None)


def taylor_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, order: int) -> Answer:
    """Linear attention with the explicit features of the Taylor polynomial of exp(x.y), in tiles."""
    estimator = Estimator(Taylor(order), None, (1,))
    found = list(attention_estimates(query, key, value, query[:1] * 0.0, [estimator]))
    output, normaliser = (np.concatenate([getattr(e, part)[0] for e in found]) for part in ("output", "normaliser"))
    return Answer(0, Taylor(order).num_features(0, query.shape[-1]), output, normaliser)


@dataclass(frozen=True)
class Taylor1(Baseline):
    """Attention with the kernel 1 + x.y, d + 1 features; the normaliser may be negative."""

    name: ClassVar[str] = "taylor-1"
    reference: ClassVar[str] = "first order of exp(x.y)"
    description: ClassVar[str] = "linear attention with the kernel 1 + x.y: d + 1 features, no randomness"

    def answers(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, exact: np.ndarray, sizes: tuple[int, ...]
    ) -> Iterator[Answer]:
        yield taylor_attention(query, key, value, order=1)


@dataclass(frozen=True)
class Taylor2(Baseline):
    """Attention with the kernel 1 + x.y + (x.y)^2/2 >= 1/2, (d + 1)(d + 2)/2 features."""

    name: ClassVar[str] = "taylor-2"
    reference: ClassVar[str] = "Arora et al. 2024 (Based), arXiv 2402.18668"
    description: ClassVar[str] = "linear attention with the kernel 1 + x.y + (x.y)^2/2: (d + 1)(d + 2)/2 features"

    def answers(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, exact: np.ndarray, sizes: tuple[int, ...]
    ) -> Iterator[Answer]:
        yield taylor_attention(query, key, value, order=2)


@dataclass(frozen=True)
class BestRank(Baseline):
    """The best matrix of rank R: the truncated SVD of the row-normalised attention matrix.

    No map of R features comes closer to the attention *matrix* (Eckart & Young 1936). With U_R the first R left
    singular vectors its output is U_R U_R^T (A V), so the eigenvectors of A A^T suffice; they are good to about 1e-8
    of the largest singular value. Only while the matrix has at most MATRIX_LIMIT entries; no answer otherwise.
    """

    name: ClassVar[str] = "best-rank"
    reference: ClassVar[str] = "Eckart & Young 1936"
    description: ClassVar[str] = "truncated SVD of the attention matrix at rank R; up to 2048 x 2048"
    needs_all_rows: ClassVar[bool] = True

    def answers(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, exact: np.ndarray, sizes: tuple[int, ...]
    ) -> Iterator[Answer]:
        if len(query) * len(key) > MATRIX_LIMIT:
            return
        logits = (query * query.shape[-1] ** -0.5) @ key.T
        matrix = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
        matrix /= np.sum(matrix, axis=-1, keepdims=True)
        left = np.linalg.eigh(matrix @ matrix.T)[1][:, ::-1]  # columns by falling singular value
        coefficients = left.T @ exact
        output, start = np.zeros_like(exact), 0
        for size in sizes:
            output = output + left[:, start:size] @ coefficients[start:size]
            start = size
            yield Answer(size, size, output, None)


BASELINES: tuple[type[Baseline], ...] = (Uniform, Taylor1, Taylor2, BestRank)


def get_baseline(spec: str | Baseline) -> Baseline:
    """The baseline that ``spec`` names. Raises ScenarioError."""
    return spec if isinstance(spec, Baseline) else build("baseline", spec, BASELINES, Baseline)
