"""What the tests share: small scenarios and random inputs."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from favorbench.engine.scenario import Scenario, load_scenario

REPOSITORY = Path(__file__).resolve().parent.parent

# Of Hypothesis: no test asserts a time, and where CI is set the examples of a commit are those of its next run.
settings.register_profile("ours", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ours")


def small_scenario(**changes: object) -> Scenario:
    """A scenario that takes milliseconds."""
    flags = {
        "maps": "positive,trig",
        "samplers": "iid,orthogonal",
        "num_projections": "3,8,20",
        "seq_len": "24",
        "head_dim": "4",
        "trials": 3,
    }
    return load_scenario(None, flags | changes)


def pairs(rng: np.random.Generator, count: int = 4, dim: int = 2, norm: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    """x and y (count, dim) with zeros, exact zeros as rows, and equal and opposite rows among them."""
    x, y = norm * rng.normal(size=(2, count, dim))
    x[0, 0], y[1, 1], x[2] = 0.0, 0.0, 0.0
    y[3] = -x[3]
    return x, y


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the repository."""
    monkeypatch.chdir(tmp_path)
