"""Attention through R keys as landmarks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.baselines.base import Answer, Baseline, Question
from favorbench.baselines.landmarks import Landmarks, landmark_attention, pivoted_cholesky
from favorbench.numerics.shapes import Float


def _landmark_answers(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, landmarks: Landmarks, sizes: tuple[int, ...]
) -> Iterator[Answer]:
    """One answer for every R, with R landmarks as R features; scaled queries and keys."""
    answers = landmark_attention(query, key, value, landmarks, sizes)
    for size, (output, normaliser) in zip(sizes, answers, strict=True):
        yield Answer(size, landmarks.count(size), output, normaliser)


def _landmark_flops(query_len: int, seq_len: int, head_dim: int, width: int) -> float:
    """One product of R landmarks with all tokens and their values, and the factorisation, O(tokens R^2)."""
    return 2.0 * (query_len + seq_len) * width * (width + 2 * head_dim)


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
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.6",
        "linestyle": "--",
        "label": "nystrom (R landmarks)",
        "marker": "+",
        "markersize": 6,
    }

    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        query, key = (a * a.shape[-1] ** -0.25 for a in (question.query, question.key))
        order = rng.permutation(len(key))[: sizes[-1]]
        landmarks = pivoted_cholesky(key[order], len(order), lambda residual, step: step)
        landmarks = landmarks._replace(chosen=order[landmarks.chosen])
        yield from _landmark_answers(query, key, question.value, landmarks, sizes)

    def flops(self, query_len: int, seq_len: int, head_dim: int, width: int) -> float:
        return _landmark_flops(query_len, seq_len, head_dim, width)


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
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.6",
        "linestyle": "-",
        "label": "wildcat (R landmarks)",
        "marker": "*",
        "markersize": 5,
    }

    def answers(
        self, question: Question, exact: Float[np.ndarray, "n d_v"], sizes: tuple[int, ...], rng: np.random.Generator
    ) -> Iterator[Answer]:
        query, key = (a * a.shape[-1] ** -0.25 for a in (question.query, question.key))
        norms = np.sum(key * key, axis=-1)

        def choose(residual: np.ndarray, step: int) -> int:
            """The largest of log weights plus Gumbel noise: a draw in proportion to the weights, which may be huge."""
            return int(np.argmax(norms + np.log(residual) + rng.gumbel(size=len(residual))))

        landmarks = pivoted_cholesky(key, sizes[-1], choose)
        yield from _landmark_answers(query, key, question.value, landmarks, sizes)

    def flops(self, query_len: int, seq_len: int, head_dim: int, width: int) -> float:
        return _landmark_flops(query_len, seq_len, head_dim, width)

    def matrix_entries(self, query_len: int, seq_len: int, width: int) -> int:
        """The rows of the Cholesky factor, over all keys; nystrom has rows over its landmarks only."""
        return seq_len * width
