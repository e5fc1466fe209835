"""Dense-exponential maps and centring: closed forms against quadrature and other routes, optimality, exactness."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize

import favorbench as fb
from favorbench.errors import InputError
from favorbench.kernels import squared_sum
from favorbench.maps import Sample, get_map
from favorbench.maps.exponential import ADERF, OPRF, SADERF, SDERF, ADERFThenSDERF, DenseExponential, DenseParameters
from favorbench.samplers import get_sampler
from favorbench.samplers.laws import FixedNormRows, GaussianRows, OppositeRow
from favorbench.studies.closed_forms import draws_needed, relative_variance

FITTED = [OPRF, SADERF, SDERF, ADERF, ADERFThenSDERF]


def points(seed=0, n=40, length=30, dim=6):
    """Queries and keys of different shapes, with means, in a few strong directions."""
    rng = np.random.default_rng(seed)
    spectrum = 2.0 ** -np.arange(dim)
    left, right = (np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(2))
    x = (rng.normal(size=(n, dim)) * spectrum) @ left + 0.3 * rng.normal(size=dim)
    y = (rng.normal(size=(length, dim)) * spectrum[::-1]) @ right + 0.2 * rng.normal(size=dim)
    return x, y


def parameters(member, x, y):
    found = member().fit(x, y, x).parameters
    assert isinstance(found, DenseParameters)
    return found


def quadrature(dim, nodes=40):
    """Nodes (n, dim) and weights of a Gauss-Hermite rule for w ~ N(0, I)."""
    t, weight = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(*[t] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    weights = np.prod(np.stack(np.meshgrid(*[weight] * dim, indexing="ij"), axis=-1).reshape(-1, dim), axis=-1)
    return grid, weights / np.sum(weights)


def estimates(feature_map, x, y, omega):
    """The kernel estimate of each row of omega alone: (rows, n, l)."""
    return fb.kernel_estimate(x, y, Sample(omega[:, None, :]), feature_map)


@pytest.mark.parametrize(
    "spec", [*(m.name for m in FITTED), "oprf(rho=0.4)", "oprf(rho=1.7)", "positive", "hyperbolic", "trig"]
)
def test_mean_variance_and_covariances_are_integrals(spec):
    """E f(x) g(y) = exp(x.y), the second moment, E over w and -w, and E f(x)^2 g(y_j) g(y_l), by quadrature in 2 d.

    Of positive, hyperbolic and trig the second moments are Lemma 2 and eq. (8) of arXiv 2009.14794.
    """
    x, y = (0.6 * a for a in points(1, n=5, length=4, dim=2))
    y = np.concatenate([y, x[:1], -x[:1]])
    feature_map, (omega, weights) = get_map(spec).fit(x, y, x), quadrature(2, nodes=80)
    kernel = np.exp(x @ y.T)
    values = estimates(feature_map, x, y, omega) / kernel
    assert_allclose(np.tensordot(weights, values, 1), 1.0, rtol=1e-10)
    variance = np.tensordot(weights, values**2, 1) - 1.0
    assert_allclose(variance, feature_map.relative_variance(x, y, 1), rtol=1e-11, atol=1e-12)
    products = values * estimates(feature_map, x, y, -omega) / kernel
    opposite = feature_map.pair_moment(x, y, OppositeRow(GaussianRows(), 2))
    assert_allclose(np.tensordot(weights, products, 1), opposite)
    for row in range(len(x)):
        covariance = np.einsum("w,wj,wl->jl", weights, values[:, row], values[:, row]) - 1.0
        assert_allclose(feature_map.covariance(x[row : row + 1], y), covariance, rtol=1e-8, atol=1e-10)


def mean_log(dense, x, y):
    return float(np.mean(dense.log_second_moment(x, y)))


def test_the_shared_rho_is_the_minimum():
    x, y = points(3)
    found = float(parameters(OPRF, x, y).rho[0, 0])
    best = optimize.minimize_scalar(
        lambda t: mean_log(DenseParameters(np.full((1, 6), np.exp(t))), x, y), bounds=(-6, 3), options={"xatol": 1e-9}
    )
    assert found == pytest.approx(np.exp(best.x), rel=1e-6)
    assert found == pytest.approx(_rho(np.mean(squared_sum(x, y)), 6), rel=1e-12)
    assert float(parameters(OPRF, 0 * x, 0 * y).rho[0, 0]) == 1.0


def _rho(phi, dim):
    """The same optimum, as the papers write it."""
    return (math.sqrt((2 * phi + dim) ** 2 + 8 * dim * phi) - 2 * phi - dim) / (4 * phi)


@pytest.mark.parametrize("seed", range(5))
def test_no_nearby_parameters_are_better(seed):
    """Each member minimises the mean log second moment over its own part of the family."""
    x, y = points(seed)
    rng = np.random.default_rng(seed)
    tolerance = 1e-4  # what the ridge may cost: RIDGE times the ratio of the eigenvalues, here up to 1e3
    best = {member: mean_log(parameters(member, x, y), x, y) for member in FITTED}
    for _ in range(20):
        step = 0.05 * rng.normal(size=(6, 6))
        shift = np.eye(6) + step
        for member in FITTED:
            dense = parameters(member, x, y)
            diagonal = np.diag(np.exp(np.diag(step)))
            move = {SADERF: diagonal, ADERF: shift, OPRF: None, SDERF: None, ADERFThenSDERF: None}[member]
            query, key, axes = dense.query_matrix, dense.key_matrix, dense.axes
            if move is not None:
                query, key = move @ query, np.linalg.inv(move).T @ key
            if axes is not None:
                axes = np.linalg.qr(axes @ shift)[0]
            factor = np.exp(np.diag(step)) if axes is not None else np.exp(step[0, 0])
            other = DenseParameters(dense.rho * factor, query, key, axes)
            assert mean_log(other, x, y) > best[member] - tolerance
    assert best[ADERFThenSDERF] <= best[ADERF] + 1e-12 and best[SDERF] <= best[OPRF] + 1e-12
    assert best[ADERF] <= min(best[OPRF], best[SADERF]) + tolerance and best[SADERF] <= best[OPRF] + tolerance
    assert best[OPRF] < np.mean(squared_sum(x, y))  # that of positive


@pytest.mark.parametrize("member", FITTED)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_singular_moments_are_no_obstacle(member, dtype):
    """One query, a coordinate that is always 0, nothing but zeros: fitted, finite, and x'.y' = x.y."""
    rng = np.random.default_rng(0)
    x, y = (0.5 * rng.normal(size=(2, 9, 5))).astype(dtype)
    x[:, 2], y[:, 4] = 0.0, 0.0
    value, omega = rng.normal(size=(9, 3)).astype(dtype), rng.normal(size=(60, 5)).astype(dtype)
    for left, right in ((x, y), (x[:1], y), (x, y[:1]), (0 * x, y), (0 * x, 0 * y), (30 * x, 30 * y)):
        fitted = member().fit(left, right, omega)
        dense = fitted.parameters
        if dense.query_matrix is not None:
            images = left @ dense.query_matrix.T, right @ dense.key_matrix.T
            sizes = [np.linalg.norm(image, axis=1) for image in images]
            bound = 100 * np.finfo(dtype).eps * (1 + np.multiply.outer(*sizes))
            assert np.all(np.abs(images[0] @ images[1].T - left @ right.T) <= bound)
        output = fb.linear_attention(left, right, value[: len(right)], omega, map=member())
        assert output.dtype == dtype and np.all(np.isfinite(output))
        assert np.all(output <= value.max() + 1e-4) and np.all(output >= value.min() - 1e-4)


@pytest.mark.parametrize("member", FITTED)
def test_leading_axes_are_independent_problems(member):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 4, 30, 5)) * np.array([0.2, 0.5, 1.0, 2.0])[:, None, None]
    omega = rng.normal(size=(12, 5))
    together = fb.linear_attention(q, k, v, omega, map=member())
    for i in range(4):
        assert_allclose(together[i], fb.linear_attention(q[i], k[i], v[i], omega, map=member()), rtol=1e-11)


@pytest.mark.parametrize("member", [SADERF, ADERF, ADERFThenSDERF, OPRF])
def test_maps_that_balance_do_not_depend_on_the_units_of_queries_and_keys(member):
    """A factor of queries that keys are divided by changes no x.y; OPRF is the control, which balances nothing."""
    x, y = points()
    omega = np.random.default_rng(1).normal(size=(8, x.shape[-1]))
    with np.errstate(over="ignore", invalid="ignore"):  # of OPRF
        plain, *scaled = (fb.kernel_estimate(c * x, y / c, omega, member()) for c in (1.0, 2.0**-20, 2.0**20))
    same = [np.allclose(estimate, plain, rtol=1e-6) for estimate in scaled]
    assert same == [member is not OPRF] * 2


def test_pair_terms_hold_for_orthogonal_rows():
    """The variance under orthogonal rows for all maps with one rho, by sampling; none is claimed for several."""
    x, y = (0.35 * a for a in points(6, n=5, length=5))
    rng, draws = np.random.default_rng(1), 20000
    orthogonal = get_sampler("orthogonal")
    omega = np.stack([orthogonal.sample(child, 6, 6) for child in rng.spawn(draws)])
    for member in (OPRF, SADERF, ADERF):
        feature_map = member().fit(x, y, x)
        relative = fb.kernel_estimate(x, y, Sample(omega), feature_map) / np.exp(x @ y.T)
        inside = draws_needed(feature_map, x, y) <= 6 * draws
        deviation = (relative - 1.0)[:, inside]
        found, fourth = np.mean(deviation**2, axis=0), np.mean(deviation**4, axis=0)
        error = np.sqrt((fourth - found**2) / draws)
        declared = relative_variance(feature_map, orthogonal, x, y, 6)
        assert declared is not None and np.max(np.abs(found - declared[inside]) / error) < 5.6
        assert np.max(np.abs(found - feature_map.relative_variance(x, y, 6)[inside]) / error) > 10  # not the iid one
    for member in (SDERF, ADERFThenSDERF):
        assert relative_variance(member(), orthogonal, x, y, 6) is None


@pytest.mark.parametrize("member", [OPRF, SADERF, ADERF])
def test_the_target_for_rows_of_one_norm_is_the_mean_over_the_sphere(member):
    """In the plane the sphere is a circle, and the trapezoidal rule on it exact."""
    x, y = (0.8 * a for a in points(7, n=4, length=3, dim=2))
    angle, norm = np.linspace(0, 2 * np.pi, 200, endpoint=False), 1.7
    omega = norm * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    feature_map = member().fit(x, y, x)
    mean = np.mean(estimates(feature_map, x, y, omega), axis=0)
    assert_allclose(feature_map.target_kernel(x, y, FixedNormRows(norm)), mean, rtol=1e-10)


def test_without_data_there_are_no_features_but_closed_forms_and_kernels_take_their_own():
    x, y = points(8)
    omega = np.random.default_rng(0).normal(size=(10, 6))
    for member in FITTED:
        with pytest.raises(InputError, match=r"takes its parameters from queries and keys: call fit\(x, y, omega\)"):
            member().features(x, x @ omega.T, Sample(omega))
        fitted = member().fit(x, y, omega)
        assert_array_equal(member().relative_variance(x, y, 3), fitted.relative_variance(x, y, 3))
        assert_array_equal(*(fb.kernel_estimate(x, y, omega, map=m) for m in (member(), fitted)))
        # once fitted, the parameters stay, whatever points come after
        kept, own = (m.relative_variance(x[:2], y[:2], 3) for m in (fitted, member()))
        assert np.min(np.abs(np.log(kept / own))) > 1e-3
        assert isinstance(fitted, DenseExponential) and fitted != member() and "parameters" not in repr(fitted)


CENTRED = ["positive", "hyperbolic", "oprf", "aderf-sderf", "trig", "phase", "taylor", "positive-eps"]


@pytest.mark.parametrize("name", CENTRED)
def test_centring_is_exactly_compensated(name):
    """The estimate is that of the map inside at x - a, y - b, times exp(x.y - (x - a).(y - b)): so for every query."""
    x, y = points(10)
    sample = fb.sample_omega("orthogonal", 12, 6, np.random.default_rng(0), map=name)
    left, right = x - x.mean(axis=0), y - y.mean(axis=0)
    inside = fb.kernel_estimate(left, right, sample, map=name)
    expected = inside * np.exp(x @ y.T - left @ right.T)
    scale = np.max(np.abs(expected))
    assert_allclose(fb.kernel_estimate(x, y, sample, f"centre:{name}"), expected, rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("name", ["positive", "oprf", "sderf"])
def test_centring_makes_the_variance_that_of_the_centred_points(name):
    """And so a common shift of all queries, or of all keys, changes no attention estimate."""
    x, y = points(11)
    rng = np.random.default_rng(0)
    centred = get_map(f"centre:{name}")
    inside = get_map(name).relative_variance(x - x.mean(axis=0), y - y.mean(axis=0), 7)
    assert_allclose(centred.relative_variance(x, y, 7), inside, rtol=1e-9)
    assert np.mean(np.log1p(inside)) < 0.9 * np.mean(np.log1p(get_map(name).relative_variance(x, y, 7)))
    value, omega = rng.normal(size=(len(y), 3)), rng.normal(size=(20, 6))
    output = fb.linear_attention(x, y, value, omega, map=centred)
    shifted = fb.linear_attention(x, y + rng.normal(size=6), value, omega, map=centred)
    assert_allclose(shifted, output, rtol=1e-9)
    plain = fb.linear_attention(x, y + rng.normal(size=6), value, omega, map=name)
    assert np.max(np.abs(plain - fb.linear_attention(x, y, value, omega, map=name))) > 1e-3


def test_centring_twice_is_centring_once():
    x, y = points(12)
    omega = np.random.default_rng(0).normal(size=(20, 6))
    once, twice = (fb.linear_attention(x, y, y, omega, map=m) for m in ("centre:oprf", "centre:centre:oprf"))
    assert_allclose(twice, once, rtol=1e-10)


def test_centring_means_no_causal_attention_and_needs_data():
    x, y = points(14)
    omega = np.random.default_rng(0).normal(size=(5, 6))
    with pytest.raises(InputError, match="map 'centre:positive' uses the whole sequence and cannot be causal"):
        fb.linear_attention(x[:9], y[:9], y[:9], omega, map="centre:positive", causal=True)
    with pytest.raises(InputError, match=r"map 'centre:positive' takes means .*: call fit"):
        get_map("centre:positive").features(x, x @ omega.T, Sample(omega))
