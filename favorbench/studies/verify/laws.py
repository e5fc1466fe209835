"""Claims on samplers: the law of every row, how the rows of a draw depend on one another, nestedness."""

from collections.abc import Callable

import numpy as np
from scipy import special, stats

from favorbench.numerics.streams import stream
from favorbench.registry import label
from favorbench.samplers import FixedNormRows, GaussianRows, RowLaw, Sampler
from favorbench.samplers.laws import SecondMomentRows
from favorbench.studies.verify import couplings
from favorbench.studies.verify.checks import Measurement, largest, merged, z_of_p
from favorbench.studies.verify.couplings import Rows, takes, z_of_zero_mean

HEAD_DIM = 8
#: Also measured with a twentieth of the draws, or so many: no power of two, odd, and a single coordinate.
OTHER_DIMS, FEWEST_DRAWS = (24, 3, 1), 400


def measure(sampler: Sampler, draws: int, seed: int) -> list[Measurement]:
    """Everything a sampler claims, from independent draws; each claim in the worst of several dimensions."""
    subject = label(sampler)
    parts = []
    for dim in (HEAD_DIM, *(other for other in OTHER_DIMS if takes(sampler, other))):
        count = draws if dim == HEAD_DIM else max(draws // 20, min(draws, FEWEST_DRAWS))
        rows = _drawn(subject, sampler, dim, count, seed)
        law = sampler.row_law(rows.size, dim)
        nested = [_nested(subject, sampler, dim, seed)] if sampler.nested else []
        found = nested + couplings.measure(rows, sampler.coupling, law) + _row_law(rows, law)
        parts += [(f"d = {dim}", measurement) for measurement in found]
    return merged(parts)


def _drawn(subject: str, sampler: Sampler, dim: int, draws: int, seed: int) -> Rows:
    """Two whole blocks and one cut short, an even number, or as many rows as the sampler and its coupling ask for."""
    size = sampler.round_up(max(3 * dim - 2, 4, sampler.coupling.fewest_rows(dim)), dim)
    rng = stream(seed, "verify", "law", subject, dim)
    return Rows(subject, np.stack([sampler.sample(child, size, dim) for child in rng.spawn(draws)]))


def _row_law(rows: Rows, law: RowLaw) -> list[Measurement]:
    """The law of the rows one by one; a law of confined directions shows in the kernels alone."""
    dim = rows.head_dim
    if isinstance(law, GaussianRows):
        found = [_marginals(rows, "rows are N(0, I)", special.ndtr)]
        found += [_norms(rows, "norms are chi(d)", stats.chi2(dim).cdf)]
    elif isinstance(law, FixedNormRows):
        dimension = law.dimension or dim
        sphere = "rows are uniform on a sphere"
        # on a line a sphere is two points: a norm, and a sign of mean 0, say it all
        found = [_marginals(rows, sphere, _on_a_sphere(law.norm, dimension))] if dimension > 1 else []
        if dimension == dim:
            found += [_constant_norm(rows, law.norm)]
        else:
            beta = stats.beta(dim / 2, (dimension - dim) / 2, scale=law.norm**2)
            found += [_norms(rows, "norms are those of a sphere's points", beta.cdf)]
    elif isinstance(law, SecondMomentRows):
        found = [_second_moments(rows)]
        found += [_constant_norm(rows, law.norm)] if law.norm else []
        found += [_fourth_moments(rows, *law.fourth)] if law.fourth else []
    else:
        return []
    return [*found, _mean_row(rows)]


def _marginals(rows: Rows, claim: str, distribution: Callable) -> Measurement:
    """Kolmogorov-Smirnov of w.u for some rows: each coordinate, and the diagonal."""
    diagonal = np.sum(rows.omega, axis=-1, keepdims=True) / np.sqrt(rows.head_dim)
    coordinates = np.concatenate([rows.omega, diagonal], axis=-1)[:, rows.some]
    z = [z_of_p(stats.kstest(column, distribution).pvalue) for column in coordinates.reshape(len(rows.omega), -1).T]
    return rows.test(claim, z, f"{len(z)} KS tests, {len(rows.omega)} draws")


def _norms(rows: Rows, claim: str, distribution: Callable) -> Measurement:
    """Kolmogorov-Smirnov of |w|^2 for some rows."""
    squared = np.sum(rows.omega[:, rows.some] ** 2, axis=-1)
    z = [z_of_p(stats.kstest(column, distribution).pvalue) for column in squared.T]
    return rows.test(claim, z, f"{len(z)} KS tests")


def _on_a_sphere(norm: float, dimension: int) -> Callable[[np.ndarray], np.ndarray]:
    """The distribution function of one coordinate of a point uniform on a sphere."""

    def distribution(coordinate: np.ndarray) -> np.ndarray:
        cosine = np.clip(coordinate / norm, -1.0, 1.0)
        return 0.5 + 0.5 * np.sign(cosine) * special.betainc(0.5, (dimension - 1) / 2, cosine**2)

    return distribution


def _constant_norm(rows: Rows, norm: float) -> Measurement:
    error = largest(np.linalg.norm(rows.omega, axis=-1) / norm - 1.0)
    return rows.exact("norms are constant", error, f"{norm:.4f}, error {error:.1e}")


def _second_moments(rows: Rows) -> Measurement:
    """E w w' = I for some rows."""
    omega = rows.omega[:, rows.some]
    products = omega[..., :, None] * omega[..., None, :] - np.eye(rows.head_dim)
    z = z_of_zero_mean(products[..., *np.triu_indices(rows.head_dim)].reshape(len(omega), -1))
    return rows.test("second moment is I", z, f"{z.size} moments")


def _fourth_moments(rows: Rows, same: float, mixed: float) -> Measurement:
    """E (w.u)^4 along an axis, the diagonal and a random u, for some rows.

    same sum_l u_l^4 + 3 mixed (1 - sum_l u_l^4) where the signs of the coordinates are fair and independent.
    """
    dim = rows.head_dim
    directions = np.stack([np.eye(dim)[0], np.ones(dim), stream(0, "verify", "fourth moments").standard_normal(dim)])
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    fourth = np.sum(directions**4, axis=-1)
    expected = same * fourth + 3.0 * mixed * (1.0 - fourth)
    values = (rows.omega[:, rows.some] @ directions.T) ** 4 - expected
    z = z_of_zero_mean(values.reshape(len(values), -1))
    shown = ", ".join(f"{ratio:.3f}" for ratio in 1.0 + np.mean(values, axis=(0, 1)) / expected)
    return rows.test("fourth moments", z, f"of the declared ones along axis, diagonal, random: {shown}")


def _mean_row(rows: Rows) -> Measurement:
    """The mean of every row vanishes: where an unsigned QR shows first."""
    count = len(rows.omega)
    z = np.mean(rows.omega, axis=0) * np.sqrt(count)
    shown = np.mean(rows.omega[:, 0, 0])
    return rows.test("rows have mean 0", z, f"E w_11 = {shown:+.4f}", 1 / np.sqrt(count))


def _nested(subject: str, sampler: Sampler, dim: int, seed: int) -> Measurement:
    """The first R rows do not depend on how many follow; sizes 1, one block, one more, many."""

    def drawn(size: int) -> np.ndarray:
        return sampler.sample(stream(seed, "verify", "nested", subject), size, dim)

    def difference(size: int) -> float:
        prefix = drawn(size)
        return largest(prefix - whole[:size]) if prefix.shape == (size, dim) else np.inf

    sizes = sorted({sampler.round_up(size, dim) for size in (1, max(dim - 1, 1), dim, dim + 1, 99, 102)})
    whole = drawn(sizes[-1])
    worst = largest([difference(size) for size in sizes[:-1]])
    bound = 1e-13  # of entries of order 1: another order of summation
    return Measurement(subject, "prefixes are stable", worst / bound, 0, f"largest difference {worst:.1e}")
