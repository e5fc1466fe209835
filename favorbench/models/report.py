"""The tables of a study, as plain records, and as Markdown."""

from typing import Any

import pandas as pd

from favorbench.formats import printable
from favorbench.models.plan import ALL
from favorbench.models.summary import ENCODER, Study, described, sentence
from favorbench.statistics import interval_name

Records = list[dict[str, str]]

MANY = 3  # sets of layers, above which only the effect is told


def tables(study: Study) -> list[tuple[str, Records]]:
    """Titles and records: for all layers and each of a few sets of them, and one for many single layers."""
    found, sets = [], study.lines["layers"].nunique()
    for layers, lines in study.lines.groupby("layers", sort=False):
        which = "all layers" if layers == ALL else f"layer{'s' if ',' in str(layers) else ''} {layers}"
        if layers == ALL or sets <= MANY:
            found.append((f"{which} replaced", [_record(line, study) for _, line in lines.iterrows()]))
    single = study.lines[study.lines["layers"] != ALL]
    if sets > MANY:
        found.append((f"one layer replaced at a time: {study.measure.heading}", _by_layer(single)))
    return found


def markdown(study: Study) -> str:
    """The sentence, the tables, and what their columns are."""
    parts = [f"{printable(sentence(study.rows))}."]
    for title, records in tables(study):
        rows = [list(records[0]), ["---"] * len(records[0]), *([*record.values()] for record in records)]
        cells = [[_escaped(cell) for cell in row] for row in rows]
        parts += [f"**{title}**", "\n".join(f"| {' | '.join(row)} |" for row in cells)]
    return "\n\n".join([*parts, f"{_escaped(note(study))}."]) + "\n"


def _escaped(text: str) -> str:
    """Text in which no character is Markdown's."""
    return printable(text).replace("|", "\\|").replace("*", "\\*")


def note(study: Study) -> str:
    """What the columns are."""
    effect = (
        "1 - cos: what the cosine of the embeddings, of the model and of the model replaced, lacks; rank: Spearman's "
        "correlation of the similarities of all pairs of texts"
        if study.measure is ENCODER
        else "nats: change of the negative log likelihood, per token; late: the same over the second half of a text; "
        "KL(exact || replaced) in nats; top1: same most likely token"
    )
    heads = "; heads: median, 90 % quantile and maximum of the relative errors of single heads, under exact inputs"
    heads = heads if study.lines["head_median"].notna().any() else ""
    texts = f"{study.texts} text{'' if study.texts == 1 else 's'}"
    return (
        f"{effect}; hidden: relative error after the last layer{heads}; cost: multiplications / those of exact "
        f"attention. Median over {texts} of the mean over draws, {interval_name(study.texts)}; *: worse "
        "than uniform attention, text by text"
    )


def _record(line: pd.Series, study: Study) -> dict[str, str]:
    shown = {
        "estimator": described(line),
        "cost": _number(line["cost"]),
        study.measure.heading: f"{_number(line['effect'])}{'*' if line['worse'] else ''}",
        "interval": f"[{_number(line['low'])}, {_number(line['high'])}]",
        "worst": _number(line["worst"]),
    }
    if study.measure is ENCODER:
        shown |= {"rank": _number(line["rank"])} if study.lines["rank"].notna().any() else {}
    else:
        shown |= {"KL": _number(line["kl"]), "top1": _number(line["top1"]), "late": _number(line["late_delta_nll"])}
    shown["hidden"] = _number(line["last_hidden_error"])
    if study.lines["head_median"].notna().any():
        three = " ".join(_number(line[name]) for name in ("head_median", "head_q90", "head_max"))
        shown["heads"] = "-" if pd.isna(line["head_median"]) else three
    return {**shown, "no number": _number(line["nonfinite"])} if study.lines["nonfinite"].any() else shown


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
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3f}" if 0.01 <= abs(value) < 0.1 else f"{value:.1e}"
