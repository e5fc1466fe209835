"""Random features of the softmax kernel: positive (FAVOR+), trigonometric, and a mixture of the two."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.kernels import squared_distance, squared_sum
from favorbench.maps.base import (
    FeatureBlocks,
    FeatureMap,
    KeyPairs,
    Keys,
    OneToken,
    Pairs,
    Projection,
    Sample,
    Tokens,
    claim,
)
from favorbench.numerics.arrays import Array, Features, array_namespace, cos_sin, half_squared_norm
from favorbench.parameters import whole
from favorbench.samplers.laws import PairLaw, RowLaw, SameRow


def exponential_target(x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
    """Return exp(-|x|^2/2) E exp(w.(x + y)) exp(-|y|^2/2): the target kernel of a map exp(w.x - |x|^2/2).

    Parameters
    ----------
    x : array (n, d)
        Queries, already scaled by d^-1/4.
    y : array (l, d)
        Keys, already scaled.
    rows : RowLaw
        The law of the projections w. With Gaussian rows the result is exp(x.y).

    Returns
    -------
    array (n, l)

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> from favorbench.samplers import GaussianRows
    >>> x, y = np.array([[0.3, 0.1]]), np.array([[0.2, -0.5]])
    >>> bool(np.isclose(fb.exponential_target(x, y, GaussianRows()), np.exp(x @ y.T)).all())
    True
    """
    return norm_factors(x, y) * rows.laplace(x[..., :, None, :] + y[..., None, :, :])


def norm_factors(x: Array, y: Array) -> Array:
    """exp(-(|x|^2 + |y|^2)/2) of every pair."""
    return np.exp(-half_squared_norm(x) - half_squared_norm(y).mT)


@dataclass(frozen=True)
class Positive(FeatureMap):
    """phi(x) = exp(w.x - |x|^2/2) / sqrt(R): FAVOR+.

    Positive, so every normaliser is; the variance grows like exp(|x + y|^2).
    Choromanski et al. 2021, "Rethinking Attention with Performers", arXiv 2009.14794, Lemma 1 eq. (7), Lemma 2 eq. (8).
    """

    name = "positive"
    reference = "Choromanski et al. 2021, arXiv 2009.14794, eq. (7)"
    features_per_projection = 1
    nonnegative = True
    unbiased = True

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return (Features(None, projection - half_squared_norm(x)),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return exponential_target(x, y, rows)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return np.expm1(squared_sum(x, y)) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return squared_sum(x, y)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.expm1((x + y) @ (x + y).T)


@dataclass(frozen=True)
class Hyperbolic(FeatureMap):
    """phi(x) = exp(-|x|^2/2) [exp(w.x), exp(-w.x)] / sqrt(2 R).

    The same as ``positive`` on the 2R projections [W; -W], exactly.
    Choromanski et al. 2021, arXiv 2009.14794, Lemma 1 eq. (7) and Lemma 2 eq. (8).
    """

    name = "hyperbolic"
    reference = "Choromanski et al. 2021, arXiv 2009.14794, eq. (7)"
    features_per_projection = 2
    nonnegative = True
    unbiased = True
    even = True

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        scale = half_squared_norm(x) + 0.5 * math.log(2.0)
        return Features(None, projection - scale), Features(None, -projection - scale)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return norm_factors(x, y) * rows.cosh(x[..., :, None, :] + y[..., None, :, :])

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return (np.cosh(squared_sum(x, y)) - 1.0) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return squared_sum(x, y)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.cosh((x + y) @ (x + y).T) - 1.0


class Trigonometric(FeatureMap):
    """exp(p |x|^2/2) [cos(w.x), sin(w.x)], p = norm_power: +1 is correct."""

    features_per_projection = 2
    nonnegative = False
    _norm_power: ClassVar[float] = 1.0
    #: A factor of w.x, for the kernel alone.
    _frequency: ClassVar[float] = 1.0

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        scale = self._norm_power * half_squared_norm(x)
        return tuple(Features(part, scale) for part in cos_sin(projection))

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        """exp(p |x|^2/2) E cos(frequency w.(x - y)) exp(p |y|^2/2)."""
        scale = half_squared_norm(x) + half_squared_norm(y).mT
        difference = self._frequency * (x[..., :, None, :] - y[..., None, :, :])
        return np.exp(self._norm_power * scale) * rows.characteristic(difference)


@dataclass(frozen=True)
class Trig(Trigonometric):
    """phi(x) = exp(|x|^2/2) [cos(w.x), sin(w.x)] / sqrt(R).

    Exact where x = y; its estimates, and so the normalisers, may be negative. The variance grows like exp(|x - y|^2).
    Rahimi & Recht 2007; Choromanski et al. 2021, arXiv 2009.14794, section 2.3 and Lemma 2, eq. (8).
    """

    name = "trig"
    reference = "Rahimi & Recht 2007; Choromanski et al. 2021, arXiv 2009.14794, eq. (8)"
    unbiased = True
    even = True

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return (np.cosh(squared_distance(x, y)) - 1.0) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return -squared_distance(x, y)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.cosh((x - y) @ (x - y).T) - 1.0


@dataclass(frozen=True)
class Phase(Trigonometric):
    """phi(x) = exp(|x|^2/2) sqrt2 cos(w.x + b) / sqrt(R), with b uniform on [0, 2 pi) shared by queries and keys.

    Half the features of ``trig`` for each projection, but at equal features the variance of trig is always smaller, by
    (1 - exp(-|x - y|^2) / 2) / num_features. Not exact where x = y.
    Rahimi & Recht 2007; compared in Sutherland & Schneider 2015, arXiv 1506.02785.
    """

    name = "phase"
    reference = "Rahimi & Recht 2007; Sutherland & Schneider 2015, arXiv 1506.02785"
    features_per_projection = 1
    unbiased = True
    even = True

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        return rng.uniform(0.0, 2.0 * np.pi, size=num_projections)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        phases = array_namespace(x).asarray(sample.extra, dtype=x.dtype)
        cos, _ = cos_sin(projection + phases[..., None, :])
        return (Features(2.0**0.5 * cos, half_squared_norm(x)),)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        t2 = squared_distance(x, y)
        return (np.exp(t2) - 1.0 + 0.5 * np.exp(-t2)) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return -squared_distance(x, y)

    def pair_moment(self, x: Tokens, y: Keys, pair: PairLaw) -> Pairs:
        """That of ``trig``: two rows have independent phases, which leave the mean cos(w.(x - y)) of each.

        A row with itself shares the phase b, and so adds the mean 1/2 of cos^2(w.(x + y) + 2b).
        """
        s = self.pair_argument(x, y)
        return (pair.even(s) + 0.5 * isinstance(pair, SameRow)) * np.exp(-s)


@dataclass(frozen=True)
class Hybrid(FeatureMap):
    """lam hyperbolic(x, y) + (1 - lam) trig(x, y): the angular hybrid random features (HRF).

    lam = 1/2 - sum_{i <= n} sgn(t_i.x) sgn(t_i.y) / (2 n), with n vectors t_i ~ N(0, I) shared by all R projections,
    estimates angle / pi: so ``trig``, exact at x = y, has the small angles, and ``hyperbolic``, exact at x = -y, the
    large ones. As features: both maps once, times 1 / sqrt 2, and once more for each t_i, times its sign and
    1 / sqrt(2 n), where the hyperbolic ones of the keys are negated. 4 (n + 1) features for each projection: at equal
    features ``hyperbolic`` is better except at small angles.
    Choromanski, Chen, Lin et al. 2022, "Hybrid Random Features", ICLR, arXiv 2110.04367. (The authors' notebook weights
    trig by the angle instead: unbiased too, but 90 times the variance at 10 degrees with n = 8.)
    """

    n: int = whole(1, 1024, default=4)
    name = "hybrid"
    reference = "Choromanski et al. 2022, arXiv 2110.04367"
    features_per_projection = claim(lambda self: 4 * (self.n + 1))
    nonnegative = False
    unbiased = True
    asymmetric = True

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        """The vectors t_i, (n, d), the same for any number of projections."""
        return rng.standard_normal((self.n, head_dim))

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        return float((n + l) * self.n * d)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return self._features(x, projection, sample, hyperbolic_sign=1.0)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> FeatureBlocks:
        return self._features(x, projection, sample, hyperbolic_sign=-1.0)

    def _features(self, x: Tokens, projection: Projection, sample: Sample, hyperbolic_sign: float) -> FeatureBlocks:
        xp = array_namespace(x)
        side = x @ xp.asarray(sample.extra, dtype=x.dtype).mT  # (..., n tokens, n vectors)
        signs = xp.where(side >= 0, xp.ones_like(side), -xp.ones_like(side))  # for x = 0 either will do
        blocks = []
        for part, sign in ((Hyperbolic(), hyperbolic_sign), (Trig(), 1.0)):
            for block in part.features(x, projection, sample):
                blocks.append(block.times(-0.5 * math.log(2.0)))
                scale = block.log_scale - 0.5 * math.log(2.0 * self.n)
                for i in range(self.n):
                    column = sign * signs[..., i : i + 1]
                    whole = block.values is None
                    values = xp.broadcast_to(column, projection.shape) if whole else column * block.values
                    blocks.append(Features(values, scale))
        return tuple(blocks)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        weight = angle(x, y) / math.pi
        return weight * Hyperbolic().target_kernel(x, y, rows) + (1.0 - weight) * Trig().target_kernel(x, y, rows)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        """Projections and sign vectors are independent, and cosh(w.(x + y)) and cos(w.(x - y)) correlated."""
        weight = angle(x, y) / math.pi
        noise = weight * (1.0 - weight) / self.n
        norms = np.sum(x * x, axis=-1)[:, None] - np.sum(y * y, axis=-1)
        mixed = 2.0 * weight * (1.0 - weight) * (1.0 - 1.0 / self.n) * (np.cos(norms) - 1.0)
        hyperbolic = (weight**2 + noise) * (np.cosh(squared_sum(x, y)) - 1.0)
        trigonometric = ((1.0 - weight) ** 2 + noise) * (np.cosh(squared_distance(x, y)) - 1.0)
        return (hyperbolic + trigonometric + mixed) / num_projections


def angle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The angle between every pair of rows, by Kahan's formula (arccos loses half the digits near 0); pi/2 with 0."""
    lengths = [np.linalg.norm(a, axis=-1, keepdims=True) for a in (x, y)]
    u, v = (a / np.where(length > 0, length, 1.0) for a, length in zip((x, y), lengths, strict=True))
    apart, together = (np.linalg.norm(u[:, None, :] + s * v, axis=-1) for s in (-1.0, 1.0))
    return 2.0 * np.arctan2(apart, together)
