"""favorbench table."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli import complete
from favorbench.cli.app import LOOK, Json, Metric, RunPath, app, check, echo, echo_data, print_json, say, warn_partial
from favorbench.errors import ScenarioError

if TYPE_CHECKING:
    from favorbench.results.results import Results


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

    Of two heads or more one table over all of them, and each by itself with --heads or --by head.
    """
    from favorbench import console
    from favorbench.metrics import METRICS
    from favorbench.registry import split_list
    from favorbench.results import tables
    from favorbench.results.head_ranking import of_heads
    from favorbench.results.heads import FEW, can_be_compared, first_head, populations, without_many
    from favorbench.results.results import load
    from favorbench.results.summary import STATS

    check("--metric", metric, METRICS)
    check("--stat", stat, STATS)
    results = load(run)
    warn_partial(results)
    if heads is not None:
        results = of_heads(results, split_list(heads))
    if over:
        if by or stat != "median":
            raise ScenarioError("--over heads shows medians and quartiles of its own: leave --by and --stat out")
        _over_heads(results, metric, "json" if as_json else format)
        return
    if as_json or format in ("csv", "json"):
        axes = tables.parse_by(by) if by else [*tables.varying(results.trials), "map", "sampler", "num_projections"]
        long = tables.long_table(results, axes, metric, stat)
        if pooled := tables.pooled_over(results, axes):
            say(f"pooled over: {', '.join(pooled)}")
        if format == "csv" and not as_json:
            echo_data(long.to_csv(index=False))
        else:
            print_json(tables.records(long))
        return
    if heads is None and not by and populations(results):
        over_all = stat == "median" and can_be_compared(metric)
        if over_all:
            _over_heads(results, metric, format)
        say(f"single heads: favorbench table {run} --heads {first_head(results)}; all: --by head,map,R")
        results = without_many(results, 1 if over_all else FEW)
        if results.summary.empty:
            return
    wanted = (
        [tables.pivoted(results, tables.parse_by(by), metric, stat)]
        if by
        else tables.cell_tables(results, metric, stat)
    )
    notes = tables.said_once([f"{one.caption}. {tables.legend(results)}" for one in wanted])
    for one, note in zip(wanted, notes, strict=True):
        if format == "rich":
            console.show_table(console.stdout(), one, metric, note)
        elif format == "md":
            title = f"**{one.title}**\n\n" if one.title else ""
            echo("\n".join(filter(None, [f"{title}{tables.markdown(one, metric)}", f"{note}\n" if note else ""])))
        else:
            echo(tables.latex(one, metric))


def _over_heads(results: "Results", metric: str, format: str) -> None:
    """The tables over heads."""
    from favorbench import console
    from favorbench.results import heads, tables

    populations = heads.populations(results, metric)
    if not populations:
        raise ScenarioError(f"--over heads: {results.path} has no input with two heads or more")
    if format == "csv":
        echo_data(heads.over_heads(results, metric).to_csv(index=False))
        return
    if format == "json":
        print_json(tables.records(heads.over_heads(results, metric)))
        return
    notes = tables.said_once([heads.legend(results)] * len(populations))
    for one, note in zip(populations, notes, strict=True):
        title, rows = heads.title(one, metric), heads.shown(one, tables.size_axis(results))
        if format == "rich":
            console.show_records(console.stdout(), rows, title, note)
        elif format == "md":
            text = f"**{title}**\n\n{tables.rows_as_markdown(rows)}"
            echo("\n".join(filter(None, [text, f"{note}\n" if note else ""])))
        else:
            echo(tables.rows_as_latex(rows, title))
