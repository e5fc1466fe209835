"""Attention through R keys as landmarks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.methods.base import Answer, Method, Question, Shape
from favorbench.methods.landmarks import Landmarks, landmark_attention, pivoted_cholesky
from favorbench.numerics.streams import Streams


def _landmark_answers(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, landmarks: Landmarks, sizes: tuple[int, ...]
) -> Iterator[Answer]:
    """One answer for every R, with R landmarks as R features; scaled queries and keys."""
    answers = landmark_attention(query, key, value, landmarks, sizes)
    for size, (output, normaliser) in zip(sizes, answers, strict=True):
        yield Answer(size, landmarks.count(size), output, normaliser)


def _products(shape: Shape, size: int) -> float:
    """Of m landmarks with all tokens and their values, and m^2 (d_v + 1) for the solution."""
    return float((shape.n + shape.l) * size * (shape.d + shape.d_v) + size * size * (shape.d_v + 1))


@dataclass(frozen=True)
class Nystrom(Method):
    """Nystrom approximation of exp(x.y) through R keys S, sampled uniformly: h(x, S) h(S, S)^-1 h(S, y).

    That is phi(x).phi(y) with phi(x) = exp(x S^T) exp(S S^T)^-1/2, R features; normalisers may be negative.
    Williams & Seeger 2001, "Using the Nystrom method to speed up kernel machines", NIPS.
    """

    name: ClassVar[str] = "nystrom"
    reference: ClassVar[str] = "Williams & Seeger 2001, NIPS"
    description: ClassVar[str] = "the softmax kernel through R keys, sampled uniformly, as landmarks"
    arrays: ClassVar = "host"
    exact_at_full_size: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.6",
        "linestyle": "--",
        "label": "nystrom (m landmarks)",
        "marker": "+",
        "markersize": 6,
    }

    def answers(self, question: Question, sizes: tuple[int, ...], streams: Streams) -> Iterator[Answer]:
        (query, key), (rng,) = question[:2], streams.generators
        order = rng.permutation(len(key))[: sizes[-1]]
        landmarks = pivoted_cholesky(key[order], len(order), lambda residual, step: step)
        landmarks = landmarks._replace(chosen=order[landmarks.chosen])
        yield from _landmark_answers(query, key, question.value, landmarks, sizes)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Beside the products the kernel and the factorisation of the landmarks, m^2 d and m^3 / 2."""
        return _products(shape, size) + float(size * size * (shape.d + size / 2))


@dataclass(frozen=True)
class WildCat(Method):
    """``nystrom`` through the R keys of a randomly pivoted Cholesky factorisation of exp(y.y').

    The next landmark is a key with probability in proportion to what those before it leave of exp(|y|^2). Takes O(L R)
    memory.
    Schroeder & Mackey 2026 ("WildCat"), arXiv 2602.10056 (at temperature 1, without its bins).
    """

    name: ClassVar[str] = "wildcat"
    reference: ClassVar[str] = "Schroeder & Mackey 2026, arXiv 2602.10056"
    description: ClassVar[str] = "the softmax kernel through R keys as landmarks, by randomly pivoted Cholesky"
    arrays: ClassVar = "host"
    exact_at_full_size: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {
        "color": "0.6",
        "linestyle": "-",
        "label": "wildcat (m landmarks)",
        "marker": "*",
        "markersize": 5,
    }

    def answers(self, question: Question, sizes: tuple[int, ...], streams: Streams) -> Iterator[Answer]:
        (query, key), (rng,) = question[:2], streams.generators
        norms = np.sum(key * key, axis=-1)

        def choose(residual: np.ndarray, step: int) -> int:
            """The largest of log weights plus Gumbel noise: a draw in proportion to the weights, which may be huge."""
            return int(np.argmax(norms + np.log(residual) + rng.gumbel(size=len(residual))))

        landmarks = pivoted_cholesky(key, sizes[-1], choose)
        yield from _landmark_answers(query, key, question.value, landmarks, sizes)

    def multiplications(self, shape: Shape, size: int) -> float:
        """Beside the products the kernel of the landmarks with all keys, l m d, and the factorisation, l m^2 / 2."""
        return _products(shape, size) + float(shape.l * size * (shape.d + size / 2))

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The rows of the Cholesky factor, over all keys; nystrom has rows over its landmarks only."""
        return shape.l * size
