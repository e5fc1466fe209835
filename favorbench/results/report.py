"""What a run says in words: a sentence for each cell, and summary.csv and summary.md."""

import math

import pandas as pd

from favorbench.engine.columns import CELL, describe_cell
from favorbench.files import write_text
from favorbench.formats import HEADINGS, printable
from favorbench.metrics import METRICS
from favorbench.results.ranking import legend as ranking_legend
from favorbench.results.ranking import rankings, shown
from favorbench.results.results import Results
from favorbench.results.summary import estimator_name, rows_of
from favorbench.results.tables import (
    cell_tables,
    legend,
    markdown,
    rounding_level,
    rows_as_markdown,
    shortened_inputs,
    size_axis,
)
from favorbench.statistics import compare, fewest_draws, holm, verdict


def markdown_report(results: Results) -> str:
    """summary.md: sentences, a ranking of every cell where features are equal, then the table of every cell."""
    scenario = results.scenario
    lines = [f"# {scenario.name}", ""] + ([scenario.title, ""] if scenario.title else [])
    lines += [f"* {sentence}" for sentence in sentences(results)] + [""]
    if scenario.budget != "projections":
        for one in rankings(results):
            text = rows_as_markdown(shown(one, "mse"))
            lines += [f"## Ranking: {one.title}", "", text, ranking_legend(one), ""]
    for table in cell_tables(results):
        lines += [f"## {table.title}", "", markdown(table, "mse"), f"{table.caption}. {legend(results)}", ""]
    return "\n".join(lines)


def write_summary(results: Results) -> None:
    """Write summary.csv and summary.md beside the trials. Raises StoreError."""
    write_text(results.path / "summary.csv", _csv(results))
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
    """For each cell, in plain words: from which R a map beats uniform attention, and whether the sampler matters."""
    found = []
    if not results.manifest["complete"]:
        done, draws = results.manifest["draws_done"], results.manifest["draws"]
        found.append(f"PARTIAL: {done} of {draws} draws; run the same sweep again to complete it.")
    found += shortened_inputs(results)
    for _, cell in results.summary.groupby(list(CELL), sort=False, dropna=False):
        trials = results.trials.merge(cell[list(CELL)].drop_duplicates(), on=list(CELL))
        found.append(_cell_sentence(trials, cell, size_axis(results)))
    return found


def _cell_sentence(trials: pd.DataFrame, cell: pd.DataFrame, axis: str) -> str:
    maps = cell[cell["kind"] == "map"]
    where, n = f"{describe_cell(cell.iloc[0])}:", int(maps["n"].min())
    needed = fewest_draws(int((cell["map"] != "uniform").sum()))
    if n < needed:
        few = "1 draw is" if n == 1 else f"{n} draws are"
        return f"{where} {few} too few to compare with uniform attention; use {needed} trials or more."
    return f"{where} {_first_to_win(maps, axis)}{_taylor_sentence(trials, cell, maps)}{_sampler_sentence(trials, axis)}"


def _first_to_win(maps: pd.DataFrame, axis: str) -> str:
    """From which size on which map beats uniform attention; those without one are named by themselves."""
    winning = maps[maps["versus_uniform"] == "better"]
    unit, sizes = HEADINGS.get(axis, axis), maps[axis].dropna()
    up_to = "" if sizes.empty else f" up to {sizes.max()}"
    if winning.empty:
        text = f"no map detectably beats uniform attention (the mean of V) at any {unit}{up_to}"
        return text + ("; all are detectably worse." if (maps["versus_uniform"] == "worse").all() else ".")
    sized, fixed = winning[winning[axis].notna()], winning[winning[axis].isna()]
    parts = []
    if len(sized):
        first = sized[sized[axis] == sized[axis].min()]
        parts.append(f"the first to beat uniform attention: {_named(first, maps)}, at {unit} = {sized[axis].min()}.")
    if len(fixed):
        features = {str(row["map"]): row["num_features"] for _, row in fixed.iterrows()}
        names = ", ".join(f"{name} ({count} features)" for name, count in features.items())
        parts.append(f"{'Also' if len(sized) else 'Beating uniform attention'}, without an R: {names}.")
    never = sorted(set(maps["map"]) - set(winning["map"]))
    parts += [f"Never,{up_to.replace(' up to ', f' up to {unit} = ')}: {', '.join(never)}."] if never else []
    return " ".join(parts)


def _named(chosen: pd.DataFrame, maps: pd.DataFrame) -> str:
    """The estimators chosen, or how many they are and which is the best of them."""
    names = [estimator_name(row).replace(" / ", "/") for _, row in chosen.sort_values("mse_median").iterrows()]
    if len(names) <= 4:
        return ", ".join(names)
    return f"{len(names)} of {len(maps[['map', 'sampler']].drop_duplicates())} estimators, {names[0]} best of them"


def _taylor_sentence(trials: pd.DataFrame, cell: pd.DataFrame, maps: pd.DataFrame) -> str:
    """Where the linear Taylor map does better than the best of all estimators, that belongs beside it."""
    if "taylor-1" not in set(cell["map"]):
        return ""
    best = maps.sort_values("mse_median").iloc[0]
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


def _sampler_sentence(trials: pd.DataFrame, axis: str) -> str:
    """orthogonal against iid, paired by draw: a sign test for every map and R that has both, Holm over all."""
    maps = trials[trials["kind"] == "map"]
    chosen = maps[maps["sampler"].isin(["iid", "orthogonal"])]
    compared = []
    for (name, size), rows in chosen.groupby(["map", "num_projections"], sort=False):
        errors = {sampler: rows.set_index("draw")["mse"] for sampler, rows in rows.groupby("sampler")}
        if len(errors) == 2:
            a, b = errors["orthogonal"], errors["iid"]
            shown = size if axis == "num_projections" else rows[axis].iloc[0]
            result = compare(a.to_numpy(), b[a.index].to_numpy())
            compared.append((f"{name} at {HEADINGS.get(axis, axis)} = {shown}", result))
    if not compared:
        return ""
    adjusted = holm([result.p_value for _, result in compared])
    judged = [verdict(p, math.log(r.ratio or 1e-300)) for (_, r), p in zip(compared, adjusted, strict=True)]
    parts = []
    for word in ("better", "worse"):
        found = [text for (text, _), judgement in zip(compared, judged, strict=True) if judgement == word]
        if found:
            parts.append(
                f"{word} for {', '.join(found)}" if len(found) <= 3 else f"{word} in {len(found)} of {len(compared)}"
            )
    return f" orthogonal against iid: {'; '.join(parts) or 'no detectable difference at any R'}."


def _errors(trials: pd.DataFrame, name: str, sampler: object, size: object) -> pd.Series:
    """The mse of one estimator at one R, by draw."""
    return rows_of(trials, name, sampler, size).set_index("draw")["mse"]
