"""The kernel trick of the blog post: two circles that an explicit feature map separates."""

from pathlib import Path

import numpy as np
import pandas as pd

from favorbench import style
from favorbench.kernels import polynomial_features
from favorbench.numerics.streams import stream

CLASSES = ("outer circle, radius 1", "inner circle, radius 0.3")

RADII = (1.0, 0.3)

NOISE = 0.05


def circles(seed: int = 0, points: int = 256) -> pd.DataFrame:
    """Points on two circles with Gaussian noise, and their features x1^2, sqrt2 x1 x2, x2^2."""
    rng = stream(seed, "circles")
    inner = np.arange(points) >= points // 2
    angle = rng.uniform(0.0, 2.0 * np.pi, size=points)
    radius = np.where(inner, RADII[1], RADII[0])
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1) + NOISE * rng.standard_normal((points, 2))
    phi = polynomial_features(x, degree=2)
    columns = {"x1": x[:, 0], "x2": x[:, 1], "x1^2": phi[:, 0], "sqrt2 x1 x2": phi[:, 1], "x2^2": phi[:, 2]}
    return pd.DataFrame({"class": np.where(inner, CLASSES[1], CLASSES[0])} | columns)


def draw(directory: Path, seed: int = 0) -> list[Path]:
    """Write circles and poly-circles; returns the files."""
    data = circles(seed)
    return _plane(data, directory) + _space(data, directory)


def _plane(data: pd.DataFrame, directory: Path) -> list[Path]:
    with style.context():
        figure, (ax,) = style.panels(1, 1, height=5.0)
        for name, colour, marker in zip(CLASSES, style.COLOURS, style.MARKERS, strict=False):
            points = data[data["class"] == name]
            ax.scatter(points["x1"], points["x2"], color=colour, marker=marker, s=22, label=name)
        ax.set_aspect("equal")
        ax.set_xlabel("$x_1$")
        ax.set_ylabel("$x_2$")
        ax.set_title("In the plane: no line separates them")
        style.finish(figure, [ax], "256 points on two circles with noise 0.05.")
        return style.save(figure, directory, "circles", data[["class", "x1", "x2"]])


def _space(data: pd.DataFrame, directory: Path) -> list[Path]:
    with style.context():
        figure = style.Figure(figsize=(6.4, 5.2), layout="constrained")
        ax = figure.add_subplot(projection="3d")
        features = ("x1^2", "x2^2", "sqrt2 x1 x2")
        for name, colour, marker in zip(CLASSES, style.COLOURS, style.MARKERS, strict=False):
            points = data[data["class"] == name]
            ax.scatter(
                points["x1^2"],
                points["x2^2"],
                zs=points["sqrt2 x1 x2"].to_numpy(),
                color=colour,
                marker=marker,
                s=22,
                label=name,
            )
        # The separating plane x1^2 + x2^2 = c, edge on.
        middle = RADII[0] * RADII[1] + 0.1
        along, up = np.meshgrid([0.0, middle], [-0.9, 0.9])
        ax.plot_surface(along, middle - along, up, color="0.5", alpha=0.3, linewidth=0)  # pyright: ignore[reportAttributeAccessIssue]
        ax.set_xlabel("$x_1^2$", labelpad=8)
        ax.set_ylabel("$x_2^2$", labelpad=8)
        ax.set(zlabel="$\\sqrt{2}\\,x_1 x_2$", zticks=[-0.5, 0, 0.5])
        ax.set_xticks([0, 0.5, 1])
        ax.set_yticks([0, 0.5, 1])
        ax.view_init(elev=16, azim=-22)  # pyright: ignore[reportAttributeAccessIssue]
        ax.set_box_aspect(None, zoom=0.9)  # pyright: ignore[reportArgumentType, reportCallIssue]
        ax.set_title("After the degree-2 map: a plane separates them")
        style.finish(
            figure,
            [ax],
            "The same points as (x1^2, x2^2, sqrt2 x1 x2): |x|^2 = x1^2 + x2^2 is now linear, and the grey plane "
            "|x|^2 = 0.4 separates. Inner products of these features are (x.y)^2. (The published script draws x2^2 on "
            "the third axis too.)",
        )
        return style.save(figure, directory, "poly-circles", data[["class", *features]])
