"""Runs, recommendations, studies of models and stored errors whose parts disagree: results, or one line and exit 2.

``CAMPAIGN=10000 pytest -m slow tests/test_damaged_runs.py`` damages ten thousand.
"""

import copy
import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from favorbench.models.store import KEY, SCHEMA, open_rows
from favorbench.studies.function_errors import MeasurementSettings, check_stored
from tests.command_line import in_a_process, refused, run
from tests.conftest import REPOSITORY, campaign, random_heads

VALUES = [
    None, True, -1, 0, 1, 10**12, 1.5, float("nan"), float("inf"), -0.0, "", "x", "positive", [], {}, ["x"], [None],
    {"x": 1}, [[1]], "1e999",
]  # fmt: skip
SWEEP = "sweep --inputs in.npz --maps positive,trig --samplers iid,orthogonal --methods clusters -R 3,8 --trials 2 -q"
RECOMMEND = "recommend in.npz --maps positive --methods none --max-size 8 -q"
READERS = [
    "table run", "table run --over heads", "table run --by estimator,R --json", "table run --rank", "status run",
    "table run --rows -o rows.csv", "compare run whole/run", "compare whole/run run --json", "status recommended",
    "table recommended", "table model", "status model", f"{SWEEP} --out run", f"{RECOMMEND} --out recommended",
]  # fmt: skip
DRAWERS = ["plot run", "report run", "report run whole/run", "plot recommended", "report recommended", "report model"]
DRAWN = 0.03  # the share of commands that draw: they take seconds


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with times, a recommendation, a study of a model, and errors that a test-suite stored."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("CI", raising=False)  # where stored errors are not written
        np.savez("in.npz", **random_heads(np.random.default_rng(0), 3, 12, 4))
        for command in (f"{SWEEP} --out run", "speed run -q --repeats 3", f"{RECOMMEND} --out recommended"):
            assert run(command)[0] == 0
        write_model(Path("model"))
        Path("stored").mkdir()
        assert stored_errors(update=True) == ""
    return folder


def write_model(path):
    """A study of a model, as far as it is read: the manifest of a committed one, and rows."""
    manifest = json.loads((REPOSITORY / "results/models/smollm2-256/model.json").read_text())
    with open_rows(path) as store:
        estimators = [("trivial", "uniform", 0, 0), ("map", "positive", 256, 0), ("map", "positive", 256, 1)]
        for text, (kind, estimator, size, draw) in itertools.product(manifest["tokens"], estimators):
            row = dict.fromkeys(SCHEMA.names[10:19], 0.1 * (1 + draw))
            row |= dict(zip(KEY, (text, "all", estimator, "-", size, draw), strict=True)) | {"kind": kind}
            row |= {"seq_len": 256, "replaced": 30, "left": 0, "hidden_error": [0.1] * 30, "embedding": [1.0, 0.5]}
            store.append([row | {name: [] for name in SCHEMA.names[21:]}])
        store.flush()
    path.joinpath("model.json").write_text(json.dumps(manifest))


def places(value, path=()):
    """Every key and index inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def damaged_json(rng, data):
    """The same with a key or an item removed, or replaced by another value or by another part of it."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 2])):
        *path, last = rng.choice([*places(data)])
        other = copy.deepcopy(at(data, rng.choice([*places(data)])))
        here = at(data, path)
        if rng.random() < 0.25:
            del here[last]
        else:
            here[last] = rng.choice([rng.choice(VALUES), other])
    return data


def damage_rows(rng, path):
    """Drop, repeat or shuffle rows, drop a column, or change values in it, in a part of a table."""
    table = pq.read_table(path)
    frame, column = table.to_pandas(), rng.choice(table.column_names)
    values, kind = (
        frame[column].astype(object),
        rng.choice(["column", "rows", "twice", "all", "one", "missing", "swap"]),
    )
    new = "zz" if values.map(lambda value: isinstance(value, str)).any() else rng.choice([-1, 0, 7, 10**9])
    if kind in ("one", "missing"):
        values.iloc[rng.randrange(len(values))] = new if kind == "one" else None
    changed = {
        "column": lambda: frame.drop(columns=column),
        "rows": lambda: frame.sample(frac=rng.random(), random_state=rng.randrange(1000)),
        "twice": lambda: pd.concat([frame, frame.iloc[:5]]),
        "all": lambda: frame.assign(**{column: new}),
        "swap": lambda: frame.assign(**{column: frame[rng.choice(table.column_names)]}),
    }.get(kind, lambda: frame.assign(**{column: values}))()
    try:  # of the declared types, where the values allow it
        table = pa.Table.from_pandas(changed, table.schema, preserve_index=False)
    except (pa.ArrowException, KeyError, ValueError, TypeError):
        table = pa.Table.from_pandas(changed.astype(str), preserve_index=False)
    pq.write_table(table.replace_schema_metadata(pq.read_schema(path).metadata), path)


def stored_errors(update=False):
    """Compare errors with those that are stored, as the pytest fixture does; an explanation of a failure."""
    inputs = [np.load("in.npz")[name] for name in "qkv"]
    settings = MeasurementSettings("", "relative_error", 15, 3, 0)
    return check_stored(Path("stored/errors.json"), mean_value, inputs, settings, 1.0, 1e-3, update)[1]


def mean_value(query, key, value):
    return np.tile(value.mean(0), (len(query), 1))


@campaign(25, 1000)
def test_a_damaged_run_is_read_or_refused_in_one_line(whole, seeds):
    shutil.copytree(whole, "whole")
    shutil.copy(whole / "in.npz", "in.npz")
    names, bad, codes = ["run", "recommended", "model", "stored"], [], set()
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice(names)
        shutil.rmtree(name, ignore_errors=True)
        shutil.copytree(whole / name, name)
        target = rng.choice([*Path(name).glob("*.json"), *Path(name).glob("trials/*.parquet")])
        if target.suffix == ".json":
            target.write_text(json.dumps(damaged_json(rng, json.loads(target.read_text()))))
        else:
            damage_rows(rng, target)
        if name == "stored":
            assert isinstance(stored_errors(), str)
            continue
        readers = DRAWERS if rng.random() < DRAWN else READERS
        command = rng.choice([reader for reader in readers if name in reader.split()])
        code, _, err = run(command)
        codes.add(code)
        if code not in (0, 1, 2) or "unexpected" in err or "Traceback" in err:
            bad.append((seed, target.name, command, err[-200:]))
    assert not bad
    assert {0, 2} <= codes  # some are harmless, and some are refused


@pytest.mark.parametrize(
    "file, key, value, said",
    [
        ("model.json", "asked", {"model": "m", "texts": 5}, "its asked.texts: Input should be an object"),
        ("model.json", "measurements", 10**20, "its measurements: Input should be less than"),
        ("model.json", "favorbench", None, "its favorbench: Input should be a valid string"),
        ("effects.json", "texts", {"a": {"clusters - x 0": [1.0]}}, "its texts.a.clusters - x 0"),
        ("effects.json", "texts", {"a": {"clusters": [1.0]}}, "its texts.a.clusters"),
    ],
)
def test_a_study_of_a_model_that_was_changed_by_hand(whole, file, key, value, said):
    """Each was an unexpected error of `report`, `status` or a command that resumes the study."""
    shutil.copytree(whole / "model", "model")
    path = Path("model") / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {key: value}))
    for command in ("report model", "table model", *(["status model"] if key == "measurements" else [])):
        assert said in refused(command)


def test_options_of_sweeps_are_refused_for_other_directories(whole, monkeypatch):
    monkeypatch.chdir(whole)
    for command in ("table model --heads nope", "table recommended --metric mse", "plot recommended --estimators x"):
        said = f"was written by favorbench {'model' if 'model ' in command else 'recommend'} and has no --"
        assert said in refused(command)


def test_characters_that_stdout_lacks_are_escaped_and_data_with_them_refused(whole, monkeypatch, tmp_path):
    shutil.copy(whole / "in.npz", tmp_path / "\u00e9.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ran = in_a_process("sweep --inputs \u00e9.npz --maps positive --baselines uniform -R 4 --trials 1 --out run")
    assert ran.returncode == 0 and "\\xe9" in ran.stdout
    data = in_a_process("table run --rows")
    assert data.returncode == 2 and data.stderr == (
        "favorbench: stdout is in ascii, which has no '\\xe9': set PYTHONIOENCODING=utf-8, or write to a file\n"
    )
