"""The Taylor polynomial of the exponential, as explicit features: deterministic, for comparison."""

import math
from dataclasses import dataclass

from array_api_compat import array_namespace

from favorbench.arrays import Array, Features
from favorbench.kernels import polynomial_features


@dataclass(frozen=True)
class Taylor:
    """All monomials x^a / sqrt(a!), |a| <= order, so that phi(x).phi(y) = sum_{n <= order} (x.y)^n / n!.

    C(d + order, order) features, no randomness. The estimate is positive for even orders only.
    """

    order: int

    def features(self, x: Array) -> Features:
        """(..., n, d) -> features (..., n, C(d + order, order))."""
        xp = array_namespace(x)
        degrees = [polynomial_features(x, degree=n) / math.sqrt(math.factorial(n)) for n in range(self.order + 1)]
        return Features(xp.concat(degrees, axis=-1), xp.zeros((*x.shape[:-1], 1), dtype=x.dtype))

    def num_features(self, head_dim: int) -> int:
        """C(head_dim + order, order)."""
        return math.comb(head_dim + self.order, self.order)
