"""The Taylor polynomial of the exponential, as explicit features: nothing random."""

import math
from dataclasses import dataclass
from typing import ClassVar

from favorbench.kernels import monomial_features
from favorbench.maps.base import FeatureMap, Keys, Pairs, Projection, Sample, Tokens
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm
from favorbench.parameters import check_whole
from favorbench.samplers.laws import RowLaw


def direction(x: Array) -> tuple[Array, Array]:
    """x / |x| and log |x| of each row, for features of degree n that are |x|^n times those of the direction.

    A zero row keeps direction 0 and gets log 0: its features of degree n > 0 are 0 and that of degree 0 is 1.
    """
    xp = array_namespace(x)
    norm = xp.sqrt(2.0 * half_squared_norm(x))
    norm = xp.where(norm > 0, norm, xp.ones_like(norm))
    return x / norm, xp.log(norm)


def exact_degrees(x: Array, count: int) -> tuple[Features, ...]:
    """Explicit features of (x.y)^n / n!, one block for each degree n below ``count``."""
    unit, log_norm = direction(x)
    return tuple(
        Features(values, n * log_norm - 0.5 * math.lgamma(n + 1), fixed=True)
        for n, values in enumerate(monomial_features(unit, count))
    )


def exponential_series(product: Array, degrees: range) -> Array:
    """Sum of product^n / n! over a range of degrees."""
    total = 0.0 * product
    for n in degrees:
        total = total + product**n / math.factorial(n)
    return total


@dataclass(frozen=True)
class Taylor(FeatureMap):
    """All monomials x^a / sqrt(a!), |a| <= order, so that phi(x).phi(y) = sum_{n <= order} (x.y)^n / n!.

    C(d + order, order) features, whatever R is, and no randomness: the best there is for small x.y, where the first
    term that is left out is small. The estimate is positive for even orders only.
    Order 2: Arora et al. 2024 ("Based"), arXiv 2402.18668; the packed symmetric basis: Heinsen & Kozachkov 2026,
    arXiv 2602.00294.
    """

    order: int = 2
    name: ClassVar[str] = "taylor"
    reference: ClassVar[str] = "Arora et al. 2024, arXiv 2402.18668; Heinsen & Kozachkov 2026, arXiv 2602.00294"
    features_per_projection: ClassVar[int] = 0
    nonnegative: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("order", self.order, 0, 30)

    def features(self, x: Tokens, projection: Projection, sample: Sample) -> tuple[Features, ...]:
        return exact_degrees(x, self.order + 1)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return math.comb(head_dim + self.order, self.order)

    def target_kernel(self, x: Tokens, y: Keys, rows: RowLaw) -> Pairs:
        product = x @ array_namespace(x).matrix_transpose(y)
        return exponential_series(product, range(self.order + 1))
