"""The weights of methods on every key, a second time: dense, from the draws that the method makes, without its sums."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from favorbench.attention.causal import CHUNK
from favorbench.methods import AttentionProblem, Method, SampledKeys
from favorbench.methods.clusters import Centred, Clusters
from favorbench.methods.eva import Eva
from favorbench.methods.multipole import Multipole
from favorbench.methods.prefixes import ExactKeys, Sinks, Top, Window
from favorbench.studies.verify.drawn import LOG_WEIGHTS, eva_block, eva_chunk, eva_edges


class Weights(NamedTuple):
    """log: of the weight of each query on each key; mass: of all that was added up for it, taken out again or not."""

    log: np.ndarray
    mass: np.ndarray

    def output(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weighted means of values, and how much larger the mass is than the sum of the weights: (n, 1)."""
        peak = np.max(self.log, axis=-1, keepdims=True)
        weights, mass = np.exp(self.log - peak), np.exp(self.mass - peak)
        total = np.sum(weights, axis=-1, keepdims=True)
        return weights @ value / total, np.sum(mass, axis=-1, keepdims=True) / total


def is_defined(method: Method) -> bool:
    """Whether there is a definition: of cells of random centres, of sampled keys, of what ``drawn`` has, and of these
    with exact keys."""
    if isinstance(method, ExactKeys):
        return isinstance(method.wrapped, Method) and is_defined(method.wrapped)
    if isinstance(method, SampledKeys) or type(method) in LOG_WEIGHTS:
        return True
    return isinstance(method, Clusters | Multipole) and method.points == "random"


def weights_of(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> Weights:
    """What the answer of size ``size`` is a quotient of, with the numbers that the method draws from ``rng``."""
    return _causal(method, question, size, rng) if question.causal else _whole(method, question, size, rng)


def _whole(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> Weights:
    query, key, value, positions = question[:4]
    if type(method) in LOG_WEIGHTS:
        log = LOG_WEIGHTS[type(method)](method, question, size, rng)
        return Weights(log, log)
    if not isinstance(method, ExactKeys):
        ((_, weights),) = _grown(method, query, key, value, size, rng, [len(key)])
        return weights
    exact = query @ key.T
    if isinstance(method, Sinks):
        rest = slice(method.n, None)
        moved = None if positions is None else positions - method.n
        inner = _whole(method.inner, AttentionProblem(query, key[rest], value[rest], moved), size, rng)
        return Weights(*(np.concatenate([exact[:, : method.n], part], axis=1) for part in inner))
    inner, near = _whole(method.inner, question, size, rng), exact_keys(method, question)
    return Weights(np.where(near, exact, inner.log), np.where(near, np.logaddexp(exact, inner.mass), inner.mass))


def exact_keys(method: ExactKeys, question: AttentionProblem) -> np.ndarray:
    """Which keys a prefix makes exact, for each query: (n, l)."""
    query, key, _, positions, _ = question[:5]
    places = np.arange(len(key))
    if isinstance(method, Sinks):
        return np.tile(places < method.n, (len(query), 1))
    if isinstance(method, Window):
        assert positions is not None
        first = positions[:, None] - method.w // 2
        return (places >= first) & (places < first + method.w)
    assert isinstance(method, Top)
    logits = query @ key.T
    return logits >= np.sort(logits, axis=-1)[:, -method.k :][:, :1]


def _causal(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> Weights:
    """Keys before the windows of a chunk through what is kept of them, all but the first ones; the others exactly."""
    query, key, value, positions = question[:4]
    first, last, inside = 0, 1, method
    while isinstance(inside, ExactKeys):
        first, last = first + getattr(inside, "n", 0), max(last, getattr(inside, "w", 1))
        inside = inside.inner
    last = max(last, eva_block(inside, size)) if isinstance(inside, Eva) else last
    assert positions is not None
    ends = [max(first, start + 1 - last) for start in range(0, len(key), CHUNK)]
    stops = sorted({end - first for end in ends if end > first})
    log = np.where(np.arange(len(key)) <= positions[:, None], query @ key.T, -np.inf)
    past = dict(_grown(inside, query, key[first:], value[first:], size, rng, stops, causal=True))
    for chunk, end in enumerate(ends):
        if end > first:
            rows = positions // CHUNK == chunk
            log[rows, first:end] = past[end - first].log[rows]
    return Weights(log, log)


def _grown(
    method: Method,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    size: int,
    rng: np.random.Generator,
    stops: Sequence[int],
    causal: bool = False,
) -> Iterator[tuple[int, Weights]]:
    """The weights on the first keys, up to each stop, of what is kept of them."""
    if isinstance(method, SampledKeys):
        for stop, times in _times_drawn(method, value, size, rng, stops):
            with np.errstate(divide="ignore"):
                log = query @ key[:stop].T + np.log(times)
            yield stop, Weights(log, log)
        return
    if isinstance(method, Eva):
        yield from _eva_grown(method, query, key, size, rng, stops)
        return
    assert isinstance(method, Centred)
    share = min(round(method.exact * size), size - 1) if isinstance(method, Multipole) else 0
    count = size - share
    for stop, cell in _cells(method, key, count, rng, stops):
        near, one_hot = key[:stop], np.eye(count)[cell]
        members = np.maximum(np.sum(one_hot, axis=0), 1.0)[:, None]
        centres = (one_hot.T @ near) / members
        variance = one_hot.T @ (near - centres[cell]) ** 2 / members
        log = query @ centres[cell].T
        if isinstance(method, Multipole):
            exact = _near_cells(query @ centres.T, np.sum(variance, axis=-1), cell, share)
            log = np.where(exact[:, cell], query @ near.T, log)
        elif method.second_order:
            log = log + 0.5 * query**2 @ variance[cell].T
        yield stop, Weights(log, log)


def _eva_grown(
    method: Eva, query: np.ndarray, key: np.ndarray, size: int, rng: np.random.Generator, stops: Sequence[int]
) -> Iterator[tuple[int, Weights]]:
    """Chunks as far as they are there, from proposals that know the keys only."""
    edges = eva_edges(method, len(key), size)
    noise = rng.standard_normal((len(edges) - 1, key.shape[-1])) if method.form == "drawn" else np.zeros(len(edges) - 1)
    for stop in stops:
        parts = [key[start : min(end, stop)] for start, end in itertools.pairwise(edges) if start < stop]
        proposals = [own + np.mean(part, axis=0) for own, part in zip(noise, parts, strict=False)]
        log = [eva_chunk(query, part, at, True) for part, at in zip(parts, proposals, strict=True)]
        yield stop, Weights(*[np.concatenate(log, axis=1)] * 2)


def _times_drawn(
    method: SampledKeys, value: np.ndarray, size: int, rng: np.random.Generator, stops: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """How often each of the first keys counts."""
    if method.weights == "values":
        lengths = np.linalg.norm(value, axis=-1)
        drawn = np.searchsorted(np.cumsum(lengths / np.sum(lengths)), rng.random(size))
        yield len(value), np.bincount(drawn, minlength=len(value)) * np.sum(lengths) / lengths / size
        return
    order = rng.permutation(len(value))
    for stop in stops:
        chosen = order[order < stop][:size]
        yield stop, np.isin(np.arange(stop), chosen) * stop / len(chosen)


def _cells(
    method: Centred, key: np.ndarray, count: int, rng: np.random.Generator, stops: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """The cell of each of the first keys: made anew when these have doubled, where new ones else join the nearest."""
    order, cell, made = rng.permutation(len(key)), np.arange(0), 0
    for stop in stops:
        seen, known = key[:stop], len(cell)
        if stop <= count:
            cell = np.arange(stop)
        elif stop >= 2 * made:
            made, cell = stop, _nearest(seen, seen[order[order < stop][:count]])
            for _ in range(method.lloyd):
                cell = _nearest(seen, _means(seen, cell, count))
        else:
            cell = np.concatenate([cell, _nearest(seen[known:], _means(seen[:known], cell, count))])
        yield stop, cell


def _nearest(key: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.argmin(np.sum((key[:, None, :] - centres) ** 2, axis=-1), axis=-1)


def _means(key: np.ndarray, cell: np.ndarray, count: int) -> np.ndarray:
    return np.stack([np.sum(key[cell == i], axis=0) / max(1, np.sum(cell == i)) for i in range(count)])


def _near_cells(logits: np.ndarray, spread: np.ndarray, cell: np.ndarray, share: int) -> np.ndarray:
    """Of each query the cells of which the centroid says least, (n, m), as long as half of the keys of each fit in."""
    number, found = np.bincount(cell, minlength=len(spread)), np.zeros(logits.shape, dtype=bool)
    most = 2 * math.ceil(share * len(spread) / len(cell)) + 1
    order = np.argsort(-(logits + np.log(np.maximum(spread, np.finfo(float).tiny))), axis=-1)
    for row, best in enumerate(order):
        used = 0.0
        for one in best[:most]:
            found[row, one] = used + number[one] / 2 < share
            used += number[one]
    return found
