"""favorbench table."""

from typing import Annotated, Literal

import typer

from favorbench.cli import complete
from favorbench.cli.app import (
    LOOK,
    Json,
    Metric,
    RunPath,
    app,
    check,
    say,
    show,
    warn_partial,
)


@app.command(panel=LOOK)
def table(
    run: RunPath,
    by: Annotated[
        str | None, typer.Option(help="Axes, the last as columns, e.g. map,sampler,R.", show_default=False)
    ] = None,
    over: Annotated[
        Literal["heads"] | None,
        typer.Option(help="One table for all heads of an input: errors over those of uniform attention."),
    ] = None,
    heads: Annotated[str | None, typer.Option(help="These heads only, e.g. L0H1,L5H0.", show_default=False)] = None,
    metric: Metric = "mse",
    stat: Annotated[
        str,
        typer.Option(
            help="median, mean, std, q10, q90, min, max or n.",
            autocompletion=complete.words("median", "mean", "std", "q10", "q90", "min", "max", "n"),
        ),
    ] = "median",
    format: Annotated[Literal["rich", "md", "csv", "latex", "json"], typer.Option(help="How to print it.")] = "rich",
    as_json: Json = False,
) -> None:
    """Print a table: any metric, any statistic, by any axes.

    With two heads or more, one table over all of them; each by itself with --heads or --by head.
    """
    from favorbench.metrics import METRICS
    from favorbench.results.heads import first_head, populations
    from favorbench.results.results import load
    from favorbench.results.summary import STATS
    from favorbench.results.tables import every_axis

    check("--metric", metric, METRICS)
    check("--stat", stat, STATS)
    results = load(run)
    warn_partial(results)
    form = "json" if as_json else format
    axes = by or (every_axis(results) if form in ("csv", "json") and not over else None)
    sections = results.table(axes, metric, stat, over, heads)
    show(sections if isinstance(sections, tuple) else [sections], form)
    if axes is None and heads is None and not over and populations(results):
        say(f"single heads: favorbench table {run} --heads {first_head(results)}; all: --by head,map,R")
