"""favorbench sweep."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from favorbench.cli import complete, options
from favorbench.cli.app import MEASURE, command, number, print_json, print_result, resumable, say, workers_of
from favorbench.cli.options import (
    COMPUTING,
    DRAWS,
    ESTIMATORS,
    INPUT,
    OUTPUT,
    Causal,
    Cluster,
    Heads,
    Json,
    Layout,
    Quiet,
    Text,
    Workers,
    and_also,
    option,
)
from favorbench.errors import FavorbenchError
from favorbench.formats import format_bytes, format_seconds, heading, in_shell

if TYPE_CHECKING:
    from favorbench.engine.plan import Plan
    from favorbench.engine.scenario import Names, Scenario
    from favorbench.engine.study import Study
    from favorbench.results.results import Results

LONG = 60.0  # seconds; a longer sweep is announced
_SIZES = (16, 64, 256)  # of the estimators that a sweep of maps alone names


@command(MEASURE)
def sweep(
    context: typer.Context,
    scenario: Annotated[
        Text,
        typer.Argument(
            help="A scenario file, or the name of an included one.  [default: quick]",
            autocompletion=complete.scenarios,
        ),
    ] = None,
    maps: Annotated[Text, and_also(options.MAPS, "none: no maps.")] = None,
    methods: Annotated[Text, options.METHODS] = None,
    samplers: Annotated[Text, options.SAMPLERS] = None,
    num_projections: Annotated[Text, and_also(options.SIZES, "dlogd is int(d ln d).")] = None,
    budget: Annotated[
        Text,
        option(
            ESTIMATORS,
            "What -R counts: projections, features, or cost (as many multiplications as a map of R features).",
            autocompletion=complete.words("projections", "features", "cost"),
        ),
    ] = None,
    baselines: Annotated[
        Text,
        option(
            ESTIMATORS,
            "uniform (always), taylor-1, taylor-2, sampled-keys, best-rank, top-keys.",
            autocompletion=complete.baselines,
        ),
    ] = None,
    calibrate: Annotated[
        Text,
        option(
            ESTIMATORS,
            "Heads of another text, to which maps written calibrated:MAP are fitted.",
            autocompletion=complete.inputs,
        ),
    ] = None,
    inputs: Annotated[Text, options.INPUTS] = None,
    layout: Layout = None,
    heads: Heads = None,
    causal: Causal = None,
    seq_len: Annotated[Text, options.LENGTHS] = None,
    head_dim: Annotated[Text, option(INPUT, "Head dimensions, e.g. 16,64.", "-d", "--head-dim")] = None,
    scale: Annotated[Text, option(INPUT, "Factors on q and k, e.g. 0.5,1.0.")] = None,
    value_scale: Annotated[Text, option(INPUT, "Factor on v.", metavar="<float>")] = None,
    trials: Annotated[Text, option(DRAWS, "Draws of each combination.", metavar="<int>")] = None,
    redraw: Annotated[
        Text, option(DRAWS, "New inputs for each trial, or for each R.", autocompletion=complete.words("trial", "R"))
    ] = None,
    query_rows: Annotated[
        Text,
        option(
            DRAWS,
            "Measure the error on this many random query rows.  [default: all to 4096, then 1024]",
            metavar="<int>",
        ),
    ] = None,
    seed: Annotated[Text, option(DRAWS, "Seed of all random streams.", metavar="<int>")] = None,
    retry_failed: Annotated[
        bool, option(DRAWS, "Recompute draws in which an estimator failed.", "--retry-failed")
    ] = False,
    workers: Workers = 1,
    cluster: Cluster = None,
    batch: Annotated[
        str,
        option(
            COMPUTING, "Draws computed together by torch (NumPy: one); auto: enough to fill a GPU.", metavar="<int>"
        ),
    ] = "auto",
    backend: Annotated[Text, options.BACKEND] = None,
    device: Annotated[Text, options.DEVICE] = None,
    dtype: Annotated[
        Text,
        option(
            COMPUTING,
            "Precision of the estimator: float64, float32; torch: tf32, bfloat16, float16.",
            autocompletion=complete.words("float64", "float32", "tf32", "bfloat16", "float16"),
        ),
    ] = None,
    out: Annotated[Path | None, and_also(options.RUN_OUT, "[default: results/NAME]")] = None,
    dry_run: Annotated[
        bool, option(OUTPUT, "Print the plan and what it will cost; compute nothing.", "--dry-run")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure maps and methods against exact attention.

    Every map with every sampler, and every method, at each R, L and d, on the same draws. Prints a table of errors,
    over all heads if there are several. Draws are saved as they finish: rerun the command to resume. Lists are combined
    in all ways. Flags override the scenario file.
    """
    from favorbench.engine.plan import plan
    from favorbench.engine.scenario import Scenario, load_scenario
    from favorbench.engine.study import Study, default_directory

    draws_together = None if batch == "auto" else number("--batch", batch, int, low=1)
    # The keys of a scenario are passed on as they were typed: options are named after them.
    study = Study.of(load_scenario(scenario, {key: context.params.get(key) for key in Scenario.model_fields}))
    where = workers_of(context, workers, study.scenario.cluster)
    path = out or default_directory(study)
    if not quiet:
        _say_about_inputs(study, plan(study))
    if dry_run:
        _print_plan(plan(study), path, as_json, draws_together)
        return
    from favorbench import console
    from favorbench.engine.cost import cost
    from favorbench.results.findings import sentences
    from favorbench.results.heads import over_heads
    from favorbench.results.sections import run_sections
    from favorbench.results.summary import compared
    from favorbench.run import sweep as run_sweep

    if not quiet:
        expected, here = cost(plan(study)), where == workers
        missing = expected.draws - _stored(path, retry_failed)
        seconds = expected.seconds * missing / expected.draws / (workers if here else 1)
        if seconds > LONG:
            say(f"{missing} draws to compute, about {format_seconds(seconds)}{'' if here else ' on one worker'}")
    with resumable(path), console.progress(f"sweep {study.scenario.name}", quiet, "draws") as report:
        results = run_sweep(study, path, where, report, draws_together, retry_failed, cluster="none")
    if not quiet:
        _say_what_went_wrong(results)
    if as_json:
        data = {"run": path, "complete": results.manifest["complete"], "sentences": sentences(results)}
        print_json(data | {"heads": over_heads(results), "summary": results.summary})
    else:
        lines = [f"Saved in {results.path}. Figures: favorbench plot {in_shell(results.path)}"]
        if not results.scenario.methods and "better" not in set(compared(results.summary)["versus_uniform"]):
            lines += [_other_estimators(study.scenario, results)]
        print_result(False, {}, run_sections(results), lines)


def _stored(path: Path, but_failed: bool) -> int:
    """The draws of a run that are stored. but_failed: without those in which an estimator failed."""
    from favorbench.results.status import statuses

    with contextlib.suppress(FavorbenchError):  # there is none yet, or it will be refused
        states = [state for state in statuses(path) if state.run == str(path)]
        return sum(state.done - (state.failed if but_failed else 0) for state in states)
    return 0


def _other_estimators(scenario: "Scenario", results: "Results") -> str:
    """The command that measures methods, on the same inputs if these are fixed."""
    members = cast("Names", scenario.inputs).members
    fixed = [name for name, source in zip(scenario.inputs, members, strict=True) if source.fixed]
    most = int(results.summary["seq_len"].min()) if fixed else max(_SIZES)
    sizes = ",".join(str(m) for m in _SIZES if m <= most) or most
    layout = f" --layout {scenario.layout}" if scenario.layout != type(scenario).model_fields["layout"].default else ""
    inputs = in_shell(",".join(fixed) or "minilm") + layout + " --causal" * scenario.causal
    if not scenario.causal and any(source.fixed and source.causal for source in members):
        inputs += " --no-causal"
    flags = (("--heads", scenario.heads, None), ("-L", scenario.seq_len, None), ("--scale", scenario.scale, (1.0,)))
    for flag, given, default in flags:
        if fixed and given and given != default:
            inputs += f" {flag} {in_shell(','.join(map(str, given)))}"
    return f"Other estimators may do better: favorbench sweep --inputs {inputs} --methods clusters,multipole -R {sizes}"


def _say_about_inputs(study: "Study", plan: "Plan") -> None:
    """Describe the files of heads before anything is computed with them."""
    from favorbench.engine.provenance import input_notes

    for name, (_, law) in study.inputs.items():
        if law.fixed and (notes := input_notes(plan, name, law)):
            say(f"{name}: {'; '.join(notes)}")
    for key, values in study.scenario.overridden.items():
        measured = {getattr(shape.head, key) for shape in plan.shapes}
        if set(values) != measured:
            given, taken = (
                f"{heading(key)} = {', '.join(map(str, numbers))}" for numbers in (values, sorted(measured))
            )
            say(f"{given} of the scenario gives way to that of the inputs: {taken}")
    if study.scenario.left_out:
        say(f"left out, as they cannot be causal: {', '.join(study.scenario.left_out)}")
    if study.calibration is not None:
        notes = "".join(f"; {note}" for note in study.calibration.law.notes())
        say(f"calibrated maps have the parameters of another text, frozen: {study.scenario.calibrate}{notes}")


def _say_what_went_wrong(results: "Results") -> None:
    """Say which files were damaged, which estimators failed, and which gave NaN."""
    from favorbench.results.findings import failure_sentences

    for name in results.set_aside:
        say(f"{results.path}/trials/{name} was damaged: set aside, and its draws computed again")
    for sentence in failure_sentences(results):
        say(sentence)


def _print_plan(plan: "Plan", path: Path, as_json: bool, batch: int | None) -> None:
    from favorbench.engine.cost import cost as planned_cost
    from favorbench.engine.cost import workers_that_fit
    from favorbench.numerics.machine import available_memory

    cost, available = planned_cost(plan, batch), available_memory()
    scenario = plan.study.scenario.model_dump(mode="json")
    fit = workers_that_fit(cost.memory_bytes)
    table = {
        key: ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        for key, value in scenario.items()
        if value is not None
    } | {
        "out": path,
        "plan": f"{cost.cells} cells, {cost.draws} draws, {cost.rows} rows",
        "cost": f"about {format_seconds(cost.seconds)} on one worker, "
        f"{format_bytes(cost.memory_bytes)} for each worker, plus the libraries",
    }
    if available is not None:
        fits = f"{'none' if not fit else fit if fit > 1 else 'one'} of these at once, with their libraries"
        table["memory"] = f"{format_bytes(available)} available here: {fits}; {os.cpu_count()} cores"
    data = {"workers_that_fit": fit, "available_bytes": available, "out": path, "scenario": scenario}
    print_result(as_json, cost._asdict() | data, [], [f"{key:16} {value}" for key, value in table.items()])
