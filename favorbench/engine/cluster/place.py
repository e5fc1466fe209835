"""What a user may write for a cluster."""

import functools
import importlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from favorbench.errors import ScenarioError
from favorbench.files import read_regular
from favorbench.formats import shown

ALLOWED = "an address (tcp://host:8786), the path of a scheduler.json, local:N for N processes on this machine, or none"

PATIENCE = 60.0  # seconds without a worker, or without a word from the scheduler, after which a run ends


def patience() -> float:
    """PATIENCE, or what FAVORBENCH_CLUSTER_TIMEOUT says. Raises ScenarioError."""
    text = os.environ.get("FAVORBENCH_CLUSTER_TIMEOUT", str(PATIENCE))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1.0 <= seconds <= 1e6:
        raise ScenarioError(f"FAVORBENCH_CLUSTER_TIMEOUT={shown(text)} given, allowed: seconds from 1 to 1e6")
    return seconds


@functools.cache
def distributed() -> Any:
    """Dask's library. Raises ScenarioError where it is not installed."""
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise ScenarioError("`cluster`: Dask is not installed: pip install 'favorbench[dask]'") from None


def processes(where: str, asked: str) -> int | None:
    """N of local:N. asked: by what it was asked for, in errors. Raises ScenarioError for any other N."""
    if not where.startswith("local:"):
        return None
    text = where.removeprefix("local:")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1024):
        raise ScenarioError(f"{asked} {shown(where)}: after local: stands a whole number of processes from 1 to 1024")
    return int(text)


def address(where: str, asked: str) -> str:
    """Where the scheduler is. asked: by what it was asked for, in errors. Raises ScenarioError."""
    if _is_address(where):
        return where
    if not where.endswith(".json") and not Path(where).is_file():
        raise ScenarioError(f"{asked} {shown(where)} given, allowed: {ALLOWED}")
    try:
        text = read_regular(where, "the scheduler file", ScenarioError)
    except ScenarioError as error:
        raise ScenarioError(f"{asked}: {error}") from None
    try:
        found = json.loads(text)["address"]
    except (ValueError, TypeError, KeyError):
        found = None
    if not isinstance(found, str) or not _is_address(found):
        raise ScenarioError(f"{asked} {where}: it is no scheduler file (dask scheduler --scheduler-file writes one)")
    return found


def host_of(scheduler: str) -> str:
    """The machine in an address."""
    return scheduler.rpartition("://")[2].rpartition(":")[0].strip("[]")


def _is_address(text: str) -> bool:
    found = re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[\w.\-\[\]:]+:(\d{1,5})", text, re.ASCII)
    return found is not None and 1 <= int(found[3]) <= 65535
