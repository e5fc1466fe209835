"""Gaussian projections corrected to have the moments of their law."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler
from favorbench.samplers.coupling import Coupling, MomentsMatched
from favorbench.samplers.laws import FixedNormRows, OnSpheres, PairLaw


@dataclass(frozen=True)
class MomentMatched(Sampler):
    """A Gaussian sample, centred and whitened: its rows have mean 0 and second moment I exactly.

    Not unbiased, by O(1/R), and yet of little error for small arguments. W / sqrt(R) is uniform among the matrices of
    orthonormal columns that sum to 0 (the whitened sample is a polar factor, and the law of the centred one does not
    change under rotations of the R - 1 dimensions that centring leaves). So a row is the first d coordinates of a
    point uniform on the sphere of radius sqrt(R - 1) in R - 1 dimensions, and sums and differences of two rows are the
    like: bias and variance come in closed form.
    """

    name: ClassVar[str] = "moment-matched"
    reference: ClassVar[str] = "second-order moment matching, e.g. Glasserman 2003, Monte Carlo Methods, sec. 4.5"
    gaussian_rows: ClassVar[bool] = False
    nested: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = MomentsMatched()
    needs: ClassVar[str] = "R > head_dim"

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        self.check(num_projections, head_dim)
        rows = rng.standard_normal((num_projections, head_dim))
        u, _, v = np.linalg.svd(rows - np.mean(rows, axis=0), full_matrices=False)
        return np.sqrt(num_projections) * (u @ v)

    def round_up(self, num_projections: int, head_dim: int) -> int:
        return max(num_projections, head_dim + 1)

    def row_law(self, num_projections: int, head_dim: int) -> FixedNormRows:
        return FixedNormRows(float(np.sqrt(num_projections - 1)), dimension=num_projections - 1)

    def pair_laws(self, num_projections: int, head_dim: int) -> tuple[tuple[int, PairLaw], ...]:
        pairs = num_projections * (num_projections - 1)
        law = OnSpheres(num_projections - 1, 2.0 * (num_projections - 2), 2.0 * num_projections)
        return ((pairs, law),)
