"""Projections that point as far apart as possible: simplices instead of orthogonal blocks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler, chi_norms, haar_blocks, same_block_pairs
from favorbench.samplers.coupling import SIMPLEX, Blocks, Coupling
from favorbench.samplers.laws import AtAngle, PairLaw

SWEEPS = 5  # of simplex-plus over the rows of a block, as in the authors' code


@dataclass(frozen=True)
class Simplex(Sampler):
    """Blocks of d rows at the angles of a simplex, cosine -1/(d - 1), randomly rotated, with independent chi(d) norms.

    Of all couplings with independent norms the best for ``positive``; for ``trig`` and ``hyperbolic`` worse than
    ``orthogonal``. Reid et al. 2023, "Simplex Random Features", arXiv 2301.13856.
    """

    name: ClassVar[str] = "simplex"
    reference: ClassVar[str] = "Reid et al. 2023, arXiv 2301.13856 (SimRF)"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = SIMPLEX

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        directions, norms = rng.spawn(2)
        blocks = simplex(head_dim) @ haar_blocks(directions, num_projections, head_dim)
        return (blocks * chi_norms(norms, len(blocks), head_dim)).reshape(-1, head_dim)[:num_projections]

    def pair_laws(self, num_projections: int, head_dim: int) -> tuple[tuple[int, PairLaw], ...]:
        cosine = -1.0 / max(head_dim - 1, 1)
        return ((same_block_pairs(num_projections, head_dim), AtAngle(head_dim, cosine)),)


@dataclass(frozen=True)
class SimplexPlus(Sampler):
    """Simplex blocks whose directions are then fitted to the norms: each in turn is set against the sum of the others.

    Five sweeps, and a random rotation. A shorter sum of the rows of a block means less variance for ``positive``.
    Reid et al. 2023, arXiv 2301.13856 (SimRF+). No closed form of the variance is known.
    """

    name: ClassVar[str] = "simplex-plus"
    reference: ClassVar[str] = "Reid et al. 2023, arXiv 2301.13856 (SimRF+)"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = Blocks("balanced")

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        directions, norms = rng.spawn(2)
        rotations = haar_blocks(directions, num_projections, head_dim)
        lengths = chi_norms(norms, len(rotations), head_dim)
        rows = simplex(head_dim) * lengths
        total = np.sum(rows, axis=1)
        for i in list(range(head_dim)) * SWEEPS if head_dim > 1 else []:
            others = total - rows[:, i]
            rows[:, i] = -others * (lengths[:, i] / np.sqrt(np.vecdot(others, others))[:, None])
            total = others + rows[:, i]
        return (rows @ rotations).reshape(-1, head_dim)[:num_projections]


def simplex(head_dim: int) -> Float[np.ndarray, "head_dim head_dim"]:
    """Unit rows with the cosine -1/(d - 1) between any two, in the hyperplane of coordinate sum 0."""
    if head_dim == 1:
        return np.ones((1, 1))
    return (np.eye(head_dim) - 1.0 / head_dim) * np.sqrt(head_dim / (head_dim - 1))
