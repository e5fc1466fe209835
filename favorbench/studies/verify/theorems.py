"""Theorems the formulas rest on, each by a route that does not share code with the estimators."""

import numpy as np
from scipy.special import hyp1f1

from favorbench.attention.linear import kernel_estimate, linear_attention
from favorbench.maps import get_map
from favorbench.numerics.streams import stream
from favorbench.samplers import get_sampler
from favorbench.studies.theory.closed_forms import relative_variance
from favorbench.studies.verify.checks import Measurement, largest


def measure(seed: int) -> list[Measurement]:
    """All theorems."""
    return [_lemma_2(name) for name in ("trig", "positive", "hyperbolic")] + [
        _theorem_2(seed),
        _hyperbolic_is_antithetic_positive(seed),
        _trig_is_exact_on_the_diagonal(seed),
    ]


def _gauss_hermite(function) -> float:
    """E function(g) for g ~ N(0, 1), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    return float(np.sum(weights * function(nodes)) / np.sqrt(2 * np.pi))


def _lemma_2(name: str) -> Measurement:
    """The three variances of Performer's Lemma 2 (arXiv 2009.14794, eq. (8)) from quadrature of the one-row estimates.

    w.z with w ~ N(0, I) is |z| g with g ~ N(0, 1): the second moments are one-dimensional integrals.
    """
    errors = []
    for norm in (0.2, 0.7, 1.2):
        for cosine in (-1.0, -0.3, 0.0, 0.6):
            x = np.array([[norm, 0.0]])
            y = 0.9 * norm * np.array([[cosine, np.sqrt(1 - cosine**2)]])
            plus, minus, norms = np.linalg.norm(x + y), np.linalg.norm(x - y), np.sum(x * x + y * y)
            second = {
                "positive": lambda p=plus, n=norms: np.exp(-n) * _gauss_hermite(lambda g: np.exp(2 * p * g)),
                "hyperbolic": lambda p=plus, n=norms: np.exp(-n) * _gauss_hermite(lambda g: np.cosh(p * g) ** 2),
                "trig": lambda m=minus, n=norms: np.exp(n) * _gauss_hermite(lambda g: np.cos(m * g) ** 2),
            }[name]()
            kernel = float(np.exp(x @ y.T)[0, 0])
            declared = get_map(name).relative_variance(x, y, 1)
            assert declared is not None
            errors.append((float(declared[0, 0]) - (second / kernel**2 - 1.0)) * kernel**2 / second)
    worst = largest(errors)
    return Measurement(name, "Performer Lemma 2", worst / 1e-11, 0, f"variance by quadrature, error {worst:.1e}")


def _theorem_2(seed: int) -> Measurement:
    """Orthogonal rows gain at least what Performer's Theorem 2 (eq. (10)) says, for R <= d and every norm and d.

    With K = exp(x.y) and L = exp(-(|x|^2 + |y|^2)/2) the bound is 2 (R - 1) / (R (d + 2)) (K - L)^2, and the exact gain
    L^2 (R - 1)/R (exp(v2) - 1F1(d; d/2; v2/2)), v2 = |x + y|^2.
    """
    rng, ratios = stream(seed, "verify", "theorem 2"), []
    positive, iid, orthogonal = get_map("positive"), get_sampler("iid"), get_sampler("orthogonal")
    for dim in (2, 3, 8, 16, 64):
        for norm in (0.1, 0.5, 1.0, 1.5):
            x, y = (norm * v / np.linalg.norm(v) for v in rng.standard_normal((2, 1, dim)))
            kernel, factor = float(np.exp(x @ y.T)[0, 0]), float(np.exp(-norm * norm))
            rows = dim // 2 + 1
            both = [relative_variance(positive, s, x, y, rows) for s in (iid, orthogonal)]
            gain = float(both[0][0, 0] - both[1][0, 0]) * kernel**2  # pyright: ignore[reportOptionalSubscript]
            bound = 2 * (rows - 1) / (rows * (dim + 2)) * (kernel - factor) ** 2
            v2 = float(np.sum((x + y) ** 2))
            exact = factor**2 * (rows - 1) / rows * (np.exp(v2) - float(hyp1f1(dim, dim / 2, v2 / 2)))
            ratios += [bound / gain if gain > 0 else np.inf, (gain / exact - 1) / 1e-6]  # a difference of near equals
    worst = largest(ratios)
    detail = f"largest bound / gain {worst:.4f}"
    return Measurement("positive/orthogonal", "Performer Theorem 2", worst / (1 + 1e-6), 0, detail)


def _hyperbolic_is_antithetic_positive(seed: int) -> Measurement:
    """hyperbolic on W is positive on [W; -W], exactly."""
    rng = stream(seed, "verify", "antithetic")
    x, y, omega = rng.standard_normal((6, 5)), rng.standard_normal((7, 5)), rng.standard_normal((9, 5))
    both = np.concatenate([omega, -omega])
    error = kernel_estimate(x, y, omega, "hyperbolic") / kernel_estimate(x, y, both, "positive") - 1
    output = linear_attention(x, y, y, omega, "hyperbolic") - linear_attention(x, y, y, both, "positive")
    worst = largest([largest(error), largest(output)])
    return Measurement("hyperbolic", "equals positive on [W; -W]", worst / 1e-12, 0, f"largest difference {worst:.1e}")


def _trig_is_exact_on_the_diagonal(seed: int) -> Measurement:
    """trig gives exp(|x|^2) at x = y, whatever omega is."""
    rng = stream(seed, "verify", "diagonal")
    x, omega = rng.standard_normal((6, 5)), rng.standard_normal((3, 5))
    estimate = np.diagonal(kernel_estimate(x, x, omega, "trig"))
    worst = largest(estimate / np.exp(np.sum(x * x, axis=-1)) - 1)
    return Measurement("trig", "exact at x = y", worst / 1e-13, 0, f"largest error {worst:.1e}")
