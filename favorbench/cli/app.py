"""The Typer application, and what its commands share."""

import contextlib
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from favorbench.cli.endings import ending
from favorbench.cli.options import Cluster, Json, Metric, Quiet, RunPath, Seed, Workers
from favorbench.cli.panels import Command, Group
from favorbench.errors import FavorbenchError, ScenarioError
from favorbench.formats import json_text, printable

if TYPE_CHECKING:
    from favorbench.engine.cluster.connection import Cluster as Place
    from favorbench.results.results import Results


class _App(typer.Typer):
    """Commands whose --help has headings."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        settings.setdefault("cls", Command)
        return super().command(name, **settings)


app = _App(
    name="favorbench",
    cls=Group,
    help="Measures how well a random-feature estimator replaces softmax attention, in numbers that can be trusted.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

__all__ = [
    "Cluster", "Json", "Metric", "Quiet", "RunPath", "Seed", "Workers", "app", "check", "echo", "echo_data",
    "interrupted", "interrupted_timing", "print_json", "say", "warn_partial", "workers_of",
]  # fmt: skip


def place_of(cluster: str | None, asked: str = "--cluster") -> "Place | None":
    """The cluster of --cluster, if there is one. asked: by what it was asked for, in errors. Raises ScenarioError."""
    if cluster in (None, "none"):
        return None
    from favorbench.engine.cluster.connection import Cluster as Place

    if asked == "--cluster" and cluster == os.environ.get("FAVORBENCH_CLUSTER"):
        asked = "FAVORBENCH_CLUSTER"
    place = Place(cluster, asked)  # brings Dask, which sets levels of its own
    for name in ["distributed", "tornado", "asyncio", *logging.root.manager.loggerDict]:
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):  # what is lost is told in a line of ours
            logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="distributed")  # versions are compared by us
    return place


def workers_of(context: typer.Context, workers: int, cluster: str | None) -> "int | Place":
    """A cluster, where one is asked for, or a number of processes. Raises ScenarioError for both by flags."""
    sources = {key: getattr(context.get_parameter_source(key), "name", "") for key in ("workers", "cluster")}
    typed = {key for key, source in sources.items() if source == "COMMANDLINE"}
    if cluster not in (None, "none") and typed == {"workers", "cluster"}:
        raise ScenarioError("--cluster and --workers: a cluster has workers of its own; give one of the two")
    asked = "--cluster" if context.params.get("cluster") is not None else f"{context.params.get('scenario')}: cluster"
    return workers if "workers" in typed else place_of(cluster, asked) or workers


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


def check(flag: str, value: str, allowed: Any) -> None:
    """Raise ScenarioError for a name that is not among those allowed."""
    from favorbench.registry import nearest

    if value not in allowed:
        raise ScenarioError(f"{flag}: unknown {value!r}{nearest(value, allowed)}; allowed: {', '.join(allowed)}")


def echo(text: str) -> None:
    """Lines on stdout, made of names that may come from anybody's files."""
    typer.echo(printable(text, but="\n"))


def echo_data(text: str) -> None:
    """Data on stdout, as they are (typer.echo drops escape sequences); only a terminal is spared control characters."""
    sys.stdout.write(printable(text, but="\n\t") if sys.stdout.isatty() else text)


def print_json(value: Any) -> None:
    """A result as JSON on stdout."""
    typer.echo(json_text(value))


def say(text: str) -> None:
    """One line for the user on stderr, beside the results; keys of the library become flags."""
    from favorbench.cli.flags import with_flags
    from favorbench.console import message

    message(with_flags(text))


def warn_partial(results: "Results") -> None:
    """Say that draws of a run are missing, and what failed in those that are there."""
    from favorbench.results.report import failure_sentences

    if not results.manifest["complete"]:
        say(f"{results.path} is PARTIAL: {results.manifest['draws_done']} of {results.manifest['draws']} draws")
    for sentence in failure_sentences(results):
        say(sentence)


def interrupted(path: Path, error: KeyboardInterrupt) -> NoReturn:
    """Say what is saved of the run that was under way at ``path`` or below it, and how to resume; then exit."""
    from favorbench.engine.reading import find_runs, read_manifest

    word, code = ending(error)
    saved = f"{word} before a draw was saved in {path}"
    with contextlib.suppress(FavorbenchError, OSError):  # there is no run yet
        run = max(find_runs(path), key=lambda run: (run / "manifest.json").stat().st_mtime)
        manifest = read_manifest(run)
        if manifest["draws_done"]:
            draws = f"{manifest['draws_done']} of {manifest['draws']} draws are saved in {run}"
            saved = f"{word}: {draws}; the same command again resumes"
    say(saved)
    sys.exit(code)


def interrupted_timing(run: Path, error: KeyboardInterrupt) -> NoReturn:
    """Say that nothing is kept of a timing that was broken off: its turns are not comparable with later ones."""
    word, code = ending(error)
    say(f"{word}: no seconds of {run} are kept that were not there before; the same command begins anew")
    sys.exit(code)
