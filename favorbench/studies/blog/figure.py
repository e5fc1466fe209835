"""The blog post's two error figures: published and corrected side by side, mean and standard deviation."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.results.figures.curves import baseline_look

TITLES = {
    "published": "as published",
    "corrected": "corrected",
}


def draw(name: str, scale: float, curves: pd.DataFrame, baselines: pd.DataFrame, directory: Path) -> list[Path]:
    """curves: version, curve, map, sampler, R, n, mean, std. baselines: map, R, mean. Returns the files."""
    versions = list(dict.fromkeys(curves["version"]))
    with style.context():
        figure, axes = style.panels(len(versions), len(versions), height=3.8, width=5.2)
        for ax, version in zip(axes, versions, strict=True):
            _panel(ax, curves[curves["version"] == version], baselines)
            ax.set_title(TITLES[version])
        means = [*curves["mean"], *curves["mean"] + curves["std"], *baselines[baselines["map"] != "best-rank"]["mean"]]
        for ax in axes:  # one range for both: so the change can be seen
            style.log_limits(ax, means, list(baselines[baselines["map"] == "best-rank"]["mean"]))
        style.finish(
            figure,
            axes,
            f"{name}: output MSE, L = 1024, d = 16, q, k and v all times {scale:g}. {named(curves)} "
            f"Line: mean of {curves['n'].iloc[0]} draws, all redrawn for every R; band: ± population standard "
            "deviation, its lower edge never below a thousandth of the mean. R counts projections; sin/cos: 2R "
            "features.",
        )
        baseline_rows = baselines.rename(columns={"map": "curve"}).assign(version="baseline")
        return style.save(figure, directory, name, pd.concat([curves, baseline_rows], ignore_index=True))


def named(curves: pd.DataFrame) -> str:
    """Which map and sampler each curve is, in each version."""
    sentences = []
    for version, rows in curves.drop_duplicates(["version", "curve"]).groupby("version", sort=False):
        names = [f"{row['curve']} is {row['map']}/{row['sampler']}" for _, row in rows.iterrows()]
        sentences.append(f"{TITLES[str(version)].capitalize()}: {', '.join(names)}.")
    return " ".join(sentences)


def _panel(ax: Axes, curves: pd.DataFrame, baselines: pd.DataFrame) -> None:
    for i, (label, rows) in enumerate(curves.groupby("curve", sort=False)):
        low = np.maximum(rows["mean"] - rows["std"], rows["mean"] * 1e-3)
        look = style.look(i)
        ax.fill_between(rows["R"], low, rows["mean"] + rows["std"], color=look["color"], alpha=0.15, linewidth=0)
        ax.plot(rows["R"], rows["mean"], markersize=5, label=str(label), **look)
    for i, (name, rows) in enumerate(baselines.sort_values("R").groupby("map", sort=False)):
        look: dict[str, Any] = baseline_look(str(name), i) | {"marker": None}
        ax.plot(rows["R"], rows["mean"], zorder=1.5, linewidth=1.6, **look)
    style.number_axis(ax, list(curves["R"]))
    ax.set_xlabel("R")
    ax.set_ylabel("output MSE")
