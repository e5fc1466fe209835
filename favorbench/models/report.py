"""What is shown of a study of a model: tables, what their columns mean, and sentences."""

from typing import Any

import pandas as pd

from favorbench.models.plan import ALL
from favorbench.models.predictions import predictions
from favorbench.models.summary import ENCODER, Study, described, sentence, which_layers
from favorbench.sections import Section, Sections
from favorbench.statistics import interval_name

MANY = 3  # sets of layers, above which only the effect is shown

#: Errors of single heads: headings, and the columns of a study's lines.
HEADS = {"head": "head_median", "90 %": "head_q90", "max": "head_max", "W_O": "head_after_projection"}


def sections(study: Study) -> Sections:
    """Tables for all layers and each of a few sets of them, or one for many single layers; the note; the sentences.

    Two for each set, neither wider than 80 characters where names are short: the effect, and what is beside it.
    """
    found, sets = [], study.lines["layers"].nunique()
    for layers, lines in study.lines.groupby("layers", sort=False):
        title = f"{which_layers(str(layers))} replaced"
        if layers == ALL or sets <= MANY:
            found.append(Section(title, [_effect(line, study) for _, line in lines.iterrows()]))
            if len(columns := _other_columns(lines, study)) > 1:
                rows = [
                    {"estimator": _short(line)} | {heading: _number(line[name]) for heading, name in columns.items()}
                    for _, line in lines.iterrows()
                ]
                parts = {"KL": "next tokens", "hidden": "hidden states", "head": "single heads"}
                shown = ", ".join(part for heading, part in parts.items() if heading in columns)
                found.append(Section(f"{title}: {shown}", rows))
    if sets > MANY:
        single = study.lines[study.lines["layers"] != ALL]
        found.append(Section(f"one layer replaced at a time: {study.measure.heading}", _by_layer(single)))
    return Sections([*found, Section(note=note(study), sentences=sentences(study))])


def sentences(study: Study) -> list[str]:
    """What all of it comes to, and what predicts the effect of a layer where that was measured."""
    predicted = predictions(study)
    return [one for one in (sentence(study.rows), predicted and predicted.sentence) if one]


def note(study: Study) -> str:
    """What the columns are."""
    if study.measure is ENCODER:
        parts = ["1 - cos: 1 - cosine between original and modified embedding"]
        if study.lines["rank"].notna().any():
            parts.append("rank: Spearman's correlation of the similarities of all pairs of texts")
    else:
        parts = [
            "nats: change of the negative log likelihood, per token", "late: the same over the second half of a text",
            "KL(exact || replaced) in nats", "top1: same most likely token",
        ]  # fmt: skip
    heads = study.lines["head_median"].notna().any()
    if heads or study.measure is not ENCODER:
        parts.append("hidden: relative error after the last layer")
    if heads:
        parts.append(
            "head, 90 %, max: median, 90 % quantile and maximum of the relative errors of single heads, under exact "
            "inputs"
        )
        parts.append("W_O: |W_O error| / |h|, root of the sum of squares over the heads of a layer, median over layers")
    parts.append("cost: multiplications / those of exact attention")
    if "time" in study.lines:
        parts.append(
            "time: CPU seconds / those of exact attention (torch's own), interleaved, one thread, two of the layers"
        )
    texts = f"{'up to ' * study.uneven}{study.texts} text{'' if study.texts == 1 else 's'}"
    return (
        f"{'; '.join(parts)}. Median over {texts} of the mean over draws, {interval_name(study.texts)}; *: worse than "
        "uniform attention, text by text"
    )


def _effect(line: pd.Series, study: Study) -> dict[str, str]:
    shown = {
        "estimator": _short(line),
        "cost": _number(line["cost"]),
        **({"time": _number(line["time"])} if "time" in line else {}),
        study.measure.heading: f"{_number(line['effect'])}{'*' if line['worse'] else ''}",
        "interval": f"[{_number(line['low'])}, {_number(line['high'])}]",
        "worst": _number(line["worst"]),
        **({"texts": str(line["texts"])} if study.uneven else {}),
    }
    if study.measure is not ENCODER:
        shown |= {"late": _number(line["late_delta_nll"])}
    elif study.lines["rank"].notna().any():
        shown |= {"rank": _number(line["rank"])}
    return {**shown, "NaN": _number(line["nonfinite"])} if study.lines["nonfinite"].any() else shown


def _other_columns(lines: pd.DataFrame, study: Study) -> dict[str, str]:
    """Headings and columns of what was measured beside the effect; "hidden" always is."""
    of_tokens = {} if study.measure is ENCODER else {"KL": "kl", "top1": "top1"}
    found = {**of_tokens, "hidden": "last_hidden_error", **HEADS}
    return {heading: name for heading, name in found.items() if lines[name].notna().any()}


def _short(line: pd.Series) -> str:
    """An estimator with its size; "attention in bfloat16" is exact, as each row above the estimators is."""
    return described(line).removeprefix("exact, ")


def _by_layer(lines: pd.DataFrame) -> list[dict[str, str]]:
    columns = dict.fromkeys(lines["layers"].astype(str), "-")
    return [
        {"estimator": described(group.iloc[0])}
        | columns
        | {str(line["layers"]): _number(line["effect"]) for _, line in group.iterrows()}
        for _, group in lines.groupby(["estimator", "sampler", "size"], sort=False)
    ]


def _number(value: Any) -> str:
    """Two digits, and a fixed point where that is short."""
    if pd.isna(value):
        return "-"
    if value == 0:
        return "0"
    for least, digits in ((0.1, 2), (0.01, 3), (0.001, 4)):
        if least <= abs(value) < 100:
            return f"{value:.{digits}f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
