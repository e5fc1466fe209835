"""The tables of a study, as plain records, and as Markdown."""

from typing import Any

import pandas as pd

from favorbench.formats import printable
from favorbench.models.plan import ALL
from favorbench.models.predictions import predictions
from favorbench.models.summary import ENCODER, Study, described, sentence, which_layers
from favorbench.statistics import interval_name

Records = list[dict[str, str]]

MANY = 3  # sets of layers, above which only the effect is told


def tables(study: Study) -> list[tuple[str, Records]]:
    """Titles and records: for all layers and each of a few sets of them, and one for many single layers.

    Two for each set, neither wider than 80 characters where names are short: the effect, and what is beside it.
    """
    found, sets = [], study.lines["layers"].nunique()
    for layers, lines in study.lines.groupby("layers", sort=False):
        which = which_layers(str(layers))
        if layers == ALL or sets <= MANY:
            found.append((f"{which} replaced", [_effect(line, study) for _, line in lines.iterrows()]))
            if len(columns := _beside(lines, study)) > 1:
                records = [
                    {"estimator": _short(line)} | {heading: _number(line[name]) for heading, name in columns.items()}
                    for _, line in lines.iterrows()
                ]
                found.append((f"{which} replaced: {_titled(columns)}", records))
    single = study.lines[study.lines["layers"] != ALL]
    if sets > MANY:
        found.append((f"one layer replaced at a time: {study.measure.heading}", _by_layer(single)))
    return found


def markdown(study: Study) -> str:
    """The sentence, the tables, and what their columns are."""
    parts = [f"{printable(one)}." for one in sentences(study)]
    for title, records in tables(study):
        rows = [list(records[0]), ["---"] * len(records[0]), *([*record.values()] for record in records)]
        cells = [[_escaped(cell) for cell in row] for row in rows]
        parts += [f"**{title}**", "\n".join(f"| {' | '.join(row)} |" for row in cells)]
    return "\n\n".join([*parts, f"{_escaped(note(study))}."]) + "\n"


def sentences(study: Study) -> list[str]:
    """What all of it comes to, and what predicts the effect of a layer where that was measured."""
    predicted = predictions(study)
    return [one for one in (sentence(study.rows), predicted and predicted.sentence) if one]


def _escaped(text: str) -> str:
    """Text in which no character is Markdown's."""
    return printable(text).replace("|", "\\|").replace("*", "\\*")


def note(study: Study) -> str:
    """What the columns are."""
    rank = "; rank: Spearman's correlation of the similarities of all pairs of texts"
    effect = (
        "1 - cos: what the cosine of the embeddings, of the model and of the model replaced, lacks"
        + (rank if study.lines["rank"].notna().any() else "")
        if study.measure is ENCODER
        else "nats: change of the negative log likelihood, per token; late: the same over the second half of a text; "
        "KL(exact || replaced) in nats; top1: same most likely token"
    )
    heads = (
        "; head, 90 %, max: median, 90 % quantile and maximum of the relative errors of single heads, under exact "
        "inputs; W_O: |W_O error| / |h|, root of the sum of squares over the heads of a layer, median over layers"
    )
    heads = heads if study.lines["head_median"].notna().any() else ""
    hidden = "; hidden: relative error after the last layer" if heads or study.measure is not ENCODER else ""
    timed = "; time: CPU seconds / those of exact attention (torch's own), in turns, one thread, two of the layers"
    timed = timed if "time" in study.lines else ""
    texts = f"{'up to ' * study.uneven}{study.texts} text{'' if study.texts == 1 else 's'}"
    return (
        f"{effect}{hidden}{heads}; cost: multiplications / those of exact attention{timed}. Median over {texts} of the "
        f"mean over draws, {interval_name(study.texts)}; *: worse than uniform attention, text by text"
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
    return {**shown, "no number": _number(line["nonfinite"])} if study.lines["nonfinite"].any() else shown


#: Of single heads: headings, and the columns of a study's lines.
HEADS = {"head": "head_median", "90 %": "head_q90", "max": "head_max", "W_O": "head_after_projection"}


def _beside(lines: pd.DataFrame, study: Study) -> dict[str, str]:
    """Headings and columns of what is beside the effect, where it was measured; "hidden" always is."""
    of_tokens = {} if study.measure is ENCODER else {"KL": "kl", "top1": "top1"}
    found = {**of_tokens, "hidden": "last_hidden_error", **HEADS}
    return {heading: name for heading, name in found.items() if lines[name].notna().any()}


def _titled(columns: dict[str, str]) -> str:
    parts = {"KL": "next tokens", "hidden": "hidden states", "head": "single heads"}
    return ", ".join(title for heading, title in parts.items() if heading in columns)


def _short(line: pd.Series) -> str:
    """An estimator with its size; "attention in bfloat16" is exact, as each row above the estimators is."""
    return described(line).removeprefix("exact, ")


def _by_layer(lines: pd.DataFrame) -> Records:
    records = []
    for _, group in lines.groupby(["estimator", "sampler", "size"], sort=False):
        effects = {str(line["layers"]): _number(line["effect"]) for _, line in group.iterrows()}
        records.append({"estimator": described(group.iloc[0]), **effects})
    columns = dict.fromkeys(name for record in records for name in record)
    return [{name: record.get(name, "-") for name in columns} for record in records]


def _number(value: Any) -> str:
    """Two digits, and a fixed point where that is short."""
    if pd.isna(value):
        return "-"
    value = float(value)
    if value == 0:
        return "0"
    for least, digits in ((0.1, 2), (0.01, 3), (0.001, 4)):
        if least <= abs(value) < 100:
            return f"{value:.{digits}f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
