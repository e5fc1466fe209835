"""Feature maps. A new one is one file and one line in MAPS."""

from favorbench.maps.base import FeatureMap, Sample, WrappedMap
from favorbench.maps.centre import Centre
from favorbench.maps.exponential import ADERF, ADERFSDERF, OPRF, SADERF, SDERF
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
    OPRF,
    SADERF,
    SDERF,
    ADERF,
    ADERFSDERF,
    TrigBlog,
    TrigTutorial,
    ExpTutorial,
    PositiveEps,
    Taylor,
)

#: ``prefix:map`` for any map, a user's too; they nest.
TRANSFORMS: tuple[type[WrappedMap], ...] = (Centre,)


def get_map(spec: str | FeatureMap) -> FeatureMap:
    """The feature map that ``spec`` names, e.g. "positive", "oprf(rho=0.5)", "centre:positive", "my_module:MyMap".

    Raises ScenarioError, with the nearest name, if there is none.
    """
    return spec if isinstance(spec, FeatureMap) else build("map", spec, MAPS, FeatureMap, TRANSFORMS)


__all__ = ["MAPS", "TRANSFORMS", "FeatureMap", "Sample", "Taylor", "get_map"]
