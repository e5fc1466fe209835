"""favorbench audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import Json, Quiet, Seed, app, interrupted, print_json, say, show
from favorbench.cli.options import DRAWS, and_also, option

if TYPE_CHECKING:
    from favorbench.engine.study import Study
    from favorbench.results.results import Results


@app.command()
def audit(
    implementations: Annotated[
        list[str],
        typer.Argument(
            help="performer-pytorch, a method, or module:function of (q, k, v[, omega]) or of (query, key, value, "
            "size, rng).",
            show_default=False,
            autocompletion=complete.methods,
        ),
    ],
    inputs: Annotated[
        str | None,
        and_also(options.INPUTS, "[default: Gaussians and minilm]"),
    ] = None,
    num_projections: Annotated[
        str | None,
        and_also(options.SIZES, "The claims are measured at the largest."),
    ] = None,
    runs: Annotated[int, option(DRAWS, min=6, max=10_000, help="Runs on each input.")] = 20,
    seed: Seed = 0,
    out: Annotated[Path | None, and_also(options.RUN_OUT, "[default: results/audit-...]")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure implementations of other projects.

    Distance to exact and to uniform attention, effect of eps, distribution of the sampler. The errors are saved as a
    run, beside FAVOR+ and the trivial answers, for table, rank, plot and compare; the same command again resumes it.
    """
    from favorbench import console
    from favorbench.console.studies import audit_sections
    from favorbench.engine.study import default_directory
    from favorbench.studies.audit import audit as run_audit
    from favorbench.studies.audit import study_of

    names = list(dict.fromkeys(implementations))
    study = study_of(names, runs, seed, inputs, num_projections)
    sizes = [size for size in study.scenario.num_projections if isinstance(size, int)]
    path = out or default_directory(study)
    results = _saved(study, path, quiet)  # first: an --out that cannot be used is told before anything is measured
    with console.progress("audit", quiet) as report:
        size = max(sizes) if num_projections and sizes else None
        findings = run_audit(names, runs, seed, report, study if inputs else None, size)
    if as_json:
        print_json({"runs": runs, "findings": findings, "run": path})
    else:
        show(audit_sections(findings, runs, size))
    if not quiet and not as_json:
        say(f"saved in {results.path}: see favorbench table, rank and plot {results.path}")


def _saved(study: "Study", path: Path, quiet: bool) -> "Results":
    from favorbench import console
    from favorbench.run import sweep

    try:
        with console.progress("audit, the run", quiet, "draws") as report:
            return sweep(study, path, progress=report)
    except KeyboardInterrupt:
        interrupted(path)
