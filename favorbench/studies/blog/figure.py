"""The blog post's figures: errors as published and corrected, side by side, and the kernel trick in two pictures."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from favorbench import style
from favorbench.kernels import polynomial_features
from favorbench.numerics.streams import stream
from favorbench.results.figures.blocks import baseline_look

TITLES = {"published": "as published", "corrected": "corrected"}
TITLE_OF = {
    "iid-vs-ortho": "IID against orthogonal projections",
    "trig-vs-positive": "Trigonometric against positive features",
}
CLASSES = ("outer circle, radius 1", "inner circle, radius 0.3")
RADII = (1.0, 0.3)
NOISE = 0.05


def chart(name: str, scale: float, curves: pd.DataFrame, baselines: pd.DataFrame) -> style.Chart:
    """curves: version, curve, map, sampler, R, n, mean, std. baselines: estimator, R, mean."""
    best = baselines["estimator"] == "best-rank"
    means = [*curves["mean"], *curves["mean"] + curves["std"], *baselines[~best]["mean"]]
    panels = [
        style.Panel(TITLES[str(version)], partial(_errors, rows, baselines, means), "error")
        for version, rows in curves.groupby("version", sort=False)
    ]
    caption = (
        f"Output MSE, L = 1024, d = 16, q, k and v all times {scale:g}. {named(curves)} "
        f"Line: mean of {curves['n'].iloc[0]} draws, all redrawn for every R; band: ± population standard "
        "deviation, its lower edge never below a thousandth of the mean. R counts projections; sin/cos: 2R features."
    )
    data = pd.concat(
        [curves, baselines.rename(columns={"estimator": "curve"}).assign(version="baseline")], ignore_index=True
    )
    return style.Chart(name, TITLE_OF[name], caption, panels, len(panels), (5.2, 3.8), data=data)


def named(curves: pd.DataFrame) -> str:
    """The map and the sampler of each curve, in each version."""
    sentences = []
    for version, rows in curves.drop_duplicates(["version", "curve"]).groupby("version", sort=False):
        names = [f"{row['curve']} is {row['map']}/{row['sampler']}" for _, row in rows.iterrows()]
        sentences.append(f"{TITLES[str(version)].capitalize()}: {', '.join(names)}.")
    return " ".join(sentences)


def _errors(curves: pd.DataFrame, baselines: pd.DataFrame, means: list[float], ax: Axes) -> None:
    for i, (label, rows) in enumerate(curves.groupby("curve", sort=False)):
        low = np.maximum(rows["mean"] - rows["std"], rows["mean"] * 1e-3)
        high = rows["mean"] + rows["std"]
        style.line_with_band(ax, rows["R"], rows["mean"], (low, high), 0.15, **style.series_look(i, label=str(label)))
    for i, (name, rows) in enumerate(baselines.sort_values("R").groupby("estimator", sort=False)):
        look = baseline_look(str(name), i)
        ax.plot(rows["R"], rows["mean"], **{key: look[key] for key in look if key != "marker"})
    style.log_limits(ax, means, list(baselines[baselines["estimator"] == "best-rank"]["mean"]))
    style.number_axis(ax, list(curves["R"]))
    ax.set(xlabel="number of projections R", ylabel="mean squared error")


def circles(seed: int = 0) -> pd.DataFrame:
    """Points on two circles with Gaussian noise, and their features x1^2, sqrt2 x1 x2, x2^2."""
    rng, points = stream(seed, "circles"), 256
    inner = np.arange(points) >= points // 2
    angle = rng.uniform(0.0, 2.0 * np.pi, size=points)
    radius = np.where(inner, RADII[1], RADII[0])
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1) + NOISE * rng.standard_normal((points, 2))
    phi = polynomial_features(x, degree=2)
    columns = {"x1": x[:, 0], "x2": x[:, 1], "x1^2": phi[:, 0], "sqrt2 x1 x2": phi[:, 1], "x2^2": phi[:, 2]}
    return pd.DataFrame({"class": np.where(inner, CLASSES[1], CLASSES[0])} | columns)


def kernel_trick(data: pd.DataFrame) -> list[style.Chart]:
    """Two circles in the plane, and the same points after the degree-2 map."""
    features = ["x1^2", "x2^2", "sqrt2 x1 x2"]
    lifted = (
        "The same points as (x1^2, x2^2, sqrt2 x1 x2): |x|^2 = x1^2 + x2^2 is now linear, and the grey plane "
        "|x|^2 = 0.4 separates. Inner products of these features are (x.y)^2. (The published script draws x2^2 on "
        "the third axis too.)"
    )
    return [
        style.Chart(
            "circles", "In the plane: no line separates them", "256 points on two circles with noise 0.05.",
            [style.Panel("", partial(_plane, data))], panel_size=(4.2, 5.0), data=data[["class", "x1", "x2"]],
        ),
        style.Chart(
            "poly-circles", "After the degree-2 map: a plane separates them", lifted,
            [style.Panel("", partial(_space, data))], panel_size=(6.4, 4.6), data=data[["class", *features]],
            projection="3d",
        ),
    ]  # fmt: skip


def _scatter(data: pd.DataFrame, columns: list[str], ax: Axes) -> None:
    for name, colour, marker in zip(CLASSES, style.COLOURS, style.MARKERS, strict=False):
        points = data[data["class"] == name]
        ax.scatter(*(points[column] for column in columns), color=colour, marker=marker, s=22, label=name)


def _plane(data: pd.DataFrame, ax: Axes) -> None:
    _scatter(data, ["x1", "x2"], ax)
    ax.set(aspect="equal", xlabel="$x_1$", ylabel="$x_2$")


def _space(data: pd.DataFrame, ax: Any) -> None:
    _scatter(data, ["x1^2", "x2^2", "sqrt2 x1 x2"], ax)
    middle = RADII[0] * RADII[1] + 0.1  # the separating plane x1^2 + x2^2 = middle, edge on
    along, up = np.meshgrid([0.0, middle], [-0.9, 0.9])
    ax.plot_surface(along, middle - along, up, color="0.5", alpha=0.3, linewidth=0)
    ax.set_xlabel("$x_1^2$", labelpad=8)
    ax.set_ylabel("$x_2^2$", labelpad=8)
    ax.set(zlabel="$\\sqrt{2}\\,x_1 x_2$", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], zticks=[-0.5, 0, 0.5])
    ax.view_init(elev=16, azim=-22)
    ax.set_box_aspect(None, zoom=1.3)
