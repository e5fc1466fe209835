"""Laws of one row of omega, through the expectations that kernels are made of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy


class RowLaw(ABC):
    """The law of one projection w, through the three expectations that the maps' kernels are made of.

    z: (..., d); the result has shape (...). nan where no closed form is known.
    """

    @abstractmethod
    def laplace(self, z: np.ndarray) -> np.ndarray:
        """E exp(w.z)."""

    @abstractmethod
    def cosh(self, z: np.ndarray) -> np.ndarray:
        """E cosh(w.z): the same for every law that is symmetric under w -> -w."""

    @abstractmethod
    def characteristic(self, z: np.ndarray) -> np.ndarray:
        """E cos(w.z)."""


class IsotropicRows(RowLaw):
    """A law that no rotation changes: one function of |z|^2 says it all."""

    @abstractmethod
    def radial(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        """E exp(w.z) for |z|^2 = squared; for its negative, E cos(w.z)."""

    def laplace(self, z: np.ndarray) -> np.ndarray:
        return self.radial(np.sum(z * z, axis=-1), z.shape[-1])

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.laplace(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return self.radial(-np.sum(z * z, axis=-1), z.shape[-1])


@dataclass(frozen=True)
class GaussianRows(IsotropicRows):
    """w ~ N(0, I): what every unbiased map needs."""

    def radial(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        return np.exp(0.5 * squared)


@dataclass(frozen=True)
class FixedNormRows(IsotropicRows):
    """w uniform on the sphere of radius ``norm``: E exp(w.z) = 0F1(; d/2; (norm |z|)^2 / 4), a Bessel function.

    With ``dimension``, w is the first d coordinates of a point of that sphere in a space of so many dimensions. Such
    rows do not give the softmax kernel. Demni & Kadri 2023, arXiv 2310.07370.
    """

    norm: float
    dimension: int | None = None

    def radial(self, squared: np.ndarray, head_dim: int) -> np.ndarray:
        return np.asarray(scipy.special.hyp0f1((self.dimension or head_dim) / 2, self.norm**2 * squared / 4))


@dataclass(frozen=True)
class RawQRRows(RowLaw):
    """Rows whose sign LAPACK has fixed: the even expectations are those of ``symmetric``, E exp(w.z) is not.

    The first row is confined to w_1 < 0. For Gaussian norms that gives E exp(w.z) = 2 Phi(-z_1) exp(|z|^2/2); later
    rows are confined in a way that has no closed form. On a line there is nothing to reflect, Q = 1, and w_1 > 0.
    """

    symmetric: RowLaw
    first_row: bool

    def laplace(self, z: np.ndarray) -> np.ndarray:
        if self.first_row and isinstance(self.symmetric, GaussianRows):
            sign = 1.0 if z.shape[-1] == 1 else -1.0
            return 2.0 * scipy.special.ndtr(sign * z[..., 0]) * self.symmetric.laplace(z)
        return np.full(z.shape[:-1], np.nan)

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.symmetric.cosh(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return self.symmetric.characteristic(z)


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


class FourthMoments(NamedTuple):
    """E w_i^4 and E w_i^2 w_j^2 of a row whose coordinates have fair and independent signs: all others vanish."""

    same: float
    mixed: float


@dataclass(frozen=True)
class SecondMomentRows(RowLaw):
    """Rows of mean 0 and second moment I, and of this norm and these moments if they are given; no more is known."""

    norm: float | None = None
    fourth: FourthMoments | None = None

    def laplace(self, z: np.ndarray) -> np.ndarray:
        return np.full(z.shape[:-1], np.nan)

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.laplace(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return self.laplace(z)
