"""A run, read back."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from favorbench.engine.scenario import Scenario
from favorbench.engine.store import read_manifest, read_scenario, read_trials
from favorbench.results.summary import summarise


class Results(NamedTuple):
    """A run, read back: ``trials`` has a row for each measurement, ``summary`` one for each cell and estimator."""

    path: Path
    manifest: Mapping[str, object]
    scenario: Scenario
    trials: pd.DataFrame
    summary: pd.DataFrame
    set_aside: tuple[str, ...] = ()


def load(path: str | Path) -> Results:
    """Read a run directory. Raises StoreError if it is not one, or is damaged."""
    path = Path(path)
    trials, manifest = read_trials(path), read_manifest(path)
    done = int(trials["draw"].nunique())  # a killed run had no time to count
    manifest |= {"draws_done": done, "complete": done == manifest["draws"]}
    return Results(path, manifest, read_scenario(path), trials, summarise(trials))
