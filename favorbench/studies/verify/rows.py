"""What claims on samplers are measured on, and the tests that they share."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from favorbench.errors import ScenarioError
from favorbench.samplers import Sampler
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


def takes(sampler: Sampler, dim: int) -> bool:
    """Whether a sampler draws rows of so many coordinates: one that cannot raises ScenarioError."""
    try:
        sampler.sample(np.random.default_rng(0), sampler.round_up(1, dim), dim)
    except ScenarioError:
        return False
    return True


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
