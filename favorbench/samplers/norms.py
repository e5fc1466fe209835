"""Orthogonal projections with dependent norms."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler, haar_blocks, same_block_pairs
from favorbench.samplers.coupling import Blocks, Coupling
from favorbench.samplers.laws import AtAngle, CoupledNorms, PairLaw, chi_quantile, chi_upper_quantile


@dataclass(frozen=True)
class NormCoupled(Sampler):
    """Haar-distributed orthogonal blocks, their rows in couples of which one is long and the other short.

    The norms of rows 1 and 2 of a block, 3 and 4, ... satisfy F(r) + F(r') = 1, F the chi(d) distribution function;
    where d is odd the last row of a block has no partner. Best for small arguments.
    Reid et al. 2024, "Variance-Reducing Couplings for Random Features", arXiv 2405.16541 (pairwise norm coupling).
    """

    name: ClassVar[str] = "norm-coupled"
    reference: ClassVar[str] = "Reid et al. 2024, arXiv 2405.16541 (PNC)"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = Blocks("orthogonal", norms="in couples")

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        directions, norms = rng.spawn(2)
        blocks = haar_blocks(directions, num_projections, head_dim)
        uniform = norms.uniform(size=(len(blocks), (head_dim + 1) // 2))
        couples = np.stack([chi_quantile(uniform, head_dim), chi_upper_quantile(uniform, head_dim)], axis=-1)
        lengths = couples.reshape(len(blocks), -1, 1)[:, :head_dim]
        return (blocks * lengths).reshape(-1, head_dim)[:num_projections]

    def pair_laws(self, num_projections: int, head_dim: int) -> tuple[tuple[int, PairLaw], ...]:
        blocks, rest = divmod(num_projections, head_dim)
        coupled = 2 * (blocks * (head_dim // 2) + rest // 2)
        others = same_block_pairs(num_projections, head_dim) - coupled
        return (coupled, CoupledNorms(head_dim)), (others, AtAngle(head_dim))


@dataclass(frozen=True)
class StratifiedNorms(Sampler):
    """Haar-distributed orthogonal blocks; the R norms fall one into each of R intervals of equal probability.

    In random order, so that each row alone is N(0, I). No closed form of the variance is declared.
    """

    name: ClassVar[str] = "stratified-norms"
    reference: ClassVar[str] = "stratified sampling of the norms of Yu et al. 2016, arXiv 1610.09072"
    gaussian_rows: ClassVar[bool] = True
    nested: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = Blocks("orthogonal", norms="stratified")

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        rows = haar_blocks(rng, num_projections, head_dim).reshape(-1, head_dim)[:num_projections]
        stratum = rng.permutation(num_projections) + rng.uniform(size=num_projections)
        return rows * chi_quantile(stratum / num_projections, head_dim)[:, None]
