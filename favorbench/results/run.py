"""The data of a run, as it was read back."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from favorbench.engine.rows import Failed
from favorbench.engine.scenario import Scenario


class RunData(NamedTuple):
    """What a run directory holds: what was asked, all measurements, and their summary."""

    path: Path
    manifest: Mapping[str, object]
    scenario: Scenario
    trials: pd.DataFrame
    summary: pd.DataFrame
    set_aside: tuple[str, ...] = ()
    failed: Failed = {}  # noqa: RUF012
