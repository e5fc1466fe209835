"""Options that several commands share: one declaration and one wording each, to be used with Annotated.

``rich_help_panel`` is the heading under which --help shows an option of a long command.
"""

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from favorbench.cli import complete

TARGET, ESTIMATORS, TEXTS, INPUT, FIGURES, KERNEL, DRAWS, COMPUTING, OUTPUT = (
    "Target", "Estimators", "Model and texts", "Inputs", "Figures", "Kernel", "Draws", "Computing", "Output",
)  # fmt: skip


def option(panel: str, *names: str, help: str, **settings: Any) -> Any:
    """An option under a heading of --help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


def and_also(option: Any, more: str) -> Any:
    """An option with something to add to its help in one command."""
    changed = copy.copy(option)
    changed.help = f"{option.help}{'  ' if more.startswith('[') else ' '}{more}"
    return changed


MAPS = option(
    ESTIMATORS, "--maps", help="Feature maps, e.g. positive,trig or my_module:MyMap.", autocompletion=complete.maps
)
METHODS = option(
    ESTIMATORS,
    "--methods",
    help="Other estimators, e.g. clusters,multipole or sinks(4):clusters or my_module:my_attention.",
    autocompletion=complete.methods,
)
SAMPLERS = option(
    ESTIMATORS, "--samplers", help="Samplers of the maps, e.g. iid,orthogonal.", autocompletion=complete.samplers
)
SIZES = option(ESTIMATORS, "-R", "--num-projections", help="Sizes: projections R of maps, m of methods, e.g. 64,256.")
BASELINES = option(
    ESTIMATORS,
    "--baselines",
    help="uniform (always), taylor-1, taylor-2, sampled-keys, best-rank, top-keys.",
    autocompletion=complete.baselines,
)
LENGTHS = option(INPUT, "-L", "--seq-len", help="Lengths, e.g. 1024,4096.")
LENGTH = option(INPUT, "-L", "--seq-len", help="Length.")
HEAD_DIMS = option(INPUT, "-d", "--head-dim", help="Head dimensions, e.g. 16,64.")
HEAD_DIM = option(INPUT, "-d", "--head-dim", min=1, max=4096, help="Head dimension.")
INPUTS = option(
    INPUT,
    "--inputs",
    help="gaussian, gaussian(std=0.5), sphere, minilm, or q, k, v in PATH.npz, PATH.safetensors or a folder.",
    autocompletion=complete.inputs,
)
LAYOUT = option(INPUT, metavar="<axes>", help="Axes of q, k, v in a file: heads,L,d or L,heads,d; a batch comes first.")
HEADS = option(INPUT, "--heads", help="Only these heads of a file, e.g. L0H1,L5H0.")
CAUSAL = option(
    INPUT,
    "--causal/--no-causal",
    help="A query sees the keys up to its own position only.  [default: what a file of heads says of itself]",
)
REPEATS = option(DRAWS, "--repeats", min=3, max=1000, help="Interleaved runs of each.")
BACKEND = option(
    COMPUTING, "--backend", help="Array library: numpy or torch.", autocompletion=complete.words("numpy", "torch")
)
DEVICE = option(
    COMPUTING, "--device", help="Device of torch: cpu, cuda or cuda:N.", autocompletion=complete.words("cpu", "cuda")
)
RUN = typer.Argument(help="A run directory, e.g. results/quick.", show_default=False, autocompletion=complete.runs)
RUN_OUT = option(OUTPUT, "--out", "-o", help="Run directory.")
FIGURE_OUT = option(OUTPUT, "--out", "-o", help="Also draw the figure, into this directory.")

# Of the commands that read a model.
MODEL = typer.Argument(help="minilm, smollm2, a model's folder, a .gguf file, or an id of the hub.")
MORE_TEXT = typer.Argument(metavar="FILE", hidden=True)
TEXT = option(TEXTS, metavar="FILE...", help="Texts that the model reads, one input each.")
TOKENS = option(TEXTS, "-L", "--length", help="Tokens of each text, at most.  [default: 512]", metavar="<int>")
REMOTE_CODE = option(TEXTS, "--trust-remote-code", help="Run Python code that the model's folder or page brings along.")

Json = Annotated[bool, option(OUTPUT, "--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, option(OUTPUT, "--quiet", "-q", help="No progress and no messages; errors and results stay.")]
METRIC: dict[str, Any] = {
    "help": "A metric; see `favorbench list metrics`.", "autocompletion": complete.metrics
}  # fmt: skip
Metric = Annotated[str, typer.Option(**METRIC)]
RunPath = Annotated[Path, RUN]
Workers = Annotated[int, option(COMPUTING, min=1, max=1024, help="Processes; the rows are the same for any number.")]
Cluster = Annotated[
    str | None,
    option(
        COMPUTING,
        help="A Dask cluster: tcp://host:8786, the path of a scheduler.json, local:N, or none.",
        envvar="FAVORBENCH_CLUSTER",
    ),
]
Seed = Annotated[int, option(DRAWS, min=0, help="Seed of all random streams.")]
