"""What a sampler is: a law of omega, whose rows are the projections."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
from jaxtyping import Float


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


@dataclass(frozen=True)
class GaussianRows(RowLaw):
    """w ~ N(0, I): what every unbiased map needs."""

    def laplace(self, z: np.ndarray) -> np.ndarray:
        return np.exp(0.5 * np.sum(z * z, axis=-1))

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.laplace(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * np.sum(z * z, axis=-1))


@dataclass(frozen=True)
class FixedNormRows(RowLaw):
    """w uniform on the sphere of radius ``norm``: E exp(w.z) = 0F1(; d/2; (norm |z|)^2 / 4), a Bessel function.

    Such rows do not give the softmax kernel. Demni & Kadri 2023, arXiv 2310.07370.
    """

    norm: float

    def laplace(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.special.hyp0f1(z.shape[-1] / 2, self.norm**2 * np.sum(z * z, axis=-1) / 4))

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.laplace(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.special.hyp0f1(z.shape[-1] / 2, -(self.norm**2) * np.sum(z * z, axis=-1) / 4))


@dataclass(frozen=True)
class RawQRRows(RowLaw):
    """Rows whose sign LAPACK has fixed: the even expectations are those of ``symmetric``, E exp(w.z) is not.

    The first row is confined to w_1 < 0. For Gaussian norms that gives E exp(w.z) = 2 Phi(-z_1) exp(|z|^2/2); later
    rows are confined in a way that has no closed form.
    """

    symmetric: RowLaw
    first_row: bool

    def laplace(self, z: np.ndarray) -> np.ndarray:
        if self.first_row and isinstance(self.symmetric, GaussianRows):
            return 2.0 * scipy.special.ndtr(-z[..., 0]) * self.symmetric.laplace(z)
        return np.full(z.shape[:-1], np.nan)

    def cosh(self, z: np.ndarray) -> np.ndarray:
        return self.symmetric.cosh(z)

    def characteristic(self, z: np.ndarray) -> np.ndarray:
        return self.symmetric.characteristic(z)


class Sampler(ABC):
    """A law of omega, an array (num_projections, head_dim) whose rows are the projections.

    A member is a frozen dataclass with one method, ``sample``, and states its claims as class attributes.
    """

    name: ClassVar[str]
    reference: ClassVar[str]
    #: Every row is N(0, I), so maps that claim to be unbiased are.
    gaussian_rows: ClassVar[bool]
    #: The first R rows do not depend on how many follow. If not, the engine draws every R anew.
    nested: ClassVar[bool] = True
    #: "independent" rows, or "orthogonal" inside blocks of head_dim rows (independent between blocks).
    coupling: ClassVar[str]

    @abstractmethod
    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        """Draw omega, float64. Equal generators give equal rows for every num_projections if ``nested``."""

    def row_law(self, num_projections: int, head_dim: int) -> RowLaw:
        """The law of a row, averaged over the rows; a sampler without Gaussian rows says which it has."""
        if not self.gaussian_rows:
            raise NotImplementedError(f"sampler {self.name!r} does not have Gaussian rows and must define row_law")
        return GaussianRows()

    def pair_laplace(self, squared_radius: np.ndarray, head_dim: int) -> np.ndarray:
        """E exp((w1 + w2).z) for two rows of a block, |z|^2 = squared_radius; for its negative E cos(w1.z) cos(w2.z).

        Independent rows: exp(|z|^2). Orthogonal rows with independent chi norms: 1F1(d; d/2; |z|^2 / 2).
        """
        if self.coupling == "orthogonal":
            return np.asarray(scipy.special.hyp1f1(head_dim, head_dim / 2, squared_radius / 2))
        return np.exp(squared_radius)


def chi_norms(rng: np.random.Generator, num_blocks: int, head_dim: int) -> Float[np.ndarray, "num_blocks head_dim 1"]:
    """Independent norms of head_dim-dimensional standard normal vectors."""
    return np.sqrt(rng.chisquare(head_dim, size=(num_blocks, head_dim, 1)))


def gaussian_blocks(
    rng: np.random.Generator, num_projections: int, head_dim: int
) -> Float[np.ndarray, "num_blocks head_dim head_dim"]:
    """Enough square standard normal blocks for num_projections rows, drawn one after the other."""
    num_blocks = -(-num_projections // head_dim)
    return rng.standard_normal((num_blocks, head_dim, head_dim))
