"""What there is, as records: for ``favorbench list``. Each family imports what it needs, and no more."""

import tomllib
from collections.abc import Callable
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

    found = []
    for record in _with_references(what):
        cited = [{"paper": p.cited, "title": p.title, "where": p.where} for p in cited_in(record["reference"])]
        nothing = {"paper": record["reference"], "title": "-", "where": "-"}
        found += [{"name": record["name"]} | paper for paper in cited or [nothing]]
    return found


def bibtex(what: str) -> str:
    """A BibTeX entry for every paper behind a family. Raises ScenarioError for families without papers."""
    from favorbench.papers import cited_in

    papers = {paper.key: paper for record in _with_references(what) for paper in cited_in(record["reference"])}
    return "\n\n".join(papers[key].bibtex() for key in sorted(papers))


def _with_references(what: str) -> list[dict[str, Any]]:
    found = records(what)
    if "reference" not in found[0]:
        raise ScenarioError(
            f"there are no papers behind {what}; behind maps, samplers, methods and baselines there are"
        )
    return found


#: What methods are and claim: they draw; they look at every pair of a query and a key; no answer depends on later
#: keys; weights >= 0 that sum to 1; without bias; exact at size L; the order of the keys plays no part.
_METHOD_CLAIMS = (
    "random", "oracle", "causal_safe", "convex", "unbiased", "exact_at_full_size", "permutation_invariant"
)  # fmt: skip


def _maps() -> list[dict[str, Any]]:
    from favorbench.maps import MAPS, TRANSFORMS
    from favorbench.registry import form

    members = [
        {
            "name": member.name,
            "features": _features(member),
            "unbiased": _yes(member.unbiased),
            "nonnegative": _yes(member.nonnegative),
            "causal_safe": _yes(member.causal_safe),
            "reference": member.reference,
        }
        for member in (cls() for cls in MAPS)
    ]
    transforms = [
        dict.fromkeys(members[0], "as MAP")
        | {"name": f"{form(transform)}:MAP", "reference": transform.reference}
        | {"causal_safe": _yes(transform.causal_safe)}
        for transform in TRANSFORMS
    ]
    return members + transforms


def _samplers() -> list[dict[str, Any]]:
    from favorbench.registry import form
    from favorbench.samplers import SAMPLERS, TRANSFORMS

    members = [
        {
            "name": member.name,
            "gaussian_rows": _yes(member.gaussian_rows),
            "coupling": str(member.coupling),
            "nested": _yes(member.nested),
            "needs": member.needs or "any R",
            "reference": member.reference,
        }
        for member in SAMPLERS
    ]
    transforms = [
        dict.fromkeys(members[0], "as SAMPLER") | {"name": f"{form(transform)}:SAMPLER"} | transform.adds
        for transform in TRANSFORMS
    ]
    return members + transforms


def _methods() -> list[dict[str, Any]]:
    from inspect import getattr_static

    from favorbench.methods import METHODS, PREFIXES
    from favorbench.registry import form, parameters

    members = [
        {"name": member.name, "description": member.description, **_claims(member), "parameters": parameters(cls)}
        | {"reference": member.reference}
        for cls, member in ((cls, cls()) for cls in METHODS)
    ]
    prefixes = [
        dict.fromkeys(members[0], "as METHOD")
        | {"name": f"{form(prefix)}:METHOD", "description": prefix.description, "parameters": parameters(prefix)}
        | {name: _yes(own) for name in _METHOD_CLAIMS if isinstance(own := getattr_static(prefix, name), bool)}
        | ({} if prefix.oracle else {"oracle": "as METHOD"})
        | {"reference": prefix.reference}
        for prefix in PREFIXES
    ]
    return members + prefixes


def _claims(member: Any) -> dict[str, str]:
    return {name: _yes(getattr(member, name)) for name in _METHOD_CLAIMS}


def _inputs() -> list[dict[str, Any]]:
    from favorbench.inputs import INPUTS, SHIPPED

    laws = [{"name": law.name, "description": law.description} for law in INPUTS if not law.suffixes]
    shipped = [{"name": name, "description": file.description} for name, file in SHIPPED.items()]
    return laws + shipped + [{"name": "PATH", "description": law.description} for law in INPUTS if law.suffixes]


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


def _baselines() -> list[dict[str, Any]]:
    from favorbench.baselines import BASELINES
    from favorbench.registry import parameters

    return [
        {"name": member.name, "description": member.description, **_claims(member), "parameters": parameters(cls)}
        | {"reference": member.reference}
        for cls, member in ((cls, cls()) for cls in BASELINES)
    ]


def _features(member: "FeatureMap") -> str:
    """How many features for R projections."""
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
