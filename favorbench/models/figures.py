"""The figures of a study: effect against size and cost, error by layer, one layer at a time, heads against effects."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.models.plan import BFLOAT16
from favorbench.models.predictions import predictions
from favorbench.models.summary import COMPARED, LINE, REMOVED, UNIFORM, Study, described, which_layers

#: Lines to compare with.
REFERENCES: dict[str, dict[str, Any]] = {
    UNIFORM: {"color": "black", "linestyle": "--"},
    REMOVED: {"color": "0.45", "linestyle": ":"},
    BFLOAT16: {"color": "0.45", "linestyle": "-."},
}

MIN_EFFECT = 1e-7  # on a log axis: what is below is rounding


def charts(study: Study) -> list[style.Chart]:
    """The charts there are measurements for."""
    return [chart for kind in CHARTS for chart in kind(study)]


def effect(study: Study) -> list[style.Chart]:
    """Against size and against multiplications, all layers replaced, or those that were asked for first."""
    layers = study.lines["layers"].iloc[0]
    points = _points(study, study.lines[(study.lines["layers"] == layers) & (study.lines["estimator"] != "exact")])
    compared = points[points["kind"].isin(COMPARED)]
    if compared.empty:
        return []
    sized, costed = compared[compared["size"] > 0], compared[compared["cost"] > 0]
    panels = [style.Panel("", partial(_effects, study, points, costed, "cost"), "effect")]
    if sized["size"].nunique() > 1:
        panels.insert(0, style.Panel("", partial(_effects, study, points, sized, "size"), "effect"))
    interval = "" if compared["least"].isna().all() else ", with its interval"
    text = f"{_about(study)}, {which_layers(layers)} replaced: median over texts of the mean over draws{interval}."
    title = "What replacing attention does to the model: lower is better"
    return [style.Chart("effect", title, text, panels, 2, (5.2, 4.6), (7.6, 4.6), points)]


def _effects(study: Study, points: pd.DataFrame, rows: pd.DataFrame, x: str, ax: Axes) -> None:
    for name, look in _looks(study).items():
        line = rows[rows["estimator"] == name].sort_values(x)
        if len(line):
            band = None if line["least"].isna().any() else (line["least"].clip(lower=MIN_EFFECT), line["most"])
            style.line_with_band(
                ax, line[x], line["middle"].clip(lower=MIN_EFFECT), band, label=style.plain(name), **look
            )
    for name, look in REFERENCES.items():
        for value in points[points["estimator"] == name]["middle"]:
            ax.axhline(value, label=name, zorder=1.5, **look)
    _effect_limits(ax, points)
    if x == "size":
        style.number_axis(ax, [*rows["size"]], log=True)
        ax.set_xlabel("R of maps, m of methods")
    else:
        ax.set_xscale("log")
        ax.axvline(1.0, color="0.7", zorder=1, label="exact attention")
        style.log_ticks(ax.xaxis)
        ax.set_xlabel("multiplications relative to exact attention")
    ax.set_ylabel(study.measure.axis)


def _effect_limits(ax: Axes, data: pd.DataFrame) -> None:
    exact = data["kind"] == "exact"
    style.log_limits(ax, [*data[~exact]["middle"].clip(lower=MIN_EFFECT)], [*data[exact]["middle"]])


def by_layer(study: Study) -> list[style.Chart]:
    """The error of the hidden states after each layer, of each estimator at its largest size."""
    layers = study.lines["layers"].iloc[0]
    rows = study.rows[study.rows["layers"] == layers]
    found = []
    for key, group in _largest(rows).groupby(LINE, sort=False):
        errors = np.stack([np.asarray(one) for one in group["hidden_error"]])
        middle = pd.DataFrame(errors).groupby(group["text"].to_numpy()).mean().median()
        found += [(*key, layer + 1, value) for layer, value in enumerate(middle)]
    data = pd.DataFrame(found, columns=[*LINE, "layer", "middle"])
    text = f"{which_layers(layers)} replaced; each estimator at its largest size; median over texts."
    return _against_layer(
        study, data[data["estimator"] != "exact"], "hidden-error", "Error of the hidden states, layer by layer",
        ("after layer", "|h' - h| / |h|, mean over tokens"), text,
    )  # fmt: skip


def one_layer(study: Study) -> list[style.Chart]:
    """The effect of each layer replaced alone, of each estimator at its largest size."""
    single = study.lines[study.lines["layers"].str.fullmatch(r"\d+")]
    if single["layers"].nunique() < 2:
        return []
    data = _largest(_points(study, single)).assign(layer=lambda lines: lines["layers"].astype(int))
    text = "one layer replaced at a time; each estimator at its largest size; median over texts."
    return _against_layer(
        study, data.sort_values("layer"), "one-layer", "What replacing one layer does to the model",
        ("layer replaced", study.measure.axis), text,
    )  # fmt: skip


def _against_layer(
    study: Study, data: pd.DataFrame, name: str, title: str, labels: tuple[str, str], text: str
) -> list[style.Chart]:
    def draw(ax: Axes) -> None:
        for estimator, look in [*_looks(study).items(), *REFERENCES.items()]:
            line = data[data["estimator"] == estimator]
            if len(line):
                label = style.plain(described({**line.iloc[0], "estimator": estimator}))
                ax.plot(line["layer"], line["middle"].clip(lower=MIN_EFFECT), label=label, **look)
        _effect_limits(ax, data)
        style.number_axis(ax, [*data["layer"]])
        ax.set(xlabel=labels[0], ylabel=labels[1])

    if data.empty:
        return []
    return [
        style.Chart(name, title, f"{_about(study)}, {text}", [style.Panel("", draw)], panel_size=(7.6, 4.6), data=data)
    ]


def heads(study: Study) -> list[style.Chart]:
    """What the errors of a layer's heads say of the effect of replacing that layer."""
    found = predictions(study)
    if found is None:
        return []
    text = (
        f"{_about(study)}: errors under exact inputs against the effect of replacing that layer alone, "
        f"{len(found.points)} points, one for each layer, text, estimator, size and draw. Spearman's correlation: "
        f"{found.of_relative_error:.2f} (left), {found.of_projected_error:.2f} (right: root of the sum of squares over "
        "heads)."
    )
    columns = {"head_error": "relative error, median over heads", "head_after_projection": "|W_O error| / |h|"}
    panels = [
        style.Panel("", partial(_scatter, study, found.points, column, label), "effect")
        for column, label in columns.items()
    ]
    return [style.Chart("heads", "Errors of heads predict effects", text, panels, 2, (5.0, 4.4), data=found.points)]


def _scatter(study: Study, points: pd.DataFrame, column: str, label: str, ax: Axes) -> None:
    for i, name in enumerate(_looks(study)):
        some = points[points["estimator"] == name]
        dots = style.series_look(i, linestyle="none", markersize=style.scaled(4), alpha=0.6, label=style.plain(name))
        ax.plot(some[column], some["effect"].clip(lower=MIN_EFFECT), **dots)
    ax.set_xscale("log")
    style.log_ticks(ax.xaxis)
    style.log_limits(ax, [*points["effect"].clip(lower=MIN_EFFECT)])
    ax.set(xlabel=label, ylabel=f"{study.measure.axis}, layer alone")


CHARTS: tuple[Callable[[Study], list[style.Chart]], ...] = (effect, by_layer, one_layer, heads)


def _points(study: Study, lines: pd.DataFrame) -> pd.DataFrame:
    """Lines with the effect that figures show, which is never below 0."""
    if study.measure.positive == study.measure.column:
        return lines.assign(middle=lines["effect"], least=lines["low"], most=lines["high"])
    return lines.assign(middle=lines[study.measure.positive], least=np.nan, most=np.nan)


def _largest(found: pd.DataFrame) -> pd.DataFrame:
    """Each estimator under each sampler at its largest size."""
    most = found.groupby(["estimator", "sampler"])["size"].transform("max")
    return found[found["size"] == most]


def _looks(study: Study) -> dict[str, dict[str, Any]]:
    """How each estimator looks, the same in every figure."""
    names = dict.fromkeys(study.lines[study.lines["kind"].isin(COMPARED)]["estimator"])
    return {name: style.series_look(i) for i, name in enumerate(names)}


def _about(study: Study) -> str:
    """The model and what it was measured on."""
    lengths = sorted(set(study.rows["seq_len"]))
    tokens = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    draws = int(study.rows["draw"].max()) + 1
    texts = f"{'up to ' if study.uneven else ''}{study.texts} text{'' if study.texts == 1 else 's'}"
    return (
        f"{Path(study.manifest['asked']['model']).name}, {texts} of {tokens} tokens, "
        f"{'one draw' if draws == 1 else f'up to {draws} draws'}"
    )
