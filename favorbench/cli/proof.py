"""Commands that prove: reproduce, verify, theory, speed, audit."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli.app import Json, Quiet, Workers, app, interrupted, print_json
from favorbench.errors import ScenarioError


@app.command()
def reproduce(
    figure: Annotated[
        Literal["iid-vs-ortho", "trig-vs-positive", "kernel-trick", "all"], typer.Argument(help="Which figure.")
    ] = "all",
    version: Annotated[
        Literal["published", "corrected", "both"], typer.Option("--as", help="Which protocol.")
    ] = "both",
    workers: Workers = 2,
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("results/blog"),
    seed: Annotated[int | None, typer.Option(help="Another seed than the scenario's.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the blog post's figures, published and corrected.

    Checks what they claim; exit 1 if a claim fails.
    """
    from favorbench import console
    from favorbench.studies.blog.reproduce import reproduce as run_reproduce

    try:
        with console.progress("reproduce", quiet) as report:
            reports = run_reproduce(figure, version, out, workers, report, seed)
    except KeyboardInterrupt:
        interrupted(out)
    if as_json:
        print_json({"reports": [one.as_dict() for one in reports]})
    else:
        for one in reports:
            console.show_report(console.stdout(), one)
    if not all(claim.holds for one in reports for claim in one.claims):
        raise typer.Exit(1)


@app.command()
def verify(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            help="MAP (under all samplers), SAMPLER (with all maps) or MAP/SAMPLER, also module:object.  [default: all "
            "maps under iid and orthogonal, all samplers with trig, phase, positive and hyperbolic]",
            show_default=False,
        ),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also: known mistakes, claimed to be right, must all be caught.")
    ] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="More draws: a quarter of the detectable bias.")] = False,
    draws: Annotated[int | None, typer.Option(min=100, help="Draws of omega, instead of the default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random streams.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold maps and samplers to what they declare.

    Target, bias, variance, sign, law, theorems, symmetries. Exit 1 if a claim fails.
    """
    import threadpoolctl

    from favorbench import console
    from favorbench.studies.verify import DRAWS, THOROUGH_DRAWS
    from favorbench.studies.verify import controls as known_mistakes
    from favorbench.studies.verify import verify as run_verify

    with threadpoolctl.threadpool_limits(1), console.progress("verify", quiet) as report:
        result = run_verify(subjects or (), draws or (THOROUGH_DRAWS if thorough else DRAWS), seed, report)
        caught = list(known_mistakes.run(seed)) if controls else []
    if as_json:
        found = [
            {"control": c.control, "mistake": c.mistake, "caught_by": c.caught_by.as_dict() if c.caught_by else None}
            for c in caught
        ]
        print_json(result.as_dict() | {"controls": found})
    else:
        console.show_verification(console.stdout(), result, caught)
    if result.refuted or any(c.caught_by is None for c in caught):
        raise typer.Exit(1)


@app.command()
def theory(
    map: Annotated[str, typer.Argument(help="A feature map, e.g. positive.", show_default=False)],
    sampler: Annotated[str, typer.Argument(help="A sampler.")] = "iid",
    head_dim: Annotated[int, typer.Option("-d", "--d", "--head-dim", min=2, max=4096, help="Head dimension.")] = 16,
    norm: Annotated[
        str, typer.Option(help="|x| = |y| of scaled query and key; d^(1/4) is typical of N(0, I) inputs.")
    ] = "0.5,1,1.5,2",
    num_projections: Annotated[str, typer.Option("-R", "--num-projections", help="R.")] = "16,64,256,1024",
    cosine: Annotated[float, typer.Option(min=-1, max=1, help="Cosine between query and key.")] = 0.0,
    target: Annotated[float, typer.Option(help="The relative error to reach.")] = 0.1,
    draws: Annotated[int, typer.Option(min=0, max=1_000_000, help="Draws measured beside it; 0: none.")] = 2000,
    out: Annotated[
        Path | None, typer.Option(help="Also draw the figure, into this directory.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """The closed-form error of a kernel estimate, and its R.

    Beside it what sampling can measure; where it cannot, it says so.
    """
    import threadpoolctl

    from favorbench import console
    from favorbench.engine.scenario import numbers
    from favorbench.maps import get_map
    from favorbench.samplers import get_sampler
    from favorbench.studies.theory import figure as theory_figure
    from favorbench.studies.theory.study import study as theory_study

    norms = numbers("--norm", norm, float, low=0.0)
    sizes = numbers("-R", num_projections, int, low=1)
    if not 0 < target < float("inf"):
        raise ScenarioError(f"--target: {target!r} given, allowed: a positive number")
    with threadpoolctl.threadpool_limits(1):
        found = theory_study(get_map(map), get_sampler(sampler), head_dim, norms, sizes, cosine, target, draws)
    files = theory_figure.draw(found, f"theory-{map}-{sampler}".replace(":", "-"), out) if out else []
    if as_json:
        points = [{k: None if v != v else v for k, v in point._asdict().items()} for point in found.points]
        needed = {str(norm): size for norm, size in found.needed.items()}
        print_json({"title": found.title, "target": target, "draws": draws, "needed": needed, "points": points})
        return
    console.show_theory(console.stdout(), found)
    typer.echo("".join(f"{file}\n" for file in files), nl=False)


@app.command()
def speed(
    maps: Annotated[str, typer.Option(help="Feature maps.")] = "positive,trig",
    num_projections: Annotated[str, typer.Option("-R", "--num-projections", help="R.")] = "64,256",
    seq_len: Annotated[str, typer.Option("-L", "--seq-len", help="Lengths.")] = "256,512,1024,2048,4096,8192,16384",
    head_dim: Annotated[int, typer.Option("-d", "--head-dim", min=1, max=4096, help="Head dimension.")] = 64,
    repeats: Annotated[int, typer.Option(min=3, max=1000, help="Runs of each, taken in turns.")] = 7,
    backend: Annotated[Literal["numpy", "torch"], typer.Option(help="Array library.")] = "numpy",
    device: Annotated[str, typer.Option(help="Device of torch: cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Precision, of exact and linear attention alike.")] = "float64",
    workers: Annotated[int, typer.Option(hidden=True)] = 1,
    out: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("results/speed"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """From which L on is linear attention faster?

    Exact attention (in tiles; torch's fused one too where torch is installed) against linear attention for each map
    and R, on one core or one GPU: times, memory, fitted slopes and the crossover, as a table and a figure.
    """
    from favorbench import console
    from favorbench.engine.scenario import numbers
    from favorbench.numerics.backend import Backend
    from favorbench.registry import split_list
    from favorbench.studies.speed import figure as speed_figure
    from favorbench.studies.speed.study import study

    if workers != 1:
        raise ScenarioError(f"--workers {workers}: speed times one worker, alone on the machine; leave --workers out")
    sizes, lengths = numbers("-R", num_projections, int, 1, 1 << 20), numbers("-L", seq_len, int, 1, 1 << 24)
    with console.progress("speed", quiet) as report:
        found = study(split_list(maps), sizes, lengths, head_dim, repeats, Backend(backend, device), dtype, report)
    files = speed_figure.draw(found, "speed", out)
    if as_json:
        print_json(found.as_dict() | {"files": [str(file) for file in files]})
        return
    console.show_speed(console.stdout(), found)
    typer.echo("".join(f"{file}\n" for file in files), nl=False)


@app.command()
def audit(
    implementations: Annotated[
        list[str],
        typer.Argument(
            help="performer-pytorch, or module:function of (q, k, v) or (q, k, v, omega).", show_default=False
        ),
    ],
    runs: Annotated[int, typer.Option(min=6, max=10_000, help="Runs on each input.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random streams.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure other people's implementations.

    Distance to exact and to uniform attention, effect of eps, law of the sampler.
    """
    from favorbench import console
    from favorbench.studies.audit import audit as run_audit

    findings = run_audit(implementations, runs, seed)
    if as_json:
        rows = [{k: None if v != v else v for k, v in finding._asdict().items()} for finding in findings]
        print_json({"runs": runs, "findings": rows})
    else:
        console.show_audit(console.stdout(), findings, runs)
