"""The base classes of samplers of omega, whose rows are the projections."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from favorbench.errors import EstimatorError, ScenarioError
from favorbench.numerics.arrays import Float
from favorbench.registry import is_ours
from favorbench.samplers.coupling import INDEPENDENT, ORTHOGONAL, WORDS, Coupling, coupling_of
from favorbench.samplers.laws import AtAngle, GaussianRows, PairLaw, RowLaw

#: A draw of omega; the same in square blocks of head_dim rows.
Omega = Float[np.ndarray, "num_projections head_dim"]
RowBlocks = Float[np.ndarray, "num_blocks head_dim head_dim"]
PairLaws = tuple[tuple[int, PairLaw], ...]


class Sampler(ABC):
    """A law of omega, an array (num_projections, head_dim) whose rows are the projections.

    A member is a frozen dataclass with one method, ``sample``, and states its claims as class attributes.
    """

    name: ClassVar[str]
    reference: ClassVar[str]
    #: Every row is N(0, I), so maps that claim to be unbiased are.
    gaussian_rows: ClassVar[bool] = False
    #: The first R rows do not depend on how many follow. If not, the engine draws every R anew.
    nested: ClassVar[bool] = True
    #: How the rows of one draw depend on one another, which ``verify`` tests. A class may state it in words, e.g.
    #: "independent", or "orthogonal" inside blocks of head_dim rows (independent between blocks).
    coupling: ClassVar[Coupling]
    #: The restriction on num_projections, if there is one: "an even R".
    needs: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise ScenarioError for an unknown coupling when the class is made: later it would pass untested."""
        super().__init_subclass__(**options)
        stated = cls.__dict__.get("coupling")
        if stated is not None and not isinstance(stated, property):
            cls.coupling = coupling_of(stated, cls.__name__)

    def __new__(cls, *_: Any, **__: Any):
        """Raise ScenarioError for a class that states no coupling."""
        if not hasattr(cls, "coupling"):
            raise ScenarioError(f"sampler {cls.__name__} states no coupling; allowed: {', '.join(map(repr, WORDS))}")
        return super().__new__(cls)

    @abstractmethod
    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        """Draw omega, float64. Equal generators give equal rows for every num_projections if ``nested``."""

    def round_up(self, num_projections: int, head_dim: int) -> int:
        """The smallest number of projections, from num_projections on, that can be drawn."""
        return num_projections

    def check(self, num_projections: int, head_dim: int) -> None:
        """Raise ScenarioError if this number of projections cannot be drawn."""
        nearest = self.round_up(num_projections, head_dim)
        if nearest != num_projections:
            raise ScenarioError(
                f"sampler {self.name!r} needs {self.needs}: R = {num_projections} given for head_dim {head_dim}, "
                f"nearest allowed: {nearest}"
            )

    def row_law(self, num_projections: int, head_dim: int) -> RowLaw:
        """The law of a row, averaged over the rows; a sampler without Gaussian rows may define it."""
        return GaussianRows() if self.gaussian_rows else RowLaw()

    def pair_laws(self, num_projections: int, head_dim: int) -> PairLaws | None:
        """The numbers and laws of ordered pairs of different rows that are not independent; None where unknown."""
        if not self.gaussian_rows:
            return None
        if self.coupling == INDEPENDENT:
            return ()
        if self.coupling == ORTHOGONAL:
            return ((same_block_pairs(num_projections, head_dim), AtAngle(head_dim)),)
        return None


def draw_omega(sampler: Sampler, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
    """Draw the projections (num_projections, head_dim). Raises EstimatorError for another shape or complex numbers."""
    omega: Any = sampler.sample(rng, num_projections, head_dim)
    is_array, expected = isinstance(omega, np.ndarray), (num_projections, head_dim)
    if not (is_array and omega.shape == expected and omega.dtype.kind in "fiu"):
        given = f"{omega.dtype} of shape {omega.shape}" if is_array else type(omega).__name__
        raise EstimatorError(f"sampler {sampler.name} returned {given}; it must return a NumPy array {expected}")
    return omega if is_ours(sampler) else omega.copy()  # the next call may write into the same array


def same_block_pairs(num_projections: int, block: int) -> int:
    """Ordered pairs of different rows that lie in the same block of ``block`` rows."""
    blocks, rest = divmod(num_projections, block)
    return blocks * block * (block - 1) + rest * (rest - 1)


class BlockSampler(Sampler):
    """A sampler of independent square blocks: directions of rows, times their norms."""

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> Omega:
        return self.blocks(rng, -(-num_projections // head_dim), head_dim).reshape(-1, head_dim)[:num_projections]

    def blocks(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        """Draw blocks of rows. Two streams, so that neither shifts the other when another block follows."""
        directions, norms = rng.spawn(2)
        return self.directions(directions, num_blocks, head_dim) * self.norms(norms, num_blocks, head_dim)

    def directions(self, rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
        """Draw unit rows, orthogonal by default."""
        return haar_blocks(rng, num_blocks, head_dim)

    def norms(
        self, rng: np.random.Generator, num_blocks: int, head_dim: int
    ) -> Float[np.ndarray, "num_blocks head_dim 1"]:
        """Draw the norms of the rows, by default those of independent standard normal vectors."""
        return np.sqrt(rng.chisquare(head_dim, size=(num_blocks, head_dim, 1)))


def haar_blocks(rng: np.random.Generator, num_blocks: int, head_dim: int) -> RowBlocks:
    """Draw Haar-distributed orthogonal matrices.

    QR alone is not Haar: LAPACK fixes the signs of R's diagonal. Multiplying the columns of Q by those signs corrects
    that. Mezzadri 2007, math-ph/0609050.
    """
    q, r = np.linalg.qr(rng.standard_normal((num_blocks, head_dim, head_dim)))
    signs = np.copysign(1.0, np.diagonal(r, axis1=-2, axis2=-1))
    return (q * signs[:, None, :]).mT
