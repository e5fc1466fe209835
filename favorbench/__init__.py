"""favorbench measures how well a random-feature estimator replaces softmax attention."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from favorbench.attention import exact_attention, kernel_estimate, linear_attention, sample_omega
    from favorbench.maps import MAPS, FeatureMap, Sample, get_map
    from favorbench.run import sweep
    from favorbench.samplers import SAMPLERS, Sampler, get_sampler
    from favorbench.scenario import Scenario, load_scenario
    from favorbench.summary import Results, load

# Public names are imported on first use: `favorbench --help` must not pay for NumPy and pandas.
_HOMES = {
    "exact_attention": "attention",
    "kernel_estimate": "attention",
    "linear_attention": "attention",
    "sample_omega": "attention",
    "MAPS": "maps",
    "FeatureMap": "maps",
    "Sample": "maps",
    "get_map": "maps",
    "SAMPLERS": "samplers",
    "Sampler": "samplers",
    "get_sampler": "samplers",
    "Scenario": "scenario",
    "load_scenario": "scenario",
    "sweep": "run",
    "Results": "summary",
    "load": "summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'favorbench' has no attribute {name!r}")
    return getattr(importlib.import_module(f"favorbench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)


__all__ = [
    "MAPS", "SAMPLERS", "FeatureMap", "Results", "Sample", "Sampler", "Scenario", "exact_attention", "get_map",
    "get_sampler", "kernel_estimate", "linear_attention", "load", "load_scenario", "sample_omega", "sweep",
]  # fmt: skip
