"""favorbench audit."""

from typing import Annotated

import typer

from favorbench.cli.app import Json, Quiet, Seed, app, print_json


@app.command()
def audit(
    implementations: Annotated[
        list[str],
        typer.Argument(
            help="performer-pytorch, a method, or module:function of (q, k, v[, omega]) or of (query, key, value, "
            "size, rng).",
            show_default=False,
        ),
    ],
    runs: Annotated[int, typer.Option(min=6, max=10_000, help="Runs on each input.")] = 20,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure other people's implementations.

    Distance to exact and to uniform attention, effect of eps, law of the sampler.
    """
    from favorbench import console
    from favorbench.studies.audit import audit as run_audit

    with console.progress("audit", quiet) as report:
        findings = run_audit(implementations, runs, seed, report)
    if as_json:
        print_json({"runs": runs, "findings": findings})
    else:
        console.show_audit(console.stdout(), findings, runs)
