"""A figure of a run by its name, on axes instead of in files."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from favorbench.canvas import plotted, sheets_of
from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.metrics import METRICS
from favorbench.registry import nearest, split_list
from favorbench.results.figures import (
    FIGURES,
    OVER_HEADS,
    error_against,
    error_against_dtype,
    iid_vs_ortho,
    ranking,
    trig_vs_positive,
)
from favorbench.results.head_ranking import of_heads
from favorbench.results.heads import FEW, without_many
from favorbench.results.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Figures that are called as what they compare, and what else they may be asked for as, whatever that is.
COMPARISONS = {"trig-vs-positive": trig_vs_positive, "maps": trig_vs_positive}
COMPARISONS |= {"iid-vs-ortho": iid_vs_ortho, "samplers": iid_vs_ortho}

#: All others by their names: those of their modules, but for these.
NAMED: Mapping[str, ModuleType] = {
    **dict.fromkeys(error_against.AXES, error_against),
    "error-vs-dtype": error_against_dtype,
    **{
        figure.__name__.rpartition(".")[2].replace("_", "-"): figure
        for figure in FIGURES
        if figure not in (error_against, error_against_dtype, *COMPARISONS.values())
    },
}


def plot(
    results: Results,
    name: str,
    ax: "Axes | Sequence[Axes] | None",
    metric: str,
    heads: str | None,
    inputs: str | None,
    samplers: str | None,
) -> "Axes":
    """``Results.plot``."""
    if metric not in METRICS:
        raise ScenarioError(f"`metric` {shown(metric)}{nearest(str(metric), METRICS)}; allowed: {', '.join(METRICS)}")
    if heads is not None:
        results = of_heads(results, split_list(heads))
    for key, column, asked in (("inputs", "input", inputs), ("samplers", "sampler", samplers)):
        if asked is not None:
            results = _only(results, key, column, split_list(asked))
    draw, names = _figure(results, str(name), metric, heads is not None)
    axes = plotted(name, draw, ax, lambda sheet: sheet.name in names)
    return axes[0] if isinstance(axes, list) else axes


def _only(results: Results, key: str, column: str, asked: Sequence[str]) -> Results:
    """The part of a run that has one of these, or none. Raises ScenarioError for one that it does not have."""
    there = [str(name) for name in results.summary[column].dropna().unique()]
    for name in asked:
        if name not in there:
            raise ScenarioError(f"`{key}`: the run has no {name!r}{nearest(name, there)}; it has {', '.join(there)}")
    trials, summary = (
        frame[frame[column].isin(asked) | frame[column].isna()] for frame in (results.trials, results.summary)
    )
    return results._replace(trials=trials, summary=summary)


def _figure(results: Results, name: str, metric: str, alone: bool) -> tuple[Callable[[], None], set[str]]:
    """What draws a figure, and the names of its sheets. Raises ScenarioError where there is none."""
    kinds = {**COMPARISONS, **NAMED}
    comparisons: list[str] = []
    for module in dict.fromkeys([kinds[name]] if name in kinds else COMPARISONS.values()):
        few = results if module in OVER_HEADS or alone else without_many(results, FEW)

        def draw(module: ModuleType = module, few: Results = few) -> None:
            if len(few.summary):
                module.draw(few, metric, Path())

        sheets = [sheet.name for sheet in sheets_of(draw)]
        comparisons += dict.fromkeys(map(_unpaged, sheets))
        if found := {one for one in sheets if name in COMPARISONS or f"{one}-".startswith(f"{name}-")}:
            return draw, found
    if name in kinds:
        says = (kinds[name].draw.__doc__ or "").partition(";")[0].partition(". ")[0].rstrip(".")
        when = re.sub("^Write (the|a) figure", "it is drawn", says).replace("FEWEST", str(ranking.FEWEST))
        raise ScenarioError(f"figure {name!r}: this run has nothing to show in it; {when}")
    allowed = list(dict.fromkeys([*kinds, *comparisons]))
    raise ScenarioError(f"unknown figure {shown(name)}{nearest(name, allowed)}; allowed: {', '.join(allowed)}")


def _unpaged(name: str) -> str:
    """The name of a figure, of which this may be one of several pages."""
    return re.sub(r"-\d+$", "", name)
