"""Figures of a run: each file has ``draw(results, metric, directory)``, which returns the files it wrote."""

from pathlib import Path

from favorbench.results.figures import error_against, error_against_dtype, iid_vs_ortho, ranking, trig_vs_positive
from favorbench.results.results import Results


def draw_all(results: Results, metric: str = "mse", directory: Path | None = None) -> list[Path]:
    """Every figure that the axes of a run allow, in <run>/figures. Raises StoreError if it cannot be written."""
    directory = directory or results.path / "figures"
    figures = (iid_vs_ortho, trig_vs_positive, error_against, error_against_dtype, ranking)
    return [path for figure in figures for path in figure.draw(results, metric, directory)]


__all__ = ["draw_all"]
