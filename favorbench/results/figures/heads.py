"""Maps of layers and heads: errors of one estimator relative to uniform attention, and their effect on the model."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from favorbench import style
from favorbench.metrics import EFFECT
from favorbench.registry import split_list
from favorbench.results.effect import amount, on_heads, unit_of
from favorbench.results.figures.blocks import MOST, caption, draws_of, relative_label
from favorbench.results.heads import FEW, can_be_compared, check_known, number, on_each_head
from favorbench.results.summary import (
    RunData,
    at_largest,
    by_population,
    compared,
    estimator_names,
    labelled,
    population_title,
    usable,
)
from favorbench.results.tables import at_size, size_axis

MIN_COLOUR = 1e-3  # ratios below have the same colour
WORSE = "×"
_LABEL = r"L(?P<layer>\d+)H(?P<number>\d+)(?:@.+)?"
_CELL = (0.36, 0.15)  # inches that a number needs


def layer_map(results: RunData, metric: str, estimators: str | None = None) -> list[style.Chart]:
    """A panel for each population of more than FEW heads in layers; of the best estimator, or of those named."""
    requested = split_list(estimators) if estimators is not None else []
    known = [name for name in dict.fromkeys(estimator_names(results.summary)) if name != "uniform"]
    check_known(results, "estimators", requested, known)
    if not can_be_compared(metric):
        return []
    rows = labelled(on_each_head(results, metric))
    rows = rows.join(rows["head"].str.extract(_LABEL)).dropna(subset=["layer"])
    rows = rows.astype({"layer": int, "number": int})
    if rows["layer"].nunique() < 2:
        return []
    populations = [cell for cell in by_population(rows) if cell["head"].nunique() > FEW]
    maps = [chart for cell in populations for chart in _maps(results, at_largest(cell), requested)]
    return _charts(results, metric, maps) if maps else []


def effect_map(results: RunData, metric: str, estimators: str | None = None) -> list[style.Chart]:
    """The share of each head in the predicted effect on the model, for populations of more than FEW heads in layers.

    Means over texts and draws, of the estimator with the least effect, or of those named, at the largest size.
    """
    if EFFECT not in results.trials:
        return []
    requested = split_list(estimators) if estimators is not None else []
    rows, panels = labelled(on_heads(results.trials)), []
    for cell in by_population(rows[rows["layer"] != ""].astype({"layer": int, "number": int})):
        sizes = cell["num_projections"].fillna(0)
        cell = cell[sizes == sizes.groupby(cell["label"]).transform("max")]
        means = cell.groupby(["label", "layer", "number"])[EFFECT].mean()
        sums, heads = means.groupby("label").sum(), len(means[means.index[0][0]])
        sums = sums[np.isfinite(sums) & (sums > 0)]
        known = [name for name in usable(compared(cell))["label"].unique() if name in sums]
        if cell["layer"].nunique() < 2 or heads <= FEW or not len(known):
            continue
        for name in [name for name in requested if name in sums] or [min(known, key=sums.__getitem__)]:
            size = cell.loc[cell["label"] == name, size_axis(results)].iloc[0]
            sized = name if pd.isna(size) else f"{name} at {at_size(results, size)}"
            total = amount(sums[name], unit_of(results, cell))
            title = f"{sized}: {total}\n{population_title(cell.iloc[0], heads)}"
            part = means[name].reset_index().assign(label=name, percent=100 * means[name].to_numpy() / sums[name])
            panels.append((title, part))
    if not panels:
        return []
    every = pd.concat([part for _, part in panels])
    norm = LogNorm(every["percent"].max() / 100.0, every["percent"].max())
    drawn = [style.Panel(title, partial(_draw_effects, part, norm=norm)) for title, part in panels]
    text = (
        "Share of each head in the predicted effect on the model, in percent of the sum (in the title); of each layer "
        "beside its number. To second order, from gradients of the model's output; mean over texts and draws."
    )
    size = (max(5.4, 2.6 + 0.5 * every["number"].nunique()), 1.1 + 0.27 * every["layer"].nunique())
    return [style.Chart("effect", "Where the loss comes from", caption(results, text), drawn, 1, size)]


def _draw_effects(part: pd.DataFrame, ax: Axes, norm: LogNorm) -> pd.DataFrame:
    shown = part.assign(ratio=part["percent"], worse=False)
    _draw(shown, ax, norm, "percent of the sum")
    layers = part.groupby("layer")["percent"].sum()
    names = {str(layer): f"{layer}: {share:.0f} %" for layer, share in layers.items()}
    ax.set_yticks(ax.get_yticks(), [names[label.get_text()] for label in ax.get_yticklabels()])
    return part.rename(columns={"number": "head"})


def _charts(results: RunData, metric: str, maps: Sequence[tuple[str, pd.DataFrame]]) -> list[style.Chart]:
    """All maps with one scale of colours."""
    every = pd.concat([part for _, part in maps])
    low = max(min(0.1, float(every["ratio"].min())), MIN_COLOUR)
    norm = LogNorm(10.0 ** math.floor(math.log10(low) + 1e-9), MOST if every["ratio"].max() > 10 else 10.0)
    layers, heads = (max(part[name].nunique() for _, part in maps) for name in ("layer", "number"))
    text = (
        f"{metric} of each head over that of uniform attention (the mean of V), median of {draws_of(results)}. "
        f"{WORSE}: worse than uniform attention. Values beyond the colour bar have the colour of its end."
    )
    drawn = [style.Panel(title, partial(_draw, part, norm=norm, label=relative_label(metric))) for title, part in maps]
    size = (max(5.0, 2.2 + 0.5 * heads), 1.1 + 0.27 * layers)
    return [style.Chart("heads", "Error of each head", caption(results, text), drawn, 1 if heads > 8 else 2, size)]


def _maps(results: RunData, rows: pd.DataFrame, requested: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Title and rows of each map of one population: an estimator on one text."""
    where, texts = population_title(rows.iloc[0], rows["head"].nunique()), rows["head"].str.partition("@")[2]
    best = usable(compared(rows)).replace({"ratio": {np.inf: style.PLOT_INFINITY}})
    for name in requested or [str(best.groupby("label")["ratio"].median().idxmin())]:
        for text, part in rows[rows["label"] == name].groupby(texts, sort=False):
            size = part[size_axis(results)].iloc[0]
            sized = name if pd.isna(size) else f"{name} at {at_size(results, size)}"
            kept = part[["label", "num_projections", "budget", "ratio", "worse", "layer", "number"]]
            yield f"{', '.join(filter(None, [sized, str(text)]))}\n{where}", kept.assign(text=text)


def _draw(part: pd.DataFrame, ax: Axes, norm: LogNorm, label: str) -> pd.DataFrame:
    grid, worse = (part.pivot(index="layer", columns="number", values=name) for name in ("ratio", "worse"))
    ratios = grid.to_numpy(dtype=float)
    clipped = np.ma.masked_invalid(np.clip(ratios, norm.vmin, norm.vmax))
    mesh = ax.pcolormesh(clipped, cmap="cividis", norm=norm, linewidth=0)
    points, dark = _number_size(ratios.shape), norm(clipped) < 0.55
    for (i, j), ratio in np.ndenumerate(ratios):
        if not math.isnan(ratio):
            mark = WORSE if worse.iloc[i, j] else ""
            value = number(ratio) if ratio <= 9999 else ">1e4"
            ax.text(
                j + 0.5, i + 0.5, f"{mark}{value}" if points else mark, ha="center", va="center",
                fontsize=points or style.font_size(), fontweight="bold" if mark else "normal",
                color=style.PAPER if dark[i, j] else style.INK,
            )  # fmt: skip
    ax.grid(False)
    ax.invert_yaxis()
    for axis, names in ((ax.xaxis, grid.columns), (ax.yaxis, grid.index)):
        step = -(-len(names) // 20)
        axis.set_ticks(np.arange(0, len(names), step) + 0.5, [str(name) for name in names[::step]])
    ax.set(xlabel="head", ylabel="layer")
    ax.figure.colorbar(mesh, ax=ax, extend="both", pad=0.02, fraction=0.06, label=label)
    return part.rename(columns={"number": "head"})


def _number_size(shape: tuple[int, ...]) -> float:
    """Points of the numbers in the fields, 0 where they have no room."""
    size = style.options().size
    if size is None:
        return 8.0
    enough = (size[0] - 1.1) / shape[1] >= _CELL[0] and (size[1] - 0.9) / shape[0] >= _CELL[1]
    return 6.0 if enough else 0.0
