"""The seconds of a run's estimators, for a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console

from favorbench.console.tables import show_records
from favorbench.formats import format_value
from favorbench.statistics import interval_name

if TYPE_CHECKING:
    from favorbench.results.seconds import Seconds


def show_seconds(console: Console, found: "Seconds") -> None:
    """A table for each population of heads: seconds with their interval, and the share of exact attention's."""
    from favorbench.results.seconds import by_cell, exact_seconds
    from favorbench.results.summary import estimator_name
    from favorbench.results.tables import said_once

    note = f"{found.on()}: median of {found.repeats} runs in turns. {found.doubts()}".strip()
    cells = list(by_cell(found))
    for (title, rows), below in zip(cells, said_once([note] * len(cells)), strict=True):
        exact = exact_seconds(rows)
        records = [
            {
                "estimator": estimator_name(row),
                "R": "-" if size is None else str(size),
                "seconds": format_value(row["seconds"], "seconds"),
                interval_name(found.repeats): " to ".join(format_value(row[end], "seconds") for end in ("low", "high")),
                "/ exact": f"{row['seconds'] / exact:.2g}",
            }
            for row, size in ((row, row["num_projections"]) for row in rows.astype(object).to_dict(orient="records"))
        ]
        show_records(console, records, f"seconds of {title}", below)
