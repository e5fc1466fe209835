"""Random features of the Maclaurin series of the exponential, one random degree for each projection."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import scipy

from favorbench.formats import shown
from favorbench.maps.base import FeatureMap, Keys, Pairs, Projection, Sample, Tokens
from favorbench.maps.taylor import direction, exact_degrees, exponential_series
from favorbench.numerics.arrays import Features, array_namespace, looked_up
from favorbench.parameters import check_positive, check_whole
from favorbench.samplers.laws import RowLaw

DegreeLaw = Literal["geometric", "poisson"]
VectorLaw = Literal["rademacher", "gaussian"]


@dataclass(frozen=True)
class Maclaurin(FeatureMap):
    """phi(x) = prod_{j <= N} w_j.x / sqrt(N! P(N)) / sqrt(R): for each feature a random degree N and N random vectors.

    law: of N, "geometric" or "poisson" of the given mean, cut at ``degree`` and renormalised, so what is estimated is
    the sum of (x.y)^n / n! for n <= degree. vectors: of signs ("rademacher") or N(0, I) ("gaussian", more variance).
    exact: the degrees below it are taken as explicit features, and N is at least that (2 is the "H0/1 heuristic").
    For small x.y; the variance grows like exp(2 |x||y|) at best, and the normalisers may be negative.
    Kar & Karnick 2012, arXiv 1201.6530.
    """

    law: DegreeLaw = "geometric"
    mean: float = 1.0
    vectors: VectorLaw = "rademacher"
    exact: int = 0
    degree: int = 20
    name: ClassVar[str] = "maclaurin"
    reference: ClassVar[str] = "Kar & Karnick 2012, arXiv 1201.6530"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False  # but for degrees above ``degree``
    own_sample: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field, allowed in (("law", get_args(DegreeLaw)), ("vectors", get_args(VectorLaw))):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(allowed)}, got {shown(getattr(self, field))}")
        check_positive("mean", self.mean)
        check_whole("exact", self.exact, 0, 6)
        check_whole("degree", self.degree, max(self.exact, 1), 60)

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """(R, degree, d + 1): the rows [w_j, 0] for j <= N and [0, 1] after it, to be multiplied by [x, 1]."""
        of_degrees, of_vectors = rng.spawn(2)  # two streams: so neither shifts the other when more features follow
        cumulative = np.cumsum(self._probabilities())
        drawn = self.exact + np.searchsorted(cumulative[:-1], of_degrees.random(num_projections), side="right")
        shape = (num_projections, self.degree, head_dim)
        if self.vectors == "gaussian":
            w = of_vectors.standard_normal(shape)
        else:
            w = 2.0 * of_vectors.integers(2, size=shape, dtype=np.int8) - 1.0
        used = (np.arange(self.degree) < drawn[:, None])[..., None]
        return np.concatenate([np.where(used, w, 0.0), np.where(used, 0.0, 1.0)], axis=-1)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        xp = array_namespace(x)
        extra = xp.asarray(sample.extra, dtype=x.dtype)
        unit, log_norm = direction(x)
        left, values = xp.concat([unit, xp.ones_like(log_norm)], axis=-1), xp.ones_like(projection)
        drawn = self.degree - xp.sum(extra[..., -1], axis=-1)  # (..., R)
        for j in range(int(xp.max(drawn))):
            values = values * (left @ xp.matrix_transpose(extra[..., j, :]))
        log_scale = drawn[..., None, :] * log_norm + looked_up(-0.5 * self._log_weights(), drawn)[..., None, :]
        return (*exact_degrees(x, self.exact), Features(values, log_scale))

    def own_products(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """d + 1 for each feature and factor; the largest degree drawn, in the mean, is how many factors there are."""
        below = np.minimum(np.cumsum(self._probabilities()), 1.0) ** num_projections
        return float((n + l) * num_projections * (d + 1) * (self.exact + np.sum(1.0 - below)))

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return num_projections + sum(math.comb(head_dim + n - 1, n) for n in range(self.exact))

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_series(x @ y.T, range(self.degree + 1))

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """From E (w.x)^2 (w.y)^2 = |x|^2 |y|^2 + 2 (x.y)^2, less 2 sum_l (x_l y_l)^2 for signs."""
        fourth = np.sum(x * x, axis=-1)[:, None] * np.sum(y * y, axis=-1) + 2.0 * (x @ y.T) ** 2
        if self.vectors == "rademacher":
            fourth = np.maximum(fourth - 2.0 * (x * x) @ (y * y).T, 0.0)
        degrees, log_weights = np.arange(self.exact, self.degree + 1), self._log_weights()[self.exact :]
        logs = scipy.special.xlogy(degrees, fourth[..., None]) - scipy.special.gammaln(degrees + 1) - log_weights
        random, target = (exponential_series(x @ y.T, range(low, self.degree + 1)) for low in (self.exact, 0))
        return (np.sum(np.exp(logs), axis=-1) - random**2) / target**2 / num_projections

    def _probabilities(self) -> np.ndarray:
        """P(N = n) for n from ``exact`` to ``degree``."""
        n = np.arange(self.exact, self.degree + 1)
        log = -n * math.log1p(1.0 / self.mean)
        if self.law == "poisson":
            log = scipy.special.xlogy(n, self.mean) - scipy.special.gammaln(n + 1)
        weights = np.exp(log - np.max(log))
        return weights / np.sum(weights)

    def _log_weights(self) -> np.ndarray:
        """log(n! P(n)) for every n up to ``degree``; 0 for those that are not drawn."""
        n = np.arange(self.exact, self.degree + 1)
        return np.concatenate([np.zeros(self.exact), scipy.special.gammaln(n + 1) + np.log(self._probabilities())])
