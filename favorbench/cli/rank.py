"""favorbench rank."""

from typing import Annotated, Literal

import typer

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
def rank(
    run: RunPath,
    metric: Metric = "mse",
    heads: Annotated[
        str | None, typer.Option(help="These heads, each by itself, e.g. L0H1,L5H0.", show_default=False)
    ] = None,
    format: Annotated[Literal["rich", "md", "csv"], typer.Option(help="How to print it.")] = "rich",
    as_json: Json = False,
) -> None:
    """Rank estimators, in groups that do not differ.

    With two heads or more, a ranking over all of them; each by itself with --heads. Without heads, one for each cell.
    Each estimator at its largest R; most is learnt from a run with --budget features or cost.
    """
    from favorbench.metrics import METRICS
    from favorbench.results.heads import first_head, populations
    from favorbench.results.results import load

    check("--metric", metric, METRICS)
    results = load(run)
    warn_partial(results)
    show(results.ranking(metric, heads), "json" if as_json else format)
    if heads is None and format == "rich" and not as_json and populations(results):
        say(f"single heads: favorbench rank {run} --heads {first_head(results)}")
