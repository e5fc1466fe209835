"""The family of dense-exponential features, with any parameters: what its members share."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from favorbench.kernels import softmax_kernel, squared_sum
from favorbench.maps.base import (
    FeatureMap,
    KeyPairs,
    Keys,
    Omega,
    OneToken,
    Pairs,
    Projection,
    Sample,
    Tokens,
    with_values,
)
from favorbench.maps.random_features import norm_factors
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm, projected
from favorbench.samplers.laws import FixedNormRows, GaussianRows, OppositeRow, PairLaw, RowLaw


@dataclass(frozen=True, eq=False)  # holds arrays: equal only to itself
class DenseParameters:
    """The parameters of one member: x' = P x, y' = Q y with x'.y' = x.y (None: x and y themselves), and rho_l > 0
    along the orthonormal columns v_l of ``axes`` (None: all rho_l are equal, and any axes serve). The feature of x is

        log f(x) = sum_l [log(1 - 4 a_l)/4 + a_l (v_l.w)^2 + sqrt(1 - 4 a_l) (v_l.w)(v_l.x')] - |x'|^2 / 2,

    with a_l = (1 - 1/rho_l) / 8; that of y the same in y'. Every choice is unbiased with finite variance; rho = 1 and
    x' = x is the positive map. With A = V diag(a) V^T it has the general form of Likhosherstov et al. 2023, arXiv
    2302.00787, section 4: exp(w^T A w + w^T B x + x^T C x) det(I - 4A)^(1/4), B = (I - 4A)^(1/2) P, C = -P^T P / 2.
    """

    rho: Array  # (..., 1, d)
    query_matrix: Array | None = None  # P, (..., d, d)
    key_matrix: Array | None = None  # Q
    axes: Array | None = None

    def as_dtype_of(self, x: Array) -> "DenseParameters":
        """The same, in the precision in which features are computed."""
        parts, astype = (self.rho, self.query_matrix, self.key_matrix, self.axes), array_namespace(x).astype
        return DenseParameters(*(None if part is None else astype(part, x.dtype) for part in parts))

    def log_features(self, x: Array, matrix: Array | None, projection: Array, omega: Array) -> Array:
        """log f of the rows of x, (..., n, R). The axes turn omega, not x: R rows, where x may have a million."""
        xp = array_namespace(x)
        a, slope = self._exponents(x)
        turned = omega if self.axes is None else omega @ self.axes
        of_row = xp.sum(a * turned * turned + 0.5 * xp.log(slope), axis=-1)[..., None, :]
        image = x if matrix is None else x @ xp.matrix_transpose(matrix)
        if matrix is None and self.axes is None:
            result = slope[..., :1] * projection
        else:
            weights = turned * slope
            weights = weights if self.axes is None else weights @ xp.matrix_transpose(self.axes)
            result = projected(image, weights)
        result += of_row
        result -= half_squared_norm(image)
        return result

    def log_second_moment(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log(E (f(x) g(y))^2 / exp(2 x.y)) for w ~ N(0, I), all pairs: sum_l log((rho_l + 1)^2 / (4 rho_l)) / 2
        + sum_l rho_l (v_l.(x' + y'))^2."""
        root = np.sqrt(self.rho)
        return self._log_constant() + squared_sum(root * self._query(x), root * self._key(y))

    def log_covariance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log(E f(x)^2 g(y_j) g(y_l) / (exp(x.y_j) exp(x.y_l))) for one query x (1, d) and keys y (l, d): (l, l)."""
        z = self._query(x) + self._key(y)
        root = np.sqrt((self.rho + 1.0) / 4.0)
        norms = half_squared_norm(z)
        return self._log_constant() + squared_sum(root * z, root * z) - norms - np.matrix_transpose(norms)

    def image_sum(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """|x' + y'|^2 of every pair."""
        return squared_sum(self._query(x), self._key(y))

    def opposite(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """E of the product of the estimates from w and from -w, over exp(2 x.y): c exp(-|x' + y'|^2)."""
        return np.exp(self._log_constant() - self.image_sum(x, y))

    def fixed_norm_target(self, x: np.ndarray, y: np.ndarray, rows: FixedNormRows) -> np.ndarray:
        """The mean of the estimate for rows of one norm, where all rho are equal."""
        a, slope = self._exponents(x)
        x, y = self._query(x), self._key(y)
        factor = np.exp(np.sum(np.log(slope)) + 2.0 * np.mean(a) * rows.norm**2)
        return factor * norm_factors(x, y) * rows.laplace(np.mean(slope) * (x[:, None, :] + y[None, :, :]))

    def _exponents(self, like: Array) -> tuple[Array, Array]:
        """a and sqrt(1 - 4a)."""
        return (1.0 - 1.0 / self.rho) / 8.0, array_namespace(like).sqrt(0.5 + 0.5 / self.rho)

    def _log_constant(self) -> float:
        return float(np.sum(np.log(0.5 * (self.rho + 1.0)) - 0.5 * np.log(self.rho)))

    def _query(self, x: np.ndarray) -> np.ndarray:
        return self._along_axes(x if self.query_matrix is None else x @ self.query_matrix.T)

    def _key(self, y: np.ndarray) -> np.ndarray:
        return self._along_axes(y if self.key_matrix is None else y @ self.key_matrix.T)

    def _along_axes(self, image: np.ndarray) -> np.ndarray:
        return image if self.axes is None else image @ self.axes


@dataclass(frozen=True)
class DenseExponential(FeatureMap):
    """What the members share: everything but the choice of the parameters.

    Linear attention fits them to its queries and keys, all of them: so nothing causal. ``kernel_estimate`` and the
    closed forms fit them to the x and y they are given, unless ``fit`` was called before.
    """

    parameters: DenseParameters | None = field(default=None, init=False, repr=False)
    features_per_projection: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    causal_safe: ClassVar[bool] = False
    asymmetric: ClassVar[bool] = True

    #: d x d products with each token: those of the second moments, and with a matrix of its own.
    squares: ClassVar[int] = 0
    #: Those of them for the moments.
    moment_squares: ClassVar[int] = 0

    @abstractmethod
    def choice(self, x: Array, y: Array | None) -> DenseParameters:
        """The best parameters for queries x and keys y, in float64; without y, those that need no data."""

    def map_multiplications(self, n: int, l: int, d: int, num_projections: int) -> float:  # noqa: E741
        """Where the data have been looked at tokens are projected once more, on rows that fit them."""
        return float((n + l) * (num_projections * d + self.squares * d * d)) if self.squares else 0.0

    def fit_multiplications(self, n: int, l: int, d: int) -> float:  # noqa: E741
        return float((n + l) * self.moment_squares * d * d)

    def fit(self, x: Tokens, y: Keys, omega: Omega | None) -> "DenseExponential":
        return with_values(self, parameters=self.choice(x, y).as_dtype_of(x))

    def with_parameters(self, x: Tokens, y: Keys) -> "DenseExponential":
        return with_values(self, parameters=self._parameters(x, y))

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return self.query_features(x, projection, sample)

    def query_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        dense = self._parameters(x)
        return (Features(None, dense.log_features(x, dense.query_matrix, projection, sample.omega)),)

    def key_features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        dense = self._parameters(x)
        return (Features(None, dense.log_features(x, dense.key_matrix, projection, sample.omega)),)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        dense = self._parameters(x, y)
        if isinstance(rows, GaussianRows):
            return softmax_kernel(x, y)
        if isinstance(rows, FixedNormRows) and rows.dimension is None and dense.axes is None:
            return dense.fixed_norm_target(x, y, rows)
        return np.full((len(x), len(y)), np.nan)

    def relative_variance(self, x: Tokens, y: Keys, num_projections: int) -> Pairs:
        return np.expm1(self._parameters(x, y).log_second_moment(x, y)) / num_projections

    def pair_argument(self, x: Tokens, y: Keys) -> Pairs | None:
        """|x' + y'|^2 if all rho are equal: the feature is then a ratio of densities that depends on |w| alone, which
        turns independent norms into independent norms. Else the coupling is not isotropic in the tilted law."""
        dense = self._parameters(x, y)
        return dense.image_sum(x, y) if dense.axes is None else None

    def pair_moment(self, x: Tokens, y: Keys, pair: PairLaw) -> Pairs | None:
        """As ``pair_argument`` has it, where norms are independent; w and -w have a closed form for any axes."""
        dense = self._parameters(x, y)
        if isinstance(pair, OppositeRow) and isinstance(pair.rows, GaussianRows):
            return dense.opposite(x, y)
        return super().pair_moment(x, y, pair) if pair.free_norms else None

    def covariance(self, x: OneToken, y: Keys) -> KeyPairs:
        return np.expm1(self._parameters(x, y).log_covariance(x, y))

    def _parameters(self, x: Array, y: Array | None = None) -> DenseParameters:
        return self.choice(x, y).as_dtype_of(x) if self.parameters is None else self.parameters
