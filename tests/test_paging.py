"""Figures of several files: each is called as what it shows, and panels that are compared have one range in all."""

import itertools
from typing import NamedTuple

import pandas as pd
import pytest

from favorbench import style
from favorbench.results.figures import draw_all
from favorbench.results.figures.paging import endings, pages, together
from favorbench.run import sweep
from tests.conftest import small_scenario
from tests.test_drawn import COLUMN
from tests.test_heads import head_file


@pytest.fixture
def drawn(monkeypatch):
    """Figures by name, in the place of files."""
    found = {}

    def keep(figure, directory, name, data):
        found[name] = figure
        return [directory / f"{name}.png"]

    monkeypatch.setattr(style, "save", keep)
    return found


class Panel(NamedTuple):
    title: str
    beside: str = ""


@pytest.mark.parametrize(
    ("titles", "names"),
    [
        ([["h0, iid", "h0, orthogonal"]], [""]),
        ([["h0, iid"], ["h0, orthogonal"], ["h1, iid"]], ["-h0-iid", "-h0-orthogonal", "-h1-iid"]),
        ([["h0, iid", "h0, orthogonal"], ["h1, iid", "h1, orthogonal"]], ["-h0", "-h1"]),
        ([["a.npz L0H1, L = 8", "a.npz L0H2, L = 8"], ["a.npz L1H1, L = 8"]],
         ["-a.npz-L0H1-to-a.npz-L0H2", "-a.npz-L1H1"]),
        ([["x, L = 8", "x, L = 16"], ["x, L = 32", "x, L = 64"]], ["-L=8-to-L=16", "-L=32-to-L=64"]),
        ([["mine(a='/etc')"], ["../b"]], ["-mine-a=-etc", "-..-b"]),
        ([["same"], ["same"]], ["-1", "-2"]),
        ([["A"], ["a"]], ["-1", "-2"]),  # one file where letters have no case
    ],
)  # fmt: skip
def test_files_are_called_as_what_they_show(titles, names):
    assert endings(titles) == names


def test_panels_that_belong_together_are_not_parted():
    panels = [Panel(f"h{i}, {j}") for i in range(4) for j in "ab"]
    with style.asked(style.Wanted(size=(7.0, 6.0))):  # room for three rows of three
        assert [len(page) for _, page in pages(panels, 2)] == [6, 2]
    with style.asked(style.Wanted(size=(7.0, 2.4))):
        assert [name for name, _ in pages(panels, 2)] == ["-h0", "-h1", "-h2", "-h3"]


def test_who_shares_a_range():
    panels = [Panel("a", "x"), Panel("b", "y"), Panel("c", "x"), Panel("d", "z"), Panel("e", "w")]
    assert together(panels, 1) == [0, 1, 0, 3, 4]
    rows = together(panels, 2)  # a and b stand side by side, and c and d: so all four
    assert len({*rows[:4]}) == 1 and rows[4] != rows[0]


def test_heads_have_one_range_in_all_files(drawn):
    results = sweep(
        small_scenario(inputs=head_file(3), seq_len=None, head_dim=None, scale="0.5,1.5", maps="positive"), "run"
    )
    with style.asked(style.Wanted(size=COLUMN)):
        draw_all(results)
    files = {name: figure.axes[0].get_ylim() for name, figure in drawn.items() if name.startswith("iid-vs-ortho")}
    assert {*files} == {f"iid-vs-ortho-h{i}-scale={s}" for i in range(3) for s in ("0.5", "1.5")}
    scales = {name.rpartition("=")[2]: limits for name, limits in files.items()}
    assert all(limits == scales[name.rpartition("=")[2]] for name, limits in files.items())
    assert scales["0.5"] != scales["1.5"]  # the control: those are not compared
    shown = pd.DataFrame(results.summary).query("scale == 0.5 and kind == 'map' and sampler == 'iid'")["mse_median"]
    assert scales["0.5"][0] < shown.min() and shown.max() < scales["0.5"][1]


def test_shares_of_uniform_are_compared_everywhere(drawn):
    scenario = small_scenario(inputs=head_file(2), seq_len=None, head_dim=None, scale="0.5,1.5", methods="clusters")
    with style.asked(style.Wanted(size=COLUMN)):
        draw_all(sweep(scenario, "run"))
    found = [figure.axes[0].get_ylim() for name, figure in drawn.items() if name.startswith("error-vs-cost")]
    assert len(found) == 6 and all(one == other for one, other in itertools.pairwise(found))
