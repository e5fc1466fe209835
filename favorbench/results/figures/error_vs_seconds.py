"""error-vs-seconds: the error of each estimator against the time that it took where the run was timed."""

from pathlib import Path

import pandas as pd

from favorbench.engine.columns import Labels
from favorbench.results.figures.pareto import COSTS, Cost, draw_against
from favorbench.results.heads import POPULATION
from favorbench.results.results import Results
from favorbench.results.seconds import MEASURED, Seconds, exact_seconds, read_seconds
from favorbench.statistics import interval_name

_TIMED = [*POPULATION, "kind", "map", "sampler", "num_projections"]


def draw(results: Results, metric: str, directory: Path) -> list[Path]:
    """Write the figure where the run was timed. Raises StoreError where what is kept of that is damaged."""
    found = read_seconds(results.path)
    return draw_against(_seconds(found), results, metric, directory) if found else []


def _seconds(found: Seconds) -> Cost:
    """The seconds of one head stand for those of all heads of its population."""
    heads = found.rows[found.rows["head"] != "-"]["head"].unique()
    measured_on = f"one head ({', '.join(heads)})" if len(heads) else "one head"

    bars = "; ".join(filter(None, [f"bars: {interval_name(found.repeats)}", found.doubts()]))

    def of(rows: pd.DataFrame) -> pd.DataFrame:
        timed = found.rows.astype({name: rows[name].dtype for name in _TIMED})
        joined = rows[_TIMED].merge(timed, how="left", on=_TIMED).set_axis(rows.index)
        return joined[list(MEASURED)].set_axis(list(COSTS), axis="columns")

    def exact(row: Labels) -> float | None:
        here = found.rows
        for name in POPULATION:
            here = here[here[name] == row[name]]
        return exact_seconds(here) if len(here) else None

    return Cost(
        name="error-vs-seconds",
        axis="seconds",
        of=of,
        exact=exact,
        exact_name="exact attention",
        what=f"seconds of {measured_on}: {found.on()}, median of {found.repeats} runs taken in turns ({bars})",
        unknown="they were not timed",
    )
