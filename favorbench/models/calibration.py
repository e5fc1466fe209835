"""Maps whose parameters are fitted to one text, layer by layer and head by head, and frozen."""

import dataclasses
from importlib import import_module
from typing import Any

from favorbench.maps import calibrate
from favorbench.maps.calibrated import calibrations
from favorbench.models.interface import Call, attending
from favorbench.models.replacements import ByMap, ByMethod, Replacement, Tensor
from favorbench.models.swap import heads_of, why_not


def needs_calibration(what: Replacement) -> bool:
    """Whether a replacement has parameters that wait for a text."""
    return bool(calibrations(_member(what)))


def calibrated(model: Any, what: Replacement, tokens: Tensor) -> Replacement:
    """The replacement with the parameters that the model's attention to these tokens (1, L) gives, frozen."""
    assert isinstance(what, ByMap | ByMethod)
    found: dict[int, Any] = {}

    def attend(call: Call) -> Tensor:
        if why_not(call) is None:
            query, key = heads_of(call)[:2]
            found[call.index] = calibrate(query[0], key[0], _member(what))
        return call.own()

    with import_module("torch").no_grad(), attending(model, attend):
        model(tokens, use_cache=False)
    return dataclasses.replace(what, fitted=found)


def _member(what: Replacement) -> Any:
    if isinstance(what, ByMap):
        return what.map
    return what.method if isinstance(what, ByMethod) else None
