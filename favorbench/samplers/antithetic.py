"""Projections in opposite pairs."""
# The claims of every other sampler are class attributes; here they follow from the sampler inside.
# pyright: reportIncompatibleVariableOverride=false

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler
from favorbench.samplers.coupling import Coupling, OppositePairs
from favorbench.samplers.laws import IsotropicRows, OppositeRow, PairLaw, RowLaw, SignFlipped, SymmetrisedRows


@dataclass(frozen=True)
class Antithetic(Sampler):
    """w1, -w1, w2, -w2, ... for rows w1, w2, ... of another sampler: ``antithetic:orthogonal``.

    ``positive`` on it is ``hyperbolic`` on the other sampler, exactly; for even maps (``trig``, ``hyperbolic``) it is
    useless, the same features twice. The pairs are adjacent, so that the first R rows are a sample for every even R.
    """

    inner: Sampler
    prefix: ClassVar[str] = "antithetic"
    #: What it adds to the sampler inside, for ``favorbench list samplers``.
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
        own = self.adds["needs"]
        return f"{own}, with R/2 as {self.inner.name} needs it ({self.inner.needs})" if self.inner.needs else own

    @property
    def coupling(self) -> Coupling:
        return OppositePairs(self.inner.coupling)

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        self.check(num_projections, head_dim)
        rows = self.inner.sample(rng, num_projections // 2, head_dim)
        return np.stack([rows, -rows], axis=1).reshape(-1, head_dim)

    def round_up(self, num_projections: int, head_dim: int) -> int:
        return 2 * self.inner.round_up((num_projections + 1) // 2, head_dim)

    def row_law(self, num_projections: int, head_dim: int) -> RowLaw:
        rows = self.inner.row_law(num_projections // 2, head_dim)
        return rows if isinstance(rows, IsotropicRows) else SymmetrisedRows(rows)

    def pair_laws(self, num_projections: int, head_dim: int) -> tuple[tuple[int, PairLaw], ...] | None:
        rows = self.inner.row_law(num_projections // 2, head_dim)
        pairs = self.inner.pair_laws(num_projections // 2, head_dim)
        if pairs is None or not isinstance(rows, IsotropicRows):
            return None
        across = [(2 * count, law) for count, pair in pairs for law in (pair, SignFlipped(pair))]
        return ((num_projections, OppositeRow(rows, head_dim)), *across)
