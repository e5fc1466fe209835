"""Feature maps as they stand in published code, with the kernel they really estimate. Not for use: to be measured."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from favorbench.maps.base import FeatureMap, Fitted, Keys, Omega, Pairs, Projection, Sample, Tokens, with_values
from favorbench.maps.positive import exponential_target, norm_factors
from favorbench.maps.trigonometric import trigonometric_target
from favorbench.numerics.arrays import Array, Features, array_namespace, cos_sin, half_squared_norm
from favorbench.parameters import check_positive
from favorbench.samplers.laws import RowLaw


@dataclass(frozen=True)
class TrigBlog(FeatureMap):
    """``trig`` with a stray 2 pi: exp(|x|^2/2) [cos(2 pi w.x), sin(2 pi w.x)], the blog post of 2020.

    With N(0, I) rows it estimates exp((|x|^2 + |y|^2)/2 - 2 pi^2 |x - y|^2): at |x - y|^2 = 8, 3e-69 for 2e-2.
    """

    name: ClassVar[str] = "trig-blog"
    reference: ClassVar[str] = "teddykoker/performer, 2020 (2 pi inside sin and cos)"
    features_per_projection: ClassVar[int] = 2
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        cos, sin = cos_sin((2.0 * math.pi) * projection)
        scale = half_squared_norm(x)
        return Features(cos, scale), Features(sin, scale)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return trigonometric_target(x, y, rows, frequency=2.0 * math.pi)


@dataclass(frozen=True)
class TrigTutorial(FeatureMap):
    """exp(-|x|^2/2) [cos(w.x), sin(w.x)]: the positive map's factor on trigonometric features, from a tutorial.

    Estimates exp(x.y - |x|^2 - |y|^2): attention re-weighted by exp(-|y|^2).
    """

    name: ClassVar[str] = "trig-tutorial"
    reference: ClassVar[str] = "Kernel-Based Attention and the Performer (tutorial), sec. 3"
    features_per_projection: ClassVar[int] = 2
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        cos, sin = cos_sin(projection)
        scale = -half_squared_norm(x)
        return Features(cos, scale), Features(sin, scale)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return trigonometric_target(x, y, rows, norm_power=-1.0)


def _plus_eps(log_feature: Array, eps: float) -> Features:
    """exp(log_feature) + eps, in log space."""
    xp = array_namespace(log_feature)
    return Features(None, xp.logaddexp(log_feature, xp.full_like(log_feature, math.log(eps))))


@dataclass(frozen=True)
class ExpTutorial(FeatureMap):
    """exp(w.x) + eps without exp(-|x|^2/2), from the class of the same tutorial.

    Attention re-weighted by exp(+|y|^2/2). (The tutorial's class also forgets d^-1/4; favorbench always scales.)
    """

    eps: float = 1e-6
    name: ClassVar[str] = "exp-tutorial"
    reference: ClassVar[str] = "Kernel-Based Attention and the Performer (tutorial), class PerformerAttention"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return (_plus_eps(projection, self.eps),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_target(x, y, rows) / norm_factors(x, y) + _eps_terms(x, y, rows, self.eps, norm_power=0.0)


@dataclass(frozen=True)
class PositiveEps(FeatureMap):
    """``positive`` with the shifts and the eps of google-research/performer and performer-pytorch.

    A query's feature is exp(w.x - |x|^2/2 - max_r w_r.x) + eps, a key's exp(w.y - |y|^2/2 - max_jr w_r.y_j) + eps:
    the eps, added after the shift, stops the shifts from cancelling. Where keys are long, every feature falls below
    eps and the output becomes uniform attention. Without ``fit`` (kernel estimates) the shifts are zero.
    """

    eps: float = 1e-4
    key_shift: Fitted | None = field(default=None, init=False, repr=False)
    name: ClassVar[str] = "positive-eps"
    reference: ClassVar[str] = "google-research/performer; performer-pytorch (eps 1e-4)"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False
    causal_safe: ClassVar[bool] = False
    nested: ClassVar[bool] = False  # the shifts are maxima over the R projections
    fit_needs_omega: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "PositiveEps":
        assert omega is not None
        xp = array_namespace(y)
        shift = xp.max(y @ xp.matrix_transpose(omega), axis=(-2, -1), keepdims=True)
        return with_values(self, key_shift=Fitted(shift))

    def own_products(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """The projections of the keys once more, for their maximum."""
        return float(l * d * num_projections)

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        if self.key_shift is None:
            return self.features(x, projection, sample)
        xp = array_namespace(projection)
        shift = xp.max(projection, axis=-1, keepdims=True)
        return (_plus_eps(projection - half_squared_norm(x) - shift, self.eps),)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        shift = 0.0 if self.key_shift is None else self.key_shift.values
        return (_plus_eps(projection - half_squared_norm(x) - shift, self.eps),)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return (_plus_eps(projection - half_squared_norm(x), self.eps),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        """The target of the unshifted features; with the shifts, which depend on omega and the data, there is none."""
        return exponential_target(x, y, rows) + _eps_terms(x, y, rows, self.eps, norm_power=-1.0)


def _eps_terms(x: Array, y: Array, rows: RowLaw, eps: float, norm_power: float) -> Array:
    """eps (E f(x) + E f(y)) + eps^2 for f(x) = exp(norm_power |x|^2/2 + w.x)."""

    def mean(z: Array) -> Array:
        return np.exp(norm_power * half_squared_norm(z)) * rows.laplace(z)[..., None]

    return eps * (mean(x) + np.matrix_transpose(mean(y))) + eps**2
