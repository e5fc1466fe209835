"""What the closed forms say for pairs of given norms, beside what sampling measures."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.linear import kernel_estimate, sample_omega
from favorbench.errors import ScenarioError
from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.studies.theory.closed_forms import draws_needed, projections_for, relative_variance


class Point(NamedTuple):
    """Relative standard deviation of one pair at one R: closed form, and measured with a 95 % interval (nan: gate)."""

    norm: float
    num_projections: int
    closed_form: float
    measured: float
    low: float
    high: float


class TheoryStudy(NamedTuple):
    """What ``favorbench theory`` shows. needed: the smallest R for the target, None where there is none."""

    title: str
    points: tuple[Point, ...]
    needed: dict[float, int | None]
    target: float
    draws: int

    def as_dict(self) -> dict[str, Any]:
        """What is shown, for JSON."""
        return self._asdict()


@np.errstate(all="ignore")  # far out closed forms and estimates overflow: they are infinite, and shown as that
def study(
    feature_map: FeatureMap,
    sampler: Sampler,
    head_dim: int,
    norms: Sequence[float],
    sizes: Sequence[int],
    cosine: float = 0.0,
    target: float = 0.1,
    draws: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> TheoryStudy:
    """Closed form and measurement for pairs with |x| = |y| = norm (scaled by d^-1/4) and the cosine between them.

    Raises ScenarioError for a map or sampler without a closed form, or an R that the sampler cannot draw. progress is
    called with the draws that are done.
    """
    for size in sizes:
        sampler.check(size, head_dim)
    title = f"{label(feature_map)}/{label(sampler)}, d = {head_dim}, cosine {cosine:g}"
    # Variances of long vectors are infinite in float64, and are shown as that.
    with one_core(), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        pairs = {norm: pair_at(norm, head_dim, cosine) for norm in norms}
        needed = {norm: projections_for(feature_map, sampler, *pair, target) for norm, pair in pairs.items()}
        points = [
            Point(norm, size, closed_form(feature_map, sampler, *pair, size), *(math.nan,) * 3)
            for norm, pair in pairs.items()
            for size in sizes
        ]
        gates = {norm: float(draws_needed(feature_map, *pair)[0, 0]) for norm, pair in pairs.items()}
        inside = [i for i, point in enumerate(points) if draws and gates[point.norm] <= draws * point.num_projections]
        for count, i in enumerate(inside):
            norm, size = points[i][:2]
            report = progress and functools.partial(_of_all, progress, count * draws, len(inside) * draws)
            measured = measured_deviation(feature_map, sampler, *pairs[norm], size, draws, seed, report)
            points[i] = Point(norm, size, points[i].closed_form, *measured)
    return TheoryStudy(title, tuple(points), needed, target, draws)


def _of_all(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """Progress of one of several measurements as progress of all."""
    progress(before + done, total)


def closed_form(feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, num_projections: int) -> float:
    """Relative standard deviation of the kernel estimate of one pair. Raises ScenarioError if no formula is known."""
    variance = relative_variance(feature_map, sampler, x, y, num_projections)
    if variance is None or not sampler.gaussian_rows:
        raise ScenarioError(
            f"no closed form for {label(feature_map)} under {label(sampler)}: both must claim to be unbiased, "
            "and the map must declare relative_variance"
        )
    return math.sqrt(float(variance[0, 0]))


def measured_deviation(
    feature_map: FeatureMap,
    sampler: Sampler,
    x: np.ndarray,
    y: np.ndarray,
    num_projections: int,
    draws: int,
    seed: int,
    progress: Progress | None = None,
) -> tuple[float, float, float]:
    """Empirical relative standard deviation of one pair, and its 95 % interval from the fourth moment."""
    rng = stream(seed, "theory", label(feature_map), label(sampler), num_projections)
    kernel, values = float(softmax_kernel(x, y)[0, 0]), []
    for done, child in enumerate(rng.spawn(draws)):
        if progress is not None:
            progress(done, draws)
        sample = sample_omega(sampler, num_projections, x.shape[-1], child, map=feature_map)
        values.append(float(kernel_estimate(x, y, sample, feature_map)[0, 0]) / kernel)
    deviation = np.array(values) - np.mean(values)
    variance, fourth = np.mean(deviation**2), np.mean(deviation**4)
    half_width = 1.96 * math.sqrt(max(fourth - variance**2, 0.0) / draws)
    low, high = (math.sqrt(max(float(variance) + sign * half_width, 0.0)) for sign in (-1, 1))
    return math.sqrt(float(variance)), low, high


def pair_at(norm: float, head_dim: int, cosine: float) -> tuple[np.ndarray, np.ndarray]:
    """x along the first axis and y in the plane of the first two, each of shape (1, head_dim)."""
    x, y = np.zeros((2, 1, head_dim))
    x[0, 0] = norm
    y[0, 0] = norm * cosine
    y[0, 1] = norm * math.sqrt(1.0 - cosine**2)
    return x, y
