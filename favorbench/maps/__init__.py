"""Feature maps. A new one is one file and one line in MAPS."""

from favorbench.maps.base import FeatureMap, Sample, WrappedMap
from favorbench.maps.centre import Centre
from favorbench.maps.exponential import ADERF, OPRF, SADERF, SDERF, ADERFThenSDERF
from favorbench.maps.hybrid import Hybrid
from favorbench.maps.integer import Geometric, Poisson
from favorbench.maps.linear import ELU, ReLU
from favorbench.maps.maclaurin import Maclaurin
from favorbench.maps.positive import Hyperbolic, Positive
from favorbench.maps.published import ExpTutorial, PositiveEps, TrigBlog, TrigTutorial
from favorbench.maps.taylor import Taylor
from favorbench.maps.tensorsketch import TensorSketch
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
    ADERFThenSDERF,
    Hybrid,
    Poisson,
    Geometric,
    Maclaurin,
    TensorSketch,
    Taylor,
    ReLU,
    ELU,
    TrigBlog,
    TrigTutorial,
    ExpTutorial,
    PositiveEps,
)

#: ``prefix:map`` for any map, a user's too; they nest.
TRANSFORMS: tuple[type[WrappedMap], ...] = (Centre,)


def get_map(spec: str | FeatureMap) -> FeatureMap:
    """The feature map that ``spec`` names, e.g. "positive", "oprf(rho=0.5)", "centre:positive", "my_module:MyMap".

    Raises ScenarioError, with the nearest name, if there is none.
    """
    return spec if isinstance(spec, FeatureMap) else build("map", spec, MAPS, FeatureMap, TRANSFORMS)


__all__ = ["MAPS", "TRANSFORMS", "FeatureMap", "Sample", "Taylor", "get_map"]
