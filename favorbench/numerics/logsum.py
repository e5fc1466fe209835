"""Sums of exp(log) * value that keep their own maximum, so that nothing overflows and no eps is needed.

All of attention is one operation: a product of features with values, summed over keys (exact attention), over keys
for each feature, and over features for each query; the last for every R at once.
"""

import functools
import importlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar, overload

import numpy as np
from array_api_compat import is_torch_array

from favorbench.numerics.arrays import Array, Features, Float, array_namespace, tile_elements


class Accumulator(NamedTuple):
    """A sum of exp(log) * value, kept as exp(log_peak) * total; log_peak is near the largest log so far."""

    log_peak: Float[Array, "*batch n 1"]
    total: Float[Array, "*batch n columns"]

    def times(self, factor: int | float) -> "Accumulator":
        """The sum times a positive factor."""
        return self._replace(log_peak=self.log_peak + math.log(factor))


class WeightedMean(NamedTuple):
    """A sum of exp(log) * [value, 1], kept as exp(log_peak) * [mean, 1]: the log of the normaliser, and the output.

    torch's fused attention returns these. Two of them are merged in one pass over the outputs.
    """

    log_peak: Float[Array, "*batch n 1"]
    mean: Float[Array, "*batch n columns"]

    @property
    def total(self) -> Float[Array, "*batch n columns+1"]:
        """[mean, 1]."""
        return with_ones(self.mean)


Sums = Accumulator | WeightedMean

SomeSums = TypeVar("SomeSums", bound=Sums)


def log_sum(sums: Sums) -> Array:
    """The log of the normaliser of each query, (..., n, 1)."""
    if isinstance(sums, WeightedMean):
        return sums.log_peak
    return sums.log_peak + array_namespace(sums.total).log(sums.total[..., -1:])


def joined(parts: Iterable[SomeSums]) -> SomeSums:
    """The sums of all queries, from those of adjacent queries, which are all kept in one way."""
    first, *others = parts
    if not others:
        return first
    concat = array_namespace(first.log_peak).concat
    return type(first)(*(concat(arrays, axis=-2) for arrays in zip(first, *others, strict=True)))


def accumulate(state: Accumulator | None, features: Features, right: Array) -> Accumulator:
    """Add features @ right, (..., n, m) @ (..., m, columns), to the running sum."""
    return merge(state, _product(features, right))


def accumulate_blocks(states: Sequence[Accumulator], blocks: Sequence[Features], right: Array) -> list[Accumulator]:
    """Add each block of features of keys, as rows, times ``right`` to its running sum; without states, to nothing.

    These sums of half precision are in float32, as in matrix units: bfloat16 has 8 bits, and float16 ends at 65504.
    """
    products = [_sum_over_keys(block.transposed(), right) for block in blocks]
    return [merge(state, product) for state, product in zip(states or [None] * len(blocks), products, strict=True)]


def _sum_over_keys(features: Features, right: Array) -> Accumulator:
    """features @ right, of half precision in float32, where ``right`` of many keys is divided by a power of two."""
    xp, keys = array_namespace(right), right.shape[-2]
    if xp.finfo(right.dtype).bits > 16:
        return _product(features, right)
    factor = 2.0 ** math.ceil(math.log2(max(keys / 4096, 1.0)))
    log_peak, total = (xp.astype(part, xp.float32) for part in _product(features, right / factor))
    return Accumulator(log_peak, factor * total)


@overload
def merge(state: Accumulator | None, other: Accumulator) -> Accumulator: ...
@overload
def merge(state: Sums | None, other: Sums) -> Sums: ...
def merge(state: Sums | None, other: Sums) -> Sums:
    """The sum of two sums."""
    if state is None:
        return other
    if isinstance(state, WeightedMean) and isinstance(other, WeightedMean):
        share = (other.log_peak - state.log_peak).sigmoid()
        return WeightedMean(state.log_peak.logaddexp(other.log_peak), state.mean.lerp(other.mean, share))
    xp = array_namespace(other.total)
    peak = xp.maximum(state.log_peak, other.log_peak)
    total = state.total * xp.exp(state.log_peak - peak) + other.total * xp.exp(other.log_peak - peak)
    return Accumulator(peak, total)


def prefix_sums(blocks: Sequence[Features], rights: Sequence[Array], sizes: Sequence[int]) -> Accumulator:
    """For each size (leading axis) the sum over blocks of features[:, :size] @ right[:size]; fixed blocks size times.

    One log peak for each row serves all sizes, unless the first size lies so far below it that it would underflow.
    """
    xp = array_namespace(rights[0])
    peak, first = (_peak([block.columns(0, size) for block in blocks]) for size in (sizes[-1], sizes[0]))
    # Relative to the peak of all features, those of the first size are at most exp(first - peak). Above the root of the
    # smallest normal number they, and their products with values that small again, keep all their digits. Below it a
    # small R, whose features all lie far under a peak that comes later, needs its own peak.
    if not bool(xp.all(peak - first < -0.5 * math.log(xp.finfo(peak.dtype).smallest_normal))):
        parts = zip(*(_prefix_sum(blocks, rights, size) for size in sizes), strict=True)
        return Accumulator(*map(xp.stack, parts))
    factors = [(block.fixed, right.mT, block.relative_to(peak).mT) for block, right in zip(blocks, rights, strict=True)]
    totals, total = [], 0.0
    for start, stop in itertools.pairwise((0, *sizes)):
        for fixed, right, weight in factors:
            if fixed:
                total = total + (stop - start) * (right @ weight)
            else:
                total = total + right[..., start:stop] @ weight[..., start:stop, :]
        totals.append(total)
    return Accumulator(xp.broadcast_to(peak, (len(sizes), *peak.shape)), xp.stack(totals).mT)


def _prefix_sum(blocks: Sequence[Features], rights: Sequence[Array], size: int) -> Accumulator:
    """The sum for one size."""
    state = None
    for block, right in zip(blocks, rights, strict=True):
        product = _product(block.columns(0, size), right if block.fixed else right[..., :size, :])
        state = merge(state, product.times(size) if block.fixed else product)
    assert state is not None
    return state


def query_sums(blocks: Sequence[Features], summaries: Sequence[Accumulator], sizes: Sequence[int]) -> Accumulator:
    """``prefix_sums`` of the features of queries with summaries, whose rows have log scales, (..., R, 1).

    These are added to the logs of the features before the row maximum is taken. Where they are near 0 they multiply the
    summaries themselves, which are smaller. In float16, which ends at 65504, the summaries are divided by their largest
    entry, and further where many features are summed; the log of the divisor is added to the log peak.
    """
    log_peaks, rights = zip(*summaries, strict=True)
    xp, log_largest, log_scale = array_namespace(rights[0]), None, blocks[0].log_scale
    if float(xp.finfo(log_scale.dtype).max) < 1e5:  # a float, as 1e5 is beyond float16
        largest = functools.reduce(xp.maximum, [xp.max(xp.abs(r), axis=(-2, -1), keepdims=True) for r in rights])
        terms = sum(right.shape[-2] * (sizes[-1] if b.fixed else 1) for b, right in zip(blocks, rights, strict=True))
        largest = xp.where(largest > 0, largest, 1.0) * max(terms / 2**14, 1.0)
        rights, log_largest = [right / largest for right in rights], xp.astype(xp.log(largest), log_scale.dtype)
    log_peaks, rights = ([xp.astype(a, log_scale.dtype, copy=False) for a in parts] for parts in (log_peaks, rights))
    if all(near_zero(log_peak) for log_peak in log_peaks):
        rights = [right * xp.exp(log_peak) for right, log_peak in zip(rights, log_peaks, strict=True)]
    else:
        blocks = [block.times(log_peak.mT) for block, log_peak in zip(blocks, log_peaks, strict=True)]
    sums = prefix_sums(blocks, rights, sizes)
    return sums if log_largest is None else sums._replace(log_peak=sums.log_peak + log_largest)


def _product(features: Features, right: Array) -> Accumulator:
    """features @ right; a scale shared by rows or columns is applied to them once, not to every feature."""
    xp = array_namespace(right)
    values, log_scale, _ = features
    if values is not None and log_scale.shape[-1] == 1:
        return Accumulator(log_scale, values @ right)
    peak = _peak([features])
    if values is not None and log_scale.shape[-2] == 1:
        return Accumulator(peak, values @ (xp.exp(log_scale - peak).mT * right))
    return Accumulator(peak, features.relative_to(peak) @ right)


def _peak(blocks: Sequence[Features]) -> Array:
    """The largest log scale of each row; for a row without any feature the smallest number, as sums have other parts.

    0 for all rows if all are near 0, which saves a shift of every feature, unless features share the scale of a row.
    """
    xp = array_namespace(blocks[0].log_scale)
    peak = functools.reduce(xp.maximum, [xp.max(block.log_scale, axis=-1, keepdims=True) for block in blocks])
    shared = all(block.log_scale.shape[-1] == 1 for block in blocks)
    if not shared and near_zero(peak):
        return xp.zeros_like(peak)
    peak = xp.where(peak == -xp.inf, xp.finfo(peak.dtype).min, peak)
    return xp.where(xp.isfinite(peak), peak, 0.0)


def near_zero(log: Array) -> bool:
    """Whether exp of these logs, and of twice these, needs no shift, which saves a pass over the features."""
    xp = array_namespace(log)
    reserve = 11.0  # for the sums: all that float16 has
    return bool(xp.all(xp.abs(log) < 0.2 * (math.log(xp.finfo(log.dtype).max) - reserve)))


def tiles(length: int, width: int, like: Array, group: int = 1) -> list[slice]:
    """Equal slices that cover range(length), each of about tile_elements / width rows, in whole groups."""
    count = max(1, -(-length * width // tile_elements(like)))
    step = -(-length // count // group) * group
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def weighted_sums(logits: Array, value: Array) -> Accumulator:
    """exp(logits) @ [value, 1]."""
    return _product(Features(None, logits), with_ones(value))


def attention_sums(query: Array, key: Array, value: Array, bias: Array = None) -> Sums:
    """Sum over keys of exp(x.y + bias) [v, 1]; bias, if any, is (n, k) or (..., 1, k).

    torch has it as one operation on a CPU, that of its fused attention, which keeps the log of the normaliser, but has
    no gradient of it.
    """
    fits = (
        is_torch_array(query) and query.device.type == "cpu" and query.element_size() > 2 and key.shape == value.shape
    )
    if fits and not any(part.requires_grad for part in (query, key, value)):
        batch = (part.reshape(-1, 1, *part.shape[-2:]) for part in (query, key, value))  # its output is in this order
        batch = (part if part.stride(-1) == 1 else part.contiguous() for part in batch)  # it reads rows as adjacent
        if bias is not None:
            bias = bias.reshape(-1, 1, *bias.shape[-2:])
        fused = importlib.import_module("torch").ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, log_normaliser = fused(*batch, attn_mask=bias, scale=1.0)
        log_normaliser, output = (part.reshape(*query.shape[:-1], -1) for part in (log_normaliser, output))
        return WeightedMean(log_normaliser.to(query.dtype), output)
    logits = query @ key.mT
    return weighted_sums(logits if bias is None else logits + bias, value)


def inner_products(x: Sequence[Features], y: Sequence[Features], size: int) -> Features:
    """phi(x).phi(y) / size of every pair of rows, (..., n, l), where fixed blocks count whole."""
    terms = []
    for a, b in zip(x, y, strict=True):
        peak_a, peak_b = (
            array_namespace(part).max(part, axis=-1, keepdims=True) for part in (a.log_scale, b.log_scale)
        )
        log_scale = peak_a + peak_b.mT - (0.0 if a.fixed else math.log(size))
        terms.append(Features(a.relative_to(peak_a) @ b.relative_to(peak_b).mT, log_scale))
    return _sum_of(terms)


def summed_products(x: Sequence[Features], y: Sequence[Features], size: int) -> Features:
    """``inner_products`` that are terms of a sum over all rows of y: small beside the largest, they may vanish.

    As in the sum, features of y are relative to their maximum over rows. Relative to those of each row, x.y is far
    below the scale where x and y have their largest features apart, and vanishes in float16 and float32.
    """
    terms = []
    for a, b in zip(x, y, strict=True):
        largest = _peak([b.transposed()]).mT
        peak = _peak([a.times(largest)])
        values = a.times(largest).relative_to(peak) @ b.relative_to(largest).mT
        log_scale = peak + array_namespace(peak).zeros_like(values) - (0.0 if a.fixed else math.log(size))
        terms.append(Features(values, log_scale))
    return _sum_of(terms)


def _sum_of(terms: Sequence[Features]) -> Features:
    """The sum of several terms, each with its scales."""
    if len(terms) == 1:
        return terms[0]
    xp = array_namespace(terms[0].log_scale)
    peak = functools.reduce(xp.maximum, [term.log_scale for term in terms])
    return Features(sum(term.relative_to(peak) for term in terms), peak)


def with_ones(value: Array) -> Array:
    """[value, 1]: so that one product gives numerator and normaliser."""
    xp = array_namespace(value)
    return xp.concat([value, xp.ones_like(value[..., :1])], axis=-1)


def quotient(state: Sums | None) -> tuple[Array, Array]:
    """Numerator over normaliser, and the normaliser. With a normaliser of 0 inf or NaN, which are measurements."""
    assert state is not None
    if isinstance(state, WeightedMean):
        return state.mean, array_namespace(state.mean).ones_like(state.log_peak)
    normaliser = state.total[..., -1:]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return state.total[..., :-1] / normaliser, normaliser
