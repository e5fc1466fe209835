"""favorbench theory."""

import re
from pathlib import Path
from typing import Annotated

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import REFERENCE, Json, Quiet, Seed, app, check_maps, echo, numbers, print_json, show
from favorbench.cli.options import DRAWS, INPUT, TARGET, option
from favorbench.errors import ScenarioError


@app.command(panel=REFERENCE)
def theory(
    map: Annotated[
        str,
        typer.Argument(help="A feature map, e.g. positive.", show_default=False, autocompletion=complete.maps),
    ],
    sampler: Annotated[str, typer.Argument(help="A sampler.", autocompletion=complete.samplers)] = "iid",
    head_dim: Annotated[int, option(INPUT, "-d", "--head-dim", min=2, max=4096, help="Head dimension.")] = 16,
    norm: Annotated[
        str, option(INPUT, help="|x| = |y| of scaled query and key; d^(1/4) is typical of N(0, I) inputs.")
    ] = "0.5,1,1.5,2",
    num_projections: Annotated[str, options.SIZES] = "16,64,256,1024",
    cosine: Annotated[float, option(INPUT, min=-1, max=1, help="Cosine between query and key.")] = 0.0,
    target: Annotated[float, option(TARGET, help="The relative error to reach.")] = 0.1,
    draws: Annotated[int, option(DRAWS, min=0, max=1_000_000, help="Draws measured beside it; 0: none.")] = 2000,
    seed: Seed = 0,
    out: Annotated[Path | None, options.FIGURE_OUT] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the closed-form error of a kernel estimate, and the R that it needs.

    Beside it stands the error that was sampled, where sampling can measure it.
    """
    from favorbench import console, style
    from favorbench.console.studies import theory_section
    from favorbench.maps import get_map
    from favorbench.samplers import get_sampler
    from favorbench.studies.theory.figure import chart
    from favorbench.studies.theory.study import study

    check_maps("theory", [map])
    norms = numbers("--norm", norm, float, low=0.0)
    sizes = numbers("-R", num_projections, int, low=1)
    if not 0 < target < float("inf"):
        raise ScenarioError(f"--target: {target!r} given, allowed: a positive number")
    with console.progress("theory", quiet, "draws") as report:
        found = study(
            get_map(map), get_sampler(sampler), head_dim, norms, sizes, cosine, target, draws, seed, progress=report
        )
    name = re.sub(r"[^\w.(),=+-]+", "-", f"theory-{map}-{sampler}")  # a spec may hold what no file name does
    files = style.write([chart(found, name)], out) if out else []
    if as_json:
        print_json(found.as_dict() | {"files": files})
        return
    show([theory_section(found)])
    for file in files:
        echo(str(file))
