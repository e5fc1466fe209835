"""favorbench sweep."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import Cluster, Json, Quiet, Workers, app, echo, interrupted, print_json, say, workers_of
from favorbench.cli.flags import number, with_flags
from favorbench.cli.options import and_also
from favorbench.formats import format_bytes, format_seconds

if TYPE_CHECKING:
    from favorbench.engine.study import Study
    from favorbench.results.results import Results

MAX_TABLES = 12  # cells printed at the end of a sweep; of two heads or more none
A_WHILE = 60.0  # seconds after which a user wants to know how many more


@app.command()
def sweep(
    context: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="A scenario file or the name of a shipped one.  [default: quick]",
            show_default=False,
            autocompletion=complete.scenarios,
        ),
    ] = None,
    maps: Annotated[str | None, and_also(options.MAPS, "Or none: methods alone.")] = None,
    methods: Annotated[str | None, options.METHODS] = None,
    samplers: Annotated[str | None, options.SAMPLERS] = None,
    num_projections: Annotated[str | None, and_also(options.SIZES, "dlogd is int(d ln d).")] = None,
    seq_len: Annotated[str | None, options.LENGTHS] = None,
    head_dim: Annotated[str | None, options.HEAD_DIMS] = None,
    scale: Annotated[str | None, typer.Option(help="Factors on q and k, e.g. 0.5,1.0.")] = None,
    value_scale: Annotated[str | None, typer.Option(help="Factor on v.", metavar="<float>")] = None,
    inputs: Annotated[str | None, options.INPUTS] = None,
    layout: Annotated[
        str | None,
        typer.Option(metavar="<axes>", help="Axes of q, k, v in a file: heads,L,d or L,heads,d; a batch comes first."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Another text, as --inputs: what maps written calibrated:MAP are fitted to, head by head.",
            autocompletion=complete.inputs,
        ),
    ] = None,
    heads: Annotated[str | None, options.HEADS] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Precision of the estimator: float64, float32; torch: tf32, bfloat16, float16.",
            autocompletion=complete.words("float64", "float32", "tf32", "bfloat16", "float16"),
        ),
    ] = None,
    query_rows: Annotated[
        str | None,
        typer.Option(
            metavar="<int>", help="Measure the error on so many random query rows.  [default: all to 4096, then 1024]"
        ),
    ] = None,
    causal: Annotated[bool | None, options.CAUSAL] = None,
    backend: Annotated[str | None, options.BACKEND] = None,
    device: Annotated[str | None, options.DEVICE] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="uniform (always), taylor-1, taylor-2, sampled-keys, best-rank, top-keys.",
            autocompletion=complete.baselines,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="What -R counts: projections, features, or cost: all may multiply as often as R features.",
            autocompletion=complete.words("projections", "features", "cost"),
        ),
    ] = None,
    redraw: Annotated[
        str | None,
        typer.Option(help="New inputs for each trial, or for each R.", autocompletion=complete.words("trial", "R")),
    ] = None,
    trials: Annotated[str | None, typer.Option(help="Draws of every cell.", metavar="<int>")] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of all random streams.", metavar="<int>")] = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    batch: Annotated[
        str,
        typer.Option(
            metavar="<int>", help="Draws computed together by torch (NumPy: one); auto: as many as fill a GPU."
        ),
    ] = "auto",
    out: Annotated[Path | None, and_also(options.RUN_OUT, "[default: results/NAME]")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute the draws again in which an estimator failed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it will cost; compute nothing.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure maps and methods against exact attention.

    Maps x samplers x R x L x d, and methods, on the same draws. Prints the MSE table; of several heads, a table over
    heads. What is computed is saved at once: the same command again resumes. Lists with commas multiply. Flags win
    over the scenario file.
    """
    from favorbench.engine.scenario import Scenario, load_scenario
    from favorbench.engine.study import Study, default_directory

    together = None if batch == "auto" else number("--batch", batch, int, low=1)
    # The keys of a scenario go on as they were typed: options are named after them.
    study = Study.of(load_scenario(scenario, {key: context.params.get(key) for key in Scenario.model_fields}))
    where = workers_of(context, workers, study.scenario.cluster)
    path = out or default_directory(study)
    if not quiet:
        _say_of_inputs(study)
    if dry_run:
        _print_plan(study, path, as_json)
        return
    from favorbench import console
    from favorbench.run import sweep as run_sweep

    if not quiet:
        _say_if_long(study, workers if where == workers else 1)
    try:
        with console.progress(f"sweep {study.scenario.name}", quiet, "draws") as report:
            results = run_sweep(study, path, where, report, together, retry_failed, cluster="none")
    except KeyboardInterrupt as error:
        interrupted(path, error)
    if not quiet:
        _say_what_happened(results)
        _say_what_failed(results)
    if as_json:
        print_json({"run": str(path), **_as_json(results)})
    else:
        _print_tables(results)


def _say_if_long(study: "Study", workers: int) -> None:
    from favorbench.engine.cost import cost
    from favorbench.engine.plan import plan

    expected = cost(plan(study))
    if expected.seconds / workers > A_WHILE:
        say(f"{expected.draws} draws, about {format_seconds(expected.seconds / workers)} if none of them is saved")


def _say_what_happened(results: "Results") -> None:
    for name in results.set_aside:
        say(f"{results.path}/trials/{name} was damaged: set aside, and its draws computed again")


def _say_of_inputs(study: "Study") -> None:
    """What is to be known of files of heads, before anything is computed with them."""
    from favorbench.engine.plan import plan
    from favorbench.engine.provenance import input_notes

    planned, scenario = plan(study), study.scenario
    for name, (_, law) in study.inputs.items():
        if law.fixed and (notes := input_notes(planned, name, law)):
            say(f"{name}: {'; '.join(notes)}")
    if scenario.left_out:
        say(f"left out, as they cannot be causal: {', '.join(scenario.left_out)}")
    if scenario.calibrate is not None:
        say(f"calibrated maps have the parameters of another text, frozen: {scenario.calibrate}")


def _say_what_failed(results: "Results") -> None:
    """The estimators that failed on a draw, and those of which an answer was no number."""
    import numpy as np

    from favorbench.results.report import failure_sentences

    for sentence in failure_sentences(results):
        say(sentence)
    failed = results.trials[~np.isfinite(results.trials["mse"])]
    for name, rows in failed.groupby("map", sort=False):
        of = (results.trials["map"] == name).sum()
        say(f"{name}: the answer is not a number in {len(rows)} of {of} measurements; the error counts as infinite")


def _print_tables(results: "Results") -> None:
    from favorbench import console
    from favorbench.results import heads, report, tables

    to = console.stdout()
    few = heads.without_many(results)
    shown = tables.cell_tables(few)
    notes = tables.said_once([f"{one.caption}. {tables.legend(results)}" for one in shown[:MAX_TABLES]])
    for one, note in zip(shown, notes, strict=False):
        console.show_table(to, one, "mse", note)
    if len(shown) > MAX_TABLES:
        to.print(f"{len(shown) - MAX_TABLES} more tables in {results.path}/summary.md\n", soft_wrap=not to.is_terminal)
    populations = heads.populations(results)
    for population, note in zip(populations, tables.said_once([heads.legend(results)] * len(populations)), strict=True):
        rows = heads.shown(population, tables.size_axis(results))
        console.show_records(to, rows, heads.title(population), note)
    for sentence in [*report.run_sentences(results), *report.cell_sentences(few)]:
        to.print(with_flags(sentence), soft_wrap=not to.is_terminal)
    if len(few.summary) < len(results.summary):
        to.print(heads.each_by_itself(results), soft_wrap=not to.is_terminal)
    to.print(f"Saved in {results.path}. Figures: favorbench plot {results.path}", soft_wrap=not to.is_terminal)


def _print_plan(study: "Study", path: Path, as_json: bool) -> None:
    from favorbench.engine.cost import cost as planned_cost
    from favorbench.engine.cost import workers_that_fit
    from favorbench.engine.plan import plan
    from favorbench.numerics.machine import available_memory

    cost = planned_cost(plan(study))
    scenario, fit, available = study.scenario, workers_that_fit(cost.memory_bytes), available_memory()
    if as_json:
        known = {"workers_that_fit": fit, "available_bytes": available}
        print_json(cost._asdict() | known | {"scenario": scenario.model_dump(mode="json"), "out": str(path)})
        return
    for key, value in scenario.model_dump(mode="json", exclude_none=True).items():
        echo(f"{key:16} {', '.join(map(str, value)) or 'none' if isinstance(value, list) else value}")
    echo(f"{'out':16} {path}")
    echo(f"{'plan':16} {cost.cells} cells, {cost.draws} draws, {cost.rows} rows")
    echo(
        f"{'cost':16} about {format_seconds(cost.seconds)} on one worker, "
        f"{format_bytes(cost.memory_bytes)} for each worker beside the libraries"
    )
    if available is not None:
        fits = f"{'none' if not fit else fit if fit > 1 else 'one'} of these at once, with their libraries"
        echo(f"{'memory':16} {format_bytes(available)} available here: {fits}; {os.cpu_count()} cores")


def _as_json(results: "Results") -> dict[str, Any]:
    from favorbench.results.heads import over_heads
    from favorbench.results.report import sentences
    from favorbench.results.tables import records

    return {
        "complete": results.manifest["complete"],
        "sentences": sentences(results),
        "heads": records(over_heads(results)),
        "summary": records(results.summary),
    }
