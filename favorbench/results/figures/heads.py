"""A map of layers and heads: the error of one estimator on each head, relative to that of uniform attention."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from favorbench import style
from favorbench.engine.columns import describe_cell
from favorbench.errors import ScenarioError
from favorbench.registry import nearest, split_list
from favorbench.results.figures.blocks import MOST, can_be_relative, caption, draws_of, relative_label
from favorbench.results.heads import FEW, POPULATION, number, on_each_head
from favorbench.results.run import RunData
from favorbench.results.summary import at_largest, compared, estimator_name, is_oracle
from favorbench.results.tables import at_size, size_axis

MIN_COLOUR = 1e-3  # ratios below have the same colour
WORSE = "×"
_LABEL = r"L(?P<layer>\d+)H(?P<number>\d+)(?:@.+)?"
_CELL = (0.36, 0.15)  # inches that a number needs


def layer_map(results: RunData, metric: str, estimators: str | None = None) -> list[style.Chart]:
    """A panel for each population of more than FEW heads in layers; of the best estimator, or of those named."""
    requested = _requested(results, estimators)
    labels = results.summary["head"].str.extract(_LABEL)
    if labels["layer"].dropna().nunique() < 2 or not can_be_relative(metric):
        return []
    rows = on_each_head(results, metric)
    rows = rows.join(rows["head"].str.extract(_LABEL)).dropna(subset=["layer"])
    rows = rows.assign(
        estimator=[estimator_name(row) for _, row in rows.iterrows()],
        layer=rows["layer"].astype(int), number=rows["number"].astype(int),
    )  # fmt: skip
    maps: list[tuple[str, pd.DataFrame]] = []
    for _, cell in rows.groupby(list(POPULATION), sort=False, dropna=False):
        if cell["head"].nunique() > FEW:
            maps += _maps(results, at_largest(cell), requested)
    if not maps:
        return []
    most = max(float(part["ratio"].max()) for _, part in maps)
    low = max(min(0.1, *(float(part["ratio"].min()) for _, part in maps)), MIN_COLOUR)
    norm = LogNorm(10.0 ** math.floor(math.log10(low) + 1e-9), MOST if most > 10 else 10.0)
    layers, heads = (max(part[name].nunique() for _, part in maps) for name in ("layer", "number"))
    text = (
        f"{metric} of each head over that of uniform attention (the mean of V), median of {draws_of(results)}. "
        f"{WORSE}: worse than uniform attention. Values beyond the colour bar have the colour of its end."
    )
    drawn = [style.Panel(title, partial(_draw, part, norm=norm, label=relative_label(metric))) for title, part in maps]
    size = (max(5.0, 2.2 + 0.5 * heads), 1.1 + 0.27 * layers)
    title = "Error of each head"
    return [style.Chart("heads", title, caption(results, text), drawn, 1 if heads > 8 else 2, size)]


def _requested(results: RunData, estimators: str | None) -> list[str]:
    """The estimators named. Raises ScenarioError for one that the run does not have."""
    there = list(dict.fromkeys(estimator_name(row) for _, row in results.summary.iterrows()))
    there.remove("uniform")
    names = split_list(estimators) if estimators is not None else []
    for name in names:
        if name not in there:
            known = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
            raise ScenarioError(f"`estimators`: {results.path} has no {name!r}{nearest(name, there)}; it has {known}")
    return names


def _maps(results: RunData, largest: pd.DataFrame, requested: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Title and rows of each map of one population: an estimator on one text."""
    found = []
    where = f"{largest['head'].nunique()} heads of {describe_cell({**largest.iloc[0], 'head': '-'})}"
    texts = largest["head"].str.partition("@")[2]
    for name in requested or [_best(largest)]:
        for text, part in largest[largest["estimator"] == name].groupby(texts, sort=False):
            size = part[size_axis(results)].iloc[0]
            sized = name if pd.isna(size) else f"{name} at {at_size(results.scenario.budget, size)}"
            kept = part[["estimator", "num_projections", "budget", "ratio", "worse", "layer", "number"]].assign(
                text=text
            )
            found.append((f"{', '.join(filter(None, [sized, str(text)]))}\n{where}", kept))
    return found


def _best(rows: pd.DataFrame) -> str:
    """The estimator with the smallest median ratio over heads, bounds aside."""
    usable = compared(rows)
    usable = usable[[not is_oracle(str(name)) for name in usable["map"]]]
    return str(usable.replace({"ratio": {np.inf: style.PLOT_INFINITY}}).groupby("estimator")["ratio"].median().idxmin())


def _draw(part: pd.DataFrame, ax: Axes, norm: LogNorm, label: str) -> pd.DataFrame:
    grid, worse = (part.pivot(index="layer", columns="number", values=name) for name in ("ratio", "worse"))
    ratios = grid.to_numpy(dtype=float)
    mesh = ax.pcolormesh(
        np.ma.masked_invalid(np.clip(ratios, norm.vmin, norm.vmax)), cmap="cividis", norm=norm, linewidth=0
    )
    points = _number_size(ratios.shape)
    for (i, j), ratio in np.ndenumerate(ratios):
        if not math.isnan(ratio):
            mark = WORSE if worse.iloc[i, j] else ""
            value = number(ratio) if ratio <= 9999 else ">1e4"
            dark = norm(min(max(ratio, float(norm.vmin or 0)), float(norm.vmax or 1))) < 0.55
            ax.text(
                j + 0.5, i + 0.5, f"{mark}{value}" if points else mark, ha="center", va="center",
                fontsize=points or style.font_size(), fontweight="bold" if mark else "normal",
                color=style.PAPER if dark else style.INK,
            )  # fmt: skip
    ax.grid(False)
    ax.invert_yaxis()
    for axis, names in ((ax.xaxis, grid.columns), (ax.yaxis, grid.index)):
        step = -(-len(names) // 20)
        axis.set_ticks([place + 0.5 for place in range(0, len(names), step)], [str(name) for name in names[::step]])
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
