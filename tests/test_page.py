"""The page: each number is the table's, nothing is loaded, names stay names, it reads without its script."""

import base64
import gzip
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import format_value
from favorbench.results import findings, heads
from favorbench.results import page as pages
from favorbench.results.compare import comparison, comparison_sentences
from favorbench.results.figures.cost import front
from favorbench.results.ranking import ranking_section, rankings
from favorbench.results.results import load
from favorbench.results.summary import BOUND, summarise
from favorbench.results.tables import rounding_level
from favorbench.run import sweep
from favorbench.statistics import fewest_draws
from tests.command_line import check_refused, run
from tests.conftest import parts, small_scenario
from tests.test_drawn import luminance
from tests.test_heads import head_file, of_heads

JUDGED = ("groups", "against uniform")


class Read(HTMLParser):
    """A page's content: tables as rows of texts, each with its section; pictures; links; and every start tag."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.tables = []
        self.headings = []
        self.axes = []
        self._open = ""
        self.section = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attrs))
        if "data-axes" in attrs:
            self.axes.append(json.loads(attrs["data-axes"]))
            self.section = str(len(self.axes) - 1)
        elif tag == "section":
            self.section = ""
        if tag == "table":
            self.tables.append({"section": self.section, "caption": [], "rows": [], "scopes": []})
        if tag == "tr":
            self.tables[-1]["rows"].append([])
        if tag in ("td", "th"):
            self.tables[-1]["rows"][-1].append("")
            self.tables[-1]["scopes"] += [attrs.get("scope")] if tag == "th" else []
        self._open = tag

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in ("td", "th"):
            self.tables[-1]["rows"][-1][-1] += data
        elif self._open == "caption":
            self.tables[-1]["caption"].append(data)
        elif self._open in ("h1", "h2", "h3", "summary"):
            self.headings.append(data)

    def of(self, section):
        return [table for table in self.tables if table["section"] == str(section)]


def made(results, name="report"):
    return Read(pages.page(results, name).html)


def quick_run(**changes):
    return sweep(small_scenario(**{"trials": 8, "samplers": "iid,orthogonal", "methods": "clusters"} | changes), "run")


def check_cells(results, read, first):
    """Every number of every cell's table, from the summary alone."""
    sizes = sorted(set(results.summary["num_projections"].dropna()))
    found = list(results.summary.groupby(list(CELL), sort=False, dropna=False))
    assert len(found) > 0
    for number, ((_, cell), ranking) in enumerate(zip(found, rankings(results), strict=True), start=first):
        (table,) = read.of(number)
        floor = rounding_level(results.trials.merge(cell[list(CELL)].drop_duplicates(), on=list(CELL)), "mse")
        assert table["rows"][0][1 : 1 + len(sizes)] == [f"R = {size}" for size in sizes]
        uniform = float(cell.query("estimator == 'uniform'")["mse_median"].iloc[0])
        order = [(record["estimator"], record) for record in ranking_section(results, ranking, "mse").rows]
        assert len(order) == len(table["rows"]) - 1
        for (name, record), (estimator, *texts) in zip(order, table["rows"][1:], strict=True):
            assert name == estimator
            one, _, sampler = name.removesuffix(BOUND).partition(" / ")
            sampler = sampler or "-"
            rows = cell[(cell["estimator"] == one) & (cell["sampler"].fillna("-") == sampler)]
            by_size = dict(zip(rows["num_projections"].fillna(0), rows["mse_median"], strict=True))
            for size, text in zip(sizes, texts, strict=False):
                value = float(by_size.get(size, by_size.get(0, math.nan)))
                worse = max(value, floor) > max(uniform, floor)
                assert text == format_value(value, "mse", floor) + ("*" if worse else "")
            heading = table["rows"][0]
            expected = {
                name: value
                for name, value in record.items()
                if name not in ("estimator", "mse") and (name not in JUDGED or name in heading)
            }
            assert texts[len(sizes) :] == [*expected.values()]
            few = min(ranking.draws_needed, fewest_draws(len(ranking.rows) - 1))
            assert (set(JUDGED) <= set(heading)) == (ranking.draws >= few)  # else they would say nothing


def test_every_number_of_a_cell_is_the_summarys():
    results = quick_run(scale="0.5,2")
    read = made(results)
    check_cells(results, read, 0)
    assert any(text.endswith("*") for table in read.of(1) for row in table["rows"] for text in row)
    broken = results.summary.copy()
    broken["mse_median"] *= 1.5
    with pytest.raises(AssertionError):  # the control
        check_cells(results._replace(summary=broken), read, 0)


def test_every_number_over_heads_is_the_tables():
    results = of_heads(7)
    read, (population,) = made(results), heads.populations(results)
    expected = heads.rows_of(results, population.rows)
    rows = [row for table in read.of(0) for row in table["rows"][1:]]
    assert sorted(map(tuple, rows)) == sorted(tuple(record.values()) for record in expected)
    largest = read.of(0)[0]["rows"][1:]
    assert {row[1] for row in largest} == {"-", "20"} and len(read.of(0)) == 3
    medians = [float(row[3].replace("<", "")) for row in largest]
    assert medians == sorted(medians)
    check_cells(results, read, 1)


def test_all_sentences_are_there():
    for results in (quick_run(), of_heads(7, "heads")):
        text = html.unescape(re.sub(r"<[^>]+>", " ", pages.page(results).html))
        for sentence in findings.sentences(results):
            assert sentence in text


def test_nothing_is_loaded_and_only_our_own_style_and_script_are_obeyed():
    html = pages.page(of_heads(3)).html
    read = Read(html)
    for tag, attrs in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "audio", "video", "image")
        assert "src" not in attrs and "style" not in attrs and "action" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        assert attrs.get("href", "#").startswith(("#", "data:text/csv;base64,", "data:application/gzip;base64,"))
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", html, re.S)[1] for tag in ("style", "script"))
    assert "url(" not in style and "@import" not in style and "http" not in html.replace("http-equiv", "")
    for word in ("fetch(", "XMLHttp", "import(", "innerHTML", "eval(", "WebSocket", "sendBeacon", "document.write"):
        assert word not in script
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in next(a["content"] for t, a in read.tags if a.get("http-equiv")).split(";")
    )
    assert policy.pop("default-src") == policy.pop("base-uri") == policy.pop("form-action") == "'none'"
    assert policy.pop("img-src") == "data:"  # the colour bar of a figure is an image inside the page
    for kind, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(kind) == f"'sha256-{digest}'"
    assert policy == {} and html.count("<script") == 1 and html.count("<style") == 1
    assert len(script) < 10_000


EVIL = "<script>alert(1)</script>"


def renamed(results, column, old, new):
    """A run in which an estimator or a head has another name: as a user's module, or a file, may name it."""
    trials, summary = (
        frame.assign(**{column: frame[column].replace(old, new)}) for frame in (results.trials, results.summary)
    )
    counts = {new if name == old else name: count for name, count in results.manifest["num_features"].items()}
    return results._replace(trials=trials, summary=summary, manifest=dict(results.manifest) | {"num_features": counts})


def test_names_stay_names():
    results = renamed(of_heads(7), "estimator", "positive", EVIL)
    results = renamed(results, "head", "h1", "\x1b[31m\"'&<!--\u202e")
    results = results._replace(scenario=results.scenario.model_copy(update={"title": f"</title>{EVIL}", "name": EVIL}))
    text = pages.page(results, EVIL).html
    assert text.count("<script") == 1 and "<!--" not in text and "alert(1)" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    read = Read(text)
    assert any(row[0].startswith(EVIL) for table in read.tables for row in table["rows"] if row)
    assert any("\\x1b[31m\"'&<!--\\u202e" in heading for heading in read.headings)
    assert read.axes[2]["head"].startswith("\\x1b[31m")


def test_control_characters_in_the_names_of_rows_are_escaped():
    html = pages.page(renamed(of_heads(7), "estimator", "positive", "mine\x1b\u202e"), "page").html
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert any(row[0].startswith("mine\\x1b\\u202e") for table in Read(html).tables for row in table["rows"] if row)


@pytest.mark.rendered
def test_it_reads_with_a_screen_reader_and_without_its_script():
    read = made(of_heads(7))
    assert ("html", {"lang": "en"}) in read.tags
    for table in read.tables:
        assert "".join(table["caption"]).strip() and table["scopes"].count("row") == len(table["rows"]) - 1
        assert table["scopes"].count("col") == len(table["rows"][0])
    pictures = [attrs for tag, attrs in read.tags if tag == "svg"]
    assert pictures and all(
        a.get("aria-hidden") == "true" or (a["role"] == "img" and a["aria-label"]) for a in pictures
    )
    assert [a.get("tabindex") for _, a in read.tags if a.get("class") == "scroll"].count("0") > len(read.tables)
    assert all("hidden" in a for t, a in read.tags if t == "form")  # what needs the script is not there without it
    hidden = [t for t, a in read.tags if "hidden" in a]
    assert hidden == ["form"]
    assert len([t for t, _ in read.tags if t == "h1"]) == 1


def colours(dark):
    style = (Path(pages.__file__).parent / "style.css").read_text()
    light, night = re.findall(r":root\{(.*?)\}", style, re.S)
    found = dict(re.findall(r"--(\w+):(#\w+)", light))
    return found | (dict(re.findall(r"--(\w+):(#\w+)", night)) if dark else {})


def contrast(a, b):
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_have_contrast_with_the_page(dark):
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for lines that carry meaning (1.4.11)."""
    found = colours(dark)
    for name in ("ink", "quiet", "link", "good", "bad"):
        assert contrast(found[name], found["page"]) >= 4.5 and contrast(found[name], found["band"]) >= 4.5, name
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # a known value


@pytest.mark.slow
def test_a_page_of_many_heads_stays_below_its_limit():
    html = pages.page(of_heads(72, trials=2)).html
    assert len(html.encode()) < pages.LIMIT == 1_000_000 and "Left out" not in html
    assert html.count("<details data-axes=") == 72


@pytest.mark.rendered
def test_a_page_above_its_limit_leaves_parts_out(monkeypatch):
    results = of_heads(16, trials=2)
    monkeypatch.setattr(pages, "PLAIN_DATA", 0)
    monkeypatch.setattr(pages, "LIMIT", 60_000)
    small = pages.page(results).html
    assert len(small.encode()) < 60_000
    kept, left = small.count("<details data-axes="), re.search(r"(\d+) of 17 tables", small)
    assert 0 < kept < 16 and left and int(left[1]) == 16 - kept
    monkeypatch.setattr(pages, "LIMIT", 34_000)
    monkeypatch.setattr(pages, "PACKED_DATA", 0)
    (tiny, csv) = pages.write_page(results, Path("tiny.html"))
    assert tiny.stat().st_size < 34_000 and "figures" in tiny.read_text()
    assert len(pd.read_csv(csv)) == len(results.summary) and "tiny.csv, a file next to this page" in tiny.read_text()


def test_the_data_are_in_the_page():
    results = quick_run()
    link = re.search(r'<a download="mine.csv" href="data:text/csv;base64,([^"]+)"', pages.page(results, "mine").html)
    data = pd.read_csv(StringIO(base64.b64decode(link[1]).decode()))
    assert len(data) == len(results.summary)
    assert_allclose(data["mse_median"], results.summary["mse_median"], rtol=5e-6, atol=1e-25)
    assert list(data["versus_uniform"]) == list(results.summary["versus_uniform"])


def test_a_page_to_be_sent_has_neither_directories_nor_host_names():
    file = Path(head_file(3)).resolve()
    results = sweep(small_scenario(inputs=str(file), maps="positive", methods="clusters", num_projections="3,8"), "run")
    workers = [{"host": "a-host", "done": 1, "cpu": "AMD", "gpu": None, "blas": []}]
    results = results._replace(manifest={**results.manifest, "workers": workers})
    html = pages.page(results).html
    assert "heads.npz" in html and str(file.parent) not in html and "a-host" not in html
    link = re.search(r'href="data:text/csv;base64,([^"]+)"', html)
    assert link and str(file.parent) not in base64.b64decode(link[1]).decode()
    assert "<h1>Estimators of softmax attention on heads.npz</h1>" in html
    assert html.index("<figure>") < html.index("<h2>Findings</h2>")  # the headline figure comes first


def test_directories_with_spaces_are_left_out_too():
    folder = Path("a user/of this").resolve()
    folder.mkdir(parents=True)
    Path(head_file(2)).rename(folder / "heads.npz")
    results = sweep(small_scenario(inputs=str(folder / "heads.npz"), maps="positive", trials=1), folder / "run")
    for made in (pages.page(results), pages.comparison_page(comparison(results, results))):
        assert "heads.npz" in made.html and "user" not in made.html and "of this" not in made.html


def test_large_data_are_packed(monkeypatch):
    monkeypatch.setattr(pages, "PLAIN_DATA", 100)
    results = quick_run()
    link = re.search(
        r'<a download="r.csv.gz" href="data:application/gzip;base64,([^"]+)"', pages.page(results, "r").html
    )
    assert gzip.decompress(base64.b64decode(link[1])).decode() == pages.data_csv(results)


def test_the_manifest_is_there():
    results = quick_run()
    html = pages.page(results).html
    assert pages.page(results).html == html  # the same run is the same page
    rows = {row[0]: row[1] for table in Read(html).tables for row in table["rows"][1:] if len(row) == 2}
    assert rows["maps"] == "positive, trig" and rows["num_projections"] == "3, 8, 20" and rows["draws"] == "8 of 8"
    assert rows["digest of the scenario"] == results.manifest["digest"] in html


def test_a_partial_run_says_so():
    results = quick_run()
    partial = results._replace(manifest=dict(results.manifest) | {"complete": False, "draws_done": 3})
    assert "<li class=partial>PARTIAL: 3 of 8 draws" in pages.page(partial).html


def test_where_each_size_has_its_own_draws_the_page_says_what_an_interval_is_of():
    """The median of uniform attention, over all draws, may lie outside the interval beside it."""
    words = "medians over the draws of all sizes; order, interval"
    for redraw in ("R", "trial"):
        found = pages.page(sweep(small_scenario(redraw=redraw), redraw)).html
        assert (words in found) == (redraw == "R")


def test_one_size_one_estimator_and_no_random_map_have_a_page():
    runs = [
        {"num_projections": "4"}, {"maps": "elu"}, {"trials": 1}, {"baselines": "uniform"},
        {"budget": "features", "num_projections": "4,8"}, {"budget": "cost"}, {"causal": True, "seq_len": "16,24"},
        {"dtype": "float64,float32"},
    ]  # fmt: skip
    for i, changes in enumerate(runs):
        results = sweep(small_scenario(**{"trials": 2, "samplers": "iid"} | changes), f"run{i}")
        read = made(results)
        assert describe_cell(results.summary.iloc[0]) in read.headings


def test_an_estimator_that_failed_has_a_page():
    results = quick_run()
    failed = results.summary["estimator"] == "trig"
    columns = {name: results.summary[name].mask(failed, np.inf) for name in ("mse_median", "mse_q10", "mse_q90")}
    assert made(results._replace(summary=results.summary.assign(**columns))).of(0)


def test_the_front_by_hand():
    def places(costs, ratios, exact=math.nan):
        return [*front(pd.DataFrame({"cost": costs, "ratio": ratios, "bound": False}), exact).index]

    assert places([1.0, 2.0, 3.0, 4.0, 0.5], [0.9, 0.5, 0.6, 0.1, 1.2]) == [0, 1, 3]
    assert places([1.0, 2.0, 3.0, 4.0, 0.5], [0.9, 0.5, 0.6, 0.1, 1.2], 4.0) == [0, 1]  # exact attention costs as much
    assert places([1.0, 1.0], [0.9, 0.5]) == [1] and places([1.0], [math.nan]) == [] == places([], [])


def test_the_command_writes_only_to_its_output():
    quick_run()
    code, out, _ = run("report", "run")
    assert (code, out.strip()) == (0, str(Path("run/report.html")))
    first = Path("run/report.html").read_text()
    assert run("report", "run")[0] == 0 and Path("run/report.html").read_text() == first  # its own is replaced
    assert run("report run --out new/mine.html")[0] == 0
    assert Path("new/mine.html").read_text() == first.replace("report.csv", "mine.csv")
    Path("theirs.html").write_text("<!doctype html><p>mine")
    check_refused("report run -o theirs.html => was not written by favorbench report; give --out another name")
    assert Path("theirs.html").read_text() == "<!doctype html><p>mine"
    check_refused("""
        report run --out new => is a directory; give --out
        report run --out theirs.html/x.html => cannot use
    """)


def test_directories_without_a_run_are_refused():
    check_refused("report nowhere => does not exist")
    Path("empty").mkdir()
    check_refused("report empty => is not a favorbench run")
    quick_run()
    for part in parts():
        part.unlink()
    check_refused("report run => no finished draws yet")


def test_data_next_to_a_page_replace_no_other_files(monkeypatch):
    monkeypatch.setattr(pages, "PLAIN_DATA", 0)
    monkeypatch.setattr(pages, "PACKED_DATA", 0)
    quick_run()
    Path("x.csv").write_text("a,b\n")
    check_refused("report run --out x.html => x.csv is there and was not written")
    assert Path("x.csv").read_text() == "a,b\n" and not Path("x.html").exists()
    code, out, err = run("report run --out y.html")
    assert code == 0 and out.splitlines() == ["y.html", "y.csv"] and "send both" in err


def test_single_heads_on_request():
    of_heads(7)
    assert run("report run --heads h2,h5 --out two.html")[0] == 0
    read = Read(Path("two.html").read_text())
    assert [h for h in read.headings if h.startswith("2 heads of")]
    assert any("h5, scale 1" in h for h in read.headings) and not any("h1, scale" in h for h in read.headings)
    assert "some heads only" in Path("two.html").read_text()
    check_refused("report run --heads h22 => has no head 'h22' (did you mean")


def compared(**changes):
    """Two runs on the same draws; in the new one positive features are worse, and trig better."""
    old = sweep(small_scenario(trials=15, samplers="iid", **changes), "old")
    sweep(small_scenario(trials=15, samplers="iid", **changes), "new")
    trials = old.trials.copy()
    trials.loc[trials["estimator"] == "positive", "mse"] *= 3.0
    trials.loc[trials["estimator"] == "trig", "mse"] /= 3.0
    return comparison(old, load("new")._replace(trials=trials, summary=summarise(trials)))


@pytest.mark.rendered
def test_a_page_of_two_runs_has_every_row_of_their_comparison():
    found = compared(scale="0.5,1")
    read = Read(pages.comparison_page(found).html)
    rows = [row for section in (0, 1) for table in read.of(section) for row in table["rows"][1:]]
    assert len(rows) == len(found.rows) == len(found.frame())
    for shown_row, row in zip(rows, found.rows, strict=True):
        change, (mark, name, size, old, new, ratio, interval) = row.change, shown_row
        assert mark == f"{change.mark} {change.verdict}" and name == row.new_estimator
        assert size == ("-" if row.key.size is None else str(row.key.size))
        assert (old, new) == (format_value(change.old, "mse"), format_value(change.new, "mse"))
        assert_allclose(float(ratio), change.ratio, rtol=2e-3)
        if interval != "-":
            ends = [float(end) for end in interval.split(" to ")]
            assert_allclose(ends, [change.low, change.high], rtol=6e-3)
    verdicts = {name: {row[0] for row in rows if row[1].startswith(name)} for name in ("positive", "trig", "uniform")}
    assert verdicts == {"positive": {"+ worse"}, "trig": {"- better"}, "uniform": {"= same bits"}}
    cells = [dict(attributes).get("class") for tag, attributes in read.tags if tag == "td"]
    marks = [row[0] for row in rows]  # what is worse is red, what is better green
    assert (cells.count("t w"), cells.count("t g")) == (marks.count("+ worse"), marks.count("- better"))
    assert [tag for tag, _ in read.tags].count("svg") == 2
    clips = [dict(attributes)["id"] for tag, attributes in read.tags if tag.lower() == "clippath"]
    assert len(set(clips)) == len(clips) >= 2  # a browser takes the first of two with one id, of another figure
    text = html.unescape(re.sub(r"<[^>]+>", "", pages.comparison_page(found).html))
    assert all(sentence in text for sentence in comparison_sentences(found))


def test_only_changed_rows_of_a_long_table_are_shown(monkeypatch):
    found = compared()
    monkeypatch.setattr(pages, "MOST_ROWS", 5)
    page = pages.comparison_page(found).html
    assert {row[0] for row in Read(page).of(0)[0]["rows"][1:]} == {"+ worse", "- better"}
    assert f"Only the rows that have changed are shown, of {len(found.rows)}." in page


def test_the_command_compares_two_runs():
    for out, seed in (("a", 0), ("b", 1)):
        sweep(small_scenario(seed=seed), out)
    code, out, _ = run("report a b")
    assert (code, out.strip()) == (0, str(Path("b/against-a.html")))
    assert "a against b" in Path("b/against-a.html").read_text()
    check_refused("""
        report a b --heads h1 => leave it out
        report a nowhere => does not exist
    """)
