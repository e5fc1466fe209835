"""Projections from low-discrepancy points: scrambled, so that each row is N(0, I)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler
from favorbench.samplers.coupling import Coupling, EvenlySpread


def _powers_of_two(head_dim: int) -> tuple[int, ...]:
    """Any power of two will do, for every coordinate of Sobol' points."""
    return (16,) * head_dim


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

    name: ClassVar[str] = "sobol"
    reference: ClassVar[str] = "Sobol' 1967; scrambling: Matousek 1998; scipy.stats.qmc.Sobol"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = EvenlySpread(_powers_of_two)

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
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

    name: ClassVar[str] = "halton"
    reference: ClassVar[str] = "Halton 1960; Owen 2017, arXiv 1706.02808; scipy.stats.qmc.Halton"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = EvenlySpread(_primes)

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        from scipy.stats import qmc

        tiny = 2.0**-53  # a point may round to 0 or to 1
        return scipy.special.ndtri(np.clip(qmc.Halton(head_dim, rng=rng).random(num_projections), tiny, 1.0 - tiny))
