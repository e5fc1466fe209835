"""Claims on samplers: the law of every row, how the rows of a draw depend on one another, nestedness."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from favorbench.errors import ScenarioError
from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import FixedNormRows, GaussianRows, RowLaw, Sampler
from favorbench.samplers.base import draw_omega
from favorbench.samplers.coupling import (
    Blocks,
    Coupling,
    EvenlySpread,
    Independent,
    MomentsMatched,
    Norms,
    OppositePairs,
)
from favorbench.samplers.laws import SecondMomentRows
from favorbench.studies.verify.checks import MeasuredClaim, largest, merged, z_of_p

HEAD_DIM = 8
#: Also measured with a twentieth of the draws, or this number: no power of two, odd, and a single coordinate.
OTHER_DIMS, FEWEST_DRAWS = (24, 3, 1), 400


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
    ) -> MeasuredClaim:
        """A measurement by z scores."""
        return MeasuredClaim(self.subject, claim, largest(z), np.size(z), detail, resolution)

    def exact(self, claim: str, errors: ArrayLike, detail: str = "largest error") -> MeasuredClaim:
        """A measurement by errors that only rounding may make: the backward error of QR, a small multiple of d eps."""
        worst, rounding = largest(errors), 50 * self.head_dim * float(np.finfo(self.omega.dtype).eps)
        return MeasuredClaim(self.subject, claim, worst / rounding, 0, f"{detail} {worst:.1e}")

    def distributed(self, claim: str, values: np.ndarray, law: Callable, detail: str = "") -> MeasuredClaim:
        """Kolmogorov-Smirnov of values (draws, R, ...) against a distribution function, for some rows."""
        columns = values[:, self.some].reshape(len(values), -1).T
        z = [z_of_p(stats.kstest(column, law).pvalue) for column in columns]
        return self.test(claim, z, f"{len(z)} KS tests{detail}")


def z_of_zero_mean(values: np.ndarray) -> np.ndarray:
    """z of the mean of each column against 0; where a column is constant, any other number than 0 counts."""
    mean, standard_error = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(len(values))
    return np.where(np.abs(mean) < 1e-12, 0.0, mean / (standard_error + 1e-300))


def unit(omega: np.ndarray) -> np.ndarray:
    """Directions; a row of zeros stays one, and its square is not 1."""
    norms = np.linalg.norm(omega, axis=-1, keepdims=True)
    return omega / np.where(norms > 0, norms, 1.0)


def z_of_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """z of the rank correlation of two columns; infinite where one does not vary."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return np.inf
    return z_of_p(float(stats.spearmanr(first, second).pvalue))  # pyright: ignore[reportAttributeAccessIssue]


def takes(sampler: Sampler, dim: int) -> bool:
    """Whether a sampler draws rows of this dimension: one that cannot raises ScenarioError."""
    try:
        draw_omega(sampler, np.random.default_rng(0), sampler.round_up(1, dim), dim)
    except ScenarioError:
        return False
    return True


def measure(sampler: Sampler, draws: int, seed: int) -> list[MeasuredClaim]:
    """Everything a sampler claims, from independent draws; each claim in the worst of several dimensions."""
    subject = label(sampler)
    parts = []
    for dim in (HEAD_DIM, *(other for other in OTHER_DIMS if takes(sampler, other))):
        count = draws if dim == HEAD_DIM else max(draws // 20, min(draws, FEWEST_DRAWS))
        rows = _drawn(subject, sampler, dim, count, seed)
        law = sampler.row_law(rows.size, dim)
        nested = [_nested(subject, sampler, dim, seed)] if sampler.nested else []
        claims = [*nested, *measure_coupling(rows, sampler.coupling, law), *_row_law(rows, law)]
        parts += [(f"d = {dim}", measurement) for measurement in claims]
    return merged(parts)


def _drawn(subject: str, sampler: Sampler, dim: int, draws: int, seed: int) -> Rows:
    """Two whole blocks and one cut short, an even number, or as many rows as the sampler and its coupling ask for."""
    size = sampler.round_up(max(3 * dim - 2, 4, sampler.coupling.fewest_rows(dim)), dim)
    rng = stream(seed, "verify", "law", subject, dim)
    return Rows(subject, np.stack([draw_omega(sampler, child, size, dim) for child in rng.spawn(draws)]))


def _row_law(rows: Rows, law: RowLaw) -> Iterator[MeasuredClaim]:
    """The law of the rows one by one; a law of confined directions shows in the kernels alone."""
    dim, squared = rows.head_dim, np.sum(rows.omega**2, axis=-1)
    match law:
        case GaussianRows():
            yield _marginals(rows, "rows are N(0, I)", special.ndtr)
            yield rows.distributed("norms are chi(d)", squared, stats.chi2(dim).cdf)
        case FixedNormRows(norm, dimension):
            dimension = dimension or dim
            if dimension > 1:  # on a line a sphere is two points: a norm, and a sign of mean 0, say it all
                half = (dimension - 1) / 2
                yield _marginals(rows, "rows are uniform on a sphere", stats.beta(half, half, -norm, 2 * norm).cdf)
            if dimension == dim:
                yield _constant_norm(rows, norm)
            else:
                beta = stats.beta(dim / 2, (dimension - dim) / 2, scale=norm**2)
                yield rows.distributed("norms are those of a sphere's points", squared, beta.cdf)
        case SecondMomentRows(norm, fourth):
            yield _second_moments(rows)
            if norm:
                yield _constant_norm(rows, norm)
            if fourth:
                yield _fourth_moments(rows, *fourth)
        case _:
            return
    yield _mean_row(rows)


def _marginals(rows: Rows, claim: str, law: Callable) -> MeasuredClaim:
    """The distribution of w.u: each coordinate, and the diagonal."""
    diagonal = np.sum(rows.omega, axis=-1, keepdims=True) / np.sqrt(rows.head_dim)
    values = np.concatenate([rows.omega, diagonal], axis=-1)
    return rows.distributed(claim, values, law, f", {len(values)} draws")


def _constant_norm(rows: Rows, norm: float) -> MeasuredClaim:
    return rows.exact("norms are constant", np.linalg.norm(rows.omega, axis=-1) / norm - 1.0, f"{norm:.4f}, error")


def _second_moments(rows: Rows) -> MeasuredClaim:
    """E w w' = I for some rows."""
    omega = rows.omega[:, rows.some]
    products = omega[..., :, None] * omega[..., None, :] - np.eye(rows.head_dim)
    z = z_of_zero_mean(products[..., *np.triu_indices(rows.head_dim)].reshape(len(omega), -1))
    return rows.test("second moment is I", z, f"{z.size} moments")


def _fourth_moments(rows: Rows, same: float, mixed: float) -> MeasuredClaim:
    """E (w.u)^4 along an axis, the diagonal and a random u, for some rows.

    same sum_l u_l^4 + 3 mixed (1 - sum_l u_l^4) where the signs of the coordinates are fair and independent.
    """
    dim = rows.head_dim
    directions = np.stack([np.eye(dim)[0], np.ones(dim), stream(0, "verify", "fourth moments").standard_normal(dim)])
    directions = unit(directions)
    fourth = np.sum(directions**4, axis=-1)
    expected = same * fourth + 3.0 * mixed * (1.0 - fourth)
    values = (rows.omega[:, rows.some] @ directions.T) ** 4 - expected
    z = z_of_zero_mean(values.reshape(len(values), -1))
    shown = ", ".join(f"{ratio:.3f}" for ratio in 1.0 + np.mean(values, axis=(0, 1)) / expected)
    return rows.test("fourth moments", z, f"of the declared ones along axis, diagonal, random: {shown}")


def _mean_row(rows: Rows) -> MeasuredClaim:
    """The mean of every row vanishes: where an unsigned QR shows first."""
    count = len(rows.omega)
    z = np.mean(rows.omega, axis=0) * np.sqrt(count)
    shown = np.mean(rows.omega[:, 0, 0])
    return rows.test("rows have mean 0", z, f"E w_11 = {shown:+.4f}", 1 / np.sqrt(count))


def _nested(subject: str, sampler: Sampler, dim: int, seed: int) -> MeasuredClaim:
    """The first R rows do not depend on how many follow; sizes 1, one block, one more, many."""
    sizes = sorted({sampler.round_up(size, dim) for size in (1, max(dim - 1, 1), dim, dim + 1, 99, 102)})
    draws = [draw_omega(sampler, stream(seed, "verify", "nested", subject), size, dim) for size in sizes]
    whole, pairs = draws[-1], zip(sizes, draws, strict=True)
    worst = largest([largest(rows - whole[:size]) if rows.shape == (size, dim) else np.inf for size, rows in pairs])
    bound = 1e-13  # of entries of order 1: another order of summation
    return MeasuredClaim(subject, "prefixes are stable", worst / bound, 0, f"largest difference {worst:.1e}")


def measure_coupling(rows: Rows, coupling: Coupling, law: RowLaw) -> Iterator[MeasuredClaim]:
    """Everything a coupling says. Raises ScenarioError for a kind that is not known here: it would pass untested."""
    match coupling:
        case Independent():
            yield from _between_rows(rows, law, "independent")
        case Blocks(angles, norms):
            if not coupling.holds_for(rows.head_dim):
                return
            cosines = coupling.cosines(rows.head_dim)
            yield _balanced(rows) if cosines is None else _angles(rows, f"{angles} inside blocks", cosines)
            yield from _between_rows(rows, law, norms)
        case EvenlySpread(intervals):
            levels = special.ndtr(rows.omega)
            first = [levels[:, :count, axis] for axis, count in enumerate(intervals(rows.head_dim))]
            yield _all_intervals_hit(rows, "coordinates are evenly spread", first)
        case MomentsMatched():
            moment = np.matrix_transpose(rows.omega) @ rows.omega / rows.size
            errors = [largest(np.mean(rows.omega, axis=1)), largest(moment - np.eye(rows.head_dim))]
            yield rows.exact("moments are matched", errors)
        case OppositePairs(inner):
            worst = largest(rows.omega[:, 0::2] + rows.omega[:, 1::2])  # 0 to the last bit
            detail = f"largest difference {worst:.1e}"
            yield MeasuredClaim(rows.subject, "opposite pairs", 2.0 * (worst != 0), 0, detail)
            yield from measure_coupling(rows._replace(omega=rows.omega[:, 0::2]), inner, law)
        case _:
            raise ScenarioError(f"{rows.subject}: verify knows no test of the coupling {coupling!r}")


def _between_rows(rows: Rows, law: RowLaw, norms: Norms) -> Iterator[MeasuredClaim]:
    """The claim on norms, and the independence of rows of different blocks: w.w' has mean 0 and mean square d.

    The latter where w has mean 0.
    """
    dim, omega = rows.head_dim, rows.omega
    squared = np.sum(omega**2, axis=-1)
    levels = special.gammainc(dim / 2, squared / 2)
    if norms == "in couples":
        yield from _couples(rows, levels)
    elif norms == "stratified":
        omega = np.sqrt(dim) * unit(omega)
        yield _all_intervals_hit(rows, "norms are stratified", [levels])
    if isinstance(law, GaussianRows | FixedNormRows | SecondMomentRows):
        product = np.sum(omega[:, 0] * omega[:, dim], axis=-1)
        z = z_of_zero_mean(np.stack([product, product**2 - dim], axis=-1))
        yield rows.test("blocks are independent", z, f"E (w.w')^2 / d = {np.mean(product**2) / dim:.3f}")
    if norms == "independent" and isinstance(law, GaussianRows):
        z = z_of_correlation(squared[:, 0], squared[:, 1])
        yield rows.test("norms are independent", [z], "rank correlation of two")


def _angles(rows: Rows, claim: str, cosines: np.ndarray) -> MeasuredClaim:
    """The cosines between the rows of each block, to rounding."""
    directions, worst = unit(rows.omega), []
    for start in range(0, rows.size, rows.head_dim):
        block = directions[:, start : start + rows.head_dim]
        expected = cosines[: block.shape[1], : block.shape[1]]
        worst.append(largest(block @ np.matrix_transpose(block) - expected))
    return rows.exact(claim, worst, "largest error of a cosine")


def _balanced(rows: Rows) -> MeasuredClaim:
    """The row of a block that was set last is opposite to the sum of the others; a single row has none."""
    dim, claim = rows.head_dim, "each row balances the others"
    if dim == 1:
        return MeasuredClaim(rows.subject, claim, 0.0, 0, "a row alone")
    blocks = rows.omega[:, : rows.size // dim * dim].reshape(len(rows.omega), -1, dim, dim)
    others, last = np.sum(blocks[:, :, :-1], axis=2), blocks[:, :, -1]
    # a sum that is nearly 0 has lost the digits of its terms
    lost = np.sum(np.linalg.norm(blocks, axis=-1), axis=-1, keepdims=True)
    lost = lost / np.linalg.norm(others, axis=-1, keepdims=True)
    return rows.exact(claim, (unit(others) + unit(last)) / lost, "largest error of a direction")


def _couples(rows: Rows, levels: np.ndarray) -> Iterator[MeasuredClaim]:
    """F(|w|) + F(|w'|) = 1 for the rows 1 and 2, 3 and 4, ... of a block; different couples are independent.

    levels: F(|w|), (draws, R). Where head_dim is odd the last row of a block has no partner.
    """
    dim = rows.head_dim
    starts = [i for start in range(0, rows.size, dim) for i in range(start, min(start + dim, rows.size) - 1, 2)]
    yield rows.exact("norms in couples", [largest(levels[:, i] + levels[:, i + 1] - 1.0) for i in starts])
    z = z_of_correlation(levels[:, 0], levels[:, 2 if dim > 3 else dim])
    yield rows.test("couples are independent", [z], "rank correlation of two")


def _all_intervals_hit(rows: Rows, claim: str, groups: list[np.ndarray]) -> MeasuredClaim:
    """Each draw of n levels (draws, n) has one in each of the n equal intervals of [0, 1]."""
    missed = 0
    for levels in groups:
        intervals = levels.shape[1]
        hit = np.sort(np.floor(levels * intervals), axis=-1)
        missed += int(np.sum(hit != np.arange(intervals)))  # nan is in none
    return MeasuredClaim(rows.subject, claim, 2.0 * missed, 0, f"{missed} out of place")
