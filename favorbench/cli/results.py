"""Commands that show what a run found: table, rank, plot, export."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli.app import Json, Metric, Quiet, RunPath, app, check, print_json
from favorbench.errors import FavorbenchError, ScenarioError

if TYPE_CHECKING:
    from favorbench.results.results import Results


@app.command()
def table(
    run: RunPath,
    by: Annotated[
        str | None, typer.Option(help="Axes, the last as columns, e.g. map,sampler,R.", show_default=False)
    ] = None,
    metric: Metric = "mse",
    stat: Annotated[str, typer.Option(help="median, mean, std, q10, q90, min, max or n.")] = "median",
    format: Annotated[Literal["rich", "md", "csv", "latex", "json"], typer.Option(help="How to print it.")] = "rich",
    as_json: Json = False,
) -> None:
    """Print a table: any metric, any statistic, by any axes."""
    from favorbench import console
    from favorbench.metrics import METRICS
    from favorbench.results import tables
    from favorbench.results.results import load
    from favorbench.results.summary import STATS

    check("--metric", metric, METRICS)
    check("--stat", stat, STATS)
    results = load(run)
    _warn_partial(results)
    if as_json or format in ("csv", "json"):
        axes = tables.parse_by(by) if by else [*tables.varying(results.trials), "map", "sampler", "num_projections"]
        long = tables.long_table(results, axes, metric, stat)
        if pooled := tables.pooled_over(results, axes):
            console.message(f"pooled over: {', '.join(pooled)}")
        if format == "csv" and not as_json:
            typer.echo(long.to_csv(index=False), nl=False)
        else:
            print_json(tables.records(long))
        return
    wanted = (
        [tables.pivoted(results, tables.parse_by(by), metric, stat)]
        if by
        else tables.cell_tables(results, metric, stat)
    )
    for one in wanted:
        if format == "rich":
            console.show_table(console.stdout(), one, metric, tables.legend(results))
        elif format == "md":
            title = f"**{one.title}**\n\n" if one.title else ""
            typer.echo(f"{title}{tables.markdown(one, metric)}\n{one.caption}. {tables.legend(results)}\n")
        else:
            typer.echo(tables.latex(one, metric))


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
    _warn_partial(results)
    found = ranking.rankings(results, metric)
    if as_json or format == "csv":
        frame = ranking.combined(found)
        print_json(tables.records(frame)) if as_json else typer.echo(frame.to_csv(index=False), nl=False)
        return
    for one in found:
        rows, note = ranking.shown(one, metric), ranking.legend(one)
        if format == "md":
            typer.echo(f"**{one.title}**\n\n{tables.rows_as_markdown(rows)}\n{note}\n")
        else:
            console.show_records(console.stdout(), rows, one.title, note)


@app.command()
def plot(
    path: Annotated[Path, typer.Argument(help="A run directory, or one above several.")] = Path("results"),
    metric: Metric = "mse",
    out: Annotated[
        Path | None, typer.Option(help="Where to, instead of RUN/figures (one run only).", show_default=False)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw every figure that the axes of each run allow.

    PNG, SVG, and a CSV of the plotted numbers.
    """
    from favorbench import console
    from favorbench.engine.store import find_runs
    from favorbench.metrics import METRICS
    from favorbench.results.figures import draw_all
    from favorbench.results.results import load

    check("--metric", metric, METRICS)
    runs = find_runs(path)
    if out is not None and len(runs) > 1:
        raise ScenarioError(
            f"--out {str(out)!r}: there are {len(runs)} runs below {path}; plot one of them, or leave --out out"
        )
    written: list[str] = []
    for run in runs:
        try:
            results = load(run)
        except FavorbenchError as error:
            if len(runs) == 1:
                raise
            console.message(f"skipped: {error}")
            continue
        files = [str(file) for file in draw_all(results, metric, out)]
        if not files and not quiet:
            console.message(f"{run}: nothing to draw: a figure needs two values of R, L, d or scale")
        written += files
    if as_json:
        print_json({"figures": written})
    else:
        typer.echo("".join(f"{file}\n" for file in written), nl=False)


@app.command()
def export(
    run: RunPath,
    csv: Annotated[bool, typer.Option("--csv", help="All rows as CSV.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="All rows as one Parquet file.")] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", help="File; - is stdout (CSV only).  [default: NAME.csv, NAME.parquet]", show_default=False
        ),
    ] = None,
) -> None:
    """Write all rows of a run to a single file."""
    from favorbench.files import write_whole
    from favorbench.results.results import load

    if csv == parquet:
        raise ScenarioError("export: give one of --csv and --parquet")
    results = load(run)
    _warn_partial(results)
    if out == "-":
        if parquet:
            raise ScenarioError("export: --parquet cannot go to stdout; give --out FILE")
        typer.echo(results.trials.to_csv(index=False), nl=False)
        return
    file = Path(out or f"{run.resolve().name}.{'csv' if csv else 'parquet'}")
    text = results.trials.to_csv(index=False).encode() if csv else results.trials.to_parquet(index=False)
    write_whole(file, text)
    typer.echo(f"{file}: {len(results.trials)} rows")


def _warn_partial(results: "Results") -> None:
    from favorbench.console import message

    if not results.manifest["complete"]:
        message(f"{results.path} is PARTIAL: {results.manifest['draws_done']} of {results.manifest['draws']} draws")
