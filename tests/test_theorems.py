"""Performer's theorems, by a route that does not share code with the estimators."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import hyp1f1

import favorbench as fb
from favorbench.samplers import get_sampler
from favorbench.studies.theory.closed_forms import relative_variance


def gauss_hermite(function):
    """E function(g) for g ~ N(0, 1), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    return float(np.sum(weights * function(nodes)) / np.sqrt(2 * np.pi))


SECOND_MOMENTS = {
    "positive": lambda plus, minus, norms: np.exp(-norms) * gauss_hermite(lambda g: np.exp(2 * plus * g)),
    "hyperbolic": lambda plus, minus, norms: np.exp(-norms) * gauss_hermite(lambda g: np.cosh(plus * g) ** 2),
    "trig": lambda plus, minus, norms: np.exp(norms) * gauss_hermite(lambda g: np.cos(minus * g) ** 2),
}


@pytest.mark.parametrize("name", SECOND_MOMENTS)
@pytest.mark.parametrize("norm", [0.2, 0.7, 1.2])
@pytest.mark.parametrize("cosine", [-1.0, -0.3, 0.0, 0.6])
def test_lemma_2(name, norm, cosine):
    """The variances of arXiv 2009.14794, eq. (8): w.z is |z| g for g ~ N(0, 1), so they are one-dimensional."""
    x = np.array([[norm, 0.0]])
    y = 0.9 * norm * np.array([[cosine, np.sqrt(1 - cosine**2)]])
    second = SECOND_MOMENTS[name](np.linalg.norm(x + y), np.linalg.norm(x - y), np.sum(x * x + y * y))
    kernel = np.exp(x @ y.T).item()
    declared = fb.get_map(name).relative_variance(x, y, 1).item()
    assert abs(declared - (second / kernel**2 - 1.0)) * kernel**2 / second <= 1e-11


@pytest.mark.parametrize("dim", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("norm", [0.1, 0.5, 1.0, 1.5])
def test_theorem_2(rng, dim, norm):
    """Orthogonal rows gain at least what eq. (10) says, for R <= d.

    With K = exp(x.y) and L = exp(-(|x|^2 + |y|^2)/2) the bound is 2 (R - 1) / (R (d + 2)) (K - L)^2, and the exact gain
    L^2 (R - 1)/R (exp(v2) - 1F1(d; d/2; v2/2)), v2 = |x + y|^2.
    """
    x, y = (norm * v / np.linalg.norm(v) for v in rng.standard_normal((2, 1, dim)))
    kernel, factor, rows = np.exp(x @ y.T).item(), np.exp(-norm * norm), dim // 2 + 1
    iid, orthogonal = (
        relative_variance(fb.get_map("positive"), get_sampler(name), x, y, rows).item()
        for name in ("iid", "orthogonal")
    )
    gain, v2 = (iid - orthogonal) * kernel**2, np.sum((x + y) ** 2)
    exact = factor**2 * (rows - 1) / rows * (np.exp(v2) - hyp1f1(dim, dim / 2, v2 / 2))
    assert gain == pytest.approx(exact, rel=1e-6)  # a difference of near equals
    assert gain * (1 + 1e-6) >= 2 * (rows - 1) / (rows * (dim + 2)) * (kernel - factor) ** 2


def test_trig_is_exact_at_equal_points(rng):
    x, omega = rng.standard_normal((6, 5)), rng.standard_normal((3, 5))
    assert_allclose(np.diagonal(fb.kernel_estimate(x, x, omega, "trig")), np.exp(np.sum(x * x, axis=-1)), rtol=1e-13)
