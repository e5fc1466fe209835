"""Figures of a run. A new one is one file with ``draw(results, metric, directory)`` and its name in FIGURES."""

from pathlib import Path

from favorbench.results.figures import error_against, error_against_dtype, iid_vs_ortho, ranking, trig_vs_positive
from favorbench.results.results import Results

#: Each returns the files that it wrote: none where a run has not the axes it shows.
FIGURES = (iid_vs_ortho, trig_vs_positive, error_against, error_against_dtype, ranking)


def draw_all(results: Results, metric: str = "mse", directory: Path | None = None) -> list[Path]:
    """Every figure that the axes of a run allow, in <run>/figures. Raises StoreError if it cannot be written."""
    directory = directory or results.path / "figures"
    return [path for figure in FIGURES for path in figure.draw(results, metric, directory)]


__all__ = ["FIGURES", "draw_all"]
