"""The Typer application, and what its commands share."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from favorbench.errors import FavorbenchError, ScenarioError

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
    from favorbench.registry import nearest

    if value not in allowed:
        raise ScenarioError(f"{flag}: unknown {value!r}{nearest(value, allowed)}; allowed: {', '.join(allowed)}")


def interrupted(path: Path) -> NoReturn:
    from favorbench.console import message
    from favorbench.engine.store import read_manifest

    try:
        manifest = read_manifest(path)
        message(
            f"interrupted: {manifest['draws_done']} of {manifest['draws']} draws are saved in {path}; "
            "the same command again resumes"
        )
    except FavorbenchError:
        message(f"interrupted before a draw was saved in {path}")
    sys.exit(130)


def print_json(value: dict[str, Any] | list[Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
