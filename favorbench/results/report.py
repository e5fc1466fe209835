"""What a run says in words: a sentence for many heads and for each cell, and summary.csv and summary.md."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from favorbench.engine.columns import describe_cell
from favorbench.files import write_text
from favorbench.formats import printable
from favorbench.metrics import METRICS
from favorbench.results import head_ranking, heads
from favorbench.results.ranking import legend as ranking_legend
from favorbench.results.ranking import rankings, shown
from favorbench.results.results import Results
from favorbench.results.summary import by_cell, compared, estimator_name, is_oracle, rows_of
from favorbench.results.tables import (
    at_size,
    cell_tables,
    legend,
    markdown,
    rounding_level,
    rows_as_markdown,
    said_once,
    shortened_inputs,
    size_axis,
)
from favorbench.statistics import compare, fewest_draws, holm, verdict


def markdown_report(results: Results) -> str:
    """summary.md: sentences, tables over heads, rankings where features or cost are equal, the table of every cell.

    Of many heads, one by one, nothing: there a reader looks for one of them.
    """
    scenario, few = results.scenario, heads.without_many(results, heads.FEW)
    lines = [f"# {scenario.name}", ""] + ([scenario.title, ""] if scenario.title else [])
    lines += [f"* {sentence}" for sentence in [*run_sentences(results), *cell_sentences(few)]] + [""]
    populations = heads.populations(results)
    for population, note in zip(populations, said_once([heads.legend(results)] * len(populations)), strict=True):
        text = rows_as_markdown(heads.shown(population, size_axis(results)))
        lines += [f"## {heads.title(population)}", "", text, *_below(note)]
    if scenario.budget != "projections":
        for one in head_ranking.rankings_over_heads(results):
            text = rows_as_markdown(head_ranking.shown(one))
            lines += [f"## Ranking over {one.title}", "", text, head_ranking.legend(one).replace("`", ""), ""]
        found = rankings(few)
        for one, note in zip(found, said_once([ranking_legend(one) for one in found]), strict=True):
            lines += [f"## Ranking: {one.title}", "", rows_as_markdown(shown(one, "mse")), *_below(note)]
    found = cell_tables(few)
    for table, note in zip(found, said_once([f"{one.caption}. {legend(results)}" for one in found]), strict=True):
        lines += [f"## {table.title}", "", markdown(table, "mse"), *_below(note)]
    lines += [f"{heads.each_by_itself(results)}.", ""] if len(few.summary) < len(results.summary) else []
    return "\n".join(lines)


def _below(note: str) -> list[str]:
    return [note, ""] if note else []


def write_summary(results: Results) -> None:
    """Write summary.csv and summary.md beside the trials, and of several heads summary-heads.csv. Raises StoreError."""
    write_text(results.path / "summary.csv", _csv(results))
    over_heads = heads.over_heads(results)
    if len(over_heads):
        write_text(results.path / "summary-heads.csv", over_heads.to_csv(index=False, float_format="%.6g"))
    write_text(results.path / "summary.md", printable(markdown_report(results), but="\n"))


def _csv(results: Results) -> str:
    """The summary to six digits, and 0 for what is rounding: the rest differs from one machine to the next.

    ``favorbench export`` has every digit.
    """
    summary = results.summary.copy()
    for metric in METRICS:
        floor = rounding_level(results.trials, metric)
        for name in summary.columns[summary.columns.str.startswith(f"{metric}_")]:
            summary[name] = summary[name].mask(summary[name].abs() < floor, 0.0)
    return summary.to_csv(index=False, float_format="%.6g")


def sentences(results: Results) -> list[str]:
    """What a run says in plain words: over many heads, then of each cell."""
    return [*run_sentences(results), *cell_sentences(results)]


def run_sentences(results: Results) -> list[str]:
    """Whether the run is complete, what was left of its inputs, and what holds over many heads."""
    found = []
    if not results.manifest["complete"]:
        done, draws = results.manifest["draws_done"], results.manifest["draws"]
        found.append(f"PARTIAL: {done} of {draws} draws; run the same sweep again to complete it.")
    found += [*failure_sentences(results), *_machines(results)]
    return [*found, *shortened_inputs(results), *heads.sentences(results)]


def failure_sentences(results: Results) -> list[str]:
    """Which estimators failed, on how many draws, and how: what is said of them is of the other draws."""
    found = []
    for name, messages in results.failed.items():
        draws = {draw for of in messages.values() for draw in of}
        how = next(iter(messages)) + (f", and in {len(messages) - 1} other ways" if len(messages) > 1 else "")
        found.append(
            f"FAILED: {name} on {len(draws)} of {results.manifest['draws_done']} draws ({how}); what is said of it is "
            "of the other draws, which may be the easier ones. To compute those draws again: `retry_failed`."
        )
    return found


def _machines(results: Results) -> list[str]:
    """What is to be known where workers differed in what their sums depend on."""
    manifest: Mapping[str, Any] = results.manifest
    if not (workers := manifest.get("workers", [])):
        return []
    alone = sum(machine["done"] for machine in workers) >= manifest["draws_done"]
    kinds = sorted({_kind(machine) for machine in (workers if alone else [*workers, manifest])})
    if len(kinds) == 1:
        return []
    return [
        f"Computed on {len(kinds)} kinds of machine ({'; '.join(kinds)}): last digits may differ from those of one."
    ]


def _kind(machine: Mapping[str, Any]) -> str:
    """Processor and BLAS kernels: the order of sums follows from them."""
    pools = sorted({f"{one['internal_api']} {one['version']} for {one['architecture']}" for one in machine["blas"]})
    return ", ".join([machine["gpu"] or machine["cpu"], *pools])


def cell_sentences(results: Results) -> list[str]:
    """For each cell: the first to beat uniform attention, the least error, what random keys and samplers are worth."""
    trials, axis = by_cell(results.trials), size_axis(results)
    return [
        _cell_sentence(trials[key], cell, results.scenario.budget, axis)
        for key, cell in by_cell(results.summary).items()
    ]


def _cell_sentence(trials: pd.DataFrame, cell: pd.DataFrame, budget: str, axis: str) -> str:
    estimators = compared(cell)
    where, n = f"{describe_cell(cell.iloc[0])}:", int(estimators["n"].min())
    least = _least(cell, budget, axis)
    needed = fewest_draws(int((cell["map"] != "uniform").sum()))
    if n < needed:
        few = "1 draw is" if n == 1 else f"{n} draws are"
        return f"{where} {few} too few to compare with uniform attention; use {needed} trials or more.{least}"
    parts = (
        _first_to_win(estimators, budget, axis),
        least,
        _taylor_sentence(trials, cell, estimators),
        _random_keys_sentence(trials, cell, budget, axis),
        _sampler_sentence(trials, budget, axis),
    )
    return f"{where} {''.join(parts)}"


def _first_to_win(estimators: pd.DataFrame, budget: str, axis: str) -> str:
    """From which size on which estimator beats uniform attention; those without one are named by themselves."""
    winning, sizes = estimators[estimators["versus_uniform"] == "better"], estimators[axis].dropna()
    if winning.empty:
        what = "map" if (estimators["kind"] == "map").all() else "estimator"
        text = f"no {what} detectably beats uniform attention (the mean of V){_at_any(budget, sizes)}"
        return text + ("; all are detectably worse." if (estimators["versus_uniform"] == "worse").all() else ".")
    sized, fixed = winning[winning[axis].notna()], winning[winning[axis].isna()]
    parts = []
    if len(sized):
        least = sized[axis].min()
        named = _named(sized[sized[axis] == least], estimators)
        parts.append(f"the first to beat uniform attention: {named}, at {at_size(budget, least)}.")
    if len(fixed):
        features = {str(row["map"]): row["num_features"] for _, row in fixed.iterrows()}
        names = ", ".join(f"{name} ({count} features)" for name, count in features.items())
        parts.append(f"{'Also' if len(sized) else 'Beating uniform attention'}, without an R: {names}.")
    never = sorted(set(estimators["map"]) - set(winning["map"]))
    up_to = "" if sizes.empty else f" up to {at_size(budget, sizes.max())}"
    parts += [f"Never,{up_to}: {', '.join(never)}."] if never else []
    return " ".join(parts)


def _at_any(budget: str, sizes: pd.Series) -> str:
    """ " at any R up to 64", or what the budget is."""
    if budget == "projections":
        return " at any R" + ("" if sizes.empty else f" up to {sizes.max()}")
    return "" if sizes.empty else f" up to {at_size(budget, sizes.max())}"


def _named(chosen: pd.DataFrame, estimators: pd.DataFrame) -> str:
    """The estimators chosen, or how many they are and which is the best of them."""
    names = [_short(row) for _, row in chosen.sort_values("mse_median").iterrows()]
    if len(names) <= 4:
        return ", ".join(names)
    every = len(estimators[["map", "sampler"]].drop_duplicates())
    return f"{len(names)} of {every} estimators, {names[0]} best of them"


def _short(row: pd.Series) -> str:
    return estimator_name(row).replace(" / ", "/")


def _least(cell: pd.DataFrame, budget: str, axis: str) -> str:
    """The estimator with the least error at the largest size, and the best map where it is none; no bounds."""
    usable = compared(cell)
    usable = usable[[not is_oracle(name) for name in usable["map"]]].sort_values("mse_median")
    last = usable[(usable[axis] == usable[axis].max()) | usable[axis].isna()]
    uniform = float(cell.loc[cell["map"] == "uniform", "mse_median"].iloc[0])
    if last.empty or not uniform > 0:
        return ""
    best, maps = last.iloc[0], last[last["kind"] == "map"]
    where = "Of all," if pd.isna(largest := usable[axis].max()) else f"At {at_size(budget, largest)}"
    ratio = heads.number(best["mse_median"] / uniform)
    text = f" {where} {_short(best)} has the least error of maps and methods, {ratio} of uniform's"
    if best["kind"] != "map" and len(maps):
        text += f"; the best map, {_short(maps.iloc[0])}, {heads.number(maps.iloc[0]['mse_median'] / uniform)}"
    return text + "."


def _random_keys_sentence(trials: pd.DataFrame, cell: pd.DataFrame, budget: str, axis: str) -> str:
    """At the largest size, what is no better than softmax over a random sample of the keys: the fair trivial answer."""
    if not (trials["map"] == "sampled-keys").any():
        return ""
    estimators = compared(cell)
    largest = estimators[axis].max()
    last = trials[(trials[axis] == largest) | trials[axis].isna()]
    sampled = rows_of(last, "sampled-keys", None).set_index("draw")["mse"]
    if pd.isna(largest) or sampled.empty:
        return ""
    chosen, found = estimators[(estimators[axis] == largest) | estimators[axis].isna()], []
    for _, row in chosen.iterrows():
        ours = rows_of(last, row["map"], row["sampler"]).set_index("draw")["mse"]
        shared = ours.index.intersection(sampled.index)
        found.append(compare(ours[shared].to_numpy(), sampled[shared].to_numpy()))
    adjusted = holm([result.p_value for result in found])
    beaten = [verdict(p, math.log(r.ratio or 1e-300)) == "better" for r, p in zip(found, adjusted, strict=True)]
    keys = "random keys at this cost" if budget == "cost" else "as many random keys"
    losing = [_short(row) for (_, row), better in zip(chosen.iterrows(), beaten, strict=True) if not better]
    if not losing:
        return f" All are better than softmax over {keys} (sampled-keys)."
    if len(losing) == len(chosen):
        return f" None is better than softmax over {keys} (sampled-keys)."
    names = ", ".join(losing) if len(losing) <= 4 else f"{len(losing)} of {len(chosen)} estimators"
    return f" No better than softmax over {keys} (sampled-keys): {names}."


def _taylor_sentence(trials: pd.DataFrame, cell: pd.DataFrame, estimators: pd.DataFrame) -> str:
    """Where the linear Taylor map does better than the best of all estimators, that belongs beside it."""
    if "taylor-1" not in set(cell["map"]):
        return ""
    best = estimators.sort_values("mse_median").iloc[0]
    ours = _errors(trials, best["map"], best["sampler"], best["num_projections"])
    taylor = _errors(trials, "taylor-1", None, None)
    shared = ours.index.intersection(taylor.index)
    result = compare(taylor[shared].to_numpy(), ours[shared].to_numpy())
    if result.verdict != "better":
        return ""
    features = int(cell[cell["map"] == "taylor-1"]["num_features"].iloc[0])
    return f" taylor-1, {features} features and no randomness, has {_less(result.ratio)} error than the best of them."


def _less(ratio: float) -> str:
    """How much less an error is that is detectably smaller; "1.0 times" would say nothing."""
    if ratio <= 0:
        return "far less"
    return f"{1 / ratio:.1f} times less" if ratio < 1 / 1.05 else "slightly less"


def _sampler_sentence(trials: pd.DataFrame, budget: str, axis: str) -> str:
    """orthogonal against iid, paired by draw: a sign test for every map and size that has both, Holm over all."""
    chosen = trials[(trials["kind"] == "map") & trials["sampler"].isin(["iid", "orthogonal"])]
    errors = chosen.set_index(["map", axis, "draw", "sampler"])["mse"].unstack(sort=False)
    if errors.shape[1] < 2:
        return ""
    pairs = [
        (f"{name} at {at_size(budget, size)}", compare(rows["orthogonal"].to_numpy(), rows["iid"].to_numpy()))
        for (name, size), rows in errors.dropna().groupby(level=["map", axis], sort=False)
    ]
    if not pairs:
        return ""
    adjusted = holm([result.p_value for _, result in pairs])
    judged = [verdict(p, math.log(r.ratio or 1e-300)) for (_, r), p in zip(pairs, adjusted, strict=True)]
    parts, at_any = [], " at any R" if budget == "projections" else ""
    for word in ("better", "worse"):
        found = [text for (text, _), judgement in zip(pairs, judged, strict=True) if judgement == word]
        if found:
            parts.append(
                f"{word} for {', '.join(found)}" if len(found) <= 3 else f"{word} in {len(found)} of {len(pairs)}"
            )
    return f" orthogonal against iid: {'; '.join(parts) or f'no detectable difference{at_any}'}."


def _errors(trials: pd.DataFrame, name: str, sampler: object, size: object) -> pd.Series:
    """The mse of one estimator at one size, by draw."""
    return rows_of(trials, name, sampler, size).drop_duplicates("draw").set_index("draw")["mse"]
