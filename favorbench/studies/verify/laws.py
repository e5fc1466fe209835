"""Claims on samplers: the law of every row, how the rows of a draw depend on one another, nestedness."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special, stats

from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import FixedNormRows, GaussianRows, RowLaw, Sampler
from favorbench.samplers.laws import SecondMomentRows
from favorbench.studies.verify.checks import Measurement, largest, z_of_p

HEAD_DIM = 8
NUM_PROJECTIONS = 3 * HEAD_DIM - 2  # two whole blocks and one cut short; even, and more than any sampler needs
ROWS = (0, HEAD_DIM - 1, HEAD_DIM, NUM_PROJECTIONS - 1)  # first and last of a block, first of the next, last of all

#: What a word for a coupling says: of the subject, of the sampler, shown by omega (draws, R, d).
Claim = Callable[[str, Any, np.ndarray], list[Measurement]]


def measure(sampler: Sampler, draws: int, seed: int) -> list[Measurement]:
    """Everything a sampler claims, from independent draws."""
    subject = label(sampler)
    size = sampler.round_up(NUM_PROJECTIONS, HEAD_DIM)
    rng = stream(seed, "verify", "law", subject)
    omega = np.stack([sampler.sample(child, size, HEAD_DIM) for child in rng.spawn(draws)])
    nested = [_nested(subject, sampler, seed)] if sampler.nested else []
    return nested + _coupling(subject, sampler, omega) + _row_law(subject, sampler.row_law(size, HEAD_DIM), omega)


def _row_law(subject: str, law: RowLaw, omega: np.ndarray) -> list[Measurement]:
    """The law of the rows one by one; a law of confined directions shows in the kernels alone."""
    if isinstance(law, GaussianRows):
        rows = [_marginals(subject, "rows are N(0, I)", special.ndtr, omega)]
        rows += [_norms(subject, "norms are chi(d)", stats.chi2(HEAD_DIM).cdf, omega)]
    elif isinstance(law, FixedNormRows):
        dimension = law.dimension or HEAD_DIM
        rows = [_marginals(subject, "rows are uniform on a sphere", _on_a_sphere(law.norm, dimension), omega)]
        if dimension == HEAD_DIM:
            rows += [_constant_norm(subject, law.norm, omega)]
        else:
            beta = stats.beta(HEAD_DIM / 2, (dimension - HEAD_DIM) / 2, scale=law.norm**2)
            rows += [_norms(subject, "norms are those of a sphere's points", beta.cdf, omega)]
    elif isinstance(law, SecondMomentRows):
        rows = [_second_moments(subject, omega)]
        rows += [_constant_norm(subject, law.norm, omega)] if law.norm else []
    else:
        return []
    return [*rows, _mean_row(subject, omega)]


def _marginals(subject: str, claim: str, distribution: Callable, omega: np.ndarray) -> Measurement:
    """Kolmogorov-Smirnov of w.u for four rows: each coordinate, and the diagonal."""
    diagonal = np.sum(omega, axis=-1, keepdims=True) / np.sqrt(HEAD_DIM)
    coordinates = np.concatenate([omega, diagonal], axis=-1)[:, list(ROWS)]
    z = [z_of_p(stats.kstest(column, distribution).pvalue) for column in coordinates.reshape(len(omega), -1).T]
    return Measurement(subject, claim, max(z), len(z), f"{len(z)} KS tests, {len(omega)} draws")


def _norms(subject: str, claim: str, distribution: Callable, omega: np.ndarray) -> Measurement:
    """Kolmogorov-Smirnov of |w|^2 for four rows."""
    squared = np.sum(omega[:, list(ROWS)] ** 2, axis=-1)
    z = [z_of_p(stats.kstest(column, distribution).pvalue) for column in squared.T]
    return Measurement(subject, claim, max(z), len(z), f"{len(z)} KS tests")


def _on_a_sphere(norm: float, dimension: int) -> Callable[[np.ndarray], np.ndarray]:
    """The distribution function of one coordinate of a point uniform on a sphere."""

    def distribution(coordinate: np.ndarray) -> np.ndarray:
        cosine = np.clip(coordinate / norm, -1.0, 1.0)
        return 0.5 + 0.5 * np.sign(cosine) * special.betainc(0.5, (dimension - 1) / 2, cosine**2)

    return distribution


def _constant_norm(subject: str, norm: float, omega: np.ndarray) -> Measurement:
    error = float(np.max(np.abs(np.linalg.norm(omega, axis=-1) / norm - 1.0)))
    return Measurement(subject, "norms are constant", error / _rounding(omega), 0, f"{norm:.4f}, error {error:.1e}")


def _second_moments(subject: str, omega: np.ndarray) -> Measurement:
    """E w w' = I for each row."""
    products = omega[..., :, None] * omega[..., None, :] - np.eye(HEAD_DIM)
    z = _z_of_zero_mean(products[..., *np.triu_indices(HEAD_DIM)].reshape(len(omega), -1))
    return Measurement(subject, "second moment is I", largest(z), z.size, f"{z.size} moments")


def _mean_row(subject: str, omega: np.ndarray) -> Measurement:
    """The mean of every row vanishes: where an unsigned QR shows first."""
    z = np.mean(omega, axis=0) * np.sqrt(len(omega))
    shown = np.mean(omega[:, 0, 0])
    return Measurement(
        subject, "rows have mean 0", largest(z), z.size, f"E w_11 = {shown:+.4f}", 1 / np.sqrt(len(omega))
    )


def _z_of_zero_mean(values: np.ndarray) -> np.ndarray:
    """z of the mean of each column against 0; where a column is constant, any other number than 0 counts."""
    mean, standard_error = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(len(values))
    return np.where(np.abs(mean) < 1e-12, 0.0, mean / (standard_error + 1e-300))


def _rounding(omega: np.ndarray) -> float:
    return 50 * HEAD_DIM * float(np.finfo(omega.dtype).eps)  # backward error of QR: a small multiple of d eps


def _coupling(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """How the rows of one draw depend on one another; nothing for a word that is not known here."""
    law = sampler.row_law(omega.shape[1], HEAD_DIM)
    isotropic = isinstance(law, GaussianRows | FixedNormRows | SecondMomentRows)
    measured = []
    for claim in COUPLINGS.get(sampler.coupling, ()):
        if claim in (_between, _free_norms) and not isotropic:
            continue  # both suppose rows of mean 0
        if claim is _free_norms and not isinstance(law, GaussianRows):
            continue  # no norms are drawn
        measured += claim(subject, sampler, omega)
    return measured


def _uncorrelated(subject: str, claim: str, first: np.ndarray, second: np.ndarray) -> Measurement:
    correlation = stats.spearmanr(first, second)
    z = z_of_p(float(correlation.pvalue))  # pyright: ignore[reportAttributeAccessIssue]
    return Measurement(subject, claim, z, 1, "rank correlation of two")


def _free_norms(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """No correlation between the norms of the first two rows."""
    squared = np.sum(omega[:, :2] ** 2, axis=-1)
    return [_uncorrelated(subject, "norms are independent", squared[:, 0], squared[:, 1])]


def _between(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """Rows of different blocks are independent: w.w' has mean 0 and mean square d."""
    product = np.sum(omega[:, 0] * omega[:, HEAD_DIM], axis=-1)
    z = _z_of_zero_mean(np.stack([product, product**2 - HEAD_DIM], axis=-1))
    shown = f"E (w.w')^2 / d = {np.mean(product**2) / HEAD_DIM:.3f}"
    return [Measurement(subject, "blocks are independent", largest(z), z.size, shown)]


def _directions_between(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """The directions of rows of different blocks are independent; their norms are not."""
    return _between(subject, sampler, np.sqrt(HEAD_DIM) * _unit(omega))


def _unit(omega: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(omega, axis=-1, keepdims=True)
    return omega / np.where(norms > 0, norms, 1.0)  # a row of zeros stays one, and its square is not 1


def _orthogonal(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """Rows of a block are orthogonal."""
    return _angles(subject, "orthogonal inside blocks", np.eye(HEAD_DIM), omega)


def _simplex(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """Rows of a block stand at the angles of a simplex."""
    cosines = (HEAD_DIM * np.eye(HEAD_DIM) - 1.0) / (HEAD_DIM - 1)
    return _angles(subject, "simplex inside blocks", cosines, omega)


def _angles(subject: str, claim: str, cosines: np.ndarray, omega: np.ndarray) -> list[Measurement]:
    """The cosines between the rows of each block, to rounding."""
    unit, worst = _unit(omega), 0.0
    for start in range(0, omega.shape[1], HEAD_DIM):
        block = unit[:, start : start + HEAD_DIM]
        expected = cosines[: block.shape[1], : block.shape[1]]
        worst = max(worst, float(np.max(np.abs(block @ np.matrix_transpose(block) - expected))))
    return [Measurement(subject, claim, worst / _rounding(omega), 0, f"largest error of a cosine {worst:.1e}")]


def _fitted_to_norms(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """The row of a block that was set last is opposite to the sum of the others."""
    blocks = omega[:, : omega.shape[1] // HEAD_DIM * HEAD_DIM].reshape(len(omega), -1, HEAD_DIM, HEAD_DIM)
    others, last = np.sum(blocks[:, :, :-1], axis=2), blocks[:, :, -1]
    # a sum that is nearly 0 has lost the digits of its terms
    lost = np.sum(np.linalg.norm(blocks, axis=-1), axis=-1, keepdims=True) / np.linalg.norm(
        others, axis=-1, keepdims=True
    )
    worst = float(np.max(np.abs(_unit(others) + _unit(last)) / lost))
    detail = f"largest error of a direction {worst:.1e}"
    return [Measurement(subject, "each row balances the others", worst / _rounding(omega), 0, detail)]


def _couples(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """F(|w|) + F(|w'|) = 1 for the rows 1 and 2, 3 and 4, ... of a block; different couples are independent."""
    levels = special.gammainc(HEAD_DIM / 2, np.sum(omega**2, axis=-1) / 2)
    error = float(np.max(np.abs(levels[:, 0::2] + levels[:, 1::2] - 1.0)))  # no row is left over: HEAD_DIM is even
    exact = Measurement(subject, "norms in couples", error / _rounding(omega), 0, f"largest error {error:.1e}")
    return [exact, _uncorrelated(subject, "couples are independent", levels[:, 0], levels[:, 2])]


def _strata(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """One norm in each of the R intervals of equal probability."""
    levels = special.gammainc(HEAD_DIM / 2, np.sum(omega**2, axis=-1) / 2)
    return [_all_intervals_hit(subject, "norms are stratified", [levels])]


def _even_coordinates(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """Of the first b rows one lies in each of b intervals of equal probability, b a number of each coordinate's."""
    levels = special.ndtr(omega)
    first = [levels[:, :b, coordinate] for coordinate, b in enumerate(sampler.intervals(HEAD_DIM))]
    return [_all_intervals_hit(subject, "coordinates are evenly spread", first)]


def _all_intervals_hit(subject: str, claim: str, groups: list[np.ndarray]) -> Measurement:
    """Each draw of n levels (draws, n) has one in each of the n equal intervals of [0, 1]."""
    missed = 0
    for levels in groups:
        intervals = levels.shape[1]
        hit = np.sort(np.floor(levels * intervals), axis=-1)
        missed += int(np.sum(hit != np.arange(intervals)))
    return Measurement(subject, claim, 2.0 * missed, 0, f"{missed} out of place")


def _opposite(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """Each second row is minus the one before; the others are coupled as those of the inner sampler."""
    worst = float(np.max(np.abs(omega[:, 0::2] + omega[:, 1::2])))
    pairs = Measurement(subject, "opposite pairs", 2.0 * (worst > 0), 0, f"largest difference {worst:.1e}")
    return [pairs, *_coupling(subject, sampler.inner, omega[:, 0::2])]


def _matched(subject: str, sampler: Any, omega: np.ndarray) -> list[Measurement]:
    """Every draw has mean 0 and second moment I."""
    mean = float(np.max(np.abs(np.mean(omega, axis=1))))
    moment = np.matrix_transpose(omega) @ omega / omega.shape[1]
    worst = max(mean, float(np.max(np.abs(moment - np.eye(HEAD_DIM)))))
    return [Measurement(subject, "moments are matched", worst / _rounding(omega), 0, f"largest error {worst:.1e}")]


COUPLINGS: dict[str, tuple[Claim, ...]] = {
    "independent": (_between, _free_norms),
    "orthogonal": (_orthogonal, _between, _free_norms),
    "simplex": (_simplex, _between, _free_norms),
    "simplex, fitted to the norms": (_fitted_to_norms, _between, _free_norms),
    "orthogonal, norms in couples": (_orthogonal, _couples, _between),
    "orthogonal, norms stratified": (_orthogonal, _strata, _directions_between),
    "low-discrepancy": (_even_coordinates,),
    "moment-matched": (_matched,),
    "antithetic": (_opposite,),
}


def _nested(subject: str, sampler: Sampler, seed: int) -> Measurement:
    """The first R rows do not depend on how many follow; sizes 1, one block, one more, many."""

    def difference(size: int) -> float:
        prefix = sampler.sample(stream(seed, "verify", "nested", subject), size, HEAD_DIM)
        return float(np.max(np.abs(prefix - whole[:size]))) if prefix.shape == (size, HEAD_DIM) else np.inf

    sizes = sorted({sampler.round_up(size, HEAD_DIM) for size in (1, HEAD_DIM - 1, HEAD_DIM, HEAD_DIM + 1, 99, 102)})
    whole = sampler.sample(stream(seed, "verify", "nested", subject), sizes[-1], HEAD_DIM)
    worst = max(difference(size) for size in sizes[:-1])
    bound = 1e-13  # of entries of order 1: another order of summation
    return Measurement(subject, "prefixes are stable", worst / bound, 0, f"largest difference {worst:.1e}")
