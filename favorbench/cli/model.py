"""favorbench model."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from favorbench.cli import options
from favorbench.cli.app import Json, Quiet, Seed, app, echo, number, numbers, print_json, say, show
from favorbench.cli.options import COMPUTING, DRAWS, ESTIMATORS, OUTPUT, TEXTS, and_also, option
from favorbench.engine.interrupts import ending
from favorbench.errors import FavorbenchError

if TYPE_CHECKING:
    from favorbench.models.plan import Asked


@app.command()
def model(
    model: Annotated[str, options.MODEL],
    more: Annotated[list[Path] | None, options.MORE_TEXT] = None,
    text: Annotated[list[Path] | None, options.TEXT] = None,
    maps: Annotated[str, and_also(options.MAPS, "With --calibrate also calibrated:MAP. Or none.")] = "positive",
    methods: Annotated[str, and_also(options.METHODS, "Or none.")] = "sampled-keys,clusters,multipole",
    num_projections: Annotated[str, options.SIZES] = "64",
    samplers: Annotated[str, options.SAMPLERS] = "orthogonal",
    draws: Annotated[str, option(DRAWS, help="Draws of each estimator on each text.", metavar="<int>")] = "3",
    layers: Annotated[
        str, option(TEXTS, help="all; each, one at a time; or numbers, replaced together; all,each for both.")
    ] = "all",
    recommended: Annotated[
        str | None,
        option(ESTIMATORS, help="Directories of recommend: each head by its choice."),
    ] = None,
    calibrate: Annotated[Path | None, option(ESTIMATORS, help="A text of its own to fit calibrated: maps to.")] = None,
    redraw: Annotated[
        str, option(DRAWS, help="Draw once for each layer, once for the model, or anew at each call.")
    ] = "layer",
    length: Annotated[str | None, options.TOKENS] = None,
    heads: Annotated[
        bool, option(OUTPUT, "--heads/--no-heads", help="Also measure the errors of single heads: twice the work.")
    ] = True,
    seconds: Annotated[
        int,
        option(
            COMPUTING,
            min=0,
            max=1000,
            help="Time each estimator in this many runs, interleaved with exact attention.",
        ),
    ] = 0,
    seed: Seed = 0,
    out: Annotated[Path | None, option(OUTPUT, "--out", "-o", help="Directory.  [default: results/model-NAME]")] = None,
    trust_remote_code: Annotated[bool, options.REMOTE_CODE] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what an estimator does to a whole model.

    Replaces attention, without training, by every estimator, in all layers or one at a time, on every text. Prints a
    table beside exact attention in bfloat16, uniform attention and no attention, and draws figures. Measurements are
    saved as they finish: the same command again resumes, and one that asks for more adds to what is there.
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
    except KeyboardInterrupt:
        _interrupted(path)
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
    from favorbench import style
    from favorbench.files import write_text
    from favorbench.models.figures import charts
    from favorbench.models.report import sections
    from favorbench.models.summary import read
    from favorbench.sections import to_markdown

    found = read(path)
    shown = sections(found)
    write_text(path / "summary.csv", found.lines.to_csv(index=False, float_format="%.6g"))
    write_text(path / "summary.md", to_markdown(shown))
    files = style.write(charts(found), path / "figures")
    if as_json:
        print_json(found.as_dict() | {"files": files})
        return
    show(shown)
    for file in files:
        if file.suffix == ".png":
            echo(str(file))
    echo(f"Saved in {path}.")


def _interrupted(path: Path) -> NoReturn:
    """Say what is saved, and how to resume; then exit."""
    from favorbench.models.store import read_manifest

    word, code = ending()
    saved = f"{word} before a measurement was saved in {path}"
    with contextlib.suppress(FavorbenchError, OSError):  # there is nothing yet
        manifest = read_manifest(path)
        if done := manifest["measurements_done"]:
            saved = f"{word}: {done} of {manifest['measurements']} measurements are saved in {path}; the same command "
            saved += "again resumes"
    say(saved)
    sys.exit(code)
