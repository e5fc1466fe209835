"""Figures: the files are there, the CSV holds the plotted numbers, and something is drawn."""

import io
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import PIL.Image
import pytest
from numpy.testing import assert_allclose

from favorbench import style
from favorbench.results import figures
from favorbench.results.figures import blocks, curves, draw_all
from favorbench.run import sweep
from favorbench.studies.blog import figure as blog
from favorbench.style import charts
from tests.conftest import small_scenario


def names(files):
    return {path.stem for path in files}


def test_every_figure_that_the_axes_allow_is_drawn(monkeypatch):
    monkeypatch.setattr(charts, "MAX_PANELS", 3)
    results = sweep(small_scenario(seq_len="16,24", baselines="uniform", trials=1), "length")
    pages = {f"{name}-L={length}" for name in ("iid-vs-ortho", "trig-vs-positive") for length in (16, 24)}
    assert names(draw_all(results)) == pages | {"error-vs-L"}
    fixed = {"num_projections": "4", "samplers": "iid", "trials": 1}
    both = sweep(small_scenario(scale="0.5,1", head_dim="2,4", **fixed), "both")
    assert names(draw_all(both)) == {"error-vs-d", "error-vs-scale"}
    single = sweep(small_scenario(maps="trig", samplers="iid", num_projections="4"), "none")
    assert draw_all(single) == []
    rule = sweep(small_scenario(num_projections="dlogd", head_dim="4,8"), "rule")
    assert "error-vs-d" in names(draw_all(rule))


def test_captions_name_what_all_inputs_share():
    """Where one axis varied, nothing of the others was said: neither d nor causal in error against L."""
    by_length = sweep(small_scenario(seq_len="16,24", head_dim="4", causal=True, trials=1), "by-length")
    (chart,) = curves.against_axes(by_length, "mse")
    assert " Measured on gaussian, scale 1, d = 4, causal. " in chart.caption
    flags = {"seq_len": None, "head_dim": None, "query_rows": 8, "trials": 1}
    heads = sweep(small_scenario(inputs="minilm", **flags), "heads")
    (chart,) = curves.maps(heads, "mse")
    assert " Measured on minilm, scale 1, L = 512 (8 query rows measured), d = 32. " in chart.caption
    several = sweep(small_scenario(inputs="gaussian,sphere", seq_len="16,24", query_rows=20, trials=1), "several")
    caption = curves.against_axes(several, "mse")[0].caption
    assert " Measured at scale 1, d = 4. L = 24: error on 20 random query rows. " in caption


def test_captions_name_the_file_of_the_other_comparison():
    """Beside a method the maps are in maps.png; the caption named trig-vs-positive, which is not there."""
    results = sweep(small_scenario(maps="trig,positive", methods="multipole"))
    (by_map,), (by_sampler,) = curves.maps(results, "mse"), curves.samplers(results, "mse")
    assert f" {by_map.name} shows the same errors" in by_sampler.caption
    assert f" {by_sampler.name} shows the same errors" in by_map.caption


def test_sizes_that_follow_d_have_a_panel_each_against_other_axes():
    """The panel of each pair of d and R was drawn, also of those that were not measured."""
    draw_all(sweep(small_scenario(num_projections="dlogd", head_dim="4,8", seq_len="16,24"), "run"))
    data = pd.read_csv("run/figures/error-vs-L.csv")
    assert {*data["panel"]} == {"d = 4, R = 5", "d = 8, R = 16"}
    assert all({*rows["seq_len"]} == {16, 24} for _, rows in data.groupby(["panel", "series"]))


def test_baselines_and_bands_are_seen_in_panels_of_one_size():
    results = sweep(small_scenario(maps="positive", samplers="iid", num_projections="dlogd", head_dim=[4, 8]))
    for drawing in style.draw(curves.maps(results, "mse")[0]):
        for ax in drawing.axes:
            (uniform,) = (line for line in ax.lines if str(line.get_label()).startswith("uniform"))
            assert np.ptp(np.asarray(uniform.get_xdata(), dtype=float)) > 0
            (bar,) = (segment for c in ax.collections if hasattr(c, "get_segments") for segment in c.get_segments())
            assert bar[0, 1] < bar[1, 1]


@pytest.mark.rendered
def test_each_figure_has_png_svg_and_its_numbers():
    results = sweep(small_scenario(), "run")
    files = draw_all(results)
    assert {f.suffix for f in files} == {".png", ".svg", ".csv"} and all(f.stat().st_size > 0 for f in files)
    data = pd.read_csv("run/figures/iid-vs-ortho.csv")
    curve = data.query("panel == 'trig' and series == 'orthogonal'").set_index("num_projections")["mse_median"]
    expected = results.summary.query("estimator == 'trig' and sampler == 'orthogonal'").set_index("num_projections")[
        "mse_median"
    ]
    pd.testing.assert_series_equal(curve, expected.set_axis(expected.index.astype("int64")), rtol=1e-12)
    assert {"uniform", "taylor-1", "taylor-2", "best-rank"} <= set(data["series"])
    image = matplotlib.image.imread("run/figures/iid-vs-ortho.png")
    assert np.mean(image[..., :3] < 0.95) > 0.02  # not blank


def test_methods_are_drawn_once_next_to_panels_of_samplers():
    results = sweep(small_scenario(methods="clusters,multipole"), "run")
    draw_all(results)
    data = pd.read_csv("run/figures/maps.csv")
    estimators = data[~data["series"].isin(["uniform", "taylor-1", "taylor-2", "best-rank"])]
    assert {panel: set(rows["series"]) for panel, rows in estimators.groupby("panel")} == {
        "iid": {"positive", "trig"}, "orthogonal": {"positive", "trig"}, "methods": {"clusters", "multipole"}
    }  # fmt: skip
    assert set(data.query("series == 'uniform'")["panel"]) == set(estimators["panel"])
    draw_all(sweep(small_scenario(methods="clusters", samplers="iid"), "one"))
    one = pd.read_csv("one/figures/maps.csv")
    assert set(one["panel"]) == {"iid"} and len(one.query("series == 'clusters'")) == 3


def test_many_maps_at_equal_features_are_ranked_in_one_figure():
    few = sweep(small_scenario(budget="features", num_projections="8"), "few")
    assert "ranking" not in names(draw_all(few))
    maps = "positive,trig,phase,hyperbolic,oprf,taylor"
    flags = {"maps": maps, "budget": "features", "num_projections": "4,8", "scale": "0.5,1", "trials": 12}
    results = sweep(small_scenario(**flags), "run")
    assert "ranking" in names(draw_all(results))
    for metric in ("skill", "unnormalised_rows"):  # no ratio to that of uniform attention says anything
        assert "ranking" not in names(draw_all(results, metric))
    data = pd.read_csv("run/figures/ranking.csv")
    assert set(data["panel"]) == {"scale = 0.5", "scale = 1"} and set(data["num_features"]) >= {1, 5, 8, 15}
    (row,) = data.query("label == 'trig / iid' and scale == 1").itertuples()
    expected = results.summary.query("estimator in ('trig', 'uniform') and sampler != 'orthogonal' and scale == 1")
    trig, uniform = (expected[expected["estimator"] == name]["mse_median"].iloc[-1] for name in ("trig", "uniform"))
    assert row.ratio == pytest.approx(trig / uniform, rel=1e-12)


@pytest.mark.parametrize(
    "metric", ["relative_error", "relative_l1", "skill", "cosine", "max_abs_error", "bad_normalisers"]
)
def test_any_metric_can_be_drawn(metric):
    results = sweep(small_scenario(), "run")
    assert draw_all(results, metric)
    linear = metric in ("skill", "cosine", "bad_normalisers")  # every value is inside
    assert ("best-rank may leave the axis" in curves.maps(results, metric)[0].caption) == (not linear)


def test_panels_and_captions_name_only_sizes_that_were_measured():
    """Estimators without a size were "R = int(d ln d)" and "<NA>"; sizes that follow d were those of the largest d."""
    fixed = sweep(small_scenario(maps="elu", scale="0.5,1", dtype="float64,float32", num_projections="4"), "fixed")
    draw_all(fixed)
    assert {*pd.read_csv("fixed/figures/error-vs-scale.csv")["panel"]} == {"float64", "float32"}
    (chart,) = curves.against_dtype(fixed, "mse")
    assert "at the largest size" not in chart.caption
    rule = sweep(small_scenario(num_projections="dlogd", head_dim="4,8", dtype="float64,float32"), "rule")
    (chart,) = curves.against_dtype(rule, "mse")
    assert chart.caption.startswith("Median of 3 draws at the largest size (5, 16), worst sampler")


@pytest.mark.parametrize("name", ["error-vs-cost", "clusters-vs-positive"])
def test_what_lies_below_the_axis_is_named(name):
    """Errors of 0, which the legend named and no one saw: causal, clusters are exact on so few tokens."""
    results = sweep(small_scenario(maps="positive", samplers="iid", methods="clusters", causal=True), "run")
    notes = [text.get_text() for ax in results.plot(name).figure.axes for text in ax.texts]
    assert notes == ["↓ below the axis: clusters"]


@pytest.mark.parametrize("name", ["error-vs-cost", "maps"])
def test_a_name_that_begins_with_an_underscore_is_in_the_legend(name):
    """matplotlib leaves such labels out: the curve of a user's ``_mine`` had no name."""
    Path("own_underscore.py").write_text(
        "def _mine(query, key, value, size, rng):\n    return query[:, :1] * value[:size].mean(0)\n"
        "_mine.multiplications = lambda shape, size: shape.l * size\n", "utf-8"
    )  # fmt: skip
    results = sweep(small_scenario(maps="positive", samplers="iid", methods="own_underscore:_mine"), "run")
    labels = results.plot(name).get_legend_handles_labels()[1]
    assert sorted(label.strip() for label in labels if "mine" in label) == ["_mine"]


@pytest.mark.parametrize("name", ["error-vs-L", "error-vs-cost", "trig-vs-positive"])
def test_grey_curves_are_off_scale_only_above_a_hundred_times_uniform(monkeypatch, name):
    """Axes were those of the coloured curves: grey ones left them at a tenth of what the caption said."""
    monkeypatch.setattr(blocks, "MAX_CURVES", 1)
    lengths = {"seq_len": "16,24"} if name == "error-vs-L" else {"methods": "nystromformer"}
    results = sweep(small_scenario(scale=2, baselines="uniform,sampled-keys", **lengths), "run")
    rows = results.summary
    uniform = rows["seq_len"].map(rows[rows["estimator"] == "uniform"].groupby("seq_len")["mse_median"].max())
    assert (rows["mse_median"] < 100 * uniform).all()
    axes = results.plot(name).figure.axes
    assert not [text for ax in axes for text in ax.texts]
    assert all(max(line.get_ydata()) <= ax.get_ylim()[1] for ax in axes for line in ax.lines)


def test_error_against_dtype_holds_both_errors():
    results = sweep(small_scenario(dtype="float64,float32"), "run")
    assert "error-vs-dtype" in names(draw_all(results))
    data = pd.read_csv("run/figures/error-vs-dtype.csv")
    assert set(data["num_projections"]) == {20} and set(data["estimator"]) == {"positive", "trig"}
    double, single = (data[data["dtype"] == dtype] for dtype in ("float64", "float32"))
    assert np.all(double["rounding_median"] == 0)
    assert np.all((single["rounding_median"] > 0) & (single["rounding_median"] < single["relative_error_median"]))


def test_every_series_is_distinct_without_colour():
    looks = {(style.MARKERS[i % len(style.MARKERS)], str(style.DASHES[i % len(style.DASHES)])) for i in range(16)}
    assert len(looks) >= 8


def test_circles_are_the_documented_ones():
    files = style.write(blog.kernel_trick(blog.circles()), Path("out"))
    assert names(files) == {"circles", "poly-circles"}
    data = pd.read_csv("out/poly-circles.csv")
    plane = pd.read_csv("out/circles.csv")
    assert_allclose(data["x1^2"], plane["x1"] ** 2, rtol=1e-12)
    radius = np.hypot(plane["x1"], plane["x2"]).groupby(plane["class"]).mean()
    assert_allclose(sorted(radius), [0.3, 1.0], atol=0.03)  # noise .05 / sqrt(128) = .004, and its square


def test_infinite_values_on_a_linear_axis_are_named():
    """A skill of minus infinity was in the legend alone, and the caption spoke of 100 times the error of uniform."""
    results = sweep(small_scenario(samplers="iid"), "run")
    summary = results.summary
    results = results._replace(
        summary=summary.assign(skill_median=summary["skill_median"].mask(summary["estimator"] == "trig", -np.inf))
    )
    (chart,) = curves.maps(results, "skill")
    assert "ff scale" not in chart.caption
    notes = [text.get_text() for ax in results.plot(chart.name, metric="skill").figure.axes for text in ax.texts]
    assert notes == ["↓ below the axis: trig"]


def test_rare_colours_of_a_png_are_their_own():
    """The palette was that of the most frequent colours: a marker of a legend had the colour of another estimator."""
    pixels = np.zeros((300, 100, 3), np.uint8)
    pixels[:, :, 0] = np.minimum(np.arange(300), 255)[:, None]
    pixels[256:, :, 1] = np.arange(44)[:, None]  # 300 colours, 100 times each, and two that are rare
    pixels[0, :5], pixels[0, 5:10] = (240, 228, 66), (213, 94, 0)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    small = np.asarray(PIL.Image.open(io.BytesIO(charts._small_png(file, {}, 100))).convert("RGB"), dtype=int)
    assert (small[0, :10] == pixels[0, :10]).all() and np.abs(small - pixels).max() <= 3


def test_every_figure_can_be_requested():
    names = [name for kind in figures.FIGURES for name in kind.names]
    assert len(names) == len(set(names)) and {"iid-vs-ortho", "trig-vs-positive", "error-vs-cost", "heads"} <= set(
        names
    )
