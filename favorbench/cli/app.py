"""The Typer application, and what its commands share."""

import contextlib
import functools
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer.main
from typer.core import TyperCommand, TyperGroup

from favorbench.cli.options import OUTPUT, option
from favorbench.engine.interrupts import ending
from favorbench.errors import FavorbenchError, ScenarioError
from favorbench.formats import in_shell, json_text, printable, shown

if TYPE_CHECKING:
    from favorbench.engine.cluster import Cluster as DaskCluster
    from favorbench.results.summary import RunData
    from favorbench.sections import Section
    from favorbench.style.charts import Chart

CHOOSE, MEASURE, LOOK, REFERENCE = (
    "Choose an estimator for a model", "Measure estimators", "Look at results", "Check and look up",
)  # fmt: skip

MIN_GROUPED = 10  # a command with at least this many options shows them under headings


class _Command(TyperCommand):
    """A command whose --help is plain text: at 80 columns Rich's frames leave 35 to the words."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options; those of a long command under headings."""
        records = [(param, record) for param in self.get_params(ctx) if (record := param.get_help_record(ctx))]
        options = [param for param, _ in records if param.param_type_name == "option"]
        sections: dict[str, list[Any]] = {"Arguments": []}
        for param, record in records:
            heading = getattr(param, "rich_help_panel", None) or (OUTPUT if param.name == "help" else "Options")
            heading = heading if len(options) >= MIN_GROUPED else "Options"
            sections.setdefault(heading if param in options else "Arguments", []).append(record)
        output = sections.pop(OUTPUT, [])
        _write(formatter, sections | {OUTPUT: output})


#: Old names of commands, until version 0.4.
RENAMED = {"time": ["speed"], "rank": ["table", "--rank"], "export": ["table", "--rows"]}


class _Group(TyperGroup):
    """The commands under headings, and their old names."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace an old name, with a message."""
        if args[0] in RENAMED:
            say(
                f"favorbench {args[0]} is now favorbench {' '.join(RENAMED[args[0]])}; the old name goes in version 0.4"
            )
            args = [*RENAMED[args[0]], *args[1:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first sentence of their help."""
        sections: dict[str, list[Any]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            record = name, command.get_short_help_str(limit=200)
            sections.setdefault(command.rich_help_panel, []).append(record)
        _write(formatter, sections)


def _write(formatter: Any, sections: dict[str, list[Any]]) -> None:
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)


app = typer.Typer(
    name="favorbench",
    cls=_Group,
    help="Measure how well estimators of softmax attention replace it, on your queries and keys or in your model.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def command(heading: str, name: str | None = None) -> Any:
    """Declare a command. heading: where the --help of favorbench lists it."""
    return app.command(name, cls=_Command, rich_help_panel=heading)


def resolve_cluster(cluster: str | None, origin: str = "--cluster") -> "DaskCluster | None":
    """The cluster of --cluster, if any. origin: where it was given, for errors. Raises ScenarioError."""
    if cluster in (None, "none"):
        return None
    from favorbench.engine.cluster import Cluster as DaskCluster

    if origin == "--cluster" and cluster == os.environ.get("FAVORBENCH_CLUSTER"):
        origin = "FAVORBENCH_CLUSTER"
    resolved = DaskCluster(cluster, origin, say)  # imports Dask, which sets log levels
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):  # we report losses in one line
            logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="distributed")  # we compare the versions
    return resolved


def typed_parameters(context: typer.Context) -> set[str]:
    """The parameters that were given on the command line, and not by a default or the environment."""
    return {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}


def workers_of(context: typer.Context, workers: int, cluster: str | None) -> "int | DaskCluster":
    """The cluster, if one is given, or the number of processes. Raises ScenarioError for flags of both."""
    typed = typed_parameters(context) & {"workers", "cluster"}
    if cluster not in (None, "none") and typed == {"workers", "cluster"}:
        raise ScenarioError("--cluster and --workers: a cluster has its own workers; give only one of the two")
    if "workers" in typed:
        return workers
    origin = "--cluster"
    if context.params.get("cluster") is None:
        from favorbench.engine.cluster import check_cluster_of_file

        origin = f"{context.params.get('scenario')}: cluster"
        check_cluster_of_file(cluster, origin)
    return resolve_cluster(cluster, origin) or workers


def _version(value: bool) -> None:
    if value:
        import importlib.metadata

        typer.echo(f"favorbench {importlib.metadata.version('favorbench')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, option(None, "Print the version.", "--version", callback=_version, is_eager=True)] = False,
    debug: Annotated[bool, option(None, "Show tracebacks.", "--debug")] = False,
) -> None:
    pass  # --debug is read in main(), which also takes it after the command


def check(flag: str, value: str, allowed: Any) -> None:
    """Raise ScenarioError for a name that is not among those allowed."""
    from favorbench.registry import nearest

    if value not in allowed:
        raise ScenarioError(f"{flag}: unknown {value!r}{nearest(value, allowed)}; allowed: {', '.join(allowed)}")


def echo(text: str) -> None:
    """Print lines on stdout, with control characters escaped: names may come from anybody's files."""
    typer.echo(printable(text, but="\n"))


def echo_data(text: str) -> None:
    """Write data to stdout unchanged, as typer.echo does not; on a terminal control characters are escaped.

    Raises ScenarioError for a character that the encoding of stdout lacks: elsewhere it is escaped.
    """
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError as error:
        raise ScenarioError(
            f"stdout is in {sys.stdout.encoding}, which has no {text[error.start]!a}: set PYTHONIOENCODING=utf-8, or "
            "write to a file"
        ) from None
    sys.stdout.write(printable(text, but="\n\t") if sys.stdout.isatty() else text)


def show(sections: "Iterable[Section]", form: str = "rich") -> None:
    """Print sections on stdout: for a terminal, or as md, latex, csv or json; keys of the library become flags."""
    from dataclasses import replace

    from favorbench import console
    from favorbench.sections import to_latex, to_markdown

    if form in ("csv", "json"):
        import pandas as pd

        frame = pd.concat([section.data for section in sections if section.data is not None], ignore_index=True)
        if form == "csv":
            echo_data(frame.to_csv(index=False))
        else:
            print_json(frame)
        return
    texts = [replace(s, note=with_flags(s.note), sentences=[*map(with_flags, s.sentences)]) for s in sections]
    if form == "rich":
        console.show(console.stdout(), texts)
    else:
        echo((to_latex if form == "latex" else to_markdown)(texts).rstrip("\n"))


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    typer.echo(json_text(value))


def print_result(
    as_json: bool, data: Mapping[str, Any], sections: "Iterable[Section]", lines: Iterable[object] = ()
) -> None:
    """Print a result on stdout: its data as JSON, or its sections and then lines, such as the files written."""
    if as_json:
        print_json(data)
        return
    show(sections)
    for line in lines:
        echo(str(line))


def print_drawn(
    as_json: bool, data: Mapping[str, Any], sections: "Iterable[Section]", charts: "Iterable[Chart]", out: Path | None
) -> None:
    """Draw a result into a folder, if there is one, and print it: also where the folder cannot be written."""
    from favorbench import style

    files: list[Path] = []
    try:
        files += style.write(charts, out) if out else []
    finally:
        print_result(as_json, {**data, "files": files}, sections, files)


def say(text: str) -> None:
    """Print a line on stderr; keys of the library become flags."""
    from favorbench.console import message

    message(with_flags(text))


def warn_partial(results: "RunData") -> None:
    """Say which draws of a run are missing, and what failed in the others."""
    from favorbench.results.findings import failure_sentences

    if results.is_partial:
        say(f"{results.path} is PARTIAL: {results.manifest['draws_done']} of {results.manifest['draws']} draws")
    for sentence in failure_sentences(results):
        say(sentence)


def interrupted(rest: str) -> NoReturn:
    """Say how a command was interrupted, and exit with the code of the signal."""
    word, code = ending()
    say(word + rest)
    sys.exit(code)


@contextlib.contextmanager
def resumable(path: Path, unit: str = "draw") -> Iterator[None]:
    """When interrupted, say how much is saved of the run at ``path`` or below it, and how to resume; then exit."""
    try:
        yield
    except KeyboardInterrupt:
        from favorbench.results.status import progress_of

        run, done, planned = path, 0, 0
        with contextlib.suppress(FavorbenchError, OSError):  # no run exists yet
            run, done, planned = progress_of(path)
        if done:
            interrupted(f": {done} of {planned} {unit}s are saved in {run}; rerun the command to resume")
        interrupted(f" before a {unit} was saved in {path}")


@functools.cache
def flags() -> dict[str, str]:
    """The flag of each key, in the first of its spellings: -R for num_projections.

    Call it from inside a command, when all commands are declared.
    """
    options = (option for command in typer.main.get_group(app).commands.values() for option in command.params)
    return {option.name: option.opts[0] for option in options if option.opts[0].startswith("-")}


def with_flags(text: str) -> str:
    """Replace the keys in backquotes in a message of the library by flags."""
    return re.sub(r"`(\w+)`", lambda match: flags().get(match[1], match[1]), text)


def names(given: str | None) -> tuple[str, ...]:
    """Parse a list of names with commas; "none" and None have no names."""
    from favorbench.registry import split_list

    return () if given in (None, "none") else tuple(split_list(given))


def numbers(flag: str, text: str, kind: type[int] | type[float], low: float, high: float = 1e9) -> list[Any]:
    """Parse a list of numbers from ``low`` to ``high`` with commas, and sort it. Raises ScenarioError."""
    from favorbench.registry import split_list

    return sorted({number(flag, part, kind, low, high, "{}s from {} to {}, with commas") for part in split_list(text)})


def number(
    flag: str, text: str, kind: type[int] | type[float], low: float, high: float = 1e9,
    allowed: str = "one {} from {} to {}",
) -> Any:  # fmt: skip
    """Parse one number from ``low`` to ``high``. allowed: for the message. Raises ScenarioError."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        words = allowed.format("whole number" if kind is int else "number", f"{low:g}", f"{high:.10g}")
        raise ScenarioError(f"{flag}: {shown(text)} given, allowed: {words}")
    return value


def check_device(device: str) -> None:
    """Raise ScenarioError for an unknown device."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise ScenarioError(f"--device: {shown(device)} given, allowed: cpu, cuda or cuda:N")


def check_maps(command: str, specs: Iterable[str]) -> None:
    """Raise ScenarioError for a method or a baseline in a command that is about kernels."""
    from favorbench.baselines import no_map

    for spec in specs:
        if family := no_map(spec):
            name, kind = family
            flag = "--baselines" if kind == "baseline" else "--methods"
            raise ScenarioError(
                f"{command} is about the kernels of maps, and {name!r} is a {kind}: "
                f"favorbench sweep {flag} {in_shell(spec)} measures its attention"
            )
