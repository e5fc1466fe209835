"""Claims on couplings: how the rows of one draw depend on one another. And what all claims on samplers share."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from favorbench.errors import ScenarioError
from favorbench.samplers import FixedNormRows, GaussianRows, RowLaw, Sampler
from favorbench.samplers.coupling import Blocks, Coupling, EvenlySpread, Independent, MomentsMatched, OppositePairs
from favorbench.samplers.laws import SecondMomentRows
from favorbench.studies.verify.checks import Measurement, largest, z_of_p


class Rows(NamedTuple):
    """Draws of a sampler, (draws, R, d)."""

    subject: str
    omega: np.ndarray

    @property
    def head_dim(self) -> int:
        return self.omega.shape[-1]

    @property
    def size(self) -> int:
        return self.omega.shape[1]

    @property
    def some(self) -> list[int]:
        """First and last of a block, first of the next, last of all."""
        return sorted({0, self.head_dim - 1, self.head_dim, self.size - 1})

    def test(
        self, claim: str, z: Sequence[float] | np.ndarray, detail: str, resolution: float | None = None
    ) -> Measurement:
        """A measurement by z scores."""
        return Measurement(self.subject, claim, largest(z), np.size(z), detail, resolution)

    def exact(self, claim: str, error: float, detail: str) -> Measurement:
        """A measurement by an error that only rounding may make."""
        return Measurement(self.subject, claim, error / self.rounding, 0, detail)

    @property
    def rounding(self) -> float:
        """The backward error of QR: a small multiple of d eps."""
        return 50 * self.head_dim * float(np.finfo(self.omega.dtype).eps)


def z_of_zero_mean(values: np.ndarray) -> np.ndarray:
    """z of the mean of each column against 0; where a column is constant, any other number than 0 counts."""
    mean, standard_error = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(len(values))
    return np.where(np.abs(mean) < 1e-12, 0.0, mean / (standard_error + 1e-300))


def unit(omega: np.ndarray) -> np.ndarray:
    """Directions; a row of zeros stays one, and its square is not 1."""
    norms = np.linalg.norm(omega, axis=-1, keepdims=True)
    return omega / np.where(norms > 0, norms, 1.0)


def z_of_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """z of the rank correlation of two columns; infinite where one does not vary, as what is drawn does."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return np.inf
    return z_of_p(float(stats.spearmanr(first, second).pvalue))  # pyright: ignore[reportAttributeAccessIssue]


def takes(sampler: Sampler, dim: int) -> bool:
    """Whether a sampler draws rows of so many coordinates: one that cannot raises ScenarioError."""
    try:
        sampler.sample(np.random.default_rng(0), sampler.round_up(1, dim), dim)
    except ScenarioError:
        return False
    return True


def measure(rows: Rows, coupling: Coupling, law: RowLaw) -> list[Measurement]:
    """Everything a coupling says. Raises ScenarioError for a kind that is not known here: it would pass untested."""
    match coupling:
        case Independent():
            return _across_blocks(rows, law) + _free_norms(rows, law)
        case Blocks():
            return _blocks(rows, coupling, law) if coupling.holds_for(rows.head_dim) else []
        case EvenlySpread():
            return [_evenly_spread(rows, coupling)]
        case MomentsMatched():
            return [_matched(rows)]
        case OppositePairs():
            return [_opposite(rows), *measure(rows._replace(omega=rows.omega[:, 0::2]), coupling.inner, law)]
    raise ScenarioError(f"{rows.subject}: verify knows no test of the coupling {coupling!r}")


def _blocks(rows: Rows, coupling: Blocks, law: RowLaw) -> list[Measurement]:
    """Angles inside blocks, independence between them, and what is said of the norms."""
    cosines = coupling.cosines(rows.head_dim)
    measured = [_balanced(rows) if cosines is None else _angles(rows, f"{coupling.angles} inside blocks", cosines)]
    match coupling.norms:
        case "independent":
            return measured + _across_blocks(rows, law) + _free_norms(rows, law)
        case "in couples":
            return measured + _couples(rows) + _across_blocks(rows, law)
        case "stratified":
            directions = rows._replace(omega=np.sqrt(rows.head_dim) * unit(rows.omega))
            levels = special.gammainc(rows.head_dim / 2, np.sum(rows.omega**2, axis=-1) / 2)
            strata = _all_intervals_hit(rows, "norms are stratified", [levels])
            return [*measured, strata, *_across_blocks(directions, law)]


def _across_blocks(rows: Rows, law: RowLaw) -> list[Measurement]:
    """Rows of different blocks are independent: w.w' has mean 0 and mean square d, if w has mean 0."""
    if not isinstance(law, GaussianRows | FixedNormRows | SecondMomentRows):
        return []
    dim = rows.head_dim
    product = np.sum(rows.omega[:, 0] * rows.omega[:, dim], axis=-1)
    z = z_of_zero_mean(np.stack([product, product**2 - dim], axis=-1))
    return [rows.test("blocks are independent", z, f"E (w.w')^2 / d = {np.mean(product**2) / dim:.3f}")]


def _free_norms(rows: Rows, law: RowLaw) -> list[Measurement]:
    """No correlation between the norms of the first two rows, where norms are drawn."""
    if not isinstance(law, GaussianRows):
        return []
    squared = np.sum(rows.omega[:, :2] ** 2, axis=-1)
    z = z_of_correlation(squared[:, 0], squared[:, 1])
    return [rows.test("norms are independent", [z], "rank correlation of two")]


def _angles(rows: Rows, claim: str, cosines: np.ndarray) -> Measurement:
    """The cosines between the rows of each block, to rounding."""
    directions, worst = unit(rows.omega), []
    for start in range(0, rows.size, rows.head_dim):
        block = directions[:, start : start + rows.head_dim]
        expected = cosines[: block.shape[1], : block.shape[1]]
        worst.append(largest(block @ np.matrix_transpose(block) - expected))
    return rows.exact(claim, largest(worst), f"largest error of a cosine {largest(worst):.1e}")


def _balanced(rows: Rows) -> Measurement:
    """The row of a block that was set last is opposite to the sum of the others; a single row has none."""
    dim, claim = rows.head_dim, "each row balances the others"
    if dim == 1:
        return rows.exact(claim, 0.0, "a row alone")
    blocks = rows.omega[:, : rows.size // dim * dim].reshape(len(rows.omega), -1, dim, dim)
    others, last = np.sum(blocks[:, :, :-1], axis=2), blocks[:, :, -1]
    # a sum that is nearly 0 has lost the digits of its terms
    lost = np.sum(np.linalg.norm(blocks, axis=-1), axis=-1, keepdims=True)
    lost = lost / np.linalg.norm(others, axis=-1, keepdims=True)
    worst = largest((unit(others) + unit(last)) / lost)
    return rows.exact(claim, worst, f"largest error of a direction {worst:.1e}")


def _couples(rows: Rows) -> list[Measurement]:
    """F(|w|) + F(|w'|) = 1 for the rows 1 and 2, 3 and 4, ... of a block; different couples are independent.

    Where head_dim is odd the last row of a block has no partner.
    """
    dim = rows.head_dim
    levels = special.gammainc(dim / 2, np.sum(rows.omega**2, axis=-1) / 2)
    starts = [i for start in range(0, rows.size, dim) for i in range(start, min(start + dim, rows.size) - 1, 2)]
    error = largest([largest(levels[:, i] + levels[:, i + 1] - 1.0) for i in starts])
    z = z_of_correlation(levels[:, 0], levels[:, 2 if dim > 3 else dim])
    return [
        rows.exact("norms in couples", error, f"largest error {error:.1e}"),
        rows.test("couples are independent", [z], "rank correlation of two"),
    ]


def _evenly_spread(rows: Rows, coupling: EvenlySpread) -> Measurement:
    """Of the first b rows one lies in each of b intervals of equal probability, b a number of each coordinate's."""
    levels = special.ndtr(rows.omega)
    first = [levels[:, :b, coordinate] for coordinate, b in enumerate(coupling.intervals(rows.head_dim))]
    return _all_intervals_hit(rows, "coordinates are evenly spread", first)


def _all_intervals_hit(rows: Rows, claim: str, groups: list[np.ndarray]) -> Measurement:
    """Each draw of n levels (draws, n) has one in each of the n equal intervals of [0, 1]."""
    missed = 0
    for levels in groups:
        intervals = levels.shape[1]
        hit = np.sort(np.floor(levels * intervals), axis=-1)
        missed += int(np.sum(hit != np.arange(intervals)))  # nan is in none
    return Measurement(rows.subject, claim, 2.0 * missed, 0, f"{missed} out of place")


def _opposite(rows: Rows) -> Measurement:
    """Each second row is minus the one before, to the last bit."""
    worst = largest(rows.omega[:, 0::2] + rows.omega[:, 1::2])
    return Measurement(rows.subject, "opposite pairs", 0.0 if worst == 0 else 2.0, 0, f"largest difference {worst:.1e}")


def _matched(rows: Rows) -> Measurement:
    """Every draw has mean 0 and second moment I."""
    moment = np.matrix_transpose(rows.omega) @ rows.omega / rows.size
    worst = largest([largest(np.mean(rows.omega, axis=1)), largest(moment - np.eye(rows.head_dim))])
    return rows.exact("moments are matched", worst, f"largest error {worst:.1e}")
