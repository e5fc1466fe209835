"""favorbench recommend."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import app, interrupted, print_result, resolve_cluster
from favorbench.cli.options import (
    INPUT,
    TARGET,
    Causal,
    Cluster,
    Heads,
    Json,
    Layout,
    Quiet,
    Seed,
    TargetMetric,
    Workers,
    and_also,
    option,
)

if TYPE_CHECKING:
    from favorbench.studies.recommend.answer import Recommendation


@app.command()
def recommend(
    inputs: Annotated[
        str,
        typer.Argument(
            help="PATH.npz or PATH.safetensors with q, k, v; minilm, gaussian.",
            show_default=False,
            autocompletion=complete.inputs,
        ),
    ],
    target: Annotated[float, option(TARGET, help="The error to keep below; of cosine and skill, to reach.")] = 0.1,
    metric: TargetMetric = "relative_error",
    probability: Annotated[float, option(TARGET, help="Share of the draws that must do so.")] = 0.9,
    confidence: Annotated[float, option(TARGET, help="Probability that all verdicts, on all heads, are right.")] = 0.95,
    max_size: Annotated[int, option(TARGET, help="Largest size: projections, centroids, landmarks or keys.")] = 1024,
    max_cost: Annotated[float, option(TARGET, help="Largest cost, in multiplications of exact attention.")] = 1.0,
    maps: Annotated[str | None, and_also(options.MAPS, "[default: the usual candidates]")] = None,
    methods: Annotated[str | None, and_also(options.METHODS, "[default: the usual candidates]")] = None,
    samplers: Annotated[str | None, and_also(options.SAMPLERS, "[default: orthogonal]")] = None,
    causal: Causal = None,
    layout: Layout = None,
    heads: Heads = None,
    over: Annotated[
        Literal["heads", "texts"], option(TARGET, help="One answer for each head, or for each head over all its texts.")
    ] = "heads",
    scale: Annotated[float, option(INPUT, help="Factor on q and k.")] = 1.0,
    seq_len: Annotated[int | None, option(INPUT, "-L", "--seq-len", help="Length.")] = None,
    head_dim: Annotated[int | None, options.HEAD_DIM] = None,
    seed: Seed = 0,
    workers: Workers = 1,
    cluster: Cluster = None,
    out: Annotated[Path | None, and_also(options.RUN_OUT, "[default: below results]")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest estimator below a target error, with a statistical guarantee.

    For every head: the cheapest setting with P(error <= target) >= probability, certified, or none. Trivial answers
    are always among the candidates. Draws are saved: the same command again resumes, also with another target.
    """
    from favorbench import console
    from favorbench.studies.recommend.study import Interrupted
    from favorbench.studies.recommend.study import recommend as run_recommend

    keys = {"scale": scale, "seq_len": seq_len, "head_dim": head_dim, "seed": seed, "layout": layout}
    try:
        with console.progress(f"recommend {inputs}", quiet, "heads") as report:
            found = run_recommend(
                inputs, target, metric, probability, confidence, max_size, max_cost, maps, methods, samplers, causal,
                heads, over, out, report, workers, resolve_cluster(cluster) or "none", **keys,
            )  # fmt: skip
    except Interrupted as error:
        _print(error.found, as_json)
        interrupted(": nothing above is certified where it says so far; the same command again resumes")
    _print(found, as_json)


def _print(found: "Recommendation", as_json: bool) -> None:
    """Draw the figure and print the recommendation."""
    from favorbench import style
    from favorbench.studies.recommend.answer import sections
    from favorbench.studies.recommend.figure import charts

    files = style.write(charts(found), found.path / "figures") if found.path else []
    decided = any(decision.outcome != "not finished" for decision in found.decisions)
    saved = f"\nSaved in {found.path}" + (": recommendation.json has the choice for each head." if decided else ".")
    print_result(as_json, found.as_dict() | {"files": files}, sections(found), [saved, *files[:1]])
