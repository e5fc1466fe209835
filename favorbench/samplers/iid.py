"""IID rows, and what spreads them more evenly: opposite pairs, low-discrepancy points, matched moments."""
# pyright: reportIncompatibleVariableOverride=false
# (The claims of Antithetic follow from the sampler inside; those of other samplers are class attributes.)

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from favorbench.samplers.base import Omega, PairLaws, Sampler
from favorbench.samplers.coupling import INDEPENDENT, EvenlySpread, MomentsMatched, OppositePairs
from favorbench.samplers.laws import (
    FixedNormRows,
    IsotropicRows,
    OnSpheres,
    OppositeRow,
    RowLaw,
    SignFlipped,
    SymmetrisedRows,
)


@dataclass(frozen=True)
class IID(Sampler):
    """Independent rows w ~ N(0, I). Rahimi & Recht 2007, "Random Features for Large-Scale Kernel Machines"."""

    name = "iid"
    reference = "Rahimi & Recht 2007"
    gaussian_rows = True
    coupling = INDEPENDENT

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        return rng.standard_normal((num_projections, head_dim))


@dataclass(frozen=True)
class Antithetic(Sampler):
    """w1, -w1, w2, -w2, ... for rows w1, w2, ... of another sampler: ``antithetic:orthogonal``.

    ``positive`` on it is ``hyperbolic`` on the other sampler, exactly; for even maps (``trig``, ``hyperbolic``) it is
    useless, the same features twice. The pairs are adjacent, so that the first R rows are a sample for every even R.
    """

    inner: Sampler
    prefix = "antithetic"
    #: Additions to the claims of the sampler inside, for ``favorbench list samplers``.
    adds: ClassVar[dict[str, str]] = {
        "coupling": "antithetic",
        "needs": "an even R",
        "reference": "antithetic variates, Hammersley & Morton 1956",
    }

    @property
    def name(self) -> str:
        return f"{self.prefix}:{self.inner.name}"

    @property
    def reference(self) -> str:
        return f"{self.inner.reference}; {self.adds['reference']}"

    @property
    def gaussian_rows(self) -> bool:
        return self.inner.gaussian_rows

    @property
    def nested(self) -> bool:
        return self.inner.nested

    @property
    def needs(self) -> str:
        needed = self.adds["needs"]
        return f"{needed}, with R/2 as {self.inner.name} needs it ({self.inner.needs})" if self.inner.needs else needed

    @property
    def coupling(self) -> OppositePairs:
        return OppositePairs(self.inner.coupling)

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        self.check(num_projections, head_dim)
        rows = self.inner.sample(rng, num_projections // 2, head_dim)
        return np.stack([rows, -rows], axis=1).reshape(-1, head_dim)

    def round_up(self, num_projections: int, head_dim: int) -> int:
        return 2 * self.inner.round_up((num_projections + 1) // 2, head_dim)

    def row_law(self, num_projections: int, head_dim: int) -> RowLaw:
        rows = self.inner.row_law(num_projections // 2, head_dim)
        return rows if isinstance(rows, IsotropicRows) else SymmetrisedRows(rows)

    def pair_laws(self, num_projections: int, head_dim: int) -> PairLaws | None:
        rows = self.inner.row_law(num_projections // 2, head_dim)
        pairs = self.inner.pair_laws(num_projections // 2, head_dim)
        if pairs is None or not isinstance(rows, IsotropicRows):
            return None
        across = [(2 * count, law) for count, pair in pairs for law in (pair, SignFlipped(pair))]
        return ((num_projections, OppositeRow(rows, head_dim)), *across)


def _primes(head_dim: int) -> tuple[int, ...]:
    """The first primes, one for each coordinate: the bases of Halton points."""
    limit = 20 + head_dim * head_dim
    return tuple([n for n in range(2, limit) if all(n % k for k in range(2, int(n**0.5) + 1))][:head_dim])


@dataclass(frozen=True)
class Sobol(Sampler):
    """The normal quantiles of scrambled Sobol' points (linear matrix scrambling and a random shift).

    Best balanced where R is a power of two, but unbiased for every R: each point alone is uniform. Its gain is largest
    for small arguments and fades as the head dimension grows. Sobol' 1967; Matousek 1998; Owen 1998.
    """

    name = "sobol"
    reference = "Sobol' 1967; scrambling: Matousek 1998; scipy.stats.qmc.Sobol"
    gaussian_rows = True
    coupling = EvenlySpread(lambda head_dim: (16,) * head_dim)  # any power of two would do

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        from scipy.stats import qmc  # half a second at start-up, for this sampler alone

        points = qmc.Sobol(head_dim, rng=rng).random_base2((num_projections - 1).bit_length())
        # points are multiples of 2^-30, and 0 is one of them
        return scipy.special.ndtri(points[:num_projections] + 2.0**-31)


@dataclass(frozen=True)
class Halton(Sampler):
    """The normal quantiles of Halton points, one prime for each coordinate, with random permutations of the digits.

    Unbiased for every R. Large primes need many rows before they are balanced: the gain is in small head dimensions.
    Halton 1960; Owen 2017, "A randomized Halton algorithm in R", arXiv 1706.02808.
    """

    name = "halton"
    reference = "Halton 1960; Owen 2017, arXiv 1706.02808; scipy.stats.qmc.Halton"
    gaussian_rows = True
    coupling = EvenlySpread(_primes)

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        from scipy.stats import qmc

        tiny = 2.0**-53  # a point may round to 0 or to 1
        return scipy.special.ndtri(np.clip(qmc.Halton(head_dim, rng=rng).random(num_projections), tiny, 1.0 - tiny))


@dataclass(frozen=True)
class MomentMatched(Sampler):
    """A Gaussian sample, centred and whitened: its rows have mean 0 and second moment I exactly.

    Not unbiased, by O(1/R), and yet of little error for small arguments. W / sqrt(R) is uniform among the matrices of
    orthonormal columns that sum to 0 (the whitened sample is a polar factor, and the law of the centred one does not
    change under rotations of the R - 1 dimensions that centring leaves). So a row is the first d coordinates of a
    point uniform on the sphere of radius sqrt(R - 1) in R - 1 dimensions, and sums and differences of two rows are the
    like: bias and variance come in closed form.
    """

    name = "moment-matched"
    reference = "second-order moment matching, e.g. Glasserman 2003, Monte Carlo Methods, sec. 4.5"
    gaussian_rows = False
    nested = False
    coupling = MomentsMatched()
    needs = "R > head_dim"

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        self.check(num_projections, head_dim)
        rows = rng.standard_normal((num_projections, head_dim))
        u, _, v = np.linalg.svd(rows - np.mean(rows, axis=0), full_matrices=False)
        return np.sqrt(num_projections) * (u @ v)

    def round_up(self, num_projections: int, head_dim: int) -> int:
        return max(num_projections, head_dim + 1)

    def row_law(self, num_projections: int, head_dim: int) -> FixedNormRows:
        return FixedNormRows(float(np.sqrt(num_projections - 1)), dimension=num_projections - 1)

    def pair_laws(self, num_projections: int, head_dim: int) -> PairLaws:
        law = OnSpheres(num_projections - 1, 2.0 * (num_projections - 2), 2.0 * num_projections)
        return ((num_projections * (num_projections - 1), law),)
