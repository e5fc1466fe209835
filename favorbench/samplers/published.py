"""Samplers as they stand in published code, with the law they really have. Not for use: to be measured."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler, chi_norms, gaussian_blocks
from favorbench.samplers.coupling import ORTHOGONAL, Coupling
from favorbench.samplers.laws import FixedNormRows, GaussianRows, RawQRRows


def _raw_qr_rows(rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
    """Orthonormal rows straight from LAPACK: Q_11 < 0 always, so the rows are not Haar."""
    q, _ = np.linalg.qr(gaussian_blocks(rng, num_projections, head_dim))
    return np.matrix_transpose(q)


@dataclass(frozen=True)
class OrthogonalQR(Sampler):
    """QR blocks without the sign correction, chi(d) norms: google-research/performer, performer-pytorch, TF-Models.

    Row 1 of a block is restricted to w_1 < 0, so E exp(w.z) is off by the factor 2 Phi(-z_1); even maps (trig, phase,
    hyperbolic) do not notice.
    """

    name: ClassVar[str] = "orthogonal-qr"
    reference: ClassVar[str] = "google-research/performer; performer-pytorch (QR without the sign)"
    gaussian_rows: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = ORTHOGONAL

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        directions, norms = rng.spawn(2)
        q = _raw_qr_rows(directions, num_projections, head_dim)
        return (q * chi_norms(norms, len(q), head_dim)).reshape(-1, head_dim)[:num_projections]

    def row_law(self, num_projections: int, head_dim: int) -> RawQRRows:
        return RawQRRows(GaussianRows(), first_row=1 in (num_projections, head_dim))


@dataclass(frozen=True)
class OrthogonalBlog(Sampler):
    """QR blocks without the sign, every row of norm sqrt(d / R): the code of the blog post of 2020.

    The norm shrinks as R grows, so the kernel it estimates changes with R and the sample is not nested.
    """

    name: ClassVar[str] = "orthogonal-blog"
    reference: ClassVar[str] = "teddykoker/performer, 2020"
    gaussian_rows: ClassVar[bool] = False
    nested: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = ORTHOGONAL

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        rows = _raw_qr_rows(rng, num_projections, head_dim).reshape(-1, head_dim)[:num_projections]
        return rows * np.sqrt(head_dim / num_projections)

    def row_law(self, num_projections: int, head_dim: int) -> RawQRRows:
        return RawQRRows(
            FixedNormRows(float(np.sqrt(head_dim / num_projections))), first_row=1 in (num_projections, head_dim)
        )
