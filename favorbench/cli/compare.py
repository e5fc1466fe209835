"""favorbench compare."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli import complete
from favorbench.cli.app import LOOK, Json, Metric, RunPath, app, echo, echo_data, print_json, warn_partial


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
    from favorbench import console
    from favorbench.results import comparison_text
    from favorbench.results.compare import comparison, counted
    from favorbench.results.tables import records

    found = comparison(old, new, estimators, metric, factor, alpha)
    warn_partial(found.old)
    if found.new is not found.old:
        warn_partial(found.new)
    kind = "json" if as_json else format
    frame = found.frame()
    frame = frame[frame["mark"].isin(["+", "-", "x"])] if only_changed else frame
    if kind == "json":
        summary = {
            name: getattr(found, name) for name in ("metric", "factor", "alpha", "paired", "only_old", "only_new")
        }
        counts = {"verdicts": counted(found), "geometric_mean": found.mean}
        print_json({"old": found.old.path, "new": found.new.path, **summary, **counts, "rows": records(frame)})
    elif kind == "csv":
        echo_data(frame.to_csv(index=False))
    elif kind == "md":
        echo(comparison_text.markdown(found, only_changed))
    elif kind == "junit":
        echo(comparison_text.junit(found).rstrip("\n"))
    else:
        console.show_comparison(console.stdout(), found, only_changed)
    if fail_on and found.count("+"):
        sys.stdout.flush()
        raise typer.Exit(1)
