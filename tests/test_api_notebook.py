"""The Python interface: figures on axes, tables as HTML, progress in a notebook, errors for unknown names."""

import re
import sys
import types
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench import progress
from favorbench.results import heads, tables
from favorbench.results.figures import FIGURES, draw_all
from tests.conftest import small_scenario

matplotlib.use("Agg")


@pytest.fixture
def pyplot():
    import matplotlib.pyplot as plt

    plt.close("all")  # of other tests in this process
    yield plt
    plt.close("all")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two maps, two samplers, three sizes, on two heads."""
    rng = np.random.default_rng(3)
    arrays = tuple(rng.normal(size=(2, 24, 4)) for _ in "qkv")
    folder = tmp_path_factory.mktemp("run")
    asked = {"maps": "positive,trig", "samplers": "iid,orthogonal", "num_projections": [3, 8, 20], "trials": 6}
    return fb.sweep("quick", out=folder / "run", inputs={"mine": arrays}, **asked)


def test_a_figure_is_drawn_on_axes_as_in_its_file(run, pyplot, tmp_path):
    """The numbers of its lines are those of the CSV, and no file is written."""
    before = sorted(run.path.rglob("*"))
    first = run.plot("trig-vs-positive")
    assert sorted(run.path.rglob("*")) == before
    panels = first.figure.axes
    assert first is panels[0] and [type(ax) for ax in panels] == [Axes] * 4  # two heads, two samplers
    draw_all(run, "mse", tmp_path)
    data = pd.read_csv(tmp_path / "trig-vs-positive.csv")
    for ax, (title, rows) in zip(panels, data.groupby("panel", sort=False), strict=True):
        assert ax.get_title() == title
        for name in ("positive", "trig"):
            (line,) = [line for line in ax.lines if line.get_label() == name]
            assert_allclose(np.asarray(line.get_ydata()), rows[rows["series"] == name]["mse_median"])
    assert len(pyplot.get_fignums()) == 1 and panels[0].figure is pyplot.gcf()


def test_one_panel_is_one_axes_and_may_be_the_users_own(run, pyplot):
    one = small_scenario(samplers="iid")
    alone = fb.sweep(one, "alone")
    assert isinstance(alone.plot("maps"), Axes)
    figure, (left, right) = pyplot.subplots(1, 2)
    assert alone.plot("maps", ax=right) is right
    assert right.lines and not left.lines and len(pyplot.get_fignums()) == 2 and not figure.texts
    figure, grid = pyplot.subplots(2, 2)
    assert run.plot("samplers", ax=grid) is grid[0, 0]
    assert all(ax.lines for ax in grid.flat)
    sub = Figure().subfigures(1, 2)[1]
    assert alone.plot("maps", ax=sub.subplots()).lines  # pyright: ignore[reportAttributeAccessIssue]
    for count, asked in ((2, {"heads": "h1"}), (2, {"samplers": "iid"}), (1, {"heads": "h1", "samplers": "iid"})):
        assert len(run.plot("maps", inputs="mine", **asked).figure.axes) == count
    figure, (left, right) = pyplot.subplots(1, 2)
    assert run.plot("maps", heads="h1", samplers="iid", ax=left) is left and not right.lines


def test_axes_of_a_user_keep_the_users_font(run, pyplot):
    with pyplot.rc_context({"font.family": "serif"}):
        ax = pyplot.subplots()[1]
        run.plot("maps", heads="h1", samplers="iid", ax=ax)
        ax.figure.draw_without_rendering()
        texts = [ax.xaxis.label, ax.yaxis.label, ax.title, *ax.get_legend().get_texts(), *ax.get_yticklabels()]
    assert {family for text in texts for family in text.get_fontfamily()} == {"serif"}


def test_files_that_cannot_be_plotted_are_named(run, pyplot):
    for name, options, said in [
        ("trig-vs-postive", {}, "unknown figure 'trig-vs-postive' (did you mean 'trig-vs-positive'?); allowed: "),
        ("error-vs-L", {}, "'error-vs-L': this run has nothing to show in it; it needs two values of L, d or scale"),
        ("error-vs-seconds", {}, "nothing to show in it; it needs the times of `favorbench speed RUN`"),
        (3, {}, "unknown figure '3'"),
        ("maps", {"samplers": "idd"}, "has no 'idd' (did you mean 'iid'"),
        ("maps", {"ax": Figure().subplots()}, "`ax`: 1 axes were given, and 'maps' has 4 panels"),
        ("maps", {"ax": ["a"] * 4}, "`ax`: 'a' given, allowed: Axes of matplotlib"),
        ("maps", {"metric": "msee"}, "`metric` 'msee' (did you mean 'mse'?)"),
        ("maps", {"heads": "h2"}, "no head 'h2' (did you mean 'h"),
    ]:
        with pytest.raises(fb.ScenarioError, match=re.escape(said)):
            run.plot(name, **options)
    assert not pyplot.get_fignums()


def test_every_figure_can_be_requested_by_name(run, pyplot):
    for name in (name for kind in FIGURES for name in kind.names):
        try:
            assert isinstance(run.plot(name), Axes)
        except fb.ScenarioError as error:
            assert "nothing to show in it; it needs" in str(error)


def test_tables_and_rankings(run):
    table = run.table("estimator,R", metric="relative_error", stat="mean")
    assert table == tables.pivoted(run, ["estimator", "num_projections"], "relative_error", "mean")
    with pytest.warns(FutureWarning, match="the axis map is now estimator"):
        assert run.table("map,R", metric="relative_error", stat="mean") == table
    assert repr(table).startswith("mean relative_error of 12 draws, pooled over head, sampler\n\n| estimator | R = 3 |")
    assert len(run.table()) == 1 and len(run.table(stat="mean")) == len(run.table(heads="h0,h1")) == 2
    assert "Ranking over 2 heads of mine" in repr(run.ranking()) and "mine h0" in repr(run.ranking(heads="h0"))
    assert [one.title for one in run.table(over="heads")] == [heads.title(heads.populations(run)[0])]
    for wrong, said in [
        ({"by": "estimater,R"}, "unknown axis 'estimater' (did you mean 'estimator'?)"),
        ({"metric": "cosin"}, "`metric` 'cosin' (did you mean 'cosine'?)"),
        ({"stat": "medain"}, "`stat` 'medain' (did you mean 'median'?)"),
        ({"over": "head"}, "`over` 'head' (did you mean 'heads'?)"),
        ({"over": "heads", "stat": "mean"}, "leave `by` and `stat` out"),
    ]:
        with pytest.raises(fb.ScenarioError, match=re.escape(said)):
            run.table(**wrong)
    with pytest.raises(fb.ScenarioError, match="has no input with two heads or more"):
        fb.sweep(small_scenario(), "one").table(over="heads")
    assert repr(run) == f"<Results of 'quick' in {run.path}: 12 of 12 draws, {len(run.trials)} rows>"


def parsed(shown):
    """The tags and the texts of a page, whose elements must be closed in order; a dark notebook has its own colours."""
    root = ElementTree.fromstring(f"<page>{shown._repr_html_()}</page>")
    assert not any("color" in value for element in root.iter() for value in element.attrib.values())
    return {element.tag for element in root.iter()}, [*root.itertext()]


PLAIN = {"page", "div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "pre"}


def test_html_is_whole_and_has_the_numbers_of_the_tables(run):
    other = run.compare(estimators="positive iid,trig iid")
    found = fb.recommend("gaussian(std=0.2)", 0.1, seq_len=32, head_dim=4, methods="clusters", max_size=32)
    for shown in (run, run.table("estimator,R"), run.table(), run.ranking(), run.table(over="heads"), other, found):
        tags, _ = parsed(shown)
        assert tags <= PLAIN and "table" in tags
    cell = tables.cell_tables(run)[0]
    texts = parsed(run.table(heads="h0"))[1]
    for row in cell.rows:
        assert set(row.values()) <= set(texts), row
    together, (population,) = parsed(run)[1], heads.populations(run)
    for record in heads.rows_of(run, population.rows):
        assert set(record.values()) <= set(together)
    assert set(other.frame()["mark"]) <= set("+-~=x") and "Comparison of mse" in repr(other)
    assert repr(found).startswith("<Recommendation for gaussian(std=0.2)")


def test_names_stay_names(run):
    """A name from a file, an estimator's or a head's, commands neither the page nor the terminal."""
    evil = "<script>alert(1)</script>\x1b[31m&"
    trials = run.trials.assign(head=run.trials["head"].where(run.trials["head"] != "h0", evil))
    summary = run.summary.assign(head=run.summary["head"].where(run.summary["head"] != "h0", evil))
    named = run._replace(trials=trials, summary=summary, path=run.path / evil)
    for shown in (named, named.table(heads=evil), named.ranking(heads=evil), named.table("head,estimator,R")):
        text = shown._repr_html_()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m&amp;" in text
        assert "script" not in parsed(shown)[0] and "\x1b" not in text
        assert "\x1b" not in (repr(shown) if shown is not named else "")
    bar = progress.Tracker(evil, "draws")
    assert "<script" not in bar._repr_html_()


class Display:
    """The output that IPython.display.display leaves in a cell: one, replaced by its updates."""

    def __init__(self):
        self.outputs = []

    def __call__(self, shown, display_id):
        self.outputs.append([])
        self.update(shown)
        return self

    def update(self, shown):
        self.outputs[-1].append((repr(shown), shown._repr_html_()))


@pytest.fixture
def notebook(monkeypatch):
    """A kernel, as far as we look at it."""
    shell, shown = types.SimpleNamespace(kernel=object()), Display()
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # pyright: ignore[reportAttributeAccessIssue]
    display = types.ModuleType("IPython.display")
    display.display = shown  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return types.SimpleNamespace(shown=shown, shell=shell)


def test_a_sweep_has_a_bar_in_a_notebook(notebook, capfd):
    fb.sweep(small_scenario(), "run")
    (updates,) = notebook.shown.outputs
    assert updates[-1] == ("sweep quick: 3 of 3 draws", "<div>sweep quick: 3 of 3 draws</div>")
    assert "<progress" in updates[0][1] and capfd.readouterr() == ("", "")
    fb.sweep(small_scenario(), "run", progress=lambda done, total: None)
    assert len(notebook.shown.outputs) == 1  # one's own is in its place
    fb.recommend("gaussian(std=0.2)", 0.1, seq_len=32, head_dim=4, methods="clusters", max_size=32)
    assert notebook.shown.outputs[-1][-1][0] == "recommend: 1 of 1 heads"


def test_the_bar_of_a_recommendation_counts_heads(notebook, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)
    query, key, value = np.random.default_rng(2).normal(scale=0.2, size=(3, 2, 24, 4))
    fb.recommend({"mine": (query, key, value)}, 0.5, methods="clusters", max_size=16, max_cost=8.0)
    (updates,) = notebook.shown.outputs
    counts = [text.partition(" heads")[0] for text, _ in updates]
    assert list(dict.fromkeys(counts)) == ["recommend", *(f"recommend: {done} of 2" for done in range(3))]


def test_a_bar_ends_where_the_sweep_was_interrupted(notebook):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), progress.progress_callback(None, "sweep", "draws") as report:
        report(1, 3)
        stop(1, 3)
    assert notebook.shown.outputs[0][-1] == ("sweep: 1 of 3 draws", "<div>sweep: 1 of 3 draws</div>")


def test_no_bar_elsewhere(notebook, capfd):
    del notebook.shell.kernel  # IPython in a terminal
    fb.sweep(small_scenario(), "run")
    assert not notebook.shown.outputs and capfd.readouterr() == ("", "")


def test_a_callback_of_recommend_takes_what_its_docstring_says():
    """(done, in all), as for a sweep; the name of a step came too, which ended the search in a TypeError."""
    arrays = tuple(np.random.default_rng(2).normal(scale=0.2, size=(3, 2, 24, 4)))
    counts, steps = [], []
    for callback in (
        lambda done, total: counts.append((done, total)),
        lambda done, total, step: steps.append((done, total, step)),
    ):
        fb.recommend(arrays, 0.5, maps="none", methods="clusters", max_size=4, progress=callback)
    assert counts == [(0, 2), (1, 2)] and steps == [(0, 2, "h0"), (1, 2, "h1")]
