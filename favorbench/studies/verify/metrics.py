"""Claims on metrics: each against its formula, entry by entry."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from favorbench.metrics import METRICS, error_sums, metrics_of
from favorbench.numerics.streams import stream
from favorbench.studies.verify.attention import EPS
from favorbench.studies.verify.checks import Measurement, largest, over_rounding


class Measured(NamedTuple):
    """What metrics are of: estimate, exact answer, uniform answer, float64 estimate, normalisers and row sums."""

    e: np.ndarray
    o: np.ndarray
    u: np.ndarray
    d: np.ndarray
    n: np.ndarray
    s: np.ndarray


#: Metrics from the entries one by one.
FORMULAS: dict[str, Callable[[Measured], float]] = {
    "mse": lambda m: _sum_squares(m.e - m.o) / m.e.size,
    "relative_error": lambda m: math.sqrt(_sum_squares(m.e - m.o) / _sum_squares(m.o)),
    "relative_l1": lambda m: _sum_sizes(m.e - m.o) / _sum_sizes(m.o),
    "cosine": lambda m: math.fsum(_cosine(a, b) for a, b in zip(m.e, m.o, strict=True)) / len(m.e),
    "skill": lambda m: 1.0 - _sum_squares(m.e - m.o) / _sum_squares(m.u - m.o),
    "rounding": lambda m: math.sqrt(_sum_squares(m.e - m.d) / _sum_squares(m.o)),
    "max_abs_error": lambda m: max(abs(float(a)) for a in (m.e - m.o).ravel()),
    "bad_normalisers": lambda m: sum(not (0.0 < float(a) < math.inf) for a in m.n.ravel()) / m.n.size,
    "unnormalised_rows": lambda m: sum(not (0.99 <= float(a) <= 1.01) for a in m.s.ravel()) / m.s.size,
}

#: Means over rows, of which one that has failed is one of many.
OVER_ROWS = ("cosine", "bad_normalisers", "unnormalised_rows")


def _sum_squares(a: np.ndarray) -> float:
    return math.fsum(float(x) ** 2 for x in a.ravel())


def _sum_sizes(a: np.ndarray) -> float:
    return math.fsum(abs(float(x)) for x in a.ravel())


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """0 where one of the rows has no direction."""
    lengths = math.hypot(*a) * math.hypot(*b)
    return math.fsum(a * b) / lengths if 0.0 < lengths < math.inf else 0.0


def measure(seed: int) -> Iterator[Measurement]:
    """Every metric of several estimates at once, one of which has failed: its error is infinite, never small."""
    rng = stream(seed, "verify", "metrics")
    exact, uniform, normaliser = (
        rng.standard_normal((7, 3)),
        rng.standard_normal((7, 3)),
        rng.standard_normal((4, 7, 1)),
    )
    estimates, double = exact + rng.standard_normal((2, 4, 7, 3))
    estimates[3, 2, 1], normaliser[1, 0] = np.nan, np.nan
    row_sums = 1.0 + 0.02 * rng.standard_normal((4, 7, 1))
    row_sums[2, 5] = np.nan
    found = metrics_of(error_sums(estimates, exact, normaliser, double, row_sums), error_sums(uniform, exact))
    for name in METRICS:
        if name not in FORMULAS:
            yield Measurement(f"metric {name}", "equals its formula", None, 0, "nothing declared: no formula here")
            continue
        formula = FORMULAS[name]
        every = zip(estimates, double, normaliser, row_sums, strict=True)
        expected = np.array([formula(Measured(e, exact, uniform, d, n, s)) for e, d, n, s in every])
        if name not in OVER_ROWS:
            expected[3] = -math.inf if METRICS[name].better == "higher" else math.inf
        same = found[name] == expected
        error = np.where(same, 0.0, np.abs(found[name] - np.where(same, 0.0, expected)))
        bound = estimates[0].size * EPS * (1.0 + np.abs(np.where(np.isfinite(expected), expected, 0.0)))
        yield over_rounding(f"metric {name}", "equals its formula", [largest(error / bound)])
