"""Laws of one row of omega and of two: the expectations that determine kernels and variances."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy


class RowLaw:
    """The law of one projection w, given by the three expectations that the kernels of maps consist of.

    z: (..., d); the result has shape (...). NaN, by default, where no closed form is known.
    """

    def laplace(self, z: np.ndarray) -> np.ndarray:
        """E exp(w.z)."""
        return np.full(z.shape[:-1], np.nan)

    def cosh(self, z: np.ndarray) -> np.ndarray:
        """E cosh(w.z): that of exp for every law that is symmetric under w -> -w."""
        return self.laplace(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        """E cos(w.z)."""
        return np.full(z.shape[:-1], np.nan)

    def tail(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        """P(w.z >= t) for |z|^2 = squared, and the t about which the integral of E exp(2 w.z) lies.

        That of N(0, I), t = 2 |z|^2, where no other is known.
        """
        return scipy.special.ndtr(-2.0 * np.sqrt(squared))


class IsotropicRows(RowLaw, ABC):
    """A law that is invariant under rotations: its expectations are one function of |z|^2."""

    @abstractmethod
    def radial(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        """E exp(w.z) for |z|^2 = squared; for its negative, E cos(w.z)."""

    def laplace(self, z: np.ndarray) -> np.ndarray:
        return self.radial(np.sum(z * z, axis=-1), z.shape[-1])

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return self.radial(-np.sum(z * z, axis=-1), z.shape[-1])


@dataclass(frozen=True)
class GaussianRows(IsotropicRows):
    """w ~ N(0, I), as every unbiased map needs."""

    def radial(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        return np.exp(0.5 * squared)


@dataclass(frozen=True)
class FixedNormRows(IsotropicRows):
    """w uniform on the sphere of radius ``norm``: E exp(w.z) = 0F1(; d/2; (norm |z|)^2 / 4), a Bessel function.

    With ``dimension``, w is the first d coordinates of a point of that sphere in a space of that dimension. Such
    rows do not give the softmax kernel. Demni & Kadri 2023, arXiv 2310.07370.
    """

    norm: float
    dimension: int | None = None

    def radial(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        return _on_sphere(self.dimension or head_dim, self.norm**2 * squared)

    def tail(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        """t is the mean of w.z under exp(2 w.z), and w.z / (norm |z|) the cosine of a uniform direction."""
        dimension, squared = self.dimension or head_dim, 4.0 * self.norm**2 * squared
        cosine = np.sqrt(squared) / dimension * _on_sphere(dimension + 2, squared) / _on_sphere(dimension, squared)
        return 0.5 * scipy.special.betainc((dimension - 1) / 2, 0.5, 1.0 - cosine**2)


@dataclass(frozen=True)
class SymmetrisedRows(RowLaw):
    """w or -w, each with probability 1/2, for w of another law."""

    rows: RowLaw

    def laplace(self, z: np.ndarray) -> np.ndarray:
        return self.rows.cosh(z)

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.rows.cosh(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return self.rows.characteristic(z)


@dataclass(frozen=True)
class RawQRRows(SymmetrisedRows):
    """Rows whose sign LAPACK has fixed: the even expectations are those of ``rows``, E exp(w.z) is not.

    The first row is confined to w_1 < 0. For Gaussian norms that gives E exp(w.z) = 2 Phi(-z_1) exp(|z|^2/2); later
    rows are confined in a way that has no closed form. On a line there is nothing to reflect, Q = 1, and w_1 > 0.
    """

    first_row: bool

    def laplace(self, z: np.ndarray) -> np.ndarray:
        if not (self.first_row and isinstance(self.rows, GaussianRows)):
            return RowLaw.laplace(self, z)
        sign = 1.0 if z.shape[-1] == 1 else -1.0
        return 2.0 * scipy.special.ndtr(sign * z[..., 0]) * self.rows.laplace(z)


class FourthMoments(NamedTuple):
    """E w_i^4 and E w_i^2 w_j^2 of a row whose coordinates have fair, independent signs: all other moments vanish."""

    same: float
    mixed: float


@dataclass(frozen=True)
class SecondMomentRows(RowLaw):
    """Rows of mean 0 and second moment I, and of this norm and these moments if given; nothing else is known."""

    norm: float | None = None
    fourth: FourthMoments | None = None


class PairLaw(ABC):
    """The joint law of two rows w, w' of one draw, isotropic as a pair: it determines the variance under a sampler.

    s = |z|^2; a negative s stands for imaginary z, that is for cos in the place of exp. Independent N(0, I) rows would
    give exp(s) throughout.
    """

    #: Both rows are N(0, I) and their norms are independent.
    free_norms = False

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
    free_norms = True

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
    """Orthogonal N(0, I) rows with F(|w|) + F(|w'|) = 1, F the chi(d) distribution function.

    Where one is long, the other is short.
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
        values = _on_sphere(self.head_dim, s[..., None] * (longer**2 + shorter**2))
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
        return _on_sphere(self.dimension, self.sum_squared * s)

    def difference(self, s: np.ndarray) -> np.ndarray:
        return _on_sphere(self.dimension, self.difference_squared * s)


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


def _on_sphere(dimension: int, squared: np.ndarray) -> np.ndarray:
    """E exp(u.z) for u uniform on the unit sphere and |z|^2 = squared: 0F1(; d/2; |z|^2 / 4)."""
    growing = scipy.special.hyp0f1(dimension / 2, squared / 4)
    return np.asarray(growing if dimension < 160 else np.where(squared < 0, _oscillating(dimension, squared), growing))


@np.errstate(all="ignore")  # each of the two forms is computed for all
def _oscillating(dimension: int, squared: np.ndarray) -> np.ndarray:
    """0F1 of ``_on_sphere`` for negative ``squared`` in many dimensions, a Bessel function J over a power of |z|.

    SciPy multiplies the two, so it has infinity times 0 near z = 0. Where the power is above 1 this is Debye's
    expansion of J (DLMF 10.19), relative to its value at 0.
    """
    order = dimension / 2 - 1
    root = np.sqrt(1.0 + squared / order**2)
    at_root, at_zero = (
        1.0 + (3.0 * p - 5.0 * p**3) / (24.0 * order)
        + (81.0 * p**2 - 462.0 * p**4 + 385.0 * p**6) / (1152.0 * order**2)
        + (30375.0 * p**3 - 369603.0 * p**5 + 765765.0 * p**7 - 425425.0 * p**9) / (414720.0 * order**3)
        for p in (1.0 / root, 1.0)
    )  # fmt: skip
    less = squared / order**2 / (1.0 + root)  # root - 1
    near = np.exp(order * (less - np.log1p(less / 2))) / np.sqrt(root) * at_root / at_zero
    argument = np.sqrt(-squared)
    log_power = scipy.special.gammaln(order + 1) - order * np.log(argument / 2)
    return np.where(squared > -0.54 * order**2, near, np.exp(log_power) * scipy.special.jv(order, argument))


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
