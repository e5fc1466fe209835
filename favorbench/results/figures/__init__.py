"""Figures of a run. A new one is one file with ``draw(results, metric, directory)`` and its name in FIGURES."""

from collections.abc import Sequence
from pathlib import Path

from favorbench.registry import split_list
from favorbench.results import heads as of_inputs
from favorbench.results.figures import (
    error_against,
    error_against_dtype,
    error_vs_cost,
    error_vs_seconds,
    iid_vs_ortho,
    ranking,
    trig_vs_positive,
)
from favorbench.results.figures import heads as layer_map
from favorbench.results.figures.paging import slug
from favorbench.results.head_ranking import of_heads
from favorbench.results.results import Results

#: Each returns the files that it wrote: none where a run has not the axes it shows.
FIGURES = (
    iid_vs_ortho, trig_vs_positive, error_against, error_against_dtype, error_vs_cost, ranking, error_vs_seconds,
    layer_map,
)  # fmt: skip

#: Those that show many heads together; the others have a panel for each, and leave heads out that are many.
OVER_HEADS = (error_vs_cost, error_vs_seconds, layer_map)


def draw_all(
    results: Results,
    metric: str = "mse",
    directory: Path | None = None,
    heads: str | None = None,
    estimators: str | None = None,
) -> list[Path]:
    """Every figure that the axes of a run allow, in <run>/figures. Raises StoreError if it cannot be written.

    heads: labels with commas: figures of these by themselves, in a folder that is called as they are. estimators:
    those of the map of layers and heads. Raises ScenarioError for a head or an estimator that is not there.
    """
    directory = directory or results.path / "figures"
    if heads is not None:
        asked = split_list(heads)
        results, directory = of_heads(results, asked), directory / _folder_of(asked)
    layer_map.check_estimators(results, estimators)
    few, written = results if heads is not None else of_inputs.without_many(results, of_inputs.FEW), []
    for figure in FIGURES:
        shown = results if figure in OVER_HEADS else few
        if len(shown.summary):
            of = (estimators,) if figure is layer_map else ()
            written += figure.draw(shown, metric, directory, *of)
    return written


def _folder_of(heads: Sequence[str]) -> str:
    """ "L0H1-L5H0": what a folder of figures of these heads is called."""
    name = "-".join(map(slug, heads))
    return name if len(name) <= 60 else f"{len(heads)}-heads-from-{name[:40]}"


__all__ = ["FIGURES", "draw_all"]
