"""Options that several commands share: one declaration and one wording each.

``rich_help_panel`` is the heading under which --help shows an option of a long command.
"""

import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from favorbench.cli import complete

TARGET, ESTIMATORS, TEXTS, INPUT, KERNEL, DRAWS, COMPUTING, OUTPUT = (
    "Target", "Estimators", "Model and texts", "Inputs", "Kernel", "Draws", "Computing", "Output",
)  # fmt: skip


def option(heading: str | None, help: str, *names: str, **settings: Any) -> Any:
    """An option under a heading of --help, with its spellings where they are not that of the parameter."""
    return typer.Option(*names, help=help, rich_help_panel=heading, **settings)


def and_also(option: Any, more: str) -> Any:
    """An option with more help in one command."""
    changed = copy.copy(option)
    changed.help = f"{option.help}{'  ' if more.startswith('[') else ' '}{more}"
    return changed


Text = str | None  # as it was typed: a scenario parses it

MAPS = option(ESTIMATORS, "Feature maps, e.g. positive,trig or my_module:MyMap.", autocompletion=complete.maps)
METHODS = option(
    ESTIMATORS,
    "Other estimators, e.g. clusters,multipole or sinks(4):clusters or my_module:my_attention.",
    autocompletion=complete.methods,
)
SAMPLERS = option(ESTIMATORS, "Samplers of the maps, e.g. iid,orthogonal.", autocompletion=complete.samplers)
SIZES = option(ESTIMATORS, "Sizes: projections R of maps, m of methods, e.g. 64,256.", "-R", "--num-projections")
LENGTHS = option(INPUT, "Lengths, e.g. 1024,4096.", "-L", "--seq-len")
INPUTS = option(
    INPUT,
    "gaussian, gaussian(std=0.5), sphere, minilm, or q, k, v in PATH.npz, PATH.safetensors or a folder.",
    autocompletion=complete.inputs,
)
OTHER_RUN = typer.Argument(help="Another run to compare with.", autocompletion=complete.runs)
RUN_OUT = option(OUTPUT, "Run directory.", "--out", "-o")
MODEL = typer.Argument(help="minilm, smollm2, a model's folder, a .gguf file, or an id of the hub.")

Sizes = Annotated[str, SIZES]
SomeSamplers = Annotated[str, SAMPLERS]
HEAD_DIM = option(INPUT, "Head dimension.", "-d", "--head-dim", min=1, max=4096)
Layout = Annotated[
    Text,
    option(INPUT, "Axes of q, k, v in a file: heads,L,d or L,heads,d; batch first.", metavar="<axes>"),
]
Causal = Annotated[
    bool | None,
    option(
        INPUT,
        "A query sees the keys up to its own position only.  [default: as a file of heads declares]",
        "--causal/--no-causal",
    ),
]
Heads = Annotated[Text, option(INPUT, "Only these heads of a file, e.g. L0H1,L5H0.")]
SingleHeads = Annotated[Text, option(None, "Show these heads only, one by one, e.g. L0H1,L5H0.")]
BACKEND = option(COMPUTING, "Array library: numpy or torch.", autocompletion=complete.words("numpy", "torch"))
DEVICE = option(COMPUTING, "Device of torch: cpu, cuda or cuda:N.", autocompletion=complete.words("cpu", "cuda"))
FigureOut = Annotated[Path | None, option(OUTPUT, "Also draw the figure, into this directory.", "--out", "-o")]

Texts = Annotated[list[Path] | None, option(TEXTS, "Texts, one input each.", metavar="FILE...")]
MoreTexts = Annotated[list[Path] | None, typer.Argument(metavar="FILE", hidden=True)]
TOKENS = option(TEXTS, "Tokens of each text, at most.  [default: 512]", "-L", "--length", metavar="<int>")
RemoteCode = Annotated[bool, option(TEXTS, "Run Python code that comes with the model.", "--trust-remote-code")]

Json = Annotated[bool, option(OUTPUT, "Print the result as JSON on stdout.", "--json")]
EXACT_HEADS = option(ESTIMATORS, "Heads that stay exact, e.g. L7H6-8,L18H0.", metavar="<heads>")

Quiet = Annotated[bool, option(OUTPUT, "Print errors and results only.", "--quiet", "-q")]

Metric = Annotated[str, option(None, "A metric; see `favorbench list metrics`.", autocompletion=complete.metrics)]
RunPath = Annotated[Path, typer.Argument(help="A run directory, e.g. results/quick.", autocompletion=complete.runs)]
Workers = Annotated[int, option(COMPUTING, "Processes; the rows are the same for any number.", min=1, max=1024)]
Cluster = Annotated[
    str | None,
    option(
        COMPUTING,
        "A Dask cluster: tcp://host:8786, the path of a scheduler.json, local:N, or none.",
        envvar="FAVORBENCH_CLUSTER",
    ),
]
Seed = Annotated[int, option(DRAWS, "Seed of all random streams.", min=0)]
