"""heads: a map of layers and heads, the error of one estimator on each over that of uniform attention."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from favorbench import style
from favorbench.engine.columns import describe_cell
from favorbench.errors import ScenarioError
from favorbench.metrics import METRICS
from favorbench.registry import nearest, split_list
from favorbench.results.figures.choice import MOST
from favorbench.results.figures.paging import pages
from favorbench.results.heads import FEW, POPULATION, number, on_each_head
from favorbench.results.results import Results
from favorbench.results.summary import at_largest, compared, estimator_name, is_oracle
from favorbench.results.tables import at_size, draws_in_words, size_axis

DARKEST = 1e-3  # of the colours; what is less has the same

_LABEL = re.compile(r"L(?P<layer>\d+)H(?P<head>\d+)(?:@(?P<text>.+))?")

WORSE = "×"

_CELL = (0.36, 0.15)  # inches that a number needs


class Map(NamedTuple):
    """rows: layer, head (the number in its layer), ratio, worse, of one estimator at one size on one text."""

    title: str
    rows: pd.DataFrame

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows["layer"].nunique(), self.rows["head"].nunique()


def draw(results: Results, metric: str, directory: Path, estimators: str | None = None) -> list[Path]:
    """Write the figure where more than FEW heads have layers; of the best estimator, or of those asked for."""
    if not METRICS[metric].error or METRICS[metric].better != "lower":
        return []
    maps = _maps(results, metric, split_list(estimators) if estimators else [])
    if not maps:
        return []
    written = []
    layers, heads = (max(one.shape[i] for one in maps) for i in (0, 1))
    columns = 1 if heads > 8 else 2
    for suffix, page in pages(maps, columns):
        with style.context():
            height, width = 1.0 + 0.27 * layers, max(4.2, 1.4 + 0.5 * heads)
            figure, axes = style.panels(len(page), min(columns, len(page)), height=height, width=width)
            norm = LogNorm(*_range(maps))
            meshes = [_draw(ax, one, norm) for ax, one in zip(axes, page, strict=True)]
            bar = figure.colorbar(meshes[0], ax=axes, extend="both", pad=0.02, fraction=0.06)
            bar.set_label(f"{metric} / that of uniform")
            style.finish(figure, axes, style.plain(_caption(results, metric)))
            data = pd.concat([one.rows.assign(panel=one.title) for one in page], ignore_index=True)
            written += style.save(figure, directory, f"heads{suffix}", data)
    return written


def check_estimators(results: Results, asked: str | None) -> None:
    """Raise ScenarioError for an estimator that a run does not have."""
    there = list(dict.fromkeys(estimator_name(row) for _, row in results.summary.iterrows()))
    there.remove("uniform")
    for name in split_list(asked) if asked is not None else []:
        if name not in there:
            has = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
            raise ScenarioError(f"`estimators`: {results.path} has no {name!r}{nearest(name, there)}; it has {has}")


def _maps(results: Results, metric: str, asked: Sequence[str]) -> list[Map]:
    labels = results.summary["head"].str.extract(_LABEL).assign(label=results.summary["head"])
    if labels["layer"].dropna().nunique() < 2:
        return []
    rows = on_each_head(results, metric)
    rows = rows.assign(estimator=[estimator_name(row) for _, row in rows.iterrows()])
    rows = rows.merge(
        labels.drop_duplicates("label").rename(columns={"head": "number"}), left_on="head", right_on="label"
    )
    found, size = [], size_axis(results)
    for _, cell in rows.dropna(subset=["layer"]).groupby(list(POPULATION), sort=False, dropna=False):
        if cell["head"].nunique() <= FEW:
            continue
        largest = at_largest(cell)
        for name in asked or [_best(largest)]:
            one = largest[largest["estimator"] == name]
            for text, part in one.groupby(one["text"].fillna(""), sort=False):
                where = f"{cell['head'].nunique()} heads of {describe_cell({**cell.iloc[0], 'head': '-'})}"
                at = part[size].iloc[0]
                sized = name if pd.isna(at) else f"{name} at {at_size(results.scenario.budget, at)}"
                title = "\n".join([", ".join(filter(None, [sized, str(text)])), where])
                found.append(Map(title, _rows_of(part)))
    return found


def _best(rows: pd.DataFrame) -> str:
    """The estimator with the least median ratio over heads, no bound."""
    usable = compared(rows)
    usable = usable[[not is_oracle(str(name)) for name in usable["map"]]]
    medians = usable.replace({"ratio": {np.inf: 1e100}}).groupby("estimator")["ratio"].median()
    return str(medians.idxmin())


def _rows_of(part: pd.DataFrame) -> pd.DataFrame:
    kept = part[["estimator", "num_projections", "budget", "ratio", "worse"]]
    numbers = {"layer": part["layer"].astype(int), "head": part["number"].astype(int)}
    return kept.assign(**numbers, text=part["text"]).reset_index(drop=True)


def _range(maps: Sequence[Map]) -> tuple[float, float]:
    """The decades that the colours show, uniform attention's 1 among them."""
    ratios = np.concatenate([one.rows["ratio"].to_numpy(dtype=float) for one in maps])
    low = max(min(float(ratios.min()), 0.1), DARKEST)
    return 10.0 ** math.floor(math.log10(low) + 1e-9), MOST if float(ratios.max()) > 10 else 10.0


def _draw(ax: Axes, one: Map, norm: LogNorm) -> Any:
    grid = one.rows.pivot(index="layer", columns="head", values="ratio")
    worse = one.rows.pivot(index="layer", columns="head", values="worse")
    values = np.clip(grid.to_numpy(dtype=float), norm.vmin, norm.vmax)
    mesh = ax.imshow(np.ma.masked_invalid(values), cmap="cividis", norm=norm, aspect="auto")
    room = _room(ax, grid.shape)
    for (i, j), ratio in np.ndenumerate(grid.to_numpy(dtype=float)):
        if not math.isnan(ratio):
            mark = WORSE if worse.iloc[i, j] else ""
            text = f"{mark}{number(ratio) if ratio <= 9999 else '>1e4'}" if room else mark
            dark_field = norm(min(max(ratio, norm.vmin), norm.vmax)) < 0.55
            ax.text(
                j, i, text, ha="center", va="center", fontsize=room or style.font_size(),
                fontweight="bold" if mark else "normal", color=style.PAPER if dark_field else style.INK,
            )  # fmt: skip
    ax.grid(False)
    for axis, names in ((ax.xaxis, grid.columns), (ax.yaxis, grid.index)):
        step = -(-len(names) // 20)
        axis.set_ticks(range(0, len(names), step), [str(name) for name in names[::step]])
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(style.plain(one.title), fontsize=style.font_size() - 1)
    return mesh


def _room(ax: Axes, shape: tuple[int, ...]) -> float:
    """Points of the numbers in the cells, 0 where they have no room."""
    size = style.wanted().size
    if size is None:
        return 8.0
    enough = (size[0] - 1.1) / shape[1] >= _CELL[0] and (size[1] - 0.9) / shape[0] >= _CELL[1]
    return 6.0 if enough else 0.0


def _caption(results: Results, metric: str) -> str:
    partial = "" if results.manifest["complete"] else "PARTIAL RUN. "
    draws = draws_in_words(results.summary["n"])
    return (
        f"{partial}{results.scenario.name}: {metric} of each head, median of {draws}, over "
        f"that of uniform attention (the mean of V). {WORSE}: worse than uniform attention. What is beyond the "
        "colour bar has the colour of its end."
    )
