"""The Taylor polynomial of the exponential, as explicit features: nothing random."""

import math
from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from favorbench.arrays import Array, Features
from favorbench.kernels import polynomial_features
from favorbench.maps.base import FeatureMap, Sample
from favorbench.samplers.laws import RowLaw


@dataclass(frozen=True)
class Taylor(FeatureMap):
    """All monomials x^a / sqrt(a!), |a| <= order, so that phi(x).phi(y) = sum_{n <= order} (x.y)^n / n!.

    C(d + order, order) features, whatever R is, and no randomness. The estimate is positive for even orders only.
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
        if type(self.order) is not int or not 0 <= self.order <= 30:
            raise ValueError(f"order must be a whole number from 0 to 30, got {self.order!r}")

    def features(self, x: Array, projection: Array, sample: Sample) -> tuple[Features, ...]:
        xp = array_namespace(x)
        degrees = [polynomial_features(x, degree=n) / math.sqrt(math.factorial(n)) for n in range(self.order + 1)]
        return (Features(xp.concat(degrees, axis=-1), xp.zeros_like(x[..., :1]), fixed=True),)

    def num_features(self, num_projections: int, head_dim: int) -> int:
        return math.comb(head_dim + self.order, self.order)

    def target_kernel(self, x: Array, y: Array, rows: RowLaw) -> Array:
        product = x @ array_namespace(x).matrix_transpose(y)
        return sum(product**n / math.factorial(n) for n in range(self.order + 1))
