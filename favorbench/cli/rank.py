"""favorbench rank."""

from typing import Annotated, Literal

import typer

from favorbench.cli.app import Json, Metric, RunPath, app, check, echo, echo_data, print_json, warn_partial
from favorbench.cli.flags import with_flags


@app.command()
def rank(
    run: RunPath,
    metric: Metric = "mse",
    format: Annotated[Literal["rich", "md", "csv"], typer.Option(help="How to print it.")] = "rich",
    as_json: Json = False,
) -> None:
    """Rank estimators, in groups that do not differ.

    A ranking for each cell, each estimator at its largest R; most is learnt from a run with --budget features.
    """
    from favorbench import console
    from favorbench.metrics import METRICS
    from favorbench.results import ranking, tables
    from favorbench.results.results import load

    check("--metric", metric, METRICS)
    results = load(run)
    warn_partial(results)
    found = ranking.rankings(results, metric)
    if as_json:
        print_json(tables.records(ranking.combined(found)))
        return
    if format == "csv":
        echo_data(ranking.combined(found).to_csv(index=False))
        return
    for one in found:
        rows, note = ranking.shown(one, metric), with_flags(ranking.legend(one))
        if format == "md":
            echo(f"**{one.title}**\n\n{tables.rows_as_markdown(rows)}\n{note}\n")
        else:
            console.show_records(console.stdout(), rows, one.title, note)
