"""trig-vs-positive: which map? One panel for each cell and sampler, one curve for each map."""

from pathlib import Path

from favorbench.figures.curves import Panel, cells, draw_panels
from favorbench.summary import Results

NAME = "trig-vs-positive"


def applies(results: Results) -> bool:
    """At least two maps and two values of R."""
    maps = results.summary[results.summary["kind"] == "map"]
    return maps["map"].nunique() > 1 and maps["num_projections"].nunique() > 1


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure; returns the files."""
    x = "num_features" if results.scenario.budget == "features" else "num_projections"
    panels = []
    for title, cell in cells(results):
        maps, baselines = cell[cell["kind"] == "map"], cell[cell["kind"] == "baseline"]
        for name, rows in maps.groupby("sampler", sort=False):
            panels.append(Panel(", ".join(filter(None, (title, str(name)))), rows, baselines))
    samplers = results.summary[results.summary["kind"] == "map"]["sampler"].nunique()
    several = len(panels) > samplers
    columns = min(samplers, 4) if samplers > 1 or not several else 2
    return draw_panels(results, NAME, panels, x, lambda row: row["map"], columns, metric, directory)
