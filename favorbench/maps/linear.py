"""Feature maps of linear attention that do not aim at the softmax kernel: how far they are from it is measured."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.maps.base import FeatureMap, Keys, Pairs, Projection, Sample, Tokens
from favorbench.maps.hybrid import angle
from favorbench.numerics.arrays import Features, array_namespace
from favorbench.parameters import check_positive
from favorbench.samplers.laws import GaussianRows, RowLaw


@dataclass(frozen=True)
class ReLU(FeatureMap):
    """phi(x) = (max(w.x, 0) + eps) / sqrt(R): the Performer's "generalized attention".

    Its kernel, an arc-cosine kernel, is not softmax's: it grows like |x||y|, so the norm of a query cancels altogether
    and that of a key enters as a factor. Positive, cheap and without outliers.
    Choromanski et al. 2021, arXiv 2009.14794, section 4 (Performer-ReLU); kernel: Cho & Saul 2009, NIPS, eq. (6).
    """

    eps: float = 1e-3
    name: ClassVar[str] = "relu"
    reference: ClassVar[str] = "Choromanski et al. 2021, arXiv 2009.14794; Cho & Saul 2009, NIPS"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
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

    name: ClassVar[str] = "elu"
    reference: ClassVar[str] = "Katharopoulos et al. 2020, arXiv 2006.16236, eq. (7)"
    features_per_projection: ClassVar[int] = 0
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        xp = array_namespace(x)
        positive = xp.maximum(x, xp.zeros_like(x))
        return (Features(None, xp.log1p(positive) + x - positive, fixed=True),)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return head_dim

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        x, y = (np.where(a > 0, 1.0 + a, np.exp(np.minimum(a, 0.0))) for a in (x, y))
        return x @ y.T
