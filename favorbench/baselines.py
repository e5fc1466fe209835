"""The answers every estimator must beat: trivial ones, and the best that any map of R features can do."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from favorbench.attention import Estimator, attention_estimates
from favorbench.landmarks import Landmarks, landmark_attention, pivoted_cholesky
from favorbench.maps import Taylor
from favorbench.registry import build
from favorbench.shapes import Float

MATRIX_LIMIT = 1 << 22  # entries of the largest attention matrix that best-rank decomposes: 2048 x 2048


class Answer(NamedTuple):
    """A baseline's output. num_projections is 0 where R plays no part."""

    num_projections: int
    num_features: int
    output: Float[np.ndarray, "n d_v"]
    normaliser: Float[np.ndarray, "n 1"] | None


class Inputs(NamedTuple):
    """Queries (n, d), keys (l, d) and values (l, d_v) as attention takes them.

    positions: of the queries among the keys, where attention is causal.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    positions: np.ndarray | None = None


class Baseline(ABC):
    """An answer without random features; it may draw from ``rng``."""

    name: ClassVar[str]
    reference: ClassVar[str]
    description: ClassVar[str]
    #: It answers from the whole attention matrix, so a sample of query rows will not do.
    needs_all_rows: ClassVar[bool] = False
    #: No answer depends on keys after the query where attention is causal.
    causal_safe: ClassVar[bool] = True
    #: There is an answer for every R, not a single one.
    every_size: ClassVar[bool] = False

    @abstractmethod
    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        """One answer for every R in sizes (increasing), or a single one; none where it cannot be had."""


@dataclass(frozen=True)
class Uniform(Baseline):
    """Uniform attention: the mean of V for every query; where attention is causal, of V up to the query."""

    name: ClassVar[str] = "uniform"
    reference: ClassVar[str] = "-"
    description: ClassVar[str] = "uniform attention: the mean of V for every query"

    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        if inputs.positions is None:
            yield Answer(0, 1, np.broadcast_to(np.mean(inputs.value, axis=0), exact.shape), None)
            return
        means = np.cumsum(inputs.value, axis=0) / np.arange(1, len(inputs.value) + 1)[:, None]
        yield Answer(0, 1, means[inputs.positions], None)


def taylor_attention(inputs: Inputs, order: int) -> Answer:
    """Linear attention with the explicit features of the Taylor polynomial of exp(x.y), in tiles."""
    query, key, value, positions = inputs
    estimator, no_omega = Estimator(Taylor(order), None, (1,)), query[:1] * 0.0
    found = list(
        attention_estimates(query, key, value, no_omega, [estimator], causal=positions is not None, positions=positions)
    )
    output, normaliser = (np.concatenate([getattr(e, part)[0] for e in found]) for part in ("output", "normaliser"))
    return Answer(0, Taylor(order).num_features(0, query.shape[-1]), output, normaliser)


@dataclass(frozen=True)
class Taylor1(Baseline):
    """Attention with the kernel 1 + x.y, d + 1 features; the normaliser may be negative."""

    name: ClassVar[str] = "taylor-1"
    reference: ClassVar[str] = "first order of exp(x.y)"
    description: ClassVar[str] = "linear attention with the kernel 1 + x.y: d + 1 features, no randomness"

    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        yield taylor_attention(inputs, order=1)


@dataclass(frozen=True)
class Taylor2(Baseline):
    """Attention with the kernel 1 + x.y + (x.y)^2/2 >= 1/2, (d + 1)(d + 2)/2 features."""

    name: ClassVar[str] = "taylor-2"
    reference: ClassVar[str] = "Arora et al. 2024 (Based), arXiv 2402.18668"
    description: ClassVar[str] = "linear attention with the kernel 1 + x.y + (x.y)^2/2: (d + 1)(d + 2)/2 features"

    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        yield taylor_attention(inputs, order=2)


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
    causal_safe: ClassVar[bool] = False  # a mask takes linear attention out of the matrices of rank R
    every_size: ClassVar[bool] = True

    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        query, key = inputs.query, inputs.key
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


def _landmark_answers(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, landmarks: Landmarks, sizes: tuple[int, ...]
) -> Iterator[Answer]:
    """One answer for every R, with R landmarks as R features; scaled queries and keys."""
    answers = landmark_attention(query, key, value, landmarks, sizes)
    for size, (output, normaliser) in zip(sizes, answers, strict=True):
        yield Answer(size, landmarks.count(size), output, normaliser)


@dataclass(frozen=True)
class Nystrom(Baseline):
    """Nystrom approximation of exp(x.y) through R keys S, sampled uniformly: h(x, S) h(S, S)^-1 h(S, y).

    That is phi(x).phi(y) with phi(x) = exp(x S^T) exp(S S^T)^-1/2, R features; normalisers may be negative.
    Williams & Seeger 2001, "Using the Nystrom method to speed up kernel machines", NIPS.
    """

    name: ClassVar[str] = "nystrom"
    reference: ClassVar[str] = "Williams & Seeger 2001, NIPS"
    description: ClassVar[str] = "the softmax kernel through R keys, sampled uniformly, as landmarks"
    every_size: ClassVar[bool] = True
    causal_safe: ClassVar[bool] = False

    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        query, key = (a * a.shape[-1] ** -0.25 for a in (inputs.query, inputs.key))
        order = rng.permutation(len(key))[: sizes[-1]]
        landmarks = pivoted_cholesky(key[order], len(order), lambda residual, step: step)
        landmarks = landmarks._replace(chosen=order[landmarks.chosen])
        yield from _landmark_answers(query, key, inputs.value, landmarks, sizes)


@dataclass(frozen=True)
class WildCat(Baseline):
    """``nystrom`` through the R keys of a randomly pivoted Cholesky factorisation of exp(y.y').

    The next landmark is a key with probability in proportion to what those before it leave of exp(|y|^2). Takes O(L R)
    memory.
    Schroeder & Mackey 2026 ("WildCat"), arXiv 2602.10056 (at temperature 1, without its bins).
    """

    name: ClassVar[str] = "wildcat"
    reference: ClassVar[str] = "Schroeder & Mackey 2026, arXiv 2602.10056"
    description: ClassVar[str] = "the softmax kernel through R keys as landmarks, by randomly pivoted Cholesky"
    every_size: ClassVar[bool] = True
    causal_safe: ClassVar[bool] = False

    def answers(
        self, inputs: Inputs, exact: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        query, key = (a * a.shape[-1] ** -0.25 for a in (inputs.query, inputs.key))
        norms = np.sum(key * key, axis=-1)

        def choose(residual: np.ndarray, step: int) -> int:
            """The largest of log weights plus Gumbel noise: a draw in proportion to the weights, which may be huge."""
            return int(np.argmax(norms + np.log(residual) + rng.gumbel(size=len(residual))))

        landmarks = pivoted_cholesky(key, sizes[-1], choose)
        yield from _landmark_answers(query, key, inputs.value, landmarks, sizes)


BASELINES: tuple[type[Baseline], ...] = (Uniform, Taylor1, Taylor2, BestRank, Nystrom, WildCat)


def get_baseline(spec: str | Baseline) -> Baseline:
    """The baseline that ``spec`` names. Raises ScenarioError."""
    return spec if isinstance(spec, Baseline) else build("baseline", spec, BASELINES, Baseline)
