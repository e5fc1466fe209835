"""Figures of a run. A new one is one file with ``draw(results, metric, directory)`` and its name in FIGURES."""

from pathlib import Path

from favorbench.results.figures import (
    error_against,
    error_against_dtype,
    error_vs_cost,
    error_vs_seconds,
    iid_vs_ortho,
    ranking,
    trig_vs_positive,
)
from favorbench.results.heads import without_many
from favorbench.results.results import Results

#: Each returns the files that it wrote: none where a run has not the axes it shows.
FIGURES = (iid_vs_ortho, trig_vs_positive, error_against, error_against_dtype, error_vs_cost, ranking, error_vs_seconds)

#: Those that show many heads together; the others have a panel for each, and leave heads out that are many.
OVER_HEADS = (error_vs_cost, error_vs_seconds)


def draw_all(results: Results, metric: str = "mse", directory: Path | None = None) -> list[Path]:
    """Every figure that the axes of a run allow, in <run>/figures. Raises StoreError if it cannot be written."""
    directory, few = directory or results.path / "figures", without_many(results)
    written = []
    for figure in FIGURES:
        shown = results if figure in OVER_HEADS else few
        if len(shown.summary):
            written += figure.draw(shown, metric, directory)
    return written


__all__ = ["FIGURES", "draw_all"]
