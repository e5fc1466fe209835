"""error-vs-L, error-vs-d, error-vs-scale: how the error grows with the problem, at a small, a middle and a large R."""

from pathlib import Path

from favorbench.results.figures.curves import Panel, cells, draw_panels
from favorbench.results.results import Results
from favorbench.results.summary import estimator_name

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
    maps = results.summary[results.summary["kind"] == "map"]
    common = sorted(set.intersection(*(set(rows["num_projections"].dropna()) for _, rows in maps.groupby(axis))))
    if not common:  # R follows d (dlogd): all there is, in one panel
        common = [None]
    chosen = [common[i] for i in sorted({0, (len(common) - 1) // 2, len(common) - 1})]
    panels = []
    for title, cell in cells(results, drop=together):
        for size in chosen:
            wanted = cell if size is None else cell[cell["num_projections"].isna() | (cell["num_projections"] == size)]
            label = "R = int(d ln d)" if size is None else f"R = {size}"
            rows, baselines = wanted[wanted["kind"] == "map"], wanted[wanted["kind"] == "baseline"]
            panels.append(Panel(", ".join(filter(None, (title, label))), rows, baselines))
    several = maps["sampler"].nunique() > 1
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
