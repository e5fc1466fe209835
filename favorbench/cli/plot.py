"""favorbench plot."""

from pathlib import Path
from typing import Annotated

import typer

from favorbench.cli import complete
from favorbench.cli.app import Json, Metric, Quiet, app, check, echo, print_json, say
from favorbench.errors import FavorbenchError, ScenarioError


@app.command()
def plot(
    path: Annotated[
        Path, typer.Argument(help="A run directory, or one above several.", autocompletion=complete.runs)
    ] = Path("results"),
    metric: Metric = "mse",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to, instead of RUN/figures (one run only).", show_default=False),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw every figure that the axes of each run allow.

    PNG, SVG, and a CSV of the plotted numbers. Error against seconds where `favorbench time RUN` has timed a run.
    """
    from favorbench.engine.store import find_runs
    from favorbench.metrics import METRICS
    from favorbench.results.figures import draw_all
    from favorbench.results.results import load
    from favorbench.results.seconds import timed

    check("--metric", metric, METRICS)
    runs = find_runs(path)
    if out is not None and len(runs) > 1:
        raise ScenarioError(
            f"--out {str(out)!r}: there are {len(runs)} runs below {path}; plot one of them, or leave --out out"
        )
    written: list[Path] = []
    for run in runs:
        try:
            files = draw_all(load(run), metric, out)
        except FavorbenchError as error:
            if len(runs) == 1:
                raise
            say(f"skipped: {error}")
            continue
        if not files and not quiet:
            say(f"{run}: nothing to draw: a figure needs two values of R, L, d or scale")
        if any(file.name == "error-vs-cost.png" for file in files) and not timed(run) and not quiet:
            say(f"{run}: error against seconds is drawn where the run was timed: favorbench time {run}")
        written += files
    if as_json:
        print_json({"figures": written})
        return
    for file in written:
        echo(str(file))
