"""Errors of attention functions stored beside a test, and compared with what the functions do now."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from typing_extensions import TypedDict

from favorbench.engine.provenance import VERSION
from favorbench.errors import ScenarioError, StoreError
from favorbench.files import read_json, write_text
from favorbench.formats import shown
from favorbench.parameters import check_between, is_number
from favorbench.results.changes import Change, Errors, judged
from favorbench.results.compare import close_errors
from favorbench.statistics import fewest_draws
from favorbench.studies.function_errors import (
    AttentionFunction,
    FunctionError,
    HeadErrors,
    InputSource,
    function_error,
    source_of,
)

FORMAT = 1

UPDATE = "--favorbench-update"


class Asked(NamedTuple):
    """What was measured: errors of other questions are not comparable."""

    inputs: str
    metric: str
    draws: int
    size: int
    seed: int


class StoredRow(TypedDict):
    errors: list[float | None]
    rounding: float
    dtype: str


class StoredErrors(TypedDict):
    """The file: the fields of Asked, and by function and head the errors."""

    format: Literal[1]
    inputs: str
    metric: str
    draws: int
    size: int
    seed: int
    rows: dict[str, StoredRow]


class Checked(NamedTuple):
    """One row: the function and the head, and what has changed."""

    name: str
    change: Change

    def line(self, metric: str) -> str:
        """ "+ positive, L5H0: relative_error 0.31 -> 0.42, new / old 1.36 (1.21 to 1.52), worse"."""
        return f"{self.change.mark} {self.name}: {self.change.in_words(metric)}"


def measured(
    functions: AttentionFunction | Mapping[str, AttentionFunction], inputs: InputSource, asked: Asked
) -> dict[str, HeadErrors]:
    """The errors of one function, or of several by name, on each head."""
    several = functions if isinstance(functions, Mapping) else {"": functions}
    found = {}
    for name, function in several.items():
        error: FunctionError = function_error(function, inputs, asked.metric, asked.draws, asked.size, asked.seed)
        found |= {", ".join(filter(None, (name, head))): errors for head, errors in error.heads.items()}
    return found


def question(inputs: InputSource, metric: str, draws: int, size: int, seed: int) -> Asked:
    """What is asked, with the digest of the inputs."""
    return Asked(source_of(inputs).key, metric, draws, size, seed)


def write(path: Path, asked: Asked, rows: Mapping[str, HeadErrors], alpha: float) -> None:
    """Store errors. Raises ScenarioError where so few draws could never fail, StoreError if the file cannot be had.

    Never on a CI server, whose environment has ``CI`` set: what is stored is what somebody has looked at.
    """
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise StoreError(f"{UPDATE} does not write {path} on CI: run it where you work, and commit the file")
    random = sum(len(row.errors) > 2 for row in rows.values())
    if random and asked.draws < (needed := fewest_draws(random, 1.0 - alpha)):
        raise ScenarioError(
            f"draws: {asked.draws} can tell no change of {random} random rows at {alpha:g}; use {needed} or more"
        )
    head = {"format": FORMAT, "favorbench": VERSION, **asked._asdict()}
    lines = [f"  {json.dumps(name)}: {json.dumps(_plain(row))}" for name, row in rows.items()]
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": {\n' + ",\n".join(lines) + "\n }\n}\n"
    write_text(path, text)


def read(path: Path) -> tuple[Asked, dict[str, HeadErrors]]:
    """What is stored. Raises StoreError, with how to write it where it is missing."""
    if not path.exists():
        raise StoreError(f"no stored errors: run pytest {UPDATE} once, look at {path}, and commit it")
    hint = f"take it from your version control, or run pytest {UPDATE}"
    content = read_json(path, StoredErrors, "stored errors", hint=hint)
    asked = Asked(*(content[name] for name in Asked._fields))
    rows = {
        name: HeadErrors(tuple(math.inf if x is None else x for x in row["errors"]), row["rounding"], row["dtype"])
        for name, row in content["rows"].items()
    }
    return asked, rows


def compared(
    stored: Mapping[str, HeadErrors], now: Mapping[str, HeadErrors], metric: str, factor: float, alpha: float
) -> list[Checked]:
    """The rows that both have, by the rule of ``results.changes``, draw by draw."""
    check_between("alpha", alpha, 1e-12, 1.0)
    if not (is_number(factor) and 1 <= factor <= 1e6):
        raise ScenarioError(f"factor must be a number from 1 to 1e6, got {shown(factor)}")
    names = [name for name in now if name in stored]
    rows = [_errors(stored[name], now[name], metric) for name in names]
    return [Checked(name, change) for name, change in zip(names, judged(rows, factor, alpha), strict=True)]


def _errors(old: HeadErrors, new: HeadErrors, metric: str) -> Errors:
    count = max(len(old.errors), len(new.errors))  # random now, and not before: the one measurement against each draw
    rounding = max(old.rounding, new.rounding)

    def close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return close_errors(a, b, metric, 0.0, new.dtype) | (np.abs(a - b) <= rounding)

    return Errors(np.resize(old.errors, count), np.resize(new.errors, count), True, close)


def _plain(row: HeadErrors) -> dict[str, Any]:
    return row._asdict() | {"errors": [x if math.isfinite(x) else None for x in row.errors]}


def differences(stored: Asked, asked: Asked) -> str:
    """In what two questions differ: "draws 15 stored, 20 asked"; nothing where they are the same."""
    pairs = zip(Asked._fields, stored, asked, strict=True)
    return ", ".join(f"{name} {_short(a)} stored, {_short(b)} asked" for name, a, b in pairs if a != b)


def _short(value: object) -> str:
    return str(value)[:12]
