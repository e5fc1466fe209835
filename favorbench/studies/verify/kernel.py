"""Claims on kernel estimates: their mean, their variance, their sign, from many independent draws of omega."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from favorbench.attention.linear import kernel_estimate, linear_attention, sample_omega
from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap, Sample
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.samplers.base import draw_omega
from favorbench.studies.closed_forms import declared_variance, draws_needed
from favorbench.studies.verify.checks import NOT_MEASURABLE, MeasuredClaim, largest
from favorbench.studies.verify.laws import HEAD_DIM, takes, unit

#: Many blocks and a last one cut short.
NUM_PROJECTIONS = 250
#: Also measured with fewer projections and a quarter of the draws: where there is a single coordinate, where d is
#: odd, and where it is not a power of two.
OTHER_DIMS, OTHER_PROJECTIONS, FEWEST_DRAWS = (1, 3, 24), 60, 250
CHUNK = 250  # draws evaluated together


#: Points x (n, d) and y (l, d), scaled: every pair of them is measured, so n + l features give n l pairs.
PointPairs = tuple[np.ndarray, np.ndarray]


class KernelSetting(NamedTuple):
    """Points, and how many samples of how many projections their pairs are measured on."""

    points: PointPairs
    num_projections: int
    draws: int

    @property
    def head_dim(self) -> int:
        return self.points[0].shape[-1]


def standard_points(head_dim: int = HEAD_DIM, scale: float = 1.0) -> PointPairs:
    """Points along directions where known mistakes show: an axis, the diagonal, random ones.

    Among the pairs are equal and opposite points, points 18 degrees apart (where the parts of a mixture weigh most
    unequally), and unequal norms. The means of x and of y are not 0, nor is their product: a map that subtracts a mean
    must correct for it.
    """
    random = stream(0, "verify", "directions").standard_normal((3, head_dim))
    first, second, third = unit(random)
    axis, diagonal = np.eye(head_dim)[0], np.ones(head_dim) / np.sqrt(head_dim)
    across = third - (third @ first) * first
    length = float(np.linalg.norm(across))
    near = np.cos(0.1 * np.pi) * first + np.sin(0.1 * np.pi) * across / length if head_dim > 1 else first
    x = [0.5 * axis, -0.25 * axis, 0.3 * diagonal, 0.5 * diagonal, 0.5 * first, 0.3 * second]
    y = [0.5 * axis, 0.5 * diagonal, -0.5 * first, 0.6 * near, 0.25 * second, 0.4 * axis]
    return scale * np.array(x), scale * np.array(y)


def settings(sampler: Sampler, draws: int) -> list[KernelSetting]:
    """Where every map is measured under a sampler: many rows first, then one alone, then other dimensions."""

    def setting(points: PointPairs, size: int, draws: int) -> KernelSetting:
        return KernelSetting(points, sampler.round_up(size, points[0].shape[-1]), draws)

    first_row = standard_points(scale=0.7)  # one row's estimate has a heavier tail: smaller norms keep z normal
    fewer = max(draws // 4, min(draws, FEWEST_DRAWS))
    others = [setting(standard_points(dim), OTHER_PROJECTIONS, fewer) for dim in OTHER_DIMS if takes(sampler, dim)]
    return [setting(standard_points(), NUM_PROJECTIONS, draws), setting(first_row, 1, draws), *others]


def estimates(sampler: Sampler, maps: Sequence[FeatureMap], setting: KernelSetting, seed: int) -> list[np.ndarray]:
    """For each map the kernel estimates (draws, n, l); all maps on the same omega.

    Each sample is drawn by a call of its own, as a user draws it; they are evaluated in chunks (CHUNK, R, d).
    """
    size, dim = setting.num_projections, setting.head_dim
    rng = stream(seed, "verify", "omega", label(sampler), size, dim)
    extra_rng = stream(seed, "verify", "extra", label(sampler), size, dim)
    values = [[] for _ in maps]
    for start in range(0, setting.draws, CHUNK):
        count = min(CHUNK, setting.draws - start)
        omega = np.stack([draw_omega(sampler, child, size, dim) for child in rng.spawn(count)])
        for parts, feature_map in zip(values, maps, strict=True):
            drawn = [feature_map.draw_extra(child, size, dim) for child in extra_rng.spawn(count)]
            extra = None if drawn[0] is None else np.stack([np.asarray(d) for d in drawn])
            estimate = kernel_estimate(*setting.points, Sample(omega, extra), feature_map)
            # without randomness there is one estimate only
            parts.append(np.broadcast_to(estimate, (count, *estimate.shape[-2:])))
    return [np.concatenate(parts) for parts in values]


Measured = list[tuple[KernelSetting, np.ndarray]]  # kernel estimates (draws, n, l) in each setting


def measure(sampler: Sampler, maps: Sequence[FeatureMap], draws: int, seed: int) -> list[MeasuredClaim]:
    """Target, unbiasedness, variance and sign of every map under one sampler."""
    chosen = settings(sampler, draws)
    by_setting = [estimates(sampler, maps, setting, seed) for setting in chosen]
    measured = []
    for feature_map, values in zip(maps, zip(*by_setting, strict=True), strict=True):
        subject = f"{label(feature_map)}/{label(sampler)}"
        shown = list(zip(chosen, values, strict=True))
        laws = [sampler.row_law(setting.num_projections, setting.head_dim) for setting, _ in shown]
        targets = [feature_map.target_kernel(*part[0].points, law) for part, law in zip(shown, laws, strict=True)]
        measured.append(_mean(subject, "target", feature_map, shown, targets))
        del shown[1]  # of one row alone the estimates have heavier tails
        if feature_map.unbiased and sampler.gaussian_rows:
            exact = [softmax_kernel(*setting.points) for setting, _ in shown]
            measured.append(_mean(subject, "unbiased", feature_map, shown, exact))
        measured.append(variance(subject, feature_map, sampler, shown))
        if feature_map.nonnegative:
            smallest = float(np.min([np.min(result) for result in values]))
            sign = 0.0 if smallest >= 0 else 2.0  # NaN is not
            measured.append(MeasuredClaim(subject, "nonnegative", sign, 0, f"smallest {smallest:.2g}"))
    return measured


def z_of_mean(values: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """z of the mean of values (draws, ...) against target (...), and the relative standard errors.

    If the values do not vary, the difference is compared with the rounding of the features, whose products add up to
    as much where the kernel is about 0 as elsewhere.
    """
    error = np.mean(values, axis=0) - target
    standard_error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    rounding = max(1e-12 * float(np.max(np.abs(target))), np.finfo(float).tiny)
    return error / np.maximum(standard_error, rounding), standard_error / np.abs(target)


def _mean(
    subject: str, claim: str, feature_map: FeatureMap, measured: Measured, targets: Sequence[np.ndarray]
) -> MeasuredClaim:
    """The mean against a kernel, wherever that is known and the draws suffice for the declared variance.

    With fewer the standard error is wrong by an unknown factor. If the expectations under a law of rows are unknown,
    the target is NaN for every pair: the map declares nothing. A target that is NaN for some pairs and a number for
    others is a declaration, and wrong.
    """
    parts, dims = [], []
    for (setting, values), target in zip(measured, targets, strict=True):
        if not np.all(np.isnan(target)):
            few = draws_needed(feature_map, *setting.points) > len(values) * setting.num_projections
            inside = ~few | ~np.isfinite(target)
            z, resolution = z_of_mean(values, target)
            parts.append([part[inside] for part in (z, resolution, np.mean(values, axis=0) / target)])
            dims += [setting.head_dim] * bool(np.any(inside))
    if not parts:
        return MeasuredClaim(subject, claim, None, 0, "nothing declared: no closed form for these rows")
    z, _, ratios = map(np.concatenate, zip(*parts, strict=True))
    if not z.size:
        return MeasuredClaim(subject, claim, None, 0, "no pair inside the gate", otherwise=NOT_MEASURABLE)
    detail = (
        f"{z.size} pairs, d = {', '.join(map(str, sorted(set(dims))))}, {len(measured[0][1])} draws, mean/target "
        f"{np.median(ratios):.3g} in the median"
    )
    resolution = next(resolution for _, resolution, _ in parts if resolution.size)
    return MeasuredClaim(subject, claim, largest(z), z.size, detail, largest(resolution))


def variance(subject: str, feature_map: FeatureMap, sampler: Sampler, measured: Measured) -> MeasuredClaim:
    """Empirical over closed-form relative variance: z from the fourth moment, on the pairs with enough draws."""
    results = []
    for setting, values in measured:
        declared = declared_variance(feature_map, sampler, *setting.points, setting.num_projections)
        if declared is None:
            return MeasuredClaim(subject, "variance", None, 0, "nothing declared: no closed form")
        enough = draws_needed(feature_map, *setting.points) <= len(values) * setting.num_projections
        results.append(_z_of_variance(values, *declared, enough))
    z, ratios, resolution = (np.concatenate(parts) for parts in zip(*results, strict=True))
    if not z.size:
        return MeasuredClaim(subject, "variance", None, 0, "no pair inside the gate", otherwise=NOT_MEASURABLE)
    detail = f"empirical / closed form {ratios.min():.3f} to {ratios.max():.3f}" if ratios.size else "declared 0"
    return MeasuredClaim(
        subject, "variance", largest(z), z.size, detail, float(np.median(resolution)) if resolution.size else None
    )


def _z_of_variance(
    values: np.ndarray, declared: np.ndarray, about: np.ndarray, enough: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z of log variance, empirical over declared variance, and its standard error, of pairs with enough draws.

    declared: relative to the square of ``about``. A variance that is not finite or below 0 is wrong with any number
    of draws. Where it is 0 (trig at x = y, positive at x = -y) only rounding may be left of the empirical one.
    """
    rounding = 16 * np.finfo(float).eps * (1.0 + np.abs(declared))  # of a difference of second moments
    wrong = ~np.isfinite(declared) | (declared < -rounding)
    inside = enough | wrong
    relative, expected, wrong = values[:, inside] / about[inside], declared[inside], wrong[inside]
    deviation = relative - np.mean(relative, axis=0)
    empirical = np.mean(deviation**2, axis=0) * len(values) / (len(values) - 1)
    fourth = np.mean(deviation**4, axis=0)
    standard_error = np.sqrt(np.maximum(fourth - empirical**2, 0.0) / len(values))
    constant = expected <= rounding[inside]
    z = np.log(empirical / expected) * empirical / standard_error  # log: nearly normal, where draws are few, too
    z = np.where(constant, np.where(empirical < 1e-15, 0.0, np.inf), z)
    varies = ~constant & ~wrong
    return np.where(wrong, np.inf, z), empirical[varies] / expected[varies], standard_error[varies] / empirical[varies]


def delta_method(feature_map: FeatureMap, sampler: Sampler, draws: int, seed: int) -> list[MeasuredClaim]:
    """The predicted output error of first order in 1/R, against the measured one, where it is valid.

    E |o^ - o|^2 = (1/R) sum_jl a_j a_l (v_j - o).(v_l - o) C_jl with C the relative covariance of the kernel estimates.
    Its own error is of order max C / R: allowed as 1.5 max C / R, plus the standard error of the measurement.
    """
    subject, num_projections = f"{label(feature_map)}/{label(sampler)}", 800
    rng = stream(seed, "verify", "delta inputs")
    query, key, value = rng.standard_normal((3, 12, HEAD_DIM)) * np.array([0.36, 0.36, 1.0])[:, None, None]
    x, y = query[:1] * HEAD_DIM**-0.25, key * HEAD_DIM**-0.25
    (kernel,) = softmax_kernel(x, y)
    weights = kernel / np.sum(kernel)
    exact = weights @ value
    centred = value - exact
    covariance = feature_map.covariance(x, y)
    assert covariance is not None
    predicted = float(np.sum((weights[:, None] * weights) * (centred @ centred.T) * covariance)) / num_projections
    errors = []
    for child in stream(seed, "verify", "delta", subject).spawn(draws):
        sample = sample_omega(sampler, num_projections, HEAD_DIM, child, map=feature_map)
        errors.append(np.sum((linear_attention(query[:1], key, value, sample, feature_map) - exact) ** 2))
    measured, standard_error = np.mean(errors), np.std(errors) / np.sqrt(draws)
    allowed = 1.5 * float(np.max(np.abs(covariance))) / num_projections * predicted
    z = float(np.maximum(np.abs(measured - predicted) - allowed, 0.0) / standard_error)
    detail = f"output error measured / predicted {measured / predicted:.3f}"
    return [MeasuredClaim(subject, "delta method", z, 1, detail, float(standard_error / predicted))]
