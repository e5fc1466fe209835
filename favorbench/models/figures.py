"""The figures of a study: effect against size and cost, error by layer, one layer at a time, heads against effects."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.models.plan import BFLOAT16
from favorbench.models.summary import (
    COMPARED,
    LINE,
    REMOVED,
    UNIFORM,
    ModelResults,
    described,
    predictions,
    which_layers,
    with_tokens,
)

#: The styles of reference lines.
REFERENCES: dict[str, dict[str, Any]] = {
    UNIFORM: {"color": "black", "linestyle": "--"},
    REMOVED: {"color": "0.45", "linestyle": ":"},
    BFLOAT16: {"color": "0.45", "linestyle": "-."},
}

MIN_EFFECT = 1e-7  # on a log axis: smaller effects are rounding


def charts(results: ModelResults) -> list[style.Chart]:
    """All charts that the measurements suffice for."""
    return [*effect(results), *by_layer(results), *one_layer(results), *heads(results)]


def effect(results: ModelResults) -> list[style.Chart]:
    """Effect against size and multiplications, with all layers replaced or the first set of layers."""
    layers = results.lines["layers"].iloc[0]
    points = _points(results, results.lines)
    points = points[(points["layers"] == layers) & (points["estimator"] != "exact")]
    compared = points[points["kind"].isin(COMPARED)]
    if compared.empty:
        return []
    columns = ["size", "cost"] if compared.loc[compared["size"] > 0, "size"].nunique() > 1 else ["cost"]
    panels = [style.Panel("", partial(_draw_effect, results, points, column), "effect") for column in columns]
    interval = "" if compared["least"].isna().all() else ", with its interval over texts, which share the draws"
    where = which_layers(layers, results.rows)
    text = f"{_about(results)}, {where} replaced: median over texts of the mean over draws{interval}."
    if unknown := list(dict.fromkeys(_names(compared[compared["cost"].isna()]))):
        text += f" Not drawn against multiplications, as they declare no cost: {', '.join(unknown)}."
    title = "Effect of replacing attention on the model: lower is better"
    return [style.Chart("effect", title, text, panels, 2, (5.2, 4.6), (7.6, 4.6), points)]


def _draw_effect(results: ModelResults, points: pd.DataFrame, x: str, ax: Axes) -> None:
    rows = points[points["kind"].isin(COMPARED) & (points[x] > 0)].sort_values(x, kind="stable")
    for name, look in _looks(results).items():
        line = rows[_names(rows) == name]
        if len(line):
            band = None if line["least"].isna().any() else (_visible(line["least"]), line["most"])
            style.line_with_band(ax, line[x], _visible(line["middle"]), band, label=style.plain(name), **look)
    for name, look in REFERENCES.items():
        for value in points[points["estimator"] == name]["middle"]:
            ax.axhline(value, label=name, zorder=1.5, **look)
    _effect_limits(results, ax, points)
    if x == "size":
        style.number_axis(ax, [*rows["size"]], log=True)
        ax.set_xlabel("R of maps, m of methods")
    else:
        ax.set_xscale("log")
        ax.axvline(1.0, color="0.7", zorder=1, label="exact attention")
        style.log_ticks(ax.xaxis)
        ax.set_xlabel("multiplications relative to exact attention")
    ax.set_ylabel(results.measure.axis)


def _effect_limits(results: ModelResults, ax: Axes, data: pd.DataFrame) -> None:
    """The limits of effects, and a note about what lies beyond, such as the infinite effect of NaN."""
    exact = data["kind"] == "exact"
    style.log_limits(ax, [*_visible(data[~exact]["middle"])], [*data[exact]["middle"]])
    names, middle = _names(data), _visible(data["middle"])
    values = {name: middle[names == name].tolist() for name in [*_looks(results), *REFERENCES]}
    style.off_scale_note(ax, values, values)


def _visible(values: pd.Series) -> pd.Series:
    """Values on a log axis."""
    return values.clip(lower=MIN_EFFECT)


def by_layer(results: ModelResults) -> list[style.Chart]:
    """The error of the hidden states after each layer, for each estimator at its largest size."""
    layers = results.lines["layers"].iloc[0]
    rows = results.rows[(results.rows["layers"] == layers) & (results.rows["estimator"] != "exact")]
    rows = _largest(rows)[[*LINE, "text", "hidden_error"]].explode("hidden_error").dropna(subset="hidden_error")
    rows["layer"] = rows.groupby(level=0).cumcount() + 1
    means = rows.astype({"hidden_error": float}).groupby([*LINE, "layer", "text"], sort=False)["hidden_error"].mean()
    data = means.groupby([*LINE, "layer"], sort=False).median().rename("middle").reset_index()
    text = f"{which_layers(layers, results.rows)} replaced; each estimator at its largest size; median over texts."
    return _against_layer(
        results, data, "hidden-error", "Error of the hidden states, layer by layer",
        ("after layer", "|h' - h| / |h|, mean over tokens"), text,
    )  # fmt: skip


def one_layer(results: ModelResults) -> list[style.Chart]:
    """The effect of each layer replaced alone, for each estimator at its largest size."""
    single = results.lines[results.lines["layers"].str.fullmatch(r"\d+")]
    if single["layers"].nunique() < 2:
        return []
    data = _largest(_points(results, single)).assign(layer=lambda lines: lines["layers"].astype(int))
    text = "one layer replaced at a time; each estimator at its largest size; median over texts."
    return _against_layer(
        results, data.sort_values("layer"), "one-layer", "Effect of replacing one layer on the model",
        ("layer replaced", results.measure.axis), text,
    )  # fmt: skip


def _against_layer(
    results: ModelResults, data: pd.DataFrame, name: str, title: str, labels: tuple[str, str], text: str
) -> list[style.Chart]:
    def draw(ax: Axes) -> None:
        for estimator, look in [*_looks(results).items(), *REFERENCES.items()]:
            line = data[_names(data) == estimator]
            if len(line):
                ax.plot(line["layer"], _visible(line["middle"]), label=style.plain(described(line.iloc[0])), **look)
        _effect_limits(results, ax, data)
        style.number_axis(ax, [*data["layer"]])
        ax.set(xlabel=labels[0], ylabel=labels[1])

    if data.empty:
        return []
    panels = [style.Panel("", draw)]
    return [style.Chart(name, title, f"{_about(results)}, {text}", panels, panel_size=(7.6, 4.6), data=data)]


def heads(results: ModelResults) -> list[style.Chart]:
    """The errors of a layer's heads against the effect of replacing that layer."""
    predicted = predictions(results)
    if predicted is None:
        return []
    relative, projected = f"{predicted.of_relative_error:.2f}", f"{predicted.of_projected_error:.2f}"
    columns = {
        "head_error": ("relative error, median over heads", relative, "left"),
        "head_after_projection": ("|W_O error| / |h|", projected, "right: root of the sum of squares over heads"),
    }
    # unknown of a module that shows no hidden states; medians are 0 where most heads of a layer stay exact
    columns = {name: column for name, column in columns.items() if (predicted.points[name] > 0).any()}
    if not columns:
        return []
    several = len(columns) > 1
    correlations = ", ".join(value + f" ({panel})" * several for _, value, panel in columns.values())
    errors, effects = predicted.points[[*columns]], predicted.points["effect"]
    unseen = int((~(((errors > 0) & (errors < np.inf)).all(axis=1) & (effects < np.inf))).sum())
    text = (
        f"{_about(results)}: errors under exact inputs against the effect of replacing that layer alone, "
        f"{len(predicted.points)} points, one for each layer, text, estimator, size and draw"
        f"{f' ({unseen} are not drawn where an error is 0, or a value infinite)' * bool(unseen)}. "
        f"Spearman's correlation: {correlations}."
    )
    panels = [
        style.Panel("", partial(_scatter, results, predicted.points, column, label), "effect")
        for column, (label, *_) in columns.items()
    ]
    return [style.Chart("heads", "Head errors and layer effects", text, panels, 2, (5.0, 4.4), data=predicted.points)]


def _scatter(results: ModelResults, points: pd.DataFrame, column: str, label: str, ax: Axes) -> None:
    for i, name in enumerate(_looks(results)):
        rows = points[_names(points) == name]
        dots = style.series_look(i, linestyle="none", markersize=style.scaled(4), alpha=0.6, label=style.plain(name))
        ax.plot(rows[column], _visible(rows["effect"]), **dots)
    ax.set_xscale("log")
    style.log_ticks(ax.xaxis)
    style.log_limits(ax, [*_visible(points["effect"])])
    ax.set(xlabel=label, ylabel=f"{results.measure.axis}, layer alone")


def _points(results: ModelResults, lines: pd.DataFrame) -> pd.DataFrame:
    """Lines with the effect that figures show, which is never below 0."""
    if results.measure.positive == results.measure.column:
        return lines.assign(middle=lines["effect"], least=lines["low"], most=lines["high"])
    return lines.assign(middle=lines[results.measure.positive], least=np.nan, most=np.nan)


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Each estimator under each sampler at its largest size."""
    return rows[rows["size"] == rows.groupby(["estimator", "sampler"])["size"].transform("max")]


def _looks(results: ModelResults) -> dict[str, dict[str, Any]]:
    """The look of each estimator under each sampler, by its name, the same in every figure."""
    names = dict.fromkeys(_names(results.lines[results.lines["kind"].isin(COMPARED)]))
    return {name: style.series_look(i) for i, name in enumerate(names)}


def _names(rows: pd.DataFrame) -> pd.Series:
    """The name of the estimator of each row, with its sampler."""
    return pd.Series([described(row) for _, row in rows.assign(size=0).iterrows()], rows.index, dtype=object)


def _about(results: ModelResults) -> str:
    """The model, its texts and draws."""
    draws = int(results.rows["draw"].max()) + 1
    return (
        f"{Path(results.manifest['asked']['model']).name}, {with_tokens(results.counted_texts, results.rows)}, "
        f"{'one draw' if draws == 1 else f'up to {draws} draws'}"
    )
