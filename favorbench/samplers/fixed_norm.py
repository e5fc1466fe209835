"""Orthogonal rows whose norms are not drawn: cheaper, and another kernel."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler, haar_blocks, same_block_pairs
from favorbench.samplers.coupling import ORTHOGONAL, Blocks, Coupling
from favorbench.samplers.laws import FixedNormRows, FourthMoments, OnSpheres, PairLaw, SecondMomentRows


@dataclass(frozen=True)
class OrthogonalSqrtD(Sampler):
    """Haar-distributed orthogonal blocks, every row of norm sqrt(d): "regularised" softmax attention.

    The estimate is not of exp(x.y): its kernel has 0F1(; d/2; d |z|^2/4) where N(0, I) rows give exp(|z|^2/2), less by
    a factor of about exp(-|z|^4 / (4 (d + 2))). Choromanski et al. 2021, arXiv 2009.14794, Theorem 1 ("SMREG");
    Demni & Kadri 2023, arXiv 2310.07370.
    """

    name: ClassVar[str] = "orthogonal-sqrt-d"
    reference: ClassVar[str] = "Choromanski et al. 2021, arXiv 2009.14794; Demni & Kadri 2023, arXiv 2310.07370"
    gaussian_rows: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = ORTHOGONAL

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        blocks = haar_blocks(rng, num_projections, head_dim)
        return np.sqrt(head_dim) * blocks.reshape(-1, head_dim)[:num_projections]

    def row_law(self, num_projections: int, head_dim: int) -> FixedNormRows:
        return FixedNormRows(float(np.sqrt(head_dim)))

    def pair_laws(self, num_projections: int, head_dim: int) -> tuple[tuple[int, PairLaw], ...]:
        hypotenuse = 2.0 * head_dim
        return ((same_block_pairs(num_projections, head_dim), OnSpheres(head_dim, hypotenuse, hypotenuse)),)


@dataclass(frozen=True)
class SORF(Sampler):
    """Structured orthogonal rows sqrt(p) H D1 H D2 H D3: H the Hadamard matrix of p = 2^k >= d rows, D random signs.

    Projecting costs O(p log p) a block with the fast transform (favorbench multiplies the matrices: it measures errors,
    not this speed). Where d is a power of two the rows are orthogonal and have norm sqrt(d), so the kernel is off as
    with ``orthogonal-sqrt-d``, and depends on the direction besides, visibly for small d. Elsewhere the p-dimensional
    rows are cut to d coordinates, which costs them both properties. The last signs make those of the coordinates of a
    row fair and independent coins; given the other two, E w_i^4 = 3 - 6/p + 4/p^2 and E w_i^2 w_j^2 = 1 - 2/p + 4/p^2.
    Yu et al. 2016, "Orthogonal Random Features", arXiv 1610.09072.
    """

    name: ClassVar[str] = "sorf"
    reference: ClassVar[str] = "Yu et al. 2016, arXiv 1610.09072 (SORF)"
    gaussian_rows: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = Blocks("orthogonal", powers_of_two=True)

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        from scipy.linalg import hadamard  # 60 ms at start-up, for this sampler alone

        size = _power_of_two(head_dim)
        transform = hadamard(size) / np.sqrt(size)
        signs = rng.integers(2, size=(-(-num_projections // size), 3, 1, size)) * 2.0 - 1.0
        rows = transform * signs[:, 0] @ transform * signs[:, 1] @ transform * signs[:, 2]
        return np.sqrt(size) * rows[..., :head_dim].reshape(-1, head_dim)[:num_projections]

    def row_law(self, num_projections: int, head_dim: int) -> SecondMomentRows:
        p = _power_of_two(head_dim)
        fourth = FourthMoments(same=3.0 - 6.0 / p + 4.0 / p**2, mixed=1.0 - 2.0 / p + 4.0 / p**2)
        return SecondMomentRows(float(np.sqrt(head_dim)) if p == head_dim else None, fourth)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << (number - 1).bit_length()
