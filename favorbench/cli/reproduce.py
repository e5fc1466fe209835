"""favorbench reproduce."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli.app import REFERENCE, Cluster, Json, Quiet, Workers, app, interrupted, print_json, show, workers_of


@app.command(panel=REFERENCE)
def reproduce(
    context: typer.Context,
    figure: Annotated[
        Literal["iid-vs-ortho", "trig-vs-positive", "kernel-trick", "all"], typer.Argument(help="Which figure.")
    ] = "all",
    version: Annotated[
        Literal["published", "corrected", "both"], typer.Option("--as", help="Which protocol.")
    ] = "both",
    workers: Workers = 2,
    cluster: Cluster = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to.")] = Path("results/blog"),
    seed: Annotated[int | None, typer.Option(help="Another seed than the scenario's.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the figures of the blog post of 2020, as published and corrected.

    Checks what they claim; exit 1 if a claim fails.
    """
    from favorbench import console
    from favorbench.console.studies import report_section
    from favorbench.studies.blog.reproduce import reproduce as run_reproduce

    where = workers_of(context, workers, cluster)
    try:
        with console.progress("reproduce", quiet, "draws") as report:
            reports = run_reproduce(figure, version, out, where, report, seed)
    except KeyboardInterrupt:
        interrupted(out / "runs")
    if as_json:
        print_json({"reports": reports})
    else:
        show(report_section(one) for one in reports)
    if not all(claim.holds for one in reports for claim in one.claims):
        raise typer.Exit(1)
