"""iid-vs-ortho: does the sampler matter? One panel for each cell and map, one curve for each sampler."""

from pathlib import Path

from favorbench.figures.curves import Panel, cells, draw_panels
from favorbench.summary import Results

NAME = "iid-vs-ortho"


def applies(results: Results) -> bool:
    """At least two samplers and two values of R."""
    maps = results.summary[results.summary["kind"] == "map"]
    return maps["sampler"].nunique() > 1 and maps["num_projections"].nunique() > 1


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure; returns the files."""
    x = "num_features" if results.scenario.budget == "features" else "num_projections"
    panels = []
    for title, cell in cells(results):
        maps, baselines = cell[cell["kind"] == "map"], cell[cell["kind"] == "baseline"]
        for name, rows in maps.groupby("map", sort=False):
            panels.append(Panel(", ".join(filter(None, (title, str(name)))), rows, baselines))
    columns = min(results.summary[results.summary["kind"] == "map"]["map"].nunique(), 4)
    return draw_panels(results, NAME, panels, x, lambda row: row["sampler"], columns, metric, directory)
