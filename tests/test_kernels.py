"""Kernels against hand-made cases and each other."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from favorbench.kernels import gaussian_kernel, polynomial_features, polynomial_kernel, softmax_kernel, squared_distance
from favorbench.numerics.arrays import cos_sin


def test_softmax_kernel_by_hand():
    x, y = np.array([[1.0, 0.0], [2.0, 1.0]]), np.array([[0.0, 3.0], [1.0, -1.0]])
    # x.y: (1,0).(0,3) = 0, (1,0).(1,-1) = 1, (2,1).(0,3) = 3, (2,1).(1,-1) = 1
    assert_allclose(softmax_kernel(x, y), np.exp([[0.0, 1.0], [3.0, 1.0]]), rtol=1e-15)


def test_gaussian_kernel_is_the_softmax_kernel_with_norm_factors(rng):
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(7, 3))
    norms = np.exp(-0.5 * np.sum(x * x, -1))[:, None] * np.exp(-0.5 * np.sum(y * y, -1))
    assert_allclose(gaussian_kernel(x, y), norms * softmax_kernel(x, y), rtol=1e-13)


def test_distance_of_a_point_to_itself_is_not_negative(rng):
    x = rng.normal(size=(50, 8)) * 100
    assert np.all(squared_distance(x, x) >= 0)


def test_degree_two_features_are_the_documented_ones():
    # x1^2, sqrt2 x1 x2, x2^2 at (3, 5): 9, 15 sqrt2, 25
    assert_allclose(polynomial_features(np.array([[3.0, 5.0]])), [[9.0, 15.0 * math.sqrt(2), 25.0]], rtol=1e-15)


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("constant", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_explicit_features_have_the_kernel_as_inner_product(rng, degree, constant, dim):
    x, y = rng.normal(size=(6, dim)), rng.normal(size=(5, dim))
    phi_x, phi_y = polynomial_features(x, degree, constant), polynomial_features(y, degree, constant)
    expected = math.comb(dim + degree, degree) if constant else math.comb(dim + degree - 1, degree)
    assert phi_x.shape[-1] == expected
    # rounding: at most 2 degree + log2(terms) operations on terms of size (|x||y| + c)^degree
    size = (np.linalg.norm(x, axis=-1)[:, None] * np.linalg.norm(y, axis=-1) + constant) ** degree
    tolerance = (4 * degree + expected + 4) * np.finfo(float).eps * size
    assert np.all(np.abs(phi_x @ phi_y.T - polynomial_kernel(x, y, degree, constant)) <= tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_half_angle_sine_and_cosine(rng, dtype):
    angle = np.concatenate([rng.normal(size=100_000) * 20, np.arange(-20, 21) * np.pi / 2, [0.0]]).astype(dtype)
    cos, sin = cos_sin(angle)
    assert cos.dtype == sin.dtype == dtype
    bound = 4 * np.finfo(dtype).eps
    assert_allclose(cos, np.cos(angle.astype(np.float64)), rtol=0, atol=bound)
    assert_allclose(sin, np.sin(angle.astype(np.float64)), rtol=0, atol=bound)
