"""iid-vs-ortho, or samplers: does the sampler matter? One panel for each cell and map, one curve for each sampler."""

from pathlib import Path

from favorbench.results.figures.curves import draw_comparison
from favorbench.results.results import Results


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure where there are two samplers and two values of R; returns the files."""
    return draw_comparison(results, ("iid", "orthogonal"), metric, directory, compared="sampler", panel_for_each="map")
