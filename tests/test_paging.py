"""Figures of several files: each is called as what it shows, and panels that are compared have one range in all."""

import itertools

import pandas as pd
import pytest

from favorbench import style
from favorbench.results.figures import FIGURES, charts_of
from favorbench.run import sweep
from favorbench.style.charts import page_names
from tests.command_line import read_table
from tests.conftest import small_scenario
from tests.test_drawn import COLUMN
from tests.test_heads import head_file


@pytest.mark.parametrize(
    "titles, names",
    [
        *read_table("""
            h0, iid | h0, orthogonal | h1, iid => -h0-iid | -h0-orthogonal | -h1-iid
            h0, iid + h0, orthogonal | h1, iid + h1, orthogonal => -h0 | -h1
            a.npz L0H1, L = 8 + a.npz L0H2, L = 8 | a.npz L1H1, L = 8 => -a.npz-L0H1-to-a.npz-L0H2 | -a.npz-L1H1
            x, L = 8 + x, L = 16 | x, L = 32 + x, L = 64 => -L=8-to-L=16 | -L=32-to-L=64
            mine(a='/etc') | ../b => -mine-a=-etc | -..-b
            same | same => -1 | -2
            A | a => -1 | -2
        """),
        ("h0, iid + h0, orthogonal", ""),
    ],
)
def test_files_are_named_by_their_content(titles, names):
    """Of the panels (+) of each file (|); A and a are one file where letters have no case."""
    assert page_names([panels.split(" + ") for panels in titles.split(" | ")]) == names.split(" | ")


def test_panels_that_belong_together_are_not_parted():
    panels = [style.Panel(f"h{i}, {j}", lambda ax: None) for i in range(4) for j in "ab"]
    chart = style.Chart("x", "title", "caption", panels, 2)
    with style.figure_options(style.FigureOptions(size=(7.0, 6.0))):  # room for three rows of three
        assert [len(page.panels) for page in style.pages(chart)] == [6, 2]
    with style.figure_options(style.FigureOptions(size=(7.0, 2.4))):
        assert [page.name for page in style.pages(chart)] == ["x-h0", "x-h1", "x-h2", "x-h3"]


def test_who_shares_a_range():
    def panel(top, group):
        return style.Panel(f"up to {top}", lambda ax: ax.set_ylim(0, top) and None, group)

    panels = [panel(1, "x"), panel(2, "y"), panel(3, "x"), panel(4, None), panel(5, None)]
    (drawing,) = style.draw(style.Chart("x", "title", "caption", panels, 5, data=pd.DataFrame()))
    assert [ax.get_ylim()[1] for ax in drawing.axes] == [3, 2, 3, 4, 5]
    labelled = [ax.yaxis.get_tick_params().get("labelleft", True) for ax in drawing.axes]
    assert labelled == [True, True, False, True, True]


def write(name, results):
    """The figures of a kind, in files as wide as a column."""
    kind = next(kind for kind in FIGURES if name in kind.names)
    with style.figure_options(style.FigureOptions(size=COLUMN)):
        style.write(charts_of(kind, results, "mse"), results.path / "figures")


def test_heads_have_one_range_in_all_files(drawn):
    results = sweep(
        small_scenario(inputs=head_file(3), seq_len=None, head_dim=None, scale="0.5,1.5", maps="positive"), "run"
    )
    write("iid-vs-ortho", results)
    files = {name: figure.axes[0].get_ylim() for name, figure in drawn.items() if name.startswith("iid-vs-ortho")}
    assert {*files} == {f"iid-vs-ortho-h{i}-scale={s}" for i in range(3) for s in ("0.5", "1.5")}
    scales = {name.rpartition("=")[2]: limits for name, limits in files.items()}
    assert all(limits == scales[name.rpartition("=")[2]] for name, limits in files.items())
    assert scales["0.5"] != scales["1.5"]  # the control: those are not compared
    shown = pd.DataFrame(results.summary).query("scale == 0.5 and kind == 'map' and sampler == 'iid'")["mse_median"]
    assert scales["0.5"][0] < shown.min() and shown.max() < scales["0.5"][1]


def test_shares_of_uniform_are_compared_everywhere(drawn):
    scenario = small_scenario(inputs=head_file(2), seq_len=None, head_dim=None, scale="0.5,1.5", methods="clusters")
    write("error-vs-cost", sweep(scenario, "run"))
    found = [figure.axes[0].get_ylim() for name, figure in drawn.items() if name.startswith("error-vs-cost")]
    assert len(found) == 6 and all(one == other for one, other in itertools.pairwise(found))
