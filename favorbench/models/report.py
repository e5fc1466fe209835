"""The report on a model: tables, the meaning of their columns, and sentences."""

from typing import Any

import pandas as pd

from favorbench.models.plan import ALL
from favorbench.models.seconds import conditions
from favorbench.models.summary import ENCODER, LANGUAGE, ModelResults, described, predictions, sentence, which_layers
from favorbench.sections import Section, Sections
from favorbench.statistics import interval_name

MANY = 3  # with more sets of layers, only effects are shown

#: Headings and columns of the second table, and the word for them in its title.
SECOND = {
    "KL": ("kl", "next tokens"), "top1": ("top1", ""), "hidden": ("last_hidden_error", "hidden states"),
    "head": ("head_median", "single heads"), "90 %": ("head_q90", ""), "max": ("head_max", ""),
    "W_O": ("head_after_projection", ""),
}  # fmt: skip


def sections(results: ModelResults) -> Sections:
    """The tables of a study, with a note and sentences.

    A set of layers has a table of effects and a table of other measures, both up to 80 characters wide if names are
    short. If there are more than MANY sets, single layers share one table of effects.
    """
    shown, lines = [], results.lines
    sets = lines["layers"].nunique()
    for layers, rows in lines.groupby("layers", sort=False):
        if layers == ALL or sets <= MANY:
            shown += _tables(results, rows, f"{which_layers(str(layers))} replaced")
    if sets > MANY:
        single = lines[lines["layers"] != ALL]
        columns = dict.fromkeys(single["layers"].astype(str), "-")
        table = [
            {"estimator": described(group.iloc[0])}
            | columns
            | {str(line["layers"]): _number(line["effect"]) for _, line in group.iterrows()}
            for _, group in single.groupby(["estimator", "sampler", "size"], sort=False)
        ]
        shown.append(Section(f"one layer replaced at a time: {results.measure.heading}", table))
    return Sections([*shown, Section(note=note(results), sentences=sentences(results))])


def _tables(results: ModelResults, rows: pd.DataFrame, title: str) -> list[Section]:
    second = {name: column for name, (column, _) in SECOND.items() if rows[column].notna().any()}
    if results.measure is not LANGUAGE:
        shown_or_none = ("KL", "top1") if results.measure is ENCODER else ("KL",)
        second = {name: column for name, column in second.items() if name not in shown_or_none}
    effects, others = [], []
    for _, line in rows.iterrows():
        estimator = {"estimator": described(line).removeprefix("exact, ")}  # all rows above the estimators are exact
        effects.append(estimator | _effect(line, results))
        others.append(estimator | {name: _number(line[column]) for name, column in second.items()})
    shown = ", ".join(SECOND[name][1] for name in second if SECOND[name][1])
    return [Section(title, effects), *([Section(f"{title}: {shown}", others)] if len(second) > 1 else [])]


def _effect(line: pd.Series, results: ModelResults) -> dict[str, str]:
    shown = {"cost": _number(line["cost"])} | ({"time": _number(line["time"])} if "time" in line else {})
    shown |= {
        results.measure.heading: f"{_number(line['effect'])}{'*' if line['worse'] else ''}",
        "interval": f"[{_number(line['low'])}, {_number(line['high'])}]", "worst": _number(line["worst"]),
    }  # fmt: skip
    shown |= {"predicted": _number(line["predicted"])} if "predicted" in line else {}
    shown |= {"texts": str(line["texts"])} if results.uneven else {}
    if results.measure is LANGUAGE:
        shown |= {"late": _number(line["late_delta_nll"])}
    elif results.measure is ENCODER and results.lines["rank"].notna().any():
        shown |= {"rank": _number(line["rank"])}
    return {**shown, "NaN": _number(line["nonfinite"])} if results.lines["nonfinite"].any() else shown


def sentences(results: ModelResults) -> list[str]:
    """The finding, and how well errors of heads predict the effect of a layer, if measured."""
    predicted = predictions(results)
    return [text for text in (sentence(results.rows), predicted and predicted.sentence) if text]


def note(results: ModelResults) -> str:
    """The meaning of the columns."""
    timed = conditions(results.path) if "time" in results.lines else ""
    encoder, language = results.measure is ENCODER, results.measure is LANGUAGE
    heads = results.lines["head_median"].notna().any()
    parts = {
        "1 - cos: 1 - cosine between original and modified embedding": encoder,
        "rank: Spearman's correlation of the similarities of all pairs of texts":
            encoder and results.lines["rank"].notna().any(),
        "nats: change of the negative log likelihood, per token": language,
        "late: the same over the second half of a text": language,
        "KL(exact || replaced) in nats": not encoder,
        f"predicted: {'1 - cos' if encoder else 'KL'} to second order, the sum of the effects of all heads":
            "predicted" in results.lines,
        "top1: same most likely token": not encoder,
        "hidden: relative error after the last layer": heads or not encoder,
        "head, 90 %, max: median, 90 % quantile and maximum of the relative errors of single heads, under exact inputs":
            heads,
        "W_O: |W_O error| / |h|, root of the sum of squares over the heads of a layer, median over layers": heads,
        "cost: multiplications / those of exact attention": True,
        f"time: CPU seconds / those of exact attention (torch's own), interleaved, {timed}": timed,
    }  # fmt: skip
    return (
        f"{'; '.join(part for part, shown in parts.items() if shown)}. Median over {results.counted_texts} of the mean "
        f"over draws, {interval_name(results.texts)}; *: worse than uniform attention, text by text"
    )


def _number(value: Any) -> str:
    """Two digits, in fixed point where that is short."""
    if pd.isna(value):
        return "-"
    if value == 0:
        return "0"
    for least, digits in ((0.1, 2), (0.01, 3), (0.001, 4)):
        if least <= abs(value) < 100:
            return f"{value:.{digits}f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
