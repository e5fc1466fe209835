"""Samplers: shapes and prefixes, pair laws against quadrature, the table of variances, what is measured where no closed
form is known, and what an R cannot be."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, linalg, stats
from scipy.special import hyp1f1

import favorbench as fb
from favorbench.engine.plan import plan
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError
from favorbench.maps import Sample, get_map
from favorbench.samplers import SAMPLERS, Antithetic, FixedNormRows, get_sampler
from favorbench.samplers.coupling import WORDS, coupling_of
from favorbench.samplers.laws import AtAngle, CoupledNorms, GaussianRows
from favorbench.studies.closed_forms import relative_variance
from favorbench.studies.theory import pair_at
from tests.command_line import check_refused
from tests.conftest import small_scenario

ALL = [member() for member in SAMPLERS] + [
    get_sampler(f"antithetic:{name}") for name in ("iid", "orthogonal", "simplex", "norm-coupled", "moment-matched")
]

#: Exact relative variances at num_features = 2d, x.y = 0, |x + y|^2 = |x - y|^2 = v2, to the digits that are written.
TABLE = {
    ("trig", "iid"): "1.96e-3 3.4e-2 1.64 93 8.5e-3 .41 6.9e4",
    ("trig", "orthogonal"): "2.95e-4 5.4e-3 1.10 92 8.3e-4 .28 6.9e4",
    ("trig", "norm-coupled"): "1.88e-4 3.5e-3 1.07 92 7.1e-4 .28 6.9e4",
    ("phase", "iid"): "2.1e-2 5.9e-2 1.68 93 1.5e-2 .42 6.9e4",
    ("positive", "iid"): "8.9e-3 5.4e-2 1.67 93 1.3e-2 .42 6.9e4",
    ("positive", "orthogonal"): "8.1e-3 4.2e-2 1.54 93 9.8e-3 .37 6.9e4",
    ("positive", "simplex"): "6.8e-4 1.5e-2 1.48 93 2.3e-3 .34 6.9e4",
    ("hyperbolic", "orthogonal"): "3.8e-4 1.1e-2 1.38 92.5 1.3e-3 .31 6.9e4",
    ("oprf", "iid"): "8.6e-3 4.6e-2 .54 3.8 1.3e-2 .28 863",
    ("oprf", "orthogonal"): "7.8e-3 3.4e-2 .41 3.5 9.2e-3 .23 863",
    ("oprf", "simplex"): "3.9e-4 6.5e-3 .34 3.5 1.7e-3 .20 863",
    ("oprf", "antithetic:orthogonal"): "2.5e-4 3.3e-3 .25 3.2 7.3e-4 .17 862",
}
POINTS = [(16, 0.25), (16, 1.0), (16, 4.0), (16, 8.0), (64, 1.0), (64, 4.0), (64, 16.0)]


@pytest.mark.parametrize("name, sampler", TABLE)
def test_relative_variances_are_the_tabulated_ones(name, sampler):
    feature_map = get_map(name)
    for (dim, v2), written in zip(POINTS, TABLE[name, sampler].split(), strict=True):
        x, y = pair_at(math.sqrt(v2 / 2), dim, 0.0)
        size = 2 * dim // feature_map.features_per_projection
        found = relative_variance(feature_map, get_sampler(sampler), x, y, size)
        digits, _, power = written.partition("e")
        unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))  # of the last digit
        assert found is not None and abs(float(found[0, 0]) - float(written)) <= 0.5001 * unit, (dim, v2)


@pytest.mark.parametrize("dim", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("norm", [0.1, 0.5, 1.0, 1.5])
def test_theorem_2_of_performer(rng, dim, norm):
    """Orthogonal rows gain at least what eq. (10) of arXiv 2009.14794 says, for R <= d.

    With K = exp(x.y) and L = exp(-(|x|^2 + |y|^2)/2) the bound is 2 (R - 1) / (R (d + 2)) (K - L)^2, and the exact gain
    L^2 (R - 1)/R (exp(v2) - 1F1(d; d/2; v2/2)), v2 = |x + y|^2.
    """
    x, y = (norm * v / np.linalg.norm(v) for v in rng.standard_normal((2, 1, dim)))
    kernel, factor, rows = np.exp(x @ y.T).item(), np.exp(-norm * norm), dim // 2 + 1
    iid, orthogonal = (
        relative_variance(get_map("positive"), get_sampler(name), x, y, rows).item() for name in ("iid", "orthogonal")
    )
    gain, v2 = (iid - orthogonal) * kernel**2, np.sum((x + y) ** 2)
    exact = factor**2 * (rows - 1) / rows * (np.exp(v2) - hyp1f1(dim, dim / 2, v2 / 2))
    assert gain == pytest.approx(exact, rel=1e-6)  # a difference of near equals
    assert gain * (1 + 1e-6) >= 2 * (rows - 1) / (rows * (dim + 2)) * (kernel - factor) ** 2


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("dim", [1, 2, 5, 16])
def test_samples_have_their_shape_and_their_prefixes(sampler, dim):
    """One row, one block, one row more, several blocks: or what of these the sampler can draw."""
    sizes = sorted({sampler.round_up(size, dim) for size in (1, dim, dim + 1, 3 * dim + 2)})
    whole = sampler.sample(np.random.default_rng(5), sizes[-1], dim)
    for size in sizes:
        rows = sampler.sample(np.random.default_rng(5), size, dim)
        assert rows.shape == (size, dim) and rows.dtype == np.float64 and np.all(np.isfinite(rows))
        if sampler.nested:
            assert_allclose(rows, whole[:size], rtol=0, atol=1e-13)
    if dim > 1:  # on a line, rows of fixed norm have but a sign
        assert np.max(np.abs(sampler.sample(np.random.default_rng(6), sizes[-1], dim) - whole)) > 1e-3


def uniform_direction(squared, dim):
    """E exp(w.z) for |w|^2 |z|^2 = squared and any direction of w; E cos(w.z) for its negative."""
    return FixedNormRows(1.0).radial(np.atleast_1d(squared), dim)


@pytest.mark.parametrize("dim, cosine", [(2, -0.5), (3, 0.0), (3, 0.3), (8, -1 / 7)])
@pytest.mark.parametrize("s", [0.3, 2.0, -1.5])
def test_rows_at_an_angle_are_the_integral(dim, cosine, s):
    """E exp((w1 + w2).z) over two independent chi norms: w1 + w2 has its length by the law of cosines."""
    nodes, weights = np.polynomial.legendre.leggauss(150)  # on [0, 12]
    r = 6.0 * (nodes + 1.0)
    density = 6.0 * weights * stats.chi(dim).pdf(r)

    def integrated(c):
        squared = r[:, None] ** 2 + r**2 + 2.0 * c * r[:, None] * r
        return density @ uniform_direction(s * squared.ravel(), dim).reshape(squared.shape) @ density

    law, at, expected = AtAngle(dim, cosine), np.array([s]), [integrated(c) for c in (cosine, -cosine)]
    assert_allclose([law.sum(at)[0], law.difference(at)[0]], expected, rtol=1e-6)
    assert law.even(at)[0] == pytest.approx(np.mean(expected), rel=1e-6)


@pytest.mark.parametrize("dim", [2, 3, 16, 64])
@pytest.mark.parametrize("s", [0.3, 4.0, -2.0])
def test_coupled_norms_are_the_integral(dim, s):
    """int_0^1 S(s (r(u)^2 + r(1 - u)^2)) du, as it is written; independent norms have another."""
    chi, at = stats.chi(dim), np.array([s])
    expected, _ = integrate.quad(
        lambda u: uniform_direction(s * (chi.ppf(u) ** 2 + chi.isf(u) ** 2), dim)[0], 0, 0.5, epsrel=1e-10, limit=400
    )
    assert CoupledNorms(dim).sum(at)[0] == pytest.approx(2.0 * expected, rel=1e-7)
    assert abs(AtAngle(dim).sum(at)[0] - 2.0 * expected) > 1e-5 * expected


@pytest.mark.parametrize("dim", [159, 160, 257, 1023])
def test_means_of_cosines_in_many_dimensions_are_the_integral(dim):
    """SciPy's function has NaN or infinity there: no expected error of moment-matched rows, R >= 258, for one."""
    squared = np.array([0.0, 1e-6, 0.03, 1.0, 20.0, 1e3, 0.2 * dim**2, 0.4 * dim**2])
    angles, weights = np.polynomial.legendre.leggauss(1000)
    angles = np.pi / 2 * (angles + 1.0)
    weights *= np.sin(angles) ** (dim - 2)
    expected = np.cos(np.sqrt(squared)[:, None] * np.cos(angles)) @ weights / np.sum(weights)
    assert_allclose(uniform_direction(-squared, dim), expected, rtol=1e-8, atol=1e-9)
    # norms of d +- sqrt(2 d), so nearly those of rows of norm sqrt(d), which have length sqrt(2 d) together
    coupled, fixed = CoupledNorms(dim).sum(-squared[2:4]), uniform_direction(-2 * dim * squared[2:4], dim)
    assert_allclose(coupled, fixed, rtol=1e-4)


@pytest.mark.parametrize("name", ["iid", "orthogonal", "simplex", "norm-coupled"])
def test_hyperbolic_is_positive_on_antithetic_rows(name, rng):
    """Exactly; and trig gets the same features twice."""
    x, y = 0.7 * rng.normal(size=(2, 5, 6))
    single, double = get_sampler(name), get_sampler(f"antithetic:{name}")
    rows, pairs = (s.sample(np.random.default_rng(1), n, 6) for s, n in ((single, 9), (double, 18)))
    hyperbolic, positive = (fb.kernel_estimate(x, y, w, m) for w, m in ((rows, "hyperbolic"), (pairs, "positive")))
    assert_allclose(positive, hyperbolic, rtol=1e-12)
    variances = [relative_variance(get_map(m), s, x, y, n)
                 for m, s, n in (("hyperbolic", single, 9), ("positive", double, 18))]  # fmt: skip
    assert_allclose(*variances, rtol=1e-10)
    variances = [relative_variance(get_map("trig"), s, x, y, n) for s, n in ((single, 9), (double, 18))]
    assert_allclose(*variances, rtol=1e-10)
    assert_allclose(*(fb.kernel_estimate(x, y, w, "trig") for w in (rows, pairs)), rtol=1e-10)


def relative_estimates(sampler, dim, v2, size, draws, direction=None):
    """exp(x.y) by positive features: mean_i exp(w_i.z - |z|^2/2), z of squared length v2, at random or given."""
    rng, found = np.random.default_rng(0), []
    directions = np.random.default_rng(1)
    for child in rng.spawn(draws):
        z = directions.standard_normal(dim) if direction is None else direction
        omega = sampler.sample(child, size, dim)
        found.append(np.mean(np.exp(omega @ z * math.sqrt(v2) / np.linalg.norm(z) - v2 / 2)))
    return np.array(found)


def variance_and_error(values):
    deviation = (values - np.mean(values)) ** 2
    return np.mean(deviation), np.std(deviation) / math.sqrt(len(values))


@pytest.mark.parametrize("point", [0.0, 1.0])
def test_halton_points_at_an_end_have_finite_rows(monkeypatch, point):
    def ends(head_dim, rng):
        return SimpleNamespace(random=lambda count: np.full((count, head_dim), point))

    monkeypatch.setattr(stats.qmc, "Halton", ends)
    assert np.all(np.abs(get_sampler("halton").sample(np.random.default_rng(0), 3, 2)) < 9)


@pytest.mark.parametrize("name, noted", [("sobol", 1.9e-4), ("halton", 9.5e-4), ("moment-matched", 3.8e-5)])
def test_low_discrepancy_points_have_the_variance_that_was_observed(name, noted):
    """d = 16, R = 64, v2 = 0.25, where iid has 4.4e-3. Which direction z has matters to points that favour the axes.

    The number noted was measured in one direction, by as many draws as left 6 % of error in the one noted for iid.
    """
    along_axis = variance_and_error(relative_estimates(get_sampler(name), 16, 0.25, 64, 1500, np.eye(16)[0]))
    anywhere = variance_and_error(relative_estimates(get_sampler(name), 16, 0.25, 64, 1500))
    low, high = along_axis[0] - 5 * along_axis[1], anywhere[0] + 5 * anywhere[1]
    assert low - 0.3 * noted < noted < high + 0.3 * noted
    iid = math.expm1(0.25) / 64
    assert noted == pytest.approx(anywhere[0], rel=0.4) and high < iid / 3
    control = variance_and_error(relative_estimates(get_sampler("iid"), 16, 0.25, 64, 1500))
    assert abs(control[0] - iid) < 5 * control[1] < control[0] - 3 * noted  # the same code sees nothing of this in iid


def test_moment_matching_has_its_variance_and_its_bias_in_closed_form():
    """3.8e-5, as observed; a bias of order 1/R: half the R, twice the bias."""
    x, y = pair_at(math.sqrt(0.125), 16, 0.0)
    sampler, positive = get_sampler("moment-matched"), get_map("positive")
    assert abs(float(relative_variance(positive, sampler, x, y, 64)[0, 0]) - 3.8e-5) <= 0.05e-5
    kernel = np.exp(x @ y.T)
    bias = [
        float((positive.target_kernel(x, y, sampler.row_law(size, 16)) / kernel - 1)[0, 0]) for size in (2000, 4000)
    ]
    assert bias[0] < 0 and bias[0] / bias[1] == pytest.approx(2.0, rel=0.01)
    values = relative_estimates(sampler, 16, 4.0, 64, 6000)
    x, y = pair_at(math.sqrt(2.0), 16, 0.0)
    mean = float((positive.target_kernel(x, y, sampler.row_law(64, 16)) / np.exp(x @ y.T))[0, 0])
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - mean) < 5 * error < abs(np.mean(values) - 1.0)  # and not exp(x.y)


def test_simplex_plus_is_better_than_simplex_for_positive():
    """d = R = 8, v2 = 0.9. One generator gives both the same norms and rotation, so their difference is measured well.

    The rotation is integrated out: E exp((w + w').z) = 0F1(; d/2; |w + w'|^2 v2 / 4).
    """

    def variances(name, first):
        sampler, found = get_sampler(name), []
        for child in np.random.default_rng(first).spawn(3000):
            gram = (omega := sampler.sample(child, 8, 8)) @ omega.T
            squared = np.diag(gram)[:, None] + np.diag(gram) + 2.0 * gram
            found.append(np.mean(FixedNormRows(1.0).radial(0.9 * np.maximum(squared, 0.0), 8)) * math.exp(-0.9) - 1.0)
        return np.array(found)

    def z(difference):
        return np.mean(difference) / (np.std(difference) / math.sqrt(len(difference)))

    simplex, plus = variances("simplex", 0), variances("simplex-plus", 0)
    assert z(simplex - plus) > 10 and abs(z(simplex - variances("simplex", 1))) < 5
    x, y = pair_at(math.sqrt(0.45), 8, 0.0)
    declared = float(relative_variance(get_map("positive"), get_sampler("simplex"), x, y, 8)[0, 0])
    assert abs(np.mean(simplex) - declared) < 5 * np.std(simplex) / math.sqrt(len(simplex))
    ratio = 1.0 - np.mean(simplex - plus) / declared
    assert 0.75 < ratio < 0.95


REFUSED = [
    ("antithetic:orthogonal", 7, 4, "needs an even R: R = 7 given for head_dim 4, nearest allowed: 8"),
    ("antithetic:antithetic:iid", 6, 4, "nearest allowed: 8"),
    ("moment-matched", 4, 4, "needs R > head_dim: R = 4 given for head_dim 4, nearest allowed: 5"),
    ("antithetic:moment-matched", 8, 4, "nearest allowed: 10"),
]


@pytest.mark.parametrize("sampler, size, dim, said", REFUSED)
def test_an_r_that_cannot_be_drawn_is_refused_before_anything_is_computed(sampler, size, dim, said):
    asked = {"samplers": sampler, "head_dim": str(dim), "trials": 1}
    with pytest.raises(ScenarioError) as caught:
        plan(Study.of(small_scenario(num_projections=str(size), **asked)))
    assert said in str(caught.value) and repr(sampler) in str(caught.value) and "\n" not in str(caught.value)
    nearest = int(said.rpartition(" ")[2])
    rows = fb.sweep(small_scenario(num_projections=str(nearest), **asked)).trials
    assert {nearest} == set(rows[rows["sampler"] == sampler]["num_projections"])


def test_the_command_line_refuses_in_one_line():
    check_refused("""
        sweep --samplers antithetic:orthogonal -R 7 --dry-run => nearest allowed:
        sweep --samplers moment-matched -R 16 -d 16 => nearest allowed:
        theory positive antithetic:iid -R 7 => nearest allowed:
    """)


def test_a_limit_that_no_map_needs_is_not_checked():
    """Advice is not a rule (Sobol' points balance at powers of two); maps without projections take no sampler's."""
    plan(Study.of(small_scenario(samplers="sobol", num_projections="100")))
    plan(Study.of(small_scenario(samplers="antithetic:iid", num_projections="7", maps="taylor,poisson")))
    plan(Study.of(small_scenario(samplers="antithetic:iid", num_projections="12", maps="trig", budget="features")))
    with pytest.raises(ScenarioError, match="R = 3 given"):
        plan(Study.of(small_scenario(samplers="antithetic:iid", num_projections="6", maps="trig", budget="features")))


@pytest.mark.parametrize("num_projections, head_dim", [(16, 8), (14, 7), (5, 8)])
def test_norms_of_adjacent_rows_are_coupled(num_projections, head_dim):
    """F(r) + F(r') = 1 for rows 1 and 2, 3 and 4, ... of each block; the last of an odd one is alone."""
    omega = get_sampler("norm-coupled").sample(np.random.default_rng(1), num_projections, head_dim)
    shares = stats.chi(head_dim).cdf(np.linalg.norm(omega, axis=1))
    for start in range(0, num_projections, head_dim):
        block = shares[start : start + head_dim]
        pairs = len(block) // 2
        assert_allclose(block[0 : 2 * pairs : 2] + block[1 : 2 * pairs : 2], 1.0, rtol=1e-9)
        assert not np.any(np.isclose(block[1 : 2 * pairs - 1 : 2] + block[2 : 2 * pairs : 2], 1.0))


def test_antithetic_has_the_claims_of_the_sampler_inside():
    for name in ("iid", "stratified-norms", "orthogonal-qr", "orthogonal-sqrt-d"):
        inner, outer = get_sampler(name), Antithetic(get_sampler(name))
        assert (outer.nested, outer.gaussian_rows) == (inner.nested, inner.gaussian_rows)
        assert outer.name == f"antithetic:{name}" and outer.needs == "an even R"
    assert get_sampler("antithetic:iid").row_law(8, 4) == GaussianRows()
    # the pair w, -w mends what LAPACK's signs break: the mean of a pair is that of cosh
    x, y = pair_at(0.7, 4, 0.2)
    mended = get_map("positive").target_kernel(x, y, get_sampler("antithetic:orthogonal-qr").row_law(8, 4))
    assert_allclose(mended, np.exp(x @ y.T), rtol=1e-12)


@pytest.mark.parametrize("name", [f"{before}{cls.name}" for before in ("", "antithetic:") for cls in SAMPLERS])
def test_stated_laws_are_those_of_the_rows(name):
    """E cos(w.z), and of w + w' and w - w' over all pairs, within 6 standard errors; R/2 is not d."""
    sampler, z = get_sampler(name), np.array([[0.9, -0.5, 0.6]])
    size, rng = sampler.round_up(8, 3), np.random.default_rng(0)
    law, pairs, s = sampler.row_law(size, 3), sampler.pair_laws(size, 3), -np.sum(z * z, axis=-1)
    angles = np.array([sampler.sample(rng, size, 3) @ z[0] for _ in range(600)])
    both = angles[:, :, None] + angles[:, None] * np.array([1.0, -1.0])[:, None, None, None]
    different = ~np.eye(size, dtype=bool)
    found = np.stack([np.cos(angles).mean(-1), *np.cos(both)[..., different].mean(-1)], axis=-1)
    single, dependent, count = law.characteristic(z), pairs or (), size * (size - 1)
    independent = (count - sum(number for number, _ in dependent)) * single**2
    of_pairs = [
        independent + sum(n * getattr(pair, part)(s) for n, pair in dependent)
        for part in ("sum", "difference")
    ]  # fmt: skip
    expected = np.concatenate([single, *(total / count for total in of_pairs)])
    known = np.isfinite(expected) & [True, pairs is not None, pairs is not None]
    error = found.std(axis=0) / math.sqrt(len(found))
    assert known[0] == (not name.endswith("sorf")) and np.all(error < 0.02)
    assert np.all((np.abs(found.mean(axis=0) - expected) <= 6 * error + 1e-12)[known])


def test_additional_samples_are_kept():
    """A map that draws more than omega takes any sampler's rows."""
    for sampler in ALL:
        size = sampler.round_up(10, 4)
        sample = fb.sample_omega(sampler, size, 4, np.random.default_rng(0), map="phase")
        assert isinstance(sample, Sample) and len(sample.extra) == len(sample.omega) == size


@pytest.mark.parametrize("dim", [4, 8])
def test_rows_of_sorf_have_these_fourth_moments(dim):
    """Within 6 standard errors of 20,000 blocks; the entries of one Hadamard matrix with signs are 1 in size."""
    law, rng = get_sampler("sorf"), np.random.default_rng(0)
    fourth = (law.sample(rng, 20_000 * dim, dim) ** 4).reshape(20_000, -1).mean(axis=1)
    expected, error = law.row_law(20_000 * dim, dim).fourth.same, fourth.std() / math.sqrt(20_000)
    assert abs(fourth.mean() - expected) < 6 * error < 0.1 * (expected - 1.0)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_fourth_moments_of_sorf_are_those_of_all_signs(size):
    """By enumeration of the 2^(3p) signs; without the third matrix, or with one alone, they are others."""
    hadamard = linalg.hadamard(size) / math.sqrt(size)
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3 * size))).reshape(-1, 3, 1, size)

    def moments(rows):
        rows = math.sqrt(size) * rows[:, -1]
        return np.mean(rows[:, 0] ** 4), np.mean(rows[:, 0] ** 2 * rows[:, -1] ** 2), np.mean(np.prod(rows, axis=-1))

    law = get_sampler("sorf").row_law(size, size)
    three = hadamard * signs[:, 0] @ hadamard * signs[:, 1] @ hadamard * signs[:, 2]
    same, mixed, odd = moments(three)
    assert (law.norm, law.fourth.same) == (math.sqrt(size), pytest.approx(same, rel=1e-12))
    if size > 1:
        assert law.fourth.mixed == pytest.approx(mixed, rel=1e-12)
    if size == 4:
        assert odd == pytest.approx(0.0, abs=1e-12)
        assert abs(moments(hadamard * signs[:, 0] @ hadamard * signs[:, 1] @ hadamard)[2]) > 0.1
        assert moments(np.broadcast_to(hadamard, three.shape) * signs[:, 0])[0] == pytest.approx(1.0) != same


def test_raw_qr_on_a_line_reflects_nothing():
    """Q = 1 there, so w > 0: E exp(w z) = 2 Phi(z) exp(z^2/2), where the plane and all beyond have w_1 < 0."""
    sampler = get_sampler("orthogonal-qr")
    for dim, sign in ((1, 1.0), (2, -1.0), (5, -1.0)):
        first = np.array([sampler.sample(np.random.default_rng(i), 1, dim)[0, 0] for i in range(200)])
        assert np.all(np.sign(first) == sign)
        z = np.full((1, dim), 0.4)
        expected = 2.0 * stats.norm.cdf(sign * 0.4) * math.exp(0.08 * dim)
        assert sampler.row_law(1, dim).laplace(z)[0] == pytest.approx(expected, rel=1e-12)
    assert np.all(sampler.sample(np.random.default_rng(0), 50, 1) > 0) and sampler.row_law(50, 1).first_row


def test_a_coupling_may_be_stated_in_its_words():
    stated = [member.coupling for member in SAMPLERS if str(member.coupling) in WORDS]
    assert {str(coupling_of(word, "mine")) for word in WORDS} == set(WORDS) == {str(coupling) for coupling in stated}
