"""Gram matrices: against scikit-learn, the closed forms of their errors, and the command."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special
from sklearn.kernel_approximation import PolynomialCountSketch, RBFSampler
from sklearn.metrics import pairwise

import favorbench as fb
from favorbench import style
from favorbench.errors import InputError, ScenarioError
from favorbench.kernels import squared_distance
from favorbench.maps import Sample
from favorbench.studies.kernel import GramStudy, PointSet, gaussian_points, read_points, study
from favorbench.studies.kernel.targets import (
    KERNELS,
    CosineKernel,
    GaussianKernel,
    LinearKernel,
    PolynomialKernel,
    SoftmaxKernel,
    get_kernel,
)
from tests.command_line import check_refused, commands, printed, refused, run

DRAWS = 400
#: Two-sided false alarm 4e-8 for each of the two dozen comparisons here: below 1e-6 for all.
LIMIT = float(special.stdtrit(DRAWS - 1, 1.0 - 2e-8))
POINTS = gaussian_points(30, 4, 1.0, seed=1)
X = POINTS.values


def deviation(values, expected):
    """How many standard errors the mean of values lies from what is expected: a number, or the mean of others."""
    values, others = np.asarray(values), np.atleast_1d(expected)
    variance = np.var(values, ddof=1) / len(values)
    variance += np.var(others, ddof=1) / len(others) if len(others) > 1 else 0.0
    return abs(float(np.mean(values) - np.mean(others))) / math.sqrt(float(variance))


def squared_errors(kernel, name, sampler, size, draws=DRAWS):
    (cell,) = study(kernel, [name], [sampler], [size], POINTS, draws).cells
    return np.square(cell.errors)


def squared_errors_of(transformer, exact):
    """The same of scikit-learn's, which takes a seed for each draw."""
    found = []
    for seed in range(DRAWS):
        features = transformer.set_params(random_state=seed).fit_transform(X)
        found.append(np.sum((features @ features.T - exact) ** 2) / np.sum(exact**2))
    return np.array(found)


@pytest.mark.parametrize("sigma", [0.7, 2.0])
def test_phase_is_the_rbf_sampler_of_scikit_learn(rng, sigma):
    sampler = RBFSampler(gamma=0.5 / sigma**2, n_components=64).fit(X)
    sample = fb.sample_omega("iid", 64, 4, rng, map="phase")
    sampler.random_weights_, sampler.random_offset_ = sample.omega.T / sigma, sample.extra
    features = sampler.transform(X)
    kernel = GaussianKernel(sigma)
    found = fb.kernel_estimate(kernel.scaled(X), kernel.scaled(X), sample, kernel.map("phase"))
    # 64 products of cosines of angles up to |w||x|/sigma + 2 pi < 100, each right to 100 eps
    assert_allclose(found, features @ features.T, rtol=0, atol=2 * 2 * 100 * np.finfo(float).eps)


def test_phase_has_the_errors_of_the_rbf_sampler():
    kernel = GaussianKernel(2.0)
    theirs = squared_errors_of(RBFSampler(gamma=0.125, n_components=32), pairwise.rbf_kernel(X, gamma=0.125))
    assert deviation(squared_errors(kernel, "phase", "iid", 32), theirs) < LIMIT
    for wrong in (("trig", "iid", 16), ("phase", "orthogonal", 32), ("phase", "iid", 20)):
        assert deviation(squared_errors(kernel, *wrong), theirs) > LIMIT, wrong


@pytest.mark.parametrize("degree, constant", [(2, 0.0), (3, 1.0)])
@pytest.mark.parametrize("size", [8, 13])
def test_tensorsketch_is_the_count_sketch_of_scikit_learn(rng, degree, constant, size):
    sketch = PolynomialCountSketch(degree=degree, coef0=constant, n_components=size).fit(X)
    kernel = PolynomialKernel(degree, constant)
    feature_map = kernel.map("tensorsketch")
    extra = feature_map.draw_extra(rng, size, 4)
    assert extra is not None
    sketch.indexHash_, sketch.bitHash_ = extra[0], extra[1]
    features = sketch.transform(X)
    found = fb.kernel_estimate(X, X, Sample(np.zeros((size, 4)), extra), feature_map)
    scale = np.max(np.abs(features)) ** 2 * size
    assert_allclose(found, features @ features.T, rtol=0, atol=100 * np.finfo(float).eps * scale)


@pytest.mark.parametrize("degree, constant, size", [(2, 0.0, 16), (3, 1.0, 17)])
def test_tensorsketch_has_the_errors_of_the_count_sketch_and_of_the_closed_form(degree, constant, size):
    kernel = PolynomialKernel(degree, constant)
    exact = pairwise.polynomial_kernel(X, degree=degree, coef0=constant, gamma=1.0)
    theirs = squared_errors_of(PolynomialCountSketch(degree=degree, coef0=constant, n_components=size), exact)
    (cell,) = study(kernel, ["tensorsketch"], ["iid"], [size], POINTS, DRAWS).cells
    assert (cell.sampler, cell.num_features) == ("own", size)
    assert deviation(np.square(cell.errors), theirs) < LIMIT
    assert deviation(theirs, cell.expected**2) < LIMIT and deviation(np.square(cell.errors), cell.expected**2) < LIMIT
    (other,) = study(kernel, ["tensorsketch"], ["iid"], [4 * size], POINTS, 2).cells
    assert deviation(theirs, other.expected**2) > LIMIT


EXACT = [
    (PolynomialKernel(2, 1.0), pairwise.polynomial_kernel(X, degree=2, coef0=1.0, gamma=1.0)),
    (PolynomialKernel(4, 0.0), pairwise.polynomial_kernel(X, degree=4, coef0=0.0, gamma=1.0)),
    (CosineKernel(), pairwise.cosine_similarity(X)),
    (LinearKernel(), pairwise.linear_kernel(X)),
    (GaussianKernel(1.5), pairwise.rbf_kernel(X, gamma=0.5 / 1.5**2)),
    (SoftmaxKernel(1.5), np.exp(X @ X.T / 1.5**2)),
]


@pytest.mark.parametrize("kernel, expected", EXACT, ids=lambda value: getattr(value, "name", ""))
def test_kernels_and_explicit_features_are_those_of_scikit_learn(kernel, expected):
    tolerance = 64 * np.finfo(float).eps * np.max(np.abs(expected))
    assert_allclose(kernel.exact(X), expected, rtol=0, atol=tolerance)
    if "explicit" in kernel.default_maps:
        (cell,) = study(kernel, ["explicit"], ["iid", "orthogonal"], [4, 8], POINTS).cells
        assert (cell.sampler, cell.num_projections, len(cell.errors)) == ("none", 0, 1)
        assert cell.median < 64 * np.finfo(float).eps and math.isnan(cell.bias)


@pytest.mark.parametrize("kernel", [GaussianKernel(8.0), SoftmaxKernel(8.0)], ids=lambda k: k.name)
@pytest.mark.parametrize("sampler", ["iid", "orthogonal"])
@pytest.mark.parametrize("name", ["trig", "phase", "positive", "hyperbolic"])
def test_expected_errors_are_the_measured_ones(kernel, sampler, name):
    both = study(kernel, ["trig", "phase", "positive", "hyperbolic"], ["iid", "orthogonal"], [16], POINTS, 2).cells
    (cell,) = study(kernel, [name], [sampler], [16], POINTS, DRAWS).cells
    measured = np.square(cell.errors)
    assert cell.measurable
    assert deviation(measured, cell.expected**2) < LIMIT
    wrong = [other.expected for other in both if (other.map, other.sampler) != (name, sampler)]
    far = [expected for expected in wrong if abs(expected / cell.expected - 1.0) > 0.3]
    assert len(far) >= 2 and all(deviation(measured, expected**2) > LIMIT for expected in far)


def test_the_gap_of_phase_and_trig_is_the_closed_form():
    """At D features and iid rows: the mean over pairs, with weights K^2, of (1 - exp(-|x - y|^2 / sigma^2) / 2) / D."""
    found = study(
        GaussianKernel(2.0), ["trig", "phase"], ["iid", "orthogonal"], [8, 32], POINTS, DRAWS, budget="features"
    )
    t2 = squared_distance(X / 2.0, X / 2.0)
    share = np.sum(np.exp(-t2) * (1.0 - 0.5 * np.exp(-t2))) / np.sum(np.exp(-t2))
    gaps = {(gap.sampler, gap.num_features): gap for gap in found.gaps()}
    assert set(gaps) == {("iid", 8), ("iid", 32), ("orthogonal", 8), ("orthogonal", 32)}
    for (sampler, features), gap in gaps.items():
        if sampler == "iid":
            assert gap.expected == pytest.approx(share / features, rel=1e-10)
        half = gap.high - gap.measured
        assert abs(gap.measured - gap.expected) < LIMIT / 1.96 * half and 0 < LIMIT / 1.96 * half < gap.measured


@pytest.mark.parametrize("sigma", [1e-4, 0.02, 0.2, 1.0])
@pytest.mark.parametrize("sampler, pairs", [("iid", 0), ("orthogonal", 24)])
def test_closed_forms_hold_at_any_distance(sigma, sampler, pairs):
    """1F1(4; 2; -t2 / 2), of orthogonal rows in 4 dimensions, is exp(-t2 / 2) times a polynomial."""
    t2 = squared_distance(X / sigma, X / sigma)
    gram = pairwise.rbf_kernel(X, gamma=0.5 / sigma**2)
    trig = (1.0 - gram**2) ** 2 / 16 + pairs / 64 * (gram * (1.0 - t2 / 2 + t2**2 / 24) - gram**2)
    cells = study(GaussianKernel(sigma), ["trig", "phase"], [sampler], [8], POINTS, 2).cells
    for cell, variance in zip(cells, (trig, trig + 1 / 16), strict=True):
        assert cell.expected**2 * np.sum(gram**2) == pytest.approx(np.sum(variance), rel=1e-7)


def test_a_gap_without_a_closed_form_says_what_was_measured():
    out = run(f"kernel gaussian {SMALL} --maps trig,phase --samplers sobol --budget features")[1]
    assert "nan" not in out and "squared error" in out and "measured." in out


def test_a_gap_of_one_draw_has_no_interval():
    code, out, _ = run("kernel gaussian --maps trig,phase --budget features -R 8 --num-points 5 -d 3 --trials 1")
    assert code == 0 and "in closed form" in out and "nan" not in out


def test_long_points_do_not_overflow():
    """exp(|x|^2/2) would be exp(20000): trig is exact where x = y, and no entry is beyond what cosines can give."""
    points = PointSet(200.0 * X, "long")
    found = study(GaussianKernel(1.0), ["trig", "phase", "positive"], ["iid"], [32], points)
    trig, phase, positive = found.cells
    assert trig.max_abs_error <= 1.0 and 0.1 < phase.max_abs_error <= 2.0 and np.isfinite(positive.median)
    assert math.isnan(positive.expected)  # exp(4 |x|^2) is beyond float64
    near = study(GaussianKernel(1.0), ["trig"], ["iid"], [32], points._replace(values=200.0 + X[:1] + 0.0 * X)).cells[0]
    assert near.median < 1e-12  # all points are equal, and long


def test_bias_is_distinguished_from_chance():
    found = study(
        GaussianKernel(3.0), ["trig", "trig-blog", "exp-tutorial", "taylor"], ["iid", "orthogonal-blog"], [16], POINTS
    )
    verdicts = {(cell.map, cell.sampler): cell.biased for cell in found.cells}
    trig = found.cells[0]  # an honest map, at a level where a false alarm never comes
    assert trig.bias * math.sqrt(20) < float(special.stdtrit(19, 1.0 - 2e-8)) * trig.spread
    assert verdicts["trig-blog", "iid"] and verdicts["exp-tutorial", "iid"] and verdicts["trig", "orthogonal-blog"]
    taylor = found.cells[-1]
    assert taylor.median == pytest.approx(taylor.expected, rel=1e-9) and taylor.sampler == "none"


def test_bias_and_spread_are_those_of_the_draws():
    kernel, x = GaussianKernel(2.0), X / 2.0
    found = study(kernel, ["trig"], ["iid"], [8], POINTS, draws=5)
    (cell,) = found.cells
    from favorbench.numerics.streams import stream

    grams = np.stack(
        [
            np.cos((x[:, None] - x[None]) @ omega.T).mean(-1)
            for omega in (fb.sample_omega("iid", 8, 4, stream(0, "kernel", "omega", "iid", i)) for i in range(5))
        ]
    )
    exact = kernel.exact(X)
    size = np.linalg.norm(exact)
    assert cell.errors == pytest.approx([np.linalg.norm(gram - exact) / size for gram in grams], rel=1e-9)
    assert cell.max_abs_errors == pytest.approx([np.max(np.abs(gram - exact)) for gram in grams], rel=1e-9)
    assert (cell.median, cell.max_abs_error) == (np.median(cell.errors), np.median(cell.max_abs_errors))
    assert found.mean_error == pytest.approx(np.linalg.norm(exact.mean() - exact) / size, rel=1e-9)
    assert cell.bias == pytest.approx(np.linalg.norm(grams.mean(0) - exact) / size, rel=1e-9)
    assert cell.spread == pytest.approx(math.sqrt(np.sum(np.var(grams, axis=0, ddof=1))) / size, rel=1e-9)
    values = np.linalg.eigvalsh(exact)[::-1]
    assert cell.best == pytest.approx(np.linalg.norm(values[16:]) / size, rel=1e-6)


def test_the_interval_of_a_squared_error_does_not_go_below_0():
    (cell,) = study(GaussianKernel(2.0), ["trig"], ["iid"], [8], POINTS, draws=3).cells
    squares = np.square(cell._replace(errors=(0.01, 0.01, 0.4)).errors)
    expected = scipy.stats.ttest_1samp(squares, 0.0).confidence_interval()
    assert expected.low < 0.0
    assert cell._replace(errors=(0.01, 0.01, 0.4)).squared[1:] == pytest.approx((0.0, expected.high))
    assert cell._replace(errors=(0.01, 0.01, 0.011)).squared.low > 0.0


def test_one_point_and_one_draw_are_enough():
    cells = json.loads(run("kernel --num-points 1 --trials 1 -d 1 --json")[1])["cells"]
    trig = [cell for cell in cells if cell["map"] == "trig"]
    assert max(cell["median"] for cell in trig) < 1e-15 and max(cell["expected"] for cell in trig) < 1e-7  # x = y
    assert cells[0]["bias"] is None and "median of 1 draw;" in run(f"kernel {SMALL[:-1]}1")[1]


def test_expected_errors_do_not_depend_on_the_order_of_the_points():
    rows = np.random.default_rng(0).standard_normal((600, 32)) + np.linspace(-1.0, 1.0, 600)[:, None]  # in four parts
    cells = [
        study(GaussianKernel(6.0), ["centre:positive"], ["orthogonal-sqrt-d"], [8], PointSet(some, ""), 2).cells[0]
        for some in (rows, np.random.default_rng(1).permutation(rows))
    ]
    assert cells[0].expected == pytest.approx(cells[1].expected, rel=1e-9)


def test_claims_that_sampling_cannot_measure_are_marked():
    cell = study(SoftmaxKernel(1.0), ["positive"], ["iid"], [16], POINTS).cells[0]
    assert not cell.measurable and cell.median < 0.5 * cell.expected and not cell.biased


def test_claims_under_rows_of_fixed_norm_are_measured_with_fewer_draws():
    """Their bias is found; with few draws their tail, too, is out of reach."""
    points = gaussian_points(40, 16, 1.0, seed=0)
    few, many = (
        study(SoftmaxKernel(4.0), ["positive"], ["orthogonal-sqrt-d"], [256], points, draws=draws).cells[0]
        for draws in (2, 200)
    )
    assert many.measurable and many.biased and not few.measurable
    # a control: the same map under Gaussian rows, whose tail is longer, and without bias
    gaussian = study(SoftmaxKernel(4.0), ["positive"], ["orthogonal"], [256], points, draws=200).cells[0]
    assert not gaussian.measurable and not gaussian.biased


@pytest.mark.parametrize("name", ["positive", "sderf", "aderf-sderf", "hybrid", "poisson", "geometric"])
def test_no_map_is_called_biased_because_sampling_cannot_measure_it(name):
    """Also those whose variance has no argument, and under samplers without a closed form."""
    points = gaussian_points(40, 16, 1.0, seed=0)
    cells = study(SoftmaxKernel(2.0), [name], ["iid", "stratified-norms"], [64], points, draws=10).cells
    assert cells and not any(cell.measurable or cell.biased for cell in cells)
    small = study(SoftmaxKernel(20.0), [name], ["iid", "stratified-norms"], [64], points, draws=10).cells
    assert name in ("poisson", "geometric") or all(cell.measurable for cell in small)


@pytest.mark.parametrize("name", ["maclaurin", "maclaurin(law='poisson')", "tensorsketch(degree=12)"])
def test_a_map_with_a_bias_of_rounding_is_not_called_biased_where_draws_are_few(name):
    """Rare high degrees dominate its variance: at 20 draws half of the cells were marked as biased."""
    few = [
        study(SoftmaxKernel(4**0.25), [name], ["iid"], [16], gaussian_points(30, 4, 1.0, seed), 20).cells[0]
        for seed in range(8)
    ]
    many = study(SoftmaxKernel(10.0), [name], ["iid"], [16], gaussian_points(30, 4, 1.0, 0), 200).cells[0]
    assert not any(cell.biased for cell in (*few, many))
    assert not all(cell.measurable for cell in few) and many.measurable
    # a control: a real bias, of the degrees that are left out, is found
    short = study(SoftmaxKernel(4**0.25), ["tensorsketch(degree=1)"], ["iid"], [16], POINTS, 20).cells[0]
    assert short.measurable and short.biased


def test_an_exact_estimate_is_not_called_biased_where_rounding_leaves_the_same_in_every_draw():
    """cos^2 + sin^2 of a single point, and a sketch of one coordinate, are exact."""
    of_trig = study(GaussianKernel(3**0.5), ["trig"], ["iid"], [64], gaussian_points(1, 3, 1.0, 0)).cells
    of_sketch = study(PolynomialKernel(2, 0.0), ["tensorsketch"], ["iid"], [3], gaussian_points(7, 1, 1.0, 0)).cells
    for cell in (*of_trig, *of_sketch):
        assert cell.bias < 1e-15 and not cell.biased


def test_points_are_read_from_files():
    np.save("points.npy", X.astype(np.float32))
    pd.DataFrame(X).to_csv("headed.csv", index=False, header=["a", "b", "c", "d"])
    pd.DataFrame(X).to_csv("bare.csv", index=False, header=False)
    np.save("whole.npy", np.arange(6).reshape(3, 2))
    assert_array_equal(read_points("points.npy"), X.astype(np.float32))
    assert_array_equal(read_points("headed.csv"), X)
    assert_array_equal(read_points("bare.csv"), X)
    assert read_points("whole.npy").dtype == np.float64


BAD_FILES = {
    "absent.npy": (None, "No such file"),
    "points.txt": (b"1,2\n", "ending in .npy or .csv"),
    "empty.csv": (b"\n\n", "it is empty"),
    "headed.csv": (b"a,b\n", "headings only"),
    "index.csv": (b",a,b\n0,1,2\n", "(index=False)"),  # what pandas writes by default
    "numbered.csv": (b"0,1\n.5,.5\n", "(header=False)"),
    "word.csv": (b"1,2\n3,four\n", "four"),
    "ragged.csv": (b"1,2\n3\n", "number of columns changed"),
    "latin.csv": (b"1,\xe9\n", "utf-8"),
    "hole.csv": (b"1,nan\n", "NaN or infinite"),
    "torn.npy": (b"\x93NUMPY", "cannot read"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_clear_line(name):
    content, said = BAD_FILES[name]
    if content is not None:
        Path(name).write_bytes(content)
    line = refused("kernel", "gaussian", "--points", name)
    assert said in line and name in line
    with pytest.raises(InputError):
        read_points(name)


def test_objects_are_never_unpickled():
    np.save("objects.npy", np.array([[object()]]), allow_pickle=True)
    np.save("deep.npy", np.zeros((2, 3, 4)))
    check_refused("""
        kernel --points objects.npy => never read
        kernel --points deep.npy => shape (2, 3, 4); allowed: (points, d)
    """)


SMALL = "-R 4,8 --num-points 12 -d 3 --trials 3"

MISTAKES = [
    *commands("""
    kernel gausian => unknown kernel 'gausian' (did you mean 'gaussian'?); allowed: gaussian, softmax, polyn
    kernel gaussian --maps trigg => did you mean 'trig'
    kernel softmax --maps positive,positive() => 'positive()' and 'positive' are both called 'positive'
    kernel --samplers iid,iid() => 'iid()' and 'iid' are both called 'iid'
    kernel gaussian --maps explicit => unknown map 'explicit'
    kernel polynomial --maps trig => 'trig' given, allowed for the polynomial kernel: explicit, tensorsketch
    kernel cosine --maps tensorsketch => allowed for the cosine kernel: explicit
    kernel linear --sigma 2 => --sigma 2: the linear kernel has none, only gaussian and softmax do
    kernel gaussian --degree 2 => only polynomial does
    kernel softmax --constant 1 => only polynomial does
    kernel polynomial --constant -1 => --constant must be from 0 to 1e6, got -1
    kernel polynomial --degree 0 => --degree
    kernel polynomial --degree 12 => 30421755 features of 200 points
    kernel gaussian --sigma 0 => --sigma must be a positive number
    kernel gaussian --scale nan => --scale must be a positive number
    kernel gaussian --samplers idd => did you mean 'iid'
    kernel gaussian -R 0 => -R: '0' given
    kernel gaussian -R 1 --budget features => trig has 2 features a projection
    kernel gaussian -R 100000000 => use a smaller -R
    kernel gaussian -R 300000 -d 4096 --num-points 2 => 300000 projections of d = 4096
    kernel gaussian --maps 'taylor(order=30)' -d 4096 => features of 200 points, allowed: 335544
    kernel gaussian --num-points 5000 => --num-points
    kernel softmax --scale 30 => overflows float64: use a smaller --scale
"""),
    (["kernel", "gaussian", "--maps", 900 * "x"], "unknown map 'xxx"),
    (["kernel", 900 * "x"], "unknown kernel 'xxx"),
]


@pytest.mark.parametrize("arguments, said", MISTAKES, ids=[" ".join(a)[:80] for a, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_2(arguments, said):
    assert said in refused(*arguments)


def test_requested_points_of_a_file_are_used():
    np.save("points.npy", X)
    check_refused("""
        kernel --points points.npy --num-points 31 => has 30; ask for at most that
        kernel --points points.npy -d 4 => leave -d out
    """)
    np.save("zero.npy", 0.0 * X)
    check_refused("kernel linear --points zero.npy => is 0 for every pair")
    out = run("kernel --points points.npy --num-points 10 -R 4 --trials 2")[1]
    assert "10 of 30 points of points.npy, d = 4" in out


def test_the_help_names_every_kernel():
    out = run("kernel", "--help")[1]
    assert all(kernel.name in out for kernel in KERNELS)


def test_errors_of_the_library_name_keys():
    for name, given in (("gaussian", {"degree": 2}), ("gaussian", {"sigma": -1.0}), ("polynomial", {"degree": 31})):
        with pytest.raises(ScenarioError, match=r"`(sigma|degree)`"):
            get_kernel(name, 4, **given)
    with pytest.raises(ScenarioError, match="trig has 2 features a projection; use `num_projections` 2 or more"):
        study(GaussianKernel(1.0), ["trig"], ["iid"], [1], POINTS, budget="features")


def test_the_study_computes_on_one_core(monkeypatch):
    """Itself, not the command: so a script gets the digits that the command prints."""
    seen = []

    @contextlib.contextmanager
    def one_core():
        seen.append("inside")
        yield

    monkeypatch.setattr("favorbench.studies.kernel.one_core", one_core)
    study(GaussianKernel(1.0), ["trig"], ["iid"], [4], POINTS, 2)
    assert seen == ["inside"]


@pytest.mark.parametrize("name", [kernel.name for kernel in KERNELS])
def test_the_command_prints_a_table_and_json_and_draws(name):
    out = printed(f"kernel {name} {SMALL} --out figures")
    assert f"{name} kernel" in out and "mean of K" in out
    for suffix in ("png", "svg", "csv"):
        assert f"figures/kernel-{name}.{suffix}\n" in out and Path(f"figures/kernel-{name}.{suffix}").stat().st_size > 0
    code, out, err = run(f"kernel {name} {SMALL} --json")
    found = json.loads(out)
    assert (code, err, found["kernel"], found["files"]) == (0, "", name, [])
    for cell in found["cells"]:
        assert len(cell["errors"]) == (1 if cell["map"] == "explicit" else 3) and cell["median"] is not None
    assert len(found["gaps"]) == (2 if name == "gaussian" else 0)  # trig at R = 4 and phase at R = 8, twice


def test_the_same_seed_gives_the_same_table_and_another_another():
    first, second, other = (run(f"kernel {SMALL} --seed {seed}")[1] for seed in (0, 0, 1))
    assert first == second != other


def test_the_figure_file_holds_its_numbers():
    found = study(GaussianKernel(2.0), ["trig", "phase"], ["iid"], [8, 32], POINTS, 3, budget="features")
    assert isinstance(found, GramStudy)
    from favorbench.studies.kernel import figure as gram

    style.write([gram.chart(found, "kernel")], Path("figures"))
    data = pd.read_csv("figures/kernel.csv").set_index(["series", "num_features"])
    cell = next(cell for cell in found.cells if (cell.map, cell.num_features) == ("phase", 32))
    row = data.loc[("phase, iid", 32)]
    assert row["measured"] == pytest.approx(math.sqrt(cell.squared.value)) and row["closed_form"] == pytest.approx(
        cell.expected
    )
    gap = found.gaps()[0]
    assert data.loc[("iid", gap.num_features), "closed_form"] == pytest.approx(gap.expected * gap.num_features)


def test_the_caption_says_what_the_intervals_cover_where_errors_are_skewed():
    from favorbench.studies.kernel import figure as gram

    def share_covered(kernel, name, scale, size=64):
        points, covered = gaussian_points(8, 2, scale, seed=0), []
        for seed in range(80):
            (cell,) = study(kernel, [name], ["iid"], [size], points, 20, seed).cells
            covered.append(cell.measurable and cell.squared.low <= cell.expected**2 <= cell.squared.high)
        return np.mean(covered)

    assert 0.78 < share_covered(SoftmaxKernel(2), "hyperbolic", 0.2) < 0.92
    assert share_covered(GaussianKernel(0.5), "trig", 1) > 0.92
    assert 0.6 < share_covered(GaussianKernel(20.0), "trig", 1, size=2) < 0.83
    caption = gram.chart(study(GaussianKernel(2.0), ["trig"], ["iid"], [8], POINTS, 2), "kernel").caption
    assert "95 % intervals, which cover less where errors are skewed; lines" in caption


def test_a_figure_of_one_size_shows_closed_forms_and_many_maps_those_that_cannot_be_measured():
    from favorbench.studies.kernel import figure as gram

    maps = ["trig", "phase", "hyperbolic", "positive", "positive-eps"]
    found = study(GaussianKernel(0.3), maps, ["iid", "orthogonal"], [8], POINTS, 2)
    assert isinstance(found, GramStudy)
    ax = Figure().subplots()
    gram.chart(found, "kernel").panels[0].draw(ax)
    dashes = [line for line in ax.lines if line.get_marker() == "_" and len(line.get_xdata()) == 1]
    assert len(dashes) > sum(not math.isnan(cell.expected) for cell in found.cells)  # "best of that rank", too
    faint = [bars.lines[0].get_alpha() is not None for bars in ax.containers]
    assert faint == [not cell.measurable for cell in found.cells] and {*faint} == {True, False}


def test_a_figure_names_what_lies_below_its_axis():
    """The default figure of `kernel linear`: an error of 0, which the legend named and no one saw."""
    from favorbench.studies.kernel import figure as gram

    found = study(LinearKernel(), ["explicit"], ["iid"], [8], PointSet(np.eye(3), "three"), 2)
    assert isinstance(found, GramStudy)
    ax = Figure().subplots()
    gram.chart(found, "kernel").panels[0].draw(ax)
    assert [text.get_text() for text in ax.texts] == ["↓ below the axis: explicit"]


def test_rounding_does_not_stretch_the_axis_of_a_figure():
    """The default figure of `kernel polynomial`: "explicit" at 1e-16, and all other errors in a line."""
    from favorbench.studies.kernel import figure as gram

    found = study(PolynomialKernel(2, 1.0), ["explicit", "tensorsketch"], ["iid"], [4, 8], POINTS, 3)
    assert isinstance(found, GramStudy) and 0 < found.cells[0].median < 1e-13
    ax = Figure().subplots()
    gram.chart(found, "kernel").panels[0].draw(ax)
    assert ax.get_ylim()[0] > 1e-3 and [text.get_text() for text in ax.texts] == ["↓ below the axis: explicit"]


OWN_MAPS = """
from dataclasses import dataclass
from favorbench.maps.random_features import Positive

@dataclass(frozen=True)
class Mine(Positive):
    name = "mine"

@dataclass(frozen=True)
class Broken(Positive):
    name = "broken"

    def features(self, x, projection, sample):
        return 1 / 0
"""


def test_a_map_of_the_users_own():
    Path("kernel_maps.py").write_text(OWN_MAPS)
    command = f"kernel {SMALL} --samplers iid --json --maps"
    cells = json.loads(run(f"{command} positive,kernel_maps:Mine")[1])["cells"]
    mine, positive = ([c["errors"] for c in cells if c["map"] == name] for name in ("mine", "positive"))
    assert len(mine) == 2 and mine == positive
    assert "broken failed: ZeroDivisionError" in refused(f"{command} kernel_maps:Broken")
