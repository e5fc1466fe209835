"""How the rows of one draw depend on one another: a closed set of kinds, which ``verify`` can test."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.registry import nearest

Angles = Literal["orthogonal", "simplex", "balanced"]
Norms = Literal["independent", "in couples", "stratified"]


class Coupling(ABC):
    """How the rows of one draw depend on one another; ``str`` says it in the words of ``favorbench list samplers``."""

    @abstractmethod
    def __str__(self) -> str: ...

    def fewest_rows(self, head_dim: int) -> int:
        """The number of rows that shows all of it: a block and one more."""
        return head_dim + 1


@dataclass(frozen=True)
class Independent(Coupling):
    """Independent rows."""

    def __str__(self) -> str:
        return "independent"


@dataclass(frozen=True)
class Blocks(Coupling):
    """Blocks of head_dim rows, whose directions are independent of those of other blocks.

    angles: of the rows inside a block. "balanced": the row that was set last is opposite to the sum of the others.
    norms: drawn independently, or "in couples" (rows 1 and 2, 3 and 4, ... of a block satisfy F(r) + F(r') = 1, F the
    chi(d) distribution function), or "stratified" (one in each of R intervals of equal probability).
    powers_of_two: the claim holds only where head_dim is a power of two.
    """

    angles: Angles
    norms: Norms = "independent"
    powers_of_two: bool = False

    def __post_init__(self) -> None:
        for given, allowed in ((self.angles, get_args(Angles)), (self.norms, get_args(Norms))):
            if given not in allowed:
                raise ScenarioError(f"blocks of rows: {given!r} given, allowed: {', '.join(allowed)}")

    def __str__(self) -> str:
        if self.angles == "balanced":
            return "simplex, fitted to the norms"
        return self.angles if self.norms == "independent" else f"{self.angles}, norms {self.norms}"

    def holds_for(self, head_dim: int) -> bool:
        """Whether the claim holds for rows of ``head_dim`` coordinates."""
        return not self.powers_of_two or math.log2(head_dim).is_integer()

    def cosines(self, head_dim: int) -> np.ndarray | None:
        """The cosine between any two rows of a block, (head_dim, head_dim); None where each block has its own."""
        if self.angles == "balanced":
            return None
        between = -1.0 / max(head_dim - 1, 1) if self.angles == "simplex" else 0.0
        return np.where(np.eye(head_dim) > 0, 1.0, between)


@dataclass(frozen=True)
class EvenlySpread(Coupling):
    """In every coordinate the first b rows fall one into each of b intervals of equal probability.

    intervals: for a head dimension, the b of each coordinate.
    """

    intervals: Callable[[int], tuple[int, ...]]

    def __str__(self) -> str:
        return "low-discrepancy"

    def fewest_rows(self, head_dim: int) -> int:
        return max(self.intervals(head_dim))


@dataclass(frozen=True)
class MomentsMatched(Coupling):
    """Every draw has mean 0 and second moment I, exactly."""

    def __str__(self) -> str:
        return "moment-matched"

    def fewest_rows(self, head_dim: int) -> int:
        return 4 * (head_dim + 1)  # hardly more rows than coordinates may be nearly singular: rounding hides the match


@dataclass(frozen=True)
class OppositePairs(Coupling):
    """Each second row is minus the one before; the others are coupled as ``inner`` says."""

    inner: Coupling

    def __str__(self) -> str:
        return "antithetic"

    def fewest_rows(self, head_dim: int) -> int:
        return 2 * self.inner.fewest_rows(head_dim)


INDEPENDENT, ORTHOGONAL, SIMPLEX = Independent(), Blocks("orthogonal"), Blocks("simplex")

#: A user's sampler may state one of these in words; the other kinds have parameters.
WORDS: dict[str, Coupling] = {
    str(coupling): coupling
    for coupling in (
        INDEPENDENT, ORTHOGONAL, SIMPLEX, Blocks("balanced"), Blocks("orthogonal", "in couples"),
        Blocks("orthogonal", "stratified"), MomentsMatched(),
    )
}  # fmt: skip

KINDS = (Independent, Blocks, EvenlySpread, MomentsMatched, OppositePairs)


def coupling_of(stated: object, sampler: str) -> Coupling:
    """The coupling that a sampler states: an object of one of the KINDS, or its words.

    Raises ScenarioError for anything else: a dependence without a test would pass every test.
    """
    if isinstance(stated, KINDS):
        return stated
    if isinstance(stated, str) and stated in WORDS:
        return WORDS[stated]
    close = nearest(stated, WORDS) if isinstance(stated, str) else ""
    raise ScenarioError(
        f"sampler {sampler}: unknown coupling {stated!r}{close}; allowed: {', '.join(repr(w) for w in WORDS)}, or an "
        "object of favorbench.samplers.coupling"
    )
