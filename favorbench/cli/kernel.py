"""The command that measures kernels as such."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import Json, Quiet, Seed, app, check_maps, numbers, print_json, show
from favorbench.cli.options import DRAWS, ESTIMATORS, INPUT, KERNEL, option
from favorbench.errors import ScenarioError

if TYPE_CHECKING:
    from favorbench.studies.kernel.study import PointSet


@app.command()
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
            help="gaussian, softmax: any of `favorbench list maps`; polynomial: explicit, tensorsketch; others: "
            "explicit.  [default: gaussian trig,phase; softmax positive,trig; others all]",
            show_default=False,
            autocompletion=complete.maps,
        ),
    ] = None,
    samplers: Annotated[str, options.SAMPLERS] = "iid,orthogonal",
    num_projections: Annotated[str, options.SIZES] = "16,32,64,128,256",
    budget: Annotated[
        Literal["projections", "features"], option(ESTIMATORS, help="What -R counts: projections or features.")
    ] = "projections",
    points: Annotated[
        str | None,
        option(INPUT, metavar="FILE", help="Points, one a row: a .npy or .csv.  [default: N(0, I)]"),
    ] = None,
    num_points: Annotated[int | None, option(INPUT, min=1, max=2048, help="How many points.  [default: 200]")] = None,
    head_dim: Annotated[
        int | None,
        option(INPUT, "-d", "--head-dim", min=1, max=4096, help="Their dimension.  [default: 16]"),
    ] = None,
    scale: Annotated[float, option(INPUT, help="Factor on the points.")] = 1.0,
    sigma: Annotated[
        float | None,
        option(
            KERNEL,
            help="Bandwidth: gaussian and softmax divide points by it.  [default: gaussian d^(1/2), softmax d^(1/4)]",
        ),
    ] = None,
    degree: Annotated[
        int | None,
        option(KERNEL, min=1, max=30, help="Degree of the polynomial kernel.  [default: 2]"),
    ] = None,
    constant: Annotated[
        float | None,
        option(KERNEL, help="Constant of the polynomial kernel, (x.y + c)^degree.  [default: 1]"),
    ] = None,
    trials: Annotated[int, option(DRAWS, min=1, max=1_000_000, help="Draws of every cell.")] = 20,
    seed: Seed = 0,
    out: Annotated[Path | None, options.FIGURE_OUT] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the error of a kernel's approximated Gram matrix.

    On fixed points, over draws of the projections: relative Frobenius error, largest error, bias and spread, beside the
    closed form of their expectation.
    """
    from favorbench import console, style
    from favorbench.console.studies import gram_section
    from favorbench.registry import split_list
    from favorbench.studies.kernel.figure import chart
    from favorbench.studies.kernel.study import study
    from favorbench.studies.kernel.targets import get_kernel

    sizes = numbers("-R", num_projections, int, low=1)
    where = _points(points, num_points, head_dim, scale, seed)
    target = get_kernel(name, where.values.shape[1], sigma=sigma, degree=degree, constant=constant)
    chosen = split_list(maps) if maps is not None else target.default_maps
    check_maps("kernel", chosen)
    with console.progress(f"kernel {name}", quiet) as report:
        found = study(target, chosen, split_list(samplers), sizes, where, trials, seed, budget, report)
    files = style.write([chart(found, f"kernel-{name}")], out) if out else []
    if as_json:
        print_json(found.as_dict() | {"files": [str(file) for file in files]})
        return
    show([gram_section(found)])
    typer.echo("".join(f"{file}\n" for file in files), nl=False)


def _points(path: str | None, count: int | None, head_dim: int | None, scale: float, seed: int) -> "PointSet":
    from favorbench.studies.kernel.study import DEFAULT_POINTS, gaussian_points, points_of_file

    if path is None:
        return gaussian_points(count or DEFAULT_POINTS, head_dim or 16, scale, seed)
    if head_dim is not None:
        raise ScenarioError(f"-d {head_dim}: the points of {path} have their own dimension: leave -d out")
    return points_of_file(path, count, scale, seed)
