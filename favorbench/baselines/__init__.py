"""The answers every estimator must beat, and bounds. A new one is one file and one line in BASELINES."""

from favorbench.baselines.base import Baseline
from favorbench.baselines.best_rank import BestRank
from favorbench.baselines.top_keys import TopKeys
from favorbench.baselines.trivial import Taylor1, Taylor2, Uniform
from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, Method, SampledKeys
from favorbench.registry import build

BASELINES: tuple[type[Method], ...] = (Uniform, Taylor1, Taylor2, SampledKeys, BestRank, TopKeys)


def get_baseline(spec: str | Method) -> Method:
    """The baseline that ``spec`` names. Raises ScenarioError."""
    if isinstance(spec, Method):
        return spec
    if spec in {method.name for method in METHODS}:
        raise ScenarioError(f"{spec!r} is a method, not a baseline: write `methods` {spec}")
    return build("baseline", spec, BASELINES, Method)


__all__ = ["BASELINES", "Baseline", "get_baseline"]
