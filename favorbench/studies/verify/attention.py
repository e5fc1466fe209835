"""Claims on attention estimates: stabilisers cancel, exact features are exact, symmetries hold, the delta method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from favorbench.attention.causal import CHUNK
from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import kernel_estimate, linear_attention, sample_omega
from favorbench.baselines.base import Inputs
from favorbench.baselines.trivial import taylor_attention
from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap, Sample
from favorbench.maps.base import WrappedMap
from favorbench.numerics.arrays import Features
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.studies.verify.checks import Measurement

LENGTH, HEAD_DIM, NUM_PROJECTIONS = 48, 8, 40


def inputs(seed: int, norm: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal q and k times ``norm``, and v."""
    rng = stream(seed, "verify", "attention")
    query, key, value = rng.standard_normal((3, LENGTH, HEAD_DIM))
    return norm * query, norm * key, value


def measure(maps: Sequence[FeatureMap], sampler: Sampler, seed: int) -> list[Measurement]:
    """The deterministic claims of each map on one sample."""
    measured = []
    for feature_map in maps:
        sample = sample_omega(sampler, NUM_PROJECTIONS, HEAD_DIM, stream(seed, "verify", "sample"), map=feature_map)
        assert isinstance(sample, Sample)
        if feature_map.unbiased:
            measured.append(stabilised(label(feature_map), feature_map, sample, seed))
        if feature_map.causal_safe:
            measured.append(causal_is_masked(label(feature_map), feature_map, sample, seed))
        measured.append(_symmetric(label(feature_map), feature_map, sample, seed))
    return measured


def stabilised(subject: str, feature_map: FeatureMap, sample: Sample, seed: int) -> Measurement:
    """Linear attention equals the quotient of its own kernel estimates: shifts cancel and no eps is left.

    The kernel estimates come from ``features``, unshifted, the other way round: an L x L matrix.
    """
    query, key, value = inputs(seed)
    x, y = query * HEAD_DIM**-0.25, key * HEAD_DIM**-0.25
    output = linear_attention(query, key, value, sample, feature_map)
    kernel = kernel_estimate(x, y, sample, _Plain(feature_map.fit(x, y, sample.omega)))
    error = _difference(output, kernel, value)
    return Measurement(
        subject, "stabilisers cancel", float(np.max(error)) / 1e-12, 0, f"largest error {np.max(error):.1e}"
    )


def _difference(output: np.ndarray, kernel: np.ndarray, value: np.ndarray) -> float:
    """How far the output is from kernel @ value / kernel @ 1, where rounding grows as the normaliser cancels."""
    normaliser = np.sum(kernel, axis=-1, keepdims=True)
    condition = np.sum(np.abs(kernel), axis=-1, keepdims=True) / np.abs(normaliser)
    expected = kernel @ value / normaliser
    return float(np.max(np.abs(output - expected) / (condition * np.maximum(1.0, np.abs(expected)))))


@dataclass(frozen=True)
class _Plain(WrappedMap):
    """A map's plain features, as its formula has them: for queries and keys alike, unless the map is asymmetric.

    Those of keys times exp(key_shift).
    """

    key_shift: float = 0.0

    def query_features(self, x: np.ndarray, projection: np.ndarray, sample: Sample) -> tuple[Features, ...]:
        plain = self.wrapped.query_features if self.asymmetric else self.wrapped.features
        return plain(x, projection, sample)

    def key_features(self, x: np.ndarray, projection: np.ndarray, sample: Sample) -> tuple[Features, ...]:
        plain = self.wrapped.key_features if self.asymmetric else self.wrapped.features
        blocks = plain(x, projection, sample)
        return tuple(block._replace(log_scale=block.log_scale + self.key_shift) for block in blocks)

    def fit(self, x: np.ndarray, y: np.ndarray, omega: np.ndarray) -> "_Plain":
        return self


def _symmetric(subject: str, feature_map: FeatureMap, sample: Sample, seed: int) -> Measurement:
    """Permuted keys, doubled keys, a repeated head and a constant on the keys' log scale change nothing."""
    query, key, value = inputs(seed, norm=0.5)
    output = linear_attention(query, key, value, sample, feature_map)
    order = stream(seed, "verify", "order").permutation(LENGTH)
    permuted = linear_attention(query, key[order], value[order], sample, feature_map)
    twice = linear_attention(query, np.concatenate([key, key]), np.concatenate([value, value]), sample, feature_map)
    stacked = [np.stack([a, a]) for a in (query, key, value)]
    heads = linear_attention(stacked[0], stacked[1], stacked[2], sample, feature_map)
    scale = np.maximum(1.0, np.abs(output))
    worst = max(float(np.max(np.abs(other - output) / scale)) for other in (permuted, twice, heads[0], heads[1]))
    fitted = feature_map.fit(query * HEAD_DIM**-0.25, key * HEAD_DIM**-0.25, sample.omega)
    plain, shifted = (linear_attention(query, key, value, sample, _Plain(fitted, shift)) for shift in (0.0, 40.0))
    worst = max(worst, float(np.max(np.abs(shifted - plain) / np.maximum(1.0, np.abs(plain)))))
    # signed normalisers may cancel to 1e-4 of their terms at these norms; then 1e-12 is what rounding leaves
    return Measurement(subject, "symmetries of attention", worst / 1e-9, 0, f"largest change {worst:.1e}")


def causal_is_masked(subject: str, feature_map: FeatureMap, sample: Sample, seed: int) -> Measurement:
    """Causal linear attention equals the L x L kernel estimates under a mask, over several chunks."""
    length = 2 * CHUNK + 44
    rng = stream(seed, "verify", "causal")
    query, key, value = 0.5 * rng.standard_normal((3, length, HEAD_DIM))
    output = linear_attention(query, key, value, sample, feature_map, causal=True)
    x, y = query * HEAD_DIM**-0.25, key * HEAD_DIM**-0.25
    error = _difference(output, np.tril(kernel_estimate(x, y, sample, feature_map)), value)
    return Measurement(subject, "causal equals masked", error / 1e-12, 0, f"largest error {error:.1e}")


def exact_features(seed: int, order: int = 24) -> Measurement:
    """Linear attention with enough Taylor features is exact attention: the remainder is below rounding."""
    query, key, value = (a[:, :2] for a in inputs(seed, norm=0.5))
    exact = exact_attention(query, key, value)
    answer = taylor_attention(Inputs(query, key, value), order)
    logit = float(np.max(np.abs(query @ key.T))) / 2**0.5
    remainder = np.exp(logit) * logit ** (order + 1) / math.factorial(order + 1)
    bound = 1e-12 + 2.0 * remainder * float(np.max(np.abs(value)))
    error = float(np.max(np.abs(answer.output - exact)))
    detail = f"{answer.num_features} features, error {error:.1e}"
    return Measurement(f"taylor-{order}", "exact features, exact attention", error / bound, 0, detail)


def delta_method(feature_map: FeatureMap, sampler: Sampler, draws: int, seed: int) -> Measurement:
    """The predicted output error of first order in 1/R, against the measured one, where it is valid.

    E |o^ - o|^2 = (1/R) sum_jl a_j a_l (v_j - o).(v_l - o) C_jl with C the relative covariance of the kernel estimates.
    Its own error is of order max C / R: allowed as 1.5 max C / R, beside the standard error of the measurement.
    """
    subject, num_projections = f"{label(feature_map)}/{label(sampler)}", 800
    query, key, value = (a[:12] for a in inputs(seed, norm=0.36))
    x, y = query[:1] * HEAD_DIM**-0.25, key * HEAD_DIM**-0.25
    weights = softmax_kernel(x, y)[0] / np.sum(softmax_kernel(x, y))
    centred = value - weights @ value
    covariance = feature_map.covariance(x, y)
    assert covariance is not None
    predicted = float(np.sum((weights[:, None] * weights) * (centred @ centred.T) * covariance)) / num_projections
    errors = []
    rng = stream(seed, "verify", "delta", subject)
    for child in rng.spawn(draws):
        sample = sample_omega(sampler, num_projections, HEAD_DIM, child, map=feature_map)
        output = linear_attention(query[:1], key, value, sample, feature_map)
        errors.append(float(np.sum((output - weights @ value) ** 2)))
    measured, standard_error = np.mean(errors), np.std(errors) / np.sqrt(draws)
    allowed = 1.5 * float(np.max(np.abs(covariance))) / num_projections * predicted
    z = float(max(abs(measured - predicted) - allowed, 0.0) / standard_error)
    detail = f"output error measured / predicted {measured / predicted:.3f}"
    return Measurement(subject, "delta method", z, 1, detail, float(standard_error / predicted))
