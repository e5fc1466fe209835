"""The commands that measure something other than attention on a scenario: audit, kernel, speed."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import (
    MEASURE,
    check_device,
    check_maps,
    command,
    interrupted,
    names,
    numbers,
    print_drawn,
    print_result,
    resumable,
    say,
    typed_parameters,
)
from favorbench.cli.options import (
    COMPUTING,
    DRAWS,
    ESTIMATORS,
    INPUT,
    KERNEL,
    OUTPUT,
    FigureOut,
    Json,
    Layout,
    Quiet,
    Seed,
    Sizes,
    SomeSamplers,
    and_also,
    option,
)
from favorbench.errors import ScenarioError
from favorbench.formats import in_shell


@command(MEASURE)
def audit(
    implementations: Annotated[
        list[str],
        typer.Argument(
            help="performer-pytorch, a method, or module:function of (q, k, v[, omega]) or of (query, key, value, "
            "size, rng).",
            autocompletion=complete.methods,
        ),
    ],
    inputs: Annotated[str | None, and_also(options.INPUTS, "[default: Gaussians and minilm]")] = None,
    layout: Layout = None,
    num_projections: Annotated[str | None, and_also(options.SIZES, "The claims are measured at the largest.")] = None,
    runs: Annotated[int, option(DRAWS, "Runs on each input.", min=6, max=10_000)] = 20,
    seed: Seed = 0,
    out: Annotated[Path | None, and_also(options.RUN_OUT, "[default: results/audit-...]")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure implementations of other projects.

    Distance to exact and to uniform attention, effect of eps, distribution of the sampler; every query sees all keys,
    also those of a causal model. Also saves a run with FAVOR+ and the trivial answers, on other draws, for table, plot
    and compare; rerun the command to resume.
    """
    from favorbench import console
    from favorbench.console.studies import audit_sections
    from favorbench.engine.study import default_directory
    from favorbench.run import sweep
    from favorbench.studies.audit import audit as run_audit
    from favorbench.studies.audit import study_of

    names = list(dict.fromkeys(implementations))
    study = study_of(names, runs, seed, inputs, num_projections, layout)
    path = out or default_directory(study)
    # The run comes first: an --out that cannot be used is refused before anything is measured.
    with resumable(path), console.progress("audit, the run", quiet, "draws") as report:
        sweep(study, path, progress=report)
    if inputs and not quiet:
        for name, (_, law) in study.inputs.items():
            if law.notes():
                say(f"{name}: {'; '.join(law.notes())}")
    sizes = [size for size in study.scenario.num_projections if isinstance(size, int)]
    size = max(sizes) if num_projections and sizes else None
    with console.progress("audit", quiet) as report:
        findings = run_audit(names, runs, seed, report, study if inputs else None, size)
    print_result(as_json, {"runs": runs, "findings": findings, "run": path}, audit_sections(findings, runs, size))
    if not quiet and not as_json:
        say(f"saved in {path}: see favorbench table and favorbench plot {in_shell(path)}")


@command(MEASURE)
def kernel(
    name: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL",
            help="gaussian, softmax, polynomial, cosine or linear.",
            autocompletion=complete.words("gaussian", "softmax", "polynomial", "cosine", "linear"),
        ),
    ] = "gaussian",
    maps: Annotated[
        str | None,
        option(
            ESTIMATORS,
            "gaussian, softmax: any of `favorbench list maps`; polynomial: explicit, tensorsketch; others: "
            "explicit.  [default: gaussian trig,phase; softmax positive,trig; others all]",
            autocompletion=complete.maps,
        ),
    ] = None,
    samplers: SomeSamplers = "iid,orthogonal",
    num_projections: Sizes = "16,32,64,128,256",
    budget: Annotated[
        Literal["projections", "features"], option(ESTIMATORS, "What -R counts: projections or features.")
    ] = "projections",
    points: Annotated[
        str | None, option(INPUT, "Points, one a row: a .npy or .csv.  [default: N(0, I)]", metavar="FILE")
    ] = None,
    num_points: Annotated[int | None, option(INPUT, "How many points.  [default: 200]", min=1, max=2048)] = None,
    head_dim: Annotated[
        int | None, option(INPUT, "Their dimension.  [default: 16]", "-d", "--head-dim", min=1, max=4096)
    ] = None,
    scale: Annotated[float, option(INPUT, "Factor on the points.")] = 1.0,
    sigma: Annotated[
        float | None,
        option(
            KERNEL, "Bandwidth: gaussian and softmax divide points by it.  [default: gaussian d^(1/2), softmax d^(1/4)]"
        ),
    ] = None,
    degree: Annotated[
        int | None, option(KERNEL, "Degree of the polynomial kernel.  [default: 2]", min=1, max=30)
    ] = None,
    constant: Annotated[
        float | None, option(KERNEL, "Constant of the polynomial kernel, (x.y + c)^degree.  [default: 1]")
    ] = None,
    trials: Annotated[int, option(DRAWS, "Draws of every cell.", min=1, max=1_000_000)] = 20,
    seed: Seed = 0,
    out: FigureOut = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the error of a kernel's approximated Gram matrix.

    On fixed points, over draws of the projections: relative Frobenius error, largest error, bias and spread, with the
    closed form of their expectation.
    """
    from favorbench import console
    from favorbench.console.studies import gram_section
    from favorbench.registry import split_list
    from favorbench.studies.kernel import DEFAULT_POINTS, gaussian_points, points_of_file, study
    from favorbench.studies.kernel.figure import chart
    from favorbench.studies.kernel.targets import get_kernel

    sizes = numbers("-R", num_projections, int, low=1)
    if points is None:
        where = gaussian_points(num_points or DEFAULT_POINTS, head_dim or 16, scale, seed)
    elif head_dim is None:
        where = points_of_file(points, num_points, scale, seed)
    else:
        raise ScenarioError(f"-d {head_dim}: the points of {points} have their own dimension: leave -d out")
    target = get_kernel(name, where.values.shape[1], sigma=sigma, degree=degree, constant=constant)
    chosen = split_list(maps) if maps is not None else target.default_maps
    check_maps("kernel", chosen)
    with console.progress(f"kernel {name}", quiet) as report:
        result = study(target, chosen, split_list(samplers), sizes, where, trials, seed, budget, report)
    print_drawn(as_json, result.as_dict(), [gram_section(result)], [chart(result, f"kernel-{name}")], out)


@command(MEASURE)
def speed(
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run directory whose estimators are timed, e.g. results/quick.",
            autocompletion=complete.runs,
        ),
    ] = None,
    maps: Annotated[str, options.MAPS] = "positive,trig",
    methods: Annotated[str | None, options.METHODS] = None,
    num_projections: Sizes = "64,256",
    seq_len: Annotated[str, options.LENGTHS] = "256,512,1024,2048,4096,8192,16384",
    head_dim: Annotated[int, options.HEAD_DIM] = 64,
    repeats: Annotated[int, option(DRAWS, "Interleaved runs of each.", min=3, max=1000)] = 7,
    backend: Annotated[Literal["numpy", "torch"], options.BACKEND] = "numpy",
    device: Annotated[str, options.DEVICE] = "cpu",
    dtype: Annotated[str, option(COMPUTING, "Precision of exact and linear attention alike.")] = "float64",
    workers: Annotated[int, typer.Option(hidden=True)] = 1,
    out: Annotated[Path, option(OUTPUT, "Folder for the figure.", "--out", "-o")] = Path("results/speed"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the length from which linear attention, or a method, is faster than exact attention; or time a RUN.

    Exact attention (in tiles; torch's fused one too where torch is installed) against linear attention for each map
    and R, on one core or one GPU: times, memory, fitted slopes and the break-even length, as a table and a figure.

    With a RUN: exact attention and each estimator of the run at each of its sizes, interleaved, on one head of its
    inputs. Saved in RUN/seconds.json, with the machine; `favorbench plot RUN` draws errors against them. Only
    --repeats, --json and --quiet apply, and bounds among baselines are left out.
    """
    from favorbench.console import progress
    from favorbench.console.studies import speed_section
    from favorbench.numerics.backend import Backend
    from favorbench.studies.speed.study import chart, study

    if workers != 1:
        raise ScenarioError(f"--workers {workers}: speed times one worker, alone on the machine; leave --workers out")
    if run is not None:
        if others := sorted(typed_parameters(context) - {"run", "repeats", "as_json", "quiet"}):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
            raise ScenarioError(
                f"{flags}: {run} has its own estimators and inputs; give --repeats, --json, --quiet only"
            )
        _time_run(run, repeats, as_json, quiet)
        return
    check_device(device)
    sizes, lengths = numbers("-R", num_projections, int, 1, 1 << 20), numbers("-L", seq_len, int, 1, 1 << 24)
    with progress("speed", quiet) as report:
        where = Backend(backend, device)
        result = study(names(maps), sizes, lengths, head_dim, repeats, where, dtype, report, names(methods))
    print_drawn(as_json, result._asdict(), [speed_section(result)], [chart(result, "speed")], out)


def _time_run(run: Path, repeats: int, as_json: bool, quiet: bool) -> None:
    from favorbench.console import progress
    from favorbench.console.studies import seconds_sections
    from favorbench.models.recommended import FILE
    from favorbench.results.seconds import write_seconds
    from favorbench.studies.speed.calls import time_run

    try:
        with progress("speed", quiet) as report:
            seconds = time_run(run, repeats, report)
    except KeyboardInterrupt:  # runs of a broken-off timing are not comparable with later ones
        interrupted(f": no seconds of {run} are kept that were not there before; the same command begins anew")
    file = write_seconds(run, seconds)
    print_result(as_json, seconds._asdict() | {"file": file}, seconds_sections(seconds), [file])
    if not quiet and not as_json and not (run / FILE).exists():
        say(f"favorbench plot {in_shell(run)} draws errors against them")
