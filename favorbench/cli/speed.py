"""favorbench speed."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from favorbench.cli import options
from favorbench.cli.app import Json, Quiet, app, echo, print_json
from favorbench.cli.flags import check_device, numbers
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
    dtype: Annotated[str, typer.Option(help="Precision, of exact and linear attention alike.")] = "float64",
    workers: Annotated[int, typer.Option(hidden=True)] = 1,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the figure goes.")] = Path("results/speed"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """From which L on is linear attention, or a method, faster?

    Exact attention (in tiles; torch's fused one too where torch is installed) against linear attention for each map
    and R, on one core or one GPU: times, memory, fitted slopes and the crossover, as a table and a figure.
    """
    from favorbench import console
    from favorbench.numerics.backend import Backend
    from favorbench.registry import split_list
    from favorbench.studies.speed import figure as speed_figure
    from favorbench.studies.speed.study import study

    if workers != 1:
        raise ScenarioError(f"--workers {workers}: speed times one worker, alone on the machine; leave --workers out")
    check_device(device)
    sizes, lengths = numbers("-R", num_projections, int, 1, 1 << 20), numbers("-L", seq_len, int, 1, 1 << 24)
    with console.progress("speed", quiet) as report:
        where, others = Backend(backend, device), split_list(methods) if methods else []
        found = study(split_list(maps), sizes, lengths, head_dim, repeats, where, dtype, report, others)
    files = speed_figure.draw(found, "speed", out)
    if as_json:
        print_json(found.as_dict() | {"files": files})
        return
    console.show_speed(console.stdout(), found)
    for file in files:
        echo(str(file))
