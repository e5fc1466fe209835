"""The command line: a printer over the library. Results go to stdout, messages and progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 usage or bad input, 130 interrupted. Heavy imports happen inside the commands.
"""

import contextlib
import itertools
import json
import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from favorbench.errors import FavorbenchError, ScenarioError

if TYPE_CHECKING:
    from favorbench.summary import Results

app = typer.Typer(
    name="favorbench",
    help="Measures how well a random-feature estimator replaces softmax attention, in numbers that can be trusted.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no messages; errors and results stay.")]
Metric = Annotated[str, typer.Option(help="A metric; see `favorbench list metrics`.")]
RunPath = Annotated[Path, typer.Argument(help="A run directory, e.g. results/quick.", show_default=False)]
Workers = Annotated[int, typer.Option(min=1, max=1024, help="Processes; the rows are the same for any number.")]

MAX_TABLES = 12  # cells printed at the end of a sweep


def _version(value: bool) -> None:
    if value:
        import importlib.metadata

        typer.echo(f"favorbench {importlib.metadata.version('favorbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    pass  # --debug is read in main(), which also takes it after the command


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
        str | None, typer.Option(help="gaussian, sphere, minilm, or PATH.npz / PATH.safetensors with q, k, v.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Only these heads of a file, e.g. L0H1,L5H0.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Precision of the estimator: float64, float32.")] = None,
    baselines: Annotated[str | None, typer.Option(help="uniform (always), taylor-1, taylor-2, best-rank.")] = None,
    budget: Annotated[str | None, typer.Option(help="What -R counts: projections or features.")] = None,
    redraw: Annotated[str | None, typer.Option(help="New inputs for each trial, or for each R.")] = None,
    trials: Annotated[str | None, typer.Option(help="Draws of every cell.", metavar="<int>")] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of all random streams.", metavar="<int>")] = None,
    workers: Workers = 1,
    out: Annotated[
        Path | None, typer.Option(help="Run directory.  [default: results/NAME]", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it will cost; compute nothing.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure maps x samplers x R x L x d against exact attention; print the MSE table.

    What is computed is saved at once: the same command again resumes. Lists with commas multiply. Flags win over the
    scenario file.
    """
    given = locals()
    from favorbench.scenario import FLAGS, default_directory, load_scenario

    study = load_scenario(scenario, {key: given[key] for key in FLAGS})
    path = out or default_directory(study)
    if dry_run:
        _print_plan(study, path, as_json)
        return
    from favorbench import console
    from favorbench.run import sweep as run_sweep

    try:
        with console.progress(f"sweep {study.name}", quiet) as report:
            results = run_sweep(study, path, workers, report)
    except KeyboardInterrupt:
        _interrupted(path)
    if not quiet:
        _say_what_happened(results)
    if as_json:
        _print_json({"run": str(path), **_as_json(results)})
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
    """Print a table of a run: any metric, any statistic, by any axes."""
    from favorbench import console, tables
    from favorbench.summary import STATS, load

    _check("--metric", metric, tables.METRICS)
    _check("--stat", stat, STATS)
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
            _print_json(tables.records(long))
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
            typer.echo(
                (f"**{one.title}**\n\n" if one.title else "") + tables.markdown(one, metric) + f"\n{one.caption}."
            )
        else:
            typer.echo(tables.latex(one, metric))


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
    """Draw every figure that the axes of each run allow: PNG, SVG, and CSV of the plotted numbers."""
    from favorbench import console
    from favorbench.figures import draw_all
    from favorbench.metrics import METRICS
    from favorbench.store import find_runs
    from favorbench.summary import load

    _check("--metric", metric, METRICS)
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
        _print_json({"figures": written})
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
    """Write all rows of a run, one measurement each, to a single file."""
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


@app.command()
def reproduce(
    figure: Annotated[
        Literal["iid-vs-ortho", "trig-vs-positive", "kernel-trick", "all"], typer.Argument(help="Which figure.")
    ] = "all",
    version: Annotated[
        Literal["published", "corrected", "both"], typer.Option("--as", help="Which protocol.")
    ] = "both",
    workers: Workers = 2,
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("results/blog"),
    seed: Annotated[int | None, typer.Option(help="Another seed than the scenario's.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the blog post's figures, as published and corrected, and check what they claim.

    Exit 1 if a claim fails.
    """
    from favorbench import console
    from favorbench.reproduce import reproduce as run_reproduce

    try:
        with console.progress("reproduce", quiet) as report:
            reports = run_reproduce(figure, version, out, workers, report, seed)
    except KeyboardInterrupt:
        _interrupted(out)
    if as_json:
        _print_json({"reports": [one.as_dict() for one in reports]})
    else:
        for one in reports:
            console.show_report(console.stdout(), one)
    if not all(claim.holds for one in reports for claim in one.claims):
        raise typer.Exit(1)


@app.command()
def verify(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(help="MAP, SAMPLER or MAP/SAMPLER, also module:object.  [default: all]", show_default=False),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also: known mistakes, claimed to be right, must all be caught.")
    ] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="More draws: a quarter of the detectable bias.")] = False,
    draws: Annotated[int | None, typer.Option(min=100, help="Draws of omega, instead of the default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random streams.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold maps and samplers to what they declare: target, bias, variance, law, theorems. Exit 1 if a claim fails."""
    import threadpoolctl

    from favorbench import console
    from favorbench.verify import DRAWS, THOROUGH_DRAWS
    from favorbench.verify import controls as known_mistakes
    from favorbench.verify import verify as run_verify

    with threadpoolctl.threadpool_limits(1), console.steps("verify", quiet) as report:
        result = run_verify(subjects or (), draws or (THOROUGH_DRAWS if thorough else DRAWS), seed, report)
        caught = list(known_mistakes.run(seed)) if controls else []
    if as_json:
        found = [
            {"control": c.control, "mistake": c.mistake, "caught_by": c.caught_by.as_dict() if c.caught_by else None}
            for c in caught
        ]
        _print_json(result.as_dict() | {"controls": found})
    else:
        console.show_verification(console.stdout(), result, caught)
    if result.refuted or any(c.caught_by is None for c in caught):
        raise typer.Exit(1)


@app.command()
def theory(
    map: Annotated[str, typer.Argument(help="A feature map, e.g. positive.", show_default=False)],
    sampler: Annotated[str, typer.Argument(help="A sampler.")] = "iid",
    head_dim: Annotated[int, typer.Option("-d", "--head-dim", min=2, max=4096, help="Head dimension.")] = 16,
    norm: Annotated[
        str, typer.Option(help="|x| = |y| of the scaled query and key; sqrt(d)^(1/2) for N(0, I) inputs.")
    ] = "0.5,1,1.5,2",
    num_projections: Annotated[str, typer.Option("-R", "--num-projections", help="R.")] = "16,64,256,1024",
    cosine: Annotated[float, typer.Option(min=-1, max=1, help="Cosine between query and key.")] = 0.0,
    target: Annotated[float, typer.Option(help="The relative error to reach.")] = 0.1,
    draws: Annotated[int, typer.Option(min=0, max=1_000_000, help="Draws measured beside it; 0: none.")] = 2000,
    out: Annotated[
        Path | None, typer.Option(help="Also draw the figure, into this directory.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """The closed-form error of a kernel estimate, the R it asks for, and what sampling can measure of it."""
    import threadpoolctl

    from favorbench import console
    from favorbench.figures import theory as theory_figure
    from favorbench.maps import get_map
    from favorbench.samplers import get_sampler
    from favorbench.scenario import numbers
    from favorbench.theory import study as theory_study

    norms = numbers("--norm", norm, float, low=0.0)
    sizes = numbers("-R", num_projections, int, low=1)
    if not 0 < target < float("inf"):
        raise ScenarioError(f"--target: {target!r} given, allowed: a positive number")
    with threadpoolctl.threadpool_limits(1):
        found = theory_study(get_map(map), get_sampler(sampler), head_dim, norms, sizes, cosine, target, draws)
    files = theory_figure.draw(found, f"theory-{map}-{sampler}".replace(":", "-"), out) if out else []
    if as_json:
        points = [{k: None if v != v else v for k, v in point._asdict().items()} for point in found.points]
        needed = {str(norm): size for norm, size in found.needed.items()}
        _print_json({"title": found.title, "target": target, "draws": draws, "needed": needed, "points": points})
        return
    console.show_theory(console.stdout(), found)
    typer.echo("".join(f"{file}\n" for file in files), nl=False)


@app.command()
def audit(
    implementations: Annotated[
        list[str],
        typer.Argument(
            help="performer-pytorch, or module:function of (q, k, v) or (q, k, v, omega).", show_default=False
        ),
    ],
    runs: Annotated[int, typer.Option(min=6, max=10_000, help="Runs on each input.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random streams.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure other people's implementations: distance to exact and to uniform attention, effect of eps, sampler."""
    from favorbench import console
    from favorbench.audit import audit as run_audit

    findings = run_audit(implementations, runs, seed)
    if as_json:
        rows = [{k: None if v != v else v for k, v in finding._asdict().items()} for finding in findings]
        _print_json({"runs": runs, "findings": rows})
    else:
        console.show_audit(console.stdout(), findings, runs)


@app.command("list")
def list_(
    what: Annotated[
        Literal["maps", "samplers", "inputs", "scenarios", "metrics", "baselines"],
        typer.Argument(help="What to list.", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """List what there is, with claims and references."""
    from favorbench import console
    from favorbench.catalogue import records

    found = records(what)
    if as_json:
        _print_json({what: found})
    else:
        console.show_records(console.stdout(), found, list(found[0]))


def main() -> NoReturn:
    """Run the command line: every error is one line on stderr, and an exit code that means something."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        sys.exit(2)
    try:
        code = app(arguments or ["--help"], prog_name="favorbench", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            raise
        _end(error, arguments)


def _end(error: BaseException, arguments: list[str]) -> NoReturn:
    """What an exception means to a user: one line, and an exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, BrokenPipeError) or (isinstance(error, SystemExit) and error.code == 1 and _pipe_is_closed()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader had enough: no error
        sys.exit(0)
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        _fail("interrupted", 130)
    if isinstance(error, FavorbenchError):
        _fail(text, 2)
    if isinstance(error, MemoryError):
        _fail(f"not enough memory: {text or 'allocation failed'}; use a smaller -L, -R or -d, or fewer --workers", 2)
    if isinstance(error, UnicodeError):
        _fail(f"a name is not valid UTF-8: {text}", 2)
    if isinstance(error, OSError):
        _fail(f"cannot write the output: {error.strerror or text}", 2)
    if format_message := getattr(error, "format_message", None):  # a usage error of click
        usage = " ".join(format_message().split()).replace("Value error, ", "")
        _fail(f"{usage}{_given(error, arguments)} (see favorbench {_command(arguments)}--help)", 2)
    _fail(f"unexpected {type(error).__name__}: {text} (a bug: --debug shows where)", 2)


def _fail(text: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # nobody is listening; the code still says it
        print(f"favorbench: {text}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)


def _pipe_is_closed() -> bool:
    """Whether the reader of stdout is gone: libraries turn that into exit code 1, which means a failed check here."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _given(error: BaseException, arguments: list[str]) -> str:
    """What stood after the option that an error is about."""
    options = getattr(getattr(error, "param", None), "opts", [])
    found = [value for option, value in itertools.pairwise(arguments) if option in options]
    return f"; {found[-1]!r} was given" if found else ""


def _command(arguments: list[str]) -> str:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    return f"{arguments[0]} " if arguments and arguments[0] in names else ""


def _check(flag: str, value: str, allowed: Any) -> None:
    from favorbench.registry import nearest

    if value not in allowed:
        raise ScenarioError(f"{flag}: unknown {value!r}{nearest(value, allowed)}; allowed: {', '.join(allowed)}")


def _interrupted(path: Path) -> NoReturn:
    from favorbench.console import message
    from favorbench.store import read_manifest

    try:
        manifest = read_manifest(path)
        message(
            f"interrupted: {manifest['draws_done']} of {manifest['draws']} draws are saved in {path}; "
            "the same command again resumes"
        )
    except FavorbenchError:
        message(f"interrupted: finished draws are saved in {path}; the same command again resumes")
    sys.exit(130)


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
    from favorbench import console, tables

    to = console.stdout()
    shown = tables.cell_tables(results)
    for one in shown[:MAX_TABLES]:
        console.show_table(to, one, "mse", tables.legend(results))
    if len(shown) > MAX_TABLES:
        to.print(f"{len(shown) - MAX_TABLES} more tables in {results.path}/summary.md\n", soft_wrap=True)
    for sentence in tables.sentences(results):
        to.print(sentence, soft_wrap=True, markup=False)
    to.print(f"Saved in {results.path}. Figures: favorbench plot {results.path}", soft_wrap=True, markup=False)


def _print_plan(study: Any, path: Path, as_json: bool) -> None:
    from favorbench.plan import estimate, plan

    cost = estimate(study, plan(study))
    facts = cost._asdict() | {"scenario": study.model_dump(mode="json"), "out": str(path)}
    if as_json:
        _print_json(facts)
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
    from favorbench.tables import records, sentences

    return {
        "complete": results.manifest["complete"],
        "sentences": sentences(results),
        "summary": records(results.summary),
    }


def _print_json(value: dict[str, Any] | list[Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
