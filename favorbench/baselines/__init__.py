"""Trivial answers, which every estimator must beat, and bounds. A new one is a class and a line in BASELINES."""

from favorbench.baselines.members import BestRank, Taylor1, Taylor2, TopKeys, Uniform
from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, PREFIXES, Method, SampledKeys
from favorbench.methods.base import Baseline
from favorbench.registry import build, split_list

BASELINES: tuple[type[Method], ...] = (Uniform, Taylor1, Taylor2, SampledKeys, BestRank, TopKeys)


def get_baseline(spec: str | Method) -> Method:
    """Return the baseline that ``spec`` names, or a bound, such as "best-rank".

    Parameters
    ----------
    spec : str or Method
        "uniform", "sampled-keys(weights='values')", "top-keys". A method is returned as it is.

    Raises
    ------
    ScenarioError
        For an unknown name or parameter, with the nearest name.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 16, 4))
    >>> output = fb.method_attention(query, key, value, fb.get_baseline("uniform"))
    >>> bool(np.allclose(output, value.mean(axis=0)))
    True
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, str) and spec in {method.name for method in METHODS}:
        raise ScenarioError(f"{spec!r} is a method, not a baseline: write `methods` {spec}")
    return build("baseline", spec, BASELINES, Method)


def no_map(spec: str) -> tuple[str, str] | None:
    """The part of a spec that is not a map, and whether it is a method, a prefix or a baseline; None if all are maps.

    For messages where a map is expected: the registry of maps does not know the families above it.
    """
    *before, last = split_list(spec, ":") if isinstance(spec, str) else [""]
    name, prefixes = last.partition("(")[0].strip(), tuple(f"{prefix.prefix}(" for prefix in PREFIXES)
    if name in {method.name for method in METHODS}:
        return name, "method"
    if prefix := next((part for part in [*before, last] if part.startswith(prefixes)), None):
        return prefix, "prefix"
    return (name, "baseline") if not before and name in {member.name for member in BASELINES} else None


__all__ = ["BASELINES", "Baseline", "get_baseline", "no_map"]
