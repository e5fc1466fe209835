"""Orthogonal projections: exactly orthogonal inside blocks of head_dim rows, independent between blocks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler, chi_norms, gaussian_blocks, haar_blocks
from favorbench.samplers.coupling import ORTHOGONAL, Coupling


@dataclass(frozen=True)
class Orthogonal(Sampler):
    """Haar-distributed orthogonal blocks with independent chi(d) row norms, so every row is N(0, I).

    Yu et al. 2016, "Orthogonal Random Features", arXiv 1610.09072; sign correction: Mezzadri 2007, math-ph/0609050.
    """

    name: ClassVar[str] = "orthogonal"
    reference: ClassVar[str] = "Yu et al. 2016, arXiv 1610.09072; Mezzadri 2007, math-ph/0609050"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = ORTHOGONAL

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        directions, norms = rng.spawn(2)  # two streams: so neither shifts the other when another block follows
        blocks = haar_blocks(directions, num_projections, head_dim)
        return (blocks * chi_norms(norms, len(blocks), head_dim)).reshape(-1, head_dim)[:num_projections]


@dataclass(frozen=True)
class GramSchmidt(Sampler):
    """Gram-Schmidt on Gaussian rows, each given its own norm back: the same law as ``orthogonal``, by another route.

    The norm of a Gaussian vector is independent of its direction, and the directions alone decide the result.
    Choromanski et al. 2021, arXiv 2009.14794, section 2.4 ("standard Gram-Schmidt renormalization procedure").
    """

    name: ClassVar[str] = "gram-schmidt"
    reference: ClassVar[str] = "Choromanski et al. 2021, arXiv 2009.14794, sec. 2.4"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = ORTHOGONAL

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        blocks = gaussian_blocks(rng, num_projections, head_dim)
        norms = np.linalg.norm(blocks, axis=-1, keepdims=True)
        unit = np.zeros_like(blocks)
        for i in range(head_dim):
            row = blocks[:, i : i + 1]
            # once loses orthogonality to rounding where a row nearly lies in the span of the others; twice does not
            for _ in range(2):
                row = row - (row @ np.matrix_transpose(unit)) @ unit
            unit[:, i : i + 1] = row / np.linalg.norm(row, axis=-1, keepdims=True)
        return (unit * norms).reshape(-1, head_dim)[:num_projections]
