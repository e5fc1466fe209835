"""The relative standard deviation of kernel estimates for pairs of given norms: closed form and measurement."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.attention.linear import kernel_estimate, sample_omega
from favorbench.errors import ScenarioError
from favorbench.kernels import softmax_kernel
from favorbench.maps import FeatureMap
from favorbench.maps.exponential import DenseExponential
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.samplers import Sampler, get_sampler
from favorbench.studies.closed_forms import DRAWS_IN_THE_TAIL, draws_needed, projections_for, relative_variance
from favorbench.users import failures_named


class Deviation(NamedTuple):
    """Relative standard deviation of one pair at one R: closed form, and measured with a 95 % interval.

    measured, low, high: NaN if the draws are too few to measure it.
    """

    norm: float
    num_projections: int
    closed_form: float
    measured: float = math.nan
    low: float = math.nan
    high: float = math.nan


class TheoryStudy(NamedTuple):
    """The result of ``favorbench theory``. needed: the smallest R for the target, None where there is none."""

    title: str
    points: tuple[Deviation, ...]
    needed: dict[float, int | None]
    target: float
    draws: int


@np.errstate(all="ignore")  # for long vectors closed forms and estimates overflow: they are shown as infinite
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
    called with the number of draws. Under a sampler the directions of x and y do not matter; for a map with a sample of
    its own, they are drawn.
    """
    if "centre" in label(feature_map).split(":"):
        raise ScenarioError(
            f"{label(feature_map)}: `centre` subtracts the mean of all tokens, and this is about one query and key, of "
            "which nothing is left: leave it out, or measure whole sequences with favorbench sweep"
        )
    if isinstance(feature_map, DenseExponential) and feature_map.squares:
        raise ScenarioError(
            f"{label(feature_map)} takes axes from all queries and keys, and this is about one of each, which it would "
            "fit far too well: use oprf here, or measure whole sequences with favorbench sweep"
        )
    source, axes = label(sampler), None
    if feature_map.randomness == "own":  # its sample is the same under every sampler, and not under rotations
        sampler, source = get_sampler("iid"), "own"
        axes = np.linalg.qr(stream(seed, "theory", "axes").standard_normal((head_dim, 2))).Q.T
    for size in sizes:
        sampler.check(size, head_dim)
    points, needed, gates, done = [], {}, {}, itertools.count()
    with one_core():
        pairs = {norm: pair_at(norm, head_dim, cosine, axes) for norm in norms}
        for norm, pair in pairs.items():
            needed[norm] = projections_for(feature_map, sampler, *pair, target)
            measurable = 0.0 < softmax_kernel(*pair)[0, 0] < np.inf  # else there is no relative error in float64
            gates[norm] = float(draws_needed(feature_map, *pair)[0, 0]) if measurable else math.inf
            points += [Deviation(norm, size, closed_form(feature_map, sampler, *pair, size)) for size in sizes]
        enough = draws >= DRAWS_IN_THE_TAIL  # the spread of fewer is too small, whatever R
        inside = [i for i, point in enumerate(points) if enough and gates[point.norm] <= draws * point.num_projections]

        def report() -> None:
            if progress:
                progress(next(done), len(inside) * draws)

        for i in inside:
            norm, size, formula = points[i][:3]
            measured = measured_deviation(feature_map, sampler, *pairs[norm], size, draws, seed, report)
            points[i] = Deviation(norm, size, formula, *measured)
    title = f"{label(feature_map)}/{source}, d = {head_dim}, cosine {cosine:g}"
    title += ", one random pair of directions" * (axes is not None)
    return TheoryStudy(title, tuple(points), needed, target, draws)


def closed_form(feature_map: FeatureMap, sampler: Sampler, x: np.ndarray, y: np.ndarray, num_projections: int) -> float:
    """Relative standard deviation of the kernel estimate of one pair. Raises ScenarioError if no formula is known."""
    variance = relative_variance(feature_map, sampler, x, y, num_projections)
    if variance is None or not sampler.gaussian_rows:
        why = "both must claim to be unbiased, and the map must declare relative_variance"
        alone = relative_variance(feature_map, get_sampler("iid"), x, y, num_projections)
        if sampler.gaussian_rows and alone is not None:
            why = "what its rows' dependence on one another does to the variance of this map is not known; use iid"
        raise ScenarioError(f"no closed form for {label(feature_map)} under {label(sampler)}: {why}")
    return math.sqrt(max(float(variance[0, 0]), 0.0))  # of an exact estimate rounding may leave less than 0


def measured_deviation(
    feature_map: FeatureMap,
    sampler: Sampler,
    x: np.ndarray,
    y: np.ndarray,
    num_projections: int,
    draws: int,
    seed: int,
    report: Callable[[], None] = lambda: None,
) -> tuple[float, float, float]:
    """Empirical relative standard deviation of one pair, and its 95 % interval from the fourth moment.

    With few more draws than ``draws_needed`` the interval is too low in 10 to 45 % of cases, more for larger x and y.
    report: called before each draw.
    """
    rng = stream(seed, "theory", label(feature_map), label(sampler), num_projections)
    kernel, values = float(softmax_kernel(x, y)[0, 0]), []
    for _ in range(draws):
        (child,) = rng.spawn(1)  # a million at once take a GiB
        report()
        with failures_named(f"{label(feature_map)} under {label(sampler)}"):
            sample = sample_omega(sampler, num_projections, x.shape[-1], child, map=feature_map)
            estimate = kernel_estimate(x, y, sample, feature_map)
        values.append(float(estimate[0, 0]) / kernel)
    deviation = np.array(values) - np.mean(values)
    variance, fourth = np.mean(deviation**2), np.mean(deviation**4)
    half_width = 1.96 * math.sqrt(max(fourth - variance**2, 0.0) / draws)
    low, high = (math.sqrt(max(variance + sign * half_width, 0.0)) for sign in (-1, 1))
    return math.sqrt(variance), low, high


def pair_at(norm: float, head_dim: int, cosine: float, axes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """x along the first of two axes (orthonormal rows) and y in their plane, each of shape (1, head_dim)."""
    first, second = np.eye(2, head_dim)[:, None] if axes is None else axes[:, None]
    return norm * first, norm * cosine * first + norm * math.sqrt(1.0 - cosine**2) * second


def chart(study: TheoryStudy, name: str) -> style.Chart:
    """Relative standard deviation against R, a series for each norm."""
    measured = (
        f" Points: {study.draws} draws, 95 % intervals, too low in 10 to 45 % of cases where the draws barely "
        "suffice. Hollow: so few draws would give a number that is silently too small."
    )
    caption = f"Lines: closed form.{measured * bool(study.draws)} R counts projections; x and y are scaled by d^-1/4."
    data = pd.DataFrame(study.points)
    panel = style.Panel(study.title, functools.partial(_draw, study, data))
    return style.Chart(name, "Spread of a kernel estimate", caption, [panel], panel_size=(6.8, 4.4), data=data)


def _draw(study: TheoryStudy, data: pd.DataFrame, ax: Axes) -> None:
    finite = data[np.isfinite(data["closed_form"])]  # float64 cannot hold the others
    hollow = {"linestyle": "none", "marker": "o", "markerfacecolor": "white", "markersize": style.scaled(8)}
    for i, norm in enumerate(study.needed):
        rows, look = finite[finite["norm"] == norm], style.series_look(i)
        style.line_with_band(
            ax, rows["num_projections"], rows["closed_form"], color=look["color"], linestyle=look["linestyle"],
            label=f"|x| = |y| = {norm:g}",
        )  # fmt: skip
        sampled = data[(data["norm"] == norm) & np.isfinite(data["measured"])]
        below, above = sampled["measured"] - sampled["low"], sampled["high"] - sampled["measured"]
        ax.errorbar(
            sampled["num_projections"], sampled["measured"], yerr=np.stack([below, above]), linestyle="none", capsize=3,
            color=look["color"], marker=look["marker"],
        )  # fmt: skip
        if study.draws:
            gated = rows[~np.isfinite(rows["measured"])]
            ax.plot(gated["num_projections"], gated["closed_form"], color=look["color"], **hollow)
    if study.draws and not np.all(np.isfinite(finite["measured"])):
        ax.plot([], [], color="0.4", label="not measurable by sampling", **hollow)
    ax.axhline(study.target, color="black", linestyle=":", label=f"target {study.target:g}")
    style.log_limits(ax, [*data["closed_form"], study.target], [*data["measured"], *data["low"], *data["high"]])
    values = {f"|x| = |y| = {norm:g}": rows["closed_form"].tolist() for norm, rows in data.groupby("norm")}
    style.off_scale_note(ax, values, values)
    style.number_axis(ax, [*data["num_projections"]])
    ax.set(xlabel="number of projections R", ylabel="relative standard deviation")
