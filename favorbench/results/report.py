"""What a run says in words: a sentence for each cell, and summary.csv and summary.md."""

import math

import pandas as pd

from favorbench.files import write_text
from favorbench.formats import HEADINGS
from favorbench.results.ranking import legend as ranking_legend
from favorbench.results.ranking import rankings, shown
from favorbench.results.results import Results
from favorbench.results.summary import CELL
from favorbench.results.tables import (
    asked_for,
    cell_tables,
    describe_cell,
    legend,
    markdown,
    rows_as_markdown,
    size_axis,
)
from favorbench.statistics import LEVEL, compare, holm, verdict


def markdown_report(results: Results) -> str:
    """summary.md: sentences, a ranking of every cell where features are equal, then the table of every cell."""
    scenario = results.scenario
    lines = [f"# {scenario.name}", ""] + ([scenario.title, ""] if scenario.title else [])
    lines += [f"* {sentence}" for sentence in sentences(results)] + [""]
    if scenario.budget == "features":
        for one in rankings(results):
            text = rows_as_markdown(shown(one, "mse"))
            lines += [f"## Ranking: {one.title}", "", text, ranking_legend(one), ""]
    for table in cell_tables(results):
        lines += [f"## {table.title}", "", markdown(table, "mse"), f"{table.caption}. {legend(results)}", ""]
    return "\n".join(lines)


def write_summary(results: Results) -> None:
    """Write summary.csv and summary.md beside the trials. Raises StoreError."""
    write_text(results.path / "summary.csv", results.summary.to_csv(index=False))
    write_text(results.path / "summary.md", markdown_report(results))


def sentences(results: Results) -> list[str]:
    """For each cell, in plain words: from which R a map beats uniform attention, and whether the sampler matters."""
    found = []
    if not results.manifest["complete"]:
        done, draws = results.manifest["draws_done"], results.manifest["draws"]
        found.append(f"PARTIAL: {done} of {draws} draws; run the same sweep again to complete it.")
    for _, cell in results.summary.groupby(list(CELL), sort=False, dropna=False):
        trials = results.trials.merge(cell[list(CELL)].drop_duplicates(), on=list(CELL))
        found.append(_cell_sentence(trials, _at_their_budget(results, cell), size_axis(results)))
    return found


def _at_their_budget(results: Results, cell: pd.DataFrame) -> pd.DataFrame:
    """Where features are the budget: maps at what was asked for, and those whose number is fixed at the largest."""
    if results.scenario.budget != "features":
        return cell
    asked, is_map = asked_for(results.scenario, cell), cell["kind"] == "map"
    asked = asked.where(cell["num_projections"] > 0, asked[is_map].max())
    return cell.assign(num_features=cell["num_features"].where(~is_map, asked))


def _cell_sentence(trials: pd.DataFrame, cell: pd.DataFrame, axis: str) -> str:
    maps = cell[cell["kind"] == "map"]
    where, unit = f"{describe_cell(cell.iloc[0])}:", HEADINGS.get(axis, axis)
    largest, n = int(maps[axis].max()), int(maps["n"].min())
    judged = int((cell["map"] != "uniform").sum())
    if 2.0 ** (1 - n) * judged > 1 - LEVEL:
        needed = 1 + math.ceil(math.log2(judged / (1 - LEVEL)))
        return f"{where} {n} draws are too few to compare with uniform attention; use --trials {needed} or more."
    better, worse = (maps[maps["versus_uniform"] == verdict] for verdict in ("better", "worse"))
    if better.empty:
        text = f"{where} no map detectably beats uniform attention (the mean of V) at any {unit} up to {largest}"
        text += "; all are detectably worse." if len(worse) == len(maps) else "."
    else:
        first = int(better[axis].min())
        who = _names(better[better[axis] == first], maps)
        text = f"{where} the first to beat uniform attention: {who}, at {unit} = {first}."
        never = sorted(set(maps["map"]) - set(better["map"]))
        text += f" Never, up to {unit} = {largest}: {', '.join(never)}." if never else ""
    return text + _taylor_sentence(trials, cell, maps) + _sampler_sentence(trials, axis)


def _names(chosen: pd.DataFrame, maps: pd.DataFrame) -> str:
    """The estimators chosen, or how many they are and which is the best of them."""
    names = [f"{row['map']}/{row['sampler']}" for _, row in chosen.sort_values("mse_median").iterrows()]
    if len(names) <= 4:
        return ", ".join(names)
    return f"{len(names)} of {len(maps[['map', 'sampler']].drop_duplicates())} estimators, {names[0]} best of them"


def _taylor_sentence(trials: pd.DataFrame, cell: pd.DataFrame, maps: pd.DataFrame) -> str:
    """Where the linear Taylor map does better than the best of all estimators, that belongs beside it."""
    if "taylor-1" not in set(cell["map"]):
        return ""
    best = maps.sort_values("mse_median").iloc[0]
    ours = _errors(trials, best["map"], best["sampler"], best["num_projections"])
    taylor = _errors(trials, "taylor-1", "none", 0)
    shared = ours.index.intersection(taylor.index)
    result = compare(taylor[shared].to_numpy(), ours[shared].to_numpy())
    if result.verdict != "better":
        return ""
    features = int(cell[cell["map"] == "taylor-1"]["num_features"].iloc[0])
    times = f"{1 / result.ratio:.1f} times" if result.ratio > 0 else "far"
    return f" taylor-1, {features} features and no randomness, has {times} less error than the best of them."


def _sampler_sentence(trials: pd.DataFrame, axis: str) -> str:
    """orthogonal against iid, paired by draw: a sign test for every map and R, Holm over all."""
    maps = trials[trials["kind"] == "map"]
    if not {"iid", "orthogonal"} <= set(maps["sampler"]):
        return ""
    compared = []
    for _, row in maps.drop_duplicates(["map", "num_projections"]).iterrows():
        name, value = str(row["map"]), row[axis]
        a, b = (_errors(trials, name, sampler, int(row["num_projections"])) for sampler in ("orthogonal", "iid"))
        result = compare(a.to_numpy(), b[a.index].to_numpy())
        compared.append((f"{name} at {HEADINGS.get(axis, axis)} = {value}", result))
    adjusted = holm([result.p_value for _, result in compared])
    found = [(text, verdict(p, math.log(r.ratio or 1e-300))) for (text, r), p in zip(compared, adjusted, strict=True)]
    parts = []
    for word in ("better", "worse"):
        chosen = [text for text, judgement in found if judgement == word]
        if chosen:
            parts.append(
                f"{word} for {', '.join(chosen)}" if len(chosen) <= 3 else f"{word} in {len(chosen)} of {len(found)}"
            )
    return f" orthogonal against iid: {'; '.join(parts) or 'no detectable difference at any R'}."


def _errors(trials: pd.DataFrame, name: str, sampler: str, size: int) -> pd.Series:
    """The mse of one estimator at one R, by draw."""
    chosen = (trials["map"] == name) & (trials["sampler"] == sampler) & (trials["num_projections"] == size)
    return trials[chosen].set_index("draw")["mse"]
