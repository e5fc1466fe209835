"""Maps that do not estimate the softmax kernel: those of linear attention, and formulas published with mistakes."""

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from favorbench.maps.base import (
    FeatureBlocks,
    FeatureMap,
    Fitted,
    Keys,
    Omega,
    Pairs,
    Projection,
    Sample,
    Tokens,
    with_values,
)
from favorbench.maps.random_features import (
    Trigonometric,
    angle,
    exponential_target,
    norm_factors,
)
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm
from favorbench.numerics.logsum import tiles
from favorbench.parameters import positive
from favorbench.samplers.laws import GaussianRows, RowLaw


@dataclass(frozen=True)
class ReLU(FeatureMap):
    """phi(x) = (max(w.x, 0) + eps) / sqrt(R): the Performer's "generalized attention".

    Its kernel, an arc-cosine kernel, is not softmax's: it grows like |x||y|, so the norm of a query cancels altogether
    and that of a key enters as a factor. Positive, cheap and without outliers.
    Choromanski et al. 2021, arXiv 2009.14794, section 4 (Performer-ReLU); kernel: Cho & Saul 2009, NIPS, eq. (6).
    """

    eps: float = positive(1e-3)
    name = "relu"
    reference = "Choromanski et al. 2021, arXiv 2009.14794; Cho & Saul 2009, NIPS"
    features_per_projection = 1
    nonnegative = True
    unbiased = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        xp = array_namespace(projection)
        return (Features(None, xp.log(xp.maximum(projection, xp.zeros_like(projection)) + self.eps)),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        """Known for N(0, I) rows."""
        if not isinstance(rows, GaussianRows):
            return np.full((len(x), len(y)), np.nan)
        first_x, first_y, second = _relu_moments(x, y)[:3]
        return second + self.eps * (first_x + first_y) + self.eps**2

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """(u + eps)^2 (v + eps)^2 for u = max(w.x, 0) and v = max(w.y, 0), term by term."""
        first_x, first_y, second, third_x, third_y, fourth = _relu_moments(x, y)
        eps, squares = self.eps, 0.5 * (np.sum(x * x, axis=-1)[:, None] + np.sum(y * y, axis=-1))
        moment = fourth + 2.0 * eps * (third_x + third_y) + eps**2 * (squares + 4.0 * second)
        moment = moment + 2.0 * eps**3 * (first_x + first_y) + eps**4
        return (moment / self.target_kernel(x, y, GaussianRows()) ** 2 - 1.0) / num_projections


def _relu_moments(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """E u, E v, E u v, E u^2 v, E u v^2, E u^2 v^2 for u = max(w.x, 0), v = max(w.y, 0), w ~ N(0, I), every pair."""
    a, b = np.linalg.norm(x, axis=-1)[:, None], np.linalg.norm(y, axis=-1)[None, :]
    theta, root = angle(x, y), math.sqrt(2.0 * math.pi)
    sin, cos = np.sin(theta), np.cos(theta)
    second = a * b * (sin + (math.pi - theta) * cos) / (2.0 * math.pi)
    third = a * b * (1.0 + cos) ** 2 / (2.0 * root)
    fourth = (a * b) ** 2 * (3.0 * sin * cos + (math.pi - theta) * (1.0 + 2.0 * cos**2)) / (2.0 * math.pi)
    return a / root + 0.0 * b, b / root + 0.0 * a, second, a * third, b * third, fourth


@dataclass(frozen=True)
class ELU(FeatureMap):
    """phi(x) = elu(x) + 1: 1 + x_l where x_l > 0 and exp(x_l) elsewhere; d features and no randomness.

    The first linear attention. Its kernel, sum_l phi(x)_l phi(y)_l, is positive, and is not softmax's.
    (Its authors apply no factor d^-1/4 to queries and keys; favorbench always does.)
    Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236, eq. (7).
    """

    name = "elu"
    reference = "Katharopoulos et al. 2020, arXiv 2006.16236, eq. (7)"
    features_per_projection = 0
    nonnegative = True
    unbiased = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        xp = array_namespace(x)
        above = xp.maximum(x, xp.zeros_like(x))
        return (Features(None, xp.log1p(above) + x - above, fixed=True),)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return head_dim

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        x, y = (np.where(a > 0, 1.0 + a, np.exp(np.minimum(a, 0.0))) for a in (x, y))
        return x @ y.T


@dataclass(frozen=True)
class TrigBlog(Trigonometric):
    """``trig`` with a stray 2 pi: exp(|x|^2/2) [cos(2 pi w.x), sin(2 pi w.x)], the blog post of 2020.

    With N(0, I) rows it estimates exp((|x|^2 + |y|^2)/2 - 2 pi^2 |x - y|^2): at |x - y|^2 = 8, 3e-69 for 2e-2.
    """

    name = "trig-blog"
    reference = "teddykoker/performer, 2020 (2 pi inside sin and cos)"
    unbiased = False
    _frequency = 2.0 * math.pi

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return super().features(x, self._frequency * projection, sample)


@dataclass(frozen=True)
class TrigTutorial(Trigonometric):
    """exp(-|x|^2/2) [cos(w.x), sin(w.x)]: the positive map's factor on trigonometric features, from a tutorial.

    Estimates exp(x.y - |x|^2 - |y|^2): attention re-weighted by exp(-|y|^2).
    """

    name = "trig-tutorial"
    reference = "Kernel-Based Attention and the Performer (tutorial), sec. 3"
    unbiased = False
    _norm_power = -1.0


def _plus_eps(log_feature: Array, eps: float) -> Features:
    """exp(log_feature) + eps, in log space."""
    xp = array_namespace(log_feature)
    return Features(None, xp.logaddexp(log_feature, xp.full_like(log_feature, math.log(eps))))


@dataclass(frozen=True)
class ExpTutorial(FeatureMap):
    """exp(w.x) + eps without exp(-|x|^2/2), from the class of the same tutorial.

    Attention re-weighted by exp(+|y|^2/2). (The tutorial's class also forgets d^-1/4; favorbench always scales.)
    """

    eps: float = positive(1e-6)
    name = "exp-tutorial"
    reference = "Kernel-Based Attention and the Performer (tutorial), class PerformerAttention"
    features_per_projection = 1
    nonnegative = True
    unbiased = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return (_plus_eps(projection, self.eps),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_target(x, y, rows) / norm_factors(x, y) + _eps_terms(x, y, rows, self.eps, norm_power=0.0)


@dataclass(frozen=True)
class PositiveEps(FeatureMap):
    """``positive`` with the shifts and the eps of google-research/performer and performer-pytorch.

    A query's feature is exp(w.x - |x|^2/2 - max_r w_r.x) + eps, a key's exp(w.y - |y|^2/2 - max_jr w_r.y_j) + eps:
    the eps, added after the shift, stops the shifts from cancelling. Where keys are long, every feature falls below
    eps and the output becomes uniform attention. Both are then multiplied by exp(shift): that cancels in attention,
    but not beside the exact keys of a prefix. Without ``fit`` (kernel estimates) the shifts are zero.
    """

    eps: float = positive(1e-4)
    key_shift: Fitted | None = field(default=None, init=False, repr=False)
    name = "positive-eps"
    reference = "google-research/performer; performer-pytorch (eps 1e-4)"
    features_per_projection = 1
    nonnegative = True
    unbiased = False
    causal_safe = False
    nested = False  # the shifts are maxima over the R projections
    fit_needs_omega = True

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "PositiveEps":
        assert omega is not None
        xp = array_namespace(y)
        parts = (y[..., rows, :] @ omega.mT for rows in tiles(y.shape[-2], omega.shape[-2], y))
        largest = (xp.max(part, axis=(-2, -1), keepdims=True) for part in parts)
        return with_values(self, key_shift=Fitted(functools.reduce(xp.maximum, largest)))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """The projections of the keys once more, for their maximum."""
        return float(l * d * num_projections)

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        if self.key_shift is None:
            return self.features(x, projection, sample)
        shift = array_namespace(projection).max(projection, axis=-1, keepdims=True)
        return (_plus_eps(projection - half_squared_norm(x) - shift, self.eps).times(shift),)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        shift = 0.0 if self.key_shift is None else self.key_shift.values
        return (_plus_eps(projection - half_squared_norm(x) - shift, self.eps).times(shift),)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return (_plus_eps(projection - half_squared_norm(x), self.eps),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        """The target of the unshifted features; with the shifts, which depend on omega and the data, there is none."""
        return exponential_target(x, y, rows) + _eps_terms(x, y, rows, self.eps, norm_power=-1.0)


def _eps_terms(x: Array, y: Array, rows: RowLaw, eps: float, norm_power: float) -> Array:
    """eps (E f(x) + E f(y)) + eps^2 for f(x) = exp(norm_power |x|^2/2 + w.x)."""

    def mean(z: Array) -> Array:
        return np.exp(norm_power * half_squared_norm(z)) * rows.laplace(z)[..., None]

    return eps * (mean(x) + mean(y).mT) + eps**2
