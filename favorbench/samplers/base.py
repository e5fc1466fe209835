"""What a sampler is: a law of omega, whose rows are the projections."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.special import hyp0f1, hyp1f1


class RowLaw(ABC):
    """The law of one projection w, as far as it is isotropic: what the kernels of section 4 of the theory need."""

    @abstractmethod
    def laplace(self, radius: np.ndarray) -> np.ndarray:
        """E exp(w.z) for |z| = radius."""

    @abstractmethod
    def characteristic(self, radius: np.ndarray) -> np.ndarray:
        """E cos(w.z) for |z| = radius."""


@dataclass(frozen=True)
class GaussianRows(RowLaw):
    """w ~ N(0, I): what every unbiased map needs."""

    def laplace(self, radius: np.ndarray) -> np.ndarray:
        return np.exp(0.5 * np.square(radius))

    def characteristic(self, radius: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * np.square(radius))


@dataclass(frozen=True)
class FixedNormRows(RowLaw):
    """w uniform on the sphere of radius ``norm``: E exp(w.z) = 0F1(; d/2; (norm |z|)^2 / 4), a Bessel function.

    Such rows do not give the softmax kernel. Demni & Kadri 2023, arXiv 2310.07370.
    """

    norm: float
    head_dim: int

    def laplace(self, radius: np.ndarray) -> np.ndarray:
        return np.asarray(hyp0f1(self.head_dim / 2, np.square(self.norm * radius) / 4))

    def characteristic(self, radius: np.ndarray) -> np.ndarray:
        return np.asarray(hyp0f1(self.head_dim / 2, -np.square(self.norm * radius) / 4))


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

    def row_law(self, num_projections: int, head_dim: int) -> RowLaw | None:
        """The law of a row; None where rows are not isotropic."""
        return GaussianRows() if self.gaussian_rows else None

    def pair_laplace(self, squared_radius: np.ndarray, head_dim: int) -> np.ndarray:
        """E exp((w1 + w2).z) for two rows of one block, |z|^2 = squared_radius; E cos cos for its negative.

        Independent rows: exp(|z|^2). Orthogonal rows with independent chi norms: 1F1(d; d/2; |z|^2 / 2).
        """
        if self.coupling == "orthogonal":
            return np.asarray(hyp1f1(head_dim, head_dim / 2, squared_radius / 2))
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
