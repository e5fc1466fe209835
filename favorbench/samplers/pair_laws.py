"""Laws of two rows of omega, through the expectations that variances are made of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from favorbench.samplers.row_laws import IsotropicRows


class PairLaw(ABC):
    """The joint law of two rows w, w' of one draw, isotropic as a pair: what the variance under a sampler is made of.

    s = |z|^2; a negative s stands for imaginary z, that is for cos in the place of exp. Independent N(0, I) rows would
    give exp(s) throughout.
    """

    #: Both rows are N(0, I) and their norms are independent.
    free_norms: ClassVar[bool] = False

    @abstractmethod
    def sum(self, s: np.ndarray) -> np.ndarray:
        """E exp((w + w').z)."""

    @abstractmethod
    def difference(self, s: np.ndarray) -> np.ndarray:
        """E exp((w - w').z)."""

    def even(self, s: np.ndarray) -> np.ndarray:
        """E cosh(w.z) cosh(w'.z); for negative s, E cos(w.z) cos(w'.z)."""
        return 0.5 * (self.sum(s) + self.difference(s))


@dataclass(frozen=True)
class AtAngle(PairLaw):
    """N(0, I) rows with independent norms at a fixed angle, in a random direction.

    E exp((w + w').z) = E 1F1(d; d/2; (s/2)(1 + c sin t)), c the cosine and t in [0, pi] of density ~ sin(t)^(d - 1):
    |w|^2 + |w'|^2 ~ chi-square(2d), independent of how it is shared between the two. Orthogonal: 1F1(d; d/2; s/2).
    """

    head_dim: int
    cosine: float = 0.0
    free_norms: ClassVar[bool] = True

    def sum(self, s: np.ndarray) -> np.ndarray:
        return self._at(self.cosine, s)

    def difference(self, s: np.ndarray) -> np.ndarray:
        return self._at(-self.cosine, s)

    def _at(self, cosine: float, s: np.ndarray) -> np.ndarray:
        if cosine == 0.0:
            return np.asarray(scipy.special.hyp1f1(self.head_dim, self.head_dim / 2, s / 2))
        # the density has width 1/sqrt(d) about pi/2: beyond 12 of these lies less than exp(-70)
        radius = min(np.pi / 2, 12.0 / np.sqrt(self.head_dim))
        t, weights = _legendre(np.pi / 2 - radius, np.pi / 2 + radius, 120)
        weights = weights * np.sin(t) ** (self.head_dim - 1)
        values = scipy.special.hyp1f1(self.head_dim, self.head_dim / 2, 0.5 * s[..., None] * (1.0 + cosine * np.sin(t)))
        return values @ (weights / np.sum(weights))


@dataclass(frozen=True)
class CoupledNorms(PairLaw):
    """Orthogonal N(0, I) rows with F(|w|) + F(|w'|) = 1, F the chi(d) distribution function: where one is long, the
    other is short.

    E exp((w + w').z) = int_0^1 S(s (r(u)^2 + r(1 - u)^2)) du, S(a) = 0F1(; d/2; a/4), r the inverse of F.
    """

    head_dim: int

    def sum(self, s: np.ndarray) -> np.ndarray:
        # The pair is symmetric: integrate over the longer row, from the median to 9 beyond (at least) the mode of
        # exp(r sqrt s) times its density, where that has fallen by exp(-40).
        median, mode = float(chi_quantile(0.5, self.head_dim)), np.sqrt(np.max(np.abs(s))) + np.sqrt(self.head_dim)
        longer, weights = _legendre(median, mode + 9.0, 400)
        shorter = chi_quantile(scipy.special.gammaincc(self.head_dim / 2, longer**2 / 2), self.head_dim)
        log_density = (self.head_dim - 1) * np.log(longer) - longer**2 / 2
        weights = weights * np.exp(log_density - np.max(log_density))
        values = scipy.special.hyp0f1(self.head_dim / 2, s[..., None] * (longer**2 + shorter**2) / 4)
        return values @ (weights / np.sum(weights))

    def difference(self, s: np.ndarray) -> np.ndarray:
        return self.sum(s)


@dataclass(frozen=True)
class OnSpheres(PairLaw):
    """w + w' and w - w' of fixed lengths (given squared) and uniform direction, in a space of ``dimension``."""

    dimension: int
    sum_squared: float
    difference_squared: float

    def sum(self, s: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.special.hyp0f1(self.dimension / 2, self.sum_squared * s / 4))

    def difference(self, s: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.special.hyp0f1(self.dimension / 2, self.difference_squared * s / 4))


@dataclass(frozen=True)
class SameRow(PairLaw):
    """w' = w."""

    rows: IsotropicRows
    head_dim: int

    def sum(self, s: np.ndarray) -> np.ndarray:
        return self.rows.radial(4.0 * s, self.head_dim)

    def difference(self, s: np.ndarray) -> np.ndarray:
        return np.ones_like(s)


@dataclass(frozen=True)
class OppositeRow(PairLaw):
    """w' = -w."""

    rows: IsotropicRows
    head_dim: int

    def sum(self, s: np.ndarray) -> np.ndarray:
        return np.ones_like(s)

    def difference(self, s: np.ndarray) -> np.ndarray:
        return self.rows.radial(4.0 * s, self.head_dim)


@dataclass(frozen=True)
class SignFlipped(PairLaw):
    """The law of w and -w' for w, w' of another law."""

    pair: PairLaw

    @property
    def free_norms(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  (elsewhere a constant)
        return self.pair.free_norms

    def sum(self, s: np.ndarray) -> np.ndarray:
        return self.pair.difference(s)

    def difference(self, s: np.ndarray) -> np.ndarray:
        return self.pair.sum(s)


def chi_quantile(probability: np.ndarray | float, head_dim: int) -> np.ndarray:
    """The norm that a standard normal vector stays below with this probability."""
    return np.asarray(np.sqrt(2.0 * scipy.special.gammaincinv(head_dim / 2, probability)))


def chi_upper_quantile(probability: np.ndarray | float, head_dim: int) -> np.ndarray:
    """The norm that a standard normal vector exceeds with this probability."""
    return np.asarray(np.sqrt(2.0 * scipy.special.gammainccinv(head_dim / 2, probability)))


def _legendre(low: float, high: float, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre quadrature on [low, high]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return (low + high) / 2 + (high - low) / 2 * nodes, (high - low) / 2 * weights
