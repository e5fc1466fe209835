"""Claims on attention estimates: the quotient of the features is met at any norm, causal or not; symmetries hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from favorbench.attention.causal import CHUNK
from favorbench.attention.linear import attention_estimates, linear_attention
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.maps import FeatureMap, Sample
from favorbench.maps.base import WrappedMap
from favorbench.numerics.arrays import Features
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.studies.verify.checks import EPS, NOT_MEASURABLE, MeasuredClaim, largest, merged
from favorbench.studies.verify.laws import unit


class Case(NamedTuple):
    """Scaled queries and keys of these norms, their means away from 0, and values; causal: as many queries as keys.

    Keys of one norm: at large norms a shorter one would have all the weight, and hide what becomes of the others. Under
    a mask they grow to that norm, so that running maxima move from chunk to chunk.
    """

    head_dim: int
    num_queries: int
    num_keys: int
    query_norm: float
    key_norm: float
    num_projections: int
    causal: bool = False

    def __str__(self) -> str:
        return f"d = {self.head_dim}, norms {self.query_norm:g} and {self.key_norm:g}"

    def arrays(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and values, the first two as attention takes them."""
        rng = stream(seed, "verify", "attention", *self)
        unscaled = self.head_dim**0.25
        shapes = ((self.num_queries, self.query_norm), (self.num_keys, self.key_norm))
        means = rng.standard_normal((2, 1, self.head_dim))
        x, y = (
            norm * unit(rng.standard_normal((count, self.head_dim)) + mean)
            for (count, norm), mean in zip(shapes, means, strict=True)
        )
        growth = np.linspace(0.5, 1.0, self.num_keys)[:, None] if self.causal else 1.0
        return unscaled * x, unscaled * growth * y, rng.standard_normal((self.num_keys, 3))


#: Norms of trained heads and far beyond, equal and not; every branch of the sums for small logs and for large ones.
CASES = (
    Case(8, 20, 48, 1.0, 1.0, 40),
    Case(1, 9, 30, 4.0, 6.0, 8),
    Case(3, 9, 30, 0.1, 20.0, 10),
    Case(24, 9, 33, 20.0, 5.0, 30),
    Case(24, 9, 33, 2.0, 20.0, 30),
)
#: The same under a mask, the last chunk cut short: several chunks, or one position in the second.
CAUSAL_CASES = (
    Case(8, 2 * CHUNK + 3, 2 * CHUNK + 3, 1.0, 1.0, 12, causal=True),
    Case(3, CHUNK + 1, CHUNK + 1, 1.0, 8.0, 6, causal=True),
    Case(24, 2 * CHUNK, 2 * CHUNK, 1.0, 20.0, 6, causal=True),
)


class Dense(NamedTuple):
    """Outputs (n, d_v) and, for each query, how much rounding of the terms grows in them: (n, 1).

    Sum of absolute terms over the absolute sum, 1 where no term is negative.
    """

    output: np.ndarray
    condition: np.ndarray


def quotient(
    queries: Sequence[Features], keys: Sequence[Features], value: np.ndarray, size: int, causal: bool
) -> Dense:
    """sum_j K_ij v_j / sum_j K_ij with K = phi(x).phi(y) of the first ``size`` projections; causal: over j <= i."""
    (left, query_logs), (right, key_logs) = _dense(queries, size), _dense(keys, size)
    outputs, conditions = [], []
    for i in range(len(left)):
        seen = slice(0, i + 1) if causal else slice(None)
        log = query_logs[i] + key_logs[seen]
        peak = np.max(log)
        terms = left[i] * right[seen] * np.exp(log - peak) if np.isfinite(peak) else log * np.nan
        kernel, total = np.sum(terms, axis=-1), np.sum(terms)
        outputs.append(kernel @ value[seen] / total)
        conditions.append([np.sum(np.abs(terms)) / np.abs(total)])
    return Dense(np.array(outputs), np.array(conditions))


def _dense(blocks: Sequence[Features], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Signs and logs of the features of the first ``size`` projections, each (n, columns)."""
    signs, logs = [], []
    for block in (block.columns(0, size) for block in blocks):
        log = block.log_scale - (0.0 if block.fixed else 0.5 * np.log(size))
        sign, log = np.broadcast_arrays(1.0 if block.values is None else block.values, log)
        repeated = 1 if block.fixed or log.shape[-1] > 1 else size
        signs.append(np.repeat(sign, repeated, axis=-1))
        logs.append(np.repeat(log, repeated, axis=-1))
    return np.concatenate(signs, axis=-1), np.concatenate(logs, axis=-1)


class _OnCase(NamedTuple):
    """A map on one case: its outputs for each R (sizes, n, ...), and the expected ones by the plain route."""

    outputs: np.ndarray
    normalisers: np.ndarray
    expected: list[Dense]
    blocks: tuple[Features, ...]
    rounding: float
    value: np.ndarray


def measure(maps: Sequence[FeatureMap], sampler: Sampler, seed: int) -> list[MeasuredClaim]:
    """The deterministic claims of each map on one sample."""
    measured = []
    for feature_map in maps:
        subject = label(feature_map)
        cases = [*CASES, *(CAUSAL_CASES if feature_map.causal_safe else ())]
        parts = [(str(case), m) for case in cases for m in on_case(subject, feature_map, sampler, case, seed)]
        measured += [*merged(parts), _symmetric(subject, feature_map, sampler, seed)]
    return measured


def on_case(subject: str, feature_map: FeatureMap, sampler: Sampler, case: Case, seed: int) -> Iterator[MeasuredClaim]:
    """Linear attention equals the quotient of its own features, for every R at once; these are finite.

    An unbiased map's are its plain features, those of its formula: so shifts cancel, and no eps is left. Another one's
    are those that it gives to attention: shifts and eps are part of what it is.
    """
    measured = _measured(feature_map, sampler, case, seed)
    claim = "causal equals masked" if case.causal else "stabilisers cancel"
    if not (feature_map.unbiased or case.causal):
        claim = "quotient of its features"
    yield _difference(subject, claim, measured)
    logs = [block.log_scale for block in measured.blocks]
    bad = sum(int(np.sum(np.isnan(log) | (log == np.inf))) for log in logs)  # log 0 = -inf is a feature of 0
    values = [block.values for block in measured.blocks if block.values is not None]
    bad += sum(int(np.sum(~np.isfinite(part))) for part in values)
    yield MeasuredClaim(subject, "features are finite", 2.0 * bad, 0, f"{bad} are not")
    if feature_map.nonnegative:
        negative = sum(int(np.sum(part < 0)) for part in values)
        positive = np.isfinite(measured.normalisers) & (measured.normalisers > 0)
        wrong = negative + int(np.sum(~positive))
        detail = f"{negative} negative features, {np.sum(~positive)} normalisers that are not positive"
        yield MeasuredClaim(subject, "positive normalisers", 2.0 * wrong, 0, detail)


def _sample(feature_map: FeatureMap, sampler: Sampler, case: Case, seed: int, size: int | None = None) -> Sample:
    """The sample of a case, or of its first ``size`` projections."""
    rng = stream(seed, "verify", "sample", *case)
    omega = sampler.sample(rng, sampler.round_up(case.num_projections, case.head_dim), case.head_dim)[:size]
    return Sample(omega, feature_map.draw_extra(rng.spawn(1)[0], len(omega), case.head_dim))


def _measured(feature_map: FeatureMap, sampler: Sampler, case: Case, seed: int) -> _OnCase:
    sample = _sample(feature_map, sampler, case, seed)
    omega, count = sample.omega, len(sample.omega)
    sizes = tuple(sorted({1, -(-count // 2), count})) if feature_map.nested else (count,)
    estimator = SampledMap(feature_map, sample.extra, sizes)
    problem = AttentionProblem.of(*case.arrays(seed), case.causal)
    x, y, value = problem[:3]
    tiles = list(attention_estimates(problem, omega, [estimator]))
    fitted = feature_map.fit(x, y, omega)
    plain = feature_map.unbiased and not fitted.asymmetric
    of_queries, of_keys = (fitted.features,) * 2 if plain else (fitted.query_features, fitted.key_features)
    queries, keys, expected = (), (), []
    for size in sizes:
        # Features of these projections alone: slices of those of more would hide a map that is not nested.
        part = _sample(feature_map, sampler, case, seed, size)
        queries, keys = of_queries(x, x @ part.omega.T, part), of_keys(y, y @ part.omega.T, part)
        expected.append(quotient(queries, keys, value, size, case.causal))
    return _OnCase(
        np.concatenate([tile.output for tile in tiles], axis=-2),
        np.concatenate([tile.normaliser for tile in tiles], axis=-2),
        expected,
        (*queries, *keys),
        _rounding(x, y, omega, queries, keys),
        value,
    )


def _rounding(x: np.ndarray, y: np.ndarray, omega: np.ndarray, *sides: Sequence[Features]) -> float:
    """The relative error of one term: eps times the logs it is made of, and times the number of terms in a sum."""
    logs = sum(max(_finite(block.log_scale) for block in blocks) for blocks in sides)
    norms = [_finite(np.linalg.norm(a, axis=-1)) for a in (omega, x, y)]
    return EPS * (logs + norms[0] * (norms[1] + norms[2]) + len(y) + len(omega))


def _finite(values: np.ndarray) -> float:
    """The largest absolute value that is a finite number."""
    values = np.abs(values)
    return float(np.max(values, where=np.isfinite(values), initial=0.0))


def _difference(subject: str, claim: str, measured: _OnCase) -> MeasuredClaim:
    """The outputs against the plain route, in units of what rounding makes of the terms where normalisers cancel."""
    ratios, seen = [], 0
    for output, expected in zip(measured.outputs, measured.expected, strict=True):
        growth = measured.rounding * expected.condition
        measurable = ~(growth >= 0.1)[:, 0]  # beyond, hardly a digit is left of the normaliser; nan is not beyond
        bound = growth * (np.max(np.abs(measured.value)) + np.abs(expected.output))
        ratios.append(largest((np.abs(output - expected.output) / bound)[measurable]))
        seen += int(np.sum(measurable))
    if not seen:
        return MeasuredClaim(subject, claim, None, 0, "no normaliser with a digit left", otherwise=NOT_MEASURABLE)
    rows, worst = measured.outputs.shape[0] * measured.outputs.shape[1], largest(ratios)
    detail = f"error over rounding {worst:.1e}, {seen} of {rows} rows"
    if worst > 1.0 >= ratios[-1]:
        detail += "; right at the largest R: unless features of fewer are the first of these, set nested = False"
    return MeasuredClaim(subject, claim, worst, 0, detail)


def _symmetric(subject: str, feature_map: FeatureMap, sampler: Sampler, seed: int) -> MeasuredClaim:
    """Permuted keys, doubled keys, another head first or last, a constant on the keys' log scale change nothing."""
    case = CASES[0]._replace(query_norm=0.6, key_norm=0.6)
    arrays, sample = case.arrays(seed), _sample(feature_map, sampler, case, seed)
    query, key, value = arrays
    order = stream(seed, "verify", "order").permutation(len(key))
    fitted = feature_map.fit(query * case.head_dim**-0.25, key * case.head_dim**-0.25, sample.omega)
    plain, *others = (
        linear_attention(*changed, sample, feature_map)
        for changed in (
            arrays,
            (query, key[order], value[order]),
            (query, np.concatenate([key, key]), np.concatenate([value, value])),
        )
    )
    for own in (0, 1):  # of two heads
        queries, keys, values = (
            np.stack([a if head == own else i * a for head in (0, 1)]) for i, a in enumerate(arrays, 2)
        )
        others.append(linear_attention(queries, keys, values, sample, feature_map)[own])
    others.append(linear_attention(*arrays, sample, Shifted(fitted, 40.0)))
    measured = _measured(feature_map, sampler, case, seed)
    bound = measured.rounding * measured.expected[-1].condition * (np.max(np.abs(value)) + np.abs(plain))
    worst = largest([largest((other - plain) / bound) for other in others])
    return MeasuredClaim(subject, "symmetries of attention", worst, 0, f"largest change over rounding {worst:.1e}")


@dataclass(frozen=True)
class Shifted(WrappedMap):
    """A map whose keys' features are all times exp(key_shift)."""

    key_shift: float = 0.0

    def key_features(self, x: np.ndarray, projection: np.ndarray, sample: Sample) -> tuple[Features, ...]:
        blocks = self.wrapped.key_features(x, projection, sample)
        return tuple(block.times(self.key_shift) for block in blocks)

    def fit(self, x: np.ndarray, y: np.ndarray, omega: np.ndarray | None) -> "Shifted":
        return self
