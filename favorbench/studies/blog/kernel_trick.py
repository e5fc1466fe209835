"""The kernel trick in two pictures: two circles in the plane, and the same points after the degree-2 map."""

from pathlib import Path

import numpy as np
import pandas as pd

from favorbench import style
from favorbench.studies.blog.circles import CLASSES, RADII, circles


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
