"""The commands that choose an estimator for a model: recommend, capture, model."""

from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import (
    CHOOSE,
    command,
    interrupted,
    names,
    number,
    numbers,
    print_result,
    resumable,
    say,
    typed_parameters,
    workers_of,
)
from favorbench.cli.options import (
    COMPUTING,
    DRAWS,
    ESTIMATORS,
    INPUT,
    OUTPUT,
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
    Sizes,
    SomeSamplers,
    Texts,
    Workers,
    and_also,
    option,
)
from favorbench.errors import ScenarioError
from favorbench.formats import format_seconds, in_shell

SOON = 3.0  # seconds until the rate is known

if TYPE_CHECKING:
    from favorbench.progress import Progress
    from favorbench.studies.recommend.answer import Recommendation


@command(CHOOSE)
def recommend(
    context: typer.Context,
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
    target: Annotated[
        float | None,
        option(
            TARGET,
            "The largest error; for cosine, skill and top1 the smallest value.  [default: 0.1, but none for these, mse "
            "and max_abs_error]",
        ),
    ] = None,
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
    are always among the candidates. Draws are saved (with --workers, every ten seconds): rerun the command to resume,
    also with another target.

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
    of_model = model is not None or bool(texts)
    if of_model:  # a flag is refused beside a model; the variable is for all commands
        where = cluster if "cluster" in typed_parameters(context) else "none"
    else:
        where = workers_of(context, workers, cluster)
        where = "none" if where == workers else where
    try:
        with console.progress(f"recommend {name}", quiet, unit) as bar:
            report = bar if of_model else with_hint(bar, workers if where == "none" else 0)
            result = run_recommend(
                None if positional else inputs, target, metric, probability, confidence, max_size, max_cost, maps,
                methods, samplers, causal, heads, over, out, report, workers, where, model,
                texts, by, trust_remote_code, per_head, device, exact_heads, head_dim=head_dim, layout=layout,
                seq_len=seq_len, seed=seed, num_projections=sizes, scale=None if scale == 1 else scale,
                notice=None if quiet else say,
            )  # fmt: skip
    except Interrupted as error:
        _print_answer(error.found, as_json)
        if not _saved(error.found):
            interrupted(f" before a draw was saved in {error.found.path}")
        interrupted(": `so far` above means not certified yet; rerun the command to resume")
    _print_answer(result, as_json)


def with_hint(report: "Progress | None", workers: int) -> "Progress | None":
    """Wrap progress over heads: after the first heads, say once how long all will take, if over a minute.

    workers: processes of this machine, 0 where a cluster searches.
    """
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


def _print_answer(result: "Recommendation", as_json: bool) -> None:
    """Draw the figure and print the recommendation."""
    from favorbench import style
    from favorbench.studies.recommend.answer import sections
    from favorbench.studies.recommend.figure import charts

    files = style.write(charts(result), result.path / "figures") if result.path else []
    decided = any(decision.outcome != "not finished" for decision in result.decisions)
    per_head = "" if result.model else " for each head"
    saved = f"\nSaved in {result.path}" + (f": recommendation.json has the choice{per_head}." if decided else ".")
    lines = [saved, *files[:1]] if _saved(result) else []
    print_result(as_json, result.as_dict() | {"files": files}, sections(result), lines)


def _saved(result: "Recommendation") -> bool:
    """Whether any draw is: a search that was interrupted, and workers that search a head, may have saved none."""
    return result.path is not None and (result.path / "recommendation.json").exists()


@command(CHOOSE)
def capture(
    model: Annotated[str, and_also(options.MODEL, "Or module:function that returns (model, inputs).")],
    more: MoreTexts = None,
    text: Texts = None,
    length: Annotated[int | None, options.TOKENS] = None,
    layers: Annotated[str | None, option(TEXTS, "Only these layers, e.g. 0,5.")] = None,
    heads: Annotated[str | None, option(TEXTS, "Only these heads of each layer, e.g. 0,3.")] = None,
    last: Annotated[
        int | None,
        option(TEXTS, "Causal layers: keep only this many last queries, and the keys before all of them.", min=1),
    ] = None,
    dtype: Annotated[str, option(OUTPUT, "Precision of the file: float32, float16 or bfloat16.")] = "float32",
    gradients: Annotated[
        int | None,
        option(
            OUTPUT,
            "Also write this many gradients of the model's prediction or embedding for each head, e.g. 16: sweeps "
            "of the file then predict the effect of an error on the model (metric effect).",
            min=1,
        ),
    ] = None,
    out: Annotated[Path, option(OUTPUT, "The .npz or .safetensors file to write.", "--out", "-o")] = Path("heads.npz"),
    trust_remote_code: RemoteCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model's queries, keys and values to a file.

    The file is for recommend and for --inputs. Each layer is checked: exact attention of its queries, keys and values
    must give the output of the model's own attention.
    """
    from favorbench import console
    from favorbench.console.studies import capture_section
    from favorbench.models.capture import capture_file
    from favorbench.models.plan import LENGTH
    from favorbench.models.recorder import Choice

    choice = Choice(_indices("--layers", layers), _indices("--heads", heads), last, dtype, gradients)
    texts = [*(text or []), *(more or [])]
    with console.progress("capture", quiet, "passes" if gradients else "texts") as report:
        captured = capture_file(
            model, texts, out, choice, length,
            trust_remote_code=trust_remote_code, progress=report, notice=None if quiet else say,
        )  # fmt: skip
    file = in_shell(out)
    next_command = f"favorbench sweep --inputs {file}" if gradients else f"favorbench recommend {file}"
    data = {"file": out, "next": next_command, **captured.meta, "layers": captured.layers}
    print_result(as_json, data, [capture_section(captured, out, next_command)])
    shortest = captured.meta["texts"][0]["tokens"]
    if texts and not quiet and not as_json and shortest < (length or LENGTH) and (len(texts) > 1 or length):
        say(f"the shortest text has {shortest} tokens: all are cut to this length")


def _indices(flag: str, given: str | None) -> tuple[int, ...] | None:
    return None if given is None else tuple(numbers(flag, given, int, 0, 100_000))


def _old_name(value: bool) -> None:
    if value:
        say("--heads is now --single-heads, which is the default; the old name goes in version 0.4")


@command(CHOOSE)
def model(
    model: Annotated[str, and_also(options.MODEL, "Or module:function that returns (model, inputs).")],
    more: MoreTexts = None,
    text: Texts = None,
    maps: Annotated[str, and_also(options.MAPS, "With --calibrate also calibrated:MAP. none: no maps.")] = "positive",
    methods: Annotated[str, and_also(options.METHODS, "Or none.")] = "sampled-keys,clusters,multipole",
    num_projections: Sizes = "64",
    samplers: SomeSamplers = "orthogonal",
    draws: Annotated[str, option(DRAWS, "Draws of each estimator on each text.", metavar="<int>")] = "3",
    layers: Annotated[
        str, option(TEXTS, "all; each, one at a time; or numbers, replaced together; all,each for both.")
    ] = "all",
    recommended: Annotated[
        str | None, option(ESTIMATORS, "Directories of recommend; each head gets the estimator chosen for it.")
    ] = None,
    exact_heads: Annotated[str | None, options.EXACT_HEADS] = None,
    calibrate: Annotated[Path | None, option(ESTIMATORS, "Another text, to which calibrated: maps are fitted.")] = None,
    redraw: Annotated[
        str, option(DRAWS, "Draw once for each layer, once for the model, or anew at each call.")
    ] = "layer",
    length: Annotated[str | None, options.TOKENS] = None,
    single_heads: Annotated[
        bool, option(OUTPUT, "Also measure errors of single heads: twice the work.", "--single-heads/--no-heads")
    ] = True,
    _heads: Annotated[bool, option(OUTPUT, "", "--heads", hidden=True, callback=_old_name)] = False,
    seconds: Annotated[
        int,
        option(COMPUTING, "Time each estimator in this many runs, interleaved with exact attention.", min=0, max=1000),
    ] = 0,
    predict: Annotated[
        int,
        option(
            OUTPUT,
            "Also predict the effect on the model from this many gradients of each text, e.g. 16.",
            min=0,
            max=1000,
        ),
    ] = 0,
    device: Annotated[str, options.DEVICE] = "cpu",
    seed: Seed = 0,
    out: Annotated[Path | None, option(OUTPUT, "Directory.  [default: results/model-NAME]", "--out", "-o")] = None,
    trust_remote_code: RemoteCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the effect of an estimator on a whole model.

    Replaces attention, without training, by every estimator, in all layers or one at a time, on every text. Prints a
    table with exact attention in bfloat16, uniform attention and no attention, and draws figures. Measurements are
    saved as they finish: rerun the command to resume it, or with more texts, sizes or draws to add them.
    """
    from favorbench import console
    from favorbench.models.plan import ALL, ModelScenario
    from favorbench.models.predicted import check_gradients
    from favorbench.models.predicted import predict as predict_effects
    from favorbench.models.study import study

    tokens = None if length is None else number("-L", length, int, 2, 1 << 24)
    scenario = ModelScenario(
        model, tuple(map(str, [*(text or []), *(more or [])])), tokens, names(maps), names(methods), names(samplers),
        tuple(numbers("-R", num_projections, int, 1, 1 << 20)), number("--draws", draws, int, 1, 1 << 16), layers,
        calibrate and str(calibrate), redraw, seed, single_heads, names(recommended), device, exact_heads,
    )  # fmt: skip
    if predict and ALL not in scenario.layer_sets:
        raise ScenarioError(f"`predict` is of all layers together: `layers` {layers!r} given; add all, or leave it out")
    path = out or Path("results") / f"model-{Path(model).name.removesuffix('.gguf')}"
    if predict:
        check_gradients(path, predict)
    with (
        resumable(path, "measurement"),
        console.progress(f"model {Path(model).name}", quiet, "measurements") as report,
    ):
        notice = (lambda text: None) if quiet else say
        after = partial(predict_effects, path=path, gradients=predict, report=report, notice=notice)
        result = study(scenario, path, trust_remote_code, report, seconds, after if predict else None)
    if not quiet:
        for name in result.set_aside:
            say(f"{path}/trials/{name} was damaged: it was set aside, and its rows were measured again")
        for name, reason in result.left.items():
            say(f"{name} is left unchanged: {reason}")
    _print_study(path, as_json)


def _print_study(path: Path, as_json: bool) -> None:
    """Write the summary and the figures of a study, and print it."""
    from favorbench import style
    from favorbench.files import write_text
    from favorbench.models.figures import charts
    from favorbench.models.summary import read, sections
    from favorbench.sections import to_markdown

    result = read(path)
    shown = sections(result)
    write_text(path / "summary.csv", result.lines.to_csv(index=False, float_format="%.6g"))
    write_text(path / "summary.md", to_markdown(shown))
    files = style.write(charts(result), path / "figures")
    drawn = [str(file) for file in files if file.suffix == ".png"]
    print_result(as_json, result.as_dict() | {"files": files}, shown, [*drawn, f"Saved in {path}."])
