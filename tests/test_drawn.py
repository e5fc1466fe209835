"""Figures: sizes, formats, ranges, arrows, readable names; checked on the artists and the files."""

import itertools
import math
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from favorbench import style
from favorbench.results.figures import draw_all
from favorbench.results.figures.blocks import MAX_CURVES, choose, in_words
from favorbench.results.figures.heads import layer_map
from favorbench.results.summary import is_own
from favorbench.run import sweep
from tests.command_line import check_refused, read_table, refused, run, succeeded
from tests.conftest import small_scenario

pytestmark = pytest.mark.rendered

COLUMN = (3.3, 2.5)


def layered(layers, heads, name="model.npz"):
    """A file of the heads of some layers, the later the harder."""
    rng = np.random.default_rng(1)
    query, key, value = rng.normal(size=(3, layers * heads, 16, 4))
    numbers = np.divmod(np.arange(layers * heads), heads)
    scales = np.linspace(0.2, 3.0, layers * heads)[:, None, None]
    np.savez(name, q=query * scales, k=key, v=value, layer=numbers[0], head=numbers[1])
    return name


def of_layers(layers, heads, out="run", **changes):
    flags = {"inputs": layered(layers, heads), "seq_len": None, "head_dim": None, "methods": "clusters"}
    return sweep(small_scenario(**flags | {"trials": 1, "num_projections": "4,8"} | changes), out)


def ranked(out, **changes):
    flags = {"maps": "positive,trig,phase,hyperbolic,oprf,taylor", "budget": "features", "num_projections": "8"}
    return sweep(small_scenario(**flags | changes), out)


def boxes(artists):
    return [one.get_window_extent() for one in artists if one.get_text() and one.get_visible()]


def test_a_size_is_that_of_the_file_and_text_is_text():
    results = sweep(small_scenario(trials=1), "run")
    with style.figure_options(style.FigureOptions(("png", "svg", "pdf"), COLUMN, "Mine: $5 a head")):
        files = draw_all(results, directory=Path("small"))
    panels = [f"iid-vs-ortho-{name}" for name in ("positive", "trig")]
    assert {file.name for file in files} >= {f"{panel}.{kind}" for panel in panels for kind in ("png", "pdf")}
    assert matplotlib.image.imread("small/iid-vs-ortho-positive.png").shape[:2] == (750, 990)  # 300 to the inch
    svg, pdf = (Path(f"small/iid-vs-ortho-positive.{kind}").read_bytes() for kind in ("svg", "pdf"))
    svg = svg.decode()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"positive", "iid", "uniform", "Mine: $5 a head"} <= set(texts) and 'width="237.6pt"' in svg
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and b"237.6 180" in pdf  # TrueType, as publishers ask for
    caption = Path("small/iid-vs-ortho-positive.txt").read_text("utf-8")
    assert caption.startswith("Median of 1 draw") and "Median of 1 draw" in svg and caption[:30] not in texts


@pytest.mark.rendered
def test_a_figure_on_a_page_keeps_the_digits_of_its_text():
    def ticks(ax):
        ax.set_xticks([0.25, 0.01234], ["0.25", "0.01234"])
        return pd.DataFrame({"x": [1]})

    (drawing,) = style.draw(style.Chart("x", "std = 0.75", "caption", [style.Panel("scale 0.125", ticks)]))
    svg = style.page_svg(drawing)
    assert {"0.25", "0.01234", "scale 0.125"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    assert 'aria-label="std = 0.75"' in svg and not re.search(r' [dxy]="[^"]*\d\.\d\d', svg)


def test_a_long_title_of_a_panel_stays_inside_the_figure():
    def points(ax):
        ax.plot([1, 2], [1, 2])
        return pd.DataFrame({"x": [1, 2]})

    title = (
        "sinks(4):multipole at R = 64\n21 heads of a-long-name-of-a-file-4096.npz, scale 1, L = 4096, d = 64, causal"
    )
    (drawing,) = style.draw(style.Chart("x", "Title", "caption", [style.Panel(title, points)]))
    drawing.figure.canvas.draw()
    box, whole = drawing.axes[0].title.get_window_extent(), drawing.figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and "\n21 heads" in drawing.axes[0].get_title()


@pytest.mark.parametrize("size", [COLUMN, (7.0, 4.0), None])
def test_names_do_not_overlap_and_legends_lie_inside(drawn, size):
    with style.figure_options(style.FigureOptions(size=size)):
        draw_all(sweep(small_scenario(trials=1, methods="clusters"), "run"))
        draw_all(ranked("ranked", trials=12, seq_len="16,18,20,22,24,26"))
    assert {name.partition("-")[0] for name in drawn} >= {"iid", "maps", "error", "ranking"}
    for name, figure in drawn.items():
        assert size or figure.get_suptitle(), name
        assert any(ax.get_title() for ax in figure.axes) and all(ax.get_xlabel() for ax in figure.axes), name
        assert any(label.get_text() for ax in figure.axes for label in ax.get_xticklabels()), name
        assert any(ax.get_ylabel() for ax in figure.axes) or name.startswith("ranking"), name
        for ax in figure.axes:
            for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
                for one, other in itertools.pairwise(boxes(labels)):
                    assert not one.overlaps(other), name
        for legend in figure.legends if size else ():
            box, whole = legend.get_window_extent(), figure.bbox
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= whole.x1 and box.y1 <= whole.y1, name
            assert not any(box.overlaps(ax.get_window_extent()) for ax in figure.axes), name
        for ax in figure.axes if size else ():
            names = boxes([*ax.get_yticklabels(), ax.yaxis.label])
            beside = [box for box in names if box.y0 < ax.bbox.y1 and box.y1 > ax.bbox.y0]  # not of ticks out of range
            assert all(box.x0 >= -1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in beside), name


@pytest.mark.parametrize("size", [COLUMN, (7.0, 4.0)])
def test_a_long_label_of_an_axis_stays_inside_and_leaves_room_for_the_next(drawn, size):
    methods = "clusters,multipole,sinks(4):window(8):multipole,sinks(4):multipole(exact=0.75, block=8, cells='tree')"
    with style.figure_options(style.FigureOptions(size=size)):
        draw_all(of_layers(1, 3, methods=methods), "relative_error")
    for name, figure in drawn.items():
        figure.draw_without_rendering()
        labels = boxes(ax.yaxis.label for ax in figure.axes)
        assert all(box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in labels), name
        assert not any(one.overlaps(other) for one, other in itertools.combinations(labels, 2)), name


@pytest.mark.parametrize(
    "sizes, panels, shown",
    [([16, 32, 64, 96, 128, 160, 240], 1, "16 32 64 96 160 240"), (range(16, 193, 16), 2, "32 64 96 128 160 192")],
)
def test_sizes_that_are_close_to_each_other_do_not_touch(sizes, panels, shown):
    def touching(ticks):
        figure = Figure(figsize=(3.4 * panels, 3), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.subplots(1, panels, squeeze=False)[0, 0]
        ax.plot(sizes, sizes)
        style.number_axis(ax, sizes, log=panels == 1)
        if ticks:
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        figure.draw_without_rendering()
        gaps = [right.x0 - left.x1 for left, right in itertools.pairwise(boxes(ax.get_xticklabels()))]
        return min(gaps) < 4, " ".join(label.get_text() for label in ax.get_xticklabels())

    assert touching(None) == (False, shown)
    assert touching(sizes)[0]


def test_adjacent_panels_share_their_range_and_far_worse_values_are_arrows(drawn):
    results = sweep(small_scenario(scale="0.3,1.5", seq_len="64", head_dim="16", baselines="uniform"), "run")
    draw_all(results)
    uniform = results.summary.query("estimator == 'uniform'").set_index("scale")["mse_median"]
    named = 0
    axes = drawn["iid-vs-ortho"].axes
    for left, right in zip(axes[::2], axes[1::2], strict=True):
        assert (
            left.get_ylim() == right.get_ylim() and left.get_ylabel() == "mean squared error" and not right.get_ylabel()
        )
        scale = float(re.search(r"scale = ([\d.]+)", left.get_title())[1])
        assert left.get_ylim()[1] <= 100 * uniform[scale] * 10
        beyond = results.summary.query("estimator == 'trig' and scale == @scale").groupby("sampler")["mse_median"].max()
        (note,) = [text.get_text() for text in right.texts] or [""]
        expected = set(beyond.index[beyond > right.get_ylim()[1]])
        assert right.get_ylim()[1] >= 100 * uniform[scale] or not expected
        assert set(re.findall("iid|orthogonal", note)) == expected
        named += len(expected)
    assert named > 0
    assert drawn["iid-vs-ortho"].axes[0].get_ylim() != drawn["iid-vs-ortho"].axes[2].get_ylim()  # the control


def test_only_distinguishable_series_are_drawn_and_the_rest_is_named(drawn):
    maps = ",".join(f"positive-eps(eps={i}e-3)" for i in range(1, 12))
    Path("own_map.py").write_text(
        "from favorbench import get_map\nfrom dataclasses import dataclass, replace\n"
        "class Bad(type(get_map('trig'))):\n    name = 'bad'\n", "utf-8"
    )  # fmt: skip
    draw_all(sweep(small_scenario(maps=f"{maps},own_map:Bad", samplers="iid", trials=1, scale="2"), "run"))
    (ax,) = drawn["maps"].axes
    labels = ax.get_legend_handles_labels()[1]
    assert "bad" in labels and len([name for name in labels if name.startswith("positive")]) == MAX_CURVES - 1
    caption = drawn["maps"].get_label()
    rest = [f"positive-eps(eps={i / 1000:g})" for i in range(1, 12)]
    assert sum(name in caption.partition("Grey: ")[2] for name in rest) == 12 - MAX_CURVES


@pytest.mark.parametrize("values", [[1e-320, 0.1], [1e-149, 1e149], [5e-324, 1e308], [1e-148], [math.nan, 1.0]])
def test_axes_of_any_numbers(values):
    """Subnormal numbers, and three hundred decades: finite limits, and what can be shown inside."""
    ax = Figure().subplots()
    style.log_limits(ax, values)
    low, high = ax.get_ylim()
    assert 0 <= low < high < math.inf and all(low <= v <= high for v in values if 1e-150 < v < 1e150)
    ax.figure.draw_without_rendering()


def test_who_is_chosen():
    errors = {"a": 3.0, "b": float("nan"), "c": 1.0, "d": 2.0, "own": 9.0}
    assert choose(errors, 3, {"own"}) == ["c", "d", "own"] and choose(errors, 9) == list(errors)
    assert choose(errors, 1, {"b", "own"}) == ["b", "own"]
    assert in_words([str(i) for i in range(20)]).endswith("15 and 4 more (all in the CSV)")
    ours = ("centre:oprf(rho=0.5)", "sinks(4):window(32):clusters(lloyd=3)", "uniform", "positive-eps(eps=1e-3)")
    assert not any(is_own({"estimator": name, "sampler": "antithetic:iid"}) for name in ours)
    assert is_own({"estimator": "centre:mine", "sampler": None}) and is_own({"estimator": "trig", "sampler": "signs"})


def test_a_map_of_layers_and_heads_by_hand(drawn):
    results = of_layers(2, 4, samplers="iid", methods=None)
    style.write(layer_map(results, "mse", "positive / iid"), Path("figures"))
    few = of_layers(2, 3, "few", samplers="iid", methods=None)
    assert layer_map(few, "mse") == []  # six heads are shown each by itself
    assert layer_map(results, "skill") == []
    figure = drawn["heads"]
    image, texts = figure.axes[0].collections[0].get_array(), [text.get_text() for text in figure.axes[0].texts]
    summary = results.summary[results.summary["num_projections"].isin([8]) & (results.summary["sampler"] == "iid")]
    errors = summary.query("estimator == 'positive'").set_index("head")["mse_median"]
    trivial = results.summary.query("estimator == 'uniform'").set_index("head")["mse_median"]
    for i, j in np.ndindex(2, 4):
        ratio = errors[f"L{i}H{j}"] / trivial[f"L{i}H{j}"]
        assert image[i, j] == pytest.approx(np.clip(ratio, *figure.axes[0].collections[0].get_clim()), rel=1e-12)
        assert texts[4 * i + j].startswith("×") == (ratio > 1)
    assert "positive / iid at R = 8" in figure.axes[0].get_title() and "8 heads" in figure.axes[0].get_title()


def test_single_heads_on_request():
    of_layers(2, 4, samplers="iid")
    out = succeeded("plot run --heads L0H1 --format png -q")
    assert "run/figures/L0H1/error-vs-cost.png" in out and "heads.png" not in out
    assert set(pd.read_csv("run/figures/L0H1/error-vs-cost.csv")["heads"]) == {1}
    code, out, err = run("table", "run")
    assert code == 0 and out.count("mse, ") == 0 and "over 8 heads" in out and "--heads L0H0" in err
    out = succeeded("table run --heads L0H1")
    assert out.count("model.npz L0H1") == 1 and "L0H0" not in out
    check_refused("""
        plot run --heads L0H9 => no head 'L0H9'
        plot run --estimators cluster => did you mean 'clusters'
    """)


def test_lists_of_heads_that_begin_alike_have_folders_of_their_own():
    """The figures of the second were written over those of the first."""
    of_layers(2, 14, samplers="iid")
    first = ",".join(f"L0H{head}" for head in range(13))
    for last in ("L0H13", "L1H0"):
        succeeded(f"plot run --heads {first},{last} --format png -q")
    assert len([*Path("run/figures").iterdir()]) == 2


@pytest.mark.parametrize(
    "flag, value",
    [*read_table("""
        --size => 0x3
        --size => 300x300
        --size => 3.3
        --size => 1e1x3
        --size => -3x3
        --format => bmp
        --format => png,,svg
    """), ("--format", "")],
)  # fmt: skip
def test_names_that_are_not_figures(flag, value):
    sweep(small_scenario(trials=1), "run")
    said = refused("plot", "run", flag, value)
    assert repr(value) in said or "''" in said
    assert "allowed" in said and not Path("run/figures").exists()


def luminance(colour):
    """Relative luminance, WCAG 2.1."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_on_a_dark_ground_everything_can_be_seen(drawn):
    ground = luminance(style.on_dark("white"))
    contrast = {colour: (luminance(style.on_dark(colour)) + 0.05) / (ground + 0.05) for colour in style.COLOURS}
    assert min(contrast.values()) > 4.5  # of text, by WCAG; and as they are on white some would not be
    assert min((luminance(colour) + 0.05) / (ground + 0.05) for colour in style.COLOURS) < 3
    with style.figure_options(style.FigureOptions(dark=True)):
        draw_all(sweep(small_scenario(trials=1), "run"))
    style.darken(drawn["iid-vs-ortho"])
    for text in drawn["iid-vs-ortho"].findobj(Text):
        assert (luminance(text.get_color()) + 0.05) / (ground + 0.05) > 4.5, text


def test_dark_figures_are_written_next_to_the_others():
    sweep(small_scenario(trials=1), "run")
    assert run("plot run --dark --format png -q")[0] == 0
    corner = matplotlib.image.imread("run/figures/iid-vs-ortho-dark.png")[0, 0, :3]
    assert corner.max() < 0.15 and not Path("run/figures/iid-vs-ortho.png").exists()


@pytest.mark.parametrize("height", [4.8, 0.9])
@pytest.mark.parametrize(
    ("low", "high"), [(0.86, 1.01), (0.21, 0.48), (0.3, 2.0), (0.2, 100.0), (3e-5, 1e-3), (1e-9, 1.0)]
)
def test_a_log_axis_has_two_labelled_ticks_at_least(low, high, height):
    ax = Figure((3.3, height)).subplots()
    ax.set(yscale="log", ylim=(low, high))
    style.log_ticks(ax.yaxis)
    ax.figure.draw_without_rendering()
    inside = [tick for tick in ax.yaxis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_text()]
    assert len(inside) >= 2
