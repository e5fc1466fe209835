"""Kernels, their feature maps, and their Gram matrices."""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.kernels import gaussian_kernel, polynomial_features, polynomial_kernel, softmax_kernel
from favorbench.maps import get_map
from favorbench.maps.base import FeatureMap, Keys, Pairs, Projection, Sample, Tokens, WrappedMap
from favorbench.maps.polynomial import sketch_variance, sketched_power
from favorbench.maps.random_features import Phase, Trig, norm_factors
from favorbench.numerics.arrays import Array, Features, half_squared_norm
from favorbench.parameters import check_positive, check_whole, is_number
from favorbench.registry import label, nearest
from favorbench.samplers import Sampler
from favorbench.samplers.base import RowLaw
from favorbench.samplers.laws import AtAngle
from favorbench.studies.closed_forms import relative_variance

LARGEST_EXPONENT = 700.0  # exp of more overflows float64, and the hypergeometric functions of pair terms never end
FARTHEST = -1e6  # E cos(w.z) cos(w'.z) of orthogonal rows is below 1e-17 there, and further out it never ends


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel: a frozen dataclass, whose fields are its parameters. ``points`` are (n, d), as the user gives them."""

    name: ClassVar[str]
    formula_of: ClassVar[str]
    default_maps: ClassVar[tuple[str, ...]] = ("explicit",)

    @property
    def formula(self) -> str:
        """The kernel with its parameters, for titles."""
        return self.formula_of.format(**vars(self))

    @abstractmethod
    def exact(self, points: np.ndarray) -> np.ndarray:
        """The Gram matrix, (n, n)."""

    def scaled(self, points: np.ndarray) -> np.ndarray:
        """The points as the maps take them."""
        return points

    def map(self, spec: str) -> FeatureMap:
        """The feature map of this kernel that ``spec`` names. Raises ScenarioError for other maps."""
        if spec not in self.default_maps:
            raise ScenarioError(
                f"`maps`: {shown(spec)} given{nearest(spec, self.default_maps)}, allowed for the {self.name} kernel: "
                f"{', '.join(self.default_maps)}; maps of exp(x.y) serve the gaussian and softmax kernels"
            )
        return {"explicit": Explicit, "tensorsketch": PolynomialSketch}[spec](**vars(self))

    def variance(self, feature_map: FeatureMap, sampler: Sampler, points: np.ndarray, size: int) -> np.ndarray | None:
        """Variance of the estimate of every pair for R = size, in closed form; None if it is not known."""
        return None


@dataclass(frozen=True)
class SoftmaxKernel(Kernel):
    """exp(x.y / sigma^2), inside attention with sigma = d^(1/4)."""

    sigma: float
    #: The default of sigma is this power of the dimension.
    power: ClassVar[float] = 0.25
    name = "softmax"
    formula_of = "exp(x.y / sigma^2), sigma = {sigma:g}"
    default_maps = ("positive", "trig")

    def __post_init__(self) -> None:
        check_positive("`sigma`", self.sigma, most=1e6)

    def exact(self, points: np.ndarray) -> np.ndarray:
        return softmax_kernel(self.scaled(points), self.scaled(points))

    def scaled(self, points: np.ndarray) -> np.ndarray:
        return points / self.sigma

    def map(self, spec: str) -> FeatureMap:
        return get_map(spec)

    def variance(self, feature_map: FeatureMap, sampler: Sampler, points: np.ndarray, size: int) -> np.ndarray | None:
        """From the relative variance of the map of exp(x.y); None where that is beyond float64."""
        x, of_softmax = self.scaled(points), feature_map.wrapped if isinstance(feature_map, TimesNorm) else feature_map
        argument = of_softmax.pair_argument(x, x)
        if argument is not None and np.max(np.abs(argument)) > LARGEST_EXPONENT:
            return None
        relative = relative_variance(of_softmax, sampler, x, x, size)
        return None if relative is None else relative * self.exact(points) ** 2


@dataclass(frozen=True)
class GaussianKernel(SoftmaxKernel):
    """exp(-|x - y|^2 / (2 sigma^2)): that of softmax times a factor of x and one of y, so all its maps serve."""

    name = "gaussian"
    formula_of = "exp(-|x - y|^2 / (2 sigma^2)), sigma = {sigma:g}"
    default_maps = ("trig", "phase")
    power = 0.5

    def exact(self, points: np.ndarray) -> np.ndarray:
        centred = points - np.mean(points, axis=0)  # changes no distance, but far from 0 their digits
        return gaussian_kernel(centred, centred, self.sigma)

    def map(self, spec: str) -> FeatureMap:
        return TimesNorm(get_map(spec))

    def variance(self, feature_map: FeatureMap, sampler: Sampler, points: np.ndarray, size: int) -> np.ndarray | None:
        """Maps of cos(w.(x - y)) have it at any distance on independent and orthogonal rows.

        (1 - K^2)^2 / 2R, phases add 1 / 2R, and pairs of rows pairs / R^2 times E cos(w.z) cos(w'.z) - K^2.
        """
        x, inside = self.scaled(points), feature_map.wrapped if isinstance(feature_map, TimesNorm) else feature_map
        head_dim = x.shape[-1]
        pairs = sampler.pair_laws(size, head_dim) if sampler.gaussian_rows else None
        if not isinstance(inside, Trig | Phase) or pairs is None or {law for _, law in pairs} - {AtAngle(head_dim)}:
            return super().variance(feature_map, sampler, points, size)
        s = inside.pair_argument(x, x)
        dependent = sum(count * (law.even(np.maximum(s, FARTHEST)) - np.exp(s)) for count, law in pairs)
        return 0.5 * (np.expm1(s) ** 2 + isinstance(inside, Phase)) / size + dependent / size**2


@dataclass(frozen=True)
class PolynomialKernel(Kernel):
    """(x.y + constant)^degree."""

    degree: int = 2
    constant: float = 1.0
    name = "polynomial"
    formula_of = "(x.y + {constant:g})^{degree}"
    default_maps = ("explicit", "tensorsketch")

    def __post_init__(self) -> None:
        check_whole("`degree`", self.degree, 1, 30)
        if not (is_number(self.constant) and 0 <= self.constant <= 1e6):
            raise ScenarioError(f"`constant` must be from 0 to 1e6, got {self.constant!r}: below 0 it is not a kernel")

    def exact(self, points: np.ndarray) -> np.ndarray:
        return polynomial_kernel(points, points, self.degree, self.constant)

    def variance(self, feature_map: FeatureMap, sampler: Sampler, points: np.ndarray, size: int) -> np.ndarray | None:
        return feature_map.variance(points, points, size) if isinstance(feature_map, PolynomialSketch) else None


@dataclass(frozen=True)
class CosineKernel(Kernel):
    """x.y / (|x| |y|), 0 where one of them is 0."""

    name = "cosine"
    formula_of = "x.y / (|x| |y|)"

    def exact(self, points: np.ndarray) -> np.ndarray:
        norms = _norms(points)
        return points @ points.T / (norms * norms.T)

    def scaled(self, points: np.ndarray) -> np.ndarray:
        return points / _norms(points)


@dataclass(frozen=True)
class LinearKernel(Kernel):
    """x.y."""

    name = "linear"
    formula_of = "x.y"

    def exact(self, points: np.ndarray) -> np.ndarray:
        return points @ points.T


KERNELS: tuple[type[Kernel], ...] = (GaussianKernel, SoftmaxKernel, PolynomialKernel, CosineKernel, LinearKernel)


def get_kernel(name: str, head_dim: int, **parameters: float | None) -> Kernel:
    """The kernel of that name for points of dimension head_dim; None: the default. Raises ScenarioError."""
    by_name = {kernel.name: kernel for kernel in KERNELS}
    if name not in by_name:
        raise ScenarioError(f"unknown kernel {shown(name)}{nearest(name, by_name)}; allowed: {', '.join(by_name)}")
    kernel, given = by_name[name], {key: value for key, value in parameters.items() if value is not None}
    for key, value in given.items():
        having = [other.name for other in KERNELS if key in {field.name for field in dataclasses.fields(other)}]
        if name not in having:
            rest = f"{' and '.join(having)} {'does' if len(having) == 1 else 'do'}"
            raise ScenarioError(f"`{key}` {value:g}: the {name} kernel has none, only {rest}: leave it out")
    if issubclass(kernel, SoftmaxKernel):
        given.setdefault("sigma", head_dim**kernel.power)
    return kernel(**given)


@dataclass(frozen=True)
class TimesNorm(WrappedMap):
    """A map of exp(x.y) times exp(-|x|^2/2): features of exp(-|x - y|^2/2), with the same relative variance.

    In log space: the exp(|x|^2/2) of trigonometric maps cancels before anything is exponentiated, however long x is.
    """

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return tuple(block.times(-half_squared_norm(x)) for block in self.wrapped.query_features(x, projection, sample))

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return tuple(block.times(-half_squared_norm(x)) for block in self.wrapped.key_features(x, projection, sample))

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return norm_factors(x, y) * self.wrapped.target_kernel(x, y, rows)


def shown_name(feature_map: FeatureMap) -> str:
    """The name of a map in tables: as in sweeps, without the parameters of the kernel."""
    if isinstance(feature_map, PolynomialMap):
        return feature_map.name
    return label(feature_map.wrapped if isinstance(feature_map, TimesNorm) else feature_map)


def _norms(points: np.ndarray) -> np.ndarray:
    """|x| of every row, (n, 1); 1 for a zero row, whose cosine with anything is then 0."""
    norms = np.linalg.norm(points, axis=-1, keepdims=True)
    return np.where(norms > 0, norms, 1.0)


@dataclass(frozen=True)
class PolynomialMap(FeatureMap):
    """A map with phi(x).phi(y) near (x.y + constant)^degree."""

    degree: int = 1
    constant: float = 0.0
    nonnegative = False
    unbiased = True

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return polynomial_kernel(x, y, self.degree, self.constant)


@dataclass(frozen=True)
class Explicit(PolynomialMap):
    """Every monomial with its coefficient: phi(x).phi(y) = (x.y + constant)^degree exactly.

    C(d + degree, degree) features, or C(d + degree - 1, degree) without a constant; degree 1 without one is x itself.
    """

    name = "explicit"
    reference = "the binomial theorem"
    features_per_projection = 0

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return (Features(polynomial_features(x, self.degree, self.constant), np.zeros_like(x[..., :1]), fixed=True),)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return math.comb(head_dim + self.degree - (0 if self.constant else 1), self.degree)


@dataclass(frozen=True)
class PolynomialSketch(PolynomialMap):
    """R features: the sketch of one tensor power of [x, sqrt(constant)], as the map ``tensorsketch`` has of several.

    Each R needs hashes of its own.
    Pham & Pagh 2013, "Fast and scalable polynomial kernels via explicit feature maps", KDD.
    """

    name = "tensorsketch"
    reference = "Pham & Pagh 2013, KDD, doi 10.1145/2487575.2487591"
    features_per_projection = 1
    nested = False
    own_sample = True

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """Buckets and signs, (2, degree, d), with one coordinate more for the constant."""
        shape = (self.degree, head_dim + (self.constant > 0))
        return np.stack([rng.integers(0, num_projections, shape), rng.choice((-1, 1), shape)])

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        buckets, signs = np.moveaxis(sample.extra, -3, 0)
        block = sketched_power(self._extended(x), (signs * (buckets + 1)).astype(x.dtype), sample.omega.shape[-2])
        return (block.times(np.zeros_like(x[..., :1])),)

    def variance(self, x: np.ndarray, y: np.ndarray, num_projections: int) -> np.ndarray:
        """Variance of the estimate of every pair, for fully random hashes."""
        return sketch_variance(self._extended(x), self._extended(y), self.degree, num_projections)

    def _extended(self, x: Array) -> Array:
        if not self.constant:
            return x
        return np.concatenate([x, np.full_like(x[..., :1], math.sqrt(self.constant))], axis=-1)
