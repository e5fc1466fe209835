"""The figures of a study: effect against size and cost, error by layer, one layer at a time, heads against effects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.models.plan import BFLOAT16
from favorbench.models.predictions import predictions
from favorbench.models.summary import COMPARED, LINE, REMOVED, UNIFORM, Study, described, which_layers

#: Lines to compare with, and how they look.
FIXED: dict[str, dict[str, Any]] = {
    UNIFORM: {"color": "black", "linestyle": "--"},
    REMOVED: {"color": "0.45", "linestyle": ":"},
    BFLOAT16: {"color": "0.45", "linestyle": "-."},
}

SMALLEST = 1e-7  # of an effect on a log axis: what is below is rounding


def draw(study: Study, directory: Path) -> list[Path]:
    """Write the figures there are measurements for; returns the files. Raises StoreError."""
    return [file for one in FIGURES for file in one(study, directory)]


def effect(study: Study, directory: Path) -> list[Path]:
    """Against size and against multiplications, all layers replaced, or those that were asked for first."""
    layers = study.lines["layers"].iloc[0]
    points = _points(study, study.lines[(study.lines["layers"] == layers) & (study.lines["estimator"] != "exact")])
    compared = points[points["kind"].isin(COMPARED)]
    if compared.empty:
        return []
    sized = compared[compared["size"] > 0]
    with style.context():
        figure, axes = style.panels(2, 2, height=4.6, width=5.2)
        for ax, x, some in ((axes[0], "size", sized), (axes[1], "cost", compared[compared["cost"] > 0])):
            for name, look in _looks(study).items():
                line = some[some["estimator"] == name].sort_values(x)
                if len(line):
                    _line(ax, line[x], line, name, look)
            for name, look in FIXED.items():
                for value in points[points["estimator"] == name]["middle"]:
                    ax.axhline(value, label=name, zorder=1.5, **look)
            shown = points[points["kind"] != "exact"]["middle"].clip(lower=SMALLEST)
            style.log_limits(ax, [*shown], [*points[points["kind"] == "exact"]["middle"]])
        style.number_axis(axes[0], [*sized["size"]], log=True)
        axes[0].set_xlabel("R, or m")
        axes[1].set_xscale("log")
        axes[1].axvline(1.0, color="0.7", zorder=1)
        style.few_ticks(axes[1])
        axes[1].set_xlabel("multiplications / those of exact attention")
        axes[0].set_ylabel(study.measure.axis)
        interval = "" if compared["least"].isna().all() else ", with its interval"
        style.finish(figure, axes, style.plain(
            f"{_about(study)}, {which_layers(layers)} replaced: median over texts of the mean over draws{interval}."
        ))  # fmt: skip
        return style.save(figure, directory, "effect", points)


def by_layer(study: Study, directory: Path) -> list[Path]:
    """The error of the hidden states after each layer, all replaced, or those that were asked for first.

    Of each estimator at its largest size.
    """
    layers = study.lines["layers"].iloc[0]
    rows = study.rows[study.rows["layers"] == layers]
    found = []
    for key, group in _largest(rows).groupby(LINE, sort=False):
        errors = np.stack([np.asarray(one) for one in group["hidden_error"]])
        middle = pd.DataFrame(errors).groupby(group["text"].to_numpy()).mean().median()
        found += [(*key, layer + 1, value) for layer, value in enumerate(middle)]
    data = pd.DataFrame(found, columns=[*LINE, "layer", "middle"])
    data = data[data["estimator"] != "exact"]
    if data.empty:
        return []
    return _against_layer(
        study, directory, data, "hidden-error", "|h' - h| / |h| after the layer, mean over tokens", "layer",
        f"{_about(study)}, {which_layers(layers)} replaced; each estimator at its largest size; median over texts.",
    )  # fmt: skip


def one_layer(study: Study, directory: Path) -> list[Path]:
    """The effect of each layer replaced alone; of each estimator at its largest size."""
    single = study.lines[study.lines["layers"].str.fullmatch(r"\d+")]
    if single["layers"].nunique() < 2:
        return []
    data = _largest(_points(study, single)).assign(layer=lambda lines: lines["layers"].astype(int))
    return _against_layer(
        study, directory, data.sort_values("layer"), "one-layer", study.measure.axis, "the layer replaced",
        f"{_about(study)}, one layer replaced at a time; each estimator at its largest size; median over texts.",
    )  # fmt: skip


def heads(study: Study, directory: Path) -> list[Path]:
    """What the errors of a layer's heads say of the effect of replacing that layer: a point for each layer, text,
    estimator, size and draw."""
    found = predictions(study)
    if found is None:
        return []
    data = found.points
    panels = {"head_error": "relative error, median over heads", "head_after_projection": "|W_O error| / |h|"}
    with style.context():
        figure, axes = style.panels(2, 2, height=4.4, width=5.0)
        for ax, (column, label) in zip(axes, panels.items(), strict=True):
            for name, look in _looks(study).items():
                some = data[data["estimator"] == name]
                face = look.get("markerfacecolor", look["color"])
                ax.plot(
                    some[column], some["effect"].clip(lower=SMALLEST), linestyle="none", marker=look["marker"],
                    color=look["color"], markerfacecolor=face, markersize=4, alpha=0.6, label=style.plain(name),
                )  # fmt: skip
            ax.set_xscale("log")
            style.few_ticks(ax)
            ax.set_xlabel(label)
            style.log_limits(ax, [max(v, SMALLEST) for v in data["effect"]])
        axes[0].set_ylabel(f"{study.measure.axis}, layer alone")
        style.finish(figure, axes, style.plain(
            f"{_about(study)}: errors under exact inputs against the effect of replacing that layer alone, "
            f"{len(data)} points. Spearman's correlation: {found.of_relative_error:.2f} (left), "
            f"{found.of_projected_error:.2f} (right: root of the sum of squares over heads)."
        ))  # fmt: skip
        return style.save(figure, directory, "heads", data)


FIGURES: tuple[Callable[[Study, Path], list[Path]], ...] = (effect, by_layer, one_layer, heads)


def _points(study: Study, lines: pd.DataFrame) -> pd.DataFrame:
    """Lines with the effect that figures show, which is never below 0."""
    if study.measure.positive == study.measure.column:
        return lines.assign(middle=lines["effect"], least=lines["low"], most=lines["high"])
    return lines.assign(middle=lines[study.measure.positive], least=np.nan, most=np.nan)


def _largest(found: pd.DataFrame) -> pd.DataFrame:
    """Of each estimator and sampler the largest size."""
    most = found.groupby(["estimator", "sampler"])["size"].transform("max")
    return found[found["size"] == most]


def _looks(study: Study) -> dict[str, dict[str, Any]]:
    """Of each estimator, the same in every figure."""
    names = dict.fromkeys(study.lines[study.lines["kind"].isin(COMPARED)]["estimator"])
    return {name: style.look(i) for i, name in enumerate(names)}


def _line(ax: Axes, x: pd.Series, line: pd.DataFrame, name: str, look: dict[str, Any]) -> None:
    middle = line["middle"].clip(lower=SMALLEST)
    ax.plot(x, middle, label=style.plain(name), markersize=5, **look)  # pyright: ignore[reportArgumentType]
    if not line["least"].isna().any():
        ax.fill_between(
            x, line["least"].clip(lower=SMALLEST), line["most"], color=look["color"], alpha=0.12, linewidth=0
        )  # pyright: ignore[reportArgumentType]


def _against_layer(
    study: Study, directory: Path, data: pd.DataFrame, name: str, ylabel: str, xlabel: str, caption: str
) -> list[Path]:
    with style.context():
        figure, (ax,) = style.panels(1, 1, height=4.6, width=7.6)
        sizes = data.drop_duplicates(["estimator", "sampler"]).set_index("estimator")
        for estimator, look in [*_looks(study).items(), *FIXED.items()]:
            line = data[data["estimator"] == estimator]
            if len(line):
                shown = described({**sizes.loc[[estimator]].iloc[0], "estimator": estimator})
                ax.plot(
                    line["layer"], line["middle"].clip(lower=SMALLEST), label=style.plain(shown), markersize=5, **look
                )
        shown = data[data["kind"] != "exact"]["middle"].clip(lower=SMALLEST)
        style.log_limits(ax, [*shown], [*data[data["kind"] == "exact"]["middle"]])
        style.number_axis(ax, [*data["layer"]])
        ax.set_xlabel(xlabel)
        ax.set_ylabel(ylabel)
        style.finish(figure, [ax], style.plain(caption))
        return style.save(figure, directory, name, data)


def _about(study: Study) -> str:
    """The model and what it was measured on."""
    lengths = sorted(set(study.rows["seq_len"]))
    tokens = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    draws = int(study.rows["draw"].max()) + 1
    one = "" if study.texts == 1 else "s"
    most = "up to " if study.uneven else ""
    return f"{Path(study.manifest['asked']['model']).name}, {most}{study.texts} text{one} of {tokens} tokens, " + (
        "one draw" if draws == 1 else f"up to {draws} draws"
    )
