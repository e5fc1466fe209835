"""The findings of a run in plain sentences: whether it is complete, what holds over many heads and in each cell."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.formats import counted
from favorbench.results.heads import effect_sentences, number, populations
from favorbench.results.summary import (
    RunData,
    cells_of,
    compared,
    estimator_name,
    estimator_names,
    is_own,
    rows_of,
    usable,
)
from favorbench.results.tables import (
    ascending,
    at_largest_size,
    at_size,
    input_sentences,
    largest_size,
    rounding_level,
    size_axis,
    uniform_in_words,
)
from favorbench.statistics import Comparison, compare, fewest_draws, holm, verdict

LAWS = ("orthogonal", "iid")
MAX_NAMES = 4  # in a list; of more estimators only the number


def sentences(results: RunData) -> list[str]:
    """All sentences: of the run and its populations of heads first, then of each cell."""
    return [*run_sentences(results), *cell_sentences(results)]


def run_sentences(results: RunData) -> list[str]:
    """Whether the run is complete, what was left out of its inputs, and what holds over many heads."""
    said = []
    if results.is_partial:
        done, draws = results.manifest["draws_done"], results.manifest["draws"]
        said.append(f"PARTIAL: {done} of {draws} draws; run the same sweep again to complete it.")
    said += [*failure_sentences(results), *_undrawn_sentences(results.trials), *_machine_sentences(results.manifest)]
    return [*said, *input_sentences(results), *head_sentences(results), *effect_sentences(results)]


def failure_sentences(results: RunData) -> list[str]:
    """A sentence for each estimator that failed, on how many draws and how, or whose output is NaN or infinite."""
    said = []
    known = {*results.trials["draw"].unique()}  # of the heads that are shown; uniform attention is in each
    no_draw = "; over heads, a head without any counts as an infinite error" * bool(populations(results))
    for name, messages in results.failed.items():
        if not (draws := known.intersection(itertools.chain(*messages.values()))):
            continue
        how = next(iter(messages)) + (f", and in {len(messages) - 1} other ways" if len(messages) > 1 else "")
        said.append(
            f"FAILED: {name} on {len(draws)} of {len(known)} draws ({how}). Its numbers, at every "
            f"size, are those of the other draws, which may be easier{no_draw}. To compute the failed draws again: "
            "`retry_failed`."
        )
    for name, rows in results.trials.groupby("estimator", sort=False):
        if infinite := (~np.isfinite(rows["mse"])).sum():
            counts = f"{infinite} of {counted(len(rows), 'measurement')}"
            said.append(f"{name}: the output is NaN or infinite in {counts}; such errors count as infinite.")
    return said


def _undrawn_sentences(trials: pd.DataFrame) -> list[str]:
    """A sentence on each of a user's methods whose draws have one error on every input."""
    said = []
    for name, rows in trials[trials["kind"] == "method"].groupby("estimator", sort=False):
        errors = rows.groupby([*CELL, "num_projections"], dropna=False)["mse"]
        if is_own(rows.iloc[0]) and errors.size().min() > 1 and (errors.min() == errors.max()).all():
            said.append(
                f"{name}: on each input all its draws have one error, so they are one measurement. If it drew "
                "projections when it was made, those of another process may be better or worse."
            )
    return said


def _machine_sentences(manifest: Mapping[str, Any]) -> list[str]:
    """A warning where workers differed in processor or BLAS kernels, on which the order of sums depends."""
    workers = manifest.get("workers", [])
    alone = sum(machine["done"] for machine in workers) >= manifest["draws_done"]
    kinds = set()
    for machine in workers if alone or not workers else [*workers, manifest]:
        pools = {f"{blas['internal_api']} {blas['version']} for {blas['architecture']}" for blas in machine["blas"]}
        kinds.add(", ".join([machine["gpu"] or machine["cpu"], *sorted(pools)]))
    if len(kinds) < 2:
        return []
    listed = "; ".join(sorted(kinds))
    return [f"Computed on {len(kinds)} kinds of machine ({listed}): last digits may differ from those of one."]


def head_sentences(results: RunData) -> list[str]:
    """For each population: the best estimator and the best map at the largest size, and how often uniform is better."""
    return [_of_population(results, population.title, usable(population.rows)) for population in populations(results)]


def _of_population(results: RunData, title: str, rows: pd.DataFrame) -> str:
    rows = at_largest_size(results, ascending(rows, "ratio_median"), compared(rows))
    ranked, baselines = compared(rows), rows[rows["kind"] == "baseline"]
    if ranked.empty:
        return f"{title}: nothing is compared but bounds."
    if not math.isfinite(ranked["ratio_median"].iloc[0]):
        share = "a finite share of uniform attention's error"
        return f"{title}: no map or method has {share} on more than half of the heads."
    largest = largest_size(results, ranked)
    text = (largest and f"at {largest} ") + _least_error(ranked, _spread, " of uniform attention's in the median")
    better = baselines[baselines["ratio_median"] < ranked["ratio_median"].iloc[0]]
    if len(better):
        text += f"; the baseline {better.iloc[0]['estimator']} has less, {_spread(better.iloc[0])}"
    return f"{title}: {text}."


def _spread(row: pd.Series, of_uniform: str = "") -> str:
    """ "0.02 (quartiles 0.01 to 0.05), worse on 0 of 72, at worst 0.4 (L3H4)"."""
    low, middle, high, worst = (number(row[name]) for name in ("ratio_q25", "ratio_median", "ratio_q75", "worst_ratio"))
    return (
        f"{middle}{of_uniform} (quartiles {low} to {high}), worse on {row['worse']} of {row['heads']}, "
        f"at worst {worst} ({row['worst_head']})"
    )


def _least_error(
    ranked: pd.DataFrame, in_words: Callable[[pd.Series, str], str], of_uniform: str, exact: Sequence[str] = ()
) -> str:
    """The first of these estimators, or those that are exact, and the first map where none of these is one."""
    best, maps, of_map = ranked.iloc[0], ranked[ranked["kind"] == "map"], ""
    text = f"{estimator_name(best)} has the least error of maps and methods, {in_words(best, of_uniform)}"
    if exact:
        named = ", ".join(exact) if len(exact) <= MAX_NAMES else f"{len(exact)} of {len(ranked)} estimators"
        text, of_map = f"exact up to rounding: {named}", of_uniform
    if best["kind"] != "map" and len(maps) and estimator_name(maps.iloc[0]) not in exact:
        text += f"; the best map, {estimator_name(maps.iloc[0])}, {in_words(maps.iloc[0], of_map)}"
    return text


def cell_sentences(results: RunData) -> list[str]:
    """For each cell: the first estimators to beat uniform attention, the least error, and the gain over random keys."""
    return [
        f"{describe_cell(cell.iloc[0])}: " + _of_cell(results, trials, cell).replace(" / ", "/")
        for trials, cell in cells_of(results)
    ]


def _of_cell(results: RunData, trials: pd.DataFrame, cell: pd.DataFrame) -> str:
    floor = rounding_level(trials, "mse")
    trials = trials.assign(mse=trials["mse"].clip(lower=floor))  # all that is rounding is one value
    estimators, least = compared(cell), _least_of_cell(results, floor, cell)
    if estimators.empty:
        return "every map and method failed in all draws."
    sized = estimators["num_projections"].notna()  # those without a size may have a draw of each trial for each R
    n = int((estimators[sized] if sized.any() else estimators)["n"].max())
    needed = fewest_draws(int((cell["estimator"] != "uniform").sum()))
    if n < needed:
        few = "1 draw is" if n == 1 else f"{n} draws are"
        return f"{few} too few to compare with uniform attention; use {needed} trials or more.{least}"
    return "".join([
        _first_to_win(results, floor, estimators), least, _against_taylor(trials, cell),
        _against_random_keys(results, trials, cell), _orthogonal_against_iid(results, trials),
    ])  # fmt: skip


def _first_to_win(results: RunData, floor: float, estimators: pd.DataFrame) -> str:
    """Name the first estimators to beat uniform attention, with their size; those without a size separately."""
    axis, winning = size_axis(results), estimators[estimators["versus_uniform"] == "better"]
    largest = largest_size(results, estimators)
    up_to = largest and f" up to {largest}"
    if winning.empty:
        what = " or ".join(kind for kind in ("map", "method") if (estimators["kind"] == kind).any())
        if results.scenario.budget == "projections":
            up_to = f" at any R{up_to.replace('R = ', '')}"
        end = "; all are detectably worse." if (estimators["versus_uniform"] == "worse").all() else "."
        return f"no {what} detectably beats {uniform_in_words(results)}{up_to}{end}"
    sized, fixed, parts = winning[winning[axis].notna()], winning[winning[axis].isna()], []
    if len(sized):
        first = sized[axis].min()
        errors = sized["mse_median"].clip(lower=floor)
        names = estimator_names(sized.loc[errors[sized[axis] == first].sort_values(kind="stable").index])
        named = ", ".join(names)
        if len(names) > MAX_NAMES:
            every = len(estimators[["estimator", "sampler"]].drop_duplicates())
            named = f"{len(names)} of {every} estimators, {names[0]} best of them"
        parts.append(f"the first to beat uniform attention: {named}, at {at_size(results, first)}.")
    if len(fixed):
        features = dict(zip(fixed["estimator"], fixed["num_features"], strict=True))
        named = ", ".join(f"{name} ({count} features)" if count else name for name, count in features.items())
        parts.append(f"{'Also' if len(sized) else 'Beating uniform attention'}, without an R: {named}.")
    if never := sorted(set(estimators["estimator"]) - set(winning["estimator"])):
        parts.append(f"Never detectably{up_to and f',{up_to}'}: {', '.join(never)}.")
    return " ".join(parts)


def _least_of_cell(results: RunData, floor: float, cell: pd.DataFrame) -> str:
    """The estimator with the least error at the largest size, and the best map where it is none; no bounds."""
    ranked = at_largest_size(results, ascending(usable(compared(cell)), "mse_median"))
    uniform = float(cell.loc[cell["estimator"] == "uniform", "mse_median"].iloc[0])
    if ranked.empty or not uniform > 0 or not math.isfinite(ranked["mse_median"].iloc[0]):
        return ""
    largest = largest_size(results, ranked)
    where = f"At {largest}" if largest else "Overall,"
    in_words = lambda row, of_uniform: number(row["mse_median"] / uniform) + of_uniform  # noqa: E731
    exact = estimator_names(ranked[ranked["mse_median"] <= floor].sort_index())
    return f" {where} " + _least_error(ranked, in_words, " of uniform's", exact) + "."


def _errors(trials: pd.DataFrame, row: pd.Series) -> pd.Series:
    """The mse of one estimator at one size, by draw."""
    rows = rows_of(trials, row["estimator"], row["sampler"], row["num_projections"])
    return rows.drop_duplicates("draw").set_index("draw")["mse"]


def _paired(ours: pd.Series, theirs: pd.Series) -> Comparison:
    shared = ours.index.intersection(theirs.index)
    return compare(ours[shared].to_numpy(), theirs[shared].to_numpy())


def _verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """The verdicts of a family, by Holm."""
    adjusted = holm([pair.p_value for pair in comparisons])
    return [verdict(p, math.log(pair.ratio or 1e-300)) for pair, p in zip(comparisons, adjusted, strict=True)]


def _against_taylor(trials: pd.DataFrame, cell: pd.DataFrame) -> str:
    """A sentence where the linear Taylor map is better than the best of all estimators."""
    taylor, best = cell[cell["estimator"] == "taylor-1"], compared(cell).sort_values("mse_median").iloc[0]
    if taylor.empty:
        return ""
    result = _paired(_errors(trials, taylor.iloc[0]), _errors(trials, best))
    if result.verdict != "better":
        return ""
    features = int(taylor["num_features"].iloc[0])
    less = less_in_words(result.ratio)
    return f" taylor-1, {features} features and no randomness, has {less} error than the best of them."


def less_in_words(ratio: float) -> str:
    """By how much an error is smaller, where it is detectably smaller; "1.0 times" would say nothing."""
    if ratio < 1e-4:  # as where it is rounding
        return "far less"
    return f"{1 / ratio:.1f} times less" if ratio < 1 / 1.05 else "slightly less"


def _against_random_keys(results: RunData, trials: pd.DataFrame, cell: pd.DataFrame) -> str:
    """Name the estimators that, at the largest size, are not detectably better than softmax over random keys."""
    chosen = at_largest_size(results, compared(cell))
    sampled = at_largest_size(results, cell[cell["estimator"] == "sampled-keys"], chosen)
    if sampled.empty or chosen[size_axis(results)].isna().all():
        return ""
    trivial = _errors(trials, sampled.iloc[0])
    judged = _verdicts([_paired(_errors(trials, row), trivial) for _, row in chosen.iterrows()])
    losing = [name for name, word in zip(estimator_names(chosen), judged, strict=True) if word != "better"]
    sample = "random keys at this cost" if results.scenario.budget == "cost" else "as many random keys"
    keys = f"softmax over {sample} (sampled-keys)"
    if len(losing) in (0, len(chosen)):
        return f" {'None is detectably' if losing else 'All are'} better than {keys}."
    names = ", ".join(losing) if len(losing) <= MAX_NAMES else f"{len(losing)} of {len(chosen)} estimators"
    return f" Not detectably better than {keys}: {names}."


def _orthogonal_against_iid(results: RunData, trials: pd.DataFrame) -> str:
    """Paired by draw: a sign test for every map and size that has both, Holm over all."""
    axis, chosen = size_axis(results), trials[(trials["kind"] == "map") & trials["sampler"].isin(LAWS)]
    pairs = {}
    for (name, size), rows in chosen.groupby(["estimator", axis], sort=False):
        errors = rows.pivot(index="draw", columns="sampler", values="mse").dropna()
        if errors.shape[1] == 2 and len(errors):
            pairs[f"{name} at {at_size(results, size)}"] = compare(*(errors[law].to_numpy() for law in LAWS))
    if not pairs:
        return ""
    judged, parts = _verdicts(list(pairs.values())), []
    for word in ("better", "worse"):
        if matching := [text for text, judgement in zip(pairs, judged, strict=True) if judgement == word]:
            many = len(matching) >= MAX_NAMES
            parts.append(f"{word} in {len(matching)} of {len(pairs)}" if many else f"{word} for {', '.join(matching)}")
    none = f"no detectable difference{' at any R' * (results.scenario.budget == 'projections')}"
    return f" orthogonal against iid: {'; '.join(parts) or none}."
