"""Claims on kernel estimates: their mean, their variance, their sign, from many independent draws of omega."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from favorbench.attention.linear import kernel_estimate
from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap, Sample
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.samplers.laws import IsotropicRows
from favorbench.studies.theory.closed_forms import draws_needed, relative_variance
from favorbench.studies.verify.checks import NOT_MEASURABLE, Measurement, largest

HEAD_DIM = 8
#: Many blocks and a last one cut short.
NUM_PROJECTIONS = 250
CHUNK = 250  # draws evaluated together


class Pairs(NamedTuple):
    """Points whose pairs x_i, y_i are measured."""

    x: np.ndarray
    y: np.ndarray


def standard_pairs(norms: Sequence[float] = (0.3, 0.5)) -> Pairs:
    """Pairs along directions where known mistakes show: e1, -e1, the diagonal, random; equal, opposite and apart."""
    random = stream(0, "verify", "directions").standard_normal((2, HEAD_DIM))
    axis, diagonal = np.eye(HEAD_DIM)[0], np.ones(HEAD_DIM)
    directions = [v / np.linalg.norm(v) for v in (axis, -axis, diagonal, random[0])]
    other = random[1] / np.linalg.norm(random[1])
    x, y = [], []
    for norm in norms:
        for u in directions:
            x += [norm * u, norm * u]
            y += [norm * u, norm * other]
        x.append(norm * directions[3])
        y.append(-norm * directions[3])
    return Pairs(np.array(x), np.array(y))


def samples(
    sampler: Sampler, maps: Sequence[FeatureMap], num_projections: int, draws: int, seed: int
) -> Iterator[tuple[np.ndarray, list[np.ndarray | None]]]:
    """Independent samples, each drawn by a call of its own as a user draws it; in chunks (CHUNK, R, d)."""
    rng = stream(seed, "verify", "omega", label(sampler), num_projections)
    extra_rng = stream(seed, "verify", "extra", label(sampler), num_projections)
    for start in range(0, draws, CHUNK):
        count = min(CHUNK, draws - start)
        omega = np.stack([sampler.sample(child, num_projections, HEAD_DIM) for child in rng.spawn(count)])
        extras: list[np.ndarray | None] = []
        for feature_map in maps:
            drawn = [feature_map.draw_extra(child, num_projections, HEAD_DIM) for child in extra_rng.spawn(count)]
            extras.append(None if drawn[0] is None else np.stack([np.asarray(d) for d in drawn]))
        yield omega, extras


def estimates(
    sampler: Sampler, maps: Sequence[FeatureMap], pairs: Pairs, num_projections: int, draws: int, seed: int
) -> list[np.ndarray]:
    """For each map the kernel estimates (draws, pairs); all maps on the same omega."""
    found: list[list[np.ndarray]] = [[] for _ in maps]
    for omega, extras in samples(sampler, maps, num_projections, draws, seed):
        for parts, feature_map, extra in zip(found, maps, extras, strict=True):
            estimate = kernel_estimate(pairs.x, pairs.y, Sample(omega, extra), feature_map)
            diagonal = np.diagonal(estimate, axis1=-2, axis2=-1)
            parts.append(np.broadcast_to(diagonal, (len(omega), len(pairs.x))))  # without randomness there is one only
    return [np.concatenate(parts) for parts in found]


def measure(sampler: Sampler, maps: Sequence[FeatureMap], draws: int, seed: int) -> list[Measurement]:
    """Target, unbiasedness, variance and sign of every map under one sampler."""
    pairs = standard_pairs()
    first_row = standard_pairs((0.2, 0.35))  # one row's estimate has a heavier tail: smaller norms keep z normal
    size, fewest = (sampler.round_up(n, HEAD_DIM) for n in (NUM_PROJECTIONS, 1))
    many = estimates(sampler, maps, pairs, size, draws, seed)
    single = estimates(sampler, maps, first_row, fewest, draws, seed)
    measured = []
    for feature_map, values, values_of_one in zip(maps, many, single, strict=True):
        subject = f"{label(feature_map)}/{label(sampler)}"
        measured.append(
            _target(subject, feature_map, sampler, [(pairs, values, size), (first_row, values_of_one, fewest)])
        )
        if feature_map.unbiased and sampler.gaussian_rows:
            z, resolution = z_of_mean(values, np.diagonal(softmax_kernel(pairs.x, pairs.y)))
            detail = f"against exp(x.y), {values.shape[1]} pairs"
            measured.append(Measurement(subject, "unbiased", largest(z), z.size, detail, resolution))
        if feature_map.unbiased and isinstance(sampler.row_law(size, HEAD_DIM), IsotropicRows):
            measured.append(variance(subject, feature_map, sampler, pairs, values, size))
        if feature_map.nonnegative:
            smallest = float(min(values.min(), values_of_one.min()))
            measured.append(
                Measurement(subject, "nonnegative", 0.0 if smallest >= 0 else 2.0, 0, f"smallest {smallest:.2g}")
            )
    return measured


def z_of_mean(values: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """z of the mean of values (draws, pairs) against target (pairs,), and the largest relative standard error.

    Where the values do not vary at all, the difference is compared with rounding.
    """
    error = np.mean(values, axis=0) - target
    standard_error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    rounding = 1e-12 * np.abs(target)
    return error / np.maximum(standard_error, rounding), float(np.max(standard_error / np.abs(target)))


def _target(
    subject: str, feature_map: FeatureMap, sampler: Sampler, measured: list[tuple[Pairs, np.ndarray, int]]
) -> Measurement:
    """The mean against the kernel that the map and the sampler together declare, wherever that is known."""
    found, resolutions, ratios = [], [], []
    for pairs, values, num_projections in measured:
        target = np.diagonal(feature_map.target_kernel(pairs.x, pairs.y, sampler.row_law(num_projections, HEAD_DIM)))
        known = np.isfinite(target)
        if np.any(known):
            z, resolution = z_of_mean(values[:, known], target[known])
            found.append(z)
            resolutions.append(resolution)
            ratios.append(np.mean(values[:, known], axis=0) / target[known])
    if not found:
        return Measurement(subject, "target", float("nan"), 0, "no closed form for these rows")
    z, ratio = np.concatenate(found), float(np.median(np.concatenate(ratios)))
    detail = f"{z.size} pairs, {len(measured[0][1])} draws, mean/target {ratio:.3g} in the median"
    return Measurement(subject, "target", largest(z), z.size, detail, resolutions[0])


def variance(
    subject: str, feature_map: FeatureMap, sampler: Sampler, pairs: Pairs, values: np.ndarray, num_projections: int
) -> Measurement:
    """Empirical over closed-form relative variance: z from the fourth moment, on the pairs inside the gate."""
    closed = relative_variance(feature_map, sampler, pairs.x, pairs.y, num_projections)
    if closed is None:
        return Measurement(subject, "variance", float("nan"), 0, "no closed form declared")
    inside = np.diagonal(draws_needed(feature_map, pairs.x, pairs.y)) <= values.shape[0] * num_projections
    if not np.any(inside):
        return Measurement(subject, "variance", math.nan, 0, "no pair inside the gate", otherwise=NOT_MEASURABLE)
    relative = values[:, inside] / np.diagonal(softmax_kernel(pairs.x, pairs.y))[inside]
    expected = np.diagonal(closed)[inside]
    deviation = relative - np.mean(relative, axis=0)
    found = np.mean(deviation**2, axis=0) * len(values) / (len(values) - 1)
    fourth = np.mean(deviation**4, axis=0)
    standard_error = np.sqrt(np.maximum(fourth - found**2, 0.0) / len(values))
    # Where the closed form is 0 (trig at x = y, positive at x = -y) only rounding is left of the variance.
    constant = expected < 1e-15
    z = np.where(constant, np.where(found < 1e-15, 0.0, np.inf), (found - expected) / np.maximum(standard_error, 1e-30))
    ratio = found[expected > 0] / expected[expected > 0]
    detail = f"empirical / closed form {ratio.min():.3f} to {ratio.max():.3f}"
    return Measurement(
        subject, "variance", largest(z), z.size, detail, float(np.median((standard_error / found)[expected > 0]))
    )
