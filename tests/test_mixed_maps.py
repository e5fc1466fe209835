"""The hybrid map, and the maps that do not aim at softmax, against quadrature."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats

import favorbench as fb
from favorbench.maps import Sample, get_map
from favorbench.maps.random_features import angle
from favorbench.samplers.laws import FixedNormRows, GaussianRows

ROWS = GaussianRows()


@pytest.mark.parametrize("n", [1, 3])
def test_hybrid_has_the_variance_it_declares(rng, n):
    """By quadrature over the projection on the plane of x and y, and the binomial law of the signs that differ."""
    x, y = np.array([[0.9, 0.2]]), np.array([[-0.1, 0.7]])
    theta = angle(x, y).item()
    assert theta == pytest.approx(np.arccos((x @ y.T).item() / np.linalg.norm(x) / np.linalg.norm(y)), rel=1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    w = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 1, 2)
    weights = np.outer(weights, weights).ravel() / (2.0 * np.pi)
    binomial, mean, second = stats.binom(n, theta / np.pi), 0.0, 0.0
    inside = {True: [], False: []}  # vectors t whose signs on x and y differ, or not
    while min(len(v) for v in inside.values()) < n:
        t = rng.normal(size=2)
        inside[bool((t @ x[0] > 0) != (t @ y[0] > 0))].append(t)
    feature_map = get_map(f"hybrid(n={n})")
    for k in range(n + 1):
        extra = np.array(inside[True][:k] + inside[False][: n - k])
        sample = Sample(w, np.broadcast_to(extra, (len(w), n, 2)))
        values = fb.kernel_estimate(x, y, sample, feature_map)[:, 0, 0]
        mean += binomial.pmf(k) * np.sum(weights * values)
        second += binomial.pmf(k) * np.sum(weights * values**2)
    kernel = np.exp((x @ y.T).item())
    assert mean == pytest.approx(kernel, rel=1e-10)
    declared = feature_map.relative_variance(x, y, 1).item()
    assert declared == pytest.approx(second / kernel**2 - 1, rel=1e-9)


def test_hybrid_knows_the_angle_of_zero(rng):
    zero, x = np.zeros((1, 4)), 0.5 * rng.normal(size=(5, 4))
    assert angle(zero, x)[0, 0] == pytest.approx(np.pi / 2)
    assert np.all(np.isfinite(get_map("hybrid").relative_variance(zero, x, 1)))


def test_hybrid_has_the_kernel_it_declares_for_other_rows():
    """Rows of fixed norm: a mixture of the two Bessel kernels; by sampling, z below 5.5."""
    x, y = np.array([[0.6, 0.1, 0.4]]), np.array([[-0.2, 0.5, 0.3]])
    rng = np.random.default_rng(4)
    w = rng.normal(size=(20_000, 1, 3))
    w *= 2.0 / np.linalg.norm(w, axis=-1, keepdims=True)
    values = fb.kernel_estimate(x, y, Sample(w, rng.normal(size=(20_000, 4, 3))), "hybrid")[:, 0, 0]
    standard_error = np.std(values) / np.sqrt(20_000)
    target = get_map("hybrid").target_kernel(x, y, FixedNormRows(2.0)).item()
    assert abs(np.mean(values) - target) < 5.5 * standard_error
    assert abs(np.mean(values) - np.exp((x @ y.T).item())) > 5.5 * standard_error


@pytest.mark.parametrize("degrees", [0.0, 10.0, 75.0, 90.0, 140.0, 180.0])
def test_relu_has_the_kernel_and_the_variance_it_declares(degrees):
    """By quadrature in polar coordinates: w = r (cos a, sin a), between the angles at which both are positive."""
    theta = math.radians(degrees)
    x, y = 0.8 * np.array([[1.0, 0.0]]), 1.3 * np.array([[math.cos(theta), math.sin(theta)]])
    eps = 0.05
    feature_map = get_map(f"relu(eps={eps})")
    breaks = sorted({-math.pi, -math.pi / 2, math.pi / 2, theta - math.pi / 2, theta + math.pi / 2 - 2 * math.pi,
                     theta + math.pi / 2, math.pi})  # fmt: skip
    breaks = [b for b in breaks if -math.pi <= b <= math.pi]
    rays = [math.gamma(k / 2 + 1) * 2 ** (k / 2) for k in range(5)]  # E r^k for r of a plane's Gaussian

    def expectation(power):
        """E ((u + eps)(v + eps))^power, the powers of r integrated exactly."""

        def integrand(a):
            u, v = (max(0.0, float(z[0] @ [math.cos(a), math.sin(a)])) for z in (x, y))
            polynomial = np.polynomial.polynomial.polypow(np.polynomial.polynomial.polymul([eps, u], [eps, v]), power)
            return sum(c * m for c, m in zip(polynomial, rays, strict=False)) / (2 * math.pi)

        return sum(integrate.quad(integrand, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(breaks))

    mean = expectation(1)
    assert feature_map.target_kernel(x, y, ROWS).item() == pytest.approx(mean, rel=1e-9)
    assert feature_map.relative_variance(x, y, 3).item() == pytest.approx((expectation(2) / mean**2 - 1) / 3, rel=1e-8)
    assert np.all(np.isnan(feature_map.target_kernel(x, y, FixedNormRows(1.0))))


def test_elu_is_elu_plus_one():
    x = np.array([[-800.0, -1.0, -0.0, 0.5, 3.0]])
    (block,) = get_map("elu").features(x, x, Sample(x))
    assert_allclose(np.exp(block.log_scale), [[0.0, math.exp(-1), 1.0, 1.5, 4.0]], rtol=1e-15)
    target = get_map("elu").target_kernel(x, x, ROWS)
    assert_allclose(fb.kernel_estimate(x, x, np.zeros((1, 5)), "elu"), target, rtol=1e-14)
