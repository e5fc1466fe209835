"""The predicted effect on the model: sums over heads, as a table and in sentences, and the share of each layer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from favorbench.metrics import EFFECT
from favorbench.results.heads import number
from favorbench.results.summary import (
    POPULATION,
    RunData,
    by_population,
    compared,
    labelled,
    population_title,
    usable,
)
from favorbench.results.tables import at_largest_size, by_size, named_row, size_axis, with_size
from favorbench.sections import Section

#: A label of a head: its layer, its number, and its text where there are several.
_LABEL = r"L(?P<layer>\d+)H(?P<number>\d+)(?:@(?P<text>.+))?"

LARGE = 0.1  # of nats or 1 - cosine: a second-order prediction of more is rough

_ESTIMATOR = ["kind", "estimator", "sampler", "num_projections", "budget"]


class SummedEffects(NamedTuple):
    """Effects summed over the heads of one population. rows: for each estimator and size a row, the least first.

    sum_median, sum_low, sum_high: of the sums over all heads, one for each of ``texts`` and of ``draws``; layer, share:
    the layer with most, and its share. unit: nats per token, or 1 - cosine.
    """

    title: str
    heads: int
    unit: str
    rows: pd.DataFrame


def summed_effects(results: RunData) -> list[SummedEffects]:
    """The sums of each population whose heads have gradients."""
    if EFFECT not in results.trials:
        return []
    return [
        _of_population(rows, unit_of(results, rows))
        for rows in by_population(place_heads(results.trials.dropna(subset=[EFFECT])))
    ]


def unit_of(results: RunData, rows: pd.DataFrame) -> str:
    """The unit of the effect on the input of these rows."""
    files: Any = results.manifest["input_files"]
    return next((file.get("effect", "") for file in files if file["input"] == rows["input"].iloc[0]), "")


def amount(effect: float, unit: str) -> str:
    """ "0.012 nats per token" or "0.0050 in 1 - cosine"."""
    return f"{number(effect)} {'' if unit.startswith('nats') else 'in '}{unit}"


def place_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the layer, the number and the text of each head from its label; empty where it has none."""
    return rows.join(rows["head"].str.extract(_LABEL).fillna(""))


def _of_population(rows: pd.DataFrame, unit: str) -> SummedEffects:
    heads, summed = int(rows.groupby("text")["head"].nunique().max()), []
    for _, group in rows.groupby(_ESTIMATOR, sort=False, dropna=False):
        sums = group.groupby(["text", "trial"])[EFFECT].agg(["sum", "count"])
        whole = sums.loc[sums["count"] == heads, "sum"].to_numpy()  # a head on which it failed is missing
        if not len(whole):
            continue
        layers = group.groupby("layer")[EFFECT].sum()
        with np.errstate(invalid="ignore"):
            share = layers.max() / layers.sum()
        summed.append({
            **group.iloc[0][POPULATION + _ESTIMATOR], "heads": heads, "sum_median": np.median(whole),
            "sum_low": whole.min(), "sum_high": whole.max(), "texts": group["text"].nunique(),
            "draws": group["trial"].nunique(), "layer": layers.idxmax(), "share": share,
        })  # fmt: skip
    frame = pd.DataFrame(summed).astype({"num_projections": "Int64", "budget": "Int64"})
    return SummedEffects(population_title(rows.iloc[0], heads), heads, unit, frame.sort_values("sum_median"))


def effect_tables(results: RunData) -> list[Section]:
    """A table for each population, by size and from the least effect to the largest."""
    return [
        Section(
            f"Predicted effect on the model ({total.unit}), sum over {total.title}",
            [_texts(results, row) for _, row in by_size(results, total.rows, "sum_median").iterrows()],
            f"The effect of the errors of all {total.heads} heads on one text, to second order, as if errors of "
            f"different heads were uncorrelated: median and range of {_counts(total.rows.iloc[0])}. Above about "
            f"{LARGE:g} it is rough. Largest layer: its share of the sum.",
            data=total.rows,
        )
        for total in summed_effects(results)
    ]


def _texts(results: RunData, row: pd.Series) -> dict[str, str]:
    layer = f"{row['share']:.0%} L{row['layer']}" if row["layer"] and np.isfinite(row["share"]) else "-"
    return {
        **named_row(results, row), "sum": number(row["sum_median"]),
        "lowest to highest": f"{number(row['sum_low'])} to {number(row['sum_high'])}", "largest layer": layer,
    }  # fmt: skip


def _counts(row: pd.Series) -> str:
    texts, draws = (f"{row[name]} {name if row[name] > 1 else name[:-1]}" for name in ("texts", "draws"))
    return f"{texts}, {draws} of each estimator"


def effect_sentences(results: RunData) -> list[str]:
    """For each population the estimator with the least predicted effect at the largest size, and its other sizes."""
    return [sentence for effects in summed_effects(results) for sentence in _of_best(results, effects)]


def _of_best(results: RunData, effects: SummedEffects) -> Sequence[str]:
    axis, rows = size_axis(results), labelled(usable(compared(effects.rows)))
    if rows.empty:
        return []
    best = at_largest_size(results, rows).iloc[0]
    others = rows[(rows["label"] == best["label"]) & (rows[axis] != best[axis])].sort_values(axis)
    ladder = ", ".join(f"{number(row['sum_median'])} at {row[axis]}" for _, row in others.iterrows())
    return [
        f"{effects.title}: {with_size(results, best)} will cost the model about "
        f"{amount(best['sum_median'], effects.unit)} ({number(best['sum_low'])} to {number(best['sum_high'])} on "
        f"{_counts(best)}; sum over {effects.heads} heads, "
        f"whose errors are taken as uncorrelated){f'; {ladder}' if ladder else ''}."
    ]
