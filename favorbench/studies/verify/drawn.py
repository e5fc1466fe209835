"""The log weights of eva, lara, thinformer and hashed methods on every key, from the draws that they make: (n, l)."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import logsumexp

from favorbench.methods import AttentionProblem, Method
from favorbench.methods.eva import Eva
from favorbench.methods.hashed import Hashed
from favorbench.methods.hyperattention import HyperAttention
from favorbench.methods.kdeformer import KDEformer
from favorbench.methods.lara import Lara
from favorbench.methods.thinformer import Thinformer


def of_eva(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> np.ndarray:
    """exp(x.y) in the query's block; the share of each key in its chunk times n_c exp(x.c) elsewhere."""
    assert isinstance(method, Eva) and question.positions is not None
    width, (query, key), own = eva_block(method, size), question[:2], method.form == "released"
    edges, count = eva_edges(method, len(key), size), eva_chunks(method, len(key), size)
    noise = rng.standard_normal((count, key.shape[-1])) if method.form == "drawn" else np.zeros((count, key.shape[-1]))
    log = np.empty((len(query), len(key)))
    for start, stop, drawn in zip(edges[:-1], edges[1:], noise, strict=True):
        asked = query[(question.positions >= start) & (question.positions < stop)]
        proposal = drawn + np.mean(asked if len(asked) else query, axis=0) + np.mean(key[start:stop], axis=0)
        log[:, start:stop] = eva_chunk(query, key[start:stop], 0.5 * proposal if own else proposal, not own)
    if width:
        near = np.arange(len(key)) // width == question.positions[:, None] // width
        exact = query @ key.T
        log = np.where(near, np.logaddexp(exact, log) if own else exact, log)
    return log


def eva_block(method: Eva, size: int) -> int:
    """Keys in a block."""
    return min(round(method.window * size), size - 1)


def eva_chunks(method: Eva, length: int, size: int) -> int:
    """How many chunks there are, at most one for each key."""
    return min(size - eva_block(method, size), length)


def eva_edges(method: Eva, length: int, size: int) -> list[int]:
    """Where each chunk begins, and the end."""
    count = eva_chunks(method, length, size)
    return [i * length // count for i in range(count + 1)]


def eva_chunk(query: np.ndarray, key: np.ndarray, proposal: np.ndarray, counted: bool) -> np.ndarray:
    """The weights on the keys of a chunk; counted: with their number, else 1."""
    share = key @ proposal - 0.5 * np.sum(key * key, axis=-1)
    far = query @ np.mean(key, axis=0) + (math.log(len(key)) if counted else 0.0)
    return far[:, None] + share - logsumexp(share)


def of_lara(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> np.ndarray:
    """log sum_c xi(x, w_c) xi(y, w_c) / sum_c' xi(mu_c', w_c)."""
    (query, key), d = question[:2], question.key.shape[-1]
    centres = _segment_means(query, size) + _segment_means(key, size)
    omega = centres + rng.standard_normal((size, d))

    def xi(x: np.ndarray) -> np.ndarray:
        return np.einsum("id,cd->ic", x, omega) - 0.5 * np.sum(x * x, axis=-1, keepdims=True)

    weights = xi(query) - logsumexp(xi(centres), axis=0)
    return np.asarray(logsumexp(weights[:, None, :] + xi(key)[None], axis=-1))


def _segment_means(rows: np.ndarray, count: int) -> np.ndarray:
    """Of segments in a row, the longer ones last; where there are too few rows each stands for some segments."""
    if count > len(rows):
        return rows[[i * len(rows) // count for i in range(count)]]
    short, longer = divmod(len(rows), count)
    lengths = [short] * (count - longer) + [short + 1] * longer
    return np.array([np.mean(part, axis=0) for part in np.split(rows, np.cumsum(lengths)[:-1])])


def of_hashed(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> np.ndarray:
    """exp(x.y) where query and key are in the same block, times what is drawn of the key elsewhere."""
    assert isinstance(method, Hashed)
    query, key, value = question[:3]
    directions = rng.standard_normal((key.shape[-1], method.projections))
    exact_keys = max(1, min(round(method.block * size), size - 1))
    blocks = min(math.ceil(len(key) / exact_keys), len(query))
    block_of = [_block_of(_rank_of_gray(x @ directions > 0), blocks) for x in (query, key)]
    log, weight = query @ key.T, _drawn(method, value, size - exact_keys, rng)
    with np.errstate(divide="ignore"):
        return np.where(block_of[0][:, None] == block_of[1], log, log + np.log(weight))


def _rank_of_gray(bits: np.ndarray) -> np.ndarray:
    """Where the word of these bits stands in the reflected code, in which neighbours differ in one bit."""
    code = ["0", "1"]
    for _ in range(bits.shape[-1] - 1):
        code = ["0" + word for word in code] + ["1" + word for word in reversed(code)]
    rank = {word: place for place, word in enumerate(code)}
    return np.array([rank["".join("01"[int(bit)] for bit in row)] for row in bits])


def _block_of(bucket: np.ndarray, blocks: int) -> np.ndarray:
    """The block of each row: of all in the order of their buckets, cut into so many parts."""
    edges = np.arange(blocks + 1) * len(bucket) // blocks
    found = np.empty(len(bucket), dtype=int)
    found[np.argsort(bucket, kind="stable")] = np.searchsorted(edges, np.arange(len(bucket)), side="right") - 1
    return found


def _drawn(method: Hashed, value: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """What the draws of each key weigh together, 0 for none."""
    length = len(value)
    if isinstance(method, HyperAttention):
        return np.isin(np.arange(length), rng.permutation(length)[:count]) * length / max(count, 1)
    shares = np.linalg.norm(value, axis=-1) / np.linalg.norm(value, 2) + 1.0 / length
    shares = shares / np.sum(shares)
    times = np.bincount(np.searchsorted(np.cumsum(shares), rng.random(count)), minlength=length)
    return times / (max(count, 1) * shares)


def of_thinformer(method: Method, question: AttentionProblem, size: int, rng: np.random.Generator) -> np.ndarray:
    """exp(x.y) l / m on the keys that are left, pair by pair."""
    assert isinstance(method, Thinformer)
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
    return log


def _halved(
    key: np.ndarray, value: np.ndarray, bucket: np.ndarray, delta: float, choices: Iterator[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Those of a bucket that are kept, and those that are not."""
    y, v, bound = key[bucket], value[bucket], np.max(np.abs(value)) ** 2
    kernel = np.exp(np.einsum("id,jd->ij", y, y) - np.max(np.sum(y * y, axis=-1))) * (v @ v.T + bound)
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


#: By method.
LOG_WEIGHTS: dict[type, Callable[[Method, AttentionProblem, int, np.random.Generator], np.ndarray]] = {
    Eva: of_eva, Lara: of_lara, HyperAttention: of_hashed, KDEformer: of_hashed, Thinformer: of_thinformer,
}  # fmt: skip
