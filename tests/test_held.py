"""Answers and tables of small runs are those that they were: any change of them has to be meant.

Other tests say why a number is right; these notice that one, or a word, has changed. ``HOLD=1 pytest
tests/test_held.py`` writes tests/data/held.json anew: read its difference before you commit it.
"""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

import favorbench as fb
from favorbench.formats import plain
from favorbench.sections import to_markdown
from favorbench.studies.recommend.answer import sections, sentence
from tests.command_line import run

FILE = Path(__file__).parent / "data" / "held.json"
HELD = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def held(name, found):
    """What was found equals what is kept: texts and whole numbers exactly, others to 1e-6."""
    found = json.loads(json.dumps(plain(found)))
    if os.environ.get("HOLD"):
        HELD[name] = found
        FILE.write_text(json.dumps(dict(sorted(HELD.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert unlike(found, HELD[name]) == []


def unlike(found, kept, where=""):
    """The places at which two nested lists and dicts differ."""
    if isinstance(found, dict) and isinstance(kept, dict) and found.keys() == kept.keys():
        return [place for key in found for place in unlike(found[key], kept[key], f"{where}.{key}")]
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        return [p for i, (a, b) in enumerate(zip(found, kept, strict=True)) for p in unlike(a, b, f"{where}[{i}]")]
    same = found == kept
    if isinstance(found, float) and isinstance(kept, float):
        same = math.isclose(found, kept, rel_tol=1e-6, abs_tol=1e-13)
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


RUNS = {
    "heads": "sweep --maps positive,trig,taylor --methods clusters,sinks(2):multipole -R 4,16 --trials 12 -q",
    "causal": "sweep --maps positive,phase --methods window(4):clusters --causal -R 8 --trials 9 --budget cost -q",
    "gaussian": "sweep --maps relu,oprf --samplers iid,sorf -R 4,8 -L 16,32 -d 4 --scale 0.5,1 --trials 8 -q",
}
TABLES = [
    "table {}", "table {} --metric relative_error --stat q90", "table {} --metric cosine --by estimator,sampler,R",
    "table {} --rank", "table {} --rank --metric max_abs_error", "table {} --stat n", "table {} --json",
    "table {} --metric unnormalised_rows", "compare {} --estimators uniform,best-rank", "compare {} {}-other",
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
    held(f"{name}: {command}", {"code": code, "out": json.loads(out) if "--json" in command else out, "err": err})
