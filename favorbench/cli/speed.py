"""favorbench speed and favorbench time."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli import options
from favorbench.cli.app import (
    Json,
    Quiet,
    RunPath,
    app,
    check_device,
    echo,
    interrupted_timing,
    numbers,
    print_json,
    say,
    show,
)
from favorbench.cli.options import COMPUTING, OUTPUT, option
from favorbench.errors import ScenarioError


@app.command()
def speed(
    maps: Annotated[str, options.MAPS] = "positive,trig",
    methods: Annotated[str | None, options.METHODS] = None,
    num_projections: Annotated[str, options.SIZES] = "64,256",
    seq_len: Annotated[str, options.LENGTHS] = "256,512,1024,2048,4096,8192,16384",
    head_dim: Annotated[int, options.HEAD_DIM] = 64,
    repeats: Annotated[int, options.REPEATS] = 7,
    backend: Annotated[Literal["numpy", "torch"], options.BACKEND] = "numpy",
    device: Annotated[str, options.DEVICE] = "cpu",
    dtype: Annotated[str, option(COMPUTING, help="Precision of exact and linear attention alike.")] = "float64",
    workers: Annotated[int, typer.Option(hidden=True)] = 1,
    out: Annotated[Path, option(OUTPUT, "--out", "-o", help="Where the figure goes.")] = Path("results/speed"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the length from which linear attention, or a method, is faster than exact attention.

    Exact attention (in tiles; torch's fused one too where torch is installed) against linear attention for each map
    and R, on one core or one GPU: times, memory, fitted slopes and the break-even length, as a table and a figure.
    """
    from favorbench import style
    from favorbench.console import progress
    from favorbench.console.studies import speed_section
    from favorbench.numerics.backend import Backend
    from favorbench.registry import split_list
    from favorbench.studies.speed.figure import chart
    from favorbench.studies.speed.study import study

    if workers != 1:
        raise ScenarioError(f"--workers {workers}: speed times one worker, alone on the machine; leave --workers out")
    check_device(device)
    sizes, lengths = numbers("-R", num_projections, int, 1, 1 << 20), numbers("-L", seq_len, int, 1, 1 << 24)
    with progress("speed", quiet) as report:
        where, others = Backend(backend, device), split_list(methods) if methods else []
        found = study(split_list(maps), sizes, lengths, head_dim, repeats, where, dtype, report, others)
    files = style.write([chart(found, "speed")], out)
    if as_json:
        print_json(found.as_dict() | {"files": files})
        return
    show([speed_section(found)])
    for file in files:
        echo(str(file))


@app.command()
def time(
    run: RunPath, repeats: Annotated[int, options.REPEATS] = 7, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Time the estimators of a run on this machine.

    Exact attention and each estimator at each of its sizes, interleaved, on one head of the run's inputs and on one
    core or one GPU; bounds among baselines are left out. Saved in RUN/seconds.json, with the machine, apart from the
    run's rows; `favorbench plot RUN` draws errors against them.
    """
    from favorbench.console import progress
    from favorbench.console.studies import seconds_sections
    from favorbench.results.seconds import write_seconds
    from favorbench.studies.speed.of_run import time_run

    try:
        with progress("time", quiet) as report:
            found = time_run(run, repeats, report)
    except KeyboardInterrupt:
        interrupted_timing(run)
    file = write_seconds(run, found)
    if as_json:
        print_json(found._replace(rows=found.rows.to_dict(orient="records"))._asdict() | {"file": file})
        return
    show(seconds_sections(found))
    echo(str(file))
    if not quiet:
        say(f"favorbench plot {run} draws errors against them")
