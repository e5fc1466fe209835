"""favorbench recommend."""

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import CHOOSE, command, interrupted, print_result, resolve_cluster, say
from favorbench.cli.options import (
    INPUT,
    TARGET,
    TEXTS,
    Causal,
    Cluster,
    Heads,
    Json,
    Layout,
    MoreTexts,
    Quiet,
    RemoteCode,
    Seed,
    Workers,
    and_also,
    option,
)
from favorbench.errors import ScenarioError
from favorbench.formats import format_seconds

SOON = 3.0  # seconds until the rate is known

if TYPE_CHECKING:
    from favorbench.progress import Progress
    from favorbench.studies.recommend.answer import Recommendation


@command(CHOOSE)
def recommend(
    inputs: Annotated[
        str | None,
        typer.Argument(
            help="PATH.npz or PATH.safetensors with q, k, v; minilm, gaussian. Not with --model.",
            autocompletion=complete.inputs,
        ),
    ] = None,
    more: MoreTexts = None,
    model: Annotated[
        str | None,
        option(TEXTS, "One setting for a whole model: minilm, smollm2, a folder, a .gguf file, a hub id."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        option(TEXTS, "With --model: files, split into texts of -L tokens.", metavar="FILE..."),
    ] = None,
    target: Annotated[float, option(TARGET, "The largest error; for cosine, skill and top1 the smallest value.")] = 0.1,
    metric: Annotated[
        str | None,
        option(
            TARGET,
            "A metric; see `favorbench list metrics`. With --model: embedding_loss (1 - cosine), delta_nll (nats "
            "per token), kl or top1.  "
            "[default: relative_error; embedding_loss of encoders, delta_nll of language models]",
            autocompletion=complete.metrics,
        ),
    ] = None,
    by: Annotated[
        Literal["multiplications", "seconds"], option(TARGET, "With --model: the cost that orders the candidates.")
    ] = "multiplications",
    per_head: Annotated[
        bool,
        option(TARGET, "With --model: also try settings per head, chosen on a third of the texts.", "--per-head"),
    ] = False,
    exact_heads: Annotated[str | None, and_also(options.EXACT_HEADS, "With --model.")] = None,
    probability: Annotated[float, option(TARGET, "Share of the draws that must meet the target.")] = 0.9,
    confidence: Annotated[float, option(TARGET, "Probability that all verdicts, on all heads, are right.")] = 0.95,
    max_size: Annotated[int, option(TARGET, "Largest size: projections, centroids, landmarks or keys.")] = 1024,
    sizes: Annotated[
        str | None,
        option(
            TARGET,
            "Sizes to try, e.g. 16,24,32,48.  [default: powers of two up to --max-size; with --model also "
            "1.5 times these]",
            "-R",
            "--num-projections",
            metavar="<ints>",
        ),
    ] = None,
    max_cost: Annotated[float, option(TARGET, "Cost limit, relative to that of exact attention.")] = 1.0,
    maps: Annotated[str | None, and_also(options.MAPS, "[default: the usual candidates]")] = None,
    methods: Annotated[str | None, and_also(options.METHODS, "[default: the usual candidates]")] = None,
    samplers: Annotated[str | None, and_also(options.SAMPLERS, "[default: orthogonal]")] = None,
    causal: Causal = None,
    layout: Layout = None,
    heads: Heads = None,
    over: Annotated[
        Literal["heads", "texts"], option(TARGET, "One answer for each head, or for each head over all its texts.")
    ] = "heads",
    scale: Annotated[float, option(INPUT, "Factor on q and k.")] = 1.0,
    seq_len: Annotated[int | None, option(INPUT, "Length; for texts 512 by default.", "-L", "--seq-len")] = None,
    head_dim: Annotated[int | None, options.HEAD_DIM] = None,
    seed: Seed = 0,
    workers: Workers = 1,
    device: Annotated[str, and_also(options.DEVICE, "With --model.")] = "cpu",
    cluster: Cluster = None,
    out: Annotated[Path | None, and_also(options.RUN_OUT, "[default: below results]")] = None,
    trust_remote_code: RemoteCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest estimator below a target error, with a statistical guarantee.

    For every head: the cheapest setting with P(error <= target) >= probability, certified, or none. Trivial answers
    are always among the candidates. Draws are saved: rerun the command to resume, also with another target.

    With --model and --text: one setting for all attention of a model. The error is its effect on the model, a draw is
    a text, and the certificate is about further texts like these. --per-head also tries settings that differ between
    heads.

    favorbench recommend --model minilm --text corpus/*.txt --target 0.01
    """
    from favorbench import console
    from favorbench.studies.recommend.study import Interrupted
    from favorbench.studies.recommend.study import recommend as run_recommend

    positional = [Path(inputs)] if inputs and text else []  # --text a b c: click takes b and c for arguments
    texts = [*(text or []), *positional, *(more or [])]
    if (inputs is None and model is None and not texts) or (more and not text):
        given = f"{inputs} {more[0]}" if more else "nothing"
        raise ScenarioError(f"{given} given, allowed: one file or name of inputs, or --model MODEL --text FILE...")
    name, unit = (inputs, "heads") if model is None else (Path(model).name, "measurements")
    try:
        with console.progress(f"recommend {name}", quiet, unit) as bar:
            report = bar if model else with_hint(bar, workers)
            result = run_recommend(
                None if positional else inputs, target, metric, probability, confidence, max_size, max_cost, maps,
                methods, samplers, causal, heads, over, out, report, workers, resolve_cluster(cluster) or "none", model,
                texts, by, trust_remote_code, per_head, device, exact_heads, head_dim=head_dim, layout=layout,
                seq_len=seq_len, seed=seed, num_projections=sizes, scale=None if scale == 1 else scale,
            )  # fmt: skip
    except Interrupted as error:
        _print(error.found, as_json)
        interrupted(": `so far` above means not certified yet; rerun the command to resume")
    _print(result, as_json)


def with_hint(report: "Progress | None", workers: int) -> "Progress | None":
    """Wrap progress over heads: after the first heads, say once how long all will take, if over a minute."""
    if report is None:
        return None
    start, said = monotonic(), False

    def progress(done: int, total: int, step: str = "") -> None:
        nonlocal said
        report(done, total, step)
        seconds = monotonic() - start
        if step and done and not said and seconds > SOON and seconds / done * total > 60:
            said = True
            faster = "; --workers N searches them in N processes" if workers == 1 else ""
            say(f"{total} heads take about {format_seconds(seconds / done * total)}{faster}")

    return progress


def _print(result: "Recommendation", as_json: bool) -> None:
    """Draw the figure and print the recommendation."""
    from favorbench import style
    from favorbench.studies.recommend.answer import sections
    from favorbench.studies.recommend.figure import charts

    files = style.write(charts(result), result.path / "figures") if result.path else []
    decided = any(decision.outcome != "not finished" for decision in result.decisions)
    per_head = "" if result.model else " for each head"
    saved = f"\nSaved in {result.path}" + (f": recommendation.json has the choice{per_head}." if decided else ".")
    print_result(as_json, result.as_dict() | {"files": files}, sections(result), [saved, *files[:1]])
