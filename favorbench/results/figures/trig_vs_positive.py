"""trig-vs-positive, or maps: which map? One panel for each cell and sampler, one curve for each map."""

from pathlib import Path

from favorbench.results.figures.curves import draw_comparison
from favorbench.results.results import Results


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure where there are two maps and two values of R; returns the files."""
    return draw_comparison(results, ("trig", "positive"), metric, directory, compared="map", panel_for_each="sampler")
