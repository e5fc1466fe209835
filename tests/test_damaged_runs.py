"""Run directories whose manifest, rows, times and recommendation disagree: results, or one line and exit 2."""

import copy
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from favorbench.run import sweep
from tests.command_line import run
from tests.conftest import random_heads, small_scenario

VALUES = [
    None, True, -1, 0, 1, 10**12, 1.5, float("nan"), float("inf"), -0.0, "", "x", "positive", [], {}, ["x"], [None],
    {"x": 1}, [[1]], "1e999",
]  # fmt: skip
READERS = [
    "table run", "table run --over heads", "table run --by estimator,R --json", "table run --rank", "status run",
    "table run --rows -o rows.csv", "compare run whole/run", "compare whole/run run --json", "status recommended",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with times, and a recommendation."""
    folder, before = tmp_path_factory.mktemp("whole"), Path.cwd()
    os.chdir(folder)
    try:
        np.savez("in.npz", **random_heads(np.random.default_rng(0), 3, 12, 4))
        flags = {"inputs": "in.npz", "seq_len": None, "head_dim": None, "num_projections": "3,8", "trials": 2}
        sweep(small_scenario(**flags, methods="clusters"), "run")
        assert run("speed run -q --repeats 3")[0] == 0
        assert run("recommend in.npz --out recommended --maps positive --methods none --max-size 8 -q")[0] == 0
    finally:
        os.chdir(before)
    return folder


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


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 1500), marks=pytest.mark.slow)], ids=len)
def test_a_damaged_run_is_read_or_refused_in_one_line(whole, seeds):
    shutil.copytree(whole, "whole")
    bad, codes = [], set()
    for seed in seeds:
        rng = random.Random(seed)
        for name in ("run", "recommended"):
            shutil.rmtree(name, ignore_errors=True)
            shutil.copytree(whole / name, name)
        files = [
            *Path("run").glob("*.json"),
            *Path("run/trials").glob("*.parquet"),
            *Path("recommended").glob("*.json"),
        ]
        target = rng.choice(files)
        if target.suffix == ".json":
            target.write_text(json.dumps(damaged_json(rng, json.loads(target.read_text()))))
        else:
            damage_rows(rng, target)
        for command in rng.sample([reader for reader in READERS if target.parts[0] in reader.split()], 1):
            code, _, err = run(command)
            codes.add(code)
            if code not in (0, 1, 2) or "unexpected" in err or "Traceback" in err:
                bad.append((seed, target.name, command, err[-200:]))
    assert not bad
    assert {0, 2} <= codes  # some are harmless, and some are refused
