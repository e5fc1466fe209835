"""Second definitions of every method and baseline: its attention matrix, from the numbers that it draws.

All n x l weights at once, without tiles, cells, running maxima, prefix sums or summaries. The maps inside prefixes come
from ``tests.oracle``.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import entr, logsumexp
from scipy.special import softmax as softmax_of

from favorbench.baselines import BASELINES, get_baseline
from favorbench.methods import AttentionProblem, Method, get_method
from favorbench.numerics.streams import Streams
from favorbench.samplers import get_sampler
from tests.oracle import EPS, Asked, Exact, kernel_of, series

CHUNK = 128  # positions that share what is kept of the keys before them


class Weights(NamedTuple):
    """Weights sign * exp(log) of queries on keys, (n, l); mass: log of the sum of the sizes of the terms of each."""

    sign: np.ndarray
    log: np.ndarray
    mass: np.ndarray

    @staticmethod
    def of(log):
        return Weights(np.ones_like(log), log, log)

    @staticmethod
    def of_kernel(values, terms):
        """Of kernel values, which may be negative, and the sums of the absolute values of their terms."""
        with np.errstate(divide="ignore"):
            parts = np.sign(values), np.log(np.abs(values)), np.log(terms)
        return Weights(*(np.asarray(part, float) for part in parts))

    def exact_where(self, near, logits):
        """Exact weights on some keys. The estimates there were added and are subtracted again, so they keep a mass."""
        mass = np.where(near, np.logaddexp(self.mass, logits), self.mass)
        return Weights(np.where(near, 1.0, self.sign), np.where(near, logits, self.log), mass)

    def attention(self):
        peak = np.max(self.log, axis=-1, keepdims=True)
        weights, mass = self.sign * np.exp(self.log - peak), np.exp(self.mass - peak)
        total = np.sum(weights, axis=-1, keepdims=True)
        return Attention(weights / total, np.sum(mass, axis=-1, keepdims=True) / np.abs(total))


class Attention(NamedTuple):
    """The matrix (n, l) that the values are multiplied by, and by how much rounding grows in its rows, (n, 1)."""

    matrix: np.ndarray
    growth: np.ndarray


def member(spec):
    """A method or a baseline."""
    if isinstance(spec, Method):
        return spec
    return (get_baseline if spec.split("(")[0] in {one.name for one in BASELINES} else get_method)(spec)


def inside(method):
    """The method inside all prefixes."""
    return method if getattr(method, "prefix", None) is None else inside(method.inner)


def attention_of(method, question, size, rng):
    """The attention matrix of a method for one size, with the numbers that it draws from ``rng``."""
    if method.name in MATRICES:
        return MATRICES[method.name](method, question, size)
    define = _causal if question.causal else _whole
    if getattr(inside(method), "guard", "none") == "none":
        return define(method, question, size, rng).attention()
    again = copy.deepcopy(rng)
    free, bound = define(method, question, size, rng), define(method, question, size, again, bound=True)
    trusted = _trusted(free, bound, question.value)
    return Attention(*(np.where(trusted, *pair) for pair in zip(free.attention(), bound.attention(), strict=True)))


def error(
    method,
    question,
    sizes,
    seed=0,
    compared=None,
):
    """The largest error of answers and row sums over what rounding explains; infinite where one is NaN.

    compared: some of the sizes, if not all.
    """
    answers = method.estimates(question, tuple(sizes), Streams.of(np.random.default_rng(seed)))
    query, key, value = (np.asarray(part, float) for part in question[:3])
    doubles, worst = question._replace(query=query, key=key, value=value), 0.0
    x, y = (np.max(np.linalg.norm(part, axis=-1)) for part in (query, key))
    terms = len(key) + 1 + (x + y) ** 2
    if hasattr(inside(method), "wrapped"):  # projections have d terms each
        terms += 8.0 * (x + y) * math.sqrt(key.shape[-1])
    if getattr(inside(method), "order", 1) == 2:
        terms += (x * y) ** 2
    bound = float(np.finfo(question.value.dtype).eps) * terms
    for size, answer in zip(sizes if method.every_size else sizes[:1], answers, strict=True):
        if compared is not None and size not in compared:
            continue
        matrix, growth = attention_of(method, doubles, size, np.random.default_rng(seed))
        expected = matrix @ value
        scale = np.max(np.abs(value)) + np.max(np.abs(expected), axis=-1, keepdims=True)
        errors = [(answer.output - expected) / scale]
        if answer.row_sums is not None:
            errors.append(answer.row_sums - np.sum(matrix, axis=-1, keepdims=True))
        for part in errors:
            ratio = np.abs(np.asarray(part, float)) / (bound * growth)
            worst = max(worst, float(np.max(np.where(np.isnan(ratio), np.inf, ratio))))
    return worst


# all keys at once, and prefixes


def _whole(method, question, size, rng, bound=False):
    """The weights where every query sees every key; bound: those that landmarks are guarded by."""
    query, key, value, positions = question[:4]
    prefix = getattr(method, "prefix", None)
    if prefix is None:
        if method.name in WHOLE:
            return WHOLE[method.name](method, question, size, rng)
        if method.name in ("nystrom", "wildcat"):
            return _landmarks(method, question, size, rng, bound)
        ((_, weights),) = _grown(method, question, size, rng, [len(key)])
        return weights
    logits = query @ key.T
    wrapped = method.inner
    if prefix == "sinks":
        first = method.n
        moved = None if positions is None else positions - first
        rest = _whole(wrapped, AttentionProblem(query, key[first:], value[first:], moved), size, rng, bound)
        both = zip(Weights.of(logits[:, :first]), rest, strict=True)
        return Weights(*(np.concatenate(parts, axis=1) for parts in both))
    near = _window(method, question) if prefix == "window" else _best(logits, method.k)
    return _whole(wrapped, question, size, rng, bound).exact_where(near, logits)


def _window(method, question):
    """The w keys around each query, the odd one before it: (n, l)."""
    assert question.positions is not None
    distance = np.arange(len(question.key)) - question.positions[:, None]
    return (distance >= -(method.w // 2)) & (distance < (method.w + 1) // 2)


def _best(logits, count):
    """The keys with the largest logits of each query, the first of equal ones: (n, l)."""
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    return np.any(order[:, :, None] == np.arange(logits.shape[-1]), axis=1)


def _causal(method, question, size, rng, bound=False):
    """Exact on the first keys and from the windows of the chunk on; estimates of the keys between.

    What sees every pair is masked.
    """
    query, key, value, positions = question[:4]
    assert positions is not None and not bound
    seen = np.arange(len(key)) <= positions[:, None]
    if method.name in WHOLE and method.name != "eva":
        return WHOLE[method.name](method, question, size, rng)
    first, last, innermost = 0, 1, method
    while getattr(innermost, "prefix", None) is not None:
        first, last = first + getattr(innermost, "n", 0), max(last, getattr(innermost, "w", 1))
        innermost = innermost.inner
    last = max(last, _eva_block(innermost, size)) if innermost.name == "eva" else last
    chunk_size, segment = _block(innermost) * math.ceil(CHUNK / _block(innermost)), _segment(innermost) or 1
    ends = [max(first, (start + 1 - last) // segment * segment) for start in range(0, len(key), chunk_size)]
    stops = sorted({end - first for end in ends} - {0})
    logits = np.where(seen, query @ key.T, -np.inf)
    weights = Weights(np.ones_like(logits), logits, logits.copy())
    rest = AttentionProblem(query, key[first:], value[first:])
    in_groups = innermost.name in SPARSE  # of the queries that there are in a chunk
    chunk_of = rest._replace(positions=positions // chunk_size)

    def seen_beside(stop):
        """The log of the sum of the weights of each query on the keys that are not among the first ``stop``."""
        with np.errstate(divide="ignore"):
            return logsumexp(np.delete(logits, slice(first, first + stop), axis=1), axis=1, keepdims=True)

    past = {} if in_groups else dict(_grown(innermost, chunk_of, size, rng, stops, causal=seen_beside))
    for chunk, end in enumerate(ends):
        rows = np.flatnonzero(positions // chunk_size == chunk)
        if end > first and in_groups and len(rows):
            known = AttentionProblem(query[rows], key[first:end], value[first:end], positions[rows] - first)
            for whole, part in zip(weights, _sparse(innermost, known, size), strict=True):
                whole[rows, first:end] = part
        elif end > first and len(rows):
            for whole, part in zip(weights, past[end - first], strict=True):
                whole[rows, first:end] = part[rows]
    return weights


# what is kept of the keys, as it grows with the sequence

Grown = Iterator[tuple[int, Weights]]


def _grown(
    method,
    question,
    size,
    rng,
    stops,
    causal=None,
):
    """The weights on the first keys, up to each stop, of what is kept of them.

    causal: of each query, the log of the weight of all keys but those up to a stop; positions are then chunks.
    """
    if hasattr(method, "wrapped"):
        yield from _of_map(method, question, size, rng, stops)
    elif method.name == "sampled-keys":
        for stop, times in _times_drawn(method, question.value, size, rng, stops):
            with np.errstate(divide="ignore"):
                yield stop, Weights.of(question.query @ question.key[:stop].T + np.log(times))
    elif method.name == "nothing":
        yield from ((stop, _nothing(method, question._replace(key=question.key[:stop]), size, rng)) for stop in stops)
    elif method.name in SPARSE:
        yield len(question.key), _sparse(method, question, size)
    elif method.name == "eva":
        yield from _eva_grown(method, question.query, question.key, size, rng, stops)
    else:
        chunk = question.positions if causal else np.zeros(len(question.query))
        yield from _centred(method, question.query, question.key, size, rng, stops, causal, chunk)


def _of_map(method, question, size, rng, stops):
    """A map's kernel, on the rows of omega that are drawn first."""
    omega = get_sampler(method.sampler).sample(rng, size, question.key.shape[-1])
    for stop in stops:
        query, key = question.query.astype(Exact), question.key[:stop].astype(Exact)
        yield stop, Weights.of_kernel(*kernel_of(Asked(query, key, omega.astype(Exact), None, method.wrapped)))


def _times_drawn(method, value, size, rng, stops):
    """The total weight of the draws of each of the first keys."""
    if method.weights == "values":
        lengths = np.linalg.norm(value, axis=-1)
        drawn = np.searchsorted(np.cumsum(lengths / np.sum(lengths)), rng.random(size))
        yield len(value), np.bincount(drawn, minlength=len(value)) * np.sum(lengths) / lengths / size
        return
    order = rng.permutation(len(value))
    for stop in stops:
        chosen = order[order < stop][:size]
        yield stop, np.isin(np.arange(stop), chosen) * stop / len(chosen)


def _centred(
    method, query, key, size, rng, stops,
    causal, chunk,
):  # fmt: skip
    """clusters: exp(x.c), or with half the variance of x.y in the cell. multipole: exp(x.y) in the nearest cells.

    These are the same for the queries of a block, those of one chunk in causal attention: every fourth query votes.
    """
    multipole = method.name == "multipole"
    share = min(round(method.exact * size), size - 1) if multipole else 0
    grow = _segment_cells if causal and _segment(method) else _cells
    blocks = [np.flatnonzero(chunk == c) for c in np.unique(chunk)]
    blocks = [b[b // _block(method) == i] for b in blocks for i in np.unique(b // _block(method))]
    for stop, cell in grow(method, key, size - share, rng, stops, causal):
        near, one_hot = key[:stop], np.eye(max(size - share, 1 + max(cell)))[cell]
        members = np.maximum(np.sum(one_hot, axis=0), 1.0)[:, None]
        centres = (one_hot.T @ near) / members
        variance = one_hot.T @ (near - centres[cell]) ** 2 / members
        log = query @ centres[cell].T
        if multipole:
            exact = np.zeros((len(query), len(centres)), dtype=bool)
            for block in blocks:
                log_share = query[block] @ centres.T
                if len(block) > 1:
                    counts = np.sum(one_hot, axis=0)
                    normaliser = logsumexp(log_share, b=counts, axis=-1, keepdims=True)
                    if causal:
                        normaliser = np.logaddexp(normaliser, causal(stop)[block])
                    log_share = logsumexp((log_share - normaliser)[::4], axis=0, keepdims=True)
                exact[block] = _near_cells(log_share, np.sum(variance, axis=-1), cell, share)
            log = np.where(exact[:, cell], query @ near.T, log)
        elif method.order == 2:
            log = log + 0.5 * query**2 @ variance[cell].T
        yield stop, Weights.of(log)


def _cells(method, key, count, rng, stops, causal):
    """The cell of each of the first keys: made anew when these have doubled; between, new keys join the nearest."""
    if getattr(method, "cells", "random") == "tree":
        yield len(key), _tree(key, count)
        return
    pivots, cell, made = method.points == "pivots", np.arange(0), 0
    order = rng.permutation(len(key)) if causal or not pivots else cell
    for stop in stops:
        seen, known = key[:stop], len(cell)
        if stop <= count:
            cell = np.arange(stop)
        elif stop >= 2 * made:
            gaussian = np.exp(-0.5 * np.sum((seen[:, None] - seen) ** 2, axis=-1))
            starts = _pivots(gaussian, count, rng) if pivots else order[order < stop][:count]
            made, cell = stop, _nearest(seen, key[starts])
            for _ in range(method.lloyd):
                cell = _nearest(seen, _means(seen, cell, count))
        else:
            cell = np.concatenate([cell, _nearest(seen[known:], _means(seen[:known], cell, count))])
        yield stop, cell


def _block(method):
    """How many queries share their near cells."""
    return getattr(method, "block", 1) if method.name == "multipole" else 1


def _segment(method):
    """How many keys have causal cells of their own; 0 where cells grow with the sequence."""
    return method.segment if method.name == "multipole" and (method.block > 1 or method.cells == "tree") else 0


def _segment_cells(method, key, count, rng, stops, causal):
    """The cells of each segment, numbered in order: its share of all cells, at least one."""
    assert causal
    cell, known = np.arange(0), 0
    for stop in stops:
        for end in [end for end in range(stop % method.segment, stop + 1, method.segment) if end > known]:
            part = key[known:end]
            ((_, own),) = _cells(method, part, max(1, round(count * len(part) / len(key))), rng, [len(part)], False)
            cell, known = np.append(cell, own + 1 + max(cell, default=-1)), end
        yield stop, cell


def _tree(key, count):
    """Split keys by their place along C^3 e_j, C the covariance and j the coordinate that varies most."""
    ends, cell = [i * len(key) // count for i in range(count + 1)], np.zeros(len(key), dtype=int)

    def split(members, first, last):
        if last - first == 1:
            cell[members] = first
            return
        points = key[members] - np.mean(key[members], axis=0)
        covariance, middle = points.T @ points, (first + last) // 2
        direction = np.linalg.matrix_power(covariance / max(np.trace(covariance), 1e-300), 3)
        ordered = members[np.argsort(points @ direction[:, np.argmax(np.diag(covariance))], kind="stable")]
        split(ordered[: ends[middle] - ends[first]], first, middle)
        split(ordered[ends[middle] - ends[first] :], middle, last)

    split(np.arange(len(key)), 0, count)
    return cell


def _pivots(kernel, count, rng):
    """Keys one by one, each in proportion to what those before it leave of the diagonal."""
    left, found = kernel.copy(), []
    for _ in range(count):
        noise = rng.gumbel(size=len(kernel))  # the largest log weight with Gumbel noise is a draw
        with np.errstate(divide="ignore"):
            found.append(int(np.argmax(np.log(np.maximum(np.diagonal(left), 0.0)) + noise)))
        left = left - np.outer(left[:, found[-1]], left[found[-1]]) / left[found[-1], found[-1]]
        left[found, found] = 0.0
    return np.array(found)


def _nearest(key, centres):
    return np.argmin(np.sum((key[:, None, :] - centres) ** 2, axis=-1), axis=-1)


def _means(key, cell, count):
    return np.stack([np.sum(key[cell == i], axis=0) / max(1, np.sum(cell == i)) for i in range(count)])


def _near_cells(logits, spread, cell, share):
    """The cells whose centroid is the worst approximation, by exp(x.c) E|y - c|^2, for each query: (n, m).

    As long as half of the next one's keys fit into the share of exact ones, and at most twice as many (rounded up, and
    one) as hold it on average.
    """
    number, found = np.bincount(cell, minlength=len(spread)), np.zeros(logits.shape, dtype=bool)
    most = 2 * math.ceil(share * len(spread) / len(cell)) + 1
    order = np.argsort(-(logits + np.log(np.maximum(spread, np.finfo(float).tiny))), axis=-1)
    for row, best in enumerate(order):
        used = 0.0
        for candidate in best[:most]:
            found[row, candidate] = used + number[candidate] / 2 < share
            used += number[candidate]
    return found


# groups of queries that choose keys


def _sparse(method, question, size):
    """exp(x.y) on the keys that a group of queries in a row has chosen, group by group."""
    query, key, positions = question.query, question.key, question.positions
    logits = query @ key.T
    weights = Weights(np.ones_like(logits), np.full_like(logits, -np.inf), np.full_like(logits, -np.inf))
    for start in range(0, len(query), getattr(method, "group", len(query))):
        rows = np.arange(start, min(start + method.group, len(query)))
        at = None if positions is None else positions[rows]
        signs, logs, mass = SPARSE[method.name](method, query[rows], key, at, size, min(method.group, len(query)))
        weights.sign[rows], weights.log[rows], weights.mass[rows] = signs, logs, mass
    return weights


def _only(logits, chosen):
    log = np.where(chosen, logits, -np.inf)
    return Weights.of(log)


def _size_of_blocks(method, size):
    """Half of it, a quarter, and so on, until the size has four; not below 1."""
    halves = [max(1, method.block // 2**i) for i in range(20)]
    return next((block for block in halves if 4 * block <= size), 1)


def _best_blocks(blocks, scores, block, size, length):
    """The flags of the keys of the best blocks, which are lists of keys."""
    chosen = np.zeros(length, dtype=bool)
    for best in sorted(range(len(blocks)), key=lambda i: -scores[i])[: math.ceil(size / block)]:
        chosen[blocks[best]] = True
    return chosen


def _blocks_in_a_row(method, key, size):
    block = _size_of_blocks(method, size)
    return block, [list(range(i, min(i + block, len(key)))) for i in range(0, len(key), block)]


def _by_means(method, query, key, at, size, longest):
    block, blocks = _blocks_in_a_row(method, key, size)
    scores = [np.mean(query, axis=0) @ np.mean(key[part], axis=0) for part in blocks]
    return _only(query @ key.T, _best_blocks(blocks, scores, block, size, len(key)))


def _by_means_of_like(method, query, key, at, size, longest):
    """Blocks with a small mean cosine of all pairs first."""
    block, blocks = _blocks_in_a_row(method, key, size)
    scores = []
    for part in blocks:
        unit = key[part] / np.maximum(np.linalg.norm(key[part], axis=-1, keepdims=True), 1e-300)
        unlike = np.mean(unit @ unit.T) < method.similarity
        scores.append(np.mean(query, axis=0) @ np.mean(key[part], axis=0) + (1e6 if unlike else 0.0))
    return _only(query @ key.T, _best_blocks(blocks, scores, block, size, len(key)))


def _by_antidiagonals(method, query, key, at, size, longest):
    """Tile by tile; what a tile lacks of queries or keys counts as 0."""
    block, blocks = _blocks_in_a_row(method, key, size)
    stride = math.gcd(method.stride, block)
    logits = query @ key.T
    scores = np.zeros(len(blocks))
    for top in range(0, len(query), stride):
        sums = []
        for left in range(0, len(key), stride):
            tile = logits[top : top + stride, left : left + stride]
            sums.append(sum(tile[i, stride - 1 - i] for i in range(len(tile)) if stride - 1 - i < tile.shape[1]))
        for tile, weight in enumerate(softmax_of(np.array(sums) / stride)):
            scores[tile * stride // block] += weight
    return _only(logits, _best_blocks(blocks, scores, block, size, len(key)))


def _by_sorted_means(method, query, key, at, size, longest):
    """Complete segments sorted by the weights of the last queries."""
    block = _size_of_blocks(method, size)
    segment = max(method.segment // block, 1) * block
    weight = np.sum(softmax_of(query[-method.rows :] @ key.T, axis=-1), axis=0)
    order = []
    for start in range(0, len(key), segment):
        part = list(range(start, min(start + segment, len(key))))
        order += sorted(part, key=lambda j: -weight[j]) if len(part) == segment else part
    blocks = [order[i : i + block] for i in range(0, len(key), block)]
    scores = [np.mean(query @ key[part].T) for part in blocks]
    return _only(query @ key.T, _best_blocks(blocks, scores, block, size, len(key)))


def _by_lines(method, query, key, at, size, longest):
    """Keys for all, and one for each query on each diagonal through a key of the last query."""
    last = range(max(0, len(query) - method.rows), len(query))
    weights = softmax_of(query @ key.T, axis=-1)
    count = max(1, round(method.columns * size))
    columns = np.argsort(-np.sum(weights[list(last)], axis=0))[:count]
    behind = at[-1] - at
    sums = [sum(weights[i, j - behind[i]] for i in last if j >= behind[i]) for j in range(len(key))]
    chosen = np.zeros(weights.shape, dtype=bool)
    chosen[:, columns] = True
    for best in np.argsort(-np.array(sums))[: size - count]:
        for i in range(len(query)):
            if best >= behind[i]:
                chosen[i, best - behind[i]] = True
    return _only(query @ key.T, chosen)


def _by_taylor(method, query, key, at, size, longest):
    """exp(x.c) on keys of other blocks; order 1: and their mean over all keys, times x.(y - c)."""
    _, blocks = _blocks_in_a_row(method, key, size)
    log = _by_means(method, query, key, at, size, longest).log
    centre = np.empty_like(key)
    for part in blocks:
        centre[part] = np.mean(key[part], axis=0)
    far = np.where(np.isfinite(log), -np.inf, query @ centre.T)
    log = np.where(np.isfinite(log), log, far)
    if not method.order:
        return Weights.of(log)
    peak = np.max(log, axis=-1, keepdims=True)
    share = np.mean(np.exp(far - peak), axis=-1, keepdims=True)
    slopes = share * (query @ (key - centre).T)
    kernel = np.exp(log - peak) + slopes
    weights = Weights.of_kernel(kernel, np.exp(log - peak) + np.abs(slopes))
    return Weights(weights.sign, weights.log + peak, weights.mass + peak)


def _nothing(method, question, size, rng):
    return Weights.of(np.full((len(question.query), len(question.key)), -np.inf))


SPARSE = {
    "block-sparse": _by_means, "spargeattn": _by_means_of_like, "xattention": _by_antidiagonals,
    "pbs-attn": _by_sorted_means, "vertical-slash": _by_lines, "pisa": _by_taylor,
}  # fmt: skip


# landmarks


def _landmarks(method, question, size, rng, bound):
    """h(x, S) h(S, S)^-1 h(S, y) for h = exp(x.y); bound: exp(x.c), c the mean of the keys nearest to a landmark."""
    query, key = question[:2]
    chosen = rng.permutation(len(key))[:size] if method.name == "nystrom" else _pivots(np.exp(key @ key.T), size, rng)
    points = key[chosen]
    if bound:
        cell = _nearest(key, points)
        return Weights.of(query @ _means(key, cell, size)[cell].T)
    gram = np.exp(points @ points.T)
    kernel = np.exp(query @ points.T) @ np.linalg.solve(gram, np.exp(points @ key.T))
    return Weights.of_kernel(kernel, np.abs(kernel) * np.linalg.cond(gram))


def _trusted(free, bound, value):
    """Where the normaliser is between its bound and 4/3 of it, and the output between the values: (n, 1).

    Both but for a millionth, so that rounding does not decide where an answer is exact.
    """
    total, least = (np.sum(part.sign * np.exp(part.log), axis=-1, keepdims=True) for part in (free, bound))
    output, low, high = free.attention().matrix @ value, np.min(value, axis=0), np.max(value, axis=0)
    inside = (output >= low - 1e-6 * (high - low)) & (output <= high + 1e-6 * (high - low))
    with np.errstate(invalid="ignore"):
        near = (np.log(total / least) >= -1e-6) & (3.0 * total <= 4.0 * least)
    return np.all(inside, axis=-1, keepdims=True) & near


# eva


def _eva(method, question, size, rng):
    """exp(x.y) in the query's block; the share of each key in its chunk times n_c exp(x.c) elsewhere."""
    assert question.positions is not None
    width, (query, key), released = _eva_block(method, size), question[:2], method.form == "released"
    edges = _eva_edges(len(key), size - width)
    noise = _eva_noise(method, len(edges) - 1, key.shape[-1], rng)
    log = np.empty((len(query), len(key)))
    for start, stop, drawn in zip(edges[:-1], edges[1:], noise, strict=True):
        asked = query[(question.positions >= start) & (question.positions < stop)]
        proposal = drawn + np.mean(asked if len(asked) else query, axis=0) + np.mean(key[start:stop], axis=0)
        log[:, start:stop] = _eva_chunk(query, key[start:stop], 0.5 * proposal if released else proposal, not released)
    if width:
        near = np.arange(len(key)) // width == question.positions[:, None] // width
        exact = query @ key.T
        log = np.where(near, np.logaddexp(exact, log) if released else exact, log)
    return Weights.of(log)


def _eva_grown(method, query, key, size, rng, stops):
    """Chunks as far as they are there, from proposals that know the keys only."""
    edges = _eva_edges(len(key), size - _eva_block(method, size))
    noise = _eva_noise(method, len(edges) - 1, key.shape[-1], rng)
    for stop in stops:
        parts = [key[start : min(end, stop)] for start, end in itertools.pairwise(edges) if start < stop]
        log = [
            _eva_chunk(query, part, drawn + np.mean(part, axis=0), True)
            for part, drawn in zip(parts, noise, strict=False)
        ]
        yield stop, Weights.of(np.concatenate(log, axis=1))


def _eva_block(method, size):
    """Keys in a block."""
    return min(round(method.window * size), size - 1)


def _eva_edges(length, count):
    """Where each chunk begins, and the end; at most one chunk for each key."""
    count = min(count, length)
    return [i * length // count for i in range(count + 1)]


def _eva_noise(method, count, dim, rng):
    return rng.standard_normal((count, dim)) if method.form == "drawn" else np.zeros((count, dim))


def _eva_chunk(query, key, proposal, counted):
    """The log weights on the keys of a chunk; counted: with their number, else 1."""
    share = key @ proposal - 0.5 * np.sum(key * key, axis=-1)
    far = query @ np.mean(key, axis=0) + (math.log(len(key)) if counted else 0.0)
    return far[:, None] + share - logsumexp(share)


# lara, hashed and thinned


def _lara(method, question, size, rng):
    """sum_c xi(x, w_c) xi(y, w_c) / sum_c' xi(mu_c', w_c)."""
    query, key = question[:2]
    centres = _segment_means(query, size) + _segment_means(key, size)
    omega = centres + rng.standard_normal(centres.shape)

    def xi(x):
        return x @ omega.T - 0.5 * np.sum(x * x, axis=-1, keepdims=True)

    weights = xi(query) - logsumexp(xi(centres), axis=0)
    return Weights.of(np.asarray(logsumexp(weights[:, None, :] + xi(key)[None], axis=-1)))


def _segments(rows, count):
    """Segments in a row, as equal as can be, the longer ones last."""
    return [part[::-1] for part in np.array_split(rows[::-1], count)][::-1]


def _segment_means(rows, count):
    """Where there are too few rows each stands for some segments."""
    if count > len(rows):
        return rows[[i * len(rows) // count for i in range(count)]]
    return np.array([np.mean(part, axis=0) for part in _segments(rows, count)])


def hashed(method, question, size, rng):
    """exp(x.y) where query and key are in the same block, times what is drawn of the key elsewhere."""
    query, key, value = question[:3]
    directions = rng.standard_normal((key.shape[-1], method.projections))
    exact_keys = max(1, min(round(method.block * size), size - 1))
    blocks, count = min(math.ceil(len(key) / exact_keys), len(query)), size - exact_keys
    block_of = [_block_of(_rank_of_gray(x @ directions > 0), blocks) for x in (query, key)]
    if method.name == "hyperattention":
        weight = np.isin(np.arange(len(key)), rng.permutation(len(key))[:count]) * len(key) / max(count, 1)
    else:
        shares = np.linalg.norm(value, axis=-1) / np.linalg.norm(value, 2) + 1.0 / len(key)
        shares = shares / np.sum(shares)
        times = np.bincount(np.searchsorted(np.cumsum(shares), rng.random(count)), minlength=len(key))
        weight = times / (max(count, 1) * shares)
    log = query @ key.T
    with np.errstate(divide="ignore"):
        return Weights.of(np.where(block_of[0][:, None] == block_of[1], log, log + np.log(weight)))


def _rank_of_gray(bits):
    """Where the word of these bits stands in the reflected code, in which neighbours differ in one bit."""
    code = ["0", "1"]
    for _ in range(bits.shape[-1] - 1):
        code = ["0" + word for word in code] + ["1" + word for word in reversed(code)]
    rank = {word: place for place, word in enumerate(code)}
    return np.array([rank["".join("01"[int(bit)] for bit in row)] for row in bits])


def _block_of(bucket, blocks):
    """The block of each row: all rows in the order of their buckets, cut into equal parts."""
    edges = np.arange(blocks + 1) * len(bucket) // blocks
    found = np.empty(len(bucket), dtype=int)
    found[np.argsort(bucket, kind="stable")] = np.searchsorted(edges, np.arange(len(bucket)), side="right") - 1
    return found


def _thinformer(method, question, size, rng):
    """exp(x.y) l / m on the keys that are left, pair by pair."""
    query, key, value = question[:3]
    choices, flips = (iter(part) for part in rng.random((2, len(key))))
    rounds = int(math.log2(len(key) // size))
    left = np.arange(size * 2**rounds) * len(key) // (size * 2**rounds)
    for remaining in range(rounds, 0, -1):
        buckets = 4 ** (remaining - 1)
        while len(left) % (2 * buckets):
            buckets //= 2
        delta = method.delta / (rounds * buckets)
        halves = [_halved(key, value, part, delta, choices) for part in left.reshape(buckets, -1)]
        reversed_ = [next(flips) < 0.5 for _ in halves]
        left = np.concatenate([half[int(flip)] for half, flip in zip(halves, reversed_, strict=True)])
    log = np.full((len(query), len(key)), -np.inf)
    log[:, left] = query @ key[left].T + math.log(len(key) / size)
    return Weights.of(log)


def _halved(key, value, bucket, delta, choices):
    """Those of a bucket that are kept, and those that are not."""
    y, v, bound = key[bucket], value[bucket], np.max(np.abs(value)) ** 2
    kernel = np.exp(y @ y.T - np.max(np.sum(y * y, axis=-1))) * (v @ v.T + bound)
    signs, largest = np.zeros(len(bucket)), 0.0  # of what was kept, less of what was not
    for first in range(0, len(bucket), 2):
        pair = np.zeros(len(bucket))
        pair[first], pair[first + 1] = 1.0, -1.0
        norm = math.sqrt(max(pair @ kernel @ pair, 0.0))
        largest = max(largest, norm)
        scale = norm * largest * (0.5 + math.log(2 * len(bucket) / delta))
        keep = next(choices) > 0.5 + (0.5 * (signs @ kernel @ pair) / scale if scale > 0 else 0.0)
        signs += pair if keep else -pair
    return bucket[signs > 0], bucket[signs < 0]


# what draws nothing


def _seen(question):
    shape = len(question.query), len(question.key)
    if not question.causal:
        return np.ones(shape, dtype=bool)
    assert question.positions is not None
    return np.arange(shape[1]) <= question.positions[:, None]


def _uniform(method, question, size, rng):
    return Weights.of(np.where(_seen(question), 0.0, -np.inf))


def _polynomial(order):
    """The Taylor polynomial of exp, which may be negative."""

    def weights(method, question, size, rng):
        kernel, seen = series(question.query, question.key, range(order + 1)), _seen(question)
        return Weights.of_kernel(*(np.where(seen, part, 0.0) for part in kernel))

    return weights


def _top_keys(method, question, size, rng):
    logits = np.where(_seen(question), question.query @ question.key.T, -np.inf)
    return Weights.of(np.where(_best(logits, size), logits, -np.inf))


def _best_rank(method, question, size):
    """The truncated singular value decomposition; the code's route has half of its digits."""
    left, values, right = np.linalg.svd(softmax_of(question.query @ question.key.T, axis=-1), full_matrices=False)
    growth = values[0] * math.sqrt(len(question.key)) / math.sqrt(EPS) / len(question.key)
    return Attention((left[:, :size] * values[:size]) @ right[:size], np.full((len(left), 1), growth))


def _nystromformer(method, question, size):
    """softmax(x Y'^T) Z softmax(X' y^T), with some steps to Z = softmax(X' Y'^T)^-1, or the inverse."""
    query, key = question[:2]
    if size == len(key):
        return Weights.of(query @ key.T).attention()
    of_query, of_key = _segment_means(query, size), _segment_means(key, size)
    left, middle, right = (
        softmax_of(a @ b.T, axis=-1) for a, b in ((query, of_key), (of_query, of_key), (of_query, key))
    )
    inverse, identity = middle.T / np.max(np.sum(middle, axis=0)), np.eye(size)
    for _ in range(method.steps):
        product = middle @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    inverse = inverse if method.inverse == "newton" else np.linalg.inv(middle)
    growth = np.linalg.cond(middle) ** 2 * max(1.0, np.max(np.abs(inverse)))
    return Attention(left @ inverse @ right, np.full((len(query), 1), growth))


def _monarch(method, question, size):
    """In turn the weights of each block's keys, for the mean query of each place in a block, and those of the blocks.

    The latter from the mean logit under the former plus their entropy. The first mean is the block's own query at that
    place, its last where it has none there.
    """
    query, key = question[:2]
    count = max(size, math.isqrt(len(key) - 1) + 1)
    if count >= len(key):
        return Weights.of(query @ key.T).attention()
    queries, keys, places_of = _segments(query, count), _segments(key, count), _segments(np.arange(len(key)), count)
    blocks, present = range(count), [(r, j) for r, block in enumerate(queries) for j in range(len(block))]
    places = range(max(map(len, queries)))
    mean = {(c, j): queries[c][min(j, len(queries[c]) - 1)] for c in blocks for j in places}
    right = {}
    left = {}
    for step in range(method.steps):
        for c, j in itertools.product(blocks, places):
            of_place = [r for r in blocks if (r, j) in present]
            if step:
                shares = np.array([left[r, j][c] for r in of_place])
                mean[c, j] = shares @ np.array([queries[r][j] for r in of_place]) / np.sum(shares)
            right[c, j] = softmax_of(keys[c] @ mean[c, j])
        for r, j in present:
            centres = np.array([right[c, j] @ keys[c] for c in blocks])
            left[r, j] = softmax_of(centres @ queries[r][j] + [np.sum(entr(right[c, j])) for c in blocks])
    matrix = np.zeros((len(query), len(key)))
    for row, (r, j) in zip(matrix, present, strict=True):
        for c in blocks:
            row[places_of[c]] = left[r, j][c] * right[c, j]
    return Attention(matrix, np.full((len(query), 1), float(method.steps)))


WHOLE = {
    "eva": _eva, "lara": _lara, "hyperattention": hashed, "kdeformer": hashed, "thinformer": _thinformer,
    "uniform": _uniform, "taylor-1": _polynomial(1), "taylor-2": _polynomial(2), "top-keys": _top_keys,
}  # fmt: skip
#: Those that no quotient of weights gives.
MATRICES = {
    "best-rank": _best_rank, "nystromformer": _nystromformer, "monarch": _monarch,
}  # fmt: skip
