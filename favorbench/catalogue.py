"""The members of every family as records, for ``favorbench list``. Each family imports only what it needs."""

import tomllib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from favorbench.errors import ScenarioError

if TYPE_CHECKING:
    from favorbench.maps import FeatureMap


def records(what: str) -> list[dict[str, Any]]:
    """One record for each member of a family, in the order of its registry; "name" first."""
    return FAMILIES[what]()


def papers(what: str) -> list[dict[str, Any]]:
    """One record for each member of a family and paper that it refers to. Raises ScenarioError for other families."""
    from favorbench.papers import cited_in

    result = []
    for record in _with_references(what):
        cited = [{"paper": p.cited, "title": p.title, "where": p.where} for p in cited_in(record["reference"])]
        nothing = {"paper": record["reference"], "title": "-", "where": "-"}
        result += [{"name": record["name"]} | paper for paper in cited or [nothing]]
    return result


def bibtex(*families: str) -> str:
    """A BibTeX entry for every paper behind the families. Raises ScenarioError for families without papers."""
    from favorbench.papers import cited_in

    members = [record for family in families for record in _with_references(family)]
    papers = {paper.key: paper for record in members for paper in cited_in(record["reference"])}
    return "\n\n".join(papers[key].bibtex() for key in sorted(papers))


def _with_references(what: str) -> list[dict[str, Any]]:
    result = records(what)
    if "reference" not in result[0]:
        raise ScenarioError(f"{what} have no papers; maps, samplers, methods and baselines have")
    return result


#: Properties of methods: random; evaluates every pair of a query and a key; no output depends on later
#: keys; weights >= 0 that sum to 1; no bias; exact at size L; independent of the order of the keys.
_METHOD_CLAIMS = (
    "random", "oracle", "causal_safe", "convex", "unbiased", "exact_at_full_size", "permutation_invariant"
)  # fmt: skip


def _maps() -> list[dict[str, Any]]:
    from favorbench.maps import MAPS, TRANSFORMS
    from favorbench.registry import form

    members = [
        {"name": member.name, "features": _features(member)}
        | _claims(member, ("unbiased", "nonnegative", "causal_safe"))
        | {"reference": member.reference}
        for member in (cls() for cls in MAPS)
    ]
    return members + [
        dict.fromkeys(members[0], "as MAP")
        | {"name": f"{form(transform)}:MAP", "reference": transform.reference}
        | _claims(transform, ("causal_safe",))
        for transform in TRANSFORMS
    ]


def _samplers() -> list[dict[str, Any]]:
    from favorbench.registry import form
    from favorbench.samplers import SAMPLERS, TRANSFORMS

    members = [
        {"name": member.name, **_claims(member, ("gaussian_rows",)), "coupling": str(member.coupling)}
        | _claims(member, ("nested",))
        | {"needs": member.needs or "any R", "reference": member.reference}
        for member in SAMPLERS
    ]
    return members + [
        dict.fromkeys(members[0], "as SAMPLER") | {"name": f"{form(transform)}:SAMPLER"} | transform.adds
        for transform in TRANSFORMS
    ]


def _methods() -> list[dict[str, Any]]:
    from inspect import getattr_static

    from favorbench.methods import METHODS, PREFIXES
    from favorbench.methods.prefixes import Nothing
    from favorbench.registry import form, parameters

    members = [_method(cls) for cls in (*METHODS, Nothing)]
    return members + [
        dict.fromkeys(members[0], "as METHOD")
        | {"name": f"{form(prefix)}:METHOD", "description": prefix.description, "parameters": parameters(prefix)}
        | {name: _yes(claimed) for name in _METHOD_CLAIMS if isinstance(claimed := getattr_static(prefix, name), bool)}
        | {"reference": prefix.reference}
        for prefix in PREFIXES
    ]


def _baselines() -> list[dict[str, Any]]:
    from favorbench.baselines import BASELINES

    return [_method(cls) for cls in BASELINES]


def _method(cls: type[Any]) -> dict[str, Any]:
    from favorbench.registry import parameters

    member = cls()
    return (
        {"name": member.name, "description": member.description}
        | _claims(member, _METHOD_CLAIMS)
        | {"parameters": parameters(cls), "reference": member.reference}
    )


def _claims(member: Any, names: Iterable[str]) -> dict[str, str]:
    return {name: _yes(getattr(member, name)) for name in names}


def _inputs() -> list[dict[str, Any]]:
    from favorbench.inputs import INPUTS, SHIPPED

    named = [(source.name, source) for source in INPUTS if not source.suffixes]
    files = [("PATH", source) for source in INPUTS if source.suffixes]
    return [{"name": name, "description": it.description} for name, it in (*named, *SHIPPED.items(), *files)]


def _scenarios() -> list[dict[str, Any]]:
    from favorbench.engine.scenario import shipped_scenarios

    return [
        {"name": name, "title": tomllib.loads(path.read_text(encoding="utf-8"))["title"]}
        for name, path in shipped_scenarios().items()
    ]


def _metrics() -> list[dict[str, Any]]:
    from favorbench.metrics import METRICS

    return [
        {"name": name, "better": metric.better, "unit": metric.unit, "formula": metric.formula}
        for name, metric in METRICS.items()
    ]


def _features(member: "FeatureMap") -> str:
    """The number of features for R projections."""
    per = member.features_per_projection
    return {0: "fixed", 1: "R"}.get(per, f"{per}R")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


FAMILIES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "maps": _maps,
    "samplers": _samplers,
    "methods": _methods,
    "inputs": _inputs,
    "scenarios": _scenarios,
    "metrics": _metrics,
    "baselines": _baselines,
}
