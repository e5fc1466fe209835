"""Random Fourier features for the softmax kernel."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.kernels import squared_distance
from favorbench.maps.base import FeatureMap, KeyPairs, Keys, OneToken, Pairs, Projection, Sample, Tokens
from favorbench.numerics.arrays import Array, Features, array_namespace, cos_sin, half_squared_norm
from favorbench.samplers.laws import PairLaw, RowLaw, SameRow


def trigonometric_target(x: Array, y: Array, rows: RowLaw, frequency: float = 1.0, norm_power: float = 1.0) -> Array:
    """exp(p |x|^2/2) E cos(frequency w.(x - y)) exp(p |y|^2/2), p = norm_power: +1 where it is right."""
    scale = half_squared_norm(x) + np.matrix_transpose(half_squared_norm(y))
    return np.exp(norm_power * scale) * rows.characteristic(frequency * (x[..., :, None, :] - y[..., None, :, :]))


@dataclass(frozen=True)
class Trig(FeatureMap):
    """phi(x) = exp(|x|^2/2) [cos(w.x), sin(w.x)] / sqrt(R).

    Exact where x = y; its estimates, and so the normalisers, may be negative. The variance grows like exp(|x - y|^2).
    Rahimi & Recht 2007; Choromanski et al. 2021, arXiv 2009.14794, section 2.3 and Lemma 2, eq. (8).
    """

    name: ClassVar[str] = "trig"
    reference: ClassVar[str] = "Rahimi & Recht 2007; Choromanski et al. 2021, arXiv 2009.14794, eq. (8)"
    features_per_projection: ClassVar[int] = 2
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    even: ClassVar[bool] = True

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        cos, sin = cos_sin(projection)
        scale = half_squared_norm(x)
        return Features(cos, scale), Features(sin, scale)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return trigonometric_target(x, y, rows)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return (np.cosh(squared_distance(x, y)) - 1.0) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs:
        return -squared_distance(x, y)

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.cosh((x - y) @ (x - y).T) - 1.0


@dataclass(frozen=True)
class Phase(FeatureMap):
    """phi(x) = exp(|x|^2/2) sqrt2 cos(w.x + b) / sqrt(R), with b uniform on [0, 2 pi) shared by queries and keys.

    Half the features of ``trig`` for each projection, but at equal features trig is always better, by
    (1 - exp(-|x - y|^2) / 2) / num_features. Not exact where x = y.
    Rahimi & Recht 2007; compared in Sutherland & Schneider 2015, arXiv 1506.02785.
    """

    name: ClassVar[str] = "phase"
    reference: ClassVar[str] = "Rahimi & Recht 2007; Sutherland & Schneider 2015, arXiv 1506.02785"
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    even: ClassVar[bool] = True

    def draw_extra(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        return rng.uniform(0.0, 2.0 * np.pi, size=num_projections)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        xp = array_namespace(x)
        cos, _ = cos_sin(projection + xp.asarray(sample.extra, dtype=x.dtype)[..., None, :])
        return (Features(2.0**0.5 * cos, half_squared_norm(x)),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        return trigonometric_target(x, y, rows)

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
