"""Maps of layers and heads: errors of one estimator relative to uniform attention, and their effect on the model."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from favorbench import style
from favorbench.metrics import EFFECT
from favorbench.registry import split_list
from favorbench.results.figures.blocks import MOST, caption, draws_of, relative_label
from favorbench.results.heads import (
    FEW,
    amount,
    can_be_compared,
    check_known,
    number,
    on_each_head,
    place_heads,
    unit_of,
)
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
from favorbench.results.tables import uniform_in_words, with_size

MIN_COLOUR = 1e-3  # ratios below have the same colour
WORSE = "×"
_CELL = (0.36, 0.15)  # inches that a number needs

Maps = list[tuple[str, pd.DataFrame]]  # titles, and a row for each head


def layer_map(results: RunData, metric: str, estimators: str | None = None) -> list[style.Chart]:
    """A panel for each population of more than FEW heads in layers; of the best estimator, or of those named."""
    known = [name for name in dict.fromkeys(estimator_names(results.summary)) if name != "uniform"]
    check_known(results, "estimators", _requested(estimators), known)
    if not can_be_compared(metric):
        return []
    rows = _in_layers(on_each_head(results, metric))
    populations = [cell for cell in by_population(rows) if cell["head"].nunique() > FEW]
    maps = [chart for cell in populations for chart in _errors(results, at_largest(cell), _requested(estimators))]
    if rows["layer"].nunique() < 2 or not maps:
        return []
    ratios = pd.concat([part["ratio"] for _, part in maps])
    low = max(min(0.1, float(ratios.min())), MIN_COLOUR)
    norm = LogNorm(10.0 ** math.floor(math.log10(low) + 1e-9), MOST if ratios.max() > 10 else 10.0)
    text = (
        f"{metric} of each head over that of {uniform_in_words(results)}, median of {draws_of(results)}. "
        f"{WORSE}: worse than uniform attention. Values beyond the colour bar have the colour of its end."
    )
    draw = partial(_draw, norm=norm, label=relative_label(metric))
    return [_chart("heads", "Error of each head", caption(results, text), maps, draw)]


def effect_map(results: RunData, metric: str, estimators: str | None = None) -> list[style.Chart]:
    """The share of each head in the predicted effect on the model, for populations of more than FEW heads in layers.

    Means over texts and draws, of the estimator with the least effect, or of those named, at the largest size.
    """
    if EFFECT not in results.trials:
        return []
    cells = by_population(_in_layers(results.trials.dropna(subset=[EFFECT])))
    maps = [chart for cell in cells for chart in _effects(results, cell, _requested(estimators))]
    if not maps:
        return []
    most = max(part["percent"].max() for _, part in maps)
    text = (
        "Share of each head in the predicted effect on the model, in percent of the sum (in the title); of each layer "
        "beside its number. To second order, from gradients of the model's output; mean over texts and draws."
    )
    draw = partial(_draw_effects, norm=LogNorm(most / 100.0, most))
    return [_chart("effect", "Where the loss comes from", caption(results, text), maps, draw, 1, 0.4)]


def _requested(estimators: str | None) -> list[str]:
    return split_list(estimators) if estimators is not None else []


def _in_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of heads whose labels have a layer and a number, labelled."""
    rows = place_heads(labelled(rows))
    return rows[rows["layer"] != ""].astype({"layer": int, "number": int})


def _errors(results: RunData, rows: pd.DataFrame, requested: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Title and rows of each map of one population: an estimator on one text."""
    best = usable(compared(rows)).replace({"ratio": {np.inf: style.PLOT_INFINITY}})
    for name in requested or best.groupby("label")["ratio"].median().nsmallest(1).index:  # empty: bounds only
        for text, part in rows[rows["label"] == name].groupby("text", sort=False):
            where = population_title(part.iloc[0], part["head"].unique())
            title = f"{with_size(results, part.iloc[0])}{text and f', {text}'}\n{where}"
            yield title, part[["label", "num_projections", "budget", "ratio", "worse", "layer", "number", "text"]]


def _effects(results: RunData, cell: pd.DataFrame, requested: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Title and rows of each map of one population: an estimator that has a sum."""
    sizes = cell["num_projections"].fillna(0)
    cell = cell[sizes == sizes.groupby(cell["label"]).transform("max")]
    means = cell.groupby(["label", "layer", "number"])[EFFECT].mean()
    sums, counts = means.groupby("label").sum(), means.groupby("label").size()
    heads = int(counts.max())
    sums = sums[np.isfinite(sums) & (sums > 0) & (counts == heads)]  # an estimator may have failed on a head
    known = [name for name in usable(compared(cell))["label"].unique() if name in sums]
    if cell["layer"].nunique() < 2 or heads <= FEW or not known:
        return
    for name in [name for name in requested if name in sums] or [min(known, key=sums.__getitem__)]:
        sized = with_size(results, cell[cell["label"] == name].iloc[0])
        where = population_title(cell.iloc[0], cell["head"].unique())
        title = f"{sized}: {amount(sums[name], unit_of(results, cell))}\n{where}"
        yield title, means[name].reset_index().assign(label=name, percent=100 * means[name].to_numpy() / sums[name])


def _chart(
    name: str, title: str, text: str, maps: Maps, draw: Callable[..., pd.DataFrame], columns: int = 2, more: float = 0.0
) -> style.Chart:
    """A panel for each map. more: inches, for the labels of layers."""
    layers, heads = (max(part[axis].nunique() for _, part in maps) for axis in ("layer", "number"))
    size = (max(5.0, 2.2 + 0.5 * heads) + more, 1.1 + 0.27 * max(layers, 6))  # room for the label of the colours
    panels = [style.Panel(name, partial(draw, part)) for name, part in maps]
    return style.Chart(name, title, text, panels, 1 if heads > 8 else columns, size)


def _draw_effects(part: pd.DataFrame, ax: Axes, norm: LogNorm) -> pd.DataFrame:
    _draw(part.assign(ratio=part["percent"], worse=False), ax, norm, "percent of the sum")
    layers = part.groupby("layer")["percent"].sum()
    names = {str(layer): f"{layer}: {share:.0f} %" for layer, share in layers.items()}
    ax.set_yticks(ax.get_yticks(), [names[label.get_text()] for label in ax.get_yticklabels()])
    return part.rename(columns={"number": "head"})


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
