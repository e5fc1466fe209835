"""The reference commands: list, theory, verify, reproduce."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli import complete
from favorbench.cli.app import (
    REFERENCE,
    check_maps,
    command,
    echo,
    numbers,
    print_drawn,
    print_json,
    print_result,
    resolve_cluster,
    resumable,
    show,
    workers_of,
)
from favorbench.cli.options import (
    DRAWS,
    INPUT,
    TARGET,
    Cluster,
    FigureOut,
    Json,
    Quiet,
    Seed,
    Sizes,
    Workers,
    option,
)
from favorbench.errors import ScenarioError

WITH_PAPERS = ["maps", "samplers", "methods", "baselines"]


@command(REFERENCE, "list")
def list_(
    what: Annotated[
        Literal["maps", "samplers", "methods", "inputs", "scenarios", "metrics", "baselines"] | None,
        typer.Argument(help="The names to list. Default: all of them, in short."),
    ] = None,
    with_papers: Annotated[bool, option(None, "Print the papers behind each estimator.", "--papers")] = False,
    form: Annotated[
        Literal["table", "bibtex"], option(None, "bibtex: an entry for every paper.", "--format")
    ] = "table",
    as_json: Json = False,
) -> None:
    """List the names that options take, with their properties and references."""
    from favorbench.catalogue import FAMILIES, bibtex, papers, records
    from favorbench.sections import Section

    every = WITH_PAPERS if with_papers or form == "bibtex" else FAMILIES
    families = [what] if what else list(every)
    if form == "bibtex":
        echo(bibtex(*families))
        return
    listed = dict(zip(families, map(papers if with_papers else records, families), strict=True))
    if as_json:
        print_json(listed)
    elif what or with_papers:
        show([Section("" if what else family, rows) for family, rows in listed.items()])
    else:
        names = [f"{family}: {', '.join(member['name'] for member in members)}" for family, members in listed.items()]
        show([Section(sentences=[*names, "", f"favorbench list {families[0]} shows the properties of each."])])


@command(REFERENCE)
def theory(
    map: Annotated[
        str,
        typer.Argument(help="A feature map, e.g. positive.", autocompletion=complete.maps),
    ],
    sampler: Annotated[str, typer.Argument(help="A sampler.", autocompletion=complete.samplers)] = "iid",
    head_dim: Annotated[int, option(INPUT, "Head dimension.", "-d", "--head-dim", min=2, max=4096)] = 16,
    norm: Annotated[
        str, option(INPUT, "|x| = |y| of scaled query and key; d^(1/4) is typical of N(0, I) inputs.")
    ] = "0.5,1,1.5,2",
    num_projections: Sizes = "16,64,256,1024",
    cosine: Annotated[float, option(INPUT, "Cosine between query and key.", min=-1, max=1)] = 0.0,
    target: Annotated[float, option(TARGET, "The relative error to reach.")] = 0.1,
    draws: Annotated[int, option(DRAWS, "Draws measured for comparison; 0: none.", min=0, max=1_000_000)] = 2000,
    seed: Seed = 0,
    out: FigureOut = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print the closed-form error of a kernel estimate, and the R that it needs.

    The sampled error is printed next to it, where sampling can measure it.
    """
    from favorbench import console
    from favorbench.console.studies import theory_section
    from favorbench.maps import get_map
    from favorbench.samplers import get_sampler
    from favorbench.studies.theory import chart, study

    check_maps("theory", [map])
    norms = numbers("--norm", norm, float, low=0.0)
    sizes = numbers("-R", num_projections, int, low=1)
    if not 0 < target < float("inf"):
        raise ScenarioError(f"--target: {target!r} given, allowed: a positive number")
    with console.progress("theory", quiet, "draws") as report:
        result = study(
            get_map(map), get_sampler(sampler), head_dim, norms, sizes, cosine, target, draws, seed, progress=report
        )
    name = re.sub(r"[^\w.(),=+-]+", "-", f"theory-{map}-{sampler}")  # a spec may hold characters no file name allows
    print_drawn(as_json, result._asdict(), [theory_section(result)], [chart(result, name)], out)


@command(REFERENCE)
def verify(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            help="MAP (under all samplers), SAMPLER (with all maps), MAP/SAMPLER or METHOD, also module:object.  "
            "[default: all methods, all maps under iid and orthogonal, all samplers with trig, phase, positive and "
            "hyperbolic]",
            autocompletion=complete.subjects,
        ),
    ] = None,
    controls: Annotated[
        bool, option(None, "Also submit known-wrong variants, which must all be caught.", "--controls")
    ] = False,
    thorough: Annotated[
        bool, option(None, "More draws of omega, which detect a bias of a map a quarter as large.", "--thorough")
    ] = False,
    draws: Annotated[int | None, option(None, "Draws of omega, instead of the default.", min=500)] = None,
    seed: Seed = 0,
    cluster: Cluster = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Test whether maps, samplers and methods have the properties that they declare.

    Kernel, bias, variance, sign, law, coupling, symmetries, large norms, causality, cost. Exit 1 if a claim fails; NaN
    fails.
    """
    from favorbench import console
    from favorbench.console.studies import verification_sections
    from favorbench.studies.verify import DRAWS, THOROUGH_DRAWS
    from favorbench.studies.verify import controls as known_mistakes
    from favorbench.studies.verify import verify as run_verify

    if thorough and draws is not None:
        raise ScenarioError(f"--thorough --draws {draws}: both set the number of draws; leave one out")
    workers, count = resolve_cluster(cluster), draws or (THOROUGH_DRAWS if thorough else DRAWS)
    with console.progress("verify", quiet) as report:
        result = run_verify(subjects or (), count, seed, report, workers)
        caught = list(known_mistakes.run(seed)) if controls else []
    if as_json:
        print_json(result.as_dict() | {"controls": caught})
    else:
        to = console.stdout()
        console.show(to, verification_sections(result, caught, to.width >= 130))
    if result.refuted or any(c.caught_by is None for c in caught):
        raise typer.Exit(1)


@command(REFERENCE)
def reproduce(
    context: typer.Context,
    figure: Annotated[
        Literal["iid-vs-ortho", "trig-vs-positive", "kernel-trick", "all"], typer.Argument(help="Which figure.")
    ] = "all",
    version: Annotated[Literal["published", "corrected", "both"], option(None, "Which protocol.", "--as")] = "both",
    workers: Workers = 2,
    cluster: Cluster = None,
    out: Annotated[Path, option(None, "Output folder.", "--out", "-o")] = Path("results/blog"),
    seed: Annotated[int | None, option(None, "Another seed than the scenario's.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the figures of the blog post of 2020, as published and corrected.

    Checks what they claim; exit 1 if a claim fails.
    """
    from favorbench import console
    from favorbench.console.studies import report_section
    from favorbench.studies.blog import reproduce as run_reproduce

    where = workers_of(context, workers, cluster)
    with resumable(out / "runs"), console.progress("reproduce", quiet, "draws") as report:
        reports = run_reproduce(figure, version, out, where, report, seed)
    print_result(as_json, {"reports": reports}, map(report_section, reports))
    if not all(claim.holds for report in reports for claim in report.claims):
        raise typer.Exit(1)
