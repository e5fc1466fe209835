"""Needed projections, the gate, and what is measured inside it. (Closed forms: test_samplers.py and those of maps.)"""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import threadpoolctl
from matplotlib.figure import Figure
from scipy import stats

import favorbench as fb
from favorbench import style
from favorbench.errors import ScenarioError
from favorbench.maps import get_map
from favorbench.numerics.streams import stream
from favorbench.samplers import get_sampler
from favorbench.samplers.laws import FixedNormRows
from favorbench.studies.closed_forms import draws_needed, projections_for, relative_variance
from favorbench.studies.theory import chart, measured_deviation, pair_at, study

NEEDED = [*itertools.product(["trig", "positive", "hyperbolic", "phase"], ["iid", "orthogonal"])]
NEEDED += [("positive", name) for name in ("antithetic:orthogonal", "moment-matched", "norm-coupled", "simplex")]


@pytest.mark.parametrize("name, sampler", NEEDED)
def test_the_needed_projections_are_the_smallest_that_can_be_drawn(name, sampler):
    pair, law = pair_at(0.8, 8, 0.3), get_sampler(sampler)
    needed = projections_for(get_map(name), law, *pair, 0.2)
    *smaller, found = (
        float(relative_variance(get_map(name), law, *pair, size)[0, 0])
        for size in range(1, needed + 1) if law.round_up(size, 8) == size
    )  # fmt: skip
    assert found <= 0.04 < min(smaller, default=1.0) and law.round_up(needed, 8) == needed


@pytest.mark.parametrize("name, sampler, dim, norm, error", [
    ("trig", "norm-coupled", 10, 0.5, 0.05), ("positive", "simplex", 6, 0.2, 0.05), ("trig", "simplex", 10, 0.8, 0.1),
])  # fmt: skip
def test_full_blocks_may_need_fewer_projections_than_more_rows(name, sampler, dim, norm, error):
    pair, law, errors = pair_at(norm, dim, 0.0), get_sampler(sampler), {}
    for size in range(1, 61):
        errors[size] = math.sqrt(float(relative_variance(get_map(name), law, *pair, size)[0, 0]))
    smallest = min(size for size, found in errors.items() if found <= error)
    assert any(errors[size] > error for size in range(smallest, 61))  # more rows are worse
    assert projections_for(get_map(name), law, *pair, error) == smallest


@pytest.mark.parametrize("limit, found", [(64, 64), (63, None)])
def test_the_limit_of_needed_projections_is_one_of_them(limit, found):
    x, y = pair_at(0.8, 8, 0.3)
    pair = get_map("positive"), get_sampler("iid")
    error = math.sqrt(float(relative_variance(*pair, x, y, 64)[0, 0])) * (1 + 1e-9)
    assert projections_for(*pair, x, y, error, limit) == found


def test_the_gate_is_the_documented_number_of_draws():
    """30 / Phi(-2 v): 1.3e3 at v2 = 1, 9.5e5 at 4, 3.9e9 at 8; 30 for bounded maps."""
    for v2, draws in ((1.0, 1.3e3), (2.0, 1.3e4), (4.0, 9.5e5), (8.0, 3.9e9)):
        x, y = pair_at(math.sqrt(v2 / 2), 16, 0.0)
        assert float(draws_needed(get_map("positive"), x, y)[0, 0]) == pytest.approx(draws, rel=0.05)
        assert float(draws_needed(get_map("trig"), x, y)[0, 0]) == 30.0
        assert float(draws_needed(get_map("phase"), x, x)[0, 0]) == 30.0  # bounded, and not exact where x = y


def test_rows_of_fixed_norm_need_fewer_draws():
    """The tail is that of a cosine with a uniform direction: against its density, integrated."""
    rows, cosine = FixedNormRows(4.0), np.linspace(-1.0, 1.0, 200_001)
    for squared in (0.5, 4.0, 20.0):
        density = (1.0 - cosine**2) ** ((16 - 3) / 2)
        tilted = density * np.exp(2.0 * 4.0 * math.sqrt(squared) * (cosine - 1.0))
        beyond = cosine >= np.sum(tilted * cosine) / np.sum(tilted)
        assert rows.tail(np.array(squared), 16) == pytest.approx(np.sum(density[beyond]) / np.sum(density), rel=1e-3)
    x, y = pair_at(math.sqrt(2.0), 16, 0.0)
    fewer = draws_needed(get_map("positive"), x, y, rows).item()
    assert 30.0 < fewer < 0.01 * draws_needed(get_map("positive"), x, y).item()


def test_a_map_with_a_sample_of_its_own_is_the_same_under_every_sampler():
    iid, orthogonal = (
        study(get_map("poisson"), get_sampler(name), 8, [0.5], [16], draws=50) for name in ("iid", "orthogonal")
    )
    assert iid == orthogonal and iid.title.startswith("poisson/own")


@pytest.mark.parametrize("name", ["poisson", "geometric"])
@pytest.mark.parametrize("dim, cosine", [(16, 0.0), (15, -0.4), (2, 1.0)])
def test_a_map_that_knows_the_axes_is_measured_in_random_directions(name, dim, cosine):
    """On the axes of the coordinates its error would not depend on the norm at cosine 0."""
    feature_map, law = get_map(name), get_sampler("iid")
    x, y = pair_at(2.0, dim, cosine)
    rotations = np.linalg.qr(np.random.default_rng(0).normal(size=(301, dim, dim))).Q
    variances = np.diagonal(feature_map.relative_variance((x @ rotations)[:, 0], (y @ rotations)[:, 0], 1))
    studies = [study(feature_map, law, dim, [2.0], [1], cosine, 1e6, draws=0, seed=seed) for seed in range(20)]
    ranks = [np.mean(variances < found.points[0].closed_form ** 2) for found in studies]
    assert studies[0].title.endswith(f"cosine {cosine:g}, one random pair of directions")
    assert max(ranks) - min(ranks) > 0.5 and 0.3 < np.mean(ranks) < 0.7


def test_beyond_the_gate_no_number_is_shown():
    found = study(get_map("positive"), get_sampler("iid"), 8, [0.5, 2.0], [16], draws=500)
    inside, beyond = found.points
    assert inside.low < inside.closed_form < inside.high or abs(inside.measured / inside.closed_form - 1) < 0.3
    assert math.isnan(beyond.measured) and math.isfinite(beyond.closed_form)
    # why there is a gate: what sampling would have shown there is far too small
    x, y = pair_at(2.0, 8, 0.0)
    shown, _, high = measured_deviation(get_map("positive"), get_sampler("iid"), x, y, 16, 500, 0)
    assert high < 0.8 * beyond.closed_form and shown < 0.5 * beyond.closed_form


def test_the_measured_spread_and_its_interval_are_those_of_the_draws():
    """About their own mean, and 95 % of a normal law with the standard error of a variance."""
    x, y = pair_at(0.5, 4, 0.3)
    found = measured_deviation(get_map("positive"), get_sampler("iid"), x, y, 8, 40, 0)
    samples = [fb.sample_omega("iid", 8, 4, child) for child in stream(0, "theory", "positive", "iid", 8).spawn(40)]
    values = np.array([fb.kernel_estimate(x, y, omega).item() for omega in samples]) / np.exp((x @ y.T).item())
    half = stats.norm.isf(0.025) * math.sqrt((stats.moment(values, 4) - np.var(values) ** 2) / 40)
    assert np.square(found) == pytest.approx(np.var(values) + np.array([0.0, -half, half]), rel=1e-4)


def test_generators_of_draws_are_made_one_at_a_time():
    """A million took more than a GiB."""
    x, y = pair_at(0.5, 4, 0.3)
    measured_deviation(get_map("positive"), get_sampler("iid"), x, y, 1, 2, 0)
    tracemalloc.start()
    try:
        measured_deviation(get_map("positive"), get_sampler("iid"), x, y, 1, 300, 0)
        assert tracemalloc.get_traced_memory()[1] < 300 * 500
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("draws, measured", [(1, False), (2, False), (29, False), (30, True)])
def test_the_spread_of_a_few_draws_is_no_number(draws, measured):
    """That of one draw was 0.000."""
    found = study(get_map("positive"), get_sampler("iid"), 4, [0.5], [2048], draws=draws)
    assert math.isfinite(found.points[0].measured) == measured


def test_what_float64_cannot_hold_is_not_measured():
    found = study(get_map("positive"), get_sampler("iid"), 4, [30.0], [16], cosine=-1.0, target=1e200, draws=10)
    assert math.isnan(found.points[0].measured) and found.needed == {30.0: 1}


@pytest.mark.parametrize("name, cosine", [("positive", -1.0), ("trig", 1.0)])
@pytest.mark.parametrize("sampler, dim", [("simplex", 4), ("norm-coupled", 16)])
def test_where_the_kernel_estimate_is_exact_rounding_leaves_no_negative_variance(name, cosine, sampler, dim):
    found = study(get_map(name), get_sampler(sampler), dim, [0.0, 0.5, 1.0, 1.5], [16, 64], cosine=cosine, draws=0)
    assert all(0.0 <= point.closed_form < 1e-6 for point in found.points)


def test_maps_without_a_closed_form_are_refused(tmp_path):
    with pytest.raises(ScenarioError, match="no closed form for trig-blog under iid"):
        study(get_map("trig-blog"), get_sampler("iid"), 8, [0.5], [16])
    with pytest.raises(ScenarioError, match="centre:positive: `centre` subtracts the mean of all tokens"):
        study(get_map("centre:positive"), get_sampler("iid"), 8, [0.5], [16])
    for name in ("saderf", "sderf", "aderf", "aderf-sderf"):
        with pytest.raises(ScenarioError, match=f"^{name} takes axes from all queries and keys"):
            study(get_map(name), get_sampler("iid"), 8, [0.5], [16], draws=0)
    found = study(get_map("trig"), get_sampler("orthogonal"), 8, [0.5, 1.0], [16, 64], draws=100)
    assert {f.suffix for f in style.write([chart(found, "theory")], tmp_path)} == {".png", ".svg", ".csv"}


@pytest.mark.parametrize("draws, norm, hollow", [(0, 0.5, False), (40, 0.5, False), (40, 8.0, True)])
def test_a_figure_speaks_of_draws_and_hollow_points_where_there_are_some(draws, norm, hollow):
    drawn = chart(study(get_map("positive"), get_sampler("iid"), 4, [norm], [16], draws=draws), "theory")
    assert (f"Points: {draws} draws" in drawn.caption) == (draws > 0)
    ax = Figure().subplots()
    drawn.panels[0].draw(ax)
    assert ("not measurable by sampling" in ax.get_legend_handles_labels()[1]) == hollow
    assert ax.lines[0].get_marker() == "_"  # the closed form: no line shows a single R


def test_a_figure_shows_each_measured_point_and_names_the_norms_beyond_its_axis():
    ax = Figure().subplots()
    found = study(get_map("positive"), get_sampler("iid"), 6, [0.5, 30.0], [4, 64], draws=30, seed=3)
    chart(found, "theory").panels[0].draw(ax)
    low, high = ax.get_ylim()
    measured = [value for p in found.points for value in (p.measured, p.low, p.high) if np.isfinite(value)]
    assert low < min(measured) < found.target and max(measured) < high
    assert [text.get_text() for text in ax.texts] == ["↑ off scale: |x| = |y| = 30"]  # infinite in float64
    ax = Figure().subplots()
    found = study(get_map("trig"), get_sampler("iid"), 6, [0.5], [4, 64], cosine=1.0, draws=30)  # a spread of 0
    chart(found, "theory").panels[0].draw(ax)
    assert [text.get_text() for text in ax.texts] == ["↓ below the axis: |x| = |y| = 0.5"]


def test_progress_counts_draws_and_one_core_is_used():
    calls = []

    def progress(done, total):
        calls.append((done, total, {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}))

    before = threadpoolctl.threadpool_info()
    study(get_map("trig"), get_sampler("iid"), 8, [0.5, 1.0], [16], draws=40, progress=progress)
    assert calls == [(i, 80, {1}) for i in range(80)]
    assert threadpoolctl.threadpool_info() == before


def test_the_shown_interval_is_that_of_the_draws_whatever_the_progress():
    args = get_map("trig"), get_sampler("orthogonal"), 8, [1.0], [16]
    assert study(*args, draws=50, seed=3) == study(*args, draws=50, seed=3, progress=lambda done, total: None)
    assert study(*args, draws=50, seed=3) != study(*args, draws=50, seed=4)


@pytest.mark.parametrize("name", ["orthogonal-sqrt-d", "antithetic:orthogonal-sqrt-d"])
@pytest.mark.parametrize("kernel", [("positive", np.exp), ("trig", np.cos)])
def test_rows_of_one_norm_have_the_variance_that_is_stated_for_them(name, kernel):
    """About their own mean, relative to exp(x.y)^2, within 6 standard errors."""
    (feature_map, of_angle), sampler, rng = kernel, get_sampler(name), np.random.default_rng(0)
    x, y = 0.7 * rng.normal(size=(2, 1, 3))
    omega = np.array([sampler.sample(rng, 4, 3) for _ in range(40_000)])
    z = x - y if feature_map == "trig" else x + y
    half_squares = -0.5 * (np.sum(x * x) + np.sum(y * y)) if feature_map == "positive" else 0.5 * np.sum(x * x + y * y)
    relative = np.exp(half_squares - np.sum(x * y)) * of_angle(omega @ z[0]).mean(axis=1)
    squares = (relative - relative.mean()) ** 2
    stated = relative_variance(get_map(feature_map), sampler, x, y, 4)
    error = squares.std() / math.sqrt(len(squares))
    assert stated is not None and abs(stated[0, 0] - squares.mean()) < 6 * error
    assert 20 * error < stated[0, 0] and abs(np.sum(x * y)) > 0.1


@pytest.mark.parametrize("name", ["hybrid", "oprf", "positive"])
def test_a_missing_closed_form_of_dependent_rows_is_called_that(name):
    with pytest.raises(ScenarioError, match=r"dependence on one another .* use iid"):
        study(get_map(name), get_sampler("simplex-plus"), 4, [0.5], [8], draws=0)
