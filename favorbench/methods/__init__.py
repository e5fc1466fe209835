"""Methods: estimators of attention that are no feature map. A new one is one file and one line in METHODS."""

import inspect
from collections.abc import Callable
from typing import Any, cast

from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.maps import MAPS, FeatureMap
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape
from favorbench.methods.clusters import Clusters
from favorbench.methods.eva import Eva
from favorbench.methods.function import Function
from favorbench.methods.hashed import HyperAttention, KDEformer
from favorbench.methods.lara import Lara
from favorbench.methods.monarch import Monarch
from favorbench.methods.multipole import Multipole
from favorbench.methods.nystrom import Nystrom, WildCat
from favorbench.methods.nystromformer import Nystromformer
from favorbench.methods.prefixes import ExactKeys, Sinks, Top, Window
from favorbench.methods.sampled import SampledKeys
from favorbench.methods.thinformer import Thinformer
from favorbench.registry import build

METHODS: tuple[type[Method], ...] = (
    Clusters, Multipole, Nystrom, WildCat, Nystromformer, Monarch, Lara, Thinformer, Eva, HyperAttention,
    KDEformer,
)  # fmt: skip

#: ``prefix(number):method`` and ``prefix(number):map``, a user's too; they nest.
PREFIXES: tuple[type[ExactKeys], ...] = (Sinks, Window, Top)

#: What prefixes take beside methods: baselines that keep a sum over keys, and maps.
INSIDE = (SampledKeys, *MAPS)


def get_method(spec: str | Method | Callable[..., Any]) -> Method:
    """The method that ``spec`` names, or that asks a function f(query, key, value, size, rng) -> output.

    "clusters", "multipole(exact=0.25)", "sinks(4):window(128):multipole", "window(64):positive",
    "my_module:my_attention". Raises ScenarioError, with the nearest name, if there is none.

    >>> import favorbench as fb
    >>> fb.get_method("multipole(lloyd=3)").lloyd
    3
    """
    if isinstance(spec, Method):
        return spec
    if not isinstance(spec, str) and inspect.isfunction(spec):
        return Function.of(spec)
    text = cast(str, spec)  # ``build`` refuses anything else
    name = text.split(":")[0].partition("(")[0].strip() if isinstance(spec, str) else ""
    if name in {feature_map.name for feature_map in MAPS}:
        raise ScenarioError(f"{spec!r} is a map, not a method: write `maps` {spec}")
    if name == SampledKeys.name:
        raise ScenarioError(
            f"{spec!r} is a baseline, not a method: write `baselines` {spec}; in Python get_baseline({spec!r})"
        )
    inside = name in {prefix.prefix for prefix in PREFIXES}
    members, transforms = (METHODS, PREFIXES) if not inside else ((*METHODS, *INSIDE), (*PREFIXES, *MAP_TRANSFORMS))
    if inside and ":" not in text:
        raise ScenarioError(f"{text!r} is a prefix: write what it stands before, e.g. {text}:clusters")
    found = build("method", text, members, (Method, FeatureMap), transforms, lambda a: _asked(text, a))
    if isinstance(found, FeatureMap):
        raise ScenarioError(f"method {spec!r} is a map: write `maps` {spec}")
    return found


def _asked(spec: str, found: Any) -> Any:
    """A user's function as a method."""
    if inspect.isfunction(found):
        try:
            return Function.of(found)
        except ScenarioError as error:
            raise ScenarioError(f"method {shown(spec)}: {error}") from None
    return found


#: Names up to version 0.2.
Question, Answer = AttentionProblem, Estimate

__all__ = [
    "METHODS", "PREFIXES", "Answer", "AttentionProblem", "Estimate", "Method", "Question", "SampledKeys", "Shape",
    "get_method",
]  # fmt: skip
