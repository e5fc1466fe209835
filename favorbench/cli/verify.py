"""favorbench verify."""

from typing import Annotated

import typer

from favorbench.cli import complete
from favorbench.cli.app import REFERENCE, Cluster, Json, Quiet, Seed, app, print_json, resolve_cluster


@app.command(panel=REFERENCE)
def verify(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            help="MAP (under all samplers), SAMPLER (with all maps), MAP/SAMPLER or METHOD, also module:object.  "
            "[default: all methods, all maps under iid and orthogonal, all samplers with trig, phase, positive and "
            "hyperbolic]",
            show_default=False,
            autocompletion=complete.subjects,
        ),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also: known mistakes, claimed to be right, must all be caught.")
    ] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="More draws: a quarter of the detectable bias.")] = False,
    draws: Annotated[int | None, typer.Option(min=100, help="Draws of omega, instead of the default.")] = None,
    seed: Seed = 0,
    cluster: Cluster = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold maps, samplers and methods to what they declare.

    Kernel, bias, variance, sign, law, coupling, symmetries, large norms, causality, cost. Exit 1 if a claim fails; NaN
    fails.
    """
    from favorbench import console
    from favorbench.console.studies import verification_sections
    from favorbench.studies.verify import DRAWS, THOROUGH_DRAWS
    from favorbench.studies.verify import controls as known_mistakes
    from favorbench.studies.verify import verify as run_verify

    where, count = resolve_cluster(cluster), draws or (THOROUGH_DRAWS if thorough else DRAWS)
    with console.progress("verify", quiet) as report:
        result = run_verify(subjects or (), count, seed, report, where)
        caught = list(known_mistakes.run(seed)) if controls else []
    if as_json:
        found = [{"control": c.control, "mistake": c.mistake, "caught_by": c.caught_by} for c in caught]
        print_json(result.as_dict() | {"controls": found})
    else:
        to = console.stdout()
        console.show(to, verification_sections(result, caught, to.width >= 130))
    if result.refuted or any(c.caught_by is None for c in caught):
        raise typer.Exit(1)
