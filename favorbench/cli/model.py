"""favorbench model."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from favorbench.cli import options
from favorbench.cli.app import Json, Quiet, Seed, app, echo, print_json, say
from favorbench.cli.endings import ending
from favorbench.cli.flags import number, numbers
from favorbench.cli.options import and_also
from favorbench.errors import FavorbenchError

if TYPE_CHECKING:
    from favorbench.models.plan import Asked


@app.command()
def model(
    model: Annotated[
        str,
        typer.Argument(
            help="minilm, smollm2, a model's folder, a .gguf file, or an id of the hub.", show_default=False
        ),
    ],
    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE", hidden=True, show_default=False)] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="Texts that the model reads, one input each.", show_default=False),
    ] = None,
    maps: Annotated[str, and_also(options.MAPS, "With --calibrate also calibrated:MAP. Or none.")] = "positive",
    methods: Annotated[str, and_also(options.METHODS, "Or none.")] = "sampled-keys,clusters,multipole",
    num_projections: Annotated[str, options.SIZES] = "64",
    samplers: Annotated[str, options.SAMPLERS] = "orthogonal",
    draws: Annotated[str, typer.Option(help="Draws of each estimator on each text.", metavar="<int>")] = "3",
    layers: Annotated[
        str, typer.Option(help="all; each, one at a time; or numbers, replaced together; all,each for both.")
    ] = "all",
    recommended: Annotated[
        str | None,
        typer.Option(help="Directories of recommend, e.g. results/mine: each head by its choice.", show_default=False),
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="A text of its own to fit calibrated: maps to.", show_default=False)
    ] = None,
    redraw: Annotated[
        str, typer.Option(help="Draw once for each layer, once for the model, or anew at each call.")
    ] = "layer",
    length: Annotated[
        str | None,
        typer.Option("-L", "--length", help="Tokens of each text, at most.  [default: 512]", metavar="<int>"),
    ] = None,
    heads: Annotated[
        bool, typer.Option("--heads/--no-heads", help="Measure the errors of single heads, too: twice the work.")
    ] = True,
    seconds: Annotated[
        int,
        typer.Option(min=0, max=1000, help="Time each estimator, too: so many runs in turns with exact attention."),
    ] = 0,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory.  [default: results/model-NAME]", show_default=False)
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that the model's folder or page brings along.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What does an estimator do to a whole model?

    Its attention replaced, without training: every estimator in all layers, or one at a time, on every text, against
    the model as it is: a table beside exact attention in bfloat16, uniform attention and no attention, and figures.
    What is measured is saved at once: the same command again resumes, and one that asks for more adds to what is
    there.
    """
    from favorbench.models.plan import Asked
    from favorbench.registry import split_list

    def names(given: str) -> tuple[str, ...]:
        return () if given == "none" else tuple(split_list(given))

    tokens = None if length is None else number("-L", length, int, 2, 1 << 24)
    asked = Asked(
        model, tuple(map(str, [*(text or []), *(more or [])])), tokens, names(maps), names(methods),
        names(samplers), tuple(numbers("-R", num_projections, int, 1, 1 << 20)),
        number("--draws", draws, int, 1, 1 << 16), layers, calibrate and str(calibrate), redraw, seed, heads,
        () if recommended is None else tuple(split_list(recommended)),
    )  # fmt: skip
    path = out or Path("results") / f"model-{Path(model).stem}"
    try:
        _measure(asked, path, trust_remote_code, quiet, seconds)
    except KeyboardInterrupt as error:
        _interrupted(path, error)
    _show(path, as_json)


def _measure(asked: "Asked", path: Path, trust_remote_code: bool, quiet: bool, seconds: int) -> None:
    from favorbench import console
    from favorbench.models.study import study

    with console.progress(f"model {Path(asked.model).name}", quiet, "measurements") as report:
        found = study(asked, path, trust_remote_code, report, seconds)
    for name in found.set_aside if not quiet else ():
        say(f"{path}/trials/{name} was damaged: set aside, and what was in it measured again")
    for name, reason in found.left.items() if not quiet else ():
        say(f"{name} is left as it is: {reason}")


def _show(path: Path, as_json: bool) -> None:
    from favorbench import console
    from favorbench.console.model import show_model
    from favorbench.files import write_text
    from favorbench.models import figures
    from favorbench.models.report import markdown
    from favorbench.models.summary import read

    found = read(path)
    write_text(path / "summary.csv", found.lines.to_csv(index=False, float_format="%.6g"))
    write_text(path / "summary.md", markdown(found))
    files = figures.draw(found, path / "figures")
    if as_json:
        print_json(found.as_dict() | {"files": files})
        return
    to = console.stdout()
    show_model(to, found)
    for file in files:
        if file.suffix == ".png":
            echo(str(file))
    to.print(f"Saved in {path}.", soft_wrap=not to.is_terminal)


def _interrupted(path: Path, error: KeyboardInterrupt) -> NoReturn:
    """Say what is saved, and how to resume; then exit."""
    from favorbench.models.store import read_manifest

    word, code = ending(error)
    saved = f"{word} before a measurement was saved in {path}"
    with contextlib.suppress(FavorbenchError, OSError):  # there is nothing yet
        manifest = read_manifest(path)
        if done := manifest["measurements_done"]:
            saved = f"{word}: {done} of {manifest['measurements']} measurements are saved in {path}; the same command "
            saved += "again resumes"
    say(saved)
    sys.exit(code)
