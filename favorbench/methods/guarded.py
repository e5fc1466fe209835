"""Two summaries of the same keys, and for each query the answer of the first where it can be trusted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from favorbench.methods.summaries import KeySummary, Queries
from favorbench.numerics.arrays import Features
from favorbench.numerics.logsum import Accumulator, quotient

#: A normaliser that is trusted is at most so many times its lower bound: above it, on heads of MiniLM, it is wrong more
#: often than the bound is. At 4/3 no head is 1.1 times worse than the mean of V; with no limit some are twice as bad.
ABOVE_BOUND = 4.0 / 3.0


@dataclass(frozen=True)
class GuardedSummary:
    """K(x, y_j) of ``free`` for the queries where its normaliser is near that of ``bound``, its lower bound, and its
    output between the smallest and the largest values; of ``bound`` for others. NumPy only."""

    free: KeySummary
    bound: KeySummary
    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(free: KeySummary, bound: KeySummary, value: np.ndarray) -> "GuardedSummary":
        """With the range of the values (l, d_v) that these are means of."""
        low, high = np.min(value, axis=0), np.max(value, axis=0)
        slack = 1e-6 * (high - low)
        return GuardedSummary(free, bound, low - slack, high + slack)

    def sums(self, queries: Queries) -> Accumulator:
        free, bound = self.free.sums(queries), self.bound.sums(queries)
        trusted = self._trusted(free, bound)
        return Accumulator(*(np.where(trusted, a, b) for a, b in zip(free, bound, strict=True)))

    def kernel(self, queries: Queries, keys: slice) -> Features:
        trusted = self._trusted(self.free.sums(queries), self.bound.sums(queries))
        free, bound = (part.kernel(queries, keys) for part in (self.free, self.bound))
        assert free.values is not None and bound.values is None
        return Features(np.where(trusted, free.values, 1.0), np.where(trusted, free.log_scale, bound.log_scale))

    def _trusted(self, free: Accumulator, bound: Accumulator) -> np.ndarray:
        """For which queries, (n, 1). Rounding may put a normaliser that is exact below its bound."""
        output, normaliser = quotient(free)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.log(normaliser) + free.log_peak - np.log(bound.total[:, -1:]) - bound.log_peak
        inside = np.all((output >= self.low) & (output <= self.high), axis=-1, keepdims=True)
        return inside & (above >= -1e-6) & (above <= np.log(ABOVE_BOUND))


def with_exact(inner: KeySummary, exact: Callable[[KeySummary], KeySummary], value: np.ndarray) -> KeySummary:
    """What a prefix makes of a summary, ``exact``; done inside a guard, which then looks at the whole answer.

    Outside of it the exact keys would be put into an answer that was chosen with the estimates of these keys in it:
    what is left of a normaliser without them may be of any sign. value: of all keys, the exact ones too.
    """
    if isinstance(inner, GuardedSummary):
        return GuardedSummary.of(exact(inner.free), exact(inner.bound), value)
    return exact(inner)
