"""Options that several commands have: one declaration and one wording each, to be used with Annotated.

A command whose option takes more, or has a default of its own to explain, says so with ``and_also``.
"""

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from favorbench.cli import complete

MAPS = typer.Option("--maps", help="Feature maps, e.g. positive,trig or my_module:MyMap.", autocompletion=complete.maps)
METHODS = typer.Option(
    "--methods",
    help="Other estimators, e.g. clusters,multipole or sinks(4):clusters or my_module:my_attention.",
    autocompletion=complete.methods,
)
SAMPLERS = typer.Option(
    "--samplers", help="Samplers of the maps, e.g. iid,orthogonal.", autocompletion=complete.samplers
)
SIZES = typer.Option("-R", "--num-projections", help="Sizes: R of maps, m of methods, e.g. 64,256.")
LENGTHS = typer.Option("-L", "--seq-len", help="Lengths, e.g. 1024,4096.")
LENGTH = typer.Option("-L", "--seq-len", help="Length.")
HEAD_DIMS = typer.Option("-d", "--head-dim", help="Head dimensions, e.g. 16,64.")
HEAD_DIM = typer.Option("-d", "--head-dim", min=1, max=4096, help="Head dimension.")
INPUTS = typer.Option(
    "--inputs",
    help="gaussian, gaussian(std=0.5), sphere, minilm, or q, k, v in PATH.npz, PATH.safetensors or a folder.",
    autocompletion=complete.inputs,
)
HEADS = typer.Option("--heads", help="Only these heads of a file, e.g. L0H1,L5H0.")
CAUSAL = typer.Option(
    "--causal/--no-causal",
    help="A query sees the keys up to its own position only.  [default: what a file of heads says of itself]",
)
BACKEND = typer.Option(
    "--backend", help="Array library: numpy or torch.", autocompletion=complete.words("numpy", "torch")
)
DEVICE = typer.Option(
    "--device", help="Device of torch: cpu, cuda or cuda:N.", autocompletion=complete.words("cpu", "cuda")
)
REPEATS = typer.Option("--repeats", min=3, max=1000, help="Runs of each, taken in turns.")
RUN = typer.Argument(help="A run directory, e.g. results/quick.", show_default=False, autocompletion=complete.runs)
RUN_OUT = typer.Option("--out", "-o", help="Run directory.", show_default=False)
FIGURE_OUT = typer.Option("--out", "-o", help="Also draw the figure, into this directory.", show_default=False)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no messages; errors and results stay.")]
Metric = Annotated[str, typer.Option(help="A metric; see `favorbench list metrics`.", autocompletion=complete.metrics)]
RunPath = Annotated[Path, RUN]
Workers = Annotated[int, typer.Option(min=1, max=1024, help="Processes; the rows are the same for any number.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="A Dask cluster: tcp://host:8786, the path of a scheduler.json, local:N, or none.",
        envvar="FAVORBENCH_CLUSTER",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random streams.")]


def and_also(option: Any, more: str) -> Any:
    """An option with something to add to its help in one command."""
    changed = copy.copy(option)
    changed.help = f"{option.help}{'  ' if more.startswith('[') else ' '}{more}"
    return changed
