"""The error of a kernel's approximated Gram matrix, over draws of the projections."""

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from favorbench.attention.linear import kernel_estimate
from favorbench.engine.scenario import check_distinct
from favorbench.errors import InputError, ScenarioError
from favorbench.files import read_regular
from favorbench.formats import counted
from favorbench.inputs.heads import check_type, checked
from favorbench.inputs.stored import PICKLED, Stored
from favorbench.maps import FeatureMap, Sample
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.parameters import check_positive
from favorbench.progress import Progress
from favorbench.registry import label
from favorbench.results.summary import ROUNDING
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.base import draw_omega
from favorbench.statistics import MeanInterval, mean_interval
from favorbench.studies.closed_forms import draws_needed
from favorbench.studies.kernel.targets import Kernel, shown_name
from favorbench.users import failures_named

DEFAULT_POINTS = 200


class PointSet(NamedTuple):
    """Points (n, d), and their description."""

    values: np.ndarray
    description: str


def gaussian_points(count: int, head_dim: int, scale: float, seed: int) -> PointSet:
    """Points ~ N(0, scale^2 I). Raises ScenarioError."""
    check_positive("`scale`", scale, most=1e6)
    values = scale * stream(seed, "kernel", "points").standard_normal((count, head_dim))
    return PointSet(values, f"{counted(count, 'point')} N(0, {'' if scale == 1 else f'{scale:g}^2 '}I), d = {head_dim}")


def points_of_file(path: str, count: int | None, scale: float, seed: int) -> PointSet:
    """The points of a file, or a random sample of its rows. Raises InputError, ScenarioError."""
    check_positive("`scale`", scale, most=1e6)
    values = read_points(path)
    wanted = min(len(values), DEFAULT_POINTS) if count is None else count
    if wanted > len(values):
        raise ScenarioError(f"`num_points` {wanted}: {path} has {len(values)}; ask for at most that, or leave it out")
    rows = np.sort(stream(seed, "kernel", "rows").choice(len(values), wanted, replace=False))
    of = "" if wanted == len(values) else f" of {len(values)}"
    times = "" if scale == 1 else f" times {scale:g}"
    return PointSet(scale * values[rows], f"{wanted}{of} points of {path}{times}, d = {values.shape[1]}")


def read_points(path: str) -> np.ndarray:
    """The rows of a file as points (n, d), float64. A .csv may have one line of headings; nothing is ever unpickled.

    Raises InputError with the file and what is wrong with it.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".csv"):
        raise InputError(f"points {path!r}: allowed: a path ending in .npy or .csv, with one point a row")
    data = read_regular(path, "points")
    try:
        points = np.load(io.BytesIO(data), allow_pickle=False) if suffix == ".npy" else _table(data)
    except Exception as error:  # the reader of .npy fails in many ways; all mean: not such a file
        reason = str(error) or type(error).__name__
        reason = PICKLED if "pickle" in reason else reason
        raise InputError(f"cannot read {path!r} as {suffix[1:]}: {reason}") from None
    if points.ndim != 2:
        raise InputError(f"{path}: the array has shape {points.shape}; allowed: (points, d)")
    points = points.astype(np.float64) if points.dtype.kind in "iu" else points
    check_type(path, "array 'points'", Stored.of(points))
    return checked(path, "array 'points'", points)


def _table(data: bytes) -> np.ndarray:
    """Numbers with commas; a first line without any number holds headings."""
    lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    cells = lines[0].split(",")
    if not cells[0].strip(' "'):
        raise ValueError("its first column has no heading, as the index that pandas writes: leave it out (index=False)")
    if len(cells) > 1 and cells == [str(column) for column in range(len(cells))]:
        raise ValueError("its first line numbers the columns, as pandas does: leave it out (header=False)")
    headings = not any(_is_number(cell) for cell in cells)
    if len(lines) == headings:
        raise ValueError("it has headings only")
    return np.loadtxt(lines[headings:], delimiter=",", ndmin=2, comments=None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


MAX_POINTS = 2048  # a Gram matrix of 32 MiB
MAX_ELEMENTS = 1 << 26  # of a feature matrix: half a GiB

#: Pairs that make up this share of the expected squared error must be within reach of sampling.
SHARE = 0.99


class Cell(NamedTuple):
    """One map under one sampler at one R, over all draws. Errors are relative: |estimate - K|_F / |K|_F.

    errors, max_abs_errors: one for each draw; the latter over pairs, absolute. expected: root of the expected squared
    error in closed form, NaN where none is known. best: the lowest error of any matrix of rank num_features. bias: of
    the mean over draws; spread: standard deviation over draws; both are roots of sums over pairs, relative to |K|_F,
    and NaN for a single draw. measurable: False if the draws are too few, so that the number is too small.
    """

    map: str
    sampler: str
    num_projections: int
    num_features: int
    errors: tuple[float, ...]
    max_abs_errors: tuple[float, ...]
    expected: float
    best: float
    bias: float
    spread: float
    measurable: bool

    @property
    def median(self) -> float:
        return float(np.median(self.errors))

    @property
    def max_abs_error(self) -> float:
        return float(np.median(self.max_abs_errors))

    @property
    def squared(self) -> MeanInterval:
        """The mean squared error; its interval does not go below 0."""
        interval = mean_interval(np.square(self.errors))
        return interval._replace(low=float(np.maximum(0.0, interval.low)))

    @property
    def biased(self) -> bool:
        """Whether the bias is more than chance explains (level 0.001), and than rounding.

        Without bias, bias^2 draws / spread^2 is a weighted mean of squares of t-variables. Its tail is never heavier
        than that of a single one. Szekely & Bakirov 2003, "Extremal probabilities for Gaussian quadratic forms".
        """
        draws = len(self.errors)
        if draws < 2 or not self.measurable or self.bias <= ROUNDING:
            return False
        return self.bias * math.sqrt(draws) > float(scipy.special.stdtrit(draws - 1, 0.9995)) * self.spread

    def as_dict(self) -> dict[str, Any]:
        """All fields and the statistics, for JSON."""
        return self._asdict() | {
            "median": self.median, "max_abs_error": self.max_abs_error, "biased": self.biased,
            "mean_squared_error": self.squared,
        }  # fmt: skip


class Gap(NamedTuple):
    """Squared error of phase minus that of trig at equal features: in closed form, and measured draw by draw."""

    sampler: str
    num_features: int
    expected: float
    measured: float
    low: float
    high: float


class GramStudy(NamedTuple):
    """The result of ``favorbench kernel``. mean_error: of the mean of K as the estimate of every pair."""

    title: str
    kernel: str
    cells: tuple[Cell, ...]
    mean_error: float
    draws: int

    def gaps(self) -> list[Gap]:
        """phase against trig wherever both were measured with as many features."""
        trig = {(cell.sampler, cell.num_features): cell for cell in self.cells if cell.map == "trig"}
        result = []
        for phase in self.cells:
            other = trig.get((phase.sampler, phase.num_features))
            if phase.map == "phase" and other is not None:
                measured = mean_interval(np.square(phase.errors) - np.square(other.errors))
                difference = phase.expected**2 - other.expected**2
                result.append(Gap(phase.sampler, phase.num_features, difference, *measured))
        return result

    def as_dict(self) -> dict[str, Any]:
        """All fields and the gaps, for JSON."""
        return self._asdict() | {"gaps": self.gaps()}


def study(
    kernel: Kernel,
    maps: Sequence[str],
    samplers: Sequence[str],
    sizes: Sequence[int],
    points: PointSet,
    draws: int = 20,
    seed: int = 0,
    budget: str = "projections",
    progress: Progress | None = None,
) -> GramStudy:
    """Every map under every sampler for every R, on the same points. Raises ScenarioError for impossible requests.

    Draws are paired: the omega of one draw is the same for all maps, and for all R as far as the sampler is nested.
    """
    with one_core(), np.errstate(all="ignore"):  # an estimate that overflows is a measurement
        gram = _exact_gram(kernel, points)
        jobs = list(_jobs(kernel, maps, samplers, sizes, points.values, budget))
        spectrum = np.sort(np.linalg.eigvalsh(gram) ** 2)[::-1]
        cells, done = [], np.cumsum([job.draws(draws) for job in jobs])
        for job, count in zip(jobs, done, strict=True):
            cells.append(_measure(kernel, job, points.values, gram, spectrum, job.draws(draws), seed))
            if progress:
                progress(int(count), int(done[-1]))
    others = gram[~np.eye(len(gram), dtype=bool)]
    typical = f"; median of K between two points {np.median(others):.2g}" if others.size else ""
    title = f"{kernel.name} kernel {kernel.formula}; {points.description}{typical}"
    mean_error = float(np.std(gram) / np.sqrt(np.mean(gram**2)))
    return GramStudy(title, kernel.name, tuple(cells), mean_error, draws)


class _Job(NamedTuple):
    """A map under a sampler at one R, and the labels of both."""

    map: FeatureMap
    map_label: str
    sampler: Sampler
    sampler_label: str
    size: int

    @property
    def random(self) -> bool:
        return self.map.randomness != "none"

    def draws(self, count: int) -> int:
        return count if self.random else 1

    def targets(self, x: np.ndarray) -> np.ndarray:
        """The mean of the estimates, some rows at a time: the differences of all pairs are n x n x d numbers."""
        law, step = self.sampler.row_law(self.size, x.shape[1]), max(1, (1 << 22) // x.size)
        fitted = self.map.with_parameters(x, x)  # to all rows, as the estimates
        return np.concatenate([fitted.target_kernel(x[i : i + step], x, law) for i in range(0, len(x), step)])


def _jobs(
    kernel: Kernel, maps: Sequence[str], samplers: Sequence[str], sizes: Sequence[int], points: np.ndarray, budget: str
) -> Iterator[_Job]:
    """All jobs. A map with a sample of its own is measured once ("own"), one without randomness once for all R."""
    chosen = {spec: get_sampler(spec) for spec in samplers}
    known = {spec: kernel.map(spec) for spec in maps}
    check_distinct([*chosen], [label(law) for law in chosen.values()])
    check_distinct([*known], [shown_name(feature_map) for feature_map in known.values()])
    laws = {label(law): law for law in chosen.values()}
    for feature_map in known.values():
        name, kind = shown_name(feature_map), feature_map.randomness
        per = feature_map.features_per_projection if budget == "features" and kind != "none" else 1
        if min(sizes) < per:
            raise ScenarioError(
                f"`num_projections` {min(sizes)}: {name} has {per} features a projection; use `num_projections` {per} "
                "or more"
            )
        for law_name, law in (laws if kind == "omega" else {kind: get_sampler("iid")}).items():
            for size in [1] if kind == "none" else [size // per for size in sizes]:
                _check_size(name, feature_map, size, points)
                yield _Job(feature_map, name, law, law_name, size)


def _check_size(name: str, feature_map: FeatureMap, size: int, points: np.ndarray) -> None:
    """Raise ScenarioError for more features or projections than memory should hold."""
    num_points, head_dim = points.shape
    num_features = feature_map.num_features(size, head_dim)
    if num_features * num_points > MAX_ELEMENTS:
        raise ScenarioError(
            f"{name}: {num_features} features of {num_points} points, allowed: {MAX_ELEMENTS // num_points} features; "
            "use a smaller `num_projections`, `degree` or `num_points`"
        )
    if size * head_dim > MAX_ELEMENTS:
        raise ScenarioError(
            f"{name}: {size} projections of d = {head_dim}, allowed: {MAX_ELEMENTS // head_dim}; "
            "use a smaller `num_projections`"
        )


def _exact_gram(kernel: Kernel, points: PointSet) -> np.ndarray:
    gram = kernel.exact(points.values)
    if len(gram) > MAX_POINTS:
        raise ScenarioError(f"`num_points` {len(gram)} given, allowed: 1 to {MAX_POINTS}")
    if not np.isfinite(np.sum(gram**2)):
        raise ScenarioError(f"the {kernel.name} kernel of these points overflows float64: use a smaller `scale`")
    if not np.any(gram):
        raise ScenarioError(f"the {kernel.name} kernel of these points is 0 for every pair: nothing to approximate")
    return gram


def _measure(
    kernel: Kernel, job: _Job, points: np.ndarray, gram: np.ndarray, spectrum: np.ndarray, draws: int, seed: int
) -> Cell:
    norm, x = float(np.linalg.norm(gram)), kernel.scaled(points)
    errors, largest = np.zeros((2, draws))
    first, second = np.zeros_like(gram), np.zeros_like(gram)
    for draw in range(draws):
        with failures_named(job.sampler_label):
            omega = draw_omega(
                job.sampler, stream(seed, "kernel", "omega", job.sampler_label, draw), job.size, x.shape[1]
            )
        rng = stream(seed, "kernel", "extra", job.map_label, job.sampler_label, draw)
        with failures_named(job.map_label):
            sample = Sample(omega, job.map.draw_extra(rng, job.size, x.shape[1]))
            error = kernel_estimate(x, x, sample, job.map) - gram
        first += error
        second += error * error
        errors[draw], largest[draw] = float(np.linalg.norm(error)) / norm, np.max(np.abs(error))
    bias = spread = math.nan
    if draws > 1:
        bias = float(np.linalg.norm(first)) / draws / norm
        spread = math.sqrt(max(float(np.sum(second - first * first / draws)) / (draws - 1), 0.0)) / norm
    num_features = job.map.num_features(job.size, points.shape[1])
    expected, measurable = _expected(kernel, job, points, gram, draws)
    errors, largest = (np.where(np.isnan(values), np.inf, values) for values in (errors, largest))  # failures are large
    return Cell(
        job.map_label, job.sampler_label, job.size if job.random else 0, num_features,
        tuple(errors.tolist()), tuple(largest.tolist()), expected / norm,
        math.sqrt(float(np.sum(spectrum[num_features:]))) / norm, bias, spread, measurable,
    )  # fmt: skip


def _expected(kernel: Kernel, job: _Job, points: np.ndarray, gram: np.ndarray, draws: int) -> tuple[float, bool]:
    """The root of the expected squared error, summed over pairs, and whether this number of draws can measure it.

    Bias and variance add. The closed form holds for each pair, so this is exact for any points; NaN if it is not known.
    """
    x = kernel.scaled(points)
    if not job.random:
        return float(np.linalg.norm(job.targets(x) - gram)), True
    variance = kernel.variance(job.map, job.sampler, points, job.size)
    moved = variance is not None and job.map.randomness == "omega" and not job.sampler.gaussian_rows
    bias = float(np.sum((job.targets(x) - gram) ** 2)) if moved else 0.0
    measurable = _measurable(kernel, job, points, gram, variance, bias, draws)
    total = math.nan if variance is None else bias + max(float(np.sum(variance)), 0.0)  # of 0, rounding may leave less
    return (math.sqrt(total) if math.isfinite(total) else math.nan), measurable


def _measurable(
    kernel: Kernel, job: _Job, points: np.ndarray, gram: np.ndarray, variance: np.ndarray | None, bias: float,
    draws: int,
) -> bool:  # fmt: skip
    """Whether bias (squared, summed) and the pairs within reach of sampling are SHARE of the expected squared error.

    variance: None where the closed form is not known under the sampler: those of independent rows then stand for them.
    """
    x = kernel.scaled(points)
    if job.map.relative_variance(x[:1], x[:1], 1) is None:
        return True  # as far as is known
    if not job.map.unbiased:
        mean = job.targets(x)
        if not np.linalg.norm(mean - gram) <= (1.0 - SHARE) * np.linalg.norm(gram):
            return True  # its bias is real
        relative = job.map.relative_variance(x, x, job.size)
        variance = None if relative is None else relative * mean**2
    rows = job.sampler.row_law(job.size, x.shape[1])
    reach = draws_needed(job.map, x, x, rows) <= draws * job.size
    if np.all(reach):
        return True
    if variance is None:
        variance = kernel.variance(job.map, get_sampler("iid"), points, job.size)
    if variance is None:
        return False
    return bias + float(np.sum(variance[reach])) >= SHARE * (bias + max(float(np.sum(variance)), 0.0))
