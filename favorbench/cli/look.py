"""The commands that look at results: status, table, compare, plot, report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli import complete
from favorbench.cli.app import (
    LOOK,
    check,
    command,
    echo,
    echo_data,
    flags,
    print_json,
    print_result,
    say,
    show,
    typed_parameters,
    warn_partial,
)
from favorbench.cli.options import (
    OTHER_RUN,
    Json,
    Metric,
    Quiet,
    RunPath,
    SingleHeads,
    and_also,
    option,
)
from favorbench.errors import FavorbenchError, ScenarioError
from favorbench.formats import format_seconds, in_shell

if TYPE_CHECKING:
    from favorbench.results.results import Results
    from favorbench.results.status import Status
    from favorbench.studies.saved import SavedStudy

RUN_WIDTH = 28  # of the names of runs: the end of a long path, so that the table fits 80 columns


@command(LOOK)
def status(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories of several.")],
    as_json: Json = False,
) -> None:
    """Show the progress of runs: draws done and failed, speed, time left, and whether they are running.

    For sweeps, recommendations, audits and studies of models. Exit 0 if all are complete, 1 if something is missing or
    failed.

    until favorbench status results/long; do sleep 60; done
    """
    from favorbench.results.status import statuses
    from favorbench.sections import Section

    states = list({state.run: state for path in runs for state in statuses(path)}.values())
    if as_json:
        print_json([state._asdict() | {"whole": state.whole} for state in states])
    else:
        show([Section(rows=[_status_row(state) for state in states])])
        for state in states:
            _say_what_is_wrong(state)
    if not all(state.whole for state in states):
        raise typer.Exit(1)


def _status_row(state: "Status") -> dict[str, str]:
    return {
        "run": state.run if len(state.run) <= RUN_WIDTH else f"…{state.run[1 - RUN_WIDTH :]}", "state": state.state,
        "done": str(state.done) if state.kind == "recommend" else f"{state.done} of {state.planned}",
        "failed": str(state.failed),
        "per second": "-" if state.per_second is None else f"{state.per_second:.3g}",
        "left": "-" if state.left is None else format_seconds(state.left), "ends": state.ends or "-",
    }  # fmt: skip


def _say_what_is_wrong(state: "Status") -> None:
    for name, messages in state.failures.items():
        for message, draws in messages.items():
            say(f"{state.run}: {name} failed on {len(draws)} draws, the first is {min(draws)}: {message}")
    if state.damaged:
        say(f"{state.run}: {state.damaged} damaged parts; rerun the same command to compute them again")
    if state.state == "stopped":
        say(f"{state.run}: not running; rerun the same command to resume")


def _load(run: Path, metric: str = "mse") -> "Results":
    """The results of a run, after saying what is missing. Raises ScenarioError for an unknown metric."""
    from favorbench.metrics import METRICS
    from favorbench.results.results import load

    check("--metric", metric, METRICS)
    results = load(run)
    warn_partial(results)
    return results


def _study(context: typer.Context, run: Path) -> "SavedStudy | None":
    """The recommendation or study of a model in a directory, if it is one, for which options of sweeps are refused."""
    from favorbench.studies.saved import saved_study

    study, typed = saved_study(run), typed_parameters(context)
    if study and "rank" in typed:
        raise study.refuse("ranking")
    if study and (unfit := typed & {"by", "over", "heads", "metric", "stat", "estimators"}):
        raise study.refuse(_flags(unfit))
    return study


def _flags(parameters: set[str]) -> str:
    """The flags of parameters, in a message."""
    return ", ".join(sorted(flags()[name] for name in parameters))


@command(LOOK)
def table(
    context: typer.Context,
    run: RunPath,
    by: Annotated[str | None, option(None, "Axes, the last as columns, e.g. estimator,sampler,R.")] = None,
    over: Annotated[
        Literal["heads"] | None,
        option(None, "One table for all heads of an input: errors over those of uniform attention."),
    ] = None,
    rank: Annotated[
        bool, option(None, "Rank estimators at their largest size, in groups that do not differ.", "--rank")
    ] = False,
    rows: Annotated[bool, option(None, "All measurements as CSV, or in the file of --out.", "--rows")] = False,
    heads: SingleHeads = None,
    metric: Metric = "mse",
    stat: Annotated[
        str,
        option(
            None,
            "median, mean, std (divided by n, not n - 1), q10, q90, min, max or n.",
            autocompletion=complete.words("median", "mean", "std", "q10", "q90", "min", "max", "n"),
        ),
    ] = "median",
    out: Annotated[
        str | None, option(None, "File of --rows: Parquet if it ends in .parquet, else CSV.", "--out", "-o")
    ] = None,
    format: Annotated[Literal["rich", "md", "csv", "latex", "json"], option(None, "How to print it.")] = "rich",
    as_json: Json = False,
    csv: Annotated[bool, typer.Option(hidden=True)] = False,
    parquet: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Print results: a table by any axes, a ranking, or all measurements.

    With two heads or more, one table or ranking summarises all of them; --heads or --by head shows single ones. As
    CSV or JSON a table has every head, with --over heads all of them together.

    favorbench table results/quick --rank

    favorbench table results/quick --rows --out rows.parquet
    """
    from favorbench.results.heads import first_head, populations
    from favorbench.results.summary import STATS
    from favorbench.results.tables import every_axis

    mode = "rank" if rank else "rows" if rows else ""
    if unfit := typed_parameters(context) & _UNFIT[mode]:
        raise ScenarioError(
            f"{_flags(unfit)}: {f'leave it out with --{mode}' if mode else 'only --rows writes a file'}"
        )
    if rows:
        if csv or parquet:  # of `favorbench export`, until version 0.4
            out = out or f"{run.resolve().name}.{'csv' if csv else 'parquet'}"
        _write_rows(run, out, parquet or str(out).lower().endswith(".parquet"), heads)
        return
    check("--stat", stat, STATS)
    form = "json" if as_json else format
    if study := _study(context, run):
        if form == "json":
            print_json(study.record)
        elif form == "csv":
            echo_data(study.data)
        else:
            show(study.sections, form)
        return
    results = _load(run, metric)
    axes = by or (every_axis(results) if form in ("csv", "json") and not over else None)
    sections = results.ranking(metric, heads) if rank else results.table(axes, metric, stat, over, heads)
    show(sections if isinstance(sections, tuple) else [sections], form)
    if axes is None and heads is None and not over and populations(results):
        more = " --rank" if rank else "; all: --by head,estimator,R"
        say(f"single heads: favorbench table {in_shell(results.path)} --heads {in_shell(first_head(results))}{more}")


_UNFIT = {"": {"out", "csv", "parquet"}, "rank": {"by", "over", "stat", "out", "rows", "csv", "parquet"},
          "rows": {"by", "over", "stat", "metric", "format", "as_json"}}  # fmt: skip


def _write_rows(run: Path, out: str | None, parquet: bool, heads: str | None) -> None:
    """Write all rows to a file, or as CSV to stdout. Raises ScenarioError for an unknown head and a file of a run."""
    from favorbench.files import RUN_FOLDERS, write_whole
    from favorbench.results.heads import select_heads

    if parquet and out == "-":
        raise ScenarioError(
            "--out -: Parquet is not text; give a file, e.g. --out rows.parquet, or leave --parquet out"
        )
    if out and (out.endswith(".json") or Path(out).parent.name in RUN_FOLDERS):  # the manifest and the data of a run
        raise ScenarioError(f"--out {out}: a run has such files; give another name, e.g. --out rows.csv")
    trials = select_heads(_load(run), heads).trials
    if out in (None, "-"):
        echo_data(trials.to_csv(index=False))
        return
    write_whole(Path(out), trials.to_parquet(index=False) if parquet else trials.to_csv(index=False).encode())
    echo(f"{out}: {len(trials)} rows")


@command(LOOK)
def compare(
    old: RunPath,
    new: Annotated[Path | None, and_also(OTHER_RUN, "Not needed with --estimators.")] = None,
    estimators: Annotated[
        str | None, option(None, 'Two estimators, of OLD and of NEW (or OLD): "positive orthogonal,clusters".')
    ] = None,
    metric: Metric = "mse",
    factor: Annotated[float, option(None, "Ignore changes of the median error below this factor.")] = 1.05,
    alpha: Annotated[float, option(None, "Probability of any false alarm, over all rows.")] = 0.05,
    only_changed: Annotated[
        bool, option(None, "Leave out rows without a detectable difference.", "--only-changed")
    ] = False,
    fail_on: Annotated[
        Literal["worse"] | None, option(None, "Exit 1 if a row is worse, or an estimator fails that did not.")
    ] = None,
    format: Annotated[Literal["text", "md", "csv", "json", "junit"], option(None, "How to print it.")] = "text",
    as_json: Json = False,
) -> None:
    """Compare two runs, or two estimators of a run, draw by draw.

    + worse, - better, ~ no detectable difference, = the same, x not comparable. A row is worse if a sign test over the
    draws of both runs shows that the median of new / old is above --factor.

    favorbench compare results/main results/branch --fail-on worse

    favorbench compare results/quick --estimators "positive iid,positive orthogonal"
    """
    from favorbench.results.compare import comparison_sections, junit
    from favorbench.results.results import load

    if only_changed and format == "junit" and not as_json:
        raise ScenarioError("--only-changed: leave it out with --format junit, which has every row as a test")
    comparison = load(old).compare(new, estimators, metric, factor, alpha)
    for run in [comparison.old, comparison.new][: 1 if new is None else 2]:
        warn_partial(run)
    frame, form = comparison.frame(only_changed), "json" if as_json else format
    if form == "json":
        names = ("metric", "factor", "alpha", "paired", "only_old", "only_new", "verdicts", "newly_failed")
        summary = {name: getattr(comparison, name) for name in names} | {"geometric_mean": comparison.mean}
        print_json({"old": comparison.old.path, "new": comparison.new.path, **summary, "rows": frame})
    elif form == "csv":
        echo_data(frame.to_csv(index=False))
    elif form == "junit":
        echo(junit(comparison).rstrip("\n"))
    else:
        show(comparison_sections(comparison, only_changed), "rich" if form == "text" else form)
    if fail_on and (comparison.count("+") or comparison.newly_failed):
        raise typer.Exit(1)


@command(LOOK)
def plot(
    context: typer.Context,
    path: Annotated[
        Path, typer.Argument(help="A run directory, or one above several.", autocompletion=complete.runs)
    ] = Path("results"),
    metric: Metric = "mse",
    heads: SingleHeads = None,
    estimators: Annotated[
        str | None,
        option(None, "Estimators in the map of layers and heads, e.g. clusters,multipole; default: the best."),
    ] = None,
    out: Annotated[
        Path | None,
        option(None, "Folder, instead of RUN/figures (one run). Files of equal names are replaced.", "--out", "-o"),
    ] = None,
    format: Annotated[
        str, option(None, "png, svg or pdf, with commas.", autocompletion=complete.words("png", "svg", "pdf"))
    ] = "png,svg",
    size: Annotated[str | None, option(None, "Size of each figure in inches, e.g. 3.3x2.5 for one column.")] = None,
    figure_title: Annotated[str, option(None, "Title of each figure.", "--title")] = "",
    dark: Annotated[bool, option(None, "For a dark background: NAME-dark.png and so on.", "--dark")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw every figure that the axes of each run allow, with a CSV of its numbers.

    Runs of more than six heads get figures over all heads; --heads draws single ones, in a folder of their own.
    Error against seconds needs `favorbench speed RUN`. With --size a figure has exactly that size and as many panels as
    fit; its caption is in NAME.txt.
    """
    from favorbench import style
    from favorbench.engine.store import find_runs
    from favorbench.metrics import METRICS

    check("--metric", metric, METRICS)
    inches = style.parse_size(size) if size else None
    options = style.FigureOptions(style.parse_formats(format), inches, figure_title, dark)
    runs = find_runs(path)
    if out is not None and len(runs) > 1:
        raise ScenarioError(
            f"--out {str(out)!r}: there are {len(runs)} runs below {path}; plot one of them, or leave --out out"
        )
    files: list[Path] = []
    for number, run in enumerate(runs, start=1):
        if len(runs) > 1 and not quiet:
            say(f"{run} ({number} of {len(runs)})")
        try:
            with style.figure_options(options):
                files += _draw(context, run, metric, out, heads, estimators, quiet)
        except FavorbenchError as error:
            if len(runs) == 1:
                raise
            say(f"skipped: {error}")
    print_result(as_json, {"figures": files}, [], files)


def _draw(
    context: typer.Context, run: Path, metric: str, out: Path | None, heads: str | None, estimators: str | None,
    quiet: bool,
) -> list[Path]:  # fmt: skip
    """Draw the figures of a run, and say which are missing."""
    from favorbench import style
    from favorbench.results.figures import draw_all
    from favorbench.results.heads import FEW, first_head, without_many
    from favorbench.results.results import load
    from favorbench.results.seconds import timed

    if study := _study(context, run):
        return style.write(study.charts, out or run / "figures")
    results = load(run)
    files = draw_all(results, metric, out, heads=heads, estimators=estimators)
    names = {file.stem.removesuffix("-dark") for file in files}
    if not files and not quiet:
        many = len(without_many(results, FEW).summary) < len(results.summary) and heads is None
        more = f", and of more than {FEW} heads also --heads, e.g. {first_head(results)}" if many else ""
        say(f"{run}: nothing to draw: a figure needs two values of R, L, d or scale{more}")
    if "error-vs-cost" in names and not timed(run) and not quiet:
        say(f"{run}: for error against seconds, time the run: favorbench speed {in_shell(run)}")
    return files


@command(LOOK)
def report(
    run: RunPath,
    new: Annotated[Path | None, OTHER_RUN] = None,
    out: Annotated[
        Path | None,
        option(None, "The file.  [default: RUN/report.html; NEW/against-RUN.html]", "--out", "-o"),
    ] = None,
    heads: SingleHeads = None,
    quiet: Quiet = False,
) -> None:
    """Write a run, or two compared, as one page to send.

    The run may be a sweep, a recommendation or a study of a model. The page is HTML that needs no network: sentences,
    tables with rankings, curves, the data as CSV and the manifest, below 1 MB.
    Data that do not fit are written next to the page as CSV. An existing page is replaced; another file never is.
    """
    from favorbench.results.heads import select_heads
    from favorbench.results.page import write_comparison, write_page

    if new is not None:
        if heads is not None:
            raise ScenarioError("--heads: a page of two runs has all heads that both have; leave it out")
        comparison = _load(run).compare(new)
        warn_partial(comparison.new)
        files = write_comparison(comparison, out or new / f"against-{run.resolve().name}.html")
    else:
        from favorbench.studies.saved import saved_study

        if study := saved_study(run):
            if heads is not None:
                raise ScenarioError("--heads: the page of a recommendation or of a model has all heads; leave it out")
            files = study.write_page(out or run / "report.html")
        else:
            files = write_page(select_heads(_load(run), heads), out or run / "report.html")
    for file in files:
        echo(str(file))
    if len(files) > 1 and not quiet:
        say(f"{files[1]} has the data, which are too large to be in the page: send both")
