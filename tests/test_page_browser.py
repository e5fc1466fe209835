"""The page in a real Chromium: no request, nothing on the console; it sorts, filters, prints."""

import base64
from pathlib import Path

import pytest

from favorbench.results.page import study_page, write_page
from favorbench.run import sweep
from favorbench.sections import Section
from tests.chromium import ABSENT, BROWSER, browser
from tests.conftest import small_scenario
from tests.test_heads import head_file
from tests.test_page import EVIL, renamed

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason=ABSENT)]

ROWS = "[...document.querySelectorAll('[data-axes]')[{}].querySelector('table').tBodies[0].rows]"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Seven heads. The names of one of them and of a map are scripts, which must not run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        inputs = {"inputs": head_file(7), "seq_len": None, "head_dim": None, "methods": "clusters"}
        found = sweep(small_scenario(**inputs), "run")
        return renamed(renamed(found, "estimator", "trig", EVIL), "head", "h1", f"{EVIL}: x")


@pytest.fixture
def page(chromium, results):
    """The page opened from disk; whatever a test does, nothing may be asked for or complained of."""
    write_page(results, Path("page.html"))
    chromium.ask("Emulation.setEmulatedMedia", media="", features=[])
    chromium.open(Path("page.html"))
    yield chromium
    assert [event["request"]["url"] for event in chromium.events_of("Network.requestWillBeSent")] == [
        Path("page.html").resolve().as_uri()
    ]
    assert chromium.events_of("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    assert chromium.events_of("Page.javascriptDialogOpening") == []


def texts(page, column, section=1):
    """A column of the first table of a section, of the rows that are shown."""
    return page.run(f"{ROWS.format(section)}.filter(r => !r.hidden).map(r => r.cells[{column}].textContent)")


def choose(page, name, value):
    """As a user chooses from a list; its menu is not part of the page, so the event is sent."""
    page.run(
        f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
        f"(document.querySelector('select[name={name}]'))"
    )


def test_the_browser_would_tell_of_a_request_and_of_an_error(chromium, results):
    """The control: a page with an image, a script of somebody else's and a style that its policy does not know."""
    write_page(results, Path("page.html"))
    html = Path("page.html").read_text()
    Path("bad.html").write_text(
        html.replace("<main", '<p style="color:red"><img src="theirs.png"><script>1</script><main')
    )
    chromium.open(Path("bad.html"))
    messages = [event["entry"]["text"] for event in chromium.events_of("Log.entryAdded")]
    assert sum("Content Security Policy" in text for text in messages) >= 3
    assert any("theirs.png" in text for text in messages)


def test_it_sorts(page):
    header = "details[data-axes] th:nth-child(3) button"
    page.run("document.querySelector('details[data-axes]').open = true")
    page.click(header)

    def value(text):
        return float(text.rstrip("*").replace("<", "").replace("inf", "1e999"))

    up = [value(text) for text in texts(page, 2)]
    assert up == sorted(up) and len(set(up)) > 3
    state = f"document.querySelector({header!r}).parentNode.getAttribute('aria-sort')"
    assert page.run(state) == "ascending"
    page.run(f"document.querySelector({header!r}).focus()")
    page.press("Enter", 13, "\r")  # and with the keyboard
    assert [value(text) for text in texts(page, 2)] == sorted(up, reverse=True) and page.run(state) == "descending"
    page.click("details[data-axes] th:nth-child(2) button")
    other = [value(text) for text in texts(page, 1)]
    assert other == sorted(other) and len(set(other)) > 3 and page.run(state) is None


def test_it_sorts_bounds_intervals_and_labels(chromium):
    """As pages of `recommend` and `model` have them; they were sorted letter by letter."""
    ordered = [("L2H0", "<= 5.0e-4", "81", "[-0.04, 1]"), ("L2H10", "<= 0.180", "257", "[4.1e-6, 1]"),
               ("L10H1", "no", "never", "[12.00, 15.00]")]  # fmt: skip
    names = ("head", "certified", "cheaper from L", "interval")
    rows = [dict(zip(names, row, strict=True)) for row in (ordered[2], ordered[1], ordered[0])]
    made = study_page("A title", [], [Section("A table", rows)], [], {"favorbench": "0"}, {}, "a\n1\n")
    Path("page.html").write_text(made.html)
    chromium.open(Path("page.html"))
    for column, expected in enumerate(zip(*ordered, strict=True)):
        chromium.click(f"section[data-axes] th:nth-child({column + 1}) button")
        assert texts(chromium, column, 0) == [*expected]
        chromium.click(f"section[data-axes] th:nth-child({column + 1}) button")  # the other way
        assert texts(chromium, column, 0)[0] == expected[2 if column in (0, 3) else 1]  # what is missing stays last


def test_it_filters_by_estimator_sampler_and_head(page):
    everything = page.run("document.getElementById('count').textContent")
    assert everything.split(" of ")[0] == everything.split(" of ")[1].removesuffix(" rows")
    page.click("input[name=estimator]")
    page.type("clusters, <SCRIPT")
    assert (
        set(texts(page, 0)) == {"clusters", f"{EVIL} / iid", f"{EVIL} / orthogonal"}
        and page.run("document.getElementById('count').textContent") != everything
    )
    choose(page, "sampler", "iid")
    assert texts(page, 0) == [f"{EVIL} / iid"]
    page.click("button[type=reset]")
    page.until(f"document.getElementById('count').textContent === {everything!r}")
    page.click("input[name=estimator]")
    page.type(f"{EVIL} / orth, clusters(lloyd=1, order=2)")  # as the table writes it; the comma is in brackets
    assert set(texts(page, 0)) == {f"{EVIL} / orthogonal"}
    page.click("button[type=reset]")
    page.until(f"document.getElementById('count').textContent === {everything!r}")
    choose(page, "head", f"{EVIL}: x")
    open_ones = "[...document.querySelectorAll('details[data-axes]')].filter(d => !d.hidden)"
    assert page.run(f"{open_ones}.length") == 1 and page.run(f"{open_ones}[0].open")
    assert EVIL in page.run(f"{open_ones}[0].textContent")
    assert page.run("document.querySelector('section[data-axes]').hidden") is False  # many heads stay in view


def test_the_data_are_saved_by_a_click(page, results):
    page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(Path().resolve()))
    page.click("a[download]")
    end = Path("page.csv")
    for _ in range(600):
        if end.exists() and end.stat().st_size:
            break
        page.run("new Promise(done => setTimeout(done, 50))")
    assert end.read_text().count("\n") == len(results.summary) + 1


def test_it_reads_without_its_script(chromium, results):
    write_page(results, Path("page.html"))
    chromium.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(Path("page.html"))
        assert chromium.run("document.querySelector('form').getClientRects().length") == 0
        assert chromium.run("document.querySelectorAll('svg[role=img][aria-label]').length") > 0
        assert chromium.run("document.querySelector('section[data-axes] table').getClientRects().length") == 1
        assert chromium.run("document.querySelectorAll('thead button').length") == 0
        chromium.click("details[data-axes] summary")
        assert chromium.run("document.querySelector('details[data-axes]').open")
    finally:
        chromium.ask("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.rendered
@pytest.mark.parametrize("width", [360, 400, 1280])
def test_nothing_is_wider_than_the_window(chromium, results, width):
    """Tables and figures scroll inside their own containers, and the letters of a figure are not below 7 px."""
    write_page(results, Path("page.html"))
    chromium.open(Path("page.html"), width=width)
    chromium.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('table, figure svg')].filter(e => e.scrollWidth > innerWidth - 32)"
    assert chromium.run(f"{wide}.every(e => e.closest('.scroll').clientWidth <= innerWidth)")
    heights = chromium.run("[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)")
    assert min(heights) >= 7


def test_dark_light_and_paper(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    found = {}
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.ask("Emulation.setEmulatedMedia", media=media, features=features)
        found[media, scheme] = page.run(colour)
    assert found == {
        ("screen", "light"): "rgb(255, 255, 255)", ("screen", "dark"): "rgb(22, 24, 28)",
        ("print", "dark"): "rgb(255, 255, 255)",
    }  # fmt: skip
    assert page.run("getComputedStyle(document.querySelector('form')).display") == "none"
    paper = base64.b64decode(page.ask("Page.printToPDF")["data"])
    assert paper.startswith(b"%PDF")


def test_screen_readers_find_labels(page):
    """Names and roles as the browser computes them for assistive technology."""
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    found = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
    roles = [role for role, _ in found]
    assert {"table", "columnheader", "rowheader", "main", "img", "region"} <= {role.lower() for role in roles} | {
        "img" if role == "image" else role for role in roles
    }
    for role, name in found:
        if role in ("table", "image", "img", "button", "combobox", "searchbox", "textbox", "region", "link"):
            assert name.strip(), f"a {role} without a name"
