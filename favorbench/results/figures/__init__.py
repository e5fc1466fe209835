"""Figures of a run. A new one is a function from results to charts, and a line in FIGURES."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from favorbench import style
from favorbench.errors import ScenarioError
from favorbench.formats import shown
from favorbench.registry import nearest, split_list
from favorbench.results.compare import RunComparison
from favorbench.results.figures import cost, curves
from favorbench.results.figures.heads import effect_map, layer_map
from favorbench.results.figures.ranking import MIN_ESTIMATORS, ranking, ratios
from favorbench.results.heads import (
    FEW,
    check_known,
    check_metric,
    filtered,
    first_head,
    select_heads,
    where_measured,
    without_many,
)
from favorbench.results.summary import RunData

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FigureKind(NamedTuple):
    """A kind of figure. names: by which it can be requested. charts: none if a run lacks the data.

    over_heads: it shows many heads together; other figures leave them out. named_by_content: its file has another name.
    """

    names: tuple[str, ...]
    needs: str
    charts: Callable[[RunData, str], list[style.Chart]]
    over_heads: bool = False
    named_by_content: bool = False


MAPS = FigureKind(("trig-vs-positive", "maps"), "two maps and two sizes", curves.maps, named_by_content=True)
SAMPLERS = FigureKind(
    ("iid-vs-ortho", "samplers"), "two samplers and two sizes", curves.samplers, named_by_content=True
)
HEADS = FigureKind(("heads",), f"more than {FEW} heads of two layers", layer_map, True)
EFFECTS = FigureKind(("effect",), f"gradients of more than {FEW} heads of two layers", effect_map, True)

#: In the order of a page.
FIGURES = (
    FigureKind(
        ("error-vs-cost",), "methods, a budget of cost or many heads, and two estimators of two costs",
        cost.against_multiplications, True,
    ),
    FigureKind(
        ("error-vs-seconds",), "the times of `favorbench speed RUN`, of two estimators", cost.against_seconds, True,
    ),
    HEADS,
    EFFECTS,
    FigureKind(("ranking",), f"{MIN_ESTIMATORS} estimators at equal features or cost, and enough draws", ranking),
    MAPS,
    SAMPLERS,
    FigureKind(
        tuple(name for name, *_ in curves.AXES.values()), "two values of L, d or scale", curves.against_axes,
    ),
    FigureKind(("error-vs-dtype",), "two precisions", curves.against_dtype),
)  # fmt: skip


def charts_of(kind: FigureKind, results: RunData, metric: str, single_heads: bool = False) -> list[style.Chart]:
    """The charts of one kind; single_heads: the run is reduced to requested heads."""
    if not kind.over_heads and not single_heads:
        results = without_many(results, FEW)
    return kind.charts(results, metric) if len(results.summary) else []


def draw_all(
    results: RunData,
    metric: str = "mse",
    directory: Path | None = None,
    heads: str | None = None,
    estimators: str | None = None,
) -> list[Path]:
    """Write every figure that the axes of a run allow, in <run>/figures; returns the files.

    heads: labels with commas: figures of these alone, in a folder of their name. estimators: those of the maps of
    layers and heads. Raises ScenarioError for an unknown head or estimator, StoreError for a failing disk.
    """
    directory = directory or results.path / "figures"
    if heads is not None:
        labels = split_list(heads)
        whole, folder = "-".join(labels), "-".join(map(style.slug, labels))[:60]
        if folder != whole:  # what it leaves out may tell two calls apart
            folder += f"-{sha256(whole.encode()).hexdigest()[:6]}"
        results, directory = select_heads(results, heads), directory / folder
    check_metric(results, metric)
    results = where_measured(results, metric)
    maps = {kind: draw(results, metric, estimators) for kind, draw in ((HEADS, layer_map), (EFFECTS, effect_map))}
    if estimators is not None and not any(maps.values()):
        raise ScenarioError(
            f"`estimators`: only a map of layers and heads shows single ones, and {results.path} has none for "
            f"{metric}: it takes {HEADS.needs}; leave `estimators` out"
        )
    written = []
    for kind in FIGURES:  # written one by one: damaged times end the command after the figures before them
        charts = maps[kind] if kind in maps else charts_of(kind, results, metric, heads is not None)
        written += style.write(charts, directory)
    return written


def figures_for_page(results: RunData) -> list[tuple[str, str, str, str]]:
    """Name, title, caption and inline SVG of each figure of a run, the most important first.

    The colours are CSS variables; ``style.page_css`` has their values on a dark ground.
    """
    figures = []
    for kind in FIGURES:
        if kind is SAMPLERS and any(name.startswith(("maps", "trig")) or "-vs-" in name for name, *_ in figures):
            continue
        figures += on_page(charts_of(kind, results, "mse"))
    return figures


def comparison_for_page(comparison: RunComparison) -> list[tuple[str, str, str, str]]:
    """The same of a comparison of two runs."""
    return on_page(ratios(comparison))


def on_page(charts: Sequence[style.Chart]) -> list[tuple[str, str, str, str]]:
    """Name, title, caption and inline SVG of charts."""
    with style.figure_options(style.FigureOptions(caption=False)):
        drawings = [drawing for chart in charts for drawing in style.draw(chart)]
        return [(drawn.chart.name, drawn.chart.title, drawn.chart.caption, style.page_svg(drawn)) for drawn in drawings]


def plot(
    results: RunData,
    name: str,
    ax: "Axes | Sequence[Axes] | None",
    metric: str,
    heads: str | None,
    inputs: str | None,
    samplers: str | None,
) -> "Axes":
    """``Results.plot``."""
    results = select_heads(results, heads)
    for key, column, text in (("inputs", "input", inputs), ("samplers", "sampler", samplers)):
        if text is not None:
            names = split_list(text)
            check_known(results, key, names, [str(known) for known in results.summary[column].dropna().unique()])
            results = filtered(results, lambda frame: frame[column].isin(names) | frame[column].isna())  # noqa: B023
    check_metric(results, metric)
    measured = where_measured(results, metric)
    return style.plot(str(name), _pages_named(measured, str(name), metric, heads is not None), ax)[0]


def _pages_named(results: RunData, name: str, metric: str, single_heads: bool) -> list[style.Chart]:
    """The pages of a figure, by its name or by that of a file. Raises ScenarioError where there is none."""
    kinds = {alias: kind for kind in FIGURES for alias in kind.names}
    allowed = list(kinds)
    for kind in [kinds[name]] if name in kinds else FIGURES:
        pages = list(chain(*map(style.pages, charts_of(kind, results, metric, single_heads))))
        every = kind.named_by_content and name in kinds
        if named := [page for page in pages if every or f"{page.name}-".startswith(f"{name}-")]:
            return named
        allowed += map(attrgetter("name"), pages)
    if name in kinds:
        why = f"it needs {kinds[name].needs}"
        if charts_of(kinds[name], results, metric, single_heads=True):
            why = f"of more than {FEW} heads it needs `heads`, e.g. {first_head(results)}"
        elif charts_of(kinds[name], results, "mse", single_heads):
            why = f"it cannot show {metric}"
        raise ScenarioError(f"figure {name!r}: this run has nothing to show in it; {why}")
    allowed = list(dict.fromkeys(allowed))
    raise ScenarioError(f"unknown figure {shown(name)}{nearest(name, allowed)}; allowed: {', '.join(allowed)}")
