"""Members, and answers and tables of small runs, are what they were: any change of them has to be meant.

Other tests say why a number is right; these notice that one, or a word, has changed. ``HOLD=1 pytest
tests/test_held.py`` writes tests/data/held.json anew: read its difference before you commit it.
"""

import inspect
import json
import math
import os
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

import favorbench as fb
from favorbench import style
from favorbench.baselines import BASELINES
from favorbench.errors import FavorbenchError
from favorbench.formats import plain
from favorbench.maps import FeatureMap, Sample
from favorbench.methods import Method, Shape
from favorbench.methods.features import LinearAttention
from favorbench.results.compare import comparison
from favorbench.results.figures import FIGURES, charts_of, ratios
from favorbench.samplers import SAMPLERS, Sampler, get_sampler
from favorbench.samplers.laws import FixedNormRows, GaussianRows, SecondMomentRows, SymmetrisedRows
from favorbench.sections import to_markdown
from favorbench.studies.recommend import figure
from favorbench.studies.recommend.answer import sections, sentence
from tests import test_methods, test_tight_claims
from tests.command_line import run
from tests.definitions import member

FILE = Path(__file__).parent / "data" / "held.json"
SAME_TICKS = matplotlib.__version_info__ >= (3, 11)  # for the same limits and ticks of an axis
HELD = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def held(name, found, tolerance=1e-6, rounding=1e-13):
    """What was found equals what is kept: texts and whole numbers exactly, others to a tolerance, or to rounding."""
    found = json.loads(json.dumps(plain(found)))
    if os.environ.get("HOLD"):
        HELD[name] = found
        lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(HELD.items()))
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}" + "\n", encoding="utf-8")
    assert unlike(found, HELD[name], tolerance, rounding) == []


def unlike(found, kept, tolerance=1e-6, rounding=1e-13, where=""):
    """The places at which two nested lists and dicts differ."""
    if isinstance(found, dict) and isinstance(kept, dict) and found.keys() == kept.keys():
        return [
            place for key in found for place in unlike(found[key], kept[key], tolerance, rounding, f"{where}.{key}")
        ]
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        pairs = enumerate(zip(found, kept, strict=True))
        return [place for i, (a, b) in pairs for place in unlike(a, b, tolerance, rounding, f"{where}[{i}]")]
    same = found == kept
    if isinstance(found, float) and isinstance(kept, float):
        same = math.isclose(found, kept, rel_tol=tolerance, abs_tol=rounding)
    return [] if same else [f"{where}: {kept!r} before, {found!r} now"]


def test_what_differs_is_found():
    assert unlike({"a": [1.0, "x"]}, {"a": [1.0 + 1e-9, "x"]}) == []
    assert unlike({"a": [1.0, "x"]}, {"a": [1.0 + 1e-5, "y"]}) == [
        ".a[0]: 1.00001 before, 1.0 now", ".a[1]: 'y' before, 'x' now",
    ]  # fmt: skip
    assert unlike([1], [1, 2]) and unlike({"a": 1}, {"b": 1})


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Three heads of 48 tokens: keys near four points, keys of noise, and logits near 0."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(4, 6))
    query, key, value = rng.normal(size=(3, 3, 48, 6))
    key[0] = points[rng.integers(0, 4, 48)] + 0.1 * key[0]
    query[1], key[1], query[2] = 2.5 * query[1], 2.5 * key[1], 0.05 * query[2]
    path = tmp_path_factory.mktemp("heads") / "mine.npz"
    np.savez(path, q=query, k=key, v=value)
    return str(path)


ANSWERS = {
    "the default": {"target": 0.05},
    "one target for all, and cheap": {"target": 0.2, "probability": 0.5, "confidence": 0.8, "max_cost": 0.8},
    "nothing is good enough": {"target": 1e-9, "maps": "positive,taylor", "methods": "clusters,multipole"},
    "causal": {"target": 0.3, "causal": True, "maps": "positive", "methods": "sampled-keys,sinks(2):clusters"},
    "sizes": {"target": 0.1, "methods": "sampled-keys,clusters", "maps": "none", "num_projections": "5,9,20,40"},
    "mse": {"target": 0.01, "metric": "mse", "heads": "h1,h2", "samplers": "iid", "max_cost": 3.0, "max_size": 64},
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_recommendation_is_what_it_was(name, heads, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = fb.recommend(heads, out="run", **ANSWERS[name])
    shown = f"{sentence(found)}\n\n{to_markdown(sections(found))}"
    record = {key: value for key, value in plain(found.as_dict()).items() if key not in ("path", "title")}
    held(f"recommend, {name}", {"shown": shown.replace(heads, "mine.npz"), "record": record})
    if SAME_TICKS:
        held(f"recommend, {name}, drawn", looks(figure.charts(found)))
        held(f"recommend, {name}, many heads", looks(figure.charts(found._replace(decisions=found.decisions * 8))))


RUNS = {
    "heads": "sweep --maps positive,trig,taylor --methods clusters,sinks(2):multipole -R 4,16 --trials 12 -q",
    "causal": "sweep --maps positive,phase --methods window(4):clusters --causal -R 8 --trials 9 --budget cost -q",
    "gaussian": "sweep --maps relu,oprf --samplers iid,sorf -R 4,8 -L 16,32 -d 4 --scale 0.5,1 --trials 8 -q",
}
TABLES = [
    "table {}", "table {} --metric relative_error --stat q90", "table {} --metric cosine --by estimator,sampler,R",
    "table {} --rank", "table {} --rank --metric max_abs_error", "table {} --stat n", "table {} --json",
    "table {} --metric unnormalised_rows", "compare {} --estimators uniform,best-rank", "compare {} {}-other",
    "table {} --rank --json", "compare {} {}-other --json", "compare {} {}-other --format junit",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(heads, tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("runs"), Path.cwd()
    os.chdir(folder)
    for name, command in RUNS.items():
        inputs = [] if name == "gaussian" else ["--inputs", heads]
        for out, seed in ((name, "3"), (f"{name}-other", "4")):
            code, _, err = run(*command.split(), *inputs, "--seed", seed, "--out", out)
            assert code == 0, err
    os.chdir(before)
    return folder


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("command", TABLES)
def test_a_table_is_what_it_was(name, command, runs, monkeypatch):
    monkeypatch.chdir(runs)
    code, out, err = run(*command.replace("{}", name).split())
    out = re.sub(r" at [0-9a-f]{9}", "", out)
    held(f"{name}: {command}", {"code": code, "out": json.loads(out) if "--json" in command else out, "err": err})


def looks(drawn):
    """What charts draw, and how: the scales and ends of axes, the data and the look of every artist, the texts."""
    found = []
    for drawing in (one for chart in drawn for one in style.draw(chart)):
        texts = {text.get_text() for text in drawing.figure.findobj(Text) if re.search("[a-z]{3}", text.get_text())}
        found.append([drawing.chart.name, drawing.chart.caption, sorted(texts)])
        for ax in drawing.figure.axes:
            axes = [axis_of(ax.xaxis), axis_of(ax.yaxis)]
            lines = [[called(np.array, line.get_data()), *look(line)] for line in ax.lines]
            others = [called(np.asarray, one.get_offsets()) for one in ax.collections]
            images = [summed(np.nan_to_num(np.ma.filled(one.get_array(), 0.0))) for one in ax.images]
            bars = [list(one.get_window_extent().bounds) for one in ax.patches]
            found[-1].append([axes, lines, others, images, bars])
    return found


def axis_of(axis):
    low, high = axis.get_view_interval()
    return [axis.get_scale(), low, high, *(tick for tick in axis.get_majorticklocs() if low <= tick <= high)]


def look(line):
    words = to_hex(line.get_color()), line.get_marker(), line.get_linestyle()
    return *words, line.get_linewidth(), line.get_markersize()


@pytest.mark.skipif(not SAME_TICKS, reason="an older matplotlib chooses other ticks")
@pytest.mark.parametrize("name", [*RUNS, "minilm-72-seconds", "minilm-72"])
def test_a_figure_is_what_it_was(name, runs, monkeypatch):
    monkeypatch.chdir(runs)
    results = fb.load(name if name in RUNS else Path(__file__).parents[1] / "results" / name)
    for kind in FIGURES:
        held(f"{name}: figure {kind.names[0]}", looks(charts_of(kind, results, "relative_error")))


@pytest.mark.skipif(not SAME_TICKS, reason="an older matplotlib chooses other ticks")
@pytest.mark.parametrize("name", RUNS)
def test_a_comparison_looks_as_it_did(name, runs, monkeypatch):
    monkeypatch.chdir(runs)
    held(f"{name}: figure of a comparison", looks(ratios(comparison(fb.load(name), fb.load(f"{name}-other")))))


SHAPES = [
    Shape(100, 200, 8, 6),
    Shape(200, 200, 8, 6),
    Shape(300, 300, 8, 6, True),
    Shape(1, 1, 3, 2),
    Shape(9, 64, 5, 7),
]
COSTS = {
    "multiplications", "pair_multiplications", "choice_multiplications", "matrix_entries", "largest_size", "drawable",
    "check", "recent", "width", "num_features", "summarised",
}  # fmt: skip
TEXTS = ("description", "reference")  # words, which are read elsewhere
OTHER_ROWS = (FixedNormRows(1.3), FixedNormRows(1.3, 3), SymmetrisedRows(FixedNormRows(1.3)), SecondMomentRows())
TOKENS = np.random.default_rng(9).normal(size=(2, 7, 5)) * np.geomspace(0.05, 2, 7)[:, None]


def called(function, *arguments):
    """What a function returns, or what it says; arrays by their shape and two weighted sums."""
    try:
        found = function(*arguments)
    except FavorbenchError as error:
        return str(error)
    return summed(found) if isinstance(found, np.ndarray) else found


def summed(found):
    weights = np.cos(1.7 * np.arange(found.size))
    return [list(found.shape), float(f"{np.sum(found):.10g}"), float(f"{weights @ found.ravel():.10g}")]


def claims(one, base):
    """The public attributes of a member that are plain values, and not those of its base class."""
    kinds = (bool, int, float, str, tuple, dict, type(None))
    values = {name: getattr(one, name) for name in dir(one) if not name.startswith("_") and name not in TEXTS}
    return {
        name: repr(value) for name, value in values.items()
        if isinstance(value, kinds) and repr(value) != repr(getattr(base, name, ""))
    }  # fmt: skip


def costs(method):
    """The two sums over all shapes and sizes, and what is refused."""
    arguments = {"recent": lambda shape, size: (size,), "width": lambda shape, size: (size, shape.l),
                 "num_features": lambda shape, size: (size, shape.d), "summarised": lambda shape, size: (10 * size,),
                 "largest_size": lambda shape, size: (shape,), "drawable": lambda shape, size: (size, shape),
                 "check": lambda shape, size: ((size,), shape)}  # fmt: skip
    found = {}
    for name in sorted(COSTS & set(dir(method))):
        given = arguments.get(name, lambda shape, size: (shape, size))
        answers = [
            called(getattr(method, name), *given(shape, size))
            for shape in SHAPES for size in sorted({1, 3, 8, 24, shape.l // 2 + 1, shape.l})
        ]  # fmt: skip
        numbers = [value for value in answers if not isinstance(value, str | None)]
        found[name] = [*summed(np.array(numbers, dtype=float)), len(answers) - len(numbers)]
    return found


@pytest.mark.parametrize("spec", dict.fromkeys([*test_methods.SPECS, *(cls.name for cls in BASELINES)]))
def test_what_a_method_declares_is_what_it_was(spec):
    method = member(spec)
    held(f"method {spec}", {"claims": claims(method, Method), "costs": costs(method)})


def blocks_of(blocks):
    return [
        [b.fixed, *(part is not None and called(np.asarray, part) for part in (b.log_scale, b.values))] for b in blocks
    ]


@pytest.mark.parametrize("spec", test_tight_claims.MAP_SPECS)
def test_a_map_is_what_it_was(spec):
    tokens = TOKENS[..., :3] if spec.startswith("calibrated") else TOKENS
    one, found, dim = test_tight_claims.some_map(spec), {}, tokens.shape[-1]
    for count in (1, 4):
        omega = np.random.default_rng(count).normal(size=(count, dim))
        sample = Sample(omega, one.draw_extra(np.random.default_rng(5), count, dim))
        ready = one.fit(tokens[0], tokens[1], omega)
        found[f"R = {count}"] = {
            "queries": blocks_of(ready.query_features(tokens[0], tokens[0] @ omega.T, sample)),
            "keys": blocks_of(ready.key_features(tokens[1], tokens[1] @ omega.T, sample)),
            "num_features": one.num_features(count, dim),
            "variance": called(ready.relative_variance, *tokens, count),
            "target": called(ready.target_kernel, *tokens, GaussianRows()),
            "targets of other rows": [called(ready.target_kernel, *tokens, rows) for rows in OTHER_ROWS],
            "covariance": called(ready.covariance, tokens[0][:1], tokens[1]),
            "multiplications": called(one.multiplications, 9, 20, dim, 3, count),
            "map_multiplications": called(one.map_multiplications, 9, 20, dim, count),
            "fit_multiplications": one.fit_multiplications(9, 20, dim),
        }  # fmt: skip
    held(f"map {spec}", {"claims": claims(ready, FeatureMap), "costs": costs(LinearAttention(one)), **found})


@pytest.mark.parametrize("spec", [cls.name for cls in SAMPLERS])
def test_a_sampler_is_what_it_was(spec):
    one = get_sampler(spec)
    shapes = [(1, 1), (2, 3), (4, 4), (7, 3), (8, 4), (10, 5), (1, 8), (16, 8), (12, 6)]
    held(f"sampler {spec}", {
        "claims": claims(one, Sampler),
        "rows": [called(one.sample, np.random.default_rng(3), *shape) for shape in shapes],
        "counts": [called(one.round_up, *shape) for shape in shapes],
        "checks": [called(one.check, *shape) for shape in shapes],
        "laws": [[repr(one.row_law(*shape)), repr(one.pair_laws(*shape))] for shape in shapes],
    })  # fmt: skip


def test_signatures_are_what_they_were():
    """The names and defaults of the parameters of all public functions, and of those of public classes."""
    found = {}
    for name in fb.__all__:
        one = getattr(fb, name)
        parts = (
            {f"{name}.{key}": part for key, part in vars(one).items() if key[0] != "_"} if isinstance(one, type) else {}
        )
        for key, part in {name: one, **parts}.items():
            if inspect.isfunction(part) and part.__module__.startswith("favorbench"):
                given = inspect.signature(part).parameters.values()
                found[key] = [str(parameter.replace(annotation=parameter.empty)) for parameter in given]
    held("signatures", found)
