"""A run that is moved, with or without its inputs, is the same run: files are known by their contents."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import favorbench as fb
from favorbench.errors import StoreError
from tests.conftest import random_heads, same_rows

KEYS = {"maps": "positive,trig", "samplers": "iid", "num_projections": "8", "baselines": "uniform"}


def inputs(path, seed=0):
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    np.savez(path, **random_heads(rng, 2, 32, 4))
    return str(path)


def test_a_run_is_resumed_where_it_was_moved_to(monkeypatch):
    here = KEYS | {"inputs": inputs(Path("data/mine.npz")), "trials": 4}
    whole = fb.sweep(here, "whole").trials

    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.sweep(here, "run", progress=stop)
    assert fb.load("run").manifest["draws_done"] == 3
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/another-name")
    shutil.move("data/mine.npz", "elsewhere/mine.npz")
    shutil.rmtree("data")
    assert len(fb.load("elsewhere/another-name").trials)  # to read it, its inputs are not needed
    monkeypatch.chdir("elsewhere")
    there = here | {"inputs": "mine.npz"}
    began = []
    moved = fb.sweep(there, "another-name", progress=lambda done, total: began.append(done))
    assert began[0] == 3
    same_rows(moved.trials, whole)
    inputs(Path("mine.npz"), seed=1)
    with pytest.raises(StoreError, match="holds another run"):
        fb.sweep(there, "another-name")
