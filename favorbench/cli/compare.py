"""favorbench compare."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli import complete
from favorbench.cli.app import LOOK, Json, Metric, RunPath, app, echo, echo_data, print_json, show, warn_partial


@app.command(panel=LOOK)
def compare(
    old: RunPath,
    new: Annotated[
        Path | None,
        typer.Argument(
            help="Another; may be left out with --estimators.", show_default=False, autocompletion=complete.runs
        ),
    ] = None,
    estimators: Annotated[
        str | None,
        typer.Option(help='Two estimators, one of OLD and one of NEW (or of OLD too): "positive orthogonal,clusters".'),
    ] = None,
    metric: Metric = "mse",
    factor: Annotated[float, typer.Option(help="A change of the median error below this factor is no change.")] = 1.05,
    alpha: Annotated[float, typer.Option(help="Probability of any false alarm, over all rows.")] = 0.05,
    only_changed: Annotated[
        bool, typer.Option("--only-changed", help="Leave out rows without a detectable difference.")
    ] = False,
    fail_on: Annotated[
        Literal["worse"] | None, typer.Option(help="Exit 1 where a row is worse.", show_default=False)
    ] = None,
    format: Annotated[Literal["text", "md", "csv", "json", "junit"], typer.Option(help="How to print it.")] = "text",
    as_json: Json = False,
) -> None:
    """Compare two runs, or two estimators of a run, draw by draw.

    + worse, - better, ~ no detectable difference, = the same, x not comparable. A row is worse where a sign test over
    the draws that both runs have says that the median of new / old is above --factor.

    favorbench compare results/main results/branch --fail-on worse

    favorbench compare results/quick --estimators "positive iid,positive orthogonal"
    """
    from favorbench.results.compare import comparison_sections, junit
    from favorbench.results.results import load

    found = load(old).compare(new, estimators, metric, factor, alpha)
    warn_partial(found.old)
    if new is not None:
        warn_partial(found.new)
    frame = found.frame(only_changed)
    form = "json" if as_json else format
    if form == "json":
        names = ("metric", "factor", "alpha", "paired", "only_old", "only_new", "verdicts")
        summary = {name: getattr(found, name) for name in names} | {"geometric_mean": found.mean}
        rows = frame.to_dict(orient="records")
        print_json({"old": found.old.path, "new": found.new.path, **summary, "rows": rows})
    elif form == "csv":
        echo_data(frame.to_csv(index=False))
    elif form == "junit":
        echo(junit(found).rstrip("\n"))
    else:
        show(comparison_sections(found, only_changed), "rich" if form == "text" else form)
    if fail_on and found.count("+"):
        sys.stdout.flush()
        raise typer.Exit(1)
