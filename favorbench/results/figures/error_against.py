"""error-vs-L, error-vs-d, error-vs-scale: how the error grows with the problem, at a small, a middle and a large R."""

from pathlib import Path

from favorbench.results.figures.curves import Panel, cells, draw_panels
from favorbench.results.heads import population_of
from favorbench.results.results import Results
from favorbench.results.summary import compared, estimator_name
from favorbench.results.tables import at_size, size_axis

#: File name and axis of each figure; axes that move together with it share its panels.
AXES = {
    "error-vs-L": ("seq_len", ("seq_len", "query_len", "query_rows")),
    "error-vs-d": ("head_dim", ("head_dim",)),
    "error-vs-scale": ("scale", ("scale",)),
}


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write a figure for each of L, d and scale that has two values or more; returns the files."""
    written = []
    for name, (axis, together) in AXES.items():
        if results.summary[axis].nunique() > 1:
            written += _draw(results, name, axis, together, metric, directory)
    return written


def _draw(
    results: Results, name: str, axis: str, together: tuple[str, ...], metric: str, directory: Path
) -> list[Path]:
    estimators, size = compared(results.summary), size_axis(results)
    common = sorted(set.intersection(*(set(rows[size].dropna()) for _, rows in estimators.groupby(axis))))
    if not common:  # R follows d (dlogd): all there is, in one panel
        common = [None]
    chosen = [common[i] for i in sorted({0, (len(common) - 1) // 2, len(common) - 1})]
    panels = []
    for title, cell in cells(results, drop=together):
        for one in chosen:
            wanted = cell if one is None else cell[cell["num_projections"].isna() | (cell[size] == one)]
            label = "R = int(d ln d)" if one is None else at_size(results.scenario.budget, one)
            baselines = wanted[wanted["kind"] == "baseline"]
            panels.append(
                Panel(
                    ", ".join(filter(None, (title, label))), population_of(cell, together), compared(wanted), baselines
                )
            )
    several = estimators["sampler"].nunique() > 1
    return draw_panels(
        results,
        name,
        panels,
        axis,
        lambda row: estimator_name(row) if several else row["map"],
        len(chosen),
        metric,
        directory,
    )
