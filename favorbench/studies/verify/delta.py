"""The delta method: the error of an output, predicted to first order in 1/R from the covariance that a map declares."""

import numpy as np

from favorbench.attention.linear import linear_attention, sample_omega
from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.studies.verify.checks import Measurement

LENGTH, HEAD_DIM = 12, 8


def measure(feature_map: FeatureMap, sampler: Sampler, draws: int, seed: int) -> Measurement:
    """The predicted output error of first order in 1/R, against the measured one, where it is valid.

    E |o^ - o|^2 = (1/R) sum_jl a_j a_l (v_j - o).(v_l - o) C_jl with C the relative covariance of the kernel estimates.
    Its own error is of order max C / R: allowed as 1.5 max C / R, beside the standard error of the measurement.
    """
    subject, num_projections = f"{label(feature_map)}/{label(sampler)}", 800
    rng = stream(seed, "verify", "delta inputs")
    query, key, value = rng.standard_normal((3, LENGTH, HEAD_DIM)) * np.array([0.36, 0.36, 1.0])[:, None, None]
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
    z = float(np.maximum(np.abs(measured - predicted) - allowed, 0.0) / standard_error)
    detail = f"output error measured / predicted {measured / predicted:.3f}"
    return Measurement(subject, "delta method", z, 1, detail, float(standard_error / predicted))
