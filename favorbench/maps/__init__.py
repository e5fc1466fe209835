"""Feature maps. A new one is one file and one line in MAPS."""

from favorbench.maps.base import FeatureMap, Sample
from favorbench.maps.positive import Hyperbolic, Positive
from favorbench.maps.published import ExpTutorial, PositiveEps, TrigBlog, TrigTutorial
from favorbench.maps.taylor import Taylor
from favorbench.maps.trigonometric import Phase, Trig
from favorbench.registry import build

MAPS: tuple[type[FeatureMap], ...] = (
    Trig,
    Phase,
    Positive,
    Hyperbolic,
    TrigBlog,
    TrigTutorial,
    ExpTutorial,
    PositiveEps,
    Taylor,
)


def get_map(spec: str | FeatureMap) -> FeatureMap:
    """The feature map that ``spec`` names, e.g. "positive", "positive-eps(eps=1e-6)", "my_module:MyMap".

    Raises ScenarioError, with the nearest name, if there is none.
    """
    return spec if isinstance(spec, FeatureMap) else build("map", spec, MAPS, FeatureMap)


__all__ = ["MAPS", "FeatureMap", "Sample", "Taylor", "get_map"]
