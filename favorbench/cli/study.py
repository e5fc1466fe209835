"""Commands that measure and show: sweep, table, plot, export, list."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from favorbench.cli.app import Json, Metric, Quiet, RunPath, Workers, app, check, interrupted, print_json
from favorbench.errors import FavorbenchError, ScenarioError

if TYPE_CHECKING:
    from favorbench.summary import Results

MAX_TABLES = 12  # cells printed at the end of a sweep


@app.command()
def sweep(
    scenario: Annotated[
        str | None,
        typer.Argument(help="A scenario file or the name of a shipped one.  [default: quick]", show_default=False),
    ] = None,
    maps: Annotated[str | None, typer.Option(help="Feature maps, e.g. positive,trig or my_module:MyMap.")] = None,
    samplers: Annotated[str | None, typer.Option(help="Samplers, e.g. iid,orthogonal.")] = None,
    num_projections: Annotated[
        str | None, typer.Option("-R", "--num-projections", help="R, e.g. 16,64,256; dlogd is int(d ln d).")
    ] = None,
    seq_len: Annotated[str | None, typer.Option("-L", "--seq-len", help="Lengths, e.g. 1024,4096.")] = None,
    head_dim: Annotated[str | None, typer.Option("-d", "--head-dim", help="Head dimensions, e.g. 16,64.")] = None,
    scale: Annotated[str | None, typer.Option(help="Factors on q and k, e.g. 0.5,1.0.")] = None,
    value_scale: Annotated[str | None, typer.Option(help="Factor on v.", metavar="<float>")] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="gaussian, gaussian(std=0.5), sphere, minilm, or PATH.npz / PATH.safetensors with q, k, v."),
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Only these heads of a file, e.g. L0H1,L5H0.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Precision of the estimator: float64, float32; torch: tf32, bfloat16, float16.")
    ] = None,
    query_rows: Annotated[
        str | None,
        typer.Option(
            metavar="<int>", help="Measure the error on so many random query rows.  [default: all to 4096, then 1024]"
        ),
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal", help="A query sees the keys up to its own position only.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Array library: numpy or torch.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of torch: cpu, cuda or cuda:N.")] = None,
    baselines: Annotated[
        str | None, typer.Option(help="uniform (always), taylor-1, taylor-2, best-rank, nystrom, wildcat.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="What -R counts: projections or features.")] = None,
    redraw: Annotated[str | None, typer.Option(help="New inputs for each trial, or for each R.")] = None,
    trials: Annotated[str | None, typer.Option(help="Draws of every cell.", metavar="<int>")] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of all random streams.", metavar="<int>")] = None,
    workers: Workers = 1,
    batch: Annotated[
        str, typer.Option(metavar="<int>", help="Draws computed together by torch; auto: as many as fill a GPU.")
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Run directory.  [default: results/NAME]", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it will cost; compute nothing.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure maps x samplers x R x L x d against exact attention.

    Prints the MSE table. What is computed is saved at once: the same command again resumes. Lists with commas
    multiply. Flags win over the scenario file.
    """
    given = locals()
    from favorbench.scenario import FLAGS, default_directory, load_scenario, numbers

    together = None if batch == "auto" else numbers("--batch", batch, int, low=1)[0]
    study = load_scenario(scenario, {key: given[key] for key in FLAGS})
    path = out or default_directory(study)
    if dry_run:
        _print_plan(study, path, as_json)
        return
    from favorbench import console
    from favorbench.run import sweep as run_sweep

    try:
        with console.progress(f"sweep {study.name}", quiet) as report:
            results = run_sweep(study, path, workers, report, together)
    except KeyboardInterrupt:
        interrupted(path)
    if not quiet:
        _say_what_happened(results)
    if as_json:
        print_json({"run": str(path), **_as_json(results)})
    else:
        _print_tables(results)


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
    from favorbench import console, tables
    from favorbench.metrics import METRICS
    from favorbench.summary import STATS, load

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
    from favorbench import console, ranking, tables
    from favorbench.metrics import METRICS
    from favorbench.summary import load

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
    from favorbench.figures import draw_all
    from favorbench.metrics import METRICS
    from favorbench.store import find_runs
    from favorbench.summary import load

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
    from favorbench.store import write_whole
    from favorbench.summary import load

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


@app.command("list")
def list_(
    what: Annotated[
        Literal["maps", "samplers", "inputs", "scenarios", "metrics", "baselines"],
        typer.Argument(help="What to list.", show_default=False),
    ],
    with_papers: Annotated[bool, typer.Option("--papers", help="The papers behind each.")] = False,
    form: Annotated[
        Literal["table", "bibtex"], typer.Option("--format", help="bibtex: an entry for every paper.")
    ] = "table",
    as_json: Json = False,
) -> None:
    """List what there is, with claims and references."""
    from favorbench import console
    from favorbench.catalogue import bibtex, papers, records

    if form == "bibtex":
        typer.echo(bibtex(what))
        return
    found = papers(what) if with_papers else records(what)
    if as_json:
        print_json({what: found})
    else:
        console.show_records(console.stdout(), found)


def _say_what_happened(results: "Results") -> None:
    from favorbench.console import message

    for name in results.set_aside:
        message(f"{results.path}/trials/{name} was damaged: set aside, and its draws computed again")
    for file in results.manifest.get("input_files", []):  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]
        if file["notes"]:
            message(f"{file['input']}: {'; '.join(file['notes'])}")


def _warn_partial(results: "Results") -> None:
    from favorbench.console import message

    if not results.manifest["complete"]:
        message(f"{results.path} is PARTIAL: {results.manifest['draws_done']} of {results.manifest['draws']} draws")


def _print_tables(results: "Results") -> None:
    from favorbench import console, report, tables

    to = console.stdout()
    shown = tables.cell_tables(results)
    for one in shown[:MAX_TABLES]:
        console.show_table(to, one, "mse", tables.legend(results))
    if len(shown) > MAX_TABLES:
        to.print(f"{len(shown) - MAX_TABLES} more tables in {results.path}/summary.md\n", soft_wrap=not to.is_terminal)
    for sentence in report.sentences(results):
        to.print(sentence, soft_wrap=not to.is_terminal)
    to.print(f"Saved in {results.path}. Figures: favorbench plot {results.path}", soft_wrap=not to.is_terminal)


def _print_plan(study: Any, path: Path, as_json: bool) -> None:
    from favorbench.plan import cost as planned_cost
    from favorbench.plan import plan

    cost = planned_cost(study, plan(study))
    facts = cost._asdict() | {"scenario": study.model_dump(mode="json"), "out": str(path)}
    if as_json:
        print_json(facts)
        return
    for key, value in study.model_dump(mode="json", exclude_none=True).items():
        typer.echo(f"{key:16} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    typer.echo(f"{'out':16} {path}")
    typer.echo(f"{'plan':16} {cost.cells} cells, {cost.draws} draws, {cost.rows} rows")
    typer.echo(
        f"{'cost':16} about {cost.seconds:.1f} s on one worker, "
        f"{cost.memory_bytes / 2**20:.0f} MiB for each worker beside the libraries"
    )


def _as_json(results: "Results") -> dict[str, Any]:
    from favorbench.report import sentences
    from favorbench.tables import records

    return {
        "complete": results.manifest["complete"],
        "sentences": sentences(results),
        "summary": records(results.summary),
    }
