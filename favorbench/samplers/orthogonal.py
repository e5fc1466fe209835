"""Samplers of square blocks of orthogonal or simplex rows, and the variants in published code."""

from dataclasses import dataclass

import numpy as np

from favorbench.numerics.arrays import Float
from favorbench.samplers.base import (
    BlockSampler,
    Omega,
    PairLaws,
    RowBlocks,
    Sampler,
    haar_blocks,
    same_block_pairs,
)
from favorbench.samplers.coupling import ORTHOGONAL, SIMPLEX, Blocks
from favorbench.samplers.laws import (
    AtAngle,
    CoupledNorms,
    FixedNormRows,
    FourthMoments,
    GaussianRows,
    OnSpheres,
    RawQRRows,
    SecondMomentRows,
    chi_quantile,
    chi_upper_quantile,
)

SWEEPS = 5  # of simplex-plus over the rows of a block, as in the authors' code


@dataclass(frozen=True)
class Orthogonal(BlockSampler):
    """Haar-distributed orthogonal blocks with independent chi(d) row norms, so every row is N(0, I).

    Yu et al. 2016, "Orthogonal Random Features", arXiv 1610.09072; sign correction: Mezzadri 2007, math-ph/0609050.
    """

    name = "orthogonal"
    reference = "Yu et al. 2016, arXiv 1610.09072; Mezzadri 2007, math-ph/0609050"
    gaussian_rows = True
    coupling = ORTHOGONAL


@dataclass(frozen=True)
class GramSchmidt(BlockSampler):
    """Gram-Schmidt on Gaussian rows, each given its own norm back: the same law as ``orthogonal``, by another route.

    The norm of a Gaussian vector is independent of its direction, and the directions alone decide the result.
    Choromanski et al. 2021, arXiv 2009.14794, section 2.4 ("standard Gram-Schmidt renormalization procedure").
    """

    name = "gram-schmidt"
    reference = "Choromanski et al. 2021, arXiv 2009.14794, sec. 2.4"
    gaussian_rows = True
    coupling = ORTHOGONAL

    def blocks(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        blocks = rng.standard_normal((num_blocks, head_dim, head_dim))
        norms = np.linalg.norm(blocks, axis=-1, keepdims=True)
        unit = np.zeros_like(blocks)
        for i in range(head_dim):
            row = blocks[:, i : i + 1]
            # once loses orthogonality to rounding where a row nearly lies in the span of the others; twice does not
            for _ in range(2):
                row = row - (row @ unit.mT) @ unit
            unit[:, i : i + 1] = row / np.linalg.norm(row, axis=-1, keepdims=True)
        return unit * norms


@dataclass(frozen=True)
class Simplex(BlockSampler):
    """Blocks of d rows at the angles of a simplex, cosine -1/(d - 1), randomly rotated, with independent chi(d) norms.

    Best for ``positive`` among all couplings with independent norms; for ``hyperbolic`` worse than ``orthogonal``, and
    for ``trig`` too, but in few dimensions where x and y are far apart.
    Reid et al. 2023, "Simplex Random Features", arXiv 2301.13856.
    """

    name = "simplex"
    reference = "Reid et al. 2023, arXiv 2301.13856 (SimRF)"
    gaussian_rows = True
    coupling = SIMPLEX

    def directions(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        return simplex(head_dim) @ haar_blocks(rng, num_blocks, head_dim)

    def pair_laws(self, num_projections: int, head_dim: int) -> PairLaws:
        cosine = -1.0 / max(head_dim - 1, 1)
        return ((same_block_pairs(num_projections, head_dim), AtAngle(head_dim, cosine)),)


@dataclass(frozen=True)
class SimplexPlus(BlockSampler):
    """Simplex blocks whose directions are then fitted to the norms: each in turn is set against the sum of the others.

    Five sweeps, and a random rotation. A shorter sum of the rows of a block means less variance for ``positive``.
    Reid et al. 2023, arXiv 2301.13856 (SimRF+). No closed form of the variance is known.
    """

    name = "simplex-plus"
    reference = "Reid et al. 2023, arXiv 2301.13856 (SimRF+)"
    gaussian_rows = True
    coupling = Blocks("balanced")

    def blocks(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        directions, norms = rng.spawn(2)
        rotations, lengths = haar_blocks(directions, num_blocks, head_dim), self.norms(norms, num_blocks, head_dim)
        rows = simplex(head_dim) * lengths
        total = np.sum(rows, axis=1)
        for i in list(range(head_dim)) * SWEEPS if head_dim > 1 else []:
            others = total - rows[:, i]
            rows[:, i] = -others * (lengths[:, i] / np.sqrt(np.vecdot(others, others))[:, None])
            total = others + rows[:, i]
        return rows @ rotations


def simplex(head_dim: int) -> Float[np.ndarray, "head_dim head_dim"]:
    """Unit rows with the cosine -1/(d - 1) between any two, in the hyperplane of coordinate sum 0."""
    if head_dim == 1:
        return np.ones((1, 1))
    return (np.eye(head_dim) - 1.0 / head_dim) * np.sqrt(head_dim / (head_dim - 1))


@dataclass(frozen=True)
class NormCoupled(BlockSampler):
    """Haar-distributed orthogonal blocks; their rows form couples of a long and a short one.

    The norms of rows 1 and 2 of a block, 3 and 4, ... satisfy F(r) + F(r') = 1, F the chi(d) distribution function;
    where d is odd the last row of a block has no partner. Best for small arguments.
    Reid et al. 2024, "Variance-Reducing Couplings for Random Features", arXiv 2405.16541 (pairwise norm coupling).
    """

    name = "norm-coupled"
    reference = "Reid et al. 2024, arXiv 2405.16541 (PNC)"
    gaussian_rows = True
    coupling = Blocks("orthogonal", norms="in couples")

    def norms(
        self, rng: np.random.Generator, num_blocks: int, head_dim: int
    ) -> Float[np.ndarray, "num_blocks head_dim 1"]:
        uniform = rng.uniform(size=(num_blocks, (head_dim + 1) // 2))
        couples = np.stack([chi_quantile(uniform, head_dim), chi_upper_quantile(uniform, head_dim)], axis=-1)
        return couples.reshape(num_blocks, -1, 1)[:, :head_dim]

    def pair_laws(self, num_projections: int, head_dim: int) -> PairLaws:
        blocks, rest = divmod(num_projections, head_dim)
        coupled = 2 * (blocks * (head_dim // 2) + rest // 2)
        others = same_block_pairs(num_projections, head_dim) - coupled
        return (coupled, CoupledNorms(head_dim)), (others, AtAngle(head_dim))


@dataclass(frozen=True)
class StratifiedNorms(BlockSampler):
    """Haar-distributed orthogonal blocks; the R norms fall one into each of R intervals of equal probability.

    In random order, so that each row alone is N(0, I). No closed form of the variance is declared.
    """

    name = "stratified-norms"
    reference = "stratified sampling of the norms of Yu et al. 2016, arXiv 1610.09072"
    gaussian_rows = True
    nested = False
    coupling = Blocks("orthogonal", norms="stratified")

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        rows = super().sample(rng, num_projections, head_dim)
        stratum = rng.permutation(num_projections) + rng.uniform(size=num_projections)
        return rows * chi_quantile(stratum / num_projections, head_dim)[:, None]

    def blocks(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        return haar_blocks(rng, num_blocks, head_dim)


@dataclass(frozen=True)
class OrthogonalSqrtD(BlockSampler):
    """Haar-distributed orthogonal blocks, every row of norm sqrt(d): "regularised" softmax attention.

    The estimate is not of exp(x.y): its kernel has 0F1(; d/2; d |z|^2/4) where N(0, I) rows give exp(|z|^2/2), less by
    a factor of about exp(-|z|^4 / (4 (d + 2))). Choromanski et al. 2021, arXiv 2009.14794, Theorem 1 ("SMREG");
    Demni & Kadri 2023, arXiv 2310.07370.
    """

    name = "orthogonal-sqrt-d"
    reference = "Choromanski et al. 2021, arXiv 2009.14794; Demni & Kadri 2023, arXiv 2310.07370"
    gaussian_rows = False
    coupling = ORTHOGONAL

    def blocks(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        return np.sqrt(head_dim) * haar_blocks(rng, num_blocks, head_dim)

    def row_law(self, num_projections: int, head_dim: int) -> FixedNormRows:
        return FixedNormRows(float(np.sqrt(head_dim)))

    def pair_laws(self, num_projections: int, head_dim: int) -> PairLaws:
        hypotenuse = 2.0 * head_dim
        return ((same_block_pairs(num_projections, head_dim), OnSpheres(head_dim, hypotenuse, hypotenuse)),)


@dataclass(frozen=True)
class SORF(Sampler):
    """Structured orthogonal rows sqrt(p) H D1 H D2 H D3: H the Hadamard matrix of p = 2^k >= d rows, D random signs.

    Projecting costs O(p log p) a block with the fast transform (favorbench multiplies the matrices: it measures errors,
    not this speed). Where d is a power of two the rows are orthogonal and have norm sqrt(d), so the kernel is off as
    with ``orthogonal-sqrt-d``, and depends on the direction besides, visibly for small d. Elsewhere the p-dimensional
    rows are cut to d coordinates, which costs them both properties. D3 makes the signs of the coordinates of a row
    fair and independent; averaged over D1 and D2, E w_i^4 = 3 - 6/p + 4/p^2 and E w_i^2 w_j^2 = 1 - 2/p + 4/p^2.
    Yu et al. 2016, "Orthogonal Random Features", arXiv 1610.09072.
    """

    name = "sorf"
    reference = "Yu et al. 2016, arXiv 1610.09072 (SORF)"
    gaussian_rows = False
    coupling = Blocks("orthogonal", powers_of_two=True)

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        from scipy.linalg import hadamard  # 60 ms at start-up, for this sampler alone

        size = 1 << (head_dim - 1).bit_length()
        transform = hadamard(size) / np.sqrt(size)
        signs = rng.integers(2, size=(-(-num_projections // size), 3, 1, size)) * 2.0 - 1.0
        rows = transform * signs[:, 0] @ transform * signs[:, 1] @ transform * signs[:, 2]
        return np.sqrt(size) * rows[..., :head_dim].reshape(-1, head_dim)[:num_projections]

    def row_law(self, num_projections: int, head_dim: int) -> SecondMomentRows:
        p = 1 << (head_dim - 1).bit_length()
        fourth = FourthMoments(same=3.0 - 6.0 / p + 4.0 / p**2, mixed=1.0 - 2.0 / p + 4.0 / p**2)
        return SecondMomentRows(float(np.sqrt(head_dim)) if p == head_dim else None, fourth)


@dataclass(frozen=True)
class OrthogonalQR(BlockSampler):
    """QR blocks without the sign correction, chi(d) norms: google-research/performer, performer-pytorch, TF-Models.

    Row 1 of a block is restricted to w_1 < 0, so E exp(w.z) is off by the factor 2 Phi(-z_1); even maps (trig, phase,
    hyperbolic) do not notice.
    """

    name = "orthogonal-qr"
    reference = "google-research/performer; performer-pytorch (QR without the sign)"
    gaussian_rows = False
    coupling = ORTHOGONAL

    def directions(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        return np.linalg.qr(rng.standard_normal((num_blocks, head_dim, head_dim))).Q.mT

    def row_law(self, num_projections: int, head_dim: int) -> RawQRRows:
        return RawQRRows(GaussianRows(), first_row=1 in (num_projections, head_dim))


@dataclass(frozen=True)
class OrthogonalBlog(OrthogonalQR):
    """QR blocks without the sign, every row of norm sqrt(d / R): the code of the blog post of 2020.

    The norm shrinks as R grows, so the kernel it estimates changes with R and the sample is not nested.
    """

    name = "orthogonal-blog"
    reference = "teddykoker/performer, 2020"
    nested = False

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        return super().sample(rng, num_projections, head_dim) * np.sqrt(head_dim / num_projections)

    def blocks(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        return self.directions(rng, num_blocks, head_dim)

    def row_law(self, num_projections: int, head_dim: int) -> RawQRRows:
        rows = FixedNormRows(float(np.sqrt(head_dim / num_projections)))
        return RawQRRows(rows, first_row=1 in (num_projections, head_dim))
