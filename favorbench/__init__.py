"""favorbench measures how well estimators of softmax attention replace it."""

TYPE_CHECKING = False  # as in typing, whose import would be the longest part of this one

if TYPE_CHECKING:
    from typing import Any

    from favorbench.attention.exact import exact_attention
    from favorbench.attention.linear import kernel_estimate, linear_attention, sample_omega
    from favorbench.baselines import BASELINES, Baseline, get_baseline
    from favorbench.engine.scenario import Scenario, load_scenario
    from favorbench.errors import (
        EstimatorError,
        FavorbenchError,
        InputError,
        ModelError,
        ScenarioError,
        StoreError,
        WorkerError,
    )
    from favorbench.maps import MAPS, FeatureMap, Sample, calibrate, get_map
    from favorbench.maps.random_features import exponential_target
    from favorbench.methods import METHODS, AttentionProblem, Estimate, Method, get_method, method_attention
    from favorbench.models.capture import capture
    from favorbench.models.swap import replace_attention
    from favorbench.numerics.arrays import Features, half_squared_norm
    from favorbench.results.compare import RunComparison
    from favorbench.results.results import Results, compare, load
    from favorbench.run import sweep
    from favorbench.samplers import SAMPLERS, Sampler, get_sampler
    from favorbench.studies.recommend.answer import Recommendation
    from favorbench.studies.recommend.study import recommend

    __version__: str

# Public names are imported on first use: `favorbench --help` must not pay for NumPy and pandas.
_HOMES = {
    "attention.exact": ("exact_attention",),
    "attention.linear": ("kernel_estimate", "linear_attention", "sample_omega"),
    "baselines": ("BASELINES", "Baseline", "get_baseline"),
    "engine.scenario": ("Scenario", "load_scenario"),
    "errors": (
        "EstimatorError", "FavorbenchError", "InputError", "ModelError", "ScenarioError", "StoreError", "WorkerError",
    ),
    "maps": ("MAPS", "FeatureMap", "Sample", "calibrate", "get_map"),
    "maps.random_features": ("exponential_target",),
    "methods": (
        "METHODS", "AttentionProblem", "Estimate", "Method", "get_method", "method_attention",
    ),
    "models.capture": ("capture",),
    "numerics.arrays": ("Features", "half_squared_norm"),
    "results.compare": ("RunComparison",),
    "results.results": ("Results", "compare", "load"),
    "models.swap": ("replace_attention",),
    "run": ("sweep",),
    "samplers": ("SAMPLERS", "Sampler", "get_sampler"),
    "studies.recommend.answer": ("Recommendation",),
    "studies.recommend.study": ("recommend",),
}  # fmt: skip


#: Names of version 0.2, which warn and go in version 0.4.
_RENAMED = {"Answer": "Estimate", "Question": "AttentionProblem", "swapped": "replace_attention"}


def __getattr__(name: str) -> "Any":
    import importlib

    if name in _RENAMED:
        import warnings

        old, name = name, _RENAMED[name]
        warnings.warn(f"favorbench.{old} is now favorbench.{name}", FutureWarning, stacklevel=2)

    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("favorbench")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'favorbench' has no attribute {name!r}{_nearest(name)}")
    return getattr(importlib.import_module(f"favorbench.{home}"), name)


def _nearest(name: str) -> str:
    if name.startswith("_"):  # looked up by inspect, copy and so on: not a typing error
        return ""
    from favorbench.registry import nearest

    return nearest(name, __all__)


def __dir__() -> "list[str]":
    return sorted(__all__)


__all__ = [
    "BASELINES", "MAPS", "METHODS", "SAMPLERS", "AttentionProblem", "Baseline", "Estimate", "EstimatorError",
    "FavorbenchError", "FeatureMap", "Features", "InputError", "Method", "ModelError", "Recommendation", "Results",
    "RunComparison", "Sample", "Sampler", "Scenario", "ScenarioError", "StoreError", "WorkerError", "__version__",
    "calibrate", "capture", "compare", "exact_attention", "exponential_target", "get_baseline", "get_map",
    "get_method", "get_sampler", "half_squared_norm", "kernel_estimate", "linear_attention", "load", "load_scenario",
    "method_attention", "recommend", "replace_attention", "sample_omega", "sweep",
]  # fmt: skip
