"""favorbench plot."""

from pathlib import Path
from typing import Annotated

import typer

from favorbench.cli import complete
from favorbench.cli.app import LOOK, Json, Metric, Quiet, app, check, echo, print_json, say
from favorbench.errors import FavorbenchError, ScenarioError


@app.command(panel=LOOK)
def plot(
    path: Annotated[
        Path, typer.Argument(help="A run directory, or one above several.", autocompletion=complete.runs)
    ] = Path("results"),
    metric: Metric = "mse",
    heads: Annotated[str | None, typer.Option(help="Single heads, e.g. L0H1,L5H0.", show_default=False)] = None,
    estimators: Annotated[
        str | None,
        typer.Option(
            help="Estimators of the map of layers and heads, e.g. clusters,multipole; default: the best.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to, instead of RUN/figures (one run only).", show_default=False),
    ] = None,
    format: Annotated[str, typer.Option(help="png, svg or pdf, with commas.")] = "png,svg",
    size: Annotated[
        str | None,
        typer.Option(help="Size of each figure in inches, e.g. 3.3x2.5 for one column.", show_default=False),
    ] = None,
    figure_title: Annotated[
        str, typer.Option("--title", help="Title of each figure.", show_default=False)
    ] = "",  # not `title`, which is a key of scenarios
    dark: Annotated[bool, typer.Option("--dark", help="For a dark ground: NAME-dark.png and so on.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw every figure that the axes of each run allow, with a CSV of its numbers.

    Runs of more than six heads get figures over all heads; --heads draws single ones, in a folder of their own.
    Error against seconds needs `favorbench time RUN`. With --size a figure has exactly that size and as many panels as
    fit; its caption is in NAME.txt.
    """
    from favorbench import style
    from favorbench.engine.store import find_runs
    from favorbench.metrics import METRICS
    from favorbench.results.figures import draw_all
    from favorbench.results.results import load
    from favorbench.results.seconds import timed

    check("--metric", metric, METRICS)
    options = style.FigureOptions(
        style.parse_formats(format), style.parse_size(size) if size else None, figure_title, dark
    )
    runs = find_runs(path)
    if out is not None and len(runs) > 1:
        raise ScenarioError(
            f"--out {str(out)!r}: there are {len(runs)} runs below {path}; plot one of them, or leave --out out"
        )
    written: list[Path] = []
    for number, run in enumerate(runs, start=1):
        if len(runs) > 1 and not quiet:
            say(f"{run} ({number} of {len(runs)})")
        try:
            with style.figure_options(options):
                files = draw_all(load(run), metric, out, heads=heads, estimators=estimators)
        except FavorbenchError as error:
            if len(runs) == 1:
                raise
            say(f"skipped: {error}")
            continue
        if not files and not quiet:
            say(f"{run}: nothing to draw: a figure needs two values of R, L, d or scale")
        drawn = {file.stem.removesuffix("-dark") for file in files}
        if "error-vs-cost" in drawn and not timed(run) and not quiet:
            say(f"{run}: for error against seconds, time the run: favorbench time {run}")
        written += files
    if as_json:
        print_json({"figures": written})
        return
    for file in written:
        echo(str(file))
