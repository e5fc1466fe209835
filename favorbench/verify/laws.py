"""Claims on samplers: the marginal law of every row, norms, orthogonality, independence of blocks, nestedness."""

import numpy as np
from scipy import stats

from favorbench.registry import label
from favorbench.samplers import Sampler
from favorbench.streams import stream
from favorbench.verify.checks import Measurement, largest, z_of_p

HEAD_DIM = 8
NUM_PROJECTIONS = 3 * HEAD_DIM - 2  # two whole blocks and one cut short
ROWS = (0, HEAD_DIM - 1, HEAD_DIM, NUM_PROJECTIONS - 1)  # first and last of a block, first of the next, last of all


def measure(sampler: Sampler, draws: int, seed: int) -> list[Measurement]:
    """Everything a sampler claims, from independent draws."""
    subject = label(sampler)
    rng = stream(seed, "verify", "law", subject)
    omega = np.stack([sampler.sample(child, NUM_PROJECTIONS, HEAD_DIM) for child in rng.spawn(draws)])
    measured = [_nested(subject, sampler, seed)] if sampler.nested else []
    if sampler.coupling == "orthogonal":
        measured.append(_orthogonal(subject, omega))
    if sampler.gaussian_rows:
        measured += [
            _marginals(subject, omega),
            _norms(subject, omega),
            _mean_row(subject, omega),
            _between(subject, omega),
        ]
    return measured


def _marginals(subject: str, omega: np.ndarray) -> Measurement:
    """Kolmogorov-Smirnov against N(0, 1): each coordinate, and the diagonal, of four rows."""
    diagonal = np.sum(omega, axis=-1, keepdims=True) / np.sqrt(HEAD_DIM)
    coordinates = np.concatenate([omega, diagonal], axis=-1)[:, list(ROWS)]
    z = [z_of_p(stats.kstest(column, "norm").pvalue) for column in coordinates.reshape(len(omega), -1).T]
    return Measurement(subject, "rows are N(0, I)", max(z), len(z), f"{len(z)} KS tests, {len(omega)} draws")


def _norms(subject: str, omega: np.ndarray) -> Measurement:
    """Kolmogorov-Smirnov of |w|^2 against chi-square(d), and no correlation between the norms of a block."""
    squared = np.sum(omega[:, list(ROWS)] ** 2, axis=-1)
    z = [z_of_p(stats.kstest(column, stats.chi2(HEAD_DIM).cdf).pvalue) for column in squared.T]
    pair = np.sum(omega[:, :2] ** 2, axis=-1)
    correlation = stats.spearmanr(pair[:, 0], pair[:, 1])
    z.append(z_of_p(float(correlation.pvalue)))  # pyright: ignore[reportAttributeAccessIssue]
    return Measurement(subject, "norms are independent chi(d)", max(z), len(z), f"{len(z)} tests")


def _mean_row(subject: str, omega: np.ndarray) -> Measurement:
    """The mean of every row vanishes: where an unsigned QR shows first."""
    z = np.mean(omega, axis=0) * np.sqrt(len(omega))
    shown = np.mean(omega[:, 0, 0])
    return Measurement(
        subject, "rows have mean 0", largest(z), z.size, f"E w_11 = {shown:+.4f}", 1 / np.sqrt(len(omega))
    )


def _between(subject: str, omega: np.ndarray) -> Measurement:
    """Rows of different blocks are independent: w.w' has mean 0 and mean square d."""
    product = np.sum(omega[:, 0] * omega[:, HEAD_DIM], axis=-1)
    moments = np.stack([product, product**2 - HEAD_DIM])
    z = np.mean(moments, axis=-1) / (np.std(moments, axis=-1) / np.sqrt(len(omega)) + 1e-300)
    return Measurement(
        subject, "blocks are independent", largest(z), z.size, f"E (w.w')^2 / d = {np.mean(product**2) / HEAD_DIM:.3f}"
    )


def _orthogonal(subject: str, omega: np.ndarray) -> Measurement:
    """Rows of a block are orthogonal to rounding."""
    norms = np.linalg.norm(omega, axis=-1, keepdims=True)
    unit = omega / np.where(norms > 0, norms, 1.0)  # a row of zeros stays one, and its square is not 1
    worst = 0.0
    for start in range(0, NUM_PROJECTIONS, HEAD_DIM):
        block = unit[:, start : start + HEAD_DIM]
        worst = max(worst, float(np.max(np.abs(block @ np.matrix_transpose(block) - np.eye(block.shape[1])))))
    bound = 50 * HEAD_DIM * np.finfo(omega.dtype).eps  # backward error of QR: a small multiple of d eps
    return Measurement(subject, "orthogonal inside blocks", worst / bound, 0, f"largest cosine {worst:.1e}")


def _nested(subject: str, sampler: Sampler, seed: int) -> Measurement:
    """The first R rows do not depend on how many follow; sizes 1, one block, one more, many."""

    def difference(size: int) -> float:
        prefix = sampler.sample(stream(seed, "verify", "nested", subject), size, HEAD_DIM)
        return float(np.max(np.abs(prefix - whole[:size]))) if prefix.shape == (size, HEAD_DIM) else np.inf

    whole = sampler.sample(stream(seed, "verify", "nested", subject), 100, HEAD_DIM)
    worst = max(difference(size) for size in (1, HEAD_DIM - 1, HEAD_DIM, HEAD_DIM + 1, 99))
    bound = 1e-13  # of entries of order 1: another order of summation
    return Measurement(subject, "prefixes are stable", worst / bound, 0, f"largest difference {worst:.1e}")
