"""Dense-exponential features: positive, unbiased, and with a law of the projections that follows the data.

FAVOR++ (``oprf``) and FAVOR# (``saderf``, ``sderf``, ``aderf``), and the best of both, ``aderf-sderf``. All are one
family with different parameters, ``Dense``; each minimises, over its part of the family, the mean over all pairs of a
query and a key of log(E (f(x) g(y))^2 / exp(2 x.y)), in closed form.
"""

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import device

from favorbench.maps.base import claim
from favorbench.maps.dense import Dense, DenseExponential
from favorbench.maps.moments import balance, in_float64, lifted, mean, moments_of, rho_along_axes, shared_rho
from favorbench.numerics.arrays import Array, array_namespace
from favorbench.parameters import check_positive


@dataclass(frozen=True)
class OPRF(DenseExponential):
    """f(x) = (1 - 4A)^(d/4) exp(A |w|^2 + sqrt(1 - 4A) w.x - |x|^2/2), A = (1 - 1/rho)/8: FAVOR++.

    The second moment is ((rho + 1)^2 / (4 rho))^(d/2) exp(rho |x + y|^2) times exp(2 x.y): a price that does not depend
    on the data for an exponent that is rho times smaller than that of ``positive``. By default rho is the minimum of
    its mean logarithm over all pairs, which depends on the mean of |x + y|^2 alone. A given rho takes nothing from the
    data, so the map is then causal-safe. Good for long queries and keys, where rho is far below 1.
    Likhosherstov et al. 2022, "Chefs' Random Tables", arXiv 2205.15317, Theorems 3.1 to 3.3.
    """

    rho: float | None = None
    name: ClassVar[str] = "oprf"
    reference: ClassVar[str] = "Likhosherstov et al. 2022, arXiv 2205.15317"
    causal_safe: ClassVar[bool] = claim(lambda self: self.rho is not None)
    asymmetric: ClassVar[bool] = False

    @property
    def takes_data(self) -> bool:
        return self.rho is None

    def __post_init__(self) -> None:
        if self.rho is not None:
            check_positive("rho", self.rho, otherwise="left out to be fitted")

    def choice(self, x: Array, y: Array | None) -> Dense:
        xp = array_namespace(x)
        if self.rho is not None:
            return Dense(xp.full_like(x[..., :1, :], float(self.rho)))
        x64, y64 = in_float64(self, x, y)
        phi = mean(x64 * x64) + mean(y64 * y64) + 2.0 * mean(x64) * mean(y64)
        return Dense(shared_rho(xp.sum(phi, axis=-1, keepdims=True), x))


@dataclass(frozen=True)
class SADERF(DenseExponential):
    """``oprf`` after a rescaling of each coordinate, x' = psi x, y' = y / psi, psi_l = (E y_l^2 / E x_l^2)^(1/4).

    Makes queries and keys equally long in every coordinate. Good where coordinates differ in scale; costs O(d L).
    Likhosherstov et al. 2023, arXiv 2302.00787, "SADERF".
    """

    squares: ClassVar[int] = 1
    name: ClassVar[str] = "saderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> Dense:
        xp = array_namespace(x)
        x64, y64 = in_float64(self, x, y)
        of_query, of_key = mean(x64 * x64), mean(y64 * y64)
        square = xp.sqrt(lifted(of_key) / lifted(of_query))  # psi^2
        phi = of_query * square + of_key / square + 2.0 * mean(x64) * mean(y64)
        psi, one = xp.sqrt(square), xp.eye(x.shape[-1], dtype=xp.float64, device=device(x))
        return Dense(shared_rho(xp.sum(phi, axis=-1, keepdims=True), x), one * psi, one / psi)


@dataclass(frozen=True)
class SDERF(DenseExponential):
    """A rho for every eigenvector of the mean of (x + y)(x + y)^T, by its eigenvalue.

    Good where queries and keys lie near a subspace. Likhosherstov et al. 2023, arXiv 2302.00787, "SDERF".
    """

    squares: ClassVar[int] = 1
    moment_squares: ClassVar[int] = 1
    name: ClassVar[str] = "sderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"
    asymmetric: ClassVar[bool] = False

    def choice(self, x: Array, y: Array | None) -> Dense:
        moments = moments_of(*in_float64(self, x, y))
        rho, axes = rho_along_axes(moments.of_sum())
        return Dense(rho, axes=axes)


@dataclass(frozen=True)
class ADERF(DenseExponential):
    """``oprf`` after the linear maps x' = P x, y' = P^-T y that give queries and keys equal second moments.

    Good where queries and keys have different shapes. Likhosherstov et al. 2023, arXiv 2302.00787, "ADERF".
    """

    squares: ClassVar[int] = 2
    moment_squares: ClassVar[int] = 1
    name: ClassVar[str] = "aderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787"

    def choice(self, x: Array, y: Array | None) -> Dense:
        xp = array_namespace(x)
        moments = moments_of(*in_float64(self, x, y))
        query, key = balance(moments)
        phi = xp.linalg.trace(moments.images(query, key).of_sum())[..., None, None]
        return Dense(shared_rho(phi, x), query, key)


@dataclass(frozen=True)
class ADERFThenSDERF(DenseExponential):
    """The linear maps of ``aderf``, then the axes and rho of ``sderf`` for x' and y'.

    Its mean log second moment is never above that of ``aderf``, whose single rho is one choice of these.
    Both parts: Likhosherstov et al. 2023, arXiv 2302.00787; one after the other: here.
    """

    squares: ClassVar[int] = 2
    moment_squares: ClassVar[int] = 1
    name: ClassVar[str] = "aderf-sderf"
    reference: ClassVar[str] = "Likhosherstov et al. 2023, arXiv 2302.00787 (ADERF, then SDERF)"

    def choice(self, x: Array, y: Array | None) -> Dense:
        moments = moments_of(*in_float64(self, x, y))
        query, key = balance(moments)
        rho, axes = rho_along_axes(moments.images(query, key).of_sum())
        return Dense(rho, query, key, axes)
