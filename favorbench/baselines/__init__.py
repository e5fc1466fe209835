"""The answers every estimator must beat, and bounds. A new one is one file and one line in BASELINES."""

from favorbench.baselines.best_rank import BestRank
from favorbench.baselines.top_keys import TopKeys
from favorbench.baselines.trivial import Taylor1, Taylor2, Uniform
from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, PREFIXES, Method, SampledKeys
from favorbench.methods.base import Baseline
from favorbench.registry import build, split_list

BASELINES: tuple[type[Method], ...] = (Uniform, Taylor1, Taylor2, SampledKeys, BestRank, TopKeys)


def get_baseline(spec: str | Method) -> Method:
    """The baseline that ``spec`` names. Raises ScenarioError.

    Also a bound, such as "best-rank" and "top-keys". Raises ScenarioError, with the nearest name, if there is none.

    >>> import favorbench as fb, numpy as np
    >>> query, key, value = np.random.default_rng(0).normal(size=(3, 16, 4))
    >>> answer = fb.method_attention(query, key, value, fb.get_baseline("uniform"))
    >>> bool(np.allclose(answer, value.mean(axis=0)))
    True
    """
    if isinstance(spec, Method):
        return spec
    if spec in {method.name for method in METHODS}:
        raise ScenarioError(f"{spec!r} is a method, not a baseline: write `methods` {spec}")
    return build("baseline", spec, BASELINES, Method)


def no_map(spec: str) -> tuple[str, str] | None:
    """The part of a spec that no map has, and whether that is a method, a prefix or a baseline; None if there is none.

    For where a map is asked for: what says that there is no such map knows nothing of the families above.
    """
    *before, last = split_list(spec, ":") if isinstance(spec, str) else [""]
    name, written = last.partition("(")[0].strip(), tuple(f"{prefix.prefix}(" for prefix in PREFIXES)
    if name in {method.name for method in METHODS}:
        return name, "method"
    if found := next((part for part in [*before, last] if part.startswith(written)), None):
        return found, "prefix"
    return (name, "baseline") if not before and name in {member.name for member in BASELINES} else None


__all__ = ["BASELINES", "Baseline", "get_baseline", "no_map"]
