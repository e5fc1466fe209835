"""What ``favorbench model`` prints."""

from typing import Any

import pandas as pd
from rich.console import Console

from favorbench.console.tables import show_records
from favorbench.console.terminal import print_line
from favorbench.formats import printable
from favorbench.models.plan import ALL
from favorbench.models.summary import ENCODER, Study, described, sentence
from favorbench.statistics import interval_name

MANY = 3  # sets of layers, above which only the effect is printed


def show_model(console: Console, study: Study) -> None:
    """A table for all layers, or for each set of layers; then the sentence."""
    for layers, lines in study.lines.groupby("layers", sort=False):
        title = "all layers replaced" if layers == ALL else f"layers {layers} replaced" if "," in str(layers) else (
            f"layer {layers} replaced"
        )  # fmt: skip
        if layers == ALL or study.lines["layers"].nunique() <= MANY:
            show_records(console, [_record(line, study) for _, line in lines.iterrows()], title)
    single = study.lines[study.lines["layers"] != ALL]
    if single["layers"].nunique() > MANY:
        show_records(console, _by_layer(single), f"one layer replaced at a time: {study.measure.heading}")
    console.print(_note(study), style="dim")
    print_line(console, printable(sentence(study.rows)))


def _record(line: pd.Series, study: Study) -> dict[str, object]:
    mark = "*" if line["worse"] else ""
    shown: dict[str, object] = {
        "estimator": described(line),
        "cost": _number(line["cost"]),
        study.measure.heading: f"{_number(line['effect'])}{mark}",
        "interval": f"[{_number(line['low'])}, {_number(line['high'])}]",
        "worst": _number(line["worst"]),
    }
    if study.measure is ENCODER:
        shown |= {"rank": _number(line["rank"])} if study.lines["rank"].notna().any() else {}
    else:
        shown |= {"KL": _number(line["kl"]), "top1": _number(line["top1"]), "late": _number(line["late_delta_nll"])}
    shown["hidden"] = _number(line["last_hidden_error"])
    if study.lines["head_median"].notna().any():
        shown["heads"] = "-" if pd.isna(line["head_median"]) else " ".join(
            _number(line[name]) for name in ("head_median", "head_q90", "head_max")
        )  # fmt: skip
    return {**shown, "no number": _number(line["nonfinite"])} if study.lines["nonfinite"].any() else shown


def _by_layer(lines: pd.DataFrame) -> list[dict[str, object]]:
    records = []
    for _, group in lines.groupby(["estimator", "sampler", "size"], sort=False):
        effects = {str(line["layers"]): _number(line["effect"]) for _, line in group.iterrows()}
        records.append({"estimator": described(group.iloc[0]), **effects})
    columns = dict.fromkeys(name for record in records for name in record)
    return [{name: record.get(name, "-") for name in columns} for record in records]


def _note(study: Study) -> str:
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


def _number(value: Any) -> str:
    """Two digits, and a fixed point where that is short."""
    if pd.isna(value):
        return "-"
    value = float(value)
    if value == 0:
        return "0"
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3f}" if 0.01 <= abs(value) < 0.1 else f"{value:.1e}"
