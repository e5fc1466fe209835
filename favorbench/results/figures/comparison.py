"""The ratios of a comparison of two runs, a panel for each cell."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.results.changes import Change
from favorbench.results.compare import RunComparison

MAX_ROWS = 60  # of one panel


def ratios(found: RunComparison) -> list[style.Chart]:
    """A chart of new / old with its intervals for each cell."""
    charts = []
    for cell, group in groupby(found.rows, key=lambda row: row.cell):
        rows = [
            (f"{row.new_estimator} {'' if row.key.size is None else row.key.size}".strip(), row.change)
            for row in group
            if row.change and row.change.low > 0 and row.change.high < float("inf")
        ]
        if not rows:
            continue
        left = f" The first {MAX_ROWS} of {len(rows)} rows." if len(rows) > MAX_ROWS else ""
        caption = f"new / old with its interval; red triangle: worse, blue triangle: better.{left}"
        panel = style.Panel("", partial(_draw, rows=rows[:MAX_ROWS][::-1]))
        size = (6.5, 0.9 + 0.2 * min(len(rows), MAX_ROWS))
        charts.append(style.Chart("new-over-old", f"new / old, {cell}", caption, [panel], alone=size))
    return charts


def _draw(ax: Axes, rows: Sequence[tuple[str, Change]]) -> pd.DataFrame:
    ax.axvline(1.0, color="black", linestyle="--", linewidth=1)
    for place, (_, change) in enumerate(rows):
        colour = {"+": style.COLOURS[1], "-": style.COLOURS[0]}.get(change.mark, "0.4")
        ax.plot([change.low, change.high], [place, place], color=colour)
        ax.plot(change.ratio, place, marker={"+": "^", "-": "v"}.get(change.mark, "o"), color=colour, markersize=5)
    ax.set_xscale("log")
    ax.set_xlabel("new / old")
    ax.set_yticks(range(len(rows)), [style.plain(name) for name, _ in rows])
    return pd.DataFrame([change._asdict() for _, change in rows]).assign(estimator=[name for name, _ in rows])
