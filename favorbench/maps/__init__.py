"""Feature maps. A new one is a class and a line in MAPS."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from favorbench.errors import InputError
from favorbench.maps.base import FeatureMap, Sample, WrappedMap
from favorbench.maps.exponential import ADERF, OPRF, SADERF, SDERF, ADERFThenSDERF
from favorbench.maps.integer import Geometric, Poisson
from favorbench.maps.other_kernels import ELU, ExpTutorial, PositiveEps, ReLU, TrigBlog, TrigTutorial
from favorbench.maps.polynomial import Maclaurin, Taylor, TensorSketch
from favorbench.maps.random_features import Hybrid, Hyperbolic, Phase, Positive, Trig
from favorbench.maps.transforms import Calibrated, Centre, calibrations, scaled, with_calibrated
from favorbench.numerics.arrays import Array, array_namespace
from favorbench.registry import build, label

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
TRANSFORMS: tuple[type[WrappedMap], ...] = (Centre, Calibrated)


def get_map(spec: str | FeatureMap) -> FeatureMap:
    """Return the feature map that ``spec`` names.

    Parameters
    ----------
    spec : str or FeatureMap
        "positive", "oprf(rho=0.5)", "centre:positive", "my_module:MyMap". A map is returned as it is.

    Raises
    ------
    ScenarioError
        For an unknown name or parameter, with the nearest name.

    Examples
    --------
    >>> import favorbench as fb
    >>> fb.get_map("oprf(rho=0.5)")
    OPRF(rho=0.5)
    """
    return spec if isinstance(spec, FeatureMap) else build("map", spec, MAPS, FeatureMap, TRANSFORMS)


def calibrate(query: Array, key: Array, map: Any = "centre:aderf-sderf") -> Any:
    """Fit the parameters of a map to queries and keys, and freeze them for use on other texts.

    Parameters
    ----------
    query : array (..., n, d)
        Queries as attention takes them, not scaled. Leading axes are heads, the same as in later use.
    key : array (..., l, d)
        Keys.
    map : str, FeatureMap or Method
        A map, with or without ``calibrated:``, or a method around a calibrated map, such as
        ``get_method("sinks(4):calibrated:centre:aderf-sderf")``, not its name.

    Returns
    -------
    FeatureMap or Method
        An argument for ``linear_attention`` or ``method_attention``, causal too.

    Raises
    ------
    InputError
        If there is nothing to calibrate, or the shapes do not fit.
    ScenarioError
        For an unknown map.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> query, key, value, other_query, other_key = rng.normal(size=(5, 32, 8))
    >>> frozen = fb.calibrate(query, key, map="centre:aderf-sderf")
    >>> omega = fb.sample_omega("orthogonal", 16, 8, rng)
    >>> fb.linear_attention(other_query, other_key, value, omega, map=frozen, causal=True).shape
    (32, 8)
    """
    member = map if hasattr(map, "name") and not isinstance(map, type) else get_map(map)  # pyright: ignore[reportArgumentType]
    if isinstance(member, FeatureMap) and not isinstance(member, Calibrated):
        member = Calibrated(member)
    if not calibrations(member):
        raise InputError(f"{label(member)!r} takes nothing from data, or was calibrated before: nothing to calibrate")
    query, key = (np.asarray(array) if isinstance(array, Sequence) else array for array in (query, key))
    query, key = (array.detach() if hasattr(array, "detach") else array for array in (query, key))
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1] or 0 in (*query.shape, *key.shape):
        raise InputError(f"query {tuple(query.shape)}, key {tuple(key.shape)}: allowed: (..., n, d) and (..., l, d)")
    xp = array_namespace(query, key)
    if not all(bool(xp.all(xp.isfinite(array))) for array in (query, key)):
        raise InputError("query or key has values that are NaN or infinite")
    return with_calibrated(member, lambda calibrated: calibrated.calibrate(*scaled(query, key)))


__all__ = ["MAPS", "TRANSFORMS", "Calibrated", "FeatureMap", "Sample", "Taylor", "calibrate", "get_map"]
