"""What a run says in plain sentences: whether it is complete, what holds over many heads and in each cell."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from favorbench.engine.columns import describe_cell
from favorbench.results import heads
from favorbench.results.run import RunData
from favorbench.results.summary import by_cell, compared, estimator_name, is_oracle, rows_of
from favorbench.results.tables import at_size, shortened_inputs, size_axis
from favorbench.statistics import Comparison, compare, fewest_draws, holm, verdict


def sentences(results: RunData) -> list[str]:
    """What a run says in plain words: over many heads, then for each cell."""
    return [*run_sentences(results), *cell_sentences(results)]


def run_sentences(results: RunData) -> list[str]:
    """Whether the run is complete, what was left out of its inputs, and what holds over many heads."""
    found = []
    if not results.manifest["complete"]:
        done, draws = results.manifest["draws_done"], results.manifest["draws"]
        found.append(f"PARTIAL: {done} of {draws} draws; run the same sweep again to complete it.")
    found += [*failure_sentences(results), *_machine_sentences(results.manifest)]
    return [*found, *shortened_inputs(results), *heads.sentences(results)]


def failure_sentences(results: RunData) -> list[str]:
    """Which estimators failed, on how many draws, and how."""
    found = []
    for name, messages in results.failed.items():
        draws = {draw for failed in messages.values() for draw in failed}
        how = next(iter(messages)) + (f", and in {len(messages) - 1} other ways" if len(messages) > 1 else "")
        found.append(
            f"FAILED: {name} on {len(draws)} of {results.manifest['draws_done']} draws ({how}). Its numbers are those "
            "of the other draws, which may be easier. To compute the failed draws again: `retry_failed`."
        )
    return found


def _machine_sentences(manifest: Mapping[str, Any]) -> list[str]:
    """A warning where workers differed in processor or BLAS kernels, on which the order of sums depends."""
    if not (workers := manifest.get("workers", [])):
        return []
    alone = sum(machine["done"] for machine in workers) >= manifest["draws_done"]
    kinds = set()
    for machine in workers if alone else [*workers, manifest]:
        pools = {f"{one['internal_api']} {one['version']} for {one['architecture']}" for one in machine["blas"]}
        kinds.add(", ".join([machine["gpu"] or machine["cpu"], *sorted(pools)]))
    if len(kinds) == 1:
        return []
    listed = "; ".join(sorted(kinds))
    return [f"Computed on {len(kinds)} kinds of machine ({listed}): last digits may differ from those of one."]


def cell_sentences(results: RunData) -> list[str]:
    """For each cell: the first to beat uniform attention, the least error, what random keys and samplers are worth."""
    trials, axis = by_cell(results.trials), size_axis(results)
    return [
        _cell_sentence(trials[key], cell, results.scenario.budget, axis)
        for key, cell in by_cell(results.summary).items()
    ]


def _cell_sentence(trials: pd.DataFrame, cell: pd.DataFrame, budget: str, axis: str) -> str:
    estimators = compared(cell)
    where, n = f"{describe_cell(cell.iloc[0])}:", int(estimators["n"].min())
    least = _least_error(cell, budget, axis)
    needed = fewest_draws(int((cell["map"] != "uniform").sum()))
    if n < needed:
        few = "1 draw is" if n == 1 else f"{n} draws are"
        return f"{where} {few} too few to compare with uniform attention; use {needed} trials or more.{least}"
    parts = (
        _first_to_win(estimators, budget, axis),
        least,
        _against_taylor(trials, cell),
        _against_random_keys(trials, cell, budget, axis),
        _orthogonal_against_iid(trials, budget, axis),
    )
    return f"{where} {''.join(parts)}"


def _first_to_win(estimators: pd.DataFrame, budget: str, axis: str) -> str:
    """From which size on which estimator beats uniform attention; those without a size apart."""
    winning, sizes = estimators[estimators["versus_uniform"] == "better"], estimators[axis].dropna()
    up_to = "" if sizes.empty else f" up to {at_size(budget, sizes.max())}"
    if winning.empty:
        what = "map" if (estimators["kind"] == "map").all() else "estimator"
        at_any = up_to.replace(" up to R = ", " at any R up to ") if budget == "projections" and up_to else up_to
        at_any = at_any or " at any R" * (budget == "projections")
        worse = (estimators["versus_uniform"] == "worse").all()
        end = "; all are detectably worse." if worse else "."
        return f"no {what} detectably beats uniform attention (the mean of V){at_any}{end}"
    sized, fixed = winning[winning[axis].notna()], winning[winning[axis].isna()]
    parts = []
    if len(sized):
        first = sized[sized[axis] == sized[axis].min()].sort_values("mse_median")
        names = [_short(row) for _, row in first.iterrows()]
        named = ", ".join(names)
        if len(names) > 4:
            every = len(estimators[["map", "sampler"]].drop_duplicates())
            named = f"{len(names)} of {every} estimators, {names[0]} best of them"
        parts.append(f"the first to beat uniform attention: {named}, at {at_size(budget, sized[axis].min())}.")
    if len(fixed):
        features = dict(zip(fixed["map"], fixed["num_features"], strict=True))
        names = ", ".join(f"{name} ({count} features)" for name, count in features.items())
        parts.append(f"{'Also' if len(sized) else 'Beating uniform attention'}, without an R: {names}.")
    never = sorted(set(estimators["map"]) - set(winning["map"]))
    return " ".join([*parts, *([f"Never,{up_to}: {', '.join(never)}."] if never else [])])


def _short(row: pd.Series) -> str:
    return estimator_name(row).replace(" / ", "/")


def _at_largest(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """What has the largest size, or none."""
    return rows[(rows[axis] == rows[axis].max()) | rows[axis].isna()]


def _least_error(cell: pd.DataFrame, budget: str, axis: str) -> str:
    """The estimator with the least error at the largest size, and the best map where it is none; no bounds."""
    usable = compared(cell)
    usable = usable[[not is_oracle(name) for name in usable["map"]]].sort_values("mse_median")
    last, uniform = _at_largest(usable, axis), float(cell.loc[cell["map"] == "uniform", "mse_median"].iloc[0])
    if last.empty or not uniform > 0:
        return ""
    best, maps = last.iloc[0], last[last["kind"] == "map"]
    where = "Of all," if pd.isna(largest := usable[axis].max()) else f"At {at_size(budget, largest)}"
    text = f" {where} {_short(best)} has the least error of maps and methods, "
    text += f"{heads.number(best['mse_median'] / uniform)} of uniform's"
    if best["kind"] != "map" and len(maps):
        text += f"; the best map, {_short(maps.iloc[0])}, {heads.number(maps.iloc[0]['mse_median'] / uniform)}"
    return text + "."


def _errors(trials: pd.DataFrame, row: pd.Series) -> pd.Series:
    """The mse of one estimator at one size, by draw."""
    rows = rows_of(trials, row["map"], row["sampler"], row["num_projections"])
    return rows.drop_duplicates("draw").set_index("draw")["mse"]


def _paired(ours: pd.Series, theirs: pd.Series) -> Comparison:
    shared = ours.index.intersection(theirs.index)
    return compare(ours[shared].to_numpy(), theirs[shared].to_numpy())


def _verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """The verdicts of a family, by Holm."""
    adjusted = holm([one.p_value for one in comparisons])
    return [verdict(p, math.log(one.ratio or 1e-300)) for one, p in zip(comparisons, adjusted, strict=True)]


def _against_taylor(trials: pd.DataFrame, cell: pd.DataFrame) -> str:
    """Says where the linear Taylor map does better than the best of all estimators."""
    taylor, best = cell[cell["map"] == "taylor-1"], compared(cell).sort_values("mse_median").iloc[0]
    if taylor.empty:
        return ""
    result = _paired(_errors(trials, taylor.iloc[0]), _errors(trials, best))
    if result.verdict != "better":
        return ""
    features = int(taylor["num_features"].iloc[0])
    less = less_in_words(result.ratio)
    return f" taylor-1, {features} features and no randomness, has {less} error than the best of them."


def less_in_words(ratio: float) -> str:
    """How much less an error is that is detectably smaller; "1.0 times" would say nothing."""
    if ratio <= 0:
        return "far less"
    return f"{1 / ratio:.1f} times less" if ratio < 1 / 1.05 else "slightly less"


def _against_random_keys(trials: pd.DataFrame, cell: pd.DataFrame, budget: str, axis: str) -> str:
    """At the largest size, what is no better than softmax over a random sample of the keys: the fair trivial answer."""
    chosen, sampled = _at_largest(compared(cell), axis), cell[cell["map"] == "sampled-keys"]
    sampled = sampled[(sampled[axis] == chosen[axis].max()) | sampled[axis].isna()]
    if sampled.empty or chosen[axis].isna().all():
        return ""
    trivial = _errors(trials, sampled.iloc[0])
    judged = _verdicts([_paired(_errors(trials, row), trivial) for _, row in chosen.iterrows()])
    losing = [_short(row) for (_, row), word in zip(chosen.iterrows(), judged, strict=True) if word != "better"]
    keys = f"softmax over {'random keys at this cost' if budget == 'cost' else 'as many random keys'} (sampled-keys)"
    if len(losing) in (0, len(chosen)):
        return f" {'None is' if losing else 'All are'} better than {keys}."
    names = ", ".join(losing) if len(losing) <= 4 else f"{len(losing)} of {len(chosen)} estimators"
    return f" No better than {keys}: {names}."


def _orthogonal_against_iid(trials: pd.DataFrame, budget: str, axis: str) -> str:
    """Paired by draw: a sign test for every map and size that has both, Holm over all."""
    chosen = trials[(trials["kind"] == "map") & trials["sampler"].isin(["iid", "orthogonal"])]
    errors = chosen.set_index(["map", axis, "draw", "sampler"])["mse"].unstack(sort=False)
    if errors.shape[1] < 2 or errors.dropna().empty:
        return ""
    pairs = {
        f"{name} at {at_size(budget, size)}": compare(rows["orthogonal"].to_numpy(), rows["iid"].to_numpy())
        for (name, size), rows in errors.dropna().groupby(level=["map", axis], sort=False)
    }
    judged, parts = _verdicts(list(pairs.values())), []
    for word in ("better", "worse"):
        found = [text for text, judgement in zip(pairs, judged, strict=True) if judgement == word]
        many = f"{word} in {len(found)} of {len(pairs)}" if len(found) > 3 else f"{word} for {', '.join(found)}"
        parts += [many] if found else []
    none = f"no detectable difference{' at any R' if budget == 'projections' else ''}"
    return f" orthogonal against iid: {'; '.join(parts) or none}."
