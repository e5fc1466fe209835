"""A run, read back."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from favorbench.engine.parts import Failed
from favorbench.engine.scenario import Scenario
from favorbench.engine.store import read_manifest, read_run, read_scenario
from favorbench.results.summary import summarise


class Results(NamedTuple):
    """A run, read back: ``trials`` has a row for each measurement, ``summary`` one for each cell and estimator.

    failed: what failed, by estimator and message the draws; such draws have no rows of that estimator.
    """

    path: Path
    manifest: Mapping[str, object]
    scenario: Scenario
    trials: pd.DataFrame
    summary: pd.DataFrame
    set_aside: tuple[str, ...] = ()
    failed: Failed = {}  # noqa: RUF012


def load(path: str | Path) -> Results:
    """Read a run directory. Raises StoreError if it is not one, or is damaged."""
    path = Path(path)
    (trials, failed), manifest = read_run(path), read_manifest(path)
    done = int(trials["draw"].nunique())  # a killed run had no time to count
    manifest |= {"draws_done": done, "complete": done == manifest["draws"]}
    return Results(path, manifest, read_scenario(path), trials, summarise(trials), failed=failed)
