"""Landmarks a second time: which keys they are, from the draws, and the answer through them as its formula has it."""

import numpy as np

from favorbench.methods import AttentionProblem, Method
from favorbench.methods.nystrom import Nystrom, ThroughLandmarks
from favorbench.methods.prefixes import ExactKeys
from favorbench.studies.verify.attention import EPS
from favorbench.studies.verify.weights import exact_keys


def _chosen(method: Method, key: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """nystrom: uniformly; wildcat: each in proportion to what those before it leave of exp(|y|^2)."""
    if isinstance(method, Nystrom):
        return rng.permutation(len(key))[:size]
    kernel, found = np.exp(key @ key.T), np.arange(0)
    for _ in range(size):
        through = np.linalg.solve(kernel[np.ix_(found, found)], kernel[found])
        left = np.diagonal(kernel) - np.sum(kernel[found] * through, axis=0)
        left[found] = 0.0
        with np.errstate(divide="ignore"):  # the log of a weight, plus Gumbel noise: the largest is a draw
            found = np.append(found, np.argmax(np.log(np.maximum(left, 0.0)) + rng.gumbel(size=len(key))))
    return found


def through_landmarks(method: Method) -> ThroughLandmarks | None:
    """The method inside of all prefixes, if it is one that has landmarks."""
    inner = method
    while isinstance(inner, ExactKeys):
        inner = inner.inner
    return inner if isinstance(inner, ThroughLandmarks) else None


def answer(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """sum_j K(x, y_j) v_j / sum_j K(x, y_j), guarded where the method is, and the most that rounding grows in it."""
    inner, value = through_landmarks(method), question.value
    kernel, bound, condition = _kernels(method, question, size, rng)
    assert inner is not None
    if inner.guard == "cells":
        kernel = np.where(_trusted(kernel, bound, value), kernel, bound)
    total = np.sum(kernel, axis=-1, keepdims=True)
    growth = condition * np.sum(np.abs(kernel), axis=-1, keepdims=True) / np.abs(total)
    return kernel @ value / total, float(np.max(growth)) * len(value) * EPS


def _kernels(
    method: Method, question: AttentionProblem, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, float]:
    """h(x, S) h(S, S)^-1 h(S, y) and exp(x.c), c the mean of the keys that are nearest to the same landmark; exp(x.y)
    on the exact keys of prefixes. And the condition number of h(S, S)."""
    query, key = question[:2]
    if isinstance(method, ExactKeys):
        first, exact = getattr(method, "n", 0), np.exp(query @ key.T)
        positions = None if question.positions is None else question.positions - first
        rest = AttentionProblem(query, key[first:], question.value[first:], positions)
        *parts, condition = _kernels(method.inner, rest, size, rng)
        whole = (np.concatenate([exact[:, :first], part], axis=1) for part in parts)
        kernel, bound = (np.where(exact_keys(method, question), exact, part) for part in whole)
        return kernel, bound, condition
    points = key[_chosen(method, key, size, rng)]
    gram = np.exp(points @ points.T)
    cell = np.argmin(np.sum((key[:, None, :] - points) ** 2, axis=-1), axis=-1)
    means = np.array([np.mean(key[cell == i], axis=0) for i in range(size)])
    kernel = np.exp(query @ points.T) @ np.linalg.solve(gram, np.exp(points @ key.T))
    return kernel, np.exp(query @ means[cell].T), float(np.linalg.cond(gram))


def _trusted(kernel: np.ndarray, bound: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Where the normaliser is between its bound and 4/3 of it, and the output between the values: (n, 1). Both but for
    a millionth, so that rounding does not decide where an answer is exact."""
    total, least = (np.sum(part, axis=-1, keepdims=True) for part in (kernel, bound))
    output, low, high = kernel @ value / total, np.min(value, axis=0), np.max(value, axis=0)
    inside = (output >= low - 1e-6 * (high - low)) & (output <= high + 1e-6 * (high - low))
    near = (np.log(total / least) >= -1e-6) & (3.0 * total <= 4.0 * least)
    return np.all(inside, axis=-1, keepdims=True) & near
