"""Inputs in memory: a scenario has their names, and beside it what they name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.inputs import INPUTS, SHIPPED, Arrays, InputLaw, reader_of

Held = Mapping[str, InputLaw]

CALIBRATION = "calibration"  # the name of arrays that maps are calibrated on


def extract_arrays(flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, InputLaw]]:
    """The keys of a scenario with names for arrays, and what the names stand for.

    inputs may be arrays (q, k, v), called "arrays", or a mapping of names to such; calibrate such arrays. Raises
    ScenarioError for what are no arrays, InputError for arrays that cannot be measured.
    """
    layout, keys, held = flags.get("layout") or "heads,L,d", dict(flags), {}
    inputs = flags.get("inputs")
    if isinstance(inputs, tuple | list) and len(inputs) == 3 and all(map(_has_axes, inputs)):
        inputs = {"arrays": inputs}
    if isinstance(inputs, Mapping):
        for name, given in inputs.items():
            _check_name(name)
            held[name] = Arrays.of(name, given, layout)
        keys["inputs"] = tuple(held)
    calibrate = flags.get("calibrate")
    if calibrate is not None and not isinstance(calibrate, str):
        held[CALIBRATION] = Arrays.of(CALIBRATION, calibrate, layout)
        keys["calibrate"] = CALIBRATION
    return keys, held


def _has_axes(given: object) -> bool:
    return getattr(given, "ndim", 0) > 0 or (isinstance(given, Sequence) and not isinstance(given, str | bytes))


def _check_name(name: object) -> None:
    """Raise ScenarioError for a name that something else has, or that a list with commas could not hold."""
    taken = [*(law.name for law in INPUTS), *SHIPPED, CALIBRATION]
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,80}", name) or name in taken or reader_of(name):
        raise ScenarioError(
            f"`inputs`: arrays may not be called {shown(name)}; allowed: letters, digits, _ . and -, no file's "
            f"name, and none of {', '.join(taken)}"
        )
